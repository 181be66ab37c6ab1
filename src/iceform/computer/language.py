"""The language: algorithms written for one sample, in Python.

>>> @algorithm
... def least_squares(x, y, *, lr=0.5, steps=50):
...     w = zeros_like(x)
...     for _ in repeat(steps):
...         w = w - lr * mean(x * ((x * w).sum() - y))
...     return w

``x`` is one sample's features, ``y`` its target; ``w`` is one for all. An algorithm without targets
takes x alone. What a name means for all samples follows from where it lives: a value that depends
on x or y is one a sample, ``mean`` and ``attend`` make one of them. Keyword parameters with a
number as default are scalars, those with :func:`vector` as default have as many components as x.

The same function runs on tensors, ``least_squares(X, y, lr=0.3)``, which is the exact algorithm but
for float64's rounding, and is traced by :func:`iceform.compile`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, update_wrapper
from types import FrameType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.computer import torch_words  # noqa: F401 - torch's names
from iceform.computer.graph import (
    MOST_TURNS,
    Arithmetic,
    Exact,
    Graph,
    Parameter,
    as_column,
    refuse,
    shown,
    source_line,
)
from iceform.computer.instructions import FLAG_GAP
from iceform.computer.trace import Tracer, traced
from iceform.computer.values import (
    Value,
    applied,
    checked_value,
    emit,
    extremes_known,
    filled_like,
    hot,
    is_number,
    leaf,
    lifted,
    maximum,
    minimum,
    soft_threshold,
    where,
    with_extremes,
)
from iceform.errors import ProgramError, ShapeError
from iceform.program import Node, SourceLine

__all__ = [
    "Algorithm",
    "algorithm",
    "apply",
    "attend",
    "bounded",
    "concat",
    "constant",
    "maximum",
    "mean",
    "minimum",
    "one_hot",
    "reciprocal",
    "repeat",
    "soft_threshold",
    "stored",
    "vector",
    "where",
    "while_",
    "zeros_like",
]


# ---------------------------------------------------------------------------------------------
# words
# ---------------------------------------------------------------------------------------------


def mean(value: Value) -> Value:
    """The mean over the samples: one value for all, from one a sample.

    Examples
    --------
    >>> @ice.algorithm
    ... def centred(x, y):
    ...     return y - ice.mean(y)
    >>> centred(torch.zeros(3, 1), [1.0, 2.0, 6.0])
    tensor([-2., -1.,  3.], dtype=torch.float64)
    """
    _one_a_sample("mean", value)
    return emit("mean", value)


def attend(query: Any, key: Value, value: Any, bias: Any = None) -> Value:
    r"""Softmax attention over the samples: :math:`\sum_i p_i v_i`, p = softmax(q . k_i + b_i).

    Parameters
    ----------
    query
        q: one for all, or one a sample. It has as many components as the key.
    key
        k, one a sample: a vector, or a number if the query is one.
    value
        v, one a sample.
    bias
        b, a number a sample; None for none.

    Returns
    -------
    The average of the values: one for each query.

    Examples
    --------
    The target of the sample that is most like the query:

    >>> @ice.algorithm
    ... def recalled(x, y, *, query=ice.vector([0.9, 0.1])):
    ...     return ice.attend(64 * query, x, y)
    >>> recalled([[1.0, 0.0], [0.0, 1.0]], [3.0, 5.0])
    tensor(3., dtype=torch.float64)
    """
    _one_a_sample("attend", key)
    query, value = checked_value(query, key), checked_value(value, key)
    bias = None if bias is None else checked_value(bias, key)
    if query.width is None and key.width is None:  # scalars: vectors of one component
        query, key = concat(query), concat(key)
    if key.width is None or query.width != key.width:
        raise refuse(
            f"attend takes the inner product of query and key, and they have {query.width or 1} "
            f"and {key.width or 1} components",
            source_line(),
        )
    parts = (query, key, value) if bias is None else (query, key, value, bias)
    if bias is not None and bias.width is not None:
        raise refuse("attend's bias is one number a sample", source_line())
    return emit("attend", *parts)


def zeros_like(value: Value) -> Value:
    """Zeros, one for all samples, with as many components as ``value``.

    Examples
    --------
    >>> @ice.algorithm
    ... def start(x, y):
    ...     return ice.zeros_like(x)
    >>> start([[1.0, 2.0], [3.0, 4.0]], [0.0, 0.0])
    tensor([0., 0.], dtype=torch.float64)
    """
    return filled_like(value, 0.0)


def concat(*parts: Any) -> Value:
    """Vectors, scalars and numbers side by side, or a list of them, as one vector.

    Examples
    --------
    >>> @ice.algorithm
    ... def joined(x, y):
    ...     return ice.concat(x, y)
    >>> joined([[1.0, 2.0]], [3.0])
    tensor([[1., 2., 3.]], dtype=torch.float64)
    """
    several = list(parts[0]) if len(parts) == 1 and isinstance(parts[0], (list, tuple)) else parts
    beside = next((p for p in several if isinstance(p, Value)), None)
    if beside is None:
        raise refuse("concat takes values of the program", source_line())
    return emit("concat", *(lifted(p, beside) for p in several))


def bounded(value: Value, low: float, high: float | None = None) -> Value:
    r"""``value``, which you promise to stay within [low, high].

    The compiler makes its tables for that range. Every run checks the promise, and refuses its
    answer where it is broken.

    Parameters
    ----------
    value
        A value of the program.
    low, high
        The range; with ``low`` alone it is from -\\|low\\| to \\|low\\|.

    Examples
    --------
    The compiler knows of y that it is at most 1, and not that its mean is positive:

    >>> @ice.algorithm
    ... def inverse(x, y):
    ...     return 1 / ice.bounded(ice.mean(y), 0.25, 1.0)
    >>> inverse([[0.0], [0.0]], [0.25, 0.75])
    tensor(2., dtype=torch.float64)
    """
    _check_value("bounded", value)
    low, high = (-abs(low), abs(low)) if high is None else (low, high)
    if not low < high:
        raise refuse(f"a bound needs low < high, got [{low}, {high}]", source_line())
    return emit("bounded", value, attr=(float(low), float(high)))


def stored(value: Value) -> Value:
    """``value``, written to memory before anything is computed from it.

    The compiler joins functions of one value into one look-up. ``stored`` keeps two of them apart.

    Examples
    --------
    The look-up of 1/v is rough, and a step of Newton's makes it better. Joined into one look-up the
    two would be 1/v once more, as rough as before:

    >>> @ice.algorithm
    ... def inverse(x, y):
    ...     v = ice.mean(y)
    ...     guess = ice.stored(1 / v)
    ...     return guess * (2 - v * guess)
    >>> inverse([[0.0], [0.0]], [0.25, 0.75])
    tensor(2., dtype=torch.float64)
    """
    _check_value("stored", value)
    return emit("stored", value)


def reciprocal(value: Value, low: float, high: float) -> Value:
    """1/value, for a value that you promise to stay within [low, high], low > 0.

    It is a look-up and then a step of Newton's method, which squares the look-up's relative error.

    Parameters
    ----------
    value
        A value of the program.
    low, high
        Its range, checked in every run as by :func:`bounded`.

    Examples
    --------
    >>> @ice.algorithm
    ... def inverse(x, y):
    ...     return ice.reciprocal(y, 0.1, 1.0)
    >>> inverse([[0.0], [0.0]], [0.25, 0.5])
    tensor([4., 2.], dtype=torch.float64)
    """
    if not 0 < low < high:
        raise refuse(f"reciprocal needs 0 < low < high, got [{low}, {high}]", source_line())
    value = bounded(value, low, high)
    guess = stored(1.0 / value)
    rough = 0.25  # of the guess: how far it may be off
    product = bounded(value * guess, 1 - rough, 1 + rough)
    return bounded(guess * (2.0 - product), (1 - rough) / high, (1 + rough) / low)


def apply(f: Any, value: Value) -> Value:
    """A scalar function of every component of ``value``.

    Parameters
    ----------
    f
        An ``ice.Formula``, or a function written in the language.
    value
        A value of the program.

    Examples
    --------
    >>> from iceform.computer import language
    >>> @ice.algorithm
    ... def shaped(x, y):
    ...     return language.apply(ice.Formula("z^2 + 1"), y)
    >>> shaped([[0.0], [0.0]], [1.0, 3.0])
    tensor([ 2., 10.], dtype=torch.float64)
    """
    return applied(f, value)


def repeat(count: Any) -> Any:
    """A loop of the program, written ``for i in repeat(count):``.

    A loop of Python would be written out turn by turn; this one is a loop in the prompt too, and
    how many turns it makes may be a parameter of the run.

    Parameters
    ----------
    count
        How many turns: a parameter of the algorithm, a whole number, :func:`iceform.count`, or a
        value that depends on the data and is a whole number, within 2^-10.

    Returns
    -------
    The number of each turn, 0, 1, ..., as a value of the program.

    Examples
    --------
    >>> @ice.algorithm
    ... def powers(x, y, *, steps=3):
    ...     v = ice.constant(1.0)
    ...     for _ in ice.repeat(steps):
    ...         v = v * ice.mean(y)
    ...     return v
    >>> powers([[0.0]], [2.0]), powers([[0.0]], [2.0], steps=10)
    (tensor(8., dtype=torch.float64), tensor(1024., dtype=torch.float64))
    """
    if isinstance(count, Value):
        scope: Any = count.scope
        if isinstance(scope, Tracer):
            return scope.repeat(count)
        number = count.read()
        near = number.round()  # a read at a place is off by 2e-28
        whole = near if bool((number - near).abs() < FLAG_GAP) else number
        return _turns(scope, scope.arithmetic.whole(whole))
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise refuse(f"repeat takes a parameter or a whole number, got {count!r}", source_line())
    scope = scope_of(sys._getframe(1))
    return scope.repeat(constant(count)) if isinstance(scope, Tracer) else _turns(scope, count)


def _turns(scope: EagerScope, count: int) -> Iterator[Value]:
    """The numbers of the turns."""
    return (_number(scope, turn) for turn in range(count))


def constant(number: Any) -> Value:
    """A number, or a list of numbers, as a value of the program.

    A name that a loop changes has to start with such a value: a number of Python has no place in
    the program's memory.

    Examples
    --------
    >>> @ice.algorithm
    ... def doubled(x, y, *, steps=4):
    ...     total = ice.constant(1.0)
    ...     for _ in ice.repeat(steps):
    ...         total = 2 * total
    ...     return total
    >>> doubled([[0.0]], [0.0])
    tensor(16., dtype=torch.float64)
    """
    scope = scope_of(sys._getframe(1))
    return lifted(number, Value(scope, None, False, None))


def one_hot(index: Any, length: int) -> Value:
    """A vector that is 1 in one component and 0 in the others.

    Parameters
    ----------
    index
        Which component, from 0 on: a whole number, or a value of the program that is one.
    length
        How many components there are.

    Examples
    --------
    >>> @ice.algorithm
    ... def classes(x, y):
    ...     return ice.one_hot(y, 3)
    >>> classes([[0.0], [0.0]], [2.0, 0.0])
    tensor([[0., 0., 1.],
            [1., 0., 0.]], dtype=torch.float64)
    """
    if isinstance(index, Value):
        return hot(index, length)
    return constant([float(place == index) for place in range(length)])


def _number(scope: Any, number: float) -> Value:
    return leaf(scope, Node("constant", (), False, None, float(number), source_line()))


def while_(condition: Value) -> bool:
    """A loop of the program whose number of turns the data decide: ``while while_(condition):``.

    Parameters
    ----------
    condition
        A comparison of values that are one for all samples. The loop goes on while it holds.

    Examples
    --------
    >>> @ice.algorithm
    ... def halved(x, y, *, most=1.5):
    ...     v = +ice.mean(y)
    ...     while ice.while_(v > most):
    ...         v = v / 2
    ...     return v
    >>> halved([[0.0], [0.0]], [7.0, 9.0])
    tensor(1., dtype=torch.float64)
    """
    if not isinstance(condition, Value):
        raise refuse(f"while_ asks for a comparison, got {type(condition).__name__}", source_line())
    if isinstance(condition.scope, Tracer):
        return condition.scope.again(condition, sys._getframe(1))
    return condition.scope.goes_on(condition.read())  # type: ignore[attr-defined,no-any-return]


def vector(value: Any = 0.0, length: int | None = None) -> Vector:
    """The default of a parameter that is a vector.

    Parameters
    ----------
    value
        A number that fills the vector, or a list of its numbers.
    length
        How many components it has; None for as many as x, or as the list.

    Examples
    --------
    >>> @ice.algorithm
    ... def predicted(x, *, w=ice.vector(0.5)):
    ...     return x @ w
    >>> predicted([[1.0, 2.0]]), predicted([[1.0, 2.0]], w=[1.0, -1.0])
    (tensor([1.5000], dtype=torch.float64), tensor([-1.], dtype=torch.float64))
    """
    return Vector(value, length)


class Vector:
    """The default of a parameter that is a vector."""

    def __init__(self, value: Any, length: int | None = None) -> None:
        numbers = as_column(value, vector=True)
        several = numbers.ndim == 1 and len(numbers) > 0 and length in (None, len(numbers))
        filled = numbers.ndim == 0 and (length is None or length > 0)
        if not (several or filled):
            raise ProgramError(
                f"ice.vector takes a number, or a list of numbers, and a length from 1 on; got "
                f"{value!r} and {length!r}"
            )
        self.value: float | tuple[float, ...] = (
            tuple(numbers.tolist()) if numbers.ndim else (float(numbers))
        )
        self.length = len(numbers) if numbers.ndim else length

    def __repr__(self) -> str:
        shown = f"{self.value:g}" if isinstance(self.value, float) else str(list(self.value))
        return f"vector({shown})"


def _check_value(word: str, value: Any) -> None:
    if not isinstance(value, Value):
        raise refuse(
            f"{word} takes a value of the program, got {type(value).__name__}", source_line()
        )


def _one_a_sample(word: str, value: Any) -> None:
    _check_value(word, value)
    if not value.samples:
        raise refuse(f"{word} goes over the samples, and this value is one for all", source_line())


def scope_of(frame: FrameType | None) -> Any:
    """The scope of the values that the nearest caller's names hold."""
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, Value):
                return value.scope
        frame = frame.f_back
    raise refuse("this word belongs into an algorithm, beside its x and y", source_line())


# ---------------------------------------------------------------------------------------------
# algorithms
# ---------------------------------------------------------------------------------------------


class EagerScope:
    """A scope that computes at once, in some arithmetic."""

    traced = False

    def __init__(self, arithmetic: Arithmetic[Any]) -> None:
        self.arithmetic = arithmetic
        self.turns = 0

    def goes_on(self, condition: Any) -> bool:
        """Whether a ``while_`` loop makes another turn."""
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise ProgramError(
                f"while_ loops have made {MOST_TURNS} turns; their condition may never fail on "
                "these data"
            )
        return self.arithmetic.positive(condition, None)

    def emit(self, node: Node, args: tuple[Any, ...]) -> Any:
        """The value of an operation."""
        return self.arithmetic.compute(node, list(args))


_TAKEN = {
    **dict.fromkeys(("x", "y", "X"), "the data"),
    **dict.fromkeys(("one", "samples"), "what a prompt calls 1 and the number of samples"),
    **dict.fromkeys(("program", "backend", "dtype"), "how a program is run"),
}


class Algorithm:
    """A function of the language, as :func:`iceform.algorithm` makes it.

    Called on tensors it runs the exact algorithm in float64: X of shape (n, d), y of shape (n,),
    and parameters by name. Called on values, inside another algorithm, it becomes part of that one.
    :func:`iceform.compile` makes a program of it.

    Examples
    --------
    >>> @ice.algorithm
    ... def scaled(x, *, factor=2.0):
    ...     return factor * x.sum()
    >>> scaled, list(scaled.parameters), scaled([[1.0, 2.0]], factor=3.0)
    (<algorithm scaled(x, *, factor=2.0)>, ['factor'], tensor([9.], dtype=torch.float64))
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = with_extremes(function)
        update_wrapper(self, function)
        self.name = function.__name__

    def __repr__(self) -> str:
        return f"<algorithm {self.name}{inspect.signature(self.function)}>"

    @cached_property
    def place(self) -> SourceLine:
        """Where it is defined."""
        code = self.function.__code__
        return SourceLine(code.co_filename, code.co_firstlineno)

    @cached_property
    def data(self) -> int:
        """2 for an algorithm of x and y, 1 for one of x alone."""
        arguments = inspect.signature(self.function).parameters.values()
        given = [a for a in arguments if a.kind is not a.KEYWORD_ONLY]
        plain = all(a.kind is a.POSITIONAL_OR_KEYWORD and a.default is a.empty for a in given)
        if not plain or not 1 <= len(given) <= 2:
            raise refuse(
                f"an algorithm takes x, or x and y, and parameters after a *; {self.name} takes "
                f"{', '.join(map(str, given)) or 'none'}",
                self.place,
            )
        return len(given)

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Its keyword parameters and their defaults."""
        arguments = list(inspect.signature(self.function).parameters.values())
        return {a.name: self._parameter(a) for a in arguments[self.data :]}

    def _parameter(self, argument: inspect.Parameter) -> Parameter:
        default = argument.default
        if argument.name in _TAKEN:
            raise refuse(
                f"a parameter cannot be called {argument.name}: that is {_TAKEN[argument.name]}",
                self.place,
            )
        if isinstance(default, Vector):
            return Parameter(argument.name, default.value, vector=True, length=default.length)
        if not is_number(default):
            raise refuse(
                f"parameter {argument.name} needs a number, or ice.vector(), as its default",
                self.place,
            )
        return Parameter(argument.name, float(default), whole=isinstance(default, int))

    def graph(self, dim: int) -> Graph:
        """The algorithm traced for samples of ``dim`` features."""
        return traced(self.function, self.name, dim, self.data, self.parameters, self.place)

    def targets(self, x: Tensor, y: Any) -> Tensor:
        """The targets of samples (..., n, d); an algorithm of x alone has zeros, whatever y."""
        if self.data == 1:
            return x.new_zeros(x.shape[:-1])
        if y is None:
            raise ShapeError(f"{self.name} reads targets, and none were given; pass X and y")
        return as_column(y, vector=True).to(x)

    def samples(self, X: Any, y: Any = None, d: int | None = None) -> tuple[Tensor, Tensor]:
        """Samples (n, d) and targets (n,) in float64; what does not fit is refused."""
        x = as_column(X, vector=True)
        targets = self.targets(x, y)
        fits = x.ndim == 2 and len(x) > 0 and d in (None, x.shape[1])
        if not fits or targets.shape != x.shape[:1]:
            raise ShapeError(
                f"{self.name} takes X of shape (n, {d or 'd'}) and y of shape (n,), n from 1 on, "
                f"got {tuple(x.shape)} and {tuple(targets.shape)}"
            )
        return x, targets

    def values(self, d: int, settings: dict[str, Any]) -> dict[str, Tensor]:
        """Every parameter's value, defaults filled in."""
        self._check_names(settings)
        return {p.name: _setting(p, settings.get(p.name), d) for p in self.parameters.values()}

    def _check_names(self, settings: dict[str, Any]) -> None:
        unknown = set(settings) - set(self.parameters)
        if unknown:
            raise ProgramError(
                f"{self.name} has no parameter {sorted(unknown)[0]!r}; it has "
                f"{', '.join(self.parameters) or 'none'}"
            )

    def __call__(
        self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"] | None = None, **settings: Any
    ) -> Any:
        """Run on tensors in float64; what the function returns, as tensors.

        On values of another algorithm's program it becomes part of that program.
        """
        if isinstance(X, Value):
            return self._inside(X, y, settings)
        x, targets = self.samples(X, y)
        scope = EagerScope(Exact(len(x)))
        given = self.values(x.shape[1], settings)
        data = (Value(scope, x, True, x.shape[1]), Value(scope, targets[:, None], True, None))
        with extremes_known(self.function):
            returned = self.function(
                *data[: self.data],
                **{n: Value(scope, v, False, self._width(n, x.shape[1])) for n, v in given.items()},
            )
        return _unpacked(returned)

    def _width(self, name: str, d: int) -> int | None:
        return self.parameters[name].width(d)

    def _inside(self, x: Value, y: Any, settings: dict[str, Any]) -> Any:
        """Called by an algorithm: what is not given has its default."""
        self._check_names(settings)
        given = {}
        for name, argument in inspect.signature(self.function).parameters.items():
            if name in self.parameters:
                default = argument.default
                if isinstance(default, Vector):
                    fill = [default.value] * (self._width(name, len(x)) or 1)
                    default = lifted(fill if isinstance(default.value, float) else default.value, x)
                given[name] = settings.get(name, default)
        with extremes_known(self.function):
            return self.function(*(x, y)[: self.data], **given)


def _setting(parameter: Parameter, given: Any, dim: int) -> Tensor:
    value = as_column(parameter.default if given is None else given, parameter.vector)
    d = parameter.width(dim) or 1
    if parameter.vector and value.ndim == 0:
        value = value.expand(d)
    if not parameter.vector and value.numel() == 1:  # as parameters() returns it, say
        value = value.reshape(1)
    if value.shape != (d,):
        wanted = f"{d} numbers" if parameter.vector else "a number"
        raise ShapeError(
            f"parameter {parameter.name} must be {wanted}, got shape {tuple(value.shape)}"
        )
    return value


def _unpacked(returned: Any) -> Any:
    if isinstance(returned, dict):
        return {k: _unpacked(v) for k, v in returned.items()}
    if isinstance(returned, (tuple, list)):
        found = [_unpacked(v) for v in returned]
        return found if isinstance(returned, list) else tuple(found)
    if not isinstance(returned, Value):
        return torch.as_tensor(returned, dtype=torch.float64)
    return shown(returned.read(), returned.width)


def algorithm(function: Callable[..., Any]) -> Algorithm:
    """Make a function an algorithm of the language: a decorator.

    The function is written for one sample. ``x`` is the sample's features, ``y`` its target, which
    an algorithm without targets leaves out; parameters are keyword-only and have numbers, or
    :func:`vector`, as defaults.

    Returns
    -------
    An :class:`~iceform.computer.Algorithm`: call it on tensors, or give it to :func:`compile`.

    Examples
    --------
    >>> @ice.algorithm
    ... def step(x, y, *, lr=0.5):
    ...     return lr * ice.mean(y * x)
    >>> step([[1.0, 0.0], [0.0, 1.0]], [2.0, 4.0])
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    return Algorithm(function)
