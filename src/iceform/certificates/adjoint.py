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

The radii E are second order here and needed roughly. Most of an error is *known*: with d what came
out less what f makes of what went in, in float64, :math:`\delta_i = d_i + \rho_i` and
:math:`|\rho_i| \le P_i`, that evaluation's rounding. One forward pass carries
:math:`\hat e_i = d_i + J_i \hat e_p`, and :math:`E_i = |\hat e_i| + U_i` with
:math:`U_i = |J_i| U_p + R_i(E_p) + P_i` and what that pass rounds. U multiplies absolute values and
grows with depth; at chosen steps (the *state*) it is replaced by the bound itself, one functional
for every entry, carried back to the state that was sharp before, whose U counts there, or to the
beginning. That is done where the remainders of the steps behind a state would show.

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

from iceform import tuning
from iceform.arithmetic.units import OUTWARD_MANY, SAFE_MINIMUM, UNIT
from iceform.errors import ShapeError

_DEAD = 800.0  # logits this far below the largest weigh less than any number
_SHARES = (math.inf, 2.0, 2.0**-6, 0.0)  # of own errors, that remainders may be: tried in turn
_CHUNK = {"cpu": 2**19, "cuda": 2**27}  # numbers of one adjoint at once: in cache, or in memory


@dataclass(frozen=True)
class PropagatedError:
    """How far a step's inputs, off by their radii, move it: to first order, and the remainder.

    ``formula`` bounds the first order as it is computed, term by term; None where that is
    ``first``.
    """

    first: Tensor
    rest: Tensor | float = 0.0
    formula: Tensor | None = None


class AdjointOperation(ABC):
    """One kind of step."""

    @abstractmethod
    def call(self, *x: Tensor) -> Tensor:
        """f, in float64."""

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        """Bound of what :meth:`accurate` is off by."""
        return 0.0

    def accurate(self, *x: Tensor) -> Tensor:
        """f, with sums in an order that rounds less where :meth:`call` is not told one."""
        return self.call(*x)

    @abstractmethod
    def pushed(self, out: Tensor, x: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
        """J t, the first order of inputs that are off by t."""

    @abstractmethod
    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> PropagatedError:
        """First order and remainder for inputs within ``radii``."""


@dataclass(frozen=True)
class Rearrangement(AdjointOperation):
    """Numbers moved, or chosen by what is no input here: exact, and linear.

    ``on_radii`` does to radii what ``function`` does to numbers; constants become 0 in it.
    """

    function: Callable[..., Tensor]
    on_radii: Callable[..., Tensor] | None = None

    def call(self, *x: Tensor) -> Tensor:
        return self.function(*x)

    def pushed(self, out: Tensor, x: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
        return (self.on_radii or self.function)(*t)

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> PropagatedError:
        return PropagatedError((self.on_radii or self.function)(*radii))


@dataclass(frozen=True)
class Sum(AdjointOperation):
    """a + factor b."""

    factor: float = 1.0

    def call(self, *x: Tensor) -> Tensor:
        return x[0] + self.factor * x[1]

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        a, b = x[0].abs(), abs(self.factor) * x[1].abs()
        kept = (a == 0) | (b == 0) if self.factor in (1.0, -1.0) else torch.zeros(())
        return torch.where(kept.bool(), 0.0, 2 * UNIT * _finite(a + b))

    def pushed(self, out: Tensor, x: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
        return t[0] + self.factor * t[1]

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> PropagatedError:
        return PropagatedError(radii[0] + abs(self.factor) * radii[1])


@dataclass(frozen=True)
class EntrywiseProduct(AdjointOperation):
    """a b, entry by entry."""

    def call(self, *x: Tensor) -> Tensor:
        return x[0] * x[1]

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        return UNIT * _finite(out.abs())

    def pushed(self, out: Tensor, x: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
        return _times(x[0], t[1]) + _times(x[1], t[0])

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> PropagatedError:
        (a, b), (p, q) = x, radii
        return PropagatedError(_times(a.abs(), q) + _times(b.abs(), p), p * q)


@dataclass(frozen=True)
class Quotient(AdjointOperation):
    r"""a / b. With t = e_b / b the remainder is -e_a t / b + (a - e_a) t^2 / (b (1 - t))."""

    def call(self, *x: Tensor) -> Tensor:
        return x[0] / x[1]

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        return UNIT * _finite(out.abs())

    def pushed(self, out: Tensor, x: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
        return (t[0] - out * t[1]) / x[1]

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> PropagatedError:
        (a, b), (p, q) = (t.abs() for t in x), radii
        t = q / b
        left = (1 - t).clamp(min=0.0)
        rest = p * t / b + (a + p) * t**2 / (b * left)
        return PropagatedError(p / b + a * t / b, torch.where(t < 1, rest, math.inf))


@dataclass(frozen=True)
class Matmul(AdjointOperation):
    """a b, matrices."""

    def call(self, *x: Tensor) -> Tensor:
        return x[0] @ x[1]

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        return 2 * (x[0].shape[-1] + 2) * UNIT * (x[0].abs() @ x[1].abs())

    def pushed(self, out: Tensor, x: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
        return x[0] @ t[1] + t[0] @ x[1]

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> PropagatedError:
        (a, b), (p, q) = x, radii
        return PropagatedError(a.abs() @ q + p @ b.abs(), p @ q)


@dataclass(frozen=True, eq=False)
class Affine(AdjointOperation):
    """W x + b on the last axis, W and b fixed, each number of them off by ``unit`` of it."""

    weight: Tensor
    bias: Tensor | None = None
    unit: float = 0.0

    def call(self, *x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x[0], self.weight, self.bias)

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        bias = None if self.bias is None else self.bias.abs()
        terms = torch.nn.functional.linear(x[0].abs(), self.weight.abs(), bias)
        count = self.weight.shape[-1] + 3
        return (
            2
            * (min(count, tuning.ADJOINT_LEAF + count.bit_length() + 3) * UNIT + count * self.unit)
            * terms
        )

    def accurate(self, *x: Tensor) -> Tensor:
        found = _in_pairs(x[0], self.weight)
        return found if self.bias is None else found + self.bias

    def pushed(self, out: Tensor, x: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
        return torch.nn.functional.linear(t[0], self.weight)

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> PropagatedError:
        return PropagatedError(torch.nn.functional.linear(radii[0], self.weight.abs()))


@dataclass(frozen=True)
class Mean(AdjointOperation):
    """The sum over axes, or the mean."""

    dims: tuple[int, ...]
    keep: bool = True
    mean: bool = True

    def call(self, *x: Tensor) -> Tensor:
        total = x[0].sum(self.dims, self.keep)
        return total / self._count(x[0])

    def _count(self, x: Tensor) -> float:
        return float(math.prod(x.shape[d] for d in self.dims)) if self.mean else 1.0

    def accurate(self, *x: Tensor) -> Tensor:
        total = x[0]
        for dim in self.dims:
            while (size := total.shape[dim]) > 1:
                half = size // 2
                pairs = total.narrow(dim, 0, half) + total.narrow(dim, half, half)
                odd = [total.narrow(dim, 2 * half, 1)] if size % 2 else []
                total = torch.cat([pairs, *odd], dim)
        total = total / self._count(x[0])
        return total if self.keep else total.sum(self.dims)  # of one term each

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        levels = sum((x[0].shape[d]).bit_length() for d in self.dims)
        return 2 * (levels + 2) * UNIT * self.call(x[0].abs())

    def pushed(self, out: Tensor, x: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
        return self.call(t[0])

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> PropagatedError:
        return PropagatedError(self.call(radii[0]))


@dataclass(frozen=True)
class Pointwise(AdjointOperation):
    """A scalar function with |f'| <= slope and |f''| <= bend, or a kink at 0 between two lines.

    Its float64 evaluation is within ``units`` of max(1, |z|); where that is not known a step of
    this kind needs a certified error.
    """

    function: Callable[[Tensor], Tensor]
    slope: float
    bend: float
    units: float = math.inf

    def call(self, *x: Tensor) -> Tensor:
        return self.function(x[0])

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        return self.units * UNIT * x[0].abs().clamp(min=1.0)

    def pushed(self, out: Tensor, x: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
        return self._steep(x[0]) * t[0]

    def _steep(self, z: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = z.detach().clone().requires_grad_()
            return torch.autograd.grad(self.function(leaf).sum(), leaf)[0]

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> PropagatedError:
        z, radius = x[0], radii[0]
        rest = (
            torch.where(z.abs() <= radius, 2 * self.slope * radius, 0.0)
            if math.isinf(self.bend)
            else 0.5 * self.bend * radius**2
        )
        first = (self._steep(z).abs() + 64 * UNIT * self.slope) * radius
        return PropagatedError(first, rest, self.slope * radius + first)


@dataclass(frozen=True)
class Power(AdjointOperation):
    r"""x^s for s = 1/2, -1/2, -1 (positive x), 2 and 3.

    The second derivative is largest at the end that is nearer to 0, or farther for s = 3.
    """

    exponent: float

    def call(self, *x: Tensor) -> Tensor:
        return _POWERS[self.exponent](x[0])

    def rounding(self, out: Tensor, *x: Tensor) -> Tensor | float:
        return 4 * UNIT * out.abs()

    def pushed(self, out: Tensor, x: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
        return self.exponent * x[0] ** (self.exponent - 1) * t[0]

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> PropagatedError:
        s, z, radius = self.exponent, x[0].abs(), radii[0]
        first = abs(s) * z ** (s - 1) * radius
        if s in (2.0, 3.0):
            return PropagatedError(first, radius**2 if s == 2 else 3 * (z + radius) * radius**2)
        low = (z - radius).clamp(min=0.0)
        rest = 0.5 * abs(s * (s - 1)) * low ** (s - 2) * radius**2
        inside = (x[0] > radius) | (radius == 0)
        rest = torch.where(radius == 0, 0.0, rest)
        return PropagatedError(first, torch.where(inside, rest, math.inf))


def _root_inverse(x: Tensor) -> Tensor:
    return 1 / torch.sqrt(x)


def _cube(x: Tensor) -> Tensor:
    return x * x * x


_POWERS: dict[float, Callable[[Tensor], Tensor]] = {
    0.5: torch.sqrt, -0.5: _root_inverse, -1.0: torch.reciprocal, 2.0: torch.square, 3.0: _cube,
}  # fmt: skip


@dataclass(frozen=True)
class Floor(AdjointOperation):
    """max(x, least)."""

    least: float

    def call(self, *x: Tensor) -> Tensor:
        return x[0].clamp(min=self.least)

    def pushed(self, out: Tensor, x: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
        return torch.where(x[0] >= self.least, t[0], 0.0)

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> PropagatedError:
        near = (x[0] - self.least).abs() <= radii[0]
        first = torch.where(x[0] >= self.least, radii[0], 0.0)
        return PropagatedError(first, torch.where(near, 2 * radii[0], 0.0), radii[0])


@dataclass(frozen=True)
class Softmax(AdjointOperation):
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
        return 2 * UNIT * out * (gaps + worst + x[0].shape[-1] + 8)

    def pushed(self, out: Tensor, x: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
        kept = _times(out, t[0])
        return kept - out * kept.sum(-1, keepdim=True)

    def carried(self, out: Tensor, x: Sequence[Tensor], radii: Sequence[Tensor]) -> PropagatedError:
        logits, radius = x[0], radii[0]
        least = (logits - radius).amax(-1, keepdim=True)
        alive = logits + radius >= least - _DEAD
        radius = torch.where(alive, radius, 0.0)
        grown = (2 * radius.amax(-1, keepdim=True)).exp()
        mean = (out * radius).sum(-1, keepdim=True)
        square = (out * radius**2).sum(-1, keepdim=True)
        first = out * (radius + mean)
        bent = torch.maximum((radius + mean * grown) ** 2, square * grown)
        return PropagatedError(first, 0.5 * grown * out * bent + SAFE_MINIMUM)


def _in_pairs(x: Tensor, weight: Tensor) -> Tensor:
    """W x in halves, down to a few terms."""
    size = weight.shape[-1]
    if size <= tuning.ADJOINT_LEAF:
        return torch.nn.functional.linear(x, weight)
    half = size // 2
    return _in_pairs(x[..., :half], weight[:, :half]) + _in_pairs(x[..., half:], weight[:, half:])


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
    operation: AdjointOperation | None
    reads: tuple[int, ...]
    value: Tensor
    own: Tensor  # D
    state: bool
    back: Callable[[Tensor], Sequence[Tensor]] | None = None
    left: Tensor = field(default_factory=lambda: torch.zeros(()))  # P
    known: Tensor = field(default_factory=lambda: torch.zeros(()))  # e^
    open: Tensor = field(default_factory=lambda: torch.zeros(()))  # U
    rest: Tensor = field(default_factory=lambda: torch.zeros(()))  # R + gamma |J| E

    @property
    def radius(self) -> Tensor:
        """E."""
        return self.known.abs() + self.open

    @property
    def is_exact(self) -> bool:
        """Whether it is a number that was given, and is what it should be."""
        return self.operation is None and not bool(self.own.any())


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

    def leaf(self, value: Tensor, error: Tensor | float = 0.0) -> int:
        """A given number, off by at most ``error``."""
        value = value.detach().double().to(self.device)
        own = torch.as_tensor(error, dtype=torch.float64, device=self.device).expand(value.shape)
        none = torch.zeros((), dtype=torch.float64, device=self.device).expand(value.shape)
        self._steps.append(_Step(None, (), value, own, False, left=own, known=none, open=own))
        return len(self._steps) - 1

    def apply(
        self,
        operation: AdjointOperation,
        *reads: int,
        computed: Tensor | None = None,
        error: Tensor | float | None = None,
        state: bool = False,
    ) -> int:
        """A step. ``computed`` is what came out of it, this operation's own float64 by default.

        ``error`` bounds |computed - f(what it read)| in every run; where it is not known, that of
        this one is measured.
        """
        read = [self._steps[i] for i in reads]
        given, known = tuple(s.value for s in read), tuple(s.known for s in read)
        back = None  # of constants: nothing flows back
        out = operation.accurate(*given).detach()
        carried = torch.zeros_like(out)
        if not all(s.is_exact for s in read):
            back = torch.func.vjp(operation.call, *given)[1]
            if any(bool(k.any()) for k in known):
                carried = operation.pushed(out, given, known)
        value = out if computed is None else computed.detach().double()
        if value.shape != out.shape:
            raise ShapeError(f"computed {tuple(value.shape)}, the step has {tuple(out.shape)}")
        off = torch.where(value == out, 0.0, value - out)
        rounding = torch.as_tensor(operation.rounding(out, *given)).to(out)
        left = (rounding + SAFE_MINIMUM).expand(out.shape)
        if isinstance(operation, Rearrangement) and not off.any():
            left = torch.zeros_like(out)
        own = off.abs() + left
        if error is not None:
            own = torch.as_tensor(error, dtype=own.dtype, device=self.device).expand(out.shape)
        measured = left.isfinite() & off.isfinite() & carried.isfinite()
        hat = torch.where(measured, off + carried, 0.0)
        unknown = torch.where(carried.isfinite(), own + carried.abs(), math.inf)
        left = torch.where(measured, left + 4 * UNIT * (off.abs() + carried.abs()), unknown)
        own, left = (
            (t * OUTWARD_MANY).nan_to_num(nan=math.inf, posinf=math.inf) for t in (own, left)
        )
        self._steps.append(_Step(operation, reads, value, own, state, back, left, hat))
        return len(self._steps) - 1

    def value(self, index: int) -> Tensor:
        """What a step computed."""
        return self._steps[index].value

    def is_given(self, index: int) -> bool:
        """Whether a step is a number that was given, and exact."""
        return self._steps[index].is_exact

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
        # U by products of absolute values: good enough while what rests on it is small. Sharper
        # ones where it is not, and more of them until the second order is small.
        found = torch.full((), math.inf, dtype=torch.float64, device=self.device)
        for share in _SHARES:
            self._settle(index, share)
            if share and not bool(self._steps[index].open.isfinite().all()):
                continue
            total, second = self._totals(index, functionals)
            found = torch.minimum(found, total)
            if bool((total.isfinite() & (second <= tuning.ADJOINT_SMALL * total)).all()):
                break
        return found.reshape(shape) if functionals is None else found

    def _totals(
        self, index: int, functionals: Tensor | None, since: int | None = None
    ) -> tuple[Tensor, Tensor]:
        shape = self._steps[index].value.shape
        count = shape.numel() if functionals is None else len(functionals)
        first_step = 0 if since is None else since + 1
        widest = max(s.value.numel() for s in self._steps[first_step : index + 1])
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
            parts.append(self._reverse(index, rows, since))
        first, second = (torch.cat([p[i] for p in parts]) for i in (0, 1))
        total = ((first + second) * OUTWARD_MANY).nan_to_num(nan=math.inf, posinf=math.inf)
        return total, second

    def _reverse(self, index: int, rows: Tensor, since: int | None) -> tuple[Tensor, Tensor]:
        """Sums of |adjoint| x (own error) and |adjoint| x (second order), for every row.

        With ``since``, of what is not known instead of all that is off, and no further back than
        to that step: what is open there counts.
        """
        adjoints: dict[int, Tensor] = {index: rows}
        first, second = rows.new_zeros(2, len(rows)).unbind()
        for i in range(index, -1, -1):
            adjoint = adjoints.pop(i, None)
            if adjoint is None:
                continue
            step = self._steps[i]
            size = adjoint.abs()
            if since is not None and i <= since:
                first += _summed(step.open, size)
                continue
            first += _summed(step.own if since is None else step.left, size)
            second += _summed(step.rest, size)
            if step.back is None:
                continue
            for read, part in zip(step.reads, _rows_back(step.back, adjoint), strict=True):
                if self._steps[read].back is not None or self._steps[read].own.any():
                    adjoints[read] = adjoints[read] + part if read in adjoints else part
        return first, second

    def _settle(self, index: int, share: float) -> None:
        """u and remainders of every step up to one.

        A state is made sharp where the remainders behind it, up to the next one, would be more
        than ``share`` of what these steps are off by.
        """
        states = [i for i, s in enumerate(self._steps[: index + 1]) if s.state]
        ends = [*states[1:], index]
        sharp: list[int] = []
        self._forward(0, states[0] if states else index)
        for at, until in zip(states, ends, strict=False):
            # Back to the last sharp state, which is cheap and mostly enough; then twice as far.
            since, tried = at, 0
            while since >= 0 and self._forward(at + 1, until) > share:
                since = max([i for i in sharp if at - i >= 2 * (at - since)], default=-1)
                since = since if share else -1
                step = self._steps[at]
                sharper = self._totals(at, None, since)[0].reshape(step.value.shape)
                step.open, tried = torch.minimum(step.open, sharper), tried + 1
            if tried:
                sharp.append(at)
                self._forward(at + 1, until)

    def _forward(self, first: int, last: int) -> float:
        """u and remainders of these steps; their remainders as a share of what they are off by."""
        off, rest = 0.0, 0.0
        for step in self._steps[first : last + 1]:
            if step.operation is None:
                continue
            self._carry(step, step.operation)
            off, rest = off + float(step.own.sum()), rest + float(step.rest.sum())
        return rest / off if off else math.inf if rest else 0.0

    def _carry(self, step: _Step, operation: AdjointOperation) -> None:
        reads = [self._steps[j] for j in step.reads]
        values = [s.value for s in reads]
        radii, opened = [s.radius for s in reads], [s.open for s in reads]
        found = operation.carried(step.value, values, radii)
        size = max(s.value.numel() for s in (step, *reads))
        formula = found.first if found.formula is None else found.formula
        rest = torch.as_tensor(found.rest, dtype=torch.float64, device=self.device)
        backward = 8 * (size + 64) * UNIT * formula  # of the reverse pass, and of the forward one
        step.rest = ((rest + backward) * OUTWARD_MANY).nan_to_num(nan=math.inf, posinf=math.inf)
        first = operation.carried(step.value, values, opened).first
        found_open = (first + step.rest + step.left) * OUTWARD_MANY
        step.open = found_open.nan_to_num(nan=math.inf, posinf=math.inf)
