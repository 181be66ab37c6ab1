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

**Theorem.** Let c = :meth:`Kind.logit_steps`, a = :meth:`Kind.argument_steps`, R the number of
rescalings, N and D the steps of numerator and denominator, γ_k = e^{kl} - 1, and

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
(:mod:`iceform.tolerances.kind` counts them; products of rescalings telescope). Exponentials add X
to the logarithm. So the weight that the kernel uses for key j, the factor of every rescaling it
goes through included and relative to its own reference, is w̃_j = e^{±τ_j} w_j times one constant,
plus at most λ. (ii) *Numerator and denominator* share w̃_j, errors of rescaling factors included. What
they do not share is rounding: the kernel forms Σ w̃_j v̂_j (1 + θ_j) and Σ w̃_j (1 + φ_j) with
|θ_j| <= θ + π-part and e^{-d} <= 1 + φ_j <= e^d. (iii) *Quotient.* Since Σ w_j (v_j - o) = 0,

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
underflow, whatever the weights: |ô - o| <= max v - min v + (e^{Nl + d} (1 + u_p) - 1) max|v̂| + ....
The smaller one counts: where the logits' own errors reach 1, no weight is known any more, and the
bound is the spread of the values. Where U|m| reaches 1 too, a fused argument of the exponential may
overflow, and the bound is infinite: no such kernel is safe there.

**How it is computed.** In float64, with P-weighted sums of v, |v̂|, |v - c̄| and ‖k̂‖|v - c̄| as one
matrix product; c̄ is the mean value. float64 itself is off: its logits by
x = 4(d + 16) 2^-53 (|σ|‖q‖‖k‖ + |b| + |m|), hence p and every sum of non-negative terms by a factor
e^y, y = 2x + 8(n + d + 32) 2^-53, and everything is multiplied by that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic import log_steps
from iceform.errors import BoundError
from iceform.tolerances.inputs import Chunk, Problem, problem_of, rounded
from iceform.tolerances.kind import Kind

__all__ = ["Norms", "Sums", "bound", "bound_from_norms", "evaluated", "tolerance"]

_U64 = 2.0**-53
# A cast from float64 may pass through float32: a rounding to nearest of 24 bits comes first.
_CASTS = 1 + 2.0**-11
_LANES = 8  # float64 in a vector: products with a multiple of it are faster


def tolerance(
    q: Float[Tensor, "*batch queries dim"],
    k: Float[Tensor, "*batch_k keys dim"],
    v: Float[Tensor, "*batch_k keys values"],
    *,
    dtype: torch.dtype,
    accumulate: torch.dtype = torch.float32,
    scale: float | None = None,
    mask: Tensor | None = None,
    causal: bool | str = False,
    exp_ulps: float | None = None,
    rescale_ulps: float = 2.0,
    online: bool = True,
    block: int = 1,
    probabilities: torch.dtype | None = None,
    output: torch.dtype | None = None,
    split: bool | None = None,
) -> Float[Tensor, "*batch queries values"]:
    r"""A proven bound of \|kernel - exact softmax attention\| for these inputs, element by element.

    It holds for every correct kernel of the stated kind: any order of sums, any block size, any
    order of blocks, fused multiply-adds or not, rounding to nearest or towards zero.

    Parameters
    ----------
    q, k, v
        As `scaled_dot_product_attention` takes them, in any floating dtype; query heads may be a
        multiple of key-value heads. Exact attention is that of these tensors; where they are not
        numbers of ``dtype``, the kernel's rounding of them counts.
    dtype
        What the kernel reads: float64, float32, bfloat16, float16, float8_e4m3fn or float8_e5m2.
    accumulate
        What it adds and multiplies in.
    scale
        Of the logits; 1/sqrt(dim) by default.
    mask
        Boolean (True: the key is seen) or added to logits (-inf: hidden); broadcasts.
    causal
        True or "upper_left": query i sees keys up to i, as PyTorch has it; "lower_right": the last
        query sees all keys.
    exp_ulps
        Error of its exponential in ulps of ``accumulate``. By default what PyTorch's own kernels
        need on the device of q: 2 on CUDA; 20 on CPU for float32, 1024 for narrower dtypes.
    rescale_ulps
        The same for the factors by which running sums are rescaled.
    online
        Blocks of keys with a running maximum; False: a row's softmax is taken at once.
    block
        Keys in a block, at least. 1 covers every size; a kernel's own size makes the bound tighter.
    probabilities
        Rounded to this before the second product; ``dtype`` by default, which covers kernels that
        keep them in ``accumulate``. Pass ``accumulate`` for those alone.
    output
        Dtype of the result; ``dtype`` by default.
    split
        float32 products by three tf32 products, as PyTorch's memory-efficient kernel forms them;
        by default for float32 on CUDA.

    Returns
    -------
    Tensor
        float64, of the output's shape. Rows that see no key are zero: PyTorch and flash kernels
        return zeros for them, and this says that they must.

    Examples
    --------
    >>> import torch, iceform as ice
    >>> q, k, v = (torch.ones(1, 2, 8, 16, dtype=torch.bfloat16) for _ in range(3))
    >>> ice.tolerance(q, k, v, dtype=torch.bfloat16).shape
    torch.Size([1, 2, 8, 16])
    """
    problem = problem_of(q, k, v, scale=scale, mask=mask, causal=causal)
    kind = Kind.of(
        dtype, accumulate, device=q.device, probabilities=probabilities, output=output,
        exp_ulps=exp_ulps, rescale_ulps=rescale_ulps, online=online, block=block, split=split,
    )  # fmt: skip
    return bound(problem, kind)


@torch.no_grad()
def bound(problem: Problem, kind: Kind) -> Tensor:
    """The theorem, chunk by chunk."""
    read = _Read.of(problem, kind)
    out, scratch = problem.output(), problem.scratch()
    for chunk in problem.chunks():
        row = _row(problem, kind, read, chunk, scratch)
        chunk.put(out, row.bound(kind))
    return problem.shaped(out)


@torch.no_grad()
def evaluated(problem: Problem, kind: Kind, own: Kind) -> tuple[Tensor, Tensor, Tensor]:
    """In one walk: the bound, attention in float64, and that one's bound, its kind being ``own``.

    Both kinds must read the inputs as they are.
    """
    read = _Read.of(problem, kind)
    allowed, value, error = problem.output(), problem.output(), problem.output()
    scratch = problem.scratch()
    for chunk in problem.chunks():
        row = _row(problem, kind, read, chunk, scratch)
        for into, part in (
            (allowed, row.bound(kind)),
            (value, row.value),
            (error, row.bound(own)),
        ):
            chunk.put(into, part)
    return problem.shaped(allowed), problem.shaped(value), problem.shaped(error)


@dataclass(frozen=True, eq=False)
class _Read:
    """What all queries of a head share: keys and values as read, norms, the columns of sums."""

    k: Tensor  # (heads, keys, dim), float64, exact
    norms: Tensor  # ‖k̂_j‖ (heads, keys)
    moved: Tensor  # ‖k_j - k̂_j‖
    columns: Tensor  # (heads, keys, columns): see `_sums`
    centre: Tensor  # c̄ (heads, 1, values)
    largest: Tensor  # max|v̂| (heads, 1, values)
    total: Tensor  # Σ|v̂|
    spread: Tensor  # max v - min v
    values: int
    moves: bool  # whether k or v is not what is read

    @classmethod
    def of(cls, problem: Problem, kind: Kind) -> _Read:
        hidden = problem.hidden_keys()[..., None]
        k, v = (x.double().masked_fill(hidden, 0.0) for x in (problem.k, problem.v))
        k_read, v_read = rounded(k, kind.low), rounded(v, kind.low)
        norms, moved = _norm(k_read), _norm(k - k_read) * _CASTS
        centre = v.mean(1, keepdim=True)
        away, size = (v - centre).abs(), v_read.abs()
        columns = [v, size, away, norms[..., None] * away, norms[..., None]]
        moves = bool(moved.any()) or bool((v != v_read).any())
        if moves:
            columns += [(v - v_read).abs() * _CASTS, moved[..., None] * away, moved[..., None]]
        width = sum(column.shape[-1] for column in columns)
        columns.append(v.new_zeros(*v.shape[:2], -width % _LANES))
        both = torch.stack([v, v_read])
        low = both.masked_fill(hidden, math.inf).amin(2, keepdim=True).amin(0)
        high = both.masked_fill(hidden, -math.inf).amax(2, keepdim=True).amax(0)
        return cls(
            k=k,
            norms=norms,
            moved=moved,
            columns=torch.cat(columns, -1),
            centre=centre,
            largest=size.amax(1, keepdim=True),
            total=size.sum(1, keepdim=True),
            spread=(high - low).clamp(min=0.0),
            values=v.shape[-1],
            moves=moves,
        )


def _norm(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return size


@dataclass(frozen=True, eq=False)
class Norms:
    """Sizes of a row: (heads, rows, 1) tensors."""

    present: Tensor  # n
    keys: int
    dim: int
    scale: float  # |σ|
    q: Tensor  # ‖q̂‖
    q_exact: Tensor  # ‖q‖
    q_moved: Tensor  # ‖q - q̂‖
    k: Tensor  # largest ‖k̂_j‖
    k_moved: Tensor  # largest ‖k_j - k̂_j‖
    bias: Tensor  # largest |b_j|
    top: Tensor  # |m|


@dataclass(frozen=True, eq=False)
class Sums:
    """P-weighted sums of a row: (heads, rows, values) tensors, and (heads, rows, 1) ones."""

    output: Tensor  # |o|
    size: Tensor  # Σ p |v̂|
    moved: Tensor  # Σ p |v - v̂|
    away: Tensor  # Σ p |v - c̄| + |o - c̄|
    k_away: Tensor  # Σ p ‖k̂‖ (|v - c̄| + |o - c̄|)
    moved_away: Tensor  # Σ p ‖k - k̂‖ (|v - c̄| + |o - c̄|)
    bias_away: Tensor  # Σ p |b| (|v - c̄| + |o - c̄|)
    k: Tensor  # Σ p ‖k̂‖
    k_moved: Tensor  # Σ p ‖k - k̂‖
    bias: Tensor  # Σ p |b|
    largest: Tensor  # max|v̂|
    total: Tensor  # Σ |v̂|
    spread: Tensor  # max v - min v


@dataclass(frozen=True, eq=False)
class _Row:
    """What the theorem needs of a chunk's queries."""

    norms: Norms
    sums: Sums
    value: Tensor  # o, in float64; zero for queries that see nothing
    empty: Tensor
    own: Tensor  # of float64

    def bound(self, kind: Kind) -> Tensor:
        whole = _rounded_bound(kind, self.norms, self.sums) * torch.exp(self.own)
        return whole.masked_fill(self.empty, 0.0)


def _row(problem: Problem, kind: Kind, read: _Read, chunk: Chunk, scratch: Tensor) -> _Row:
    q = chunk.of(problem.q).double()
    q_read = rounded(q, kind.low)
    allowed, bias = problem.allowed(chunk), problem.bias(chunk)
    shape = (*q.shape[:-1], problem.keys)
    logits = scratch[: math.prod(shape)].view(shape)
    torch.bmm(q * problem.scale, read.k[chunk.heads].mT, out=logits)
    if bias is not None:
        logits += bias
    if allowed is None:
        present = torch.full_like(q[..., :1], problem.keys)
    else:
        present = allowed.sum(-1, keepdim=True).double().expand_as(q[..., :1])
        logits.masked_fill_(~allowed, -math.inf)
    top = logits.amax(-1, keepdim=True)
    empty = top == -math.inf
    top = torch.where(empty, 0.0, top)
    norms = Norms(
        present=present.clamp(min=1),
        keys=problem.keys,
        dim=problem.dim,
        scale=abs(problem.scale),
        q=_norm(q_read)[..., None],
        q_exact=_norm(q)[..., None],
        q_moved=_norm(q - q_read)[..., None] * _CASTS,
        k=read.norms[chunk.heads].amax(-1)[:, None, None],
        k_moved=read.moved[chunk.heads].amax(-1)[:, None, None],
        bias=_largest(bias, allowed, top),
        top=top.abs(),
    )
    _check_range(kind, norms, read.largest[chunk.heads])
    own = _own_error(norms)
    value, sums = _sums(read, chunk, logits.sub_(top).exp_(), bias, own)
    return _Row(norms, sums, value, empty, own)


def _largest(bias: Tensor | None, allowed: Tensor | None, like: Tensor) -> Tensor:
    if bias is None:
        return torch.zeros_like(like)
    seen = bias if allowed is None else bias * allowed
    return seen.abs().amax(-1, keepdim=True)


def _check_range(kind: Kind, norms: Norms, largest: Tensor) -> None:
    """No overflow on the way: unscaled and scaled logits, and unnormalised sums of values."""
    limit = kind.wide.largest / 4
    logit = float((norms.q * norms.k * max(1.0, norms.scale) + norms.bias).amax())
    value = float(norms.present.amax() * largest.amax())
    for what, reached in (("logits", logit), ("sums of values", value)):
        if not reached <= limit:
            raise BoundError(
                f"{what} may reach {reached:.3g}, and {kind.wide.name} ends at "
                f"{kind.wide.largest:.3g}: no kernel of this kind is safe on these inputs; scale "
                "them down or accumulate in a wider dtype"
            )


def _own_error(norms: Norms) -> Tensor:
    """What float64 may be off by here, in the logarithm of any sum of non-negative terms."""
    logit = norms.scale * norms.q_exact * (norms.k + norms.k_moved) + norms.bias + norms.top
    steps = 4 * (norms.dim + 16) * logit
    return 2 * _U64 * (steps + 4 * (norms.keys + norms.dim + 32))


def _sums(
    read: _Read, chunk: Chunk, weights: Tensor, bias: Tensor | None, own: Tensor
) -> tuple[Tensor, Sums]:
    total = weights.sum(-1, keepdim=True).clamp(min=1.0)
    found = torch.bmm(weights, read.columns[chunk.heads]) / total
    d = read.values
    output, size, away, k_away = found[..., : 4 * d].split(d, -1)
    k = found[..., 4 * d : 4 * d + 1]
    moved = moved_away = torch.zeros_like(size)
    k_moved = torch.zeros_like(k)
    if read.moves:
        moved, moved_away = found[..., 4 * d + 1 : 6 * d + 1].split(d, -1)
        k_moved = found[..., 6 * d + 1 : 6 * d + 2]
    centre = read.centre[chunk.heads]
    # The output is a sum of terms of both signs: its own error is absolute.
    unsure = torch.expm1(own) * (size + moved)
    off = (output - centre).abs() + unsure + 2 * _U64 * centre.abs()
    bias_away = bias_mean = torch.zeros_like(k)
    if bias is not None:
        weighted = weights.mul_(bias.abs())
        bias_mean = weighted.sum(-1, keepdim=True) / total
        columns = read.columns[chunk.heads, :, 2 * d : 3 * d]
        bias_away = torch.bmm(weighted, columns) / total + off * bias_mean
    return output, Sums(
        output=output.abs() + unsure,
        size=size,
        moved=moved,
        away=away + off,
        k_away=k_away + off * k,
        moved_away=moved_away + off * k_moved,
        bias_away=bias_away,
        k=k,
        k_moved=k_moved,
        bias=bias_mean,
        largest=read.largest[chunk.heads],
        total=read.total[chunk.heads],
        spread=read.spread[chunk.heads],
    )


def _rounded_bound(kind: Kind, norms: Norms, sums: Sums) -> Tensor:
    """The theorem: E, then the rounding of the output."""
    before = _bound_before_rounding(kind, norms, sums)
    after = before + kind.output_unit * (sums.output + before) + kind.output_underflow
    return torch.where(after.isnan(), math.inf, after)


def _bound_before_rounding(kind: Kind, norms: Norms, sums: Sums) -> Tensor:
    n, keys, tiny = norms.present, norms.keys, kind.underflow
    # (i) one weight: τ_j = per_k ‖k̂_j‖ + per_moved ‖k_j - k̂_j‖ + per_bias |b_j| + t
    per_bias = torch.expm1(
        torch.as_tensor((kind.logit_steps(norms.dim) + kind.argument_steps) * kind.step)
    ).to(n)
    argument = math.expm1(kind.argument_steps * kind.step)
    per_k = norms.scale * (per_bias * norms.q + norms.q_moved)
    per_moved = norms.scale * norms.q_exact
    others = per_k * norms.k + per_moved * norms.k_moved + per_bias * norms.bias
    reference = argument * (norms.top + others + n.log() + 1)
    touched = 2 * norms.dim + 16 + math.sqrt(norms.dim) * (norms.q + norms.k)
    zeta = 4 * tiny * max(1.0, norms.scale) * touched
    t = reference + zeta + kind.exp_logs(n, keys)
    most = others + t
    mean = per_k * sums.k + per_moved * sums.k_moved + per_bias * sums.bias + t
    # (ii) what numerator and denominator do not share
    numerator = kind.numerator_steps(n, keys) * kind.step
    denominator = kind.denominator_steps(n, keys) * kind.step + reference * kind.online
    theta = torch.expm1(numerator)
    coarse = kind.probability_unit * sums.size + kind.probability_underflow * sums.total
    coarse = torch.minimum(coarse, sums.size)
    # (iii) the quotient, (iv) underflow
    moving = (
        per_k * sums.k_away
        + per_moved * sums.moved_away
        + per_bias * sums.bias_away
        + t * sums.away
    )
    sharing = sums.moved + theta * sums.size + (1 + theta) * coarse
    sharing = sharing + torch.expm1(denominator) * sums.output
    lost = tiny * (2 * n + kind.rescalings(n, keys) + 8) * torch.exp(2 * most + denominator)
    lost_v = lost * (1 + theta) * (1 + 2 * sums.largest)
    kappa = torch.exp(-denominator - mean) - lost
    growth = torch.expm1(most) / most
    first = (growth * moving + torch.exp(most) * sharing + lost_v) / kappa
    first = torch.where((kappa > 0) & ~first.isnan(), first, math.inf)
    return torch.minimum(first, _hull(kind, norms, sums, t, numerator, denominator))


def _hull(
    kind: Kind, norms: Norms, sums: Sums, t: Tensor, numerator: Tensor, denominator: Tensor
) -> Tensor:
    """The second bound: weights do not matter, only that they are weights."""
    n, tiny = norms.present, kind.underflow
    lost = tiny * (2 * n + kind.rescalings(n, norms.keys) + 8) * torch.exp(2 * t + denominator)
    kappa = torch.exp(-denominator - t) - lost
    stray = torch.expm1(numerator + denominator - log_steps(-kind.probability_unit))
    coarse = torch.minimum(kind.probability_underflow * sums.total, sums.largest)
    lost_v = (coarse + lost * (1 + 2 * sums.largest)) * torch.exp(numerator) / kappa
    hull = sums.spread + stray * sums.largest + lost_v
    return torch.where((kappa > 0) & ~hull.isnan(), hull, math.inf)


def bound_from_norms(kind: Kind, norms: Norms, largest: Tensor) -> Tensor:
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
    _check_range(kind, norms, largest)
    return _rounded_bound(kind, norms, sums) * torch.exp(_own_error(norms))
