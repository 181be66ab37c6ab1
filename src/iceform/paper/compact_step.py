r"""A gradient step with O(n + P) tokens: one table for all samples, weights as logarithms.

:class:`GradientStep` follows thm:attn_sim_f: every sample brings the whole grid, n (P + 1) tokens
(in prompts of a few samples each). Two layers need far fewer. With R > sup |f| every sample is two
tokens, one of either sign, whose log-weights

.. math:: a_i^\pm = \ln \tfrac12 \Big(1 \pm \frac{f(z_i)}{R}\Big), \qquad z_i = w \cdot x_i - y_i,

the first layer looks up in one table of P tokens that all of them share (a token of the wrong sign
sees only a token that holds nothing). The second layer's query meets the token (i, s) with the
logit :math:`a_i^s` and the value :math:`(1 - \eta\lambda) w - \eta s R x_i`. Since
:math:`e^{a_i^+} + e^{a_i^-} = 1` the softmax divides by n exactly, and

.. math:: \sum_{i,s} \frac{e^{a_i^s}}{n} \big( (1 - \eta\lambda) w - \eta s R x_i \big)
    = (1 - \eta\lambda) w - \frac{\eta}{n} \sum_i f(z_i) x_i .

With every log-weight off by at most :math:`\delta` the weights move by :math:`2 \tanh(\delta/2)` in
the 1-norm, so the answer moves by at most :math:`2 \eta R \max|x| \tanh(\delta/2)`. That is the
certificate; rounding is in :math:`\delta` and in the second layer's sums.

In all P + 2 n + 2 tokens. W_K, W_Q and W_V depend on the dimension alone, W_O on how many tokens
there are; function, step size and data are in the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, Unpack

import torch
from torch import Tensor

from iceform.certificates import Certificate
from iceform.certificates import DerivationStep as Step
from iceform.errors import PrecisionError, ProgramError
from iceform.expressions import ScalarFunction
from iceform.expressions.extremes import extremes
from iceform.expressions.losses import Loss
from iceform.heads import (
    Design,
    Features,
    FrozenNetwork,
    Head,
    LookUpLayout,
    Prompt,
    attention,
    moves,
    products,
)
from iceform.heads.lookups import HIDDEN
from iceform.paper.base import Emulator, LayerSizes, Plan
from iceform.paper.gradients import GradientStep
from iceform.paper.residual import LossLike, Rates, ResidualOptions, check_logits, room_for
from iceform.paper.selection import choose
from iceform.run import Backend
from iceform.run.primitives import is_transformed
from iceform.tables import Interpolant, RoundingModel, bounds
from iceform.validation import check_size, common_batch, unit_roundoff

_ABOVE = 1.6  # R in units of sup |f|: larger ones lose accuracy, smaller ones smoothness
_SHARES = (1.0, 0.1, 0.01)  # of eps that the first sign's table is chosen for


class CompactStep(GradientStep):
    r"""One step of gradient descent by two layers and P + 2 n + 2 tokens.

    Called as :class:`GradientStep`. All samples are in one prompt, whose attention is a matrix of
    (P + 2 n + 2)^2: it is for seeing what a short prompt can hold, and for a few thousand samples.

    Parameters
    ----------
    loss, lr, l2, dim, samples, bound, dtype, backend, options
        As for :class:`GradientStep`; the loss must be one of residuals.
    eps
        The error to certify; None takes the best the dtype can do.

    Examples
    --------
    >>> em = CompactStep(torch.tanh, 0.1, dim=2, samples=40, eps=1e-3)
    >>> em.plan.tokens == em.layout.tokens + 2 * 40 + 2
    True
    """

    def __init__(
        self,
        loss: LossLike,
        lr: float = 1.0,
        l2: float = 0.0,
        **options: Unpack[ResidualOptions],
    ) -> None:
        loss = Loss.of(loss)
        if loss.kind != "residual":
            raise ProgramError(
                f"log-weights are of f(w.x - y), and {loss.name!r} is a loss of {loss.kind}s; use "
                "GradientStep"
            )
        check_size("samples", options["samples"])
        options["regime"] = "spectral"
        super().__init__(loss, lr, l2, **options)

    # ------------------------------------------------------------------------ the look-up tables

    @cached_property
    def ceiling(self) -> float:
        """R: above every value of f that a sample can have."""
        return _ceiling(self.loss.derivative, *self._span())

    def _log_weight(self, sign: int) -> ScalarFunction:
        return _log_weight(self.loss.derivative.on(*self._span()), sign, self.ceiling)

    def _choose(
        self,
        f: ScalarFunction,
        kinks: Sequence[float] | None,
        tokens: int | None,
        given: Interpolant | None = None,
    ) -> Interpolant:
        low, high = self._span()
        weight = ScalarFunction.of(self._log_weight(+1), low, high, kinks)
        weight = replace(weight, estimate=self._estimate)

        def found(eps: float | None, total: Callable[[Interpolant], float]) -> Interpolant:
            gain = self.rates.gain * self.ceiling * self.domain.x
            return choose(
                weight, (low, high), eps=eps, regime="spectral", tokens=tokens, dtype=self.dtype,
                gain=gain, total=total, given=given,
            )  # fmt: skip

        if self.eps is None or tokens is not None or given is not None:
            return found(self.eps, lambda it: self._certify(it).error)
        for share in _SHARES:  # keys that are as few as one sign needs may be too few for the other
            it = found(share * self.eps, lambda it: self._certify_with((it, it)).error)
            if self._certify(it).error <= self.eps:
                return it
        return it

    def _other(self, it: Interpolant) -> Interpolant:
        """The log-weights of the other sign on the same keys."""
        if it not in self._others:
            self._others[it] = it.refit(self._log_weight(-1))
        return self._others[it]

    @cached_property
    def _others(self) -> dict[Interpolant, Interpolant]:
        return {}

    # ----------------------------------------------------------------------------- certificate

    def _rounding_model(self, it: Interpolant) -> RoundingModel:
        """Keys meet queries as they stand, whatever the backend."""
        terms = self.domain.terms + abs(it.grid.center)
        return RoundingModel(unit_roundoff(self.dtype), False, terms, self.domain.dim + 3)

    def _certify(self, it: Interpolant, rates: Rates | None = None) -> Certificate:
        return self._certify_with((it, self._other(it)), rates)

    def _certify_with(
        self, tables: tuple[Interpolant, Interpolant], rates: Rates | None = None
    ) -> Certificate:
        rates, unit, it = rates or self.rates, unit_roundoff(self.dtype), tables[0]
        largest = check_logits(it, self.domain.terms + abs(it.grid.center))
        off = max(t.error for t in tables)
        model = self._rounding_model(it)
        looked = max(t.rounding(model) for t in tables)
        spread = 2 * max(t.size for t in tables)
        # The second layer's logits are the log-weights themselves; exp adds two ulp.
        delta = looked + unit * (spread + looked + off + 4)
        row = rates.gain * self.ceiling * self.domain.x
        moved = 2 * row * bounds.total_variation(off)
        more = 2 * row * (bounds.total_variation(off + delta) - bounds.total_variation(off))
        count = self._room(it) + 2 * self.domain.samples + 2
        sums = (2 * count + 16) * unit * (row + self._kept(rates))
        steps = (
            *self._look_up_steps(off, looked, it),
            Step("R", "ceiling of |f|", self.ceiling, f"{_ABOVE} sup|f|, enclosed"),
            Step("logits", "the largest of the first layer", largest, "slope max|z| + bias"),
            Step("delta", "rounding of log-weights", delta, "first layer, softmax of the second"),
        )
        terms = {"interpolation": moved, "rounding": more + sums}
        return self._proved(terms, self.domain.describe(), steps, *tables)

    # --------------------------------------------------------------------------- prompt, weights

    @property
    def layout(self) -> LookUpLayout:
        """How many samples and grid tokens there is room for."""
        return LookUpLayout(self.domain.dim, self.domain.samples, self._room(self.interpolant))

    def _room(self, it: Interpolant) -> int:
        return room_for(max(it.tokens, self._least_room))

    @property
    def _count(self) -> int:
        """Tokens of the prompt: the grid, one that holds nothing, samples twice, the query."""
        return self.layout.tokens + 2 * self.domain.samples + 2

    @property
    def features(self) -> Features:
        """The feature axis of the prompt."""
        d = self.domain.dim
        return Features.of(
            key_w=d, key_y=1, key_bias=1, log_plus=1, log_minus=1, nothing=1,
            x=d, y=1, plus=1, minus=1, log_weight=1, hidden=1, asks=1, value=d,
        )  # fmt: skip

    def _encode(self, *inputs: Tensor) -> Prompt:  # type: ignore[override]
        """All samples, twice, beside one table."""
        x, y, w = inputs
        at, n, room, it = self.features, self.domain.samples, self.layout.tokens, self.interpolant
        gain, keep = self._factors(self.rates)
        batch = common_batch(x.shape[:-2], y.shape[:-1], w.shape[:-1])
        like = next((t for t in (x, y, w) if is_transformed(t)), x)  # vmap: any may be the batch
        tokens = like.new_zeros(*batch, self._count, at.total)
        tokens[..., at["key_bias"]] = -HIDDEN
        tokens[..., at["hidden"]] = -HIDDEN
        grid = tokens[..., : it.tokens, :]
        slopes = it.keys.slopes.to(x)[:, None]
        grid[..., at["key_w"]] = slopes * w[..., None, :]
        grid[..., at["key_y"]], grid[..., at["key_bias"]] = slopes, it.keys.biases.to(x)[:, None]
        grid[..., at["log_plus"]] = it.values.to(x)[:, None]
        grid[..., at["log_minus"]] = self._other(it).values.to(x)[:, None]
        tokens[..., room, at["nothing"]] = 1.0
        kept = keep * w[..., None, :]
        for sign, name, start in ((+1, "plus", room + 1), (-1, "minus", room + 1 + n)):
            own = tokens[..., start : start + n, :]
            own[..., at["x"]], own[..., at["y"]] = x, -(y + it.grid.center)[..., None]
            own[..., at[name]], own[..., at["hidden"]] = 1.0, 0.0
            own[..., at["value"]] = kept + (sign * gain * self.ceiling) * x
        tokens[..., -1, at["asks"]] = 1.0
        return Prompt(tokens, at, self._roles)

    @property
    def _roles(self) -> tuple[str, ...]:
        n = self.domain.samples
        grid = [f"grid token {k}" for k in range(self.layout.tokens)]
        samples = [f"sample {i}, {sign}" for sign in ("plus", "minus") for i in range(n)]
        return (*grid, "nothing", *samples, "query")

    def _build_network(self) -> FrozenNetwork:
        last = torch.zeros(self._count, 1, dtype=torch.float64)
        last[-1] = 1.0
        every = torch.eye(self._count, dtype=torch.float64)
        layers = [attention(self.design, 0, every, shared="k"), attention(self.design, 1, last)]
        return FrozenNetwork(layers, self.features)

    @property
    def design(self) -> Design:
        """Each sign's head writes the log-weights of its tokens; then the mean over samples."""
        at, asks = self.features, {"asks": 1.0}
        weighed = products(at, asks, {"log_weight": 1.0}) + products(at, asks, {"hidden": 1.0})
        mean = Head("mean over samples", weighed, moves(at, {"value": 1.0}, "step"))
        signs = self._log_weights("plus", "minus"), self._log_weights("minus", "plus")
        return Design(at, (signs, (mean,)), gives=(None, Features.of(step=self.domain.dim)))

    def _log_weights(self, own: str, other: str) -> Head:
        """Tokens of the other sign see the token that holds nothing."""
        at = self.features
        logit = (
            *products(at, {"x": 1.0}, {"key_w": 1.0}),
            *products(at, {"y": 1.0}, {"key_y": 1.0}),
            *products(at, {"plus": 1.0, "minus": 1.0}, {"key_bias": 1.0}),
            *products(at, {other: 2 * HIDDEN}, {"nothing": 1.0}),
        )
        return Head(f"log-weights of {own}", logit, moves(at, {f"log_{own}": 1.0}, "log_weight"))

    @property
    def plan(self) -> Plan:
        """Two layers; three heads; tokens grow with n + P, attention with its square."""
        count, total, d = self._count, self.features.total, self.domain.dim
        return Plan.of(
            [
                LayerSizes(count, total, 2, d + 3, total, count, shared=1),
                LayerSizes(count, total, 1, 2, d, 1),
            ],
            self.dtype,
            grid=self.interpolant.tokens,
            prompt=(count, total),
        )

    # ------------------------------------------------------------------------------ evaluation

    def _can_watch(self, *inputs: Tensor) -> bool:
        return False

    def _run(self, backend: Backend, *inputs: Tensor) -> Tensor:
        out: Tensor = backend.run(self._encode(*inputs))
        return out[..., 0, :]

    def step_at(self, x: Tensor, y: Tensor, w: Tensor, lr: float, shrink: float = 0.0) -> Tensor:
        """One pass at another step size and shrinkage: another prompt for the same weights."""
        found: Tensor = self.reprogram(self.loss, lr, shrink / lr)(x, y, w)
        return found

    def _by_the_same_keys(
        self, loss: Loss, eps: Any, make: Callable[..., Self]
    ) -> tuple[Self | None, float]:
        """None: the keys are not reused, since each sign has a table of its own."""
        return None, math.inf

    @classmethod
    def _rebuild(cls, arguments: dict[str, Any], it: Interpolant, f: Any) -> Emulator:
        if f is None and arguments["loss"] is None:
            raise ProgramError(
                "the log-weights of a function that was not saved cannot be proven; load it with f="
            )
        return super()._rebuild(arguments, it, f)

    @classmethod
    def _tabled(cls, f: Any, it: Interpolant) -> ScalarFunction:
        of = Loss.of(f).derivative.on(it.low, it.high)
        weight = _log_weight(of, +1, _ceiling(of, it.low, it.high))
        return ScalarFunction.of(weight, it.low, it.high)


def _ceiling(f: ScalarFunction, low: float, high: float) -> float:
    f = f.on(low, high)
    if f.obstacle is not None:
        raise PrecisionError(
            f"log-weights need a proven bound of |f| ({f.name}), and there is none: {f.obstacle}",
            best=math.inf,
        )
    return _ABOVE * max(extremes(f.jets, low, high, 0).size, math.ulp(1.0))


def _log_weight(f: ScalarFunction, sign: int, ceiling: float) -> ScalarFunction:
    """The log-weight ln((1 + sign f(z)/R)/2), smooth wherever f is."""

    def call(z: Tensor) -> Tensor:
        return torch.log(0.5 + (0.5 * sign / ceiling) * f.call(z))

    mark = "+" if sign > 0 else "-"
    return ScalarFunction(call, f"ln((1 {mark} {f.name}/R)/2)", kinks=f.kinks)
