"""The one rounding model, and arithmetic that encloses: intervals and their Taylor series."""

from iceform.arithmetic.intervals import Interval
from iceform.arithmetic.jets import Jet
from iceform.arithmetic.rounding import (
    Format,
    compounded,
    format_of,
    fused_steps,
    log_steps,
    sum_steps,
)

__all__ = [
    "Format",
    "Interval",
    "Jet",
    "compounded",
    "format_of",
    "fused_steps",
    "log_steps",
    "sum_steps",
]
