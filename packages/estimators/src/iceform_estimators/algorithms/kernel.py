r"""Kernel regression: softmax attention over the training samples, on either layout.

Softmax attention with keys 2 gamma x_j and biases -gamma ||x_j||^2 weighs sample j for a query q by
e^{-gamma ||q - x_j||^2} up to a factor that cancels: |x|^2 is a feature of a sample's token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.arithmetic.doubled import Doubled, softmax_average
from iceform.attention import Average, Features
from iceform.attention.lookups import LARGEST_LOGIT
from iceform.certificates import Certificate, Result, Step
from iceform.errors import BoundError, ProgramError
from iceform.validation import check_bound, unit_roundoff
from iceform_estimators.algorithms.descent import labels_of
from iceform_estimators.algorithms.examples import wave
from iceform_estimators.algorithms.memory import centred, check_near, in_memory
from iceform_estimators.algorithms.record import Algorithm, Peer, option
from iceform_estimators.machine import (
    ArraySource,
    Heads,
    Rows,
    Running,
    Sizes,
    Source,
    Stream,
    Target,
)
from iceform_estimators.machine.machine import balanced

_ROOM = 1 << 22  # weights at once
_SMALL = 1 << 16  # entries of all differences up to which samples are averaged again, exactly
_EACH = 1 << 13  # queries that get a bound each; of more, one for all
_CLEAR = 1e-3  # what logits may be off by before nothing but the labels' range is claimed
_WRITTEN = "samples, |x|^2 and labels, and the points that ask"
_UNREAD = 60.0  # e^-60: query tokens are kept out of the average by this margin
_STRAY = 2 * math.exp(-_UNREAD)  # what they carry into it all the same, on values up to 1


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
class KernelRegression(Algorithm):
    r"""Nadaraya and Watson's average of the labels with weights e^{-gamma ||q - x||^2}.

    .. math:: \hat y(q) = \sum_i y_i e^{-\gamma\|q - x_i\|^2} / \sum_i e^{-\gamma\|q - x_i\|^2}

    ``value`` are the fitted values at the samples, which a run computes and attests; samples and
    labels are copied for what is asked later.

    Parameters
    ----------
    gamma
        A number, or "scott" for the bandwidth n^(-1/(d + 4)) deviations, that is
        n^(2/(d + 4)) / (2 X.var()), or "scale" for 1 / (n_features X.var()); a number in rows.
    queries
        In rows: points answered per pass.
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

    gamma: float | str = field(
        default="scott",
        metadata=option(
            "The kernel is exp(-gamma |x - x'|^2).",
            kind=float,
            low=0,
            open="low",
            choices=("scott", "scale"),
            slider=(0.1, 1000),
        ),
    )
    queries: int = 16

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

    # ------------------------------------------------------------------------------------ stream

    def opening(self, machine: Running, source: Source) -> Average:
        """The samples themselves as the points that ask."""
        data = in_memory(source)
        x, _, _ = centred(data.x)
        points = x[: machine.machine.samples]
        return machine.kernel(x, data.y[:, None], points, self.gamma_for(data))

    def stream(self, machine: Running, source: Source) -> Result:
        return self.recalled(machine, source, source.rows)

    def recalled(self, machine: Running, source: Source, first: int) -> Result:
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
        if data.rows * data.x.numel() <= _SMALL and len(answer) == data.rows:
            again = lambda: _again(data.x, data.y, data.x, gamma)  # noqa: E731
            certificate = machine.compared(answer, again, 0, certificate)
        return machine.result(answer, certificate, 1, parts={"gamma": gamma}, _predict=memory)

    # -------------------------------------------------------------------------------------- rows

    def _features(self, dim: int) -> Features:
        return Features.of(x=dim, square=1, y=1, is_query=1)

    def _number(self) -> float:
        """gamma, for a layout whose weights are sized by it."""
        if isinstance(self.gamma, str):
            raise ProgramError(
                f"gamma = {self.gamma!r} depends on the data, and a machine in rows is sized by "
                "it; give a number, or use layout='stream'"
            )
        return float(self.gamma)

    def sizes(self, dim: int, samples: int) -> Sizes:
        scale = self._number()
        k, q = self._spans(dim, samples, scale)
        weights = self._weights(dim, samples, scale)
        return Sizes(
            tokens=samples + self.queries,
            features=self._features(dim).total,
            head_dim=dim + 2,
            value_dim=1,
            bound=float(max(1, dim)),
            weight_bound=max(float(w.abs().max()) for w in weights),
            reach=1.001 * float((k * q).sqrt().max().clamp(min=1.0)),
            logits=float((k * q).sum()),
            nonzeros=1,
        )

    def _margin(self, dim: int, samples: int, scale: float) -> float:
        # On |x|, |q| <= 1 the best sample's logit is at least -3 d scale, and a query token, which
        # has a point but no square, reaches 2 d scale as a key.
        return 5 * dim * scale + math.log(self.queries) + _UNREAD

    def _spans(self, dim: int, samples: int, scale: float) -> tuple[Tensor, Tensor]:
        k = [2 * scale] * dim + [scale * dim, self._margin(dim, samples, scale)]
        return torch.tensor(k, dtype=torch.float64), torch.ones(dim + 2, dtype=torch.float64)

    def _weights(self, dim: int, samples: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        at = self._features(dim)
        eye = torch.eye(dim, dtype=torch.float64)
        w_k = torch.zeros(dim + 2, at.total, dtype=torch.float64)
        w_k[:dim, at["x"]] = 2 * scale * eye
        w_k[dim, at["square"]] = -scale
        w_k[dim + 1, at["is_query"]] = -self._margin(dim, samples, scale)
        w_q = torch.zeros_like(w_k)
        w_q[:dim, at["x"]] = eye
        w_q[dim:, at["is_query"]] = 1.0
        w_v = torch.zeros(1, at.total, dtype=torch.float64)
        w_v[:, at["y"]] = 1.0
        return *balanced(w_k, w_q, *self._spans(dim, samples, scale)), w_v

    def _target(self, x: Tensor, y: Tensor, points: Tensor, scale: float) -> Target:
        n, dim = x.shape
        at = self._features(dim)
        tokens = x.new_zeros(n + len(points), at.total)
        tokens[:n, at["x"]], tokens[n:, at["x"]] = x, points
        tokens[:n, at["square"]] = x.square().sum(-1, keepdim=True)
        tokens[:n, at["y"]] = y[:, None]
        tokens[n:, at["is_query"]] = 1.0
        w_k, w_q, w_v = (w.to(x) for w in self._weights(dim, n, scale))
        return Target(tokens, w_k, w_q, w_v, slice(n, None))

    def targets(self, x: Tensor, y: Tensor | None) -> Target:
        return self._target(x, labels_of(y), x[: self.queries], self._number())

    def _answer(
        self, machine: Heads, x: Tensor, y: Tensor, points: Tensor
    ) -> tuple[Tensor, float, int]:
        check_bound("x", x, 1.0, "scale the samples into [-1, 1]")
        check_bound("y", y, 1.0, "scale the labels into [-1, 1]")
        check_bound("points", points, 1.0, "predict inside [-1, 1]")
        parts, worst = [], 0.0
        chunks = torch.split(points, self.queries)
        scale = self._number()
        for chunk in chunks:
            out, error = machine.attend(self._target(x, y, chunk, scale))
            parts.append(out[:, 0])
            worst = max(worst, error + _STRAY)
        worst += 2 * machine.slip(self.sizes(x.shape[1], len(x)).logits, x.shape[1])
        return torch.cat(parts), worst, len(chunks)

    def rows(self, machine: Heads, x: Tensor, y: Tensor | None) -> Result:
        labels = labels_of(y)
        fitted, error, passes = self._answer(machine, x, labels, x)
        certificate = machine.certificate(
            {"machine": error},
            {"samples x dim": f"{x.shape[0]} x {x.shape[1]}", "max |x|": 1.0, "max |y|": 1.0},
        )
        certificate = machine.compared(
            fitted, lambda: _again(x, labels, x, self._number()), len(x) * x.numel(), certificate
        )
        memory = _RowsMemory(self, machine.machine, x, labels)
        machine.ledger.note("prompt", _WRITTEN)
        return machine.result(
            fitted, certificate, passes, parts={"gamma": self._number()}, _predict=memory
        )

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        return self.exact(x, labels_of(y), x)

    def exact(self, x: Tensor, y: Tensor, points: Tensor) -> Tensor:
        """The exact kernel average at ``points`` (float64)."""
        distances = torch.cdist(
            points.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist"
        )
        gamma = self.gamma_for(ArraySource(x.double(), y.double()))
        return torch.softmax(-gamma * distances.square(), -1) @ y.double()


def _again(x: Tensor, y: Tensor, points: Tensor, gamma: float) -> Doubled:
    """The exact averages at ``points``, enclosed."""
    apart = Doubled.exactly(points)[:, None] - Doubled.exactly(x)
    sharpness = Doubled.exactly(torch.tensor(gamma, dtype=torch.float64, device=x.device))
    logits = -sharpness * (apart * apart).sum()
    return softmax_average(logits, Doubled.exactly(y)[:, None])[:, 0]


@dataclass(frozen=True, eq=False)
class _RowsMemory:
    """The run's copies of samples and labels; every call is a run of its own."""

    model: KernelRegression
    machine: Rows
    x: Tensor
    y: Tensor

    def __call__(self, points: Tensor) -> Tensor:
        return self.model._answer(self.machine.start(), self.x, self.y, points)[0]


@dataclass(frozen=True, eq=False)
class KernelMemory:
    """Training samples as a prompt: called with points, it answers their averages, shape (m,)."""

    machine: Stream | Running
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
        rows = max(1, _ROOM // len(self.x))
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
        out = torch.where(most < _CLEAR, known, swing + added)
        return out + self._lost

    @property
    def _stream(self) -> Stream:
        return self.machine.machine if isinstance(self.machine, Running) else self.machine

    @property
    def _lost(self) -> float:
        """What underflows: labels are averaged in units of which they are 2^-60 or more."""
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
                Step("gamma", "sharpness", self.gamma, "logits are -gamma |q - x|^2 + ..."),
                Step("error", "of the worst query", worst, "sum_j w_j (e^tau_j - 1) |y_j - mean|"),
            ),
        )
