"""Proven tolerances: how far a correct kernel may be from the exact result, for given inputs.

:func:`tolerance` is the one for attention. Beside it: attention from norms alone, one linear map,
RMSNorm, LayerNorm and a sum.
"""

from iceform_tolerance.attack import DTYPES, QUICK, AttackRow, Tightness, attacked, row, tightness
from iceform_tolerance.attention import tolerance
from iceform_tolerance.backends import KernelBackend, backend_named
from iceform_tolerance.cases import Shape
from iceform_tolerance.kind import KernelKind
from iceform_tolerance.layers import attention_norms, layer_norm, linear, rms_norm, total

__version__ = "0.3.0"

__all__ = [
    "DTYPES",
    "QUICK",
    "AttackRow",
    "KernelBackend",
    "KernelKind",
    "Shape",
    "Tightness",
    "attacked",
    "attention_norms",
    "backend_named",
    "layer_norm",
    "linear",
    "rms_norm",
    "row",
    "tightness",
    "tolerance",
    "total",
]
