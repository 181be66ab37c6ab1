"""Level 1: designs, the language of heads, and the literal layers that they are built as."""

from iceform.heads.design import Design, Vocabulary, attention, hopfield, projected
from iceform.heads.head import Head, Move, Row, moves, products, rows
from iceform.heads.inspection import LayerTrace, Trace, trace_network
from iceform.heads.lookups import HIDDEN, MARGIN, LookUpLayout, LookUps, Prompt, SoftmaxAverage
from iceform.heads.network import (
    AttentionTrace,
    Embed,
    Entry,
    Features,
    FrozenNetwork,
    HeadWeights,
    SoftmaxAttention,
    digested,
    is_checked,
    unchecked,
    weights_digest,
)
from iceform.heads.variants import (
    HeadGroup,
    HopfieldLayer,
    Lift,
    LiftedAttention,
    ProjectedAttention,
)

__all__ = [
    "HIDDEN",
    "MARGIN",
    "AttentionTrace",
    "Design",
    "Embed",
    "Entry",
    "Features",
    "FrozenNetwork",
    "Head",
    "HeadGroup",
    "HeadWeights",
    "HopfieldLayer",
    "LayerTrace",
    "Lift",
    "LiftedAttention",
    "LookUpLayout",
    "LookUps",
    "Move",
    "ProjectedAttention",
    "Prompt",
    "Row",
    "SoftmaxAttention",
    "SoftmaxAverage",
    "Trace",
    "Vocabulary",
    "attention",
    "digested",
    "hopfield",
    "is_checked",
    "moves",
    "products",
    "projected",
    "rows",
    "trace_network",
    "unchecked",
    "weights_digest",
]
