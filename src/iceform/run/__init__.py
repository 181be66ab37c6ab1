"""How a forward pass is evaluated.

``literal`` multiplies the matrices with the tokens: it is the definition. ``fused`` computes what
the matrices' design says (of look-ups it never holds more than a chunk of tokens) and agrees with
it to rounding; it runs if and only if the weights are the design's. ``triton`` does the same by its
own GPU kernels.
"""

from iceform.run.base import (
    AblatedBackend,
    Backend,
    FusedBackend,
    LiteralBackend,
    Rounding,
    TritonBackend,
    bind,
    resolve,
    rounding_of,
)

__all__ = [
    "AblatedBackend",
    "Backend",
    "FusedBackend",
    "LiteralBackend",
    "Rounding",
    "TritonBackend",
    "bind",
    "resolve",
    "rounding_of",
]
