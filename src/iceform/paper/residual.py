r"""thm:attn_sim_f: one head computes f(w.x_i - y_i) x_i for every sample at once.

Every sample i brings a block of grid tokens (i, k) and a query token to the look-up layer
(:mod:`iceform.heads.lookups`). The query of sample c meets the token (i, k) with the logit

.. math:: \beta (2 l_k (z_i - m) - l_k^2) - M \, 1\{i \ne c\}, \qquad z_i = w \cdot x_i - y_i,

so within its own block it is a softmax look-up of z_c, and the margin M keeps it there. The
paper prints M = 2 d B^2 + B - ln eps0; since max_l (2 l z - l^2) = z^2 the margin must cover
beta max z^2. Here it exceeds every logit that a prompt may make by so much that the exponential
is exactly 0: nothing leaks. A prompt holds a block of samples; more are more prompts of the same
network, whose answers the readout joins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, Unpack, cast

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import at_most
from iceform.certificates import Certificate
from iceform.certificates import DerivationStep as Step
from iceform.errors import BoundError, PrecisionError
from iceform.expressions import ScalarFunction
from iceform.expressions.losses import Loss
from iceform.heads import Design, Features, FrozenNetwork, LookUpLayout, LookUps
from iceform.heads.lookups import LARGEST_LOGIT, MARGIN
from iceform.paper.base import Emulator, LayerSizes, Plan
from iceform.paper.domain import Domain, DomainOptions
from iceform.paper.selection import choose
from iceform.run import rounding_of
from iceform.tables import Interpolant, RoundingModel
from iceform.validation import check_choice, check_size, unit_roundoff

LossLike = str | Loss | ScalarFunction | Callable[[Tensor], Tensor]

SAME = "same"  # the eps of the emulator that is reprogrammed

BLOCK = 8  # samples of a prompt: the cost of a literal sample grows with it
_FEWEST_TOKENS = 32  # of a block


def room_for(tokens: int) -> int:
    """Grid tokens of a block: a power of two, so that functions of a class share weights.

    Examples
    --------
    >>> room_for(20), room_for(33)
    (32, 64)
    """
    return max(_FEWEST_TOKENS, 1 << (tokens - 1).bit_length())


def check_logits(it: Interpolant, terms: float) -> float:
    """The largest logit of look-ups whose terms add up to ``terms``; too large ones are refused."""
    largest = float((it.keys.slopes.abs() * terms + it.keys.biases.abs()).max())
    if not largest <= LARGEST_LOGIT:
        raise PrecisionError(
            f"logits reach {largest:.3g}, the margin between blocks covers "
            f"{LARGEST_LOGIT:.3g}; use a smaller bound or a lower sharpness"
        )
    return largest


@dataclass(frozen=True)
class Rates:
    """How a sample's value row is scaled: gain (v_k x_i - offset_i) + shrink w.

    Attributes
    ----------
    gain
        The step size eta.
    shrink
        eta times the penalty lambda.

    Examples
    --------
    >>> Rates(gain=0.1, shrink=0.1 * 0.5)  # a step of 0.1 with a penalty of 0.5
    Rates(gain=0.1, shrink=0.05)
    """

    gain: float = 1.0
    shrink: float = 0.0


PLAIN = Rates()


class ResidualOptions(DomainOptions, total=False):
    """What a construction on residuals is asked for by keyword."""

    eps: float | None
    regime: str
    dtype: torch.dtype
    backend: str
    kinks: Sequence[float] | None
    tokens: int | None
    interpolant: Interpolant | None
    estimate: bool
    room: int | None


def domain_options(options: ResidualOptions) -> DomainOptions:
    """Those that say the domain."""
    found = {k: v for k, v in options.items() if k in DomainOptions.__annotations__}
    return cast(DomainOptions, found)


class ResidualEmulator(Emulator):
    """What every construction on residuals shares: tokens, margin, keys and the certificate.

    Examples
    --------
    >>> issubclass(GradientStep, ResidualEmulator)
    True
    """

    _averages = False  # whether the answer is the mean over samples of rows that carry w as well

    def __init__(
        self,
        loss: LossLike,
        *,
        eps: float | None = tuning.EPS,
        regime: str = "spectral",
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
        rates: Rates = PLAIN,
        kinks: Sequence[float] | None = None,
        tokens: int | None = None,
        interpolant: Interpolant | None = None,
        estimate: bool = False,
        room: int | None = None,
        **bounds: Unpack[DomainOptions],
    ) -> None:
        super().__init__(eps=eps, dtype=dtype, backend=backend)
        self.loss = loss = Loss.of(loss)
        self.regime = check_choice("regime", regime, ("spectral", "hard"))
        self.domain = Domain.of(labelled=loss.kind == "residual", dtype=self.dtype, **bounds)
        samples, dim = self.domain.samples, self.domain.dim
        self.shapes = {"x": (samples, dim), "y": (samples,), "w": (dim,)}
        self.answer = (dim,) if self._averages else (samples, dim)
        self.rates = rates
        self._estimate = estimate
        self._least_room = 1 if room is None else check_size("room", room)
        self.interpolant = self._choose(loss.derivative, kinks, tokens, interpolant)
        self._hold_eps("use eps=None to accept that", f"{self.interpolant.tokens} grid tokens")

    # ------------------------------------------------------------------------ the look-up table

    def _choose(
        self,
        f: ScalarFunction,
        kinks: Sequence[float] | None,
        tokens: int | None,
        given: Interpolant | None = None,
    ) -> Interpolant:
        low, high = self._span()
        f = f if f.lost else ScalarFunction.of(f, low, high, kinks)
        f = replace(f, estimate=True) if self._estimate else f
        return choose(
            f,
            (low, high),
            eps=self.eps,
            regime=self.regime,
            tokens=tokens,
            dtype=self.dtype,
            gain=self.rates.gain * self.domain.x,
            total=lambda it: self._certify(it).error,
            given=given,
        )

    def _span(self) -> tuple[float, float]:
        """The range of z, widened by what rounding can add to a computed z."""
        low, high = self.domain.residuals
        unit = unit_roundoff(self.dtype)
        slack = 4 * (self.domain.dim + 4) * unit * (self.domain.terms + abs(low) + abs(high))
        return low - slack, high + slack

    def _on_the_same_weights(self, like: LossLike, eps: float | str | None, **changed: Any) -> Self:
        """Another loss on these weights: by the same keys where they hold eps, else by its own."""
        loss, room = Loss.of(like), self.layout.tokens
        wanted: Any = self.eps if eps == SAME else eps
        make = partial(type(self), loss, **{**self._asked, **changed, "room": room})
        other, best = self._by_the_same_keys(loss, wanted, make)
        if other is None:
            name = loss.name or "this function"
            held = at_most(best, ".3g")
            present = f"the present keys certify {held}, pass eps=None to accept that"
            try:
                other = make(eps=wanted)
            except PrecisionError as none:
                what = f"{name} cannot be reprogrammed to eps = {wanted:.3g}: {none}"
                raise PrecisionError(f"{what}; {present}", best=best) from None
            if other.layout.tokens > room:
                raise PrecisionError(
                    f"{name} takes {other.interpolant.tokens} grid tokens, these weights have room "
                    f"for {room}; build with room={other.layout.tokens}, or ask for a larger eps; "
                    f"{present}",
                    best=best,
                )
        other.add_module("_network", self.network)
        return other

    def _by_the_same_keys(
        self, loss: Loss, eps: Any, make: Callable[..., Self]
    ) -> tuple[Self | None, float]:
        """With the present keys if these hold eps by a proof, and what they certify."""
        refit = self.interpolant.refit(loss.derivative)
        try:
            other = make(eps=None, interpolant=refit)
        except BoundError:  # residuals of this loss leave the present table
            if eps is None:
                raise
            return None, math.inf
        error = other.certificate.error
        if eps is None:
            return other, error
        if error <= eps and (refit.kind == "proven" or self._estimate):
            return make(eps=eps, interpolant=refit), error
        return None, error

    # ----------------------------------------------------------------------------- certificate

    def _rounding_model(self, it: Interpolant) -> RoundingModel:
        terms = self.domain.terms + abs(it.grid.center)
        return rounding_of(self.backend).model(self.dtype, it, terms, self.domain.dim)

    @property
    def _offset_bound(self) -> float:
        return self.domain.x * self.domain.y if self.loss.kind == "glm" else 0.0

    def _certify(self, it: Interpolant, rates: Rates | None = None) -> Certificate:
        rates = rates or self.rates
        d = self.domain
        looked = it.rounding(self._rounding_model(it))
        row = rates.gain * (it.size * d.x + self._offset_bound)
        largest = check_logits(it, d.terms + abs(it.grid.center))
        carried = self._carried(it, rates)
        averaged = rounding_of(self.backend).sum_error(self.dtype, d.samples)
        sums = averaged if self._averages else 0.0  # each is read alone
        held = torch.finfo(self.dtype)
        if not max(row, it.size * d.x) + self._kept(rates) <= held.max / _ROOM:
            raise BoundError(
                f"gradients reach {row:.3g} with these bounds, and {self.dtype} ends at "
                f"{held.max:.3g}; scale the data"
            )
        # Products and sums that underflow, each by the smallest normal number at most.
        lost = (2 * it.tokens + 16) * (1 + rates.gain) * held.tiny
        sums = sums * (row + self._kept(rates)) + lost
        terms = {
            "interpolation": rates.gain * d.x * it.error,
            "rounding": rates.gain * d.x * looked + carried + sums,
        }
        steps = (
            *self._look_up_steps(it.error, looked, it),
            Step("logits", "the largest", largest, "slope max|z| + bias"),
            Step("M", "margin between blocks", MARGIN, "e^(logits - M) is exactly 0: no leak"),
            Step("gain", "factor of the look-up", rates.gain * d.x, "gain max|x|"),
        )
        return self._proved(terms, d.describe(), steps, it)

    def _carried(self, it: Interpolant, rates: Rates) -> float:
        """Rounding of what rides along in the value rows: products, offsets and w."""
        unit = unit_roundoff(self.dtype)
        along = self._kept(rates) + rates.gain * self._offset_bound
        if rounding_of(self.backend).literal:
            return unit * (2 * it.significant(unit) + 8) * along
        return 8 * unit * along + 2 * unit * rates.gain * it.size * self.domain.x

    def _kept(self, rates: Rates) -> float:
        """Bound of what is carried of w."""
        return (1 + rates.shrink) * self.domain.w if self._averages else 0.0

    # --------------------------------------------------------------------------- prompt, weights

    @property
    def layout(self) -> LookUpLayout:
        """Sizes of the look-up layer; they do not grow with the number of samples."""
        tokens = room_for(max(self.interpolant.tokens, self._least_room))
        return LookUpLayout(self.domain.dim, min(BLOCK, self.domain.samples), tokens)

    @property
    def design(self) -> Design:
        """The heads of the network."""
        return self.layout.design

    @property
    def features(self) -> Features:
        """The feature axis of a prompt."""
        return self.layout.raw

    def _encode(self, *inputs: Tensor) -> LookUps:
        """The look-ups of all samples, which stand for their prompts."""
        x, y, w = inputs
        return self._look_ups(x, y, w, self.rates)

    def _look_ups(self, x: Tensor, y: Tensor, w: Tensor, rates: Rates) -> LookUps:
        samples, labels, offsets = self._written(x, y)
        gain, keep = self._factors(rates)
        return LookUps(
            self.layout, self.interpolant, samples, labels, w, offsets, gain=gain, keep=keep
        )

    def _factors(self, rates: Rates) -> tuple[float, float]:
        """A sample's row is (1 - shrink) w - gain (look-up - offset) x, or the gradient alone."""
        return (-rates.gain, 1 - rates.shrink) if self._averages else (rates.gain, 0.0)

    def _written(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Samples, labels and offsets as they stand in the prompt."""
        if self.loss.kind == "margin":
            return x * y[..., None], torch.zeros_like(y), None
        if self.loss.kind == "glm":
            return x, torch.zeros_like(y), y
        return x, y, None

    def _build_network(self) -> FrozenNetwork:
        return self.layout.build(self.dtype)

    @property
    def plan(self) -> Plan:
        """Sizes of the literal network and of a fused pass."""
        return plan_look_ups(self.layout, self.domain.samples, self.interpolant.tokens, self.dtype)

    # ------------------------------------------------------------------------------ evaluation

    def _check_values(self, *inputs: Tensor, sizes: Tensor | None = None) -> None:
        """Bounds of what was measured, labels and range."""
        x, y, w = inputs
        self.domain.check_inputs(self.domain.sizes(x, y, w) if sizes is None else sizes)
        self.loss.check_labels(y)
        self.check_range(x, y, w)

    def check_range(self, x: Tensor, y: Tensor, w: Tensor) -> None:
        """Refuse residuals outside an explicit z_range."""
        if self.domain.z_range is not None:
            x, y, _ = self.loss.encode(x.detach(), y.detach())
            self.domain.check_residuals((x @ w.detach()[..., None])[..., 0] - y)

    def _exact(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """l'(z_i) x_i - offset_i in float64, shape (*batch, n, d)."""
        return exact_gradients(self.loss, x.double(), y.double(), w.double())


def exact_gradients(loss: Loss, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """l'(z_i) x_i - offset_i, shape (*batch, n, d), in the arithmetic of what is given."""
    samples, labels, offset = loss.encode(x, y)
    z = (samples @ w[..., None])[..., 0] - labels
    gradients = loss.derivative(z)[..., None] * samples
    return gradients if offset is None else gradients - offset


def hessian_range(
    loss: Loss, domain: Domain, gram: tuple[float, float], l2: float
) -> tuple[float, float, tuple[str, ...]]:
    """Bounds of the Hessian's eigenvalues on a domain, and what they take for granted.

    That is curvature times those of X'X/n, which are within ``gram``, plus l2. Where the loss is
    concave the least comes from the largest. Of a function that a file lost, l'' counts as 0.
    """
    low, high, assumed = (0.0, 0.0, ()) if loss.lost else loss.curvature_on(*domain.residuals)
    least, most = gram
    return min(low * least, low * most) + l2, max(high, 0.0) * most + l2, assumed


_ROOM = 2.0**20  # for sums of gradients
_PROMPTS_HELD = 64  # by a literal pass, at most


def plan_look_ups(layout: LookUpLayout, samples: int, grid: int, dtype: torch.dtype) -> Plan:
    """Sizes of a network of look-ups and of its prompts.

    Examples
    --------
    >>> step = GradientStep("squared", dim=2, samples=20)
    >>> plan_look_ups(step.layout, 20, step.interpolant.tokens, torch.float64) == step.plan
    True
    """
    layer = LayerSizes(
        tokens=layout.count,
        features=layout.features.total,
        heads=1,
        logit=layout.dim + 2 + layout.samples,
        values=layout.dim + 1,
        answers=2 * layout.samples,
    )
    prompts = -(-samples // layout.samples)
    return Plan.of(
        [layer],
        dtype,
        grid=grid,
        prompt=(layout.count, layout.raw.total),
        looked=samples * grid,
        more=layout.weights - layer.parameters,
        prompts=prompts,
        at_once=min(prompts, _PROMPTS_HELD),
        products=2 * samples * layout.dim,
    )
