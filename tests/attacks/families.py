"""Generators of hard cases, one family a kind of certificate, and what is exact about each.

A family maps a seed to what was certified, what was off (an upper bound, in exact or ball
arithmetic) and the unit in the last place of the answer; or None where nothing was claimed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple

import flint
import mpmath
import torch

import iceform as ice
from tests.algorithms import cases
from tests.algorithms.test_quantile import data as quantile_data
from tests.algorithms.test_quantile import off as quantile_off
from tests.algorithms.test_quantile import program as linear_program
from tests.interpolation import test_attacks as look_ups
from tests.machine import data
from tests.machine.exact import NoOptimumError

F64 = torch.float64


class Outcome(NamedTuple):
    """One attack."""

    certified: float
    off: float
    unit: float


def look_up(seed: int) -> Outcome | None:
    """Functions that are narrow, steep, cancelling, kinked, with poles nearby, in odd units."""
    draw = random.Random(seed)
    with mpmath.workdps(50):
        attack = look_ups.FAMILIES[draw.choice(sorted(look_ups.FAMILIES))](draw)
        try:
            it = ice.Interpolant.fit(
                attack.f, attack.low, attack.high, tokens=draw.choice([17, 33, 49, 65]),
                kinks=attack.kinks,
            )  # fmt: skip
        except ice.IceformError:
            return None
        inside = [z for z in attack.places if it.low <= z <= it.high]
        seen = it.grid.mesh(12)
        worst = seen[(it(seen) - attack.f(seen)).abs().nan_to_num().topk(8).indices].tolist()
        off = max(
            abs(look_ups.exactly(it, z) - attack.exact(mpmath.mpf(z))) for z in inside + worst
        )
    return Outcome(it.error, float(off), math.ulp(it.size))


def linear_model(name: str) -> Callable[[int], Outcome | None]:
    """Optima of linear models on regular, ill-conditioned, offset and dependent data."""
    kinds = sorted(data.REGULAR | data.DEPENDENT)

    def attack(seed: int) -> Outcome | None:
        draw = random.Random(seed)
        kind, intercept = draw.choice(kinds), draw.random() < 0.7
        program, x, y, fit = cases.run(name, kind, seed, intercept)
        certificate = fit.certificate
        if not math.isfinite(certificate.error) or certificate.kind != "proven":
            return None
        try:
            coef, constant = cases.CASES[name].exact(program, x, y, fit)
        except NoOptimumError:
            return None
        size = float(fit.coef.abs().max())
        return Outcome(certificate.error, cases.measured(x, fit, coef, constant), math.ulp(size))

    return attack


def nearly_dependent(seed: int) -> Outcome | None:
    """Least squares and ridge on columns 1e-1 to 1e-13 apart."""
    g = torch.Generator().manual_seed(seed)
    draw = random.Random(seed)
    x = data.normal(g, draw.choice([12, 40, 200]), draw.choice([2, 3, 6]))
    x[:, -1] = x[:, 0] + 10 ** draw.uniform(-13, -1) * x[:, -1]
    x = x * 2.0 ** draw.randrange(-40, 40) + draw.choice([0.0, 0.0, 1.0])
    y = x.sum(1) + data.normal(g, len(x))
    alpha = draw.choice([0.0, 0.0, 1e-6, 1.0])
    program = ice.algorithms.Ridge(alpha) if alpha else ice.algorithms.LinearRegression()
    fit = ice.Machine(x.shape[1] + 1, layout="stream").run(program, x, y)
    if not math.isfinite(fit.certificate.error) or fit.certificate.kind != "proven":
        return None
    if "what" in fit.certificate.domain:
        return None
    exact = least_squares(x, y, alpha)
    off = max(
        float(abs(flint.arb(a) - b).abs_upper())
        for a, b in zip(fit.coef.tolist(), exact, strict=False)
    )
    return Outcome(fit.certificate.error, off, math.ulp(float(fit.coef.abs().max())))


def least_squares(x: torch.Tensor, y: torch.Tensor, alpha: float) -> list[flint.arb]:
    """With an intercept that is not penalised, in 150 digits."""
    flint.ctx.dps = 150
    rows = flint.arb_mat([[*map(flint.arb, row), flint.arb(1)] for row in x.tolist()])
    labels = flint.arb_mat([[flint.arb(v)] for v in y.tolist()])
    gram = rows.transpose() * rows
    for j in range(x.shape[1]):
        gram[j, j] = gram[j, j] + flint.arb(alpha)
    found = gram.solve(rows.transpose() * labels)
    return [found[j, 0] for j in range(x.shape[1])]


def quantile(seed: int) -> Outcome | None:
    """Lines of quantiles beside a linear program, with outliers."""
    draw = random.Random(seed)
    n, d = draw.choice([(60, 1), (120, 2), (150, 5), (301, 9)])
    x, y = quantile_data(n, d, seed, draw.choice([0.0, 10.0, 1e3, 1e6]))
    q = draw.choice([0.5, 0.5, 0.1, 0.25, 0.77])
    fit = ice.Machine(d + 1, layout="stream").run(ice.algorithms.Quantile(q), x, y)
    if "objective" in fit.certificate.domain:
        return None
    *coef, _ = quantile_off(fit, linear_program(x, y, q))
    return Outcome(fit.certificate.error, max(coef), math.ulp(float(fit.coef.abs().max())))


_STEPS: dict[str, object] = {
    "tanh": torch.tanh, "sin": torch.sin, "softplus": torch.nn.functional.softplus,
    "relu": torch.relu, "huber": "huber", "logistic": "logistic",
}  # fmt: skip


def step(seed: int) -> Outcome | None:
    """Sample gradients on random sizes and bounds, float32 and float64, by ball arithmetic."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = draw.choice([torch.float32, F64])
    name, bound = draw.choice(sorted(_STEPS)), draw.choice([0.1, 1.0, 3.0])
    n, d = draw.choice([1, 5, 20]), draw.choice([1, 3, 8])
    kind = ice.SampleGradients if isinstance(_STEPS[name], str) else ice.ResidualMap
    try:
        em = kind(_STEPS[name], dim=d, samples=n, bound=bound, eps=None, dtype=dtype)
    except ice.IceformError:
        return None
    x, y, w = (
        (2 * torch.rand(s, generator=g, dtype=F64) - 1) * bound for s in ((n, d), (n,), (d,))
    )
    x, y, w = (t.to(dtype) for t in (x, y.abs() if name == "logistic" else y, w))
    if name == "logistic":
        y = (y > bound / 2).to(dtype)
    try:
        verdict = em.certificate.verify(x, y, w)
    except ice.IceformError:
        return None
    unit = torch.finfo(dtype).eps * float(em(x, y, w).abs().max())
    return Outcome(em.certificate.error, verdict.measured, unit)


FAMILIES: dict[str, Callable[[int], Outcome | None]] = {
    "look-ups": look_up,
    "sample gradients": step,
    "nearly dependent columns": nearly_dependent,
    "quantile lines": quantile,
    **{f"{name}, optimum": linear_model(name) for name in cases.CASES},
}
