"""What a torch callable computes, as a tape of operations on one real variable.

The callable is run once on a tensor that has a shape but no entries. Every operation that reaches
it is written down; one that would need the entries (a Python branch, ``.item()``, ``.numpy()``), is
not elementwise, or is not known to the arithmetic of jets, ends the tracing: such a function
cannot be enclosed. Numbers are taken as the doubles they are.

A function may still answer differently from call to call. It is traced three times, on tensors of
different lengths, and must leave the same tape each time.

**Where the branches of a choice meet.** ``torch.where(z < c, a(z), b(z))`` is continuous at c if
a(c) = b(c), and that is only known if both are known exactly. At a point most operations give
rational numbers; of the rest a few values are known (e^0 = 1). What is not is left open.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from iceform import tuning
from iceform.errors import ProgramError

_LENGTHS = (7, 11, 2)  # of the tensors that are traced
_VIEWS = frozenset({"alias", "detach"})
# What returns conditions; of two of them, torch's sum is "or" and a cast to bool is "not 0".
_CONDITIONS = frozenset(
    {"gt", "ge", "lt", "le", "eq", "ne", "alias", "clone", "detach", "where", "_to_copy"}
    | {"mul", "maximum", "minimum"}  # of 0 and 1 what they are of numbers
    | {f"{kind}_{how}" for kind in ("logical", "bitwise") for how in ("and", "not", "or", "xor")}
)
_REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "logsumexp", "prod"})


class UntraceableError(ProgramError):
    """A function that cannot be followed, and why."""


@dataclass(frozen=True)
class Use:
    """The result of an earlier step."""

    step: int


Argument = Use | float | bool | str | None | tuple[Use, ...]


@dataclass(frozen=True)
class TracedOperation:
    """One operation: its name in torch, what it acts on, and its options."""

    name: str
    arguments: tuple[Argument, ...]
    options: tuple[tuple[str, Argument], ...] = ()


@dataclass(frozen=True)
class TracedFunction:
    """Operations in order; step 0 is the variable, the last one the result."""

    steps: tuple[TracedOperation, ...]


def trace(f: Callable[[Tensor], Tensor], known: frozenset[str]) -> TracedFunction:
    """The tape of an elementwise function made of ``known`` operations.

    Raises
    ------
    UntraceableError
        Says what cannot be followed.
    """
    first, *others = (_traced(f, length, known) for length in _LENGTHS)
    if any(other != first for other in others):
        raise UntraceableError("it does not compute the same each time it is called")
    return first


def _traced(f: Callable[[Tensor], Tensor], length: int, known: frozenset[str]) -> TracedFunction:
    recorder = _Recorder(known, length)
    variable = _Hollow(
        recorder, recorder.write(TracedOperation("variable", ())), (length,), torch.float64
    )
    try:
        with torch.no_grad():
            out = f(variable)
    except UntraceableError:
        raise
    except Exception as error:
        raise UntraceableError(f"following it raises {type(error).__name__}: {error}") from error
    if not isinstance(out, _Hollow) or out.dtype != torch.float64 or out.parts is not None:
        out = recorder.constant(out)
    return recorder.tape(out)


class _Recorder:
    """The tape while it is written."""

    def __init__(self, known: frozenset[str], length: int) -> None:
        self.known = known
        self.length = length
        self.steps: list[TracedOperation] = []
        self.places: dict[TracedOperation, int] = {}
        self.aliased = False

    def write(self, step: TracedOperation) -> int:
        """The place of a step, the same for the same operation on the same things."""
        if step not in self.places:
            if len(self.steps) >= tuning.TRACING_MOST:
                raise UntraceableError(f"it takes more than {tuning.TRACING_MOST} operations")
            self.places[step] = len(self.steps)
            self.steps.append(step)
        return self.places[step]

    def constant(self, out: Any) -> _Hollow:
        """A result that does not depend on the variable."""
        if not isinstance(out, Tensor) or out.shape != (self.length,):
            raise UntraceableError("it does not return a tensor of the shape it is given")
        place = self.write(TracedOperation("full_like", (Use(0), self.argument(out))))
        return _Hollow(self, place, (self.length,), torch.float64)

    def argument(self, value: Any) -> Argument:
        """A tensor that is followed, or a number."""
        if isinstance(value, _Hollow):
            if value.parts is not None:
                raise UntraceableError("it mixes entries of a stack")
            return Use(value.place)
        if isinstance(value, Tensor):
            return _number(value)
        if isinstance(value, bool | str) or value is None:
            return value
        if isinstance(value, int | float):
            if math.isnan(value):
                raise UntraceableError("it has a NaN among its constants")
            if float(value) != value:
                raise UntraceableError(f"it computes with {value}, which is no float64")
            return float(value)
        raise UntraceableError(f"it passes a {type(value).__name__} to torch")

    def tape(self, out: _Hollow) -> TracedFunction:
        """The steps that the result needs, renumbered."""
        needed: set[int] = set()
        todo = [out.place, 0]
        while todo:
            place = todo.pop()
            if place not in needed:
                needed.add(place)
                todo += [use.step for use in _uses(self.steps[place])]
        order = sorted(needed - {out.place} | {0})
        order += [out.place] if out.place else []
        new = {old: k for k, old in enumerate(order)}
        return TracedFunction(tuple(_renumbered(self.steps[old], new) for old in order))


def _number(value: Tensor) -> float | bool:
    """A tensor of one value, however often."""
    if value.numel() == 0 or value.dim() > 1 or not bool((value == value.flatten()[0]).all()):
        raise UntraceableError("it reads a tensor of several values, or a NaN")
    found = value.flatten()[0].item()
    return found if isinstance(found, bool) else float(found)


def _uses(step: TracedOperation) -> list[Use]:
    flat: list[Argument] = []
    for argument in (*step.arguments, *(value for _, value in step.options)):
        flat += argument if isinstance(argument, tuple) else (argument,)
    return [a for a in flat if isinstance(a, Use)]


def _renumbered(step: TracedOperation, new: dict[int, int]) -> TracedOperation:
    def renamed(argument: Argument) -> Argument:
        if isinstance(argument, Use):
            return Use(new[argument.step])
        if isinstance(argument, tuple):
            return tuple(Use(new[use.step]) for use in argument)
        return argument

    options = tuple((name, renamed(value)) for name, value in step.options)
    return TracedOperation(step.name, tuple(map(renamed, step.arguments)), options)


class _Hollow(torch.Tensor):
    """A tensor without entries whose operations are written down."""

    recorder: _Recorder
    place: int
    parts: tuple[int, tuple[Use, ...]] | None  # axis and entries of a stack

    @staticmethod
    def __new__(
        cls: type[_Hollow], recorder: _Recorder, place: int, shape: tuple[int, ...],
        dtype: torch.dtype, parts: tuple[int, tuple[Use, ...]] | None = None,
    ) -> _Hollow:  # fmt: skip
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        made.recorder, made.place, made.parts = recorder, place, parts
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
        return f"a tensor that is being followed, step {self.place}"


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
    if name not in recorder.known:
        raise UntraceableError(f"it uses {func}, which is not enclosed")
    recorder.aliased |= name in _VIEWS
    if in_place and recorder.aliased:
        raise UntraceableError("it changes a tensor in place that another name may share")
    out = _followed(recorder, name, func, args, kwargs)
    if in_place:
        args[0].place = out.place
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
    place = recorder.write(_step(recorder, name, (*args, *more), kwargs))
    out = _Hollow(recorder, place, shape, dtype)
    return (out, *several) if several is not None else out


def _step(recorder: _Recorder, name: str, args: Any, kwargs: dict[str, Any]) -> TracedOperation:
    kept = {k: v for k, v in kwargs.items() if k not in _LAYOUT}
    return TracedOperation(
        name,
        tuple(map(recorder.argument, args)),
        tuple(sorted((k, recorder.argument(v)) for k, v in kept.items())),
    )


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
    uses = tuple(use for use in entries if isinstance(use, Use))
    return _Hollow(recorder, -1, tuple(shape), torch.float64, (axis, uses))


def _reduced(name: str, args: Any, kwargs: dict[str, Any]) -> _Hollow:
    """A sum or the like over the entries of a stack."""
    stack, *rest = args
    axis, entries = stack.parts
    axes = rest[0] if rest else None
    axes = [axes] if isinstance(axes, int) else axes
    if axes is None or [a % 2 for a in axes] != [axis] or any(rest[1:]) or kwargs:
        raise UntraceableError(f"it takes a {name} over all entries")
    recorder = stack.recorder
    place = recorder.write(TracedOperation(f"stacked_{name}", (entries,)))
    return _Hollow(recorder, place, (recorder.length,), torch.float64)


_COMPARISONS = frozenset({"gt", "ge", "lt", "le"})
_ZERO, _ONE = Fraction(0), Fraction(1)

# At 0 these are 0; e^0 and cos 0 are 1.
_ODD = ("asinh", "atan", "erf", "expm1", "gelu", "log1p", "mish", "silu", "sin", "sinh", "sqrt",
        "tan", "tanh")  # fmt: skip
_EVEN = ("cos", "cosh", "exp", "exp2")

Exact = Fraction | None


def switches(tape: TracedFunction) -> dict[int, Fraction]:
    """The places c of comparisons of the variable itself with a number, by their steps."""
    found = {}
    for k, step in enumerate(tape.steps):
        numbers = [a for a in step.arguments if isinstance(a, float) and math.isfinite(a)]
        if step.name in _COMPARISONS and Use(0) in step.arguments and len(numbers) == 1:
            found[k] = Fraction(numbers[0])
    return found


def exact_at(tape: TracedFunction, point: Fraction) -> list[Exact]:
    """The value of every step at a point; None where it is not known exactly."""
    known: list[Exact] = []
    for step in tape.steps:
        value = point if step.name == "variable" else _value(step, known)
        small = value is not None and value.numerator.bit_length() <= tuning.TRACING_MOST_BITS
        known.append(value if small else None)
    return known


def straight(tape: TracedFunction) -> tuple[Fraction, Fraction] | None:
    """Slope and intercept of a function that sums and multiples by numbers make; else None."""
    known: list[tuple[Fraction, Fraction] | None] = []
    for step in tape.steps:
        known.append((_ONE, _ZERO) if step.name == "variable" else _line(step, known))
    return known[-1]


def _line(step: TracedOperation, known: list[tuple[Fraction, Fraction] | None]) -> Any:
    parts: list[Any] = []
    for argument in step.arguments:
        number = None if isinstance(argument, Use) else _exact(argument, [])
        parts.append(known[argument.step] if isinstance(argument, Use) else (_ZERO, number))
    if step.options or step.name not in _STRAIGHT or any(p is None or p[1] is None for p in parts):
        return None
    try:
        return _STRAIGHT[step.name](*parts)
    except (TypeError, ZeroDivisionError):
        return None


def _times(p: Any, q: Any) -> Any:
    return None if p[0] and q[0] else (p[0] * q[1] + p[1] * q[0], p[1] * q[1])


_STRAIGHT: dict[str, Callable[..., Any]] = {
    "add": lambda p, q: (p[0] + q[0], p[1] + q[1]),
    "alias": lambda p: p,
    "clone": lambda p: p,
    "detach": lambda p: p,
    "div": lambda p, q: None if q[0] else (p[0] / q[1], p[1] / q[1]),
    "full_like": lambda p, q: q,
    "mul": _times,
    "neg": lambda p: (-p[0], -p[1]),
    "ones_like": lambda p: (_ZERO, _ONE),
    "rsub": lambda p, q: (q[0] - p[0], q[1] - p[1]),
    "sub": lambda p, q: (p[0] - q[0], p[1] - q[1]),
    "zeros_like": lambda p: (_ZERO, _ZERO),
}


def _value(step: TracedOperation, known: list[Exact]) -> Exact:
    if step.options:
        return None
    parts = [_exact(a, known) for a in step.arguments]
    if step.name in _ODD + _EVEN:
        at_zero = _ZERO if step.name in _ODD else _ONE
        return at_zero if parts[:1] == [_ZERO] and len(parts) == 1 else None
    if step.name == "where":
        return parts[1] if len(parts) == 3 and parts[1] == parts[2] else None
    if step.name not in _RATIONAL or any(p is None for p in parts):
        return None
    try:
        return _RATIONAL[step.name](*parts)
    except (TypeError, ZeroDivisionError):
        return None


def _exact(argument: Any, known: list[Exact]) -> Exact:
    if isinstance(argument, Use):
        return known[argument.step]
    finite = isinstance(argument, float) and math.isfinite(argument)
    return Fraction(argument) if finite else None


def _power(base: Fraction, exponent: Fraction) -> Exact:
    whole = exponent.denominator == 1 and 0 <= exponent <= 16
    return base ** int(exponent) if whole else None


_RATIONAL: dict[str, Callable[..., Exact]] = {
    "abs": abs,
    "add": lambda a, b: a + b,
    "clamp": lambda u, low, high: min(max(u, low), high),
    "clamp_max": min,
    "clamp_min": max,
    "clone": lambda u: u,
    "div": lambda a, b: a / b,
    "full_like": lambda u, value: value,
    "maximum": max,
    "minimum": min,
    "mul": lambda a, b: a * b,
    "neg": lambda u: -u,
    "ones_like": lambda u: _ONE,
    "pow": _power,
    "reciprocal": lambda u: 1 / u,
    "relu": lambda u: max(u, _ZERO),
    "rsub": lambda a, b: b - a,
    "square": lambda u: u * u,
    "sub": lambda a, b: a - b,
    "zeros_like": lambda u: _ZERO,
}
