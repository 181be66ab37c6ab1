"""Values of the language: numbers with a place and a shape, on which Python's operators act.

A :class:`Value` belongs to a :class:`Scope`, which does the work: it computes at once (on tensors,
or on balls), or it writes down what is to be computed. The rules of places and shapes are the same
for all and stand here.

Torch's names for what the language has, ``torch.tanh(v)`` or ``v.tanh()``, are in
:mod:`~iceform.computer.torch_words`.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from fractions import Fraction
from functools import partial, reduce, update_wrapper
from numbers import Real
from types import FunctionType
from typing import Any, NoReturn, Protocol, TypeGuard

import numpy as np
import torch

from iceform.computer.graph import refuse, source_line
from iceform.computer.instructions import FLAG_GAP
from iceform.errors import CompileError, ProgramError
from iceform.expressions.formulas import Formula, trees
from iceform.expressions.formulas.polynomials import line
from iceform.program import Node, NodeOperation, SourceLine

_Z = trees.Variable()
# Whole numbers: a value counts as one within 2^-10 of it, which is FLAG_GAP, the size that decides
# branches too. What is rounded stays half of that from the middle of two, and floor takes what is
# that much below a whole number, or less, for the number itself, and refuses it unless it is within
# 2^-32.


class Scope(Protocol):
    """Where operations are carried out or written down."""

    @property
    def traced(self) -> bool:
        """Whether operations are written down instead of carried out."""

    def emit(self, node: Node, args: tuple[Any, ...]) -> Any:
        """The handle of an operation's value; ``node.args`` is empty, ``args`` are handles."""


_Operator = Callable[["Value", Any], "Value"]


def _operator(symbol: str, of_two: Callable[[Value, Value], Value]) -> tuple[_Operator, _Operator]:
    """An operator of Python's and its mirror: with a number it is a formula."""

    def forward(self: Value, other: Any) -> Value:
        if not is_number(other):
            return of_two(self, checked_value(other, self))
        if symbol == "/" and other == 0:
            raise refuse("this divides by 0", source_line())
        return self.apply(_operation(symbol, _Z, _literal(other)))

    def mirror(self: Value, other: Any) -> Value:
        if not is_number(other):
            return forward(lifted(other, self), self)
        return self.apply(_operation(symbol, _literal(other), _Z))

    return forward, mirror


class Value:
    """A number or a vector, one of it (lane 0) or one a sample."""

    __slots__ = ("handle", "lost", "samples", "scope", "width")

    def __init__(self, scope: Scope, handle: Any, samples: bool, width: int | None) -> None:
        self.scope, self.handle = scope, handle
        self.samples, self.width = samples, width
        self.lost = ""  # why it may no longer be read

    # ------------------------------------------------------------------------------- arithmetic

    __add__, __radd__ = _operator("+", lambda a, b: emit("add", a, b))
    __sub__, __rsub__ = _operator("-", lambda a, b: a + -b)
    __truediv__, __rtruediv__ = _operator("/", lambda a, b: a * _reciprocal(b))

    def __mul__(self, other: Any) -> Value:
        if is_number(other):
            return self.apply(_operation("*", _literal(other), _Z))
        return emit("mul", self, checked_value(other, self))

    __rmul__ = __mul__

    def __pow__(self, exponent: Any) -> Value:
        if isinstance(exponent, Value):  # a table has one variable, and log needs a base above 0
            return function("exp", exponent * function("log", self))
        if not is_number(exponent) or abs(float(exponent)) > 16:
            raise refuse(
                f"a power must be a number from -16 to 16, got {exponent!r}", source_line()
            )
        if exponent in (0, 1):
            return self * 0.0 + 1.0 if exponent == 0 else +self
        return self.apply(_operation("^", _Z, _literal(exponent)))

    def __rpow__(self, base: Any) -> Value:
        """exp(log(base) z)."""
        if not is_number(base) or not float(base) > 0:
            raise refuse(f"powers of a number need one above 0, got {base!r}", source_line())
        return self.apply(_operation("exp", _operation("*", _operation("log", _literal(base)), _Z)))

    def __matmul__(self, other: Any) -> Value:
        own, rows = _rows(other, self), matrix(other)
        if own is not None:
            return reduce(operator.add, (self[k] * row for k, row in enumerate(own)))
        return (self * other).sum() if rows is None else _side_by_side(rows.T, self)

    def __rmatmul__(self, other: Any) -> Value:
        own, rows = _rows(other, self), matrix(other)
        if own is not None:
            return emit("concat", *((row * self).sum() for row in own))
        return (self * other).sum() if rows is None else _side_by_side(rows, self)

    def __neg__(self) -> Value:
        return self.apply(_operation("neg", _Z))

    def __pos__(self) -> Value:
        """The same value under a name of its own."""
        return Value(self.scope, self.read(), self.samples, self.width)

    def __abs__(self) -> Value:
        return self.apply(_operation("abs", _Z))

    # ------------------------------------------------------------------------------ comparisons

    def __gt__(self, other: Any) -> Value:
        return emit("step", self - other)

    def __lt__(self, other: Any) -> Value:
        return emit("step", other - self)

    def __ge__(self, other: Any) -> Value:
        return emit("step", self - other, attr="or equal")

    def __le__(self, other: Any) -> Value:
        return emit("step", other - self, attr="or equal")

    def __and__(self, other: Any) -> Value:
        return self.__mul__(other)

    def __or__(self, other: Any) -> Value:
        return emit("maximum", self, checked_value(other, self))

    __rand__, __ror__ = __and__, __or__

    def __xor__(self, other: Value) -> Value:
        """Of comparisons: where they differ."""
        both = self * other
        return self + other - both - both

    __rxor__ = __xor__

    def __invert__(self) -> Value:
        return 1.0 - self

    def __eq__(self, other: object) -> Any:
        """Of whole numbers; a run refuses others."""
        return (self - other)._whole("zero", 0.5 - FLAG_GAP)

    def __ne__(self, other: object) -> Any:
        return 1.0 - (self == other)

    __hash__ = object.__hash__

    # ------------------------------------------------------------------------------- other words

    def apply(self, tree: trees.Node) -> Value:
        """A scalar function of one variable, elementwise."""
        at = self
        if self.scope.traced and self.handle.op == "state" and line(tree) is None:
            # What a loop begins a turn with, apart from what it ends with: that may be a 0 which
            # nothing divides by.
            at = emit("spread", self)
        return emit("apply", at, attr=tree)

    def sum(self, dim: Any = None) -> Value:
        """The sum of the components."""
        return emit("sum", components("sum", self, dim, "ice.sum goes over the samples"))

    def mean(self, dim: Any = None) -> Value:
        """The mean of the components."""
        over = components("mean", self, dim, "ice.mean goes over the samples")
        return over.sum() / len(over)

    def _whole(self, kind: str, gap: float) -> Value:
        return emit("whole", self, attr=(kind, gap))

    def nearest_whole(self) -> Value:
        """The whole number that this is; a run refuses others."""
        return self._whole("nearest", 0.5 - FLAG_GAP)

    def __round__(self, digits: int | None = None) -> Value:
        """The nearest whole number, or decimal; a run refuses what lies half-way between two."""
        if digits:
            scaled: Value = round(self * float(10**digits))
            return scaled.__truediv__(float(10**digits))
        return self._whole("nearest", 0.5 * FLAG_GAP)

    def __floor__(self) -> Value:
        """The largest whole number that is not larger."""
        return (self + (FLAG_GAP - 0.5))._whole("nearest", FLAG_GAP - 2.0**-32)

    def __ceil__(self) -> Value:
        """The smallest whole number that is not smaller."""
        return -(-self).__floor__()

    def __trunc__(self) -> Value:
        """The nearest whole number on the way to 0."""
        return where(self < 0, self.__ceil__(), self.__floor__())

    def __floordiv__(self, other: Any) -> Value:
        return self.__truediv__(other).__floor__()

    def __rfloordiv__(self, other: Any) -> Value:
        return self.__rtruediv__(other).__floor__()

    def __mod__(self, other: Any) -> Value:
        return self.__sub__((self // other).__mul__(other))

    def __rmod__(self, other: Any) -> Value:
        return self.__rfloordiv__(other).__mul__(self).__rsub__(other)

    def __divmod__(self, other: Any) -> tuple[Value, Value]:
        return self // other, self % other

    def __getitem__(self, index: Any) -> Value:
        if self.width is not None and isinstance(index, Value):
            return (hot(index, self.width) * self).sum()
        if self.width is not None and isinstance(index, (slice, list, range)):
            return self._part(index)
        if isinstance(index, tuple) and index[:1] == (Ellipsis,) and len(index) == 2:
            return self[index[1]]
        if self.width is None or not isinstance(index, int):
            raise refuse(
                f"v[j] takes a component of a vector, by a number or by a whole value of the "
                f"program; got [{index!r}] on {self._shape}. x and y are those of one sample: "
                "ice.mean and ice.attend go over all, and ice.at(v, j) reads sample j",
                source_line(),
            )
        if not -self.width <= index < self.width:
            raise refuse(f"component {index} of a vector of {self.width}", source_line())
        return emit("component", self, attr=index % self.width)

    def _part(self, index: slice | list[Any] | range) -> Value:
        """Some of the components, as a vector."""
        parts = list(self)[index] if isinstance(index, slice) else [self[k] for k in index]
        if not parts:
            raise refuse(f"v[{index}] has no component", source_line())
        return emit("concat", *parts)

    def __len__(self) -> int:
        if self.width is None:
            raise refuse(
                "len() counts components, and this is a scalar; torch.stack([a, b]) "
                "makes a vector of scalars",
                source_line(),
            )
        return self.width

    def __iter__(self) -> Iterator[Value]:
        """The components, one by one."""
        return (self[j] for j in range(len(self)))

    def read(self) -> Any:
        """The handle, unless the value is lost."""
        if self.lost:
            raise refuse(self.lost, source_line())
        return self.handle

    @property
    def _shape(self) -> str:
        shape = "a scalar" if self.width is None else f"a vector of {self.width}"
        return f"{shape} per sample" if self.samples else shape

    def __repr__(self) -> str:
        return f"<{self._shape} of a traced algorithm>" if self.scope.traced else str(self.handle)

    # ---------------------------------------------------------------- what Python may not ask for

    def __bool__(self) -> bool:
        self._decided(
            "if, and, or, not, max or a < b < c",
            "ice.where(condition, a, b), ice.while_, ice.maximum, & for and, | for or, ~ for not, "
            "(a < b) & (b < c)",
        )

    def __float__(self) -> float:
        self._decided("float(), or math", "the value itself, and torch.exp(v) for math.exp(v)")

    def __int__(self) -> int:
        self._decided("int()", "torch.trunc(v), torch.floor(v) or torch.round(v)")

    def __index__(self) -> int:
        self._decided("range() or an index", "ice.repeat(steps)")

    def __format__(self, form: str) -> str:
        if form:
            self._decided("a format", "the value itself")
        return repr(self)

    def __setitem__(self, index: Any, value: Any) -> None:
        """One component, or some of them, written anew."""
        if self.width is None:
            raise refuse("a scalar has no components that could be written to", source_line())
        which = list(range(self.width))[index] if isinstance(index, slice) else index
        places = which if isinstance(which, list) else [which]
        several = isinstance(value, (Value, list, tuple, torch.Tensor)) and len(places) > 1
        new = +self
        for number, place in enumerate(places):
            at = place + self.width if isinstance(place, int) and place < 0 else place
            there = lifted(one_hot_numbers(at, self.width), self)
            new = where(there, value[number] if several else value, new)
        self.handle, self.samples = new.read(), new.samples

    @property
    def shape(self) -> torch.Size:
        """As torch says it: of one sample."""
        return torch.Size(() if self.width is None else (self.width,))

    @property
    def ndim(self) -> int:
        """0 of a scalar and 1 of a vector."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """What exact algorithms compute in."""
        return torch.float64

    @property
    def T(self) -> Value:  # noqa: N802 - torch's name
        """A vector is its own transpose."""
        return +self

    def __getattr__(self, name: str) -> Callable[..., Value]:
        """``v.tanh()`` is torch.tanh(v)."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "where":  # torch's method has the condition second
            return lambda condition, other: where(condition, self, other)
        if name not in WORDS:
            raise refuse(
                f".{name} is not a word of the language; {near(name, WORDS)}a value has operators, "
                "v[0], .sum() and torch's functions, v.tanh() or torch.tanh(v), and ice.mean goes "
                "over the samples",
                source_line(),
            )
        return partial(call, name, self)

    def _decided(self, what: str, instead: str) -> NoReturn:
        raise refuse(
            f"Python's {what} needs a number now, but a program's values are known only when it "
            f"runs; use {instead}",
            source_line(),
        )

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        return call(func, *args, **(kwargs or {}))

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """NumPy's functions, by the names that torch's have too."""
        if method != "__call__":
            raise refuse(f"NumPy's {ufunc.__name__}.{method} has no value to give", source_line())
        return call(ufunc, *args, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        spread = {"ddof": 0} if func.__name__ in ("var", "std") else {}  # torch's is 1
        if kwargs.pop("axis", None) not in (None, 0, -1):
            raise refuse("a vector has one axis, its components", source_line())
        return call(func, *args, **{**spread, **kwargs})


# ---------------------------------------------------------------------------------------------
# emission
# ---------------------------------------------------------------------------------------------


def _reciprocal(value: Value) -> Value:
    return value.apply(_operation("/", trees.Number(Fraction(1)), _Z))


def function(name: str, value: Value) -> Value:
    """A function of the formulas' language."""
    return value.apply(_operation(name, _Z))


def emit(op: str, *values: Value, attr: Any = None, name: str = "") -> Value:
    """The value of an operation; its arguments are of one scope.

    What is written down of an operation that is made of others are those, under its name.
    """
    handles, scope = tuple(v.read() for v in values), values[0].scope
    place: SourceLine | None = source_line() if scope.traced else None
    row = NodeOperation.table[op]
    try:
        samples, width = row.shape(attr, *values)
    except ProgramError as error:
        raise refuse(str(error), source_line()) from None
    node = Node(op, (), samples, width, attr, place, name)
    if not row.composite:
        return Value(scope, scope.emit(node, handles), samples, width)

    def apply(part: str, *args: Value, attr: Any = None) -> Value:
        return emit(part, *args, attr=attr, name=node.shown)

    found: Value = row.expand(None, node, apply, *values)
    return found


def leaf(scope: Scope, node: Node) -> Value:
    """The value of a node without arguments."""
    return Value(scope, scope.emit(node, ()), node.samples, node.width)


def _operation(name: str, *arguments: trees.Node) -> trees.Node:
    return trees.Operation(name, arguments)


def _literal(number: Real) -> trees.Node:
    value = float(number)
    if value - value != 0:
        raise refuse(f"a constant must be finite, got {value}", source_line())
    return trees.Number(Fraction(value))


def is_number(value: Any) -> TypeGuard[Real]:
    """Whether something is a number of Python's or NumPy's."""
    return isinstance(value, Real) and not isinstance(value, bool)


def matrix(value: Any) -> torch.Tensor | None:
    """A matrix of numbers; None for anything else."""
    if isinstance(value, Value) or is_number(value) or _holds_values(value):
        return None
    try:
        rows = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return None
    return rows if rows.ndim == 2 else None


def _holds_values(value: Any) -> bool:
    """Whether a list or tuple holds values, in lists too."""
    several = isinstance(value, (list, tuple))
    return several and any(isinstance(v, Value) or _holds_values(v) for v in value)


def _rows(value: Any, beside: Value) -> list[Value] | None:
    """The rows of a matrix that is a list of vectors, or of lists of scalars; None of others."""
    if not _holds_values(value):
        return None
    rows = [lifted(row, beside) for row in value]
    return rows if all(row.width is not None for row in rows) else None


def _side_by_side(rows: torch.Tensor, value: Value) -> Value:
    """The inner products of rows of numbers with a vector."""
    parts = tuple((value * row).sum() for row in rows)
    return emit("concat", *parts)


def lifted(value: Any, beside: Value) -> Value:
    """A list, an array or a tensor of numbers, or one number, as a value."""
    if isinstance(value, Value):
        return value
    if _holds_values(value):
        return emit("concat", *(lifted(part, beside) for part in value))
    try:
        numbers = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise foreign(value) from None
    if numbers.ndim > 1 or not numbers.numel() or not bool(torch.isfinite(numbers).all()):
        raise foreign(value)
    width = len(numbers) if numbers.ndim else None
    attr = tuple(numbers.tolist()) if numbers.ndim else float(numbers)
    op = "constant" if width is None else "numbers"
    return leaf(beside.scope, Node(op, (), False, width, attr, source_line()))


def one_hot_numbers(index: Any, length: int) -> Any:
    """A list of numbers that is 1 in one component and else 0, or a value that is."""
    if isinstance(index, Value):
        return hot(index, length)
    if not isinstance(index, int) or not 0 <= index < length:
        raise refuse(f"component {index!r} of a vector of {length}", source_line())
    return [float(place == index) for place in range(length)]


def hot(index: Value, length: int) -> Value:
    """:func:`iceform.one_hot` of a value."""
    if index.width is not None:
        raise refuse(
            "an index, or what one_hot takes, is one whole number, and this is a vector; "
            "ice.where(v > 0, v, 0.0) chooses component by component",
            source_line(),
        )
    found: Value = lifted(range(length), index) == index
    return found


def checked_value(value: Any, beside: Value) -> Value:
    """A value of the same run; numbers and lists of them become one."""
    found = lifted(value, beside)
    if found.scope is not beside.scope:
        raise refuse("a value of another run of an algorithm is used here", source_line())
    return found


def foreign(value: Any) -> CompileError:
    """The refusal of what belongs to no program."""
    return refuse(
        f"got {type(value).__name__}, where a value of the program, a number or a list of finite "
        "numbers belongs; a matrix A is for A @ v, and larger arrays are passed as data",
        source_line(),
    )


def components(word: str, value: Any, dim: Any = None, else_: str = "") -> Value:
    """A vector whose components ``torch.word(value, dim)`` goes over."""
    if not isinstance(value, Value) or value.width is None:
        raise refuse(
            f"{word} goes over the components of a vector, and this is a scalar; "
            f"{else_ or 'softmax over the samples is ice.attend(query, key, value)'}",
            source_line(),
        )
    if dim not in (None, 0, -1):
        raise refuse(f"a vector has one dimension, its components; got dim={dim!r}", source_line())
    return value


def applied(f: Formula | Callable[[Value], Value], value: Value) -> Value:
    """A formula, or anything that maps a value to a value."""
    if isinstance(f, Formula):
        return value.apply(f.tree)
    return f(value)


def _extreme(op: str, a: Any, b: Any) -> Value:
    """Of two values, or of a value and a number, in either order."""
    if not isinstance(a, Value):
        a, b = b, a
    if not isinstance(a, Value):
        raise refuse(
            f"{op} takes a value of the program; of the numbers {b!r} and {a!r} alone Python's own "
            f"{op[:3]} is the one",
            source_line(),
        )
    if is_number(b):
        arguments = (trees.Variable(), _literal(b))
        value: Value = a.apply(trees.Operation(op[:3], arguments))
        return value
    return emit(op, a, checked_value(b, a))


def maximum(a: Any, b: Any) -> Value:
    """The larger of two values, component by component.

    Examples
    --------
    >>> @ice.algorithm
    ... def positive(x, y):
    ...     return ice.maximum(y, 0.0)
    >>> positive([[0.0], [0.0]], [-1.0, 2.0])
    tensor([0., 2.], dtype=torch.float64)
    """
    return _extreme("maximum", a, b)


def minimum(a: Any, b: Any) -> Value:
    """The smaller of two values, component by component.

    Examples
    --------
    >>> @ice.algorithm
    ... def capped(x, y):
    ...     return ice.minimum(y, 1.0)
    >>> capped([[0.0], [0.0]], [-1.0, 2.0])
    tensor([-1.,  1.], dtype=torch.float64)
    """
    return _extreme("minimum", a, b)


def with_extremes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose ``max`` and ``min`` take values too.

    Python's ask which of two is larger while the program is being written. A function looks names
    up in its builtins last, and gets other ones only by being made anew. Those that it makes when
    it is called, such as comprehensions, take theirs from its globals: see :func:`extremes_known`.
    """
    if not isinstance(function, FunctionType):
        return function
    with extremes_known(function):
        made = FunctionType(function.__code__, function.__globals__, function.__name__,
                            function.__defaults__, function.__closure__)  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    update_wrapper(made, function)
    return made


@contextmanager
def extremes_known(function: Callable[..., Any]) -> Iterator[None]:
    """Functions that are made in the module of ``function`` meanwhile have that max and min."""
    scope: dict[str, Any] = getattr(function, "__globals__", {})
    before = scope.get("__builtins__", builtins)
    known = before if isinstance(before, dict) else vars(before)
    scope["__builtins__"] = {**known, **_EXTREMES}
    try:
        yield
    finally:
        scope["__builtins__"] = before


def _python_extreme(
    name: str, word: Callable[[Any, Any], Value], *values: Any, **options: Any
) -> Any:
    several = list(values[0]) if len(values) == 1 else list(values)
    if options or not any(isinstance(v, Value) for v in several):
        return getattr(builtins, name)(*values, **options)
    return reduce(word, several)


_EXTREMES = {
    "max": partial(_python_extreme, "max", maximum),
    "min": partial(_python_extreme, "min", minimum),
}


def where(condition: Value, a: Any, b: Any) -> Value:
    """``a`` where the condition holds, else ``b``.

    Examples
    --------
    >>> @ice.algorithm
    ... def signs(x, y):
    ...     return ice.where(y > 0, 1.0, -1.0)
    >>> signs([[0.0], [0.0]], [3.0, -2.0])
    tensor([ 1., -1.], dtype=torch.float64)
    """
    if not isinstance(condition, Value):
        raise refuse(f"where asks for a comparison, got {type(condition).__name__}", source_line())
    chosen: Value = condition * (a - b) + b
    return chosen


def soft_threshold(value: Value, threshold: Any = 0.5) -> Value:
    """``value`` moved towards 0 by ``threshold``, and 0 where it is nearer to 0 than that.

    Examples
    --------
    >>> @ice.algorithm
    ... def shrunk(x, y):
    ...     return ice.soft_threshold(y, 1.0)
    >>> shrunk(torch.zeros(3, 1), [3.0, 0.5, -2.0])
    tensor([ 2.,  0., -1.], dtype=torch.float64)
    """
    return function("relu", value - threshold) - function("relu", -value - threshold)


def filled_like(value: Value, number: float) -> Value:
    """A number in the shape of ``value``, one for all."""
    if not isinstance(value, Value):
        raise refuse(
            f"this word belongs into an algorithm, beside its x and y; got {type(value).__name__}",
            source_line(),
        )
    if not is_number(number):
        raise foreign(number)
    node = Node("constant", (), False, value.width, float(number), source_line())
    return leaf(value.scope, node)


# What torch's and NumPy's functions are on values, by their names: torch_words.py says it.
WORDS: dict[str, Callable[..., Any]] = {}


def near(name: str, words: Iterable[str]) -> str:
    """The names that one may have been meant to be."""
    found = get_close_matches(name, words)
    return f"did you mean {' or '.join(found)}? " if found else ""


def call(func: Any, *args: Any, **kwargs: Any) -> Any:
    """A function of torch or NumPy on values, or the method of a value of that name."""
    name = func if isinstance(func, str) else func.__name__.removeprefix("linalg_")
    word = WORDS.get(name.removeprefix("special_"))
    if word is None and name.startswith("__"):  # a tensor's own operator, given a value
        word = WORDS.get(name.strip("_"))
    if word is None:
        raise refuse(
            f"{name} is not a word of the language; {near(name, WORDS)}it has operators, torch's "
            f"{', '.join(sorted(WORDS))}, and any ice.Formula. Matrices are of numbers, A @ v; "
            "mean(x x') times v is ice.mean(x * (x @ v))",
            source_line(),
        )
    beside = next((a for a in (*args, *kwargs.values()) if isinstance(a, Value)), None)
    given = tuple(_plain(a, beside) for a in args)
    return word(*given, **{k: _plain(v, beside) for k, v in kwargs.items()})


def _plain(argument: Any, beside: Value | None) -> Any:
    """An argument with NumPy's numbers as Python's; arrays beside a value are values too."""
    if isinstance(argument, np.generic):
        return argument.item()
    if isinstance(argument, np.ndarray):
        argument = torch.as_tensor(argument)
    if isinstance(argument, torch.Tensor) and argument.ndim < 2 and beside is not None:
        return lifted(argument, beside)
    return argument
