r"""Heads whose queries and keys positions turn: every gap at every distance.

Two places that turn together add (q . k) cos + (q x k) sin of speed times distance to a logit
(:mod:`iceform.targets.text.rotary`). So a logit of a kind of token is a curve over distances, and
the gap of a head is the least difference of two curves: of the token that is meant, at whatever
distance it is, and of any other, at whatever distance that is. Distances are enumerated.

What floating point does to a turn: the speed, its product with the position, cosine and sine are
off by some units, so that two tokens are turned against each other by an angle that is off by

.. math:: \eta_i = 2 P \theta_i \cdot \text{ANGLE} \cdot u,

and the turned numbers by TURN units of the length of the pair, which no turn changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from iceform.heads import Head, Row
from iceform.heads.head import Pair
from iceform.targets.text.layers import SHARP
from iceform.targets.text.proof.stream import NORM, ROOT
from iceform.targets.text.proof.words import WordProof
from iceform.targets.text.rotary import FAST, SPEEDS, RotaryLayers

ANGLE = 5.0  # units of an angle: four of the speed, one of its product with the position
TURN = 8.0  # units of a turned pair: cosine and sine off by two, products and a sum, two places
_FIXED = SPEEDS - 1  # where the constant of a match is


@dataclass(frozen=True)
class CodePair:
    """One or two bits of a code at a place: its name in the key, and the scale of the query."""

    place: int
    code: str
    bits: int
    scale: float


@dataclass(frozen=True)
class TurnedLogit:
    """What a head that matches is made of; a constant, a mask or a lead is a place and logits."""

    codes: tuple[CodePair, ...]
    constant: tuple[int, float]
    mask: tuple[int, float]
    idle: tuple[int, float]
    recency: tuple[float, float]

    @property
    def bits(self) -> float:
        """What all codes can add at most."""
        return sum(pair.bits * pair.scale for pair in self.codes)


class RotaryProof(WordProof):
    """The proof of a Llama."""

    layers: RotaryLayers

    # ------------------------------------------------------------------------------- rounding

    @property
    def mean(self) -> float:
        """Nothing: RMSNorm subtracts none."""
        return 0.0

    def _check_mean(self) -> None:
        turns = float(self.layers.speeds[_FIXED]) * self.layers.last
        self.say("slowest turn", "speed (P - 1)", turns, "radians between the first and last token")

    def _norm_assumption(self) -> str:
        return f"a norm's root is off by at most {ROOT:g} units of roundoff"

    def _assumptions(self) -> tuple[str, ...]:
        return (
            *super()._assumptions(),
            f"an angle of a position is off by at most {ANGLE:g} units of itself, its cosine and "
            "sine by at most 2 units of 1",
        )

    def paired(self, rows: Tensor) -> Tensor:
        """Lengths of the pairs that turn together: no turn changes them."""
        return rows.view(*rows.shape[:-1], 2, SPEEDS).square().sum(-2).sqrt()

    def logit_errors(
        self, number: int, q: Tensor, q_error: Tensor, k: Tensor, k_error: Tensor
    ) -> Tensor:
        """Of the difference of two logits, what each pair of places adds to its error."""
        size = self.design.head_size
        length, off, other, moved = (
            self.paired(rows.view(-1, size)) for rows in (q, q_error, k, k_error)
        )
        off, moved = off + TURN * self.u * length, moved + TURN * self.u * other
        used = ((length + off > 0) & (other + moved > 0)).sum(1, keepdim=True)
        units = 2 * used + 1 + self.design.scaling_units
        each = off * other + length * moved + off * moved
        each = each + (units * self.u + self._angle_errors) * length * other
        out = torch.cat([each, torch.zeros_like(each)], 1)
        return 2 / math.sqrt(size) * out

    @cached_property
    def _angle_errors(self) -> Tensor:
        """Of the angle between two tokens, for each speed."""
        return 2 * self.layers.last * self.layers.speeds * ANGLE * self.u

    # --------------------------------------------------------------------------------- curves

    def cosine(self, place: int) -> Tensor:
        """Of the turn of a place, at every distance."""
        return (self.layers.speeds[place] * torch.arange(self.layers.last + 1)).cos()

    def sine(self, place: int) -> Tensor:
        """Its size."""
        return (self.layers.speeds[place] * torch.arange(self.layers.last + 1)).sin().abs()

    def recency(self, t: TurnedLogit) -> Tensor:
        """What recency adds."""
        turns = self.layers.speeds[self.layers.recency_place] * torch.arange(self.layers.last + 1)
        return t.recency[0] * turns.cos() - t.recency[1] * turns.sin()

    def floor(self, t: TurnedLogit) -> Tensor:
        """Constant and recency: what every token has that is not masked."""
        return t.constant[1] * self.cosine(t.constant[0]) + self.recency(t)

    def match(self, t: TurnedLogit) -> Tensor:
        """The logit of a token whose codes all agree."""
        total = self.floor(t)
        for pair in t.codes:
            total = total + pair.bits * pair.scale * self.cosine(pair.place)
        return total

    def loss(self, t: TurnedLogit) -> Tensor:
        """What a token loses at least whose codes do not agree: a bit differs, or it has no code.

        Of two bits that turn together one that differs leaves at most twice the sine; if both do,
        less than that.
        """
        least = torch.full((self.layers.last + 1,), math.inf).double()
        blocks: dict[str, Tensor] = {}
        for pair in t.codes:
            c = self.cosine(pair.place)
            other = self.sine(pair.place) if pair.bits == 2 else 0.0
            least = torch.minimum(least, 2 * pair.scale * (c - other))
            held = pair.bits * pair.scale * c
            blocks[pair.code] = blocks.get(pair.code, 0.0) + held
        for none in blocks.values():
            least = torch.minimum(least, none)
        return least

    def masked(self, t: TurnedLogit) -> Tensor:
        """The most that a token without the flag can have, whatever its codes are."""
        return t.bits + self.floor(t) - t.mask[1] * self.cosine(t.mask[0])

    # ----------------------------------------------------------------------------------- gaps

    def gap(self, head: Head) -> tuple[float, str]:
        """By how much the token that is meant leads at every distance, and why."""
        first, second = (*head.role.split(), "")[:2]
        if second.startswith("back"):
            return self._looked_back(head, int(first)), "cos of turns, at every distance"
        if first in ("latest", "index", "read", "fetch", "branch"):
            return self._matched_gap(head, first)
        return min(self.own_gap(head), self.own_lead(head, SHARP)), "turns; the flags' lead"

    def _matched_gap(self, head: Head, kind: str) -> tuple[float, str]:
        t = self._turned(head)
        match = self.match(t)
        others = [self.masked(t)] + ([match - self.loss(t)] if t.codes else [])
        highest = max(float(curve.max()) for curve in others)
        if kind == "branch":
            return self._branch_gap(head, match, highest), "the test; a bit of the label"
        gaps = [float(match.min()) - highest]
        if t.recency != (0.0, 0.0):
            gaps.append(_apart(match, 1 if kind == "latest" else 2))
        if kind == "read":
            gaps.append(self._idle_gap(head, t))
        return min(gaps), "every distance of the right token and of others"

    def _idle_gap(self, head: Head, t: TurnedLogit) -> float:
        """The start token over all others, where a head has nothing to do."""
        is_masked = head.role.split(", part")[0].endswith("a literal")
        start = self.floor(t) + t.idle[1] * self.cosine(t.idle[0]) - 2 * t.mask[1] * is_masked
        return float(start.min()) - float((t.bits + self.floor(t)).max())

    def _branch_gap(self, head: Head, match: Tensor, highest: float) -> float:
        """The line over the start token or under it, by the test; both over other lines."""
        tests = {key.names: place for place, (_, key) in enumerate(head.logit)}
        sign, rest = tests["test",], tests["or_zero", "always"]
        two, one = self._logits(head, sign), self._logits(head, rest)
        passed = torch.minimum(
            one * self.cosine(rest), two * self.cosine(sign) - one * self.cosine(rest)
        )
        least = float(passed.min())
        line = min(least + float(match.min()), least - max(0.0, float(match.max())))
        return min(line, -(highest + two + one))

    def _logits(self, head: Head, place: int) -> float:
        """Of one pair of rows of which each has one size of coefficients."""
        (q,), (k,) = ({abs(c) for c in row.reads.values()} for row in head.logit[place])
        return q * k

    def own_gap(self, head: Head) -> float:
        """By how much a token that looks at itself prefers itself to other tokens."""
        return self._looked_back(head, 0) - self._drift

    def own_lead(self, head: Head, lead: float) -> float:
        """Less what the start token's constant and its lead lose by turning."""
        constant = self._logits(head, _FIXED)
        keys = {tuple(head.logit[place][1].reads) for place in (_FIXED, _FIXED - 1)}
        if constant != FAST * SHARP or keys != {(("start", 0),)}:
            self.fail(f"{head.role}: the start token does not have a token's own logit")
        lost = constant * float((1 - self.cosine(_FIXED)).max())
        return lead * float(self.cosine(_FIXED - 1).min()) - lost

    def lead_row(self, head: Head) -> Row:
        """The query by which the start token leads the token itself."""
        return head.logit[_FIXED - 1][0]

    def terms(self, head: Head) -> int:
        """Roundings of a logit: two products a pair of places, and two turns."""
        pairs = zip(head.logit[:SPEEDS], head.logit[SPEEDS:], strict=True)
        return 2 * sum(any(_is_read(p) for p in both) for both in pairs) + int(2 * TURN)

    @property
    def _drift(self) -> float:
        """What a token's own logit loses where its result is as large as it can be."""
        largest = 2.0**self.features.format.top
        return FAST * SHARP * largest**2 / (4 * self.design.ballast**2)

    @property
    def _self_error(self) -> float:
        """Of the two logits that a token has for itself and for the start token."""
        units = 2 * (NORM + self.root / self.u + TURN + 2) + 2 * FAST + 3
        turned = float(self._angle_errors[_FIXED])
        return 4 * FAST * SHARP * (units * self.u + turned)

    def _looked_back(self, head: Head, tokens: int) -> float:
        """The least lead of the token so far back over all others, at every distance."""
        if tokens in self.backs:
            return self.backs[tokens]
        logits = torch.zeros(self.layers.last + 1).double()
        for place in range(FAST):
            (query, key), (second, none) = head.logit[place], head.logit[place + SPEEDS]
            if (key.reads.get(("one", 0)), none) != (1.0, Row()):
                self.fail(f"{head.role}: its keys are not constant")
            turns = self.layers.speeds[place] * torch.arange(self.layers.last + 1)
            logits += query.reads[("one", 0)] * turns.cos()
            logits -= second.reads[("one", 0)] * turns.sin()
        meant = float(logits[tokens])
        logits[tokens] = -math.inf
        self.enumerated[f"distances from which {tokens} back is told"] = len(logits)
        self.backs[tokens] = meant - float(logits.max())
        return self.backs[tokens]

    # ---------------------------------------------------------------------------- reading rows

    def _turned(self, head: Head) -> TurnedLogit:
        """The parts of a head that matches; a row that is none of them voids the proof."""
        codes: list[CodePair] = []
        found: dict[str, tuple[int, float]] = {}
        recency = (0.0, 0.0)
        for place in range(SPEEDS):
            first, second = head.logit[place], head.logit[place + SPEEDS]
            if self.layers.is_bit(first):
                codes.append(self._code(head, place, first, second))
            elif _is_read(second):
                at = ("one", 0)
                recency = first[0].reads[at], second[0].reads[at]
                wrong = first[1] != Row({at: 1.0}) or _is_read((second[1], second[1]))
                if wrong or place != self.layers.recency_place:
                    self.fail(f"{head.role}: recency is read at a wrong place")
            elif _is_read(first):
                part, logits = self._part(head, place, first)
                if part in found:
                    self.fail(f"{head.role}: its logit has two parts that are a {part}")
                found[part] = place, logits
        none = (0, 0.0)
        return TurnedLogit(
            tuple(codes), found.get("constant", none), found.get("mask", none),
            found.get("idle", none), recency,
        )  # fmt: skip

    def _part(self, head: Head, place: int, pair: Pair) -> tuple[str, float]:
        """What one pair of rows is, and its logits."""
        query, key = pair
        if list(key.reads) == [("start", 0)]:
            return "idle", min(abs(c) for c in query.reads.values())
        if head.role == "branch" and key.names in (("test",), ("or_zero", "always")):
            return key.names[0], 0.0
        if list(query.reads) != [("one", 0)]:
            self.fail(f"{head.role}: a query at place {place} is none that the proof knows")
        scale = query.reads.get(("one", 0), 0.0) * key.reads.get(("one", 0), 0.0)
        has_codes = any(self.layers.is_bit(pair) for pair in head.logit)
        return ("constant", scale) if has_codes and place == _FIXED else ("mask", -scale)

    def _code(self, head: Head, place: int, first: Pair, second: Pair) -> CodePair:
        """One or two bits that turn together."""
        bits = [pair for pair in (first, second) if _is_read(pair)]
        scales = {abs(c) for query, key in bits for c in query.reads.values()}
        keys = {c for _, key in bits for c in key.reads.values()}
        names = {name for _, key in bits for name in key.names}
        if len(scales) != 1 or keys != {1.0} or len(names) != 1:
            self.fail(f"{head.role}: bits at place {place} do not belong together")
        return CodePair(place, names.pop(), len(bits), min(scales))


def _is_read(pair: Pair) -> bool:
    return any(row.reads for row in pair)


def _apart(curve: Tensor, tokens: int) -> float:
    """The least lead of a distance over all that are so many tokens larger."""
    later = curve.flip(0).cummax(0).values.flip(0)
    return float((curve[:-tokens] - later[tokens:]).min())
