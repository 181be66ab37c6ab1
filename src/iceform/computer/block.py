r"""The block: four layers of frozen attention that execute one instruction; heads of named rows.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from iceform.computer.layout import READ_FIELDS, ComputerLayout, MaskMargins
from iceform.heads import Design, FrozenNetwork, Head, Move, Row, moves, products, rows
from iceform.heads.design import projected
from iceform.heads.head import Pair, Place

MASK = 4.0  # W over X
LAYERS = ("fetch", "read", "compute", "write")


@dataclass(frozen=True)
class Masks:
    """The pairs of rows that all heads of one margin are made of."""

    layout: ComputerLayout
    away: float  # X

    @property
    def weight(self) -> float:
        """W."""
        return MASK * self.away

    def match(self, query: str, key: str, *also: str) -> tuple[Pair, ...]:
        """-W for every bit in which the query's code differs from the key's.

        Codes are of real tokens, and of those whose flags are ``also``.
        """
        root, flags = math.sqrt(self.weight), ("real", *also)
        others = self._rows({**dict.fromkeys(flags, root), query: -root})
        asked = (*self._rows({query: root}), *others)
        return tuple(zip(asked, self._differs(key, *flags), strict=True))

    def zero(self, key: str) -> tuple[Pair, ...]:
        """-W for every bit of the key's code: code 0 is what is seen."""
        root = math.sqrt(self.weight)
        absent = self._rows({key: -root})
        return tuple(zip([Row.of("real", 0, root)] * len(absent), absent, strict=True))

    def _differs(self, key: str, *flags: str) -> tuple[Row, ...]:
        """Bits that are missing where they are asked for, and bits that are there."""
        root = math.sqrt(self.weight)
        missing = self._rows({**dict.fromkeys(flags, -root), key: root})
        return (*missing, *self._rows({key: -root}))

    def only(self, *kinds: str) -> tuple[Pair, ...]:
        """-W for every real key that is of none of these kinds."""
        root = math.sqrt(self.weight)
        others = {"real": -root, **dict.fromkeys(kinds, root)}
        return products(self.layout.features, {"real": root, "null": root}, others)

    def asked_by(self, *kinds: str) -> tuple[Pair, ...]:
        """Tokens of other kinds see -W on all real keys; these see -X on the null token."""
        at, root, near = self.layout.features, math.sqrt(self.weight), math.sqrt(self.away)
        others = {"real": root, "null": root, **dict.fromkeys(kinds, -root)}
        mine = products(at, dict.fromkeys(kinds, near), {"null": -near})
        return products(at, others, {"real": -root}) + mine

    def _rows(self, coefficients: Mapping[str, float]) -> tuple[Row, ...]:
        return rows(self.layout.features, coefficients)


@dataclass(frozen=True, eq=False)
class TransformerBlock:
    """The four layers as heads; :meth:`network` is their weights."""

    stages: ClassVar[tuple[tuple[str, ...], ...]] = tuple((name,) for name in LAYERS)
    address: ClassVar[str] = "counter"  # what a unit fetches by

    layout: ComputerLayout
    margins: MaskMargins

    def network(self, dtype: torch.dtype, *, residual: bool = False) -> FrozenNetwork:
        """The literal layers, with the self heads that the form needs."""
        design = self.design(residual=residual)
        layers = [projected(design, number, dtype) for number in range(len(self.stages))]
        return FrozenNetwork(layers, design.features)

    def design(self, *, residual: bool = False) -> Design:
        """The heads of every layer, a self head first where the form has one."""
        layers = tuple(self._heads(stage, residual) for stage in self.stages)
        kept = () if residual else (self.layout.features,) * len(self.stages)
        return Design(self.layout.features, layers, gives=kept)

    def away(self, role: str) -> float:
        """X of a head: what its masks have to beat."""
        if role == "fields":
            return self.margins.fetch
        alike = role[0] in "FG" or role.endswith("like")
        return self.margins.see if alike else self.margins.copy

    def _heads(self, stage: tuple[str, ...], residual: bool) -> tuple[Head, ...]:
        own = self.self_head(stage[0], residual)
        rest: list[Head] = [head for layer in stage for head in getattr(self, layer)()]
        return tuple(rest) if own is None else (own, *rest)

    # ------------------------------------------------------------------ the layers

    def fetch(self) -> list[Head]:
        """Units find the instruction at their counter; a branch is decided by S flag sign."""
        root = math.sqrt(self.margins.flag)
        flag = Row.of("value", 0, root), Row.of("sign", 0, root)
        moved = [m for name in self.layout.fields for m in self._move(name, f"fetched {name}")]
        codes = [(self.address, "key")]
        return [self._gated("fields", ("unit",), ("instruction",), codes, moved, seen=(flag,))]

    def read(self) -> list[Head]:
        """Units take their operands, and what the destination holds, out of memory."""
        own = [self._read_head(field) for field in READ_FIELDS]
        return [*own, self._memory_head("old", "destination", "own", "old")]

    def compute(self) -> list[Head]:
        """Units look their operands' sums up in F and their differences in G."""
        width = self.layout.sizes.width
        return [self._look_up(j, sign) for j in range(width) for sign in (1.0, -1.0)]

    def write(self) -> list[Head]:
        """Memory, and units as memory of the flag, take what is stored to them."""
        change = rows(self.layout.features, {"result": 1.0, "old": -1.0})
        moved = [Move(row, {("value", j): 1.0}) for j, row in enumerate(change)]
        codes = [("variable", "fetched destination"), ("home", "lane")]
        return [self._gated("store", ("memory", "unit"), ("unit",), codes, moved)]

    def self_head(self, layer: str, residual: bool) -> Head | None:
        """An exact copy of every token, or what to keep minus the identity of the units."""
        every = [(name, j) for name, size in self.layout.features.sizes for j in range(size)]
        changes = self.changes(layer)
        if residual:
            changed = [at for at in every if at in changes]
            moved = [Move(Row({**changes[at], at: -1.0}), {at: 1.0}) for at in changed]
            codes = [("lane", "lane")]
            return self._gated("self", ("unit",), ("unit",), codes, moved) if moved else None
        kept = {place: {place: 1.0} for place in every} | changes
        match = Masks(self.layout, self.margins.copy).match("id", "id", "null")
        moved = [Move(Row(kept[place]), {place: 1.0}) for place in every]
        return Head("self", match, tuple(moved))

    def changes(self, layer: str) -> dict[Place, dict[Place, float]]:
        """What a layer leaves of a unit: scratch <- 0, counter <- next, before <- result."""
        if layer != "write":
            return {}
        size = self.layout.size
        made: dict[Place, dict[Place, float]] = {
            (name, j): {} for name in self.layout.scratch for j in range(size(name))
        }
        for into, source in (("counter", "fetched next"), ("before", "result")):
            made |= {(into, j): {(source, j): 1.0} for j in range(size(into))}
        return made

    # ------------------------------------------------------------------ the heads

    def _move(self, name: str, into: str) -> tuple[Move, ...]:
        return moves(self.layout.features, {name: 1.0}, into)

    def _read_head(self, field: str) -> Head:
        operand, read = field.split()
        return self._memory_head(field, field, read, operand)

    def _memory_head(self, role: str, field: str, read: str, into: str) -> Head:
        """Units ask memory for the variable of a field: of their lane, lane 0, all, or by r . v."""
        layout = self.layout
        codes = [(f"fetched {field}", "variable")]
        if read in ("own", "rowsum"):
            codes.append(("lane", "home"))
        if read == "lane0":
            codes.append(("", "home"))
        seen = products(layout.features, {"before": 1.0}, {"value": 1.0}) if read == "like" else ()
        moved = self._move("value", into)
        if read == "rowsum":  # every component takes the sum of all
            width = range(layout.sizes.width)
            moved = tuple(Move(m.value, {(into, j): 1.0 for j in width}) for m in moved)
        return self._gated(role, ("unit",), ("memory",), codes, moved, seen)

    def _look_up(self, j: int, sign: float) -> Head:
        argument = Row({("a", j): 1.0, ("b", j): sign})
        seen = (argument, Row.of("slope")), (Row.flags(real=1.0, null=1.0), Row.of("bias"))
        column = "f" if sign > 0 else "g"
        moved = (Move(Row.of(column, 0, sign), {("result", j): 1.0}),)
        codes = [("fetched with table", "table")]
        return self._gated(f"{column.upper()} {j}", ("unit",), ("entry",), codes, moved, seen)

    def _gated(
        self,
        role: str,
        asks: tuple[str, ...],
        answers: tuple[str, ...],
        codes: Iterable[tuple[str, str]],
        moved: Sequence[Move],
        seen: tuple[Pair, ...] = (),
    ) -> Head:
        """A head for tokens of the kinds ``asks`` that sees those of the kinds ``answers``.

        ``codes`` are those of the query that have to be the key's; "" is the code 0.
        """
        masks = Masks(self.layout, self.away(role))
        match = [
            pair
            for query, key in codes
            for pair in (masks.match(query, key) if query else masks.zero(key))
        ]
        logit = (*match, *seen, *masks.only(*answers), *masks.asked_by(*asks))
        return Head(role, logit, tuple(moved))


class ThreeLayerBlock(TransformerBlock):
    """The same instructions in three layers: the next one is fetched while a result is written.

    Both look at units before the layer, so neither waits for the other: memory takes result - old
    from its unit, and the unit, whose scratch is forgotten there, takes the fields of the
    instruction that ``next`` names. A fetch sees FLAG as it was before that write, and no program
    that :meth:`Assembly.check` admits asks for more: an instruction stands between a comparison
    and its branch. The prompt's units hold the fields of the first instruction.
    """

    stages = (("read",), ("compute",), ("write", "fetch"))
    address = "fetched next"
