"""The exact answers, to 60 digits: of losses that are written down again, on the data as given.

The optimum is that of :class:`estimator_tests.exact.lines.Objective`, proved by Newton's method for
intervals; nothing of the loss, its penalty or the scaling is the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from flint import arb, ctx
from torch import Tensor

from estimator_tests.exact.corners import joint_optimum
from estimator_tests.exact.lines import DependentError, Objective
from iceform.errors import PrecisionError

BITS = 320
ctx.prec = BITS  # of everything that tests compute before they ask for a model, too

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
class ExactModel(Objective):
    """mean_i l(a_i.v - b_i) - o_i a_i.v + (1/2) sum q v^2 for rows a = [(x - m)/s, 1] x sign.

    ``m`` and ``s`` are any numbers: they only make the equations well conditioned.
    """

    mean: list[arb]
    scale: list[arb]
    intercept: bool

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
        zeros, free = [arb(0)] * len(y), [arb(0)] * intercept
        return cls(
            table, numbers(y) if kind == "residual" else zeros,
            numbers(y) if kind == "glm" else zeros, [arb(1)] * len(y), loss.slope, loss.bend,
            arb(1), [arb(l2) / c**2 for c in scale] + free, [arb(l1) / c for c in scale] + free,
            positive=False, mean=mean, scale=scale, intercept=intercept,
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

    def near(self, coef: Tensor, intercept: float) -> tuple[list[arb], arb]:
        """The minimiser, from a guess; of an l1 penalty too."""
        ctx.prec = BITS
        try:
            return self.raw(self.optimum(self.inner(numbers(coef), arb(intercept))))
        except (PrecisionError, DependentError) as wide:
            raise NoOptimumError(str(wide)) from None

    def near_with_scale(
        self, epsilon: float, coef: Tensor, intercept: float, sigma: float
    ) -> tuple[list[arb], arb]:
        """Of Huber's joint problem."""
        ctx.prec = BITS
        v = [*self.inner(numbers(coef), arb(intercept)), arb(sigma)]
        penalty = [q * len(self.rows) for q in self.l2]
        try:
            exact = joint_optimum(self.rows, self.labels, self.weights, arb(epsilon), penalty, v)
        except PrecisionError as wide:
            raise NoOptimumError(str(wide)) from None
        return self.raw(exact[:-1])


def apart(found: Tensor, exact: Sequence[arb]) -> float:
    """Largest |found - exact|, rounded up."""
    ctx.prec = BITS
    worst = 0.0
    for a, b in zip(numbers(found), exact, strict=True):
        worst = max(worst, float(abs(a - b).abs_upper()))
    return worst
