"""Attacks on the certificates of fits, as :mod:`tests.attacks.families` has those of the core."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import flint
import torch

import iceform as ice
import iceform_estimators
from estimator_tests.algorithms import cases
from estimator_tests.attacks.fits import AROUND_FITS
from estimator_tests.exact import verify
from estimator_tests.machine import data
from estimator_tests.machine.exact import NoOptimumError, apart
from iceform_estimators.machine import ArraySource
from tests.attacks.families import Maker, instead_of
from tests.attacks.outcomes import F32, F64, Outcome

_A = iceform_estimators.algorithms

# ---------------------------------------------------------------------------------------------
# linear models, against references that share nothing with the library
# ---------------------------------------------------------------------------------------------


def linear_model(name: str) -> Callable[[int], Outcome | str]:
    """Optima of linear models on regular, ill-conditioned, offset and dependent data."""
    kinds = sorted(data.REGULAR | data.DEPENDENT)

    def attack(seed: int) -> Outcome | str:
        draw = random.Random(seed)
        kind, intercept = draw.choice(kinds), draw.random() < 0.7
        program, x, y, fit = cases.run(name, kind, seed, intercept)
        if (instead := instead_of(fit.certificate)) is not None:
            return instead
        if name == "Huber" and fit.certificate.excess is not None:
            return _falling_scale(program, x, y, fit)
        try:
            coef, constant = cases.CASES[name].exact(program, x, y, fit)
            off = cases.measured(x, fit, coef, constant)
        except NoOptimumError:  # not one point
            off = verify(fit).measured
        return Outcome(fit.certificate.error, off, math.ulp(float(fit.coef.abs().max())))

    return attack


def _falling_scale(program: Any, x: torch.Tensor, y: torch.Tensor, fit: Any) -> Outcome:
    """Where the best scale is 0: what Huber's objective is above that of smaller scales."""
    flint.ctx.dps = 60
    rows = [[flint.arb(v) for v in row] for row in x.tolist()]
    w, b, eps = (
        [*map(flint.arb, fit.coef.tolist())],
        flint.arb(float(fit.intercept)),
        program.epsilon,
    )
    apart = [
        abs(sum((a * c for a, c in zip(row, w, strict=True)), b) - flint.arb(label))
        for row, label in zip(rows, y.tolist(), strict=True)
    ]

    def mean(scale: flint.arb) -> flint.arb:
        total = flint.arb(0)
        for r in apart:
            inside = min(r / scale, flint.arb(eps))
            total = total + scale + scale * (2 * inside * r / scale - inside**2)
        return total / len(apart)

    scale = flint.arb(float(fit.parts["scale"]))
    off = max(0.0, *(float((mean(scale) - mean(scale / 2**k)).upper()) for k in (1, 3, 8, 40)))
    bound = fit.certificate.excess.bound
    return Outcome(bound, off, 8 * math.ulp(float(mean(scale))))


def nearly_dependent(seed: int) -> Outcome | str:
    """Least squares and ridge on columns 1e-1 to 1e-13 apart."""
    g = torch.Generator().manual_seed(seed)
    draw = random.Random(seed)
    x = data.normal(g, draw.choice([12, 40, 200]), draw.choice([2, 3, 6]))
    x[:, -1] = x[:, 0] + 10 ** draw.uniform(-13, -1) * x[:, -1]
    x = x * 2.0 ** draw.randrange(-40, 40) + draw.choice([0.0, 0.0, 1.0])
    y = x.sum(1) + data.normal(g, len(x))
    alpha = draw.choice([0.0, 0.0, 1e-6, 1.0])
    program = (
        iceform_estimators.algorithms.Ridge(alpha)
        if alpha
        else iceform_estimators.algorithms.LinearRegression()
    )
    fit = iceform_estimators.Machine(x.shape[1] + 1, layout="stream").run(program, x, y)
    if (instead := instead_of(fit.certificate)) is not None:
        return instead
    if "what" in fit.certificate.domain:
        off = verify(fit).measured
        return Outcome(fit.certificate.error, off, math.ulp(float(y.abs().max())))
    exact = least_squares(x, y, alpha)
    off = apart(fit.coef, exact)
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


def quantile(seed: int) -> Outcome | str:
    """Lines of quantiles with outliers, proved by the dual of their linear program in fractions."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    n, d = draw.choice([(60, 1), (120, 2), (150, 5), (301, 9)])
    x = data.normal(g, n, d)
    y = x @ torch.arange(1.0, d + 1, dtype=F64) + data.normal(g, n)
    y[torch.randperm(n, generator=g)[: n // 50]] += draw.choice([0.0, 10.0, 1e3, 1e6])
    q = draw.choice([0.5, 0.5, 0.1, 0.25, 0.77])
    fit = iceform_estimators.Machine(d + 1, layout="stream").run(
        iceform_estimators.algorithms.Quantile(q), x, y
    )
    if "objective" in fit.certificate.domain:
        return "refused"  # to speak of a sharp corner
    off = verify(fit).measured
    return Outcome(fit.certificate.error, off, math.ulp(float(fit.coef.abs().max())))


def recursion(seed: int) -> Outcome | str:
    """Ridge regression by batches, against all samples so far at once."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    x = data.REGULAR[draw.choice(sorted(data.REGULAR))](g)
    y, found = data.labels(x, g, offset=3.0), _A.Recursion(1.0)
    machine = iceform_estimators.Machine(x.shape[1] + 1, layout="stream")
    for rows in torch.arange(len(x)).split(draw.choice([5, 13, 60])):
        fit = found.update(machine.start(), ArraySource(x[rows], y[rows]))
    if (instead := instead_of(fit.certificate)) is not None:
        return instead
    off = apart(fit.coef, least_squares(x, y, 1.0))
    return Outcome(fit.certificate.error, off, math.ulp(float(fit.coef.abs().max())))


# ---------------------------------------------------------------------------------------------
# programs of the machine, beside verify()
# ---------------------------------------------------------------------------------------------

STREAMED: dict[str, Maker] = {
    "kernel regression": lambda r: _A.KernelRegression(r.choice(["scale", "scott", 0.1, 1.0, 30])),
    "neighbours": lambda r: _A.KNeighbors(
        r.choice([1, 3, 7]), weights=r.choice(["uniform", "distance"])
    ),
    "perceptron": lambda r: _A.Perceptron(max_passes=r.choice([3, 10, 30])),
    "components": lambda r: _A.PCA(1),
    "expectiles": lambda r: _A.Expectile(r.choice([0.1, 0.5, 0.8])),
    "coefficients of one sign": lambda r: _A.LinearRegression(positive=True),
    "weighed samples": lambda r: r.choice([_A.Ridge(1.0), _A.LinearRegression(), _A.Lasso(0.05)]),
}


def streamed(name: str) -> Callable[[int], Outcome | str]:
    """Programs on ordinary data in odd units, float32 machines where answers do not add up."""

    def attack(seed: int) -> Outcome | str:
        draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
        program = STREAMED[name](draw)
        n, d = draw.choice([(12, 2), (30, 2), (40, 4)])
        x = data.normal(g, n, d)
        y = x.sum(1) + 0.3 * data.normal(g, n)
        if name in {"kernel regression", "neighbours"}:
            x = x * 2.0 ** draw.randrange(-3, 4) + draw.choice([0.0, 0.0, 10.0])
            y = y * draw.choice([1.0, 1.0, 2.0**-1060, 2.0**600])
        else:
            x = x * 2.0 ** torch.randint(-30, 31, (d,), generator=g) + draw.choice([0.0, 1.0])
        if name == "perceptron":
            y = torch.where(y > y.median() - 0.5, 1.0, -1.0).to(x)
        dtype = draw.choice([F32, F64])
        if name not in ("kernel regression", "neighbours") or not 1e-9 < y.abs().max() < 1e9:
            dtype = F64
        weights = torch.rand(n, generator=g, dtype=F64) + 0.01 if "weighed" in name else None
        source = ArraySource(x, y, weights=weights)
        machine = iceform_estimators.Machine(d + 1, layout="stream", dtype=dtype)
        result = machine.run(program, source)
        if (instead := instead_of(result.certificate)) is not None:
            return instead
        unit = torch.finfo(dtype).eps * float(result.value.abs().max())
        off = verify(result).measured
        if name == "neighbours":  # certified for every query
            points = x.mean(0) + 0.5 * x.std(0) * data.normal(g, 200, d)
            off = max(off, _neighbours_off(program, result, x, y, points))
        return Outcome(result.certificate.error, off, max(unit, math.ulp(0.0)), dtype=dtype)

    return attack


def _neighbours_off(program: Any, found: Any, x: Any, y: Any, points: torch.Tensor) -> float:
    """Of the means of the neighbours that were read, at points that are no samples."""
    flint.ctx.prec = 256
    rows, labels = (
        [[flint.arb(v) for v in row] for row in x.tolist()],
        [*map(flint.arb, y.tolist())],
    )
    read, worst = found.predictor.neighbors(points).tolist(), 0.0
    for q, chosen, value in zip(points.tolist(), read, found.predict(points).tolist(), strict=True):
        apart = [sum(((a - v) ** 2 for a, v in zip(rows[j], q, strict=True)), flint.arb(0)).sqrt()
                 for j in chosen]  # fmt: skip
        weights = [1 / a if program.weights == "distance" else flint.arb(1) for a in apart]
        mean = sum((w * labels[j] for w, j in zip(weights, chosen, strict=True)), flint.arb(0))
        worst = max(worst, float(abs(mean / sum(weights, flint.arb(0)) - value).abs_upper()))
    return worst


# ---------------------------------------------------------------------------------------------
# ordinary data
# ---------------------------------------------------------------------------------------------

USUAL: dict[str, tuple[str, Maker]] = {  # labels, and options that people give
    "LinearRegression": ("line", lambda r: _A.LinearRegression()),
    "Ridge": ("line", lambda r: _A.Ridge(r.choice([0.01, 1.0, 100.0]))),
    "Lasso": ("line", lambda r: _A.Lasso(r.choice([0.001, 0.05, 1.0]))),
    "ElasticNet": ("line", lambda r: _A.ElasticNet(r.choice([0.01, 1.0]), r.choice([0.1, 0.5]))),
    "Huber": ("line", lambda r: _A.Huber()),
    "Quantile": ("line", lambda r: _A.Quantile(r.choice([0.1, 0.5, 0.9]))),
    "Expectile": ("line", lambda r: _A.Expectile(r.choice([0.2, 0.5, 0.9]))),
    "Poisson": ("counts", lambda r: _A.Poisson(r.choice([0.0, 0.1, 1.0]))),
    "Logistic": ("classes", lambda r: _A.Logistic(r.choice([0.01, 1.0, 100.0]))),
    "LinearSVM": ("signs", lambda r: _A.LinearSVM(r.choice([0.01, 1.0, 100.0]))),
    "Perceptron": ("signs", lambda r: _A.Perceptron()),
    "PCA": ("line", lambda r: _A.PCA(2)),
    "KernelRegression": ("line", lambda r: _A.KernelRegression(r.choice(["scott", "scale", 0.5]))),
    "KNeighbors": ("line", lambda r: _A.KNeighbors(5, weights=r.choice(["uniform", "distance"]))),
}
LABELS: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "line": lambda score, g: score,
    "counts": lambda score, g: torch.poisson(torch.exp(score.clamp(-3, 3)), generator=g),
    "classes": lambda score, g: (score > 0).double(),
    "signs": lambda score, g: torch.where(score > 0, 1.0, -1.0).double(),
}


def ordinary(name: str) -> Callable[[int], str]:
    """Normal samples of several sizes and a noisy line: "proven", or what was said instead."""
    labels, program = USUAL[name]

    def attempt(seed: int) -> str:
        draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
        n, d = draw.choice([30, 100, 300]), draw.choice([2, 5, 12])
        x = data.normal(g, n, d)
        y = LABELS[labels](x @ data.normal(g, d) / math.sqrt(d) + 0.5 * data.normal(g, n), g)
        try:
            fit = iceform_estimators.Machine(d + 1, layout="stream").run(program(draw), x, y)
        except ice.IceformError:
            return "refused"
        if "objective" in fit.certificate.domain:
            return "refused"  # to speak of the problem that was named
        return instead_of(fit.certificate) or "proven"

    return attempt


ORDINARY: dict[str, Callable[[int], str]] = {f"ordinary: {n}": ordinary(n) for n in USUAL}

FAMILIES: dict[str, Callable[[int], Outcome | str]] = {
    "nearly dependent columns": nearly_dependent,
    "quantile lines": quantile,
    "batches": recursion,
    **{f"{name}, optimum": linear_model(name) for name in cases.CASES},
    **{name: streamed(name) for name in STREAMED},
    **AROUND_FITS,
}

DEAR = ("Quantile, optimum", "quantile lines")
