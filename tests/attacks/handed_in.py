"""Objects that somebody hands in: tables of another function, forged, altered, or altered later."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

import iceform as ice
from iceform.tables import Interpolant
from tests.attacks.outcomes import F64, Outcome

_D, _N = 2, 16
_REACH = 3.5  # of tables; arguments below reach 3 at most
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "sin": torch.sin,
    "arctan": torch.atan,
    "huber": lambda z: z.clamp(-1, 1),
    "line": lambda z: 1.0 * z,
}


@lru_cache(maxsize=16)
def _table(name: str) -> Interpolant:
    return Interpolant.fit(FUNCTIONS[name], -_REACH, _REACH, 1e-7)


def _hard(name: str) -> Interpolant:
    return Interpolant.hard(FUNCTIONS[name], -_REACH, _REACH, cells=64)


def _dented(it: Interpolant, draw: random.Random) -> Interpolant:
    values = it.values.clone()
    values[draw.randrange(len(values))] += draw.choice([1e-3, -0.5])
    return replace(it, values=values)


TABLES: dict[str, Callable[[str, str, random.Random], Interpolant]] = {
    "its own": lambda f, g, draw: _table(f),
    "another's": lambda f, g, draw: _table(g),
    "another's, hard": lambda f, g, draw: _hard(g),
    "said to be of it": lambda f, g, draw: replace(_table(g), function=_table(f).function),
    "with a smaller error": lambda f, g, draw: replace(_table(f), error=1e-300),
    "without cells": lambda f, g, draw: replace(_table(f), edges=None),
    "with another's cells": lambda f, g, draw: replace(_table(f), edges=_table(g).edges),
    "with a dent": lambda f, g, draw: _dented(_table(f), draw),
    "called hard": lambda f, g, draw: replace(_table(f), regime="hard"),
    "called spectral": lambda f, g, draw: replace(_table(f), regime="spectral"),
    "at another temperature": lambda f, g, draw: replace(
        _table(f), sharpness=_table(f).sharpness * draw.uniform(0.5, 3)
    ),
}


def _residual(kind: Any) -> Callable[[str, Interpolant], tuple[Any, tuple[torch.Tensor, ...]]]:
    def build(f: str, it: Interpolant) -> tuple[Any, tuple[torch.Tensor, ...]]:
        em = kind(FUNCTIONS[f], dim=_D, samples=_N, eps=None, w_bound=1.0, interpolant=it)
        x, y = 2 * torch.rand(_N, _D, dtype=F64) - 1, 2 * torch.rand(_N, dtype=F64) - 1
        return em, (x, y, 2 * torch.rand(_D, dtype=F64) - 1)

    return build


def _hopfield(f: str, it: Interpolant) -> tuple[Any, tuple[torch.Tensor, ...]]:
    em = ice.paper.HopfieldMap(FUNCTIONS[f], [1.5, 1.4], samples=_N, eps=None, interpolant=it)
    return em, (2 * torch.rand(_N, 2, dtype=F64) - 1,)


def _linear(f: str, it: Interpolant) -> tuple[Any, tuple[torch.Tensor, ...]]:
    em = ice.paper.LinearLayer(3, 2, samples=_N, eps=None, interpolant=it)
    return em, (2 * torch.rand(_N, 3, dtype=F64) - 1, 2 * torch.rand(2, 3, dtype=F64) - 1)


CONSTRUCTORS: dict[str, Callable[[str, Interpolant], tuple[Any, tuple[torch.Tensor, ...]]]] = {
    "ResidualMap": _residual(ice.paper.ResidualMap),
    "SampleGradients": _residual(ice.paper.SampleGradients),
    "GradientStep": _residual(lambda f, **o: ice.paper.GradientStep(f, 0.5, **o)),
    "HopfieldResidual": _residual(ice.paper.HopfieldResidual),
    "HopfieldMap": _hopfield,
    "LinearLayer": _linear,  # which is a line, whatever is handed in
}


def handed_in(seed: int) -> Outcome | str:
    """A construction around a table that is not what it should be."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    f, g = draw.sample(sorted(FUNCTIONS), 2)
    table = TABLES[draw.choice(sorted(TABLES))](f, g, draw)
    table = replace(table, values=table.values.clone())
    try:
        em, inputs = CONSTRUCTORS[draw.choice(sorted(CONSTRUCTORS))](f, table)
    except ice.errors.ProgramError:  # tokens that are not equally spaced, for rows
        return "refused"
    if em.certificate.kind != "proven":
        return str(em.certificate.kind)
    table.values.mul_(2)  # memory of the caller's, after the proof
    found, exact = em(*inputs), em.reference(*inputs)
    size = float(exact.abs().max())
    return Outcome(
        em.certificate.error, float((found - exact).abs().max()) - 64 * 2.0**-53 * size,
        2.0**-53 * size, found.numel(),
    )  # fmt: skip
