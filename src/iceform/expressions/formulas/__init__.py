"""Expressions of one variable: typed as formulas, or written down from torch functions.

Formulas are parsed by a whitelist, never run as code.
"""

from typing import TYPE_CHECKING, Any

from iceform.errors import FormulaError

if TYPE_CHECKING:
    from iceform.expressions.formulas.formula import Formula

__all__ = ["Formula", "FormulaError"]


def __getattr__(name: str) -> Any:
    """``Formula``, imported when it is first used: it is made of what is made of trees."""
    if name != "Formula":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from iceform.expressions.formulas.formula import Formula

    return Formula
