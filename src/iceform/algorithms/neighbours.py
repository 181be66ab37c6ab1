r"""Nearest neighbours: sharp attention over the training samples.

With keys 2 gamma x_j, biases -gamma ||x_j||^2 and a gamma as large as float64 allows, a query reads
the one nearest sample; hiding that sample from the next prompt gives the second, and so on.

**Weights 1/distance.** Distances are taken between samples and queries as they were given, not from
their mean: fl(q_i - x_i) = (q_i - x_i)(1 + d), |d| <= u, however close the two are, and it is 0 if
and only if they are equal. These differences are multiplied by a power of two so that the largest
is about 1, and squared: nothing underflows that counts. With d features the sum of squares is off
by a factor within 1 +- (d + 2) u, its root by half of that and u. Weights are proportional to the
inverses, each within 1 +- (d/2 + 4) u of a common multiple of the exact one, and the mean of k
labels of at most L by them is within (d + 2k + 16) u L of exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from iceform.algorithms.examples import blobs, wave
from iceform.algorithms.memory import centred, check_labels, check_near, in_memory
from iceform.algorithms.record import Algorithm, Peer, option
from iceform.arithmetic import exponent_of, times_power
from iceform.attention import Average
from iceform.certificates import Certificate, Result, Step
from iceform.errors import ProgramError
from iceform.machine import Running, Source, Stream
from iceform.machine.stream import LARGEST_LOGIT

__all__ = ["KNeighbors", "KNeighborsVote", "NeighborsMemory", "sharpest"]

_UNIT = torch.finfo(torch.float64).eps / 2
_SUBNORMAL = 2.0**-1074
_LEDGER = (
    ("prompt", "samples less their mean, |x|^2, their numbers, and the points that ask"),
    ("host", "which logits are largest, in place of the sharp reads that return them"),
)
_CLEAR = 40.0  # logits this far apart leave e^-40 of the farther one


@dataclass(frozen=True)
class KNeighbors(Algorithm):
    """The mean label of the k nearest training samples of a query.

    Samples whose squared distances differ by less than about 1e-10 of the square of the extent of
    the query and all samples in question count as equally near, and the earlier one is taken. Where
    many do, another prompt holds only those in question, around their own mean: it is as much
    sharper as they lie closer together. ``value`` are the fitted values at the samples.

    Parameters
    ----------
    n_neighbors
        k.
    weights
        "uniform" or "distance" (by the inverse of the distance; samples that are the query itself
        share all of the weight).
    """

    name: ClassVar[str] = "knn"
    title: ClassVar[str] = "Nearest neighbours"
    task: ClassVar[str] = "regression"
    says: ClassVar[str] = "An average of the nearest samples."
    objective: ClassVar[str] = "mean of y over the n_neighbors samples nearest to x"
    lookup: ClassVar[str] = "nothing: cold softmax attention finds the nearest"
    estimator: ClassVar[str] = "InContextKNeighborsRegressor"
    family: ClassVar[str] = "neighbours"
    peer: ClassVar[Peer | None] = Peer("sklearn.neighbors.KNeighborsRegressor")
    example = staticmethod(wave)

    n_neighbors: int = field(
        default=5, metadata=option("How many neighbours are averaged.", low=1, slider=(1, 50))
    )
    weights: str = field(
        default="uniform",
        kw_only=True,
        metadata=option(
            "How they are weighed: uniform, or by the inverse of the distance.",
            choices=("uniform", "distance"),
        ),
    )

    def opening(self, machine: Running, source: Source) -> Average:
        """The sharpest average, the samples themselves asking."""
        data = in_memory(source)
        x, _, radius = centred(data.x)
        points = x[: machine.machine.samples]
        return machine.kernel(x, data.y[:, None], points, sharpest(radius, radius))

    def stream(self, machine: Running, source: Source) -> Result:
        k, data = self.n_neighbors, in_memory(source)
        machine.check_dim(source.dim)
        if k > source.rows:
            raise ProgramError(
                f"n_neighbors = {k} but n_samples = {source.rows}; ask for fewer neighbours"
            )
        machine.machine.check_sees(source.rows)
        x, center, radius = centred(data.x)
        check_labels(data.y)
        memory = NeighborsMemory(
            machine.machine, data.x.clone(), x, data.y.clone(), center, k, radius, self.weights
        )
        for where, what in _LEDGER:
            machine.ledger.note(where, what)
        return machine.result(
            lambda: memory(memory.samples), memory.certificate(), k, _predict=memory
        )


@dataclass(frozen=True)
class KNeighborsVote(KNeighbors):
    """The most frequent class among the k nearest training samples.

    Parameters
    ----------
    n_neighbors, weights
        As for :class:`KNeighbors`.
    """

    name: ClassVar[str] = "knn-classifier"
    title: ClassVar[str] = "Nearest neighbours"
    task: ClassVar[str] = "classification"
    says: ClassVar[str] = "The most frequent class among the nearest samples."
    objective: ClassVar[str] = "mode of y over the n_neighbors samples nearest to x"
    estimator: ClassVar[str] = "InContextKNeighborsClassifier"
    family: ClassVar[str] = "vote"
    peer: ClassVar[Peer | None] = Peer("sklearn.neighbors.KNeighborsClassifier")
    example = staticmethod(blobs)


@dataclass(frozen=True, eq=False)
class NeighborsMemory:
    """Training samples as a prompt, read k times; called with points, it answers their means."""

    machine: Stream
    samples: Tensor  # as given
    x: Tensor  # centred
    y: Tensor
    center: Tensor
    k: int
    radius: float
    weights: str = "uniform"

    def certificate(self) -> Certificate:
        """Which distances are told apart; labels are then averaged exactly, up to rounding."""
        size = check_labels(self.y)
        resolution = _CLEAR / sharpest(self.radius, self.radius)
        weighing = 2 * self.k + self.x.shape[1] + 16 if self.weights == "distance" else 0
        return Certificate.total(
            {
                "mass of farther samples": 2 * len(self.x) * math.exp(-_CLEAR) * size,
                "weights": weighing * _UNIT * size,
                "rounding": (self.k + len(self.x) + 8) * _UNIT * size + 2 * self.k * _SUBNORMAL,
            },
            domain={
                "data": f"these {self.x.shape[0]} x {self.x.shape[1]}, as given",
                "squared distances": f"told apart when they differ by more than {resolution:.3g}",
                "queries": "as far out as the samples; farther ones are told apart less well",
            },
            dtype=torch.float64,
            backend="fused",
            derivation=(
                Step("gap", "squared distances told apart", resolution, "40 / largest gamma"),
            ),
        )

    def neighbors(self, points: Tensor) -> Tensor:
        """Indices of the k nearest samples of each point, nearest first, shape (m, k)."""
        q = check_near(points, self.center, self.radius)
        if not len(q):
            return torch.zeros(0, self.k, dtype=torch.long)
        self.machine.check_sees(len(self.x))
        gamma = sharpest(self.radius, float(q.norm(dim=1).max()))
        bias = -gamma * self.x.square().sum(-1)
        parts = []
        at_once = self.machine.samples
        for chunk, given in zip(q.split(at_once), points.split(at_once), strict=True):
            parts.append(self._read(given, 2 * gamma * chunk @ self.x.mT + bias))
        return torch.cat(parts)

    def _read(self, points: Tensor, logits: Tensor) -> Tensor:
        """K sharp reads of each row, each hiding the samples read before."""
        most = min(self.k + 1, logits.shape[1])
        top = logits.topk(most, dim=1)
        # Where consecutive logits are clear of each other, a sharp read returns them in order.
        clear = (top.values.diff(dim=1) < -_CLEAR).all(1)
        found = top.indices[:, : self.k].clone()
        for row in torch.nonzero(~clear).flatten().tolist():
            found[row] = self._zoom(points[row], logits[row])
        return found

    def _zoom(self, point: Tensor, logits: Tensor) -> Tensor:
        """Reads of prompts that hold ever fewer samples, as long as these lie closer together."""
        among = torch.arange(len(logits), device=logits.device)
        reach = math.inf
        while True:
            least = float(logits.topk(self.k).values[-1])
            close = logits >= least - 2 * _CLEAR
            x = self.samples[among[close]]
            center = x.mean(0)
            radius = float((x - center).norm(dim=1).max())
            query = point - center
            narrower = (2 * float(query.norm()) + radius) * radius
            if not 0 < narrower < 0.5 * reach:
                return among[self._read_slowly(logits)]
            among, reach = among[close], narrower
            gamma = sharpest(radius, float(query.norm()))
            logits = 2 * gamma * (x - center) @ query - gamma * (x - center).square().sum(-1)

    def _read_slowly(self, logits: Tensor) -> Tensor:
        """Reads that return a mean of equally near samples' numbers are repeated on the earlier."""
        places = torch.arange(len(logits), dtype=logits.dtype, device=logits.device)
        hidden = torch.zeros_like(logits, dtype=torch.bool)
        found = []
        for _ in range(self.k):
            unseen = hidden.clone()
            while True:
                weights = torch.softmax(logits.masked_fill(unseen, -math.inf), 0)
                mean = float(weights @ places)
                spread = float(weights @ (places - mean).square())
                if spread <= 1e-6:
                    break
                # Of two or more equally near ones the earliest lies below their mean.
                unseen = unseen | (places >= mean)
            found.append(round(mean))
            hidden[found[-1]] = True
        return torch.tensor(found, device=logits.device)

    def shares(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """The neighbours' indices, and weights that sum to 1, shape (m, k) each."""
        found = self.neighbors(points)
        if self.weights == "uniform":
            return found, torch.full(found.shape, 1 / self.k, dtype=points.dtype).to(points)
        length, exponent = self._apart(points, found)
        exact = length == 0
        # Inverses relative to the nearest one's power of two: they do not overflow.
        inverse = times_power(1 / length, exponent.amin(1, keepdim=True) - exponent)
        near = torch.where(exact.any(1, keepdim=True), exact.to(inverse), inverse)
        return found, near / near.sum(1, keepdim=True)

    def distances(self, points: Tensor, found: Tensor) -> Tensor:
        """Of points to samples, shape (m, k)."""
        return times_power(*self._apart(points, found))

    def _apart(self, points: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        """Distances as l 2^e with 1/2 <= l <= sqrt(d), or l = 0: (m, k) each."""
        apart: Tensor = points[:, None, :] - self.samples[found]
        exponent = exponent_of(apart.abs().amax(-1))
        scaled = times_power(apart, -exponent[..., None])
        return scaled.square().sum(-1).sqrt(), exponent

    def __call__(self, points: Tensor) -> Tensor:
        """Mean label of the k nearest samples, shape (m,)."""
        found, shares = self.shares(points)
        if self.weights == "uniform":
            return self.y[found].mean(1)
        return (self.y[found] * shares).sum(1)


def sharpest(radius: float, queries: float) -> float:
    """The largest gamma whose logits stay within what float64 rounds well."""
    reach = (2 * queries + radius) * radius
    return LARGEST_LOGIT / reach if reach > 0 else 1.0
