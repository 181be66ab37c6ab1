r"""The block: four layers of frozen attention that execute one instruction; heads of named terms.

**Heads.** A logit is a sum of terms, each a product of a linear map of the query and one of the
key. Every mask is a sum of products of bits and flags that are all **exactly 0 where the key is
meant to be seen**, so a mask of any size costs no precision there: with bits b, b' the term

.. math:: -W \sum_j \big(b_j (1 - b'_j) + (1 - b_j) b'_j\big)

is 0 for equal codes and at most -W otherwise. With X >= tau + Lambda and W = 4 X a head sees

* 0 (plus a logit in [-Lambda, Lambda]) on the keys that match, from a token that asks;
* -X on the null token, from a token that asks: it answers where nothing matches;
* at most -W + Lambda on everything else; and from a token that does not ask -W + Lambda on
  everything but the null token, which has 0.

Any two of these lines differ by at least tau, so exp of the difference is exactly 0.

**Layers.**

=======  ===================  ======================================================================
layer    heads                what they do
=======  ===================  ======================================================================
fetch    fields               every unit finds the instruction at its program counter whose sign
                              agrees with the flag, and takes its fields
read     ten reads, and old   units take their operands out of memory, and what the destination
                              holds
compute  F and G, m each      units look a_j + b_j and a_j - b_j up in the instruction's table
write    store                memory whose (variable, lane) is the unit's destination takes
                              result - old on top of what it holds
=======  ===================  ======================================================================

A unit itself holds the flag as its value: it is memory for (FLAG, lane 0) and is stored to as such,
so a branch sees a flag written by the instruction just before it.

A *self* head is sharp attention on a token's own code: an exact copy. In the plain block every
layer has one, for all tokens and all features, and nothing else carries anything from layer to
layer: no residual, no norm, no MLP. In the residual block the stream carries, and the one self head
is that of the last layer, for units (by their lanes): what to keep minus the identity. At the end
of a cycle a unit forgets its scratch, moves its result to ``before`` (r of the next instruction's
likeness) and the next address to its program counter.

**Noise.** What should stay zero may not grow if it does not stay zero (copies behind a norm are not
exact). All tokens that do not ask receive the same thing, the null token's features, and the null
token receives its own: with e for what it should not hold, its value becomes value + result - old =
result, since old is its value; before becomes its result; scratch is forgotten. So errors of the
null token's features are passed on once and not summed, and every other token adds what vanishes
from the second cycle on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from iceform.attention import FrozenNetwork
from iceform.attention.variants import HeadGroup, ProjectedAttention
from iceform.computer.layout import ENTRY, KINDS, OPERANDS, READ_FIELDS, Layout, Margins, code

MASK = 4.0  # W over X


@dataclass(frozen=True, eq=False)
class Term:
    """A summand of a logit: (query map) token . (key map) token.

    ``reads`` names the blocks of the query and of the key that a logit meant to be seen is made of;
    a mask has none.
    """

    query: Tensor  # (rows, features)
    key: Tensor
    reads: tuple[tuple[str, ...], tuple[str, ...]] | None = None


@dataclass(frozen=True, eq=False)
class HeadPlan:
    """A head before its weights are stacked: who asks, who answers, by what logit, which values."""

    label: str
    asks: tuple[str, ...]  # kinds of tokens
    answers: tuple[str, ...]
    terms: tuple[Term, ...]
    values: Tensor  # (rank, features)
    out: Tensor  # (features, rank)
    away: float  # X


@dataclass(frozen=True)
class Masks:
    """The terms that all heads of one margin are made of."""

    layout: Layout
    away: float  # X

    @property
    def weight(self) -> float:
        """W."""
        return MASK * self.away

    def match(self, query: str, key: str) -> Term:
        """-W for every bit in which the query's code differs from the key's."""
        root = math.sqrt(self.weight)
        asked = [{query: root}, {"real": root, query: -root}]
        return self._differs([self.layout.read(weights) for weights in asked], key, "real")

    def match_all(self, query: str, key: str) -> Term:
        """The same, for codes that the null token has too."""
        root = math.sqrt(self.weight)
        asked = [{query: root}, {"real": root, "null": root, query: -root}]
        return self._differs([self.layout.read(weights) for weights in asked], key, "real", "null")

    def fixed(self, number: Tensor, key: str) -> Term:
        """-W for every bit in which the key's code differs from a given one."""
        always = self.layout.read({"real": math.sqrt(self.weight)})
        bits = number[:, None]
        term = self._differs([bits * always, (1 - bits) * always], key, "real")
        asked = term.query.any(1)
        return Term(term.query[asked], term.key[asked])

    def _differs(self, asked: list[Tensor], key: str, *coded: str) -> Term:
        """Bits that are asked for and missing, and bits that are there and not asked for."""
        read, root = self.layout.read, math.sqrt(self.weight)
        missing = read({**dict.fromkeys(coded, -root), key: root})
        return Term(torch.cat(asked), torch.cat([missing, read({key: -root})]))

    def only(self, *kinds: str) -> Term:
        """-W for every real key that is of none of these kinds."""
        read, root = self.layout.read, math.sqrt(self.weight)
        others = {"real": -root, **dict.fromkeys(kinds, root)}
        return Term(read({"real": root, "null": root}), read(others))

    def asked_by(self, *kinds: str) -> tuple[Term, Term]:
        """Tokens of other kinds see -W on all real keys; these see -X on the null token."""
        read, root, near = self.layout.read, math.sqrt(self.weight), math.sqrt(self.away)
        others = {"real": root, "null": root, **dict.fromkeys(kinds, -root)}
        mine = dict.fromkeys(kinds, near)
        return Term(read(others), read({"real": -root})), Term(read(mine), read({"null": -near}))


def group(heads: Sequence[HeadPlan], dtype: torch.dtype) -> HeadGroup:
    """Heads of one rank, their queries and keys filled up with zeros to one length."""
    queries = [torch.cat([t.query for t in head.terms]) for head in heads]
    keys = [torch.cat([t.key for t in head.terms]) for head in heads]
    rows = max(len(q) for q in queries)
    return HeadGroup(
        torch.stack([_padded(q, rows) for q in queries]).to(dtype),
        torch.stack([_padded(k, rows) for k in keys]).to(dtype),
        torch.stack([head.values for head in heads]).to(dtype),
        torch.stack([head.out for head in heads]).to(dtype),
        [head.label for head in heads],
    )


def _padded(matrix: Tensor, rows: int) -> Tensor:
    return torch.cat([matrix, matrix.new_zeros(rows - len(matrix), matrix.shape[1])])


LAYERS = ("fetch", "read", "compute", "write")


@dataclass(frozen=True, eq=False)
class Block:
    """The four layers as plans of heads, in float64; :meth:`network` stacks them into weights."""

    layout: Layout
    margins: Margins

    def network(self, dtype: torch.dtype, *, residual: bool = False) -> FrozenNetwork:
        """The literal layers, with the self heads that the form needs."""
        layers = []
        for name in LAYERS:
            groups = [[self.self_head(name, residual)], getattr(self, name)()]
            present = [[h for h in heads if h is not None] for heads in groups]
            layers.append(
                ProjectedAttention([group(h, dtype) for h in present if h], residual=residual)
            )
        return FrozenNetwork(layers, self.layout.features)

    def heads(self, layer: str, *, residual: bool = False) -> list[HeadPlan]:
        """The heads of a layer, the self head first."""
        own = self.self_head(layer, residual)
        rest: list[HeadPlan] = getattr(self, layer)()
        return rest if own is None else [own, *rest]

    # ------------------------------------------------------------------ the layers

    def fetch(self) -> list[HeadPlan]:
        """Units find the instruction at their counter; a branch is decided by S flag sign."""
        masks, root = Masks(self.layout, self.margins.fetch), math.sqrt(self.margins.flag)
        first = root * self.layout.read({"value": 1.0})[:1]
        flag = Term(first, self.layout.read({"sign": root}), (("value",), ("sign",)))
        moves = [({field: 1.0}, f"fetched {field}") for field in self.layout.fields]
        terms = (masks.match("counter", "key"), flag)
        return [self._head("fields", masks, ("unit",), ("instruction",), terms, moves)]

    def read(self) -> list[HeadPlan]:
        """Units take their operands, and what the destination holds, out of memory."""
        own = [self._read_head(field) for field in READ_FIELDS]
        return [*own, self._memory_head("old", "destination", "own", "old")]

    def compute(self) -> list[HeadPlan]:
        """Units look their operands' sums up in F and their differences in G."""
        width = self.layout.sizes.width
        return [self._look_up(j, sign) for j in range(width) for sign in (1.0, -1.0)]

    def write(self) -> list[HeadPlan]:
        """Memory, and units as memory of the flag, take what is stored to them."""
        masks = Masks(self.layout, self.margins.copy)
        terms = (masks.match("variable", "fetched destination"), masks.match("home", "lane"))
        moves = [({"result": 1.0, "old": -1.0}, "value")]
        return [self._head("store", masks, ("memory", "unit"), ("unit",), terms, moves)]

    def self_head(self, layer: str, residual: bool) -> HeadPlan | None:
        """An exact copy of every token, or what to keep minus the identity of the units."""
        if residual and layer != "write":
            return None
        masks, layout = Masks(self.layout, self.margins.copy), self.layout
        keep = torch.eye(layout.features.total, dtype=torch.float64)
        kept = self._after_cycle() if layer == "write" else keep
        if not residual:
            everyone, match = ("null", *KINDS), masks.match_all("id", "id")
            return HeadPlan("self", everyone, everyone, (match,), kept, keep, masks.away)
        change = kept - keep
        rows = change.any(1)
        terms = (masks.match("lane", "lane"), masks.only("unit"), *masks.asked_by("unit"))
        return HeadPlan(
            "self", ("unit",), ("unit",), terms, change[rows], keep[:, rows], masks.away
        )

    def _after_cycle(self) -> Tensor:
        """Counter <- next, before <- result, scratch <- 0, all else kept: (features, features)."""
        layout = self.layout
        keep = torch.eye(layout.features.total, dtype=torch.float64)
        for name in layout.scratch:
            keep[layout.features[name]] = 0.0
        keep[layout.features["counter"]] = layout.read({"fetched next": 1.0})
        keep[layout.features["before"]] = layout.read({"result": 1.0})
        return keep

    # ------------------------------------------------------------------ the heads

    def _read_head(self, field: str) -> HeadPlan:
        operand, read = field.split()
        return self._memory_head(field, field, read, operand)

    def _memory_head(self, label: str, field: str, read: str, into: str) -> HeadPlan:
        """Units ask memory for the variable of a field: of their lane, lane 0, all, or by r . v."""
        layout = self.layout
        masks = Masks(layout, self.margins.see if read == "like" else self.margins.copy)
        terms = [masks.match(f"fetched {field}", "variable")]
        if read in ("own", "rowsum"):
            terms.append(masks.match("lane", "home"))
        if read == "lane0":
            terms.append(masks.fixed(code(0, layout.size("home")), "home"))
        if read == "like":
            alike = layout.read({"before": 1.0}), layout.read({"value": 1.0})
            terms.append(Term(*alike, (("before",), ("value",))))
        head = self._head(label, masks, ("unit",), ("memory",), tuple(terms),
                          [({"value": 1.0}, into)])  # fmt: skip
        if read != "rowsum":
            return head
        ones = torch.ones(layout.sizes.width, layout.sizes.width, dtype=torch.float64)
        return replace(head, out=head.out @ ones)

    def _look_up(self, j: int, sign: float) -> HeadPlan:
        layout, masks = self.layout, Masks(self.layout, self.margins.see)
        argument = layout.read({"a": 1.0, "b": sign})[j : j + 1]
        always = layout.read({"real": 1.0, "null": 1.0})
        terms = (
            masks.match("fetched with table", "table"),
            Term(argument, layout.read({"slope": 1.0}), (OPERANDS, ENTRY)),
            Term(always, layout.read({"bias": 1.0}), (("real", "null"), ENTRY)),
        )
        column = "f" if sign > 0 else "g"
        head = self._head(f"{column.upper()} {j}", masks, ("unit",), ("entry",), terms,
                          [({column: sign}, "result")], rows=slice(j, j + 1))  # fmt: skip
        return head

    def _head(
        self,
        label: str,
        masks: Masks,
        asks: tuple[str, ...],
        answers: tuple[str, ...],
        terms: tuple[Term, ...],
        moves: list[tuple[dict[str, float], str]],
        rows: slice = slice(None),
    ) -> HeadPlan:
        """A gated head that moves blocks of the answer into blocks of the token that asked."""
        gates = (masks.only(*answers), *masks.asked_by(*asks))
        values = torch.cat([self.layout.read(weights) for weights, _ in moves])
        out = torch.cat([self.layout.into(name)[:, rows] for _, name in moves], 1)
        return HeadPlan(label, asks, answers, (*terms, *gates), values, out, masks.away)
