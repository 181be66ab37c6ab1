"""Groups, medians, roots."""

# Authors write no types: values are numbers to them, and vector() as a default says what x is like.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="arg-type,assignment"
# ruff: noqa: B008

from __future__ import annotations

import torch

from iceform.computer.language import (
    algorithm,
    bounded,
    constant,
    mean,
    reciprocal,
    repeat,
    vector,
    where,
    while_,
)


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
