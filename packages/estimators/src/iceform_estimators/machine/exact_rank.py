r"""Features that depend on each other exactly: proven by whole numbers.

A direction that no sample sees is known from rounding only. Where features depend on each other
by construction (indicators that add up to one, a column twice) there are whole numbers v with

.. math:: \sum_j v_j x_{ij} + v_0 = 0 \quad \text{for every sample } i,

and they are read off the reduced echelon form of the directions that were found. The sum is then
taken in pairs of numbers. Its terms are multiples of the last digit of some entry, and so is the
sum: where the pairs say 0 and their rounding is below that digit, it is 0.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from iceform.arithmetic.double_double import SUMMED, add, dot, pair
from iceform_estimators.machine.problem import LinearProblem, Metric, Scaling

_MULTIPLES = 24  # tried until a direction is one of whole numbers
_WHOLE = 1e-5  # how far from them it may be before it is rounded
_LARGEST = 1 << 20  # of the whole numbers
_DIGITS = sys.float_info.mant_dig


def _fails(x: Tensor, numbers: Tensor, constant: Tensor) -> Tensor:
    """Whether a combination of a chunk's columns is not zero in some sample."""
    used = numbers != 0
    columns, factors = x[:, used], numbers[used]
    if not len(factors):
        return constant != 0
    total = dot(pair(columns), pair(factors.expand_as(columns)))
    total = add(total, pair(constant.expand(len(x))))
    size = columns.abs() @ factors.abs() + constant.abs()
    digit = torch.where(columns != 0, _last_digit(columns), torch.inf).amin(1)
    digit = digit.clamp(max=1.0) if bool(constant != 0) else digit
    zero = (total.hi == 0) & (total.lo == 0) & ((2 * SUMMED * size < digit) | (size == 0))
    return ~zero.all()


def _last_digit(x: Tensor) -> Tensor:
    """What x is a whole multiple of."""
    return torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent - _DIGITS)


def exactly_dependent(problem: LinearProblem, metric: Metric, kept: Tensor | None = None) -> bool:
    """Whether every direction that the metric does not know is one that no sample sees at all."""
    numbers = _whole(_raw(metric.null(), problem.scaling, kept))
    if numbers is None:
        return False

    def fails(x: Tensor, y: Tensor) -> list[Tensor]:
        found = [_fails(x, v[:-1], v[-1]) for v in numbers.mT]
        return [torch.stack(found).any().to(x)]

    (failed,) = problem.source.largest(fails)
    return float(failed) == 0


def _raw(null: Tensor, scaling: Scaling, kept: Tensor | None) -> Tensor:
    """Directions as numbers for the columns as they came, and for a constant: (d + 1, k)."""
    if kept is not None:
        whole = null.new_zeros(scaling.dim, null.shape[1])
        whole[kept] = null
        null = whole
    d = len(scaling.mean)
    columns = null[:d] / scaling.scale[:, None]
    constant = (null[d] if scaling.intercept else 0) - scaling.mean @ columns
    return torch.cat([columns, constant[None]])


def _whole(directions: Tensor) -> Tensor | None:
    """The same space by vectors of whole numbers; None where there seem to be none."""
    rows = directions / directions.abs().amax(1, keepdim=True).clamp(min=sys.float_info.min)
    pivots = _pivots(rows)
    reduced = directions @ torch.linalg.inv(directions[pivots])
    found = [f for f in map(_multiple, reduced.mT) if f is not None]
    return torch.stack(found, 1) if len(found) == reduced.shape[1] else None


def _pivots(rows: Tensor) -> Tensor:
    """Rows that are as independent as they come: Gram-Schmidt, the longest first."""
    rest, chosen = rows.clone(), []
    for _ in range(rows.shape[1]):
        at = int(rest.norm(dim=1).argmax())
        chosen.append(at)
        unit = rest[at] / rest[at].norm()
        rest = rest - (rest @ unit)[:, None] * unit
    return torch.tensor(chosen, device=rows.device)


def _multiple(column: Tensor) -> Tensor | None:
    for k in range(1, _MULTIPLES + 1):
        near = (k * column).round()
        if float((k * column - near).abs().max()) <= _WHOLE and float(near.abs().max()) < _LARGEST:
            return near
    return None
