"""The sums of the theorem on a GPU's matrix units, for half-precision inputs.

:func:`iceform.backends.triton.sums.weighted_sums` is itself an attention kernel of a known kind, so
the theorem says how far its sums are from exact ones (:func:`~.theorem.sums_error`): a factor of
about 1.01 for bfloat16, and that is multiplied in. Columns of non-negative numbers are rounded
upwards; values are numbers of the format as they are. Where the factor would pass `_SHARP`, or the
kernel does not take the problem, sums are taken in float64 instead, which changes nothing but time.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from iceform.arithmetic import Format
from iceform.tolerances.kind import Kind
from iceform.tolerances.reading import Found, Read, Row, norm
from iceform.tolerances.theorem import Norms, all_keys, check_range, own_error, sums_error

if TYPE_CHECKING:
    from iceform.tolerances.inputs import Problem

__all__ = ["walked"]

_HALVES = (torch.bfloat16, torch.float16)
_COLUMNS = 4
_SHARP = 0.05  # the largest logarithm of the factor that counts as sharp


def walked(problem: Problem, kind: Kind, read: Read) -> Row | None:
    """All rows at once; None where float64 is to be taken."""
    if not _takes(problem, kind):
        return None
    from iceform.backends.triton.sums import BLOCK, MOST_COLUMNS, WIDEST, weighted_sums

    if problem.dim > WIDEST or _COLUMNS * read.values > MOST_COLUMNS:
        return None
    columns, weights = _columns(kind.low, read)
    (heads, _, queries, _), q = problem.q.shape, problem.q.flatten(1, 2).contiguous()
    norms = _norms(problem, q, read)
    check_range(kind, norms, read.largest)
    sums, k_mean, top = weighted_sums(
        q, problem.k.contiguous(), columns, weights,
        scale=problem.scale, queries=queries, diagonal=problem.diagonal,
    )  # fmt: skip
    # Whatever follows is under way while the kernel works; the host waits for it at the end.
    empty = (top == -torch.inf)[..., None]
    reached = torch.where(empty, 0.0, top[..., None]).double().abs()
    own_kind = Kind.of(
        kind.dtype, device="cuda", probabilities=kind.dtype, output=torch.float32, block=BLOCK
    )
    # The kernel's largest logit is within the error of a logit of the exact one, which is less than
    # `own`, and that is at most `_SHARP` where these sums are used at all.
    norms = replace(norms, top=reached * (1 + 2.0**-20) + _SHARP)
    own, lost = sums_error(own_kind, norms)
    output, size, away, k_away = _apart(sums, read.values)
    rounds = own_kind.probability_underflow
    longest = read.norms.amax(-1)[:, None, None]
    # What underflow may take from sums of the columns |v|, |v - c̄|, ‖k‖|v - c̄| and ‖k‖: next to
    # nothing, so the largest of all values will do.
    reach = read.largest.amax(-1, keepdim=True) + read.centre.abs().amax(-1, keepdim=True)
    under = rounds * problem.keys * reach + lost * (1 + 2 * reach)
    found = Found(
        output=output,
        size=size.add_(under),
        away=away.add_(under),
        k_away=k_away.add_(under).mul_(longest),
        k=(k_mean[..., None].double() + 4 * lost) * longest,
        own=own,
    )
    row = Row(norms, found.sums(read, slice(0, heads)), output, empty, own_error(norms))
    sharp = (own <= _SHARP).all() & torch.isfinite(columns).all()
    return row if bool(sharp) else None


def _apart(sums: Tensor, values: int) -> tuple[Tensor, ...]:
    """The columns' sums, each on its own in memory, in float64."""
    parts = sums.unflatten(-1, (_COLUMNS, values)).movedim(-2, 0)
    apart = torch.empty(parts.shape, dtype=torch.float64, device=sums.device).copy_(parts)
    return apart.unbind()


def _takes(problem: Problem, kind: Kind) -> bool:
    if problem.q.dtype != kind.dtype or kind.dtype not in _HALVES or problem.mask is not None:
        return False
    return _on_device(problem.q)


def _on_device(q: Tensor) -> bool:
    return q.is_cuda and importlib.util.find_spec("triton") is not None


def _columns(low: Format, read: Read) -> tuple[Tensor, Tensor]:
    """V, |v|, |v - c̄| and ‖k‖|v - c̄| in the kernel's format; ‖k‖ over the longest, in float32.

    v and c̄ are numbers of float32: differences and products there are off by 2^-24 of themselves,
    which :func:`_upwards` has room for.
    """
    longest = read.norms.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    share = (read.norms / longest).float()
    away = (read.given_v.float() - read.centre.float()).abs_()
    columns = torch.cat(
        [
            read.given_v.to(low.dtype),
            read.given_v.abs().to(low.dtype),
            _upwards(away, low),
            _upwards(share[..., None] * away, low),
        ],
        -1,
    )
    return columns, share * (1 + 2.0**-22)


def _upwards(x: Tensor, low: Format) -> Tensor:
    """Not below x, a float32 number that is off by a few units, after a rounding to nearest."""
    return (x * (1 + 4 * low.u)).add_(2 * low.subnormal).to(low.dtype)


def _norms(problem: Problem, q: Tensor, read: Read) -> Norms:
    _, group, queries, _ = problem.q.shape
    present = all_keys(problem.keys)
    if problem.diagonal is not None:
        seen = torch.arange(queries, device=q.device) + problem.diagonal + 1
        present = seen.clamp(1, problem.keys).double().repeat(group)[None, :, None]
    size = norm(q)[..., None]
    return Norms(
        present=present,
        keys=problem.keys,
        dim=problem.dim,
        scale=abs(problem.scale),
        q=size,
        q_exact=size,
        q_moved=torch.zeros_like(size),
        k=read.norms.amax(-1)[:, None, None],
        k_moved=torch.zeros_like(size[:, :1]),
        bias=torch.zeros_like(size),
        top=torch.zeros_like(size),
    )
