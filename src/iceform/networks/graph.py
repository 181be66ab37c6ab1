"""A network as the list of its operations, run one after the other.

A node names a piece, an operation of aten, an integer operation on sizes, an input or a constant.
The list is plain data: a file can name operations that are listed here, and no other code.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn

from iceform.codec import decode
from iceform.errors import IntegrityError
from iceform.networks.structure import leaves, mapped

_SIZES: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
    "floordiv": operator.floordiv, "mod": operator.mod, "getitem": operator.getitem,
    "sym_max": torch.sym_max, "sym_min": torch.sym_min, "truediv": operator.truediv,
    "ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt,
    "eq": operator.eq, "ne": operator.ne, "sym_not": torch.sym_not, "sym_float": torch.sym_float,
    "ceil": math.ceil, "floor": math.floor, "trunc": math.trunc, "pow": operator.pow,
}  # fmt: skip
_MOVED = {"masked_fill": (0, 2), "where": (1, 2), "index": (0,), "gather": (0,),
          "index_select": (0,), "scatter": (0, 3)}  # fmt: skip
_ATEN = re.compile(r"aten\.(\w+)\.(\w+)")
_DTYPES = {str(d): d for d in vars(torch).values() if isinstance(d, torch.dtype)}


@dataclass(frozen=True)
class Ref:
    """A reference to what another node computes."""

    name: str


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.name}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {"map": {k: _plain(v) for k, v in value.items()}}
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return {"torch": str(value)}
    if isinstance(value, float) and not abs(value) < float("inf"):
        return {"float": str(value)}
    return value


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(v) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "ref":
        return Ref(str(inner))
    if kind == "map":
        return {str(k): _read(v) for k, v in inner.items()}
    if kind == "float":
        return float(inner)
    return _torch_value(inner)


def _torch_value(name: str) -> Any:
    if name in _DTYPES:
        return _DTYPES[name]
    known = {str(v): v for v in vars(torch).values()
             if isinstance(v, torch.layout | torch.memory_format)}  # fmt: skip
    return known[name] if name in known else torch.device(name)


# What an operation takes has no one type.
_ARGUMENTS = {"codec": (_plain, lambda said: tuple(_read(said)))}
_NAMED = {"codec": (_plain, lambda said: dict(_read(said)))}


@dataclass(frozen=True)
class NetworkNode:
    """One step.

    Attributes
    ----------
    name
        What later steps call its value.
    op
        "input", "constant", "piece", "size.mul" and its kin, or an operation of aten.
    args, kwargs
        As the operation takes them, with :class:`Ref` for values.
    where
        The module that it belongs to.
    active
        Whether it computes with the network's numbers: not with ids, masks or sizes.
    shape
        Of its value; None for sizes that vary, and for what is no tensor.
    """

    name: str
    op: str
    args: tuple[Any, ...] = field(default=(), metadata=_ARGUMENTS)
    kwargs: Mapping[str, Any] = field(default_factory=dict, metadata=_NAMED)
    where: str = ""
    active: bool = False
    shape: tuple[int | None, ...] | None = None

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The values it reads."""
        return tuple(dict.fromkeys(_refs((self.args, dict(self.kwargs)))))

    @cached_property
    def moved(self) -> tuple[str, ...]:
        """The values that a move moves, without the masks and indices that say where to."""
        kept = _MOVED.get(self.short)
        args = (
            self.args if kept is None else tuple(self.args[i] for i in kept if i < len(self.args))
        )
        return tuple(dict.fromkeys(_refs((args, {} if kept else dict(self.kwargs)))))

    @property
    def is_size(self) -> bool:
        """Whether it is a number that sizes alone determine, or a list of passive tensors."""
        return not self.active and self.shape is None and self.op not in ("input", "constant")

    @property
    def short(self) -> str:
        """The operation's name alone."""
        return self.op.split(".")[1] if "." in self.op else self.op


def _refs(value: Any) -> list[str]:
    return [v.name for v in leaves(value) if isinstance(v, Ref)]


@cache
def function_of(op: str) -> Callable[..., Any]:
    """The operation that a name stands for.

    Raises
    ------
    IntegrityError
        If it is none.
    """
    if op.startswith("size.") and op[5:] in _SIZES:
        return _SIZES[op[5:]]
    found = _ATEN.fullmatch(op)
    name, overload = ("", "") if found is None else found.groups()
    packet = getattr(torch.ops.aten, name, None) if name else None
    function = None if packet is None else getattr(packet, overload, None)
    if not isinstance(function, torch._ops.OpOverload) or function._schema.is_mutable:
        raise IntegrityError(f"{op!r} is no operation that a network can hold")
    return function


def live(nodes: Sequence[NetworkNode], results: Sequence[Any]) -> list[NetworkNode]:
    """The nodes that the results need, inputs included."""
    wanted = set(_refs(list(results)))
    kept: list[NetworkNode] = []
    for node in reversed(nodes):
        if node.name in wanted or node.op == "input":
            wanted |= set(node.needs)
            kept.append(node)
    return kept[::-1]


def size_name(function: Any) -> str | None:
    """The name of an operation on sizes, if it is one."""
    names = {f: f"size.{name}" for name, f in _SIZES.items()}
    try:
        return names.get(function)
    except TypeError:
        return None


@dataclass(frozen=True)
class Guard:
    """A condition on sizes: dimension ``dim`` of input ``index`` compared with a number or another.

    ``other`` is a number, or (index, dim) of another size.
    """

    index: int
    dim: int
    relation: str
    other: int | tuple[int, int]

    def holds(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Whether these inputs satisfy it."""
        size = shapes[self.index][self.dim]
        other = self.other if isinstance(self.other, int) else shapes[self.other[0]][self.other[1]]
        return bool(_RELATIONS[self.relation](size, other))


_RELATIONS = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le,
              ">": operator.gt, "<": operator.lt}  # fmt: skip


@dataclass(frozen=True, eq=False)
class NetworkGraph:
    """The network's operations for one kind of call.

    Attributes
    ----------
    given
        Structure of the arguments it was captured with.
    dtypes
        Of the input tensors; None for one that the graph does not read.
    ranks
        Dimensions of each.
    guards
        What the sizes must satisfy.
    nodes
        In order.
    results
        References to the output tensors.
    output
        Structure of the output.
    """

    given: Any
    dtypes: tuple[torch.dtype, ...]
    ranks: tuple[int, ...]
    guards: tuple[Guard, ...]
    nodes: tuple[NetworkNode, ...]
    results: tuple[Any, ...] = field(metadata=_ARGUMENTS)
    output: Any

    def fits(self, given: Any, tensors: Sequence[Tensor], *, sizes: bool = True) -> bool:
        """Whether it was captured for such a call."""
        kinds = tuple((t.dtype, t.ndim) for t in tensors)
        if given != self.given or kinds != tuple(zip(self.dtypes, self.ranks, strict=True)):
            return False
        return not sizes or all(g.holds([t.shape for t in tensors]) for g in self.guards)

    @cached_property
    def _last(self) -> dict[str, tuple[str, ...]]:
        """By node, the values that nobody reads after it: they can be dropped."""
        last: dict[str, str] = {}
        for node in self.nodes:
            last[node.name] = node.name
            last |= dict.fromkeys(node.needs, node.name)
        for name in _refs(self.results):
            last.pop(name, None)
        ends: dict[str, tuple[str, ...]] = {}
        for name, at in last.items():
            ends[at] = (*ends.get(at, ()), name)
        return ends

    @cached_property
    def pairs(self) -> dict[str, str]:
        """Steps whose value only one piece reads, as its only input: (step, piece) by name."""
        readers: dict[str, list[NetworkNode]] = {}
        for node in self.nodes:
            for name in node.needs:
                readers.setdefault(name, []).append(node)
        kept = _refs(self.results)
        return {
            name: by[0].name for name, by in readers.items()
            if len(by) == 1 and by[0].op == "piece" and by[0].needs == (name,) and name not in kept
        }  # fmt: skip

    @cached_property
    def outside(self) -> dict[str, int]:
        """What is computed with the network's numbers outside the pieces, and how often."""
        from iceform.networks.operations import is_move

        computing = (n for n in self.nodes if n.active and n.op.startswith("aten."))
        return dict(Counter(n.short for n in computing if not is_move(n.short)))

    def run(
        self,
        parts: nn.Module,
        tensors: Sequence[Tensor],
        saw: Callable[[NetworkNode, tuple[Any, ...], Mapping[str, Any], Any], None] | None = None,
        covered: Collection[str] = (),
        joined: Collection[str] = (),
    ) -> list[Tensor]:
        """The output tensors; ``saw`` is shown every step.

        ``covered`` names the pieces' nodes whose inputs are in range whatever they are, ``joined``
        maps and sums that are left to the piece that reads them.
        """
        values: dict[str, Any] = {}

        def filled(value: Any) -> Any:
            return values[value.name] if isinstance(value, Ref) else value

        for node in self.nodes:
            args, kwargs = mapped(node.args, filled), mapped(node.kwargs, filled)
            if node.name in covered:
                kwargs = {"covered": True}
            if node.name in joined:
                value: Any = _DeferredArguments(
                    args if node.op == "piece" else (None, *args), kwargs
                )
            elif node.op == "piece" and isinstance(left := args[1], _DeferredArguments):
                value = left.to(parts, args[0])
            else:
                value = _step(node, args, kwargs, parts, tensors)
            if saw is not None:
                saw(node, args, kwargs, value)
            values[node.name] = value
            for name in self._last.get(node.name, ()):
                del values[name]
        return list(mapped(self.results, filled))


def graph_from(saved: Any) -> NetworkGraph:
    """The graph that a file holds; every operation is looked up among those that there are."""
    try:
        found = decode(NetworkGraph, saved)
    except (KeyError, TypeError, ValueError, IndexError) as broken:
        raise IntegrityError(f"not the graph of a network: {broken}") from None
    for node in found.nodes:
        if node.op not in ("input", "constant", "piece"):
            function_of(node.op)
    return found


@dataclass(frozen=True, eq=False)
class _DeferredArguments:
    """Arguments of a step that the next piece runs itself, so that both are one call.

    The first argument is the name of the piece whose step was put off, or None for a sum.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def to(self, parts: nn.Module, name: str) -> Any:
        """The output of the piece of that name, which runs the step that was put off first."""
        first = None if self.args[0] is None else parts.get_submodule(self.args[0])
        return parts.get_submodule(name).finish(first, *self.args[1:], **self.kwargs)  # type: ignore[operator]


def _step(
    node: NetworkNode, args: Any, kwargs: Any, parts: nn.Module, tensors: Sequence[Tensor]
) -> Any:
    if node.op == "input":
        return tensors[args[0]]
    if node.op == "constant":
        held = parts.get_buffer(args[0])
        return held.to(args[1]) if len(args) > 1 else held
    if node.op == "piece":
        return parts.get_submodule(args[0])(*args[1:], **kwargs)
    if tensors:  # what is made or moved goes where the inputs are
        args, kwargs = at(tensors[0].device, args), at(tensors[0].device, kwargs)
    return function_of(node.op)(*args, **kwargs)


def at(device: torch.device, given: Any) -> Any:
    """Arguments in which every device is replaced by this one."""
    return mapped(given, lambda v: device if isinstance(v, torch.device) else v)
