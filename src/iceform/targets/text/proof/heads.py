"""Heads: by how much the token that is meant leads, and the errors of what each head carries."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from iceform.arithmetic.units import UNIT
from iceform.heads import Head, Row
from iceform.targets.text.certificate import TextMargin
from iceform.targets.text.features import SLOT_BITS
from iceform.targets.text.layers import RECENT, SHARP
from iceform.targets.text.proof.numbers import SOFTMAX, NumberProof
from iceform.targets.text.proof.stream import NORM, LayerMaps
from iceform.targets.text.words import FUNCTIONS


class HeadProof(NumberProof):
    """Layer after layer: the margin of every head, and what its output is off by."""

    # ------------------------------------------------------------------------------- one layer

    def _layer(self, number: int) -> None:
        maps, size = self.maps(number), self.design.head_size
        q, q_error = self.row_errors(maps, "q")
        k, k_error = self.row_errors(maps, "k")
        errors = self.logit_errors(number, q, q_error, k, k_error).view(-1, size)
        self._unread(number, maps)
        self._carries_numbers |= self.design.layers[number][0].role.startswith("read ")
        if self._carries_numbers:
            self._check_carried(number, maps)
        for index, head in enumerate(self.design.layers[number]):
            self._head(number, index, head, errors[index])
        self._carry(number, maps)

    def logit_errors(
        self, number: int, q: Tensor, q_error: Tensor, k: Tensor, k_error: Tensor
    ) -> Tensor:
        """Of the difference of two logits, what each place of each head adds to its error.

        Products with zeros, and sums with them, are exact: roundings are as many as other places.
        """
        size = self.design.head_size
        used = ((q + q_error) * (k + k_error)).view(-1, size) > 0
        roundings = (used.sum(1, keepdim=True) + 1).expand_as(used).reshape(q.shape)
        terms = q_error * k + q * k_error + q_error * k_error + roundings * self.u * q * k
        return 2 / math.sqrt(size) * terms

    def _check_carried(self, number: int, maps: LayerMaps) -> None:
        """Where numbers are carried, values and outputs are the design's, bit for bit."""
        for kind, what in (("v", "values"), ("o", "outputs")):
            off = float(maps.off[kind].max())
            if off:
                self.fail(f"layer {number}: {what} of heads are off by {off:.3g}")
        if bool(maps.off_biases["v"].any()):
            self.fail(f"layer {number}: values of heads have a bias")

    def _unread(self, number: int, maps: LayerMaps) -> None:
        """Heads that the design leaves idle must write nothing."""
        used, size = len(self.design.layers[number]), self.design.head_size
        if bool(maps.off["o"][:, used * size :].any()):
            self.fail(f"layer {number}: a head that should be idle writes")

    def _head(self, number: int, index: int, head: Head, errors: Tensor) -> None:
        if head.role.startswith(("above", "below", "digit")):
            margin = self._comparison(number, index, head)
        else:
            margin = self._looking(number, head, errors)
        self.leaks[number, index] = self.sizes.positions * math.exp(min(0.0, -margin.left))
        self._note(margin)

    def _looking(self, number: int, head: Head, errors: Tensor) -> TextMargin:
        """The margin of a head that looks at one token; ``errors`` of its logit, row by row."""
        gap, why = self.gap(head)
        first = head.role.split()[0]
        what = head.role.split(", part")[0].split(": ")[0]
        error = float(errors.sum())
        if first == "read":
            # Only the start token has that flag; elsewhere it is 0 exactly, and so is the row.
            error = sum(
                float(e)
                for e, (_, key) in zip(errors, head.logit, strict=False)
                if list(key.reads) != [("start", 0)]
            )
            error += 2 * self._stored(number, self.design.layers[number].index(head))
        elif head.role == "a - b if positive":
            stored = self._stored(number, self.design.layers[number].index(head))
            error = self._own_error() + 2 * stored
        elif first in ("times", "over"):
            what = f"{first} a power of two"
        elif first in FUNCTIONS:
            what = "functions"
        return TextMargin(f"{number}: {what}", gap, error, why)

    def _own_error(self) -> float:
        """The steep head's, at a difference d of two levels.

        d is at least the finer operand's granule, and that operand is below 2^bits granules, so
        that |a| + |b| is at most (2^(bits + 1) + 1) |d|.
        """
        relative = (self.read_units + self.own_units) * self.u
        return SHARP * relative * (2.0 ** (self.features.format.bits + 1) + 1) + self._self_error

    def _carry(self, number: int, maps: LayerMaps) -> None:
        """Errors of what the layer writes, at tokens that matter; one head of several is active."""
        size = self.design.head_size
        v, v_error = self.row_errors(maps, "v")
        heads = self.design.layers[number]
        leaks = torch.zeros(self.design.inner).double()
        for index in range(len(heads)):
            leaks[index * size : (index + 1) * size] = self.leaks[number, index]
        loose = 2 * leaks * (v + v_error) * self._widest
        each = v_error + SOFTMAX * self.u * v + loose
        out = maps.said["o"].abs()
        added = (out * each).max(1).values + out @ loose
        added = added + maps.off["o"] @ (v + v_error) * self._widest
        added = added + 2 * self.u * self.exact
        sums = self.weights.maps(number)["o"].sum(0).abs()
        self.unbalanced += float(sums @ (v + v_error)) * self._widest
        written = (out.sum(1) > 0) | (maps.off["o"].sum(1) > 0)
        self.error = self.error + torch.where(written, added, torch.zeros_like(added))

    # ------------------------------------------------------------------------------------ gaps

    def gap(self, head: Head) -> tuple[float, str]:
        """By how much the token that is meant leads, and why."""
        first, second = (*head.role.split(), "")[:2]
        if second.startswith("back"):
            return self._looked_back(head, int(first)), "cos of angles, at every distance"
        if first == "read":
            return self._read_gap(head)
        if first in ("latest", "index"):
            return self._latest_gap(head)
        if first in ("fetch", "branch"):
            return self._line_gap(head, 3 * SHARP if first == "branch" else 0.0)
        return min(self.own_gap(head), self.own_lead(head, SHARP)), "recency; the flags' lead"

    def own_gap(self, _: Head) -> float:
        """By how much a token that looks at itself prefers itself to other tokens."""
        return RECENT - self._drift

    def own_lead(self, _: Head, lead: float) -> float:
        """What is left of a lead of the token itself over the start token, or the other way."""
        return lead

    def lead_row(self, head: Head) -> Row:
        """The query by which the start token leads the token itself."""
        return head.logit[-1][0]

    def terms(self, head: Head) -> int:
        """Roundings of a logit that is the sum of so many products."""
        return len(head.logit)

    def paired(self, rows: Tensor) -> Tensor:
        """Bounds of the places of a head, for products place by place."""
        return rows

    def _latest_gap(self, head: Head) -> tuple[float, str]:
        """Recency among tokens of the right flag, and of the right index."""
        others = self.mask(head) - self.layers.far
        if head.role.startswith("latest"):
            return min(RECENT, others), "recency; flags"
        codes = self.bit(head, "into.index") - self.layers.far
        return min(2 * RECENT, codes, others), "recency of writes; a bit; flags"

    def _line_gap(self, head: Head, tested: float) -> tuple[float, str]:
        """A line over others, and over or under the start token by the test."""
        lines = min(self.bit(head, "line.label"), self.mask(head)) - tested
        if tested:
            return min(SHARP, lines), "the test; a bit of the label"
        return lines, "a bit of the label; flags"

    def _read_gap(self, head: Head) -> tuple[float, str]:
        if head.role.split(", part")[0].endswith("a literal"):
            codes = min(self.bit(head, "line.label"), self.bit(head, "before"))
            return min(codes, self.mask(head), self.idle(head)), "a bit of label or place; flags"
        codes = min(self.bit(head, "into.name"), self.bit(head, "into.cell"))
        others = min(codes, self.mask(head)) - self.layers.far
        return min(2 * RECENT, others, self.idle(head)), "recency of writes; a bit; flags"

    @property
    def _drift(self) -> float:
        """What a token's own recency loses where its result is as large as it can be."""
        largest = 2.0**self.features.format.top
        return self.layers.far * largest**2 / (4 * self.design.ballast**2)

    def bit(self, head: Head, code: str) -> float:
        """Logits of one bit that differs."""
        scales = [
            max(abs(c) for c in (*query.reads.values(), query.constant)) * abs(factor)
            for query, key in head.logit
            for (name, _), factor in key.reads.items()
            if name == code
        ]
        return 2 * min(scales, default=0.0)

    def mask(self, head: Head) -> float:
        """Logits of a flag that is not set."""
        return max(
            (
                -key.reads[("one", 0)]
                for query, key in head.logit
                if not query.reads and len(key.reads) > 1 and key.reads.get(("one", 0), 0.0) < 0
            ),
            default=0.0,
        )

    def idle(self, head: Head) -> float:
        """Logits by which the start token leads where a head has nothing to do."""
        (lead,) = (
            min(abs(c) for c in (*query.reads.values(), query.constant) if c)
            for query, key in head.logit
            if list(key.reads) == [("start", 0)]
        )
        low = sum(
            -key.reads[("one", 0)]
            for query, key in head.logit
            if not query.reads and list(key.reads) == [("one", 0)]
        )
        if self.bit(head, "into.name"):
            return lead - low - self.layers.far
        places = self.bit(head, "before") / 2 * SLOT_BITS
        return lead - low - 2 * self.mask(head) - places

    def _looked_back(self, head: Head, tokens: int) -> float:
        """The least lead of the token so far back, over all positions and all tokens before.

        Queries are angles turned, so that a logit is a sum of cosines of the distance alone:
        distances are enumerated. The cosine of an angle of the weights is off by what float64
        makes of the angle, and so are four of them in each of two logits.
        """
        if tokens in self.backs:
            return self.backs[tokens]
        count = self.sizes.positions
        logits, off = torch.zeros(count).double(), 0.0
        for j, period in enumerate(self.features.periods):
            c, s = self._turn(head, j)
            turns = 2 * math.pi * (torch.arange(count) % period).double() / period
            logits += c * turns.cos() + s * turns.sin()
            off += 8 * (abs(c) + abs(s)) * (4 * math.pi * count / period + 4) * UNIT
        meant = float(logits[tokens])
        logits[tokens] = -math.inf
        self.enumerated[f"distances from which {tokens} back is told"] = count
        self.backs[tokens] = meant - float(logits.max()) - off
        return self.backs[tokens]

    def _turn(self, head: Head, j: int) -> tuple[float, float]:
        """c and s of the two rows (c cos + s sin) cos' + (c sin - s cos) sin' of one period."""
        here, there = head.logit[2 * j : 2 * j + 2]
        both = ("angle", 2 * j), ("angle", 2 * j + 1)
        c, s = (here[0].reads.get(place, 0.0) for place in both)
        turned = Row({both[0]: -s, both[1]: c})
        keys = (Row({both[0]: 1.0}), Row({both[1]: 1.0}))
        if (here[0], there[0]) != (Row({both[0]: c, both[1]: s}), turned) or (
            here[1], there[1]
        ) != keys:  # fmt: skip
            self.fail(f"{head.role}: its queries are not angles turned")
        return c, s

    # ------------------------------------------------------------------------- comparisons

    def _comparison(self, number: int, index: int, head: Head) -> TextMargin:
        """A head that compares a number with a boundary: its lead less its own rounding."""
        f = self.features
        segments, digits = self.clearance
        between = not head.role.startswith("digit")
        clear = segments if between else digits
        if not clear > 0:
            self.fail(f"results come within {clear:.3g} steps of a boundary")
        lead = self.own_lead(head, SHARP * clear / f.least_shift)
        row = self.lead_row(head)
        edge = abs(row.reads.get(("one", 0), 0.0))
        slope = max(abs(c) for (name, _), c in row.reads.items() if name != "one")
        # At the boundary the number is the edge: both are normalised, multiplied and added.
        rounding = 2 * edge * (NORM + 3 + self.terms(head) + 1) * self.u
        rounding += 2 * self.u * self.mean * (slope + edge)
        rounding += self._self_error + 2 * self._stored(number, index)
        what = "ends of segments" if between else head.role.split(",")[0]
        why = "distance from the boundary; its own rounding"
        return TextMargin(f"{number}: {what}", lead, rounding, why)

    @property
    def _self_error(self) -> float:
        """Of the two logits that a token has for itself and, as a query, for the start token."""
        return 4 * self.layers.far * (NORM + self.root / self.u + 6) * self.u

    def _stored(self, number: int, head: int) -> float:
        """By how much stored weights of a head differ from the design, in logits."""
        maps, size = self.maps(number), self.design.head_size
        at = slice(head * size, (head + 1) * size)
        off = 0.0
        for a, b in (("q", "k"), ("k", "q")):
            moved = maps.off[a][at] @ (self.exact + self.mean) + maps.off_biases[a][at]
            other = maps.said[b][at].abs() @ self.exact_features + maps.biases[b][at].abs()
            both = self.paired(moved) * self.paired(other + moved)
            off += float(both.sum()) / math.sqrt(size)
        return off
