r"""The literal run: W_Q, W_K, W_V and W_O multiply tokens, cycle after cycle.

``every`` entry of every attention matrix can be computed; that is the definition. With the weights
that the sizes imply almost all of them are known before: a token that does not ask attends to the
null token alone, whose values are zeros, and a key of the wrong kind has a weight of exactly 0 (the
theorem of the block). So only the rows of tokens that ask are computed, and of those only the
columns of keys that can answer:

=======  =======================  =====================
layer    rows                     columns
=======  =======================  =====================
fetch    units                    instructions
read     units                    the null token, memory
compute  units                    entries
write    units, memory            units, the null token
=======  =======================  =====================

A row of a self head has one entry, which is 1. A network that is not the one the sizes imply is
always run in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.attention import FrozenNetwork
from iceform.attention.variants import HeadGroup, ProjectedAttention

__all__ = ["Cycle", "Graphed", "every_entry", "loop", "needed_entries"]

Cycle = Callable[[Tensor], Tensor]


def every_entry(network: FrozenNetwork) -> Cycle:
    """One cycle with all of its attention entries."""
    return network.__call__


def needed_entries(network: FrozenNetwork, kinds: Mapping[str, slice]) -> Cycle:
    """One cycle with the entries that can differ from 0, in place; for sealed weights only."""
    unit, null, memory = kinds["unit"], kinds["null"], kinds["memory"]
    rows = [unit, unit, unit, slice(unit.start, memory.stop)]
    answering = slice(null.start, memory.stop)
    columns = [kinds["instruction"], answering, kinds["entry"], slice(unit.start, null.stop)]
    layers = [layer for layer in network.layers if isinstance(layer, ProjectedAttention)]
    heads = [layer.head_groups[-1] for layer in layers]
    turn = _turn(layers[-1])

    def cycle(tokens: Float[Tensor, "*b t d"]) -> Float[Tensor, "*b t d"]:
        for group, asking, answers in zip(heads[:-1], rows, columns, strict=False):
            tokens[..., asking, :] += group(tokens[..., asking, :], tokens[..., answers, :])
        stored = heads[-1](tokens[..., rows[-1], :], tokens[..., columns[-1], :])
        tokens[..., unit, :] = turn(tokens[..., unit, :])
        tokens[..., rows[-1], :] += stored
        return tokens

    return cycle


def _turn(layer: ProjectedAttention) -> Cycle:
    """What the self head of the last layer does to a unit, whose row is one entry of weight 1."""
    own: HeadGroup = layer.head_groups[0]

    def turn(units: Tensor) -> Tensor:
        moved = own.project(own.values(units))
        return units + moved if layer.residual else moved

    return turn


def loop(cycle: Cycle, tokens: Tensor, cycles: int) -> Tensor:
    """Nothing between cycles but the loop."""
    for _ in range(cycles):
        tokens = cycle(tokens)
    return tokens


class Graphed:
    """A cycle captured as one CUDA graph: no launch from the host but one a cycle, and no sync.

    Parameters
    ----------
    cycle
        A cycle that works in place.
    tokens
        The tokens to work on; they stay where they are.
    turns
        Cycles in one graph.
    """

    def __init__(self, cycle: Cycle, tokens: Tensor, turns: int = 1) -> None:
        self.tokens, self.turns = tokens, turns
        start, aside = tokens.clone(), torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # a graph is captured warm
            cycle(tokens)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            loop(cycle, tokens, turns)
        tokens.copy_(start)

    def __call__(self) -> None:
        """Run ``turns`` cycles."""
        self.graph.replay()
