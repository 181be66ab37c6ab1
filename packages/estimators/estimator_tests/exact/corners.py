"""Quantiles and Huber's line: by a dual in fractions, and together with the scale."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from estimator_tests.exact.balls import (
    Ball,
    Pairs,
    arb,
    balls_in,
    dot,
    exact_of,
    not_enclosed,
)
from estimator_tests.exact.lines import (
    compared,
    line_of,
    objective_of,
    rational,
    solved,
    source_of,
    weights_of,
    written,
    zero_near,
)
from iceform.arithmetic.balls import ball_arithmetic, uppermost
from iceform.certificates import Result
from iceform.errors import PrecisionError
from iceform_estimators.algorithms import huber
from iceform_estimators.algorithms.huber import Huber
from iceform_estimators.algorithms.quantile import UNIT, Quantile
from iceform_estimators.machine.program import RunData


@exact_of.register(Quantile)
def _(model: Quantile, found: Result, given: RunData) -> Pairs:
    start = line_of(found, model.fit_intercept)
    if "objective" in found.certificate.domain:  # a rounded corner, of a width that was found
        size = next(s.value for s in found.certificate.derivation if s.symbol == UNIT)
        l1 = Fraction(model.alpha) * Fraction(size)  # of the objective times the labels' size
        objective = objective_of(model, given, size=size, l1=l1)
        return compared(found, start, solved(objective, start), objective.rows)
    if model.alpha:
        model, beside = model.penalised_by_samples(source_of(given))
        given = RunData(beside.x, beside.y, beside.weights)
    rows, labels, _, weights = written(model, given)
    exact = _vertex(rows, labels, weights, start, Fraction(model.quantile))
    return compared(found, start, exact, rows)


def _vertex(
    rows: list[list[Ball]], labels: list[Ball], weights: list[Ball], near: list[Ball], q: Fraction
) -> list[Ball]:
    """The line through as many samples as coefficients, proved by its dual in fractions."""
    flint = ball_arithmetic()
    far = [float(abs(dot(row, near) - b).mid()) for row, b in zip(rows, labels, strict=True)]
    chosen: list[int] = []
    for i in sorted(range(len(rows)), key=far.__getitem__):
        trial = flint.fmpq_mat([[rational(a) for a in rows[k]] for k in [*chosen, i]])
        if trial.rank() == len(chosen) + 1:
            chosen.append(i)
        if len(chosen) == len(near):
            break
    else:
        raise not_enclosed("no samples determine a line")
    a = [[rational(v) for v in row] for row in rows]
    b = [rational(v) for v in labels]
    basis = flint.fmpq_mat([a[i] for i in chosen])
    line = basis.solve(flint.fmpq_mat([[b[i]] for i in chosen]))
    v = [line[j, 0] for j in range(len(near))]
    share = flint.fmpq(q.numerator, q.denominator)
    low, high = ([flint.fmpq(0)] * len(chosen) for _ in range(2))
    total = [flint.fmpq(0)] * len(near)
    for row, label, ball in zip(a, b, weights, strict=True):
        weight = rational(ball)
        z = sum((s * t for s, t in zip(row, v, strict=True)), flint.fmpq(0)) - label
        if z == 0:
            image = [-s for s in row]  # what it weighs counts the other way round
            same = [k for k, i in enumerate(chosen) if a[i] == row and b[i] == label]
            other = [k for k, i in enumerate(chosen) if a[i] == image and b[i] == -label]
            if not same and not other:
                raise not_enclosed("the line goes through more samples than it has coefficients")
            k, up = (same[0], 1 - share) if same else (other[0], share)
            low[k], high[k] = low[k] - (1 - up) * weight, high[k] + up * weight
            continue
        pull = (1 - share if z > 0 else -share) * weight
        total = [t + pull * s for t, s in zip(total, row, strict=True)]
    dual = basis.transpose().solve(flint.fmpq_mat([[-t] for t in total]))
    for k, (least, most) in enumerate(zip(low, high, strict=True)):
        if not least < dual[k, 0] < most:
            raise not_enclosed("the dual of the linear program is not inside its limits")
    return [flint.arb(c) for c in v]


def joint_optimum(
    rows: list[list[Ball]], labels: list[Ball], weights: list[Ball], eps: Ball,
    penalty: list[Ball], v: list[Ball],
) -> list[Ball]:  # fmt: skip
    """Huber's coefficients and scale together near v, whose last is the scale."""
    flint = ball_arithmetic()

    def system(v: list[Ball]) -> tuple[list[Ball], Any]:
        """The gradient in (w, s), and enclosures of its slopes."""
        s, slope, last = v[-1], [q * c for q, c in zip(penalty, v, strict=False)], arb(0)
        bent, tilted = [], []
        for row, label, c in zip(rows, labels, weights, strict=True):
            t = (dot(row, v[:-1]) - label) / s
            clipped = t.min(eps).max(-eps)
            inside = arb(1) if abs(t) < eps else arb(0) if abs(t) > eps else flint.arb(0.5, 0.5)
            slope = [g + c * clipped * a for g, a in zip(slope, row, strict=True)]
            last = last + c * (1 - clipped * clipped)
            bent.append([c * inside * a / s for a in row] + [-c * inside * clipped / s])
            tilted.append([*row, -clipped])
        matrix = flint.arb_mat(tilted).transpose() * flint.arb_mat(bent)
        for j, q in enumerate(penalty):
            matrix[j, j] = matrix[j, j] + q
        return [*slope, last / 2], matrix

    exact = zero_near(system, v)
    if not exact[-1] > 0:  # the gradient vanishes there, but no scale is negative
        raise not_enclosed("the scale of the optimum is not known to be above 0")
    return exact


@exact_of.register(Huber)
def _(model: Huber, found: Result, given: RunData) -> Pairs:
    flint = ball_arithmetic()
    rows, labels, _, weights = written(model, given)
    penalty = [arb(model.alpha)] * given.x.shape[1] + [arb(0)] * model.fit_intercept
    start = line_of(found, model.fit_intercept)
    v = [*start, arb(float(found.parts["scale"]))]
    try:
        exact = joint_optimum(rows, labels, weights, arb(model.epsilon), penalty, v)
    except PrecisionError:
        apart = _by_duality(model, found, given)
        if apart is None or not apart <= found.certificate.error:
            raise
        return [(a, a + flint.arb(0, apart)) for a in start[: len(found.coef)]]
    return compared(found, start, exact[:-1], rows)


def _by_duality(model: Huber, found: Result, given: RunData) -> float | None:
    r"""What penalised coefficients are off by at most, whatever the scale of the optimum, 0 too.

    In units of half the mean objective, F = <s/2 + s h(r/s)> + q |v|^2/2 with q = alpha over the
    sum of the weights: any |a_i| <= epsilon with <a^2> <= 1 bound it below by
    -<a y> + b <a> - sum_j <a x_j>^2/(2 q), and q |w - v|^2/2 is at most what F is above its least
    value. The multipliers are those of the certificate's own proof, to float64: any will do.
    """
    if not model.alpha:
        return None
    rows, labels, _, weights = written(model, given)
    d, total, eps = given.x.shape[1], sum(weights, arb(0)), arb(model.epsilon)
    q, s = arb(model.alpha) / total, arb(float(found.parts["scale"]))
    line = line_of(found, model.fit_intercept)

    def mean(terms: Sequence[Ball]) -> Ball:
        return dot(weights, terms) / total

    residuals = [dot(row, line) - b for row, b in zip(rows, labels, strict=True)]
    inside = [abs(r).min(eps * s) for r in residuals]
    loss = mean([s / 2 + t / s * (abs(r) - t / 2) for r, t in zip(residuals, inside, strict=True)])
    whole = loss + q * dot(line[:d], line[:d]) / 2
    far = (2 * whole / q).sqrt()  # no better line has longer coefficients
    reach = whole + mean([abs(b) for b in labels])
    reach = reach + far * sum((mean([abs(row[j]) for row in rows]) for j in range(d)), arb(0))
    best = arb(0)
    for multipliers in _duals(model, found, given):
        a = balls_in(multipliers)
        longest = mean([t * t for t in a]).sqrt().max(max(abs(t) / eps for t in a)).max(arb(1))
        a = [t / longest.upper() for t in a]
        steep = [mean([t * row[j] for t, row in zip(a, rows, strict=True)]) for j in range(d)]
        least = -mean([t * b for t, b in zip(a, labels, strict=True)])
        least = least - dot(steep, steep) / (2 * q)
        best = best.max(least - (abs(mean(a)) * reach if model.fit_intercept else 0))
    return uppermost((2 * (whole - best).max(arb(0)) / q).sqrt())


def _duals(model: Huber, found: Result, given: Any) -> list[Tensor]:
    """Multipliers of the samples by which F may be bounded below, near the line that was found."""
    base, shares = (
        model.scaling(source_of(given)),
        torch.tensor(weights_of(given), dtype=torch.float64),
    )
    w = base.scaled(found.coef.double(), found.intercept.double())
    point = (w, float(found.parts["scale"]) / base.size)
    ridge = base.penalty(model.alpha * base.size / float(shares.sum()))
    samples, labels, _ = huber.Encoding(base, "residual")(given.x, given.y)
    data = (samples, labels, shares / shares.sum())
    return [huber._multipliers(model.epsilon, point, ridge, data, near) for near in huber._NEAR]
