r"""Nearest neighbours: sharp reads of the training samples, each hiding those read before.

**A read.** With keys 2 gamma x_j and biases -gamma ||x_j||^2 softmax attention weighs sample j for
a query q by e^{-gamma ||q - x_j||^2}. Its values are the samples' numbers (:class:`IndexCodes`),
which say what was read: if their variance is small, one sample weighs 3/4 or more and its logit is
the largest by ln 3. Logits are off by at most :math:`\tau = (d + 8) u \gamma (2 \|q\| + R) R` each
for samples within R of the origin; gamma is the largest with :math:`\tau \le 1/2`, and none above
2^40 / ((2 ||q|| + R) R). As 2 tau < ln 3, what was read *is* the nearest sample that the query
sees. In the next read it is hidden from this query, and so k reads find k neighbours.

**A closer read.** Where a read mixes samples, another one with values (x, ||x||^2) returns their
mean mu and their spread sigma. Around mu, with :math:`\rho = \max(4 \|q - \mu\|, 8 \sigma)` for R,
gamma is larger. Samples farther than rho from mu are farther than 3 rho/4 from q; so what is read
there is the nearest if it lies within rho/2 of mu. This goes on while it makes gamma twice as large
and the spread is more than rounding.

**Ties.** Samples still mixed count as equally near. From the first one at or after their mean
number on all are hidden, and so on until one is read. The numbers below the mean keep at least
1/(64 n^2) of a mixture's weight, so the one found is farther than the nearest by at most
:math:`(1 + \log_2(2 n) \ln(64 n^2))/\gamma`; of exactly equal ones it is the earliest.

**The answer** is one more read: keys 0, all but the k neighbours hidden, biases 0 or the logarithms
of the weights, and labels as values.

**Weights 1/distance.** Distances are taken between samples and queries as they were given, not from
their mean: fl(q_i - x_i) = (q_i - x_i)(1 + d), |d| <= u, however close the two are, and it is 0 if
and only if they are equal. These differences are multiplied by a power of two so that the largest
is about 1, and squared: nothing underflows that counts. With d features the sum of squares is off
by a factor within 1 +- (d + 2) u, its root by half of that and u; what that and their logarithms do
to a mean is in :meth:`NeighborsMemory.certificate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.arithmetic import at_most, exponent_of, times_power
from iceform.certificates import Certificate, DerivationStep, Result
from iceform.errors import BoundError, PrecisionError, ProgramError
from iceform.heads import LARGEST_LOGIT, SoftmaxAverage
from iceform.validation import unit_roundoff
from iceform_estimators.algorithms.examples import blobs, wave
from iceform_estimators.algorithms.in_memory import centred, check_labels, check_near, in_memory
from iceform_estimators.algorithms.index_codes import IndexCodes
from iceform_estimators.algorithms.record import EstimationAlgorithm, Peer, setting
from iceform_estimators.machine import Machine, MachineRun, Source
from iceform_estimators.tuning import ROOM, SMALLEST

_SUBNORMAL = math.ulp(0.0)
_LEDGER = (
    ("prompt", "samples less a centre, |x|^2, their numbers, and the points that ask"),
    ("prompt", "which samples are hidden from a point: those it read before"),
    ("readout", "the mean and the spread of the numbers read"),
    ("host", "the mean of the samples, and the largest distance from it: how sharp a read can be"),
    ("host", "whether a read is of one sample, by its spread, and which, by rounding its mean"),
)
_CLOSER = "centre and sharpness of a closer read, from the mean and the spread of what was read"


@dataclass(frozen=True)
class KNeighbors(EstimationAlgorithm):
    """The mean label of the k nearest training samples of a query.

    Samples whose squared distances differ by less than about 1e-10 of the square of the extent of
    the query and all samples in question count as equally near, and the earlier one is taken. Where
    a read mixes several, another one is sharper around their mean, as much as they lie closer
    together. ``value`` are the fitted values at the samples, which a run computes and attests;
    samples and labels are copied for what is asked later.

    Parameters
    ----------
    n_neighbors
        k.
    weights
        "uniform" or "distance" (by the inverse of the distance; samples that are the query itself
        share all of the weight).

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(Machine(2).run(KNeighbors(n_neighbors=1), X, y).predictor(X + 0.1).numpy())
    [-2.  0.  2.]
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

    n_neighbors: int = setting(5, "How many neighbours are averaged.", low=1, slider=(1, 50))
    _: KW_ONLY
    weights: str = setting(
        "uniform",
        "How they are weighed: uniform, or by the inverse of the distance.",
        choices=("uniform", "distance"),
    )

    def opening(self, machine: MachineRun, source: Source) -> SoftmaxAverage:
        """The first read, the samples themselves asking."""
        data = in_memory(source)
        x, _, radius = centred(data.x)
        points, places = x[: machine.machine.samples], IndexCodes.of(len(x), machine.machine.dtype)
        values = places.values(x)[:, :2]
        gamma = sharpest(radius, radius, x.shape[1], machine.machine.dtype)
        return machine.kernel(x, values, points, gamma)

    def stream(self, machine: MachineRun, source: Source) -> Result:
        return self.recalled(machine, source, source.rows)

    def recalled(self, machine: MachineRun, source: Source, first: int) -> Result:
        """The means at the first samples, and a copy of all samples that answers other points.

        The certificate is of the means at all samples.
        """
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
        if self.weights == "distance":
            machine.ledger.note("host", "distances of the neighbours, and their logarithms")
        answer = replace(memory, machine=machine)(memory.samples[:first])
        return machine.result(answer, memory.certificate(), k + 1, predictor=memory)


@dataclass(frozen=True)
class KNeighborsVote(KNeighbors):
    """The most frequent class among the k nearest training samples.

    Parameters
    ----------
    n_neighbors, weights
        As for :class:`KNeighbors`.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(Machine(2).run(KNeighborsVote(n_neighbors=1), X, y.sign()).predictor(X).numpy())
    [-1.  0.  1.]
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
class _Frame:
    """Samples less a centre, for reads as sharp as logits of those within a radius allow.

    Attributes
    ----------
    x
        The samples, shape (n, d).
    points
        The queries, shape (m, d), around the same centre.
    radius
        R, or rho where samples may be farther out.
    gamma
        How sharp.
    """

    x: Tensor
    points: Tensor
    radius: float
    gamma: float

    @property
    def reach(self) -> float:
        """(2 ||q|| + R) R."""
        return (2 * _longest(self.points) + self.radius) * self.radius

    def some(self, rows: Tensor) -> _Frame:
        """For some queries."""
        return replace(self, points=self.points[rows])


@dataclass(frozen=True, eq=False)
class _Mixture:
    """Samples that a read has mixed: mean, spread, and whether the spread is only rounding."""

    mean: Tensor
    spread: float
    flat: bool


@dataclass(frozen=True, eq=False)
class NeighborsMemory:
    """Training samples as a prompt, read k times; called with points, it answers their means."""

    machine: Machine | MachineRun
    samples: Tensor  # as given
    x: Tensor  # centred
    y: Tensor
    center: Tensor
    k: int
    radius: float
    weights: str | Callable[[Any], Any] = "uniform"  # or weights of distances, (m, k) to (m, k)

    @property
    def _stream(self) -> Machine:
        return self.machine.machine if isinstance(self.machine, MachineRun) else self.machine

    @property
    def _unit(self) -> float:
        return unit_roundoff(self._stream.dtype)

    @property
    def _sharpest(self) -> float:
        return sharpest(self.radius, self.radius, self.x.shape[1], self._stream.dtype)

    @property
    def resolution(self) -> float:
        """Squared distances of queries no farther out than the samples that are told apart."""
        return _resolution(len(self.x)) / self._sharpest

    def certificate(self) -> Certificate:
        r"""Which distances are told apart; labels are then averaged exactly, up to rounding.

        **Sums.** k labels, each cast, times a quotient, and k - 1 additions: (k + 2) u of the mean
        of their sizes, which is at most that of the k largest. One label is cast, and no more.

        **Weights.** Off by :math:`e^{\delta_j}` they move an average m by at most
        :math:`\sum_j w_j |\delta_j| |y_j - m|`, where :math:`\sum_j w_j |y_j - m|` is at most
        half the range of the labels. An exponential is off by 4 u. In float64 a logarithm of a
        distance is off by (d/2 + 2) u for its sum of d squares and by 8 u of ln l,
        1/2 <= l <= sqrt(d); a cast and at most four roundings are of its own size
        :math:`b_j = |\ln(w_j/\max w)|`. Of k numbers :math:`0 < \omega_j \le 1`, one of them 1,
        :math:`\sum_j \omega_j |\ln \omega_j| / \sum_j \omega_j` is largest where the others
        are equal, and is W((k - 1)/e) <= ln(1 + (k - 1)/e) there; with |y_j - m| at most the range
        that bounds what roundings of size b_j do. Weights of a function of one's own are taken as
        it returns them: divided, and their logarithm 8 u of its size.
        """
        (n, dim), k, unit = self.x.shape, self.k, self._unit
        check_labels(self.y)
        gamma, resolution = self._sharpest, self.resolution
        half = float(self.y.max() / 2 - self.y.min() / 2)
        size = float(self.y.abs().topk(k).values.div(k).sum())
        own = 2 * math.log1p((k - 1) / math.e)
        host = unit_roundoff(torch.float64)
        weighing = 0.0 if k == 1 else 4 * unit
        if callable(self.weights) and k > 1:
            weighing += host + (unit + 12 * host) * own
        elif self.weights == "distance" and k > 1:
            logs = dim / 2 + 2 + 8 * max(math.log(2), math.log(dim) / 2)
            weighing += host * logs + (unit + 4 * host) * own
        lost = 4 * torch.finfo(self._stream.dtype).tiny * float(self.y.abs().max())
        added = (k + 2) * unit if k > 1 else unit
        return Certificate.total(
            {
                "weights": weighing * half,
                "rounding": (added * size + k * lost) * (1 + 2.0**-20) + 2 * _SUBNORMAL,
            },
            domain={
                "data": f"these {n} x {dim}, as given",
                "squared distances": "told apart when they differ by more than "
                + at_most(resolution, ".3g"),
                "queries": "as far out as the samples; farther ones are told apart less well",
            },
            dtype=self._stream.dtype,
            backend="fused",
            derivation=(
                DerivationStep(
                    "gamma", "sharpness of a read", gamma, "logits round by at most 1/2"
                ),
                DerivationStep(
                    "gap", "squared distances told apart", resolution, "of a read, over gamma"
                ),
            ),
        )

    # ------------------------------------------------------------------------------------- reads

    def neighbors(self, points: Tensor, *, others: bool = False) -> Tensor:
        """Indices of the k nearest samples of each point, nearest first, shape (m, k).

        ``others``: the points are the samples themselves, and none is its own neighbour.
        """
        found = [part for part, _ in self._chunks(points, others)]
        return torch.cat(found) if found else torch.zeros(0, self.k, dtype=torch.long)

    def _chunks(self, points: Tensor, others: bool = False) -> list[tuple[Tensor, Tensor]]:
        """Neighbours of the points, as many at a time as there is room for, and these points."""
        if others:
            one_more = replace(self, k=self.k + 1)._chunks(points)
            own = torch.arange(len(points), device=points.device)
            parts = own.split([len(part) for part, _ in one_more])
            return [
                (_without(found, at), part)
                for (found, part), at in zip(one_more, parts, strict=True)
            ]
        q = check_near(points, self.center, self.radius)
        self._stream.check_sees(len(self.x))
        run = self.machine if isinstance(self.machine, MachineRun) else self.machine.start()
        gamma = sharpest(self.radius, _longest(q), self.x.shape[1], self._stream.dtype)
        at_once = max(1, ROOM // len(self.x))
        return [
            (
                _NeighbourReads(run, self.samples, self.k).find(
                    _Frame(self.x, part, self.radius, gamma), own
                ),
                own,
            )
            for part, own in zip(q.split(at_once), points.split(at_once), strict=True)
            if len(part)
        ]

    def average(self, points: Tensor, values: Tensor, *, others: bool = False) -> Tensor:
        """The mean of the neighbours' values, shape (m, v) for values (n, v): one more read."""
        run = self.machine if isinstance(self.machine, MachineRun) else self.machine.start()
        out = [points.new_zeros(0, values.shape[1])]
        for found, own in self._chunks(points, others):
            logs = own.new_zeros(len(own), len(self.x))
            seen = torch.zeros_like(logs, dtype=torch.bool).scatter_(1, found, value=True)
            if self.weights != "uniform":
                weights = self._logs(own, found)
                logs.scatter_(1, found, weights.clamp(min=-_FAR))
                seen.scatter_(1, found, weights > -_FAR)
            width = self._stream.dim + 1
            reads = [run.weighed(logs, part, seen) for part in values.split(width, 1)]
            out.append(torch.cat(reads, 1))
        return torch.cat(out)

    def _logs(self, points: Tensor, found: Tensor) -> Tensor:
        """Logarithms of 1/distance, relative to the largest, shape (m, k).

        Samples that are the query itself leave the others nothing. Or of what ``weights`` returns.
        """
        if callable(self.weights):
            return self._given(points, found)
        length, exponent = self._apart(points, found)
        exact = length == 0
        lengths = torch.where(exact, 1.0, length).log()
        powers = exponent.amin(1, keepdim=True) - exponent  # of two: differences are exact
        logs = math.log(2.0) * powers.to(lengths) - lengths
        logs = logs - logs.amax(1, keepdim=True)
        near = torch.where(exact, 0.0, -math.inf).to(logs)
        return torch.where(exact.any(1, keepdim=True), near, logs)

    def _given(self, points: Tensor, found: Tensor) -> Tensor:
        assert callable(self.weights)
        apart = self.distances(points, found)
        given = torch.as_tensor(self.weights(apart.cpu().numpy())).to(apart)
        if given.shape != apart.shape or not bool(((given >= 0) & given.isfinite()).all()):
            raise BoundError(
                f"weights must be a function from distances {tuple(apart.shape)} to as many "
                f"numbers >= 0, got {tuple(given.shape)}; weigh every neighbour"
            )
        most = given.amax(1, keepdim=True)
        if not bool((most > 0).all()):
            raise BoundError(
                "All neighbors of some sample is getting zero weights. Please modify 'weights' to "
                "avoid this case if you are using a user-defined function."
            )
        return (given / most).log()

    def distances(self, points: Tensor, found: Tensor) -> Tensor:
        """Distances from points to the samples with these indices, shape (m, k)."""
        return times_power(*self._apart(points, found))

    def _apart(self, points: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        """Distances as l 2^e with 1/2 <= l <= sqrt(d), or l = 0: (m, k) each."""
        apart: Tensor = points[:, None, :] - self.samples[found]
        exponent = exponent_of(apart.abs().amax(-1))
        scaled = times_power(apart, -exponent[..., None])
        return scaled.square().sum(-1).sqrt(), exponent

    def bounds(self, points: Tensor) -> Tensor:
        """Error bounds of the means, where neighbours are told apart, shape (m,)."""
        return points.new_full((len(points),), self.certificate().error)

    def __call__(self, points: Tensor) -> Tensor:
        """Mean label of the k nearest samples, shape (m,)."""
        return self.average(points, self.y[:, None])[:, 0]


def _without(found: Tensor, own: Tensor) -> Tensor:
    """One index fewer in every row: its own, or the last where that is not among them."""
    keep = found != own[:, None]
    keep[keep.all(1), -1] = False
    return found[keep].reshape(len(found), -1)


_FAR = 1 - math.log(math.ulp(0.0))  # e^-FAR is no number: such a sample is hidden


class _NeighbourReads:
    """Reads of one run: what is seen, what came back, and what that says.

    Parameters
    ----------
    run
        The machine.
    samples
        As given.
    k
        How many neighbours.
    """

    def __init__(self, run: MachineRun, samples: Tensor, k: int) -> None:
        self.run, self.samples, self.k = run, samples, k
        self.places = IndexCodes.of(len(samples), run.machine.dtype)
        self.numbers = self.places.values(samples)

    def find(self, frame: _Frame, points: Tensor) -> Tensor:
        """The k nearest of every point, shape (m, k)."""
        seen = torch.ones(len(points), len(self.samples), dtype=torch.bool, device=points.device)
        found = []
        for _ in range(self.k):
            found.append(self._nearest(frame, points, seen))
            seen = seen.scatter(1, found[-1][:, None], value=False)
        return torch.stack(found, 1)

    def _nearest(self, frame: _Frame, points: Tensor, seen: Tensor) -> Tensor:
        """The nearest sample that each point sees."""
        number, clear, mean = self._places(frame, seen)
        mixed = torch.nonzero(~clear).flatten()
        if not len(mixed):
            return number
        equal = []
        inners = self._mixtures(frame.some(mixed), seen[mixed])
        for row, inner in zip(mixed.tolist(), inners, strict=True):
            here = frame.some(torch.tensor([row], device=points.device))
            one = self._zoom(here, inner, points[row], seen[row : row + 1])
            if one is None:
                equal.append(row)
            else:
                number[row] = one
        if equal:
            rows = torch.tensor(equal, device=points.device)
            number[rows] = self._earliest(frame.some(rows), seen[rows], mean[rows])
        return number

    def _places(self, frame: _Frame, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Decode a read: the nearest number, whether it is one sample's, the mean number."""
        width = 2 * ((self.run.machine.dim + 1) // 2)
        parts = [self._read(frame, part, seen) for part in self.numbers.split(width, 1)]
        return self.places.read(torch.cat(parts, 1))

    def _mixtures(self, frame: _Frame, seen: Tensor) -> list[_Mixture]:
        """Mean and spread of the samples that each read has mixed."""
        self.run.ledger.note("host", _CLOSER, len(seen))
        squares = frame.x.square().sum(1, keepdim=True)
        rows = self._read(frame, torch.cat([frame.x, squares], 1), seen)
        mean, square = rows[:, :-1], rows[:, -1]
        noise = 16 * unit_roundoff(self.run.machine.dtype) * square
        spread = square - mean.square().sum(1)
        flat, wide = spread <= noise, (spread + noise).clamp(min=0).sqrt()
        return [_Mixture(*each) for each in zip(mean, wide.tolist(), flat.tolist(), strict=True)]

    def _read(self, frame: _Frame, values: Tensor, seen: Tensor) -> Tensor:
        return self.run.average(frame.x, values, frame.points, frame.gamma, seen=seen)

    # ----------------------------------------------------------------------- closer, and ties

    def _closer(self, frame: _Frame, inner: _Mixture, point: Tensor) -> _Frame | None:
        """Around what a read mixed, if that is twice as sharp or more."""
        center = (point - frame.points[0]) + inner.mean
        query, x = (point - center)[None], self.samples - center
        radius = max(4 * _longest(query), 8 * inner.spread)
        closer = _Frame(x, query, radius, 1.0)
        # The square of the farthest sample, times gamma, is still a number.
        least = LARGEST_LOGIT * (SMALLEST * _longest(x)) ** 2
        if not least < closer.reach < 0.5 * frame.reach:
            return None
        gamma = sharpest(radius, _longest(query), x.shape[1], self.run.machine.dtype)
        return replace(closer, gamma=gamma)

    def _zoom(self, frame: _Frame, inner: _Mixture, point: Tensor, seen: Tensor) -> int | None:
        """The nearest sample by ever closer reads; None where a closer one proves nothing."""
        closer = self._closer(frame, inner, point)
        if closer is None:
            return None
        number, clear, mean = self._places(closer, seen)
        one = int(number) if bool(clear) else self._among(closer, inner, point, seen, mean)
        within = bool(seen[0, one]) and _longest(closer.x[one][None]) <= closer.radius / 2
        return one if within else None

    def _among(
        self, frame: _Frame, before: _Mixture, point: Tensor, seen: Tensor, mean: Tensor
    ) -> int:
        """The nearest of the samples that a closer read mixes; the earliest if they are equal."""
        inner = self._mixtures(frame, seen)[0]
        same = before.flat and inner.flat
        one = None if same else self._zoom(frame, inner, point, seen)
        return int(self._earliest(frame, seen, mean)) if one is None else one

    def _earliest(self, frame: _Frame, seen: Tensor, mean: Tensor) -> Tensor:
        """The earliest of the samples that a read mixes: later ones are hidden one by one."""
        numbers = torch.arange(len(self.samples), device=mean.device)
        found = torch.zeros_like(mean, dtype=torch.long)
        rows = torch.arange(len(mean), device=mean.device)
        while len(rows):
            fewer = seen & (numbers < mean[:, None])
            if not bool((fewer.any(1) & (fewer != seen).any(1)).all()):
                raise PrecisionError(
                    f"two of {len(numbers)} samples are too near to be told apart by a read in "
                    f"{self.run.machine.dtype}; leave out samples that are nearly equal",
                    best=math.inf,
                )
            seen = fewer
            number, clear, mean = self._places(frame, seen)
            found[rows[clear]] = number[clear]
            left = ~clear
            rows, seen, mean, frame = rows[left], seen[left], mean[left], frame.some(left)
        return found


def _longest(rows: Tensor) -> float:
    return float(rows.norm(dim=1).max()) if len(rows) else 0.0


def _resolution(n: int) -> float:
    """Logits of samples that may be mixed and counted as equally near differ by at most this."""
    return 1 + math.log2(2 * n) * math.log(64 * n * n)


def sharpest(
    radius: float, queries: float, dim: int = 1, dtype: torch.dtype = torch.float64
) -> float:
    """The largest gamma whose logits are known to 1/2, and which leaves room for what is hidden.

    Examples
    --------
    >>> print(f"{sharpest(1.0, 2.0, 3):.2e}")
    2.20e+11
    """
    reach = (2 * queries + radius) * radius
    largest = min(LARGEST_LOGIT, 1 / (2 * (dim + 8) * unit_roundoff(dtype)))
    return largest / reach if reach > 0 else 1.0
