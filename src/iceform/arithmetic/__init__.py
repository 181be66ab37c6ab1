"""The one rounding model: what an operation of a dtype may be off by, and arithmetic beyond it."""

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
    "compounded",
    "format_of",
    "fused_steps",
    "log_steps",
    "sum_steps",
]
