"""Whatever can be kept in a folder: ``config.json``, ``model.safetensors`` and a card.

A class says ``kept_as="Name"`` where it is defined, and packs and unpacks itself. Everything is
read from ``model.safetensors``, whose metadata hold the config, without a network connection and
without unpickling (:mod:`iceform.store`); config and card are views of it. A changed byte in any of
the three is noticed. Files are the same for every device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor

from iceform import extensions, store
from iceform.errors import IceformError, IntegrityError, ProgramError
from iceform.validation import path_of

__all__ = ["Pretrained"]

_CONFIG = "config.json"
_CARD = "README.md"
_HEAD = """\
---
library_name: iceform
tags:
- iceform
- in-context
- {tag}
---

# {title}

{what}

```python
import iceform

loaded = iceform.load("path/to/this/folder")
```
"""
_KINDS: dict[str, type[Pretrained]] = {}
# Kinds that packages beside iceform bring, and which.
_ELSEWHERE = {"Machine": "iceform-estimators", "Program": "iceform-estimators"}


class Pretrained:
    """Kept in the layout of the Hugging Face Hub.

    A subclass defined with ``kept_as="Name"`` supplies :meth:`pack` and :meth:`unpack`. Where a
    package defines it, an entry point ``Name`` of the group ``iceform.kinds`` names its module, so
    that :func:`iceform.load` finds it.

    Example
    -------
    >>> class Scale(Pretrained, kept_as="Scale"):
    ...     def __init__(self, by):
    ...         self.by = by
    ...
    ...     def pack(self):
    ...         return {"by": self.by}, {}
    ...
    ...     @classmethod
    ...     def unpack(cls, content, tensors, **options):
    ...         return cls(content["by"])
    >>> Scale.load(Scale(3.0).save("folder")).by  # doctest: +SKIP
    3.0
    """

    kept_as: ClassVar[str] = ""

    def __init_subclass__(cls, *, kept_as: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if kept_as:
            cls.kept_as = kept_as
            _KINDS[kept_as] = cls

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Everything that :meth:`unpack` needs: a JSON-ready content and tensors."""
        raise ProgramError(f"a {type(self).__name__} cannot be saved")

    @classmethod
    def unpack(cls, content: dict[str, Any], tensors: dict[str, Tensor], **options: Any) -> Any:
        """The inverse of :meth:`pack`."""
        raise ProgramError(f"a {cls.__name__} cannot be read")

    def card(self) -> tuple[str, dict[str, str]]:
        """For people: what it is in a sentence, and texts by their headings."""
        return f"A {type(self).__name__}.", {}

    def save_pretrained(self, path: str | Path) -> Path:
        """Write ``config.json``, ``model.safetensors`` and a model card into a folder."""
        return write(self, path)

    @classmethod
    def from_pretrained(cls, path: str | Path, **options: Any) -> Self:
        """Read it back, from the folder alone; a changed byte raises ``IntegrityError``."""
        found = read(path, **options)
        if not isinstance(found, cls):
            raise IntegrityError(
                f"{path} holds a {type(found).__name__}, not a {cls.__name__}; use "
                f"{type(found).__name__}.from_pretrained"
            )
        return found

    def save(self, path: str | Path) -> Path:
        """The same as :meth:`save_pretrained`."""
        return self.save_pretrained(path)

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Self:
        """The same as :meth:`from_pretrained`.

        ``f=`` gives an emulator the function of the user's own that it was made for, which files do
        not hold; without it the bound is "claimed", not proved again.
        """
        return cls.from_pretrained(path, **options)


def write(thing: Any, path: str | Path) -> Path:
    """Write something that can be kept into the folder ``path``.

    Raises
    ------
    ProgramError
        If it cannot be kept, or holds a function of the user's own that files do not hold.
    """
    name = getattr(thing, "kept_as", "")
    if name not in _KINDS:
        raise ProgramError(
            f"a {type(thing).__name__} cannot be saved; networks, machines, emulators, results, "
            "programs and prompts can"
        )
    if path_of(path).is_file():
        raise ProgramError(f"{path} is a file; name a folder, which is made if there is none")
    content, tensors = thing.pack()

    def views(digest: str) -> dict[str, dict[str, Any] | str]:
        config = {"library_name": "iceform", "type": name, "content": content}
        return {_CONFIG: config, _CARD: _card(name, thing, digest)}

    folder = path_of(path)
    store.write_folder(folder, name, content, tensors, views)
    return folder


def read(path: str | Path, **options: Any) -> Any:
    """Read back what :func:`write` wrote.

    Raises
    ------
    IntegrityError
        If the weights are missing, or a file is truncated, altered or of another format.
    """
    folder = path_of(path)
    stored = store.read_folder(folder, (_CONFIG, _CARD))
    reader = extensions.find("folders", stored.kind)
    if reader is not None:
        return reader(folder)
    try:
        return unpacked(stored.kind, stored.content, stored.tensors, **options)
    except ProgramError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        if isinstance(broken, IceformError):
            raise
        raise IntegrityError(f"{folder} cannot be read by this version: {broken!r}") from None


def unpacked(kind: str, content: dict[str, Any], tensors: dict[str, Tensor], **options: Any) -> Any:
    """Build what the class of this name packed."""
    if kind not in _KINDS:
        extensions.find("kinds", kind)  # a class makes itself known where it is defined
    if kind not in _KINDS:
        package = _ELSEWHERE.get(kind)
        mend = f"pip install {package}" if package else "iceform.load reads every kind"
        raise IntegrityError(f"a {kind!r} is not known here; {mend}")
    return _KINDS[kind].unpack(content, tensors, **options)


def _card(name: str, thing: Pretrained, sha256: str) -> str:
    """Markdown with the front matter that the Hub reads."""
    what, sections = thing.card()
    parts = [_HEAD.format(tag=name.lower(), title=type(thing).__name__, what=what)]
    parts += [f"## {heading}\n\n```\n{text}\n```\n" for heading, text in sections.items()]
    digest = getattr(thing, "digest", None)
    if digest:
        parts.append(f"Frozen weights, SHA-256: `{digest}`\n")
    parts.append(f"Config and tensors, SHA-256: `{sha256}`\n")
    return "\n".join(parts)
