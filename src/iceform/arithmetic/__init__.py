"""Arithmetic that encloses: intervals and Taylor series of them, rounded outward."""

from iceform.arithmetic.intervals import Interval
from iceform.arithmetic.jets import Jet

__all__ = ["Interval", "Jet"]
