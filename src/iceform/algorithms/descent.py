"""Programs that follow gradients: one per loss, least squares, ridge, the leading component.

A sample i brings a token (i, j) for every entry j of a look-up table, holding the sample in block
j: e_j (x) (x_i, y_i, 1). Keys and values are in the target's weights, so another loss is another
prompt and the data's tokens stay as they are. A pass returns every sample's gradient; the readout
takes their mean and the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from iceform.algorithms.stream import Fit, LinearModel, fitted
from iceform.attention import Features
from iceform.constructions import GradientStep, Schedule, steps_needed
from iceform.errors import BoundError, ProgramError
from iceform.functions.losses import Loss
from iceform.interpolation import Interpolant, bounds
from iceform.machine import Running, Source
from iceform.machine.problem import Metric
from iceform.machine.program import Attend, Outcome, Program, Sizes, Target, balanced
from iceform.machine.proofs import prove
from iceform.machine.scaling import Scaling
from iceform.machine.solvers import minimise
from iceform.validation import check_positive, unit_roundoff

__all__ = ["GradientDescent", "LeastSquares", "PrincipalComponent", "Ridge"]

# A key coordinate meets one nonzero feature of a token (the label's row two), a value row two.
_NONZEROS = 2
_LEAK_BITS = 8  # the leak is kept this many bits below rounding
_UNIT = torch.finfo(torch.float64).eps / 2
_OUTWARD = 1 + 1e-9  # covers the rounding of a bound's own few sums and quotients


class _Residual:
    """Tokens and target weights of passes that look up f(w.x - y)."""

    def __init__(
        self, loss: Loss, dim: int, samples: int, eps: float, w_bound: float, tokens: int | None
    ) -> None:
        self.loss = loss
        self.step = GradientStep(
            loss, 1.0, dim=dim, samples=samples, eps=None if tokens else eps, w_bound=w_bound,
            tokens=tokens,
        )  # fmt: skip
        self.table = self.step.interpolant
        self.domain = self.step.domain
        n = samples
        # What a head without hidden tokens lets other blocks carry into a sample's gradient.
        self.leak = unit_roundoff(torch.float64) * 2.0**-_LEAK_BITS
        self.margin = _log_rivals(self.table, n) - _log_own(self.table) - math.log(self.leak)

    @property
    def features(self) -> Features:
        d = self.domain.dim
        blocks = self.table.tokens * (d + 2)
        bits = self.bits
        return Features.of(blocks=blocks, code=bits, offset=d, w=d, is_query=1, query_code=bits)

    @property
    def bits(self) -> int:
        """Length of a sample's code: its number in binary, digits -1 and +1."""
        return max(1, (self.domain.samples - 1).bit_length())

    @property
    def _weight_of_bit(self) -> float:
        """Other samples' tokens differ in a bit, queries have no code: both must lose M."""
        return self.margin / min(2, self.bits)

    def sizes(self) -> Sizes:
        d, n = self.domain.dim, self.domain.samples
        k_size, q_size = self._spans()
        products = (k_size * q_size).sqrt()
        return Sizes(
            tokens=n * self.table.tokens + n,
            features=self.features.total,
            head_dim=d + 2 + self.bits,
            value_dim=d,
            bound=max(1.0, self.domain.x, self.domain.y, self.domain.w),
            weight_bound=max(float(w.abs().max()) for w in self.weights()),
            reach=1.001 * max(float(products.max()), self.domain.x),
            logits=float((k_size * q_size).sum()),
            nonzeros=_NONZEROS,
        )

    @property
    def scale(self) -> float:
        """What the readout multiplies by, so that large values do not widen every look-up."""
        return self.table.size + 1

    def _spans(self) -> tuple[Tensor, Tensor]:
        """Largest terms of each head dimension, keys and queries before balancing."""
        d = self.domain.dim
        keys, center = self.table.keys, abs(self.table.grid.center)
        slope, bias = float(keys.slopes.abs().max()), float(keys.biases.abs().max())
        root = math.sqrt(self._weight_of_bit)
        k = [slope * self.domain.x] * d + [slope * (self.domain.y + center), bias]
        q = [self.domain.w] * d + [1.0, 1.0]
        k, q = k + [root] * self.bits, q + [root] * self.bits
        return torch.tensor(k, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)

    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """W_K, W_Q and W_V of the target head."""
        d, table, at = self.domain.dim, self.table, self.features
        eye_d, eye_bits = (torch.eye(m, dtype=torch.float64) for m in (d, self.bits))
        root = math.sqrt(self._weight_of_bit)
        w_k = torch.zeros(d + 2 + self.bits, at.total, dtype=torch.float64)
        blocks = w_k[:, at["blocks"]].view(-1, table.tokens, d + 2)
        slopes, biases = table.keys.slopes, table.keys.biases
        blocks[:d, :, :d] = eye_d[:, None, :] * slopes[:, None]
        blocks[d, :, d] = -slopes
        blocks[d, :, d + 1] = -slopes * table.grid.center
        blocks[d + 1, :, d + 1] = biases
        w_k[d + 2 :, at["code"]] = root * eye_bits
        w_q = torch.zeros_like(w_k)
        w_q[:d, at["w"]] = eye_d
        w_q[d : d + 2, at["is_query"]] = 1.0
        w_q[d + 2 :, at["query_code"]] = root * eye_bits
        w_v = torch.zeros(d, at.total, dtype=torch.float64)
        values = w_v[:, at["blocks"]].view(d, table.tokens, d + 2)
        values[:, :, :d] = eye_d[:, None, :] * table.values[:, None] / self.scale
        w_v[:, at["offset"]] = -eye_d / self.scale
        return *balanced(w_k, w_q, *self._spans()), w_v

    def tokens(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """Grid tokens of every sample, then the queries."""
        n, grid, at = self.domain.samples, self.table.tokens, self.features
        samples, labels, offset = self.loss.encode(x, y)
        packed = torch.cat([samples, labels[:, None], torch.ones_like(labels)[:, None]], -1)
        out = x.new_zeros(n * grid + n, at.total)
        own = torch.eye(grid).to(x)[None, :, :, None] * packed[:, None, None, :]
        out[: n * grid, at["blocks"]] = own.reshape(n * grid, -1)
        places = torch.arange(n, device=x.device)[:, None]
        digits = 2 ** torch.arange(self.bits, device=x.device)
        code = (2 * ((places // digits) % 2) - 1).to(x)
        out[: n * grid, at["code"]] = code.repeat_interleave(grid, 0)
        if offset is not None:
            out[: n * grid, at["offset"]] = offset.repeat_interleave(grid, 0)
        out[:, at["w"]] = w
        out[n * grid :, at["is_query"]] = 1.0
        out[n * grid :, at["query_code"]] = code
        return out

    def target(self, x: Tensor, y: Tensor, w: Tensor) -> Target:
        """The head whose queries return the samples' gradients at w."""
        self.domain.check_coefficients(w)
        grid = self.domain.samples * self.table.tokens
        w_k, w_q, w_v = (m.to(x) for m in self.weights())
        return Target(self.tokens(x, y, w), w_k, w_q, w_v, slice(grid, None))

    def check(self, x: Tensor, y: Tensor) -> None:
        self.domain.check_data(x, y)
        self.loss.check_labels(y)


def _log_own(it: Interpolant) -> float:
    """A lower bound of ln sum_k e^{logit_k} in a sample's own block, over z in the range.

    On a uniform grid some node is within h/2 of z, which gives beta t^2 - c/4. Graded keys are
    pinned so that the token at the center has logit 0 for every z.
    """
    return -it.sharpness / 4 if it.uniform else 0.0


def _log_rivals(it: Interpolant, samples: int) -> float:
    """An upper bound of ln of all other blocks' and query tokens' mass before the margin."""
    if it.uniform:
        reach = max(it.high - it.grid.center, it.grid.center - it.low)
        return bounds.rivals(it.sharpness, it.grid.spacing, reach, samples, samples)
    ends = torch.tensor([it.low, it.high], dtype=torch.float64) - it.grid.center
    # A log-sum-exp of lines is convex, so its largest value is at an end of the range.
    most = torch.logsumexp(ends[:, None] * it.keys.slopes + it.keys.biases, 1).max()
    others = most + math.log(samples - 1) if samples > 1 else torch.tensor(-math.inf)
    return float(torch.logaddexp(others.double(), torch.tensor(math.log(samples)).double()))


@lru_cache(maxsize=64)
def _residual(
    loss: Loss, dim: int, samples: int, eps: float, w_bound: float, tokens: int | None
) -> _Residual:
    return _Residual(loss, dim, samples, eps, w_bound, tokens)


@dataclass(frozen=True)
class GradientDescent(Program):
    """Gradient descent from w = 0 for any loss of the library.

    Parameters
    ----------
    loss
        A name of ``iceform.LOSSES`` or a ``Loss``.
    steps, lr, l2, schedule
        As for :class:`iceform.GradientDescent`; the step size defaults to 1/L of the data.
    w_bound
        Entrywise bound that every iterate must keep.
    eps
        Error of the look-up behind one pass.
    tokens
        A fixed number of look-up tokens per sample instead of as many as eps needs.
    """

    loss: str | Loss = "squared"
    steps: int = 30
    lr: float | None = None
    l2: float = 0.0
    schedule: str = "constant"
    w_bound: float = 4.0
    eps: float = 1e-6
    tokens: int | None = None

    @property
    def name(self) -> str:
        """With the loss."""
        return f"{type(self).__name__}({Loss.of(self.loss).name})"

    def _residual(self, dim: int, samples: int) -> _Residual:
        loss = Loss.of(self.loss)
        return _residual(loss, dim, samples, self.eps, self.w_bound, self.tokens)

    def sizes(self, dim: int, samples: int) -> Sizes:
        return self._residual(dim, samples).sizes()

    def _hessian(self, x: Tensor) -> tuple[float, float]:
        """Eigenvalues of the objective's Hessian on this data."""
        residual = self._residual(x.shape[1], x.shape[0])
        low, high, _ = residual.loss.curvature_on(*residual.domain.residuals)
        gram = torch.linalg.eigvalsh(x.double().mT @ x.double() / x.shape[0])
        least, most = max(0.0, float(gram.min())), float(gram.max())
        return max(low, 0.0) * least + self.l2, high * most + self.l2

    def plan(self, x: Tensor) -> tuple[Schedule, tuple[float, float]]:
        """The schedule for this data, and the eigenvalues it rests on."""
        hessian = self._hessian(x)
        lr = self.lr
        if lr is None and self.schedule != "chebyshev":
            lr = 1 / hessian[1]
        return Schedule.of(self.schedule, self.steps, lr, hessian), hessian

    def targets(self, x: Tensor, y: Tensor | None) -> Target:
        residual = self._residual(x.shape[1], x.shape[0])
        return residual.target(x, _labels(y), x.new_zeros(x.shape[1]))

    def _descend(self, attend: Attend, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, float]]:
        n, d = x.shape
        residual = self._residual(d, n)
        residual.check(x, y)
        schedule, hessian = self.plan(x)
        quadratic = residual.loss.curvature.quadratic
        reach = schedule.amplification(hessian, quadratic=quadratic)
        norm = float(x.double().norm(dim=1).max())
        w = last = ahead = x.new_zeros(d)
        table = machine = leak = 0.0
        # What the margin lets other blocks carry into a sample's gradient.
        stray = 2 * residual.scale * residual.domain.x * residual.leak
        for t, (eta, mu) in enumerate(zip(schedule.steps, schedule.momenta, strict=True)):
            out, error = attend(residual.target(x, y, ahead))
            error = residual.scale * error
            gradient = residual.scale * out.double().mean(0) + self.l2 * ahead
            last, w = w, (ahead - eta * gradient).to(x.dtype)
            ahead = w + mu * (w - last) if mu else w
            stored = 4 * unit_roundoff(x.dtype) * self.w_bound
            table += reach[t] * eta * norm * residual.table.error
            machine += reach[t] * math.sqrt(d) * (eta * error + stored)
            leak += reach[t] * math.sqrt(d) * eta * stray
        return w, {"interpolation": table, "leak": leak, "machine": machine}

    def run(self, attend: Attend, x: Tensor, y: Tensor | None) -> Outcome:
        w, terms = self._descend(attend, x, _labels(y))
        residual = self._residual(x.shape[1], x.shape[0])
        return Outcome(
            w, terms, residual.domain.describe(), self.steps, _linear(w),
            residual.table.assumptions,
        )  # fmt: skip

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        schedule, _ = self.plan(x)
        step = self._residual(x.shape[1], x.shape[0]).step
        x, y = x.double(), _labels(y).double()
        w = last = ahead = x.new_zeros(x.shape[1])
        for eta, mu in zip(schedule.steps, schedule.momenta, strict=True):
            gradient = step._exact(x, y, ahead).mean(-2) + self.l2 * ahead
            last, w = w, ahead - eta * gradient
            ahead = w + mu * (w - last)
        return w


@dataclass(frozen=True)
class _PenalisedSquares(LinearModel):
    alpha: float = 1.0

    def l2(self, rows: int) -> float:
        return self.alpha / rows

    def stream(self, machine: Running, source: Source) -> Fit:
        """Of many solutions, the one of least norm."""
        problem = self.problem(machine, source)
        solution = minimise(
            problem, tol=self.tol, max_passes=self.max_passes, precondition=self.precondition
        )
        proof = prove(problem, solution.w)
        if proof.metric is None:
            return fitted(problem, solution, proof)
        coef, intercept = problem.scaling.raw(solution.w)
        least = _least_norm(coef, proof.metric, problem.scaling)
        moved = intercept + problem.scaling.mean @ (coef - least)
        return fitted(problem, solution, proof, instead=(least, moved))


def _least_norm(coef: Tensor, metric: Metric, scaling: Scaling) -> Tensor:
    """Take out of the coefficients what the samples cannot see.

    A direction v that they do not see is v / scale in the data's own units.
    """
    unseen = metric.null()[: len(coef)] / scaling.scale[:, None]
    directions, size = torch.linalg.svd(unseen, full_matrices=False)[:2]
    directions = directions[:, size > 1e-10 * size.max()]
    least: Tensor = coef - directions @ (directions.mT @ coef)
    return least


@dataclass(frozen=True)
class Ridge(Program):
    """argmin ||X w - y||^2 + alpha ||w||^2, scikit-learn's convention.

    On a :class:`iceform.Machine`: Chebyshev passes until the distance to the solution is certified
    below ``tol``. On a :class:`iceform.StreamMachine`: whitened passes over data of any length.

    Parameters
    ----------
    alpha
        The penalty.
    tol
        The distance to the solution to certify, and where the passes of a stream end.
    w_bound, eps
        Bound of the coefficients and error of a look-up, for a machine.
    fit_intercept, precondition, max_passes
        For a stream, as for :class:`iceform.algorithms.LinearModel`.
    """

    alpha: float = 1.0
    tol: float = 1e-6
    w_bound: float = 4.0
    eps: float = 1e-9
    fit_intercept: bool = field(default=False, kw_only=True)
    precondition: str = field(default="whiten", kw_only=True)
    max_passes: int = field(default=1000, kw_only=True)

    def stream(self, machine: Running, source: Source) -> Fit:
        """Pass over data of any length."""
        alpha = check_positive("alpha", self.alpha, zero=True)
        model = _PenalisedSquares(
            alpha,
            fit_intercept=self.fit_intercept,
            tol=self.tol,
            max_passes=self.max_passes,
            precondition=self.precondition,
        )
        return model.stream(machine, source)

    def _descent(self, x: Tensor) -> tuple[GradientDescent, tuple[float, float]]:
        n = x.shape[0]
        gram = torch.linalg.eigvalsh(x.double().mT @ x.double() / n)
        l2 = self.alpha / n
        hessian = (float(gram.min()) + l2, float(gram.max()) + l2)
        if not hessian[0] > 1e-12 * hessian[1]:
            raise BoundError(
                f"the least eigenvalue of X'X/n + alpha/n is {hessian[0]:.3g}: the problem has no "
                "unique solution; use Ridge(alpha > 0)"
            )
        start = self.w_bound * math.sqrt(x.shape[1])
        steps = steps_needed("chebyshev", *hessian, 0.5 * self.tol / start)
        descent = GradientDescent("squared", steps, None, l2, "chebyshev", self.w_bound, self.eps)
        return descent, hessian

    def sizes(self, dim: int, samples: int) -> Sizes:
        return GradientDescent("squared", w_bound=self.w_bound, eps=self.eps).sizes(dim, samples)

    def targets(self, x: Tensor, y: Tensor | None) -> Target:
        return self._descent(x)[0].targets(x, y)

    def run(self, attend: Attend, x: Tensor, y: Tensor | None) -> Outcome:
        if self.fit_intercept:
            raise ProgramError("fit_intercept needs a StreamMachine; here, append a constant to X")
        descent, hessian = self._descent(x)
        labels = _labels(y)
        w, _ = descent._descend(attend, x, labels)
        left = _distance_left(x.double(), labels.double(), w.double(), descent.l2, hessian[0])
        domain = descent._residual(x.shape[1], x.shape[0]).domain.describe()
        return Outcome(w, {"distance to the solution": left}, domain, descent.steps, _linear(w))

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        x, y = x.double(), _labels(y).double()
        eye = torch.eye(x.shape[1]).to(x)
        solution: Tensor = torch.linalg.solve(x.mT @ x + self.alpha * eye, x.mT @ y)
        return solution


def _gram_slip(x: Tensor) -> float:
    """What eigenvalues of the computed X'X/n can be off by.

    Entries are sums of n products, off by (n + 2) u |X|'|X|/n at most, whose norm is no more than
    ||X||_F^2/n, as is the largest eigenvalue; eigvalsh is off by less than 8 d u of that.
    """
    n, d = x.shape
    return (n + 8 * d + 8) * _UNIT * float(x.square().sum()) / n * _OUTWARD


def _distance_left(x: Tensor, y: Tensor, w: Tensor, l2: float, least: float) -> float:
    """How far w can be from the solution: ||gradient|| over the Hessian's least eigenvalue.

    Whatever came before. The residual is off by (d + 2) u (|x||w| + |y|), the gradient by that
    times |x| and by the rounding of its own sum.
    """
    n, d = x.shape
    residual = x @ w - y
    penalty = l2 * w
    gradient = residual @ x / n + penalty
    off = (d + 2) * _UNIT * (x.abs() @ w.abs() + y.abs())
    error = (off + (n + 4) * _UNIT * residual.abs()) @ x.abs() / n
    error = error + 4 * _UNIT * (penalty.abs() + gradient.abs())
    least = least * (1 - 4 * _UNIT) - _gram_slip(x)
    if not least > 0:
        return math.inf
    return float(gradient.norm() + error.norm()) / least * _OUTWARD


@dataclass(frozen=True)
class LeastSquares(Ridge):
    """argmin ||X w - y||^2 for data of full rank."""

    alpha: float = 0.0

    def __post_init__(self) -> None:
        if self.alpha != 0:
            raise ProgramError(f"least squares has no penalty, got alpha = {self.alpha}; use Ridge")


@dataclass(frozen=True)
class PrincipalComponent(Program):
    """The leading eigenvector of X'X/n by power iteration: f is the identity and y is 0."""

    steps: int = 60
    eps: float = 1e-9
    seed: int = 0
    _label: str = field(default="squared", repr=False)

    def _residual(self, dim: int, samples: int) -> _Residual:
        return _residual(Loss.of(self._label), dim, samples, self.eps, 1.0, None)

    def sizes(self, dim: int, samples: int) -> Sizes:
        return self._residual(dim, samples).sizes()

    def _start(self, dim: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        w = torch.randn(dim, generator=generator, dtype=torch.float64)
        unit: Tensor = w / w.norm()
        return unit

    def targets(self, x: Tensor, y: Tensor | None) -> Target:
        residual = self._residual(x.shape[1], x.shape[0])
        zeros = x.new_zeros(x.shape[0])
        start = self._start(x.shape[1]).to(x)
        return residual.target(x, zeros, start)

    def run(self, attend: Attend, x: Tensor, y: Tensor | None) -> Outcome:
        n, d = x.shape
        residual = self._residual(d, n)
        zeros = x.new_zeros(n)
        residual.check(x, zeros)
        w = self._start(d).to(x)
        for _ in range(self.steps):
            out, _ = attend(residual.target(x, zeros, w))
            image = out.double().mean(0)
            w = (image / image.norm() * (1 - 1e-12)).to(x.dtype)
        w = w / w.norm()
        return Outcome(w, self._residual_bound(x, w), residual.domain.describe(), self.steps)

    def _residual_bound(self, x: Tensor, w: Tensor) -> dict[str, float]:
        """Davis and Kahan: sin(angle) <= ||(C - rho) v|| / (||v|| (rho - next eigenvalue))."""
        x, vector = x.double(), w.double()
        gram = x.mT @ x / x.shape[0]
        value = float(vector @ gram @ vector)
        slip = _gram_slip(x)
        computed = (2 * len(vector) + 8) * _UNIT * float(gram.norm())
        residual = float((gram @ vector - value * vector).norm()) + slip + computed
        eigenvalues = torch.linalg.eigvalsh(gram)
        gap = value - float(eigenvalues[-2]) - slip if len(eigenvalues) > 1 else math.inf
        if not gap > 0:
            raise BoundError(f"the leading eigenvalue {value:.6g} is not apart from the next")
        norm = float(vector.norm())
        sine = min(1.0, residual / (gap * norm))
        length = abs(norm - 1) + (len(vector) + 4) * _UNIT
        return {"distance to the component": math.sqrt(2) * sine * _OUTWARD, "length": length}

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        gram = x.double().mT @ x.double() / x.shape[0]
        vector: Tensor = torch.linalg.eigh(gram).eigenvectors[:, -1]
        start = self._start(x.shape[1]).to(vector)
        return vector if float(vector @ start) >= 0 else -vector


def _labels(y: Tensor | None) -> Tensor:
    if y is None:
        raise ProgramError("this program needs labels: machine.run(program, X, y)")
    return y


def _linear(w: Tensor) -> Callable[[Attend, Tensor], Tensor]:
    return lambda attend, x: x @ w
