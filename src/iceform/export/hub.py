"""Folders in the layout of the Hugging Face Hub: ``config.json``, ``model.safetensors``, a card.

Networks, machines, emulators, programs and prompts are all kept this way (:mod:`iceform.store`).
Everything is read from ``model.safetensors``, whose metadata hold the config, without a network
connection and without unpickling; config and card are views of it. A changed byte in any of the
three is noticed. Files are the same for every device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from iceform import algorithms, store
from iceform.attention import Features, Prompt
from iceform.constructions import Emulator
from iceform.errors import IceformError, IntegrityError, ProgramError
from iceform.export.card import model_card
from iceform.functions import Loss
from iceform.machine import Machine, Rows, Stream
from iceform.networks import InContext

__all__ = ["from_pretrained", "save_pretrained"]

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

    def views(digest: str) -> dict[str, dict[str, Any] | str]:
        config = {"library_name": "iceform", "type": name, "content": content}
        return {_CONFIG: config, _CARD: model_card(name, thing, digest)}

    folder = Path(path)
    store.write_folder(folder, name, content, tensors, views)
    return folder


def from_pretrained(path: str | Path, **options: Any) -> Any:
    """Read back what :func:`save_pretrained` wrote.

    Parameters
    ----------
    path
        The folder; nothing outside it is read.
    options
        ``f=`` for an emulator of the user's own function, whose bound is "claimed" without it.

    Raises
    ------
    IntegrityError
        If the weights are missing, or a file is truncated, altered or of another format.
    """
    folder = Path(path)
    stored = store.read_folder(folder, (_CONFIG, _CARD))
    kind = _KINDS.get(stored.kind)
    if kind is None:
        raise IntegrityError(f"{folder} holds a {stored.kind!r}, which is not known here")
    try:
        return kind.unpack(stored.content, stored.tensors, **options)
    except ProgramError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        if isinstance(broken, IceformError):
            raise
        raise IntegrityError(f"{folder} cannot be read by this version: {broken!r}") from None


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
    return kind(**arguments, **tensors)


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
