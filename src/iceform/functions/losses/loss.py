"""Loss: a loss of one real variable, known by its derivative, and its facts.

``residual`` losses act on z = w.x - y. ``margin`` losses act on the margin m = y w.x with labels
-1 and +1: the sample is y_i x_i and the label 0. ``glm`` losses (generalised linear models) have
the gradient (f(w.x) - y) x: the -y_i x_i rides along in the value rows, where attention weights
that sum to one carry it exactly.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from iceform.errors import BoundError, ProgramError
from iceform.functions.curvature import Curvature
from iceform.functions.scalar import ScalarFunction

__all__ = ["LOSSES", "Labels", "Loss", "loss_named", "register"]

_CURVATURE_MESH = 4097  # points at which the curvature of a user's loss is looked at
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
            raise BoundError(f"the {name} loss needs {self.words}, got {found}{advice}")


_SIGNS = Labels(lambda y: y.abs() == 1, "labels -1 and +1")


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss of one real variable, known by its derivative.

    Every fact that a proof uses is a field, stated for this object and no other; a name decides
    nothing. What is not stated is found out about the derivative, or not used.

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
    """

    name: str | None
    kind: str
    derivative: ScalarFunction
    facts: Curvature | None = None
    labels: Labels | None = None
    parameters: tuple[tuple[str, float], ...] | None = None
    above: Callable[[Tensor, Tensor], Tensor] | None = None
    raised: tuple[Loss, float] | None = None

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
            return cls(None, "residual", ScalarFunction(_lost, "a function that was not saved"))
        return loss_named(config["name"], **config["parameters"])

    @cached_property
    def curvature(self) -> Curvature:
        """The facts; of a loss that comes without, no more than l'' where autograd has it."""
        return Curvature.unknown(self.derivative) if self.facts is None else self.facts

    def encode(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Samples, labels and value offsets: the gradient is f(w.x' - y') x' - offset."""
        if self.kind == "margin":
            return x * y[..., None], torch.zeros_like(y), None
        if self.kind == "glm":
            return x, torch.zeros_like(y), x * y[..., None]
        return x, y, None

    def curvature_within(self, reach: float) -> Curvature:
        """The facts on [-reach, reach]: those of the loss, or what can be proved there."""
        return _within(self, reach) if self.facts is None else self.facts

    @property
    def lost(self) -> bool:
        """Whether it was read from a file that does not hold its function."""
        return self.derivative.call is _lost

    def curvature_on(self, low: float, high: float) -> tuple[float, float, tuple[str, ...]]:
        """(inf l'', sup l'') over ``[low, high]``, and what that takes for granted."""
        known = self.curvature.bounds
        stated = known is not None and all(map(math.isfinite, known))
        if known is not None and stated and self.parameters is not None:
            return *known, ()
        proven = self.derivative.slopes(low, high)
        if proven is not None:  # rather than what somebody says of a loss of their own
            return *proven, ()
        if known is not None and stated:
            return *known, (f"the slope of {self.derivative.name} is as stated",)
        mesh = torch.linspace(low, high, _CURVATURE_MESH, dtype=torch.float64)
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
        assumed = f"the slope of {name} is read off {_CURVATURE_MESH} points, 5% added"
        return low_end, most + margin, (assumed,)

    def check_labels(self, y: Tensor) -> None:
        """Refuse labels that this loss is not defined for."""
        needed = _SIGNS if self.labels is None and self.kind == "margin" else self.labels
        if needed is not None:
            needed.check(y.detach(), self.name or self.derivative.name)


@lru_cache(maxsize=256)
def _within(loss: Loss, reach: float) -> Curvature:
    return Curvature.on_range(loss.derivative, -reach, reach)


def _lost(z: Tensor) -> Tensor:
    raise ProgramError(
        "this emulator was loaded without its function, which files do not hold; "
        "pass it as load(path, f=...)"
    )


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
    """A loss of the library: ``loss_named("huber", delta=1.35)``."""
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
    return replace(maker(**dict(parameters)), name=name, parameters=parameters)
