"""``interpolate``: one look-up per entry, forwards and backwards."""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from iceform.run.triton.look_up import load_constants, look_up
from iceform.run.triton.support import wide_dtype
from iceform.run.triton.tables import table_of
from iceform.tables import Interpolant
from iceform.validation import written_out


@triton.jit  # type: ignore[untyped-decorator]
def _interpolate_kernel(  # type: ignore[no-untyped-def]
    z_ptr, out_ptr, grad_ptr, count, numbers, ratios, biases, values, TOKENS,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr,
    BACKWARD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    wide = numbers.dtype.element_ty
    constants = load_constants(numbers, ratios, KIND, HALF)
    z = tl.load(z_ptr + at, mask=inside, other=0.0).to(wide)
    z = tl.where(inside, z, constants[0])
    looked, slope = look_up(
        z, constants, ratios, biases, values, TOKENS, KIND, HALF, BOUNDED, BACKWARD
    )
    if BACKWARD:
        looked = slope * tl.load(grad_ptr + at, mask=inside, other=0.0).to(wide)
    tl.store(out_ptr + at, looked.to(out_ptr.dtype.element_ty), mask=inside)


def interpolate(z: Tensor, it: Interpolant, out: Tensor | None = None) -> Tensor:
    """Look up each entry of z; ``out`` may be z itself where no gradient is recorded."""
    if out is not None or not (torch.is_grad_enabled() and z.requires_grad):
        return _interpolate(z, it, None, out)
    looked: Tensor = _Interpolate.apply(z, it)  # type: ignore[no-untyped-call]
    return looked


def _interpolate(
    z: Tensor, it: Interpolant, grad: Tensor | None, out: Tensor | None = None
) -> Tensor:
    z = written_out(z)
    table = table_of(it, wide_dtype(z.dtype), z.device, z.dtype)
    out = torch.empty_like(z) if out is None else out
    block = 1024
    given = z if grad is None else written_out(grad)
    _interpolate_kernel[(triton.cdiv(z.numel(), block),)](
        z, out, given, z.numel(),
        table.numbers, table.ratios, table.biases, table.values, table.tokens,
        KIND=table.kind, HALF=table.half, BOUNDED=table.bounded,
        BACKWARD=grad is not None, BLOCK=block,
    )  # fmt: skip
    return out


class _Interpolate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, it: Interpolant) -> Tensor:
        ctx.it = it
        ctx.save_for_backward(z)
        return _interpolate(z, it, None)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        return _interpolate(z, ctx.it, grads[0]), None
