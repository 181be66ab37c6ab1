r"""The exact answer of an algorithm on given data, enclosed in ball arithmetic.

Data, options and answers are floating-point numbers, so known exactly; only the answer that is
meant needs enclosing, and nothing of how the machine found its own is looked at.

**Optima.** With g the gradient of a convex objective, v near its zero, V a box around v and J an
enclosure of the slopes of g on V, kinks included: where every entry of :math:`J^{-1} g(v)` is
smaller than V is wide, g has one zero in V, within :math:`v - J^{-1} g(v)` (Newton's method for
intervals). It is the optimum, since the objective is convex, and the only one. Coefficients that an
absolute value holds at 0 are checked by the slope beside it, a quantile's line by the dual of its
linear program in exact fractions.

**Dependent features.** Where coefficients are not unique those of independent columns, found by
exact elimination, give the same fitted values, and these are compared.

**Others** are replayed: averages, retrieval, steps of descent, passes of a perceptron.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from iceform.algorithms.components import PCA
from iceform.algorithms.descent import Descent, labels_of
from iceform.algorithms.head import Head
from iceform.algorithms.hopfield import HopfieldRetrieval
from iceform.algorithms.kernel import KernelRegression
from iceform.algorithms.linear import LinearModel
from iceform.algorithms.logistic import Logistic
from iceform.algorithms.neighbours import KNeighbors, NeighborsMemory
from iceform.algorithms.perceptron import Perceptron
from iceform.algorithms.quantile import UNIT, Quantile
from iceform.algorithms.record import set_exact
from iceform.algorithms.robust import Huber, duals
from iceform.algorithms.sparse import ElasticNet
from iceform.arithmetic import Interval
from iceform.arithmetic.balls import ball_arithmetic, uppermost
from iceform.certificates import Result
from iceform.constructions.verification import ball_function
from iceform.errors import PrecisionError, ProgramError
from iceform.functions import Loss
from iceform.machine.machine import Given, Program
from iceform.machine.problem import Scaling

Ball = Any  # flint.arb, which ships no types
Pairs = list[tuple[Ball, Ball]]  # what was found, and what is exact

_ROUNDS = 200  # of Newton's method, which squares its error, and of changes of the support
_MARGIN = 96  # bits that the box around an optimum is wider than what is known of it


def enclosed(program: Program, found: Result, given: Given) -> Pairs:
    """What was found beside what is exact, one pair for each number that the certificate covers."""
    return _enclosed(program, found, given)


@singledispatch
def _enclosed(program: Program, found: Result, given: Given) -> Pairs:
    raise ProgramError(
        f"ball arithmetic does not know the exact answer of {program.label}; its certificate "
        "stands, unverified"
    )


def _arb(value: float) -> Ball:
    return ball_arithmetic().arb(value)


def _balls(values: Tensor) -> list[Ball]:
    return [_arb(v) for v in values.detach().double().flatten().tolist()]


def _rows(values: Tensor) -> list[list[Ball]]:
    return [_balls(row) for row in values]


def _dot(a: Sequence[Ball], b: Sequence[Ball]) -> Ball:
    return sum((s * t for s, t in zip(a, b, strict=True)), _arb(0))


def _open(why: str) -> PrecisionError:
    return PrecisionError(
        f"the exact answer is not enclosed: {why}; verify with more bits", best=math.inf
    )


# ---------------------------------------------------------------------------------------------
# linear models
# ---------------------------------------------------------------------------------------------


class _Exactly:
    """A model whose numbers are fractions, for the formulas of its penalties."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        return Fraction(value) if isinstance(value, int | float) else value


def _fraction(value: Fraction | float) -> Ball:
    value = Fraction(value)
    return _arb(value.numerator) / value.denominator


@dataclass
class _Objective:
    """sum_i c_i s^2 l(z_i/s) / sum_i c_i + (l2/2) |v|^2 + l1 |v|_1, z_i = a_i.v - b_i."""

    rows: list[list[Ball]]  # a_i, the constant last where there is one
    labels: list[Ball]  # b_i
    offsets: list[Ball]  # o_i: l_i' = (l'(z_i) - o_i) a_i
    weights: list[Ball]  # c_i
    slope: Callable[[Ball], Ball]
    bend: Callable[[Ball], Ball]
    size: Ball
    l2: list[Ball]
    l1: list[Ball]
    positive: bool

    @property
    def dim(self) -> int:
        return len(self.l2)

    def gradient(self, v: Sequence[Ball]) -> list[Ball]:
        """Of the smooth part."""
        flint = ball_arithmetic()
        pulls = []
        for row, label, offset, weight in self._samples():
            z = (_dot(row, v) - label) / self.size
            pulls.append(weight * (self.size * self.slope(z) - offset))
        total = flint.arb_mat([pulls]) * flint.arb_mat(self.rows)
        heavy = sum(self.weights, _arb(0))
        return [total[0, j] / heavy + q * v[j] for j, q in enumerate(self.l2)]

    def hessian(self, v: Sequence[Ball]) -> Any:
        """Its slopes."""
        flint = ball_arithmetic()
        bent = []
        for row, label, _, weight in self._samples():
            bend = weight * self.bend((_dot(row, v) - label) / self.size)
            bent.append([bend * a for a in row])
        out = flint.arb_mat(bent).transpose() * flint.arb_mat(self.rows)
        out = out / sum(self.weights, _arb(0))
        for j, q in enumerate(self.l2):
            out[j, j] = out[j, j] + q
        return out

    def _samples(self) -> Any:
        return zip(self.rows, self.labels, self.offsets, self.weights, strict=True)

    def optimum(self, v: list[Ball]) -> list[Ball]:
        """The minimiser, from a guess."""
        v = [a.mid() for a in v]
        signs = [0 if a == 0 else (1 if a > 0 else -1) for a in v]
        for _ in range(_ROUNDS):
            held = [s == 0 and self._stops(j) for j, s in enumerate(signs)]
            v, crossed = self._newton(v, signs, held)
            if crossed is not None:
                signs[crossed], v[crossed] = 0, _arb(0)
                continue
            gradient = self.gradient(v)
            enters = [j for j, h in enumerate(held) if h and self._enters(j, gradient[j])]
            if not enters:
                return self._proved(v, signs, held)
            worst = max(enters, key=lambda j: float((abs(gradient[j]) - self.l1[j]).mid()))
            signs[worst] = 1 if gradient[worst] < 0 else -1
        raise _open("the support does not settle")

    def _stops(self, j: int) -> bool:
        """Whether a coefficient may be held at 0."""
        return bool(self.l1[j] > 0) or (self.positive and bool(self.l1[j] >= 0))

    def _enters(self, j: int, gradient: Ball) -> bool:
        if self.positive:
            return bool((gradient + self.l1[j]).mid() < 0)
        return bool((abs(gradient) - self.l1[j]).mid() > 0)

    def _newton(
        self, v: list[Ball], signs: list[int], held: list[bool]
    ) -> tuple[list[Ball], int | None]:
        """To the zero of the gradient on what is not held, or to a coefficient that changes sign.

        Steps are of midpoints: what they lead to is proved afterwards.
        """
        free = [j for j, h in enumerate(held) if not h]
        for _ in range(_ROUNDS):
            step = self._step(v, signs, free)
            for j, s in zip(free, step, strict=True):
                v[j] = (v[j] - s).mid()
            across = [j for j in free if self._stops(j) and signs[j] * v[j] < 0]
            if across:
                return v, across[0]
            size = max((abs(a) for a in v), default=_arb(0)) + _arb(2) ** -_MARGIN
            if all(abs(s).mid() < size * _arb(2) ** -(_bits() - _MARGIN // 2) for s in step):
                return v, None
        raise _open("Newton's method does not settle")

    def _step(self, v: list[Ball], signs: list[int], free: list[int]) -> list[Ball]:
        flint = ball_arithmetic()
        if not free:
            return []
        gradient, hessian = self.gradient(v), self.hessian(v)
        pull = flint.arb_mat([[(gradient[j] + self.l1[j] * signs[j]).mid()] for j in free])
        part = flint.arb_mat([[hessian[j, k].mid() for k in free] for j in free])
        try:
            step = part.solve(pull)
        except ZeroDivisionError:
            raise _DependentError from None
        return [step[i, 0] for i in range(len(free))]

    def _proved(self, v: list[Ball], signs: list[int], held: list[bool]) -> list[Ball]:
        """Newton's method for intervals on a box around v."""
        flint = ball_arithmetic()
        free = [j for j, h in enumerate(held) if not h]
        size = max((abs(a) for a in v), default=_arb(0)) + _arb(2) ** -_MARGIN
        wide = (size * _arb(2) ** -(_bits() // 2)).mid()
        box = [a if held[j] else a + flint.arb(0, 1) * wide for j, a in enumerate(v)]
        if free:
            gradient, hessian = self.gradient(v), self.hessian(box)
            pull = flint.arb_mat([[gradient[j] + self.l1[j] * signs[j]] for j in free])
            part = flint.arb_mat([[hessian[j, k] for k in free] for j in free])
            try:
                step = part.solve(pull)
            except ZeroDivisionError:
                raise _DependentError from None
            if not all(abs(step[i, 0]) < wide for i in range(len(free))):
                raise _open("no box around the answer holds one zero of the gradient")
            v = list(v)
            for i, j in enumerate(free):
                v[j] = v[j] - step[i, 0]
        slopes = self.gradient(v)
        for j, h in enumerate(held):
            slack = slopes[j] + self.l1[j] if self.positive else self.l1[j] - abs(slopes[j])
            if h and not slack > 0:
                raise _open(f"whether coefficient {j} is 0 is open")
            if not h and self._stops(j) and not signs[j] * v[j] > 0:
                raise _open(f"the sign of coefficient {j} is open")
        return v


class _DependentError(Exception):
    """Features depend on each other, or seem to."""


def _bits() -> int:
    return int(ball_arithmetic().ctx.prec)


def _data(
    model: LinearModel, given: Given
) -> tuple[list[list[Ball]], list[Ball], list[Ball], list[Ball]]:
    """Rows a, labels b, offsets o and weights c, as the loss takes them."""
    loss, y = model.loss(), given.y
    if (one := model.positive_label()) is not None:
        y = (y == one).to(y)
        y = 2 * y - 1 if loss.kind == "margin" else y
    constant = [_arb(1)] * model.fit_intercept
    rows, labels = [[*row, *constant] for row in _rows(given.x)], _balls(y)
    zeros = [_arb(0)] * len(labels)
    weights = [_arb(c) for c in given.each]
    if loss.kind == "residual":
        return rows, labels, zeros, weights
    if loss.kind == "margin":
        rows = [[s * a for a in row] for row, s in zip(rows, labels, strict=True)]
        return rows, zeros, zeros, weights
    return rows, zeros, labels, weights


def _objective(
    model: LinearModel, given: Given, size: float = 1.0, l1: Fraction | int = 0
) -> _Objective:
    rows, labels, offsets, weights = _data(model, given)
    loss = model.loss()
    total = sum(map(Fraction, given.each), Fraction(0))
    l2 = _fraction(type(model).l2(_Exactly(model), total))  # type: ignore[arg-type]
    free = [_arb(0)] * model.fit_intercept
    return _Objective(
        rows, labels, offsets, weights,
        ball_function(loss.derivative.call), _bend(loss),
        _arb(size), [l2] * given.x.shape[1] + free, [_fraction(l1)] * given.x.shape[1] + free,
        bool(getattr(model, "positive", False)) and model.positive_label() is None,
    )  # fmt: skip


def _bend(loss: Loss) -> Callable[[Ball], Ball]:
    """L'' on balls; of a loss of one's own the slope of what it computes, not what is said."""
    if loss.known is not None:
        return ball_function(loss.known.bend)

    def enclosed(z: Ball) -> Ball:
        ends = float(z.lower()), float(z.upper())
        low, high = math.nextafter(ends[0], -math.inf), math.nextafter(ends[1], math.inf)
        cell = Interval(*torch.tensor([[low], [high]], dtype=torch.float64))
        found = loss.derivative.jets(cell, 1)[1]
        return _arb(float(found.low)).union(_arb(float(found.high)))

    return enclosed


def _line(found: Result, intercept: bool) -> list[Ball]:
    return [*_balls(found.coef), *(_balls(found.intercept) if intercept else [])]


def _solved(objective: _Objective, start: list[Ball]) -> list[Ball]:
    """The optimum; of dependent features that of independent ones, the others 0."""
    try:
        return objective.optimum(list(start))
    except _DependentError:
        pass
    kept = _independent(objective.rows)
    if len(kept) == objective.dim or any(q > 0 for q in objective.l2 + objective.l1):
        raise _open("the Hessian is singular, to this many bits")
    part = replace(
        objective,
        rows=[[row[j] for j in kept] for row in objective.rows],
        l2=[objective.l2[j] for j in kept],
        l1=[objective.l1[j] for j in kept],
    )
    try:
        some = part.optimum(_same_image(objective.rows, kept, start))
    except _DependentError:
        raise _open("the Hessian is singular") from None
    out = [_arb(0)] * objective.dim
    for j, a in zip(kept, some, strict=True):
        out[j] = a
    return out


def _same_image(rows: list[list[Ball]], kept: list[int], v: list[Ball]) -> list[Ball]:
    """Coefficients of some columns whose fitted values are nearest to those of all."""
    flint = ball_arithmetic()
    part = flint.arb_mat([[row[j].mid() for j in kept] for row in rows])
    image = flint.arb_mat([[_dot(row, v).mid()] for row in rows])
    found = (part.transpose() * part).solve(part.transpose() * image)
    return [found[i, 0].mid() for i in range(len(kept))]


def _independent(rows: list[list[Ball]]) -> list[int]:
    """Columns that are independent, exactly: the others are combinations of those before."""
    flint = ball_arithmetic()
    exact = flint.fmpq_mat([[_rational(a) for a in row] for row in rows])
    reduced, rank = exact.rref()
    return [next(j for j in range(len(rows[0])) if reduced[i, j] != 0) for i in range(rank)]


def _rational(ball: Ball) -> Any:
    """The number that an exact ball is."""
    flint = ball_arithmetic()
    mantissa, exponent = ball.mid().man_exp()
    power = flint.fmpq(2) ** int(exponent)
    return flint.fmpq(mantissa) * power


def _compared(found: Result, start: list[Ball], exact: list[Ball], rows: list[list[Ball]]) -> Pairs:
    """Coefficients, or fitted values where the certificate speaks of those."""
    if "what" not in found.certificate.domain:
        pairs = list(zip(start, exact, strict=True))
        return pairs[: len(found.coef)] + _beyond(found, pairs[len(found.coef) :])
    return [(_dot(row, start), _dot(row, exact)) for row in rows]


def _beyond(found: Result, intercepts: Pairs) -> Pairs:
    """Intercepts that are farther off than their own bound says, as being off by anything."""
    bound = _arb(found.errors["intercept"]) if intercepts else _arb(0)
    return [(a, _arb(math.inf)) for a, b in intercepts if not abs(a - b) <= bound]


@_enclosed.register(LinearModel)
def _(model: LinearModel, found: Result, given: Given) -> Pairs:
    l1 = Fraction(0)
    if isinstance(model, ElasticNet):
        l1 = Fraction(model.alpha) * Fraction(model.l1_ratio)
    # A loss of residuals acts on those of scaled labels.
    size = model.scaling(given.source).size if model.loss().kind == "residual" else 1.0
    objective = _objective(model, given, size=size, l1=l1)
    start = _line(found, model.fit_intercept)
    return _compared(found, start, _solved(objective, start), objective.rows)


@_enclosed.register(Logistic)
def _(model: Logistic, found: Result, given: Given) -> Pairs:
    """Several classes: a row for each, all of them together, which add up to 0."""
    if model.classes == 2:
        return _enclosed.dispatch(LinearModel)(model, found, given)
    flint = ball_arithmetic()
    rows, _, _, weights = _data(model, given)
    labels, classes, p = [int(y) for y in given.y.tolist()], range(model.classes), len(rows[0])
    total = sum(map(Fraction, given.each), Fraction(0))
    l2 = _fraction(type(model).l2(_Exactly(model), total))  # type: ignore[arg-type]
    penalty = [l2] * given.x.shape[1] + [_arb(0)] * model.fit_intercept
    heavy = sum(weights, _arb(0))

    def system(v: list[Ball]) -> tuple[list[Ball], Any]:
        """The gradient, and enclosures of its slopes; half the square of the rows' sum added."""
        parts = [v[k * p : (k + 1) * p] for k in classes]
        added = [sum(column, _arb(0)) for column in zip(*parts, strict=True)]
        slope = [q * a + s for part in parts for q, a, s in zip(penalty, part, added, strict=True)]
        size = len(v)
        matrix = flint.arb_mat(size, size)
        for row, label, weight in zip(rows, labels, weights, strict=True):
            chances = _softmax([_dot(row, part) for part in parts])
            share = weight / heavy
            for k in classes:
                pull = share * (chances[k] - (1 if k == label else 0))
                for j, a in enumerate(row):
                    slope[k * p + j] = slope[k * p + j] + pull * a
                for m in classes:
                    bend = share * chances[k] * ((1 if k == m else 0) - chances[m])
                    for j, a in enumerate(row):
                        for i, b in enumerate(row):
                            at = (k * p + j, m * p + i)
                            matrix[at] = matrix[at] + bend * a * b
        for k in classes:
            for j, q in enumerate(penalty):
                matrix[k * p + j, k * p + j] = matrix[k * p + j, k * p + j] + q
                for m in classes:
                    matrix[k * p + j, m * p + j] = matrix[k * p + j, m * p + j] + 1
        return slope, matrix

    coef = _rows(found.coef)
    last = [[b] for b in _balls(found.intercept)] if model.fit_intercept else [[] for _ in coef]
    start = [a for row, b in zip(coef, last, strict=True) for a in (*row, *b)]
    pairs = list(zip(start, _zero(system, start), strict=True))
    each, d = [pairs[k * p : (k + 1) * p] for k in classes], given.x.shape[1]
    return [pair for part in each for pair in part[:d]] + [
        pair for part in each for pair in _beyond(found, part[d:])
    ]


@_enclosed.register(Quantile)
def _(model: Quantile, found: Result, given: Given) -> Pairs:
    start = _line(found, model.fit_intercept)
    if "objective" in found.certificate.domain:  # a rounded corner, of a width that was found
        size = next(s.value for s in found.certificate.derivation if s.symbol == UNIT)
        l1 = Fraction(model.alpha) * Fraction(size)  # of the objective times the labels' size
        objective = _objective(model, given, size=size, l1=l1)
        return _compared(found, start, _solved(objective, start), objective.rows)
    if model.alpha:
        model, beside = model.penalised_by_samples(given.source)
        given = Given(beside.x, beside.y, beside.weights)
    rows, labels, _, weights = _data(model, given)
    exact = _vertex(rows, labels, weights, start, Fraction(model.quantile))
    return _compared(found, start, exact, rows)


def _vertex(
    rows: list[list[Ball]], labels: list[Ball], weights: list[Ball], near: list[Ball], q: Fraction
) -> list[Ball]:
    """The line through as many samples as coefficients, proved by its dual in fractions."""
    flint = ball_arithmetic()
    far = [float(abs(_dot(row, near) - b).mid()) for row, b in zip(rows, labels, strict=True)]
    chosen: list[int] = []
    for i in sorted(range(len(rows)), key=far.__getitem__):
        trial = flint.fmpq_mat([[_rational(a) for a in rows[k]] for k in [*chosen, i]])
        if trial.rank() == len(chosen) + 1:
            chosen.append(i)
        if len(chosen) == len(near):
            break
    else:
        raise _open("no samples determine a line")
    a = [[_rational(v) for v in row] for row in rows]
    b = [_rational(v) for v in labels]
    basis = flint.fmpq_mat([a[i] for i in chosen])
    line = basis.solve(flint.fmpq_mat([[b[i]] for i in chosen]))
    v = [line[j, 0] for j in range(len(near))]
    share = flint.fmpq(q.numerator, q.denominator)
    low, high = ([flint.fmpq(0)] * len(chosen) for _ in range(2))
    total = [flint.fmpq(0)] * len(near)
    for row, label, ball in zip(a, b, weights, strict=True):
        weight = _rational(ball)
        z = sum((s * t for s, t in zip(row, v, strict=True)), flint.fmpq(0)) - label
        if z == 0:
            image = [-s for s in row]  # what it weighs counts the other way round
            same = [k for k, i in enumerate(chosen) if a[i] == row and b[i] == label]
            other = [k for k, i in enumerate(chosen) if a[i] == image and b[i] == -label]
            if not same and not other:
                raise _open("the line goes through more samples than it has coefficients")
            k, up = (same[0], 1 - share) if same else (other[0], share)
            low[k], high[k] = low[k] - (1 - up) * weight, high[k] + up * weight
            continue
        pull = (1 - share if z > 0 else -share) * weight
        total = [t + pull * s for t, s in zip(total, row, strict=True)]
    dual = basis.transpose().solve(flint.fmpq_mat([[-t] for t in total]))
    for k, (least, most) in enumerate(zip(low, high, strict=True)):
        if not least < dual[k, 0] < most:
            raise _open("the dual of the linear program is not inside its limits")
    return [flint.arb(c) for c in v]


@_enclosed.register(Huber)
def _(model: Huber, found: Result, given: Given) -> Pairs:
    """Coefficients and scale together, the last of the unknowns being the scale."""
    flint = ball_arithmetic()
    rows, labels, _, weights = _data(model, given)
    p = len(rows[0])
    eps = _arb(model.epsilon)
    penalty = [_arb(model.alpha)] * given.x.shape[1] + [_arb(0)] * model.fit_intercept

    def system(v: list[Ball]) -> tuple[list[Ball], Any]:
        """The gradient in (w, s), and enclosures of its slopes."""
        s, slope, last = v[-1], [q * c for q, c in zip(penalty, v, strict=False)], _arb(0)
        bent, tilted = [], []
        for row, label, c in zip(rows, labels, weights, strict=True):
            t = (_dot(row, v[:-1]) - label) / s
            clipped = t.min(eps).max(-eps)
            inside = _arb(1) if abs(t) < eps else _arb(0) if abs(t) > eps else flint.arb(0.5, 0.5)
            slope = [g + c * clipped * a for g, a in zip(slope, row, strict=True)]
            last = last + c * (1 - clipped * clipped)
            bent.append([c * inside * a / s for a in row] + [-c * inside * clipped / s])
            tilted.append([*row, -clipped])
        matrix = flint.arb_mat(tilted).transpose() * flint.arb_mat(bent)
        for j, q in enumerate(penalty):
            matrix[j, j] = matrix[j, j] + q
        return [*slope, last / 2], matrix

    start = _line(found, model.fit_intercept)
    v = [*start, _arb(float(found.parts["scale"]))]
    try:
        exact = _zero(system, v)
        if not exact[-1] > 0:  # the gradient vanishes there, but no scale is negative
            raise _open("the scale of the optimum is not known to be above 0")
    except PrecisionError:
        apart = _by_duality(model, found, given)
        if apart is None or not apart <= found.certificate.error:
            raise
        return [(a, a + flint.arb(0, apart)) for a in start[: len(found.coef)]]
    return _compared(found, start, exact[:p], rows)


def _by_duality(model: Huber, found: Result, given: Given) -> float | None:
    r"""What penalised coefficients are off by at most, whatever the scale of the optimum, 0 too.

    In units of half the mean objective, F = <s/2 + s h(r/s)> + q |v|^2/2 with q = alpha over the
    sum of the weights: any |a_i| <= epsilon with <a^2> <= 1 bound it below by
    -<a y> + b <a> - sum_j <a x_j>^2/(2 q), and q |w - v|^2/2 is at most what F is above its least
    value. The multipliers are those of the certificate's own proof, to float64: any will do.
    """
    if not model.alpha:
        return None
    rows, labels, _, weights = _data(model, given)
    d, total, eps = given.x.shape[1], sum(weights, _arb(0)), _arb(model.epsilon)
    q, s = _arb(model.alpha) / total, _arb(float(found.parts["scale"]))
    line = _line(found, model.fit_intercept)

    def mean(terms: Sequence[Ball]) -> Ball:
        return _dot(weights, terms) / total

    residuals = [_dot(row, line) - b for row, b in zip(rows, labels, strict=True)]
    inside = [abs(r).min(eps * s) for r in residuals]
    loss = mean([s / 2 + t / s * (abs(r) - t / 2) for r, t in zip(residuals, inside, strict=True)])
    whole = loss + q * _dot(line[:d], line[:d]) / 2
    far = (2 * whole / q).sqrt()  # no better line has longer coefficients
    reach = whole + mean([abs(b) for b in labels])
    reach = reach + far * sum((mean([abs(row[j]) for row in rows]) for j in range(d)), _arb(0))
    best = _arb(0)
    for multipliers in duals(model, found, given):
        a = _balls(multipliers)
        longest = mean([t * t for t in a]).sqrt().max(max(abs(t) / eps for t in a)).max(_arb(1))
        a = [t / longest.upper() for t in a]
        steep = [mean([t * row[j] for t, row in zip(a, rows, strict=True)]) for j in range(d)]
        least = -mean([t * b for t, b in zip(a, labels, strict=True)])
        least = least - _dot(steep, steep) / (2 * q)
        best = best.max(least - (abs(mean(a)) * reach if model.fit_intercept else 0))
    return uppermost((2 * (whole - best).max(_arb(0)) / q).sqrt())


def _zero(system: Callable[[list[Ball]], tuple[list[Ball], Any]], v: list[Ball]) -> list[Ball]:
    """The zero of a gradient near v, proved by Newton's method for intervals."""
    flint = ball_arithmetic()
    v = [a.mid() for a in v]
    for _ in range(_ROUNDS):
        gradient, slopes = system(v)
        try:
            step = slopes.mid().solve(flint.arb_mat([[g.mid()] for g in gradient]))
        except ZeroDivisionError:
            raise _open("the Hessian is singular") from None
        v = [(a - step[j, 0]).mid() for j, a in enumerate(v)]
        size = max(abs(a) for a in v)
        if all(
            abs(step[j, 0]).mid() < size * _arb(2) ** -(_bits() - _MARGIN) for j in range(len(v))
        ):
            break
    wide = (size * _arb(2) ** -(_bits() // 2)).mid()
    gradient, _ = system(v)
    _, slopes = system([a + flint.arb(0, 1) * wide for a in v])
    try:
        step = slopes.solve(flint.arb_mat([[g] for g in gradient]))
    except ZeroDivisionError:
        raise _open("the Hessian may be singular") from None
    if not all(abs(step[j, 0]) < wide for j in range(len(v))):
        raise _open("no box around the answer holds one zero of the gradient")
    return [a - step[j, 0] for j, a in enumerate(v)]


@_enclosed.register(Perceptron)
def _(model: Perceptron, found: Result, given: Given) -> Pairs:
    """Every pass again, on samples scaled by the numbers that scaled them."""
    means, scales = (found.parts[name].to(given.x) for name in ("means", "scales"))
    scaling = Scaling(means, scales, 0.0, 1.0, model.fit_intercept)
    rows, _, _, weights = _data(model, given)
    mean, scale = _balls(means), _balls(scales)
    d = given.x.shape[1]
    y, one = given.y, model.positive_label()
    signs = _balls(y if one is None else torch.where(y == one, 1.0, -1.0))
    scaled = [
        [s * (a * s - m) / c for a, m, c in zip(row, mean, scale, strict=False)] + row[d:]
        for row, s in zip(rows, signs, strict=True)
    ]
    total = sum(weights, _arb(0))
    weights = [c / total for c in weights]
    w = [_dot(column, weights) for column in zip(*scaled, strict=True)]
    if model.begin is not None:
        w = _balls(scaling.scaled(*(part.to(scaling.mean) for part in model.begin)))
    for _ in range(found.passes - 1):
        margins = [_dot(row, w) for row in scaled]
        if any(not (m < 0) and not (m > 0) for m in margins):
            raise _open("a margin is 0, or not told from it")
        wrong = [(row, c) for row, m, c in zip(scaled, margins, weights, strict=True) if m < 0]
        for row, c in wrong:
            w = [a + c * b for a, b in zip(w, row, strict=True)]
    exact = [a / c for a, c in zip(w, scale, strict=False)]
    return list(zip(_balls(found.coef), exact, strict=True))


# ---------------------------------------------------------------------------------------------
# averages, components, and what is replayed
# ---------------------------------------------------------------------------------------------


def _softmax(logits: list[Ball]) -> list[Ball]:
    top = max(logits, key=lambda a: float(a.mid()))
    masses = [(a - top).exp() for a in logits]
    total = sum(masses, _arb(0))
    return [m / total for m in masses]


def _squares(a: Sequence[Ball], b: Sequence[Ball]) -> Ball:
    return sum(((s - t) ** 2 for s, t in zip(a, b, strict=True)), _arb(0))


@_enclosed.register(KernelRegression)
def _(model: KernelRegression, found: Result, given: Given) -> Pairs:
    rows, labels, gamma = _rows(given.x), _balls(given.y), _arb(float(found.parts["gamma"]))
    exact = [_dot(_softmax([-gamma * _squares(q, x) for x in rows]), labels) for q in rows]
    return list(zip(_balls(found.value), exact, strict=True))


@_enclosed.register(KNeighbors)
def _(model: KNeighbors, found: Result, given: Given) -> Pairs:
    """The neighbours that were read are the nearest, up to what counts as equally near."""
    if callable(model.weights):
        raise ProgramError("ball arithmetic does not know weights that a function computes")
    memory = found.predictor
    assert isinstance(memory, NeighborsMemory)
    rows, labels, k = _rows(given.x), _balls(given.y), model.n_neighbors
    apart, pairs = _arb(memory.resolution), []
    read = memory.neighbors(given.x).tolist()
    for q, chosen, value in zip(rows, read, found.value.tolist(), strict=True):
        distances = [_squares(q, x) for x in rows]
        last = sorted(distances, key=lambda a: float(a.mid()))[k - 1]
        if len(set(chosen)) != k or any(distances[j] > last + apart for j in chosen):
            return [(_arb(value), _arb(math.inf))]  # not the nearest at all
        weights = [_arb(1)] * k
        if model.weights == "distance":
            same = [j for j in chosen if distances[j] == 0]
            if same:
                weights = [_arb(j in same) for j in chosen]
            else:
                weights = [1 / distances[j].sqrt() for j in chosen]
        mean = _dot(weights, [labels[j] for j in chosen]) / sum(weights, _arb(0))
        pairs.append((_arb(value), mean))
    return pairs


@_enclosed.register(PCA)
def _(model: PCA, found: Result, given: Given) -> Pairs:
    """Lengths of what components differ by from eigenvectors of the covariance, and 0."""
    flint = ball_arithmetic()
    rows = _rows(given.x)
    n, d = len(rows), given.x.shape[1]
    mean = [sum(column, _arb(0)) / n for column in zip(*rows, strict=True)]
    centred = flint.arb_mat([[a - m for a, m in zip(row, mean, strict=True)] for row in rows])
    covariance = centred.transpose() * centred
    scale = max(float(covariance[j, j].mid()) for j in range(d)) or 1.0
    matrix = flint.acb_mat(covariance / _arb(2) ** int(math.log2(scale)))
    try:
        values, vectors = matrix.eig(right=True, tol=2.0 ** -(_bits() // 2))
    except (ValueError, ZeroDivisionError):
        raise _open("two variances agree, or are not told apart") from None
    order = sorted(range(d), key=lambda j: -float(values[j].real.mid()))
    pairs = []
    for row, j in zip(found.value.tolist(), order, strict=False):
        exact = [vectors[i, j].real for i in range(d)]
        length = _dot(exact, exact).sqrt()
        signed = 1 if _dot(exact, [_arb(v) for v in row]) > 0 else -1
        apart = [_arb(v) - signed * e / length for v, e in zip(row, exact, strict=True)]
        pairs.append((_dot(apart, apart).sqrt(), _arb(0)))
    return pairs


@_enclosed.register(Head)
def _(model: Head, found: Result, given: Given) -> Pairs:
    rows = _rows(given.x)
    w_k, w_q, w_v = (_rows(w) for w in (model.w_k, model.w_q, model.w_v))
    keys, queries, values = ([[_dot(r, x) for r in w] for x in rows] for w in (w_k, w_q, w_v))
    exact = []
    for query in queries:
        weights = _softmax([_dot(key, query) for key in keys])
        exact += [_dot(weights, column) for column in zip(*values, strict=True)]
    return list(zip(_balls(found.value), exact, strict=True))


@_enclosed.register(HopfieldRetrieval)
def _(model: HopfieldRetrieval, found: Result, given: Given) -> Pairs:
    patterns, state, beta = _rows(given.x), _balls(given.y), _arb(model.beta)
    for _ in range(model.steps):
        weights = _softmax([beta * _dot(p, state) for p in patterns])
        state = [_dot(weights, column) for column in zip(*patterns, strict=True)]
    return list(zip(_balls(found.value), state, strict=True))


@_enclosed.register(Descent)
def _(model: Descent, found: Result, given: Given) -> Pairs:
    x, y = given.x, labels_of(given.y)
    loss = model._residual(x.shape[1], x.shape[0]).loss
    schedule, _ = model.plan(x)
    f, kind = ball_function(loss.derivative.call), loss.kind
    rows, labels = _rows(x), _balls(y)
    if kind == "margin":
        rows = [[s * a for a in row] for row, s in zip(rows, labels, strict=True)]
    w = ahead = [_arb(0)] * x.shape[1]
    n, l2 = len(rows), _arb(model.l2)
    for eta, mu in zip(schedule.steps, schedule.momenta, strict=True):
        total = [_arb(0)] * len(w)
        for row, label in zip(rows, labels, strict=True):
            z = _dot(row, ahead)
            value = f(z - label) if kind == "residual" else f(z) - (label if kind == "glm" else 0)
            total = [t + value * a for t, a in zip(total, row, strict=True)]
        last, w = w, [
            a - _arb(eta) * (t / n + l2 * a) for a, t in zip(ahead, total, strict=True)
        ]  # fmt: skip
        ahead = [a + _arb(mu) * (a - b) for a, b in zip(w, last, strict=True)]
    return list(zip(_balls(found.value), w, strict=True))


set_exact(enclosed)
