"""iceform's literal network on its literal tokens, read by hand: no backend has a part in it."""

from torch import Tensor

from iceform.paper import SampleGradients


def rows(em: SampleGradients, *data: Tensor) -> Tensor:
    """What the queries of all blocks of all prompts return, shape (*batch, n, d)."""
    answers = em.network(em.prompt(*data).tokens)  # (*batch, prompts, queries, d + 1)
    asked = answers[..., : em.layout.samples, :].flatten(-3, -2)
    return asked[..., : em.domain.samples, : em.domain.dim]
