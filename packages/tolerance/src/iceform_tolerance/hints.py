r"""What a wrong kernel may have done: exact attention with one mistake in it, tried one by one.

A mistake is named when the output is explained by it: with the mistake put into the exact formula,
at most `_LEFT` of the violations remain, and the mean distance is at most `_FAR` of what it was.
Tolerances are twice those of the correct problem, whose rounding is like that of the wrong one.
That is evidence and no proof: two mistakes can return the same numbers, and the first that fits is
named. Elements that are NaN are left out, unless nothing else is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from iceform.errors import IceformError
from iceform_tolerance.attention import bound
from iceform_tolerance.exact import plain_value
from iceform_tolerance.inputs import Problem
from iceform_tolerance.kind import KernelKind

_BLOCKS = (16, 32, 64, 128, 256, 512)
_LEFT = 0.02  # of the violations may be left over
_FAR = 0.25  # of the mean distance, or of the largest value: more than that is no rounding
_LARGEST = 1 << 24  # logits of a problem that is tried out; of larger ones, a few heads


@dataclass(frozen=True, eq=False)
class _Case:
    problem: Problem
    kind: KernelKind
    out: Tensor  # (heads, group, queries, values)
    tolerance: Tensor
    violated: Tensor

    @cached_property
    def exact(self) -> Tensor:
        """The exact attention that was expected."""
        return plain_value(self.problem)

    def distance(self, value: Tensor) -> Tensor:
        """From the output, zero where that is NaN."""
        return (self.out - value.view_as(self.out)).abs().nan_to_num(nan=0.0)

    def fits(self, value: Tensor) -> bool:
        """Whether this value explains the output."""
        off = self.distance(value)
        left = float((off > 2 * self.tolerance).sum())
        if left > max(1.0, _LEFT * float(self.violated.sum())):
            return False
        return float(off.mean()) <= _FAR * float(self.distance(self.exact).mean())


def hint(
    problem: Problem, kind: KernelKind, out: Tensor, tolerance: Tensor, violated: Tensor
) -> str | None:
    """The first mistake that explains the violations, as a sentence; None if none does."""
    shape = (*problem.q.shape[:-1], problem.v.shape[-1])
    case = _Case(
        *_some_heads(problem, kind, *(x.reshape(shape) for x in (out, tolerance, violated)))
    )
    if not bool(case.violated.any()):
        return None
    if float(case.distance(case.exact).max()) > 0:
        for says, value in _mistakes(case):
            if case.fits(value):
                return says
    if bool(case.out.isnan().any()):
        return _nan(case)
    return _other_scale(case) or _accumulation(case)


def _some_heads(
    problem: Problem, kind: KernelKind, out: Tensor, tolerance: Tensor, violated: Tensor
) -> tuple[Problem, KernelKind, Tensor, Tensor, Tensor]:
    """A head with most violations, where all of them would take long."""
    heads, group, queries, _ = problem.q.shape
    if heads * group * queries * problem.keys <= _LARGEST or problem.mask is not None:
        return problem, kind, out.double(), tolerance, violated
    worst = int(violated.flatten(1).sum(1).argmax())
    one = slice(worst, worst + 1)
    small = replace(problem, q=problem.q[one], k=problem.k[one], v=problem.v[one])
    small = replace(small, lead=(1, group))
    return small, kind, out[one].double(), tolerance[one], violated[one]


def _mistakes(case: _Case) -> Iterator[tuple[str, Tensor]]:
    for kind in (_scales, _masks, _dropped, _heads, _stale):
        yield from kind(case)


def _scales(case: _Case) -> Iterator[tuple[str, Tensor]]:
    right, dim = case.problem.scale, case.problem.dim
    named = {
        "exp2 without the factor log2(e): logits are multiplied by ln 2": right * math.log(2),
        "log2(e) applied though exp was used": right / math.log(2),
        "scale: none was applied": 1.0,
        "scale: applied twice, or 1/dim in place of 1/sqrt(dim)": 1 / dim,
        "scale: applied twice": right * right,
        "scale: sqrt(dim) in place of 1/sqrt(dim)": math.sqrt(dim),
        "scale: 1/sqrt(dim) in place of the one given": 1 / math.sqrt(dim),
        "scale: its sign": -right,
        "scale: half of it": right / 2,
        "scale: twice as large": right * 2,
    }
    for says, scale in named.items():
        if not math.isclose(scale, right):
            yield f"{says} (scale {scale:.6g}, expected {right:.6g})", _with_scale(case, scale)


def _other_scale(case: _Case) -> str | None:
    fitted = _fitted_scale(case)
    if fitted is None or not case.fits(_with_scale(case, fitted)):
        return None
    return f"scale: {fitted:.3g} fits, expected {case.problem.scale:.6g}"


def _with_scale(case: _Case, scale: float) -> Tensor:
    return plain_value(replace(case.problem, scale=scale))


def _fitted_scale(case: _Case) -> float | None:
    """The best of a geometric grid, then by golden section."""
    right = case.problem.scale

    def off(factor: float) -> float:
        return float(case.distance(_with_scale(case, right * factor)).mean())

    grid = [2.0 ** (k / 2) for k in range(-8, 9)]
    best = min(grid, key=off)
    if best in (grid[0], grid[-1]):
        return None
    low, high = best / math.sqrt(2), best * math.sqrt(2)
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(30):
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if off(a) < off(b) else (a, high)
    return float(right * (low + high) / 2)


def _masks(case: _Case) -> Iterator[tuple[str, Tensor]]:
    problem = case.problem
    if problem.diagonal is not None:
        here = problem.diagonal
        other = problem.keys - problem.q.shape[2] - here
        named = {
            "mask off by one: each query sees one key too few": here - 1,
            "mask off by one: each query sees one key too many": here + 1,
            "causal mask aligned to the other corner": other,
        }
        for says, diagonal in named.items():
            if diagonal != here:
                yield says, plain_value(replace(problem, diagonal=diagonal))
        yield "the causal mask is missing", plain_value(replace(problem, diagonal=None))
    else:
        yield "a causal mask was applied", plain_value(replace(problem, diagonal=0))
    if problem.mask is None:
        return
    yield "the mask is missing", plain_value(replace(problem, mask=None))
    if problem.mask.dtype == torch.bool:
        yield "the mask is inverted", plain_value(replace(problem, mask=~problem.mask))
    for shift, says in ((1, "right"), (-1, "left")):
        moved = problem.mask.roll(shift, -1)
        yield f"mask off by one: moved to the {says}", plain_value(replace(problem, mask=moved))


def _dropped(case: _Case) -> Iterator[tuple[str, Tensor]]:
    """The last block of keys, whole or ragged."""
    keys = case.problem.keys
    seen = set()
    for block in (1, *_BLOCKS):
        for kept, kind in ((keys - block, "last"), (keys // block * block, "ragged last")):
            if 0 < kept < keys and kept not in seen:
                seen.add(kept)
                says = f"the {kind} block of keys is dropped: {keys - kept} of {keys} are not read"
                yield says, plain_value(_only(case.problem, kept))


def _only(problem: Problem, kept: int) -> Problem:
    mask = None if problem.mask is None else problem.mask[..., :kept]
    return replace(problem, k=problem.k[:, :kept], v=problem.v[:, :kept], mask=mask)


def _heads(case: _Case) -> Iterator[tuple[str, Tensor]]:
    """Query head h reads h % kv_heads in place of h // group."""
    problem = case.problem
    group = problem.q.shape[1]
    kv = problem.lead[-1] // group if problem.lead else 1
    if group == 1 or kv == 1:
        return
    q = problem.q.unflatten(0, (-1, kv))  # (batch, kv, group, queries, dim)
    mixed = q.flatten(1, 2).unflatten(1, (group, kv)).transpose(1, 2)
    value = plain_value(replace(problem, q=mixed.flatten(0, 1)))
    back = value.view(-1, kv, group, *case.out.shape[2:]).transpose(1, 2).flatten(1, 2)
    yield "query heads read the wrong key-value heads (h % n, not h // group)", back


def _stale(case: _Case) -> Iterator[tuple[str, Tensor]]:
    """Running sums that are not rescaled when the maximum moves."""
    for block in _BLOCKS:
        if block >= case.problem.keys:
            return
        for numerator, denominator, what in (
            (False, False, "running sums"),
            (False, True, "the running output"),
            (True, False, "the running denominator"),
        ):
            says = (
                f"missing rescale: {what} stay as they are when the maximum moves (block {block})"
            )
            yield says, _walked(case.problem, block, numerator, denominator)


def _walked(problem: Problem, block: int, numerator: bool, denominator: bool) -> Tensor:
    """Online softmax in float64, with or without its two rescalings."""
    out, k = problem.output(), problem.k.double()
    for chunk in problem.chunks():
        logits = problem.logits(chunk, k)
        top = torch.full_like(logits[..., :1], -math.inf)
        total = torch.zeros_like(top)
        value = problem.v.new_zeros(*logits.shape[:-1], problem.v.shape[-1], dtype=torch.float64)
        for at in range(0, logits.shape[-1], block):
            part = logits[..., at : at + block]
            moved = torch.maximum(top, part.amax(-1, keepdim=True))
            safe = torch.where(moved == -math.inf, 0.0, moved)
            factor = torch.exp(top - safe)
            weights = torch.exp(part - safe)
            v = chunk.seen(problem.v)[:, at : at + block].double()
            total = total * (factor if denominator else 1.0) + weights.sum(-1, keepdim=True)
            value = value * (factor if numerator else 1.0) + torch.bmm(weights, v)
            top = moved
        chunk.put(out, value / torch.where(total == 0, 1.0, total))
    return out


def _accumulation(case: _Case) -> str | None:
    """Sums in the low format: within the bound for that kind."""
    if case.kind.low.u <= case.kind.wide.u:
        return None
    try:
        wider = bound(case.problem, replace(case.kind, accumulate=case.kind.dtype))
    except IceformError:  # beyond the range of that format
        return None
    off = case.distance(case.exact)
    # That bound is wide; sums in the low format are rarely off by more than a few percent.
    size = float(case.problem.v.double().abs().amax())
    if not bool((off <= wider.view_as(off)).all()) or float(off.amax()) > _FAR * size:
        return None
    return (
        f"accumulation: the errors fit sums in {case.kind.low.name}, "
        f"{case.kind.wide.name} was promised"
    )


def _nan(case: _Case) -> str:
    rows = case.out.isnan().any(-1)
    empty = (case.tolerance == 0).all(-1)
    if bool((rows == (rows & empty)).all()):
        return "rows that see no key are NaN; zeros are expected"
    return f"{int(rows.sum())} rows hold NaN: a maximum of -inf, 0/0 or an overflow"
