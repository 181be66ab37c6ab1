"""The one rounding model, and arithmetic that encloses: intervals and their Taylor series."""

from iceform.arithmetic import balls, double_double
from iceform.arithmetic.decimals import at_least, at_most, exactly
from iceform.arithmetic.double_double import exponent_of, power_of_two, times_power
from iceform.arithmetic.doubled import Doubled, softmax_average
from iceform.arithmetic.eigenvalues import eigenvalues_of, gram_eigenvalues
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
from iceform.arithmetic.units import (
    EXP_UNDERFLOW,
    EXP_UNITS,
    LEAK_BITS,
    NOISE,
    OUTWARD,
    OUTWARD_FEW,
    OUTWARD_MANY,
    SAFE_MINIMUM,
    UNIT,
    gamma,
)

__all__ = [
    "EXP_UNDERFLOW",
    "EXP_UNITS",
    "LEAK_BITS",
    "NOISE",
    "OUTWARD",
    "OUTWARD_FEW",
    "OUTWARD_MANY",
    "SAFE_MINIMUM",
    "UNIT",
    "Doubled",
    "Format",
    "Interval",
    "Jet",
    "at_least",
    "at_most",
    "balls",
    "compounded",
    "double_double",
    "eigenvalues_of",
    "exactly",
    "exponent_of",
    "format_of",
    "fused_steps",
    "gamma",
    "gram_eigenvalues",
    "log_steps",
    "power_of_two",
    "softmax_average",
    "sum_steps",
    "times_power",
]
