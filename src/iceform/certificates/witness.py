r"""Witness: a backend that is watched, so that a run can be attested.

It passes every prompt on to the backend it watches, keeps a few of them, drawn at random, and at
the end runs some of their rows again through the literal matrices. Both evaluations are within
their certificates of the network in exact arithmetic, so they may differ by the sum of those.

**Prompts whose tokens are in memory** are checked layer by layer: given what a layer read, some
entries of what it wrote are computed by W_K, W_Q, W_V and W_O. Such an entry is
:math:`\sum_h o_h \sum_k p_k v_k`. With every logit off by at most :math:`\tau_k/2` in either
evaluation, the two can differ by

.. math:: \sum_h |o_h| \frac{\sum_k p_k (e^{\tau_k} - 1) |v_k - A|}{\sum_k p_k e^{-\tau_k}},

the inequality that rounding is certified by. In units of u, :math:`\tau_k` is made of

* :math:`2 (m + 8) t_k`, for logits of m terms whose absolute values add up to :math:`t_k`, or for
  the same error of a query z that is looked up by its distances (the frozen matrices pick and
  scale, so these are the products of keys and queries);
* :math:`16 g_k`, g the gap to the largest logit: squared distances and shifted logits round
  relative to their size, which is g and at most c/4 more, c the sharpness of the table;
* :math:`16 + 12 c + 6 \cdot 32`: exponentials, and the steps of a window of 32 tokens either side.

Sums over n keys add :math:`4 (2 n + m + 16) u (\sum_k p_k |v_k| + |A|)` and, where lines are summed
relative to the nearest token and the middle one, eight units of those; a window leaves out what the
backend declares.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import EXP_UNDERFLOW
from iceform.certificates.attester import Attester, Comparison, Question, Replay
from iceform.certificates.result import Attestation, Ledger
from iceform.heads import (
    FrozenNetwork,
    HopfieldLayer,
    LookUps,
    Prompt,
    SoftmaxAttention,
    SoftmaxAverage,
)
from iceform.heads.network import Entry
from iceform.run import Backend, LiteralBackend, Rounding, rounding_of
from iceform.run.primitives import SampleMaxima
from iceform.run.windowed import PartialSums, listening, sum_block
from iceform.tables import Interpolant
from iceform.validation import unit_roundoff

Attending = SoftmaxAttention | HopfieldLayer


@dataclass(frozen=True, eq=False)
class ReplayedEntry:
    """One entry of a layer's output as a fast evaluation gave it, to be computed again literally.

    Attributes
    ----------
    layer, tokens
        The layer, and what it read, shape (tokens, features).
    token, feature
        Which entry.
    got
        What came back.
    rounding
        Of the evaluation that gave it.
    tables
        Look-up tables in the weights or in the prompt.
    """

    layer: Attending
    tokens: Tensor
    token: int
    feature: int
    got: Tensor
    rounding: Rounding
    tables: Sequence[Interpolant] = ()

    @property
    def seconds(self) -> float:
        """What running it again may take."""
        return self.layer.entry_work(self.tokens, self.token, self.feature) / tuning.WITNESS_RATE

    def compare(self) -> Comparison:
        """Run it through the literal matrices."""
        entry = self.layer.entry(self.tokens, self.token, self.feature)
        allowed = _allowed(entry, self.tokens.dtype, self.rounding, self.tables)
        carried = entry.value.new_zeros(())
        if getattr(self.layer, "residual", False):  # what it read is added, and rounded once
            carried = self.tokens[self.token, self.feature]
            size = float(carried.abs() + entry.value.abs())
            allowed += 4 * unit_roundoff(self.tokens.dtype) * size
        off = float((carried + entry.value - self.got).abs())
        return Comparison(1, off, allowed)


def layer_questions(
    network: FrozenNetwork,
    tokens: Tensor,
    written: Sequence[Tensor],
    rounding: Rounding,
    draw: random.Random,
) -> Iterator[ReplayedEntry]:
    """Entries of every layer, drawn at random: one of each, then more."""
    reads = [tokens.detach(), *(out.detach() for out in written[:-1])]
    for _ in range(tuning.WITNESS_ENTRIES):
        for layer, read, output in zip(network.layers, reads, written, strict=True):
            if not isinstance(layer, SoftmaxAttention | HopfieldLayer) or not output.numel():
                continue
            here = layer if layer.w_k.device == read.device else layer.to(read.device)
            *batch, token, feature = place = [draw.randrange(n) for n in output.shape]
            got = output.detach()[tuple(place)]
            yield ReplayedEntry(
                here, read[tuple(batch)], token, feature, got, rounding, network.tables
            )


def settled(gaps: Tensor, tau: Tensor) -> Tensor:
    """Tokens whose weight no rounding changes: hidden ones have 0, and one left alone has 1."""
    top = tau.gather(-1, gaps.argmin(-1, keepdim=True))
    hidden = gaps - tau - top > EXP_UNDERFLOW
    alone = (~hidden).sum(-1, keepdim=True) == 1
    return hidden | alone


def _allowed(
    entry: Entry, dtype: torch.dtype, rounding: Rounding, tables: Sequence[Interpolant]
) -> float:
    unit = unit_roundoff(dtype)
    scores, terms, values, reads = (
        t.double() for t in (entry.scores, entry.terms, entry.values, entry.reads)
    )
    sharpness = max((table.sharpness for table in tables), default=0.0)
    gaps = scores.amax(-1, keepdim=True) - scores
    tau = unit * (
        2 * (entry.depth + 8) * terms + 16 * gaps + 16 + 12 * sharpness + 6 * tuning.LOCAL_WIDEST
    )
    tau = tau.masked_fill(settled(gaps, tau), 0.0)
    weights, sizes = torch.softmax(scores, -1), values.abs()[..., None, :]
    looked = (weights @ values[..., None])[..., 0]
    apart = (values[..., None, :] - looked[..., None]).abs()
    moved = (weights * tau.expm1() * apart).sum(-1) / (weights * (-tau).exp()).sum(-1)
    near = sizes.masked_fill(gaps > 4 * sharpness + 1, 0.0).amax(-1)
    middle = max((abs(float(t.values[t.tokens // 2])) for t in tables), default=0.0)
    carried = (weights * sizes).sum(-1) + looked.abs()
    sums = 4 * (2 * scores.shape[-1] + entry.depth + 16) * unit * carried
    sums = sums + 8 * unit * (near + middle)
    left_out = max((rounding.omitted(dtype, table) for table in tables), default=0.0)
    return float((reads.abs() * (moved + sums + left_out)).sum())


@dataclass(frozen=True, eq=False)
class _RecordedPrompt:
    """A prompt with what came back: rows, the tokens after every layer, or a sum over samples."""

    prompt: Prompt | LookUps | SoftmaxAverage
    rows: Tensor | None
    layers: tuple[Tensor, ...] = ()
    added: _RecordedSum | None = None


@dataclass(frozen=True, eq=False)
class _RecordedSum:
    """A sum over samples as it came back, and what the backend added up.

    ``over`` is what it was divided by, ``count`` whether it is of the rows' last entries.
    """

    out: Tensor
    parts: PartialSums
    over: int = 1
    count: bool = False

    def columns(self, rows: Tensor) -> Tensor:
        """The columns of a network's rows that this sum adds up."""
        return (rows[..., -1:] if self.count else rows[..., :-1]).detach().double()


class RecordingBackend(Backend):
    """A backend whose runs are recorded, so that they can be attested.

    It passes prompts on to another backend, keeps a few of them with what came back, and runs some
    of their rows again by the matrices themselves.

    Parameters
    ----------
    backend
        What runs.
    ledger
        Where passes are counted; a new one by default.

    Examples
    --------
    >>> from iceform.heads import LookUpLayout, LookUps
    >>> table = ice.Interpolant.identity(-2, 2, 1e-6)
    >>> layout = LookUpLayout(dim=2, samples=4, tokens=table.tokens)
    >>> recording = RecordingBackend(ice.run.bind(layout.build(), "fused"))
    >>> x, y, w = torch.rand(3, 2).double(), torch.zeros(3).double(), torch.ones(2).double()
    >>> rows = recording.run(LookUps(layout, table, x, y, w))
    >>> recording.attest().ok
    True
    """

    def __init__(self, backend: Backend, ledger: Ledger | None = None) -> None:
        self.inner, self.network, self.digest = backend, backend.network, backend.digest
        self.name, self.rounding = backend.name, backend.rounding
        self._unsettled = False
        self.ledger = Ledger() if ledger is None else ledger
        self.attester = Attester[_RecordedPrompt](tuning.WITNESS_KEPT, last=True)
        self._random = self.attester.draw

    @property
    def passes(self) -> int:
        """Calls of the frozen network over whole data."""
        return self.attester.seen

    def run(self, prompt: Prompt | LookUps | SoftmaxAverage) -> Tensor:
        if isinstance(prompt, Prompt):
            *_, last = self.stream(prompt)
            return last
        out = self.inner.run(prompt)
        self._keep(prompt, out)
        return out

    def stream(self, prompt: Prompt) -> Iterator[Tensor]:
        layers = tuple(self.inner.stream(prompt))
        self._keep(prompt, layers=layers)
        return iter(layers)

    def literally(self, prompt: Prompt) -> Iterator[Tensor]:
        layers = tuple(self.inner.literally(prompt))
        self._keep(prompt, layers=layers)
        return iter(layers)

    def total(
        self, prompt: LookUps, watch: SampleMaxima | None = None, over: int = 1,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:  # fmt: skip
        with listening() as told:
            out = self.inner.total(prompt, watch, over, dtype)
        self._keep(prompt, added=_added(out, told, over=over))
        return out

    def count(self, prompt: LookUps) -> Tensor:
        with listening() as told:
            out = self.inner.count(prompt)
        self._keep(prompt, added=_added(out[..., None], told, count=True))
        return out

    def _keep(
        self,
        prompt: Prompt | LookUps | SoftmaxAverage,
        rows: Tensor | None = None,
        layers: tuple[Tensor, ...] = (),
        added: _RecordedSum | None = None,
    ) -> None:
        """Each prompt of a run is as likely to be kept as any other."""
        prompts = prompt.tokens.shape[:-2].numel() if isinstance(prompt, Prompt) else prompt.prompts
        self.ledger.note("attention", "prompts through the frozen network", prompts)
        if isinstance(prompt, LookUps):  # loops change their coefficients in place
            prompt = replace(prompt, w=prompt.w.detach().clone())
        self.attester.offer(lambda: _RecordedPrompt(prompt, rows, layers, added))

    @torch.no_grad()
    def attest(self) -> Attestation:
        """Hash the weights once more, and run some rows again through the literal matrices."""
        if self.digest is None:
            return Attestation.none("nothing is hashed inside torch.compile", self.name)
        weights = self.network.check()
        expected = self.network.expected or weights
        if self.rounding.literal:
            return Attestation(weights, expected, self.name, literal=True)
        return self.attester.attest(weights, expected, self.name, self._questions)

    def _questions(self, seen: _RecordedPrompt) -> Iterator[Question]:
        prompt = seen.prompt
        if isinstance(prompt, LookUps):
            yield from self._look_up_questions(prompt, seen)
        elif isinstance(prompt, SoftmaxAverage):
            yield Replay(lambda: self._compare_average(prompt, seen.rows))
        elif len(seen.layers) != len(self.network.layers):
            why = f"the {self.name} backend does not tell its layers apart"
            yield Replay(lambda: Comparison(note=why))
        else:
            yield from layer_questions(
                self.network, prompt.tokens, seen.layers, self.rounding, self._random
            )

    @cached_property
    def _literal(self) -> LiteralBackend:
        return LiteralBackend(self.network)

    def _draw(self, count: int, most: int) -> Tensor:
        return torch.tensor(sorted(self._random.sample(range(count), min(count, most))))

    def _look_up_questions(self, prompt: LookUps, seen: _RecordedPrompt) -> Iterator[Question]:
        if not prompt.count or not prompt.batch.numel():
            return
        which = tuple(self._random.randrange(size) for size in prompt.batch)
        one = prompt.of(*which)
        if seen.added is not None:
            yield from self._sum_questions(one, which, seen.added)
            return
        assert seen.rows is not None
        drawn = self._draw(one.count, one.layout.samples).to(one.x.device)
        rows = seen.rows[which][drawn]
        yield Replay(lambda: self._compare_rows(one.part(drawn), rows))

    def _compare_rows(self, part: LookUps, rows: Tensor) -> Comparison:
        off = float((rows - self._literal.run(part)).abs().max())
        return Comparison(len(rows), off, _look_up_allowance(part, "literal", self.name))

    def _sum_questions(
        self, prompt: LookUps, which: tuple[int, ...], added: _RecordedSum
    ) -> Iterator[Question]:
        """The sum against its parts; the last part and one drawn against rows; rows literally."""
        parts = added.parts
        sums = (parts.sums.movedim(0, -2)[which]).double()
        gain, keep = (1.0, 0.0) if parts.whole else (prompt.gain, prompt.keep)
        kept = keep * prompt.w.detach().double()
        out, unit = added.out.detach()[which], unit_roundoff(torch.float64)
        total = gain * sums.sum(0) + prompt.count * kept
        size = abs(gain) * sums.abs().sum(0) + prompt.count * kept.abs()
        off = (out.double() - total / added.over).abs()
        allowed = (len(sums) + 8) * unit * size / added.over
        allowed = allowed + 2 * unit_roundoff(out.dtype) * out.double().abs()
        yield Replay(lambda: Comparison.of(off, allowed, rows=0))
        tiles = -(-prompt.count // parts.rows)
        last = (tiles - 1) % len(sums)
        drawn = list[tuple[LookUps, Tensor]]()
        for part in {last, self._random.randrange(len(sums))}:
            tile, told = parts.tiles(part, prompt.count), gain * sums[part]
            yield Replay(partial(self._compare_part, prompt, tile, told, kept, added, drawn))
        for some, rows in drawn:
            yield Replay(partial(self._compare_rows, some, rows))

    def _compare_part(
        self, prompt: LookUps, tiles: list[slice], found: Tensor, kept: Tensor,
        added: _RecordedSum, drawn: list[tuple[LookUps, Tensor]],
    ) -> Comparison:  # fmt: skip
        """One part of a sum against the rows that the same backend returns.

        ``found`` is what the part came to, without ``kept`` times its rows; a few of the very rows
        that were added up are put into ``drawn``, for the literal matrices.
        """
        step = max(1, tuning.BACKEND_LOGITS // (2 * prompt.x.shape[-1] + 2))
        places = [
            slice(start, min(tile.stop, start + step))
            for tile in tiles for start in range(tile.start, tile.stop, step)
        ]  # fmt: skip
        chosen = self._random.randrange(len(places))
        samples = sum(place.stop - place.start for place in places)
        total, size, each = torch.zeros_like(found), torch.zeros_like(found), 0.0
        for number, place in enumerate(places):
            part = prompt.part(place)
            rows = self.inner.run(part)
            columns = added.columns(rows)
            total, size = total + columns.sum(0), size + columns.abs().sum(0)
            each = max(each, _look_up_allowance(part, self.name, self.name))
            if number == chosen:
                some = self._draw(len(rows), prompt.layout.samples).to(rows.device)
                drawn.append((part.part(some), rows[some]))
        unit, fine = unit_roundoff(prompt.w.dtype), unit_roundoff(torch.float64)
        block = sum_block(prompt.w.dtype, prompt.count)
        size = size + samples * kept.abs()
        allowed = samples * each + ((block + 4) * unit + (samples + 8) * fine) * size
        off = (found + samples * kept - total).abs()
        return Comparison.of(off / samples, allowed / samples, rows=0)  # of a row, in the mean

    def _compare_average(self, prompt: SoftmaxAverage, rows: Tensor | None) -> Comparison:
        assert rows is not None
        if not len(rows):
            return Comparison()
        most = (
            tuning.WITNESS_APART if prompt.apart else prompt.layout.samples
        )  # of one literal prompt, or few
        drawn = self._draw(len(rows), most).to(rows.device)
        part = prompt.part(drawn)
        off = float((rows[drawn] - self._literal.run(part)).abs().max())
        return Comparison(len(drawn), off, _average_allowance(part))


def _added(
    out: Tensor, told: list[PartialSums], *, over: int = 1, count: bool = False
) -> _RecordedSum:
    """The partial sums that a backend told; the sum as one part where it told no single set."""
    if len(told) == 1 and told[0].sums.shape[1:] == out.shape:
        return _RecordedSum(out, told[0], over, count)
    whole = (out.detach().double() * over)[None]
    return _RecordedSum(out, PartialSums(whole, sys.maxsize, whole=True), over, count)


def _look_up_allowance(prompt: LookUps, *names: str) -> float:
    """What two evaluations of the same look-ups, by backends of these names, may differ by."""
    x, w, table = prompt.x.detach().double(), prompt.w.detach().double(), prompt.table
    unit = unit_roundoff(prompt.w.dtype)
    reach = float((x.abs() @ w.abs()[..., None]).max() + prompt.y.detach().abs().max())
    # Not below twice the table's range, and a power of two: a table remembers its rounding at a
    # magnitude, and finds it made for most other data of that range.
    span = table.high - table.low
    reach = max(reach + abs(table.grid.center) + unit, 2.0 * span if span < math.inf else 0.0)
    magnitude = 2.0 ** math.ceil(math.log2(reach))
    models = (rounding_of(n).model(prompt.w.dtype, table, magnitude, x.shape[-1]) for n in names)
    looked = math.fsum(table.rounding(model) for model in models)
    largest = max(1.0, float(x.abs().max()))
    offset = 0.0 if prompt.offsets is None else float(prompt.offsets.detach().abs().max())
    size = abs(prompt.gain) * (table.size + offset) * largest + abs(prompt.keep) * float(
        w.abs().max()
    )
    allowed = abs(prompt.gain) * looked * largest + (2 * table.tokens + 16) * unit * size
    weight = 0.0 if prompt.factors is None else float(prompt.factors.detach().abs().max())
    return max(1.0, weight) * allowed


def _average_allowance(prompt: SoftmaxAverage) -> float:
    """Logits are sums of d products and a bias; weights then move by twice their rounding."""
    unit = unit_roundoff(prompt.points.dtype)
    terms = prompt.points.abs() @ prompt.keys.abs().mT + prompt.biases.abs()
    logits = 2 * (prompt.keys.shape[1] + 4) * unit * float(terms.max())
    size = float(prompt.values.abs().max())
    return (
        2 * size * torch.tensor(2 * logits, dtype=torch.float64).expm1().item()
        + (2 * len(prompt.keys) + 16) * unit * size
    )
