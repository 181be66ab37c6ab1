r"""Choices among several classes: multinomial logistic regression, its passes and its proof.

.. math:: F(W) = \operatorname{mean}_i \Big(\ln \sum_k e^{w_k \cdot x_i} - w_{y_i} \cdot x_i\Big)
   + \tfrac12 \sum_k \sum_j q_j w_{kj}^2

on scaled data, W having a row for each of K classes. The probabilities
:math:`p_{ik} = e^{w_k \cdot x_i} / \sum_l e^{w_l \cdot x_i}` are attention itself: a prompt holds a
token for each class, its key the class's coefficients and its value which class it is, and a sample
asks. The gradient is the mean of :math:`(p_{ik} - 1\{y_i = k\})\, x_i`.

**The sums.** With B as below, :math:`h_{ir} = \sum_k B_{kr} (p_{ik} - 1\{y_i = k\})` is what sample
i pulls row r of V by. In coordinates V = T u, :math:`T_r` the rows of T that belong to row r,

.. math:: \nabla_u = \operatorname{mean}_i \sum_r h_{ir}\, T_r^\top x_i ,

and that is what the look-up layer adds up: prompts hold :math:`T_r^\top x_i` as samples and
:math:`h_{ir}` as what is looked up on a line. Nothing is left to do to what comes back.

**Coordinates.** Adding one and the same row to all of W changes no probability, so that the optimum
whose rows add up to 0 is meant (where there is a penalty, it is the only one but for the
intercepts). With columns of B an orthonormal basis of the K-vectors that add up to 0, W = B V, and
F is strictly convex in V.

**Proof.** With H the Hessian in V at the answer, a move :math:`\Delta` of W changes the curvature
of the loss of sample i by :math:`e^{\pm t}` at most, t the range of :math:`\Delta x_i` over the
classes: the third derivative of a cumulant is
:math:`E(u - \bar u)^2 (h - \bar h)`, and :math:`|h_k - \bar h| \le \max h - \min h`. So what is
proven of self-concordant losses holds with s = 1 and
:math:`R = \max_{i,k,l} \|(e_k - e_l) \otimes x_i\|_{H^{-1}}`.

H is the Gram matrix of :math:`(B_k - \sum_l p_{il} B_l) \otimes x_i` with the weights
:math:`p_{ik}`: it is bounded from below by what its entries are off by, as any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic import UNIT
from iceform.certificates import Certificate, DerivationStep
from iceform.errors import BoundError, ProgramError
from iceform.expressions import Curvature
from iceform.heads import SoftmaxAverage
from iceform.validation import check_capacity
from iceform_estimators.machine.problem import (
    TURNED,
    Coordinates,
    Encoding,
    LinearProblem,
    Scaling,
    gram_of,
    metric_of,
)
from iceform_estimators.machine.program import with_terms
from iceform_estimators.machine.proofs import (
    Proof,
    certificate_of,
    gram_slip,
    lower,
    norm_of,
    self_concordant,
    tree_sum,
    unbounded,
)
from iceform_estimators.machine.sources import split
from iceform_estimators.machine.stream import IDENTITY, MachineRun
from iceform_estimators.tuning import SMALL

_TINY = torch.finfo(torch.float64).tiny  # exponentials below this are 0 or lose digits


def choose(
    machine: MachineRun, keys: Tensor, points: Tensor, biases: Tensor | None = None
) -> Tensor:
    """The share of each class at every point, softmax of points.key_k + bias_k, shape (n, K).

    Attention over a token for each class, whose value says which it is; as many at a time as a
    value row has room for.
    """
    parts = [machine.witness.run(asked) for asked in prompts(machine, keys, points, biases)]
    return torch.cat(parts, 1).to(points)


def prompts(
    machine: MachineRun, keys: Tensor, points: Tensor, biases: Tensor | None = None
) -> list[SoftmaxAverage]:
    """The prompts of :func:`choose`, one for every dim + 1 classes."""
    room = machine.machine.samples * machine.tokens
    if len(keys) > room:
        raise ProgramError(
            f"there are {len(keys)} classes, a prompt of this machine holds {room} tokens, one for "
            f"each; build one with tokens >= {-(-len(keys) // machine.machine.samples)}"
        )
    which = torch.eye(len(keys), dtype=keys.dtype, device=keys.device)
    biases = keys.new_zeros(len(keys)) if biases is None else biases
    wide = machine.dim + 1
    return [
        machine.asked(keys, biases, which[:, k : k + wide], points)
        for k in range(0, len(keys), wide)
    ]


def chances(machine: MachineRun, scores: Tensor) -> Tensor:
    """The probabilities of scores, shape (n, K): each a class's key, and the point asks by it."""
    return choose(machine, scores.new_zeros(scores.shape[1], 1), scores.new_zeros(len(scores), 1),
                  scores)  # fmt: skip


def basis(classes: int, like: Tensor) -> Tensor:
    """B, shape (K, K - 1): orthonormal columns, each adding up to 0 (Helmert's)."""
    k = torch.arange(classes, dtype=torch.float64)
    r = k[1:]
    rows = torch.where(k[:, None] < r, 1.0, torch.where(k[:, None] == r, -r, 0.0))
    return (rows / (r * (r + 1)).sqrt()).to(like)


@dataclass(eq=False)
class ChoiceProblem(LinearProblem):
    """F in the coordinates V, flattened: rows of K - 1 by p.

    Parameters
    ----------
    classes
        K; labels are 0, ..., K - 1.
    """

    classes: int = 3

    def __post_init__(self) -> None:
        self.check_range()
        self.machine.check_dim(self.scaling.dim)

        def largest(x: Tensor, y: Tensor) -> list[Tensor]:
            """The largest label and, where one is no class's number, infinity."""
            labels, _ = split(y)
            wrong = (labels != labels.round()) | (labels < 0)
            return [torch.where(wrong, math.inf, labels).max()]

        (most,) = self.source.largest(largest)
        if not float(most) < self.classes:
            raise BoundError(
                f"labels of {self.classes} classes are 0, ..., {self.classes - 1}; the data hold "
                f"{'others' if math.isinf(float(most)) else f'{float(most):g}'}; number the "
                "classes from 0"
            )
        check_capacity(
            f"the curvature of {self.dim} coefficients", 4 * 8 * self.dim**2, self.source.device,
            "use fewer features or classes, or one class against the rest",
        )  # fmt: skip
        note = self.machine.ledger.note
        note("prompt", "a token for each class: its coefficients the key, its number the value")
        note("prompt", "scaled samples, as queries")

    @property
    def dim(self) -> int:
        """Coefficients in V."""
        return (self.classes - 1) * self.scaling.dim

    @property
    def curvature(self) -> Curvature:
        """As of two classes; steps that must be shortened are Newton's."""
        return replace(self.loss.curvature, majorizer=None)

    @cached_property
    def basis(self) -> Tensor:
        """B."""
        return basis(self.classes, self.scaling.mean)

    def rows(self, v: Tensor) -> Tensor:
        """W, shape (K, p)."""
        return self.basis @ v.reshape(self.classes - 1, -1)

    def reduced(self, w: Tensor) -> Tensor:
        """V of W, flattened; whatever its rows have in common is left out."""
        return (self.basis.mT @ w).flatten()

    def gradient(self, w: Tensor, *, trial: bool = False) -> Tensor:
        """The gradient in V, by one pass."""
        return self._sums(w, torch.eye(self.dim).to(w)) + self._penalty * w

    def slope(self, u: Tensor, within: Coordinates, *, trial: bool = False) -> Tensor:
        """T' times the gradient at T u, by one pass over samples that are written as T_r'x."""
        note, w = self.machine.ledger.note, within.back(u)
        note("host", TURNED)
        return self._sums(w, within.turned) + within.turned.mT @ (self._penalty * w)

    def _sums(self, w: Tensor, turned: Tensor) -> Tensor:
        """T' times the mean gradient of the loss at V = w, T being ``turned``."""
        machine, keys, line = (
            self.machine,
            self.rows(w),
            IDENTITY.on(2.0),
        )  # heights are up to sqrt(2)
        blocks = turned.reshape(self.classes - 1, self.scaling.dim, -1)  # T_r, one after the other

        def slope(x: Tensor, y: Tensor) -> list[Tensor]:
            """sum_i c_i sum_r h_ir T_r'x_i, by the frozen machine throughout."""
            samples, factors = self.scaling.samples(x), split(y)[1]
            heights = (choose(machine, keys, samples) - _own(y, len(keys))) @ self.basis
            total = samples.new_zeros(blocks.shape[2])
            for block, height in zip(blocks, heights.mT, strict=True):
                for at in range(0, len(total), machine.dim):
                    columns = block[:, at : at + machine.dim]
                    if bool(columns.any()):
                        zeros = columns.new_zeros(columns.shape[1])
                        asked = machine.look_ups(
                            line, samples @ columns, -height, zeros, None, factors
                        )
                        total[at : at + machine.dim] += machine.total(asked).to(total)
            return [total]

        (total,) = self.source.reduce(slope)
        self.passes += 1
        note = self.machine.ledger.note
        note("readout", "probabilities of the classes")
        note("prompt", "those less 1 for a sample's own class, as what is looked up on a line")
        note("readout", "sums of the samples' gradients")
        mean: Tensor = total / self.source.total
        return mean

    @property
    def _penalty(self) -> Tensor:
        return self.ridge.repeat(self.classes - 1)

    def keep(self) -> None:
        """There is no table to be kept."""

    def hessian(self, w: Tensor, *, majorizer: bool = False) -> Tensor:
        """In V; its majorizer is half the samples' second moments for every column of V."""
        self.machine.ledger.note("host", "Gram matrix of the samples, weighed by the curvature")
        scaling, keys, basis = self.scaling, self.rows(w), self.basis

        def curvature(x: Tensor, y: Tensor) -> list[Tensor]:
            """sum_i c_i B'(diag p_i - p_i p_i')B (x) x_i x_i'."""
            samples = scaling.samples(x)
            p = (samples @ keys.mT).softmax(1)
            rows = []
            for column in basis.mT:
                spread = p * (column - (p @ column)[:, None])
                bent = _weighed(spread @ basis, y)
                rows.append(samples.mT @ (bent[:, :, None] * samples[:, None, :]).flatten(1))
            return [torch.cat(rows)]

        if majorizer:
            plain = Encoding(scaling, "glm")
            half = gram_of(self.source, plain, scaling.mean.new_zeros(scaling.dim), torch.ones_like)
            matrix = torch.kron(torch.eye(self.classes - 1).to(half), half / 2)
        else:
            (matrix,) = self.source.reduce(curvature)
        return matrix / self.source.total + torch.diag(self._penalty)


def _weighed(values: Tensor, y: Tensor) -> Tensor:
    """Numbers of a chunk's samples, shape (n, ...), times their weights."""
    weights = split(y)[1]
    return values if weights is None else values * weights.reshape(-1, *[1] * (values.ndim - 1))


def _own(y: Tensor, classes: int) -> Tensor:
    """1 for each sample's own class, shape (n, K)."""
    labels = split(y)[0]
    return (labels[:, None] == torch.arange(classes, device=y.device)).to(y)


@dataclass(frozen=True, eq=False)
class _Enclosure:
    """Sums over a chunk, natively: the gradient in W, H, and what each is off by."""

    scaling: Scaling
    w: Tensor
    basis: Tensor
    chunks: int

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        samples = self.scaling.samples(x)
        size = samples.abs()
        p, off = self._enclosed(samples)
        heights = p - _own(y, len(self.w))
        total = tree_sum(_weighed(heights, y)[:, :, None] * samples[:, None, :])
        added = (len(x).bit_length() + self.chunks + 12) * UNIT
        error = _weighed(p * off + _TINY + added * heights.abs(), y).mT @ size
        gram, slips = self._gram(samples, p, off, y)
        return [total, error, gram, slips]

    def _enclosed(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities, and what each is off by relative to itself."""
        z = samples @ self.w.mT
        slip = (samples.shape[1] + 4) * UNIT * (samples.abs() @ self.w.abs().mT)
        top, at = z.max(1, keepdim=True)
        below = z - top
        p = below.softmax(1)
        off = slip + slip.gather(1, at) + UNIT * below.abs() + 8 * UNIT
        off = off + (p * off).sum(1, keepdim=True) + (len(self.w) + 8) * UNIT
        return p, torch.where(off < SMALL, 1.05 * off, math.inf)  # products of them too

    def _gram(self, samples: Tensor, p: Tensor, off: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """H, class by class, and e with entries off by at most sqrt(e_j e_k)."""
        n, classes = p.shape
        middle = p @ self.basis
        blur = (p * off).sum(1, keepdim=True) + (classes + 4) * UNIT  # of B_k less their mean
        rounding = gram_slip(n, self.chunks) + (classes + 4) * UNIT
        width = (classes - 1) * samples.shape[1]
        gram = samples.new_zeros(width, width)
        slips = samples.new_zeros(classes - 1, samples.shape[1])
        squares = samples.square()
        for k in range(classes):
            apart = self.basis[k] - middle
            rows = (apart[:, :, None] * samples[:, None, :]).flatten(1)
            weights = _weighed(p[:, k], y)
            gram += (rows * weights[:, None]).mT @ rows
            lost = (off[:, k, None] + rounding) * apart.square() + 2 * apart.abs() * blur
            slips += (weights[:, None] * (lost + blur.square())).mT @ squares
        return gram, slips.flatten()


def prove_choices(problem: ChoiceProblem, w: Tensor) -> Proof:
    """A bound of the distance from W, whose rows add up to about 0, to the optimum in V."""
    problem.machine.ledger.note("host", "the proof: gradient and curvature at the answer, enclosed")
    source, b = problem.source, problem.basis
    task = _Enclosure(problem.scaling, w, b, source.count)
    total, error, gram, slips = source.reduce(task)
    weight = source.total
    penalty = problem.ridge * w
    common = problem.ridge * w.mean(0).abs()  # of the penalty, what V does not see
    whole = total / weight + penalty
    error = error / weight + 8 * UNIT * penalty.abs() + common + 4 * UNIT * whole.abs()
    gradient = problem.reduced(whole)
    spread = (b.abs().mT @ (error + (len(b) + 8) * UNIT * whole.abs())).flatten()
    ridge = problem.ridge.repeat(problem.classes - 1)
    computed = metric_of(gram / weight + torch.diag(ridge), source.rows)
    metric = lower(computed, slips / weight + 8 * UNIT * ridge)
    if metric is None or not metric.whole:
        return unbounded(computed, "the least eigenvalue of the Hessian may be zero")
    nu = norm_of(metric, gradient, spread)
    first = DerivationStep(
        "nu", "norm of the gradient in the inverse Hessian", nu, "enclosed, not looked up"
    )
    parts = metric.whitener.reshape(problem.classes - 1, -1, metric.rank)
    turned = torch.einsum("kr,rpm->kpm", b, parts)
    scaling = problem.scaling

    def leverage(x: Tensor, y: Tensor) -> list[Tensor]:
        """The largest ||(e_k - e_l) (x) x_i||_{H^{-1}}, by the two largest of one class."""
        samples = scaling.samples(x)
        lengths = torch.stack([(samples @ one).norm(dim=1) for one in turned], 1)
        return [lengths.topk(2, dim=1).values.sum(1).max()]

    (far,) = source.largest(leverage)
    return self_concordant(metric, nu, float(far), first)


def certificate_of_choices(
    problem: ChoiceProblem, w: Tensor, coef: Tensor, intercept: Tensor, proof: Proof
) -> tuple[Certificate, float]:
    """Certificate of raw coefficients (K, d), and error bound of the intercepts."""
    scaling = problem.scaling
    rows = scaling.functionals()
    d = coef.shape[1]
    along = [torch.kron(problem.basis, rows[a : a + 1].contiguous()) for a in range(len(rows))]
    certificate = certificate_of(proof, torch.cat(along[:d]), coef.flatten(), problem.source)
    shared = w.mean(0).abs() + len(w) * UNIT * w.abs().amax(0)  # the exact rows add up to 0
    common = rows.abs() @ shared
    terms = {**certificate.terms, "sum of the classes' rows": float(common[:d].max())}
    if not scaling.intercept:
        return with_terms(certificate, terms), 0.0
    slips = [scaling.intercept_slip(a, b) for a, b in zip(coef, intercept, strict=True)]
    last = float(proof.bounds(along[d]).max() + common[d] + torch.stack(slips).max())
    step = DerivationStep(
        "intercepts", "bound of their distance", last, "D times their norm, and rounding"
    )
    return with_terms(certificate, terms, step), last


def raw_rows(scaling: Scaling, w: Tensor) -> tuple[Any, Any]:
    """Coefficients and intercepts of the data as they came, (K, d) and (K,)."""
    found = [scaling.raw(row) for row in w]
    return torch.stack([coef for coef, _ in found]), torch.stack([b for _, b in found])
