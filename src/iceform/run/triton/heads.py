"""``attend``: softmax(s q k' + m) v for every head, from tokens wherever they lie in memory.

A program has the queries of one head and walks along the keys; weights are relative to the largest
logit so far. Products are of full precision, not of tensor cores.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from iceform.run.triton.support import LANES

# Queries of a program, which are its keys at a time, and its warps for every 32 features.
_ROWS = {torch.float32: 32, torch.float64: 64}
_WARPS = {torch.float32: 1, torch.float64: 4}


@triton.jit  # type: ignore[untyped-decorator]
def _heads_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, mask_ptr, out_ptr, heads, queries, keys, dim, values,
    q_batch, q_head, q_token, q_unit, k_batch, k_head, k_token, k_unit,
    v_batch, v_head, v_token, v_unit, m_batch, m_head, m_token, m_unit,
    o_batch, o_head, o_token, o_unit,
    SCALE: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, DOUBLE: tl.constexpr,
    DIM: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    one = tl.program_id(1).to(tl.int64)
    batch, head = one // heads, one % heads
    kind = tl.float64 if DOUBLE else tl.float32
    at_m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at_d, at_v = tl.arange(0, DIM), tl.arange(0, VALUES)
    q_here = q_ptr + batch * q_batch + head * q_head
    there = (at_m < queries)[:, None] & (at_d < dim)[None, :]
    q = tl.load(q_here + at_m[:, None] * q_token + at_d[None, :] * q_unit, mask=there, other=0.0)
    q = q * SCALE
    top = tl.full((ROWS,), float("-inf"), kind)
    mass, total = tl.zeros((ROWS,), kind), tl.zeros((ROWS, VALUES), kind)
    start = 0
    while start < keys:
        at_n = start + tl.arange(0, KEYS)
        inside = at_n < keys
        k_here = k_ptr + batch * k_batch + head * k_head
        held = (at_d < dim)[:, None] & inside[None, :]
        k = tl.load(k_here + at_n[None, :] * k_token + at_d[:, None] * k_unit, mask=held, other=0.0)
        v_here = v_ptr + batch * v_batch + head * v_head
        kept_v = inside[:, None] & (at_v < values)[None, :]
        v = tl.load(
            v_here + at_n[:, None] * v_token + at_v[None, :] * v_unit, mask=kept_v, other=0.0
        )
        logits = tl.dot(q, k, input_precision="ieee", out_dtype=kind)
        allowed = inside[None, :] & (at_m < queries)[:, None]
        if MASKED:
            m_here = mask_ptr + batch * m_batch + head * m_head
            logits += tl.load(m_here + at_m[:, None] * m_token + at_n[None, :] * m_unit,
                              mask=allowed, other=0.0)  # fmt: skip
        if CAUSAL:
            allowed = allowed & (at_n[None, :] <= at_m[:, None])
        logits = tl.where(allowed, logits, float("-inf"))
        larger = tl.maximum(top, tl.max(logits, 1))
        level = tl.where(larger == float("-inf"), 0.0, larger)  # nothing is allowed yet
        kept, weight = tl.exp(top - level), tl.exp(logits - level[:, None])
        mass = mass * kept + tl.sum(weight, 1)
        total = total * kept[:, None] + tl.dot(weight, v, input_precision="ieee", out_dtype=kind)
        top = larger
        start += KEYS
    o_here = out_ptr + batch * o_batch + head * o_head
    tl.store(o_here + at_m[:, None] * o_token + at_v[None, :] * o_unit, total / mass[:, None],
             mask=(at_m < queries)[:, None] & (at_v < values)[None, :])  # fmt: skip


def can_attend(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether heads of these sizes are held at once: four axes, keys and values not too wide."""
    narrow = max(q.shape[-1], v.shape[-1]) <= LANES
    lead = q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    return q.ndim == 4 and lead and narrow


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, *, causal: bool
) -> Tensor:
    """The heads' outputs, shape (batch, heads, queries, values), laid out as the queries are."""
    batch, heads, queries, dim = q.shape
    keys, values = v.shape[-2:]
    order = sorted(range(3), key=q.stride, reverse=True)
    shape = [(batch, heads, queries)[i] for i in order]
    out = q.new_empty(*shape, values).permute(*(order.index(i) for i in range(3)), 3)
    given = q if mask is None else mask.expand(batch, heads, queries, keys)
    rows, many = (min(_ROWS[q.dtype], max(16, triton.next_power_of_2(n))) for n in (queries, keys))
    wide, wider = (max(16, triton.next_power_of_2(n)) for n in (dim, values))
    _heads_kernel[(triton.cdiv(queries, rows), batch * heads)](
        q, k, v, given, out, heads, queries, keys, dim, values,
        *q.stride(), *k.stride(), *v.stride(), *given.stride(), *out.stride(),
        SCALE=scale, MASKED=mask is not None, CAUSAL=causal, DOUBLE=q.dtype == torch.float64,
        DIM=wide, VALUES=wider, ROWS=rows, KEYS=many,
        num_warps=min(4, _WARPS[q.dtype] * max(1, max(wide, wider) // 32)),
    )  # fmt: skip
    return out
