"""Scalar functions and what is known about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import Interval, Jet
from iceform.arithmetic.doubled import Doubled
from iceform.arithmetic.units import NOISE, SAFE_MINIMUM
from iceform.errors import BoundError, DtypeError, ProgramError, ShapeError
from iceform.expressions.ball_tensors import BallTensor
from iceform.expressions.extremes import extremes
from iceform.expressions.formulas.enclosing import jets
from iceform.expressions.formulas.functions import ball_function
from iceform.expressions.formulas.polynomials import polynomial
from iceform.expressions.formulas.table import TABLE, expanded
from iceform.expressions.formulas.trees import Node
from iceform.expressions.tracing import UntraceableError, trace
from iceform.validation import full_precision

Scalar = Callable[[Tensor], Tensor]
Encloser = Callable[[Interval, int], Jet]

_FAR, _LINEAR = 2.0**20, NOISE  # how far a line is followed, and what its slope may round by,
_LEAST = 2.0**-1070  # or, where numbers are next to nothing, this
_AGREE = 1 / _FAR  # of the largest value there: far more than rounding, less than another function


@dataclass(frozen=True, eq=False)
class Vouched:
    """Facts or an encloser that the library itself states for a callable: proofs use them."""

    call: Scalar
    says: Callable[..., Any]

    def __call__(self, *asked: Any) -> Any:
        return self.says(*asked)


def lost(z: Tensor) -> Tensor:
    """Stand in for a user's function, which files do not hold: a call raises."""
    raise ProgramError(
        "this emulator was loaded without its function, which files do not hold; "
        "pass it as load(path, f=...)"
    )


@dataclass(frozen=True, eq=False)
class ScalarFunction:
    """A continuous function of one real variable, applied elementwise.

    Parameters
    ----------
    call
        Maps a tensor to a tensor of the same shape.
    name
        What messages and reports call it.
    kinks
        Where the derivative jumps; the function must be smooth between them. None if not known.
    affine
        ``(slope, intercept)`` if the function is exactly ``slope * z + intercept``.
    facts
        What else is known once the range is: maps ``(low, high)`` to this function with it. Of
        facts that are not the library's own, the kinks are taken for a hint.
    encloser
        Maps cells and an order to the jet of the function on them, for functions that the library
        makes (:class:`Vouched`). Any other is not believed: without the library's own the function
        is traced; what cannot be traced cannot be enclosed, and is only estimated.
    estimate
        Whether ``eps`` may rest on an estimate where the function cannot be enclosed.

    Examples
    --------
    >>> f = ScalarFunction(torch.tanh, "tanh")
    >>> low, high = f.slopes(-1.0, 1.0)  # bounds of its derivative, proven
    >>> low <= 0.42 and 1.0 <= high
    True
    """

    call: Scalar
    name: str
    kinks: tuple[float, ...] | None = ()
    affine: tuple[float, float] | None = None
    facts: Callable[[float, float], ScalarFunction] | None = None
    encloser: Encloser | None = None
    estimate: bool = False
    _kept: dict[int, tuple[Scalar, Node | str]] = field(default_factory=dict, repr=False)

    @full_precision
    def __post_init__(self) -> None:
        """Refuse a line that the function is not: look-ups and proofs take it at its word."""
        if self.affine is not None and not self._is_line(*self.affine):
            why = "not what it was followed to compute" if self.obstacle is None else self.obstacle
            raise ProgramError(
                f"f ({self.name}) is said to be affine={self.affine}: {why}; leave affine out"
            )

    @classmethod
    def of(
        cls,
        f: Scalar | ScalarFunction,
        low: float,
        high: float,
        kinks: Sequence[float] | None = None,
    ) -> ScalarFunction:
        """Wrap ``f``; kinks that are not known are looked for on ``[low, high]``."""
        check_range(low, high)
        if not isinstance(f, ScalarFunction):
            if not callable(f):
                raise ProgramError(
                    f"f must be a function of a tensor, got {f!r} of type {type(f).__name__}; "
                    "pass for example torch.tanh or lambda z: z.clamp(-1, 1)"
                )
            f = cls(f, getattr(f, "__name__", type(f).__name__), kinks=None)
        if kinks is not None:
            return replace(f, kinks=_checked_kinks(kinks))
        f = f.on(low, high)
        return f if f.kinks is not None else replace(f, kinks=find_kinks(f, low, high))

    def on(self, low: float, high: float) -> ScalarFunction:
        """The same function with what is known of it on ``[low, high]``."""
        if self.facts is None:
            return self
        found = self.facts(low, high)
        if self._believed(self.facts):
            return found
        return replace(self, facts=None, kinks=found.kinks)

    def _believed(self, said: Any) -> bool:
        return isinstance(said, Vouched) and said.call is self.call

    @property
    def _enclosing(self) -> Encloser | None:
        """The encloser, if it is the library's own for this callable."""
        return self.encloser if self._believed(self.encloser) else None

    @property
    def lost(self) -> bool:
        """Whether it was read from a file that does not hold it."""
        return self.call is lost

    def _is_line(self, slope: float, intercept: float) -> bool:
        """Whether it is this line: exactly if it was traced, to rounding if it has an encloser."""
        if self._enclosing is None:
            line = None if isinstance(self._followed, str) else polynomial(self._followed)
            return line is not None and (*line, 0, 0)[:2] == (intercept, slope) and len(line) <= 2
        at = torch.tensor([0.0, -_FAR, -_FAR], dtype=torch.float64)
        to = torch.tensor([0.0, 0.0, _FAR], dtype=torch.float64)
        value, rate = (self._enclosing(Interval(at, to), 1)[k] for k in (0, 1))
        apart = max(float((end - slope).abs().max()) for end in (rate.low, rate.high))
        above = max(abs(float(end[0]) - intercept) for end in (value.low, value.high))
        size = abs(slope) * _FAR + abs(intercept)
        return apart <= _LINEAR * abs(slope) + _LEAST and above <= _LINEAR * size + _LEAST

    # ---------------------------------------------------------------------------- enclosures

    @cached_property
    def _followed(self) -> Node | str:
        """The tree of the function, or why there is none; kept with the callable it is of."""
        if id(self.call) not in self._kept:
            try:
                found: Node | str = trace(self.call)
            except UntraceableError as error:
                found = str(error)
            self._kept[id(self.call)] = (self.call, found)
        return self._kept[id(self.call)][1]

    @property
    def obstacle(self) -> str | None:
        """Why the function cannot be enclosed; None where it can."""
        if self._enclosing is not None or not isinstance(self._followed, str):
            return None
        if self.encloser is None:
            return self._followed
        return f"{self._followed}, and nothing proves the encloser that was handed in"

    def obstacle_on(self, low: float, high: float) -> str | None:
        """The same, with what is computed at some places compared with what is enclosed there."""
        if self.obstacle is not None:
            return self.obstacle
        z = torch.linspace(low, high, tuning.PLACES, dtype=torch.float64)
        seen, known = self.call(z).detach(), self.jets(Interval.point(z), 0)[0]
        slack = _AGREE * float(seen[seen.isfinite()].abs().max()) if seen.isfinite().any() else 0.0
        agree = (seen >= known.low - slack) & (seen <= known.high + slack)
        if bool((agree | ~seen.isfinite()).all()):
            return None
        where = float(z[~agree & seen.isfinite()][0])
        return f"what it computes at z = {where:.6g} is not what it was followed to compute"

    def jets(self, cells: Interval, order: int) -> Jet:
        """Taylor coefficients 0 .. ``order`` on cells.

        Raises
        ------
        UntraceableError
            If the function cannot be enclosed.
        """
        if self._enclosing is not None:
            return self._enclosing(cells, order)
        if isinstance(self._followed, str):
            raise UntraceableError(f"f ({self.name}) cannot be enclosed: {self._followed}")
        return jets(self._followed, cells, order)

    def doubled(self, z: Doubled) -> Doubled:
        """The values on balls: to float64, or to pairs of float64 where the function is a line.

        Raises
        ------
        UntraceableError
            If the function cannot be enclosed.
        """
        if self.affine is not None:
            slope, start = (Doubled.exactly(z.off.new_tensor(c)) for c in self.affine)
            return slope * z + start
        low, high = (end.flatten().cpu() for end in z.ends())
        found = self.jets(Interval(low, high), 0)[0]
        return Doubled.between(
            *(end.to(z.off.device).reshape(z.shape) for end in (found.low, found.high))
        )

    def balls(self, z: Any) -> Any:
        """An enclosure of the function's values on a ball, or on an array of balls.

        Raises
        ------
        ProgramError
            If it cannot be followed.
        """
        if isinstance(self._followed, str):
            raise ProgramError(
                f"f cannot be traced for ball arithmetic ({self._followed}); write it with torch "
                "operations and without Python branches"
            )
        return ball_function(self._followed)(z)

    def slopes(self, low: float, high: float) -> tuple[float, float] | None:
        """Proven bounds of f' on ``[low, high]``; None where there are none.

        Nor where they leave a sign open that f' was not seen to have.
        """
        here = self.on(low, high)
        if here.obstacle_on(low, high) is not None:
            return None
        found = extremes(here.jets, low, high, 1)
        unsigned = found.low < 0 <= found.seen_low or found.seen_high <= 0 < found.high
        finite = math.isfinite(found.low) and math.isfinite(found.high)
        return (found.low, found.high) if finite and not unsigned else None

    def kinks_in(self, low: float, high: float) -> tuple[float, ...]:
        """The kinks strictly between low and high."""
        return tuple(k for k in self.kinks or () if low < k < high)

    def __call__(self, z: Tensor) -> Tensor:
        """Evaluate, checking that the result is a finite tensor of the same shape."""
        if isinstance(z, BallTensor):
            return BallTensor.of(self.balls(z))
        out = self.call(z)
        if not isinstance(out, Tensor) or out.shape != z.shape:
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ShapeError(
                f"f ({self.name}) must return a tensor of the shape it is given, {tuple(z.shape)}, "
                f"got {got}; make it elementwise"
            )
        if out.dtype != z.dtype:
            raise DtypeError(
                f"f ({self.name}) returns {out.dtype} for {z.dtype}; certificates need a function "
                "that keeps the precision it is given"
            )
        if not bool(torch.isfinite(out.detach()).all()):
            where = z.detach()[~torch.isfinite(out.detach())].flatten()[0].item()
            raise ProgramError(
                f"f ({self.name}) is not finite at z = {where:.6g}; it must be continuous on the "
                "range of the residual, so narrow z_range or change f"
            )
        return out

    def extended(self, nodes: Tensor, low: float, high: float) -> Tensor:
        """Values at ``nodes``; beyond ``[low, high]`` a line where f itself is not finite there."""
        inside = (nodes >= low) & (nodes <= high)
        values = torch.zeros_like(nodes)
        values[inside] = self(nodes[inside])
        outside = nodes[~inside]
        raw = self.call(outside)
        line = torch.where(outside < low, self._tangent(outside, low), self._tangent(outside, high))
        values[~inside] = torch.where(torch.isfinite(raw), raw, line)
        return values

    def derivatives(self, z: Tensor, order: int) -> list[Tensor] | None:
        """``[f(z), f'(z), ..., f^(order)(z)]``, or None where autograd cannot give them."""
        point = z.detach().clone().requires_grad_(True)
        with torch.enable_grad():
            values = [self(point)]
            for _ in range(order):
                last = values[-1]
                if not last.requires_grad:
                    if len(values) == 1 and not self._constant(z):
                        return None
                    values.append(torch.zeros_like(z))
                    continue
                try:
                    (grad,) = torch.autograd.grad(
                        last.sum(), point, create_graph=True, materialize_grads=True
                    )
                except RuntimeError:  # an operation without a derivative, such as heaviside
                    return None
                values.append(grad)
        out = [v.detach() for v in values]
        return out if all(bool(torch.isfinite(v).all()) for v in out) else None

    def _constant(self, z: Tensor) -> bool:
        values = self(z)
        return bool((values == values.flatten()[0]).all())

    def _tangent(self, z: Tensor, at: float) -> Tensor:
        point = torch.tensor([at], dtype=z.dtype)
        derivatives = self.derivatives(point, 1)
        slope = 0.0 if derivatives is None else derivatives[1].item()
        return self(point) + slope * (z - at)


def check_range(low: float, high: float) -> None:
    """A range that a look-up can cover."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BoundError(f"a look-up needs finite low < high, got [{low!r}, {high!r}]")


def _checked_kinks(kinks: Sequence[float]) -> tuple[float, ...]:
    try:
        found = tuple(sorted(float(k) for k in kinks))
    except (TypeError, ValueError):
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise ProgramError(f"kinks must be a sequence of finite numbers, got {kinks!r}")
    return found


# A kink is a place where f(z+s) - 2 f(z) + f(z-s) shrinks like s, not like s^2, as s falls.
_JUMP = 7  # looks in a row at which a discontinuity must go on growing


def find_kinks(f: ScalarFunction, low: float, high: float) -> tuple[float, ...]:
    """Places strictly between ``low`` and ``high`` where the derivative of ``f`` jumps.

    They are looked for on a mesh, so none is promised.

    Raises
    ------
    ProgramError
        At a jump of f itself: attention weights are continuous in z, so no prompt comes close to a
        function that jumps. Also where there are too many kinks.

    Examples
    --------
    >>> find_kinks(ScalarFunction(lambda z: (z - 0.25).abs(), "|z - 1/4|"), -1.0, 1.0)
    (0.25,)
    """
    step = (high - low) / tuning.MESH
    z = low + step * (torch.arange(1, tuning.MESH, dtype=torch.float64) + 0.5)
    jump = _slope_jump(f, z, step)
    scale = max(
        float(f(torch.linspace(low, high, 257, dtype=torch.float64)).abs().max()), SAFE_MINIMUM
    )
    floor = 1e-7 * scale / (high - low)
    peaks = _peaks(jump, floor)
    located = [_zoom(f, (low, high), float(z[i]), step, float(jump[i]), scale) for i in peaks]
    merged = _merge(sorted(k for k in located if k is not None and low < k < high), step)
    if len(merged) > tuning.SCALAR_MOST:
        raise ProgramError(
            f"f ({f.name}) has more than {tuning.SCALAR_MOST} kinks on [{low:.6g}, {high:.6g}]; "
            "use regime='hard', or give the kinks that matter as kinks=(...)"
        )
    return tuple(merged)


def _slope_jump(f: ScalarFunction, z: Tensor, step: float) -> Tensor:
    return (f(z + step) - 2 * f(z) + f(z - step)).abs() / step


def _peaks(jump: Tensor, floor: float) -> list[int]:
    """Local maxima that stand out from their surroundings by a factor of two."""
    padded = torch.nn.functional.pad(jump[None], (8, 8), mode="replicate")[0]
    around = torch.minimum(padded[: jump.numel()], padded[16:])
    local = torch.nn.functional.max_pool1d(jump[None], 5, 1, 2)[0] == jump
    return torch.nonzero(local & (jump > floor) & (jump > 2 * around))[:, 0].tolist()


def _zoom(
    f: ScalarFunction, on: tuple[float, float], z: float, step: float, jump: float, scale: float
) -> float | None:
    grown = 0
    for _ in range(tuning.SCALAR_LOOKS):
        fine = step / tuning.SCALAR_ZOOM
        points = z + fine * torch.arange(
            -2 * tuning.SCALAR_ZOOM, 2 * tuning.SCALAR_ZOOM + 1, dtype=torch.float64
        )
        points = points.clamp(on[0] + 2 * fine, on[1] - 2 * fine)  # f may end at the ends
        jumps = _slope_jump(f, points, fine)
        best = int(jumps.argmax())
        found = float(jumps[best])
        if found < tuning.SCALAR_KEEP * jump:
            return None
        # A jump of f grows by the zoom at every look; a steep slope only until it is resolved.
        grown = grown + 1 if found > tuning.SCALAR_ZOOM / 2 * jump else 0
        if grown >= _JUMP:
            if _only_noise(f, z, step, jump):
                return None
            raise ProgramError(
                f"f ({f.name}) jumps near z = {z:.6g}; attention computes continuous functions "
                "only, so smooth the jump or narrow z_range to one side of it"
            )
        z, step, jump = float(points[best]), fine, found
        # Past this the second difference is rounding: u |f| / step against the jump itself.
        if torch.finfo(torch.float64).eps * scale >= 1e-3 * found * step:
            break
    return None if _only_noise(f, z, step, jump) else _snap(z, step)


def _only_noise(f: ScalarFunction, z: float, step: float, jump: float) -> bool:
    """Whether the slope is proven to vary by less around z: then f rounds there, no more.

    So does torch's softplus at its threshold: tables are of one branch, and proofs count the jump.
    """
    if f.obstacle is not None:
        return False
    ends = torch.tensor([[z - 2 * step], [z + 2 * step]], dtype=torch.float64)
    if isinstance(f._followed, str):
        slope = f.jets(Interval(*ends), 1)[1]
    else:
        smooth = expanded(f._followed, lambda row: row is TABLE["torch_softplus"])
        slope = jets(smooth, Interval(*ends), 1)[1]
    return bool((slope.high - slope.low < tuning.SCALAR_KEEP * jump).all())


def _snap(z: float, step: float) -> float:
    """The shortest decimal within reach of a located kink (kinks are typed by people)."""
    for digits in range(12):
        nearest = round(z, digits)
        if abs(nearest - z) <= 2 * step:
            return nearest
    return z


def _merge(kinks: list[float], step: float) -> list[float]:
    merged: list[float] = []
    for kink in kinks:
        if not merged or kink - merged[-1] > 4 * step:
            merged.append(kink)
    return merged
