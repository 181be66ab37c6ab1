"""Sentence embeddings: the mean of an encoder's token states, of length 1."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class MeanPooling(nn.Module):
    """Sentence embeddings: an encoder's token states, averaged over the mask, of length 1.

    Parameters
    ----------
    encoder
        Called with ``input_ids`` and ``attention_mask``; its result has ``last_hidden_state``.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> states = torch.tensor([[[3.0, 0.0], [3.0, 8.0], [100.0, 100.0]]])
    >>> encoder = lambda **given: SimpleNamespace(last_hidden_state=states)
    >>> MeanPooling(encoder)(torch.zeros(1, 3), torch.tensor([[1, 1, 0]]))
    tensor([[0.6000, 0.8000]])
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **kwargs: Any) -> Tensor:
        """Shape (batch, hidden)."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        hidden = states.last_hidden_state
        weights = attention_mask[..., None].to(hidden)
        return F.normalize((hidden * weights).sum(-2) / weights.sum(-2), dim=-1)
