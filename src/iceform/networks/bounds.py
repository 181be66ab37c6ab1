r"""How far the numbers of a network can reach, and how far they are from the exact ones.

Behind a norm :math:`y = \gamma \circ u + \beta` with :math:`\|u\|_2 \le \sqrt d`, so a row of the
next map reaches :math:`\sqrt d\,\|W_r \circ \gamma\|_2 + |W_r \beta + b_r|` and no farther; heads
take means of values, activations grow by at most their slope. Embeddings are as long as their
longest row. These are bounds of what is *emulated*: a piece's own error is added behind it.

A piece is widened for all that can reach it, where that is bounded. What is not, the first map on
numbers that come in from outside, keeps its calibrated range.

Errors go along, entry by entry, so that moves leave them alone. With A, B bounds of emulated a, b
and errors e, f, :math:`|ab - (a - e)(b - f)| \le A f + B e + e f`. Worst cases multiply: how far
*one* output is from the exact one is :mod:`iceform.networks.proven`'s.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic.units import OUTWARD_MANY
from iceform.errors import ProgramError
from iceform.networks.graph import NetworkGraph, NetworkNode, Ref
from iceform.networks.operations import CUTS, KEEPS_ALL, is_move, made_of, makes, put_in
from iceform.networks.parts import Parts
from iceform.networks.pieces import Bounds, Piece
from iceform.networks.pieces.products import product_error, times


def extend(parts: Parts, graph: NetworkGraph, unit: float, *, widen: bool = True) -> frozenset[str]:
    """The nodes whose pieces need not measure their inputs: all that can reach them is in range.

    ``widen`` widens the pieces for it, where that is bounded.
    """
    walk = BoundsWalk(parts, unit, widen=widen)
    walk.through(graph)
    return frozenset(walk.covered)


class BoundsWalk:
    """One walk through a graph.

    Parameters
    ----------
    parts
        The pieces.
    unit
        Unit roundoff, of what runs between them.
    widen
        Widen pieces for all that can reach them.
    bound
        max |input|, where ranges are to be settled from it.
    errors
        Carry errors, for inputs that the pieces let pass.
    """

    def __init__(
        self, parts: Parts, unit: float, *,
        widen: bool = False, bound: float = math.inf, errors: bool = False,
    ) -> None:  # fmt: skip
        self.parts, self.unit, self.bound = parts, unit, bound
        self.outward = 1 + 8 * unit  # an operation's rounding, and that of its bound
        self.widen, self._carries = widen, errors
        self.errors: dict[str, float] = {}  # behind every piece
        self.covered: set[str] = set()
        self.open: list[str] = []  # operations that nothing here bounds

    def through(self, graph: NetworkGraph) -> float:
        """Follow bounds from the inputs to the results; return the largest error of a result."""
        limits = self._limits(graph) if self._carries else {}
        known: dict[str, Bounds] = {}
        for node in graph.nodes:
            found = self._step(node, known)
            if node.name in limits:
                found = replace(found, entry=min(found.entry, limits[node.name]))
            if not node.is_size:  # a move's sizes are not among the numbers that it moves
                known[node.name] = found
        return max(known[r.name].error for r in graph.results if isinstance(r, Ref))

    def _limits(self, graph: NetworkGraph) -> dict[str, float]:
        """How large each value may be, since the pieces that read it refuse larger inputs."""
        limits: dict[str, float] = {}
        for node in reversed(graph.nodes):
            if node.op == "piece":
                limit = self._of(node).limit
            elif node.active and node.short in KEEPS_ALL:
                limit = limits.get(node.name, math.inf)
            else:
                continue
            for name in node.needs[:1]:
                limits[name] = min(limits.get(name, math.inf), limit)
        return limits

    def _of(self, node: NetworkNode) -> Piece:
        found = self.parts.get_submodule(node.args[0])
        assert isinstance(found, Piece)
        return found

    def _step(self, node: NetworkNode, known: dict[str, Bounds]) -> Bounds:
        width = node.shape[-1] if node.shape else None
        if node.op == "input":
            return Bounds(self.bound, spread=0.0, width=width)
        if node.op == "constant":
            found = _constant(self.parts.get_buffer(node.args[0]), masks=self._carries)
            # One that was computed from parameters is kept wide, and rounded when it is read.
            rounded = self.unit * found.entry if len(node.args) > 1 else 0.0
            return replace(found, error=rounded, spread=math.inf if rounded else found.spread)
        given = [_known(a, known) for a in node.args]
        if node.op == "piece":
            return self._behind(node, given[1:])
        if makes(node.short):
            what = made_of(node.short, node.args, node.kwargs)
            return replace(_known(what, known), ball=None, length=math.inf, spread=math.inf,
                           width=width)  # fmt: skip
        if node.op.startswith("size.") or is_move(node.short):
            # A mask that depends on what was computed chooses, and its error is theirs.
            read = [n for n in node.needs if n in known]
            moved = [known[n] for n in read if n in node.moved]
            chosen = any(known[n].error for n in read if n not in node.moved)
            moved += [Bounds(abs(number)) for number in put_in(node.short, node.args)]
            found = _moved(node, moved)
            return replace(found, error=math.inf, spread=math.inf) if chosen else found
        found = self._native(node, [b.as_rows(width) for b in given], width)
        return found if node.active else replace(found, error=0.0, spread=0.0)

    def _behind(self, node: NetworkNode, given: list[Bounds]) -> Bounds:
        piece = self._of(node)
        if self.bound < math.inf:
            if not all(math.isfinite(b.entry) for b in given[: piece.ranged]):
                raise ProgramError(
                    f"ranges cannot be bounded through {', '.join(self.open) or piece.name}; pass "
                    "calibration= instead"
                )
            piece.set_range_from(*given)
        found = piece.bounds(*given, widen=self.widen)
        if piece.covers(*given):
            self.covered.add(node.name)
        if self._carries:
            error, spread = piece.propagate_error(*given)
            self.errors[piece.name] = max(self.errors.get(piece.name, 0.0), error)
            found = replace(found, error=error, spread=spread)
        return found

    def _native(  # noqa: PLR0911
        self, node: NetworkNode, given: list[Bounds], width: int | None
    ) -> Bounds:
        a, b, outward = *(*given, Bounds(0.0, 0.0))[:2], self.outward
        match node.short:
            case "add" | "sub" | "rsub":
                factor = abs(float(node.kwargs.get("alpha", (*node.args, 1, 1)[2])))
                a, b = (b, a) if node.short == "rsub" else (a, b)
                entry = (a.entry + factor * b.entry) * outward
                length = (a.length + factor * b.length) * outward
                own, spread = 2 * self.unit * entry, math.inf
                if width is not None:
                    spread = a.apart(width) + factor * b.apart(width) + math.sqrt(width) * own
                error = a.error + factor * b.error + own
                return Bounds(entry, length, error=error, spread=spread, width=width)
            case "neg":
                return replace(a, ball=None)
            case "mul":
                entry = times(a.entry, b.entry) * outward
                length = min(times(a.length, b.entry), times(a.entry, b.length)) * outward
                error = product_error(a, b) + self.unit * entry
                return Bounds(entry, length, error=error, width=width)
            case "div" if _is_number(node.args[1]) and not node.kwargs:
                factor = outward / abs(float(node.args[1]))
                error = (a.error + self.unit * a.entry) * factor
                return Bounds(a.entry * factor, a.length * factor, error=error, width=width)
            case "matmul" | "bmm" | "mm" if a.width is not None:
                term = times(a.entry, b.entry)
                own = 2 * (a.width + 2) * self.unit * term
                error = a.width * (product_error(a, b) + own)
                return Bounds(a.width * (term + own), error=error, width=width)
            case "softmax":
                moved = math.expm1(min(2 * a.error, 1.0)) + 2**20 * self.unit
                return Bounds(outward, error=min(1.0, moved), width=width)
            case "mean":
                own = 2**16 * self.unit * a.entry
                return Bounds(a.entry + own, error=a.error + own, width=width)
            case "cos" | "sin" if not node.active:
                return Bounds(1.0, width=width)
        if node.active:
            self.open.append(f"{node.short} in {node.where}")
        return Bounds(error=math.inf, width=width)


def _moved(node: NetworkNode, given: list[Bounds]) -> Bounds:
    """Bounds behind a move: entries stay, and row lengths where rows are kept, cut or joined."""
    if not given:
        return Bounds()
    width, first = node.shape[-1] if node.shape else None, given[0]
    entry, error = max(b.entry for b in given), max(b.error for b in given)
    found = Bounds(entry, error=error, width=width)
    if len(given) > 1:
        return found
    if node.op.startswith("size.") or node.short in CUTS:
        joined, width = 1.0, width or first.width
    elif width and first.width and rows_stay(node):
        if first.width == width:
            return first
        if first.width % width and width % first.width:
            return found
        joined = math.sqrt(max(1, width // first.width))
    else:
        return found
    lengths = joined * first.length, joined * first.spread
    return replace(found, length=lengths[0], spread=lengths[1], width=width)


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


def _constant(tensor: Tensor, *, masks: bool) -> Bounds:
    """Bounds of a constant; ``masks`` leaves out entries so low that they only forbid tokens."""
    if not tensor.is_floating_point() or not tensor.numel():
        return Bounds()
    if masks:
        tensor = tensor.masked_fill(tensor <= torch.finfo(tensor.dtype).min / 2, 0.0)
    largest, row = float(tensor.abs().max()), tensor.double().cpu()
    width = tensor.shape[-1] if tensor.ndim else None
    if tensor.ndim != 1 or not math.isfinite(largest):
        return Bounds(largest, spread=0.0, width=width)
    ball = torch.zeros_like(row), row
    return Bounds(largest, float(row.norm()) * OUTWARD_MANY, ball, 0.0, spread=0.0, width=width)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value != 0


def _known(value: Any, known: dict[str, Bounds]) -> Bounds:
    if isinstance(value, Ref):
        return known.get(value.name, Bounds())
    return Bounds(abs(float(value))) if isinstance(value, int | float) else Bounds()
