r"""What a prompt and a network say: tokens decoded, and matrices refused that are no block's.

**Tokens.** Instructions, tables, memory and units become numbers. Everything is read out of the
token tensor, by the flags and codes that the block's heads match, so another valid prompt is
another image. A prompt whose tokens hold anything where the block would see it and this image would
not is refused.

**Matrices.** Every row of W_Q and W_K that belongs to a mask has to be a multiple of the block's
own, with

.. math:: c_- X \ge \tau + c \Lambda, \qquad (4 c_- - c_+) X \ge \tau + c \Lambda,

where c- and c+ are the least and the largest multiple and c is that of the logits that are meant to
be seen: then masks do what they are for, exactly. Rows that make logits, and value maps, may be
anything in the blocks of features that they are for, and are taken as they are. Moves of codes
(fetch and self) have to be the block's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.computer.block import LAYERS, MASK, TransformerBlock
from iceform.computer.instructions import FLAG_BOUND
from iceform.computer.layout import ENTRY, KINDS, OPERANDS, ComputerLayout
from iceform.errors import IntegrityError, ProgramError
from iceform.heads import FrozenNetwork, Head
from iceform.heads.head import stacked
from iceform.heads.variants import HeadGroup, ProjectedAttention


@dataclass(frozen=True)
class DecodedInstruction:
    """An instruction: the numbers of its fields."""

    key: int
    sign: float
    fields: dict[str, int]


Lanes = range | tuple[int, ...]


@dataclass(frozen=True, eq=False)
class MemorySlot:
    """A variable: the lanes that hold it, in order, and its tokens."""

    lanes: Lanes
    tokens: Tensor


@dataclass(frozen=True, eq=False)
class DecodedProgram:
    """What the tokens of a batch of prompts of one program say."""

    layout: ComputerLayout
    codes: tuple[DecodedInstruction, ...]
    entries: dict[int, Float[Tensor, "k 4"]]
    places: dict[int, MemorySlot]
    lanes: Lanes
    units: Tensor  # token of every lane
    flag: int  # the variable that branches look at

    @classmethod
    def of(cls, layout: ComputerLayout, tokens: Float[Tensor, "b t d"]) -> DecodedProgram:
        """Decode the first prompt; the others have to differ in values alone."""
        reader = _Reader(layout, tokens)
        return cls(layout, reader.codes(), reader.entries(), reader.places(), *reader.units())

    def with_lanes(self, samples: int) -> DecodedProgram:
        """The same program on more samples: lanes 1, 2, ... go on where they are held at all.

        Of tokens this says nothing: they have moved.
        """
        none = self.units[:0]
        places = {
            name: MemorySlot(range(1, samples + 1) if 1 in place.lanes else place.lanes, none)
            for name, place in self.places.items()
        }
        return replace(self, places=places, lanes=range(samples + 1), units=none)

    def at(self, address: int) -> list[DecodedInstruction]:
        """The instructions at an address."""
        return self._at.get(address, [])

    @cached_property
    def _at(self) -> dict[int, list[DecodedInstruction]]:
        found: dict[int, list[DecodedInstruction]] = {}
        for code in self.codes:
            found.setdefault(code.key, []).append(code)
        return found


def _in_order(lanes: Sequence[int]) -> Lanes:
    """A range where that is what they are: it is compared and searched at once."""
    row = range(lanes[0], lanes[0] + len(lanes))
    return row if tuple(row) == tuple(lanes) else tuple(lanes)


class _Reader:
    def __init__(self, layout: ComputerLayout, tokens: Tensor) -> None:
        self.layout, self.tokens = layout, tokens[0]
        self.kinds = {kind: self._flagged(kind) for kind in (*KINDS, "null")}
        self._check_batch(tokens)
        self._check_kinds()

    def codes(self) -> tuple[DecodedInstruction, ...]:
        at = self.kinds["instruction"]
        keys, signs = self._numbers(at, "key"), self._block(at, "sign")[:, 0].tolist()
        fields = {name: self._numbers(at, name) for name in self.layout.fields}
        return tuple(
            DecodedInstruction(
                keys[i], signs[i], {name: found[i] for name, found in fields.items()}
            )
            for i in range(len(at))
        )

    def entries(self) -> dict[int, Tensor]:
        at = self.kinds["entry"]
        numbers = torch.tensor(self._numbers(at, "table"))
        rows = self.tokens[at][:, self.layout.columns(*ENTRY)]
        return {int(n): rows[(numbers == n).to(rows.device)] for n in numbers.unique()}

    def places(self) -> dict[int, MemorySlot]:
        at = self.kinds["memory"]
        names, homes = self._numbers(at, "variable"), self._numbers(at, "home")
        found: dict[int, list[tuple[int, int]]] = {}
        for name, home, token in zip(names, homes, at.tolist(), strict=True):
            found.setdefault(name, []).append((home, token))
        return {name: self._place(name, held) for name, held in found.items()}

    def units(self) -> tuple[Lanes, Tensor, int]:
        at = self.kinds["unit"]
        lanes = self._numbers(at, "lane")
        if len(set(lanes)) != len(lanes):
            raise ProgramError("two units have one lane; every lane has one")
        kept = {*zip(self._numbers(at, "variable"), self._numbers(at, "home"), strict=True)}
        if len(kept) != 1 or next(iter(kept))[1] != 0:
            raise ProgramError(f"units keep the flags {kept}; there is one, of lane 0")
        return _in_order(lanes), at, next(iter(kept))[0]

    def _place(self, name: int, held: list[tuple[int, int]]) -> MemorySlot:
        lanes = tuple(lane for lane, _ in held)
        if len(set(lanes)) != len(lanes) or name == 0:
            raise ProgramError(f"memory of variable {name} is not one token a lane: lanes {lanes}")
        tokens = torch.tensor([t for _, t in held], device=self.tokens.device)
        return MemorySlot(_in_order(lanes), tokens)

    def _flagged(self, kind: str) -> Tensor:
        return (self._column(kind) == 1).nonzero()[:, 0]

    def _column(self, name: str) -> Tensor:
        return self.tokens[:, self.layout.features[name].start]

    def _block(self, at: Tensor, name: str) -> Tensor:
        return self.tokens[at][:, self.layout.features[name]]

    def _numbers(self, at: Tensor, name: str) -> list[int]:
        bits = self._block(at, name)
        if not ((bits == 0) | (bits == 1)).all():
            raise ProgramError(f"{name} of a token is not made of bits")
        powers = 2 ** torch.arange(bits.shape[1], device=bits.device)
        found: list[int] = (bits.long() * powers).sum(-1).tolist()
        return found

    # ------------------------------------------------------------------ what is refused

    def _check_batch(self, tokens: Tensor) -> None:
        """Prompts of a batch differ in values, counters and results alone."""
        rest = torch.ones(self.layout.features.total, dtype=torch.bool)
        rest[self.layout.columns("value", "counter", "before")] = False
        if not (tokens[..., rest] == tokens[:1][..., rest]).all():
            raise ProgramError("the prompts of a batch hold different programs; run them apart")
        units = tokens[:, self.kinds["unit"]][..., self.layout.columns("value", "counter")]
        if not (units == units[:, :1]).all():
            raise ProgramError("the units of a prompt do not agree on flag and program counter")

    def _check_kinds(self) -> None:
        """Every token is of one kind and holds what that kind holds."""
        flags = torch.stack([self._column(kind) for kind in (*KINDS, "null")])
        real = 1 - self._column("null")
        if not ((flags.sum(0) == 1).all() and (self._column("real") == real).all()):
            raise ProgramError("a token is of no kind or of several")
        if len(self.kinds["null"]) != 1:
            raise ProgramError(f"a prompt has one null token, got {len(self.kinds['null'])}")
        for kind, at in self.kinds.items():
            self._check_holds(kind, at)

    def _check_holds(self, kind: str, at: Tensor) -> None:
        own = {
            "instruction": ("key", "sign", *self.layout.fields),
            "unit": ("lane", "home", "variable", "value", "counter", "before"),
            "memory": ("home", "variable", "value"),
            "entry": ("table", *ENTRY),
            "null": (),
        }[kind]
        flags = (kind,) if kind == "null" else ("real", kind)
        rest = self.tokens[at].clone()
        rest[:, self.layout.columns(*flags, "id", *own)] = 0.0
        if rest.any() or not torch.isfinite(self.tokens[at]).all():
            names = self.layout.features.names()
            where = sorted({names[j] for j in rest.nonzero()[:, 1].tolist()})[:3]
            raise ProgramError(f"a token of kind {kind} holds what is not its own: {where}")


_TARGETS = (*OPERANDS, "old")
_STORED = ("result", "old", *OPERANDS)


@dataclass(frozen=True, eq=False)
class ReadMap:
    """A head of the read layer."""

    kind: str  # own, rowsum, mean, lane0 or like
    field: str  # of the instruction, that names the variable
    matrix: Tensor  # (m, 3 m): a value's share of a, b and old
    likeness: Tensor  # (m, m): logits are before @ likeness @ value


@dataclass(frozen=True, eq=False)
class DecodedBlock:
    """The block as a map of numbers: what attention over memory leaves to be computed."""

    tau: int
    flag: Tensor  # (m): the logit of a branch is (flag . value) sign
    reads: tuple[ReadMap, ...]
    arguments: Tensor  # (2 m, heads): of a and b
    slopes: Tensor  # (4, heads): of an entry's slope, bias, f, g
    biases: Tensor
    values: Tensor
    results: Tensor  # (heads, m)
    store: Tensor  # (4 m, m): of result, old, a, b


def recognise(network: FrozenNetwork, block: TransformerBlock) -> DecodedBlock:
    """The operation of a network that is a block, up to what may differ."""
    layers = [layer for layer in network.layers if isinstance(layer, ProjectedAttention)]
    if len(layers) != len(LAYERS) or len({layer.residual for layer in layers}) != 1:
        raise _unknown("network", "is not four layers of one form")
    design = block.design(residual=layers[0].residual)
    heads = {
        name: _heads(layer, said, block)
        for name, layer, said in zip(LAYERS, layers, design.layers, strict=True)
    }
    fetch, store = heads["fetch"][-1], heads["write"][-1]
    look_ups = heads["compute"][-2 * block.layout.sizes.width :]
    return DecodedBlock(
        tau=block.margins.tau,
        flag=fetch.logit(0, "value")[0] * fetch.logit(0, "sign", key=True)[0],
        reads=tuple(head.as_read() for head in heads["read"] if head.said.role != "self"),
        arguments=torch.cat([head.logit(0, *OPERANDS) for head in look_ups]).mT,
        slopes=torch.cat([head.logit(0, *ENTRY, key=True) for head in look_ups]).mT,
        biases=torch.cat([head.constant_logit() for head in look_ups]).mT,
        values=torch.cat([head.values(*ENTRY) for head in look_ups]).mT,
        results=torch.cat([head.out("result").mT for head in look_ups]),
        store=(store.out("value") @ store.values(*_STORED)).mT,
    )


@dataclass(frozen=True, eq=False)
class _DecodedHead:
    """A head's weights beside the design that they are compared with."""

    said: Head
    block: TransformerBlock
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor

    def check(self) -> None:
        masks = sorted(self.said.masks)
        scales = self._multiples("q", masks) * self._multiples("k", masks)
        for at in self._seen:
            query, key = self.said.logit[at[0]]
            self._check_within(self.w_q[at], query.names)
            self._check_within(self.w_k[at], ENTRY if key.names[0] in ENTRY else key.names)
        seen = max([0.0, *map(self._reach, self._seen)])
        least, largest = float(scales.min()), float(scales.max())
        needed, away = self.block.margins.tau + seen, self.block.away(self.said)
        if not (least * away >= needed and (MASK * least - largest) * away >= needed):
            raise _unknown(self.said.role, f"has masks of {least:.4g} to {largest:.4g} times X = "
                           f"{away:.4g}, which do not cover {needed:.4g}")  # fmt: skip
        used = len(self.said.logit)
        if self.w_q[used:].any() or self.w_k[used:].any():
            raise _unknown(self.said.role, "has logits beside its own")
        self._check_values()

    @cached_property
    def _maps(self) -> dict[str, Tensor]:
        """What the design says, in float64."""
        at = self.block.layout.features
        return {kind: stacked([self.said], kind, at)[0] for kind in "qkvo"}

    @cached_property
    def _seen(self) -> list[list[int]]:
        """The rows of each logit that is meant to be seen: those that read the same blocks."""
        rows = [i for i in range(len(self.said.logit)) if i not in self.said.masks]
        names = groupby(rows, key=lambda i: [row.names for row in self.said.logit[i]])
        return [list(group) for _, group in names]

    def _multiples(self, name: str, masks: list[int]) -> Tensor:
        """What the design's rows of masks are multiplied by."""
        rows = (self.w_q if name == "q" else self.w_k)[masks]
        expected = self._maps[name][masks].to(rows)
        at = expected.abs().argmax(-1, keepdim=True)
        ratio = rows.gather(-1, at) / expected.gather(-1, at)
        if not torch.equal(rows, ratio * expected):
            raise _unknown(self.said.role, "has a mask that is not one of the block's")
        return ratio[:, 0].double()

    def _reach(self, at: list[int]) -> float:
        """What a logit adds: its multiple c of the Lambda that the sizes allow."""
        grown = _largest(self.w_q[at]) * _largest(self.w_k[at])
        designed = _largest(self._maps["q"][at]) * _largest(self._maps["k"][at])
        allowed = self.block.away(self.said) - self.block.margins.tau
        return grown / designed * min(allowed, self._allowed())

    def _allowed(self) -> float:
        margins, sizes = self.block.margins, self.block.layout.sizes
        if self.said.role == "fields":
            return max(FLAG_BOUND, sizes.values) * margins.flag
        return float(max(sizes.logits, sizes.width * sizes.values**2))

    def _check_within(self, matrix: Tensor, blocks: tuple[str, ...]) -> None:
        rest = matrix.clone()
        rest[:, self.block.layout.columns(*blocks)] = 0.0
        if rest.any() or not torch.isfinite(matrix).all():
            raise _unknown(self.said.role, f"reads or writes outside {', '.join(blocks)}")

    def _check_values(self) -> None:
        places = {"fields": None, "self": None, "store": (_STORED, ("value",))}
        default = (ENTRY, ("result",)) if self.said.role[0] in "FG" else (("value",), _TARGETS)
        place = places.get(self.said.role, default)
        if place is not None:
            self._check_within(self.w_v, place[0])
            self._check_within(self.w_o.mT, place[1])
        elif not (
            torch.equal(self.w_v, self._maps["v"].to(self.w_v))
            and torch.equal(self.w_o, self._maps["o"].to(self.w_o))
        ):
            raise _unknown(self.said.role, "moves codes otherwise than the block")

    # ------------------------------------------------------------------ what it does

    def logit(self, index: int, *blocks: str, key: bool = False) -> Tensor:
        """A logit's map on these blocks; ``index`` counts the logits that are seen."""
        rows = (self.w_k if key else self.w_q)[self._seen[index]]
        return rows[:, self.block.layout.columns(*blocks)]

    def constant_logit(self) -> Tensor:
        """What an entry's logit has whatever the argument, from a real token."""
        return self.logit(1, "real") * self.logit(1, *ENTRY, key=True)

    def values(self, *blocks: str) -> Tensor:
        return self.w_v[:, self.block.layout.columns(*blocks)]

    def out(self, *blocks: str) -> Tensor:
        return self.w_o[self.block.layout.columns(*blocks)]

    def as_read(self) -> ReadMap:
        """Of a head of the read layer."""
        width = self.block.layout.sizes.width
        label = self.said.role
        kind = "own" if label == "old" else label.split()[1]
        likeness = self.w_q.new_zeros(width, width)
        if kind == "like":
            likeness = self.logit(0, "before").mT @ self.logit(0, "value", key=True)
        field = "destination" if label == "old" else label
        return ReadMap(kind, field, (self.out(*_TARGETS) @ self.values("value")).mT, likeness)


def _heads(
    layer: ProjectedAttention, said: tuple[Head, ...], block: TransformerBlock
) -> list[_DecodedHead]:
    weights = [one for group in layer.head_groups for one in _each(group)]
    if len(weights) != len(said):
        raise _unknown("layer", f"has {len(weights)} heads instead of {len(said)}")
    heads = [_DecodedHead(head, block, *w) for head, w in zip(said, weights, strict=True)]
    for head in heads:
        head.check()
    return heads


def _each(group: HeadGroup) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    return list(zip(group.w_q, group.w_k, group.w_v, group.w_o, strict=True))


def _largest(matrix: Tensor) -> float:
    return float(matrix.abs().max())


def _unknown(what: str, why: str) -> IntegrityError:
    return IntegrityError(
        f"{what} {why}; the fused backend computes what it can read off a block's matrices. "
        'Run this network with backend="literal"'
    )
