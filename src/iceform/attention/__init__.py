"""Level 1: the literal layers, as the paper defines them."""

from iceform.attention.features import Features
from iceform.attention.layers import (
    AttentionTrace,
    Embed,
    Head,
    HopfieldLayer,
    Lift,
    LiftedAttention,
    SoftmaxAttention,
)
from iceform.attention.lookups import Average, Layout, LookUps
from iceform.attention.network import FrozenNetwork, is_checked, unchecked, weights_digest
from iceform.attention.prompts import Prompt

__all__ = [
    "AttentionTrace",
    "Average",
    "Embed",
    "Features",
    "FrozenNetwork",
    "Head",
    "HopfieldLayer",
    "Layout",
    "Lift",
    "LiftedAttention",
    "LookUps",
    "Prompt",
    "SoftmaxAttention",
    "is_checked",
    "unchecked",
    "weights_digest",
]
