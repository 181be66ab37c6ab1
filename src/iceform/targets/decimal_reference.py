"""The exact algorithms, to 50 decimal digits: what stock networks are compared with.

Python's ``decimal`` rounds correctly and has exp and ln, so its errors are far below any
certificate; results are rounded once, to float64.
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic.units import NOISE, SAFE_MINIMUM
from iceform.targets.recurrence import Recurrence

_DIGITS = Context(prec=50)


def exact(values: Tensor) -> list[Decimal]:
    """A vector's entries, exactly."""
    return [Decimal(v) for v in values.double().tolist()]


def dot(a: list[Decimal], b: list[Decimal]) -> Decimal:
    """The sum of products."""
    return sum(map(Decimal.__mul__, a, b), Decimal(0))


def eigenvalue_bounds(x: Float[Tensor, "n d"]) -> tuple[float, float]:
    """Proven bounds of the eigenvalues of X'X/n.

    float64's eigenvalues, moved apart until X'X/n - bottom and top - X'X/n are seen to be positive
    definite: every pivot of their LDL' in 50 digits is positive, by far more than its rounding.
    """
    found = torch.linalg.eigvalsh(x.double().T @ x.double() / len(x))
    with localcontext(_DIGITS):
        gram = _gram(x)
        low, high = float(found[0]), float(found[-1])
        apart = max(high, SAFE_MINIMUM) * NOISE
        while not _positive(gram, -1, high + apart):
            apart *= 16
        top = high + apart
        # The least may be 0, or too near to tell.
        bottom = low - apart
        return (bottom if bottom > 0 and _positive(gram, 1, -bottom) else 0.0), top


def _positive(gram: list[list[Decimal]], sign: int, shift: float) -> bool:
    """Whether sign * gram + shift I has positive pivots, all above their rounding."""
    d = len(gram)
    a = [[sign * gram[i][j] + (Decimal(shift) if i == j else 0) for j in range(d)]
         for i in range(d)]  # fmt: skip
    least = max(abs(v) for row in a for v in row) * Decimal(10) ** -30
    for k in range(d):
        if a[k][k] <= least:
            return False
        for i in range(k + 1, d):
            factor = a[i][k] / a[k][k]
            a[i] = [p - factor * q for p, q in zip(a[i], a[k], strict=True)]
    return True


def _gram(x: Tensor) -> list[list[Decimal]]:
    columns = [exact(c) for c in x.T]
    n = Decimal(len(x))
    return [[dot(a, b) / n for b in columns] for a in columns]


def linear_descent(
    x: Float[Tensor, "n d"], y: Float[Tensor, "n"], method: Recurrence
) -> Float[Tensor, "t d"]:
    """w_1, ..., w_T of the method on least squares.

    X'X and X'y are formed once: in 50 digits their rounding does not matter.
    """
    with localcontext(_DIGITS):
        columns, labels = [exact(c) for c in x.T], exact(y)
        n = Decimal(len(x))
        gram = _gram(x)
        right = [dot(a, labels) / n for a in columns]
        lr, penalty, momentum = map(Decimal, (method.lr, method.penalty, method.momentum))
        w = [Decimal(0)] * len(columns)
        v, out = list(w), []
        for rho in map(Decimal, method.factors):
            g = [dot(row, w) - b + penalty * c for row, b, c in zip(gram, right, w, strict=True)]
            v = [momentum * a - rho * lr * b for a, b in zip(v, g, strict=True)]
            w = [a + b for a, b in zip(w, v, strict=True)]
            out.append([float(a) for a in w])
    return torch.tensor(out, dtype=torch.float64)


def linear_steps(
    x: Float[Tensor, "n d"], y: Float[Tensor, "n"], path: Float[Tensor, "t d"], lr: float
) -> Float[Tensor, "t d"]:
    """One step w - lr mean(x_i (w.x_i - y_i)) from every w in a path."""
    out = []
    with localcontext(_DIGITS):
        gram, labels, n, rate = _gram(x), exact(y), Decimal(len(x)), Decimal(lr)
        right = [dot(exact(c), labels) / n for c in x.T]
        for w in map(exact, path):
            step = [a - rate * (dot(r, w) - b) for a, r, b in zip(w, gram, right, strict=True)]
            out.append([float(v) for v in step])
    return torch.tensor(out, dtype=torch.float64)
