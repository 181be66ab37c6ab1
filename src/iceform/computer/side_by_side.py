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
    from iceform.computer.emit import Emitter


def packed(
    fuser: Emitter, parts: tuple[Node, ...], node: Node, offsets: list[int] | None = None
) -> Register:
    """Nodes side by side in one register of the lanes of ``node``."""
    if offsets is None:
        offsets = [sum(p.width or 1 for p in parts[:i]) for i in range(len(parts))]
    width = max(o + (p.width or 1) for o, p in zip(offsets, parts, strict=True))
    fuser.width = max(fuser.width, width)
    writes: list[Write] = []
    computed: list[Register] = []
    span = Range(0.0, 0.0)
    for part, offset in zip(parts, offsets, strict=True):
        span = span.join(fuser.ranges[part])
        placed = _placed_writes(fuser, part, offset)
        if placed is None:
            computed += _placed(fuser, part, offset, node)
        else:
            writes += placed
    if not computed:
        return fuser.preload(tuple(writes), node.samples, width, span)
    total = LinearForm(tuple((Read("at", r), 1.0) for r in computed))
    if writes:
        base = fuser.preload(tuple(writes), node.samples, width, span)
        total = total.plus(of_register(base))
    if len(total.terms) == 1 and computed[0].samples == node.samples:
        return computed[0]
    out = Register("", node.samples, width, span, clean=True)
    fuser.emit_line(out, total, "side by side", node.place, node=node)
    return out


def _placed_writes(fuser: Emitter, part: Node, offset: int) -> list[Write] | None:
    writes = fuser.as_writes(fuser.value(part), part.width)
    if writes is None:
        return None
    width = part.width or 1
    return [
        replace(w, first=offset + (w.first if w.width is not None else 0),
                width=w.width if w.width is not None else width)
        for w in writes
    ]  # fmt: skip


def _placed(fuser: Emitter, part: Node, offset: int, node: Node) -> list[Register]:
    """Registers that hold the part where it is wanted, and zeros elsewhere."""
    span = fuser.ranges[part].join(Range(0.0, 0.0))
    if part.width is None:
        scalar = fuser.operand(part, node)
        return [_masked(fuser, scalar, offset, span, node)]
    if offset == 0:
        return [fuser.unscaled(fuser.cleaned(fuser.register(part), node), node)]
    vector = fuser.operand(part, node)
    out = []
    for j in range(part.width):
        one = _masked(fuser, vector, j, span, node)
        out.append(
            _masked(fuser, LinearForm(((Read("rowsum", one), 1.0),)), offset + j, span, node)
        )
    return out


def _masked(fuser: Emitter, value: LinearForm, place: int, span: Range, node: Node) -> Register:
    out = Register("", node.samples, place + 1, span, clean=True, single=True)
    held = max((r.range.size for r, _ in value.terms), default=0.0)
    # Ones will do for most values; a large one is multiplied with a mask of its own size.
    size = 2.0 ** round(math.log2(held)) if held > 1 << 14 else 1.0
    mask = of_register(fuser.mask(place, 1, size))
    fuser.product(out, value, mask, node, f"to component {place}")
    # The components beyond the one are zero: a sum of them is the one.
    return out


def attended(fuser: Emitter, node: Node) -> LinearForm:
    """The softmax average of the value."""
    query, key, value, *bias = node.args
    together = fuser.value(key) is fuser.value(value) or _same_register(fuser, key, value)
    if together and not bias:
        clean = fuser.cleaned(fuser.register(key), node)
        table, query_at, value_at = fuser.unscaled(clean, node), 0, 0
        bias_at = None
    else:
        table, query_at, value_at, bias_at = _side_by_side(fuser, key, value, bias)
    span = fuser.ranges[value]
    ask = _question(fuser, query, query_at, bias_at, node)
    if value.width is not None:
        out = Register("", node.samples, value.width, span)
        _like(fuser, ask, out, table, None, node)
        if value_at == 0:
            return of_register(out)
        moved = Register("", node.samples, value.width, span, clean=True)
        pieces = []
        for j in range(value.width):
            one = _masked(fuser, of_register(out), value_at + j, table.range, node)
            pieces.append(_masked(fuser, LinearForm(((Read("rowsum", one), 1.0),)), j, span, node))
        fuser.emit_line(moved, LinearForm(tuple((Read("at", r), 1.0) for r in pieces)), "attended",
                        node.place, node=node)  # fmt: skip
        return of_register(moved)
    out = Register("", node.samples, value_at + 1, span.join(Range(0.0, 0.0)), clean=True,
                   single=True)  # fmt: skip
    _like(fuser, ask, out, table, fuser.mask(value_at, 1), node)
    return LinearForm(((Read("rowsum", out), 1.0),))


def _same_register(fuser: Emitter, key: Node, value: Node) -> bool:
    return key is value and key.width is not None


def _side_by_side(
    fuser: Emitter, key: Node, value: Node, bias: list[Node]
) -> tuple[Register, int, int, int | None]:
    """Key, value and bias in one register; where the query, the value and the bias lie."""
    keys, values = key.width or 1, value.width or 1
    # A vector of values lies in front; a scalar behind the key, which then needs no moving.
    key_at, value_at = (values, 0) if value.width is not None else (0, keys)
    bias_at = keys + values if bias else None
    parts: tuple[Node, ...] = (key, value, *bias)
    offsets = [key_at, value_at, *([] if bias_at is None else [bias_at])]
    table = packed(fuser, parts, fuser.together(parts, key), offsets)
    return table, key_at, value_at, bias_at


def _question(fuser: Emitter, query: Node, at: int, bias_at: int | None, node: Node) -> LinearForm:
    """The query beside the key, and 1 beside the bias."""
    late = fuser.value(query)
    ready = at == 0 and isinstance(late, LinearForm) and late.constant == 0 and late.terms
    if ready and isinstance(late, LinearForm) and all(r.clean for r, _ in late.terms):
        form = late
    else:
        form = of_register(packed(fuser, (query,), node, [at]))
    return form if bias_at is None else form.plus(of_register(fuser.mask(bias_at, 1)))


def _like(
    fuser: Emitter,
    ask: LinearForm,
    dst: Register,
    table: Register,
    mask: Register | None,
    node: Node,
) -> None:
    """Ask, and take the answer; nothing may come between."""
    width = max([(r.register.width or 1) for r, _ in ask.terms])
    question = Register("", node.samples, width, ask.range, clean=True)
    fuser.emit_line(question, ask, "asks", node.place, node=node)
    like = LinearForm(((Read("like", table, node.attr or 0.0), 1.0),))
    if mask is None:
        fuser.emit_line(dst, like, "attended", node.place, node=node)
    else:
        fuser.product(dst, like, of_register(mask), node, "attended")
