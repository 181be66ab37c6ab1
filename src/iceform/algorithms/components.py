r"""Principal components: Lanczos passes on a prompt from which found components are taken out.

A pass with f the identity and y = 0 returns mean_i (x_i.v) x_i, the covariance times v. Passes from
a random start span a Krylov space in which the readout finds the leading direction; the next
component's prompt holds the samples with the found ones removed (deflation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from iceform.algorithms.stream import StreamProgram
from iceform.certificates import Certificate, Step
from iceform.errors import ProgramError
from iceform.interpolation import Interpolant
from iceform.machine import Running, Source
from iceform.machine.scaling import Scaling
from iceform.machine.tables import IDENTITY
from iceform.validation import check_size

__all__ = ["PCA", "Components"]

_UNIT = torch.finfo(torch.float64).eps / 2
_RANK = 1e-12  # of the largest variance: directions below it are rounding


@dataclass(frozen=True, eq=False)
class Components:
    """What PCA leaves behind.

    Attributes
    ----------
    components
        Rows of length 1, shape (k, d); the largest entry of each is positive.
    variances
        Variance along each, shape (k,), with the divisor n - 1.
    mean
        Of the samples.
    certificate
        Proven distance of each component from the exact one, in 2-norm (the largest of all).
    errors
        The same for each.
    """

    components: Tensor
    variances: Tensor
    mean: Tensor
    certificate: Certificate
    errors: Tensor
    passes: int
    digest: str


@dataclass(frozen=True)
class PCA(StreamProgram):
    """The leading principal components.

    Parameters
    ----------
    n_components
        How many.
    tol
        Residual ||C v - lambda v|| at which a component is done, relative to the largest variance.
    max_passes
        Most passes for one component.
    seed
        Of the random starts.
    """

    n_components: int = 2
    tol: float = 1e-12
    max_passes: int = 300
    seed: int = 0

    def stream(self, machine: Running, source: Source) -> Components:
        k = check_size("n_components", self.n_components)
        if k > min(source.rows, source.dim):
            raise ProgramError(
                f"n_components = {k} exceeds min(samples, features) = "
                f"{min(source.rows, source.dim)}"
            )
        machine.check_dim(source.dim)
        scaling = Scaling.of(source, intercept=True, labels=False, columns=False)
        search = _Deflation(machine, source, replace(scaling, intercept=False), self)
        for _ in range(k):
            search.next()
        return search.result()


class _Deflation:
    """Found components, and the search for the next one."""

    def __init__(self, machine: Running, source: Source, scaling: Scaling, model: PCA) -> None:
        self.machine, self.source, self.scaling, self.model = machine, source, scaling, model
        self.generator = torch.Generator().manual_seed(model.seed)
        self.found = torch.zeros(0, source.dim, dtype=torch.float64, device=source.device)
        self.values: list[float] = []
        self.passes = 0
        self.reach = 1.0

    def next(self) -> None:
        """Find one more component."""
        vector, value = self._lanczos()
        vector = self._orthogonal(vector, self.found)
        largest = vector[vector.abs().argmax()]
        self.found = torch.cat([self.found, (vector * torch.sign(largest))[None]])
        self.values.append(max(value, 0.0))

    def _orthogonal(self, v: Tensor, against: Tensor) -> Tensor:
        for _ in range(2):
            v = v - against.mT @ (against @ v)
        unit: Tensor = v / v.norm()
        return unit

    def _covariance(self, v: Tensor) -> Tensor:
        """One pass over the deflated samples."""
        while True:
            table = IDENTITY.on(self.reach)
            task = _PowerTask(self.machine, table, self.scaling, self.found, v)
            total, beyond = self.source.reduce(task)
            self.passes += 1
            if float(beyond) == 0:
                return total / self.source.rows
            self.reach = 2 * (table.high + float(beyond))

    def _lanczos(self) -> tuple[Tensor, float]:
        """Leading eigenvector of the deflated covariance, by a Krylov space that grows."""
        start = torch.randn(self.source.dim, generator=self.generator, dtype=torch.float64)
        basis = self._orthogonal(start.to(self.found), self.found)[None]
        images = self._covariance(basis[0])[None]
        room = self.source.dim - len(self.found)
        while True:
            small = basis @ images.mT
            values, vectors = torch.linalg.eigh(0.5 * (small + small.mT))
            lead = vectors[:, -1]
            vector, value = basis.mT @ lead, float(values[-1])
            residual = images.mT @ lead - value * vector
            top = max(self.values[0] if self.values else value, _UNIT)
            done = float(residual.norm()) <= self.model.tol * top
            if done or len(basis) >= min(room, self.model.max_passes):
                return vector, value
            ahead = images[-1] - basis.mT @ (basis @ images[-1])
            if not float(ahead.norm()) > _RANK * top:
                ahead = torch.randn(len(vector), generator=self.generator, dtype=torch.float64)
                ahead = ahead.to(vector)
            ahead = self._orthogonal(ahead, torch.cat([self.found, basis]))
            basis = torch.cat([basis, ahead[None]])
            images = torch.cat([images, self._covariance(ahead)[None]])

    def result(self) -> Components:
        """Components, their variances and how far off they can be."""
        errors, steps = self._prove()
        factor = float(self.scaling.scale[0]) ** 2 * self.source.rows / max(self.source.rows - 1, 1)
        certificate = Certificate.total(
            {"angle to the exact component": float(errors.max())},
            domain={"data": f"these {self.source.rows} x {self.source.dim}, as given"},
            dtype=torch.float64,
            backend="fused",
            derivation=steps,
        )
        variances = factor * torch.tensor(self.values, dtype=torch.float64)
        return Components(
            self.found, variances, self.scaling.mean, certificate, errors, self.passes,
            self.machine.digest,
        )  # fmt: skip

    def _prove(self) -> tuple[Tensor, tuple[Step, ...]]:
        """Davis and Kahan: the sine of the angle is at most the residual over the gap."""
        gram, level = (
            part / self.source.rows for part in self.source.reduce(_CovarianceTask(self.scaling))
        )
        exact = torch.linalg.eigvalsh(gram)
        # Sums of products, eigenvalues, and images of the components round; and the mean that was
        # taken away is not exactly the mean, which adds level level' to the covariance.
        added = self.source.rows + self.source.count + 8 * self.source.dim + 32
        noise = added * _UNIT * float(gram.diagonal().sum()) + 4 * float(level.square().sum())
        noise += 4 * (added * _UNIT) ** 2 * float(gram.diagonal().sum())
        images = self.found @ gram
        values = (images * self.found).sum(1)
        residuals = (images - values[:, None] * self.found).norm(dim=1) + noise
        gaps = torch.stack([_gap(exact, float(v), j) for j, v in enumerate(values)]) - noise
        sines = torch.where(gaps > 0, residuals / gaps.clamp(min=_UNIT), math.inf)
        errors = torch.where(sines < 1, math.sqrt(2) * sines, math.inf)
        worst = int(errors.argmax())
        steps = (
            Step(
                "residual", "||C v - lambda v|| of the worst", float(residuals[worst]), "computed"
            ),
            Step("gap", "to the nearest other eigenvalue", float(gaps[worst]), "Davis and Kahan"),
        )
        return errors, steps


def _gap(eigenvalues: Tensor, value: float, place: int) -> Tensor:
    """Distance of the place-th largest eigenvalue's estimate to all other eigenvalues."""
    order = len(eigenvalues) - 1 - place
    others = torch.cat([eigenvalues[:order], eigenvalues[order + 1 :]])
    if not len(others):
        return torch.tensor(math.inf, dtype=torch.float64)
    return (others - value).abs().min()


@dataclass(frozen=True, eq=False)
class _PowerTask:
    machine: Running
    table: Interpolant
    scaling: Scaling
    found: Tensor
    v: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples = self.scaling.samples(x)
        samples = samples - (samples @ self.found.mT) @ self.found
        prompt = self.machine.look_ups(self.table, samples, samples.new_zeros(len(x)), self.v)
        beyond = (prompt.residuals().abs().max() - self.table.high).clamp(min=0)
        if float(beyond) > 0:
            return [torch.zeros_like(self.v), beyond]
        return [self.machine.total(prompt), beyond]


@dataclass(frozen=True, eq=False)
class _CovarianceTask:
    """Sums over a chunk of products of scaled samples, and of the samples themselves."""

    scaling: Scaling

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples = self.scaling.samples(x)
        return [samples.mT @ samples, samples.sum(0)]
