"""Level 1: the literal layers, as the paper defines them."""

from iceform.attention.layers import (
    AttentionTrace,
    Head,
    HopfieldLayer,
    Lift,
    LiftedAttention,
    SoftmaxAttention,
)
from iceform.attention.network import Features, FrozenNetwork, weights_digest

__all__ = [
    "AttentionTrace",
    "Features",
    "FrozenNetwork",
    "Head",
    "HopfieldLayer",
    "Lift",
    "LiftedAttention",
    "SoftmaxAttention",
    "weights_digest",
]
