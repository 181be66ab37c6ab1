"""``advance``: a step of gradient descent whose rates are read from the device."""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _advance_kernel(  # type: ignore[no-untyped-def]
    sums_ptr, current_ptr, ahead_ptr, seen_ptr, at_ptr, rates_ptr,
    DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One step of every row of coefficients, its rates read from the device."""
    row = tl.program_id(0)
    at_d = tl.arange(0, WIDE)
    inside = at_d < DIM
    place = row * DIM + at_d
    step = tl.load(at_ptr + row)
    rates = rates_ptr + 4 * step
    gain, shrink, momentum, threshold = (
        tl.load(rates), tl.load(rates + 1), tl.load(rates + 2), tl.load(rates + 3)
    )  # fmt: skip
    dtype = ahead_ptr.dtype.element_ty
    point = tl.load(ahead_ptr + place, mask=inside, other=0.0).to(tl.float64)
    before = tl.load(current_ptr + place, mask=inside, other=0.0)
    moved = (1 - shrink) * point - gain * tl.load(sums_ptr + place, mask=inside, other=0.0)
    size = tl.abs(moved) - threshold
    sign = tl.where(moved < 0, -1.0, 1.0)
    moved = tl.where(threshold > 0, tl.where(size > 0, sign * size, 0.0), moved)
    after = moved.to(dtype)
    tl.store(current_ptr + place, after, mask=inside)
    tl.store(ahead_ptr + place, after + momentum.to(dtype) * (after - before), mask=inside)
    tl.store(at_ptr + row, step + 1)
    # Written so that a size that is not a number is kept, not passed over.
    largest, norm = tl.max(tl.abs(point), 0), tl.sqrt(tl.sum(point * point, 0))
    held = tl.load(seen_ptr + 2 * row)
    tl.store(seen_ptr + 2 * row, tl.where(largest <= held, held, largest))
    held = tl.load(seen_ptr + 2 * row + 1)
    tl.store(seen_ptr + 2 * row + 1, tl.where(norm <= held, held, norm))


def advance(
    sums: Tensor, current: Tensor, ahead: Tensor, seen: Tensor, at: Tensor, rates: Tensor
) -> None:
    """One step of gradient descent in place, as :func:`iceform.run.loops.descend` has it.

    ``sums``, ``current`` and ``ahead`` are (rows, d), ``seen`` is (rows, 2) in float64, ``at`` is
    (rows,), and ``rates`` holds (gain/n, shrink, momentum, threshold) for every step.
    """
    rows, dim = current.shape
    _advance_kernel[(rows,)](
        sums, current, ahead, seen, at, rates, DIM=dim, WIDE=triton.next_power_of_2(dim)
    )
