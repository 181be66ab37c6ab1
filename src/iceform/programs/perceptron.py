"""The perceptron, a batch at a time: a look-up of the step 1{m < 0} between two tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.certificates import Certificate, Step
from iceform.constructions import Loss
from iceform.interpolation import Interpolant, ScalarFunction
from iceform.programs.stream import Fit, LinearModel
from iceform.streaming import Source, StreamMachine
from iceform.streaming.problem import Encoding, GradientTask

__all__ = ["Perceptron"]

_UNIT = torch.finfo(torch.float64).eps / 2
_SHARPNESS = 2.0**24  # of the step: margins above 40 * reach / this are read as exactly 0 or 1
_CLEAR = 40.0

_STEP = Loss("perceptron", "margin", ScalarFunction(lambda m: -(m < 0).to(m), "step"))


@dataclass(frozen=True)
class Perceptron(LinearModel):
    """w + mean of s_i x_i over the samples with s_i w.x_i <= 0, until there are none.

    Labels are -1 and +1 (or ``positive`` and everything else). On data that can be separated by a
    plane the mistakes end; on others the loop ends after ``max_passes``.
    """

    positive: float | None = None

    def loss(self) -> Loss:
        return _STEP

    @property
    def _positive(self) -> float | None:
        return self.positive

    def stream(self, machine: StreamMachine, source: Source) -> Fit:
        self.check_labels(source)
        scaling = self.scaling(source)
        machine.check_dim(scaling.dim)
        encoding = Encoding(scaling, "margin", self.positive)
        start, count, _ = source.reduce(_Mean(encoding))
        w = start / count  # the first pass at w = 0 takes every sample for a mistake
        nearest, closest, passes, mistakes = math.inf, math.inf, 1, source.rows
        while passes < self.max_passes:
            size, least = source.largest(_Margins(encoding, w))
            reach = max(float(size), _UNIT)
            table = Interpolant.hard(_STEP.derivative, -reach, reach, cells=1, sharpness=_SHARPNESS)
            total, _ = source.reduce(GradientTask(machine, table, encoding, w))
            wrong = int(source.reduce(_Mistakes(encoding, w))[0])
            passes += 1
            nearest = min(nearest, -float(least) / reach)
            closest = min(closest, -float(least))
            mistakes = wrong
            if wrong == 0:
                break
            w = w - total / source.rows
        return self._fit(machine, source, encoding, w, passes, mistakes, nearest, closest)

    def _fit(
        self, machine: StreamMachine, source: Source, encoding: Encoding, w: Tensor, passes: int,
        mistakes: int, nearest: float, least: float,
    ) -> Fit:  # fmt: skip
        scaling = encoding.scaling
        coef, intercept = scaling.raw(w)
        # A pass adds the mean of samples, whose entries are no more than the largest mean square.
        entry = float(source.reduce(_Mean(encoding))[2].max()) ** 0.5 / source.rows**0.5
        slip = passes * (source.rows + source.count + 8) * _UNIT * float(w.abs().max() + entry)
        reach = float(source.largest(_Lengths(encoding))[0])
        # Every margin must keep its side whatever rounding did, and be read as 0 or 1.
        resolved = nearest * _SHARPNESS > _CLEAR and least > (slip * 2) * reach
        rows = scaling.functionals().abs().sum(1)
        error = slip * float(rows[: len(coef)].max()) + 4 * _UNIT * float(coef.abs().max())
        last = slip * float(rows[len(coef) :].sum())
        if scaling.intercept:
            last += float(scaling.intercept_slip(coef, intercept))
        step = Step(
            "nearest", "least |margin| of any pass, in units of the largest", nearest,
            f"the step is exact above {_CLEAR / _SHARPNESS:.2g}",
        )  # fmt: skip
        certificate = Certificate.total(
            {"rounding of all passes": error if resolved else math.inf},
            domain={"data": f"these {source.rows} x {source.dim}, as given"},
            dtype=torch.float64,
            backend="fused",
            derivation=(step,),
        )
        return Fit(
            coef, intercept, certificate, passes, machine.digest, machine,
            last if resolved else math.inf, mistakes == 0, {"mistakes": mistakes},
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Mean:
    encoding: Encoding

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, _, _ = self.encoding(x, y)
        count = torch.tensor(float(len(samples)), dtype=x.dtype, device=x.device)
        return [samples.sum(0), count, samples.square().sum(0)]


@dataclass(frozen=True, eq=False)
class _Lengths:
    """Largest 1-norm of a sample."""

    encoding: Encoding

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, _, _ = self.encoding(x, y)
        return [samples.abs().sum(1).max()]


@dataclass(frozen=True, eq=False)
class _Margins:
    encoding: Encoding
    w: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, _, _ = self.encoding(x, y)
        m = (samples @ self.w).abs()
        return [m.max(), -m.min()]


@dataclass(frozen=True, eq=False)
class _Mistakes:
    encoding: Encoding
    w: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, _, _ = self.encoding(x, y)
        return [(samples @ self.w <= 0).sum()]
