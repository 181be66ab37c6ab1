r"""Store: files that are old or new and never a third thing, with a digest over every byte.

**Transaction.** Contents are written to drafts beside their targets and flushed to the disk; then
each draft is renamed and the folder is flushed. A rename is atomic, so a reader of one file sees
all of the old or all of the new. In a folder of several files one of them, ``model.safetensors``,
holds everything there is to know, and its rename is the commit; what else is there is a *view* of
it, renamed afterwards. Between those renames a view is of another save than the commit, or missing:
it is whole, it says of which save it is, and nothing is read from it. Writers hold a lock on the
folder while they rename, so that two of them do not interleave; a lock on its draft tells the
draft of a writer at work from that of a killed one, which the next writer removes.

**Seal.** With :math:`b(s)` for the bytes :math:`s` whose 64 places of the digest are zeros, a file
holds :math:`d = \mathrm{SHA256}(b(s))` in those places. Every other byte is in :math:`b(s)`, so
that any change is noticed, of the digest as well as of the rest. It guards against accidents;
whoever can write the file can also seal it again, so a bound that is read is proved again or is
"claimed". Nothing is parsed before the seal holds, and what is parsed has a largest size and depth.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from iceform.codec import decode
from iceform.errors import CapacityError, IntegrityError

fcntl: ModuleType | None
try:
    import fcntl
except ModuleNotFoundError:  # Windows: no locks, so that views may be of another save
    fcntl = None

__all__ = ["write"]

FORMAT = 2
WEIGHTS = "model.safetensors"
LARGEST_JSON = 64 * 2**20  # bytes
DEEPEST_JSON = 100  # brackets within brackets
_BLANK = b"0" * 64
_HEAD = b'{"__metadata__":{"sha256":"'  # of every tensor file, after 8 bytes of length
_TAIL = re.compile(rb'"sha256": "([0-9a-f]{64})"\s*\}(?:\s*\}| -->)\s*\Z')  # of JSON and Markdown
_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])', re.DOTALL)
_TAIL_LENGTH = 256  # bytes at the end among which the seal of a text is

Content = Sequence[bytes | memoryview]  # of a file, in parts


@dataclass(frozen=True)
class SealedFile:
    """What a sealed file holds: its kind, what it says, its tensors and its digest."""

    kind: str
    content: dict[str, Any]
    tensors: dict[str, Tensor]
    sha256: str


# ---------------------------------------------------------------------------------------------
# one transaction
# ---------------------------------------------------------------------------------------------


def write(
    contents: Mapping[Path, bytes | Content],
    check: Callable[[Path], None] | None = None,
    withdrawn: Sequence[Path] = (),
) -> None:
    """Replace files: every draft is on the disk before the first rename, which is the commit.

    Parameters
    ----------
    contents
        By path, the commit first; folders are made.
    check
        Called with the first draft when it is whole; what it raises leaves everything as it was.
    withdrawn
        Views that other libraries read beside the commit: not there while they could be of
        another save.

    Raises
    ------
    OSError
        If the disk is full or fails. No draft is left; before the commit no target has changed.
    """
    folders = sorted({path.parent for path in contents})
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as drafts:
        made = [drafts.enter_context(_draft(path)) for path in contents]
        for (draft, handle), content in zip(made, contents.values(), strict=True):
            for part in [content] if isinstance(content, bytes) else content:
                _write_out(handle, part)
            os.fsync(handle)
            if check is not None and draft == made[0][0]:
                check(draft)
        with ExitStack() as locks:
            held = [locks.enter_context(_alone(folder)) for folder in folders]
            for path in withdrawn:
                path.unlink(missing_ok=True)
            for (draft, _), path in zip(made, contents, strict=True):
                os.replace(draft, path)
            for lock in held:
                if lock is not None:
                    os.fsync(lock)


@contextmanager
def _draft(path: Path) -> Iterator[tuple[Path, int]]:
    """A new file beside ``path``, open and locked; gone afterwards unless it was renamed."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.draft")
    with _alone(path.parent):
        _sweep(path)
        new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        handle = os.open(draft, new, 0o666)
        _lock(handle)
    try:
        yield draft, handle
    finally:
        os.close(handle)
        with suppress(FileNotFoundError):
            os.unlink(draft)


def _write_out(handle: int, part: bytes | memoryview) -> None:
    rest = memoryview(part)
    while rest:
        rest = rest[os.write(handle, rest) :]


@contextmanager
def _alone(folder: Path) -> Iterator[int | None]:
    """Hold a folder's lock, for the moments in which drafts are made or renamed."""
    if fcntl is None:
        yield None
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a disk without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    """Whether nobody else holds this file, which is then held."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(path: Path) -> None:
    """Remove drafts of ``path`` whose writers are dead; the folder is held."""
    start, end = f".{path.name}.", ".draft"
    names = [n for n in os.listdir(path.parent) if n.startswith(start) and n.endswith(end)]
    for name in names:
        with suppress(OSError):
            handle = os.open(path.parent / name, os.O_RDONLY)
            try:
                if _lock(handle):
                    os.unlink(path.parent / name)
            finally:
                os.close(handle)


# ---------------------------------------------------------------------------------------------
# one seal
# ---------------------------------------------------------------------------------------------


def _seal(parts: Content, at: int) -> tuple[Content, str]:
    """The parts of a file with the digest at its place in the first of them."""
    digest = sha256()
    for part in parts:
        digest.update(part)
    first = bytes(parts[0])
    assert first[at : at + 64] == _BLANK
    found = digest.hexdigest()
    return [first[:at] + found.encode() + first[at + 64 :], *parts[1:]], found


def _sealed_text(data: bytes) -> bytes:
    match = _TAIL.search(data)
    assert match is not None
    (sealed, *_), _ = _seal([data], match.start(1))
    return bytes(sealed)


def _check_seal(data: bytes, at: int, source: Path) -> str:
    """The digest at its place, if it is that of the rest."""
    view, digest = memoryview(data), sha256()
    for part in (view[:at], _BLANK, view[at + 64 :]):
        digest.update(part)
    if digest.hexdigest().encode() != data[at : at + 64]:
        raise IntegrityError(
            f"{source} is not what was saved there: it was altered, its SHA-256 is not the one "
            "that it records; save it again"
        )
    return digest.hexdigest()


def _unsealed(source: Path) -> IntegrityError:
    return IntegrityError(
        f"{source} cannot be read: it has no seal of format {FORMAT}; it was altered or cut short, "
        "or an earlier version wrote it: read it with that version, and save it again with this one"
    )


def _read_bytes(path: Path, most: int | None = None) -> bytes:
    try:
        if not path.is_file():
            raise IntegrityError(f"{path} cannot be read: there is no such file")
        if most is not None and path.stat().st_size > most:
            raise IntegrityError(f"{path} cannot be read: it is longer than {most} bytes")
        return path.read_bytes()
    except OSError as failed:
        raise IntegrityError(f"{path} cannot be read: {failed.strerror or failed}") from None


def parse_json(data: bytes, source: object) -> dict[str, Any]:
    """A JSON object, refused beyond :data:`LARGEST_JSON` and :data:`DEEPEST_JSON`."""
    if len(data) > LARGEST_JSON:
        raise IntegrityError(f"{source} cannot be read: it is longer than {LARGEST_JSON} bytes")
    depth = 0
    for match in _NESTING.finditer(data):
        depth += (match[1] is not None) - (match[2] is not None)
        if depth > DEEPEST_JSON:
            raise IntegrityError(
                f"{source} cannot be read: its brackets are nested more than {DEEPEST_JSON} deep"
            )
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as broken:
        raise IntegrityError(f"{source} cannot be read: {broken}") from None
    if not isinstance(found, dict):
        raise IntegrityError(f"{source} cannot be read: it holds a {type(found).__name__}")
    return found


@dataclass(frozen=True)
class _Envelope:
    """What a sealed file says of itself: a text, what it is a view of; tensors, their content."""

    format: Any
    kind: str
    of: str | None = None
    sha256: str | None = None
    content: dict[str, Any] = field(default_factory=dict)


def _envelope(said: Any, kind: str | None, source: Path) -> _Envelope:
    """The same, if it is of this format and of the kind that is asked for."""
    try:
        found = decode(_Envelope, said)
    except IntegrityError:
        raise _unsealed(source) from None
    if found.format != FORMAT:
        raise IntegrityError(
            f"{source} is of format {found.format!r}, this version reads {FORMAT}; use the version "
            "that wrote it"
        )
    if kind not in (None, found.kind):
        raise IntegrityError(f"{source} holds a {found.kind}, not a {kind}")
    return found


# ---------------------------------------------------------------------------------------------
# JSON
# ---------------------------------------------------------------------------------------------


def sealed_json(content: Mapping[str, Any], kind: str, of: str | None = None) -> bytes:
    """A JSON object with its seal under "iceform"; ``of`` is the digest of what it is a view of."""
    envelope = {"format": FORMAT, "kind": kind, "of": of, "sha256": _BLANK.decode()}
    data = json.dumps({**content, "iceform": envelope}, indent=1).encode()
    return _sealed_text(data + b"\n")


def sealed_markdown(text: str, kind: str, of: str) -> bytes:
    """Markdown with its seal in a comment at the end."""
    envelope = {"format": FORMAT, "kind": kind, "of": of, "sha256": _BLANK.decode()}
    return _sealed_text(f"{text}\n<!-- iceform: {json.dumps(envelope)} -->\n".encode())


def _check_text(path: Path) -> bytes:
    """The bytes of a sealed text, none of which has changed."""
    data = _read_bytes(path, LARGEST_JSON)
    match = _TAIL.search(data, max(0, len(data) - _TAIL_LENGTH))
    if match is None:
        raise _unsealed(path)
    _check_seal(data, match.start(1), path)
    return data


def write_json(path: Path, content: Mapping[str, Any], kind: str) -> None:
    """Write one sealed JSON object; the same content is the same bytes."""
    write({path: sealed_json(json.loads(json.dumps(content, sort_keys=True)), kind)})


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """What :func:`write_json` wrote; anything else raises ``IntegrityError``."""
    content = parse_json(_check_text(path), path)
    _envelope(content.pop("iceform", None), kind, path)
    return content


# ---------------------------------------------------------------------------------------------
# tensors
# ---------------------------------------------------------------------------------------------


def sealed_tensors(
    kind: str, content: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[Content, str]:
    """A safetensors file whose metadata hold ``content`` and the seal; its digest."""
    raw = save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})
    start = 8 + int.from_bytes(raw[:8], "little")
    said = json.dumps({"format": FORMAT, "kind": kind, "content": content})
    metadata = {"sha256": _BLANK.decode(), "format": "pt", "iceform": said}
    header = {"__metadata__": metadata, **json.loads(raw[8:start])}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    if len(head) > LARGEST_JSON:  # which is less than safetensors reads
        raise CapacityError(
            f"the description of this {kind} takes {len(head)} bytes, a file holds {LARGEST_JSON}"
        )
    parts: Content = [len(head).to_bytes(8, "little") + head, memoryview(raw)[start:]]
    return _seal(parts, 8 + len(_HEAD))


def write_tensors(
    path: Path, kind: str, content: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> str:
    """Write one sealed safetensors file; its digest."""
    parts, digest = sealed_tensors(kind, content, tensors)
    write({path: parts})
    return digest


def read_tensors(path: Path, kind: str | None = None) -> SealedFile:
    """What :func:`write_tensors` wrote; anything else raises ``IntegrityError``."""
    data = _read_bytes(path)
    if data[8 : 8 + len(_HEAD)] != _HEAD:
        raise _unsealed(path)
    digest = _check_seal(data, 8 + len(_HEAD), path)
    try:
        header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")], path)
        said = parse_json(header["__metadata__"]["iceform"].encode(), path)
        # Cloned: these tensors' memory is not aligned as torch's own, which changes sums.
        tensors = {name: t.clone() for name, t in load(data).items()}
    except (SafetensorError, KeyError, TypeError, AttributeError) as broken:
        raise IntegrityError(f"{path} cannot be read: {broken!r}") from None
    if "content" not in said:
        raise IntegrityError(f"{path} cannot be read: it describes nothing")
    envelope = _envelope(said, kind, path)
    return SealedFile(envelope.kind, envelope.content, tensors, digest)


# ---------------------------------------------------------------------------------------------
# folders
# ---------------------------------------------------------------------------------------------


def write_folder(
    folder: Path,
    kind: str,
    content: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    views: Callable[[str], Mapping[str, Mapping[str, Any] | str]],
    withdrawn: Sequence[str] = (),
    plain: Mapping[str, Mapping[str, Any]] = {},
) -> str:
    """Write ``model.safetensors``, which is the commit, and the views of it; its digest.

    ``views`` gives, for the digest, a JSON object or Markdown by file name; ``withdrawn`` is as for
    :func:`write`. ``plain`` are JSON files for readers that know no seal; we read nothing of them.
    """
    parts, digest = sealed_tensors(kind, content, tensors)
    contents: dict[Path, bytes | Content] = {folder / WEIGHTS: parts}
    for name, view in views(digest).items():
        seal = sealed_markdown if isinstance(view, str) else sealed_json
        contents[folder / name] = seal(view, name, digest)  # type: ignore[arg-type]
    for name, held in plain.items():
        contents[folder / name] = json.dumps(held, indent=1).encode()
    write(contents, withdrawn=[folder / name for name in withdrawn])
    return digest


def read_folder(folder: Path, views: Sequence[str], kind: str | None = None) -> SealedFile:
    """What a folder's commit holds; a view that is there must be whole, of whichever save."""
    if not folder.is_dir():
        raise IntegrityError(f"{folder} cannot be read: there is no such folder")
    stored = read_tensors(folder / WEIGHTS, kind)
    for name in views:
        if (folder / name).exists():
            _check_text(folder / name)
    return stored
