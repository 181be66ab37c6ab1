"""Prompt: what a frozen network reads."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from iceform.attention.features import Features
from iceform.pretrained import Pretrained

__all__ = ["Prompt"]


@dataclass(frozen=True, eq=False)
class Prompt(Pretrained):
    """Tokens, and names for what they hold.

    Attributes
    ----------
    tokens
        Shape (*batch, tokens, features).
    features
        Names of the feature axis.
    roles
        What each token is, in words.
    """

    tokens: Float[Tensor, "*b n d"]
    features: Features
    roles: tuple[str, ...]

    def __getitem__(self, name: str) -> Tensor:
        """The named features of every token."""
        return self.tokens[..., self.features[name]]
