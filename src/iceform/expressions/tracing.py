"""What a torch callable computes, as an expression of one real variable.

The callable is run once on a tensor that has a shape but no entries. Every operation that reaches
it is written down as a tree; one that would need the entries (a Python branch, ``.item()``,
``.numpy()``), is not elementwise, or is not in the table of operations, ends the tracing: such a
function cannot be enclosed. Each operation of torch is the real function that it approximates.
Numbers are taken as the doubles they are.

A function may still answer differently from call to call. It is traced three times, on tensors of
different lengths, and must leave the same tree each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from iceform import tuning
from iceform.errors import ProgramError
from iceform.expressions.formulas.table import TABLE, is_condition
from iceform.expressions.formulas.trees import Node, Number, Operation, Variable

_LENGTHS = (7, 11, 2)  # of the tensors that are traced
_VIEWS = frozenset({"alias", "detach"})
# What returns conditions; of two of them, torch's sum is "or" and a cast to bool is "not 0".
_CONDITIONS = frozenset(
    {"gt", "ge", "lt", "le", "eq", "ne", "alias", "clone", "detach", "where", "_to_copy"}
    | {"mul", "maximum", "minimum"}  # of 0 and 1 what they are of numbers
    | {f"{kind}_{how}" for kind in ("logical", "bitwise") for how in ("and", "not", "or", "xor")}
)


class UntraceableError(ProgramError):
    """A function that cannot be followed, and why."""


def trace(f: Callable[[Tensor], Tensor]) -> Node:
    """The tree of an elementwise function that is made of operations of the table.

    Equal parts of the tree are one object.

    Raises
    ------
    UntraceableError
        Says what cannot be followed.
    """
    kept: dict[Node, Node] = {}
    first, *others = (_traced(f, length, kept) for length in _LENGTHS)
    if any(other is not first for other in others):
        raise UntraceableError("it does not compute the same each time it is called")
    return first


def _traced(f: Callable[[Tensor], Tensor], length: int, kept: dict[Node, Node]) -> Node:
    recorder = _Recorder(length, kept)
    variable = _Hollow(recorder, recorder.shared(Variable()), (length,), torch.float64)
    try:
        with torch.no_grad():
            out = f(variable)
    except UntraceableError:
        raise
    except Exception as error:
        raise UntraceableError(f"following it raises {type(error).__name__}: {error}") from error
    if not isinstance(out, _Hollow) or out.dtype != torch.float64 or out.parts is not None:
        out = recorder.constant(out)
    return out.node


class _Recorder:
    """What is known while a function is followed."""

    def __init__(self, length: int, kept: dict[Node, Node]) -> None:
        self.length = length
        self.kept = kept
        self.count = 0
        self.aliased = False

    def write(self, name: str, args: Any, options: dict[str, Any] | None = None) -> Node:
        """The tree of an operation of torch."""
        self.count += 1
        if self.count > tuning.TRACING_MOST:
            raise UntraceableError(f"it takes more than {tuning.TRACING_MOST} operations")
        kept = {k: v for k, v in (options or {}).items() if k not in _LAYOUT}
        arguments = [self.argument(a) for a in args]
        written = _written_as(name)(*arguments, **{k: self.argument(v) for k, v in kept.items()})
        return self.shared(_number(written) if not isinstance(written, Operation) else written)

    def shared(self, node: Node) -> Node:
        """The one object for a tree and all that are equal to it."""
        if node not in self.kept:
            below = tuple(map(self.shared, node.arguments))
            self.kept[node] = Operation(node.name, below) if isinstance(node, Operation) else node
        return self.kept[node]

    def constant(self, out: Any) -> _Hollow:
        """A result that does not depend on the variable."""
        if not isinstance(out, Tensor) or out.shape != (self.length,):
            raise UntraceableError("it does not return a tensor of the shape it is given")
        node = self.write("full_like", (None, out))
        return _Hollow(self, node, (self.length,), torch.float64)

    def argument(self, value: Any) -> Any:
        """A tree for a tensor that is followed, or a number, word or the like."""
        if isinstance(value, _Hollow):
            if value.parts is not None:
                raise UntraceableError("it mixes entries of a stack")
            return value.node
        if isinstance(value, Tensor):
            return _entry(value)
        if isinstance(value, bool | str | Node) or value is None:
            return value
        if isinstance(value, int | float):
            if math.isnan(value):
                raise UntraceableError("it has a NaN among its constants")
            if float(value) != value:
                raise UntraceableError(f"it computes with {value}, which is no float64")
            return float(value)
        raise UntraceableError(f"it passes a {type(value).__name__} to torch")


def _entry(value: Tensor) -> float | bool:
    """A tensor of one value, however often."""
    if value.numel() == 0 or value.dim() > 1 or not bool((value == value.flatten()[0]).all()):
        raise UntraceableError("it reads a tensor of several values, or a NaN")
    found = value.flatten()[0].item()
    return found if isinstance(found, bool) else float(found)


class _Hollow(torch.Tensor):
    """A tensor without entries whose operations are written down."""

    recorder: _Recorder
    node: Node
    parts: tuple[int, tuple[Node, ...]] | None  # axis and entries of a stack

    @staticmethod
    def __new__(
        cls: type[_Hollow], recorder: _Recorder, node: Node, shape: tuple[int, ...],
        dtype: torch.dtype, parts: tuple[int, tuple[Node, ...]] | None = None,
    ) -> _Hollow:  # fmt: skip
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        made.recorder, made.node, made.parts = recorder, node, parts
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What is called in Python; all but :data:`_PLAIN` goes on to torch's dispatcher."""
        if func not in _PLAIN or kwargs or not all(map(_plain, args)):
            passed_on: Any = super().__torch_function__
            return passed_on(func, types, args, kwargs or {})
        name, *more = _PLAIN[func]
        return _followed(_recorder_of([args]), name, func, args, {}, more)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        recorder = _recorder_of([args, kwargs or {}])
        return _written(recorder, func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return "a tensor that is being followed"


# Functions that hand followed tensors and numbers, in this order, to one operation: its name, and
# what it is given beside them. They are written down where they are called: the first call that
# reaches a dispatcher in Python makes torch import distributed tensors and sympy, a second's work.
_NAMES = (
    *("abs", "neg", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "sigmoid", "erf"),
    *("relu", "clamp", "add", "sub", "mul", "div", "pow", "gt", "ge", "lt", "le"),
)
_PLAIN: dict[Any, tuple[Any, ...]] = {
    **{getattr(place, name): (name,) for name in _NAMES for place in (torch, torch.Tensor)},
    **{place.square: ("pow", 2.0) for place in (torch, torch.Tensor)},
    torch.Tensor.__pow__: ("pow",),
    torch.Tensor.__rsub__: ("rsub",),
    torch.nn.functional.softplus: ("softplus",),
    torch.nn.functional.gelu: ("gelu",),
}


def _plain(argument: Any) -> bool:
    number = isinstance(argument, int | float) and not isinstance(argument, bool)
    return number or isinstance(argument, _Hollow)


def _flat(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return [leaf for branch in tree for leaf in _flat(branch)]
    return [tree]


def _recorder_of(tree: Any) -> _Recorder:
    return next(leaf.recorder for leaf in _flat(tree) if isinstance(leaf, _Hollow))


def _written(recorder: _Recorder, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    if name == "stack":
        return _stack(recorder, *args, **kwargs)
    if name in _REDUCTIONS and args[0].parts is not None:
        return _reduced(name, args, kwargs)
    in_place = name.endswith("_") and func._schema.is_mutable
    name = name.rstrip("_") if in_place else name
    if not _known(name):
        raise UntraceableError(f"it uses {func}, which is not enclosed")
    recorder.aliased |= name in _VIEWS
    if in_place and recorder.aliased:
        raise UntraceableError("it changes a tensor in place that another name may share")
    out = _followed(recorder, name, func, args, kwargs)
    if in_place:
        args[0].node = out.node
        return args[0]
    return out


def _followed(
    recorder: _Recorder, name: str, func: Any, args: Any, kwargs: dict[str, Any], more: Any = ()
) -> Any:
    """What an operation returns, written down: a tensor without entries, and what else there is."""
    shape, dtype, several = _meta(recorder, func, args, kwargs)
    if dtype == torch.bool and name == "_to_copy" and args[0].dtype != torch.bool:
        name, args, kwargs = "ne", (*args[:1], 0.0), {}
    if dtype == torch.bool and name not in _CONDITIONS:
        raise UntraceableError(f"{func} of conditions is not enclosed")
    node = recorder.write(name, (*args, *more), kwargs)
    out = _Hollow(recorder, node, shape, dtype)
    return (out, *several) if several is not None else out


_LAYOUT = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"})


def _meta(
    recorder: _Recorder, func: Any, args: Any, kwargs: dict[str, Any]
) -> tuple[tuple[int, ...], torch.dtype, list[Any] | None]:
    """Shape and dtype of a result; what else is returned."""

    def solid(value: Any) -> Any:
        # Any entries do. Tensors on the meta device would load the compiler, and take a second.
        return torch.ones(value.shape, dtype=value.dtype) if isinstance(value, Tensor) else value

    with torch._C._DisableTorchDispatch():
        out = func(*map(solid, args), **{k: solid(v) for k, v in kwargs.items() if k != "device"})
    several = list(out[1:]) if isinstance(out, tuple) else None
    out = out[0] if isinstance(out, tuple) else out
    if out.shape != (recorder.length,):
        raise UntraceableError(f"{func} is not elementwise: it gives the shape {tuple(out.shape)}")
    if out.dtype not in (torch.float64, torch.bool):
        raise UntraceableError(f"{func} leaves float64 for {out.dtype}")
    return tuple(out.shape), out.dtype, several


def _stack(recorder: _Recorder, tensors: Any, dim: int = 0) -> _Hollow:
    entries = []
    for tensor in tensors:
        if isinstance(tensor, _Hollow) and tensor.dtype != torch.float64:
            raise UntraceableError("it stacks tensors that are not float64")
        followed = tensor if isinstance(tensor, _Hollow) else recorder.constant(tensor)
        entries.append(recorder.argument(followed))
    shape = [recorder.length]
    axis = dim % 2
    shape.insert(axis, len(entries))
    return _Hollow(recorder, entries[0], tuple(shape), torch.float64, (axis, tuple(entries)))


def _reduced(name: str, args: Any, kwargs: dict[str, Any]) -> _Hollow:
    """A sum or the like over the entries of a stack."""
    stack, *rest = args
    axis, entries = stack.parts
    axes = rest[0] if rest else None
    axes = [axes] if isinstance(axes, int) else axes
    if axes is None or [a % 2 for a in axes] != [axis] or any(rest[1:]) or kwargs:
        raise UntraceableError(f"it takes a {name} over all entries")
    recorder = stack.recorder
    node = recorder.shared(_REDUCTIONS[name](*entries))
    return _Hollow(recorder, node, (recorder.length,), torch.float64)


# ---------------------------------------------------------------------------------------------
# torch's operations as trees
# ---------------------------------------------------------------------------------------------

Argument = Node | float  # a condition counts as 0 or 1, a number as a condition where it is not 0


def _number(value: Argument | None) -> Node:
    if isinstance(value, Node):
        return Operation("where", (value, _ONE, _ZERO)) if is_condition(value) else value
    if value is None or not math.isfinite(value):
        raise UntraceableError(f"it computes with {value}")
    return Number(Fraction(value))


def _condition(value: Argument) -> Node:
    return value if isinstance(value, Node) and is_condition(value) else _differ(value, _ZERO)


def _tree(name: str, *arguments: Argument) -> Node:
    return Operation(name, tuple(map(_number, arguments)))


def _where(condition: Argument, a: Argument, b: Argument) -> Node:
    return Operation("where", (_condition(condition), _number(a), _number(b)))


def _not(a: Argument) -> Node:
    return Operation("not", (_condition(a),))


def _and(a: Argument, b: Argument) -> Node:
    return Operation("and", (_condition(a), _condition(b)))


def _or(a: Argument, b: Argument) -> Node:
    return _not(_and(_not(a), _not(b)))


def _xor(a: Argument, b: Argument) -> Node:
    return _or(_and(a, _not(b)), _and(_not(a), b))


def _differ(a: Argument, b: Argument) -> Node:
    return _not(_tree("==", a, b))


def _add(a: Argument, b: Argument, alpha: Argument = 1.0) -> Node:
    return _tree("+", a, _scaled(b, alpha))


def _subtract(a: Argument, b: Argument, alpha: Argument = 1.0) -> Node:
    return _tree("-", a, _scaled(b, alpha))


def _scaled(a: Argument, factor: Argument) -> Node:
    if not isinstance(factor, float):
        raise UntraceableError("it calls an operation in a way that is not enclosed")
    return _number(a) if factor == 1.0 else _tree("*", a, factor)


def _divide(a: Argument, b: Argument, rounding_mode: str | None = None) -> Node:
    if rounding_mode is not None:
        raise UntraceableError(f"it rounds quotients ({rounding_mode!r}), which jump")
    return _number(a) if b == 1.0 else _tree("/", a, b)


def _clamp(u: Argument, min: Argument | None = None, max: Argument | None = None) -> Node:
    out = _number(u)
    if min is not None and min != -math.inf:
        out = _tree("max", out, min)
    return out if max is None or max == math.inf else _tree("min", out, max)


def _elu(
    u: Argument, alpha: Argument = 1.0, scale: Argument = 1.0, input_scale: Argument = 1.0
) -> Node:
    below = _scaled(_tree("expm1", _scaled(_tree("min", u, 0.0), input_scale)), alpha)
    return _scaled(_tree("+", _tree("relu", u), below), scale)


def _celu(u: Argument, alpha: Argument = 1.0) -> Node:
    below = _tree("expm1", _divide(_tree("min", u, 0.0), alpha))
    return _tree("+", _tree("relu", u), _scaled(below, alpha))


def _leaky_relu(u: Argument, negative_slope: Argument = 0.01) -> Node:
    return _tree("+", _tree("relu", u), _tree("*", _tree("min", u, 0.0), negative_slope))


def _gelu(u: Argument, approximate: str = "none") -> Node:
    return _tree("gelu" if approximate == "none" else "gelu_tanh", u)


def _softplus(u: Argument, beta: Argument = 1.0, threshold: Argument = 20.0) -> Node:
    return _divide(_tree("torch_softplus", _scaled(u, beta), threshold), beta)


def _hard_sigmoid(u: Argument) -> Node:
    return _tree("/", _clamp(_tree("+", u, 3.0), 0.0, 6.0), 6.0)


def _heaviside(u: Argument, at_zero: Argument) -> Node:
    return _where(_tree(">", u, 0.0), 1.0, _where(_tree(">", 0.0, u), 0.0, at_zero))


def _log_add_exp(a: Argument, b: Argument) -> Node:
    return _tree("+", a, _tree("softplus", _tree("-", b, a)))


def _folded(name: str) -> Callable[..., Node]:
    return lambda *parts: reduce(lambda a, b: _tree(name, a, b), parts)


_ZERO, _ONE = Number(Fraction(0)), Number(Fraction(1))
_REDUCTIONS: dict[str, Callable[..., Node]] = {
    "amax": _folded("max"),
    "amin": _folded("min"),
    "logsumexp": lambda *parts: reduce(_log_add_exp, parts),
    "mean": lambda *parts: _tree("/", _folded("+")(*parts), float(len(parts))),
    "prod": _folded("*"),
    "sum": _folded("+"),
}

# Those that are rows of the table under the same name are not listed.
_LOWERED: dict[str, Callable[..., Node]] = {
    "_prelu_kernel": _leaky_relu,
    "_to_copy": _number,
    "add": _add,
    "addcdiv": lambda c, a, b, value=1.0: _add(c, _tree("/", a, b), value),
    "addcmul": lambda c, a, b, value=1.0: _add(c, _tree("*", a, b), value),
    "alias": lambda u: u,
    "celu": _celu,
    "clamp": _clamp,
    "clamp_max": lambda u, max: _clamp(u, None, max),
    "clamp_min": _clamp,
    "clone": lambda u: u,
    "detach": lambda u: u,
    "div": _divide,
    "elu": _elu,
    "eq": lambda a, b: _tree("==", a, b),
    "full_like": lambda u, value: _number(value),
    "ge": lambda a, b: _tree(">=", a, b),
    "gelu": _gelu,
    "gt": lambda a, b: _tree(">", a, b),
    "hardsigmoid": _hard_sigmoid,
    "hardswish": lambda u: _tree("*", u, _hard_sigmoid(u)),
    "hardtanh": lambda u, min_val=-1.0, max_val=1.0: _clamp(u, min_val, max_val),
    "heaviside": _heaviside,
    "hypot": lambda a, b: _tree("sqrt", _tree("+", _tree("^", a, 2.0), _tree("^", b, 2.0))),
    "le": lambda a, b: _tree(">=", b, a),
    "leaky_relu": _leaky_relu,
    "lerp": lambda a, b, t: _tree("+", a, _tree("*", t, _tree("-", b, a))),
    "log_sigmoid_forward": lambda u: _tree("neg", _tree("softplus", _tree("neg", u))),
    "logaddexp": _log_add_exp,
    "lt": lambda a, b: _tree(">", b, a),
    "masked_fill": lambda u, mask, value: _where(mask, value, u),
    "maximum": lambda a, b: _tree("max", a, b),
    "minimum": lambda a, b: _tree("min", a, b),
    "mul": lambda a, b: _tree("*", a, b),
    "ne": _differ,
    "ones_like": lambda u: _ONE,
    "pow": lambda a, b: _tree("^", a, b),
    "reciprocal": lambda u: _tree("/", 1.0, u),
    "rsqrt": lambda u: _tree("^", u, -0.5),
    "rsub": lambda a, b, alpha=1.0: _subtract(b, a, alpha),
    "sgn": lambda u: _tree("sign", u),
    "softplus": _softplus,
    "softshrink": lambda u, lambd=0.5: _tree("-", u, _clamp(u, -lambd, lambd)),
    "square": lambda u: _tree("^", u, 2.0),
    "sub": _subtract,
    "threshold": lambda u, threshold, value: _where(_tree(">", u, threshold), u, value),
    "where": _where,
    "zeros_like": lambda u: _ZERO,
    **{f"{kind}_{name}": build for kind in ("bitwise", "logical")
       for name, build in (("and", _and), ("not", _not), ("or", _or), ("xor", _xor))},
}  # fmt: skip


def _known(name: str) -> bool:
    row = TABLE.get(name)
    return name in _LOWERED or (row is not None and not row.condition)


def _written_as(name: str) -> Callable[..., Node]:
    """How an operation of torch is written: as listed, or as the row of its name."""
    if name in _LOWERED:
        return _LOWERED[name]

    def row(*arguments: Argument) -> Node:
        if len(arguments) != TABLE[name].arity:
            raise UntraceableError(f"it calls {name} in a way that is not enclosed")
        return _tree(name, *arguments)

    return row
