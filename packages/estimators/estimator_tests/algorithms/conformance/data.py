"""Every algorithm with data that it takes, from its own record: a new one is here by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import iceform_estimators
from iceform_estimators.algorithms import Algorithm, Head, LinearModel

# Where a record's defaults do not fit a machine in rows.
_IN_ROWS: dict[str, dict[str, Any]] = {"kernel": {"gamma": 2.0}}
_HEAD = Head(*(torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3) for _ in range(3)))


def pairs() -> list[tuple[str, str]]:
    """(name, engine) of every algorithm on every engine that its record names."""
    return [(kind.name, engine) for kind in Algorithm.kinds.values() for engine in kind.engines()]


def made(name: str, engine: str) -> Algorithm:
    """The algorithm with its defaults."""
    if name == "head":
        return _HEAD
    return Algorithm.kinds[name](**(_IN_ROWS.get(name, {}) if engine == "rows" else {}))


def example(algorithm: Algorithm, engine: str) -> tuple[Tensor, Tensor]:
    """Its example; in rows a small one within the machine's bounds."""
    if engine == "rows":
        g = torch.Generator().manual_seed(0)
        x = 2 * torch.rand(6, 3, generator=g, dtype=torch.float64) - 1
        y = (x @ torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64)).clamp(-1, 1)
        return x, 0.9 * x[2] if algorithm.name == "hopfield" else y
    shown = algorithm.example()
    margin = isinstance(algorithm, LinearModel) and algorithm.loss().kind == "margin"
    return shown.x, 2 * shown.y - 1 if margin else shown.y


def machine(
    engine: str, x: Tensor, algorithm: Algorithm, backend: str
) -> iceform_estimators.Machine:
    """A machine for it."""
    if engine == "rows":
        return iceform_estimators.Machine(x.shape[1], len(x), programs=[algorithm], backend=backend)
    return iceform_estimators.Machine(x.shape[1] + 1, layout="stream", backend=backend)
