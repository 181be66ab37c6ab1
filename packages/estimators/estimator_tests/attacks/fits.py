"""Attacks on what lies around proofs of fits: several at once, memory of the caller, odd units.

``aggregation``
    One certificate of several columns of labels, whose fits do not all state the same: each is
    compared with rationals, in the quantity that the certificate names.
``aliasing``
    The caller writes into samples, labels and weights after a run; what is read of the result then
    is compared with a run whose data nobody touched.
``borders``
    Every way in, with data times any power of two that float64 has: refused, or certified.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch

import iceform as ice
import iceform_estimators
import iceform_estimators as estimators
from estimator_tests.exact import verify
from iceform_estimators import certify_minimiser
from tests.attacks.outcomes import F64, Outcome

_A = iceform_estimators.algorithms


def _solved(rows: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """A linear system by elimination."""
    table = [[*row, b] for row, b in zip(rows, right, strict=True)]
    for i in range(len(table)):
        pivot = next(k for k in range(i, len(table)) if table[k][i])
        table[i], table[pivot] = table[pivot], table[i]
        table[i] = [v / table[i][i] for v in table[i]]
        for k in range(len(table)):
            if k != i:
                table[k] = [a - table[k][i] * b for a, b in zip(table[k], table[i], strict=True)]
    return [row[-1] for row in table]


def ridge_in_rationals(x: Any, y: Any, alpha: float, *, intercept: bool = True) -> list[Fraction]:
    """Coefficients, and the free intercept last, of |Xw + b - y|^2 + alpha |w|^2."""
    rows = [[Fraction(float(v)) for v in row] + [Fraction(1)] * intercept for row in x]
    labels, d = [Fraction(float(v)) for v in y], len(x[0]) + intercept
    gram = [[sum(r[i] * r[j] for r in rows) for j in range(d)] for i in range(d)]
    for j in range(len(x[0])):
        gram[j][j] += Fraction(alpha)
    return _solved(
        gram, [sum(r[i] * b for r, b in zip(rows, labels, strict=True)) for i in range(d)]
    )


def _off(model: Any, x: np.ndarray, exact: list[list[Fraction]]) -> float:
    """How far the fits are off, in coefficients or in fitted values as the certificate says."""
    fitted = "what" in model.certificate_.domain
    worst = Fraction(0)
    for coef, intercept, best in zip(model.coef_, model.intercept_, exact, strict=True):
        found = [Fraction(float(v)) for v in coef] + [Fraction(float(intercept))]
        apart = [a - b for a, b in zip(found, best, strict=True)]
        if not fitted:
            worst = max([worst, *map(abs, apart[:-1])])
            continue
        for row in x:
            moved = sum(a * Fraction(float(v)) for a, v in zip(apart, row, strict=False))
            worst = max(worst, abs(moved + apart[-1]))
    return float(worst)


def _told(certificate: Any, off: float) -> Outcome | str:
    """How tight bounds are is told of each kind of fit by itself, and not here."""
    if not math.isfinite(certificate.error):
        return "infinite"
    if certificate.kind != "proven":
        return str(certificate.kind)
    return Outcome(certificate.error, off, max(certificate.error, math.ulp(0.0)))


def aggregation(seed: int) -> Outcome | str:
    """Ridge regression of several columns: some penalised, some not; one twice, odd units."""
    draw, g = random.Random(seed), np.random.default_rng(seed)
    n, d, columns = draw.randint(6, 16), draw.randint(1, 3), draw.randint(2, 4)
    x = g.normal(size=(n, d)) * 10.0 ** draw.randint(-6, 6) + draw.choice([0.0, 1.0, 1e4])
    twice = draw.random() < 0.7
    y = g.normal(size=(n, columns)) * 10.0 ** g.integers(-6, 7, columns)
    size = float(np.abs(x).max()) ** 2
    alpha = [draw.choice([0.0, 1e-6, 1.0, 1e6]) * size for _ in range(columns)]
    samples = np.hstack([x, x[:, :1]]) if twice else x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = estimators.InContextRidge(alpha=alpha).fit(samples, y)
    exact = []
    for k in range(columns):
        if alpha[k] or not twice:
            exact.append(ridge_in_rationals(samples, y[:, k], alpha[k]))
        else:  # any of the optima has the fitted values of one that leaves the copy out
            *some, last = ridge_in_rationals(x, y[:, k], 0.0)
            exact.append([*some, Fraction(0), last])
    return _told(model.certificate_, _off(model, samples, exact))


# Programs that keep something for later.
_KEEPING: dict[str, Callable[[random.Random], Any]] = {
    "kernel": lambda r: _A.KernelRegression(r.choice([0.5, "scott"])),
    "neighbours": lambda r: _A.KNeighbors(2, weights=r.choice(["uniform", "distance"])),
    "ridge": lambda r: _A.Ridge(0.1),
    "components": lambda r: _A.PCA(1),
}
_ESTIMATORS = ("KernelRegressor", "KNeighborsRegressor", "KNeighborsClassifier", "Ridge", "PCA")


def _generator(draw: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(draw.randrange(1 << 30))


def aliasing(seed: int) -> Outcome | str:
    """Everything that was given is overwritten; values, predictions and proofs are read after."""
    draw = random.Random(seed)
    x = 2 * torch.rand(12, 2, generator=_generator(draw), dtype=F64) - 1
    y = 0.5 * x[:, 0]
    if draw.random() < 0.4:
        return _estimator_aliased(draw, x, y)
    program = _KEEPING[draw.choice(sorted(_KEEPING))](draw)
    machine: Any = iceform_estimators.Machine(3, 12)
    untouched = machine.run(program, x.clone(), y.clone())
    value = untouched.value.clone()
    given = [x.clone(), y.clone()]
    found = machine.run(program, *given)
    asked = x[:3].clone()
    for part in given:
        part.sub_(5.0)
    off = float((found.value - value).abs().max())
    if found.predictor is not None:
        off = max(off, float((found.predict(asked) - untouched.predict(asked)).abs().max()))
    if not verify(found):
        off = math.inf
    return _told(found.certificate, off)


def _estimator_aliased(draw: random.Random, x: torch.Tensor, y: torch.Tensor) -> Outcome | str:
    kind = getattr(estimators, "InContext" + draw.choice(_ESTIMATORS))
    samples, labels = x.numpy().copy(), y.numpy().copy()
    if kind.__name__.endswith("Classifier"):
        labels = (labels > 0).astype(float)
    if draw.random() < 0.3 and "Regressor" in kind.__name__ and "KN" in kind.__name__:
        labels = np.stack([labels, 2 * labels], 1)
    model, asked = kind().fit(samples, labels), x[:3].numpy().copy()
    answer = model.transform if kind.__name__.endswith("PCA") else model.predict
    before = np.asarray(answer(asked), dtype=float)
    samples -= 5.0
    labels -= 5.0
    off = float(np.abs(np.asarray(answer(asked), dtype=float) - before).max())
    off = off if verify(model.certificate_) else math.inf
    return _told(model.certificate_, off)


def _minimiser(draw: random.Random, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, float]:
    """A given answer, wrong or nearly right, against rationals."""
    alpha = draw.choice([0.0, 0.0, 1.0, 2.0 ** draw.randint(-1000, 1000)])
    exact = ridge_in_rationals(x.tolist(), y.tolist(), alpha * len(x), intercept=False)
    right = [float(v) for v in exact]
    factor = draw.choice([1.0, 1.0 + 2.0**-40, -3.0, 2.0 ** draw.randint(-900, 900)])
    w = torch.tensor(right, dtype=F64) * factor
    proven = certify_minimiser(w, x, y, alpha=alpha)
    off = max(abs(Fraction(a) - b) for a, b in zip(w.tolist(), exact, strict=True))
    # As floats: a bound of what cannot be a float is infinite.
    return proven, float(off) if off < Fraction(1.7e308) else math.inf


def _verified(draw: random.Random, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, float]:
    """A run, in ball arithmetic."""
    programs = [
        _A.Ridge(draw.choice([0.0, 1.0])), _A.Lasso(0.1),
        _A.PCA(1), _A.KNeighbors(2), _A.KernelRegression(),
        _A.Ridge(1.0, solver="inside", bound=float(x.abs().max()) or 1.0,
                 label_bound=float(y.abs().max()) or 1.0, max_passes=20),
    ]  # fmt: skip
    found = iceform_estimators.Machine(3, 12).run(draw.choice(programs), x, y)
    return found.certificate, verify(found).measured


def borders(seed: int) -> Outcome | str:
    """Columns and labels times powers of two, most of them beyond what proofs cover."""
    draw = random.Random(seed)
    x = 2 * torch.rand(8, 2, generator=_generator(draw), dtype=F64) - 1
    y = x @ torch.tensor([0.5, -0.25], dtype=F64) + 0.1
    near = draw.random() < 0.3
    powers = [2.0 ** draw.randint(*((-190, 190) if near else (-1060, 1000))) for _ in range(3)]
    if draw.random() < 0.5:
        powers = [powers[0]] * 3
    x, y = x * torch.tensor(powers[:2], dtype=F64), y * powers[2]
    try:
        certificate, off = draw.choice([_minimiser, _verified])(draw, x, y)
    except (ice.IceformError, OverflowError) as refused:
        if isinstance(refused, OverflowError):  # of the rationals here: no float holds the optimum
            return "infinite"
        return "refused"
    return _told(certificate, off)


AROUND_FITS: dict[str, Callable[[int], Outcome | str]] = {
    "aggregation": aggregation,
    "aliasing": aliasing,
    "borders": borders,
}
