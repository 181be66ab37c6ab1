"""Folders in the layout of the Hugging Face Hub: ``config.json``, ``model.safetensors``, a card.

Networks, machines, emulators, programs and prompts are all kept this way. Everything is read from
the folder alone, without a network connection and without unpickling; one SHA-256 covers config
and tensors together, so that a changed byte in either is noticed. Files are the same for every
device.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from iceform import algorithms
from iceform.attention import Features, Prompt
from iceform.constructions import Emulator
from iceform.errors import IceformError, IntegrityError, ProgramError
from iceform.export.card import model_card
from iceform.functions import Loss
from iceform.machine import Machine, Rows, Stream
from iceform.networks import InContext

__all__ = ["from_pretrained", "save_pretrained"]

_FORMAT = 1
_LIBRARY = "iceform"
_WEIGHTS = "model.safetensors"
_CONFIG = "config.json"
_CARD = "README.md"


@dataclass(frozen=True)
class _Kind:
    """How one kind of object becomes data, and back."""

    type: type
    pack: Callable[[Any], tuple[dict[str, Any], dict[str, Tensor]]]
    unpack: Callable[..., Any]


def save_pretrained(thing: Any, path: str | Path) -> Path:
    """Write a network, machine, emulator, program or prompt into the folder ``path``.

    Raises
    ------
    ProgramError
        If it is none of these, or a program with a function of the user's own.
    """
    name = _kind_of(thing)
    content, tensors = _KINDS[name].pack(thing)
    stored = {k: t.detach().cpu().contiguous().clone() for k, t in tensors.items()}
    config: dict[str, Any] = {
        "format": _FORMAT,
        "library_name": _LIBRARY,
        "type": name,
        "weights": _WEIGHTS,
        "content": content,
    }
    config["sha256"] = _checksum(config, stored)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / _WEIGHTS, lambda draft: save_file(stored, draft, metadata={"format": "pt"}))
    _write(folder / _CONFIG, lambda draft: draft.write_text(json.dumps(config, indent=2), "utf-8"))
    card = model_card(name, thing, config["sha256"])
    _write(folder / _CARD, lambda draft: draft.write_text(card, "utf-8"))
    return folder


def from_pretrained(path: str | Path, **options: Any) -> Any:
    """Read back what :func:`save_pretrained` wrote.

    Parameters
    ----------
    path
        The folder; nothing outside it is read.
    options
        ``f=`` for an emulator of the user's own function, ``model=`` for a network of a shape
        that the file does not hold.

    Raises
    ------
    IntegrityError
        If a file is missing, truncated or altered, or the config names one outside the folder.
    """
    folder = Path(path)
    config = _read_config(folder)
    tensors = _read_tensors(_inside(folder, config.get("weights")))
    if config.get("sha256") != _checksum(config, tensors):
        raise IntegrityError(
            f"{folder} is not what was saved there: its digest does not match, the config or the "
            "weights were altered"
        )
    kind = _KINDS.get(config.get("type", ""))
    if kind is None:
        raise IntegrityError(f"{folder} holds a {config.get('type')!r}, which is not known here")
    try:
        return kind.unpack(config["content"], tensors, **options)
    except ProgramError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        if isinstance(broken, IceformError):
            raise
        raise IntegrityError(f"{folder} cannot be read by this version: {broken!r}") from None


# ---------------------------------------------------------------------------------------------
# files
# ---------------------------------------------------------------------------------------------


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as broken:
        raise IntegrityError(f"{folder} cannot be read: {broken}") from None
    if not isinstance(config, dict) or config.get("library_name") != _LIBRARY:
        raise IntegrityError(f"{folder}/{_CONFIG} was not written by {_LIBRARY}")
    if config.get("format") != _FORMAT:
        raise IntegrityError(
            f"{folder}/{_CONFIG} has format {config.get('format')!r}, this version reads {_FORMAT}"
        )
    return config


def _inside(folder: Path, name: Any) -> Path:
    """The file that a config names, if that is a plain name inside the folder."""
    plain = isinstance(name, str) and name not in ("", ".", "..")
    if not plain or Path(name).name != name or "\\" in name or "\0" in name or ":" in name:
        raise IntegrityError(
            f"{folder}/{_CONFIG} names the weights {name!r}; only a file inside the folder is read"
        )
    return folder / str(name)


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        # Cloned: the file's memory map is not aligned as torch's own memory, which changes sums.
        return {k: t.clone() for k, t in load_file(file).items()}
    except (OSError, ValueError, SafetensorError) as broken:
        raise IntegrityError(f"{file} cannot be read: {broken}") from None


def _checksum(config: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """SHA-256 of config and tensors, but for the checksum itself."""
    rest = {k: v for k, v in config.items() if k != "sha256"}
    sha = sha256(json.dumps(rest, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    """Write beside the target, then rename: a reader never sees half a file."""
    draft = path.with_name(path.name + ".draft")
    try:
        write(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------------
# kinds
# ---------------------------------------------------------------------------------------------


def _kind_of(thing: Any) -> str:
    for name, kind in _KINDS.items():
        if isinstance(thing, kind.type):
            return name
    raise ProgramError(
        f"a {type(thing).__name__} cannot be saved; networks, machines, emulators, programs and "
        "prompts can"
    )


def _pack_machine(machine: Machine) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if isinstance(machine, Rows):
        head, tensors = machine.head.pack()
        return {"head": head, "machine": machine.describe()}, tensors
    return {"machine": machine.describe()}, dict(machine.network.state_dict())


def _unpack_machine(content: dict[str, Any], tensors: dict[str, Tensor]) -> Machine:
    if content["machine"].get("layout") == Stream.layout:
        return Stream.around(tensors, content["machine"], "the folder")
    head = Emulator.unpack(content["head"], tensors, folder="the folder")
    return Rows.around(head, content["machine"], "the folder")


def _unpack_emulator(
    content: dict[str, Any], tensors: dict[str, Tensor], f: Any = None
) -> Emulator:
    return Emulator.unpack(content, tensors, f=f, folder="the folder")


def _pack_program(program: algorithms.Algorithm) -> tuple[dict[str, Any], dict[str, Tensor]]:
    plain: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for field in fields(program):
        if not field.init:
            continue
        value = getattr(program, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value
        elif isinstance(value, Loss):
            plain[field.name] = {"loss": _named(value)}
        else:
            plain[field.name] = value
    tensors = tensors or {"none": torch.zeros(0)}
    return {"program": program.name, "arguments": plain}, tensors


def _named(loss: Loss) -> dict[str, Any]:
    config = loss.to_config()
    if config is None:
        raise ProgramError(
            f"the loss {loss.derivative.name} is a function of your own, which files do not hold; "
            "save the prompt instead: machine.prompt(program, X, y)"
        )
    return config


def _unpack_program(content: dict[str, Any], tensors: dict[str, Tensor]) -> algorithms.Algorithm:
    kind = algorithms.Algorithm.kinds.get(content["program"])
    if kind is None:
        raise IntegrityError(f"{content['program']!r} is not a program of this library")
    arguments = {
        k: Loss.from_config(v["loss"]) if isinstance(v, dict) else v
        for k, v in content["arguments"].items()
    }
    given = {k: t for k, t in tensors.items() if k != "none"}
    return kind(**arguments, **given)


def _pack_prompt(prompt: Prompt) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return {
        "features": [list(pair) for pair in prompt.features.sizes],
        "roles": list(prompt.roles),
    }, {"tokens": prompt.tokens}


def _unpack_prompt(content: dict[str, Any], tensors: dict[str, Tensor]) -> Prompt:
    features = Features(tuple((str(name), int(size)) for name, size in content["features"]))
    tokens = tensors["tokens"]
    if tuple(tokens.shape[-2:]) != (len(content["roles"]), features.total):
        raise IntegrityError(f"tokens of shape {tuple(tokens.shape)} do not fit their description")
    return Prompt(tokens, features, tuple(content["roles"]))


_KINDS = {
    "InContext": _Kind(InContext, InContext.pack, InContext.unpack),
    "Machine": _Kind(Machine, _pack_machine, _unpack_machine),
    "Emulator": _Kind(Emulator, Emulator.pack, _unpack_emulator),
    "Program": _Kind(algorithms.Algorithm, _pack_program, _unpack_program),
    "Prompt": _Kind(Prompt, _pack_prompt, _unpack_prompt),
}
