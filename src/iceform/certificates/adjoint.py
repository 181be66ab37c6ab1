r"""The error of one computation, by adjoints: first order exactly, the rest bounded.

A computation is a list of steps :math:`v_i = f_i(v_p)`, p the steps it reads. Computed were
:math:`\tilde v_i = f_i(\tilde v_p) + \delta_i`, with :math:`|\delta_i| \le D_i` known: rounding, a
look-up's certified error, or simply the difference of what came out and what f makes of what went
in. With :math:`e_i = \tilde v_i - v_i` and J the Jacobian *at the computed values*,

.. math:: e_i = \delta_i + J_i e_p - r_i, \qquad |r_i| \le R_i(E_p) \text{ while } |e_p| \le E_p,

r the Taylor remainder. For any linear functional c of the last step and *any* numbers
:math:`\hat\lambda`,

.. math:: c' e = \sum_i \hat\lambda_i' (\delta_i - r_i) + \sum_p \eta_p' e_p,

where :math:`\eta` is what :math:`\hat\lambda` misses the adjoint equations by. The reverse pass in
float64 misses them by its rounding alone,
:math:`|\eta_p| \le \gamma \sum_i |J_i|' |\hat\lambda_i|`. So

.. math:: |c' e| \le \sum_i |\hat\lambda_i|' (D_i + R_i(E_p) + \gamma |J_i| E_p).

The radii E are second order here and needed roughly: :math:`E_i = |J_i| E_p + R_i + D_i` forwards.
These multiply absolute values and grow with depth; at chosen steps (the *state*) they are replaced
by the bound itself, one functional for every entry, and the next steps start from that.

All arithmetic on bounds is on nonnegative numbers; a factor 1 + 2^{-30} after every step exceeds
its rounding.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from iceform.errors import ShapeError

_U = 2.0**-53
_TINY = 1e-300  # what underflow may lose in a step, with room
_SLACK = 1 + 2.0**-30
_DEAD = 800.0  # logits this far below the largest weigh less than any number
_SMALL = 0.125  # share of the second order in a bound that needs no sharper radii
_GROWN = 2.0**6  # by which radii may grow from one sharp one to the next, at first
_CHUNK = {"cpu": 2**19, "cuda": 2**27}  # numbers of one adjoint at once: in cache, or in memory


@dataclass(frozen=True)
class Carried:
    """How far a step's inputs, off by their radii, move it: to first order, and the remainder.

    ``formula`` bounds the first order as it is computed, term by term; None where that is
    ``first``.
    """

    first: Tensor
    rest: Tensor | float = 0.0
    formula: Tensor | None = None


class Operation(ABC):
    """One kind of step."""

    @abstractmethod
    def call(self, *x: Tensor) -> Tensor:
        """f, in float64."""

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        """Bound of what :meth:`call` is off by."""
        return 0.0

    @abstractmethod
    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> Carried:
        """First order and remainder for inputs within ``radii``."""


@dataclass(frozen=True)
class Move(Operation):
    """Numbers moved, or chosen by what is no input here: exact, and linear.

    ``on_radii`` does to radii what ``function`` does to numbers; constants become 0 in it.
    """

    function: Callable[..., Tensor]
    on_radii: Callable[..., Tensor] | None = None

    def call(self, *x: Tensor) -> Tensor:
        return self.function(*x)

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> Carried:
        return Carried((self.on_radii or self.function)(*radii))


@dataclass(frozen=True)
class Sum(Operation):
    """a + factor b."""

    factor: float = 1.0

    def call(self, *x: Tensor) -> Tensor:
        return x[0] + self.factor * x[1]

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        a, b = x[0].abs(), abs(self.factor) * x[1].abs()
        kept = (a == 0) | (b == 0) if self.factor in (1.0, -1.0) else torch.zeros(())
        return torch.where(kept.bool(), 0.0, 2 * _U * _finite(a + b))

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> Carried:
        return Carried(radii[0] + abs(self.factor) * radii[1])


@dataclass(frozen=True)
class Product(Operation):
    """a b, entry by entry."""

    def call(self, *x: Tensor) -> Tensor:
        return x[0] * x[1]

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        return _U * _finite(out.abs())

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> Carried:
        (a, b), (p, q) = x, radii
        return Carried(_times(a.abs(), q) + _times(b.abs(), p), p * q)


@dataclass(frozen=True)
class Quotient(Operation):
    r"""a / b. With t = e_b / b the remainder is -e_a t / b + (a - e_a) t^2 / (b (1 - t))."""

    def call(self, *x: Tensor) -> Tensor:
        return x[0] / x[1]

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        return _U * _finite(out.abs())

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> Carried:
        (a, b), (p, q) = (t.abs() for t in x), radii
        t = q / b
        left = (1 - t).clamp(min=0.0)
        rest = p * t / b + (a + p) * t**2 / (b * left)
        return Carried(p / b + a * t / b, torch.where(t < 1, rest, math.inf))


@dataclass(frozen=True)
class Matmul(Operation):
    """a b, matrices."""

    def call(self, *x: Tensor) -> Tensor:
        return x[0] @ x[1]

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        return 2 * (x[0].shape[-1] + 2) * _U * (x[0].abs() @ x[1].abs())

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> Carried:
        (a, b), (p, q) = x, radii
        return Carried(a.abs() @ q + p @ b.abs(), p @ q)


@dataclass(frozen=True, eq=False)
class Affine(Operation):
    """W x + b on the last axis, W and b fixed."""

    weight: Tensor
    bias: Tensor | None = None

    def call(self, *x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x[0], self.weight, self.bias)

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        bias = None if self.bias is None else self.bias.abs()
        terms = torch.nn.functional.linear(x[0].abs(), self.weight.abs(), bias)
        return 2 * (self.weight.shape[-1] + 3) * _U * terms

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> Carried:
        return Carried(torch.nn.functional.linear(radii[0], self.weight.abs()))


@dataclass(frozen=True)
class Mean(Operation):
    """The sum over axes, or the mean."""

    dims: tuple[int, ...]
    keep: bool = True
    mean: bool = True

    def call(self, *x: Tensor) -> Tensor:
        total = x[0].sum(self.dims, self.keep)
        return total / self._count(x[0])

    def _count(self, x: Tensor) -> float:
        return float(math.prod(x.shape[d] for d in self.dims)) if self.mean else 1.0

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        terms = math.prod(x[0].shape[d] for d in self.dims)
        return 2 * (terms + 2) * _U * self.call(x[0].abs())

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> Carried:
        return Carried(self.call(radii[0]))


@dataclass(frozen=True)
class Pointwise(Operation):
    """A scalar function with |f'| <= slope and |f''| <= bend, or a kink at 0 between two lines.

    Its own evaluation has no stated rounding: steps of this kind need a certified error.
    """

    function: Callable[[Tensor], Tensor]
    slope: float
    bend: float

    def call(self, *x: Tensor) -> Tensor:
        return self.function(x[0])

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        return math.inf

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> Carried:
        z, radius = x[0], radii[0]
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            (steep,) = torch.autograd.grad(self.function(leaf).sum(), leaf)
        rest = (
            torch.where(z.abs() <= radius, 2 * self.slope * radius, 0.0)
            if math.isinf(self.bend)
            else 0.5 * self.bend * radius**2
        )
        first = (steep.abs() + 64 * _U * self.slope) * radius
        return Carried(first, rest, self.slope * radius + first)


@dataclass(frozen=True)
class Power(Operation):
    r"""x^s for s = 1/2, -1/2, -1 (positive x), 2 and 3.

    The second derivative is largest at the end that is nearer to 0, or farther for s = 3.
    """

    exponent: float

    def call(self, *x: Tensor) -> Tensor:
        return _POWERS[self.exponent](x[0])

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        return 4 * _U * out.abs()

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> Carried:
        s, z, radius = self.exponent, x[0].abs(), radii[0]
        first = abs(s) * z ** (s - 1) * radius
        if s in (2.0, 3.0):
            return Carried(first, radius**2 if s == 2 else 3 * (z + radius) * radius**2)
        low = (z - radius).clamp(min=0.0)
        rest = 0.5 * abs(s * (s - 1)) * low ** (s - 2) * radius**2
        inside = (x[0] > radius) | (radius == 0)
        rest = torch.where(radius == 0, 0.0, rest)
        return Carried(first, torch.where(inside, rest, math.inf))


def _root_inverse(x: Tensor) -> Tensor:
    return 1 / torch.sqrt(x)


def _cube(x: Tensor) -> Tensor:
    return x * x * x


_POWERS: dict[float, Callable[[Tensor], Tensor]] = {
    0.5: torch.sqrt, -0.5: _root_inverse, -1.0: torch.reciprocal, 2.0: torch.square, 3.0: _cube,
}  # fmt: skip


@dataclass(frozen=True)
class Floor(Operation):
    """max(x, least)."""

    least: float

    def call(self, *x: Tensor) -> Tensor:
        return x[0].clamp(min=self.least)

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> Carried:
        near = (x[0] - self.least).abs() <= radii[0]
        first = torch.where(x[0] >= self.least, radii[0], 0.0)
        return Carried(first, torch.where(near, 2 * radii[0], 0.0), radii[0])


@dataclass(frozen=True)
class Softmax(Operation):
    r"""Over the last axis.

    Along a segment l - t e the weights have :math:`p_i'' = p_i ((e_i - \bar e)^2 - \mathrm{Var})`,
    mean and variance by p, and with |e| <= m they grow by at most e^{2m}. Logits that are certainly
    800 below the largest weigh nothing.
    """

    def call(self, *x: Tensor) -> Tensor:
        return torch.softmax(x[0], -1)

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        # exp within 2 units, its argument within a unit of the gap; then a sum and a quotient.
        gaps = (x[0].amax(-1, keepdim=True) - x[0]).clamp(max=_DEAD)
        worst = (out * gaps).sum(-1, keepdim=True)
        return 2 * _U * out * (gaps + worst + x[0].shape[-1] + 8)

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> Carried:
        logits, radius = x[0], radii[0]
        least = (logits - radius).amax(-1, keepdim=True)
        alive = logits + radius >= least - _DEAD
        radius = torch.where(alive, radius, 0.0)
        grown = (2 * radius.amax(-1, keepdim=True)).exp()
        mean = (out * radius).sum(-1, keepdim=True)
        square = (out * radius**2).sum(-1, keepdim=True)
        first = out * (radius + mean)
        bent = torch.maximum((radius + mean * grown) ** 2, square * grown)
        return Carried(first, 0.5 * grown * out * bent + _TINY)


def _finite(size: Tensor) -> Tensor:
    """An infinite entry is a mask's, and exact."""
    return torch.where(size.isinf(), 0.0, size)


def _times(size: Tensor, radius: Tensor) -> Tensor:
    return torch.where(radius == 0, 0.0, size * radius)


def _rows_back(back: Callable[[Tensor], Sequence[Tensor]], adjoints: Tensor) -> Sequence[Tensor]:
    """Every row one step back; an operation without a rule for rows is only slower, and warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        found: Sequence[Tensor] = torch.func.vmap(back)(adjoints)
        return found


def _summed(own: Tensor, adjoints: Tensor) -> Tensor | float:
    """Sums of own x |adjoint|, one a row; an adjoint that is 0 hides even infinity."""
    if not own.any():
        return 0.0
    if own.isfinite().all():
        found: Tensor = adjoints.reshape(len(adjoints), -1) @ own.expand(
            adjoints.shape[1:]
        ).reshape(-1)
        return found
    return _times(own, adjoints).reshape(len(adjoints), -1).sum(1)


# ---------------------------------------------------------------------------------------------
# the tape
# ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Step:
    operation: Operation | None
    reads: tuple[int, ...]
    value: Tensor
    own: Tensor  # D
    state: bool
    back: Callable[[Tensor], Sequence[Tensor]] | None = None
    radius: Tensor = field(default_factory=lambda: torch.zeros(()))  # E
    rest: Tensor = field(default_factory=lambda: torch.zeros(()))  # R + gamma |J| E


class Tape:
    """The steps of one computation; all values are float64.

    Parameters
    ----------
    device
        Where they are, and where bounds are computed.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = torch.device("cpu") if device is None else device
        self._steps: list[_Step] = []
        self._settled = False

    def leaf(self, value: Tensor, error: Tensor | float = 0.0) -> int:
        """A given number, off by at most ``error``."""
        value = value.detach().double().to(self.device)
        own = torch.as_tensor(error, dtype=torch.float64, device=self.device).expand(value.shape)
        self._steps.append(_Step(None, (), value, own, False))
        return len(self._steps) - 1

    def apply(
        self,
        operation: Operation,
        *reads: int,
        computed: Tensor | None = None,
        error: Tensor | float | None = None,
        state: bool = False,
    ) -> int:
        """A step. ``computed`` is what came out of it, this operation's own float64 by default.

        ``error`` bounds |computed - f(what it read)|; where it is not known, that is measured.
        """
        given = tuple(self._steps[i].value for i in reads)
        if all(self._steps[i].operation is None and not self._steps[i].own.any() for i in reads):
            back, out = None, operation.call(*given)  # of constants: nothing flows back
        else:
            out, back, *_ = torch.func.vjp(operation.call, *given)
        out = out.detach()
        value = out if computed is None else computed.detach().double()
        if value.shape != out.shape:
            raise ShapeError(f"computed {tuple(value.shape)}, the step has {tuple(out.shape)}")
        if error is None:
            off = torch.where(value == out, 0.0, (value - out).abs())
            own = off + operation.rounding(out, *given) + _TINY
            own = torch.zeros_like(out) if isinstance(operation, Move) and not off.any() else own
        else:
            own = torch.as_tensor(error, dtype=torch.float64, device=self.device).expand(out.shape)
        own = (own * _SLACK).nan_to_num(nan=math.inf, posinf=math.inf)
        self._steps.append(_Step(operation, reads, value, own, state, back))
        self._settled = False
        return len(self._steps) - 1

    def value(self, index: int) -> Tensor:
        """What a step computed."""
        return self._steps[index].value

    def is_given(self, index: int) -> bool:
        """Whether a step is a number that was given, and exact."""
        step = self._steps[index]
        return step.operation is None and not bool(step.own.any())

    # ------------------------------------------------------------------------------------- bounds

    def bound(self, index: int, functionals: Tensor | None = None) -> Tensor:
        """Bounds of |computed - exact|: of every entry of a step, or of linear functionals of it.

        Parameters
        ----------
        index
            The step.
        functionals
            Shape (k, ...), with the step's shape; then the bounds have shape (k,).
        """
        shape = self._steps[index].value.shape
        # Radii by products of absolute values: good enough while what rests on them is small.
        # Sharper ones where they have grown since the last sharp ones; then at all states.
        found = torch.full((), math.inf, dtype=torch.float64, device=self.device)
        for growth in (math.inf, _GROWN, 0.0):
            self._settle(index, growth)
            total, second = self._totals(index, functionals)
            found = torch.minimum(found, total)
            if bool((total.isfinite() & (second <= _SMALL * total)).all()):
                break
        return found.reshape(shape) if functionals is None else found

    def _totals(self, index: int, functionals: Tensor | None) -> tuple[Tensor, Tensor]:
        shape = self._steps[index].value.shape
        count = shape.numel() if functionals is None else len(functionals)
        widest = max(s.value.numel() for s in self._steps[: index + 1])
        size = max(1, _CHUNK.get(self.device.type, _CHUNK["cpu"]) // max(1, widest))
        parts = []
        for low in range(0, count, size):
            high = min(low + size, count)
            if functionals is None:
                rows = torch.zeros(high - low, shape.numel(), dtype=torch.float64)
                rows[torch.arange(high - low), torch.arange(low, high)] = 1.0
                rows = rows.reshape(high - low, *shape).to(self.device)
            else:
                rows = functionals[low:high].double().to(self.device)
            parts.append(self._reverse(index, rows))
        first, second = (torch.cat([p[i] for p in parts]) for i in (0, 1))
        total = ((first + second) * _SLACK).nan_to_num(nan=math.inf, posinf=math.inf)
        return total, second

    def _reverse(self, index: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of |adjoint| x (own error) and |adjoint| x (second order), for every row."""
        adjoints: dict[int, Tensor] = {index: rows}
        first, second = rows.new_zeros(2, len(rows)).unbind()
        for i in range(index, -1, -1):
            adjoint = adjoints.pop(i, None)
            if adjoint is None:
                continue
            step = self._steps[i]
            size = adjoint.abs()
            first += _summed(step.own, size)
            second += _summed(step.rest, size)
            if step.back is None:
                continue
            for read, part in zip(step.reads, _rows_back(step.back, adjoint), strict=True):
                if self._steps[read].back is not None or self._steps[read].own.any():
                    adjoints[read] = adjoints[read] + part if read in adjoints else part
        return first, second

    def _settle(self, index: int, growth: float) -> None:
        """Radii and remainders of every step up to one, sharp at states where they have grown."""
        if self._settled and math.isinf(growth):
            return
        last = 0.0  # largest radius of the last state that was sharp, or of the first
        for i, step in enumerate(self._steps[: index + 1]):
            if step.operation is None:
                step.radius, step.rest = step.own, step.own.new_zeros(())
                continue
            reads = [self._steps[j] for j in step.reads]
            found = step.operation.carried(
                step.value, [s.value for s in reads], [s.radius for s in reads]
            )
            size = max(s.value.numel() for s in (step, *reads))
            formula = found.first if found.formula is None else found.formula
            rest = torch.as_tensor(found.rest, dtype=torch.float64, device=self.device)
            backward = 4 * (size + 64) * _U * formula
            step.rest = ((rest + backward) * _SLACK).nan_to_num(nan=math.inf, posinf=math.inf)
            radius = (found.first + rest + step.own) * _SLACK
            step.radius = radius.nan_to_num(nan=math.inf, posinf=math.inf)
            largest = float(step.radius.max()) if step.state else 0.0
            last = last or largest
            if step.state and growth < math.inf and largest > growth * last:
                sharper = self._totals(i, None)[0].reshape(step.value.shape)
                step.radius = torch.minimum(step.radius, sharper)
                last = float(step.radius.max())
        self._settled = index == len(self._steps) - 1
