"""What the package computes today, as values that a change of its insides must keep.

Each value has a name and a kind. A ``digest`` stays the same to the last bit: the weights of a
network. A ``bound`` stays the same or becomes smaller: a certified error. An ``answer`` is a list
of numbers that stays within their rounding. The names say what a user does, not which module does
it, so that the list survives a move of the walls.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import iceform as ice
from iceform import targets
from iceform.computer.library import EXAMPLES
from tests.specimens import SPECIMENS

FUNCTIONS = {
    "identity": lambda z: z,
    "square": lambda z: z * z,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "gelu": torch.nn.functional.gelu,
    "relu": torch.relu,
    "clamp": lambda z: z.clamp(-1, 1),
}
STOCK = {
    ("gpt2", "ridge"): {"steps": 3},
    ("llama", "ridge"): {"steps": 2, "dtype": "float32"},
    ("bert", "least_squares"): {"steps": 2, "mode": "weights"},
    ("albert", "least_squares"): {"steps": 1},
    ("albert", "kernel_regression"): {},
    ("bert", "logistic"): {"steps": 1, "mode": "weights"},
    ("albert", "huber"): {"steps": 1},
    ("bert", "lasso"): {"steps": 1, "mode": "weights"},
}


@dataclass(frozen=True)
class Pinned:
    """One value: its kind, and a text, a float or a list of floats."""

    kind: str
    value: Any


def answer_of(value: Tensor) -> Pinned:
    return Pinned("answer", [float(v) for v in value.detach().double().flatten()[:16]])


def _tensors_digest(folder: Path) -> str:
    """SHA-256 of a checkpoint's tensors: names, dtypes, shapes and bytes, in the order of names."""
    sha = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def tables() -> Iterator[tuple[str, Pinned]]:
    """The certified error of look-up tables, by function, range, accuracy and dtype."""
    for name, f in FUNCTIONS.items():
        for reach, eps in ((1.0, 1e-4), (2.0, 1e-6), (3.0, 1e-3), (4.0, 1e-5)):
            table = ice.Interpolant.fit(f, -reach, reach, eps=eps)
            yield f"table {name} +-{reach:g} eps {eps:g}", Pinned("bound", table.error)
        hard = ice.Interpolant.hard(f, -2.0, 2.0, cells=24)
        yield f"hard table {name}", Pinned("bound", hard.error)


def constructions() -> Iterator[tuple[str, Pinned]]:
    """Weights, certificates and answers of the constructions of the theorems."""
    for name, specimen in SPECIMENS.items():
        module = specimen.make()
        yield f"{name}: weights", Pinned("digest", module.network.digest)
        yield f"{name}: certificate", Pinned("bound", module.certificate.error)
        yield f"{name}: answer", answer_of(module(*specimen.inputs(0)))


def programs() -> Iterator[tuple[str, Pinned]]:
    """Library programs on the frozen computer."""
    for name, example in EXAMPLES.items():
        program = example.compile()
        computer = ice.Computer.for_programs([program])
        result = computer.run(program, example.X, example.y, backend="fused", **example.settings)
        yield f"{name}: computer", Pinned("digest", computer.digest)
        yield f"{name}: certificate", Pinned("bound", program.certify(backend="literal")[0].error)
        yield f"{name}: answer", answer_of(torch.as_tensor(result.answer))


def checkpoints(folder: Path) -> Iterator[tuple[str, Pinned]]:
    """Stock checkpoints: weights and certificate."""
    for (architecture, name), options in STOCK.items():
        program = EXAMPLES[name].compile()
        place = folder / f"{architecture}-{name}"
        targets.load(program.to(architecture, place, **options).path)
        yield f"{architecture} of {name}: weights", Pinned("digest", _tensors_digest(place))


@cache
def every(folder: Path) -> dict[str, Pinned]:
    """All values; ``folder`` holds the checkpoints that are written on the way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            **dict(tables()),
            **dict(constructions()),
            **dict(programs()),
            **dict(checkpoints(folder)),
        }


def write_list(path: Path, found: dict[str, Pinned]) -> None:
    """Write a list anew, a line for each value."""
    rows = {name: [pinned.kind, pinned.value] for name, pinned in sorted(found.items())}
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(rows)} values in {path.name}")
