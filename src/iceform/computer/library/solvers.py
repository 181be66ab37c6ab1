"""Methods that divide: Newton's, conjugate gradients, power iteration."""

# Authors write no types: values are numbers to them.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="arg-type,assignment"

from __future__ import annotations

import torch

from iceform.computer.language import (
    algorithm,
    bounded,
    concat,
    constant,
    mean,
    reciprocal,
    repeat,
    zeros_like,
)


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
