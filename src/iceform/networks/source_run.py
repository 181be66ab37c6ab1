"""The source of a network on one input, in float64: every operation as a step of a tape.

What the network in context computed is then so far from the exact network as it is from this run,
and as this run is from exact arithmetic. The maps of the pieces are the exact ones; what positions
and parameters alone determine is as float64 has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from iceform.expressions.formulas import Formula, trees
from iceform.networks.capture import lifted
from iceform.networks.graph import NetworkGraph, NetworkNode, Ref, at, function_of
from iceform.networks.model import NetworkModel, cast
from iceform.networks.operations import PUT_IN, is_move, makes
from iceform.networks.pieces import (
    Activation,
    AttentionPiece,
    EmbeddingMap,
    LinearMap,
    Norm,
    Piece,
    ProductPiece,
)
from iceform.program import AffineMap, Moving, Tape, attention

_ROOTS = {"sqrt": "sqrt(z)", "rsqrt": "1/sqrt(z)", "reciprocal": "1/z"}
_POWERS = {2: "square", 3: "cube", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}


class OpenStepError(Exception):
    """A step that no rule bounds."""


@cache
def _root(name: str) -> trees.Node:
    return Formula(_ROOTS[name]).tree


class SourceRun:
    """Steps of one run, made while the graph runs.

    Parameters
    ----------
    model
        Whose source it is.
    device
        Where it runs.
    """

    def __init__(self, model: NetworkModel, device: torch.device | None = None) -> None:
        self.model, self.parts, self.tape = model, model.exact_parts(), Tape(device)
        self.at: dict[str, Any] = {}  # steps of the nodes' values

    def run(self, graph: NetworkGraph, tensors: Sequence[Tensor]) -> list[int]:
        """Run the graph; the steps of its results, floating-point ones only."""
        seen: list[tuple[NetworkNode, Any, Any, Any]] = []
        with lifted(self.model.settings.dtype), torch.no_grad():
            graph.run(self.parts, cast(list(tensors), torch.float64), lambda *one: seen.append(one))
        for one in seen:
            self._saw(*one)
        return [self.at[r.name] for r in graph.results if isinstance(r, Ref) and r.name in self.at]

    # -------------------------------------------------------------------------------------- nodes

    def _saw(self, node: NetworkNode, args: Any, kwargs: Mapping[str, Any], value: Any) -> None:
        if node.op == "piece":
            self.at[node.name] = self._piece(node, args, value)
        elif isinstance(value, tuple | list):
            self.at[node.name] = self._several(node, args, kwargs, value)
        elif isinstance(value, Tensor) and node.active and not value.is_floating_point():
            raise OpenStepError(f"{node.short} in {node.where}, a choice by what was computed")
        elif isinstance(value, Tensor) and value.is_floating_point():
            self.at[node.name] = self._floating(node, args, kwargs, value)

    def _step(self, argument: Any, value: Any) -> int:
        """The step of an argument: a node's, or a number's."""
        if isinstance(argument, Ref) and argument.name in self.at:
            found = self.at[argument.name]
            assert isinstance(found, int)
            return found
        return self.tape.leaf(torch.as_tensor(value, dtype=torch.float64))

    def _floating(self, node: NetworkNode, args: Any, kwargs: Any, value: Tensor) -> int:
        known = [n for n in node.needs if n in self.at]
        filled = node.short == "fill" and isinstance(node.args[1], Ref)  # with what was computed
        made = makes(node.short) and not filled
        if node.op == "input" or not node.active or made or not known:
            return self.tape.leaf(value)
        if node.op == "size.getitem":
            found = self.at[node.args[0].name][node.args[1]]
            assert isinstance(found, int)
            return found
        if node.short == "scatter" or "value" in kwargs:
            raise OpenStepError(f"{node.short} in {node.where}")
        if is_move(node.short):
            return self._moved(node, args, kwargs)
        found = self._native(node, args, kwargs)
        if found is None:
            raise OpenStepError(f"{node.short} in {node.where}")
        return found

    def _several(self, node: NetworkNode, args: Any, kwargs: Any, value: Sequence[Any]) -> Any:
        if not any(isinstance(v, Tensor) and v.is_floating_point() for v in value):
            return None
        if not is_move(node.short):
            raise OpenStepError(f"{node.short} in {node.where}")
        return [self._moved(node, args, kwargs, pick=i) for i in range(len(value))]

    def _moved(self, node: NetworkNode, args: Any, kwargs: Any, pick: int | None = None) -> int:
        names = [n for n in node.needs if isinstance(self.at.get(n), int)]
        function = function_of(node.op)

        def filled(pattern: Any, given: Any, by: Mapping[str, Tensor]) -> Any:
            if isinstance(pattern, Ref):
                return by.get(pattern.name, given)
            if isinstance(pattern, tuple | list):
                return type(pattern)(filled(p, g, by) for p, g in zip(pattern, given, strict=True))
            return given

        def wide(value: Any) -> Any:
            return torch.float64 if isinstance(value, torch.dtype) else value

        def moved(*x: Tensor, radii: bool = False) -> Tensor:
            by = dict(zip(names, x, strict=True))
            here = list(filled(node.args, args, by))
            for i in PUT_IN.get(node.short, ()) if radii else ():
                if i < len(here) and isinstance(here[i], int | float):
                    here[i] = 0.0
            if node.short == "slice_scatter" and len(here) > 4 and here[4] is not None:
                here[4] = min(here[4], here[0].shape[here[2]])  # its derivative wants a place
            named = {k: wide(filled(node.kwargs[k], v, by)) for k, v in kwargs.items()}
            where = self.tape.device
            out = function(*at(where, tuple(map(wide, here))), **at(where, named))
            found: Tensor = out if pick is None else out[pick]
            return found

        move = Moving(moved, lambda *x: moved(*x, radii=True))
        return self.tape.apply("move", *(self.at[n] for n in names), attr=move)

    def _native(  # noqa: PLR0911
        self, node: NetworkNode, args: Any, kwargs: Any
    ) -> int | None:
        def two() -> tuple[int, int]:
            return self._step(node.args[0], args[0]), self._step(node.args[1], args[1])

        apply = self.tape.apply
        match node.short:
            case "add" | "sub" | "rsub":
                alpha = float(kwargs.get("alpha", args[2] if len(args) > 2 else 1))
                factor = alpha if node.short == "add" else -alpha
                reads = two()[::-1] if node.short == "rsub" else two()
                state = node.short == "add" and max(map(self._rank, reads)) > 1
                return apply("add", *reads, attr=None if factor == 1 else factor, state=state)
            case "mul":
                return apply("mul", *two())
            case "div" if "rounding_mode" not in kwargs:
                over, below = two()
                return apply("mul", over, apply("apply", below, attr=_root("reciprocal")))
            case "matmul" | "mm" | "bmm" if min(args[0].ndim, args[1].ndim) > 1:
                return apply("matmul", *two())
            case "softmax" | "_softmax" if args[1] in (-1, args[0].ndim - 1):
                return apply("softmax", self._step(node.args[0], args[0]))
            case "clamp_min" if isinstance(args[1], int | float) or args[1].numel() == 1:
                return apply("maximum", *two())
        return self._of_one(node, args, kwargs)

    def _rank(self, step: int) -> int:
        return self.tape.value(step).ndim

    def _of_one(self, node: NetworkNode, args: Any, kwargs: Any) -> int | None:
        read = self._step(node.args[0], args[0])
        match node.short:
            case "neg":
                return self.tape.apply("mul", read, self.tape.leaf(-torch.ones(())))
            case "square" | "sqrt" | "rsqrt" | "reciprocal":
                return self._power(node.short, read)
            case "pow" if args[1] in _POWERS:
                return self._power(_POWERS[args[1]], read)
            case "sum" | "mean" if not kwargs.get("dtype"):
                axes = args[1] if len(args) > 1 and args[1] is not None else ()
                axes = (axes,) if isinstance(axes, int) else tuple(axes)
                keep = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
                over = axes or tuple(range(args[0].ndim)), keep
                return self.tape.apply(node.short, read, attr=over)
            case "linalg_vector_norm":
                return self._length(read, args, kwargs)
        return None

    def _power(self, name: str, read: int) -> int:
        if name in _ROOTS:
            return self.tape.apply("apply", read, attr=_root(name))
        square = self.tape.apply("mul", read, read)
        return square if name == "square" else self.tape.apply("mul", square, read)

    def _length(self, read: int, args: Any, kwargs: Any) -> int | None:
        """The step of a 2-norm; None for other norms."""
        given: list[Any] = [*args[1:4], *(2, None, False)[len(args[1:4]) :]]
        order, axes, keep = given
        if order != 2 or kwargs:
            return None
        over = tuple(range(args[0].ndim)) if axes is None else tuple(axes)
        total = self.tape.apply("sum", self._power("square", read), attr=(over, bool(keep)))
        return self._power("sqrt", total)

    # ------------------------------------------------------------------------------------- pieces

    def _piece(self, node: NetworkNode, args: Any, value: Tensor) -> int:
        piece, apply = self.parts.get_submodule(args[0]), self.tape.apply
        assert isinstance(piece, Piece)
        if isinstance(piece, EmbeddingMap):
            return self.tape.leaf(value)
        reads = [self._step(a, v) for a, v in zip(node.args[1:], args[1:], strict=True)]
        if isinstance(piece, LinearMap):
            # Weights that were computed from parameters are off by half a unit each.
            unit = piece.settings.unit if piece.rounded else 0.0
            return apply("affine", *reads, attr=AffineMap(piece.weight, piece.bias, unit))
        if isinstance(piece, Activation):
            if piece.function.obstacle is not None:
                raise OpenStepError(f"{piece.name}, {piece.function.obstacle}")
            return apply("apply", *reads, attr=piece.function)
        if isinstance(piece, Norm):
            return self._norm(piece, reads[0])
        if isinstance(piece, ProductPiece):
            return apply("mul" if piece.inner is None else "matmul", *reads)
        assert isinstance(piece, AttentionPiece)
        return self._heads(piece, reads)

    def _norm(self, piece: Norm, x: int) -> int:
        apply, leaf, last = self.tape.apply, self.tape.leaf, ((-1,), True)
        centred = apply("add", x, apply("mean", x, attr=last), attr=-1.0) if piece.centred else x
        spread = apply("mean", self._power("square", centred), attr=last)
        floor = leaf(torch.tensor(piece.floor, dtype=torch.float64))
        scaled = apply("mul", centred, self._power("rsqrt", apply("add", spread, floor)))
        weighed = apply("mul", scaled, leaf(piece.weight))
        return apply("add", weighed, leaf(piece.bias), state=True)

    def _heads(self, piece: AttentionPiece, reads: list[int]) -> int:
        apply, leaf = self.tape.apply, self.tape.leaf
        q, k, v, *masks = reads
        scale = leaf(torch.tensor(piece.scale, dtype=torch.float64))
        if piece.causal:
            shape = self.tape.value(q).shape[-2], self.tape.value(k).shape[-2]
            masks.append(leaf(torch.full(shape, -math.inf, dtype=torch.float64).triu(1)))
        found: int = attention(apply, apply("mul", q, scale), k, v, *masks)
        return found
