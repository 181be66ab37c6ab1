r"""Witness: a backend that is watched, so that a run can be attested.

It passes every prompt on to the backend it watches, keeps a few of them, drawn at random, and at
the end runs some of their rows again through the literal matrices. Both evaluations are within
their certificates of the network in exact arithmetic, so they may differ by the sum of those.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.attention import Average, LookUps, Prompt, is_checked
from iceform.backends import Backend, Literal, rounding_of
from iceform.backends.base import Watch
from iceform.certificates.attestation import Attestation
from iceform.certificates.ledger import Ledger
from iceform.errors import IntegrityError
from iceform.validation import unit_roundoff

__all__ = ["Witness"]

_KEPT = 4  # prompts that are kept of a run, each as likely as any other
_SECONDS = 0.03  # that running rows again may take,
_SHARE = 0.1  # or this share of the run, whichever is more
_LARGEST = 1 << 24  # attention entries of a literal prompt that is run again


@dataclass(frozen=True, eq=False)
class _Seen:
    """A prompt, and the rows that came back where they did."""

    prompt: Prompt | LookUps | Average
    rows: Tensor | None


class Witness(Backend):
    """A backend under watch.

    Parameters
    ----------
    backend
        What runs.
    ledger
        Where passes are counted; a new one by default.

    Attributes
    ----------
    passes
        Calls of the frozen network over whole data.
    """

    def __init__(self, backend: Backend, ledger: Ledger | None = None) -> None:
        self.inner, self.network, self.digest = backend, backend.network, backend.digest
        self.name, self.rounding = backend.name, backend.rounding
        self.ledger = Ledger() if ledger is None else ledger
        self.passes = 0
        self._seen: list[_Seen] = []
        self._begun = time.perf_counter()
        self._random = random.Random()  # of its own: a run must not disturb anybody's seeds

    def run(self, prompt: Prompt | LookUps | Average) -> Tensor:
        out = self.inner.run(prompt)
        self._keep(prompt, out)
        return out

    def stream(self, prompt: Prompt) -> Iterator[Tensor]:
        self._keep(prompt)
        return self.inner.stream(prompt)

    def total(self, prompt: LookUps, watch: Watch | None = None) -> Tensor:
        out = self.inner.total(prompt, watch)
        self._keep(prompt)
        return out

    def count(self, prompt: LookUps) -> Tensor:
        out = self.inner.count(prompt)
        self._keep(prompt)
        return out

    def _keep(self, prompt: Prompt | LookUps | Average, rows: Tensor | None = None) -> None:
        """Each prompt of a run is as likely to be kept as any other."""
        self.passes += 1
        prompts = 1 if isinstance(prompt, Prompt) else prompt.prompts
        self.ledger.note("attention", "prompts through the frozen network", prompts)
        seen = _Seen(prompt, rows)
        if len(self._seen) < _KEPT:
            self._seen.append(seen)
        elif (place := self._random.randrange(self.passes)) < _KEPT:
            self._seen[place] = seen

    @torch.no_grad()
    def attest(self) -> Attestation:
        """Hash the weights once more, and run some rows again through the literal matrices."""
        if self.digest is None:
            return Attestation.none("nothing is hashed inside torch.compile", self.name)
        weights = self.network.check()
        expected = self.network.expected or weights
        if self.rounding.literal:
            return Attestation(weights, expected, self.name)
        rows, worst, allowed = self._run_again()
        found = Attestation(weights, expected, self.name, rows, worst, allowed)
        if not found.within and is_checked():
            raise IntegrityError(
                f"the {self.name} backend is off by {worst:.3g} from the literal matrices, "
                f"{allowed:.3g} is allowed; use backend='literal', and please report it"
            )
        return found

    def _run_again(self) -> tuple[int, float, float]:
        """Rows, and of the one that is nearest to what is allowed, difference and allowance."""
        literal = Literal(self.network)
        now = time.perf_counter()
        until = now + max(_SECONDS, _SHARE * (now - self._begun))
        count, worst, allowed = 0, 0.0, 0.0
        for seen in self._seen:
            if count and time.perf_counter() > until:
                break
            rows, off, limit = self._compare(seen, literal)
            count += rows
            if rows and (not off * allowed <= worst * limit or not allowed):
                worst, allowed = off, limit
        return count, worst, allowed

    def _compare(self, seen: _Seen, literal: Literal) -> tuple[int, float, float]:
        prompt = seen.prompt
        if isinstance(prompt, LookUps):
            return self._compare_look_ups(prompt, seen.rows, literal)
        if isinstance(prompt, Average):
            return self._compare_average(prompt, seen.rows, literal)
        return 0, 0.0, 0.0

    def _draw(self, count: int, most: int) -> Tensor:
        return torch.tensor(sorted(self._random.sample(range(count), min(count, most))))

    def _compare_look_ups(
        self, prompt: LookUps, rows: Tensor | None, literal: Literal
    ) -> tuple[int, float, float]:
        if not prompt.count or not prompt.batch.numel():
            return 0, 0.0, 0.0
        which = tuple(self._random.randrange(size) for size in prompt.batch)
        drawn = self._draw(prompt.count, prompt.layout.samples).to(prompt.x.device)
        part = prompt.of(*which).part(drawn)
        exact = literal.run(part)
        limit = _look_up_allowance(part, self.name)
        if rows is not None:
            off = float((rows[which][drawn] - exact).abs().max())
            return len(drawn), off, limit
        # Of a sum only the parts can be told apart: their rows, and what they add up to.
        off = float((self.inner.run(part) - exact).abs().max())
        summed = self.inner.total(part) - exact[..., :-1].double().sum(-2)
        return len(drawn), max(off, float(summed.abs().max()) / len(drawn)), limit

    def _compare_average(
        self, prompt: Average, rows: Tensor | None, literal: Literal
    ) -> tuple[int, float, float]:
        assert rows is not None
        if not len(rows):
            return 0, 0.0, 0.0
        drawn = self._draw(len(rows), prompt.layout.samples).to(rows.device)
        part = Average(
            prompt.layout, prompt.keys, prompt.biases, prompt.values, prompt.points[drawn]
        )
        off = float((rows[drawn] - literal.run(part)).abs().max())
        return len(drawn), off, _average_allowance(part)


def _look_up_allowance(prompt: LookUps, name: str) -> float:
    """What two evaluations of the same look-ups may differ by."""
    x, w, table = prompt.x.detach().double(), prompt.w.detach().double(), prompt.table
    unit = unit_roundoff(prompt.w.dtype)
    reach = float((x.abs() @ w.abs()[..., None]).max() + prompt.y.detach().abs().max())
    # To the next power of two: a table remembers the rounding of few models.
    magnitude = 2.0 ** math.ceil(math.log2(reach + abs(table.grid.center) + unit))
    models = (
        rounding_of(n).model(prompt.w.dtype, table, magnitude, x.shape[-1])
        for n in ("literal", name)
    )
    looked = math.fsum(table.rounding(model) for model in models)
    largest = max(1.0, float(x.abs().max()))
    offset = 0.0 if prompt.offsets is None else float(prompt.offsets.detach().abs().max())
    size = abs(prompt.gain) * (table.size + offset) * largest + abs(prompt.keep) * float(
        w.abs().max()
    )
    return abs(prompt.gain) * looked * largest + (2 * table.tokens + 16) * unit * size


def _average_allowance(prompt: Average) -> float:
    """Logits are sums of d products and a bias; weights then move by twice their rounding."""
    unit = unit_roundoff(prompt.points.dtype)
    terms = prompt.points.abs() @ prompt.keys.abs().mT + prompt.biases.abs()
    logits = 2 * (prompt.keys.shape[1] + 4) * unit * float(terms.max())
    size = float(prompt.values.abs().max())
    return (
        2 * size * torch.tensor(2 * logits).expm1().item()
        + (2 * len(prompt.keys) + 16) * unit * size
    )
