r"""What is proven of a text machine: every token that it generates is the interpreter's.

The machine is finite, so the statement is exact, and it is proven of the weights as they are stored
(after the cast to the dtype), for every text that ``check`` accepts. By induction over the tokens:
if the context is right, the token with the highest score is. Token by token and layer by layer that
takes four things.

**Heads look where they should.** Among exact numbers the token that is meant leads every other one
by a *gap*, found from the design's rows: codes differ in a bit or agree, flags are 0 or 1, a later
token leads an earlier one by so much a token; looking back is checked at every position. By how
much the stored weights differ from the design, what rounding does to queries, keys and their
products, and the errors of copied codes make an *error* of the gap. What is left bounds the weight
of all other tokens: the *leak* is positions times exp(error - gap).

**Numbers are carried.** A number that a head copies is off by the norm's rounding, the root's, the
products' and the leak, in units of the unit roundoff u; a chain of heads by their sum.

**Results keep clear of boundaries.** The exact sum or product of two levels keeps a distance from
every rounding boundary (``features``). For each pair of levels, or by a bound where pairs are too
many, that distance less the error of the result must be positive: the *clearance*, in steps. The
heads that compare it then lead by SHARP clearance / shift, less their own rounding.

**Scores.** The right word leads in the language-model head, for all words at once.

What is enumerated and what is bounded is said beside each number. Errors are added up in float64,
whose own rounding is some 1e-13 of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iceform.arithmetic import at_least, at_most
from iceform.certificates import Step
from iceform.targets.design import Head
from iceform.targets.text.features import SLOT_BITS, code
from iceform.targets.text.interpreter import rounded_function
from iceform.targets.text.layers import KIND, RECENT, SCORE, SHARP, TextLayers
from iceform.targets.text.words import FUNCTIONS
from iceform.validation import unit_roundoff

NORM = 3.0  # units: a normalised feature is x times the root, plus the mean's share, times a weight
ROOT = 4.0  # units by which the norm's root may be off; taken for granted
MEAN = 2.0  # units of the ballast by which the norm's mean may be off; taken for granted
SOFTMAX = 4.0  # units of a weight near 1 times a value: exponential, sum, division, product
LEAST = 16.0  # logits that must be left: a leak of 1e-7 a token
FIRST_NUMBERS = 4  # the layer from which on heads carry numbers, not codes
_PAIRS = 4096  # levels up to which all pairs are enumerated
_PART = 256  # rows of a table of pairs at once


@dataclass(frozen=True)
class TextMargin:
    """Where heads of one kind look: the gap, what may be lost of it, and why."""

    what: str
    gap: float
    error: float
    why: str

    @property
    def left(self) -> float:
        """What is left of the gap."""
        return self.gap - self.error


@dataclass(frozen=True)
class TextCertificate:
    """What is proven of the weights of a text machine.

    ``margins``: where heads look. ``derivation``: how numbers are carried and rounded.
    ``enumerated``: what was checked case by case, and how many cases. ``failures``: what could not
    be proven; the certificate holds if there is none.
    """

    statement: str
    dtype: str
    margins: tuple[TextMargin, ...]
    derivation: tuple[Step, ...]
    enumerated: dict[str, int]
    assumptions: tuple[str, ...]
    failures: tuple[str, ...] = field(default=())

    @property
    def holds(self) -> bool:
        """Whether everything was proven."""
        return not self.failures

    def __bool__(self) -> bool:
        return self.holds

    def explain(self) -> str:
        """The numbers with their derivation, as text."""
        lines = [self.statement if self.holds else "NOT PROVEN", ""]
        lines += [f"  {reason}" for reason in self.failures]
        lines += ["where heads look (logits: gap - error = left)"]
        for m in self.margins:
            gap, error, left = (
                at_least(m.gap, ".4g"),
                at_most(m.error, ".3g"),
                at_least(m.left, ".4g"),
            )
            lines.append(f"  {m.what:<44} {gap:>9} - {error:<9} = {left:<9} {m.why}")
        lines += ["", "how numbers are carried and rounded"]
        for s in self.derivation:
            lines.append(f"  {s.symbol:<24} = {s.value:<10.4g} {s.formula}")
            lines.append(f"  {'':<24}   {'':<10} {s.why}")
        lines += ["", "checked case by case"]
        lines += [f"  {what}: {count:,}" for what, count in self.enumerated.items()]
        lines += ["", f"taking for granted, in {self.dtype}, that"]
        lines += [f"  {a}" for a in self.assumptions]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "statement": self.statement, "holds": self.holds, "failures": list(self.failures),
            "dtype": self.dtype, "margins": [vars(m) | {"left": m.left} for m in self.margins],
            "derivation": [vars(s) for s in self.derivation], "enumerated": self.enumerated,
            "assumptions": list(self.assumptions),
        }  # fmt: skip


def certify(layers: TextLayers, embedding: Tensor, tensors: dict[str, Tensor]) -> TextCertificate:
    """What is proven of these tensors as the machine of this design with these words."""
    return _Account(layers, embedding, tensors).certificate()


@dataclass(frozen=True)
class _Maps:
    """One layer: what the design says, and by how much the stored weights differ (out, in)."""

    said: dict[str, Tensor]
    off: dict[str, Tensor]
    biases: dict[str, Tensor]
    off_biases: dict[str, Tensor]


class _Account:
    """Everything that is added up, layer after layer."""

    def __init__(self, layers: TextLayers, embedding: Tensor, tensors: dict[str, Tensor]) -> None:
        self.layers, self.design = layers, layers.design
        self.features, self.sizes = layers.features, layers.features.sizes
        self.words, self.tensors = embedding, tensors
        self.u = unit_roundoff(getattr(torch, self.sizes.dtype))
        self.failures: list[str] = []
        self.margins: list[TextMargin] = []
        self.steps: list[Step] = []
        self.enumerated: dict[str, int] = {}
        self.leaks: dict[tuple[int, int], float] = {}
        self.unbalanced = 0.0  # bound of the sum over a token's places
        self.backs: dict[int, float] = {}
        self._maps: dict[int, _Maps] = {}  # of the layer at hand

    # ----------------------------------------------------------------------------- certificate

    def certificate(self) -> TextCertificate:
        self._check_rest()
        self._check_norm()
        self._check_functions()
        self._check_codes()
        for number in range(len(self.design.layers)):
            self._layer(number)
        self._scores()
        return TextCertificate(
            self._statement(), self.sizes.dtype, tuple(self.margins), tuple(self.steps),
            self.enumerated, self._assumptions(), tuple(self.failures),
        )  # fmt: skip

    def _statement(self) -> str:
        return (
            "For every text that check() accepts, every token of greedy decoding is the "
            f"interpreter's, up to {self.sizes.positions:,} positions (proven)"
        )

    def _assumptions(self) -> tuple[str, ...]:
        return (
            f"matrix products round as {self.sizes.dtype}, in any order (no TF32, no bf16); "
            "products with exact zeros are exact",
            f"a norm's root is off by at most {ROOT:g} units of roundoff, its mean by at most "
            f"{MEAN:g} units of the ballast",
            f"a softmax weight near 1, its value and their product are off by {SOFTMAX:g} units",
            "exp is monotone and within a factor 2 of exact far below 1",
        )

    def fail(self, reason: str) -> None:
        if reason not in self.failures:
            self.failures.append(reason)

    def say(self, symbol: str, formula: str, value: float, why: str) -> float:
        self.steps.append(Step(symbol, formula, value, why))
        return value

    # ------------------------------------------------------------------------------ the stream

    def at(self, name: str) -> slice:
        return self.features.all[name]

    @cached_property
    def places(self) -> int:
        return self.design.hidden

    @cached_property
    def exact(self) -> Tensor:
        """Bound of |x| at tokens that matter: codes, flags and numbers over 2^top are at most 1."""
        out = torch.zeros(self.places).double()
        out[: self.features.all.total] = 1.0
        out[self.at("larger")] = 2.0
        return self._with_own(out)

    def _with_own(self, out: Tensor) -> Tensor:
        own = self.design.own_places()
        first, last = own["balance"]
        out[first:last] = float(self._nonzero()) / (last - first)
        for name in ("ballast", "minus ballast"):
            out[own[name][0]] = self.design.ballast
        return out

    def _nonzero(self) -> float:
        """Bound of the sum of all features of a token: what a word has, and what heads add."""
        words = float(self.words.abs().sum(1).max()) + 1 + 2 * len(self.features.periods)
        return words + sum(len(h.moves) for layer in self.design.layers[:5] for h in layer) + 8

    @property
    def deviation(self) -> float:
        """By how much the features change the norm's root, relative."""
        squares = float(self.exact[: self.features.all.total].square().sum())
        first, last = self.design.own_places()["balance"]
        squares += float(self.exact[first:last].square().sum())
        return squares / (4 * self.design.ballast**2)

    @property
    def root(self) -> float:
        """Relative error that all features of a token share."""
        return ROOT * self.u + self.deviation

    @property
    def mean(self) -> float:
        """Bound of a token's mean, as it is subtracted: what is not balanced, and rounding."""
        return MEAN * self.u * self.design.ballast + self.unbalanced / self.places

    def _check_norm(self) -> None:
        self.say("u", "unit roundoff", self.u, f"of {self.sizes.dtype}")
        self.say(
            "deviation",
            "sum of squares/(4 C^2)",
            self.deviation,
            f"of the norm's root from that of the ballast C = {self.design.ballast:g}",
        )
        self.say("mean", "MEAN u C + sum/width", self.mean, "what a norm may subtract")

    # ----------------------------------------------------------------------------- the weights

    def _check_rest(self) -> None:
        """Norms, feed-forward maps and biases are what they should be; words and positions."""
        expected = float(torch.tensor(self.design.norm_weight, dtype=self._dtype))
        for name, tensor in self.tensors.items():
            held = tensor.double()
            if not bool(torch.isfinite(held).all()):
                self.fail(f"{name} holds numbers that are not finite")
            kind = name.split(".")[-2]
            if kind.startswith("ln_"):
                wanted = expected if name.endswith("weight") else 0.0
                if bool((held != wanted).any()):
                    self.fail(f"{name} is not {wanted:g} everywhere")
            silent = ".mlp.c_proj" in name or name.endswith("attn.c_proj.bias")
            if silent and bool(held.any()):
                self.fail(f"{name} is not 0")
        words = (self._tensor("transformer.wte.weight") - self.design.embedded(self.words)).abs()
        places = self.design.moved(self.features.positions())
        turned = (self._tensor("transformer.wpe.weight") - places).abs()
        self.error = words.max(0).values + turned.max(0).values
        self._check_apart()
        for name in ("wte", "wpe"):
            sums = self._tensor(f"transformer.{name}.weight").sum(1).abs()
            self.unbalanced += float(sums.max())
        # The ballast is the same for all tokens; how far its two places are apart is a mean.
        for name in ("ballast", "minus ballast"):
            place = self.design.own_places()[name][0]
            if float(self.error[place]) > self.u * self.design.ballast:
                self.fail(f"the ballast ({name}) is off by {float(self.error[place]):.3g}")

    def _check_apart(self) -> None:
        """No feature is both of words and of positions, so that their sum is exact."""
        count = self.features.all.total
        both = [
            self._tensor(f"transformer.{name}.weight")[:, :count].abs().sum(0) > 0
            for name in ("wte", "wpe")
        ]
        if bool((both[0] & both[1]).any()):
            self.fail("a feature is written by words and by positions")

    @property
    def _dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.sizes.dtype)
        return found

    def _tensor(self, name: str) -> Tensor:
        return self.tensors[name].double()

    def maps(self, number: int) -> _Maps:
        if number in self._maps:
            return self._maps[number]
        said, biases = self.design.matrices(self.design.layers[number])
        at = f"transformer.h.{number}.attn."
        both = self._tensor(at + "c_attn.weight").T.chunk(3)
        ends = self._tensor(at + "c_attn.bias").chunk(3)
        off = {k: (found - said[k]).abs() for k, found in zip("qkv", both, strict=True)}
        off["o"] = (self._tensor(at + "c_proj.weight").T - said["o"]).abs()
        wrong = {k: (f - biases[k]).abs() for k, f in zip("qkv", ends, strict=True)}
        self._maps = {number: _Maps(said, off, biases, wrong)}
        return self._maps[number]

    def row_errors(self, maps: _Maps, kind: str) -> tuple[Tensor, Tensor]:
        """For every row of a map: bounds of its value and of its error, at tokens that matter."""
        rows = maps.said[kind].abs()
        largest = rows @ self.exact_features + maps.biases[kind].abs()
        error = rows @ (self.error * (self.exact_features > 0))
        error = error + (NORM * self.u + self.root) * (rows @ self.exact_features)
        error = error + 2 * self.u * self.mean * rows.sum(1)
        error = error + (rows > 0).sum(1) * self.u * largest
        error = error + maps.off[kind] @ (self.exact + self.mean) + maps.off_biases[kind]
        return largest, error

    @cached_property
    def exact_features(self) -> Tensor:
        """Bounds of features; the stream's own places are not read by design."""
        out = self.exact.clone()
        out[self.features.all.total :] = 0.0
        return out

    # ------------------------------------------------------------------------------- one layer

    def _layer(self, number: int) -> None:
        maps, size = self.maps(number), self.design.head_size
        q, q_error = self.row_errors(maps, "q")
        k, k_error = self.row_errors(maps, "k")
        scale = 1 / math.sqrt(size)
        terms = q_error * k + q * k_error + q_error * k_error + (size + 1) * self.u * q * k
        errors = 2 * scale * terms.view(-1, size)
        self._unread(number, maps)
        if number >= FIRST_NUMBERS:
            self._check_carried(number, maps)
        for index, head in enumerate(self.design.layers[number]):
            self._head(number, index, head, errors[index])
        self._carry(number, maps)

    def _check_carried(self, number: int, maps: _Maps) -> None:
        """Where numbers are carried, values and outputs are the design's, bit for bit."""
        for kind, what in (("v", "values"), ("o", "outputs")):
            off = float(maps.off[kind].max())
            if off:
                self.fail(f"layer {number}: {what} of heads are off by {off:.3g}")
        if bool(maps.off_biases["v"].any()):
            self.fail(f"layer {number}: values of heads have a bias")

    def _unread(self, number: int, maps: _Maps) -> None:
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

    def _note(self, margin: TextMargin) -> None:
        """Keep the worst margin of heads with one name."""
        for place, other in enumerate(self.margins):
            if other.what == margin.what:
                if margin.left < other.left:
                    self.margins[place] = margin
                break
        else:
            self.margins.append(margin)
        if not margin.left >= LEAST:
            self.fail(f"{margin.what}: {margin.left:.3g} logits are left of {margin.gap:.3g}")

    def _own_error(self) -> float:
        """The steep head's, at a difference d of two levels.

        d is at least the finer operand's granule, and that operand is below 2^bits granules, so
        that |a| + |b| is at most (2^(bits + 1) + 1) |d|.
        """
        relative = (self.read_units + self.own_units) * self.u
        return SHARP * relative * (2.0 ** (self.features.format.bits + 1) + 1) + self._self_error

    def _carry(self, number: int, maps: _Maps) -> None:
        """Errors of what the layer writes, at tokens that matter; one head of several is active."""
        size = self.design.head_size
        v, v_error = self.row_errors(maps, "v")
        heads = self.design.layers[number]
        leaks = torch.zeros(self.places).double()
        for index in range(len(heads)):
            leaks[index * size : (index + 1) * size] = self.leaks[number, index]
        loose = 2 * leaks * (v + v_error) * self._widest
        each = v_error + SOFTMAX * self.u * v + loose
        out = maps.said["o"].abs()
        added = (out * each).max(1).values + out @ loose
        added = added + maps.off["o"] @ (v + v_error) * self._widest
        added = added + 2 * self.u * self.exact
        sums = self._tensor(f"transformer.h.{number}.attn.c_proj.weight").sum(1).abs()
        self.unbalanced += float(sums @ (v + v_error)) * self._widest
        written = (out.sum(1) > 0) | (maps.off["o"].sum(1) > 0)
        self.error = self.error + torch.where(written, added, torch.zeros_like(added))

    @property
    def _widest(self) -> float:
        """How much larger than 1 a feature of any token can be: a product that saturates."""
        return 4 * 2.0**self.features.format.top

    # ------------------------------------------------------------------------------------ gaps

    def gap(self, head: Head) -> tuple[float, str]:
        """By how much the token that is meant leads, and why."""
        first, second = (*head.role.split(), "")[:2]
        if second.startswith("back"):
            return self._looked_back(head, int(first)), "cos of angles, at every position"
        if first == "read":
            return self._read_gap(head)
        if first in ("latest", "index"):
            return self._latest_gap(head)
        if first in ("fetch", "branch"):
            return self._line_gap(head, 3 * SHARP if first == "branch" else 0.0)
        return min(RECENT - self._drift, SHARP), "recency; the flags' lead"

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
        """The least lead of the token so far back, over all positions and all tokens before."""
        if tokens in self.backs:
            return self.backs[tokens]
        angles = self.features.positions()[:, self.at("angle")]
        q = torch.stack([self._on_angles(query, angles) for query, _ in head.logit], 1)
        k = torch.stack([self._on_angles(row, angles) for _, row in head.logit], 1)
        least, count = math.inf, len(q)
        for start in range(0, count, _PART):
            here = torch.arange(start, min(start + _PART, count))
            logits = q[here] @ k.T
            later = torch.arange(count)[None] > here[:, None]
            meant = here - tokens
            valid = meant >= 0
            best = logits[torch.arange(len(here)), meant.clamp(min=0)]
            logits[later] = -math.inf
            logits[torch.arange(len(here)), meant.clamp(min=0)] = -math.inf
            rest = best - logits.max(1).values
            if bool(valid.any()):
                least = min(least, float(rest[valid].min()))
        self.enumerated[f"positions from which {tokens} back is looked"] = count
        self.backs[tokens] = least
        return least

    def _on_angles(self, row: Any, angles: Tensor) -> Tensor:
        out = torch.full((len(angles),), row.constant).double()
        for (name, index), c in row.reads.items():
            if name != "angle":
                self.fail(f"a head that looks back reads {name}")
                continue
            out = out + c * angles[:, index]
        return out

    # ---------------------------------------------------------------------------- numbers

    @property
    def read_units(self) -> float:
        """Units of a number that a head copies: norm, root, a difference, softmax, sum."""
        return NORM + self.root / self.u + 2 + SOFTMAX + 1

    @property
    def own_units(self) -> float:
        """Units of a number that a token copies within itself."""
        return self.read_units + 1

    def _check_functions(self) -> None:
        """Every function at every level, against exact arithmetic."""
        form = self.features.format
        at = self.at("at")
        held = self._tensor("transformer.wte.weight")
        count = 0
        for token, word in enumerate(self.sizes.words):
            if word.units is None:
                continue
            for k, name in enumerate(FUNCTIONS):
                wanted = rounded_function(form, name, word.units) / 2.0 ** (
                    form.fraction + form.top
                )
                count += 1
                if abs(float(held[token, at.start + k]) - wanted) > 0:
                    self.fail(f"{name}({word.text}) in the weights is not the interpreter's")
        self.enumerated["functions, at every level"] = count

    def _check_codes(self) -> None:
        """Value, bits and sign of every number word are the level's."""
        form, held = self.features.format, self._tensor("transformer.wte.weight")
        tokens = [t for t, w in enumerate(self.sizes.words) if w.kind == "number"]
        units = np.array([self.sizes.words[t].units for t in tokens])
        rows = held[tokens].numpy()
        scale = 2.0 ** -(form.fraction + form.top)
        powers = 2.0 ** np.arange(self.features.value_bits)
        bits = rows[:, self.at("positive")] @ powers - rows[:, self.at("negative")] @ powers
        wrong = (rows[:, self.at("value")][:, 0] != units * scale) | (bits != units)
        wrong |= rows[:, self.at("sign")][:, 0] != np.sign(units)
        if wrong.any():
            self.fail(f"{int(wrong.sum())} number words do not hold their level")
        self.enumerated["value, sign and bits of number words"] = len(tokens)

    # ------------------------------------------------------------------------- clearance

    def _absolute(self) -> float:
        """Error of a read that does not shrink with the number: the mean's rounding and leaks."""
        return 2 * self.u * self.mean + max(self.leaks.values()) * self._widest

    @cached_property
    def clearance(self) -> tuple[float, float]:
        """Least distance of a result from a boundary less its error, in steps.

        For the boundaries between segments, and for those of digits.
        """
        form, u = self.features.format, self.u
        read = self.say(
            "read",
            "NORM + root + 2 + SOFTMAX + 1 units",
            self.read_units * u,
            "relative error of an operand in the stream",
        )
        total = self.say(
            "sum",
            "read + own",
            read + self.own_units * u,
            "relative to |a| + |b|: read, then added to the result",
        )
        product = self.say(
            "product",
            "read + own + bits + 1 units",
            read + (self.own_units + form.bits + 1) * u,
            "relative: one term a bit, all of one sign",
        )
        absolute = self.say(
            "absolute",
            "2 u mean + leaks",
            self._absolute(),
            "over 2^top: does not shrink with the number",
        )
        rest = self.say("rest", "own (2 + 1/15) + 4 units", (self.own_units * (2 + 1 / 15) + 4) * u,
                        "relative to the result: scaling, and the digits taken away")  # fmt: skip
        scale = 2.0 ** (form.fraction + form.top)  # units a result over 2^top
        find = self._enumerated if form.count <= _PAIRS else self._bounded
        segments, digits = find(total, product, absolute * scale, rest)
        self.say("clearance of segments", "min (distance - error)", segments, "steps")
        self.say("clearance of digits", "min (distance - error)", digits, "steps")
        return segments, digits

    def _enumerated(
        self, total: float, product: float, absolute: float, rest: float
    ) -> tuple[float, float]:
        """Every pair of levels: sum, difference, product, maximum and minimum."""
        form = self.features.format
        levels = np.array(form.levels, dtype=np.float64)
        found = [(math.inf, math.inf)]
        for start in range(0, len(levels), _PART):
            a = levels[start : start + _PART, None]
            sizes = np.abs(a) + np.abs(levels)
            added = total * sizes + 2 * absolute
            found.append(self._least(a + levels, added, rest))
            products = a * levels / 2.0**form.fraction
            off = product * np.abs(products) + (2 * np.abs(a) / 2.0**form.fraction + 1) * absolute
            found.append(self._least(products, off, rest))
            # b + max(a - b, 0): two more sums
            found.append(self._least(np.maximum(a, levels), 2 * added, rest))
        self.enumerated["pairs of levels, each added, multiplied and compared"] = len(levels) ** 2
        return min(f[0] for f in found), min(f[1] for f in found)

    def _least(self, exact: np.ndarray, error: np.ndarray, rest: float) -> tuple[float, float]:
        """Least clearances of results in units, in steps."""
        f = self.features
        bits, last = f.format.bits, f.segments - 1
        sizes = np.abs(exact)
        segment = np.clip(np.frexp(sizes)[1] - bits, 0, last)
        step = np.exp2(segment)
        shift = np.array([f.shift(j) for j in range(last + 1)])
        # Boundaries of digits lie at whole numbers + 1/2 - shift.
        at = exact / step + shift[segment] - 0.5
        away = np.abs(at - np.round(at)) - (error + rest * sizes) / step
        inside = (exact < f.edge(last, 1)) & (exact > f.edge(last, -1))
        digits = float(np.where(inside, away, np.inf).min())
        edges = [
            float(((np.abs(exact - f.edge(j, sign)) - error) / 2.0**j).min())
            for j in range(last + 1)
            for sign in (1, -1)
        ]
        return min(edges), digits

    def _bounded(
        self, total: float, product: float, absolute: float, rest: float
    ) -> tuple[float, float]:
        """For segment j, results that are no levels: their distance is at least half a granule.

        Where a sum is no level its finer operand is below 2^bits granules, so that |a| + |b| is at
        most 2^(bits + 1) steps. Where c + a b is none, a b is below 2^(2 bits) granules: |c| +
        |a b| is at most 2^(2 bits + 1) steps, and never more than three times the largest level.
        Levels are half a step from a boundary.
        """
        f, least = self.features, math.inf
        bits, last = f.format.bits, f.segments - 1
        for j in range(last + 1):
            largest = 3 * 2.0 ** (bits + last - j)  # steps
            third = min(2.0 ** (2 * bits + 1), largest) if self.sizes.third_operand else 0.0
            size = max(third, 2.0 ** (bits + 1))
            fixed = (2.0 ** (f.format.top + 1) + 4) * absolute / 2.0**j + rest * 2.0**bits
            error = (total + product) * size + fixed
            worst = 2 * (total + product) * largest + fixed
            least = min(least, f.shift(j) - error, 0.5 - f.shift(j) - worst)
        return least, least

    # ------------------------------------------------------------------------- comparisons

    def _comparison(self, number: int, index: int, head: Head) -> TextMargin:
        """A head that compares a number with a boundary: its lead less its own rounding."""
        f = self.features
        segments, digits = self.clearance
        between = not head.role.startswith("digit")
        clear = segments if between else digits
        if not clear > 0:
            self.fail(f"results come within {clear:.3g} steps of a boundary")
        lead = SHARP * clear / f.least_shift
        row = head.logit[-1][0]
        edge = abs(row.reads.get(("one", 0), 0.0))
        slope = max(abs(c) for (name, _), c in row.reads.items() if name != "one")
        # At the boundary the number is the edge: both are normalised, multiplied and added.
        rounding = 2 * edge * (NORM + 3 + len(head.logit) + 1) * self.u
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
            off += float((moved * (other + moved)).sum()) / math.sqrt(size)
        return off

    # -------------------------------------------------------------------------------- scores

    def _scores(self) -> None:
        """The language-model head: every word that is right against every other word."""
        found = self._tensor("lm_head.weight")
        said = self.design.readout(self.layers.scores())
        off = float(((found - said).abs() @ (self.exact + self.mean)).max())
        units = (NORM + self.root / self.u + 40) * self.u
        largest = float((said.abs() @ self.exact_features).max())
        codes = float((said.abs() @ (self.error * (self.exact_features > 0))).max())
        error = 2 * (off + units * largest + codes)
        kinds = {"number": self._number_states(), "trace": self._label_states(),
                 "write": self._write_states()}  # fmt: skip
        for kind, states in kinds.items():
            tokens = [t for t, w in enumerate(self.sizes.words) if w.kind == kind]
            margin = min(self._least_lead(states, tokens), self._other_kinds(kind))
            self._note(
                TextMargin(f"scores: {kind}", margin, error, "every word against every other")
            )
            self.enumerated[f"scores of {kind} words, each against all"] = len(states)

    def _other_kinds(self, kind: str) -> float:
        """The lead over words of other kinds, whatever other features hold."""
        f = self.features
        comparisons = f.segments - 1 + sum(2**bits - 1 for bits in f.digits)
        most = {"number": comparisons, "trace": 3 * f.label_bits, "write": sum(f.address.values())}
        own = {"number": comparisons, "trace": f.label_bits,
               "write": f.name_bits + f.index_bits}  # fmt: skip
        others = max(v for k, v in most.items() if k != kind)
        return float(KIND + SCORE * (own[kind] - others))

    def _least_lead(self, states: Tensor, tokens: list[int]) -> float:
        scores, least = self.layers.scores(), math.inf
        for start in range(0, len(states), _PART):
            part = states[start : start + _PART] @ scores.T
            right = torch.tensor(tokens[start : start + _PART])[:, None]
            lead = part.gather(1, right)[:, 0] - part.scatter(1, right, -math.inf).max(1).values
            least = min(least, float(lead.min()))
        return least

    def _states(self, kind: str, codes: Iterator[dict[str, Tensor]]) -> Tensor:
        """Ideal streams of which each says one word."""
        rows = []
        for held in codes:
            row = torch.zeros(self.features.all.total).double()
            row[self.at(kind)] = row[self.at("one")] = 1.0
            for name, bits in held.items():
                row[self.at(name)] = bits
            rows.append(row)
        return torch.stack(rows)

    def _number_states(self) -> Tensor:
        def codes() -> Iterator[dict[str, Tensor]]:
            for word in self.sizes.words:
                if word.units is not None:
                    exponent, digits = self.features.level_code(word.units)
                    yield {"exponent": exponent, **{f"digit{d}": c for d, c in enumerate(digits)}}

        return self._states("is_write", codes())

    def _label_states(self) -> Tensor:
        bits = self.features.label_bits
        return self._states(
            "is_number",
            ({"run.next": code(w.label or 0, bits)} for w in self.sizes.words if w.kind == "trace"),
        )

    def _write_states(self) -> Tensor:
        f = self.features
        return self._states(
            "is_trace",
            (
                {f"run.d.{p}": h[p] for p in f.address if p in h}  # type: ignore[misc]
                for h in (f.of_word(w) for w in self.sizes.words if w.kind == "write")
            ),
        )
