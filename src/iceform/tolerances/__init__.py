"""Proven tolerances: how far a correct kernel may be from the exact result, for given inputs.

:func:`iceform.tolerance` is the one for attention. Beside it: attention from norms alone, one
linear map, RMSNorm, LayerNorm and a sum.
"""

from iceform.tolerances.attention import tolerance
from iceform.tolerances.kind import Kind
from iceform.tolerances.layers import attention_norms, layer_norm, linear, rms_norm, total

__all__ = ["Kind", "attention_norms", "layer_norm", "linear", "rms_norm", "tolerance", "total"]
