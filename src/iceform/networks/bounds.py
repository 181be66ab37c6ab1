r"""How far the numbers of a network can reach, whatever comes in.

Behind a norm :math:`y = \gamma \circ u + \beta` with :math:`\|u\|_2 \le \sqrt d`, so a row of the
next map reaches :math:`\sqrt d\,\|W_r \circ \gamma\|_2 + |W_r \beta + b_r|` and no farther; heads
take means of values, activations grow by at most their slope. Embeddings are as long as their
longest row. These are bounds of what is *emulated*: a piece's own error is added behind it.

A piece is widened for all that can reach it, where that is bounded. What is not, the first map on
numbers that come in from outside, keeps its calibrated range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from iceform.arithmetic.units import OUTWARD_SINGLE
from iceform.networks.error_walk import rows_stay
from iceform.networks.graph import NetworkGraph, NetworkNode, Ref
from iceform.networks.operations import is_move, put_in
from iceform.networks.parts import Parts
from iceform.networks.pieces import Bounds, Piece


def extend(parts: Parts, graph: NetworkGraph, *, widen: bool = True) -> frozenset[str]:
    """The nodes whose pieces need not measure their inputs: all that can reach them is in range.

    ``widen`` widens the pieces for it, where that is bounded.
    """
    reaches: dict[str, Bounds] = {}
    covered = set()
    for node in graph.nodes:
        found = _step(parts, node, reaches, widen=widen)
        if node.op == "piece":
            piece = parts.get_submodule(node.args[0])
            assert isinstance(piece, Piece)
            given = [_of(a, reaches) for a in node.args[1:]]
            covered |= {node.name} if piece.covers(*given) else set()
        if not node.is_size:  # a move's sizes are not among the numbers that it moves
            reaches[node.name] = found
    return frozenset(covered)


def _step(parts: Parts, node: NetworkNode, reaches: Mapping[str, Bounds], *, widen: bool) -> Bounds:
    if node.op == "input":
        return Bounds()
    if node.op == "constant":
        return _constant(parts.get_buffer(node.args[0]))
    given = [_of(a, reaches) for a in node.args]
    if node.op == "piece":
        piece = parts.get_submodule(node.args[0])
        assert isinstance(piece, Piece)
        return piece.bounds(*given[1:], widen=widen)
    if node.short in ("cos", "sin"):
        return Bounds(1.0)
    if node.op.startswith("size.") or is_move(node.short):
        moved = [reaches[n] for n in node.moved if n in reaches]
        moved += [Bounds(abs(number)) for number in put_in(node.short, node.args)]
        return _moved(node, moved)
    return _native(node, given)


def _native(node: NetworkNode, given: list[Bounds]) -> Bounds:
    a, b = (*given, Bounds(0.0, 0.0))[:2]
    if node.short in ("add", "sub", "rsub"):
        factor = abs(float(node.kwargs.get("alpha", 1)))
        entry, length = a.entry + factor * b.entry, a.length + factor * b.length
        return Bounds(entry * OUTWARD_SINGLE, length * OUTWARD_SINGLE)
    if node.short == "neg":
        return Bounds(a.entry, a.length)
    if node.short == "mul":
        length = min(a.length * b.entry, a.entry * b.length)
        return Bounds(a.entry * b.entry * OUTWARD_SINGLE, length * OUTWARD_SINGLE)
    if node.short == "div" and isinstance(node.args[1], int | float) and node.args[1]:
        factor = OUTWARD_SINGLE / abs(float(node.args[1]))
        return Bounds(a.entry * factor, a.length * factor)
    if node.short == "mean":
        return Bounds(a.entry * OUTWARD_SINGLE)
    return Bounds()


def _moved(node: NetworkNode, given: list[Bounds]) -> Bounds:
    """Entries are the same; the length of a row where rows stay, or are cut."""
    if not given:
        return Bounds()
    entry = max(r.entry for r in given)
    if len(given) == 1 and (node.short in ("split", "split_with_sizes", "chunk", "getitem")):
        return Bounds(entry, given[0].length)
    width = node.shape[-1] if node.shape else None
    if len(given) == 1 and width is not None and rows_stay(node):
        # Rows may have been joined: then the length is not known, entries are.
        if node.short in ("reshape", "flatten"):
            return Bounds(entry)
        whole = given[0].ball is not None and len(given[0].ball[0]) == width
        return given[0] if whole else Bounds(entry, given[0].length)
    return Bounds(entry)


def _constant(tensor: torch.Tensor) -> Bounds:
    if not tensor.is_floating_point() or not tensor.numel():
        return Bounds()
    largest, row = float(tensor.abs().max()), tensor.double().cpu()
    if tensor.ndim != 1 or not math.isfinite(largest):
        return Bounds(largest)
    return Bounds(largest, float(row.norm()) * OUTWARD_SINGLE, (torch.zeros_like(row), row), 0.0)


def _of(value: Any, reaches: Mapping[str, Bounds]) -> Bounds:
    if isinstance(value, Ref):
        return reaches.get(value.name, Bounds())
    return Bounds(abs(float(value))) if isinstance(value, int | float) else Bounds()
