r"""Proofs after the fact: how far an answer can be from the exact optimum.

The gradient at the answer is enclosed in exact arithmetic (its rounding is bounded term by term,
no look-up involved), and the curvature turns it into a distance. With H the Hessian at the answer,
:math:`\nu = \|\nabla F\|_{H^{-1}}` and D the answer's distance to the optimum in the norm of H:

* quadratic: D = nu;
* self-concordant, |l'''| <= s l'': along the way to the optimum l'' falls by e^{-s |dz|} at most,
  so with R = max_i ||x_i||_{H^{-1}}, nu >= (1 - e^{-s R D})/(s R), that is
  D <= -ln(1 - s R nu)/(s R);
* piecewise quadratic: samples that cannot reach a kink within D keep their curvature; the Hessian
  of those alone bounds D, and the ball it was taken on must contain that.

A coefficient a.w is then off by at most D ||a||_{H^{-1}}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from iceform.certificates import Certificate, Step
from iceform.streaming.curvature import Curvature
from iceform.streaming.problem import Encoding, LinearProblem, Metric, metric_of
from iceform.streaming.sources import Source

__all__ = ["Proof", "certificate_of", "prove"]

_UNIT = torch.finfo(torch.float64).eps / 2
# Eigenvectors, whitening and norms are computed: relative slack that covers condition numbers up
# to the limit below, beyond which nothing is claimed.
_SLACK = 1e-3
_WORST_CONDITION = 1e10
_BLOCK = 64  # rows added up at a time where rounding matters
_GROWTHS = 12  # balls tried for piecewise losses, each twice as large


@dataclass(frozen=True, eq=False)
class Proof:
    """D in the norm of a metric, and where it comes from.

    Attributes
    ----------
    radius
        D.
    whitener
        T with T T' the inverse of the metric, shape (coefficients, rank).
    steps, assumptions
        For the certificate.
    basis
        Orthonormal directions the metric knows of, where these are not all.
    support
        The coefficients it speaks of, where these are not all; the others are exact.
    """

    radius: float
    whitener: Tensor
    steps: tuple[Step, ...]
    assumptions: tuple[str, ...] = ()
    basis: Tensor | None = None
    support: Tensor | None = None

    @classmethod
    def of(cls, radius: float, metric: Metric, *steps: Step, **rest: Any) -> Proof:
        """In the norm of ``metric``."""
        whole = metric.rank == len(metric.vectors)
        basis = None if whole else metric.vectors
        return cls(radius, metric.whitener, steps, basis=basis, **rest)

    def bounds(self, functionals: Tensor) -> Tensor:
        """What each a.w can be off by, one per row a of ``functionals``."""
        if self.support is not None:
            functionals = functionals[:, self.support]
        lengths = (functionals @ self.whitener).norm(dim=1)
        if self.basis is not None:
            # Nothing is known of the other directions; harmless only where a has no part in them.
            lost = (functionals - functionals @ self.basis @ self.basis.mT).norm(dim=1)
            lengths = torch.where(lost > 1e-9 * functionals.norm(dim=1), math.inf, lengths)
        bounds: Tensor = (1 + _SLACK) * self.radius * lengths
        return bounds


@dataclass(frozen=True, eq=False)
class EnclosureTask:
    """Sums over a chunk: f(z_i) x_i natively, a bound of its rounding, and l''(z_i) x_i x_i'."""

    encoding: Encoding
    w: Tensor
    curvature: Curvature
    derivative: object
    chunks: int

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, labels, offsets = self.encoding(x, y)
        scaling = self.encoding.scaling
        z = samples @ self.w - labels
        terms = scaling.terms(x)
        f = self.derivative(z)  # type: ignore[operator]
        # z sums p products of computed samples, less a computed label.
        reach = terms @ self.w.abs() + labels.abs() + abs(scaling.center) / scaling.size
        off = (self.w.numel() + 8) * _UNIT * reach
        if self.curvature.steepest is not None:
            slope = torch.full_like(z, self.curvature.steepest)
        else:
            slope = 2 * self.curvature.bend(z)
        lookup = slope * off + 8 * _UNIT * f.abs()
        height = f.abs() + offsets.abs()
        blocks = -(-len(x) // _BLOCK)
        added = (_BLOCK + blocks + self.chunks + 4) * _UNIT
        error = (lookup + added * height) @ samples.abs() + 4 * _UNIT * height @ terms
        weights = self.curvature.bend(z)
        gram = (samples * weights[:, None]).mT @ samples
        return [_block_sum(f - offsets, samples), error, gram]


def _block_sum(weights: Tensor, samples: Tensor) -> Tensor:
    """sum_i weights_i samples_i as a sum of blocks' sums: its rounding grows with both counts."""
    rows = len(weights)
    whole = rows - rows % _BLOCK
    blocks = samples[:whole].view(-1, _BLOCK, samples.shape[1])
    parts = (weights[:whole].view(-1, 1, _BLOCK) @ blocks)[:, 0]
    return parts.sum(0) + weights[whole:] @ samples[whole:]


@dataclass(frozen=True, eq=False)
class _Reach:
    """Largest ||x_i||_{H^{-1}} of a chunk."""

    encoding: Encoding
    whitener: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, _, _ = self.encoding(x, y)
        return [(samples @ self.whitener).norm(dim=1).max()]


@dataclass(frozen=True, eq=False)
class _SafeGram:
    """Gram matrix of the samples whose curvature is 1 and stays so within the radius."""

    encoding: Encoding
    w: Tensor
    curvature: Curvature
    whitener: Tensor
    radius: float

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples, labels, _ = self.encoding(x, y)
        z = samples @ self.w - labels
        moves = self.radius * (samples @ self.whitener).norm(dim=1)
        kinks = torch.tensor(self.curvature.kinks, dtype=z.dtype, device=z.device)
        distance = (z[:, None] - kinks).abs().amin(1)
        weights = self.curvature.bend(z) * (distance > moves)
        return [(samples * weights[:, None]).mT @ samples]


def enclose(problem: LinearProblem, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of F at w natively, a bound of its rounding per entry, and the Hessian."""
    rows = problem.source.rows
    task = EnclosureTask(
        problem.encoding, w, problem.curvature, problem.loss.derivative, problem.source.count
    )
    total, error, gram = problem.source.reduce(task)
    penalty = problem.ridge * w
    gradient = total / rows + penalty
    error = error / rows + 8 * _UNIT * (penalty.abs() + gradient.abs())
    return gradient, error, gram / rows + torch.diag(problem.ridge)


def norm_of(metric: Metric, gradient: Tensor, error: Tensor) -> float:
    """||g||_{H^{-1}} for any g within ``error`` of the computed one."""
    spread = float((metric.whitener.abs().mT @ error).norm())
    return metric.norm(gradient) + spread


def prove(problem: LinearProblem, w: Tensor, linear: Tensor | None = None) -> Proof:
    """A bound of the distance from w to the minimiser of F (+ linear.w)."""
    gradient, error, hessian = enclose(problem, w)
    if linear is not None:
        gradient = gradient + linear
    facts, rows = problem.curvature, problem.source.rows
    metric = metric_of(hessian, rows)
    if metric.condition > _WORST_CONDITION:
        return _unknown(metric, f"the Hessian's condition number is {metric.condition:.2g}")
    nu = norm_of(metric, gradient, error)
    first = Step("nu", "norm of the gradient in the inverse Hessian", nu, "enclosed, not looked up")
    if facts.quadratic:
        return Proof.of(nu, metric, first, Step("D", "nu", nu, "the objective is quadratic"))
    if facts.concordance is not None:
        return _self_concordant(problem, metric, nu, facts.concordance, first)
    if facts.kinks is not None:
        return _piecewise(problem, w, metric, gradient, error, first)
    return _by_penalty(problem, gradient, error, metric)


def _unknown(metric: Metric, why: str) -> Proof:
    return Proof.of(math.inf, metric, Step("D", "not bounded", math.inf, why))


def _self_concordant(
    problem: LinearProblem, metric: Metric, nu: float, s: float, first: Step
) -> Proof:
    (far,) = problem.source.largest(_Reach(problem.encoding, metric.whitener))
    product = s * float(far) * (1 + _SLACK)
    if not product * nu < 1:
        return _unknown(metric, f"s R nu = {product * nu:.3g} is not below 1: not near enough yet")
    distance = -math.log1p(-product * nu) / product if product * nu > 0 else nu
    return Proof.of(
        distance,
        metric,
        first,
        Step("s R", "third derivative times the longest sample", product, "|l'''| <= s l''"),
        Step("D", "-ln(1 - s R nu)/(s R)", distance, "l'' falls by e^{-s |dz|} at most"),
    )


def _piecewise(
    problem: LinearProblem, w: Tensor, metric: Metric, gradient: Tensor, error: Tensor, first: Step
) -> Proof:
    radius = 2 * norm_of(metric, gradient, error)
    for _ in range(_GROWTHS):
        task = _SafeGram(problem.encoding, w, problem.curvature, metric.whitener, radius)
        (gram,) = problem.source.reduce(task)
        safe = metric_of(
            gram / problem.source.rows + torch.diag(problem.ridge), problem.source.rows
        )
        if safe.rank < metric.rank:
            break
        distance = norm_of(safe, gradient, error)
        # The ball ||d||_safe <= distance must lie in the one the samples were kept safe on.
        turned = metric.eigenvalues.sqrt()[:, None] * (metric.vectors.mT @ safe.whitener)
        stretch = float(torch.linalg.matrix_norm(turned, 2))
        if distance * stretch * (1 + _SLACK) <= radius:
            why = "samples that cannot reach a kink within D"
            return Proof.of(distance, safe, first, Step("D", "nu of those", distance, why))
        radius *= 2
    return _unknown(metric, "too many samples are too near a kink")


def _by_penalty(problem: LinearProblem, gradient: Tensor, error: Tensor, metric: Metric) -> Proof:
    if not bool((problem.ridge > 0).all()):
        return _unknown(metric, "nothing is known of this loss's curvature")
    penalty = metric_of(torch.diag(problem.ridge), 1)
    distance = norm_of(penalty, gradient, error)
    step = Step("D", "gradient in the penalty's metric", distance, "the loss is convex")
    return Proof.of(distance, penalty, step, assumptions=("the loss is convex",))


def certificate_of(
    proof: Proof,
    functionals: Tensor,
    values: Tensor,
    source: Source,
    *,
    domain: dict[str, float | str] | None = None,
) -> Certificate:
    """A certificate for the numbers a.w, one per row of ``functionals``, as returned in float64."""
    bounds = proof.bounds(functionals)
    worst = float(bounds.max()) if len(bounds) else 0.0
    stored = 8 * _UNIT * float(values.abs().max()) if len(values) else 0.0
    described: dict[str, float | str] = {
        "data": f"these {source.rows} x {source.dim}, as given", **(domain or {})
    }  # fmt: skip
    return Certificate.total(
        {"distance to the optimum": worst, "rounding": stored},
        domain=described,
        dtype=torch.float64,
        backend="fused",
        derivation=proof.steps,
        assumptions=proof.assumptions,
    )
