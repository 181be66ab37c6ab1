"""Fused passes over prompts whose tokens are in memory: recognised layer by layer."""

from __future__ import annotations

from torch import Tensor

from iceform.attention import FrozenNetwork, Prompt
from iceform.errors import IntegrityError

__all__ = ["run"]


def run(network: FrozenNetwork, digest: str | None, prompt: Prompt, name: str) -> Tensor:
    """What the network returns for a prompt."""
    layers = ", ".join(type(layer).__name__ for layer in network.layers)
    raise IntegrityError(
        f"the fused backend does not recognise this network: its layers are {layers or 'none'}; "
        "use backend='literal'"
    )
