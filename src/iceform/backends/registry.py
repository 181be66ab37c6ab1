"""The backends by name, and the rounding each one declares."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from iceform.interpolation import Interpolant, RoundingModel
from iceform.validation import check_choice, unit_roundoff

__all__ = ["BACKENDS", "Rounding", "resolve"]


@dataclass(frozen=True)
class Rounding:
    """How a backend computes logits and sums over samples.

    Parameters
    ----------
    name
        The backend's name.
    literal
        True where logits come from the literal inner product of keys and queries.
    wide_sums
        True where sums over samples are accumulated in float64 whatever the dtype.
    """

    name: str
    literal: bool
    wide_sums: bool

    def model(
        self, dtype: torch.dtype, it: Interpolant, magnitude: float, dim: int
    ) -> RoundingModel:
        """The rounding of one look-up of z = w.x - y whose terms add up to ``magnitude``."""
        unit = unit_roundoff(dtype)
        if self.literal or not it.uniform:
            # d products, the label and the bias; the block code adds exact zeros.
            return RoundingModel(unit, False, magnitude, dim + 2)
        return RoundingModel(unit, True, magnitude, dim + 1)

    def sum_error(self, dtype: torch.dtype, count: int) -> float:
        """Relative error of a mean over ``count`` samples."""
        unit = unit_roundoff(torch.float64 if self.wide_sums else dtype)
        return (count + 2) * unit / (1 - (count + 2) * unit) + 2 * unit_roundoff(dtype)


BACKENDS = {
    "dense": Rounding("dense", literal=True, wide_sums=False),
    "fused": Rounding("fused", literal=False, wide_sums=True),
}


def resolve(name: str) -> str:
    """The backend that ``name`` stands for; "auto" is the fastest that is always right."""
    choice = check_choice("backend", name, ("auto", *BACKENDS))
    return "fused" if choice == "auto" else choice
