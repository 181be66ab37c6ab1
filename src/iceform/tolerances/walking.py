"""The sums of the theorem on a GPU's matrix units, for half-precision inputs.

:func:`iceform.backends.triton.sums.weighted_sums` is itself an attention kernel of a known kind, so
the theorem says how far its sums are from exact ones (:func:`~.theorem.sums_error`): a factor of
about 1.01 for bfloat16, and that is multiplied in. Columns of non-negative numbers are rounded
upwards; values are numbers of the format as they are. Where the factor would pass `_SHARP`, or the
kernel does not take the problem, sums are taken in float64 instead, which changes nothing but time.

The theorem's factors, some numbers for each row, are small operations that the host launches while
the kernel works; one more kernel puts factors and sums together. The host waits once, at the end.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from iceform.arithmetic import Format
from iceform.tolerances.kind import Kind
from iceform.tolerances.reading import Read, norm
from iceform.tolerances.theorem import (
    Factors,
    Norms,
    all_keys,
    check_range,
    own_error,
    reached,
    sums_error,
)

if TYPE_CHECKING:
    from iceform.tolerances.inputs import Problem

__all__ = ["walked"]

_HALVES = (torch.bfloat16, torch.float16)
_COLUMNS = 4
_SHARP = 0.05  # the largest logarithm of the factor that counts as sharp


def walked(problem: Problem, kind: Kind, read: Read) -> Tensor | None:
    """The bound, (heads, rows, values); None where float64 is to be taken."""
    if not _takes(problem, kind):
        return None
    from iceform.backends.triton.sums import BLOCK, MOST_COLUMNS, WIDEST, finished, weighted_sums

    if problem.dim > WIDEST or _COLUMNS * read.values > MOST_COLUMNS:
        return None
    queries, q = problem.q.shape[2], problem.q.flatten(1, 2).contiguous()
    longest = read.norms.amax(-1)[:, None, None]
    columns, weights = _columns(kind.low, read, longest[..., 0])
    sums, k_mean, top = weighted_sums(
        q, problem.k.contiguous(), columns, weights,
        scale=problem.scale, queries=queries, diagonal=problem.diagonal,
    )  # fmt: skip
    own_kind = Kind.of(
        kind.dtype, device="cuda", probabilities=kind.dtype, output=torch.float32, block=BLOCK
    )
    norms = _norms(problem, q, longest, top)
    own, lost = sums_error(own_kind, norms)
    # What underflow may take from sums of the columns |v|, |v - c̄|, ‖k‖|v - c̄| and ‖k‖: next to
    # nothing, so the largest of all values will do.
    reach = read.largest.amax(-1, keepdim=True) + read.centre.abs().amax(-1, keepdim=True)
    under = own_kind.probability_underflow * problem.keys * reach + lost * (1 + 2 * reach)
    more = torch.exp(own)
    k = (k_mean[..., None].double() + 4 * lost) * (more * longest)
    by = Factors.of(kind, norms, k, 0.0, 0.0)
    out = finished(
        sums, top,
        [
            under, more, torch.expm1(own) * more, k, more * longest, by.k_away, by.away, by.size,
            by.coarse, by.output, by.lost, by.stray, by.spilt, by.drained,
            torch.exp(own_error(norms)),
        ],
        [
            read.centre, read.largest, kind.probability_underflow * read.total, read.spread,
            torch.full_like(read.centre, kind.output_underflow),
        ],
        probability_unit=kind.probability_unit, output_unit=kind.output_unit,
    )  # fmt: skip
    asked = torch.stack([*reached(norms, read.largest), own.amax(), reach.amax()])
    logit, value, off, most = asked.tolist()
    check_range(kind, logit, value)
    # A column's largest entry is a number of its format.
    return out if off <= _SHARP and most * (1 + 8 * kind.low.u) <= kind.low.largest else None


def _takes(problem: Problem, kind: Kind) -> bool:
    if problem.q.dtype != kind.dtype or kind.dtype not in _HALVES or problem.mask is not None:
        return False
    return _on_device(problem.q)


def _on_device(q: Tensor) -> bool:
    return q.is_cuda and importlib.util.find_spec("triton") is not None


def _columns(low: Format, read: Read, longest: Tensor) -> tuple[Tensor, Tensor]:
    """V, |v|, |v - c̄| and ‖k‖|v - c̄| in the kernel's format; ‖k‖ over the longest, in float32.

    v and c̄ are numbers of float32: differences and products there are off by 2^-24 of themselves,
    and a factor 1 + 4u before the rounding to nearest, 2 of the smallest number added, keeps the
    last two columns from being below what they stand for.
    """
    v, d = read.given_v, read.values
    share = (read.norms / longest.clamp(min=torch.finfo(torch.float64).tiny)).float()
    columns = v.new_empty((*v.shape[:-1], _COLUMNS * d), dtype=low.dtype)
    own, size, away, k_away = columns.split(d, -1)
    own.copy_(v)
    torch.abs(v, out=size)
    far = (v - read.centre.float()).abs_().mul_(1 + 4 * low.u)
    torch.add(far, 2 * low.subnormal, out=away)
    torch.add(far.mul_(share[..., None]), 2 * low.subnormal, out=k_away)
    return columns, share * (1 + 2.0**-22)


def _norms(problem: Problem, q: Tensor, longest: Tensor, top: Tensor) -> Norms:
    _, group, queries, _ = problem.q.shape
    present = all_keys(problem.keys)
    if problem.diagonal is not None:
        seen = torch.arange(queries, device=q.device) + problem.diagonal + 1
        present = seen.clamp(1, problem.keys).double().repeat(group)[None, :, None]
    size = norm(q)[..., None]
    # The kernel's largest logit is within the error of a logit of the exact one, which is less than
    # the sums' own, and that is at most `_SHARP` where they are used at all.
    met = torch.where(top == -torch.inf, 0.0, top)[..., None].double().abs()
    return Norms(
        present=present,
        keys=problem.keys,
        dim=problem.dim,
        scale=abs(problem.scale),
        q=size,
        q_exact=size,
        q_moved=0.0,
        k=longest,
        k_moved=0.0,
        bias=0.0,
        top=met * (1 + 2.0**-20) + _SHARP,
    )
