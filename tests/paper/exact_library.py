"""The library's algorithms again, in balls of 256 bits: how far an answer is from the exact one.

Data, settings and answers are floating-point numbers, so known exactly; nothing of how the network
found its answer is looked at.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import flint
from flint import arb

from iceform.expressions import Loss
from iceform.paper import library


def measured(algorithm: library.PromptAlgorithm, result: Any, x: Any, y: Any) -> float:
    """An upper bound of the largest distance of ``result.value`` from the exact answer."""
    before, flint.ctx.prec = flint.ctx.prec, 256
    try:
        exact = answer(algorithm, rows(x), None if y is None else numbers(y), x, result)
        gaps = [abs(a - b) for a, b in zip(numbers(result.value.flatten()), exact, strict=True)]
        return max(float(gap.abs_upper()) for gap in gaps)
    finally:
        flint.ctx.prec = before


def numbers(values: Any) -> list[arb]:
    return [arb(v) for v in values.double().tolist()]


def rows(values: Any) -> list[list[arb]]:
    return [numbers(row) for row in values]


def dot(a: list[arb], b: list[arb]) -> arb:
    return sum((s * t for s, t in zip(a, b, strict=True)), arb(0))


def average(logits: list[arb], values: list[list[arb]]) -> list[arb]:
    """Of rows of values, weighed by softmax(logits)."""
    top = max(logits, key=lambda a: float(a.mid()))
    masses = [(a - top).exp() for a in logits]
    total = sum(masses, arb(0))
    return [dot(masses, list(column)) / total for column in zip(*values, strict=True)]


@singledispatch
def answer(algorithm: Any, rows: list, y: list | None, x: Any, result: Any) -> list[arb]:
    """The exact answer's entries."""
    raise NotImplementedError(type(algorithm))


@answer.register
def _(algorithm: library.KernelPrompts, samples, y, x, result):
    gamma = arb(algorithm.gamma)
    values = [[label] for label in y]

    def squared(q, p):
        return sum(((a - b) ** 2 for a, b in zip(q, p, strict=True)), arb(0))

    return [average([-gamma * squared(q, p) for p in samples], values)[0] for q in samples]


@answer.register
def _(algorithm: library.HopfieldPrompts, patterns, state, x, result):
    for _ in range(algorithm.steps):
        state = average([arb(algorithm.beta) * dot(p, state) for p in patterns], patterns)
    return state


@answer.register
def _(algorithm: library.HeadPrompts, tokens, y, x, result):
    w_k, w_q, w_v = (rows(w) for w in (algorithm.w_k, algorithm.w_q, algorithm.w_v))
    keys, queries, values = ([[dot(r, t) for r in w] for t in tokens] for w in (w_k, w_q, w_v))
    return [v for q in queries for v in average([dot(k, q) for k in keys], values)]


@answer.register
def _(algorithm: library.DescentPrompts, samples, y, x, result):
    loss, (schedule, _) = Loss.of(algorithm.loss), algorithm.plan(x)
    f, l2 = loss.derivative.balls, arb(algorithm.l2)
    if loss.kind == "margin":
        samples = [[s * a for a in row] for row, s in zip(samples, y, strict=True)]
    shift = [label if loss.kind == "residual" else arb(0) for label in y]
    lower = [label if loss.kind == "glm" else arb(0) for label in y]
    w = ahead = [arb(0)] * len(samples[0])
    for eta, mu in zip(schedule.steps, schedule.momenta, strict=True):
        heights = [
            f(dot(row, ahead) - s) - b for row, s, b in zip(samples, shift, lower, strict=True)
        ]
        means = [dot(heights, list(c)) / len(samples) for c in zip(*samples, strict=True)]
        last, w = w, [a - arb(eta) * (m + l2 * a) for a, m in zip(ahead, means, strict=True)]
        ahead = [a + arb(mu) * (a - b) for a, b in zip(w, last, strict=True)]
    return w


@answer.register
def _(algorithm: library.RidgePrompts, samples, y, x, result):
    matrix, labels = flint.arb_mat(samples), flint.arb_mat([[label] for label in y])
    size = len(samples[0])
    penalty = flint.arb_mat(
        [[arb(algorithm.alpha) if i == j else arb(0) for j in range(size)] for i in range(size)]
    )
    both = matrix.transpose() * matrix + penalty
    solution = both.solve(matrix.transpose() * labels)
    return [solution[i, 0] for i in range(size)]


@answer.register
def _(algorithm: library.ComponentPrompts, samples, y, x, result):
    """Up to sign: that of what was found."""
    count, size = len(samples), len(samples[0])
    mean = [sum(column, arb(0)) / count for column in zip(*samples, strict=True)]
    centred = flint.arb_mat([[a - m for a, m in zip(row, mean, strict=True)] for row in samples])
    covariance = centred.transpose() * centred
    scale = max(float(covariance[j, j].mid()) for j in range(size)) or 1.0
    values, vectors = flint.acb_mat(covariance / arb(scale)).eig(right=True, tol=2.0**-128)
    order = sorted(range(size), key=lambda j: -float(values[j].real.mid()))
    exact: list[arb] = []
    for row, j in zip(rows(result.value), order, strict=False):
        column = [vectors[i, j].real for i in range(size)]
        length = dot(column, column).sqrt() * (1 if dot(column, row) > 0 else -1)
        exact += [v / length for v in column]
    return exact
