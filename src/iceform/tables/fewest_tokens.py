r"""How many tokens a look-up needs at least, whatever its keys, values and temperature are.

A look-up of T tokens is a quotient of sums of exponentials. For a number y

.. math:: A(z) - y = \frac{\sum_k (v_k - y)\, e^{s_k z + b_k}}{\sum_k e^{s_k z + b_k}},

and a sum of T exponentials with real exponents that is not 0 everywhere has at most T - 1 real
zeros (Laguerre; by induction, with Rolle). If f - y is above eps and below -eps in turn at m + 1
points, a look-up that is within eps of f has m zeros between them: T >= m + 1. Points that were
looked at are points, so the bound is a proof however few they are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from iceform import tuning
from iceform.validation import check_positive


def fewest_tokens(
    f: Callable[[Tensor], Tensor], low: float, high: float, eps: float, *, levels: int = 33
) -> int:
    """A number of tokens below which no look-up is within ``eps`` of f on [low, high].

    Parameters
    ----------
    f
        Elementwise.
    low, high, eps
        The range, and the sup-norm error.
    levels
        How many y are tried, between the least and the largest value of f.

    Returns
    -------
    int
        m + 1 for the best y; 1 where f does not leave a tube of width 2 eps around a number.

    Examples
    --------
    >>> fewest_tokens(torch.sin, -10.0, 10.0, 1e-8)  # 7 zeros between 8 half waves
    8
    """
    check_positive("eps", eps)
    z = torch.linspace(low, high, tuning.PLACES, dtype=torch.float64)
    values = f(z)
    tried = torch.linspace(float(values.min()), float(values.max()), levels + 2)[1:-1].double()
    found = [_turns(values - y, eps) for y in tried]
    return 1 + max(found)


def _turns(gap: Tensor, eps: float) -> int:
    """How often a sequence changes from above eps to below -eps and back."""
    signs = gap[gap.abs() > eps].sign()
    return int((signs[1:] != signs[:-1]).sum())
