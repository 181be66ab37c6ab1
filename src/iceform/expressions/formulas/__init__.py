"""Losses and scalar functions typed as formulas: parsed by a whitelist, never run as code."""

from iceform.errors import FormulaError
from iceform.expressions.formulas.formula import Formula

__all__ = ["Formula", "FormulaError"]
