"""Causal attention over short prompts in one Triton kernel, forwards and backwards.

A program holds all of one head of one prompt, so that logits and their softmax never leave the
registers: backwards they are computed again from queries and keys. Needs Triton and a GPU, or its
interpreter.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic.units import next_power_of_two

Asked = Float[Tensor, "n t a"]  # queries, keys and values of all heads, side by side
_TILE = 16  # rows and columns of a product of Triton's at least, and rows of a warp


@triton.jit  # type: ignore[untyped-decorator]
def _load(  # type: ignore[no-untyped-def]
    asked_ptr, part, tokens, heads, HEAD: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One head of a prompt's part of several, zeros outside of it; where it is and what of it."""
    prompt, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at = (prompt.to(tl.int64) * tokens + row)[:, None] * (PARTS * heads * HEAD)
    at += (part * heads + head) * HEAD + column[None, :]
    inside = (row < tokens)[:, None] & (column < HEAD)[None, :]
    return tl.load(asked_ptr + at, mask=inside, other=0.0), at, inside


@triton.jit  # type: ignore[untyped-decorator]
def _shares(query, key, scale, ROWS: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """The causal softmax."""
    row = tl.arange(0, ROWS)
    logits = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
    logits = tl.where(row[None, :] <= row[:, None], logits, float("-inf"))
    grown = tl.exp(logits - tl.max(logits, 1)[:, None])
    return grown / tl.sum(grown, 1)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    asked_ptr, out_ptr, tokens, heads, scale, HEAD: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    query, _, _ = _load(asked_ptr, 0, tokens, heads, HEAD, ROWS, COLUMNS, 3)
    key, _, _ = _load(asked_ptr, 1, tokens, heads, HEAD, ROWS, COLUMNS, 3)
    value, _, _ = _load(asked_ptr, 2, tokens, heads, HEAD, ROWS, COLUMNS, 3)
    _, at, inside = _load(out_ptr, 0, tokens, heads, HEAD, ROWS, COLUMNS, 1)
    shares = _shares(query, key, scale, ROWS, PRECISION)
    tl.store(out_ptr + at, tl.dot(shares, value, input_precision=PRECISION), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    asked_ptr, gradient_ptr, out_ptr, tokens, heads, scale, HEAD: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    query, at_query, inside = _load(asked_ptr, 0, tokens, heads, HEAD, ROWS, COLUMNS, 3)
    key, at_key, _ = _load(asked_ptr, 1, tokens, heads, HEAD, ROWS, COLUMNS, 3)
    value, at_value, _ = _load(asked_ptr, 2, tokens, heads, HEAD, ROWS, COLUMNS, 3)
    gradient, _, _ = _load(gradient_ptr, 0, tokens, heads, HEAD, ROWS, COLUMNS, 1)
    shares = _shares(query, key, scale, ROWS, PRECISION)
    of_value = tl.dot(tl.trans(shares), gradient, input_precision=PRECISION)
    tl.store(out_ptr + at_value, of_value, mask=inside)
    of_shares = tl.dot(gradient, tl.trans(value), input_precision=PRECISION)
    of_logits = shares * (of_shares - tl.sum(shares * of_shares, 1)[:, None]) * scale
    of_query = tl.dot(of_logits, key, input_precision=PRECISION)
    tl.store(out_ptr + at_query, of_query, mask=inside)
    of_key = tl.dot(tl.trans(of_logits), query, input_precision=PRECISION)
    tl.store(out_ptr + at_key, of_key, mask=inside)


def _settings(asked: Tensor, heads: int, tf32: bool) -> dict[str, Any]:
    """What the kernels are compiled for."""
    head = asked.shape[2] // (3 * heads)
    rows = max(_TILE, next_power_of_two(asked.shape[1]))
    columns = max(_TILE, next_power_of_two(head))
    return {
        "HEAD": head, "ROWS": rows, "COLUMNS": columns, "PRECISION": "tf32" if tf32 else "ieee",
        "num_warps": max(1, min(8, rows // _TILE)),
    }  # fmt: skip


@torch.library.custom_op("iceform::short_attention", mutates_args=())
def short_attention(asked: Tensor, heads: int, tf32: bool) -> Tensor:
    """What every token reads, (prompts, tokens, width), of queries, keys and values side by side.

    Parameters
    ----------
    asked
        (prompts, tokens, 3 width): queries of all heads, then keys, then values.
    heads
        How many share the width.
    tf32
        Whether products round their factors to 10 bits.
    """
    asked = asked.contiguous()
    prompts, tokens, wide = asked.shape
    out = asked.new_empty(prompts, tokens, wide // 3)
    settings = _settings(asked, heads, tf32)
    scale = settings["HEAD"] ** -0.5
    _forward[(prompts * heads,)](asked, out, tokens, heads, scale, **settings)
    return out


@short_attention.register_fake
def _(asked: Tensor, heads: int, tf32: bool) -> Tensor:
    return asked.new_empty(asked.shape[0], asked.shape[1], asked.shape[2] // 3)


@torch.library.custom_op("iceform::short_attention_gradient", mutates_args=())
def _gradient(asked: Tensor, gradient: Tensor, heads: int, tf32: bool) -> Tensor:
    asked, gradient = asked.contiguous(), gradient.contiguous()
    out = torch.empty_like(asked)
    settings = _settings(asked, heads, tf32)
    scale = settings["HEAD"] ** -0.5
    grid = (asked.shape[0] * heads,)
    _backward[grid](asked, gradient, out, asked.shape[1], heads, scale, **settings)
    return out


@_gradient.register_fake
def _(asked: Tensor, gradient: Tensor, heads: int, tf32: bool) -> Tensor:
    return asked.new_empty(asked.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    asked, ctx.heads, ctx.tf32 = inputs
    ctx.save_for_backward(asked)


def _back(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    (asked,) = ctx.saved_tensors
    return _gradient(asked, gradient, ctx.heads, ctx.tf32), None, None


short_attention.register_autograd(_back, setup_context=_remember)
