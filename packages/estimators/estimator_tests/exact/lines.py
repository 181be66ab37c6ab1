"""Linear models: the zero of a gradient, by Newton's method for intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch

from estimator_tests.exact.balls import (
    MARGIN,
    ROUNDS,
    Ball,
    Pairs,
    arb,
    balls_in,
    bits,
    dot,
    exact_of,
    not_enclosed,
    rows_in,
    softmax,
)
from iceform.arithmetic import Interval
from iceform.arithmetic.balls import ball_arithmetic
from iceform.certificates import Result
from iceform.expressions import Loss, ScalarFunction
from iceform_estimators.algorithms.elastic_net import ElasticNet
from iceform_estimators.algorithms.linear import LinearModel
from iceform_estimators.algorithms.logistic import Logistic
from iceform_estimators.machine import ArraySource
from iceform_estimators.machine.program import RunData


def source_of(given: RunData) -> ArraySource:
    """The data, to walk over."""
    return ArraySource(given.x, given.y, weights=given.weights)


def weights_of(given: RunData) -> list[float]:
    """What samples weigh, one by one."""
    return [1.0] * len(given.x) if given.weights is None else given.weights.tolist()


class _Exactly:
    """A model whose numbers are fractions, for the formulas of its penalties."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        return Fraction(value) if isinstance(value, int | float) else value


def _fraction(value: Fraction | float) -> Ball:
    value = Fraction(value)
    return arb(value.numerator) / value.denominator


@dataclass
class Objective:
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
            z = (dot(row, v) - label) / self.size
            pulls.append(weight * (self.size * self.slope(z) - offset))
        total = flint.arb_mat([pulls]) * flint.arb_mat(self.rows)
        heavy = sum(self.weights, arb(0))
        return [total[0, j] / heavy + q * v[j] for j, q in enumerate(self.l2)]

    def hessian(self, v: Sequence[Ball]) -> Any:
        """Its slopes."""
        flint = ball_arithmetic()
        bent = []
        for row, label, _, weight in self._samples():
            bend = weight * self.bend((dot(row, v) - label) / self.size)
            bent.append([bend * a for a in row])
        out = flint.arb_mat(bent).transpose() * flint.arb_mat(self.rows)
        out = out / sum(self.weights, arb(0))
        for j, q in enumerate(self.l2):
            out[j, j] = out[j, j] + q
        return out

    def _samples(self) -> Any:
        return zip(self.rows, self.labels, self.offsets, self.weights, strict=True)

    def optimum(self, v: list[Ball]) -> list[Ball]:
        """The minimiser, from a guess."""
        v = [a.mid() for a in v]
        signs = [0 if a == 0 else (1 if a > 0 else -1) for a in v]
        for _ in range(ROUNDS):
            held = [s == 0 and self._stops(j) for j, s in enumerate(signs)]
            v, crossed = self._newton(v, signs, held)
            if crossed is not None:
                signs[crossed], v[crossed] = 0, arb(0)
                continue
            gradient = self.gradient(v)
            enters = [j for j, h in enumerate(held) if h and self._enters(j, gradient[j])]
            if not enters:
                return self._proved(v, signs, held)
            worst = max(enters, key=lambda j: float((abs(gradient[j]) - self.l1[j]).mid()))
            signs[worst] = 1 if gradient[worst] < 0 else -1
        raise not_enclosed("the support does not settle")

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
        for _ in range(ROUNDS):
            step = self._step(v, signs, free)
            for j, s in zip(free, step, strict=True):
                v[j] = (v[j] - s).mid()
            across = [j for j in free if self._stops(j) and signs[j] * v[j] < 0]
            if across:
                return v, across[0]
            size = max((abs(a) for a in v), default=arb(0)) + arb(2) ** -MARGIN
            if all(abs(s).mid() < size * arb(2) ** -(bits() - MARGIN // 2) for s in step):
                return v, None
        raise not_enclosed("Newton's method does not settle")

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
            raise DependentError from None
        return [step[i, 0] for i in range(len(free))]

    def _proved(self, v: list[Ball], signs: list[int], held: list[bool]) -> list[Ball]:
        """Newton's method for intervals on a box around v."""
        flint = ball_arithmetic()
        free = [j for j, h in enumerate(held) if not h]
        size = max((abs(a) for a in v), default=arb(0)) + arb(2) ** -MARGIN
        wide = (size * arb(2) ** -(bits() // 2)).mid()
        box = [a if held[j] else a + flint.arb(0, 1) * wide for j, a in enumerate(v)]
        if free:
            gradient, hessian = self.gradient(v), self.hessian(box)
            pull = flint.arb_mat([[gradient[j] + self.l1[j] * signs[j]] for j in free])
            part = flint.arb_mat([[hessian[j, k] for k in free] for j in free])
            try:
                step = part.solve(pull)
            except ZeroDivisionError:
                raise DependentError from None
            if not all(abs(step[i, 0]) < wide for i in range(len(free))):
                raise not_enclosed("no box around the answer holds one zero of the gradient")
            v = list(v)
            for i, j in enumerate(free):
                v[j] = v[j] - step[i, 0]
        slopes = self.gradient(v)
        for j, h in enumerate(held):
            slack = slopes[j] + self.l1[j] if self.positive else self.l1[j] - abs(slopes[j])
            if h and not slack > 0:
                raise not_enclosed(f"whether coefficient {j} is 0 is open")
            if not h and self._stops(j) and not signs[j] * v[j] > 0:
                raise not_enclosed(f"the sign of coefficient {j} is open")
        return v


class DependentError(Exception):
    """Features depend on each other, or seem to."""


def written(
    model: LinearModel, given: RunData
) -> tuple[list[list[Ball]], list[Ball], list[Ball], list[Ball]]:
    """Rows a, labels b, offsets o and weights c, as the loss takes them."""
    loss, y = model.loss(), given.y
    if (one := model.positive_label()) is not None:
        y = (y == one).to(y)
        y = 2 * y - 1 if loss.kind == "margin" else y
    constant = [arb(1)] * model.fit_intercept
    rows, labels = [[*row, *constant] for row in rows_in(given.x)], balls_in(y)
    zeros = [arb(0)] * len(labels)
    weights = [arb(c) for c in weights_of(given)]
    if loss.kind == "residual":
        return rows, labels, zeros, weights
    if loss.kind == "margin":
        rows = [[s * a for a in row] for row, s in zip(rows, labels, strict=True)]
        return rows, zeros, zeros, weights
    return rows, zeros, labels, weights


def objective_of(
    model: LinearModel, given: RunData, size: float = 1.0, l1: Fraction | int = 0
) -> Objective:
    """What a model minimises, ``size`` being s, with an absolute value of weight ``l1``."""
    rows, labels, offsets, weights = written(model, given)
    loss = model.loss()
    total = sum(map(Fraction, weights_of(given)), Fraction(0))
    l2 = _fraction(type(model).l2(_Exactly(model), total))  # type: ignore[arg-type]
    free = [arb(0)] * model.fit_intercept
    return Objective(
        rows, labels, offsets, weights,
        loss.derivative.balls, _bend(loss),
        arb(size), [l2] * given.x.shape[1] + free, [_fraction(l1)] * given.x.shape[1] + free,
        bool(getattr(model, "positive", False)) and model.positive_label() is None,
    )  # fmt: skip


def _bend(loss: Loss) -> Callable[[Ball], Ball]:
    """L'' on balls; of a loss of one's own the slope of what it computes, not what is said."""
    if loss.known is not None:
        return ScalarFunction(loss.known.bend, "bend").balls

    def enclosed(z: Ball) -> Ball:
        ends = float(z.lower()), float(z.upper())
        low, high = math.nextafter(ends[0], -math.inf), math.nextafter(ends[1], math.inf)
        cell = Interval(*torch.tensor([[low], [high]], dtype=torch.float64))
        found = loss.derivative.jets(cell, 1)[1]
        return arb(float(found.low)).union(arb(float(found.high)))

    return enclosed


def line_of(found: Result, intercept: bool) -> list[Ball]:
    """Coefficients that were found, the intercept last."""
    return [*balls_in(found.coef), *(balls_in(found.intercept) if intercept else [])]


def solved(objective: Objective, start: list[Ball]) -> list[Ball]:
    """The optimum; of dependent features that of independent ones, the others 0."""
    try:
        return objective.optimum(list(start))
    except DependentError:
        pass
    kept = _independent(objective.rows)
    if len(kept) == objective.dim or any(q > 0 for q in objective.l2 + objective.l1):
        raise not_enclosed("the Hessian is singular, to this many bits")
    part = replace(
        objective,
        rows=[[row[j] for j in kept] for row in objective.rows],
        l2=[objective.l2[j] for j in kept],
        l1=[objective.l1[j] for j in kept],
    )
    try:
        some = part.optimum(_same_image(objective.rows, kept, start))
    except DependentError:
        raise not_enclosed("the Hessian is singular") from None
    out = [arb(0)] * objective.dim
    for j, a in zip(kept, some, strict=True):
        out[j] = a
    return out


def zero_near(system: Callable[[list[Ball]], tuple[list[Ball], Any]], v: list[Ball]) -> list[Ball]:
    """The zero of a gradient near v, proved by Newton's method for intervals."""
    flint = ball_arithmetic()
    v = [a.mid() for a in v]
    for _ in range(ROUNDS):
        gradient, slopes = system(v)
        try:
            step = slopes.mid().solve(flint.arb_mat([[g.mid()] for g in gradient]))
        except ZeroDivisionError:
            raise not_enclosed("the Hessian is singular") from None
        v = [(a - step[j, 0]).mid() for j, a in enumerate(v)]
        size = max(abs(a) for a in v)
        if all(abs(step[j, 0]).mid() < size * arb(2) ** -(bits() - MARGIN) for j in range(len(v))):
            break
    wide = (size * arb(2) ** -(bits() // 2)).mid()
    gradient, _ = system(v)
    _, slopes = system([a + flint.arb(0, 1) * wide for a in v])
    try:
        step = slopes.solve(flint.arb_mat([[g] for g in gradient]))
    except ZeroDivisionError:
        raise not_enclosed("the Hessian may be singular") from None
    if not all(abs(step[j, 0]) < wide for j in range(len(v))):
        raise not_enclosed("no box around the answer holds one zero of the gradient")
    return [a - step[j, 0] for j, a in enumerate(v)]


def _same_image(rows: list[list[Ball]], kept: list[int], v: list[Ball]) -> list[Ball]:
    """Coefficients of some columns whose fitted values are nearest to those of all."""
    flint = ball_arithmetic()
    part = flint.arb_mat([[row[j].mid() for j in kept] for row in rows])
    image = flint.arb_mat([[dot(row, v).mid()] for row in rows])
    found = (part.transpose() * part).solve(part.transpose() * image)
    return [found[i, 0].mid() for i in range(len(kept))]


def _independent(rows: list[list[Ball]]) -> list[int]:
    """Columns that are independent, exactly: the others are combinations of those before."""
    flint = ball_arithmetic()
    exact = flint.fmpq_mat([[rational(a) for a in row] for row in rows])
    reduced, rank = exact.rref()
    return [next(j for j in range(len(rows[0])) if reduced[i, j] != 0) for i in range(rank)]


def rational(ball: Ball) -> Any:
    """The number that an exact ball is."""
    flint = ball_arithmetic()
    mantissa, exponent = ball.mid().man_exp()
    power = flint.fmpq(2) ** int(exponent)
    return flint.fmpq(mantissa) * power


def compared(found: Result, start: list[Ball], exact: list[Ball], rows: list[list[Ball]]) -> Pairs:
    """Coefficients, or fitted values where the certificate speaks of those."""
    if "what" not in found.certificate.domain:
        pairs = list(zip(start, exact, strict=True))
        return pairs[: len(found.coef)] + _beyond(found, pairs[len(found.coef) :])
    return [(dot(row, start), dot(row, exact)) for row in rows]


def _beyond(found: Result, intercepts: Pairs) -> Pairs:
    """Intercepts that are farther off than their own bound says, as being off by anything."""
    bound = arb(found.errors["intercept"]) if intercepts else arb(0)
    return [(a, arb(math.inf)) for a, b in intercepts if not abs(a - b) <= bound]


@exact_of.register(LinearModel)
def _(model: LinearModel, found: Result, given: RunData) -> Pairs:
    l1 = Fraction(0)
    if isinstance(model, ElasticNet):
        l1 = Fraction(model.alpha) * Fraction(model.l1_ratio)
    # A loss of residuals acts on those of scaled labels.
    size = model.scaling(source_of(given)).size if model.loss().kind == "residual" else 1.0
    objective = objective_of(model, given, size=size, l1=l1)
    start = line_of(found, model.fit_intercept)
    return compared(found, start, solved(objective, start), objective.rows)


@exact_of.register(Logistic)
def _(model: Logistic, found: Result, given: RunData) -> Pairs:
    """Several classes: a row for each, all of them together, which add up to 0."""
    if model.classes == 2:
        return exact_of.dispatch(LinearModel)(model, found, given)
    flint = ball_arithmetic()
    rows, _, _, weights = written(model, given)
    labels, classes, p = [int(y) for y in given.y.tolist()], range(model.classes), len(rows[0])
    total = sum(map(Fraction, weights_of(given)), Fraction(0))
    l2 = _fraction(type(model).l2(_Exactly(model), total))  # type: ignore[arg-type]
    penalty = [l2] * given.x.shape[1] + [arb(0)] * model.fit_intercept
    heavy = sum(weights, arb(0))

    def system(v: list[Ball]) -> tuple[list[Ball], Any]:
        """The gradient, and enclosures of its slopes; half the square of the rows' sum added."""
        parts = [v[k * p : (k + 1) * p] for k in classes]
        added = [sum(column, arb(0)) for column in zip(*parts, strict=True)]
        slope = [q * a + s for part in parts for q, a, s in zip(penalty, part, added, strict=True)]
        size = len(v)
        matrix = flint.arb_mat(size, size)
        for row, label, weight in zip(rows, labels, weights, strict=True):
            chances = softmax([dot(row, part) for part in parts])
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

    coef = rows_in(found.coef)
    last = [[b] for b in balls_in(found.intercept)] if model.fit_intercept else [[] for _ in coef]
    start = [a for row, b in zip(coef, last, strict=True) for a in (*row, *b)]
    pairs = list(zip(start, zero_near(system, start), strict=True))
    each, d = [pairs[k * p : (k + 1) * p] for k in classes], given.x.shape[1]
    return [pair for part in each for pair in part[:d]] + [
        pair for part in each for pair in _beyond(found, part[d:])
    ]
