"""The perceptron, a batch at a time: a look-up of the step 1{m < 0} between two tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from iceform.arithmetic import OUTWARD, UNIT, at_most
from iceform.arithmetic.double_double import (
    SUMMED,
    DoubleDouble,
    add,
    div,
    mul,
    pair,
    sub,
    sum_last,
)
from iceform.certificates import Certificate, DerivationStep, Result
from iceform.expressions import Loss, ScalarFunction
from iceform.tables import Interpolant
from iceform_estimators.algorithms.examples import blobs
from iceform_estimators.algorithms.linear import LinearClassifier, line_result
from iceform_estimators.algorithms.record import Peer, setting
from iceform_estimators.machine import Machine, MachineRun, Source
from iceform_estimators.machine.problem import SCALED, Encoding, GradientTask
from iceform_estimators.machine.proofs import data_of
from iceform_estimators.machine.sources import each
from iceform_estimators.tuning import SLACK, TOLERANCE

# Of the step: margins above 40 * reach / this are read as exactly 0 or 1. Logits stay below 2^40.
_SHARPNESS = {torch.float64: 2.0**36, torch.float32: 2.0**24}
_CLEAR = 40.0

_LEDGER = (
    ("prompt", "label x scaled sample, the coefficients, and a table of the step"),
    ("readout", "sums of mistaken samples"),
    ("host", SCALED),
    ("host", "margins, to count mistakes and to stop"),
)

_STEP = Loss("perceptron", "margin", ScalarFunction(lambda m: -(m < 0).to(m), "step"))


@dataclass(frozen=True)
class Perceptron(LinearClassifier):
    """w + mean of s_i x_i over the samples with s_i w.x_i <= 0, until there are none.

    Labels are -1 and +1 (or ``positive`` and everything else). On data that can be separated by a
    plane the mistakes end; on others the loop ends after ``max_passes``.

    Parameters
    ----------
    positive, fit_intercept, max_passes
        As for :class:`LinearClassifier`.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X = torch.tensor([[-2.0], [-1], [1], [2]]).double()
    >>> bool(Machine(2).run(Perceptron(), X, X[:, 0].sign()).coef > 0)
    True
    """

    name: ClassVar[str] = "perceptron"
    title: ClassVar[str] = "Perceptron"
    task: ClassVar[str] = "classification"
    says: ClassVar[str] = "Classes, learnt from mistakes."
    objective: ClassVar[str] = "w <- w + s_i x_i wherever s_i (x_i w + b) <= 0"
    lookup: ClassVar[str] = "a step: mistaken or not"
    estimator: ClassVar[str] = "InContextPerceptron"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.linear_model.Perceptron", differs="it visits the samples in a shuffled order"
    )
    penalised: ClassVar[bool] = False
    example = staticmethod(blobs)

    _: KW_ONLY
    max_passes: int = setting(
        100,
        "Most passes of the frozen machine over the data.",
        low=1,
        estimator="max_iter",
    )
    tol: float = field(default=TOLERANCE, init=False)  # a mistake is a mistake
    precondition: str = field(default="diagonal", init=False)

    def loss(self) -> Loss:
        return _STEP

    def table(self, machine: Machine, reach: float) -> Interpolant:
        """A step between two tokens."""
        return _step(reach, machine.dtype)

    def stream(self, machine: MachineRun, source: Source) -> Result:
        *_, last = self.iterates(machine, source)
        return self.fit(machine, source, last)

    def iterates(self, machine: MachineRun, source: Source) -> Iterator[PerceptronState]:
        """The coefficients after each pass, from the first on."""
        self.check_labels(source)
        scaling = self.scaling(source)
        machine.check_dim(scaling.dim)
        encoding = Encoding(scaling, "margin", self.positive)
        # The first pass, at w = 0, takes every sample for a mistake.
        begin = self.start(scaling)
        w = torch.zeros(scaling.dim, dtype=torch.float64, device=source.device)
        if begin is not None:
            w = begin
        slip = torch.zeros_like(w)
        if begin is None:

            def rows(x: Tensor, y: Tensor) -> list[Tensor]:
                samples, _, _ = encoding(x, y)
                return [encoding.weigh(torch.ones_like(samples[:, 0]), y) @ samples]

            after = source.reduce(rows)[0] / source.total
            w, slip = after, _lost(source, encoding, w, after)
        state = PerceptronState(encoding, w, slip, mistakes=source.rows)
        yield state
        while state.mistakes and state.passes < self.max_passes:
            state = state.next(machine, source)
            yield state

    def fit(self, machine: MachineRun, source: Source, last: PerceptronState) -> Result:
        """The model after these passes, with its certificate."""
        encoding, w, passes = last.encoding, last.w, last.passes
        scaling = encoding.scaling
        coef, intercept = scaling.raw(w)
        slip = last.slip
        # Every margin must keep its side whatever rounding did, and be read as 0 or 1.
        clear = _CLEAR / _SHARPNESS[machine.machine.dtype]
        resolved = last.nearest > clear and last.room > 0
        moved = scaling.functionals().abs() @ slip
        error = float(moved[: len(coef)].max()) + 4 * UNIT * float(coef.abs().max())
        constant = float(moved[len(coef) :].sum())
        if scaling.intercept:
            constant += float(scaling.intercept_slip(coef, intercept))
        step = DerivationStep(
            "nearest", "least |margin| of any pass, in units of the largest", last.nearest,
            f"the step is exact above {at_most(clear, '.2g')}", least=True,
        )  # fmt: skip
        certificate = Certificate.total(
            {"rounding of all passes": error if resolved else math.inf},
            domain={"data": data_of(source)},
            dtype=torch.float64,
            backend="fused",
            derivation=(step,),
        )
        for where, what in _LEDGER:
            machine.ledger.note(where, what)
        return line_result(
            machine, (coef, intercept), certificate, passes, constant if resolved else math.inf,
            # The answer is of columns that were scaled by these, which depend on how data are cut.
            parts={"n_mistakes": last.mistakes, "means": scaling.mean, "scales": scaling.scale},
            converged=last.mistakes == 0,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class PerceptronState:
    """Coefficients of scaled data after some passes, and what the proof needs of those.

    Attributes
    ----------
    mistakes
        Samples that the last pass found on the wrong side.
    slip
        What rounding may have moved each coefficient by.
    nearest
        Least |margin| of any pass, in units of that pass's largest.
    room
        Least |margin| of any pass less what rounding may have moved it by.
    """

    encoding: Encoding
    w: Tensor
    slip: Tensor
    passes: int = 1
    mistakes: int = 0
    nearest: float = math.inf
    room: float = math.inf

    def next(self, machine: MachineRun, source: Source) -> PerceptronState:
        """After one more pass, which changes nothing where there is no mistake."""
        encoding, w = self.encoding, self.w

        def margins(x: Tensor, y: Tensor) -> list[Tensor]:
            """The largest and the least |margin|, and the least less its rounding."""
            samples, z, slip, _ = encoding.lines(x, y, w)
            off = slip + SLACK * (samples.abs() @ self.slip)
            return [z.abs().max(), -z.abs().min(), -(z.abs() - off).min()]

        size, least, room = source.largest(margins)
        reach = max(float(size), UNIT)
        table = _step(reach, machine.machine.dtype)
        written = partial(encoding.written, w=w)
        total, _ = source.reduce(GradientTask(machine, table, written))
        wrong = int(source.reduce(lambda x, y: [(encoding(x, y)[0] @ w <= 0).sum()])[0])
        after = w - total / source.total
        return PerceptronState(
            encoding,
            after if wrong else w,
            self.slip + _lost(source, encoding, w, after) if wrong else self.slip,
            self.passes + 1,
            wrong,
            min(self.nearest, -float(least) / reach),
            min(self.room, -float(room)),
        )


def _lost(source: Source, encoding: Encoding, w: Tensor, after: Tensor) -> Tensor:
    """Rounding error of w + mean of the mistaken samples, by the same sum in pairs of numbers."""

    def mistaken(x: Tensor, y: Tensor) -> list[Tensor]:
        """Their sum, in pairs, and that of their magnitudes."""
        samples, _, _ = encoding(x, y)
        low, _ = encoding.lows(x, y)
        wrong = samples @ w <= 0
        weights = encoding.weigh(torch.ones_like(samples[:, 0]), y)[wrong, None]
        rows = mul(
            DoubleDouble(samples[wrong], low[wrong]), pair(weights.expand_as(samples[wrong]))
        )
        if not len(rows.hi):
            return [torch.zeros_like(w)] * 3
        return [*sum_last(DoubleDouble(rows.hi.mT, rows.lo.mT)), rows.hi.abs().sum(0)]

    *total, size = source.combine(mistaken, each(add, torch.add))
    mean = div(DoubleDouble(*total), pair(torch.full_like(after, source.total)))
    left = sub(pair(after), add(pair(w), mean))
    rounded = (2 * UNIT * source.weighed + 16 * SUMMED * (source.count + 8)) * size / source.total
    return OUTWARD * left.double().abs() + rounded + 4 * SUMMED * (after.abs() + w.abs())


def _step(reach: float, dtype: torch.dtype) -> Interpolant:
    sharpness = _SHARPNESS[dtype]
    return Interpolant.hard(_STEP.derivative, -reach, reach, cells=1, sharpness=sharpness)
