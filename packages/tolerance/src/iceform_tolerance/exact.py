"""Exact attention, as nearly as it is needed: in float64, or in double-doubles.

Both are kernels of a kind of their own, so the theorem of :mod:`iceform_tolerance.theorem`
bounds their error too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.arithmetic import Format, double_double
from iceform.arithmetic.double_double import DoubleDouble
from iceform_tolerance.attention import bound, evaluated
from iceform_tolerance.inputs import Chunk, Problem, rounded
from iceform_tolerance.kind import KernelKind

# Of the tolerance: what the reference may be off by before more digits are worth their cost.
_SHARE = 2.0**-7
# float64 attention of this library: a row at a time, exponentials within two ulps.
PLAIN = KernelKind.of(torch.float64, torch.float64, online=False, split=False)
_PRODUCTS = 2.0**-960  # below it the low part of a product underflows


@dataclass(frozen=True, eq=False)
class Reference:
    """Exact attention up to ``error``, both in float64."""

    value: Tensor
    error: Tensor
    doubled: bool


@torch.no_grad()
def reference_and_bound(problem: Problem, kind: KernelKind) -> tuple[Tensor, Reference]:
    """The tolerance of a kind, and exact attention well within it.

    In float64 where its error is a small share of the tolerance, else in double-doubles.
    """
    if all(_is_read(x, kind) for x in (problem.q, problem.k, problem.v)):
        allowed, value, error = evaluated(problem, kind, PLAIN)
        first = Reference(value, error, doubled=False)
    else:
        allowed, first = bound(problem, kind), plain(problem)
    enough = (first.error <= _SHARE * allowed) | (first.error == 0)
    return allowed, first if bool(enough.all()) else doubled(problem)


def _is_read(x: Tensor, kind: KernelKind) -> bool:
    """Whether a kernel reads these very numbers."""
    return bool((rounded(x, kind.low) == x.double()).all())


@torch.no_grad()
def plain(problem: Problem) -> Reference:
    """In float64. Rows that see nothing are zero."""
    return Reference(plain_value(problem), bound(problem, PLAIN), doubled=False)


@torch.no_grad()
def plain_value(problem: Problem) -> Tensor:
    """The exact value without its error bound."""
    out = problem.output()
    k, v = problem.k.double(), problem.v.double()
    for chunk in problem.chunks():
        logits = problem.logits(chunk, k)
        top = logits.amax(-1, keepdim=True)
        weights = logits.sub_(top.clamp(min=torch.finfo(top.dtype).min)).exp_()
        total = weights.sum(-1, keepdim=True)
        chunk.put(out, torch.bmm(weights, chunk.seen(v)) / total.clamp(min=1.0))
    return problem.shaped(out)


@dataclass(frozen=True)
class _Doubled(KernelKind):
    """Double-doubles as a kind: their unit in place of float64's, but for the output."""

    @property
    def wide(self) -> Format:
        return Format(
            torch.float64, double_double.UNIT / 2, _PRODUCTS, torch.finfo(torch.float64).max
        )

    @property
    def probability_unit(self) -> float:
        return 0.0


@torch.no_grad()
def doubled(problem: Problem) -> Reference:
    """In double-doubles; the scale is the float64 number that was given."""
    kind = _Doubled(**vars(PLAIN))
    out = problem.output()
    for chunk in problem.chunks():
        chunk.put(out, _doubled_chunk(problem, chunk))
    return Reference(problem.shaped(out), bound(problem, kind), doubled=True)


def _doubled_chunk(problem: Problem, chunk: Chunk) -> Tensor:
    q, k = chunk.of(problem.q).double(), chunk.seen(problem.k).double()
    v = chunk.seen(problem.v).double()
    logits = double_double.pair(q.new_zeros(*q.shape[:-1], k.shape[1]))
    for at in range(q.shape[-1]):
        product = double_double.two_prod(q[..., at, None], k[..., at].unsqueeze(1))
        logits = double_double.add(logits, product)
    logits = double_double.mul(logits, double_double.pair(q.new_full((1, 1, 1), problem.scale)))
    bias, allowed = problem.bias(chunk), problem.allowed(chunk)
    if bias is not None:
        logits = double_double.add(logits, double_double.pair(bias))
    hidden = torch.zeros_like(logits.hi, dtype=torch.bool) if allowed is None else ~allowed
    top = _largest(logits, hidden)
    weights = double_double.exp(double_double.sub(logits, top))
    weights = DoubleDouble(*(part.masked_fill(hidden, 0.0) for part in weights))
    total = double_double.sum_last(weights)
    empty = total.hi == 0
    total = DoubleDouble(torch.where(empty, 1.0, total.hi), total.lo)
    columns = [
        double_double.sum_last(double_double.mul(weights, double_double.pair(column)))
        for column in v.mT.unsqueeze(-2).unbind(1)
    ]
    return torch.stack([double_double.div(c, total).double() for c in columns], -1)


def _largest(logits: DoubleDouble, hidden: Tensor) -> DoubleDouble:
    """A reference to subtract: any number near the maximum does, as long as it is one number."""
    top = logits.hi.masked_fill(hidden, -math.inf).amax(-1, keepdim=True)
    return double_double.pair(torch.where(top == -math.inf, 0.0, top))
