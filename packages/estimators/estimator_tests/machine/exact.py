"""The exact answers, to 60 digits: Newton's method in ball arithmetic on the data as given.

A point is an optimum of a convex function if its gradient there is zero, so every reference below
ends with that check, in balls; where it started does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from flint import arb, arb_mat, ctx
from torch import Tensor

BITS = 320
ctx.prec = BITS  # of everything that tests compute before they ask for a model, too
_ROUNDS = 80
_TINY = arb(2) ** -160  # relative length of a Newton step at which the next one is below 1e-90

Scalar = Callable[[arb], arb]


class NoOptimumError(Exception):
    """The reference did not find the optimum; the case is of no use."""


def numbers(values: Tensor) -> list[arb]:
    return [arb(v) for v in values.double().flatten().tolist()]


def _sigmoid(z: arb) -> arb:
    return 1 / (1 + (-z).exp())


@dataclass(frozen=True)
class ExactLoss:
    """l' and l'' (that of the pieces, for losses with kinks)."""

    slope: Scalar
    bend: Scalar

    @classmethod
    def named(cls, name: str, **p: float) -> ExactLoss:
        one, zero = arb(1), arb(0)
        if name == "squared":
            return cls(lambda z: z, lambda z: one)
        if name == "logistic":
            return cls(_sigmoid, lambda z: _sigmoid(z) * _sigmoid(-z))
        if name == "poisson":
            return cls(lambda z: z.exp(), lambda z: z.exp())
        if name == "quantile":
            w, q = arb(p["width"]), arb(p["quantile"])
            return cls(
                lambda z: _sigmoid(z / w) - q, lambda z: _sigmoid(z / w) * _sigmoid(-z / w) / w
            )
        if name == "squared_hinge":
            return cls(lambda m: -(1 - m) if m < 1 else zero, lambda m: one if m < 1 else zero)
        if name == "huber":  # with kinks at -1 and 1

            def clip(z: arb) -> arb:
                return one if z > 1 else -one if z < -1 else z

            return cls(clip, lambda z: one if abs(z) < 1 else zero)
        raise KeyError(name)


@dataclass
class ExactModel:
    """mean_i l(a_i.v - b_i) - o_i a_i.v + (1/2) sum q v^2 for rows a = [(x - m)/s, 1] x sign.

    ``m`` and ``s`` are any numbers: they only make the equations well conditioned.
    """

    rows: arb_mat
    labels: list[arb]
    offsets: list[arb]
    ridge: list[arb]
    loss: ExactLoss
    mean: list[arb]
    scale: list[arb]
    intercept: bool
    thresholds: list[arb] | None = None

    @classmethod
    def of(
        cls, x: Tensor, y: Tensor, loss: ExactLoss, l2: float | arb, *, intercept: bool,
        kind: str = "residual", l1: float | arb = 0,
    ) -> ExactModel:  # fmt: skip
        ctx.prec = BITS
        deviation = x.std(0, correction=0)
        usual = (deviation > 1e-12 * x.abs().amax(0)) & (deviation > 0)
        mean = numbers(x.mean(0)) if intercept else [arb(0)] * x.shape[1]
        scale = numbers(torch.where(usual, deviation, x.abs().amax(0).clamp(min=1e-300)))
        signs = numbers(y) if kind == "margin" else [arb(1)] * len(y)
        table = [
            [s * (arb(v) - m) / c for v, m, c in zip(row, mean, scale, strict=True)]
            + ([s] if intercept else [])
            for row, s in zip(x.tolist(), signs, strict=True)
        ]
        free = [arb(0)] * intercept
        return cls(
            arb_mat(table),
            numbers(y) if kind == "residual" else [arb(0)] * len(y),
            numbers(y) if kind == "glm" else [arb(0)] * len(y),
            [arb(l2) / c**2 for c in scale] + free,
            loss, mean, scale, intercept,
            [arb(l1) / c for c in scale] + free,
        )  # fmt: skip

    def inner(self, coef: Sequence[arb], intercept: arb) -> list[arb]:
        """Coefficients of the scaled rows."""
        out = [c * s for c, s in zip(coef, self.scale, strict=True)]
        shift = sum((c * m for c, m in zip(coef, self.mean, strict=True)), arb(0))
        return out + ([intercept + shift] if self.intercept else [])

    def raw(self, v: Sequence[arb]) -> tuple[list[arb], arb]:
        coef = [a / s for a, s in zip(v, self.scale, strict=False)]
        shift = sum((c * m for c, m in zip(coef, self.mean, strict=True)), arb(0))
        return coef, (v[-1] - shift if self.intercept else arb(0))

    def residuals(self, v: Sequence[arb]) -> list[arb]:
        image = self.rows * arb_mat([[a] for a in v])
        return [image[i, 0] - b for i, b in enumerate(self.labels)]

    def gradient(self, v: Sequence[arb]) -> list[arb]:
        z = self.residuals(v)
        pull = arb_mat([[self.loss.slope(t) - o for t, o in zip(z, self.offsets, strict=True)]])
        total = pull * self.rows
        n = len(self.labels)
        return [total[0, j] / n + q * a for j, (q, a) in enumerate(zip(self.ridge, v, strict=True))]

    def hessian(self, v: Sequence[arb]) -> arb_mat:
        bends = [self.loss.bend(t) for t in self.residuals(v)]
        n, p = self.rows.nrows(), self.rows.ncols()
        weighted = arb_mat([[bends[i] * self.rows[i, j] for j in range(p)] for i in range(n)])
        out = weighted.transpose() * self.rows / n
        for j, q in enumerate(self.ridge):
            out[j, j] = out[j, j] + q
        return out

    def optimum(self, coef: Tensor, intercept: float) -> tuple[list[arb], arb]:
        """The minimiser, by Newton's method from a guess; of an l1 penalty too."""
        ctx.prec = BITS
        v = self.inner(numbers(coef), arb(intercept))
        t = self.thresholds or [arb(0)] * len(v)
        free = [not (l1 > 0) for l1 in t]
        signs = [0 if a == 0 else (1 if a > 0 else -1) for a in v]
        kept = [j for j in range(len(v)) if free[j] or signs[j]]
        for _ in range(_ROUNDS):
            gradient = self.gradient(v)
            hessian = self.hessian(v)
            small = arb_mat([[hessian[j, k] for k in kept] for j in kept])
            pull = arb_mat([[gradient[j] + t[j] * signs[j]] for j in kept])
            try:
                step = small.mid().solve(pull.mid())
            except ZeroDivisionError:
                raise NoOptimumError("the Hessian is singular") from None
            moved = max((abs(step[i, 0]).mid() for i in range(len(kept))), default=arb(0))
            for i, j in enumerate(kept):
                v[j] = (v[j] - step[i, 0]).mid()
            size = max((abs(a) for a in v), default=arb(0)) + 1
            if moved < _TINY * size:
                return self._checked(v, kept, signs, t)
        raise NoOptimumError("Newton's method did not converge")

    def _checked(
        self, v: list[arb], kept: list[int], signs: list[int], t: list[arb]
    ) -> tuple[list[arb], arb]:
        gradient = self.gradient(v)
        for j, g in enumerate(gradient):
            if j in kept:
                if signs[j] and t[j] > 0 and not v[j] * signs[j] > 0:
                    raise NoOptimumError("a coefficient changed sign")
                if not abs(g + t[j] * signs[j]) < arb(2) ** -100 * (1 + abs(g)):
                    raise NoOptimumError("the gradient is not zero")
            elif not abs(g) < t[j]:
                raise NoOptimumError("a coefficient should not be zero")
        return self.raw(v)


def exact_huber(
    x: Tensor, y: Tensor, epsilon: float, alpha: float, coef: Tensor, intercept: float,
    sigma: float, *, fit_intercept: bool,
) -> tuple[list[arb], arb, arb]:  # fmt: skip
    """Coefficients, intercept and scale of Huber's joint problem, from a guess."""
    ctx.prec = BITS
    n = len(y)
    model = ExactModel.of(x, y, ExactLoss.named("squared"), arb(alpha) / n, intercept=fit_intercept)
    eps, s = arb(epsilon), arb(sigma)
    v = model.inner(numbers(coef), arb(intercept))
    p = len(v)
    zero = arb(0)
    for _ in range(_ROUNDS):
        t = [z / s for z in model.residuals(v)]
        clipped = [max(min(a, eps), -eps) if not abs(a) < eps else a for a in t]
        pull = arb_mat([clipped]) * model.rows
        slope = [pull[0, j] / n + model.ridge[j] * v[j] for j in range(p)]
        slope.append(sum((1 - a * a for a in clipped), zero) / (2 * n))
        inside = [i for i in range(n) if abs(t[i]) < eps]
        if not inside:
            raise NoOptimumError("no sample is inside")
        part = arb_mat([[model.rows[i, j] for j in range(p)] + [-t[i]] for i in inside])
        hessian = part.transpose() * part / (n * s)
        for j, q in enumerate(model.ridge):
            hessian[j, j] = hessian[j, j] + q
        try:
            step = hessian.mid().solve(arb_mat([[a] for a in slope]).mid())
        except ZeroDivisionError:
            raise NoOptimumError("the Hessian is singular") from None
        v = [(a - step[j, 0]).mid() for j, a in enumerate(v)]
        s = (s - step[p, 0]).mid()
        if not s > 0:
            raise NoOptimumError("the scale left its domain")
        moved = max(abs(step[j, 0]).mid() for j in range(p + 1))
        if moved < _TINY * (1 + max(abs(a) for a in [*v, s])):
            return *model.raw(v), s
    raise NoOptimumError("Newton's method did not converge")


def apart(found: Tensor, exact: Sequence[arb]) -> float:
    """Largest |found - exact|, rounded up."""
    ctx.prec = BITS
    worst = 0.0
    for a, b in zip(numbers(found), exact, strict=True):
        worst = max(worst, float(abs(a - b).abs_upper()))
    return worst
