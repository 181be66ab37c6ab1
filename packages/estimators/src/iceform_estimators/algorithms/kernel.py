r"""Kernel regression: softmax attention over the training samples.

Softmax attention with keys 2 gamma x_j and biases -gamma ||x_j||^2 weighs sample j for a query q by
e^{-gamma ||q - x_j||^2} up to a factor that cancels: |x|^2 is a feature of a sample's token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.arithmetic import Doubled, softmax_average
from iceform.certificates import Certificate, DerivationStep, Result
from iceform.errors import BoundError
from iceform.heads import LARGEST_LOGIT, SoftmaxAverage
from iceform.validation import unit_roundoff
from iceform_estimators.algorithms.examples import wave
from iceform_estimators.algorithms.in_memory import centred, check_near, in_memory
from iceform_estimators.algorithms.record import EstimationAlgorithm, Peer, labels_of, setting
from iceform_estimators.machine import ArraySource, Machine, MachineRun, Source
from iceform_estimators.machine.program import with_terms
from iceform_estimators.tuning import C_SLIDER, KEPT, ROOM, SMALL

_EACH = KEPT // 8  # queries that get a bound each; of more, one for all
_WRITTEN = "samples, |x|^2 and labels, and the points that ask"


class _Peer:
    """Kernel regression with scikit-learn's distances; its own kernel would underflow far out."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def fit(self, x: Any, y: Any) -> _Peer:
        """Remember the samples."""
        self.x, self.y = x, y
        return self

    def predict(self, x: Any) -> Any:
        """Weighted averages."""
        import numpy as np
        from sklearn.metrics.pairwise import euclidean_distances

        squared = euclidean_distances(x, self.x, squared=True)
        weights = np.exp(self.gamma * (squared.min(1, keepdims=True) - squared))
        return weights @ self.y / weights.sum(1)


@dataclass(frozen=True)
class KernelRegression(EstimationAlgorithm):
    r"""Nadaraya and Watson's average of the labels with weights e^{-gamma ||q - x||^2}.

    .. math:: \hat y(q) = \sum_i y_i e^{-\gamma\|q - x_i\|^2} / \sum_i e^{-\gamma\|q - x_i\|^2}

    ``value`` are the fitted values at the samples, which a run computes and attests; samples and
    labels are copied for what is asked later.

    Parameters
    ----------
    gamma
        A number, or "scott" for the bandwidth n^(-1/(d + 4)) deviations, that is
        n^(2/(d + 4)) / (2 X.var()), or "scale" for 1 / (n_features X.var()).

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(Machine(2).run(KernelRegression(gamma=1.0), X, y).predictor(X).numpy().round(3))
    [-1.416  0.     1.416]
    """

    name: ClassVar[str] = "kernel"
    title: ClassVar[str] = "Kernel regression"
    task: ClassVar[str] = "regression"
    says: ClassVar[str] = "An average of all samples, the near ones first."
    objective: ClassVar[str] = "sum_j y_j k(x, x_j) / sum_j k(x, x_j), k = exp(-gamma |x - x'|^2)"
    lookup: ClassVar[str] = "nothing: softmax attention is the average"
    estimator: ClassVar[str] = "InContextKernelRegressor"
    family: ClassVar[str] = "average"
    peer: ClassVar[Peer | None] = Peer("sklearn.metrics.pairwise.euclidean_distances", made=_Peer)
    example = staticmethod(wave)

    gamma: float | str = setting(
        "scott",
        "The kernel is exp(-gamma |x - x'|^2).",
        kind=float,
        low=0,
        open="low",
        choices=("scott", "scale"),
        slider=C_SLIDER,
    )

    def gamma_for(self, source: ArraySource) -> float:
        """The number that ``gamma`` stands for on these data."""
        if not isinstance(self.gamma, str):
            return float(self.gamma)
        variance = float(source.x.var(correction=0))
        if not variance > 0:
            return 1.0
        if self.gamma == "scale":
            return 1 / (source.dim * variance)
        return float(source.rows ** (2 / (source.dim + 4)) / (2 * variance))

    def opening(self, machine: MachineRun, source: Source) -> SoftmaxAverage:
        """The samples themselves as the points that ask."""
        data = in_memory(source)
        x, _, _ = centred(data.x)
        points = x[: machine.machine.samples]
        return machine.kernel(x, data.y[:, None], points, self.gamma_for(data))

    def stream(self, machine: MachineRun, source: Source) -> Result:
        return self.recalled(machine, source, source.rows)

    def recalled(self, machine: MachineRun, source: Source, first: int) -> Result:
        """The averages at the first samples, and a copy of all samples that answers other points.

        The certificate is of the averages at all samples.
        """
        data = in_memory(source)
        machine.check_dim(source.dim)
        machine.machine.check_sees(source.rows)
        gamma = self.gamma_for(data)
        x, center, radius = centred(data.x)
        memory = KernelMemory(machine.machine, x, data.y.clone(), center, gamma, radius)
        certificate = memory.certificate(data.x)
        machine.ledger.note("prompt", _WRITTEN)
        if isinstance(self.gamma, str):
            machine.ledger.note("host", "gamma, from the variance of the samples")
        answer = replace(memory, machine=machine)(data.x[:first])
        if data.rows * data.x.numel() <= KEPT and len(answer) == data.rows:
            machine.ledger.note("host", "the proof: the exact algorithm again, in pairs of float64")
            certificate = _compared(answer, _again(data.x, data.y, data.x, gamma), certificate)
        return machine.result(answer, certificate, 1, parts={"gamma": gamma}, predictor=memory)

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        return self.exact(x, labels_of(y), x)

    def exact(self, x: Tensor, y: Tensor, points: Tensor) -> Tensor:
        """The exact kernel average at ``points`` (float64)."""
        distances = torch.cdist(
            points.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist"
        )
        gamma = self.gamma_for(ArraySource(x.double(), y.double()))
        return torch.softmax(-gamma * distances.square(), -1) @ y.double()


def _compared(found: Tensor, again: Doubled, before: Certificate) -> Certificate:
    """What the answer is off by from the algorithm done again; ``before`` if that is blurred.

    ``before`` holds for whatever the network may return; ``again`` encloses the exact answer on
    the data as they are.
    """
    gap, off = (float(part.max()) for part in again.apart(found))
    if not off < math.inf or before.error < off:
        return before
    told = replace(before, domain={**before.domain, "data": "as given"}, derivation=())
    return with_terms(
        told,
        {"distance from the exact answer": gap, "rounding of that": off},
        DerivationStep("before", "certified before the run", before.error, "whatever the data"),
        DerivationStep("gap", "largest |computed - exact|", gap, "exact: enclosed after the run"),
        DerivationStep("off", "what that may be off by", off, "pairs of float64, 98 bits"),
    )


def _again(x: Tensor, y: Tensor, points: Tensor, gamma: float) -> Doubled:
    """The exact averages at ``points``, enclosed."""
    apart = Doubled.exactly(points)[:, None] - Doubled.exactly(x)
    sharpness = Doubled.exactly(torch.tensor(gamma, dtype=torch.float64, device=x.device))
    logits = -sharpness * (apart * apart).sum()
    return softmax_average(logits, Doubled.exactly(y)[:, None])[:, 0]


@dataclass(frozen=True, eq=False)
class KernelMemory:
    """Training samples as a prompt: called with points, it answers their averages, shape (m,)."""

    machine: Machine | MachineRun
    x: Tensor  # centred
    y: Tensor
    center: Tensor
    gamma: float
    radius: float

    def __call__(self, points: Tensor) -> Tensor:
        q = check_near(points, self.center, self.radius)
        biggest = self.largest_logit(float(q.norm(dim=1).max()) if len(q) else 0.0)
        if not biggest <= LARGEST_LOGIT:
            raise BoundError(
                f"logits reach {biggest:.3g}, more than {LARGEST_LOGIT:.3g}; use a smaller gamma "
                f"than {self.gamma:.3g}, or scale the samples"
            )
        return self.machine.average(self.x, self.y[:, None], q, self.gamma)[:, 0]

    def largest_logit(self, far: float) -> float:
        """Of queries up to ``far`` from the center."""
        return self.gamma * (2 * far + self.radius) * self.radius

    def bounds(self, points: Tensor) -> Tensor:
        r"""What the averages at points may be off by, shape (m,).

        With w the exact weights, m the exact average and :math:`\delta_j` what the logit of sample
        j is off by, the computed weights have the average

        .. math:: m + \sum_j w_j (e^{\delta_j} - 1)(y_j - m) \Big/ \sum_j w_j e^{\delta_j},

        since :math:`\sum_j w_j (y_j - m) = 0`. A logit of d products, a bias and rounded keys is
        off by at most :math:`\tau_j = (d + 8) u \gamma (2 |q|.|x_j| + \|x_j\|^2)`, each exponential
        by four roundings, and the two sums of n terms by n roundings of their magnitudes.
        """
        q = check_near(points, self.center, self.radius)
        rows = max(1, ROOM // len(self.x))
        parts = [self._bounds(part) for part in q.split(rows)]
        return torch.cat(parts) if parts else q.new_zeros(0)

    def _bounds(self, q: Tensor) -> Tensor:
        n, dim = self.x.shape
        unit = unit_roundoff(self._stream.dtype)
        squares = self.x.square().sum(1)
        terms = 2 * q.abs() @ self.x.abs().mT + squares
        tau = (dim + 8) * unit * self.gamma * terms + 8 * unit
        logits = self.gamma * (2 * q @ self.x.mT - squares)
        weights = torch.softmax(logits, 1)
        far = (self.y - (weights @ self.y)[:, None]).abs()
        most = tau.amax(1)
        size = weights @ self.y.abs()
        moved = (2 * most).exp() * (weights * tau.expm1() * far).sum(1)
        added = 2 * (n + 8) * unit * size
        # These weights and averages are computed too, and so are off by as much, relatively; where
        # that is no small share, no average leaves the range of the labels.
        once = moved + added
        swing = self.y.max() - self.y.min()
        known = (1 + 4 * most) * once + 4 * most * (once + added)
        out = torch.where(most < SMALL, known, swing + added)
        return out + self._lost

    @property
    def _stream(self) -> Machine:
        return self.machine.machine if isinstance(self.machine, MachineRun) else self.machine

    @property
    def _lost(self) -> float:
        """Bound of what underflow loses: averaged labels are scaled to 2^-60 or more before."""
        least = torch.finfo(self._stream.dtype).smallest_normal * unit_roundoff(self._stream.dtype)
        return len(self.x) * least * 2.0**63 * float(self.y.abs().max()) + 4 * math.ulp(0.0)

    def _everywhere(self) -> float:
        """A bound for every query as far out as the samples, in one sweep over these."""
        (n, dim), size = self.x.shape, float(self.y.abs().max())
        unit = unit_roundoff(self._stream.dtype)
        tau = (dim + 8) * unit * (3 * self.gamma * self.radius**2 + 1)
        swing = float(self.y.max() - self.y.min())
        moved = min(math.expm1(min(2 * tau, 1.0)), 1.0) * swing  # two averages of the same labels
        return moved + 2 * (n + 8) * unit * size + self._lost

    def certificate(self, points: Tensor) -> Certificate:
        """Of the averages at points, the samples themselves, say."""
        n, dim = self.x.shape
        worst = float(self.bounds(points).max()) if len(points) <= _EACH else self._everywhere()
        return Certificate.total(
            {"rounding": worst},
            domain={
                "data": f"these {n} x {dim}, as given",
                "queries": f"these {len(points)}; predictor.bounds(points) for others",
            },
            dtype=self._stream.dtype,
            backend="fused",
            derivation=(
                DerivationStep(
                    "gamma", "sharpness", self.gamma, "logits are -gamma |q - x|^2 + ..."
                ),
                DerivationStep(
                    "error", "of the worst query", worst, "sum_j w_j (e^tau_j - 1) |y_j - mean|"
                ),
            ),
        )
