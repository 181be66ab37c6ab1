"""What a design says of its circuit: which edges could carry anything, and where variables are.

An edge is *recorded* if its reader reads a feature that its writer writes. The stream is a sum and
features have places of their own (or directions that are orthogonal), so an edge that is not
recorded carries nothing, whatever the prompt is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.bench.network import Edge
from iceform.heads import Design, Head
from iceform.heads.head import Place, coefficients

MAPS = ("q", "k", "v")
Blocks = Sequence[Sequence[Head]]  # as a network has them


@dataclass(frozen=True)
class CausalVariable:
    """A block of features: where it is written and read, and the subspace that holds it.

    Attributes
    ----------
    name, size
        As the design calls it.
    written, read
        Layers whose heads write it (-1: the embedding) and read it (the number of layers: logits).
    subspace
        An orthonormal basis, (width, size).
    """

    name: str
    size: int
    written: tuple[int, ...]
    read: tuple[int, ...]
    subspace: Float[Tensor, "d k"]

    @property
    def interval(self) -> tuple[int, int]:
        """From the first stream that holds it, counted before layers, to the last that is read."""
        return self.written[0] + 1, max(self.read, default=self.written[0] + 1)


def _used(rows: list[Mapping[Place, float]]) -> frozenset[Place]:
    return frozenset(place for row in rows for place, c in row.items() if c)


def written(head: Head) -> frozenset[Place]:
    """The features that a head writes."""
    return _used(coefficients(head, "o"))


def read(head: Head, kind: str) -> frozenset[Place]:
    """The features that its map q, k or v reads."""
    return _used(coefficients(head, kind))


def recorded_edges(
    design: Design, prompts: Float[Tensor, "n f"], answer: Mapping[Place, float],
    blocks: Blocks | None = None,
) -> set[Edge]:  # fmt: skip
    """Every edge that could carry something.

    Parameters
    ----------
    design
        Any design.
    prompts
        Features of all tokens that prompts may hold: where one is not 0, the embedding writes it.
    answer
        What the logits read.
    blocks
        The design's layers, and feed-forward maps between them; left out, there are none.
    """
    names = [(name, j) for name, size in design.features.sizes for j in range(size)]
    given = frozenset(p for p, held in zip(names, (prompts != 0).any(0), strict=True) if held)
    writes = {0: given}
    found = set()
    for layer, heads in enumerate(blocks or design.unrolled):
        for number, head in enumerate(heads):
            for index, kind in enumerate(MAPS):
                reads = read(head, kind)
                found |= {Edge(u, layer, index, number) for u, w in writes.items() if w & reads}
        writes |= {
            1 + layer * design.heads + number: written(head) for number, head in enumerate(heads)
        }
    asked = frozenset(place for place, c in answer.items() if c)
    return found | {Edge(u, None) for u, w in writes.items() if w & asked}


def variables(
    design: Design, prompts: Float[Tensor, "n f"], answer: Mapping[Place, float],
    blocks: Blocks | None = None,
) -> dict[str, CausalVariable]:  # fmt: skip
    """Every block of features that something writes and something reads."""
    found = {}
    layers = list(enumerate(blocks or design.unrolled))
    for name, size in design.features.sizes:
        where = [(name, j) for j in range(size)]
        first = [-1] if bool((prompts[:, design.features[name]] != 0).any()) else []
        wrote = first + [n for n, hs in layers if any(written(h) & {*where} for h in hs)]
        reads = [n for n, hs in layers if any(read(h, m) & {*where} for h in hs for m in MAPS)]
        reads += [len(layers)] if {*where} & {*answer} else []
        if wrote and reads:
            basis = design.moved(torch.eye(design.features.total, dtype=torch.float64))
            subspace = torch.linalg.qr(basis[design.features[name]].T)[0]
            found[name] = CausalVariable(name, size, tuple(wrote), tuple(reads), subspace)
    return found
