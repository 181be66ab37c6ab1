"""The exact algorithms, to 50 decimal digits: what stock networks are compared with.

Python's ``decimal`` rounds correctly and has exp and ln, so its errors are far below any
certificate; results are rounded once, to float64.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic.units import NOISE, SAFE_MINIMUM
from iceform.targets.recurrence import Recurrence

_DIGITS = Context(prec=50)
_exactly = np.frompyfunc(Decimal, 1, 1)


def _decimals(values: Tensor) -> Any:
    """An array of the same numbers, exactly."""
    return _exactly(values.detach().double().numpy())


def _rounded(values: Any) -> Tensor:
    return torch.from_numpy(values.astype(float))


def eigenvalue_bounds(x: Float[Tensor, "n d"]) -> tuple[float, float]:
    """Proven bounds of the eigenvalues of X'X/n.

    float64's eigenvalues, moved apart until X'X/n - bottom and top - X'X/n are seen to be positive
    definite: every pivot of their LDL' in 50 digits is positive, by far more than its rounding.
    Of numbers whose squares are beyond float64 nothing is known but the sign: 0 and infinity.
    """
    rounded = x.double().T @ x.double() / len(x)
    if not bool(torch.isfinite(rounded).all()):
        return 0.0, math.inf
    found = torch.linalg.eigvalsh(rounded)
    with localcontext(_DIGITS):
        rows = _decimals(x)
        gram = rows.T @ rows / Decimal(len(x))
        low, high = float(found[0]), float(found[-1])
        apart = max(high, SAFE_MINIMUM) * NOISE
        while not _positive(-gram, high + apart):
            apart *= 16
        top = high + apart
        # The least may be 0, or too near to tell.
        bottom = low - apart
        return (bottom if bottom > 0 and _positive(gram, -bottom) else 0.0), top


def _positive(matrix: Any, shift: float) -> bool:
    """Whether matrix + shift I has positive pivots, all above their rounding."""
    a = matrix + Decimal(shift) * np.eye(len(matrix), dtype=object)
    least = abs(a).max() * Decimal(10) ** -30
    for k in range(len(a)):
        if a[k, k] <= least:
            return False
        a[k + 1 :] = a[k + 1 :] - np.outer(a[k + 1 :, k] / a[k, k], a[k])
    return True


def _normal_equations(x: Tensor, y: Tensor) -> tuple[Any, Any]:
    """X'X/n and X'y/n, formed once: in 50 digits their rounding does not matter."""
    rows, n = _decimals(x), Decimal(len(x))
    return rows.T @ rows / n, rows.T @ _decimals(y) / n


def linear_descent(
    x: Float[Tensor, "n d"], y: Float[Tensor, "n"], method: Recurrence
) -> Float[Tensor, "t d"]:
    """w_1, ..., w_T of the method on least squares."""
    with localcontext(_DIGITS):
        gram, right = _normal_equations(x, y)
        lr, penalty, momentum = map(Decimal, (method.lr, method.penalty, method.momentum))
        w = v = 0 * right
        out = []
        for rho in map(Decimal, method.factors):
            v = momentum * v - rho * lr * (gram @ w - right + penalty * w)
            w = w + v
            out.append(w)
        return _rounded(np.stack(out))
