"""The certificate of one input: its graph as steps, each beside what was computed.

What a linear map, a head, a norm or an operation between them is off by is measured, against its
float64 evaluation, whose rounding is counted; an activation is off by its piece's certified error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from iceform.certificates.adjoint import (
    AdjointOperation,
    Affine,
    Floor,
    Matmul,
    Mean,
    Pointwise,
    Power,
    Quotient,
    Rearrangement,
    Softmax,
    Sum,
    Tape,
)
from iceform.certificates.adjoint import EntrywiseProduct as Times
from iceform.networks.activations import ACTIVATIONS, UNITS
from iceform.networks.graph import NetworkGraph, NetworkNode, Ref, at, function_of
from iceform.networks.model import NetworkModel
from iceform.networks.operations import PUT_IN, is_move
from iceform.networks.pieces import (
    Activation,
    AttentionPiece,
    EmbeddingMap,
    LinearMap,
    Norm,
    Piece,
    ProductPiece,
)

# Operations that make numbers of none.
_MADE = {"full_like", "ones_like", "zeros_like", "new_full", "new_ones", "new_zeros", "fill",
         "full", "ones", "zeros", "scalar_tensor", "arange", "eye"}  # fmt: skip


class OpenStepError(Exception):
    """A step that no rule bounds."""


class Certifying:
    """Steps of one run, made while the graph runs.

    Parameters
    ----------
    model
        Whose pieces ran.
    device
        Where they ran.
    """

    def __init__(self, model: NetworkModel, device: torch.device | None = None) -> None:
        self.model, self.tape = model, Tape(device)
        self.at: dict[str, Any] = {}  # steps of the nodes' values
        self.outputs: list[Tensor] = []
        self.wide: dict[str, Tensor] = {}  # what no activation enters, in float64

    def run(self, graph: NetworkGraph, tensors: Sequence[Tensor]) -> list[int]:
        """Run the graph; the steps of its results, floating-point ones only."""
        if self.model.settings.dtype != torch.float64:
            self.wide = self.model.passive(graph, tensors)
        with torch.no_grad():
            self.outputs = graph.run(self.model, tensors, self._saw)
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
        if node.op == "input" or not node.active:
            return self._given(node, value)
        filled = node.short == "fill" and isinstance(node.args[1], Ref)  # with what was computed
        if (node.short in _MADE and not filled) or not known:
            return self.tape.leaf(value)
        if node.op == "size.getitem":
            found = self.at[node.args[0].name][node.args[1]]
            assert isinstance(found, int)
            return found
        if node.short == "scatter" or "value" in kwargs:
            raise OpenStepError(f"{node.short} in {node.where}")
        if is_move(node.short):
            return self._moved(node, args, kwargs, value)
        return self._native(node, args, kwargs, value)

    def _given(self, node: NetworkNode, value: Tensor) -> int:
        """What no activation enters: off by what float64 makes of it."""
        wide = self.wide.get(node.name)
        if wide is None or wide.shape != value.shape:
            return self.tape.leaf(value)
        off = torch.where(value == wide, 0.0, (value.double() - wide).abs())
        return self.tape.leaf(value, off)

    def _several(self, node: NetworkNode, args: Any, kwargs: Any, value: Sequence[Any]) -> Any:
        if not any(isinstance(v, Tensor) and v.is_floating_point() for v in value):
            return None
        if not is_move(node.short):
            raise OpenStepError(f"{node.short} in {node.where}")
        return [self._moved(node, args, kwargs, v, pick=i) for i, v in enumerate(value)]

    def _moved(
        self, node: NetworkNode, args: Any, kwargs: Any, value: Tensor, pick: int | None = None
    ) -> int:
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

        operation = Rearrangement(moved, lambda *x: moved(*x, radii=True))
        return self.tape.apply(operation, *(self.at[n] for n in names), computed=value)

    def _native(self, node: NetworkNode, args: Any, kwargs: Any, value: Tensor) -> int:
        made = self._rule(node, args, kwargs)
        if made is None:
            raise OpenStepError(f"{node.short} in {node.where}")
        operation, reads = made
        state = node.short == "add" and value.ndim > 1
        return self.tape.apply(operation, *reads, computed=value, state=state)

    def _rule(  # noqa: PLR0911
        self, node: NetworkNode, args: Any, kwargs: Any
    ) -> tuple[AdjointOperation, Sequence[int]] | None:
        def two() -> tuple[int, int]:
            return self._step(node.args[0], args[0]), self._step(node.args[1], args[1])

        alpha = float(kwargs.get("alpha", args[2] if len(args) > 2 else 1)) if node.short in (
            "add", "sub", "rsub") else 1.0  # fmt: skip
        match node.short:
            case "add" | "sub":
                return Sum(alpha if node.short == "add" else -alpha), two()
            case "rsub":
                return Sum(-alpha), two()[::-1]
            case "mul":
                return Times(), two()
            case "div" if "rounding_mode" not in kwargs:
                return Quotient(), two()
            case "matmul" | "mm" | "bmm" if min(args[0].ndim, args[1].ndim) > 1:
                return Matmul(), two()
            case "neg":
                return Times(), (
                    self._step(node.args[0], args[0]),
                    self.tape.leaf(-torch.ones((), dtype=torch.float64)),
                )
            case "softmax" | "_softmax" if args[1] in (-1, args[0].ndim - 1):
                return Softmax(), two()[:1]
        return self._of_one(node, args, kwargs)

    def _of_one(
        self, node: NetworkNode, args: Any, kwargs: Any
    ) -> tuple[AdjointOperation, Sequence[int]] | None:
        powers = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}
        read = self._step(node.args[0], args[0])
        match node.short:
            case "square" | "sqrt" | "rsqrt" | "reciprocal":
                return Power(powers[node.short]), (read,)
            case "pow" if args[1] in (2, 3, 0.5, -0.5, -1):
                return Power(float(args[1])), (read,)
            case "sum" | "mean" if not kwargs.get("dtype"):
                dims = args[1] if len(args) > 1 and args[1] is not None else range(args[0].ndim)
                dims = (dims,) if isinstance(dims, int) else tuple(dims)
                keep = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
                return Mean(dims or tuple(range(args[0].ndim)), keep, node.short == "mean"), (read,)
            case "clamp_min" if isinstance(args[1], int | float) or (
                isinstance(node.args[1], Ref) and args[1].numel() == 1 and not self._moves(node, 1)
            ):
                return Floor(float(args[1])), (read,)
            case "linalg_vector_norm":
                return self._length(read, args, kwargs)
        return None

    def _moves(self, node: NetworkNode, index: int) -> bool:
        """Whether an argument depends on what was computed."""
        found = self.at.get(node.args[index].name)
        return not isinstance(found, int) or not self.tape.is_given(found)

    def _length(
        self, read: int, args: Any, kwargs: Any
    ) -> tuple[AdjointOperation, Sequence[int]] | None:
        """The 2-norm."""
        given: list[Any] = [*args[1:4], *(2, None, False)[len(args[1:4]) :]]
        order, axes, keep = given
        if order != 2 or kwargs:
            return None
        dims = tuple(range(args[0].ndim)) if axes is None else tuple(axes)
        squares = self.tape.apply(Power(2.0), read)
        return Power(0.5), (self.tape.apply(Mean(dims, bool(keep), mean=False), squares),)

    # ------------------------------------------------------------------------------------- pieces

    def _piece(self, node: NetworkNode, args: Any, value: Tensor) -> int:
        piece = self.model.get_submodule(args[0])
        assert isinstance(piece, Piece)
        if isinstance(piece, EmbeddingMap):
            exact = piece.weight.double()[args[1]]
            return self.tape.leaf(value, (value.double() - exact).abs())
        reads = [self._step(a, v) for a, v in zip(node.args[1:], args[1:], strict=True)]
        if isinstance(piece, LinearMap):
            # Weights that were computed from parameters are off by half a unit each.
            unit = piece.settings.unit if piece.rounded else 0.0
            affine = Affine(piece.weight.double(), piece.bias.double(), unit)
            return self.tape.apply(affine, *reads, computed=value)
        if isinstance(piece, Activation):
            known = ACTIVATIONS[piece.function.name]
            step = Pointwise(piece.function.call, known.slope, known.bend, UNITS)
            error = piece.errors_at(self.tape.value(reads[0]))
            return self.tape.apply(step, *reads, computed=value, error=error)
        if isinstance(piece, Norm):
            return self._norm(piece, reads[0], value)
        if isinstance(piece, ProductPiece):
            times = Times() if piece.inner is None else Matmul()
            return self.tape.apply(times, *reads, computed=value)
        assert isinstance(piece, AttentionPiece)
        return self._heads(piece, reads, value)

    def _norm(self, piece: Norm, x: int, value: Tensor) -> int:
        apply, last = self.tape.apply, (-1,)
        centred = apply(Sum(-1.0), x, apply(Mean(last), x)) if piece.centred else x
        spread = apply(Mean(last), apply(Power(2.0), centred))
        floor = self.tape.leaf(torch.tensor(piece.floor, dtype=torch.float64))
        scaled = apply(Times(), centred, apply(Power(-0.5), apply(Sum(), spread, floor)))
        weight, bias = self.tape.leaf(piece.weight), self.tape.leaf(piece.bias)
        weighed = apply(Times(), scaled, weight)
        return apply(Sum(), weighed, bias, computed=value, state=True)

    def _heads(self, piece: AttentionPiece, reads: list[int], value: Tensor) -> int:
        apply, leaf = self.tape.apply, self.tape.leaf
        q, k, v, *mask = reads
        queries = apply(Times(), q, leaf(torch.tensor(piece.scale, dtype=torch.float64)))
        logits = apply(Matmul(), queries, apply(Rearrangement(_turned), k))
        if mask:
            logits = apply(Sum(), logits, mask[0])
        if piece.causal:
            shape = self.tape.value(logits).shape[-2:]
            never = torch.full(shape, -math.inf, dtype=torch.float64).triu(1)
            logits = apply(Sum(), logits, leaf(never))
        return apply(Matmul(), apply(Softmax(), logits), v, computed=value)


def _turned(x: Tensor) -> Tensor:
    return x.mT
