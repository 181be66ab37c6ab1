"""Where a command may write, checked before any work is done; then all of its files or none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from iceform import store
from iceform.errors import IntegrityError, ProgramError


def check_targets(targets: Mapping[str, Path], inputs: Sequence[Path] = ()) -> None:
    """Refuse targets that could not be written, before any work is done.

    Parameters
    ----------
    targets
        What each file is, for messages, and where it goes.
    inputs
        Files that must not be overwritten.
    """
    taken = {_real(path): f"the input {path}" for path in inputs}
    for what, path in targets.items():
        real = _real(path)
        if real in taken:
            raise ProgramError(f"{what} would overwrite {taken[real]}; name another file")
        taken[real] = f"{path}, which another output goes to"
        if real.is_dir():
            raise IntegrityError(f"{what}: {path} is a directory; name a file in it")
        if real.exists() and not real.is_file():
            raise IntegrityError(f"{what}: {path} is not a plain file; name another")
        _check_folder(what, path, real.parent)


def _check_folder(what: str, path: Path, folder: Path) -> None:
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise IntegrityError(f"{what}: {path} cannot be made, {folder} is not a directory")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise IntegrityError(f"{what}: {path} cannot be made, {folder} is not writable")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Write every file or none, where links lead."""
    try:
        store.write({_real(path): content for path, content in contents.items()})
    except OSError as failed:
        named = failed.filename or ", ".join(map(str, contents))
        raise IntegrityError(f"{named} cannot be written: {failed.strerror}") from None
