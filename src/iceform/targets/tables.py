"""Look-up tables of functions of a bounded f, fitted and proven on a range."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from iceform.errors import BoundError, PrecisionError
from iceform.functions.formulas import Formula
from iceform.interpolation import Interpolant

__all__ = ["Bounded", "fitted"]

_HEADROOM = 1.6  # R over sup |f|: nearer to 1 the logarithms are steep
_LEAST = 1e-3  # of sup |f|: f = 0 has tables too
_ACCURACY = {torch.float64: 5e-14, torch.float32: 1e-7}  # asked of a table


@dataclass(frozen=True)
class Bounded:
    """A formula f with |f| < R on a range, and proven bounds of f' there."""

    text: str
    scale: float  # R
    slopes: tuple[float, float]

    @classmethod
    def of(cls, f: str, reach: float) -> Bounded:
        """What can be proved of f on [-reach, reach]; refused where that is nothing."""
        formula = Formula.parse(f)
        slopes = formula.scalar_function(-reach, reach).slopes(-reach, reach)
        largest = formula.bound(-reach, reach, order=0)
        if largest is None or slopes is None:
            raise BoundError(
                f"no bound of {f!r} and of its slope is proved on [-{reach:g}, {reach:g}]; take a "
                "smooth, bounded function or a smaller reach"
            )
        scale = float(f"{_HEADROOM * max(largest, _LEAST):.6g}")
        return cls(formula.text, scale, slopes)

    def term(self, sign: str) -> str:
        """1 + f/R or 1 - f/R as text."""
        return f"(1 {sign} ({self.text})/{self.scale!r})"


def fitted(text: str, reach: float, dtype: torch.dtype) -> Interpolant:
    """The smallest table that the dtype has use for, or the best there is."""
    function = Formula.parse(text).function
    try:
        return Interpolant.fit(function, -reach, reach, eps=_ACCURACY[dtype])
    except PrecisionError:
        return Interpolant.fit(function, -reach, reach)
