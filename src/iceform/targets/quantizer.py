r"""Numbers as token ids: equally spaced levels, and what choosing the nearest costs.

Levels are k h for |k| <= bound/h, with h a power of two, so levels and their squares are exact. A
language-model head scores level l by 2 l out - l^2 - q, which is largest for the level nearest to
``out``. q is a number near out^2 that the network supplies: it changes no choice, but without it
scores near the largest would be of size out^2, and ``generate()`` casts them to float32. With
|q - out^2| <= e_q they are of size 9 h^2/4 + e_q at the two nearest levels.

Between neighbours with the midpoint c the scores differ by 2 h |out - c|. Before the cast each is
off by at most ``SCORE`` units of what it is added up from, so the level that is chosen is the
nearest one unless

.. math:: h |out - c| \le SCORE\, u\, (2\,bound\,|out| + bound^2 + q_0)
    + u_{32} (9 h^2/4 + e_q),

with q_0 the size of q's own parts (:meth:`Quantizer.blur`). With ``out`` itself off by e, the
choice is certain unless the exact number lies within the sum of both of a midpoint
(:meth:`Quantizer.certain`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from iceform.errors import BoundError
from iceform.targets.rounding import READ
from iceform.validation import unit_roundoff

SCORE = READ + 6  # units: read, three products, their sum; the head reads the mirrored stream
_SINGLE = unit_roundoff(torch.float32) * (1 + 2.0**-10)  # the cast in generate()
_LEAST_STEP = 2.0**-12
_LARGEST = 64.0


@dataclass(frozen=True)
class Quantizer:
    """k step for |k| <= bound/step."""

    bound: float
    step: float

    def __post_init__(self) -> None:
        if math.frexp(self.step)[0] != 0.5 or not _LEAST_STEP <= self.step <= self.bound:
            raise BoundError(
                f"step must be a power of two from {_LEAST_STEP:g} to bound, got {self.step!r}"
            )
        if not (self.bound / self.step).is_integer() or not self.bound <= _LARGEST:
            raise BoundError(
                f"bound must be a multiple of the step, at most {_LARGEST:g}, got {self.bound!r}"
            )

    @property
    def half(self) -> int:
        """How many lie above 0."""
        return round(self.bound / self.step)

    def __len__(self) -> int:
        return 2 * self.half + 1

    @cached_property
    def values(self) -> Tensor:
        """All of them, in float64."""
        return torch.arange(-self.half, self.half + 1, dtype=torch.float64) * self.step

    def ids(self, numbers: Tensor) -> Tensor:
        """The nearest level's index; beyond the last, the last."""
        # Halves go to the even one, as round() does; Quantizer.certain names them.
        nearest = (numbers.double() / self.step).round().clamp(-self.half, self.half)
        return nearest.long() + self.half

    def check(self, name: str, numbers: Tensor) -> None:
        """Refuse numbers that no level stands for: NaN, and those beyond the last level."""
        largest = float(numbers.abs().max()) if numbers.numel() else 0.0
        if not largest <= self.bound + self.step / 2:
            raise BoundError(
                f"max |{name}| is {largest:.4g}, and tokens stand for numbers up to "
                f"{self.bound:g}; scale the data, or write the folder with a larger bound"
            )

    def nearest(self, numbers: Tensor) -> Tensor:
        """The nearest level itself."""
        return self.values[self.ids(numbers)]

    def blur(self, unit: float, out: float, parts: float, off: float) -> float:
        """By how much of ``out`` rounding of the scores may move the choice."""
        size = 2 * self.bound * abs(out) + self.bound**2 + parts
        cast = _SINGLE * (9 * self.step**2 / 4 + off)
        return (SCORE * unit * size + cast) / self.step

    def certain(self, numbers: Tensor, error: float) -> Tensor:
        """Where the nearest level stays the nearest for everything within ``error``."""
        scaled = numbers.double() / self.step
        gap = (scaled - scaled.floor() - 0.5).abs() * self.step
        beyond = numbers.double().abs() > self.bound - self.step / 2 + error
        return (gap > error) | beyond
