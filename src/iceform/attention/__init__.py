"""Level 1: the literal layers, as the paper defines them."""

from iceform.attention.affine import Embed, Lift
from iceform.attention.features import Features
from iceform.attention.layers import (
    AttentionTrace,
    Entry,
    Head,
    HopfieldLayer,
    LiftedAttention,
    SoftmaxAttention,
)
from iceform.attention.lookups import Average, Layout, LookUps
from iceform.attention.network import (
    FrozenNetwork,
    digested,
    is_checked,
    unchecked,
    weights_digest,
)
from iceform.attention.projected import HeadGroup, ProjectedAttention
from iceform.attention.prompts import Prompt

__all__ = [
    "AttentionTrace",
    "Average",
    "Embed",
    "Entry",
    "Features",
    "FrozenNetwork",
    "Head",
    "HeadGroup",
    "HopfieldLayer",
    "Layout",
    "Lift",
    "LiftedAttention",
    "LookUps",
    "ProjectedAttention",
    "Prompt",
    "SoftmaxAttention",
    "digested",
    "is_checked",
    "unchecked",
    "weights_digest",
]
