r"""How far floating point carries a cycle from the instruction that it executes.

Symbols: u is the unit roundoff, :math:`\gamma_k = k u / (1 - k u)`; a sum of k products has an
error of at most :math:`\gamma_k` times the sum of their sizes, in any order, with or without fused
multiply-add, and products with exact zeros do not count. exp is taken to be right to four units in
the last place. What is said of reads and look-ups holds for a literal cycle and for a fused one.

**Leak.** Masks are exact (:mod:`iceform.computer.block`): weights that should be 0 are 0, and a row
that should see one key has the weight exp(0)/exp(0) = 1 there. So ``own`` and ``lane0`` reads,
fetches and copies are exact, and the leak is 0.

**Reads.** rowsum adds m components: :math:`\gamma_{m-1} \sum |v_j|`. mean has n equal logits,
exactly 0, hence weights fl(1/n): :math:`\gamma_{n+1}` times the mean of \|v\|. like has logits
:math:`r \cdot v_i` with errors :math:`\delta = \gamma_m \max \sum_j |r_j v_{ij}|`; logits off by
delta move a softmax average of values by at most :math:`\tanh(\delta/2)` times their oscillation;
and where one logit is apart from all others by D, by at most what these weigh before and after,
:math:`2 n e^{2 \delta - D}`.
An operand adds at most five reads, an argument two operands.

**Look-up.** Entry k has the logit :math:`\ell_k = s_k z + b_k`, computed with an error of at most

.. math:: \delta_k = \gamma_2 (|s_k z| + |b_k|) + u |\ell_k - \max \ell| + 4 u,

subtraction of the maximum and exp included (:math:`\gamma_3` where the entries are rounded when
they are written). With weights p and average A that moves the average by

.. math:: \Big|\frac{\sum p_k (e^{\delta_k} - 1)(v_k - A)}{\sum p_k e^{\delta_k}}\Big|
    \le e^{\sum p_k \delta_k} \sum_k p_k (e^{\delta_k} - 1) |v_k - A|,

and its two sums, of weights and of weighted values, add
:math:`(2 \gamma_{K+1} + 2 u) \sum p_k |v_k|` if K entries have a weight above u, and twice what the
others weigh, t: of the nodes of any tree of additions at most K - 1 join two parts that both hold
one of the K; at any other a part that holds none is added, once, with an error of at most itself
(and inside such parts u times it, a depth of N at most: hence N u t more). These are bounded cell
by cell over the range of arguments, the weights of a cell by

.. math:: p_k(z) = \frac{w_k e^{(s_k - s)(z - z_0)}}{\sum_j w_j e^{(s_j - s)(z - z_0)}}
    \le \min(1, w_k e^{|s_k - s| r})

where z_0 is the cell's middle, r half its width, w the weights and s the mean slope at z_0; by
Jensen's inequality the denominator is at least 1. The same sums bound the average's derivative,
:math:`|A'| \le \sum_k p_k |s_k - s| |v_k - A|`.

A fused cycle may look up by the parabola that a table is, off by
:data:`~iceform.computer.lookups.CLOSED_UNITS` units and its own evaluation, by a quotient, off by
:func:`~iceform.computer.lookups.rational_rounding`; or in a window of an
even grid (:mod:`iceform.computer.lookups`): keys may miss that grid by
:data:`~iceform.computer.lookups.GRID_UNITS` units in the last place, and the window's own rounding
is that of :meth:`iceform.Interpolant.rounding`. These are added. Or it looks up in a window of the
entries as they are: errors of logits and the tail of :mod:`iceform.run.ordered` take the place of
those above, and the larger bound counts.

**Store.** A write adds fl(result - old) to what is held, which is old:
:math:`u (|r - o| + |r|)(1 + u)`. A fused cycle replaces it: 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import EXP_UNITS, OUTWARD_MANY, gamma
from iceform.computer.instructions import Assembly, Instruction, Operand, TablePair
from iceform.computer.layout import largest_result
from iceform.computer.lookups import (
    CLOSED_UNITS,
    GRID_UNITS,
    Rational,
    closed_form,
    rational_rounding,
    uniform,
)
from iceform.run.ordered import OrderedWindow
from iceform.tables import RoundingModel
from iceform.validation import unit_roundoff


@dataclass(frozen=True)
class ColumnFacts:
    """Of one column of a table over a range of arguments."""

    rounding: float  # of the look-up of an exact argument
    slope: float  # sup |A'|
    largest: float  # sup |A|


def column_facts(
    slopes: Tensor, biases: Tensor, values: Tensor, low: float, high: float, unit: float,
    *, extra: float = 0.0, window: OrderedWindow | None = None,
) -> ColumnFacts:  # fmt: skip
    """Bounds of a look-up's rounding, derivative and size for arguments in [low, high].

    Entries are off by ``extra`` units in the last place themselves: by one where they are rounded
    when they are written, and by more where they are read as an even grid. Logits are those of
    :math:`s_k z + b_k`, or of a ``window``.
    """
    s, b, v = (t.detach().double().cpu() for t in (slopes, biases, values))
    if not v.any():
        return ColumnFacts(0.0, 0.0, 0.0)
    edges = _edges(s, b, low, high)
    cells = len(edges) - 1
    rows = max(1, tuning.NUMBERS_AT_ONCE // len(s))
    parts = [
        _cells(s, b, v, edges[i], edges[i + 1], unit, extra, window)
        for i in torch.arange(cells).split(rows)
    ]  # fmt: skip
    rounding, slope, largest = (float(max(p[k] for p in parts)) * OUTWARD_MANY for k in range(3))
    return ColumnFacts(rounding + (0.0 if window is None else window.tail), slope, largest)


def _edges(s: Tensor, b: Tensor, low: float, high: float) -> Tensor:
    """Ends of cells that are as narrow as the entries are close: each gap between the arguments at
    which neighbours weigh the same, cut into parts.
    """
    order = s.argsort()
    apart, lower = s[order].diff(), b[order].diff()
    equal = (-lower[apart > 0] / apart[apart > 0]).clamp(low, high)
    ends = torch.tensor([low, high], dtype=torch.float64)
    gaps = torch.unique(torch.cat([ends, equal]))
    if len(gaps) == 1:
        return ends
    parts = torch.arange(tuning.ROUNDING_CELLS, dtype=torch.float64) / tuning.ROUNDING_CELLS
    inside = gaps[:-1, None] + gaps.diff()[:, None] * parts
    edges: Tensor = torch.cat([inside.flatten(), ends[1:]])
    return edges


def _cells(
    s: Tensor, b: Tensor, v: Tensor, left: Tensor, right: Tensor, unit: float, extra: float,
    window: OrderedWindow | None,
) -> tuple[float, float, float]:  # fmt: skip
    """The largest bounds over some cells, whose ends are given."""
    middle, half = ((left + right) / 2)[:, None], ((right - left) / 2)[:, None]
    logits = middle * s + b
    weights = torch.softmax(logits, -1)
    mean = (weights * s).sum(-1, keepdim=True)
    tilt = (s - mean).abs() * half
    at = (weights * v).sum(-1, keepdim=True)
    weights = (torch.log_softmax(logits, -1) + tilt).clamp(max=0.0).exp()
    off = (v - at).abs()
    off = off + (weights * off).sum(-1, keepdim=True)
    terms = s.abs() * (middle.abs() + half) + b.abs()
    if window is None:
        errors = gamma(2 + extra, unit) * terms + _exp_errors(logits, tilt, unit)
    else:
        errors = gamma(extra, unit) * terms + window.logit_errors(left, right) + EXP_UNITS * unit
    moved = (weights * errors.expm1() * off).sum(-1) * (weights * errors).sum(-1).exp()
    size = (weights * v.abs()).sum(-1)
    sums = _sum_errors(weights, unit)
    written = unit * min(extra, 1.0)
    slope = (weights * (s - mean).abs() * off).sum(-1)
    return (
        float((moved + (sums[0] + written) * size + sums[1] * float(v.abs().max())).max()),
        float(slope.max()),
        float(torch.minimum(size, v.abs().max()).max()),
    )


def _sum_errors(weights: Tensor, unit: float) -> tuple[Tensor, Tensor]:
    """Of both sums over a row: relative to the sum of sizes, and to the largest value."""
    large = weights > unit
    terms = large.sum(-1).double() + 1
    light = weights.masked_fill(large, 0.0).sum(-1) * (1 + gamma(weights.shape[-1], unit))
    return 2 * terms * unit / (1 - terms * unit) + 2 * unit, 4 * light


def _exp_errors(logits: Tensor, tilt: Tensor, unit: float) -> Tensor:
    """Of subtracting the largest logit, and of exp."""
    below = (logits.max(-1, keepdim=True).values - logits) + tilt + tilt.max(-1, True).values
    return unit * below + EXP_UNITS * unit


@lru_cache(maxsize=1024)
def table_facts(
    table: TablePair, dtype: torch.dtype, backend: str = "literal"
) -> tuple[ColumnFacts, ColumnFacts]:
    """Of both columns over the table's range, as they are in a prompt of this dtype."""
    first, second = (_facts(table, v, dtype, backend) for v in (table.f, table.g))
    return first, second


def _facts(table: TablePair, values: Tensor, dtype: torch.dtype, backend: str) -> ColumnFacts:
    """Of one column, for each way in which a backend may look it up."""
    unit, written = unit_roundoff(dtype), float(dtype != torch.float64)
    entries, ends = (table.slopes, table.biases, values), (table.low, table.high)
    if backend != "fused" or not values.any():
        return column_facts(*entries, *ends, unit, extra=written)
    even = uniform(*entries)
    off_grid = 0.0 if even is None else GRID_UNITS
    found = column_facts(*entries, *ends, unit, extra=written + off_grid)
    if even is not None:
        reach = max(abs(even.low), abs(even.high))
        model = RoundingModel(unit, True, reach, 1, even.half_width(unit))
        closed = (CLOSED_UNITS + 8) * unit * found.largest  # a parabola's own, and evaluating it
        if isinstance(closed_form(even, dtype), Rational):
            closed = rational_rounding(even, found.slope, float(values.abs().max()), unit)
        found = replace(found, rounding=found.rounding + even.rounding(model) + closed)
    window = OrderedWindow.of(*(t.to(dtype) for t in entries))
    if window is None:
        return found
    near = column_facts(*entries, *ends, unit, extra=written, window=window)
    return replace(found, rounding=max(found.rounding, near.rounding))


@dataclass(frozen=True)
class InstructionRounding:
    """How far one instruction's execution is from ``dst <- F(a + b) - G(a - b)`` with its table.

    Attributes
    ----------
    argument
        Error of a + b and of a - b, given what memory holds.
    look_up
        Error of F - G, given its arguments.
    store
        Error of writing it.
    leak
        What masks let through: 0, exactly.
    slope
        sup |F'| + sup |G'| over the table's range: what ``argument`` is multiplied by.

    Examples
    --------
    >>> round(InstructionRounding(argument=1e-16, look_up=2e-16, store=0.0, slope=3.0).total, 20)
    5e-16
    """

    argument: float
    look_up: float
    store: float
    slope: float
    leak: float = 0.0

    @property
    def total(self) -> float:
        """All of it, in the value that is stored."""
        return (self.slope * self.argument + self.look_up + self.store + self.leak) * OUTWARD_MANY


def instruction_rounding(
    assembly: Assembly,
    instruction: Instruction,
    bounds: Mapping[str, float],
    *,
    samples: int,
    width: int,
    dtype: torch.dtype,
    backend: str = "literal",
    apart: float = 0.0,
    table: TablePair | None = None,
    used: int | None = None,
) -> InstructionRounding:
    """How far rounding carries one instruction, at most.

    Parameters
    ----------
    assembly, instruction
        The program and one of its instructions.
    bounds
        For every variable a bound of the size of its components.
    samples, width
        n and m: of the run and of the computer.
    dtype, backend
        The arithmetic; "literal" or "fused".
    apart
        By how much the largest logit of a read by likeness is above all others, if exact.
    table
        The instruction's table, where it is read on another range than its own.
    used
        Components of a vector of the program; beyond them there is next to nothing. None for m.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> assembly = ice.compile(energy, dim=1, samples=3).assembly
    >>> bounds, first = {"x": 1.0, "g": 1.0}, assembly.instructions[0]
    >>> instruction_rounding(
    ...     assembly, first, bounds, samples=3, width=1, dtype=torch.float64
    ... ).total < 1e-12
    True
    """
    unit, table = unit_roundoff(dtype), table or assembly.table(instruction.table)
    f, g = table_facts(table, dtype, backend)
    result = f.largest + g.largest
    stored = unit * (2 * result + bounds[instruction.dst]) * (1 + unit)
    read = argument_rounding(
        assembly, instruction, bounds, samples=samples, width=width, unit=unit, apart=apart,
        used=used,
    )  # fmt: skip
    return InstructionRounding(
        argument=read + _stored_argument(table, unit),
        look_up=f.rounding + g.rounding + gamma(2, unit) * result,
        store=stored if backend == "literal" else 0.0,
        slope=f.slope + g.slope,
    )


def argument_rounding(
    assembly: Assembly, instruction: Instruction, bounds: Mapping[str, float], *, samples: int,
    width: int, unit: float, apart: float = 0.0, used: int | None = None,
) -> float:  # fmt: skip
    """Of a + b and of a - b, given what memory holds."""
    before = _result_before(assembly, instruction)
    reads = _ReadErrors(bounds, before, samples, width, unit, apart, used or width)
    return reads.argument(instruction.a, instruction.b)


def _stored_argument(table: TablePair, unit: float) -> float:
    """A sum of two operands is rounded once more."""
    return unit * max(abs(table.low), abs(table.high))


def _result_before(assembly: Assembly, instruction: Instruction) -> float:
    """Bound of r, the result of the instruction before."""
    before = (i for i in assembly.instructions if i.next == instruction.address)
    return max((largest_result(assembly, i) for i in before), default=0.0)


@dataclass(frozen=True)
class _ReadErrors:
    bounds: Mapping[str, float]
    before: float
    samples: int
    width: int
    unit: float
    apart: float
    used: int  # components that hold more than next to nothing

    def argument(self, a: Operand, b: Operand) -> float:
        """Of two operands: each read's own error, and of adding them up."""
        sizes = list(self._sizes(a)) + list(self._sizes(b))
        own = math.fsum(self._error(kind, v) for o in (a, b) for kind, v in o.reads())
        return own + gamma(max(0, len(sizes) - 1), self.unit) * math.fsum(sizes)

    def _sizes(self, operand: Operand) -> Iterator[float]:
        for kind, name in operand.reads():
            yield self.bounds[name] * (self.used if kind == "rowsum" else 1)

    def _error(self, kind: str, name: str) -> float:
        size, unit = self.bounds[name], self.unit
        if kind == "rowsum":
            return gamma(self.width - 1, unit) * self.used * size
        if kind == "mean":
            return gamma(self.samples + 1, unit) * size
        if kind == "like":
            return self._likeness(size)
        return 0.0

    def _likeness(self, size: float) -> float:
        logit = self.used * self.before * size
        off = gamma(self.width, self.unit) * logit + 2 * self.unit * logit + EXP_UNITS * self.unit
        sums = gamma(self.samples, self.unit) + gamma(self.samples + 1, self.unit) + 2 * self.unit
        moved = min(math.tanh(off), others_weigh(off, self.apart, self.samples))
        # A read at a place is the value there: neighbours weigh 2 e^-apart, and all others nothing.
        moved += 3 * math.exp(-self.apart) if self.apart else 0.0
        return moved * 2 * size + sums * size


def others_weigh(moved: float, apart: float, samples: int) -> float:
    """What all samples but one weigh, before and after logits have moved by ``moved`` at most.

    The exact logits have one that is ``apart`` from all others. Errors of what is computed before
    and rounding may move each by a sixteenth of that, so that differences keep three quarters;
    infinity says that it is more.
    """
    return 2 * samples * math.exp(-3 * apart / 4) if 16 * moved <= apart else math.inf
