"""Words over the samples as a set or a sequence, made of attention, means and choices.

**A read at a place** is attention with the logits -64 (i - place)^2 over the samples i: others than
the one that is meant weigh e^-64 = 2e-28 together, which is nothing in float64. **The largest** of
n values is attention by 2^35 times the value itself, which is below it by at most (n - 1) /
(e 2^35), n times 1.1e-11, and that only where others are as near as 3e-11.

In the exact program both are what they are meant to be, the value at the place and the largest
value: what attention gives instead is off by so much, as any look-up is.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from iceform.arithmetic.units import UNIT
from iceform.computer.graph import refuse, source_line
from iceform.computer.language import (
    attend,
    concat,
    constant,
    mean,
    scope_of,
    while_,
)
from iceform.computer.values import Value, checked_value, emit, leaf, where
from iceform.computer.virtual import DECISIVE, LARGEST
from iceform.program import Node

__all__ = [
    "argmax",
    "argmin",
    "at",
    "count",
    "index",
    "max",
    "min",
    "previous",
    "running_sum",
    "sum",
]

# The logit by which a sample is told from its neighbours. Places are counted in so many too: keys
# lie beside values, and large ones make these coarse.
_PLACE = _UNIT = DECISIVE
_FIRST = _PLACE * math.sqrt(UNIT)  # by which a sample gives way to the one before it, 7e-7
_FOREMOST = 2.0**28  # times that is 180, which decides; larger ones make rounding decide as well


def count() -> Value:
    """n, the number of samples, as a number of the program.

    Examples
    --------
    >>> @ice.algorithm
    ... def variance(x, y):
    ...     return ice.sum((y - ice.mean(y)) ** 2) / (ice.count() - 1)
    >>> variance([[0.0], [0.0], [0.0]], [1.0, 2.0, 3.0])
    tensor(1., dtype=torch.float64)
    """
    return _of_samples("count", False)


def index() -> Value:
    """The number of each sample: 0, 1, ..., n - 1.

    Examples
    --------
    >>> @ice.algorithm
    ... def even(x, y):
    ...     return ice.where(ice.index() % 2 == 0, y, 0.0)
    >>> even(torch.zeros(3, 1), [5.0, 6.0, 7.0])
    tensor([5., 0., 7.], dtype=torch.float64)
    """
    return _of_samples("index", True)


def _of_samples(op: str, samples: bool) -> Value:
    scope = scope_of(sys._getframe(2))
    return leaf(scope, Node(op, (), samples, None, None, source_line()))


def sum(value: Value) -> Value:
    """The sum over the samples: n times their mean.

    Examples
    --------
    >>> @ice.algorithm
    ... def total(x, y):
    ...     return ice.sum(y * x)
    >>> total([[1.0, 0.0], [1.0, 2.0]], [1.0, 3.0])
    tensor([4., 6.], dtype=torch.float64)
    """
    return mean(value) * count()


def at(value: Value, place: Any) -> Value:
    """The value of the sample with a given number.

    Parameters
    ----------
    value
        One a sample.
    place
        The number of the sample to read, from 0 on: one for all, or one a sample. A number beyond
        either end reads the sample at that end.

    Examples
    --------
    >>> @ice.algorithm
    ... def turned(x, y):
    ...     return ice.at(y, ice.count() - 1 - ice.index())
    >>> turned(torch.zeros(3, 1), [5.0, 6.0, 7.0])
    tensor([7., 6., 5.], dtype=torch.float64)
    """
    own = index() / _UNIT
    place = place if isinstance(place, Value) else _numbered(place)
    # 2 c p i - c i^2, which is -c (i - p)^2 but for what all samples share.
    query = concat(2.0 * _PLACE * _UNIT * place, constant(-_PLACE * _UNIT**2))
    parts = (query, concat(own, own * own), checked_value(value, own))
    return emit("attend", *parts, attr=_PLACE)


def _numbered(place: Any) -> Value:
    """A place that is written as a number."""
    try:
        number = float(place)
    except (TypeError, ValueError):
        number = math.nan
    if not number.is_integer():
        raise refuse(f"at reads a sample by its number, 0, 1, ...; got {place!r}", source_line())
    return constant(place)


def previous(value: Value, by: Any = 1, first: Any = 0.0) -> Value:
    """The value of the sample ``by`` places before; ``first`` where there is none.

    Examples
    --------
    >>> @ice.algorithm
    ... def differences(x, y):
    ...     return y - ice.previous(y)
    >>> differences(torch.zeros(3, 1), [5.0, 6.0, 8.0])
    tensor([5., 1., 2.], dtype=torch.float64)
    """
    own = index()
    return where(own >= by, at(value, own - by), first)


def running_sum(value: Value) -> Value:
    """For each sample the sum up to it, itself included.

    It is found by doubling, in as many turns as n has binary digits.

    Examples
    --------
    >>> @ice.algorithm
    ... def sums(x, y):
    ...     return ice.running_sum(y)
    >>> sums(torch.zeros(3, 1), [5.0, 6.0, 7.0])
    tensor([ 5., 11., 18.], dtype=torch.float64)
    """
    total, step = +value, constant(1.0)
    while while_(step < count()):
        total = total + previous(total, step)
        step = 2.0 * step
    return total


def max(value: Value) -> Value:
    """The largest value over the samples, of each component by itself.

    Examples
    --------
    >>> @ice.algorithm
    ... def spread(x, y):
    ...     return ice.max(y) - ice.min(y)
    >>> spread(torch.zeros(3, 1), [5.0, 2.0, 7.0])
    tensor(5., dtype=torch.float64)
    """
    if not isinstance(value, Value) or not value.samples:
        raise refuse(
            "ice.max and ice.min go over the samples; of two values ice.maximum and ice.minimum "
            "are the words, and of a vector's components v.max() and v.min()",
            source_line(),
        )
    if value.width is not None:
        return concat(*(max(v) for v in value))
    query = concat(constant(LARGEST))
    return emit("attend", query, concat(value), value, attr="largest")


def min(value: Value) -> Value:
    """The smallest value over the samples, of each component by itself.

    Examples
    --------
    >>> @ice.algorithm
    ... def least(x):
    ...     return ice.min(x)
    >>> least([[1.0, 5.0], [3.0, 2.0]])
    tensor([1., 2.], dtype=torch.float64)
    """
    return -max(-value)


def argmax(value: Value) -> Value:
    """The number of the sample with the largest value, the first one of equal ones.

    Each sample gives way by 7e-7 to the one before it. So values that differ by less than that,
    times how many samples they are apart, count as equal. A run refuses values that differ by just
    that: neither is the one.

    Examples
    --------
    >>> @ice.algorithm
    ... def best(x, y):
    ...     return ice.argmax(y)
    >>> best(torch.zeros(3, 1), [5.0, 7.0, 6.0])
    tensor(1., dtype=torch.float64)
    """
    if not isinstance(value, Value) or not value.samples:
        raise refuse("argmax takes one number a sample, or a vector", source_line())
    if value.width is not None:
        return concat(*(argmax(v) for v in value))
    own = index()
    return attend(constant(_FOREMOST), value - _FIRST * own, own).nearest_whole()


def argmin(value: Value) -> Value:
    """The number of the sample with the smallest value, the first one of equal ones.

    Values count as equal as for :func:`argmax`.

    Examples
    --------
    >>> @ice.algorithm
    ... def nearest(x, y):
    ...     return ice.at(y, ice.argmin(abs(x[0] - 0.5)))
    >>> nearest([[0.0], [0.4], [1.0]], [5.0, 6.0, 7.0])
    tensor(6., dtype=torch.float64)
    """
    return argmax(-value)
