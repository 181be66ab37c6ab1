"""Gradient descent for every loss, ridge regression and least squares by prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import gram_eigenvalues
from iceform.arithmetic.balls import balls_of, uppermost
from iceform.arithmetic.eigenvalues import gram_range
from iceform.arithmetic.units import LEAK_BITS, OUTWARD_MANY
from iceform.certificates import Result
from iceform.errors import BoundError
from iceform.expressions import Loss
from iceform.expressions.ball_tensors import BallTensor
from iceform.heads import Features, Head, Move, Row, products
from iceform.heads.head import Place
from iceform.paper.domain import Domain
from iceform.paper.gradients import GradientStep
from iceform.paper.library.passes import (
    LOOKED,
    SPARE,
    WRITTEN,
    DesignedHead,
    HeadSizes,
    PassRecorder,
    PromptAlgorithm,
    TargetHead,
    apart,
    require_labels,
)
from iceform.paper.residual import exact_gradients, hessian_range
from iceform.paper.schedules import SCHEDULES, Schedule, steps_needed
from iceform.tables import Interpolant, bounds
from iceform.validation import check_choice, check_positive, check_size, unit_roundoff

_SINGULAR = 1e-12  # of the largest eigenvalue: below it the least one may be zero


@dataclass(frozen=True, eq=False)
class GradientHead(DesignedHead):
    """Prompts that look up f(w.x_i - y_i) x_i for every sample: the paper's token layout.

    A sample i brings a token (i, j) for every entry j of a look-up table, holding the sample in
    block j: e_j (x) (x_i, y_i, 1). Keys and values of the table are in the head's weights, so
    another loss is another prompt and the data's tokens stay as they are. A code in binary keeps
    queries on their own sample.

    Attributes
    ----------
    loss, table, domain
        Whose gradients, how they are looked up, and on which data.
    leak
        What other blocks may carry into a sample's gradient: no token is hidden.
    root
        What the digits of a code are multiplied by, in keys and in queries.
    scale
        What the readout multiplies by, so that large values do not widen every look-up.
    """

    loss: Loss
    table: Interpolant
    domain: Domain
    leak: float
    root: float
    scale: float

    @cached_property
    def spans(self) -> Tensor:
        """Largest terms of keys and queries: a key meets one block of a token."""
        d, keys, center = self.domain.dim, self.table.keys, abs(self.table.grid.center)
        slope, bias = float(keys.slopes.abs().max()), float(keys.biases.abs().max())
        k = [slope * self.domain.x] * d + [slope * (self.domain.y + center), bias]
        q = [self.domain.w] * d + [1.0, 1.0]
        code = [self.root] * self._width("code")
        return torch.tensor([k + code, q + code], dtype=torch.float64)

    def _width(self, name: str) -> int:
        at = self.features[name]
        return int(at.stop - at.start)

    @property
    def needs(self) -> HeadSizes:
        """A key coordinate meets one nonzero feature of a token (a label's two), a value two."""
        products = float((self.spans[0] * self.spans[1]).sqrt().max())
        return self.sizes(
            self.domain.samples * (self.table.tokens + 1),
            bound=max(1.0, self.domain.x, self.domain.y, self.domain.w),
            reach=SPARE * max(products, self.domain.x),
            nonzeros=2,
        )

    def check(self, x: Tensor, y: Tensor) -> None:
        """Refuse data outside the domain."""
        self.domain.check_data(x, y)
        self.loss.check_labels(y)

    def at(self, x: Tensor, y: Tensor, w: Tensor) -> TargetHead:
        """The head whose queries return the samples' gradients at w, over ``scale``."""
        self.domain.check_coefficients(w)
        queries = slice(self.domain.samples * self.table.tokens, None)
        return self.target(self._tokens(x, y, w), queries)

    def _tokens(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """Grid tokens of every sample, then the queries."""
        n, grid, at = self.domain.samples, self.table.tokens, self.features
        samples, labels, offset = self.loss.encode(x, y)
        packed = torch.cat([samples, labels[:, None], torch.ones_like(labels)[:, None]], -1)
        out = x.new_zeros(n * grid + n, at.total)
        own = torch.eye(grid).to(x)[None, :, :, None] * packed[:, None, None, :]
        out[: n * grid, at["blocks"]] = own.reshape(n * grid, -1)
        numbers = torch.arange(n, device=x.device)[:, None]
        bits = torch.arange(self._width("code"), device=x.device)
        code = (2 * ((numbers // 2**bits) % 2) - 1).to(x)
        out[: n * grid, at["code"]] = code.repeat_interleave(grid, 0)
        if offset is not None:
            out[: n * grid, at["offset"]] = offset.repeat_interleave(grid, 0)
        out[:, at["w"]] = w
        out[n * grid :, at["is_query"]] = 1.0
        out[n * grid :, at["query_code"]] = code
        return out


@lru_cache(maxsize=64)  # a table takes a while to fit
def gradient_head(
    loss: Loss, dim: int, samples: int, eps: float, w_bound: float, tokens: int | None
) -> GradientHead:
    """The head of these sizes, made once."""
    step = GradientStep(
        loss, 1.0, dim=dim, samples=samples, eps=None if tokens else eps, w_bound=w_bound,
        tokens=tokens,
    )  # fmt: skip
    table = step.interpolant
    bits = max(1, (samples - 1).bit_length())  # of a sample's number, digits -1 and +1
    leak = unit_roundoff(torch.float64) * 2.0**-LEAK_BITS
    margin = _log_rivals(table, samples) - _log_own(table) - math.log(leak)
    # Other samples' tokens differ in a bit, queries have no code: both must lose the margin.
    root, scale = math.sqrt(margin / min(2, bits)), table.size + 1
    at = Features.of(
        blocks=table.tokens * (dim + 2), code=bits, offset=dim, w=dim, is_query=1, query_code=bits
    )

    def along(i: int, numbers: Tensor) -> dict[Place, float]:
        """Entry i of every block, each with its own coefficient."""
        return {("blocks", k * (dim + 2) + i): c for k, c in enumerate(numbers.tolist())}

    slopes, one = table.keys.slopes, Row.of("is_query")
    label = Row({**along(dim, -slopes), **along(dim + 1, -slopes * table.grid.center)})
    logit = (
        *((Row.of("w", i), Row(along(i, slopes))) for i in range(dim)),
        (one, label),
        (one, Row(along(dim + 1, table.keys.biases))),
        *products(at, {"query_code": root}, {"code": root}),
    )
    looked = table.values / scale
    values = [Row({**along(i, looked), ("offset", i): -1 / scale}) for i in range(dim)]
    moved = tuple(Move(value, {("gradient", i): 1.0}) for i, value in enumerate(values))
    head = Head("gradients of the samples", logit, moved)
    return GradientHead(at, {}, head, loss, table, step.domain, leak, root, scale)


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


def _predicted(coef: Tensor, x: Tensor) -> Tensor:
    """Predictions x.coef, on the host."""
    return x @ coef.to(x)


@dataclass(frozen=True)
class DescentPrompts(PromptAlgorithm):
    r"""Gradient descent from w = 0 for any loss: :math:`w \leftarrow w - \eta\,(\frac1n \sum_i
    \ell'(w \cdot x_i - y_i) x_i + \lambda w)`. A pass returns every sample's gradient; the readout
    takes their mean and the host the step.

    Parameters
    ----------
    loss
        A name of ``iceform.expressions.LOSSES``, a ``Loss``, or its derivative as a function.
    steps, lr, l2, schedule
        As for :class:`iceform.paper.GradientDescent`; the step size is 1/L of the data by default.
    w_bound
        Entrywise bound that every iterate must keep.
    eps
        Error of the look-up behind one pass.
    tokens
        A fixed number of look-up tokens per sample instead of as many as eps needs.

    Examples
    --------
    >>> descent = DescentPrompts("squared", steps=3, lr=0.5)
    >>> network = PromptLibrary(dim=1, samples=1, algorithms=[descent])
    >>> result = network.run(descent, torch.ones(1, 1).double(), torch.ones(1).double())
    >>> result.value.round(decimals=4).tolist()  # 1 - 1/2^3
    [0.875]
    """

    loss: str | Loss = "squared"
    steps: int = 30
    lr: float | None = None
    l2: float = 0.0
    schedule: str = "constant"
    w_bound: float = 4.0
    eps: float = tuning.EPS
    tokens: int | None = None

    def __post_init__(self) -> None:
        check_size("steps", self.steps)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_positive("l2", self.l2, zero=True)
        check_positive("w_bound", self.w_bound)
        check_positive("eps", self.eps)
        if self.lr is not None:
            check_positive("lr", self.lr)
        if self.tokens is not None:
            check_size("tokens", self.tokens)

    @property
    def label(self) -> str:
        """With the loss."""
        return f"DescentPrompts({Loss.of(self.loss).name})"

    def _head(self, dim: int, samples: int) -> GradientHead:
        loss = Loss.of(self.loss)
        return gradient_head(loss, dim, samples, self.eps, self.w_bound, self.tokens)

    def sizes(self, dim: int, samples: int) -> HeadSizes:
        """A token for every sample and entry of the table, and a query for every sample."""
        return self._head(dim, samples).needs

    def plan(self, x: Tensor) -> tuple[Schedule, tuple[float, float]]:
        """The schedule for these data, and the eigenvalues of the Hessian that it rests on."""
        head = self._head(x.shape[1], x.shape[0])
        alpha, top, _ = hessian_range(head.loss, head.domain, gram_range(x), self.l2)
        hessian = alpha, top
        return Schedule.of(self.schedule, self.steps, self.lr, hessian), hessian

    def target(self, x: Tensor, y: Tensor | None) -> TargetHead:
        """At w = 0."""
        return self._head(x.shape[1], len(x)).at(x, require_labels(y), x.new_zeros(x.shape[1]))

    def descend(
        self, passes: PassRecorder, x: Tensor, y: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """The last iterate, and what it is off by from that of the exact descent."""
        for where, what in (
            ("prompt", "samples and labels, w, and the look-up head as rows"),
            ("readout", "mean of the gradients"),
            ("host", "Gram matrix and its eigenvalues, for the lengths of the steps"),
            ("host", "w - lr gradient, momentum included"),
            ("host", "predictions"),
        ):
            passes.ledger.note(where, what)
        d, head = x.shape[1], self._head(x.shape[1], len(x))
        head.check(x, y)
        schedule, hessian = self.plan(x)
        reach = schedule.amplification(hessian, quadratic=head.loss.quadratic)
        norm, unit = float(x.double().norm(dim=1).max()), unit_roundoff(x.dtype)
        # Per pass: what the margin lets other blocks carry into a sample's gradient, and what
        # rounding the table does as it is written into the prompt.
        stray = 2 * head.scale * head.domain.x * head.leak
        written = passes.moved(head.needs.logits) + WRITTEN * unit
        written *= 2 * head.scale * head.domain.x
        stored = (8 if schedule.accelerated else 4) * unit * self.w_bound
        errors = []

        def step(w: Tensor, eta: float) -> Tensor:
            out, error = passes.attend(head.at(x, y, w))
            errors.append(error)
            return (w - eta * (head.scale * out.double().mean(0) + self.l2 * w)).to(x.dtype)

        w = schedule.iterates(x.new_zeros(d), step)[-1]
        table = passed = leak = 0.0
        for eta, factor, error in zip(schedule.steps, reach, errors, strict=True):
            table += factor * eta * norm * head.table.error
            passed += factor * math.sqrt(d) * (eta * (head.scale * error + written) + stored)
            leak += factor * math.sqrt(d) * eta * stray
        return w, {"interpolation": table, "leak": leak, "passes": passed}

    def run(self, passes: PassRecorder, x: Tensor, y: Tensor | None) -> Result:
        """The last iterate."""
        w, terms = self.descend(passes, x, require_labels(y))
        head = self._head(x.shape[1], len(x))
        *_, assumed = head.loss.curvature_on(*head.domain.residuals)
        taken = (*head.table.assumptions, *assumed)
        certificate = passes.certificate(terms, head.domain.describe(), taken)
        enclosable = head.loss.derivative.obstacle is None and not assumed
        (schedule, _), labels = self.plan(x), require_labels(y)
        off = apart(lambda x, y: self._steps(schedule, x, y), w) if enclosable else None
        return passes.result(w, certificate, off, (x, labels), predictor=partial(_predicted, w))

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        """The same steps along exact gradients."""
        return self._steps(self.plan(x)[0], x.double(), require_labels(y).double())

    def _steps(self, schedule: Schedule, x: Tensor, y: Tensor) -> Tensor:
        def step(w: Tensor, eta: float) -> Tensor:
            return w - eta * (exact_gradients(Loss.of(self.loss), x, y, w).mean(0) + self.l2 * w)

        return schedule.iterates(torch.zeros_like(x[0]), step)[-1]


@dataclass(frozen=True)
class RidgePrompts(PromptAlgorithm):
    r"""Ridge regression, :math:`\min_w \|Xw - y\|^2 + \alpha \|w\|^2`; least squares for alpha = 0.

    Descent with Chebyshev steps, as many as bring w within ``tol`` of the minimiser. With g the
    gradient at the answer w, which is strongly convex's :math:`\|w - w^*\| \le \|g\|/\lambda_{min}`
    after the fact.

    Parameters
    ----------
    alpha
        The penalty, in scikit-learn's convention.
    tol
        The distance to the minimiser that the steps are planned for.
    w_bound, eps
        Entrywise bound of every iterate, and error of a look-up.

    Examples
    --------
    >>> ridge = RidgePrompts(alpha=1.0, tol=1e-6)
    >>> network = PromptLibrary(dim=1, samples=1, algorithms=[ridge])
    >>> result = network.run(ridge, torch.ones(1, 1).double(), torch.ones(1).double())
    >>> result.value.round(decimals=5).tolist()  # 1 / (1 + 1)
    [0.5]
    """

    alpha: float = 1.0
    tol: float = LOOKED
    w_bound: float = DescentPrompts.w_bound
    eps: float = LOOKED

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha, zero=True)
        check_positive("tol", self.tol)

    def _descent(self, steps: int = 1, l2: float = 0.0) -> DescentPrompts:
        how = "chebyshev" if l2 or steps > 1 else "constant"
        return DescentPrompts("squared", steps, None, l2, how, w_bound=self.w_bound, eps=self.eps)

    def sizes(self, dim: int, samples: int) -> HeadSizes:
        """As of descent."""
        return self._descent().sizes(dim, samples)

    def target(self, x: Tensor, y: Tensor | None) -> TargetHead:
        """At w = 0."""
        return self._descent().target(x, y)

    def run(self, passes: PassRecorder, x: Tensor, y: Tensor | None) -> Result:
        """The last iterate."""
        labels, (n, d), l2 = require_labels(y), x.shape, self.alpha / len(x)
        gram, off = gram_eigenvalues(x)
        low, high = float(gram.min()) - off + l2, float(gram.max()) + off + l2
        if not low > _SINGULAR * high:
            raise BoundError(
                f"the least eigenvalue of X'X/n + alpha/n is {low:.3g}: the problem has no unique "
                "solution; use alpha > 0, or columns that do not depend on each other"
            )
        start = self.w_bound * math.sqrt(d)
        descent = self._descent(
            max(2, steps_needed("chebyshev", low, high, 0.5 * self.tol / start)), l2
        )
        w, terms = descent.descend(passes, x, labels)
        schedule, hessian = descent.plan(x)
        slopes = x.double().mT @ labels.double() / n
        longest = OUTWARD_MANY * (float(slopes.norm()) + 2 * n * unit_roundoff(torch.float64)) / low
        terms["convergence"] = schedule.contraction(hessian) * longest
        terms["rounding of alpha/n"] = unit_roundoff(torch.float64) * l2 * longest / low
        domain = descent._head(d, n).domain.describe()
        certificate = passes.certificate(terms, domain, compared="w - minimiser")

        def distance(x: Tensor, y: Tensor) -> float:
            return OUTWARD_MANY * self._slope(x, y, w) / low

        return passes.result(
            w, certificate, distance, (x, labels), predictor=partial(_predicted, w)
        )

    def _slope(self, x: Tensor, y: Tensor, w: Tensor) -> float:
        """The 2-norm of the exact gradient at w, rounded up."""
        with balls_of(tuning.PROOFS_BITS):
            rows, labels, at = map(BallTensor.of, (x, y, w))
            gradient = (rows.mT @ (rows @ at - labels) + self.alpha * at) / len(x)
            return uppermost(gradient.square().sum().item().sqrt())

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        """The minimiser, by an orthogonal decomposition."""
        x, y = x.double(), require_labels(y).double()
        penalty = math.sqrt(self.alpha) * torch.eye(x.shape[1]).to(x)
        both, labels = torch.cat([x, penalty]), torch.cat([y, y.new_zeros(x.shape[1])])
        solution: Tensor = torch.linalg.lstsq(both, labels[:, None], driver="gelsd").solution
        return solution[:, 0]
