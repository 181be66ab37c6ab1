r"""Losses of one real variable by their derivatives; each owns what solvers and proofs need of it.

``residual`` losses act on z = w.x - y. ``margin`` losses act on the margin m = y w.x with labels
-1 and +1: the sample is y_i x_i and the label 0. ``glm`` losses (generalised linear models) have
the gradient (f(w.x) - y) x: the -y_i x_i rides along in the value rows, where attention weights
that sum to one carry it exactly.

**Facts** (:class:`Curvature`): ``bend`` is l''; ``majorizer`` a curvature c(z) with
l(t) <= l(z) + l'(z)(t - z) + c(z)(t - z)^2/2 for all t, so that a step in the metric it gives never
goes up. Two kinds of losses have proofs of their own: those with |l'''| <= s l'' (self-concordant:
logistic, Poisson and everything with rounded corners), and those whose l'' is constant between
kinks. What the library states of its own losses, its tests prove. Of any other, whatever is said
of it, proofs use what interval arithmetic finds on the range that its arguments take: bounds of
l'', of l'' between the kinks that were named, and of |l'''|/l''.

**Rounded corners**: l' is a sigmoid, up to scale and a constant. With
:math:`l'(z) = \sigma((z - m)/w)` and :math:`u = (z - m)/(2w)`

.. math:: l'' = \frac{\operatorname{sech}^2 u}{4w},\qquad
          |l'''| = \frac{|\tanh u|}{w}\, l'' \le \frac1w\, l'',\qquad
          c(z) = \frac{\tanh u}{u}\cdot\frac1{4w},

c being the least curvature of a quadratic that touches l at z and lies above it everywhere.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import Interval, Jet
from iceform.arithmetic.jets import softplus
from iceform.arithmetic.units import UNIT
from iceform.errors import BoundError, ProgramError
from iceform.expressions.extremes import concordance, extremes
from iceform.expressions.scalar import ScalarFunction, lost

Scalar = Callable[[Tensor], Tensor]

_ROUNDINGS = 8  # of a closed form: four units in the last place, or as many operations


@dataclass(frozen=True, eq=False)
class Curvature:
    """Second-order facts about a loss, for every real z or for a range.

    Attributes
    ----------
    bend
        l''.
    majorizer
        c, or None where no quadratic is known to lie above the loss.
    bounds
        ``(inf l'', sup l'')``, or None where that depends on the range.
    concordance
        s with |l'''| <= s l'', or None.
    kinks
        Where l'' jumps, if it is no less than ``bend`` in between; None if it is not of that kind.
    corner
        Where the loss bends, and within what width; None if it bends nowhere in particular.
    level
        What l' is computed by adding to or taking from, so that it rounds relative to that too.
    encloser
        Jets of l', where nothing else says how it rounds.

    Examples
    --------
    >>> facts = loss_named("huber").facts
    >>> facts.bounds, facts.kinks
    ((0.0, 1.0), (-1.0, 1.0))
    """

    bend: Scalar
    majorizer: Scalar | None = None
    bounds: tuple[float, float] | None = None
    concordance: float | None = None
    kinks: tuple[float, ...] | None = None
    corner: tuple[float, float] | None = None
    level: float = 0.0
    encloser: Callable[[Interval, int], Jet] | None = None

    @classmethod
    def unknown(cls, derivative: ScalarFunction) -> Curvature:
        """The facts of a derivative of which only what autograd computes is known."""

        def bend(z: Tensor) -> Tensor:
            known = derivative.derivatives(z, 1)
            return torch.zeros_like(z) if known is None else known[1].clamp(min=0)

        return cls(bend)

    @classmethod
    def on_range(
        cls, derivative: ScalarFunction, low: float, high: float, kinks: tuple[float, ...] = ()
    ) -> Curvature:
        """What interval arithmetic finds of a derivative on ``[low, high]``.

        ``kinks`` are where to look for pieces, should it not be smooth: hints, and no more.
        """
        here = derivative.on(low, high)
        known = here.slopes(low, high)
        if known is None:
            return cls.unknown(derivative)
        ratio = concordance(here.jets, low, high) if known[0] > 0 else math.inf
        breaks = tuple(sorted({k for k in (*kinks, *(here.kinks or ())) if low < k < high}))
        found = cls(cls.unknown(derivative).bend, bounds=known, encloser=here.jets)
        if math.isfinite(ratio):
            return replace(found, concordance=ratio)
        if not breaks or known[0] < 0:
            return found
        # From the next number on: at a kink itself it is open which piece a cell belongs to.
        ends = [(math.nextafter(a, high), math.nextafter(b, low)) for a, b in pairwise(
            (low, *breaks, high)
        )]  # fmt: skip
        least = [max(0.0, extremes(here.jets, a, b, 1).low) if a < b else 0.0 for a, b in ends]
        return replace(found, bend=Steps(breaks, tuple(least)), kinks=breaks)

    def enclose(self, f: Scalar, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """l'(z) and l''(z) with what each may be off by, f being what computes l'."""
        if self.encloser is None:
            value = f(z)
            bend = self.bend(z)
            return value, _ROUNDINGS * UNIT * (value.abs() + self.level), bend, 0 * bend
        at = z.detach().to("cpu", torch.float64)
        jet = self.encloser(Interval.point(at), 1)
        return tuple(part.to(z) for k in (0, 1) for part in _middle(jet[k]))  # type: ignore[return-value]

    @property
    def convex(self) -> bool:
        """Whether the loss is known to be."""
        return self.bounds is not None and self.bounds[0] >= 0

    @property
    def quadratic(self) -> bool:
        """Whether l'' is 1 everywhere."""
        return self.kinks == () and self.bounds == (1.0, 1.0)

    @property
    def steepest(self) -> float | None:
        """The least upper bound of l'' where it is finite, that is how far l' moves with z."""
        return self.bounds[1] if self.bounds and math.isfinite(self.bounds[1]) else None


@dataclass(frozen=True)
class Steps:
    """A step function: heights between breaks."""

    breaks: tuple[float, ...]
    heights: tuple[float, ...]

    def __call__(self, z: Tensor) -> Tensor:
        breaks, heights = z.new_tensor(self.breaks), z.new_tensor(self.heights)
        return heights[torch.bucketize(z.detach(), breaks)]


def _middle(enclosed: Interval) -> tuple[Tensor, Tensor]:
    """A point of an interval, and how far the rest is from it."""
    middle = enclosed.low + 0.5 * (enclosed.high - enclosed.low)
    off = torch.maximum(enclosed.high - middle, middle - enclosed.low)
    return middle, off * (1 + 4 * UNIT) + math.ulp(0.0)


_CURVATURE_MARGIN = 0.05  # added to what is seen there


@dataclass(frozen=True)
class Labels:
    """The labels that a loss is defined for.

    Attributes
    ----------
    allowed
        Elementwise test.
    words
        What is needed, as a message says it.
    advice
        What to do about others.
    """

    allowed: Callable[[Tensor], Tensor]
    words: str
    advice: str = ""

    def check(self, y: Tensor, name: str) -> None:
        """Refuse labels that are not allowed, naming the first."""
        outside = ~self.allowed(y)
        if bool(outside.any()):
            found = float(y[outside].flatten()[0])
            advice = f"; {self.advice}" if self.advice else ""
            raise BoundError(
                f"Some value(s) of y are out of the valid range of the loss: the {name} loss needs "
                f"{self.words}, got {found}{advice}"
            )


_SIGNS = Labels(lambda y: y.abs() == 1, "labels -1 and +1")


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss of one real variable, known by its derivative.

    Every fact is a field, stated for this object and no other; a name decides nothing. Solvers use
    what is stated. Proofs use what the library states of its own losses (:func:`vouched`), and of
    any other loss what they find out about the derivative; where nothing can be found out, what is
    stated makes an estimate, which names it.

    Attributes
    ----------
    name
        As in reports and saved files; None for a function of the user's own.
    kind
        "residual", "margin" or "glm": how samples and labels are encoded.
    derivative
        l'(t), the function that the attention looks up.
    facts
        Its curvature for every real t; None where nothing is known.
    labels
        The labels it is defined for; None for all (for margins: -1 and +1).
    parameters
        What a loss of the library was made with; None for a loss of the user's own, which files
        do not hold whatever it is called.
    above
        Maps t and y to no less than what the loss is above its least value over all t, to a few
        roundings of that number; None where that is not known.
    raised
        Another loss and what l' is above its derivative everywhere, so that one table serves both;
        None where there is none.

    Examples
    --------
    >>> huber = Loss.of("huber")
    >>> huber.kind, huber.derivative(torch.tensor([0.5, 3.0]))
    ('residual', tensor([0.5000, 1.0000]))
    >>> Loss.of(lambda z: z**3).curvature_on(-1.0, 1.0)[0]  # l'' = 3 z^2 is at least 0
    0.0
    """

    name: str | None
    kind: str
    derivative: ScalarFunction
    facts: Curvature | None = None
    labels: Labels | None = None
    parameters: tuple[tuple[str, float], ...] | None = None
    above: Callable[[Tensor, Tensor], Tensor] | None = None
    raised: tuple[Loss, float] | None = None
    # Not copied by dataclasses.replace: facts of one function say nothing about another.
    _vouched: bool = field(default=False, init=False, repr=False)

    @classmethod
    def of(cls, loss: str | Loss | ScalarFunction | Callable[[Tensor], Tensor]) -> Loss:
        """A named loss, a Loss, or a user's derivative l'(t) of the residual."""
        if isinstance(loss, Loss):
            return loss
        if isinstance(loss, str):
            return loss_named(loss)
        if isinstance(loss, ScalarFunction):
            return cls(None, "residual", loss)
        if not callable(loss):
            raise ProgramError(
                f"loss must be one of {', '.join(LOSSES)} or a function that computes the "
                f"derivative, got {loss!r} of type {type(loss).__name__}"
            )
        name = getattr(loss, "__name__", type(loss).__name__)
        # Kinks are looked for once the range of z is known.
        return cls(None, "residual", ScalarFunction(loss, name, kinks=None))

    def to_config(self) -> dict[str, Any] | None:
        """For files; None for a user's own function, which files do not hold."""
        if self.name is None or self.parameters is None:
            return None
        return {"name": self.name, "parameters": dict(self.parameters)}

    @classmethod
    def from_config(cls, config: dict[str, Any] | None, f: Any = None) -> Loss:
        """The inverse of :meth:`to_config`; ``f`` stands in for a user's own function."""
        if f is not None:
            return cls.of(f)
        if config is None:
            return cls(None, "residual", ScalarFunction(lost, "a function that was not saved"))
        return loss_named(config["name"], **config["parameters"])

    @cached_property
    def curvature(self) -> Curvature:
        """The stated facts; where none are stated, l'' as autograd computes it."""
        return Curvature.unknown(self.derivative) if self.facts is None else self.facts

    @property
    def known(self) -> Curvature | None:
        """The facts for every real t that a proof may use; None of a loss of the user's own."""
        return self.facts if self._vouched else None

    @property
    def quadratic(self) -> bool:
        """Whether l'' is known to be 1 everywhere."""
        return self.known is not None and self.known.quadratic

    def encode(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Samples, labels and value offsets: the gradient is f(w.x' - y') x' - offset."""
        if self.kind == "margin":
            return x * y[..., None], torch.zeros_like(y), None
        if self.kind == "glm":
            return x, torch.zeros_like(y), x * y[..., None]
        return x, y, None

    def curvature_within(self, reach: float) -> Curvature:
        """The facts on [-reach, reach]: those that are known, or what can be proved there."""
        return _within(self, reach) if self.known is None else self.known

    @property
    def lost(self) -> bool:
        """Whether it was read from a file that does not hold its function."""
        return self.derivative.lost

    def curvature_on(self, low: float, high: float) -> tuple[float, float, tuple[str, ...]]:
        """(inf l'', sup l'') over ``[low, high]``, and what that takes for granted."""
        known = self.curvature.bounds
        stated = known is not None and all(map(math.isfinite, known))
        if known is not None and stated and self.known is not None:
            return *known, ()
        proven = self.derivative.slopes(low, high)
        if proven is not None:  # rather than what somebody says of a loss of their own
            return *proven, ()
        if known is not None and stated:
            return *known, (f"the slope of {self.derivative.name} is as stated",)
        points = tuning.MESH + 1
        mesh = torch.linspace(low, high, points, dtype=torch.float64)
        derivatives = self.derivative.derivatives(mesh, 1)
        name = self.derivative.name
        if derivatives is None:
            slopes = self.derivative(mesh).diff() / mesh.diff()
        else:
            slopes = derivatives[1]
        least, most = float(slopes.min()), float(slopes.max())
        margin = _CURVATURE_MARGIN * max(abs(least), abs(most))
        # A derivative that is seen to be monotone is taken to be monotone: the loss is convex.
        low_end = least if least >= 0 else least - margin
        assumed = f"the slope of {name} is read off {points} points, 5% added"
        return low_end, most + margin, (assumed,)

    def check_labels(self, y: Tensor) -> None:
        """Refuse labels that this loss is not defined for."""
        needed = _SIGNS if self.labels is None and self.kind == "margin" else self.labels
        if needed is not None:
            needed.check(y.detach(), self.name or self.derivative.name)


@lru_cache(maxsize=256)
def _within(loss: Loss, reach: float) -> Curvature:
    return Curvature.on_range(loss.derivative, -reach, reach, loss.curvature.kinks or ())


def vouched(loss: Loss) -> Loss:
    """The same loss with its facts marked as the library's own, which proofs may use.

    It is for this object alone: a loss in which anything is replaced is another one.

    Examples
    --------
    >>> own = Loss(None, "residual", ScalarFunction(torch.tanh, "tanh"), loss_named("huber").facts)
    >>> own.known is None, vouched(own).known is own.facts
    (True, True)
    """
    object.__setattr__(loss, "_vouched", True)
    return loss


# ---------------------------------------------------------------------------------------------
# losses that have a name
# ---------------------------------------------------------------------------------------------

LOSSES: dict[str, Callable[..., Loss]] = {}

Maker = Callable[..., Loss]


def register(name: str) -> Callable[[Maker], Maker]:
    """Make a loss known by its name; its parameters are those of the function that makes it."""

    def known(maker: Maker) -> Maker:
        LOSSES[name] = maker
        return maker

    return known


def loss_named(name: str, **parameters: float) -> Loss:
    """A loss of the library by its name, one of ``LOSSES``, and its parameters.

    Examples
    --------
    >>> loss_named("huber", delta=1.35).derivative(torch.tensor([3.0]))
    tensor([1.3500])
    """
    if name not in LOSSES:
        raise ProgramError(f"no loss is called {name!r}; the library has {', '.join(LOSSES)}")
    known = inspect.signature(LOSSES[name]).parameters
    for key, value in parameters.items():
        if key not in known:
            raise ProgramError(
                f"{name} has no parameter {key!r}; it has {', '.join(known) or 'none'}"
            )
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ProgramError(f"{name}: {key} must be positive and finite, got {value!r}")
    return _made(LOSSES[name], name, tuple(sorted(parameters.items())))


@lru_cache(maxsize=256)
def _made(maker: Maker, name: str, parameters: tuple[tuple[str, float], ...]) -> Loss:
    """The same object for the same loss, so that fits are remembered."""
    made = maker(**dict(parameters))
    named = replace(made, name=name, parameters=parameters)
    return named if made.known is None else vouched(named)


# ---------------------------------------------------------------------------------------------
# quadratic between kinks: a sample that cannot reach one keeps its curvature, 0 or 1, exactly
# ---------------------------------------------------------------------------------------------


@register("squared")
def squared() -> Loss:
    """l(z) = z^2/2."""
    line = ScalarFunction(lambda z: z, "squared'", affine=(1.0, 0.0))
    facts = Curvature(torch.ones_like, torch.ones_like, (1.0, 1.0), kinks=())
    return vouched(Loss("squared", "residual", line, facts))


@register("huber")
def huber(delta: float = 1.0) -> Loss:
    """l'(z) = clip(z, -delta, delta)."""
    f = ScalarFunction(lambda z: z.clamp(-delta, delta), "huber'", (-delta, delta))

    def bend(z: Tensor) -> Tensor:
        return (z.abs() < delta).to(z)

    def above(z: Tensor) -> Tensor:
        return delta / z.abs().clamp(min=delta)

    facts = Curvature(bend, above, (0.0, 1.0), kinks=(-delta, delta))
    return vouched(Loss("huber", "residual", f, facts))


@register("squared_hinge")
def squared_hinge() -> Loss:
    """l(m) = max(0, 1 - m)^2/2."""
    f = ScalarFunction(lambda m: -torch.relu(1 - m), "squared_hinge'", (1.0,))
    facts = Curvature(lambda m: (m < 1).to(m), torch.ones_like, (0.0, 1.0), kinks=(1.0,))
    above = lambda m, y: torch.relu(1 - m).square() / 2  # noqa: E731
    return vouched(Loss("squared_hinge", "margin", f, facts, above=above))


# ---------------------------------------------------------------------------------------------
# with a rounded corner
# ---------------------------------------------------------------------------------------------

_SMALL = 1e-4  # below this tanh(u)/u is 1 - u^2/3 to the last digit
_WIDTH = 0.25  # of a rounded corner, unless one is given


def _sech_squared(u: Tensor) -> Tensor:
    """The square of sech as a product: 1 - tanh^2 would round relative to 1."""
    return 4 * torch.sigmoid(2 * u) * torch.sigmoid(-2 * u)


def _tanh_over(u: Tensor) -> Tensor:
    """tanh(u)/u, 1 at 0."""
    safe = torch.where(u.abs() < _SMALL, torch.ones_like(u), u)
    return torch.where(u.abs() < _SMALL, 1 - u.square() / 3, torch.tanh(safe) / safe)


def _step(width: float, middle: float = 0.0, height: float = 1.0) -> Curvature:
    """Facts of l' = height sigma((z - middle)/width) + a constant of that size at most."""
    steepest = height / (4 * width)

    def scaled(g: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda z: steepest * g((z - middle) / (2 * width))

    return Curvature(
        scaled(_sech_squared),
        scaled(_tanh_over),
        (0.0, steepest),
        concordance=1 / width,
        corner=(middle, width),
        level=height,
    )


@register("logistic")
def logistic() -> Loss:
    """l(t) = ln(1 + e^t) - y t."""
    shares = Labels(
        lambda y: (y >= 0) & (y <= 1),
        "labels in [0, 1]",
        "for labels -1 and +1 use 'logistic_margin'",
    )
    f = ScalarFunction(torch.sigmoid, "logistic'")
    above = lambda t, y: y * softplus(-t) + (1 - y) * softplus(t)  # noqa: E731
    return vouched(Loss("logistic", "glm", f, _step(1.0), labels=shares, above=above))


@register("logistic_margin")
def logistic_margin() -> Loss:
    """l(m) = ln(1 + e^{-m})."""
    f = ScalarFunction(lambda m: -torch.sigmoid(-m), "logistic_margin'")
    above = lambda m, y: softplus(-m)  # noqa: E731
    return vouched(Loss("logistic_margin", "margin", f, _step(1.0), above=above))


@register("absolute")
def absolute(width: float = _WIDTH) -> Loss:
    """l(z) = width ln cosh(z/width): |z| with its corner rounded; l' = 2 sigma(2 z/width) - 1."""
    f = ScalarFunction(lambda z: torch.tanh(z / width), "absolute'")
    return vouched(Loss("absolute", "residual", f, _step(width / 2, height=2.0)))


@register("quantile")
def quantile(quantile: float = 0.5, width: float = _WIDTH) -> Loss:
    """The pinball loss of y - w.x with its corner rounded: l'(z) = sigma(z/width) - quantile."""
    if quantile >= 1:
        raise ProgramError(f"quantile must be strictly between 0 and 1, got {quantile!r}")
    f = ScalarFunction(lambda z: torch.sigmoid(z / width) - quantile, "quantile'")
    median = None if quantile == 0.5 else (loss_named("quantile", width=width), 0.5 - quantile)
    return vouched(Loss("quantile", "residual", f, _step(width), raised=median))


@register("hinge")
def hinge(width: float = _WIDTH) -> Loss:
    """max(0, 1 - m) with its corner rounded: l'(m) = -sigma((1 - m)/width)."""
    f = ScalarFunction(lambda m: -torch.sigmoid((1 - m) / width), "hinge'")
    return vouched(Loss("hinge", "margin", f, _step(width, 1.0)))


# ---------------------------------------------------------------------------------------------
# Poisson regression, the logarithm its link
# ---------------------------------------------------------------------------------------------

_OF_FOUR = 16 * torch.finfo(torch.float64).eps  # of four terms, each within four units


@register("poisson")
def poisson() -> Loss:
    """l(t) = e^t - y t; no quadratic lies above it."""
    counts = Labels(lambda y: y >= 0, "counts >= 0")
    facts = Curvature(torch.exp, None, (0.0, math.inf), concordance=1.0)
    f = ScalarFunction(torch.exp, "poisson'")
    return vouched(Loss("poisson", "glm", f, facts, labels=counts, above=_above))


def _above(t: Tensor, y: Tensor) -> Tensor:
    """e^t - y t less its least value, y - y ln y; and what that rounds by."""
    least, mean = y - torch.xlogy(y, y), torch.exp(t)
    size = mean + (y * t).abs() + y + torch.xlogy(y, y).abs()
    return (mean - y * t - least).clamp(min=0) + _OF_FOUR * size
