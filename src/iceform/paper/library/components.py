"""Principal components by prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import gram_eigenvalues
from iceform.arithmetic.balls import balls_of, uppermost
from iceform.arithmetic.units import OUTWARD_MANY
from iceform.certificates import DerivationStep, Result
from iceform.errors import ProgramError
from iceform.expressions import loss_named
from iceform.expressions.ball_tensors import BallTensor
from iceform.paper.library.descent import GradientHead, gradient_head
from iceform.paper.library.passes import (
    LOOKED,
    SPARE,
    HeadSizes,
    PassRecorder,
    PromptAlgorithm,
    TargetHead,
)
from iceform.validation import check_positive, check_size, unit_roundoff


@dataclass(frozen=True)
class ComponentPrompts(PromptAlgorithm):
    r"""The leading principal components, as rows of length 1 whose largest entry is positive.

    A pass with f the identity and y = 0 returns :math:`\frac1n \sum_i (x_i \cdot v) x_i`, the
    covariance C times v, of samples less their mean. Passes from a random start span a Krylov space
    in which the readout finds the leading direction; the next component's prompt holds the samples
    with the ones before taken out. Davis and Kahan: the sine of the angle to the exact component is
    at most :math:`\|Cv - \lambda v\|` over the distance of :math:`\lambda` to the other
    eigenvalues, which certifies each, infinite where two variances agree.

    Parameters
    ----------
    count
        How many.
    tol
        Residual ||C v - lambda v|| at which one is done, relative to the largest variance.
    seed
        Of the random starts.
    eps
        Error of a look-up.

    Examples
    --------
    >>> X = torch.tensor([[1.0, 0.5], [-1.0, -0.5], [0.1, -0.2], [-0.1, 0.2]]).double()
    >>> leading = ComponentPrompts(count=1, eps=1e-4)
    >>> network = PromptLibrary(dim=2, samples=4, algorithms=[leading])
    >>> network.run(leading, X).value.round(decimals=3).tolist()
    [[0.894, 0.447]]
    """

    count: int = 1
    tol: float = 1e-12
    seed: int = 0
    eps: float = LOOKED

    def __post_init__(self) -> None:
        check_size("count", self.count)
        check_positive("tol", self.tol)

    def _head(self, dim: int, samples: int) -> GradientHead:
        # A unit vector's entries reach 1 and its rounding.
        return gradient_head(loss_named("squared"), dim, samples, self.eps, SPARE, None)

    def sizes(self, dim: int, samples: int) -> HeadSizes:
        """As of descent."""
        return self._head(dim, samples).needs

    @staticmethod
    def _centred(x: Tensor) -> Tensor:
        """Samples less their mean over a power of two: none is longer than 1 then."""
        size = 2.0 ** math.ceil(1 + 0.5 * math.log2(x.shape[1]))
        return (x.double() - x.double().mean(0)) / size

    def target(self, x: Tensor, y: Tensor | None) -> TargetHead:
        """Along the first axis."""
        start = torch.eye(x.shape[1])[0].to(x)
        samples = self._centred(x).to(x)
        return self._head(x.shape[1], len(x)).at(samples, x.new_zeros(len(x)), start)

    def run(self, passes: PassRecorder, x: Tensor, y: Tensor | None) -> Result:
        """Components, with their variances among the parts."""
        if self.count > min(x.shape):
            raise ProgramError(
                f"count = {self.count} exceeds min(samples, dim) = {min(x.shape)}; ask for fewer"
            )
        for where, what in (
            ("prompt", "samples less their mean and the components before, and v"),
            ("readout", "sums of (x.v) x"),
            ("host", "the mean of the samples, and components before taken out of them"),
            ("host", "bases and eigenvectors of the Krylov space"),
            ("host", "the proof: the covariance and its eigenvalues"),
        ):
            passes.ledger.note(where, what)
        samples = self._centred(x)
        components = samples[:0]
        draw = torch.Generator().manual_seed(self.seed)
        for _ in range(self.count):
            left = samples - (samples @ components.mT) @ components
            v = self._leading(passes, left.to(x.dtype), components, draw)
            v = v * torch.sign(v[v.abs().argmax()])
            components = torch.cat([components, v[None]])
        values, errors = self._proven(x, components)
        certificate = passes.certificate(
            {"angle to the exact component": float(errors.max())},
            {"data": f"these {len(x)} x {x.shape[1]}, as given"},
            compared="component - exact one, up to sign",
            derivation=(
                DerivationStep(
                    "error",
                    "sqrt 2 residual / gap of the worst",
                    float(errors.max()),
                    "Davis and Kahan",
                ),
            ),
        )
        variances = values * len(x) / max(len(x) - 1, 1)
        parts = {"mean": x.double().mean(0), "explained_variance": variances}
        return passes.result(components, certificate, parts=parts, errors={"components": errors})

    def _leading(
        self, passes: PassRecorder, samples: Tensor, before: Tensor, draw: torch.Generator
    ) -> Tensor:
        """The leading eigenvector of the samples' covariance, by a Krylov space that grows."""
        head, zeros = self._head(samples.shape[1], len(samples)), samples.new_zeros(len(samples))

        def away(v: Tensor, basis: Tensor) -> Tensor:
            for _ in range(2):
                v = v - basis.mT @ (basis @ v)
            unit: Tensor = v / v.norm()
            return unit

        def image(v: Tensor) -> Tensor:
            out, _ = passes.attend(head.at(samples, zeros, v.to(samples)))
            return head.scale * out.double().mean(0)

        basis = images = before[:0]
        v = torch.randn(samples.shape[1], generator=draw, dtype=torch.float64).to(before)
        while True:
            v = away(v, torch.cat([before, basis]))
            basis = torch.cat([basis, v[None]])
            images = torch.cat([images, image(v)[None]])
            small = basis @ images.mT
            values, vectors = torch.linalg.eigh(0.5 * (small + small.mT))
            leading = basis.mT @ vectors[:, -1]
            residual = (images.mT @ vectors[:, -1] - values[-1] * leading).norm()
            full = len(basis) + len(before) == samples.shape[1]
            if full or residual <= self.tol * values[-1]:
                return away(leading, before)
            v = images[-1] - basis.mT @ (basis @ images[-1])
            if not v.norm() > self.tol * values[-1]:
                v = torch.randn(len(v), generator=draw, dtype=torch.float64).to(before)

    @staticmethod
    def _proven(x: Tensor, components: Tensor) -> tuple[Tensor, Tensor]:
        """Variances along components (over n), and how far each is from the exact one."""
        (n, d), x, unit = x.shape, x.double(), unit_roundoff(torch.float64)
        eigenvalues, off = gram_eigenvalues(x - x.mean(0))
        # The mean that was taken away is rounded, and so are the differences.
        slip = math.sqrt(d) * 2 * (n + 2) * unit * float(x.abs().max())
        off = OUTWARD_MANY * (
            off + 2 * math.sqrt(max(float(eigenvalues[-1]), 0.0) + off) * slip + slip**2
        )
        values, errors = [], []
        for place, v in enumerate(components):
            value, residual, longer = _in_balls(x, v)
            order = d - 1 - place
            others = torch.cat([eigenvalues[:order], eigenvalues[order + 1 :]])
            gap = float((others - value).abs().min()) - off if len(others) else math.inf
            sine = OUTWARD_MANY * residual / (gap * float(v.norm())) if gap > 0 else math.inf
            errors.append(OUTWARD_MANY * (math.sqrt(2) * sine + longer) if sine < 1 else math.inf)
            values.append(value)
        return x.new_tensor(values), x.new_tensor(errors)

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        """By a singular value decomposition."""
        x = x.double()
        rows: Tensor = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[: self.count]
        return rows * rows.gather(1, rows.abs().argmax(1, keepdim=True)).sign()


def _in_balls(x: Tensor, v: Tensor) -> tuple[float, float, float]:
    """The variance along v, ||C v - variance v||, and how far ||v||^2 is from 1, rounded up."""
    with balls_of(tuning.PROOFS_BITS):
        rows, along = BallTensor.of(x), BallTensor.of(v)
        centred = rows - rows.mean(0)
        image = centred.mT @ (centred @ along) / len(x)
        value = float((along * image).sum().item().mid())
        residual = (image - value * along).square().sum().item().sqrt()
        return value, uppermost(residual), uppermost(abs(along.square().sum().item() - 1))
