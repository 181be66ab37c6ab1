r"""Recursive least squares: ridge regression on data that arrive in batches.

At the solution w of all samples so far the gradient is zero, so with a new batch only the batch's
own gradient g at w is needed: the solution of old and new together is w - A^+ g, where A is the
sum of all x x' and the penalty. With T T' = A^+ the frozen machine passes once over each batch,
whose samples are written as T'x: what comes back is T'g, a step in those coordinates, and
w - T (T'g) the map back.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from iceform.arithmetic import UNIT
from iceform.arithmetic.double_double import SUMMED, DoubleDouble, add, dot, pair, sub
from iceform.certificates import DerivationStep, Result
from iceform.errors import ProgramError
from iceform.validation import check_positive
from iceform_estimators.algorithms.linear import intercept_error, line_result
from iceform_estimators.machine import MachineRun, Source
from iceform_estimators.machine.problem import (
    STRAIGHT,
    TURNED,
    Coordinates,
    Encoding,
    Metric,
    Scaling,
    check_magnitudes,
    gram_of,
    metric_of,
    swept,
)
from iceform_estimators.machine.proofs import (
    Newton,
    Proof,
    apart_of,
    certificate_of,
    gram_slip,
    lower,
    norm_of,
)
from iceform_estimators.machine.sources import each
from iceform_estimators.machine.stream import IDENTITY
from iceform_estimators.tuning import PAIRS, ROOM

_LEAST = sys.float_info.min * ROOM  # more than all products together that underflow
_ADDED = each(add, add, torch.add)


@dataclass(eq=False)
class Recursion:
    """Ridge regression that takes its data in batches.

    Parameters
    ----------
    alpha
        The penalty alpha ||w||^2 beside the sum over all samples.
    fit_intercept
        Whether there is an intercept.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> from iceform_estimators.machine import ArraySource
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> machine, fit = Machine(2), Recursion(alpha=2.0)
    >>> first = fit.update(machine.start(), ArraySource(X[:2], y[:2]))
    >>> second = fit.update(machine.start(), ArraySource(X[2:], y[2:]))
    >>> print(second.coef.numpy().round(6))
    [1.]
    """

    alpha: float = 1.0
    fit_intercept: bool = True
    passes: int = 0
    rows: int = 0
    _slip: float = field(default=0.0, repr=False)  # relative rounding of the sums of products
    _scaling: Scaling | None = field(default=None, repr=False)
    _state: tuple[Tensor, Tensor, Tensor] | None = field(default=None, repr=False)
    _sums: _Sums | None = field(default=None, repr=False)  # None where they would take too long

    def update(self, machine: MachineRun, batch: Source) -> Result:
        """The solution for everything seen so far, this batch included."""
        scaling, (w, gram, error) = self._begin(batch)
        machine.check_dim(scaling.dim)
        if batch.dim != len(scaling.mean):
            raise ProgramError(
                f"this batch has {batch.dim} features, those before had {len(scaling.mean)}; "
                "give the same features, or start a new recursion"
            )
        check_magnitudes(batch)
        encoding = Encoding(scaling, "residual")
        gram = gram + gram_of(batch, encoding, w, torch.ones_like)
        machine.ledger.note("host", "Gram matrices of the batches so far")
        self._slip += gram_slip(batch.rows, batch.count)
        within = metric_of(gram, self.rows + batch.rows).coordinates
        after = w - within.back(within.along(self._slope(machine, batch, encoding, within, w)))
        # What the look-up and the step leave of the gradient stays for good, and so does what
        # rounding of the matrix and of w hides.
        machine.ledger.note("host", "the proof: the batch's gradient at the coefficients before it")
        gradient, slip = self._gradient(batch, encoding, w)
        step = w - after
        left = (gradient - gram @ step).abs()
        sizes = gram.diagonal().sqrt()
        rounded = (self._slip + 2 * UNIT) * step.abs() + 2 * UNIT * after.abs()
        hidden = sizes * float(sizes @ rounded)
        error = error + slip + left + (len(w) + 4) * UNIT * gradient.abs() + hidden
        self._state = (after, gram, error)
        self._add(batch, encoding)
        self.rows += batch.rows
        return self._fit(machine, batch)

    def _begin(self, batch: Source) -> tuple[Scaling, tuple[Tensor, Tensor, Tensor]]:
        """Coordinates, which the first batch sets, and the state (w, A, error of the gradient)."""
        if self._scaling is None or self._state is None:
            self._scaling = Scaling.of(batch, intercept=self.fit_intercept)
            alpha = check_positive("alpha", self.alpha, zero=True)
            zeros = torch.zeros(self._scaling.dim, dtype=torch.float64, device=batch.device)
            self._state = (zeros, torch.diag(self._scaling.penalty(alpha)), zeros)
        return self._scaling, self._state

    def _add(self, batch: Source, encoding: Encoding) -> None:
        """Sums of products in pairs of numbers, as long as every batch is small."""
        if self.rows and self._sums is None:
            return
        products = batch.rows * encoding.scaling.dim**2  # p x p of them at once
        small = not batch.weighed and products <= PAIRS // 16
        if not small:
            self._sums = None
            return
        added = _products(batch, encoding)
        self._sums = added if self._sums is None else self._sums.plus(added)

    def _slope(
        self, machine: MachineRun, batch: Source, encoding: Encoding, within: Coordinates, w: Tensor
    ) -> Tensor:
        """T'g of a batch, by one pass over samples that are written as T'x."""
        note = machine.ledger.note
        note("prompt", "scaled samples and labels, the coefficients, and a table of a line")
        note("attention", STRAIGHT)
        note("host", TURNED)
        note("host", "coordinates of the samples in a pass, by eigenvectors of their Gram matrix")
        encoding = replace(encoding, turned=within.turned)
        written = partial(encoding.written, w=within.of(w))
        total, _, passes = swept(machine, batch, IDENTITY, 1.0, written)
        self.passes += passes
        return total

    @staticmethod
    def _gradient(batch: Source, encoding: Encoding, w: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the batch's gradients at w, natively, and a bound of what it is off by."""

        def enclosed(x: Tensor, y: Tensor) -> list[Tensor]:
            samples, z, slip, _ = encoding.lines(x, y, w)
            rows, weigh = samples.abs(), encoding.weigh
            return [weigh(z, y) @ samples, weigh(z.abs(), y) @ rows, weigh(slip, y) @ rows]

        total, size, slips = batch.reduce(enclosed)
        return total, (batch.rows + batch.count + 8) * UNIT * size + 2 * slips

    def _fit(self, machine: MachineRun, batch: Source) -> Result:
        scaling, (w, gram, error) = self._begin(batch)
        computed = metric_of(gram, self.rows)
        metric = lower(computed, (self._slip + 4 * UNIT) * gram.diagonal())
        radius = math.inf
        if metric is not None and metric.whole:
            radius = float((metric.whitener.abs().mT @ error).norm())
        step = DerivationStep(
            "D", "what look-ups left of all gradients", radius, "in the metric of A"
        )
        proof = Proof.of(radius, metric or computed, step)
        if metric is not None and metric.whole and self._sums is not None:
            proof = self._again(self._sums, computed, metric)
        coef, intercept = scaling.raw(w)
        rows = scaling.functionals()
        certificate = certificate_of(
            proof, rows[: len(coef)], coef, batch,
            domain={"data": f"all {self.rows} x {batch.dim} samples so far, as given"},
        )  # fmt: skip
        last = intercept_error(proof, scaling, coef, intercept)
        return line_result(machine, (coef, intercept), certificate, self.passes, last)

    def _again(self, sums: _Sums, computed: Metric, metric: Metric) -> Proof:
        """By the gradient of everything so far, from sums that are known to more digits."""
        assert self._scaling is not None
        assert self._state is not None
        w, gram, _ = self._state
        left, error = sums.gradient(w)
        penalty = self._scaling.penalty(self.alpha) * w
        gradient = add(left, pair(penalty)).double()
        error = error + 8 * UNIT * penalty.abs() + 2 * UNIT * gradient.abs()
        apart = apart_of(computed, (self._slip + 4 * UNIT) * gram.diagonal())
        nu = norm_of(metric, gradient, error)
        newton = Newton(gradient, error, apart / (1 - apart), computed.whitener)
        step = DerivationStep("D", "gradient of all samples so far", nu, "sums in pairs of numbers")
        return Proof.of(nu, metric, step, newton=newton)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of x x' and of x y over all samples in pairs of numbers, and of |x| |y|."""

    parts: Sequence[Tensor]  # both halves of the first, both of the second, the third
    chunks: int

    def plus(self, other: _Sums) -> _Sums:
        """Of two batches."""
        return _Sums(_ADDED(self.parts, other.parts), self.chunks + other.chunks)

    def gradient(self, w: Tensor) -> tuple[DoubleDouble, Tensor]:
        """A w - b, and what it is off by."""
        gram, moment, size = (
            DoubleDouble(*self.parts[:2]),
            DoubleDouble(*self.parts[2:4]),
            self.parts[4],
        )
        along = dot(gram, pair(w.expand_as(gram.hi)))
        sizes = gram.hi.diagonal().sqrt()
        lost = 16 * SUMMED * (self.chunks + 8) * (sizes * float(sizes @ w.abs()) + size)
        return sub(along, moment), lost + _LEAST


def _products(batch: Source, encoding: Encoding) -> _Sums:
    """The sums of a batch."""

    def products(x: Tensor, y: Tensor) -> list[Tensor]:
        samples, labels, _ = encoding(x, y)
        low, label_low = encoding.lows(x, y)
        rows = DoubleDouble(samples.mT, low.mT)  # (p, n)
        across = DoubleDouble(*(part[:, None].expand(-1, len(part), -1) for part in rows))
        down = DoubleDouble(*(part[None].expand(len(part), -1, -1) for part in rows))
        moment = dot(rows, DoubleDouble(*(part.expand_as(rows.hi) for part in (labels, label_low))))
        return [*dot(across, down), *moment, samples.abs().mT @ labels.abs()]

    return _Sums(batch.combine(products, _ADDED), batch.count)
