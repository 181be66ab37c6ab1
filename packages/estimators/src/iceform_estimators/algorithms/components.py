r"""Principal components: Lanczos passes on prompts from which found components are taken out.

A pass with f the identity and y = 0 returns mean_i (x_i.v) x_i, the covariance times v. Passes from
a random start span a Krylov space in which the readout finds the leading direction; the next
component's prompt holds the samples with the found ones removed (deflation).
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.arithmetic import OUTWARD, UNIT
from iceform.arithmetic.double_double import (
    SUMMED,
    DoubleDouble,
    add,
    div,
    dot,
    mul,
    pair,
    sub,
    sum_last,
)
from iceform.certificates import Certificate, DerivationStep, Result
from iceform.errors import ProgramError
from iceform.heads import LookUps
from iceform_estimators.algorithms.examples import ellipse
from iceform_estimators.algorithms.in_memory import in_memory, unweighed
from iceform_estimators.algorithms.record import EstimationAlgorithm, Peer, setting
from iceform_estimators.machine import MachineRun, Source
from iceform_estimators.machine.problem import STRAIGHT, Scaling, check_magnitudes, swept
from iceform_estimators.machine.sources import each
from iceform_estimators.machine.stream import IDENTITY
from iceform_estimators.tuning import CLOSE, ROUNDED, SLACK

_LEDGER = (
    ("prompt", "samples less their mean and the components found, and v"),
    ("attention", STRAIGHT),
    ("host", "the mean of the samples"),
    ("host", "components found before, taken out of the samples"),
    ("host", "bases and eigenvectors of the Krylov space"),
    ("host", "the proof: the covariance and its eigenvalues"),
)


@dataclass(frozen=True)
class PCA(EstimationAlgorithm):
    """The leading principal components.

    ``value`` has them as rows of length 1, the largest entry of each being positive, and
    ``certificate`` bounds the distance of each from the exact one, infinite where two variances
    agree; ``errors["components"]`` has the bound of each.

    Parameters
    ----------
    n_components
        How many; None for min(samples, features).
    tol
        Residual ||C v - lambda v|| at which a component is done, relative to the largest variance.
    max_passes
        Most passes for one component.
    seed
        Of the random starts; the components do not depend on it beyond rounding.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(Machine(2).run(PCA(n_components=1), X).value.numpy())
    [[1.]]
    """

    name: ClassVar[str] = "pca"
    title: ClassVar[str] = "Principal components"
    task: ClassVar[str] = "decomposition"
    says: ClassVar[str] = "The directions in which the samples vary most."
    objective: ClassVar[str] = "max |Xv| over unit v, each orthogonal to those before"
    lookup: ClassVar[str] = "the projection itself: a straight line"
    estimator: ClassVar[str] = "InContextPCA"
    family: ClassVar[str] = "components"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.decomposition.PCA", options={"seed": None}, settings={"svd_solver": "full"}
    )
    example = staticmethod(ellipse)

    n_components: int | None = setting(
        None,
        "How many components; all of them where it is not given.",
        kind=int,
        low=1,
        optional=True,
        slider=(1, 2),
    )
    tol: float = CLOSE
    max_passes: int = 300
    _: KW_ONLY
    seed: int = setting(
        0,
        "Seed of the random starts.",
        low=0,
        estimator="random_state",
        command=False,
    )

    def count(self, rows: int, dim: int) -> int:
        """How many components of data of this shape."""
        most = min(rows, dim)
        k = most if self.n_components is None else self.n_components
        if k > most:
            raise ProgramError(
                f"n_components = {k} exceeds min(samples, features) = {most}; ask for fewer"
            )
        return k

    def opening(self, machine: MachineRun, source: Source) -> LookUps:
        """The first samples along the first axis."""
        data = in_memory(source)
        scaling = Scaling.of(data, intercept=True, labels=False, columns=False)
        x = replace(scaling, intercept=False).samples(data.x[: machine.machine.samples])
        v = torch.eye(data.dim, dtype=torch.float64)[0].to(x)
        table = IDENTITY.on(max(float((x @ v).abs().max()), 1.0))
        return machine.look_ups(table, x, x.new_zeros(len(x)), v)

    def stream(self, machine: MachineRun, source: Source) -> Result:
        unweighed(source, self.label)
        k = self.count(source.rows, source.dim)
        machine.check_dim(source.dim)
        scaling = Scaling.of(source, intercept=True, labels=False, columns=False)
        scaling = replace(scaling, intercept=False)
        return self._found(k, machine, source, scaling, _Covariance(machine, source, scaling))

    def _found(
        self, k: int, machine: MachineRun, source: Source, scaling: Scaling, covariance: _Covariance
    ) -> Result:
        check_magnitudes(source, products=False)
        search = _Deflation(self, source.dim, source.device, covariance)
        for _ in range(k):
            search.next()
        errors, steps = _prove(source, scaling, search.found)
        certificate = Certificate.total(
            {"angle to the exact component": float(errors.max())},
            domain={"data": f"these {source.rows} x {source.dim}, as given"},
            dtype=torch.float64,
            backend=machine.backend,
            derivation=steps,
        )
        return machine.result(
            search.found, certificate, covariance.passes,
            parts=_variances(source, scaling, search), errors={"components": errors},
        )  # fmt: skip

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        x = x.double()
        rows: Tensor = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh
        rows = rows[: self.count(*x.shape)]
        largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
        return rows * largest.sign()


def _variances(source: Source, scaling: Scaling, search: _Deflation) -> dict[str, Any]:
    """What else is known of the components, by scikit-learn's names."""
    degrees = max(source.rows - 1, 1)
    factor = float(scaling.scale[0]) ** 2
    along = factor * source.rows / degrees * torch.tensor(search.values, dtype=torch.float64)
    spread = float(source.moments(products=False).spread.sum()) / degrees
    return {
        "mean": scaling.mean,
        "explained_variance": along,
        "explained_variance_ratio": along / (spread or 1.0),
        "singular_values": (along * degrees).sqrt(),
        "n_components": len(along),
    }


class _Covariance:
    """The covariance of samples, found components taken out, times a vector: by passes."""

    def __init__(self, machine: MachineRun, source: Source, scaling: Scaling) -> None:
        self.passes = 0
        for where, what in _LEDGER:
            machine.ledger.note(where, what)
        self.machine, self.source, self.scaling, self.reach = machine, source, scaling, 1.0

    def __call__(self, found: Tensor, v: Tensor) -> Tensor:
        """C v, without the components found before."""

        def written(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            samples = self.scaling.samples(x)
            samples = samples - (samples @ found.mT) @ found
            return samples, samples.new_zeros(len(x)), v

        total, self.reach, passes = swept(
            self.machine, self.source, IDENTITY, self.reach, written, says="sums of (x.v) x"
        )
        self.passes += passes
        return total / self.source.rows


class _Deflation:
    """Found components, and the search for the next one."""

    def __init__(self, model: PCA, dim: int, device: torch.device, covariance: _Covariance) -> None:
        self.model, self.dim, self.covariance = model, dim, covariance
        self.generator = torch.Generator().manual_seed(model.seed)
        self.found = torch.zeros(0, dim, dtype=torch.float64, device=device)
        self.values: list[float] = []
        self.rest: list[tuple[Tensor, float]] = []  # known beforehand, the largest last

    def image(self, v: Tensor) -> Tensor:
        """One pass over the deflated samples."""
        return self.covariance(self.found, v)

    def next(self) -> None:
        """Find one more component."""
        vector, value = self.rest.pop() if self.rest else self._lanczos()
        vector = self._orthogonal(vector, self.found)
        largest = vector[vector.abs().argmax()]
        self.found = torch.cat([self.found, (vector * torch.sign(largest))[None]])
        self.values.append(max(value, 0.0))

    def _orthogonal(self, v: Tensor, against: Tensor) -> Tensor:
        for _ in range(2):
            v = v - against.mT @ (against @ v)
        unit: Tensor = v / v.norm()
        return unit

    def _lanczos(self) -> tuple[Tensor, float]:
        """Leading eigenvector of the deflated covariance, by a Krylov space that grows.

        Where it has grown to all that is left, it holds the others too. (A smaller one
        may lack some, where variances are equal; then the next search begins anew.)
        """
        start = torch.randn(self.dim, generator=self.generator, dtype=torch.float64)
        basis = self._orthogonal(start.to(self.found), self.found)[None]
        images = self.image(basis[0])[None]
        room = self.dim - len(self.found)
        while True:
            small = basis @ images.mT
            values, vectors = torch.linalg.eigh(0.5 * (small + small.mT))
            lead = vectors[:, -1]
            vector, value = basis.mT @ lead, float(values[-1])
            residual = images.mT @ lead - value * vector
            top = max(self.values[0] if self.values else value, UNIT)
            done = float(residual.norm()) <= self.model.tol * top
            if done or len(basis) >= min(room, self.model.max_passes):
                if len(basis) == room:
                    others = zip(basis.mT.matmul(vectors).mT, values.tolist(), strict=True)
                    self.rest = list(others)[:-1]
                return vector, value
            ahead = images[-1] - basis.mT @ (basis @ images[-1])
            if not float(ahead.norm()) > CLOSE * top:
                ahead = torch.randn(len(vector), generator=self.generator, dtype=torch.float64)
                ahead = ahead.to(vector)
            ahead = self._orthogonal(ahead, torch.cat([self.found, basis]))
            basis = torch.cat([basis, ahead[None]])
            images = torch.cat([images, self.image(ahead)[None]])


def _prove(
    source: Source, scaling: Scaling, found: Tensor
) -> tuple[Tensor, tuple[DerivationStep, ...]]:
    """Davis and Kahan: the sine of the angle is at most the residual over the gap."""

    def products(x: Tensor, y: Tensor) -> list[Tensor]:
        samples = scaling.samples(x)
        return [samples.mT @ samples, samples.sum(0)]

    gram, level = (part / source.rows for part in source.reduce(products))
    exact, lost = _eigenvalues(gram)
    # Sums of products and images of the components round; and the mean that was taken away is not
    # exactly the mean, which adds level level' to the covariance.
    added = source.rows + source.count + 8 * source.dim + 32
    noise = added * UNIT * float(gram.diagonal().sum()) + 4 * float(level.square().sum()) + lost
    noise += 4 * (added * UNIT) ** 2 * float(gram.diagonal().sum())
    values = ((found @ gram) * found).sum(1)
    residuals = _residuals(source, scaling, found, values)
    gaps = torch.stack([_gap(exact, float(v), j) for j, v in enumerate(values)]) - noise
    sines = torch.where(gaps > 0, residuals / gaps, math.inf)
    errors = torch.where(sines < 1, math.sqrt(2) * sines, math.inf) * ROUNDED
    errors = errors + torch.stack([_stretched(v) for v in found])
    worst = int(errors.argmax())
    steps = (
        DerivationStep(
            "residual", "||C v - lambda v|| of the worst", float(residuals[worst]), "computed"
        ),
        DerivationStep(
            "gap", "to the nearest other eigenvalue", float(gaps[worst]), "Davis and Kahan"
        ),
    )
    return errors, steps


def _eigenvalues(matrix: Tensor) -> tuple[Tensor, float]:
    """Eigenvalues, increasing, and what each is off by, whatever found them.

    With V'CV = L + R and V'V = I + D those of C are within ||R|| + ||D|| ||C|| of L (Weyl and
    Ostrowski); products of p terms round by as much again.
    """
    values, vectors = torch.linalg.eigh(matrix)
    p, size = len(matrix), float(matrix.norm())
    left = vectors.mT @ (matrix @ vectors) - torch.diag(values)
    turned = vectors.mT @ vectors - torch.eye(p, dtype=matrix.dtype, device=matrix.device)
    rounded = 5 * (p + 2) * UNIT * math.sqrt(p) * size
    return values, SLACK * (float(left.norm()) + 2 * float(turned.norm()) * size + rounded)


def _stretched(v: Tensor) -> Tensor:
    """How far the length of a vector is from 1."""
    square = sub(dot(pair(v), pair(v)), pair(v.new_ones(())))
    return square.double().abs() + 4 * SUMMED


def _residuals(source: Source, scaling: Scaling, found: Tensor, values: Tensor) -> Tensor:
    """||C v - lambda v|| of each, over ||v||, in pairs of numbers.

    ``C`` is taken around the exact mean: what was taken away in its place is off by ``level``.
    """

    def images(x: Tensor, y: Tensor) -> list[Tensor]:
        """Sums of (x.v) x and of x in pairs, and of their magnitudes."""
        rows = DoubleDouble(scaling.samples(x), scaling.lows(x))
        z = dot(rows, pair(v.expand_as(rows.hi)))
        turned = DoubleDouble(rows.hi.mT, rows.lo.mT)
        image = dot(turned, DoubleDouble(*(part.expand_as(turned.hi) for part in z)))
        along = rows.hi.abs() @ v.abs()
        return [*image, *sum_last(turned), along @ rows.hi.abs(), along.sum()]

    out = []
    for v, value in zip(found, values, strict=True):
        *sums, size, far = source.combine(images, each(add, add, torch.add, torch.add))
        image, level = DoubleDouble(*sums[:2]), DoubleDouble(*sums[2:])
        n = pair(torch.full_like(v, source.rows))
        shift = div(level, n)
        along = dot(shift, pair(v))
        lines = mul(shift, DoubleDouble(*(part.expand_as(v) for part in along)))
        left = sub(sub(div(image, n), lines), mul(pair(value.expand_as(v)), pair(v)))
        # Pairs are off by a few roundings each, relative to what they add up.
        terms = size / source.rows + far / source.rows * shift.hi.abs() + value.abs() * v.abs()
        lost = 16 * SUMMED * (source.count + 8) * terms
        out.append(((left.double().abs() + lost).norm() * OUTWARD) / v.norm())
    return torch.stack(out)


def _gap(eigenvalues: Tensor, value: float, place: int) -> Tensor:
    """Distance of the place-th largest eigenvalue's estimate to all other eigenvalues."""
    order = len(eigenvalues) - 1 - place
    others = torch.cat([eigenvalues[:order], eigenvalues[order + 1 :]])
    if not len(others):
        return torch.tensor(math.inf, dtype=torch.float64)
    return (others - value).abs().min()
