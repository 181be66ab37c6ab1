"""Attention as a read: kernels, neighbours, retrieval, random access by place."""

# Authors write no types: values are numbers to them, and vector() as a default says what x is like.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="arg-type,assignment"
# ruff: noqa: B008

from __future__ import annotations

from iceform.computer.language import (
    algorithm,
    attend,
    constant,
    maximum,
    mean,
    reciprocal,
    repeat,
    vector,
    where,
    while_,
)


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
