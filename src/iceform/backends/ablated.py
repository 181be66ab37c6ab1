"""Ablated: what a run would return if attention did nothing.

Look-ups return what is looked up, and averages weigh all tokens alike. It is no backend that can be
asked for: the difference it makes says how much of an answer attention computes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from iceform.attention import Average, FrozenNetwork, LookUps, Prompt
from iceform.backends.base import Backend
from iceform.backends.rounding import Rounding
from iceform.errors import ProgramError

__all__ = ["Ablated"]


class Ablated(Backend):
    """Attention taken out."""

    rounding = Rounding(literal=False)

    def __init__(self, network: FrozenNetwork) -> None:
        super().__init__(network)
        self.name = "none: attention taken out"

    def run(self, prompt: Prompt | LookUps | Average) -> Tensor:
        if isinstance(prompt, Average):
            return _alike(prompt)
        if not isinstance(prompt, LookUps):
            raise ProgramError("attention can be taken out of look-ups and averages only")
        looked = prompt.weighed(prompt.residuals())[..., None]
        row = looked * prompt.x.to(looked) + prompt.keep * prompt.w[..., None, :]
        return torch.cat([row, looked.expand(*row.shape[:-1], 1)], -1)


def _alike(prompt: Average) -> Tensor:
    """The mean value of the tokens that each point sees."""
    if prompt.seen is None:
        return prompt.values.mean(0).expand(len(prompt.points), -1)
    shares = prompt.seen.to(prompt.values)
    return shares @ prompt.values / shares.sum(1, keepdim=True)
