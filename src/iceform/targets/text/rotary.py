r"""The heads of the text machine where positions turn queries and keys: a Llama.

A rotary embedding turns place i of a head and the place half a head behind it, of queries and keys,
by :math:`\theta_i` times the position. What two such pairs of places add to a logit is, at a
distance d of query and key,

.. math:: (q_1 k_1 + q_2 k_2) \cos\theta_i d + (q_1 k_2 - q_2 k_1) \sin\theta_i d,

so that nothing depends on where the two are, only on how far apart. Three kinds of speeds do three
things.

*Fast ones look back.* Constant keys and queries turned by t tokens add :math:`\cos\theta_i (d -
t)`: highest where d = t, for the fastest twelve together by far.

*One speed says what is recent*: the one whose cosine, from a phase on, falls by so much a token
over all positions with the least amplitude.

*Slow ones match codes*, since they hardly turn: :math:`\cos\theta_i d` is nearly 1. Two bits of a
code share a speed. If both agree they add :math:`2\cos\theta_i d`, if one does not at most
:math:`2\sin\theta_i d`. The constant that a match is compared with turns slowest of all, so that
matches further back are lower, never higher.

A token that looks at itself looks 0 tokens back, and sees there everything but the start token,
which has a logit of its own instead. There are no biases: the feature ``one`` is every constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import ClassVar

import torch
from torch import Tensor

from iceform.arithmetic.units import power_of_four
from iceform.errors import CapacityError
from iceform.heads import Head, Move, Row
from iceform.heads.head import Pair
from iceform.targets.architectures import ROPE_THETA
from iceform.targets.text.layers import HEAD as HEAD_OF_GPT2
from iceform.targets.text.layers import (
    RECENT,
    SHARP,
    Logit,
    TextLayers,
    TurningPairs,
    plus,
    reads,
    times,
)

HEAD = power_of_four(HEAD_OF_GPT2 + 1)  # places: 64, as in small Llamas
SPEEDS = HEAD // 2
FAST = SPEEDS * 3 // 8  # speeds that look back, SHARP each: a neighbour is some 200 logits below
_EMPTY: Pair = (Row(), Row())
_NOBODY: Row = Row()


@dataclass(frozen=True)
class RotaryLayers(TextLayers):
    """Heads whose pairs stand at places of the speed that they need."""

    carries: ClassVar[int] = HEAD
    # The stream is as wide as its features, whatever the heads are.
    blocks: ClassVar[tuple[int, int] | None] = (0, HEAD)

    # -------------------------------------------------------------------------------- speeds

    @cached_property
    def speeds(self) -> Tensor:
        """Radians a token, of each pair of places."""
        return ROPE_THETA ** -(torch.arange(SPEEDS).double() / SPEEDS)

    @property
    def last(self) -> int:
        """The largest distance."""
        return self.features.sizes.positions - 1

    @cached_property
    def recency_place(self) -> int:
        """The speed that tells tokens apart with the least amplitude."""
        turns = self.speeds * self.last
        slopes = torch.where(turns < math.pi, self.speeds * (turns / 2).cos(), 0.0)
        return int(slopes.argmax())

    @property
    def amplitude(self) -> float:
        """Of recency, so that its cosine falls by RECENT a token or more."""
        speed = float(self.speeds[self.recency_place])
        return float(math.ceil(RECENT / (speed * math.cos(speed * self.last / 2))))

    @property
    def phase(self) -> float:
        """Where that cosine begins, so that it is as steep at its end."""
        return (math.pi - float(self.speeds[self.recency_place]) * self.last) / 2

    @cached_property
    def far(self) -> float:
        """What a code is matched with, so that one bit is more than recency can make up."""
        first = SPEEDS - 1 - self._code_pairs
        turns = self.speeds[first : SPEEDS - 1] * self.last
        kept = float((2 * (turns.cos() - turns.sin())).min() - 2 * (1 - turns.cos()).sum())
        if not kept > 0:
            raise CapacityError(
                f"TextSizes(architecture='llama', positions={self.last + 1}): over so many, codes "
                f"turn until bits cannot be told apart (theta {ROPE_THETA:,.0f}, heads of {HEAD}). "
                "Take fewer positions, or a GPT-2."
            )
        falls = 2 * self.amplitude * math.cos(self.phase)
        return float(math.ceil(9 / 8 * falls / kept))  # an eighth more than recency and turning

    @property
    def _code_pairs(self) -> int:
        """Speeds that the longest match takes: a name and a cell, two bits each."""
        return -(-self.features.name_bits // 2) + -(-self.features.cell_bits // 2)

    # -------------------------------------------------------------------------------- pieces

    def turned(self, place: int, length: float, angle: float, key: Row) -> TurningPairs:
        """length cos(angle + speed d), times what the key reads."""
        c, s = length * math.cos(angle), length * math.sin(angle)
        return TurningPairs(place, (reads("one", c), key), (reads("one", s), _NOBODY))

    def recency(self) -> Logit:
        """RECENT logits more for every token that is later, or more than that."""
        return (self.turned(self.recency_place, self.amplitude, self.phase, reads("one")),)

    def back(self, tokens: int, key: Row) -> Logit:
        """Highest so many tokens back."""
        return tuple(
            self.turned(i, SHARP, -tokens * float(self.speeds[i]), key) for i in range(FAST)
        )

    def _back(self, tokens: int, role: str, moves: Sequence[Move]) -> Iterator[Head]:
        yield from self.heads(f"{tokens} back: {role}", self.back(tokens, reads("one")), moves)

    def _lead(self, lead: Row) -> Logit:
        """The token itself, and the start token above it by ``lead``; all others far below."""
        start = reads("start")
        alone = self.back(0, plus(reads("one"), times(start, -1.0)))
        return (*alone, (reads("one", FAST * SHARP), start), (lead, start))

    # -------------------------------------------------------------------------------- places

    def placed(self, logit: Logit) -> tuple[Pair, ...]:
        """Pairs at places of their speeds: the constant slowest, then codes, then the others."""
        out = [_EMPTY] * HEAD
        for pairs in logit:
            if isinstance(pairs, TurningPairs):
                out[pairs.place], out[pairs.place + SPEEDS] = pairs.first, pairs.second
        plain = [pair for pair in logit if not isinstance(pair, TurningPairs)]
        codes = [pair for pair in plain if self.is_bit(pair)]
        slow: list[list[Pair]] = [[pair] for pair in plain if not self.is_bit(pair)]
        slow[1:1] = [
            block[k : k + 2]
            for _, bits in groupby(codes, key=lambda pair: pair[1].names)
            for block in [list(bits)]
            for k in range(0, len(block), 2)
        ]
        for back, both in enumerate(slow, 1):
            place = SPEEDS - back
            if out[place] != _EMPTY:
                raise CapacityError(
                    f"TextSizes(architecture='llama', positions={self.last + 1}): a head has too "
                    "few slow speeds for its codes. Take fewer positions, or a GPT-2."
                )
            for half, pair in enumerate(both):
                out[place + half * SPEEDS] = pair
        return tuple((_with_one(query), _with_one(key)) for query, key in out)

    def is_bit(self, pair: Pair) -> bool:
        """Whether it is one bit of a code of the query and one of the key."""
        return all(row.names and all(self.width(n) > 1 for n in row.names) for row in pair)


def _with_one(row: Row) -> Row:
    """A row whose constant is read: there are no biases."""
    return plus(Row(row.reads), reads("one", row.constant)) if row.constant else row
