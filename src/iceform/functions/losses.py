"""Losses by their derivatives: what a gradient looks up.

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
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from iceform.errors import BoundError, ProgramError
from iceform.functions.scalar import ScalarFunction

__all__ = ["LOSSES", "Loss", "loss_named"]

# sup |tanh''''| = sup 8 t (1 - t^2) |2 - 3 t^2| over t in [0, 1] is 4.0859...
_TANH_FOURTH = 4.1
# The logistic function is (1 + tanh(z/2))/2.
_LOGISTIC_FOURTH = _TANH_FOURTH / 32
_CURVATURE_MESH = 4097  # points at which the curvature of a user's loss is looked at
_CURVATURE_MARGIN = 0.05  # added to what is seen there


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss of one real variable, known by its derivative.

    Attributes
    ----------
    name
        As in reports and saved files; None for a function of the user's own.
    kind
        "residual", "margin" or "glm".
    derivative
        l'(t), the function that the attention looks up.
    parameters
        What a named loss was made with.
    curvature
        ``(inf l'', sup l'')`` over any range, or None where it depends on the range.
    """

    name: str | None
    kind: str
    derivative: ScalarFunction
    curvature: tuple[float, float] | None = None
    parameters: tuple[tuple[str, float], ...] = ()

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
        if self.name is None:
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

    def encode(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Samples, labels and value offsets: the gradient is f(w.x' - y') x' - offset."""
        if self.kind == "margin":
            return x * y[..., None], torch.zeros_like(y), None
        if self.kind == "glm":
            return x, torch.zeros_like(y), x * y[..., None]
        return x, y, None

    def curvature_on(self, low: float, high: float) -> tuple[float, float, tuple[str, ...]]:
        """(inf l'', sup l'') over ``[low, high]``, and what that takes for granted."""
        if self.curvature is not None:
            return *self.curvature, ()
        proven = self.derivative.on(low, high).slope
        if proven is not None:
            return *proven, ()
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
        seen = y.detach()
        if self.kind == "margin" and not bool((seen.abs() == 1).all()):
            raise BoundError(
                f"the {self.name} loss needs labels -1 and +1, got {_first(seen, seen.abs() != 1)}"
            )
        if self.name == "logistic" and not bool(((seen >= 0) & (seen <= 1)).all()):
            outside = (seen < 0) | (seen > 1)
            raise BoundError(
                f"the logistic loss needs labels in [0, 1], got {_first(seen, outside)}; for "
                "labels -1 and +1 use 'logistic_margin'"
            )
        if self.name == "poisson" and not bool((seen >= 0).all()):
            raise BoundError(f"the poisson loss needs counts >= 0, got {_first(seen, seen < 0)}")


def _lost(z: Tensor) -> Tensor:
    raise ProgramError(
        "this emulator was loaded without its function, which files do not hold; "
        "pass it as load(path, f=...)"
    )


def _first(values: Tensor, where: Tensor) -> float:
    return float(values[where].flatten()[0])


def _squared() -> Loss:
    line = ScalarFunction(lambda z: z, "squared'", affine=(1.0, 0.0), fourth=0.0)
    return Loss("squared", "residual", line, (1.0, 1.0))


def _absolute(width: float = 0.25) -> Loss:
    """l(z) = width ln cosh(z / width): |z| with its corner rounded."""
    fourth = _TANH_FOURTH / width**4
    f = ScalarFunction(lambda z: torch.tanh(z / width), "absolute'", fourth=fourth)
    return Loss("absolute", "residual", f, (0.0, 1 / width))


def _huber(delta: float = 1.0) -> Loss:
    f = ScalarFunction(lambda z: z.clamp(-delta, delta), "huber'", (-delta, delta), fourth=0.0)
    return Loss("huber", "residual", f, (0.0, 1.0))


def _quantile(quantile: float = 0.5, width: float = 0.25) -> Loss:
    """The pinball loss of y - w.x with its corner rounded: l'(z) = sigma(z/width) - quantile."""
    fourth = _LOGISTIC_FOURTH / width**4
    f = ScalarFunction(lambda z: torch.sigmoid(z / width) - quantile, "quantile'", fourth=fourth)
    return Loss("quantile", "residual", f, (0.0, 1 / (4 * width)))


def _logistic() -> Loss:
    f = ScalarFunction(torch.sigmoid, "logistic'", fourth=_LOGISTIC_FOURTH)
    return Loss("logistic", "glm", f, (0.0, 0.25))


def _logistic_margin() -> Loss:
    f = ScalarFunction(lambda m: -torch.sigmoid(-m), "logistic_margin'", fourth=_LOGISTIC_FOURTH)
    return Loss("logistic_margin", "margin", f, (0.0, 0.25))


def _hinge(width: float = 0.25) -> Loss:
    """max(0, 1 - m) with its corner rounded: l'(m) = -sigma((1 - m)/width)."""
    fourth = _LOGISTIC_FOURTH / width**4
    f = ScalarFunction(lambda m: -torch.sigmoid((1 - m) / width), "hinge'", fourth=fourth)
    return Loss("hinge", "margin", f, (0.0, 1 / (4 * width)))


def _squared_hinge() -> Loss:
    f = ScalarFunction(lambda m: -torch.relu(1 - m), "squared_hinge'", (1.0,), fourth=0.0)
    return Loss("squared_hinge", "margin", f, (0.0, 1.0))


def _poisson() -> Loss:
    return Loss("poisson", "glm", ScalarFunction(torch.exp, "poisson'"))


LOSSES: dict[str, Callable[..., Loss]] = {
    "squared": _squared,
    "absolute": _absolute,
    "huber": _huber,
    "quantile": _quantile,
    "logistic": _logistic,
    "logistic_margin": _logistic_margin,
    "hinge": _hinge,
    "squared_hinge": _squared_hinge,
    "poisson": _poisson,
}


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
        if key == "quantile" and value >= 1:
            raise ProgramError(f"quantile must be strictly between 0 and 1, got {value!r}")
    return _loss_made(name, tuple(sorted(parameters.items())))


@lru_cache(maxsize=256)
def _loss_made(name: str, parameters: tuple[tuple[str, float], ...]) -> Loss:
    """The same object for the same loss, so that fits are remembered."""
    return replace(LOSSES[name](**dict(parameters)), parameters=parameters)
