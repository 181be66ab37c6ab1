"""Gradient descent for any loss, by a whole head in the prompt.

A sample i brings a token (i, j) for every entry j of a look-up table, holding the sample in block
j: e_j (x) (x_i, y_i, 1). Keys and values are in the target's weights, so another loss is another
prompt and the data's tokens stay as they are. A pass returns every sample's gradient; the readout
takes their mean and the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from iceform.arithmetic import gram_eigenvalues
from iceform.arithmetic.doubled import Doubled
from iceform.attention import Features
from iceform.certificates import Result
from iceform.constructions import GradientStep, Schedule
from iceform.constructions.schedules import SCHEDULES
from iceform.errors import ProgramError
from iceform.functions import Loss
from iceform.interpolation import Interpolant, bounds
from iceform.validation import unit_roundoff
from iceform_estimators.algorithms.record import Algorithm, option
from iceform_estimators.machine import Heads, Sizes, Target
from iceform_estimators.machine.machine import balanced

# A key coordinate meets one nonzero feature of a token (the label's row two), a value row two.
_NONZEROS = 2
_SLACK = 1 + 1e-9  # eigenvalues, and products of a factor for each step, round
_LEAK_BITS = 8  # the leak is kept this many bits below rounding


class Residual:
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
        # What a head without hidden tokens lets other blocks carry into a sample's gradient.
        self.leak = unit_roundoff(torch.float64) * 2.0**-_LEAK_BITS
        self.margin = _log_rivals(self.table, samples) - _log_own(self.table) - math.log(self.leak)

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
    others = most + math.log(samples - 1) if samples > 1 else most.new_tensor(-math.inf)
    return float(torch.logaddexp(others, most.new_tensor(math.log(samples))))


@lru_cache(maxsize=64)
def residual_of(
    loss: Loss, dim: int, samples: int, eps: float, w_bound: float, tokens: int | None
) -> Residual:
    """Remembered: its table takes a while to fit."""
    return Residual(loss, dim, samples, eps, w_bound, tokens)


@dataclass(frozen=True)
class Descent(Algorithm):
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

    name: ClassVar[str] = "descent"
    title: ClassVar[str] = "Gradient descent"
    says: ClassVar[str] = "So many steps down the gradient of any loss."
    objective: ClassVar[str] = "w <- w - lr (mean_i l'(w.x_i - y_i) x_i + l2 w)"
    lookup: ClassVar[str] = "the derivative of the loss"

    loss: str | Loss = "squared"
    steps: int = field(default=30, metadata=option("How many steps.", low=1))
    lr: float | None = field(
        default=None,
        metadata=option(
            "Their length; 1/L of the data where it is not given.",
            low=0,
            open="low",
            optional=True,
            kind=float,
        ),
    )
    l2: float = field(
        default=0.0, metadata=option("The penalty (l2/2) |w|^2 beside the mean loss.", low=0)
    )
    schedule: str = field(
        default="constant",
        metadata=option("How step lengths and momenta are chosen.", choices=SCHEDULES),
    )
    w_bound: float = field(
        default=4.0, metadata=option("Entrywise bound of every iterate.", low=0, open="low")
    )
    eps: float = field(
        default=1e-6, metadata=option("Error of the look-up behind one pass.", low=0, open="low")
    )
    tokens: int | None = field(
        default=None,
        metadata=option(
            "Look-up tokens per sample; as many as eps needs where it is not given.",
            low=1,
            optional=True,
            kind=int,
        ),
    )

    @property
    def label(self) -> str:
        """With the loss."""
        return f"{type(self).__name__}({Loss.of(self.loss).name})"

    def _residual(self, dim: int, samples: int) -> Residual:
        loss = Loss.of(self.loss)
        return residual_of(loss, dim, samples, self.eps, self.w_bound, self.tokens)

    def sizes(self, dim: int, samples: int) -> Sizes:
        return self._residual(dim, samples).sizes()

    def _hessian(self, x: Tensor) -> tuple[float, float]:
        """Eigenvalues of the objective's Hessian on this data."""
        residual = self._residual(x.shape[1], x.shape[0])
        low, high, _ = residual.loss.curvature_on(*residual.domain.residuals)
        gram, off = gram_eigenvalues(x)
        least, most = max(0.0, float(gram.min()) - off), float(gram.max()) + off
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
        return residual.target(x, labels_of(y), x.new_zeros(x.shape[1]))

    def descend(self, machine: Heads, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The last iterate, and what it is off by."""
        n, d = x.shape
        for where, what in LEDGER:
            machine.ledger.note(where, what)
        residual = self._residual(d, n)
        residual.check(x, y)
        schedule, hessian = self.plan(x)
        reach = schedule.amplification(hessian, quadratic=residual.loss.quadratic)
        norm = float(x.double().norm(dim=1).max())
        w = last = ahead = x.new_zeros(d)
        table = passed = leak = 0.0
        # What the margin lets other blocks carry into a sample's gradient.
        stray = 2 * residual.scale * residual.domain.x * residual.leak
        # And what rounding the table does, as it is written into the prompt.
        unit = unit_roundoff(x.dtype)
        written = machine.slip(residual.sizes().logits, 0) + 8 * unit
        written *= 2 * residual.scale * residual.domain.x
        for t, (eta, mu) in enumerate(zip(schedule.steps, schedule.momenta, strict=True)):
            out, error = machine.attend(residual.target(x, y, ahead))
            error = residual.scale * error
            gradient = residual.scale * out.double().mean(0) + self.l2 * ahead
            last, w = w, (ahead - eta * gradient).to(x.dtype)
            ahead = w + mu * (w - last) if mu else w
            stored = 4 * unit * self.w_bound
            table += reach[t] * eta * norm * residual.table.error
            passed += reach[t] * math.sqrt(d) * (eta * (error + written) + stored)
            leak += reach[t] * math.sqrt(d) * eta * stray
        return w, {"interpolation": table, "leak": leak, "machine": passed}

    def rows(self, machine: Heads, x: Tensor, y: Tensor | None) -> Result:
        w, terms = self.descend(machine, x, labels_of(y))
        residual = self._residual(x.shape[1], x.shape[0])
        *_, assumed = residual.loss.curvature_on(*residual.domain.residuals)
        certificate = machine.certificate(
            terms, residual.domain.describe(), (*residual.table.assumptions, *assumed)
        )
        if residual.loss.derivative.obstacle is None and not assumed:
            again = lambda: self._again(x, labels_of(y))  # noqa: E731
            certificate = machine.compared(w, again, self.steps * x.numel(), certificate)
        line = NativeLine(w, w.new_zeros(()))
        return machine.result(w, certificate, self.steps, _predict=line)

    def _again(self, x: Tensor, y: Tensor) -> Doubled:
        r"""The exact last iterate, enclosed.

        Steps are taken from a number each, the last one's middle. What a step was off by is
        multiplied on the way as any error is, and the sum of that is what the end is off by, as
        long as iterates within ``far`` of these have the curvature that the factors rest on.
        """
        residual, (schedule, hessian) = self._residual(x.shape[1], x.shape[0]), self.plan(x)
        loss, (low, high) = residual.loss, residual.domain.residuals
        reach = schedule.amplification(hessian, quadratic=loss.quadratic)
        everywhere = loss.known is not None and loss.known.steepest is not None
        f, (samples, labels, offset) = loss.derivative.on(low, high), loss.encode(x, y)
        rows = Doubled.exactly(samples)
        w = last = ahead = Doubled.exactly(x.new_zeros(x.shape[1]))
        end, far = 0.0, [0.0, 0.0]
        for eta, mu, factor in zip(schedule.steps, schedule.momenta, reach, strict=True):
            if not (everywhere or float(ahead.size.max()) + far[0] <= self.w_bound):
                return Doubled(ahead.mid, torch.full_like(ahead.off, math.inf))
            heights = f.doubled((rows * ahead).sum() - Doubled.exactly(labels))
            if offset is not None:
                heights = heights - Doubled.exactly(y)
            mean = (rows.mT * heights).sum() / _number(len(x), x)
            moved = ahead - _number(eta, x) * (mean + _number(self.l2, x) * ahead)
            step = float(moved.off.norm()) * _SLACK
            end += factor * step * _SLACK
            last, w = w, Doubled(moved.mid, torch.zeros_like(moved.off))
            ahead = w + _number(mu, x) * (w - last)
            grown = 1 + eta * hessian[1]
            far = [(1 + mu) * (grown * far[0] + step) + mu * far[1], far[0]]
        return Doubled(w.mid, torch.full_like(w.off, end))

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        schedule, _ = self.plan(x)
        step = self._residual(x.shape[1], x.shape[0]).step
        x, y = x.double(), labels_of(y).double()
        w = last = ahead = x.new_zeros(x.shape[1])
        for eta, mu in zip(schedule.steps, schedule.momenta, strict=True):
            gradient = step._exact(x, y, ahead).mean(-2) + self.l2 * ahead
            last, w = w, ahead - eta * gradient
            ahead = w + mu * (w - last)
        return w


def _number(value: float, like: Tensor) -> Doubled:
    return Doubled.exactly(torch.tensor(value, dtype=torch.float64, device=like.device))


LEDGER = (
    ("prompt", "samples and labels, w, and the look-up head as rows"),
    ("readout", "mean of the gradients"),
    ("host", "Gram matrix and its eigenvalues, for the lengths of the steps"),
    ("host", "w - lr gradient, momentum included"),
    ("host", "predictions"),
)


@dataclass(frozen=True, eq=False)
class NativeLine:
    """Predictions x.coef + intercept on the host."""

    coef: Tensor
    intercept: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.coef.to(x) + self.intercept.to(x)


def labels_of(y: Tensor | None) -> Tensor:
    """Refuse data without labels."""
    if y is None:
        raise ProgramError("this algorithm needs labels: machine.run(algorithm, X, y)")
    return y
