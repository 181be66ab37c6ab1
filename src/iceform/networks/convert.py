"""From what a network does to the same operations with every map emulated.

Linear maps, embeddings, attention heads, scalar activations and norms become pieces; moves and
natives stay; whatever else computes with activations is refused by name, or listed where the
caller allows it. What depends on parameters alone is computed once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from iceform.errors import ProgramError
from iceform.networks.activations import ACTIVATIONS, activation_of
from iceform.networks.capture import Captured, lifted, module_path, op_of
from iceform.networks.decompositions import EPSILON
from iceform.networks.graph import NetworkGraph, NetworkNode, Ref, function_of, live, size_name
from iceform.networks.match_attention import Attending
from iceform.networks.match_products import multiplied
from iceform.networks.match_shapes import reshaped
from iceform.networks.operations import is_move, is_native, is_random
from iceform.networks.parts import Const, Maker
from iceform.networks.pieces import (
    EmbeddingMap,
    LinearMap,
    Norm,
    Piece,
    make_activation,
)
from iceform.networks.structure import leaves, mapped

_CASTS = {"to", "_to_copy", "type_as"}
_CHECKS = {"_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range",
           "sym_constrain_range_for_size", "_assert_async"}  # fmt: skip
# Strides are not part of what a network computes.
_RESHAPES = dict.fromkeys(
    ("aten.view.default", "aten._unsafe_view.default"), "aten.reshape.default"
)
_ALIASES = {"multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div",
            "negative": "neg", "absolute": "abs"}  # fmt: skip
_ACTIVATIONS = ("torch.nn.modules.activation", "transformers.activ")
_SAME = {"detach", "alias", "lift_fresh", "lift_fresh_copy", "contiguous"}


class Conversion:
    """One graph being made."""

    def __init__(self, to: Maker, found: Captured) -> None:
        self.to, self.found = to, found
        self.values: dict[str, Any] = {}
        self.nodes: list[NetworkNode] = []
        self.constants: list[NetworkNode] = []
        self.dtype = to.settings.dtype
        self.active: set[str] = set()
        self.made: dict[str, str] = {}  # constants by path
        self.shapes = {node.name: _shape(node) for node in found.nodes}
        self.sources = {node.name: node for node in found.nodes}
        self.heads = Attending(self)

    # ------------------------------------------------------------------------------------- whole

    def graph(self, given: Any, tensors: list[Tensor]) -> NetworkGraph:
        for i, name in enumerate(self.found.inputs):
            floats = tensors[i].is_floating_point()
            self._emit(name, "input", (i,), where="", active=floats)
        for placeholder, (fqn, tensor) in self.found.constants.items():
            if tensor.is_floating_point() and bool((tensor.isnan() | tensor.isposinf()).any()):
                raise ProgramError(f"{fqn} holds NaN or infinity; nothing is certified of that")
            self.values[placeholder] = Const(tensor, fqn)
        for node in self.found.nodes:
            if node.op != "placeholder":
                self.values[node.name] = self._converted(node)
        results = tuple(self._argument(self.value(r)) for r in self.found.results)
        self.heads.alone(results)
        nodes = multiplied(self.to, live([*self.constants, *self.nodes], results), results)
        dtypes, ranks = tuple(t.dtype for t in tensors), tuple(t.ndim for t in tensors)
        return NetworkGraph(
            given, dtypes, ranks, self.found.guards, nodes, results, self.found.output
        )

    def _emit(
        self, name: str, op: str, args: Any, kwargs: Any = None, *, where: str, active: bool
    ) -> Ref:
        shape = self.shapes.get(name)
        self.nodes.append(
            NetworkNode(name, op, tuple(args), dict(kwargs or {}), where, active, shape)
        )
        if active:
            self.active.add(name)
        self.values[name] = Ref(name)
        return Ref(name)

    # ------------------------------------------------------------------------------------ values

    def value(self, given: Any) -> Any:
        return mapped(given, self._found)

    def _found(self, given: Any) -> Any:
        found = self.values[given.name] if isinstance(given, fx.Node) else given
        if isinstance(found, ProgramError):
            raise found
        return found

    def source(self, given: Any, *ops: str) -> Any:
        """The operation that made a value, behind what changes nothing; None if it is not known.

        Nor where it is none of ``ops``, if any are named.
        """
        value = self.values.get(given.name) if isinstance(given, fx.Node) else None
        found = self.sources.get(value.name) if isinstance(value, Ref) else None
        return found if found is not None and (not ops or op_of(found) in ops) else None

    def _argument(self, value: Any) -> Any:
        """An argument of a step that runs: constants become references to where they are kept."""
        return mapped(value, lambda v: self._held(v) if isinstance(v, Const) else v)

    def _held(self, value: Const) -> Ref:
        # What code computes in float32 of its own accord stays that, in float64 networks too.
        wide = value.folded and value.tensor.dtype == torch.float64
        path = self.to.constant(value.tensor, wide=wide)
        if path not in self.made:
            name = f"constant.{len(self.made)}"
            shape = tuple(value.tensor.shape)
            given = (path, self.dtype) if wide else (path,)
            self.constants.append(NetworkNode(name, "constant", given, shape=shape))
            self.made[path] = name
        return Ref(self.made[path])

    def is_active(self, value: Any) -> bool:
        return any(isinstance(v, Ref) and v.name in self.active for v in leaves(value))

    def _where(self, node: fx.Node) -> str:
        return module_path(node) or self.to.title

    # ------------------------------------------------------------------------------------- steps

    def _converted(self, node: fx.Node) -> Any:
        if node.op == "get_attr" or node.op != "call_function":
            raise self.refused(node, str(node.target), "is a graph inside the graph")
        args, kwargs = self.value(node.args), self.value(node.kwargs)
        size = size_name(node.target)
        if size is not None:
            return self._size(node, size, args)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise self.refused(node, str(node.target), "is no operation of aten")
        if node.target.namespace != "aten":
            raise self.refused(node, str(node.target), "is no operation of aten")
        op = _RESHAPES.get(str(node.target), str(node.target))
        short = op.split(".")[1]
        if short in _ALIASES:
            op, short = op.replace(f".{short}.", f".{_ALIASES[short]}."), _ALIASES[short]
        if short in _CHECKS:
            return None
        if node.target._schema.is_mutable:
            raise self.refused(node, short, "changes a tensor in place")
        if is_random(short) and not (short == "dropout" and not (*args, True, True)[2]):
            # Refused where something reads it: code may draw and then not use it.
            return self.refused(node, short, "draws its result at random; call eval()")
        if short == "dropout" or short in _SAME:
            return args[0]
        if not _depends((args, kwargs)):
            return self._folded(node, op, args, kwargs)
        return self._depending(node, op, short, args, kwargs)

    def _size(self, node: fx.Node, op: str, args: tuple[Any, ...]) -> Any:
        if op == "size.getitem" and isinstance(args[0], tuple | list):
            return args[0][args[1]]
        if not _depends(args) and not any(isinstance(a, Const) for a in args):
            return function_of(op)(*args)
        return self._emit(node.name, op, self._argument(args), where=self._where(node),
                          active=self.is_active(args[:1]))  # fmt: skip

    def _folded(self, node: fx.Node, op: str, args: Any, kwargs: Any) -> Any:
        """Compute now what depends on parameters alone, in float64."""

        def wide(value: Any) -> Any:
            if not isinstance(value, Const):
                return value
            return value.tensor.double() if value.tensor.dtype == self.dtype else value.tensor

        with lifted(self.dtype):
            made = function_of(op)(*mapped(args, wide), **mapped(kwargs, wide))
        given = [v for v in leaves(args) if isinstance(v, Const)]
        name = given[0].name if given else ""
        folded = any(v.folded for v in given) or not is_move(op.split(".")[1])
        return mapped(made, lambda t: Const(t, name, folded) if isinstance(t, Tensor) else t)

    def _depending(self, node: fx.Node, op: str, short: str, args: Any, kwargs: Any) -> Any:
        where = self._where(node)
        if short in _CASTS and self.is_active(args[:1]):
            return self._cast(node, args, kwargs)
        out = node.meta.get("val")
        other = isinstance(out, Tensor) and out.is_floating_point() and out.dtype != self.dtype
        if other and self.is_active(args):
            return self._cast(node, args, kwargs)
        emulated = self._emulated(node, short, args, kwargs)
        if emulated is not None:
            return emulated
        active = self.is_active((args, kwargs))
        if active and not (is_move(short) or is_native(short) or short == "softmax"):
            self._not_emulated(node, short)
        kept = active and _has_tensors(node)
        return self._emit(node.name, op, self._argument(args), self._argument(kwargs),
                          where=where, active=kept)  # fmt: skip

    def _cast(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        value = node.meta["val"]
        if value.dtype == self.to.settings.dtype:
            return args[0]
        raise self.refused(
            node, f"a cast from {self.to.settings.dtype} to {value.dtype}",
            f"rounds in the middle of the network; keep one dtype, or pass dtype={value.dtype}",
        )  # fmt: skip

    def refused(self, node: fx.Node, what: str, why: str) -> ProgramError:
        return ProgramError(f"{self._where(node)}: {what} {why}")

    def _not_emulated(self, node: fx.Node, short: str) -> None:
        where = self._where(node)
        if self.to.strict:
            raise ProgramError(
                f"not emulated: {short} in {where}; write it with linear maps, embeddings, "
                "attention heads, norms, products and activations ("
                f"{', '.join(ACTIVATIONS)}), or pass strict=False to have it listed in the report"
            )
        self.to.left[f"{short} in {where}"] = short

    # ---------------------------------------------------------------------------------- emulated

    def _emulated(  # noqa: PLR0911
        self, node: fx.Node, short: str, args: Any, kwargs: Any
    ) -> Any:
        if short in ("matmul", "bmm"):
            heads = self.heads.written(node)
            if heads is not None:
                return heads
        if short in ("linear", "addmm", "mm", "matmul", "bmm"):
            return self._linear(node, short, args, kwargs)
        if short == "embedding" and isinstance(args[0], Const):
            return self._embedding(node, args)
        if short == "layer_norm" and self.is_active(args[:1]) and len(args[1]) == 1:
            return self._norm(node, args)
        if short == "scaled_dot_product_attention":
            return self.heads.fused(node, args, kwargs)
        if short == "copy":  # into what is there: its shape and dtype are all that stays
            into, what = (a.meta["val"] for a in node.args[:2])  # type: ignore[union-attr]
            given = args[1]
            if into.dtype != what.dtype:
                given = self.call(node, "aten.to.dtype", given, into.dtype, suffix=".cast")
            return self.call(node, "aten.expand_as.default", given, args[0])
        known = activation_of(short, args[1:], kwargs)
        if known is not None and self.is_active(args[:1]):
            return self.activated(node, known, args[0])
        if short == "reshape" and self.is_active(args[:1]):
            return reshaped(self, node)
        return None

    def on(self, node: fx.Node, piece: Piece, *inputs: Any, suffix: str = "") -> Ref:
        args = (piece.name, *(self._argument(i) for i in inputs))
        return self._emit(node.name + suffix, "piece", args, where=self._where(node), active=True)

    def call(self, node: fx.Node, op: str, *args: Any, suffix: str = "", **kwargs: Any) -> Ref:
        active = self.is_active(args)
        return self._emit(node.name + suffix, op, self._argument(args), kwargs,
                          where=self._where(node), active=active)  # fmt: skip

    def map(self, node: fx.Node, weight: Const, bias: Const | None) -> LinearMap:
        w, b = (None if c is None else c.tensor.double() for c in (weight, bias))
        assert w is not None
        rounded = weight.folded or (bias is not None and bias.folded)
        made = LinearMap("", self.to.settings, w, b, rounded=rounded)
        return self.to.piece(_owner(weight) or module_path(node), made)

    def _linear(self, node: fx.Node, short: str, args: Any, kwargs: Any) -> Any:
        if short == "linear":
            x, weight, bias = (*args, None)[:3]
        elif short == "addmm":
            bias, x, weight = args[:3]
            if any(kwargs.get(k, 1) != 1 for k in ("alpha", "beta")):
                return None
        else:
            x, weight, bias = args[0], args[1], None
        single = isinstance(weight, Const) and weight.tensor.ndim == 3 and len(weight.tensor) == 1
        if short == "bmm" and single and node.args[0].meta["val"].shape[0] == 1:  # type: ignore[union-attr]
            weight = Const(weight.tensor[0], weight.name, weight.folded)
        plain = bias is None or (isinstance(bias, Const) and bias.tensor.ndim == 1)
        if isinstance(x, Const) and x.tensor.ndim == 2 and not isinstance(weight, Const):
            return self._from_left(node, short, x, weight)
        if not (isinstance(weight, Const) and weight.tensor.ndim == 2 and plain):
            return None
        if not self.is_active(x):
            return None
        if short != "linear":
            weight = Const(weight.tensor.mT, weight.name, weight.folded)
        return self.on(node, self.map(node, weight, bias), x)

    def _from_left(self, node: fx.Node, short: str, weight: Const, x: Any) -> Any:
        """W x for a constant W, as the transpose of x' W'."""
        if short not in ("matmul", "mm") or not self.is_active(x):
            return None
        piece = self.map(node, weight, None)
        if node.args[1].meta["val"].ndim == 1:  # type: ignore[union-attr]
            return self.on(node, piece, x)
        turned = self.call(node, "aten.transpose.int", x, -2, -1, suffix=".turned")
        return self.call(node, "aten.transpose.int", self.on(node, piece, turned, suffix=".map"),
                          -2, -1)  # fmt: skip

    def _embedding(self, node: fx.Node, args: Any) -> Any:
        made = EmbeddingMap("", self.to.settings, args[0].tensor)
        return self.on(node, self.to.piece(_owner(args[0]) or module_path(node), made), args[1])

    def _norm(self, node: fx.Node, args: Any) -> Any:
        x, shape, weight, bias, eps = (
            (*args, None, None, EPSILON)[:5] if len(args) < 5 else args[:5]
        )
        if self.is_active((weight, bias)):
            return None
        if any(c is not None and c.folded for c in (weight, bias)):
            return self._weighed_apart(node, x, weight, bias, float(eps))
        weight, bias = (None if c is None else c.tensor.double() for c in (weight, bias))
        made = Norm("", self.to.settings, int(shape[0]), weight, bias, float(eps))
        return self.on(node, self.to.piece(module_path(node), made), x)

    def _weighed_apart(self, node: fx.Node, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        """A norm whose weights were computed from parameters: they are kept in float64."""
        width = int(node.meta["val"].shape[-1])
        plain = Norm("", self.to.settings, width, None, None, eps)
        y = self.on(node, self.to.piece(module_path(node), plain), x, suffix=".plain")
        for op, by in (("mul", weight), ("add", bias)):
            if by is not None:
                y = self.call(node, f"aten.{op}.Tensor", y, by, suffix=f".{op}")
        self.values[node.name] = y
        return y

    def activated(self, node: fx.Node, name: str, x: Any) -> Ref:
        path = module_path(node)
        own = _is_leaf(node, path)
        made = make_activation(name, "", self.to.settings)
        piece = self.to.piece(path if own else f"{path}.{name}".removeprefix("."), made)
        return self.on(node, piece, x)


def _owner(weight: Const) -> str:
    """The module that a weight belongs to."""
    return weight.name.removesuffix("weight").removesuffix("_").removesuffix(".")


def _is_leaf(node: fx.Node, path: str) -> bool:
    """Whether the innermost module is an activation's own, and is not taken apart."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    home = str(stack[-1][1]) if stack else ""
    return bool(path) and "instead_of" not in node.meta and home.startswith(_ACTIVATIONS)


def _depends(value: Any) -> bool:
    return any(isinstance(v, Ref) for v in leaves(value))


def _has_tensors(node: fx.Node) -> bool:
    return any(isinstance(v, Tensor) for v in leaves(node.meta.get("val")))


def _shape(node: fx.Node) -> tuple[int | None, ...] | None:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    return tuple(int(n) if isinstance(n, int) else None for n in value.shape)
