"""Values of the language: numbers with a place and a shape, on which Python's operators act.

A :class:`Value` belongs to a :class:`Scope`, which does the work: it computes at once (on tensors,
or on balls), or it writes down what is to be computed. The rules of places and shapes are the same
for all and stand here.

Torch's names for what the language has, ``torch.tanh(v)`` or ``v.tanh()``, are here too.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial, reduce, update_wrapper
from itertools import accumulate
from numbers import Real
from types import FunctionType
from typing import Any, NoReturn, Protocol, TypeGuard

import torch
from torch.nn import functional as F

from iceform.computer.graph import refuse, source_line
from iceform.computer.instructions import FLAG_GAP
from iceform.errors import CompileError, ProgramError
from iceform.expressions.formulas import Formula, trees
from iceform.expressions.formulas.polynomials import line
from iceform.expressions.formulas.table import TABLE
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
    __array_ufunc__ = None  # NumPy leaves the operators to us

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
        rows = matrix(other)
        return (self * other).sum() if rows is None else _side_by_side(rows.T, self)

    def __rmatmul__(self, other: Any) -> Value:
        rows = matrix(other)
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

    def __and__(self, other: Value) -> Value:
        return self * other

    def __or__(self, other: Value) -> Value:
        return emit("maximum", self, checked_value(other, self))

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

    def sum(self) -> Value:
        """The sum of the components."""
        if self.width is None:
            raise refuse(
                "sum() adds the components of a vector, and this is a scalar", source_line()
            )
        return emit("sum", self)

    def mean(self) -> Value:
        """The mean of the components."""
        if self.width is None:
            raise refuse(
                "mean() goes over the components of a vector, and this is a scalar; ice.mean goes "
                "over the samples",
                source_line(),
            )
        return self.sum() / self.width

    def _whole(self, kind: str, gap: float) -> Value:
        return emit("whole", self, attr=(kind, gap))

    def nearest_whole(self) -> Value:
        """The whole number that this is; a run refuses others."""
        return self._whole("nearest", 0.5 - FLAG_GAP)

    def __round__(self, digits: None = None) -> Value:
        """The nearest whole number; a run refuses what lies half-way between two."""
        if digits is not None:
            raise refuse("round gives whole numbers; scale the value for digits", source_line())
        return self._whole("nearest", 0.5 * FLAG_GAP)

    def __floor__(self) -> Value:
        """The largest whole number that is not larger."""
        return (self + (FLAG_GAP - 0.5))._whole("nearest", FLAG_GAP - 2.0**-32)

    def __ceil__(self) -> Value:
        """The smallest whole number that is not smaller."""
        return -(-self).__floor__()

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
        if self.width is not None and isinstance(index, slice):
            return self._part(index)
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

    def _part(self, index: slice) -> Value:
        """Some of the components, as a vector."""
        parts = tuple(list(self)[index])
        if not parts:
            raise refuse(
                f"v[{index.start}:{index.stop}:{index.step}] has no component", source_line()
            )
        return emit("concat", *parts)

    def __len__(self) -> int:
        if self.width is None:
            raise refuse(
                "len() counts the components of a vector, and this is a scalar", source_line()
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
            "if, and, or, max or a < b < c", "ice.where, ice.while_, ice.maximum, & and |"
        )

    def __float__(self) -> float:
        self._decided("float(), or math", "the value itself, and torch's functions")

    def __int__(self) -> int:
        self._decided("int()", "the value itself")

    def __index__(self) -> int:
        self._decided("range() or an index", "ice.repeat(steps)")

    def __format__(self, form: str) -> str:
        if form:
            self._decided("a format", "the value itself")
        return repr(self)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise refuse(
            "a vector is not written to in part; ice.concat makes one of parts", source_line()
        )

    def __getattr__(self, name: str) -> Callable[..., Value]:
        """``v.tanh()`` is torch.tanh(v)."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _METHODS:
            raise refuse(
                f".{name} is not a word of the language; a value has operators, v[0], .sum() and "
                "torch's functions, v.tanh() or torch.tanh(v), and ice.mean goes over the samples",
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
    ) -> Value:
        return call(func, *args, **(kwargs or {}))


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
    if isinstance(value, Value) or is_number(value):
        return None
    try:
        rows = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return None
    return rows if rows.ndim == 2 else None


def _side_by_side(rows: torch.Tensor, value: Value) -> Value:
    """The inner products of rows of numbers with a vector."""
    parts = tuple((value * row).sum() for row in rows)
    return emit("concat", *parts)


def lifted(value: Any, beside: Value) -> Value:
    """A list, an array or a tensor of numbers, or one number, as a value."""
    if isinstance(value, Value):
        return value
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


def hot(index: Value, length: int) -> Value:
    """:func:`iceform.one_hot` of a value."""
    if index.width is not None:
        raise refuse("one_hot takes one whole number, and this is a vector", source_line())
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


def applied(f: Formula | Callable[[Value], Value], value: Value) -> Value:
    """A formula, or anything that maps a value to a value."""
    if isinstance(f, Formula):
        return value.apply(f.tree)
    return f(value)


_GELU = Formula("z*(1 + erf(z/sqrt(2)))/2")
_SILU = Formula("z*sigmoid(z)")
_LOG_SIGMOID = Formula("-softplus(-z)")

# Functions of the formulas' language, by torch's names for them.
_UNARY: dict[Any, str] = {
    getattr(place, name): name
    for name, row in TABLE.items()
    for place in (torch, torch.special, F)
    if row.typed and row.arity == 1 and hasattr(place, name)
} | {torch.arctan: "atan", torch.special.expit: "sigmoid"}


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


def clamp(value: Any, min: Any = None, max: Any = None) -> Value:
    """No less than ``min`` and no more than ``max``."""
    value = value if min is None else maximum(value, min)
    clamped: Value = value if max is None else minimum(value, max)
    return clamped


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


def _gelu(value: Value, approximate: str = "none") -> Value:
    if approximate != "none":
        raise refuse(f"gelu is the exact one here, not approximate={approximate!r}", source_line())
    return applied(_GELU, value)


def _components(word: str, value: Any, dim: Any) -> Value:
    """A vector whose components ``torch.word(value, dim)`` goes over."""
    if not isinstance(value, Value) or value.width is None:
        raise refuse(
            f"{word} goes over the components of a vector, and this is a scalar; softmax over the "
            "samples is ice.attend(query, key, value)",
            source_line(),
        )
    if dim not in (None, 0, -1):
        raise refuse(f"a vector has one dimension, its components; got dim={dim!r}", source_line())
    return value


def _softmax(value: Any, dim: Any = None, **_: Any) -> Value:
    weights = function("exp", _components("softmax", value, dim))
    return weights / weights.sum()


def _logsumexp(value: Any, dim: Any = None) -> Value:
    return function("log", function("exp", _components("logsumexp", value, dim)).sum())


def _largest(value: Any, dim: Any = None) -> Value:
    return reduce(maximum, _components("max", value, dim))


def _smallest(value: Any, dim: Any = None) -> Value:
    return reduce(minimum, _components("min", value, dim))


def _first_largest(value: Any, dim: Any = None) -> Value:
    """Which component is the largest, the first of them; a run refuses a tie of the largest."""
    first, *others = _components("argmax", value, dim)
    place, most = first * 0.0, first
    for number, other in enumerate(others, 1):
        larger = other > most
        place, most = where(larger, number, place), maximum(most, other)
    return place.nearest_whole()


def _sums_up_to(value: Any, dim: Any = None) -> Value:
    return emit("concat", *accumulate(_components("cumsum", value, dim)))


def _side(word: str, parts: Iterable[Any], dim: Any = 0) -> Value:
    """Numbers (``torch.stack``), or vectors too (``torch.cat``), as one vector."""
    several = list(parts)
    beside = next(v for v in several if isinstance(v, Value))
    values = [lifted(v, beside) for v in several]
    if dim not in (0, -1) or (word == "stack" and any(v.width is not None for v in values)):
        raise refuse(
            f"{word} makes a vector, and matrices are of numbers alone, A @ v; hold rows as values "
            "of their own, or as samples",
            source_line(),
        )
    return emit("concat", *values)


def _variance(value: Any, dim: Any = None, *, correction: float = 1) -> Value:
    away = _components("var", value, dim)
    away = away - away.mean()
    return (away @ away) / (len(away) - correction)


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


def _product(a: Any, b: Any) -> Value:
    """A tensor's own @ would ask us again."""
    found: Value = a @ b if isinstance(a, Value) else b.__rmatmul__(a)
    return found


def _length(a: Value) -> Value:
    return (a @ a) ** 0.5


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


_OPERATORS = ("add", "sub", "mul", "neg", "pow", "eq", "ne", "gt", "ge", "lt", "le")
_SEVERAL: dict[Any, Callable[..., Any]] = {
    **{getattr(torch, name): getattr(operator, name) for name in _OPERATORS},
    torch.div: operator.truediv,
    torch.true_divide: operator.truediv,
    torch.floor_divide: operator.floordiv,
    torch.remainder: operator.mod,
    torch.round: round,
    torch.floor: math.floor,
    torch.ceil: math.ceil,
    torch.square: lambda a: a**2,
    torch.reciprocal: lambda a: 1.0 / a,
    torch.rsqrt: lambda a: a ** (-0.5),
    torch.maximum: maximum,
    torch.minimum: minimum,
    torch.clamp: clamp,
    torch.clip: clamp,
    torch.where: where,
    torch.sum: lambda a: a.sum(),
    torch.mean: lambda a: a.mean(),
    torch.dot: operator.matmul,
    torch.inner: operator.matmul,
    torch.matmul: _product,
    torch.lerp: lambda a, b, weight: a + weight * (b - a),
    torch.max: lambda a, b=None: _largest(a) if b is None else maximum(a, b),
    torch.min: lambda a, b=None: _smallest(a) if b is None else minimum(a, b),
    torch.amax: _largest,
    torch.amin: _smallest,
    torch.argmax: _first_largest,
    torch.argmin: lambda a, dim=None: _first_largest(-a, dim),
    torch.cumsum: _sums_up_to,
    torch.prod: lambda a, dim=None: reduce(operator.mul, _components("prod", a, dim)),
    torch.flip: lambda a, dims=None: _components("flip", a, None)[::-1],
    torch.var: _variance,
    torch.std: lambda a, dim=None, **options: _variance(a, dim, **options) ** 0.5,
    torch.stack: partial(_side, "stack"),
    torch.cat: partial(_side, "cat"),
    torch.hypot: lambda a, b: (a * a + b * b) ** 0.5,
    torch.exp2: lambda a: 2.0**a,
    torch.log2: lambda a: function("log", a) / math.log(2),
    torch.log10: lambda a: function("log", a) / math.log(10),
    torch.logsumexp: _logsumexp,
    torch.softmax: _softmax,
    F.softmax: _softmax,
    F.softshrink: soft_threshold,
    torch.zeros_like: lambda a: filled_like(a, 0.0),
    torch.ones_like: lambda a: filled_like(a, 1.0),
    torch.full_like: filled_like,
    **dict.fromkeys((torch.norm, torch.linalg.norm, torch.linalg.vector_norm), _length),
    F.gelu: _gelu,
    F.silu: lambda a, inplace=False: applied(_SILU, a),
    F.logsigmoid: lambda a: applied(_LOG_SIGMOID, a),
}


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


_METHODS = {_name(func): func for func in (*_UNARY, *_SEVERAL)}


def call(func: Any, *args: Any, **kwargs: Any) -> Value:
    """A torch function on values, or what is called so as a method of a value."""
    func = _METHODS.get(func, func)
    if func not in _UNARY and func not in _SEVERAL:  # a tensor's own method, given a value
        func = _METHODS.get(_name(func).strip("_"), func)
    beside = next((a for a in (*args, *kwargs.values()) if isinstance(a, Value)), None)
    if beside is not None:
        args = tuple(
            lifted(a, beside) if isinstance(a, torch.Tensor) and a.ndim < 2 else a for a in args
        )
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, torch.Tensor) and func is not torch.matmul:
            raise foreign(argument)
    if func in _UNARY:
        if kwargs.get("inplace") is False:
            del kwargs["inplace"]
        if len(args) + len(kwargs) != 1:
            raise refuse(f"{_name(func)} takes one value here and no options", source_line())
        return function(_UNARY[func], *args, **kwargs)
    if func in _SEVERAL:
        value: Value = _SEVERAL[func](*args, **kwargs)
        return value
    known = sorted({*map(_name, _UNARY), *map(_name, _SEVERAL)})
    raise refuse(
        f"torch's {_name(func)} is not a word of the language; it has {', '.join(known)}, and any "
        "ice.Formula. Matrices are of numbers, A @ v; mean(x x') times v is ice.mean(x * (x @ v))",
        source_line(),
    )
