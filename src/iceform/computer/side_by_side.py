r"""Vectors side by side, and attention: what takes more than one instruction.

**Places.** A scalar goes to component j as a product with the mask e_j. A vector that is to start
at another component than its own is moved one component at a time: rowsum[v e_j] e_(o+j). Data and
parameters are written into the prompt where they are wanted, at no cost.

**attend(q, k, v, b).** The read *like* weighs lanes by r . u with r the result of the instruction
before, so key, value and bias lie side by side in one variable u, and r holds the query beside the
key and 1 beside the bias, zeros elsewhere. A scalar value is then like[u] e_j, summed up; a vector
lies in front, where it needs no moving.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from iceform.computer.instructions import Write
from iceform.computer.virtual import LinearForm, Read, Register, of_register
from iceform.program import Node, Range

if TYPE_CHECKING:
    from iceform.computer.select import Selector
    from iceform.computer.writing import CodeSite


def packed(
    code: Selector, parts: tuple[Node, ...], samples: bool, site: CodeSite,
    offsets: list[int] | None = None,
) -> Register:  # fmt: skip
    """Nodes side by side in one register, of lane 0 or of every sample."""
    if offsets is None:
        offsets = [sum(p.width or 1 for p in parts[:i]) for i in range(len(parts))]
    width = max(o + (p.width or 1) for o, p in zip(offsets, parts, strict=True))
    code.writer.width = max(code.writer.width, width)
    writes: list[Write] = []
    computed: list[Register] = []
    span = Range(0.0, 0.0)
    for part, offset in zip(parts, offsets, strict=True):
        span = span.join(code.ranges[part])
        placed = _placed_writes(code, part, offset)
        if placed is None:
            computed += _placed(code, part, offset, samples, site)
        else:
            writes += placed
    base = code.writer.preload(tuple(writes), samples, width, span) if writes else None
    if not computed:
        assert base is not None
        return base
    total = LinearForm(tuple((Read("at", r), 1.0) for r in computed))
    if base is not None:
        total = total.plus(of_register(base))
    if len(total.terms) == 1 and computed[0].samples == samples:
        return computed[0]
    out = Register("", samples, width, span, clean=True)
    code.writer.line(out, total, "side by side", site)
    return out


def _placed_writes(code: Selector, part: Node, offset: int) -> list[Write] | None:
    writes = code.writer.as_writes(code.value(part), part.width)
    if writes is None:
        return None
    width = part.width or 1
    return [
        replace(w, first=offset + (w.first if w.width is not None else 0),
                width=w.width if w.width is not None else width)
        for w in writes
    ]  # fmt: skip


def _placed(
    code: Selector, part: Node, offset: int, samples: bool, site: CodeSite
) -> list[Register]:
    """Registers that hold the part where it is wanted, and zeros elsewhere."""
    span = code.ranges[part].join(Range(0.0, 0.0))
    if part.width is not None and offset == 0:
        clean = code.writer.cleaned(code.register(part), site)
        return [code.writer.unscaled(clean, site)]
    value = code.factor(part, samples, site)
    if part.width is None:
        return [_masked(code, value, offset, span, samples, site)]
    out = []
    for j in range(part.width):
        alone = LinearForm(((Read("rowsum", _masked(code, value, j, span, samples, site)), 1.0),))
        out.append(_masked(code, alone, offset + j, span, samples, site))
    return out


def _masked(
    code: Selector, value: LinearForm, place: int, span: Range, samples: bool, site: CodeSite
) -> Register:
    out = Register("", samples, place + 1, span, clean=True, single=True)
    held = max((r.range.size for r in value.reads), default=0.0)
    # Ones will do for most values; a large one is multiplied with a mask of its own size.
    size = 2.0 ** round(math.log2(held)) if held > 1 << 14 else 1.0
    mask = of_register(code.writer.mask(place, 1, size))
    code.writer.product(out, value, mask, f"to component {place}", site)
    # The components beyond the one are zero: a sum of them is the one.
    return out


def attended(code: Selector, node: Node) -> LinearForm:
    """The softmax average of the value."""
    query, key, value, *bias = node.args
    site, span = code.writer.site(node), code.ranges[value]
    one = code.value(key) is code.value(value) or (key is value and key.width is not None)
    query_at, value_at, bias_at = 0, 0, None
    if one and not bias:
        clean = code.writer.cleaned(code.register(key), site)
        table = code.writer.unscaled(clean, site)
    else:
        keys, values = key.width or 1, value.width or 1
        # A vector of values lies in front; a scalar behind the key, which then needs no moving.
        query_at, value_at = (values, 0) if value.width is not None else (0, keys)
        bias_at = keys + values if bias else None
        parts = (key, value, *bias)
        offsets = [query_at, value_at, *([] if bias_at is None else [bias_at])]
        home = code.writer.innermost(parts, key.place)
        table = packed(code, parts, key.samples, home, offsets)
    ask = _question(code, query, query_at, bias_at, node)
    if value.width is None:
        out = Register("", node.samples, value_at + 1, span.join(Range(0.0, 0.0)), clean=True,
                       single=True)  # fmt: skip
        _like(code, ask, out, table, code.writer.mask(value_at, 1), node)
        return LinearForm(((Read("rowsum", out), 1.0),))
    out = Register("", node.samples, value.width, span)
    _like(code, ask, out, table, None, node)
    return of_register(out)


def _question(code: Selector, query: Node, at: int, bias_at: int | None, node: Node) -> LinearForm:
    """The query beside the key, and 1 beside the bias."""
    late = code.value(query)
    ready = at == 0 and isinstance(late, LinearForm) and late.constant == 0 and late.terms
    if ready and isinstance(late, LinearForm) and all(r.clean for r in late.reads):
        form = late
    else:
        site = code.writer.site(node)
        form = of_register(packed(code, (query,), node.samples, site, [at]))
    return form if bias_at is None else form.plus(of_register(code.writer.mask(bias_at, 1)))


def _like(
    code: Selector, ask: LinearForm, dst: Register, table: Register, mask: Register | None,
    node: Node,
) -> None:  # fmt: skip
    """Ask, and take the answer; nothing may come between."""
    site = code.writer.site(node)
    width = max((r.register.width or 1) for r in ask.reads)
    question = Register("", node.samples, width, ask.range, clean=True)
    code.writer.line(question, ask, "asks", site)
    apart = math.inf if node.attr == "largest" else node.attr or 0.0
    like = LinearForm(((Read("like", table, apart), 1.0),))
    if mask is None:
        code.writer.line(dst, like, "attended", site)
    else:
        code.writer.product(dst, like, of_register(mask), "attended", site)
