r"""Descent for generalised linear models, two layers a step, any bounded f, in an encoder.

**Algorithm.** w <- w - lr mean(f(w.x_i - y_i) x_i), from w = 0 (``bounded_descent``). Loss,
step size and number of samples are in the tokens, so one checkpoint serves them all: the weights
depend on the dimension and the number of steps.

**Tokens.** A null token; two tokens per sample, of sign s = + and -, that hold x_i, y_i and
u_i = s R lr S x_i; one token per table entry k, that holds its slope s_k, its bias b_k, two values
and l_k = s_k w, the logit's own copy of the coefficients.

**Layer one.** A sample of sign s looks z_i = w.x_i - y_i up: its logits x_i.l_k - y_i s_k + b_k
are s_k z_i + b_k, and the values tabulate

.. math:: a_\pm(z) = \ln\frac{1 \pm f(z)/R}{2}.

**Layer two.** As e^{a_+} + e^{a_-} = 1, a softmax over all samples of both signs with the logits
a has a normaliser that does not depend on f, and returns mean(f(z_i) x_i) lr S =: g lr S. Beside a
null token of logit ln n, samples shifted by a table token's own log odds o_k weigh
alpha(o_k) = 1/(1 + e^{-o_k}) together. The heads at o_k and -o_k differ by
(alpha(o_k) - alpha(-o_k)) g lr S = s_k lr g for tanh(o_k/2) = s_k/S, S = 1.25 max|s_k|: that is
what l_k loses. The same layer looks a up again and subtracts it.

With ``groups`` the samples of a group g have heads and a null logit ln n_g of their own, and
u_i has the factor n_g/n: the means of the groups add up to that of all, and a head adds up
2 n_g + 1 terms.

Should the normaliser be off by a factor 1 + e, alpha(o) and alpha(-o) both move by
alpha(1 - alpha) e: their difference does not, to first order.

**Error.** Let W = l_K/s_K at the last table token (the readout) and r_k = l_k - s_k W. D is what
the stream's norms do to any stored number, relatively: NORM units each, 1 + 4 T of them.

* A look-up's logits are off by gamma (|s_k| S_z + |b_k|), S_z = ||x|| ||w|| + |y|, gamma with 2 D
  and the reads and sums of a logit (``RoundingModel``), and by X ||r_k||, which moves the answer by
  at most the table's spread sup_z E|v - A| times (e^{X r} - 1). With the table's own proven error,
  a is off by eps_t. Erasing looks the same z up with the same l_k, so what it leaves is rounding
  alone, twice that of a look-up, and adds up over the steps.
* Logits off by eps move the softmax by at most eps in the 1-norm, so the gradient by X R eps.
* What differs between table tokens goes into r: rounding of both heads (nu units of alpha R lr S X
  each, and their alphas add up to one), of o_k, of l_k itself, and the second order of the
  normaliser. nu has twice a logit's and an exponential's (in the weight and in the normaliser),
  2 n_g + 1 for each of the two sums, and the value's; 2 heads for every group are written.
* The map w -> w - lr grad is multiplied by at most q = max |1 - lr lambda|, lambda in the hull of
  f' times the eigenvalues of X'X/n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.certificates import DerivationStep
from iceform.heads import Design, Features, Head, Move, Row
from iceform.tables import RoundingModel
from iceform.targets.bounded_descent import BoundedDescent, DescentErrorBound
from iceform.targets.domain import check_data
from iceform.targets.enclosed import Ball
from iceform.targets.pieces import MASK, ONE, added, apart_from, routed, tokens_of
from iceform.targets.rounding import EPSILON, NORM, READ, SECOND_ORDER, inflate

_ODDS = 1.25  # S over the largest slope: |r| stays below 0.8, the odds below 2.2
_MADE = 6.0  # units: products that make a number of the prompt, and its rounding to the dtype


@dataclass(frozen=True, eq=False)
class GeneralErrorBound(DescentErrorBound):
    """The account of two layers a step, as the module has it."""

    spec: GeneralDescent

    def parts(self) -> dict[str, float]:
        tables = self.tables
        out = {"tables": 0.0, "look-ups": 0.0, "averages": 0.0}
        apart, left, q = 0.0, 0.0, self.growth
        for t in range(self.spec.steps):
            arrives = q ** (self.spec.steps - 1 - t)
            shift = self.rows * apart
            grown = math.exp(shift) if shift < 1 else math.inf
            moved = math.expm1(min(shift, 1.0)) * tables.spread * max(SECOND_ORDER, grown)
            rounded = self._look_up + moved
            scale = arrives * self.lr * tables.scale * self.rows
            out["tables"] += scale * tables.error
            out["look-ups"] += scale * (rounded + left)
            off = tables.error + rounded + left
            own = self._own(off)
            out["averages"] += arrives * (self._common + own / self._last)
            left += 2 * self._look_up + 4 * self.a.u * tables.size
            apart += 2 * own
        out["averages"] += READ * self.a.u * self.size
        return out

    @property
    def _drift(self) -> float:
        """D, in units: the norms that a stored number passes, and how the host made it."""
        return NORM * (1 + 4 * self.spec.steps) + _MADE

    @cached_property
    def _top(self) -> float:
        """S."""
        return _ODDS * float(self.tables.keys.slopes.abs().max())

    @property
    def _last(self) -> float:
        return abs(float(self.tables.keys.slopes[-1]))

    @cached_property
    def largest_logit(self) -> float:
        keys = self.tables.keys
        terms = keys.slopes.abs() * (self.rows * self.size + self.domain.label)
        return float((terms + keys.biases.abs()).max()) + abs(math.log(self.domain.samples)) + 8

    @cached_property
    def _look_up(self) -> float:
        """Rounding of one look-up of a, at r = 0."""
        magnitude = self.rows * self.size + self.domain.label
        terms = math.ceil(2 * self._drift + 2 * READ + self.spec.dim + 6)
        model = RoundingModel(self.a.u, False, magnitude, terms)
        exponentials = math.expm1(max(self.a.exp - 4, 0.0) * self.a.u) * self.tables.spread
        values = (self._drift + READ + 4) * self.a.u * self.tables.size
        return self.tables.rounding(model) + exponentials + values

    @property
    def _step(self) -> float:
        """The largest |u_i|: R lr S X."""
        return self.tables.scale * self.lr * self._top * self.rows

    @property
    def _common(self) -> float:
        """What is wrong with the gradient alike at all table tokens: u, as it is stored."""
        return (self._drift + READ) * self.a.u * self.lr * self.tables.scale * self.rows

    def _own(self, off: float) -> float:
        """A bound of what one step adds to l_k of a table token of its own."""
        u, odds, groups = self.a.u, 2 * math.atanh(1 / _ODDS), self.spec.groups
        n = -(-self.domain.samples // groups)
        logs = self.tables.size + 1 + odds + abs(math.log(n))
        nu = 2 * (READ + 4) * logs + 2 * self.a.exp + 2 * (2 * n + 1) + READ + 6
        heads = inflate(nu * u) * self._step
        gates = (self._drift + 4) * u * odds / 2 * self._step
        normaliser = (2 * off + (self._drift + 4) * u * logs) ** 2 * self._step
        stored = (4 * NORM + 4 + 2 * groups) * u * (self._top * self.size + self._step)
        return heads + gates + normaliser + stored

    def derivation(self) -> tuple[DerivationStep, ...]:
        spread = self.tables.spread
        return (
            *super().derivation(),
            DerivationStep("look-up", "", self._look_up, "its rounding in the stream"),
            DerivationStep("spread", "sup_z E|v - A|", spread, "for logits each off by their own"),
            DerivationStep(
                "q", "max |1 - lr lambda|", self.growth, "what a step multiplies errors by"
            ),
        )


@dataclass(frozen=True)
class GeneralDescent(BoundedDescent):
    """Gradient descent for any bounded f, as a residual stream of an encoder.

    Parameters
    ----------
    dim
        Features of a sample.
    steps
        T; the network has 2 T layers.
    positions
        Tokens that a prompt may have: 1 + 2 n + table entries.
    dtype
        "float64" or "float32".
    groups
        Parts that samples are averaged in, each by heads of its own. In float32 a sum of hundreds
        of terms rounds by more than everything else.
    f
        The loss's derivative as a formula of the residual z; in the prompt.
    lr
        The step size; in the prompt.
    reach
        The range of the tables: residuals must stay within; in the prompt.

    Examples
    --------
    >>> spec = GeneralDescent(dim=2, steps=3, f="sigmoid(z) - 0.5", lr=1.0)
    >>> len(spec.design.layers), spec.architectures()
    (6, ('bert', 'albert'))
    """

    positions: int = 512
    dtype: str = "float64"
    groups: int = 1

    kind: ClassVar[str] = "general_descent"
    title: ClassVar[str] = "gradient descent for generalised linear models, two layers a step"
    causal: ClassVar[bool] = False
    why_causal: ClassVar[str] = (
        "a causal mask hides the state from the samples before it, and these two layers look "
        "f(w.x_i - y_i) up at every sample"
    )
    looked_up: ClassVar[tuple[str, ...]] = ("log({p}/2)", "log({m}/2)")
    error_bound: ClassVar[type[DescentErrorBound]] = GeneralErrorBound
    counts: ClassVar[tuple[str, ...]] = ("dim", "steps", "positions", "groups")

    # ------------------------------------------------------------------------------- the stream

    @cached_property
    def design(self) -> Design:
        d = self.dim
        features = Features.of(
            plus=1, minus=1, table=1, null=1, x=d, u=d, y=1, a=1, l=d, slope=1, bias=1, values=2,
            odds=1, log_n=self.groups, **({"apart": self.groups} if self.groups > 1 else {}),
        )  # fmt: skip
        look = tuple(self._look(sign, 1.0) for sign in ("plus", "minus"))
        erase = tuple(self._look(sign, -1.0) for sign in ("plus", "minus"))
        move = tuple(
            self._average(sign, group) for sign in (1.0, -1.0) for group in range(self.groups)
        )
        return Design(features, (look, move + erase) * self.steps, norm=EPSILON)

    def _look(self, sign: str, write: float) -> Head:
        other = "minus" if sign == "plus" else "plus"
        asks = tuple((Row.of("x", j), Row.of("l", j)) for j in range(self.dim))
        logit = (
            *asks,
            (Row.of("y", 0, -1.0), Row.of("slope")),
            (ONE, Row.of("bias")),
            (Row.flags(**{sign: -MASK}), Row.flags(plus=1.0, minus=1.0, null=1.0)),
            routed((other, "table", "null")),
        )
        value = Row.of("values", 0 if sign == "plus" else 1)
        role = (
            f"{'look up' if write > 0 else 'erase'} ln((1 {'+' if sign == 'plus' else '-'} f/R)/2)"
        )
        return Head(role, logit, (Move(value, {("a", 0): write}),))

    def _average(self, sign: float, group: int) -> Head:
        others = {("apart", group): 1.0} if self.groups > 1 else {}
        logit = (
            (ONE, Row({("a", 0): 1.0, ("log_n", group): 1.0})),
            (Row.of("odds", 0, sign), Row.flags(plus=1.0, minus=1.0)),
            (Row.flags(table=-MASK), Row({("table", 0): 1.0, **others})),
            routed(("plus", "minus", "null")),
        )
        part = f", group {group}" if others else ""
        return Head(
            f"mean gradient, odds {'+' if sign > 0 else '-'}{part}",
            logit,
            added("u", self.dim, {"l": -sign}),
        )

    # -------------------------------------------------------------------------- prompt and answer

    def tokens(
        self, x: Float[Tensor, "n d"], y: Float[Tensor, "n"], **parameters: Any
    ) -> Float[Tensor, "t f"]:
        _, lr, _ = self.settings(parameters)
        tables = self.tables(**parameters)
        check_data(x, y, self.dim, (self.positions - 1 - tables.tokens) // 2)
        slopes, n, at = tables.keys.slopes, len(x), self.design.features
        top = _ODDS * float(slopes.abs().max())
        group = torch.arange(n) % self.groups
        held = torch.bincount(group, minlength=self.groups).double()
        share = tables.scale * lr * top * (held[group] / n)[:, None]
        apart = {} if self.groups == 1 else {"apart": apart_from(group, self.groups)}
        samples = [
            tokens_of(at, n, **{name: 1.0}, x=x, y=y, u=sign * share * x.double(), **apart)
            for sign, name in ((1, "plus"), (-1, "minus"))
        ]
        null = tokens_of(at, 1, null=1.0, log_n=held.clamp(min=1).log())
        odds = 2 * torch.atanh(slopes / top)
        return torch.cat([null, *samples, self.table_tokens(tables, odds=odds)])

    def layout(self) -> list[str]:
        return [
            "null: null = 1, log_n = ln n_g of every group",
            "one token per sample: plus = 1, x, y, u = R lr S x n_g/n; apart = 1 but for its group",
            "one token per sample: minus = 1, x, y, u = -R lr S x n_g/n; apart likewise",
            "one token per table entry: table = 1, slope, bias, values, odds; l starts at 0",
        ]

    def answer(self, features: Float[Tensor, "t f"]) -> Float[Tensor, "d"]:
        at = self.design.features
        return features[-1, at["l"]] / features[-1, at["slope"]]

    def readout(self, features: Ball, **parameters: Any) -> Ball:
        at = self.design.features
        value, slope = self.answer(features.center), features.center[-1, at["slope"]].abs()
        off, wrong = features.radius[-1, at["l"]], features.radius[-1, at["slope"]]
        return Ball(value, (off + value.abs() * wrong) / (slope - wrong).clamp(min=0))
