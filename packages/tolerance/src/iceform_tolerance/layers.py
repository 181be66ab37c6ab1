r"""Tolerances of a linear map, RMSNorm, LayerNorm, a sum, and attention from norms alone.

u_out, λ_out are those of ``output`` (rounded to nearest), γ_k = e^{kl} - 1 with l the faithful step
of ``accumulate``, U its unit, λ its underflow, s(n) = :func:`iceform.arithmetic.sum_steps`. Numbers
are read as x̂: rounded to ``dtype``, subnormal ones maybe as zero. A sum of n numbers has at most
s(n) operations, each of which may lose λ, and what is lost is multiplied by at most 1 + γ later;
n numbers that are scaled before or after they are added lose λ once more each. So a mean is off by
at most Λ = (n + s(n) + 2) λ (1 + γ_{s(n)+2}) beside what is relative.

* **Linear map** y = W x + b. Reading moves the result by |W - Ŵ||x̂| + |W||x - x̂| + |b - b̂|, adding
  n products and b by γ_{s(n+1)+1} (|Ŵ||x̂| + |b̂|) and 2 (n + s(n+1)) λ (1 + γ); where products are
  split in three, parts that underflow add 2 λ Σ(|ŵ| + |x̂|).
* **Sum** y = Σ x_i: Σ|x_i - x̂_i| + γ_{s(n)} Σ|x̂_i| + s(n) λ (1 + γ).
* **RMSNorm** y = w x / r, r = sqrt(mean(x^2) + ε). All terms of r^2 are positive: its factor is
  within s(n) + 6 steps, and squares, their sum, ε and its addition may lose Λ + (n + 4) λ (1 + γ).
  The square root halves the factor and costs ``root_ulps``; a quotient (or a reciprocal and a
  product) and the product with w follow, and maybe a rounding of x/r to ``dtype`` in between, which
  may underflow there. Reading x̂ moves r by at most rms(x - x̂) (the triangle inequality).
* **LayerNorm** y = w (x - μ)/r + b, r = sqrt(var + ε). The computed mean is off by
  e = γ_{s(n)+2} mean|x̂| + Λ + mean|x - x̂|, x - μ by e + U(|x - μ| + e) + λ, which moves r by at
  most e + rms(x - x̂) + λ. That is for kernels that subtract the mean first (``moments=False``).
  Those that form V = mean(x^2) - μ^2 (``moments=True``) have, beside one step for the difference,
  an error of V of γ_{s(n)+3} mean(x̂^2) + 2|μ|e' + e'^2 + U (|μ| + e')^2 and what underflows,
  e' being e without the reading. Welford's recurrence lies between the two in practice; only these
  two are proven.

**Where there is no bound.** It is infinite where a kernel of the kind may overflow (the sums of
sizes above, r^2 before it is divided by n, x/r, its product with w, or the answer exceed what their
format holds), and where r^2 may have underflowed: less is certain of it than the smallest normal
number.

The bounds themselves are computed in float64. What that is off by is in them: sums of sizes are
multiplied by more than their rounding, and the mean, the deviations and r are enclosed.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic import compounded, format_of, log_steps, sum_steps
from iceform.errors import BoundError, DtypeError, ShapeError
from iceform.validation import check_positive, check_size
from iceform_tolerance.inputs import check_finite, rounded, scale_of
from iceform_tolerance.kind import SPLIT_SUMS, KernelKind
from iceform_tolerance.theorem import Norms, bound_from_norms

# Every bound below is a short float64 computation on sums of at most 2^24 terms: 2^-26 covers it.
_OWN = 1 + 2.0**-26
_MOST = 1 << 24
_FAITHFUL64 = sys.float_info.epsilon
_TINY64 = 2.0**-1020  # more than float64 loses when the squares of a row underflow, on average


def attention_norms(
    q_norm: float,
    k_norm: float,
    v_max: float,
    *,
    keys: int,
    dim: int,
    dtype: torch.dtype,
    accumulate: torch.dtype = torch.float32,
    scale: float | None = None,
    representable: bool = True,
    **kind: Any,
) -> float:
    r"""A bound of every element of attention, from norms alone: cheap enough to log in production.

    Parameters
    ----------
    q_norm, k_norm
        Largest Euclidean norm of a query and of a key.
    v_max
        Largest |v|.
    representable
        Whether q, k and v are numbers of ``dtype``; else their rounding counts.
    kind
        Further keywords of :func:`iceform_tolerance.tolerance`, and ``device``: where it runs.

    Examples
    --------
    >>> bound = attention_norms(4.0, 4.0, 1.0, keys=128, dim=64, dtype=torch.bfloat16)
    >>> print(f"{bound:.4f}")
    0.0122
    """
    stated = KernelKind.of(dtype, accumulate, **kind)
    keys, dim = check_size("keys", keys), check_size("dim", dim)
    moves = 0.0 if representable else stated.low.u
    tiny = 0.0 if representable else stated.low.rounded_underflow * math.sqrt(dim)
    q, k, v = (
        check_positive(name, x, zero=True) * _OWN
        for name, x in (("q_norm", q_norm), ("k_norm", k_norm), ("v_max", v_max))
    )
    factor = abs(scale_of(scale, dim))

    def one(x: float) -> Tensor:
        return torch.full((1, 1, 1), x, dtype=torch.float64)

    norms = Norms(
        present=one(keys), keys=keys, dim=dim, scale=factor, q=one(q * (1 + moves) + tiny),
        q_exact=one(q), q_moved=one(q * moves + tiny), k=one(k * (1 + moves) + tiny),
        k_moved=one(k * moves + tiny), bias=one(0.0), top=one(factor * q * k),
    )  # fmt: skip
    return float(bound_from_norms(stated, norms, one(v * (1 + moves) + tiny)))


@dataclass(frozen=True, eq=False)
class _Read:
    """A tensor in float64, and as a kernel reads it."""

    exact: Tensor
    size: Tensor  # |x̂|, the largest that it may be read as
    moved: Tensor  # |x - x̂|, at most

    @classmethod
    def of(cls, x: Tensor, name: str, kind: KernelKind, length: int | None = None) -> _Read:
        """Checked; a vector of that length where one is given."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            what = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise DtypeError(f"{name} must be a floating-point torch tensor, got {what}")
        if length is not None and x.shape != (length,):
            raise ShapeError(f"{name} is {tuple(x.shape)}, these inputs need ({length},)")
        if x.numel() == 0 or x.ndim == 0:
            raise ShapeError(f"{name} is empty or a scalar, shape {tuple(x.shape)}")
        if x.shape[-1] > _MOST:
            raise BoundError(f"{name} has {x.shape[-1]} terms; sums are covered up to {_MOST}")
        check_finite(**{name: x})
        low, wide, read = kind.low, kind.wide, rounded(x, kind.low)
        size, exact = read.abs(), x.double()
        if bool((size > wide.largest).any()):
            raise BoundError(
                f"{name} reaches {float(size.amax()):.6g}, and accumulate={wide.name} ends at "
                f"{wide.largest:g}: no kernel of this kind can hold it; accumulate in a wider dtype"
            )
        moved = (exact - read).abs()
        if low.flushes:  # subnormal numbers may be read as zero
            moved = moved + torch.where(size < low.normal, size, 0.0)
        if wide.normal > low.normal:  # small ones of dtype are subnormal in the accumulator
            moved = moved + torch.where(size < wide.normal, size.clamp(max=wide.underflow), 0.0)
        return cls(exact, size, moved)


def _finished(kind: KernelKind, size: Tensor, error: Tensor, reached: Tensor) -> Tensor:
    """The rounding of the output, added; infinite where something may overflow.

    Parameters
    ----------
    size, error
        The exact answer, at most, and how far the accumulator may be from it.
    reached
        The largest number that the accumulator may come to on the way.
    """
    error = error * _OWN
    most = (size + error) * _OWN
    held = (reached * _OWN <= kind.wide.largest) & (most <= format_of(kind.output).largest)
    error = error + kind.output_unit * most + kind.output_underflow
    # Written so that what is not a number is infinite.
    return torch.where(held & (error < math.inf), error, math.inf)


@torch.no_grad()
def total(
    x: Float[Tensor, "*batch n"],
    *,
    dtype: torch.dtype,
    accumulate: torch.dtype = torch.float32,
    output: torch.dtype | None = None,
) -> Float[Tensor, "*batch"]:
    """Bound of a sum over the last axis, in any order; infinite where it may overflow.

    Examples
    --------
    >>> bound = total(torch.ones(2, 100), dtype=torch.bfloat16)
    >>> print([f"{one:.2f}" for one in bound])
    ['0.39', '0.39']
    """
    kind = KernelKind.of(dtype, accumulate, output=output)
    read = _Read.of(x, "x", kind)
    steps, size = sum_steps(x.shape[-1]), read.size.sum(-1)
    factor = compounded(steps, kind.wide.faithful)
    lost = steps * kind.wide.underflow * (1 + factor)
    value = read.exact.sum(-1).abs() + (1 - 1 / _OWN) * read.exact.abs().sum(-1)
    error = read.moved.sum(-1) + factor * size + lost
    return _finished(kind, value, error, size * (1 + factor) + lost)


@torch.no_grad()
def linear(
    x: Float[Tensor, "*batch n"],
    weight: Float[Tensor, "m n"],
    bias: Float[Tensor, "m"] | None = None,
    *,
    dtype: torch.dtype,
    accumulate: torch.dtype = torch.float32,
    output: torch.dtype | None = None,
    split: bool | None = None,
) -> Float[Tensor, "*batch m"]:
    """Bound of `torch.nn.functional.linear`; infinite where it may overflow.

    Examples
    --------
    >>> x, weight = torch.ones(1, 64), torch.eye(2, 64)
    >>> off = (torch.nn.functional.linear(x, weight) - 1).abs()
    >>> bool((off <= linear(x, weight, dtype=torch.float32)).all())
    True
    """
    device = x.device if isinstance(x, Tensor) else "cpu"
    kind = KernelKind.of(dtype, accumulate, output=output, split=split, device=device)
    given, matrix = _Read.of(x, "x", kind), _Read.of(weight, "weight", kind)
    if weight.ndim != 2 or x.shape[-1] != weight.shape[-1]:
        raise ShapeError(
            f"x is {tuple(x.shape)}, weight {tuple(weight.shape)}: make them (.., n), (m, n)"
        )
    n = x.shape[-1]
    size = given.size @ matrix.size.mT
    moved = given.size @ matrix.moved.mT + given.moved @ matrix.exact.abs().mT
    value = given.exact @ matrix.exact.mT
    if bias is not None:
        added = _Read.of(bias, "bias", kind, len(weight))
        size, moved, value = size + added.size, moved + added.moved, value + added.exact
    # As many sums as a logit has, but no scale: at most its steps.
    factor = compounded(kind.logit_steps(n + 1), kind.wide.faithful)
    operations = 2 * (n + sum_steps(n + 1)) + torch.zeros_like(size)
    reached = size
    if kind.split:
        operations = operations * SPLIT_SUMS
        operations = operations + 2 * (given.size.sum(-1, keepdim=True) + matrix.size.sum(-1))
        # The first part of a number is rounded, maybe up.
        largest = torch.maximum(given.size.amax(-1, keepdim=True), matrix.size.amax(-1))
        reached = torch.maximum(size, 2 * largest)
    lost = operations * kind.wide.underflow * (1 + factor)
    value = value.abs() + (1 - 1 / _OWN) * (size + moved)
    return _finished(kind, value, moved + factor * size + lost, reached * (1 + factor) + lost)


@torch.no_grad()
def rms_norm(
    x: Float[Tensor, "*batch n"],
    weight: Float[Tensor, "n"] | None = None,
    *,
    eps: float,
    dtype: torch.dtype,
    accumulate: torch.dtype = torch.float32,
    output: torch.dtype | None = None,
    root_ulps: float = 2.0,
) -> Float[Tensor, "*batch n"]:
    """Bound of RMSNorm, with or without a rounding to ``dtype`` before the weight.

    It is infinite where squares may overflow, and where they and ``eps`` may underflow.

    Examples
    --------
    >>> x = torch.tensor([[3.0, 4.0]])
    >>> print(f"{float(rms_norm(x, eps=1e-6, dtype=torch.float32).max()):.1e}")
    1.6e-06
    """
    kind = KernelKind.of(dtype, accumulate, output=output)
    return _norm(x, weight, None, eps, kind, root_ulps, centred=False)


@torch.no_grad()
def layer_norm(
    x: Float[Tensor, "*batch n"],
    weight: Float[Tensor, "n"] | None = None,
    bias: Float[Tensor, "n"] | None = None,
    *,
    eps: float,
    dtype: torch.dtype,
    accumulate: torch.dtype = torch.float32,
    output: torch.dtype | None = None,
    root_ulps: float = 2.0,
    moments: bool = False,
) -> Float[Tensor, "*batch n"]:
    """Bound of LayerNorm; ``moments``: the variance is mean(x^2) - mean(x)^2.

    It is infinite where squares may overflow, and where they and ``eps`` may underflow.

    Examples
    --------
    >>> x = torch.tensor([[3.0, 4.0]])
    >>> print(f"{float(layer_norm(x, eps=1e-6, dtype=torch.float32).max()):.1e}")
    1.2e-05
    """
    kind = KernelKind.of(dtype, accumulate, output=output)
    return _norm(x, weight, bias, eps, kind, root_ulps, centred=True, moments=moments)


@dataclass(frozen=True, eq=False)
class _Exact:
    """Enclosures of |x - μ| and r = sqrt(mean((x - μ)^2) + ε), for rows x (*batch, n)."""

    away: Tensor  # |x - μ|, at most
    own: Tensor  # how far the computed x - μ may be from it
    difference: Tensor  # x - μ, as computed
    mean: Tensor  # |μ|, at most
    least: Tensor  # r
    most: Tensor

    @classmethod
    def of(cls, x: Tensor, eps: float, centred: bool) -> _Exact:
        unit = compounded(x.shape[-1] + 8, _FAITHFUL64)  # of any sum of this length
        sizes = x.abs().mean(-1, keepdim=True) * centred
        mean = x.mean(-1, keepdim=True) * float(centred)
        difference = x - mean
        own = unit * (sizes + difference.abs()) + _TINY64
        square = difference.square().mean(-1, keepdim=True)
        slip = unit * sizes + _TINY64
        low = (square - _TINY64).clamp(min=0.0) + eps
        return cls(
            away=difference.abs() + own,
            own=own,
            difference=difference,
            mean=mean.abs() + slip,
            least=torch.clamp(low.sqrt() * (1 - unit) - slip, min=math.sqrt(eps) * (1 - unit)),
            most=(square + _TINY64 + eps).sqrt() * (1 + unit) + slip,
        )


@dataclass(frozen=True, eq=False)
class _Spread:
    """Bounds of x - μ and r^2 as a kernel computes them."""

    off: Tensor  # how far its x - μ may be from the exact one
    least: Tensor  # r^2; 0 where it may have underflowed
    most: Tensor
    reached: Tensor  # the largest number on the way

    @classmethod
    def of(
        cls, kind: KernelKind, given: _Read, exact: _Exact, eps: float, centred: bool, moments: bool
    ) -> _Spread:
        n, unit, tiny = given.size.shape[-1], kind.wide.faithful, kind.wide.underflow
        steps = sum_steps(n) + 6
        grown = 1 + compounded(steps, unit)
        lost = (n + sum_steps(n) + 2) * tiny * grown  # of a mean
        beside = torch.full_like(exact.least, lost + (n + 4) * tiny * grown)  # of r^2
        sizes, moved = given.size.mean(-1, keepdim=True), given.moved.mean(-1, keepdim=True)
        # x - μ: what reading and the computed mean move it by.
        shaken = (compounded(sum_steps(n) + 2, unit) * sizes + lost) * centred
        off = given.moved + shaken + moved * centred
        off = off + (unit * (exact.away + off) + tiny) * centred
        # r: what reading and the mean move it by; then what is off absolutely, and a factor.
        slip = given.moved.square().mean(-1, keepdim=True).sqrt()
        squares = torch.zeros_like(slip)
        if moments:
            squares, mean = given.size.square().mean(-1, keepdim=True), exact.mean + moved
            beside = beside + compounded(sum_steps(n) + 3, unit) * squares + tiny
            beside = beside + shaken * (2 * mean + shaken) + unit * (mean + shaken).square()
        else:
            slip = slip + (shaken + moved + tiny) * centred
        # The square root of a sum of squares, eps one of them, moves by no more than its terms do.
        low = (exact.least - slip).clamp(min=math.sqrt(eps) * (1 - _FAITHFUL64)).square()
        low = (low - beside) * math.exp(-steps * log_steps(unit))
        high = ((exact.most + slip).square() + beside) * grown
        means = torch.maximum(high + squares * grown, sizes * centred * grown + lost)
        countable = n <= 1 / kind.wide.normal  # else 1/n is subnormal
        return cls(
            off=off,
            least=torch.where(low >= kind.wide.normal, low, 0.0),
            most=high,
            reached=n * means if countable else torch.full_like(means, math.inf),
        )


def _norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    kind: KernelKind,
    root_ulps: float,
    *,
    centred: bool,
    moments: bool = False,
) -> Tensor:
    """Error bound of RMSNorm (not ``centred``) or LayerNorm, by either formula of the variance."""
    eps, root_ulps = check_positive("eps", eps), check_positive("root_ulps", root_ulps)
    given = _Read.of(x, "x", kind)
    gain, shift = (
        None if vector is None else _Read.of(vector, name, kind, x.shape[-1])
        for name, vector in (("weight", weight), ("bias", bias))
    )
    unit, tiny = kind.wide.faithful, kind.wide.underflow
    exact = _Exact.of(given.exact, eps, centred)
    spread = _Spread.of(kind, given, exact, eps, centred, moments)
    # 1/r: the square root, its reciprocal, two products, and a rounding to dtype.
    root, inverse = spread.least.sqrt(), 1 / spread.most.sqrt()
    side = torch.maximum(exact.most / root - 1, 1 - exact.least * inverse)
    side = side * _OWN + 16 * _FAITHFUL64
    spare = (1 + compounded(1, root_ulps * unit)) * (1 + compounded(4, unit))
    relative = (1 + side) * spare * (1 + _rounding(kind)) - 1
    size = exact.away / exact.least
    error = size * relative + spread.off / exact.least * (1 + relative)
    error = error + 4 * tiny + _rounding_underflow(kind)
    reached = torch.maximum(spread.reached, size + error)
    reached = torch.where(size + error <= kind.low.largest, reached, math.inf)
    # The answer, what is computed of it here, and how far that may be off.
    value, answer = size, exact.difference / exact.least
    own = exact.own / exact.least + size * (exact.most / exact.least - 1)
    if gain is not None:
        error = gain.size * error + gain.moved * size
        value, own = gain.exact.abs() * value, gain.exact.abs() * own
        answer = gain.exact * answer
    reached = torch.maximum(reached, value + error)
    if shift is not None:
        error, value, answer = error + shift.moved, value + shift.exact.abs(), answer + shift.exact
    error = error + unit * (value + error) + 3 * tiny
    reached = torch.maximum(reached, value + error)
    return _finished(kind, answer.abs() + own + (1 - 1 / _OWN) * value, error, reached)


def _rounding(kind: KernelKind) -> float:
    """Rounding of x/r to ``dtype`` before the weight; covers kernels that do not round there."""
    return kind.low.u if kind.low.u > kind.wide.u else 0.0


def _rounding_underflow(kind: KernelKind) -> float:
    """Absolute loss of small numbers by that rounding and by reading its result."""
    if not _rounding(kind):
        return 0.0
    return kind.low.rounded_underflow + (kind.low.normal if kind.low.flushes else 0.0)
