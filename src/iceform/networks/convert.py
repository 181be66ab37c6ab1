"""From what a network does to the same operations with every map emulated.

Linear maps, embeddings, attention heads, scalar activations and norms become pieces; moves and
natives stay; whatever else computes with activations is refused by name, or listed where the
caller allows it. What depends on parameters alone is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from iceform.errors import ProgramError
from iceform.networks.activations import ACTIVATIONS, activation_of, make_activation
from iceform.networks.capture import Captured, lifted, module_path
from iceform.networks.graph import Graph, Node, Ref, function_of, live, size_name
from iceform.networks.multiplying import multiplied
from iceform.networks.operations import is_move, is_native, is_random
from iceform.networks.pieces import (
    EmbeddingMap,
    Heads,
    LinearMap,
    Norm,
    Piece,
    Product,
    Settings,
)
from iceform.networks.rewriting import Const, rewritten

__all__ = ["Conversion", "Converter", "Parts"]

_CONSTANTS = "constants"
_CASTS = {"to", "_to_copy", "type_as"}
_CHECKS = {"_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range",
           "sym_constrain_range_for_size", "_assert_async"}  # fmt: skip
# Strides are not part of what a network computes.
_RESHAPES = dict.fromkeys(
    ("aten.view.default", "aten._unsafe_view.default"), "aten.reshape.default"
)
_ALIASES = {"multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div",
            "negative": "neg", "absolute": "abs"}  # fmt: skip
_SAME = {"detach", "alias", "lift_fresh", "lift_fresh_copy", "contiguous"}


class Parts(nn.Module):
    """A place in the network's tree of pieces; numbered places are indexed."""

    def __getitem__(self, key: int | str) -> nn.Module:
        found = self._modules[str(key)]
        assert found is not None
        return found

    def place(self, path: str, piece: nn.Module) -> None:
        """Put a piece where its name says."""
        *way, last = path.split(".")
        at: nn.Module = self
        for step in way:
            if step not in at._modules:
                at.add_module(step, Parts())
            at = at.get_submodule(step)
        at.add_module(last, piece)


class Converter:
    """Makes graphs of pieces; calls of one network share theirs.

    Parameters
    ----------
    parts
        The pieces so far, by name.
    settings
        Of every piece.
    strict
        Refuse maps that nothing here emulates.
    title
        The network's own name.
    """

    def __init__(self, parts: Parts, settings: Settings, strict: bool, title: str) -> None:
        self.parts, self.settings, self.strict, self.title = parts, settings, strict, title
        self.left: dict[str, str] = {}
        self.frozen = False  # once set, no new piece may be made

    def convert(self, found: Captured, given: Any, tensors: list[Tensor]) -> Graph:
        """The graph of one captured call."""
        return Conversion(self, found).graph(given, tensors)

    def piece(self, name: str, kind: type[Piece], same: Any, make: Any) -> Piece:
        """The piece of that name, made unless there is one that is the same."""
        name = name or self.title
        tries = [name, f"{name}.{kind.kind}", *(f"{name}.{kind.kind}{i}" for i in range(2, 100))]
        for path in tries:
            try:
                there: nn.Module | None = self.parts.get_submodule(path)
            except AttributeError:
                there = None
            if isinstance(there, kind) and same(there):
                return there
            if there is None:
                if self.frozen:
                    raise ProgramError(
                        f"calibration never reached {path}; calibrate with inputs of this kind"
                    )
                made: Piece = make(path)
                self.parts.place(path, made)
                return made
        raise ProgramError(f"{name}: too many maps of one name")

    def norm(self, name: str, made: Norm) -> Piece:
        """The norm of that name, or the one there is."""

        def same(there: Norm) -> bool:
            return (there.floor, there.centred) == (made.floor, made.centred) and all(
                a.shape == b.shape and torch.equal(a, b)
                for a, b in ((there.weight, made.weight), (there.bias, made.bias))
            )

        return self.piece(name, Norm, same, made.named)

    def product(self, name: str, inner: int | None) -> Piece:
        """A product of two tensors, or of matrices with so many terms an entry."""
        return self.piece(name, Product, lambda there: there.inner == inner,
                          lambda path: Product(path, self.settings, inner=inner))  # fmt: skip

    def constant(self, tensor: Tensor, *, wide: bool = False) -> str:
        """The path of a tensor that natives read; one that was computed is kept in float64."""
        if _CONSTANTS not in self.parts._modules:
            self.parts.add_module(_CONSTANTS, nn.Module())
        holder = self.parts.get_submodule(_CONSTANTS)
        if tensor.is_floating_point():
            tensor = tensor.to(torch.float64 if wide else self.settings.dtype)
        for name, there in holder.named_buffers():
            if there.dtype == tensor.dtype and torch.equal(there, tensor):
                return f"{_CONSTANTS}.{name}"
        name = f"c{len(holder._buffers)}"
        holder.register_buffer(name, tensor.detach().clone().contiguous())
        return f"{_CONSTANTS}.{name}"


class Conversion:
    """One graph being made."""

    def __init__(self, converter: Converter, found: Captured) -> None:
        self.to, self.found = converter, found
        self.values: dict[str, Any] = {}
        self.nodes: list[Node] = []
        self.constants: list[Node] = []
        self.dtype = converter.settings.dtype
        self.active: set[str] = set()
        self.made: dict[str, str] = {}  # constants by path
        self.attended: set[str] = set()  # softmaxes that heads stand for
        self.shapes = {node.name: _shape(node) for node in found.nodes}
        self.sources = {node.name: node for node in found.nodes}

    # ------------------------------------------------------------------------------------- whole

    def graph(self, given: Any, tensors: list[Tensor]) -> Graph:
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
        results = tuple(self._argument(self._value(r)) for r in self.found.results)
        self._attend_alone(results)
        nodes = multiplied(self.to, live([*self.constants, *self.nodes], results), results)
        dtypes, ranks = tuple(t.dtype for t in tensors), tuple(t.ndim for t in tensors)
        return Graph(given, dtypes, ranks, self.found.guards, nodes, results, self.found.output)

    def _emit(
        self, name: str, op: str, args: Any, kwargs: Any = None, *, where: str, active: bool
    ) -> Ref:
        shape = self.shapes.get(name)
        self.nodes.append(Node(name, op, tuple(args), dict(kwargs or {}), where, active, shape))
        if active:
            self.active.add(name)
        self.values[name] = Ref(name)
        return Ref(name)

    # ------------------------------------------------------------------------------------ values

    def _value(self, given: Any) -> Any:
        if isinstance(given, fx.Node):
            found = self.values[given.name]
            if isinstance(found, ProgramError):
                raise found
            return found
        if isinstance(given, tuple | list):
            return type(given)(self._value(v) for v in given)
        return given

    def _argument(self, value: Any) -> Any:
        """For a step that runs: constants are read from their holder."""
        if isinstance(value, Const):
            wide = value.folded and value.tensor.is_floating_point()
            path = self.to.constant(value.tensor, wide=wide)
            if path not in self.made:
                name = f"constant.{len(self.made)}"
                shape = tuple(value.tensor.shape)
                given = (path, self.dtype) if wide else (path,)
                self.constants.append(Node(name, "constant", given, shape=shape))
                self.made[path] = name
            return Ref(self.made[path])
        if isinstance(value, tuple | list):
            return type(value)(self._argument(v) for v in value)
        if isinstance(value, Mapping):
            return {k: self._argument(v) for k, v in value.items()}
        return value

    def is_active(self, value: Any) -> bool:
        if isinstance(value, Ref):
            return value.name in self.active
        values = value.values() if isinstance(value, Mapping) else value
        return isinstance(value, tuple | list | Mapping) and any(map(self.is_active, values))

    def _where(self, node: fx.Node) -> str:
        return module_path(node) or self.to.title

    # ------------------------------------------------------------------------------------- steps

    def _converted(self, node: fx.Node) -> Any:
        if node.op == "get_attr" or node.op != "call_function":
            raise self._refused(node, str(node.target), "is a graph inside the graph")
        args = tuple(self._value(a) for a in node.args)
        kwargs = {k: self._value(v) for k, v in node.kwargs.items()}
        size = size_name(node.target)
        if size is not None:
            return self._size(node, size, args)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise self._refused(node, str(node.target), "is no operation of aten")
        if node.target.namespace != "aten":
            raise self._refused(node, str(node.target), "is no operation of aten")
        op = _RESHAPES.get(str(node.target), str(node.target))
        short = op.split(".")[1]
        if short in _ALIASES:
            op, short = op.replace(f".{short}.", f".{_ALIASES[short]}."), _ALIASES[short]
        if short in _CHECKS:
            return None
        if node.target._schema.is_mutable:
            raise self._refused(node, short, "changes a tensor in place")
        if is_random(short) and not (short == "dropout" and not (*args, True, True)[2]):
            # Refused where something reads it: code may draw and then not use it.
            return self._refused(node, short, "draws its result at random; call eval()")
        if short == "dropout" or short in _SAME:
            return args[0]
        if not _depends(args) and not _depends(kwargs):
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
        """What parameters alone determine: as float64 has it, were the network's dtype that."""

        def wide(value: Any) -> Any:
            if isinstance(value, Const):
                t = value.tensor
                return t.double() if t.dtype == self.dtype else t
            if isinstance(value, tuple | list):
                return type(value)(wide(v) for v in value)
            return value

        with lifted(self.dtype):
            made = function_of(op)(*wide(args), **{k: wide(v) for k, v in kwargs.items()})
        name = next((a.name for a in args if isinstance(a, Const)), "")
        if isinstance(made, tuple | list):
            return tuple(Const(t, name, folded=True) for t in made)
        if not isinstance(made, Tensor):
            return made
        moved = is_move(op.split(".")[1])
        was = any(a.folded for a in args if isinstance(a, Const))
        return Const(made, name, folded=was or not moved)

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
        if short == "baddbmm":
            return self._added_product(node, args, **kwargs)
        active = self.is_active(args) or self.is_active(kwargs)
        if active and not (is_move(short) or is_native(short) or short == "softmax"):
            self._not_emulated(node, short)
        kept = active and _has_tensors(node)
        return self._emit(node.name, op, self._argument(args), self._argument(kwargs),
                          where=where, active=kept)  # fmt: skip

    def _cast(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        value = node.meta["val"]
        if value.dtype == self.to.settings.dtype:
            return args[0]
        raise self._refused(
            node, f"a cast from {self.to.settings.dtype} to {value.dtype}",
            f"rounds in the middle of the network; keep one dtype, or pass dtype={value.dtype}",
        )  # fmt: skip

    def _added_product(self, node: fx.Node, args: Any, beta: float = 1, alpha: float = 1) -> Ref:
        """The matrix product alpha b c, plus beta a."""
        product = self.call(node, "aten.bmm.default", *args[1:], suffix=".product")
        if alpha != 1:
            product = self.call(node, "aten.mul.Tensor", product, alpha, suffix=".scaled")
        added = args[0]
        if beta != 1:
            added = self.call(node, "aten.mul.Tensor", added, beta, suffix=".added")
        return self.call(node, "aten.add.Tensor", added, product)

    def _refused(self, node: fx.Node, what: str, why: str) -> ProgramError:
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
            heads = self._product(node)
            if heads is not None:
                return heads
        if short in ("linear", "addmm", "mm", "matmul", "bmm"):
            return self._linear(node, short, args, kwargs)
        if short == "embedding" and isinstance(args[0], Const):
            return self._embedding(node, args)
        if short == "layer_norm" and self.is_active(args[:1]) and len(args[1]) == 1:
            return self._norm(node, args)
        if short == "scaled_dot_product_attention":
            return self._attention(node, args, kwargs)
        known = activation_of(short, args[1:], kwargs)
        if known is not None and self.is_active(args[:1]):
            return self.activated(node, known, args[0])
        return rewritten(self, node, short, args, kwargs)

    def on(self, node: fx.Node, piece: Piece, *inputs: Any, suffix: str = "") -> Ref:
        args = (piece.name, *(self._argument(i) for i in inputs))
        return self._emit(node.name + suffix, "piece", args, where=self._where(node), active=True)

    def call(self, node: fx.Node, op: str, *args: Any, suffix: str = "", **kwargs: Any) -> Ref:
        active = self.is_active(args)
        return self._emit(node.name + suffix, op, self._argument(args), kwargs,
                          where=self._where(node), active=active)  # fmt: skip

    def map(self, node: fx.Node, weight: Const, bias: Const | None) -> LinearMap:
        settings = self.to.settings
        w = weight.tensor.double()
        b = None if bias is None else bias.tensor.double()
        rounded = weight.folded or (bias is not None and bias.folded)
        name = weight.name.removesuffix("weight").removesuffix("_").removesuffix(".")

        def same(there: LinearMap) -> bool:
            mine = (w, w.new_zeros(len(w)) if b is None else b)
            return all(
                x.shape == y.shape and torch.equal(x, y.to(x))
                for x, y in zip((there.weight, there.bias), mine, strict=True)
            )

        def make(path: str) -> LinearMap:
            return LinearMap(path, settings, w, b, rounded=rounded)

        found = self.to.piece(name or module_path(node), LinearMap, same, make)
        assert isinstance(found, LinearMap)
        return found

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
        """W x for a constant W: x' W' turned over."""
        if short not in ("matmul", "mm") or not self.is_active(x):
            return None
        piece = self.map(node, weight, None)
        if node.args[1].meta["val"].ndim == 1:  # type: ignore[union-attr]
            return self.on(node, piece, x)
        turned = self.call(node, "aten.transpose.int", x, -2, -1, suffix=".turned")
        return self.call(node, "aten.transpose.int", self.on(node, piece, turned, suffix=".map"),
                          -2, -1)  # fmt: skip

    def _embedding(self, node: fx.Node, args: Any) -> Any:
        weight, ids = args[0], args[1]
        name = weight.name.removesuffix("weight").removesuffix("_").removesuffix(".")
        table = weight.tensor

        def same(there: EmbeddingMap) -> bool:
            return there.weight.shape == table.shape and torch.equal(
                there.weight, table.to(there.weight)
            )

        settings = self.to.settings
        piece = self.to.piece(name or module_path(node), EmbeddingMap, same,
                              lambda path: EmbeddingMap(path, settings, table))  # fmt: skip
        return self.on(node, piece, ids)

    def _norm(self, node: fx.Node, args: Any) -> Any:
        x, shape, weight, bias, eps = (*args, None, None, 1e-5)[:5] if len(args) < 5 else args[:5]
        if self.is_active((weight, bias)):
            return None
        tensors = (None if c is None else c.tensor.double() for c in (weight, bias))
        made = Norm("", self.to.settings, int(shape[0]), *tensors, float(eps))
        return self.on(node, self.to.norm(module_path(node), made), x)

    def activated(self, node: fx.Node, name: str, x: Any, suffix: str = "") -> Ref:
        path, settings = module_path(node), self.to.settings
        own = _is_leaf(node, path)
        place = path if own and not suffix else f"{path}.{name}".removeprefix(".")
        kind = type(make_activation(name, place, settings))

        def same(there: Any) -> bool:
            return bool(there.function.name == ACTIVATIONS[name].function.name)

        piece = self.to.piece(place, kind, same, lambda p: make_activation(name, p, settings))
        return self.on(node, piece, x, suffix=suffix)

    # ------------------------------------------------------------------------------------- heads

    def _heads(self, node: fx.Node, scale: float, head: int, value: int, causal: bool) -> Heads:
        path = f"{module_path(node)}.heads".removeprefix(".")
        settings = self.to.settings

        def same(there: Heads) -> bool:
            mine = (scale, head, value, causal)
            return mine == (there.scale, there.head_dim, there.value_dim, there.causal)

        found = self.to.piece(path, Heads, same, lambda p: Heads(
            p, settings, head, value, scale=scale, causal=causal))  # fmt: skip
        assert isinstance(found, Heads)
        return found

    def _attention(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        q, k, v, mask, dropped, causal = (*args, *(None, 0.0, False)[len(args) - 3 :])[:6]
        mask, dropped = kwargs.get("attn_mask", mask), kwargs.get("dropout_p", dropped)
        causal = bool(kwargs.get("is_causal", causal))
        if kwargs.get("enable_gqa"):
            k, v = (self._shared(node, i, t) for i, t in ((1, k), (2, v)))
        if dropped:
            raise self._refused(node, "attention", "drops weights at random; call eval()")
        sizes = [node.args[i].meta["val"].shape for i in (0, 2)]  # type: ignore[union-attr]
        head, value = int(sizes[0][-1]), int(sizes[1][-1])
        scale = kwargs.get("scale")
        scale = 1 / math.sqrt(head) if scale is None else float(scale)
        piece = self._heads(node, scale, head, value, causal)
        if mask is None:
            return self.on(node, piece, q, k, v)
        source = node.kwargs.get("attn_mask") or node.args[3]
        if source.meta["val"].dtype == torch.bool:  # type: ignore[union-attr]
            mask = self._allowed(node, mask)
        return self.on(node, piece, q, k, v, mask)

    def _allowed(self, node: fx.Node, mask: Any) -> Ref:
        """A mask that allows where true, as numbers to be added."""
        zero = Const(torch.zeros((), dtype=torch.float64))
        never = Const(torch.full((), -math.inf, dtype=torch.float64))
        return self.call(node, "aten.where.self", mask, zero, never, suffix=".mask")

    def _shared(self, node: fx.Node, index: int, value: Any) -> Any:
        """Keys or values that several heads share, once for each of them."""
        ours, theirs = (node.args[i].meta["val"].shape[-3] for i in (0, index))  # type: ignore[union-attr]
        if ours == theirs:
            return value
        return self.call(node, "aten.repeat_interleave.self_int", value, ours // theirs, -3,
                         suffix=f".shared{index}")  # fmt: skip

    def _source(self, given: Any) -> Any:
        """The operation that made a value, behind what changes nothing; None if it is not known."""
        value = self.values.get(given.name) if isinstance(given, fx.Node) else None
        return self.sources.get(value.name) if isinstance(value, Ref) else None

    def _number(self, given: Any) -> float | None:
        value = self._value(given)
        if isinstance(value, Const) and value.tensor.numel() == 1 and not value.folded:
            return float(value.tensor)
        return float(value) if isinstance(value, int | float) else None

    def _peeled(self, given: Any, mask: list[Any], hidden: list[Any]) -> Any:
        """The logits without what no activation enters: what is added, and what replaces them.

        Where they are replaced they are ``hidden``.
        """
        while (node := self._source(given)) is not None:
            op, args = _op(node), node.args
            passive = [not self.is_active(self._value(a)) for a in args[:3]]
            suffix = f".mask{len(mask)}"
            if op == "add" and not node.kwargs and sum(passive) == 1:
                mask.append(self._value(args[passive.index(True)]))
                given = args[1 - passive.index(True)]
            elif op == "masked_fill" and passive == [False, True, True]:
                zero, value = Const(torch.zeros(()).double()), self._value(args[2])
                if isinstance(value, int | float):
                    value = Const(torch.tensor(value, dtype=torch.float64))
                where = (self._value(args[1]), value, zero)
                mask.append(self.call(node, "aten.where.self", *where, suffix=suffix))
                hidden.append(self._value(args[1]))
                given = args[0]
            elif op == "where" and passive == [True, False, True]:
                zero = Const(torch.zeros(()).double())
                where = (self._value(args[0]), zero, self._value(args[2]))
                mask.append(self.call(node, "aten.where.self", *where, suffix=suffix))
                hidden.append(
                    self.call(node, "aten.logical_not.default", where[0], suffix=f"{suffix}.not")
                )
                given = args[1]
            else:
                return given
        return given

    def _scores(self, given: Any, mask: list[Any]) -> tuple[Any, Any, float] | None:
        """(q, k', scale) where logits are a product of two activations."""
        node, scale = self._source(given), 1.0
        if node is not None and _op(node) == "add" and not node.kwargs:
            index = self._scored(node)
            if index is None:
                return None
            mask.append(self._value(node.args[1 - index]))
            node = self._source(node.args[index])
        while node is not None and _op(node) in ("mul", "div"):
            factor = self._number(node.args[1])
            if factor is None:
                return None
            scale = scale * factor if _op(node) == "mul" else scale / factor
            node = self._source(node.args[0])
        if node is None or _op(node) not in ("matmul", "bmm", "baddbmm"):
            return None
        parts = node.args
        if _op(node) == "baddbmm":
            if node.kwargs.get("beta", 1) != 1 or scale != 1.0:
                return None
            scale = float(node.kwargs.get("alpha", 1))
            mask.append(self._value(parts[0]))
            parts = parts[1:]
        sound = all(self.is_active(self._value(a)) for a in parts)
        return (parts[0], parts[1], scale) if sound else None

    def _scored(self, node: fx.Node) -> int | None:
        """Which side of a sum is the product."""
        sides = [self._source(a) for a in node.args[:2]]
        scores = ("mul", "div", "matmul", "bmm")
        found = [s is not None and _op(s) in scores for s in sides]
        return found.index(True) if found.count(True) == 1 else None

    def _product(self, node: Any) -> Any:
        """softmax(s q k' + m) v written out: heads."""
        weights = self._source(node.args[0])
        if weights is None or _op(weights) not in ("softmax", "_softmax"):
            return None
        if weights.args[1] not in (-1, weights.meta["val"].ndim - 1):
            return None
        if not self.is_active(self._value(node.args[1])):
            return None
        value = node.args[1].meta["val"]
        if not isinstance(value.shape[-1], int) or value.ndim < 2:
            return None
        self.attended.add(self.values[weights.name].name)
        mask, hidden = list[Any](), list[Any]()
        logits = self._peeled(weights.args[0], mask, hidden)
        found = self._scores(logits, mask)
        if found is None or not isinstance(found[0].meta["val"].shape[-1], int):
            given = self._shown(node, self._value(logits), hidden)
            return self._chosen(node, given, mask, self._value(node.args[1]), value.shape[-1])
        q, k, scale = found
        piece = self._heads(node, scale, q.meta["val"].shape[-1], value.shape[-1], causal=False)
        keys = self.call(node, "aten.transpose.int", self._value(k), -2, -1, suffix=".keys")
        added = self._sum(node, mask)
        given = (self._value(q), keys, self._value(node.args[1]))
        return self.on(node, piece, *given, *([] if added is None else [added]))

    def _shown(self, node: fx.Node, logits: Any, hidden: list[Any]) -> Any:
        """0 in place of logits that are replaced."""
        for i, where in enumerate(hidden):
            logits = self.call(node, "aten.masked_fill.Scalar", logits, where, 0.0,
                               suffix=f".shown{i}")  # fmt: skip
        return logits

    def _sum(self, node: fx.Node, terms: list[Any]) -> Any:
        """All that is added to the logits."""
        total = terms[0] if terms else None
        for i, term in enumerate(terms[1:]):
            total = self.call(node, "aten.add.Tensor", total, term, suffix=f".total{i}")
        return total

    def _chosen(self, node: fx.Node, logits: Any, mask: list[Any], v: Any, width: int) -> Ref:
        """softmax(logits + mask) v: a head whose keys are the logits of its one query, 1."""
        piece = self._heads(node, 1.0, 1, width, causal=False)
        keys = self.call(node, "aten.unsqueeze.default", logits, -1, suffix=".keys")
        values = self.call(node, "aten.unsqueeze.default", v, -3, suffix=".values")
        added = self._sum(node, mask)
        if added is not None:
            added = self.call(node, "aten.unsqueeze.default", added, -2, suffix=".mask")
        one = Const(torch.ones(1, 1, dtype=torch.float64))
        given = (one, keys, values) if added is None else (one, keys, values, added)
        out = self.on(node, piece, *given, suffix=".head")
        return self.call(node, "aten.select.int", out, -2, 0)

    def _attend_alone(self, results: Any) -> None:
        """A softmax whose weights no head has used is a head on the unit vectors."""
        needed = {n.name for n in live(self.nodes, results)}
        for plain in list(self.nodes):
            lone = plain.short in ("softmax", "_softmax") and plain.active and plain.name in needed
            if not lone or plain.name in self.attended:
                continue
            at = self.nodes.index(plain)
            before, after = self.nodes[:at], self.nodes[at + 1 :]
            self.nodes = []
            self._alone(self.sources[plain.name])
            self.nodes = [*before, *self.nodes, *after]

    def _alone(self, node: fx.Node) -> None:
        out = node.meta["val"]
        dim, last = int(node.args[1]) % out.ndim, out.ndim - 1  # type: ignore[arg-type]
        mask, hidden = list[Any](), list[Any]()
        logits = self._peeled(node.args[0], mask, hidden)
        if logits.meta["val"].shape != out.shape or dim != last:
            logits, mask, hidden = node.args[0], [], []
        x = self._shown(node, self._value(logits), hidden)
        if dim != last:
            x = self.call(node, "aten.transpose.int", x, dim, -1, suffix=".turned")
        size = out.shape[dim]
        if isinstance(size, int):
            unit: Any = Const(torch.eye(size, dtype=torch.float64))
        else:
            count = self.call(node, "aten.sym_size.int", x, -1, suffix=".size")
            unit = self.call(node, "aten.eye.default", count, suffix=".unit", dtype=self.dtype)
            size = int(size.node.hint)
        if dim == last:
            self._chosen(node, x, mask, unit, size)
            return
        inner = self._chosen(_Named(node, f"{node.name}.last"), x, mask, unit, size)  # type: ignore[arg-type]
        self.call(node, "aten.transpose.int", inner, dim, -1)


class _Named:
    """A node under another name."""

    def __init__(self, node: fx.Node, name: str) -> None:
        self.name, self.meta, self.args, self.target = name, node.meta, node.args, node.target


def _is_leaf(node: fx.Node, path: str) -> bool:
    """Whether the innermost module is an activation's own."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    kind = str(stack[-1][1]) if stack else ""
    return bool(path) and kind.startswith(("torch.nn.modules.activation.", "transformers.activ"))


def _op(node: fx.Node) -> str:
    return str(node.target).split(".")[1] if isinstance(node.target, torch._ops.OpOverload) else ""


def _depends(value: Any) -> bool:
    if isinstance(value, Ref):
        return True
    values = value.values() if isinstance(value, Mapping) else value
    return isinstance(value, tuple | list | Mapping) and any(map(_depends, values))


def _has_tensors(node: fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return any(isinstance(v, Tensor) for v in values)


def _shape(node: fx.Node) -> tuple[int | None, ...] | None:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    return tuple(int(n) if isinstance(n, int) else None for n in value.shape)
