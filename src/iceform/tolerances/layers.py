r"""The same for one linear map, RMSNorm, LayerNorm and a sum; and attention from norms alone.

u_in, u_out, λ_out are those of ``dtype`` and ``output`` (rounded to nearest), γ_k = e^{kl} - 1 with
l the faithful step of ``accumulate``, s(n) = :func:`iceform.arithmetic.sum_steps`.

* **Linear map** y = W x + b. Reading moves the result by |W - Ŵ||x̂| + |W||x - x̂| + |b - b̂|, adding
  n products and b by γ_{s(n+1)+1} (|Ŵ||x̂| + |b̂|).
* **Sum** y = Σ x_i: Σ|x_i - x̂_i| + γ_{s(n)} Σ|x̂_i|.
* **RMSNorm** y = w x / r, r = sqrt(mean(x^2) + ε). All terms of r^2 are positive: its factor is
  within s(n) + 4 steps; the square root halves it and costs ``root_ulps``; two products follow, and
  maybe a rounding of x/r to ``dtype`` before the product with w. Reading x̂ moves r by at most
  rms(x - x̂) (the triangle inequality).
* **LayerNorm** y = w (x - μ)/r + b, r = sqrt(var + ε). The computed mean is off by
  e = γ_{s(n)+2} mean|x̂|, x - μ by e + U(|x - μ| + e), and mean((x - μ - e)^2) = var + e^2
  exactly: r^2 has its factor of s(n) + 6 steps and the term e^2. That is for kernels that subtract
  the mean first (``moments=False``). Those that form mean(x^2) - μ^2 lose γ_{s(n)+6} (mean(x^2) +
  μ^2) more, absolutely (``moments=True``). Welford's recurrence lies between the two in practice;
  only these two are proven.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic import compounded, log_steps, sum_steps
from iceform.errors import BoundError, DtypeError, ShapeError
from iceform.tolerances.inputs import check_finite, rounded, scale_of
from iceform.tolerances.kind import Kind
from iceform.tolerances.theorem import Norms, bound_from_norms
from iceform.validation import check_positive, check_size

# Every bound below is a short float64 computation on sums of at most 2^24 terms: 2^-26 covers it.
_OWN = 1 + 2.0**-26
_MOST = 1 << 24


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
        Further keywords of :func:`iceform.tolerance`, and ``device``: where the kernel runs.
    """
    stated = Kind.of(dtype, accumulate, **kind)
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


def _checked(
    x: Tensor, name: str, dtype: torch.dtype, length: int | None = None
) -> tuple[Tensor, Tensor]:
    """X and x̂ in float64; a vector of that length where one is given."""
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
    return x.double(), rounded(x, Kind.of(dtype, _at_least(dtype)).low)


def _at_least(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _finished(kind: Kind, size: Tensor, error: Tensor, operations: int) -> Tensor:
    """Underflow and the rounding of the output, added."""
    error = (error + operations * kind.underflow) * _OWN
    error = error + kind.output_unit * (size + error) * _OWN + kind.output_underflow
    return torch.where(error.isnan(), math.inf, error)


@torch.no_grad()
def total(
    x: Float[Tensor, "*batch n"],
    *,
    dtype: torch.dtype,
    accumulate: torch.dtype = torch.float32,
    output: torch.dtype | None = None,
) -> Float[Tensor, "*batch"]:
    """Bound of a sum over the last axis, in any order."""
    kind = Kind.of(dtype, accumulate, output=output)
    exact, read = _checked(x, "x", dtype)
    moved = (exact - read).abs().sum(-1)
    adding = compounded(sum_steps(x.shape[-1]), kind.wide.faithful) * read.abs().sum(-1)
    value = exact.sum(-1).abs() + (1 - 1 / _OWN) * exact.abs().sum(-1)
    return _finished(kind, value, moved + adding, 2 * x.shape[-1])


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
    """Bound of `torch.nn.functional.linear`."""
    exact, read = _checked(x, "x", dtype)
    matrix, matrix_read = _checked(weight, "weight", dtype)
    if weight.ndim != 2 or x.shape[-1] != weight.shape[-1]:
        raise ShapeError(
            f"x is {tuple(x.shape)}, weight {tuple(weight.shape)}: make them (.., n), (m, n)"
        )
    kind = Kind.of(dtype, accumulate, output=output, split=split, device=x.device)
    size = read.abs() @ matrix_read.abs().mT
    moved = read.abs() @ (matrix - matrix_read).abs().mT + (exact - read).abs() @ matrix.abs().mT
    value = exact @ matrix.mT
    if bias is not None:
        added, added_read = _checked(bias, "bias", dtype, len(weight))
        size, moved = size + added_read.abs(), moved + (added - added_read).abs()
        value = value + added
    # As many sums as a logit has, but no scale: at most its steps.
    steps = kind.logit_steps(x.shape[-1] + 1)
    underflow = 2 * x.shape[-1] + 8 + math.ceil(float(read.abs().sum(-1).amax()))
    underflow += math.ceil(float(matrix_read.abs().sum(-1).amax()))
    error = moved + compounded(steps, kind.wide.faithful) * size
    return _finished(kind, value.abs() + (1 - 1 / _OWN) * size, error, underflow)


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
    """Bound of RMSNorm, with or without a rounding to ``dtype`` before the weight."""
    return _norm(x, weight, None, eps, Kind.of(dtype, accumulate, output=output), root_ulps)


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
    """Bound of LayerNorm; ``moments``: the variance is mean(x^2) - mean(x)^2."""
    kind = Kind.of(dtype, accumulate, output=output)
    return _norm(x, weight, bias, eps, kind, root_ulps, centred=True, moments=moments)


def _norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    kind: Kind,
    root_ulps: float,
    centred: bool = False,
    moments: bool = False,
) -> Tensor:
    eps = check_positive("eps", eps)
    exact, read = _checked(x, "x", kind.dtype)
    n, unit = x.shape[-1], kind.wide.faithful
    (gain, gain_read), (shift, shift_read) = (
        (torch.full_like(exact[..., :1], fill),) * 2 if given is None
        else _checked(given, name, kind.dtype, n)
        for name, given, fill in (("weight", weight, 1.0), ("bias", bias, 0.0))
    )  # fmt: skip
    mean = exact.mean(-1, keepdim=True) * float(centred)
    away = (exact - mean).abs()
    square = (exact - mean).square().mean(-1, keepdim=True)
    root = (square + eps).sqrt()
    # x - μ: what reading and the computed mean move it by.
    moved = (exact - read).abs()
    lost = compounded(sum_steps(n) + 2, unit) * read.abs().mean(-1, keepdim=True) * centred
    lost = lost + moved.mean(-1, keepdim=True) * centred
    off = moved + lost + unit * (away + lost + moved) * centred
    # r: reading moves it by rms(moved) twice over, then the term e^2, then a factor.
    slip = moved.square().mean(-1, keepdim=True).sqrt() * (1 + centred) + lost
    absolute = torch.zeros_like(square)
    steps = sum_steps(n) + 6
    if moments:
        absolute = compounded(steps, unit) * (read.square().mean(-1, keepdim=True) + mean.square())
    # The square root of a sum of squares, eps one of them, moves by no more than its terms do.
    low = torch.maximum((root - slip).clamp(min=0.0).square(), torch.full_like(root, eps))
    low = low * math.exp(-steps * log_steps(unit)) - absolute
    high = (root + slip).square() * (1 + compounded(steps, unit)) + absolute
    side = torch.maximum(root / low.clamp(min=0.0).sqrt() - 1, 1 - root / high.sqrt())
    spare = math.expm1(-math.log1p(-min(0.5, root_ulps * unit)) + 4 * log_steps(unit))
    relative = (1 + side) * (1 + spare) * (1 + _rounding(kind)) - 1
    size = away / root
    error = size * relative + off / root * (1 + relative)
    error = gain_read.abs() * error + (gain - gain_read).abs() * size + (shift - shift_read).abs()
    value = gain.abs() * size + shift.abs()
    error = error + unit * (value + error)
    return _finished(
        kind, (gain * (exact - mean) / root + shift).abs() + (1 - 1 / _OWN) * value, error, 8
    )


def _rounding(kind: Kind) -> float:
    """Of x/r to dtype before the weight; covers kernels without it."""
    return kind.low.u if kind.low.u > kind.wide.u else 0.0
