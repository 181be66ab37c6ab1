"""Algorithms written in the language, each at most fifteen lines."""

# Authors write no types: values are numbers to them, and vector() as a default says what x is like.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="arg-type,assignment"
# ruff: noqa: B008

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from iceform.computer.language import (
    Algorithm,
    algorithm,
    attend,
    bounded,
    concat,
    constant,
    maximum,
    mean,
    minimum,
    reciprocal,
    repeat,
    soft_threshold,
    vector,
    where,
    while_,
    zeros_like,
)

# ---------------------------------------------------------------------------------------------
# First-order methods for linear models: w.x against y, the mean loss over the samples
# ---------------------------------------------------------------------------------------------


def gradient_descent(rate: Callable[[Any], Any], name: str = "gradient_descent") -> Algorithm:
    """Gradient descent on the mean loss of a linear model w . x.

    Parameters
    ----------
    rate
        The derivative of the loss by the residual w . x - y: a formula or a function.
    name
        The algorithm's.

    Returns
    -------
    An algorithm of x and y with the parameters ``lr`` and ``steps``; it returns w.

    Examples
    --------
    >>> gradient_descent(torch.tanh)([[1.0], [2.0]], [1.0, 2.0], steps=100).round(decimals=3)
    tensor([1.], dtype=torch.float64)
    """

    def descent(x, y, *, lr=0.5, steps=50):
        w = zeros_like(x)
        for _ in repeat(steps):
            w = w - lr * mean(x * rate((x * w).sum() - y))
        return w

    descent.__name__ = name
    return algorithm(descent)


least_squares = gradient_descent(lambda z: z, "least_squares")
huber = gradient_descent(lambda z: torch.clamp(z, -0.5, 0.5), "huber")


@algorithm
def nesterov(x, y, *, lr=0.5, momentum=0.5, steps=30):
    """Least squares with Nesterov's momentum."""
    w = zeros_like(x)
    ahead = zeros_like(x)
    for _ in repeat(steps):
        before = w
        w = ahead - lr * mean(x * ((x * ahead).sum() - y))
        ahead = w + momentum * (w - before)
    return w


@algorithm
def ridge(x, y, *, alpha=0.1, lr=0.5, steps=60):
    """(1/2) mean (w.x - y)^2 + (alpha/2) |w|^2."""
    w = zeros_like(x)
    for _ in repeat(steps):
        w = w - lr * (mean(x * ((x * w).sum() - y)) + alpha * w)
    return w


@algorithm
def lasso(x, y, *, alpha=0.05, lr=0.5, steps=60):
    """(1/2) mean (w.x - y)^2 + alpha |w|_1, by iterated soft thresholds."""
    w = zeros_like(x)
    for _ in repeat(steps):
        w = soft_threshold(w - lr * mean(x * ((x * w).sum() - y)), lr * alpha)
    return w


@algorithm
def elastic_net(x, y, *, alpha=0.05, l1_ratio=0.5, lr=0.5, steps=60):
    """(1/2) mean (w.x - y)^2 + alpha (l1_ratio |w|_1 + (1 - l1_ratio)/2 |w|^2)."""
    w = zeros_like(x)
    for _ in repeat(steps):
        slope = mean(x * ((x * w).sum() - y)) + alpha * (1.0 - l1_ratio) * w
        w = soft_threshold(w - lr * slope, lr * alpha * l1_ratio)
    return w


@algorithm
def logistic(x, y, *, alpha=0.1, lr=1.0, steps=60):
    """Labels 0 and 1; mean log(1 + e^(w.x)) - y w.x + (alpha/2) |w|^2."""
    w = zeros_like(x)
    for _ in repeat(steps):
        w = w - lr * (mean(x * (torch.sigmoid((x * w).sum()) - y)) + alpha * w)
    return w


@algorithm
def perceptron(x, y, *, lr=0.5, margin=0.1, steps=20):
    """Labels -1 and 1; every step adds the samples that are on the wrong side of the margin."""
    w = zeros_like(x)
    for _ in repeat(steps):
        wrong = where(y * (x * w).sum() < margin, y, 0.0 * y)
        w = w + lr * mean(x * wrong)
    return w


# ---------------------------------------------------------------------------------------------
# Methods that divide: Newton's, conjugate gradients, power iteration
# ---------------------------------------------------------------------------------------------


@algorithm
def newton_logistic(x, y, *, alpha=0.1, steps=6):
    """Logistic regression in two variables; labels 0 and 1, penalty (alpha/2) |w|^2."""
    w = zeros_like(x)
    for _ in repeat(steps):
        p = torch.sigmoid((x * w).sum())
        g = mean(x * (p - y)) + alpha * w
        a = mean(p * (1.0 - p) * x[0] ** 2) + alpha
        b = mean(p * (1.0 - p) * x[0] * x[1])
        c = mean(p * (1.0 - p) * x[1] ** 2) + alpha
        scale = reciprocal(a * c - b * b, 0.008, 0.2)
        w = w - concat(scale * (c * g[0] - b * g[1]), scale * (a * g[1] - b * g[0]))
    return w


def longer(p):
    """A vector of the same direction, nearer to length 1; its exact length does not matter."""
    return bounded(p * ((p * p).sum() + 1e-4) ** (-0.5), 1.0)


@algorithm
def conjugate_gradients(x, y, *, alpha=0.2, steps=2):
    """Solves mean(x x') w + alpha w = mean(x y); with as many steps as features exactly."""
    w = zeros_like(x)
    r = mean(x * y)
    p = +r
    for _ in repeat(steps):
        p = longer(longer(p))
        q = mean(x * (x * p).sum()) + alpha * p
        bend = reciprocal((p * q).sum(), 0.05, 2.5)
        along = (r * p).sum() * bend
        w = w + along * p
        r = r - along * q
        p = r - (r * q).sum() * bend * p
    return w


@algorithm
def power_iteration(x, *, start=0.5, steps=30):
    """The leading eigenvalue and eigenvector of mean(x x')."""
    v = zeros_like(x) + start
    size = constant(1.0)
    for _ in repeat(steps):
        v = mean(x * (x * v).sum())
        size = torch.sqrt(bounded((v * v).sum(), 0.02, 1.0))
        v = v * reciprocal(size, 0.1, 1.0)
    return {"value": size, "vector": v}


# ---------------------------------------------------------------------------------------------
# Groups, medians, roots
# ---------------------------------------------------------------------------------------------


@algorithm
def k_means(x, *, first=vector(-0.5), second=vector(0.5), steps=8):
    """Lloyd's iteration for two groups, from two given centres."""
    a, b = +first, +second
    for _ in repeat(steps):
        nearer = ((x - a) ** 2).sum() < ((x - b) ** 2).sum()
        share = mean(nearer)
        a = bounded(mean(nearer * x) * reciprocal(share, 0.05, 0.95), 1.0)
        b = bounded(mean((1.0 - nearer) * x) * reciprocal(1.0 - share, 0.05, 0.95), 1.0)
    return {"first": a, "second": b}


@algorithm
def mixture(x, y, *, left=-0.5, right=0.5, sigma=0.3, steps=15):
    """EM for two normal distributions of known width: the targets y are the data."""
    a, b, share = +left, +right, constant(0.5)
    for _ in repeat(steps):
        odds = ((y - b) ** 2 - (y - a) ** 2) / (2.0 * sigma * sigma)
        mine = torch.sigmoid(odds + torch.log(share) - torch.log(1.0 - share))
        share = bounded(mean(mine), 0.1, 0.9)
        a = bounded(mean(mine * y) * reciprocal(share, 0.1, 0.9), 1.0)
        b = bounded(mean((1.0 - mine) * y) * reciprocal(1.0 - share, 0.1, 0.9), 1.0)
    return {"left": a, "right": b, "share": share}


@algorithm
def geometric_median(x, *, smooth=0.1, steps=20):
    """The point with the least mean distance, by Weiszfeld's iteration; distances are smoothed."""
    m = mean(x)
    for _ in repeat(steps):
        weight = (((x - m) ** 2).sum() + smooth) ** (-0.5)
        m = bounded(mean(weight * x) * reciprocal(mean(weight), 0.25, 4.0), 1.0)
    return m


@algorithm
def bisection(x, y, *, tolerance=0.01):
    """The t with mean tanh(4 (y - t)) = 0, a robust location; stops when the bracket is short."""
    low, high = constant(-1.0), constant(1.0)
    while while_(high - low > tolerance):
        middle = 0.5 * (low + high)
        above = mean(torch.tanh(4.0 * (y - middle))) > 0.0
        low = where(above, middle, low)
        high = where(above, high, middle)
    return 0.5 * (low + high)


# ---------------------------------------------------------------------------------------------
# Matrices laid out over lanes: lane i holds row i, as the features of sample i
#
# A matrix times a vector that is one for all is then a scalar a sample, `(x * v).sum()`; the
# transposed matrix times a scalar a sample is `n mean(x * u)`, one vector for all. Where a scalar a
# sample is to become a vector, every lane needs its own unit vector: it compares its number (`y` =
# i/n) with the numbers of all (`places`), once.
# ---------------------------------------------------------------------------------------------


def own_place(x, y, places, nodes):
    """The unit vector of each lane."""
    return where(abs(places - y) < 0.5 / nodes, zeros_like(x) + 1.0, zeros_like(x))


@algorithm
def pagerank(x, y, *, places=vector(), damping=0.85, nodes=4.0, steps=30):
    """x_ij: the share of page j's visitors who go on to page i; lane i is page i."""
    own = own_place(x, y, places, nodes)
    rank = zeros_like(x) + 1.0 / nodes
    for _ in repeat(steps):
        rank = (1.0 - damping) / nodes + damping * nodes * mean(own * (x * rank).sum())
    return rank


@algorithm
def sinkhorn(x, y, *, columns=vector(0.25), rows=4.0, steps=20):
    """Factors u, v for which u_i x_ij v_j has the row sums y and the column sums ``columns``."""
    v = zeros_like(x) + 1.0
    u = 0.0 * y
    for _ in repeat(steps):
        u = y * reciprocal((x * v).sum(), 0.25, 8.0)
        v = columns * reciprocal(rows * mean(x * u), 0.0625, 4.0)
    return {"u": u, "v": v}


@algorithm
def bellman_ford(x, y, *, places=vector(), source=vector(), nodes=4.0, steps=3):
    """Shortest ways: x_ij is the length of the way from j to i, 1 where there is none."""
    own = own_place(x, y, places, nodes)
    reached = +source
    for _ in repeat(steps):
        best = (own * reached).sum()
        for j in range(4):
            best = minimum(best, x[j] + reached[j])
        reached = nodes * mean(own * best)
    return reached


@algorithm
def gaussian_process(x, y, *, similar=vector(), lr=0.5, steps=150):
    """Posterior mean at a point: x is a row of K + noise I, ``similar`` the point's kernel values.

    Solves (K + noise I) a = y by gradient descent on the residuals.
    """
    a = zeros_like(x)
    for _ in repeat(steps):
        a = a - lr * mean(x * ((x * a).sum() - y))
    return (similar * a).sum() + constant(0.0)


# ---------------------------------------------------------------------------------------------
# Attention as a read: kernels, neighbours, retrieval, random access by place
# ---------------------------------------------------------------------------------------------


@algorithm
def softmax_attention(x, y, *, sharpness=2.0):
    """Every sample attends to all: an attention head with its keys as values."""
    return attend(sharpness * x, x, x)


@algorithm
def kernel_regression(x, y, *, query=vector(), gamma=2.0):
    """Nadaraya and Watson's estimate at ``query`` with the kernel exp(-gamma |x - q|^2)."""
    return attend(2.0 * gamma * query, x, y, -gamma * (x * x).sum())


@algorithm
def nearest_neighbours(x, y, *, query=vector(), share=0.25, tolerance=0.02):
    """The mean target of the nearest share of the samples: bisection for their distance."""
    away = ((x - query) * (x - query)).sum()
    radius, reach, found = constant(8.0), constant(8.0), constant(1.0)
    near = 0.0 * y + 1.0
    while while_(abs(found - share) > tolerance):
        reach = 0.5 * reach
        radius = where(found > share, radius - reach, radius + reach)
        near = away < radius
        found = mean(near)
    return mean(near * y) / share


def at(place, x, y, value, sharpness):
    """The value of the lane whose features are nearest to ``place``."""
    return attend(2.0 * sharpness * place, x, value, -sharpness * (x * x).sum())


@algorithm
def value_iteration(x, y, *, gain=0.5, pace=0.5, sharpness=160.0, steps=10):
    """A line of places, x apart by ``pace``, with rewards y; one may stay, or go left or right."""
    value = 0.0 * y
    for _ in repeat(steps):
        left, right = (at(x + go * pace, x, y, value, sharpness) for go in (-1.0, 1.0))
        value = y + gain * maximum(value, maximum(left, right))
    return value


@algorithm
def kalman_filter(x, y, *, drift=0.1, noise=0.2, pace=0.1, sharpness=4000.0, steps=8):
    """A random walk seen with noise: y at times x = 0, pace, 2 pace, ..., one a lane."""
    time = 0.0 * vector_of(x)
    state, spread = constant(0.0), constant(1.0)
    for _ in repeat(steps):
        seen = at(time, x, y, y, sharpness)
        spread = spread + drift
        gain = spread * reciprocal(spread + noise, 0.05, 2.0)
        state = state + gain * (seen - state)
        spread = (1.0 - gain) * spread
        time = time + pace
    return {"state": state, "spread": spread}


def vector_of(x):
    """A vector for all samples, as long as theirs."""
    return mean(x)
