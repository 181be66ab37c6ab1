r"""The frozen computer's block for stock encoders: few features, and short logits.

A stock stream is as wide as its features, each held twice, and as its heads together, so both are
made as few and as small as they can be.

**Features.** Names that no token has two of share their places: what an instruction says and what
a unit has fetched of it, its address and a unit's counter, the table of either and of an entry, the
result and what is left of it for the next instruction's likeness. Tokens have no codes of their
own: the stream carries, and no head copies. The instruction is fetched while the result before it
is written, so a cycle is three layers.

**Logits.** All that a key says by itself is one row, which every query has: what kinds do not
answer, and the null token's -X. All that a query says by itself is one row, which every key has but
the null token. Where one key matches at most, the codes b of the query and b' of the key take one
row a bit, and the rest is in those two rows, since bits are their own squares:

.. math:: -W \sum_j (b_j - b'_j)^2 = -W \sum_j b_j - W \sum_j b'_j + 2 W \sum_j b_j b'_j.

Behind a norm that is 0 but for rounding, which a softmax over one key does not see. Where several
keys share a code (entries of a table, what is averaged), two rows a bit stay, each exactly 0 on
what matches (``computer.block``). The lines of the proof there, and the distances between them, are
the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.computer.block import Masks, ThreeLayerBlock
from iceform.computer.instructions import FLAG
from iceform.computer.layout import KINDS
from iceform.computer.prompt import ProgramPrompt
from iceform.heads import Design, Features, Head, Move, Row
from iceform.heads.head import Pair, Place

_SHARED = {"counter": "address", "key": "address", "with table": "table", "before": "result"}
_OWN_CODES = ("home", "lane", "key")  # with these, one key matches at most


class StockBlock(ThreeLayerBlock):
    """What :class:`~iceform.computer.block.ThreeLayerBlock` does, in fewer features and rows."""

    def design(self, *, residual: bool = True) -> Design:
        """The heads on shared features; they add to the stream."""
        layers = super().design(residual=True).layers
        shared = tuple(tuple(map(_renamed, layer)) for layer in layers)
        return Design(self.features, shared)

    @cached_property
    def features(self) -> Features:
        """The places that the names share."""
        each = self.layout.features.sizes
        return Features.of(**{_place(name): size for name, size in each if name != "id"})

    def held(self, tokens: Float[Tensor, "*b t f"]) -> Float[Tensor, "*b t g"]:
        """Tokens of the frozen computer's layout on shared features."""
        out = tokens.new_zeros(*tokens.shape[:-1], self.features.total)
        for name, at in self.layout.features.items():
            if name != "id":
                out[..., self.features[_place(name)]] += tokens[..., at]
        return out

    def spread(self, features: Float[Tensor, "*b t g"]) -> Float[Tensor, "*b t f"]:
        """The reverse: every name has what its place holds."""
        parts = [
            features.new_zeros(*features.shape[:-1], size) if name == "id"
            else features[..., self.features[_place(name)]]
            for name, size in self.layout.features.sizes
        ]  # fmt: skip
        return torch.cat(parts, -1)

    def changes(self, layer: str) -> dict[Place, dict[Place, float]]:
        """A result is forgotten where the next one is looked up, all else at the end."""
        if layer == "compute":
            return {("result", j): {} for j in range(self.layout.size("result"))}
        kept = ("result", "before")
        return {at: made for at, made in super().changes(layer).items() if at[0] not in kept}

    def _gated(
        self,
        role: str,
        asks: tuple[str, ...],
        answers: tuple[str, ...],
        codes: Iterable[tuple[str, str]],
        moved: Sequence[Move],
        seen: tuple[Pair, ...] = (),
    ) -> Head:
        codes = list(codes)
        masks = Masks(self.layout, self.away(role))
        weight = masks.weight
        of_key = {(kind, 0): -weight for kind in KINDS if kind not in answers}
        of_key["null", 0] = -masks.away
        of_query = {(kind, 0): -weight for kind in ("null", *KINDS) if kind not in asks}
        match: list[Pair] = []
        for query, key in codes:
            if not any(other in _OWN_CODES for _, other in codes):
                match += masks.match(query, key)
                continue
            for j in range(self.layout.size(key)):
                of_key[key, j] = -weight
                if query:
                    of_query[query, j] = -weight
                    match.append((Row.of(query, j, 2 * weight), Row.of(key, j)))
        every = Row.flags(real=1.0, null=1.0)
        alone = (every, Row(of_key)), (Row(of_query), Row.of("real"))
        return Head(role, (*match, *seen, *alone), tuple(moved))


def _place(name: str) -> str:
    """The name of the place that a name shares."""
    name = name.removeprefix("fetched ")
    return _SHARED.get(name, name)


def _renamed(head: Head) -> Head:
    """A head on the shared places."""

    def at(places: Iterable[tuple[Place, float]]) -> dict[Place, float]:
        return {(_place(name), j): c for (name, j), c in places}

    def row(one: Row) -> Row:
        return Row(at(one.reads.items()))

    logit = tuple((row(query), row(key)) for query, key in head.logit)
    moves = tuple(Move(row(m.value), at(m.writes.items())) for m in head.moves)
    return replace(head, logit=logit, moves=moves)


def fetched(prompt: ProgramPrompt) -> Float[Tensor, "t f"]:
    """The tokens of a prompt whose units have fetched the first instruction."""
    tokens, layout = prompt.tokens.clone(), prompt.layout
    units, assembly = prompt.kinds["unit"], prompt.assembly
    first = assembly.fetch(0, float(prompt.memory[FLAG].flatten()[0]))
    at = assembly.instructions.index(first)
    for name in layout.fields:
        fields = tokens[at, layout.features[name]]
        tokens[units, layout.features[f"fetched {name}"]] = fields
    return tokens
