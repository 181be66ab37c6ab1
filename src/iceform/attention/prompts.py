"""Prompt: what a frozen network reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from iceform.attention.features import Features
from iceform.errors import IntegrityError
from iceform.pretrained import Pretrained

__all__ = ["Prompt"]


@dataclass(frozen=True, eq=False)
class Prompt(Pretrained, kept_as="Prompt"):
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

    # ---------------------------------------------------------------------------------- files

    def card(self) -> tuple[str, dict[str, str]]:
        return "Tokens for a frozen network to read.", {}

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        features = [list(pair) for pair in self.features.sizes]
        return {"features": features, "roles": list(self.roles)}, {"tokens": self.tokens}

    @classmethod
    def unpack(cls, content: dict[str, Any], tensors: dict[str, Tensor], **_: Any) -> Prompt:
        features = Features(tuple((str(name), int(size)) for name, size in content["features"]))
        tokens = tensors["tokens"]
        if tuple(tokens.shape[-2:]) != (len(content["roles"]), features.total):
            raise IntegrityError(
                f"tokens of shape {tuple(tokens.shape)} do not fit their description"
            )
        return Prompt(tokens, features, tuple(content["roles"]))
