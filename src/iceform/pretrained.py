"""``save_pretrained`` and ``from_pretrained``, for whatever can be kept in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from iceform.errors import IntegrityError

__all__ = ["Pretrained"]


class Pretrained:
    """Saved in the layout of the Hugging Face Hub; see :mod:`iceform.export.hub`."""

    def save_pretrained(self, path: str | Path) -> Path:
        """Write ``config.json``, ``model.safetensors`` and a model card into a folder."""
        from iceform.export import hub

        return hub.save_pretrained(self, path)

    @classmethod
    def from_pretrained(cls, path: str | Path, **options: Any) -> Self:
        """Read it back, from the folder alone; a changed byte raises ``IntegrityError``."""
        from iceform.export import hub

        found = hub.from_pretrained(path, **options)
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
