"""Attention of small sequences as one kernel each way: a program is one head of one sample.

Cuts a dozen launches and every copy of the plain version, which stays the definition
(:func:`iceform.experiments.networks.attend`) and what the tests compare with. Products are IEEE
float32. Gradients of the constant tokens are written per sample and summed afterwards, so that
results do not depend on the order in which programs finish.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["MOST_TOKENS", "MOST_WIDTH", "attend"]

MOST_TOKENS = 128  # of each kind: more do not fit a program's registers
MOST_WIDTH = 64  # of a head
_LEAST = 16  # smallest side of a tile that Triton multiplies


@triton.jit  # type: ignore[untyped-decorator]
def _tile(base, row_stride, rows, width, R: tl.constexpr, D: tl.constexpr):  # type: ignore[no-untyped-def]
    """Addresses and mask of (rows, width) within an (R, D) tile."""
    r = tl.arange(0, R)[:, None]
    d = tl.arange(0, D)[None, :]
    return base + r * row_stride + d, (r < rows) & (d < width)


@triton.jit  # type: ignore[untyped-decorator]
def _weights(q, k, ck, scale, own, constant, N: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Softmax over both kinds of keys: (R, N) and (R, C)."""
    s_own = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    s_constant = tl.dot(q, tl.trans(ck), input_precision="ieee") * scale
    s_own = tl.where(tl.arange(0, N)[None, :] < own, s_own, float("-inf"))
    s_constant = tl.where(tl.arange(0, C)[None, :] < constant, s_constant, float("-inf"))
    top = tl.maximum(tl.max(s_own, 1), tl.max(s_constant, 1))[:, None]
    e_own = tl.exp(s_own - top)
    e_constant = tl.exp(s_constant - top)
    total = (tl.sum(e_own, 1) + tl.sum(e_constant, 1))[:, None]
    return e_own / total, e_constant / total


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, ck_ptr, cv_ptr, out_ptr,
    q_m, q_r, k_m, k_r, v_m, v_r, ck_m, ck_r, cv_m, cv_r,
    batch, read, own, constant, each, full, scale,
    R: tl.constexpr, N: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) // batch
    b = tl.program_id(0) % batch
    column = tl.program_id(1) * each
    at, ok = _tile(q_ptr + m * q_m + b * read * q_r + column, q_r, read, each, R, D)
    q = tl.load(at, ok, 0.0)
    at, ok = _tile(k_ptr + m * k_m + b * own * k_r + column, k_r, own, each, N, D)
    k = tl.load(at, ok, 0.0)
    at, ok = _tile(v_ptr + m * v_m + b * own * v_r + column, v_r, own, each, N, D)
    v = tl.load(at, ok, 0.0)
    at, ok = _tile(ck_ptr + m * ck_m + column, ck_r, constant, each, C, D)
    ck = tl.load(at, ok, 0.0)
    at, ok = _tile(cv_ptr + m * cv_m + column, cv_r, constant, each, C, D)
    cv = tl.load(at, ok, 0.0)
    p_own, p_constant = _weights(q, k, ck, scale, own, constant, N, C)
    out = tl.dot(p_own, v, input_precision="ieee")
    out += tl.dot(p_constant, cv, input_precision="ieee")
    at, ok = _tile(out_ptr + (m * batch + b) * read * full + column, full, read, each, R, D)
    tl.store(at, out, ok)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, ck_ptr, cv_ptr, do_ptr, dq_ptr, dk_ptr, dv_ptr, dck_ptr, dcv_ptr,
    q_m, q_r, k_m, k_r, v_m, v_r, ck_m, ck_r, cv_m, cv_r,
    batch, read, own, constant, each, full, scale,
    R: tl.constexpr, N: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0)
    m = sample // batch
    b = sample % batch
    column = tl.program_id(1) * each
    at, ok = _tile(q_ptr + m * q_m + b * read * q_r + column, q_r, read, each, R, D)
    q = tl.load(at, ok, 0.0)
    at, ok = _tile(k_ptr + m * k_m + b * own * k_r + column, k_r, own, each, N, D)
    k = tl.load(at, ok, 0.0)
    at, ok = _tile(v_ptr + m * v_m + b * own * v_r + column, v_r, own, each, N, D)
    v = tl.load(at, ok, 0.0)
    at, ok = _tile(ck_ptr + m * ck_m + column, ck_r, constant, each, C, D)
    ck = tl.load(at, ok, 0.0)
    at, ok = _tile(cv_ptr + m * cv_m + column, cv_r, constant, each, C, D)
    cv = tl.load(at, ok, 0.0)
    at, ok = _tile(do_ptr + sample * read * full + column, full, read, each, R, D)
    do = tl.load(at, ok, 0.0)
    p_own, p_constant = _weights(q, k, ck, scale, own, constant, N, C)
    # d logits = p (dp - sum p dp), over both kinds.
    dp_own = tl.dot(do, tl.trans(v), input_precision="ieee")
    dp_constant = tl.dot(do, tl.trans(cv), input_precision="ieee")
    mean = (tl.sum(p_own * dp_own, 1) + tl.sum(p_constant * dp_constant, 1))[:, None]
    ds_own = p_own * (dp_own - mean) * scale
    ds_constant = p_constant * (dp_constant - mean) * scale
    dq = tl.dot(ds_own, k, input_precision="ieee")
    dq += tl.dot(ds_constant, ck, input_precision="ieee")
    at, ok = _tile(dq_ptr + sample * read * full + column, full, read, each, R, D)
    tl.store(at, dq, ok)
    at, ok = _tile(dk_ptr + sample * own * full + column, full, own, each, N, D)
    tl.store(at, tl.dot(tl.trans(ds_own), q, input_precision="ieee"), ok)
    at, ok = _tile(dv_ptr + sample * own * full + column, full, own, each, N, D)
    tl.store(at, tl.dot(tl.trans(p_own), do, input_precision="ieee"), ok)
    at, ok = _tile(dck_ptr + sample * constant * full + column, full, constant, each, C, D)
    tl.store(at, tl.dot(tl.trans(ds_constant), q, input_precision="ieee"), ok)
    at, ok = _tile(dcv_ptr + sample * constant * full + column, full, constant, each, C, D)
    tl.store(at, tl.dot(tl.trans(p_constant), do, input_precision="ieee"), ok)


def _tiles(*sizes: int) -> list[int]:
    return [max(_LEAST, triton.next_power_of_2(size)) for size in sizes]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, batch: int, heads: int, *tensors: Tensor) -> Tensor:
        q, k, _, ck, _ = tensors
        m, rows, full = q.shape
        ctx.sizes = (batch, rows // batch, k.shape[1] // batch, ck.shape[1], full // heads, full)
        ctx.save_for_backward(*tensors)
        ctx.heads = heads
        out = q.new_empty(m, rows, full)
        _launch(_forward, ctx, tensors, (out,))
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (d_out,) = upstream
        tensors = ctx.saved_tensors
        batch, _, _, constant, _, full = ctx.sizes
        q, k, v = tensors[:3]
        m = q.shape[0]
        grads = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v)]
        partial = [q.new_empty(m, batch, constant, full) for _ in range(2)]
        _launch(_backward, ctx, tensors, (d_out.contiguous(), *grads, *partial))
        return (None, None, *grads, *(p.sum(1) for p in partial))


def _launch(kernel: Any, ctx: Any, tensors: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    batch, read, own, constant, each, full = ctx.sizes
    strides = [s for t in tensors for s in t.stride()[:2]]
    R, N, C, D = _tiles(read, own, constant, each)
    kernel[(tensors[0].shape[0] * batch, ctx.heads)](
        *tensors, *outputs, *strides, *ctx.sizes, 1 / math.sqrt(each), R=R, N=N, C=C, D=D
    )


def attend(
    query: Tensor, keys: Tensor, values: Tensor, constant_keys: Tensor, constant_values: Tensor,
    *, batch: int, heads: int,
) -> Tensor:  # fmt: skip
    """As :func:`iceform.experiments.networks.attend`, on a GPU."""
    out: Tensor = _Attend.apply(
        batch, heads, query, keys, values, constant_keys, constant_values
    )  # type: ignore[no-untyped-call]
    return out
