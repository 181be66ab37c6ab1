"""What preconditioning does, and how the literal matrices compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn import linear_model

from iceform.run import bind
from iceform_estimators import algorithms
from iceform_estimators.demo.algorithms import Tick
from iceform_estimators.demo.houses import Houses
from iceform_estimators.machine import IDENTITY, ArraySource, Machine

_RACE_PASSES = 400  # of the race between preconditioners


@dataclass(frozen=True)
class Race:
    """Ridge from the same start under one preconditioner."""

    precondition: str
    passes: int
    converged: bool
    history: Sequence[float]
    difference: float  # to scikit-learn's coefficients, relative to the largest


def race(data: Houses, alpha: float, tick: Tick, passes: int = _RACE_PASSES) -> list[Race]:
    """The same ridge problem with and without preconditioning."""
    y = np.log(data.price)
    exact = linear_model.Ridge(alpha).fit(data.x, y).coef_
    machine = Machine(data.x.shape[1] + 1, layout="stream")
    source = ArraySource(torch.from_numpy(data.x), torch.from_numpy(y))
    out = []
    for how in ("none", "diagonal", "whiten"):
        model = algorithms.Ridge(
            alpha, tol=1e-9, fit_intercept=True, precondition=how, max_passes=passes
        )
        fit = machine.run(model, source)
        off = float(np.abs(fit.coef.numpy() - exact).max() / np.abs(exact).max())
        out.append(Race(how, fit.passes, fit.converged, fit.history, off))
        tick(f"ridge, preconditioning: {how}")
    return out


def literal_difference(data: Houses, machine: Machine) -> float:
    """How far one prompt by the literal matrices is from the formula they amount to."""
    rows = machine.samples
    x = torch.from_numpy(data.x[:rows])
    y = torch.from_numpy(np.log(data.price[:rows]) - np.log(data.price).mean())
    w = torch.linspace(-0.1, 0.1, x.shape[1], dtype=torch.float64)
    z = x @ w - y
    table = IDENTITY.on(float(z.abs().max()))
    prompt = machine.start().look_ups(table, x, y, w)
    literal, fused = (bind(machine.network, name).run(prompt) for name in ("literal", "fused"))
    return float((literal - fused).abs().max() / fused.abs().max())
