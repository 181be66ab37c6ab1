r"""The bound of :mod:`iceform_tolerance.theorem` for given inputs, chunk by chunk.

Everything is float64: P-weighted sums of v, |v̂|, |v - c̄| and ‖k̂‖|v - c̄| as one
matrix product; c̄ is the mean value. float64 itself is off: its logits by
x = 4(d + 16) 2^-53 (|σ|‖q‖‖k‖ + |b| + |m|), hence p and every sum of non-negative terms by a factor
e^y, y = 2x + 8(n + d + 32) 2^-53, and everything is multiplied by that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.validation import full_precision
from iceform_tolerance.gpu import supports, walked
from iceform_tolerance.inputs import Chunk, Problem, check_finite, problem_of, rounded
from iceform_tolerance.kind import KernelKind
from iceform_tolerance.reading import CASTS, HeadStatistics, QueryStatistics, RowSums, norm
from iceform_tolerance.theorem import Norms, all_keys, check_range, own_error, reached


@full_precision
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
    """A proven bound of |kernel - exact softmax attention| for these inputs, element by element.

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
        need on the device of q: 2 on CUDA; on CPU 20 for float32, 1024 for narrower dtypes, both in
        float32, and 2 where another dtype is accumulated in.
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
    >>> import iceform_tolerance
    >>> import torch
    >>> q, k, v = (torch.ones(1, 2, 8, 16, dtype=torch.bfloat16) for _ in range(3))
    >>> iceform_tolerance.tolerance(q, k, v, dtype=torch.bfloat16).shape
    torch.Size([1, 2, 8, 16])
    """
    problem = problem_of(q, k, v, scale=scale, mask=mask, causal=causal, unread=True)
    kind = KernelKind.of(
        dtype, accumulate, device=q.device, probabilities=probabilities, output=output,
        exp_ulps=exp_ulps, rescale_ulps=rescale_ulps, online=online, block=block, split=split,
    )  # fmt: skip
    if not supports(problem, kind):
        check_finite(**problem.given)
    return bound(problem, kind)


@torch.no_grad()
def bound(problem: Problem, kind: KernelKind) -> Tensor:
    """The theorem: by one walk on a GPU's matrix units where they are sharp, else in float64."""
    if supports(problem, kind):
        found = walked(problem, kind)
        if found is not None:
            return problem.shaped(found)
    out = problem.output()
    for chunk, row in _rows(problem, kind):
        chunk.put(out, row.bound(kind))
    return problem.shaped(out)


@torch.no_grad()
def evaluated(problem: Problem, kind: KernelKind, own: KernelKind) -> tuple[Tensor, Tensor, Tensor]:
    """In one walk: the bound, attention in float64, and that one's bound, its kind being ``own``.

    Both kinds must read the inputs as they are.
    """
    allowed, value, error = problem.output(), problem.output(), problem.output()
    for chunk, row in _rows(problem, kind):
        for into, part in (
            (allowed, row.bound(kind)),
            (value, row.value),
            (error, row.bound(own)),
        ):
            chunk.put(into, part)
    return problem.shaped(allowed), problem.shaped(value), problem.shaped(error)


def _rows(problem: Problem, kind: KernelKind) -> Iterator[tuple[Chunk, QueryStatistics]]:
    """Chunk by chunk; the host waits for a GPU once they are all on their way."""
    read, scratch, most = HeadStatistics.of(problem, kind), problem.scratch(), []
    for chunk in problem.chunks():
        row = _row(problem, kind, read, chunk, scratch)
        most.append(torch.stack(reached(row.norms, read.largest[chunk.heads])))
        yield chunk, row
    logit, value = torch.stack(most).amax(0).tolist()
    check_range(kind, logit, value)


def _row(
    problem: Problem, kind: KernelKind, read: HeadStatistics, chunk: Chunk, scratch: Tensor
) -> QueryStatistics:
    q = chunk.of(problem.q).double()
    same = problem.q.dtype == kind.dtype
    q_read = q if same else rounded(q, kind.low)
    size = norm(q_read)[..., None]
    allowed, bias = problem.allowed(chunk), problem.bias(chunk)
    present = all_keys(problem.keys)
    if allowed is not None:
        present = allowed.sum(-1, keepdim=True).double().expand_as(q[..., :1]).clamp(min=1)
    logits = problem.logits(chunk, read.k, scratch)
    top = logits.amax(-1, keepdim=True)
    empty = top == -math.inf
    top = torch.where(empty, 0.0, top)
    norms = Norms(
        present=present,
        keys=problem.keys,
        dim=problem.dim,
        scale=abs(problem.scale),
        q=size,
        q_exact=size if same else norm(q)[..., None],
        q_moved=0.0 if same else norm(q - q_read)[..., None] * CASTS,
        k=read.norms[chunk.heads].amax(-1)[:, None, None],
        k_moved=read.moved[chunk.heads].amax(-1)[:, None, None] if read.moves else 0.0,
        bias=0.0 if bias is None else _largest(bias, allowed),
        top=top.abs(),
    )
    own = own_error(norms)
    found = _found(read, chunk, logits.sub_(top).exp_(), bias, own)
    return QueryStatistics(norms, found.sums(read, chunk.heads), found.output, empty, own)


def _largest(bias: Tensor, allowed: Tensor | None) -> Tensor:
    seen = bias if allowed is None else bias * allowed
    return seen.abs().amax(-1, keepdim=True)


def _found(
    read: HeadStatistics, chunk: Chunk, weights: Tensor, bias: Tensor | None, own: Tensor
) -> RowSums:
    total = weights.sum(-1, keepdim=True).clamp(min=1.0)
    found = torch.bmm(weights, chunk.seen(read.columns)) / total
    d = read.values
    output, size, away, k_away = found[..., : 4 * d].split(d, -1)
    more: dict[str, Tensor] = {}
    if read.moves:
        moved, moved_away = found[..., 4 * d + 1 : 6 * d + 1].split(d, -1)
        k_moved = found[..., 6 * d + 1 : 6 * d + 2]
        more |= {"moved": moved, "moved_away": moved_away, "k_moved": k_moved}
    if bias is not None:
        weighted = weights.mul_(bias.abs())
        columns = read.columns[chunk.heads, :, 2 * d : 3 * d]
        more["bias"] = weighted.sum(-1, keepdim=True) / total
        more["bias_away"] = torch.bmm(weighted, columns) / total
    return RowSums(output, size, away, k_away, found[..., 4 * d : 4 * d + 1], own, **more)
