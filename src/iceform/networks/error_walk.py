"""Ranges and errors through a whole graph, for every input that the pieces allow.

Entry by entry, so that moves leave them alone. It multiplies worst cases: useful for a layer or
two. How far one output is from the exact one is :mod:`iceform.networks.proven`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from iceform.networks.graph import NetworkGraph, NetworkNode, Ref
from iceform.networks.operations import is_move, put_in
from iceform.networks.parts import Parts
from iceform.networks.pieces import ErrorSpan, Piece


class ErrorWalk:
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

    def through(self, graph: NetworkGraph) -> ErrorSpan:
        """The span of all results together."""
        limits = {} if self.bound is not None else self._limits(graph)
        spans: dict[str, ErrorSpan] = {}
        for node in graph.nodes:
            found = self._step(node, spans)
            if node.name in limits:
                found = replace(found, entry=min(found.entry, limits[node.name]))
            if not node.is_size:
                spans[node.name] = found
        ends = [spans[r.name] for r in graph.results if isinstance(r, Ref)]
        return ErrorSpan(max(s.entry for s in ends), max(s.error for s in ends))

    def _limits(self, graph: NetworkGraph) -> dict[str, float]:
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

    def _piece(self, node: NetworkNode) -> Piece:
        found = self.parts.get_submodule(node.args[0])
        assert isinstance(found, Piece)
        return found

    def _step(self, node: NetworkNode, spans: Mapping[str, ErrorSpan]) -> ErrorSpan:
        if node.op == "input":
            width = node.shape[-1] if node.shape else None
            return ErrorSpan(math.inf if self.bound is None else self.bound, 0.0, 0.0, width)
        if node.op == "constant":
            return _constant(self.parts.get_buffer(node.args[0]))
        given = [_span(a, spans) for a in node.args]
        if node.op == "piece":
            piece = self._piece(node)
            if self.bound is not None:
                piece.set_range_from(*given[1:])
            after = piece.propagate_error(*given[1:])
            self.errors[piece.name] = max(self.errors.get(piece.name, 0.0), after.error)
            return after
        if not node.active:
            spans_in = [spans[n] for n in node.needs if n in spans]
            return ErrorSpan(max((s.entry for s in spans_in), default=math.inf))
        if node.op.startswith("size.") or is_move(node.short):
            # A mask that depends on what was computed chooses, and is not bounded.
            read = {n: spans[n] for n in node.needs if n in spans}
            moved = [span for n, span in read.items() if n in node.moved or span.error]
            moved += [ErrorSpan(abs(number)) for number in put_in(node.short, node.args)]
            return _moved(node, moved)
        width = node.shape[-1] if node.shape else None
        return self._native(node, given, width)

    def _native(  # noqa: PLR0911
        self, node: NetworkNode, given: list[ErrorSpan], width: int | None
    ) -> ErrorSpan:
        a, b = (*given, ErrorSpan(0.0))[:2]
        unit, root = self.unit, math.inf if width is None else math.sqrt(width)
        match node.short:
            case "add" | "sub" | "rsub":
                factor = abs(float(node.kwargs.get("alpha", 1)))
                entry, error = a.entry + factor * b.entry, a.error + factor * b.error
                own = 2 * unit * (entry + error)
                spread = math.inf
                if width is not None:
                    spread = a.along(width) + factor * b.along(width) + root * own
                return ErrorSpan(entry, error + own, spread, width)
            case "neg":
                return a
            case "mul":
                error = a.entry * b.error + b.entry * a.error + a.error * b.error
                entry = a.entry * b.entry
                return ErrorSpan(entry, error + unit * (entry + error), width=width)
            case "div" if isinstance(node.args[1], int | float) and node.args[1]:
                factor = abs(float(node.args[1]))
                return ErrorSpan(a.entry / factor, (a.error + unit * a.reach) / factor, width=width)
            case "matmul" | "bmm" | "mm" if a.width is not None:
                error = a.entry * b.error + b.entry * a.error + a.error * b.error
                own = 2 * (a.width + 2) * unit * a.reach * b.reach
                return ErrorSpan(a.width * a.entry * b.entry, a.width * (error + own), width=width)
            case "softmax":
                moved = math.expm1(min(2 * a.error, 1.0)) + 2**20 * unit
                return ErrorSpan(1.0, min(1.0, moved), width=width)
            case "mean":
                return ErrorSpan(a.entry, a.error + 2**16 * unit * a.reach, width=width)
        self.open.append(f"{node.short} in {node.where}")
        return ErrorSpan(math.inf, math.inf)


def _moved(node: NetworkNode, given: list[ErrorSpan]) -> ErrorSpan:
    """Entries are the same; rows may be cut, joined or taken apart."""
    if not given:
        return ErrorSpan(math.inf)
    entry, error = max(s.entry for s in given), max(s.error for s in given)
    width = node.shape[-1] if node.shape else None
    first = given[0]
    known = len(given) == 1 and first.width is not None
    if node.op.startswith("size.") or node.short in ("split", "split_with_sizes", "chunk"):
        return ErrorSpan(entry, error, first.spread if known else math.inf, width or first.width)
    if not known or width is None or first.width is None or not rows_stay(node):
        return ErrorSpan(entry, error, width=width)
    if first.width % width == 0:
        return ErrorSpan(entry, error, first.spread, width)
    if width % first.width == 0:
        return ErrorSpan(entry, error, math.sqrt(width // first.width) * first.spread, width)
    return ErrorSpan(entry, error, width=width)


def rows_stay(node: NetworkNode) -> bool:
    """Whether rows of the result are rows of what was moved, cut or joined."""
    rank = len(node.shape or ())
    if node.short in ("reshape", "unflatten", "flatten", "clone"):
        return True
    if node.short in ("transpose", "swapaxes"):
        return all(d % rank != rank - 1 for d in node.args[1:3])
    if node.short == "permute":
        return bool(node.args[1][-1] % rank == rank - 1)
    if node.short in ("unsqueeze", "select"):
        # select takes an axis away, unsqueeze adds one: the last one must be neither.
        size = rank if node.short == "unsqueeze" else rank + 1
        return bool(node.args[1] % size != size - 1)
    return False


def _keeps_all(node: NetworkNode) -> bool:
    kept = {"reshape", "transpose", "permute", "unsqueeze", "squeeze", "flatten", "t",
            "unflatten", "expand", "swapaxes", "movedim", "clone"}  # fmt: skip
    return node.short in kept


def _constant(tensor: Tensor) -> ErrorSpan:
    if not tensor.is_floating_point():
        return ErrorSpan(math.inf)
    allowed = tensor > torch.finfo(tensor.dtype).min / 2
    return ErrorSpan(
        float(tensor.masked_fill(~allowed, 0.0).abs().max()) if tensor.numel() else 0.0
    )


def _span(value: Any, spans: Mapping[str, ErrorSpan]) -> ErrorSpan:
    if isinstance(value, Ref):
        return spans.get(value.name, ErrorSpan(math.inf))
    return ErrorSpan(abs(float(value))) if isinstance(value, int | float) else ErrorSpan(math.inf)
