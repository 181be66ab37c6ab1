"""Ways through shapes that no memory has, as torch's own heads go: each would be a copy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import fx

from iceform.networks.parts import Const

if TYPE_CHECKING:
    from iceform.networks.convert import Conversion


def reshaped(to: Conversion, node: fx.Node) -> Any:
    """What a reshape ends, in one step; None where it is no such way."""
    return _as_heads(to, node) or _mapped_in_place(to, node)


def _as_heads(to: Conversion, node: fx.Node) -> Any:
    """(t, b, h d) as (t, b h, d), turned, as (b, h, t, d): the heads of every token, permuted."""
    turned = to.source(node.args[0], "transpose")
    flat = None if turned is None else to.source(turned.args[0], "view", "reshape")
    if flat is None or sorted(turned.args[1:]) != [0, 1]:
        return None
    given, between, made = (_sizes(n) for n in (flat.args[0], flat, node))
    if (len(given), len(between), len(made)) != (3, 3, 4):
        return None
    heads, features = made[1], made[3]
    whole = isinstance(heads, int) and isinstance(features, int) and given[2] == heads * features
    if not whole or between[::2] != (given[0], features) or made[::2] != (given[1], given[0]):
        return None
    y = to.value(flat.args[0])
    y = to.call(node, "aten.unflatten.int", y, -1, [heads, features], suffix=".heads")
    return to.call(node, "aten.permute.default", y, [1, 2, 0, 3])


def _mapped_in_place(to: Conversion, node: fx.Node) -> Any:
    """A map of rows (t b, n) that were (t, b, ...) and become that again: of (t, b, n)."""
    mapped = to.source(node.args[0], "linear")
    rows = None if mapped is None else to.source(mapped.args[0], "view", "reshape")
    if rows is None:
        return None
    given, flat, out, made = (_sizes(n) for n in (rows.args[0], rows, mapped, node))
    inner = given[2:]
    if len(flat) != 2 or not inner or not all(isinstance(n, int) for n in inner):
        return None
    if math.prod(inner) != flat[1] or made != (*given[:2], out[1]):
        return None
    weight, *bias = (to.value(a) for a in mapped.args[1:])
    if not all(isinstance(c, Const | None) for c in (weight, *bias)):
        return None
    piece = to.map(mapped, weight, *(bias or [None]))
    y = to.value(rows.args[0])
    if len(inner) > 1:
        y = to.call(node, "aten.flatten.using_ints", y, 2, -1, suffix=".rows")
    return to.on(node, piece, y)


def _sizes(node: Any) -> tuple[Any, ...]:
    """Of a node's value: numbers, and what stands for them."""
    return tuple(n if isinstance(n, int) else n.node.expr for n in node.meta["val"].shape)
