"""Level 1: designs, the language of heads, and the literal layers that they are built as."""

from iceform.heads.design import Design, Vocabulary, attention
from iceform.heads.head import Head, Move, Row, moves, products, rows
from iceform.heads.inspection import LayerTrace, Trace, trace_network
from iceform.heads.lookups import (
    HIDDEN,
    LARGEST_LOGIT,
    MARGIN,
    LookUpLayout,
    LookUps,
    Prompt,
    SoftmaxAverage,
    baked,
    data_tokens,
)
from iceform.heads.network import (
    Features,
    FrozenNetwork,
    SoftmaxAttention,
    digested,
    unchecked,
)
from iceform.heads.variants import (
    HopfieldLayer,
    Lift,
    LiftedAttention,
)

__all__ = [
    "HIDDEN",
    "LARGEST_LOGIT",
    "MARGIN",
    "Design",
    "Features",
    "FrozenNetwork",
    "Head",
    "HopfieldLayer",
    "LayerTrace",
    "Lift",
    "LiftedAttention",
    "LookUpLayout",
    "LookUps",
    "Move",
    "Prompt",
    "Row",
    "SoftmaxAttention",
    "SoftmaxAverage",
    "Trace",
    "Vocabulary",
    "attention",
    "baked",
    "data_tokens",
    "digested",
    "moves",
    "products",
    "rows",
    "trace_network",
    "unchecked",
]
