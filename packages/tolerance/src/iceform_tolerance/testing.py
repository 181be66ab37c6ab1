"""Assertions for the tests of kernels: tolerances that are proven, not chosen."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic import at_most
from iceform.errors import DeviceError, DtypeError, ShapeError
from iceform.validation import check_choice
from iceform_tolerance.exact import Reference, reference_and_bound
from iceform_tolerance.hints import hint
from iceform_tolerance.inputs import Problem, problem_of
from iceform_tolerance.kind import KernelKind

__all__ = ["assert_attention_close"]


@torch.no_grad()
def assert_attention_close(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | None = None,
    scale: float | None = None,
    mask: Tensor | None = None,
    causal: bool | str = False,
    empty_rows: str = "zeros",
    hints: bool = True,
    **kind: Any,
) -> None:
    """Raise `AssertionError` where no correct kernel of the stated kind could return ``out``.

    Parameters
    ----------
    out
        What the kernel returned.
    q, k, v, scale, mask, causal
        What it was called with, see :func:`iceform_tolerance.tolerance`.
    dtype, accumulate
        Those of q and float32 (float64 for float64) by default.
    empty_rows
        What rows that see no key must hold: "zeros", or "any" to leave them out.
    hints
        On failure, try what the kernel may have done wrong: seconds, for large inputs.
    kind
        Further keywords of :func:`iceform_tolerance.tolerance`: exp_ulps, online, block, ...

    Examples
    --------
    >>> q = torch.linspace(-1, 1, 32).reshape(1, 1, 4, 8)
    >>> out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    >>> assert_attention_close(out, q, q, q)
    """
    problem = problem_of(q, k, v, scale=scale, mask=mask, causal=causal)
    check_choice("empty_rows", empty_rows, ("zeros", "any"))
    _check_out(out, problem)
    dtype = q.dtype if dtype is None else dtype
    kind.setdefault("output", out.dtype)  # a kernel that returns another dtype than it reads
    stated = KernelKind.of(dtype, accumulate, **{"device": q.device, **kind})
    allowed, exact = reference_and_bound(problem, stated)
    off = (out.double() - exact.value).abs()
    within = off <= allowed + exact.error
    if empty_rows == "any":
        within = within | (allowed == 0)
    if bool(within.all()):
        return
    raise AssertionError(_report(problem, stated, out, exact, allowed, ~within, hints))


def _check_out(out: Tensor, problem: Problem) -> None:
    if not isinstance(out, Tensor) or not out.is_floating_point():
        what = out.dtype if isinstance(out, Tensor) else type(out).__name__
        raise DtypeError(f"out must be a floating-point torch tensor, got {what}")
    if out.device != problem.q.device:
        raise DeviceError(f"out is on {out.device}, q on {problem.q.device}; move one of them")
    expected = (*problem.lead, problem.q.shape[2], problem.v.shape[-1])
    if tuple(out.shape) != expected:
        raise ShapeError(f"out is {tuple(out.shape)}, attention of these inputs is {expected}")


def _report(
    problem: Problem, kind: KernelKind, out: Tensor, exact: Reference, allowed: Tensor,
    violated: Tensor, hints: bool,
) -> str:  # fmt: skip
    off = (out.double() - exact.value).abs()
    ratio = torch.where(violated, off / allowed, 0.0).nan_to_num(nan=math.inf)
    at = int(ratio.argmax())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), ratio.shape))
    count, number = int(violated.sum()), violated.numel()
    got, right, error, most, share = (
        float(x.flatten()[at]) for x in (out, exact.value, off, allowed, ratio)
    )
    lines = [
        f"{count:,} of {number:,} elements ({count / number:.2%}) are beyond what rounding "
        "explains",
        f"worst at {where}: got {got:.9g}, exact {right:.9g}",
        f"error {error:.3e}, proven bound {at_most(most)}, ratio {share:.3g}",
        f"kind: {kind.low.name}, sums in {kind.wide.name}; reference in "
        f"{'double-doubles' if exact.doubled else 'float64'}",
    ]
    says = hint(problem, kind, out, allowed, violated) if hints else None
    if says is not None:
        lines.append(f"hint: {says}")
    return "\n".join(lines)
