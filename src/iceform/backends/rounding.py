"""The rounding that a backend declares, which its certificates follow."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from iceform.interpolation import Interpolant, RoundingModel
from iceform.interpolation.local import tail_mass
from iceform.validation import unit_roundoff

__all__ = ["Rounding", "sum_block"]

_FEW = 4096  # samples whose sums cost nothing in float64
_BLOCK = 128  # rows summed in float32 before they are added in float64, where there are more


def sum_block(dtype: torch.dtype, samples: int) -> int:
    """Rows that a fused pass may sum in ``dtype`` before it goes on in float64."""
    return 1 if dtype == torch.float64 or samples <= _FEW else _BLOCK


@dataclass(frozen=True)
class Rounding:
    """How a backend computes logits.

    Sums over samples are accumulated in float64 whatever the dtype, but for blocks of
    :func:`sum_block` rows.

    Parameters
    ----------
    literal
        True where logits come from the literal inner product of keys and queries.
    """

    literal: bool

    def model(
        self, dtype: torch.dtype, it: Interpolant, magnitude: float, dim: int
    ) -> RoundingModel:
        """The rounding of one look-up of z = w.x - y whose terms add up to ``magnitude``."""
        unit = unit_roundoff(dtype)
        if self.literal or not it.uniform:
            # d products, the label and the bias; positions add exact zeros.
            return RoundingModel(unit, False, magnitude, dim + 2)
        return RoundingModel(unit, True, magnitude, dim + 1, it.half_width(unit))

    def omitted(self, dtype: torch.dtype, it: Interpolant) -> float:
        """Bound of what a look-up may leave out: tokens far from z."""
        half = None if self.literal else it.half_width(unit_roundoff(dtype))
        if half is None or half >= it.tokens - 1:
            return 0.0
        return tail_mass(it.sharpness, half) * it.swing

    def sum_error(self, dtype: torch.dtype, count: int) -> float:
        """Relative error of a mean over ``count`` samples."""
        unit = unit_roundoff(dtype)
        block = 1 if self.literal else sum_block(dtype, count)
        in_blocks = _gamma(block, unit) if block > 1 else 0.0
        return _gamma(count + 2, unit_roundoff(torch.float64)) + in_blocks + 2 * unit


def _gamma(terms: int, unit: float) -> float:
    return terms * unit / (1 - terms * unit)
