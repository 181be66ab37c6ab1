r"""What a network does, read off its matrices; refused where they are not those of a block.

Every row of W_Q and W_K that belongs to a mask has to be a multiple of the block's own, with

.. math:: c_- X \ge \tau + c \Lambda, \qquad (4 c_- - c_+) X \ge \tau + c \Lambda,

where c- and c+ are the least and the largest multiple and c is that of the logits that are meant to
be seen: then masks do what they are for, exactly. Rows that make logits, and value maps, may be
anything in the blocks of features that they are for, and are taken as they are. Moves of codes
(fetch and self) have to be the block's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.attention import FrozenNetwork
from iceform.attention.variants import HeadGroup, ProjectedAttention
from iceform.computer.block import LAYERS, Block
from iceform.computer.heads import MASK, HeadPlan
from iceform.computer.layout import ENTRY, OPERANDS
from iceform.computer.sizes import FLAG_BOUND
from iceform.errors import IntegrityError

__all__ = ["Operation", "ReadMap", "recognise"]

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
class Operation:
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


def recognise(network: FrozenNetwork, block: Block) -> Operation:
    """The operation of a network that is a block, up to what may differ."""
    layers = [layer for layer in network.layers if isinstance(layer, ProjectedAttention)]
    if len(layers) != len(LAYERS) or len({layer.residual for layer in layers}) != 1:
        raise _unknown("network", "is not four layers of one form")
    heads = {
        name: _heads(layer, block.heads(name, residual=layer.residual), block)
        for name, layer in zip(LAYERS, layers, strict=True)
    }
    fetch, store = heads["fetch"][-1], heads["write"][-1]
    look_ups = heads["compute"][-2 * block.layout.sizes.width :]
    return Operation(
        tau=block.margins.tau,
        flag=fetch.logit(0, "value")[0] * fetch.logit(0, "sign", key=True)[0],
        reads=tuple(head.as_read() for head in heads["read"] if head.plan.label != "self"),
        arguments=torch.cat([head.logit(0, *OPERANDS) for head in look_ups]).mT,
        slopes=torch.cat([head.logit(0, *ENTRY, key=True) for head in look_ups]).mT,
        biases=torch.cat([head.constant_logit() for head in look_ups]).mT,
        values=torch.cat([head.values(*ENTRY) for head in look_ups]).mT,
        results=torch.cat([head.out("result").mT for head in look_ups]),
        store=(store.out("value") @ store.values(*_STORED)).mT,
    )


@dataclass(frozen=True, eq=False)
class _Head:
    """A head's weights beside the plan that they are compared with."""

    plan: HeadPlan
    block: Block
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor

    def check(self) -> None:
        scales = torch.cat([self._scales(at, i) for i, at in enumerate(self._rows())])
        seen = max([0.0, *(self._seen(i) for i, t in enumerate(self.plan.terms) if t.reads)])
        least, largest = float(scales.min()), float(scales.max())
        tau, away = self.block.margins.tau, self.plan.away
        needed = tau + seen
        if not (least * away >= needed and (MASK * least - largest) * away >= needed):
            raise _unknown(self.plan.label, f"has masks of {least:.4g} to {largest:.4g} times X = "
                           f"{away:.4g}, which do not cover {needed:.4g}")  # fmt: skip
        used = self._rows()[-1].stop
        if self.w_q[used:].any() or self.w_k[used:].any():
            raise _unknown(self.plan.label, "has logits beside its own")
        self._check_values()

    def _rows(self) -> list[slice]:
        found, start = [], 0
        for term in self.plan.terms:
            found.append(slice(start, start + len(term.query)))
            start += len(term.query)
        return found

    def _scales(self, at: slice, index: int) -> Tensor:
        """Multiples of the plan's rows, for a mask; for a logit, whether it reads its blocks."""
        term = self.plan.terms[index]
        pairs = ((self.w_q[at], term.query.to(self.w_q)), (self.w_k[at], term.key.to(self.w_k)))
        if term.reads is None:
            query, key = (self._multiples(*pair) for pair in pairs)
            return query * key
        for (rows, _), blocks in zip(pairs, term.reads, strict=True):
            self._check_within(rows, blocks)
        return self.w_q.new_ones(0, dtype=torch.float64)

    def _multiples(self, rows: Tensor, expected: Tensor) -> Tensor:
        at = expected.abs().argmax(-1, keepdim=True)
        ratio = rows.gather(-1, at) / expected.gather(-1, at)
        if not torch.equal(rows, ratio * expected):
            raise _unknown(self.plan.label, "has a mask that is not one of the block's")
        return ratio[:, 0].double()

    def _seen(self, index: int) -> float:
        """What a term adds: its multiple c of the Lambda that the sizes allow."""
        term, at = self.plan.terms[index], self._rows()[index]
        grown = _largest(self.w_q[at]) * _largest(self.w_k[at])
        planned = _largest(term.query) * _largest(term.key)
        allowed = self.plan.away - self.block.margins.tau
        return grown / planned * min(allowed, self._allowed())

    def _allowed(self) -> float:
        margins, sizes = self.block.margins, self.block.layout.sizes
        if self.plan.label == "fields":
            return max(FLAG_BOUND, sizes.values) * margins.flag
        return float(max(sizes.logits, sizes.width * sizes.values**2))

    def _check_within(self, matrix: Tensor, blocks: tuple[str, ...]) -> None:
        rest = matrix.clone()
        rest[:, self.block.layout.columns(*blocks)] = 0.0
        if rest.any() or not torch.isfinite(matrix).all():
            raise _unknown(self.plan.label, f"reads or writes outside {', '.join(blocks)}")

    def _check_values(self) -> None:
        places = {"fields": None, "self": None, "store": (_STORED, ("value",))}
        default = (ENTRY, ("result",)) if self.plan.label[0] in "FG" else (("value",), _TARGETS)
        place = places.get(self.plan.label, default)
        if place is not None:
            self._check_within(self.w_v, place[0])
            self._check_within(self.w_o.mT, place[1])
        elif not (
            torch.equal(self.w_v, self.plan.values.to(self.w_v))
            and torch.equal(self.w_o, self.plan.out.to(self.w_o))
        ):
            raise _unknown(self.plan.label, "moves codes otherwise than the block")

    # ------------------------------------------------------------------ what it does

    def logit(self, index: int, *blocks: str, key: bool = False) -> Tensor:
        """A logit's map on these blocks; ``index`` counts the terms that are seen."""
        at = [at for at, t in zip(self._rows(), self.plan.terms, strict=True) if t.reads][index]
        return (self.w_k if key else self.w_q)[at][:, self.block.layout.columns(*blocks)]

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
        label = self.plan.label
        kind = "own" if label == "old" else label.split()[1]
        likeness = self.w_q.new_zeros(width, width)
        if kind == "like":
            likeness = self.logit(0, "before").mT @ self.logit(0, "value", key=True)
        field = "destination" if label == "old" else label
        return ReadMap(kind, field, (self.out(*_TARGETS) @ self.values("value")).mT, likeness)


def _heads(layer: ProjectedAttention, plans: list[HeadPlan], block: Block) -> list[_Head]:
    weights = [one for group in layer.head_groups for one in _each(group)]
    if len(weights) != len(plans):
        raise _unknown("layer", f"has {len(weights)} heads instead of {len(plans)}")
    heads = [_Head(plan, block, *w) for plan, w in zip(plans, weights, strict=True)]
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
