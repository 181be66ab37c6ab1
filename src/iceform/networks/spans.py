"""Ranges and errors through a whole graph, for every input that the pieces allow.

Entry by entry, so that moves leave them alone. It multiplies worst cases: useful for a layer or
two. The error of one given input is :mod:`iceform.networks.certifying`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from iceform.networks.convert import Parts
from iceform.networks.graph import Graph, Node, Ref
from iceform.networks.operations import is_move
from iceform.networks.pieces import Piece, Span

__all__ = ["Walk"]


class Walk:
    """One walk through a graph.

    Parameters
    ----------
    parts
        The pieces.
    unit
        Unit roundoff, of what runs between them.
    bound
        max |input|, where ranges are to be settled from it.
    """

    def __init__(self, parts: Parts, unit: float, bound: float | None = None) -> None:
        self.parts, self.unit, self.bound = parts, unit, bound
        self.errors: dict[str, float] = {}
        self.open: list[str] = []  # operations that nothing here bounds

    def through(self, graph: Graph) -> Span:
        """The span of all results together."""
        limits = {} if self.bound is not None else self._limits(graph)
        spans: dict[str, Span] = {}
        for node in graph.nodes:
            found = self._step(node, spans)
            if node.name in limits:
                found = Span(min(found.entry, limits[node.name]), found.error)
            spans[node.name] = found
        ends = [spans[r.name] for r in graph.results if isinstance(r, Ref)]
        return Span(max(s.entry for s in ends), max(s.error for s in ends))

    def _limits(self, graph: Graph) -> dict[str, float]:
        """What pieces allow at their inputs, carried back through moves."""
        limits: dict[str, float] = {}
        for node in reversed(graph.nodes):
            if node.op == "piece":
                limit = self._piece(node).limit
            elif is_move(node.short) and node.short != "slice" and node.active:
                limit = limits.get(node.name, math.inf) if _keeps_all(node) else math.inf
            else:
                continue
            for name in node.needs[:1]:
                limits[name] = min(limits.get(name, math.inf), limit)
        return limits

    def _piece(self, node: Node) -> Piece:
        found = self.parts.get_submodule(node.args[0])
        assert isinstance(found, Piece)
        return found

    def _step(self, node: Node, spans: Mapping[str, Span]) -> Span:
        if node.op == "input":
            return Span(math.inf if self.bound is None else self.bound)
        if node.op == "constant":
            return _constant(self.parts.get_buffer(node.args[0]))
        given = [_span(a, spans) for a in node.args]
        if node.op == "piece":
            piece = self._piece(node)
            if self.bound is not None:
                piece.settle_for(*given[1:])
            after = piece.walk(*given[1:])
            self.errors[piece.name] = max(self.errors.get(piece.name, 0.0), after.error)
            return after
        if not node.active:
            spans_in = [spans[n] for n in node.needs]
            return Span(max((s.entry for s in spans_in), default=math.inf))
        if node.op.startswith("size.") or is_move(node.short):
            inside = [spans[n] for n in node.needs]
            return Span(max(s.entry for s in inside), max(s.error for s in inside))
        return self._native(node, given)

    def _native(self, node: Node, given: list[Span]) -> Span:
        a, b = (*given, Span(0.0))[:2]
        unit = self.unit
        match node.short:
            case "add" | "sub" | "rsub":
                factor = abs(float(node.kwargs.get("alpha", 1)))
                entry, error = a.entry + factor * b.entry, a.error + factor * b.error
                return Span(entry, error + 2 * unit * (entry + error))
            case "neg":
                return a
            case "mul":
                error = a.entry * b.error + b.entry * a.error + a.error * b.error
                entry = a.entry * b.entry
                return Span(entry, error + unit * (entry + error))
            case "div" if isinstance(node.args[1], int | float) and node.args[1]:
                factor = abs(float(node.args[1]))
                return Span(a.entry / factor, (a.error + unit * a.reach) / factor)
            case "softmax":
                return Span(1.0, min(1.0, math.expm1(min(2 * a.error, 1.0)) + 2**20 * unit))
            case "mean":
                return Span(a.entry, a.error + 2**16 * unit * a.reach)
        self.open.append(f"{node.short} in {node.where}")
        return Span(math.inf, math.inf)


def _keeps_all(node: Node) -> bool:
    kept = {"view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "flatten", "t",
            "unflatten", "expand", "_unsafe_view", "swapaxes", "movedim", "clone"}  # fmt: skip
    return node.short in kept


def _constant(tensor: Tensor) -> Span:
    if not tensor.is_floating_point():
        return Span(math.inf)
    allowed = tensor > torch.finfo(tensor.dtype).min / 2
    return Span(float(tensor.masked_fill(~allowed, 0.0).abs().max()) if tensor.numel() else 0.0)


def _span(value: Any, spans: Mapping[str, Span]) -> Span:
    if isinstance(value, Ref):
        return spans[value.name]
    return Span(abs(float(value))) if isinstance(value, int | float) else Span(math.inf)
