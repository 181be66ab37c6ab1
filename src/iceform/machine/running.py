"""Running: a stream in a run, its backend under watch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iceform.arithmetic.doubled import Doubled
from iceform.attention import Average, LookUps
from iceform.backends import Ablated, Backend, bind
from iceform.certificates import Attestation, Certificate, Ledger, Result, Step, Witness
from iceform.interpolation import Interpolant

if TYPE_CHECKING:
    from iceform.machine.machine import Machine
    from iceform.machine.stream import Stream

__all__ = ["Run", "Running"]

_AGAIN = 1 << 20  # numbers up to which an algorithm is done again in pairs of float64


class Run:
    """A machine in a run: its ledger, and how answers get their names.

    Attributes
    ----------
    machine
        What runs.
    ledger
        What was done where so far.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine: Any = machine
        self.ledger = Ledger()

    @property
    def backend(self) -> str:
        """How the network is evaluated."""
        return str(self.machine.backend)

    def check_dim(self, dim: int) -> None:
        """Refuse data with more features than the machine has."""
        self.machine.check_dim(dim)

    def attest(self) -> Attestation:
        """Which weights ran, as they are now."""
        network = self.machine.network
        return Attestation(network.check(), network.expected or "", self.backend)

    def compared(
        self, found: Tensor, again: Callable[[], Doubled], numbers: int, before: Certificate
    ) -> Certificate:
        """What the answer is off by from the algorithm done again; ``before`` if that is blurred.

        ``before`` holds for whatever the network may return; ``again`` encloses the exact answer on
        the data as they are, in pairs of float64, of which it takes about ``numbers``.
        """
        if numbers > _AGAIN:
            return before
        self.ledger.note("host", "the proof: the exact algorithm again, in pairs of float64")
        gap, off = (float(part.max()) for part in again().apart(found))
        if not off < math.inf or before.error < off:
            return before
        return Certificate.total(
            {"distance from the exact answer": gap, "rounding of that": off},
            domain={**before.domain, "data": "as given"},
            dtype=before.dtype,
            backend=before.backend,
            derivation=(
                Step("before", "certified before the run", before.error, "whatever the data"),
                Step("gap", "largest |computed - exact|", gap, "exact: enclosed after the run"),
                Step("off", "what that may be off by", off, "pairs of float64, 98 bits"),
            ),
        )

    def result(
        self, answer: Tensor | Callable[[], Tensor], certificate: Certificate, passes: int,
        **rest: Any,
    ) -> Result:  # fmt: skip
        """An answer with this run's name to it."""
        certificate = replace(certificate, backend=self.backend)
        return Result(answer, certificate, self.attest(), self.ledger, passes, **rest)


class Running(Run):
    """A stream in a run: its backend under watch, and the ledger of what was done where.

    In another process it is the same machine in a run of its own, which nobody watches.

    Parameters
    ----------
    machine
        What runs.
    attention
        False takes it out: look-ups return what is looked up.
    """

    machine: Stream

    def __init__(self, machine: Stream, *, attention: bool = True) -> None:
        super().__init__(machine)
        self.witness: Backend = (
            Witness(bind(machine.network, machine.backend), self.ledger)
            if attention
            else Ablated(machine.network)
        )

    def __reduce__(self) -> tuple[object, tuple[Stream, bool]]:
        return _elsewhere, (self.machine, isinstance(self.witness, Witness))

    @property
    def dim(self) -> int:
        """Features of a sample."""
        return self.machine.dim

    @property
    def tokens(self) -> int:
        """Grid tokens per sample."""
        return self.machine.tokens

    @property
    def digest(self) -> str:
        """SHA-256 of the weights that run."""
        return self.witness.digest or ""

    def attest(self) -> Attestation:
        """Which weights ran, and what running rows again literally shows."""
        if isinstance(self.witness, Witness):
            return self.witness.attest()
        return Attestation.none("attention was taken out")

    # ---------------------------------------------------------------------------------- prompts

    def look_ups(
        self,
        table: Interpolant,
        x: Float[Tensor, "n d"],
        y: Float[Tensor, "n"],
        w: Float[Tensor, "d"],
        offsets: Float[Tensor, "n"] | None = None,
        factors: Float[Tensor, "n"] | None = None,
    ) -> LookUps:
        """The prompts that answer sample i with c_i (A(w.x_i - y_i) - o_i) (x_i, 1)."""
        self.machine.check_table(table)
        offsets = None if offsets is None else self._cast(offsets)
        factors = None if factors is None else self._cast(factors)
        x, y, w = self._cast(x), self._cast(y), self._cast(w)
        return LookUps(self.machine.geometry, table, x, y, w, offsets, factors=factors)

    def kernel(
        self, x: Tensor, values: Tensor, points: Tensor, gamma: float, ties: float = 0.0,
        seen: Bool[Tensor, "q n"] | None = None,
    ) -> Average:  # fmt: skip
        """The prompts that answer a point with the values' average, by e^{-gamma ||q - x_j||^2}.

        Of equally near samples the earlier one is preferred by the factor e^{ties}. ``seen`` hides
        samples from points.
        """
        order = torch.arange(len(x), dtype=x.dtype, device=x.device)
        biases = -gamma * x.square().sum(-1) - ties * order
        return self.asked(2 * gamma * x, biases, values, points, seen)

    def weighed(
        self, logs: Float[Tensor, "q n"], values: Tensor, seen: Bool[Tensor, "q n"]
    ) -> Tensor:
        """The values' average by e^{logs}, of what each row of ``logs`` sees: keys are 0."""
        zero = logs.new_zeros(max(logs.shape), 1)
        asked = self.asked(zero[: logs.shape[1]], logs, values, zero[: len(logs)], seen)
        return self.witness.run(asked).to(values)

    def asked(
        self, keys: Tensor, biases: Tensor, values: Tensor, points: Tensor,
        seen: Tensor | None = None,
    ) -> Average:  # fmt: skip
        """The prompts that answer a point with the values' average, by e^{q.key_j + bias_j}."""
        keys, biases, values, points = (self._cast(t) for t in (keys, biases, values, points))
        return Average(self.machine.geometry, keys, biases, values, points, seen)

    def _cast(self, t: Tensor) -> Tensor:
        """As the machine's dtype holds it."""
        return t.to(self.machine.dtype)

    # ------------------------------------------------------------------------------- evaluation

    def total(self, prompt: LookUps) -> Float[Tensor, "d"]:
        """The sum of the samples' rows: one pass of the frozen layer, and a sum by the readout."""
        return self.witness.total(prompt)

    def count(self, prompt: LookUps) -> Tensor:
        """The sum of the look-ups themselves."""
        return self.witness.count(prompt)

    def look_up(self, table: Interpolant, z: Tensor) -> Tensor:
        """A(z) for every entry: numbers are samples of one feature, and w is 1."""
        flat = z.reshape(-1, 1)
        zeros, one = flat.new_zeros(len(flat)), flat.new_ones(1)
        rows = self.witness.run(self.look_ups(table, flat, zeros, one))
        return rows[:, -1].reshape(z.shape).to(z)

    def average(
        self, x: Tensor, values: Tensor, points: Tensor, gamma: float, ties: float = 0.0,
        seen: Bool[Tensor, "q n"] | None = None,
    ) -> Tensor:  # fmt: skip
        """The values' kernel average at the points."""
        return self.witness.run(self.kernel(x, values, points, gamma, ties, seen)).to(values)


@lru_cache(maxsize=16)
def _elsewhere(machine: Stream, attention: bool) -> Running:
    return Running(machine, attention=attention)
