"""Proven tolerances: how far a correct kernel may be from the exact result, for given inputs.

:func:`iceform.tolerance` is the one for attention. Beside it: attention from norms alone, one
linear map, RMSNorm, LayerNorm and a sum.
"""

from iceform.tolerances.attack import DTYPES, QUICK, Row, Tightness, attacked, row, tightness
from iceform.tolerances.attention import tolerance
from iceform.tolerances.backends import Backend, backend_named
from iceform.tolerances.cases import Shape
from iceform.tolerances.kind import Kind
from iceform.tolerances.layers import attention_norms, layer_norm, linear, rms_norm, total

__all__ = [
    "DTYPES",
    "QUICK",
    "Backend",
    "Kind",
    "Row",
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
