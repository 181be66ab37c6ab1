"""Level 1: the literal layers, as the paper defines them."""

from iceform.attention.inspection import LayerTrace, Trace, trace_network
from iceform.attention.lookups import HIDDEN, MARGIN, Average, Layout, LookUps, Prompt
from iceform.attention.network import (
    AttentionTrace,
    Embed,
    Entry,
    Features,
    FrozenNetwork,
    Head,
    SoftmaxAttention,
    digested,
    is_checked,
    unchecked,
    weights_digest,
)
from iceform.attention.variants import (
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
    "Average",
    "Embed",
    "Entry",
    "Features",
    "FrozenNetwork",
    "Head",
    "HeadGroup",
    "HopfieldLayer",
    "LayerTrace",
    "Layout",
    "Lift",
    "LiftedAttention",
    "LookUps",
    "ProjectedAttention",
    "Prompt",
    "SoftmaxAttention",
    "Trace",
    "digested",
    "is_checked",
    "trace_network",
    "unchecked",
    "weights_digest",
]
