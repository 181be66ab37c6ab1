r"""How far a correct attention kernel can be from exact softmax attention.

**What is bounded.** For one query q, keys k_j and values v_j (j = 1 .. n, those that the mask lets
it see), scale σ and additive mask b_j:

.. math:: s_j = σ\, q·k_j + b_j, \quad m = \max_j s_j, \quad w_j = e^{s_j - m}, \quad
          L = Σ_j w_j \ge 1, \quad p_j = w_j / L, \quad o = Σ_j p_j v_j .

**The kernel.** It reads q, k, v rounded to nearest in ``dtype`` (hats; unchanged where they are
numbers of that dtype, subnormals of wide formats maybe as zero), works in ``accumulate`` with the
rounding model of :mod:`iceform.arithmetic.rounding` (U, λ, steps, l), and in some order:

1. forms logits by sums of products in any order, the scale multiplied into q, k, both or the logit;
2. walks over blocks of keys with a running reference, the largest logit seen; takes e^{s - m} with
   m the reference at that time, by exp or by exp2 after a product with log2(e), within
   ``exp_ulps``; multiplies what it has by e^{m_{old} - m_{new}}, within ``rescale_ulps``, when the
   reference moves (e^0 is 1), or merges parts by their log-sum-exps; or (``online=False``)
   takes a whole row at once;
3. adds the exponentials to a denominator as they are, and their products with v, they themselves
   maybe rounded to nearest in ``probabilities`` and maybe divided by the denominator first;
4. divides, and rounds to nearest in ``output``.

**Theorem.** Let c = :meth:`KernelKind.logit_steps`, a = :meth:`KernelKind.argument_steps`, R the
number of rescalings, N and D the steps of numerator and denominator, γ_k = e^{kl} - 1, and

.. math::
   τ_j &= γ_{c+a} (|σ| ‖\hat q‖ ‖\hat k_j‖ + |b_j|)
          + |σ| (‖q - \hat q‖ ‖\hat k_j‖ + ‖q‖ ‖k_j - \hat k_j‖) + t, \\
   t &= γ_a (|m| + τ' + \ln n + 1) + ζ + X, \qquad
   X = l_{exp} + (R + 2)\, l_{rescale}, \\
   θ &= γ_N, \qquad d = D l + [online]\, γ_a (|m| + τ' + \ln n + 1), \qquad
   κ = e^{-d - \bar τ} - Λ,

where τ' is the largest of the other terms of τ_j, :math:`\bar τ = Σ p_j τ_j`, ζ and Λ are what
underflow can do (below), and τ = max τ_j. For every constant c̄, with A = Σ p_j |v̂_j|,

.. math::
   |\hat o - o| \le \frac1κ \Bigl[ \frac{e^{τ}-1}{τ} Σ_j p_j τ_j (|v_j - \bar c| + |o - \bar c|)
     + e^{τ} \bigl( Σ_j p_j |v_j - \hat v_j| + θ A + (1 + θ) π + (e^d - 1) |o| \bigr)
     + Λ_v \Bigr] =: E

before the output is rounded, where π = min(u_p A + λ_p Σ|v̂_j|, A) is the rounding of
probabilities; and |ô - o| + rounding <= E + u_{out}(|o| + E) + λ_{out} after it.

**Proof.** (i) *One weight.* Each product of the logit passes c steps, so the computed logit is off
by γ_c |σ| Σ|q̂||k̂_j| and the like of |b_j|; Cauchy and Schwarz give the norms. Reading q and k
rounded moves it by (q - q̂)·k̂ + q·(k - k̂). The way from there to the exponential is a steps of
|s_j| and of the references between s_j and m, none larger in absolute value than max(|s_j|, |m|)
(:mod:`iceform_tolerance.kind` counts them; products of rescalings telescope). Exponentials add X
to the logarithm. So the weight that the kernel uses for key j, the factor of every rescaling it
goes through included and relative to its own reference, is w̃_j = e^{±τ_j} w_j times one
constant, plus at most λ. (ii) *Numerator and denominator* share w̃_j, errors of rescaling factors
included. What they do not share is rounding: the kernel forms Σ w̃_j v̂_j (1 + θ_j) and
Σ w̃_j (1 + φ_j) with |θ_j| <= θ + π-part and e^{-d} <= 1 + φ_j <= e^d. (iii) *Quotient.*
Since Σ w_j (v_j - o) = 0,

.. math:: Σ \tilde w_j \hat v_j (1+θ_j) - o Σ \tilde w_j (1+φ_j) = Σ (\tilde w_j - w_j)(v_j - o)
   + Σ \tilde w_j (\hat v_j - v_j) + Σ \tilde w_j \hat v_j θ_j - o Σ \tilde w_j φ_j .

Use |w̃_j - w_j| <= w_j (e^{τ_j} - 1) <= w_j τ_j (e^τ - 1)/τ and divide by
Σ w̃_j (1 + φ_j) >= e^{-d} Σ w_j e^{-τ_j} >= L e^{-d - τ̄} (Jensen). A rounding to nearest is never
off by more than the number itself: the second argument of π. Probabilities that were divided first
are L >= 1 times smaller, and λ_p counts L times as much: hence no 1/L on it. (iv) *Underflow* in a
logit: at most 2d + 16 operations of λ each and λ on entries of q and k:
ζ = 4 λ max(1, |σ|) (2d + 16 + sqrt(d) (‖q̂‖ + ‖k̂‖)). In the sums: n exponentials, n products, n
additions, R rescalings, relative to the kernel's reference, which is e^{±τ} of ours:
Λ = λ (2n + R + 8) e^{2τ + d}, and Λ_v = Λ (1 + θ) (1 + 2 max|v̂|). ∎

**The second bound.** ô is also a convex combination of the v̂_j up to (1 + θ_j)/(1 + φ_j) and
underflow, whatever the weights: |ô - o| <= max v - min v + (e^{Nl + d} (1 + u_p) - 1) max|v̂| +
.... The smaller one counts: where the logits' own errors reach 1, no weight is known any more, and
the bound is the spread of the values. Where U|m| reaches 1 too, a fused argument of the exponential
may overflow, and the bound is infinite: no such kernel is safe there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.arithmetic import UNIT, compounded, log_steps
from iceform.errors import BoundError
from iceform_tolerance.kind import KernelKind


@dataclass(frozen=True, eq=False)
class Norms:
    """Sizes of a row: (heads, rows, 1) tensors."""

    present: Tensor  # n; one number on the host where all rows see all keys
    keys: int
    dim: int
    scale: float  # |σ|
    q: Tensor  # ‖q̂‖
    q_exact: Tensor  # ‖q‖
    q_moved: Tensor | float  # ‖q - q̂‖
    k: Tensor  # largest ‖k̂_j‖
    k_moved: Tensor | float  # largest ‖k_j - k̂_j‖
    bias: Tensor | float  # largest |b_j|
    top: Tensor  # |m|


@dataclass(frozen=True, eq=False)
class Sums:
    """p-weighted sums of a row: (heads, rows, values) tensors, and (heads, rows, 1) ones."""

    output: Tensor  # |o|
    size: Tensor  # Σ p |v̂|
    away: Tensor  # Σ p |v - c̄| + |o - c̄|
    k_away: Tensor  # Σ p ‖k̂‖ (|v - c̄| + |o - c̄|)
    k: Tensor  # Σ p ‖k̂‖
    moved: Tensor | None  # Σ p |v - v̂|; None is 0
    moved_away: Tensor | None  # Σ p ‖k - k̂‖ (|v - c̄| + |o - c̄|)
    bias_away: Tensor | None  # Σ p |b| (|v - c̄| + |o - c̄|)
    k_moved: Tensor | float  # Σ p ‖k - k̂‖
    bias: Tensor | float  # Σ p |b|
    largest: Tensor  # max|v̂|
    total: Tensor  # Σ |v̂|
    spread: Tensor  # max v - min v


def _sum(first: Tensor, *more: tuple[Tensor | float, Tensor | float]) -> Tensor:
    """First + Σ factor size; a GPU is not asked to add what is 0."""
    for factor, size in more:
        if isinstance(size, Tensor) or size:
            first = first + size * factor
    return first


def all_keys(keys: int) -> Tensor:
    """The ``present`` of rows that see all keys; what follows from it is found on the host."""
    return torch.tensor(float(max(1, keys)), dtype=torch.float64)


def reached(norms: Norms, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of unscaled and scaled logits, and of unnormalised sums of values."""
    logit = _sum(norms.q * norms.k * max(1.0, norms.scale), (1.0, norms.bias)).amax()
    return logit, norms.present.amax() * largest.amax()


def check_range(kind: KernelKind, logit: float, value: float) -> None:
    """No overflow on the way."""
    limit = kind.wide.largest / 4
    for what, most in (("logits", logit), ("sums of values", value)):
        if not most <= limit:
            raise BoundError(
                f"{what} may reach {most:.3g}, and {kind.wide.name} ends at "
                f"{kind.wide.largest:.3g}: no kernel of this kind is safe on these inputs; scale "
                "them down or accumulate in a wider dtype"
            )


def own_error(norms: Norms) -> Tensor:
    """Error bound of float64 here, in the logarithm of any sum of non-negative terms."""
    longest = _sum(norms.k, (1.0, norms.k_moved))
    logit = _sum(norms.scale * norms.q_exact * longest, (1.0, norms.bias)) + norms.top
    per, constant = own_error_steps(norms.dim, norms.keys)
    return per * logit + constant


def own_error_steps(dim: int, keys: int) -> tuple[float, float]:
    """The two parts of :func:`own_error`: factor of a logit, and what is added."""
    return 8 * UNIT * (dim + 16), 8 * UNIT * (keys + dim + 32)


@dataclass(frozen=True, eq=False)
class _Steps:
    """Rounding of a row's weights and sums, whatever the values."""

    per_k: Tensor  # τ_j = per_k ‖k̂_j‖ + per_moved ‖k_j - k̂_j‖ + per_bias |b_j| + t
    per_moved: Tensor
    per_bias: float
    t: Tensor
    most: Tensor  # the largest τ_j
    numerator: Tensor  # N l
    denominator: Tensor  # d
    count: Tensor  # λ (2n + R + 8)
    lost: Tensor  # Λ

    @classmethod
    def of(cls, kind: KernelKind, norms: Norms) -> _Steps:
        n, keys, tiny = norms.present, norms.keys, kind.underflow
        unit = kind.wide.faithful
        per_bias = compounded(kind.logit_steps(norms.dim) + kind.argument_steps, unit)
        argument = compounded(kind.argument_steps, unit)
        per_k = norms.scale * _sum(per_bias * norms.q, (1.0, norms.q_moved))
        per_moved = norms.scale * norms.q_exact
        others = _sum(per_k * norms.k, (per_moved, norms.k_moved), (per_bias, norms.bias))
        reference = argument * (norms.top + others + n.log() + 1)
        touched = 2 * norms.dim + 16 + math.sqrt(norms.dim) * (norms.q + norms.k)
        zeta = 4 * tiny * max(1.0, norms.scale) * touched
        t = reference + zeta + kind.exp_logs(n, keys)
        denominator = kind.denominator_steps(n, keys) * kind.step + reference * kind.online
        count = tiny * (2 * n + kind.rescalings(n, keys) + 8)
        return cls(
            per_k=per_k,
            per_moved=per_moved,
            per_bias=per_bias,
            t=t,
            most=others + t,
            numerator=kind.numerator_steps(n, keys) * kind.step,
            denominator=denominator,
            count=count,
            lost=count * torch.exp(2 * (others + t) + denominator),
        )


def sums_error(kind: KernelKind, norms: Norms) -> tuple[Tensor, Tensor]:
    r"""How far weighted sums Σ p_j c_j, c_j >= 0, of a kernel of this kind are from exact ones.

    (r, s) with Σ p_j c_j <= e^r (ĉ + λ_p Σ c_j + s max c_j), ĉ being what the kernel returns for
    columns that are numbers of its format, before any rounding of the output: by (i) and (ii) the
    numerator is off by e^{τ + Nl}(1 + 2u_p), probabilities being rounded to either neighbour, and
    by what underflows, the denominator by e^{τ + d} and Λ. Sums of either sign are off by at most
    (e^r - 1) Σ p_j |c_j| + e^r (λ_p Σ |c_j| + s max |c_j|).
    """
    steps = _Steps.of(kind, norms)
    relative = 2 * steps.most + steps.numerator + steps.denominator
    relative = relative + log_steps(2 * kind.probability_unit) + 2 * steps.lost
    return relative, 2 * steps.lost * torch.exp(steps.numerator)


def rounded_bound(kind: KernelKind, norms: Norms, sums: Sums) -> Tensor:
    """The theorem: E, which is linear in the sums, then the rounding of the output.

    :func:`iceform_tolerance.sums.finished` is the same in one kernel.
    """
    # (i) one weight
    s = _Steps.of(kind, norms)
    t = s.t
    mean = _sum(s.per_k * sums.k, (s.per_moved, sums.k_moved), (s.per_bias, sums.bias)) + t
    kappa = torch.exp(-s.denominator - mean) - s.lost
    divided = torch.where(kappa > 0, kappa.reciprocal(), math.inf)
    moving = torch.expm1(s.most) / s.most * divided
    sharing = torch.exp(s.most) * divided
    # (ii) what numerator and denominator do not share
    theta = torch.expm1(s.numerator)
    coarse = kind.probability_unit * sums.size + kind.probability_underflow * sums.total
    coarse = torch.minimum(coarse, sums.size, out=coarse)
    # (iii) the quotient, (iv) underflow
    first = moving * s.per_k * sums.k_away
    for factor, more in (
        (moving * t, sums.away),
        (sharing * theta, sums.size),
        (sharing * (1 + theta), coarse),
        (sharing * torch.expm1(s.denominator), sums.output),
        (s.lost * (1 + theta) * divided, 1 + 2 * sums.largest),
        (moving * s.per_moved, sums.moved_away),
        (moving * s.per_bias, sums.bias_away),
        (sharing, sums.moved),
    ):
        if more is not None:
            first.addcmul_(factor, more)
    # The second bound: weights do not matter, only that they are weights.
    drained = s.count * torch.exp(2 * t + s.denominator)
    kappa = torch.exp(-s.denominator - t) - drained
    spilt = torch.where(kappa > 0, torch.exp(s.numerator) / kappa, math.inf)
    stray = torch.expm1(s.numerator + s.denominator - log_steps(-kind.probability_unit))
    hull = sums.spread + stray * sums.largest
    coarse = torch.minimum(kind.probability_underflow * sums.total, sums.largest)
    hull.addcmul_(spilt, coarse).addcmul_(drained * spilt, 1 + 2 * sums.largest)
    # Where a product is not a number the other bound counts.
    after = torch.fmin(first, hull, out=first).mul_(1 + kind.output_unit)
    after.add_(sums.output, alpha=kind.output_unit).add_(kind.output_underflow)
    return after.nan_to_num_(nan=math.inf, posinf=math.inf)


def bound_from_norms(kind: KernelKind, norms: Norms, largest: Tensor) -> Tensor:
    """The theorem with |v_j - o| <= 2 max|v| and every sum at its largest."""
    one = torch.ones_like(norms.q)
    v, two_v = largest, 2 * largest
    sums = Sums(
        output=v,
        size=v,
        moved=kind.low.u * v + kind.low.rounded_underflow,
        away=two_v,
        k_away=two_v * norms.k,
        moved_away=two_v * norms.k_moved,
        bias_away=two_v * norms.bias,
        k=norms.k * one,
        k_moved=norms.k_moved * one,
        bias=norms.bias * one,
        largest=v,
        total=v * norms.present,
        spread=two_v,
    )
    check_range(kind, *map(float, reached(norms, largest)))
    return rounded_bound(kind, norms, sums) * torch.exp(own_error(norms))
