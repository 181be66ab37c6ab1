r"""Kernel regression and nearest neighbours: one attention over the training samples.

Softmax attention with keys 2 gamma x_j and biases -gamma ||x_j||^2 weighs sample j for a query q by
e^{-gamma ||q - x_j||^2} up to a factor that cancels. A moderate gamma gives kernel regression. With
a gamma as large as float64 allows, the query reads the one nearest sample; hiding that sample from
the next prompt gives the second, and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.algorithms.stream import StreamProgram
from iceform.certificates import Certificate, Step
from iceform.errors import BoundError, ProgramError
from iceform.machine import ArraySource, Running, Source, StreamMachine
from iceform.machine.stream import LARGEST_LOGIT
from iceform.validation import check_positive, check_size

__all__ = ["KNeighbors", "KernelFit", "KernelRegression", "NeighborsFit", "sharpest"]

_UNIT = torch.finfo(torch.float64).eps / 2
_FAR = 1e3  # queries are answered up to this many radii of the training samples
_CLEAR = 40.0  # logits this far apart leave e^-40 of the farther one


@dataclass(frozen=True)
class KernelRegression(StreamProgram):
    """Nadaraya and Watson's average of the labels with weights e^{-gamma ||q - x||^2}.

    Parameters
    ----------
    gamma
        As in scikit-learn's rbf kernel; None is 1 / features.
    """

    gamma: float | None = None

    def stream(self, machine: Running, source: Source) -> KernelFit:
        x, y = _in_memory(source)
        machine.check_dim(source.dim)
        gamma = 1 / source.dim if self.gamma is None else check_positive("gamma", self.gamma)
        center = _center(x)
        centred = x - center
        radius = float(centred.norm(dim=1).max())
        return KernelFit(machine.machine, centred, y, center, gamma, radius, _kernel_certificate(
            source, centred, y, gamma, radius
        ))  # fmt: skip


def _kernel_certificate(
    source: Source, x: Tensor, y: Tensor, gamma: float, radius: float
) -> Certificate:
    """Logits off by tau move a softmax average by at most (e^{2 tau} - 1) of the labels' range."""
    terms = gamma * (2 * _FAR + 1) * radius**2
    tau = (x.shape[1] + 8) * _UNIT * terms
    swing = float(y.max() - y.min())
    moved = min(math.expm1(min(2 * tau, 1.0)), 1.0) * swing  # two averages of the same labels
    added = 2 * (len(x) + 8) * _UNIT * float(y.abs().max())
    return Certificate.total(
        {"rounding of the logits": moved, "rounding of the sums": added},
        domain={
            "data": f"these {source.rows} x {source.dim}, as given",
            "queries": f"within {_FAR:g} radii ({_FAR * radius:.4g}) of the samples' mean",
        },
        dtype=torch.float64,
        backend="fused",
        derivation=(
            Step("tau", "rounding of a logit", tau, "(d + 8) u gamma (2 |q| + |x|) |x|"),
            Step("swing", "range of the labels", swing, "what a moved weight can carry"),
        ),
    )


@dataclass(frozen=True, eq=False)
class KernelFit:
    """Training samples as a prompt."""

    machine: StreamMachine
    x: Tensor  # centred
    y: Tensor
    center: Tensor
    gamma: float
    radius: float
    certificate: Certificate
    passes: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen weights."""
        return self.machine.digest

    def predict(self, points: Tensor) -> Tensor:
        """Kernel averages at new points, shape (m,)."""
        q = _checked(points, self.center, self.radius)
        biggest = self.gamma * (2 * float(q.norm(dim=1).max()) + self.radius) * self.radius
        if not biggest <= LARGEST_LOGIT:
            raise BoundError(
                f"logits reach {biggest:.3g}, more than {LARGEST_LOGIT:.3g}; use a smaller gamma "
                f"than {self.gamma:.3g}, or scale the samples"
            )
        return self.machine.average(self.x, self.y[:, None], q, self.gamma)[:, 0]


@dataclass(frozen=True)
class KNeighbors(StreamProgram):
    """The k nearest training samples of a query, nearest first.

    Samples whose squared distances differ by less than about 1e-10 of the square of the extent of
    the query and all samples in question count as equally near, and the earlier one is taken. Where
    many do, another prompt holds only those in question, around their own mean: it is as much
    sharper as they lie closer together.
    """

    n_neighbors: int = 5

    def stream(self, machine: Running, source: Source) -> NeighborsFit:
        k = check_size("n_neighbors", self.n_neighbors)
        x, y = _in_memory(source)
        machine.check_dim(source.dim)
        if k > len(x):
            raise ProgramError(
                f"n_neighbors = {k} but n_samples = {len(x)}; ask for fewer neighbours"
            )
        center = _center(x)
        return NeighborsFit(
            machine.machine, x - center, y, center, k, float((x - center).norm(dim=1).max())
        )


@dataclass(frozen=True, eq=False)
class NeighborsFit:
    """Training samples as a prompt, read k times."""

    machine: StreamMachine
    x: Tensor  # centred
    y: Tensor
    center: Tensor
    k: int
    radius: float

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen weights."""
        return self.machine.digest

    @property
    def passes(self) -> int:
        """Prompts per batch of queries where no two samples are equally near."""
        return self.k

    @property
    def certificate(self) -> Certificate:
        """Which distances are told apart; labels are then averaged exactly, up to rounding."""
        size = float(self.y.abs().max())
        resolution = _CLEAR / sharpest(self.radius, self.radius)
        return Certificate.total(
            {
                "mass of farther samples": 2 * len(self.x) * math.exp(-_CLEAR) * size,
                "rounding": (self.k + len(self.x) + 8) * _UNIT * size,
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
        q = _checked(points, self.center, self.radius)
        if not len(q):
            return torch.zeros(0, self.k, dtype=torch.long)
        self.machine.check_sees(len(self.x))
        gamma = sharpest(self.radius, float(q.norm(dim=1).max()))
        bias = -gamma * self.x.square().sum(-1)
        parts = []
        for chunk in torch.split(q, self.machine.samples):
            parts.append(self._read(chunk, 2 * gamma * chunk @ self.x.mT + bias))
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
            x = self.x[among[close]]
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

    def predict(self, points: Tensor) -> Tensor:
        """Mean label of the k nearest samples, shape (m,)."""
        return self.y[self.neighbors(points)].mean(1)


def sharpest(radius: float, queries: float) -> float:
    """The largest gamma whose logits stay within what float64 rounds well."""
    reach = (2 * queries + radius) * radius
    return LARGEST_LOGIT / reach if reach > 0 else 1.0


def _in_memory(source: Source) -> tuple[Tensor, Tensor]:
    if not isinstance(source, ArraySource):
        raise ProgramError("neighbours keep all samples in the prompt: give them as one array")
    return source.x, source.y


def _center(x: Tensor) -> Tensor:
    """The mean; of samples in one place, that place to the last digit."""
    return x[0] if bool((x == x[0]).all()) else x.mean(0)


def _checked(points: Tensor, center: Tensor, radius: float) -> Tensor:
    q = points - center
    far = float(q.norm(dim=1).max()) if len(q) else 0.0
    # Samples in one place are equally near to whatever is asked.
    if not far <= (_FAR * radius or math.inf):
        raise BoundError(
            f"a query lies {far:.4g} from the samples' mean, answers are certified up to "
            f"{_FAR * radius:.4g}; add samples out there, or bring the query closer"
        )
    return q
