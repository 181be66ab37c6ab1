"""Averages, neighbours, components, passes of a perceptron: done again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from estimator_tests.exact.balls import (
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
from estimator_tests.exact.lines import written
from iceform.arithmetic.balls import ball_arithmetic, whole_power
from iceform.certificates import Result
from iceform.errors import ProgramError
from iceform_estimators.algorithms.components import PCA
from iceform_estimators.algorithms.kernel import KernelRegression
from iceform_estimators.algorithms.neighbours import KNeighbors, NeighborsMemory
from iceform_estimators.algorithms.perceptron import Perceptron
from iceform_estimators.machine.problem import Scaling
from iceform_estimators.machine.program import Recalled, RunData


def _squares(a: Sequence[Ball], b: Sequence[Ball]) -> Ball:
    return sum((whole_power(s - t, 2) for s, t in zip(a, b, strict=True)), arb(0))


@exact_of.register(KernelRegression)
def _(model: KernelRegression, found: Result, given: RunData) -> Pairs:
    rows, labels, gamma = rows_in(given.x), balls_in(given.y), arb(float(found.parts["gamma"]))
    exact = [dot(softmax([-gamma * _squares(q, x) for x in rows]), labels) for q in rows]
    return list(zip(balls_in(found.value), exact, strict=True))


@exact_of.register(KNeighbors)
def _(model: KNeighbors, found: Result, given: RunData) -> Pairs:
    """The neighbours that were read are the nearest, up to what counts as equally near."""
    memory = found.predictor
    assert isinstance(memory, NeighborsMemory)
    if callable(memory.weights):
        raise ProgramError("ball arithmetic does not know weights that a function computes")
    rows, labels, k = rows_in(given.x), balls_in(given.y), model.n_neighbors
    apart, pairs = arb(memory.resolution), []
    read = memory.neighbors(given.x).tolist()
    for q, chosen, value in zip(rows, read, found.value.tolist(), strict=True):
        distances = [_squares(q, x) for x in rows]
        last = sorted(distances, key=lambda a: float(a.mid()))[k - 1]
        if len(set(chosen)) != k or any(distances[j] > last + apart for j in chosen):
            return [(arb(value), arb(math.inf))]  # not the nearest at all
        weights = [arb(1)] * k
        if model.weights == "distance":
            same = [j for j in chosen if distances[j] == 0]
            if same:
                weights = [arb(j in same) for j in chosen]
            else:
                weights = [1 / distances[j].sqrt() for j in chosen]
        mean = dot(weights, [labels[j] for j in chosen]) / sum(weights, arb(0))
        pairs.append((arb(value), mean))
    return pairs


@exact_of.register(PCA)
def _(model: PCA, found: Result, given: RunData) -> Pairs:
    """Lengths of what components differ by from eigenvectors of the covariance, and 0."""
    flint = ball_arithmetic()
    rows = rows_in(given.x)
    n, d = len(rows), given.x.shape[1]
    mean = [sum(column, arb(0)) / n for column in zip(*rows, strict=True)]
    centred = flint.arb_mat([[a - m for a, m in zip(row, mean, strict=True)] for row in rows])
    covariance = centred.transpose() * centred
    scale = max(float(covariance[j, j].mid()) for j in range(d)) or 1.0
    matrix = flint.acb_mat(covariance / arb(2) ** int(math.log2(scale)))
    try:
        values, vectors = matrix.eig(right=True, tol=2.0 ** -(bits() // 2))
    except (ValueError, ZeroDivisionError):
        raise not_enclosed("two variances agree, or are not told apart") from None
    order = sorted(range(d), key=lambda j: -float(values[j].real.mid()))
    pairs = []
    for row, j in zip(found.value.tolist(), order, strict=False):
        exact = [vectors[i, j].real for i in range(d)]
        length = dot(exact, exact).sqrt()
        signed = 1 if dot(exact, [arb(v) for v in row]) > 0 else -1
        apart = [arb(v) - signed * e / length for v, e in zip(row, exact, strict=True)]
        pairs.append((dot(apart, apart).sqrt(), arb(0)))
    return pairs


@exact_of.register(Perceptron)
def _(model: Perceptron, found: Result, given: RunData) -> Pairs:
    """Every pass again, on samples scaled by the numbers that scaled them."""
    means, scales = (found.parts[name].to(given.x) for name in ("means", "scales"))
    scaling = Scaling(means, scales, 0.0, 1.0, model.fit_intercept)
    rows, _, _, weights = written(model, given)
    mean, scale = balls_in(means), balls_in(scales)
    d = given.x.shape[1]
    y, one = given.y, model.positive_label()
    signs = balls_in(y if one is None else torch.where(y == one, 1.0, -1.0))
    scaled = [
        [s * (a * s - m) / c for a, m, c in zip(row, mean, scale, strict=False)] + row[d:]
        for row, s in zip(rows, signs, strict=True)
    ]
    total = sum(weights, arb(0))
    weights = [c / total for c in weights]
    w = [dot(column, weights) for column in zip(*scaled, strict=True)]
    if model.begin is not None:
        w = balls_in(scaling.scaled(*(part.to(scaling.mean) for part in model.begin)))
    for _ in range(found.passes - 1):
        margins = [dot(row, w) for row in scaled]
        if any(not (m < 0) and not (m > 0) for m in margins):
            raise not_enclosed("a margin is 0, or not told from it")
        wrong = [(row, c) for row, m, c in zip(scaled, margins, weights, strict=True) if m < 0]
        for row, c in wrong:
            w = [a + c * b for a, b in zip(w, row, strict=True)]
    exact = [a / c for a, c in zip(w, scale, strict=False)]
    return list(zip(balls_in(found.coef), exact, strict=True))


@exact_of.register(Recalled)
def _(model: Recalled, found: Result, given: RunData) -> Pairs:
    """The answers at the samples, asked for now."""
    own = model.labels(given.y)
    here = replace(model.memory, y=own.to(model.memory.y))
    answers = here(given.x.to(here.y.device))
    told = replace(found, answer=answers, predictor=here)
    return exact_of(model.model, told, replace(given, y=own))
