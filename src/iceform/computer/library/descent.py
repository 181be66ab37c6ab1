"""First-order methods for linear models: w.x against y, the mean loss over the samples."""

# Authors write no types: values are numbers to them.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="arg-type,assignment"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from iceform.computer.language import (
    Algorithm,
    algorithm,
    mean,
    repeat,
    soft_threshold,
    where,
    zeros_like,
)


def gradient_descent(rate: Callable[[Any], Any], name: str = "gradient_descent") -> Algorithm:
    """Gradient descent for the loss whose derivative is ``rate``, a formula or a function."""

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
