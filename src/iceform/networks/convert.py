"""From what a network does to the same operations with every map emulated.

Linear maps, embeddings, attention heads, scalar activations and norms become pieces; moves and
natives stay; whatever else computes with activations is refused by name, or listed where the
caller allows it. What depends on parameters alone is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from iceform.errors import ProgramError
from iceform.networks.activations import ACTIVATIONS, activation_of, make_activation
from iceform.networks.capture import Captured, module_path
from iceform.networks.graph import Graph, Node, Ref, function_of, size_name
from iceform.networks.operations import is_move, is_native, is_random
from iceform.networks.pieces import EmbeddingMap, Heads, LinearMap, Norm, Piece, Settings

__all__ = ["Converter", "Parts"]

_CONSTANTS = "constants"
_CASTS = {"to", "_to_copy", "type_as"}
_CHECKS = {"_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range",
           "sym_constrain_range_for_size", "_assert_async"}  # fmt: skip
# Strides are not part of what a network computes.
_RESHAPES = dict.fromkeys(
    ("aten.view.default", "aten._unsafe_view.default"), "aten.reshape.default"
)
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


@dataclass(frozen=True, eq=False)
class _Const:
    """A tensor that no input changes."""

    tensor: Tensor
    name: str = ""  # of the parameter, where it is one
    folded: bool = False


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
        return _Conversion(self, found).graph(given, tensors)

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

    def constant(self, tensor: Tensor) -> str:
        """The path of a tensor that natives read."""
        if _CONSTANTS not in self.parts._modules:
            self.parts.add_module(_CONSTANTS, nn.Module())
        holder = self.parts.get_submodule(_CONSTANTS)
        if tensor.is_floating_point():
            tensor = tensor.to(self.settings.dtype)
        for name, there in holder.named_buffers():
            if there.dtype == tensor.dtype and torch.equal(there, tensor):
                return f"{_CONSTANTS}.{name}"
        name = f"c{len(holder._buffers)}"
        holder.register_buffer(name, tensor.detach().clone().contiguous())
        return f"{_CONSTANTS}.{name}"


class _Conversion:
    """One graph being made."""

    def __init__(self, converter: Converter, found: Captured) -> None:
        self.to, self.found = converter, found
        self.values: dict[str, Any] = {}
        self.nodes: list[Node] = []
        self.active: set[str] = set()
        self.made: dict[str, str] = {}  # constants by path
        self.attended: set[str] = set()  # softmaxes that heads stand for
        self.shapes = {node.name: _shape(node) for node in found.nodes}

    # ------------------------------------------------------------------------------------- whole

    def graph(self, given: Any, tensors: list[Tensor]) -> Graph:
        for i, name in enumerate(self.found.inputs):
            floats = tensors[i].is_floating_point()
            self._emit(name, "input", (i,), where="", active=floats)
        for placeholder, (fqn, tensor) in self.found.constants.items():
            if tensor.is_floating_point() and bool((tensor.isnan() | tensor.isposinf()).any()):
                raise ProgramError(f"{fqn} holds NaN or infinity; nothing is certified of that")
            self.values[placeholder] = _Const(tensor, fqn)
        for node in self.found.nodes:
            if node.op != "placeholder":
                self.values[node.name] = self._converted(node)
        results = tuple(self._argument(self._value(r)) for r in self.found.results)
        self._refuse_softmax(results)
        nodes = _live(self.nodes, results)
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
            return self.values[given.name]
        if isinstance(given, tuple | list):
            return type(given)(self._value(v) for v in given)
        return given

    def _argument(self, value: Any) -> Any:
        """For a step that runs: constants are read from their holder."""
        if isinstance(value, _Const):
            path = self.to.constant(value.tensor)
            if path not in self.made:
                name = f"constant.{len(self.made)}"
                shape = tuple(value.tensor.shape)
                self.nodes.append(Node(name, "constant", (path,), shape=shape))
                self.made[path] = name
            return Ref(self.made[path])
        if isinstance(value, tuple | list):
            return type(value)(self._argument(v) for v in value)
        if isinstance(value, Mapping):
            return {k: self._argument(v) for k, v in value.items()}
        return value

    def _is_active(self, value: Any) -> bool:
        if isinstance(value, Ref):
            return value.name in self.active
        values = value.values() if isinstance(value, Mapping) else value
        return isinstance(value, tuple | list | Mapping) and any(map(self._is_active, values))

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
        if short in _CHECKS:
            return None
        if node.target._schema.is_mutable:
            raise self._refused(node, short, "changes a tensor in place")
        if is_random(short) and not (short == "dropout" and not (*args, True, True)[2]):
            raise self._refused(node, short, "draws its result at random; call eval()")
        if short == "dropout" or short in _SAME:
            return args[0]
        if not _depends(args) and not _depends(kwargs):
            return self._folded(node, op, args, kwargs)
        return self._depending(node, op, short, args, kwargs)

    def _size(self, node: fx.Node, op: str, args: tuple[Any, ...]) -> Any:
        if op == "size.getitem" and isinstance(args[0], tuple | list):
            return args[0][args[1]]
        if not _depends(args) and not any(isinstance(a, _Const) for a in args):
            return function_of(op)(*args)
        return self._emit(node.name, op, self._argument(args), where=self._where(node),
                          active=self._is_active(args[:1]))  # fmt: skip

    def _folded(self, node: fx.Node, op: str, args: Any, kwargs: Any) -> Any:
        """What parameters alone determine, in float64."""

        def wide(value: Any) -> Any:
            if isinstance(value, _Const):
                t = value.tensor
                return t.double() if t.is_floating_point() else t
            if isinstance(value, tuple | list):
                return type(value)(wide(v) for v in value)
            return value

        made = function_of(op)(*wide(args), **{k: wide(v) for k, v in kwargs.items()})
        name = next((a.name for a in args if isinstance(a, _Const)), "")
        if isinstance(made, tuple | list):
            return tuple(_Const(t, name, folded=True) for t in made)
        if not isinstance(made, Tensor):
            return made
        moved = is_move(op.split(".")[1])
        was = any(a.folded for a in args if isinstance(a, _Const))
        return _Const(made, name, folded=was or not moved)

    def _depending(self, node: fx.Node, op: str, short: str, args: Any, kwargs: Any) -> Any:
        where = self._where(node)
        if short in _CASTS and self._is_active(args[:1]):
            return self._cast(node, args, kwargs)
        emulated = self._emulated(node, short, args, kwargs)
        if emulated is not None:
            return emulated
        if short == "baddbmm" and not kwargs:
            product = self._call(node, "aten.bmm.default", *args[1:], suffix=".product")
            return self._call(node, "aten.add.Tensor", args[0], product)
        active = self._is_active(args) or self._is_active(kwargs)
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
            "rounds in the middle of the network; keep one dtype throughout",
        )  # fmt: skip

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
        if short in ("linear", "addmm", "mm", "matmul"):
            return self._linear(node, short, args, kwargs)
        if short == "embedding" and isinstance(args[0], _Const):
            return self._embedding(node, args)
        if short == "layer_norm" and self._is_active(args[:1]):
            return self._norm(node, args)
        if short == "scaled_dot_product_attention":
            return self._attention(node, args, kwargs)
        if short == "glu" and self._is_active(args):
            return self._glu(node, args)
        rewritten = self._rewritten(node, short, args, kwargs)
        if rewritten is not None:
            return rewritten
        known = activation_of(short, args[1:], kwargs)
        if known is not None and self._is_active(args[:1]):
            return self._activated(node, known, args[0])
        return None

    def _on(self, node: fx.Node, piece: Piece, *inputs: Any, suffix: str = "") -> Ref:
        args = (piece.name, *(self._argument(i) for i in inputs))
        return self._emit(node.name + suffix, "piece", args, where=self._where(node), active=True)

    def _call(self, node: fx.Node, op: str, *args: Any, suffix: str = "", **kwargs: Any) -> Ref:
        active = self._is_active(args)
        return self._emit(node.name + suffix, op, self._argument(args), kwargs,
                          where=self._where(node), active=active)  # fmt: skip

    def _map(self, node: fx.Node, weight: _Const, bias: _Const | None) -> LinearMap:
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
        plain = bias is None or (isinstance(bias, _Const) and bias.tensor.ndim == 1)
        if isinstance(x, _Const) and x.tensor.ndim == 2 and not isinstance(weight, _Const):
            return self._from_left(node, short, x, weight)
        if not (isinstance(weight, _Const) and weight.tensor.ndim == 2 and plain):
            return None
        if not self._is_active(x):
            return None
        if short != "linear":
            weight = _Const(weight.tensor.mT, weight.name, weight.folded)
        return self._on(node, self._map(node, weight, bias), x)

    def _from_left(self, node: fx.Node, short: str, weight: _Const, x: Any) -> Any:
        """W x for a constant W: x' W' turned over."""
        if short not in ("matmul", "mm") or not self._is_active(x):
            return None
        piece = self._map(node, weight, None)
        if node.args[1].meta["val"].ndim == 1:  # type: ignore[union-attr]
            return self._on(node, piece, x)
        turned = self._call(node, "aten.transpose.int", x, -2, -1, suffix=".turned")
        return self._call(node, "aten.transpose.int", self._on(node, piece, turned, suffix=".map"),
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
        return self._on(node, piece, ids)

    def _norm(self, node: fx.Node, args: Any) -> Any:
        x, shape, weight, bias, eps = (*args, None, None, 1e-5)[:5] if len(args) < 5 else args[:5]
        if len(shape) != 1 or self._is_active((weight, bias)):
            return None
        weight, bias = (None if c is None else c.tensor.double() for c in (weight, bias))
        width, settings = int(shape[0]), self.to.settings
        made = Norm("", settings, width, weight, bias, float(eps))

        def same(there: Norm) -> bool:
            return there.floor == made.floor and all(
                a.shape == b.shape and torch.equal(a, b)
                for a, b in ((there.weight, made.weight), (there.bias, made.bias))
            )

        piece = self.to.piece(module_path(node), Norm, same, made.named)
        return self._on(node, piece, x)

    def _activated(self, node: fx.Node, name: str, x: Any, suffix: str = "") -> Ref:
        path, settings = module_path(node), self.to.settings
        own = _is_leaf(node, path)
        place = path if own and not suffix else f"{path}.{name}".removeprefix(".")
        kind = type(make_activation(name, place, settings))

        def same(there: Any) -> bool:
            return bool(there.function.name == ACTIVATIONS[name].function.name)

        piece = self.to.piece(place, kind, same, lambda p: make_activation(name, p, settings))
        return self._on(node, piece, x, suffix=suffix)

    def _glu(self, node: fx.Node, args: Any) -> Any:
        """One half times the sigmoid of the other."""
        dim = args[1] if len(args) > 1 else -1
        size = node.args[0].meta["val"].shape[dim] // 2  # type: ignore[union-attr]
        if not isinstance(size, int):
            return None
        a = self._call(node, "aten.slice.Tensor", args[0], dim, 0, size, suffix=".a")
        b = self._call(node, "aten.slice.Tensor", args[0], dim, size, 2 * size, suffix=".b")
        gate = self._activated(node, "sigmoid", b, suffix=".gate")
        return self._call(node, "aten.mul.Tensor", a, gate)

    def _rewritten(self, node: fx.Node, short: str, args: Any, kwargs: Any) -> Any:
        """Activations that are others plus sums."""
        if kwargs or not self._is_active(args[:1]):
            return None
        x = args[0]
        if short == "leaky_relu":
            slope = args[1] if len(args) > 1 else 0.01
            up = self._activated(node, "relu", x, suffix=".up")
            down = self._call(node, "aten.neg.default", x, suffix=".turned")
            down = self._activated(node, "relu", down, suffix=".down")
            down = self._call(node, "aten.mul.Tensor", down, slope, suffix=".slope")
            return self._call(node, "aten.sub.Tensor", up, down)
        if short in ("hardtanh", "relu6"):
            low, high = (
                (0.0, 6.0) if short == "relu6" else (*args[1:3], *(-1.0, 1.0)[len(args) - 1 :])
            )
            up, down = (
                self._activated(
                    node, "relu",
                    self._call(node, "aten.sub.Tensor", x, at, suffix=f".{key}"),
                    suffix=f".{key}.relu",
                )
                for key, at in (("low", low), ("high", high))
            )  # fmt: skip
            kept = self._call(node, "aten.sub.Tensor", up, down, suffix=".kept")
            return self._call(node, "aten.add.Tensor", kept, low)
        if short == "log_sigmoid":
            turned = self._call(node, "aten.neg.default", x, suffix=".turned")
            soft = self._activated(node, "softplus", turned, suffix=".soft")
            return self._call(node, "aten.neg.default", soft)
        return None

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
            raise self._refused(node, "attention", "shares keys between heads (enable_gqa)")
        if dropped:
            raise self._refused(node, "attention", "drops weights at random; call eval()")
        sizes = [node.args[i].meta["val"].shape for i in (0, 2)]  # type: ignore[union-attr]
        head, value = int(sizes[0][-1]), int(sizes[1][-1])
        scale = kwargs.get("scale")
        scale = 1 / math.sqrt(head) if scale is None else float(scale)
        piece = self._heads(node, scale, head, value, causal)
        if mask is None:
            return self._on(node, piece, q, k, v)
        source = node.kwargs.get("attn_mask") or node.args[3]
        if source.meta["val"].dtype == torch.bool:  # type: ignore[union-attr]
            mask = self._allowed(node, mask)
        return self._on(node, piece, q, k, v, mask)

    def _allowed(self, node: fx.Node, mask: Any) -> Ref:
        """A mask that allows where true, as numbers to be added."""
        zero = _Const(torch.zeros((), dtype=torch.float64))
        never = _Const(torch.full((), -math.inf, dtype=torch.float64))
        return self._call(node, "aten.where.self", mask, zero, never, suffix=".mask")

    def _product(self, node: Any) -> Any:  # noqa: PLR0911
        """softmax(s q k' + m) v written out: heads."""
        weights = _behind(node.args[0])
        if weights is None or _op(weights) not in ("softmax", "_softmax"):
            return None
        if weights.args[1] not in (-1, weights.meta["val"].ndim - 1):
            return None
        mask, logits = self._masked(weights.args[0])
        scale = 1.0
        while logits is not None and _op(logits) in ("mul", "div"):
            factor = logits.args[1]
            if not isinstance(factor, int | float):
                return None
            scale = scale * factor if _op(logits) == "mul" else scale / factor
            logits = _behind(logits.args[0])
        if logits is None or _op(logits) not in ("matmul", "bmm", "baddbmm"):
            return None
        parts = logits.args
        if _op(logits) == "baddbmm":
            if logits.kwargs or mask is not None or scale != 1.0:
                return None
            mask, parts = self._value(parts[0]), parts[1:]
        q, k, v = (self._value(a) for a in (*parts, node.args[1]))
        if not all(self._is_active(t) for t in (q, k, v)):
            return None
        sizes = [a.meta["val"].shape[-1] for a in (parts[0], node.args[1])]
        if not all(isinstance(n, int) for n in sizes):
            return None
        self.attended.add(self.values[weights.name].name)
        piece = self._heads(node, scale, sizes[0], sizes[1], causal=False)
        keys = self._call(node, "aten.transpose.int", k, -2, -1, suffix=".keys")
        given = (q, keys, v) if mask is None else (q, keys, v, mask)
        return self._on(node, piece, *given)

    def _masked(self, given: Any) -> tuple[Any, Any]:
        """(what is added to the logits, the logits)."""
        logits = _behind(given)
        if logits is None or _op(logits) != "add" or logits.kwargs:
            return None, logits
        sides = [_behind(a) for a in logits.args[:2]]
        scores = ("mul", "div", "matmul", "bmm")
        scored = [
            s is not None and _op(s) in scores and self._is_active(self.values[s.name])
            for s in sides
        ]
        if scored.count(True) != 1:
            return None, logits
        index = scored.index(True)
        return self._value(logits.args[1 - index]), sides[index]

    def _refuse_softmax(self, results: Any) -> None:
        """A softmax that no head stands for is a map like any other."""
        live = {n.name for n in _live(self.nodes, results)}
        for node in self.nodes:
            if node.name not in live or node.short not in ("softmax", "_softmax"):
                continue
            if node.name in self.attended or not node.active:
                continue
            if self.to.strict:
                raise ProgramError(
                    f"not emulated: softmax in {node.where}, whose weights multiply no values; "
                    "pass strict=False to have it listed in the report"
                )
            self.to.left[f"softmax in {node.where}"] = "softmax"


def _is_leaf(node: fx.Node, path: str) -> bool:
    """Whether the innermost module is an activation's own."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    kind = str(stack[-1][1]) if stack else ""
    return bool(path) and kind.startswith(("torch.nn.modules.activation.", "transformers.activ"))


def _op(node: fx.Node) -> str:
    return str(node.target).split(".")[1] if isinstance(node.target, torch._ops.OpOverload) else ""


def _behind(given: Any) -> Any:
    """The node itself, behind dropouts that are off and what changes nothing."""
    while isinstance(given, fx.Node) and (_op(given) == "dropout" or _op(given) in _SAME):
        given = given.args[0]
    return given if isinstance(given, fx.Node) else None


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


def _live(nodes: list[Node], results: Any) -> tuple[Node, ...]:
    """The nodes that the results need, inputs included."""
    wanted = {r.name for r in results if isinstance(r, Ref)}
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.name in wanted or node.op == "input":
            wanted |= set(node.needs)
            kept.append(node)
    return tuple(reversed(kept))
