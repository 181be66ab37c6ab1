"""Tapes evaluated in jets: a torch function and its derivatives, enclosed on cells.

Each operation of torch is the real function that it approximates. Conditions are three-valued on
a cell: sure, surely not, or open; an open choice is enclosed by what both branches allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic import Interval, Jet
from iceform.arithmetic.jets import chosen
from iceform.expressions.tracing import TracedFunction, TracedOperation, Use, exact_at, switches


def _between(low: float, high: float) -> Jet:
    """A constant that lies between two neighbouring floats."""
    ends = torch.tensor([[low], [high]], dtype=torch.float64, device="cpu")
    return Jet.number(Interval(ends[0], ends[1]))


_LOG_2 = _between(0.6931471805599453, 0.6931471805599454)
_LOG_10 = _between(2.302585092994045, 2.302585092994046)
_ROOT_HALF = _between(0.7071067811865475, 0.7071067811865476)
_ROOT_2_OVER_PI = _between(0.7978845608028653, 0.7978845608028654)
_ONE, _ZERO = Jet.number(1.0), Jet.number(0.0)


@dataclass(frozen=True, eq=False)
class Choice:
    """A condition on cells: where it surely holds, and where it surely does not."""

    yes: Tensor
    no: Tensor

    def __invert__(self) -> Choice:
        return Choice(self.no, self.yes)

    def __and__(self, other: Choice) -> Choice:
        return Choice(self.yes & other.yes, self.no | other.no)

    def __or__(self, other: Choice) -> Choice:
        return ~(~self & ~other)

    def __xor__(self, other: Choice) -> Choice:
        return (self & ~other) | (~self & other)


Value = Jet | Choice


class _TapeEvaluation:
    """One evaluation: the cells and how many coefficients are wanted."""

    def __init__(self, cells: Interval, order: int) -> None:
        self.cells = cells
        self.count = order + 1
        self.variable = Jet.variable(cells, order)

    def jet(self, value: Any) -> Jet:
        """A number, a jet, or 0 and 1 for a condition."""
        if isinstance(value, Choice):
            return self.pick(value, _ONE, _ZERO)
        return value if isinstance(value, Jet) else Jet.number(float(value))

    def choice(self, value: Any) -> Choice:
        """A condition; a number counts as one where it is not 0."""
        if isinstance(value, Choice):
            return value
        if isinstance(value, Jet):
            return _differs(value, _ZERO, self)
        sure = torch.full_like(self.cells.low, bool(value), dtype=torch.bool)
        return Choice(sure, ~sure)

    def pick(self, condition: Choice, a: Jet, b: Jet) -> Jet:
        """A where the condition holds, b where it does not."""
        return chosen(condition.yes, condition.no, a, b, self.count)

    def written_out(self, jet: Jet) -> Jet:
        """With all its coefficients, also where it is a constant."""
        sure = torch.ones_like(self.cells.low, dtype=torch.bool)
        return jet if not jet.constant else self.pick(Choice(sure, ~sure), jet, jet)


def enclose(tape: TracedFunction, cells: Interval, order: int) -> Jet:
    """Taylor coefficients 0 .. ``order`` of a traced function on cells."""
    run = _TapeEvaluation(cells, order)
    joined = _joined(tape)
    known: list[Value] = []
    for k, step in enumerate(tape.steps):
        if k in joined:
            condition, a, b = step.arguments
            sure = run.choice(_filled(condition, known))
            branches = run.jet(_filled(a, known)), run.jet(_filled(b, known))
            known.append(chosen(sure.yes, sure.no, *branches, run.count, continuous=True))
        else:
            known.append(_done(run, step, known))
    return run.written_out(run.jet(known[-1]))


@lru_cache(maxsize=64)
def _joined(tape: TracedFunction) -> frozenset[int]:
    """The choices whose branches are known to meet where they switch."""
    at = {place: exact_at(tape, place) for place in set(switches(tape).values())}
    found = set()
    for k, step in enumerate(tape.steps):
        place = _switch(tape, step)
        if place is not None:
            sides = [at[place][a.step] if isinstance(a, Use) else None for a in step.arguments[1:]]
            sides = [
                Fraction(a) if isinstance(a, float) else side
                for a, side in zip(step.arguments[1:], sides, strict=True)
            ]
            if sides[0] is not None and sides[0] == sides[1]:
                found.add(k)
    return frozenset(found)


def _switch(tape: TracedFunction, step: TracedOperation) -> Fraction | None:
    """Where a choice switches, if its condition compares the variable with a number."""
    condition = step.arguments[0] if step.name == "where" and len(step.arguments) == 3 else None
    return switches(tape).get(condition.step) if isinstance(condition, Use) else None


def _filled(argument: Any, known: list[Value]) -> Any:
    if isinstance(argument, Use):
        return known[argument.step]
    return [known[use.step] for use in argument] if isinstance(argument, tuple) else argument


def _done(run: _TapeEvaluation, step: TracedOperation, known: list[Value]) -> Value:
    if step.name == "variable":
        return run.variable
    arguments = [_filled(argument, known) for argument in step.arguments]
    options = {name: _filled(value, known) for name, value in step.options}
    done: Value = _OPERATIONS[step.name](run, *arguments, **options)
    return done


# ---------------------------------------------------------------------------------------------
# comparisons
# ---------------------------------------------------------------------------------------------


def _spread(run: _TapeEvaluation, mask: Tensor) -> Tensor:
    return mask.expand(len(run.cells))


def _above(a: Jet, b: Jet, run: _TapeEvaluation) -> Choice:
    """a > b."""
    yes, no = a.value.low > b.value.high, a.value.high <= b.value.low
    return Choice(_spread(run, yes), _spread(run, no))


def _differs(a: Jet, b: Jet, run: _TapeEvaluation) -> Choice:
    """A != b."""
    yes = (a.value.low > b.value.high) | (a.value.high < b.value.low)
    no = (a.value.low == b.value.high) & (a.value.high == b.value.low)
    return Choice(_spread(run, yes), _spread(run, no))


def _compared(test: Callable[[Jet, Jet, _TapeEvaluation], Choice]) -> Callable[..., Choice]:
    return lambda run, a, b: test(run.jet(a), run.jet(b), run)


def _logical(combine: Callable[..., Choice]) -> Callable[..., Choice]:
    return lambda run, *parts: combine(*map(run.choice, parts))


# ---------------------------------------------------------------------------------------------
# operations
# ---------------------------------------------------------------------------------------------


def _unary(function: Callable[[Jet], Jet]) -> Callable[..., Jet]:
    return lambda run, u: function(run.jet(u))


def _binary(function: Callable[[Jet, Jet], Jet]) -> Callable[..., Jet]:
    return lambda run, a, b: function(run.jet(a), run.jet(b))


def _add(run: _TapeEvaluation, a: Any, b: Any, alpha: float = 1.0) -> Jet:
    return run.jet(a) + run.jet(b) * Jet.number(alpha)


def _subtract(run: _TapeEvaluation, a: Any, b: Any, alpha: float = 1.0) -> Jet:
    return run.jet(a) - run.jet(b) * Jet.number(alpha)


def _multiply(run: _TapeEvaluation, a: Any, b: Any) -> Jet:
    u, v = run.jet(a), run.jet(b)
    return u.square() if a is b else u * v


def _divide(run: _TapeEvaluation, a: Any, b: Any, rounding_mode: str | None = None) -> Jet:
    if rounding_mode is not None:
        return Jet(Interval.whole(run.variable.series.low))
    return run.jet(a) / run.jet(b)


def _power(run: _TapeEvaluation, a: Any, b: Any) -> Jet:
    base, exponent = run.jet(a), run.jet(b)
    if exponent.constant and bool(exponent.value.low == exponent.value.high):
        return base.power(float(exponent.value.low))
    return (exponent * base.log()).exp()


def _clamp(run: _TapeEvaluation, u: Any, min: Any = None, max: Any = None) -> Jet:
    out = run.jet(u)
    if min is not None:
        out = out.largest(run.jet(min))
    return out if max is None else out.smallest(run.jet(max))


def _positive_part(u: Jet) -> Jet:
    return u.largest(_ZERO)


def _negative_part(u: Jet) -> Jet:
    return u.smallest(_ZERO)


def _elu(
    run: _TapeEvaluation, u: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Jet:
    v = run.jet(u)
    below = (_negative_part(v) * Jet.number(input_scale)).expm1() * Jet.number(alpha)
    return (_positive_part(v) + below) * Jet.number(scale)


def _celu(run: _TapeEvaluation, u: Any, alpha: float = 1.0) -> Jet:
    v, a = run.jet(u), Jet.number(alpha)
    return _positive_part(v) + (_negative_part(v) / a).expm1() * a


def _leaky(run: _TapeEvaluation, u: Any, negative_slope: Any = 0.01) -> Jet:
    v = run.jet(u)
    return _positive_part(v) + _negative_part(v) * run.jet(negative_slope)


def _gelu(run: _TapeEvaluation, u: Any, approximate: str = "none") -> Jet:
    v = run.jet(u)
    if approximate == "none":
        # Phi(v) = erfc(-v/sqrt 2)/2 is small to its last digits where it is small.
        return v * (-(v * _ROOT_HALF)).erfc() * Jet.number(0.5)
    inner = _ROOT_2_OVER_PI * (v + Jet.number(0.044715) * v.power(3.0))
    return v * (inner * Jet.number(2.0)).sigmoid()


def _softplus(run: _TapeEvaluation, u: Any, beta: float = 1.0, threshold: float = 20.0) -> Jet:
    """Torch goes on with u itself beyond the threshold; both are enclosed there."""
    v, scale = run.jet(u), Jet.number(beta)
    smooth = (v * scale).softplus() / scale
    beyond = (v * scale).value.high > threshold
    both = run.written_out(smooth).series.hull(run.written_out(v).series)
    return Jet(both.where(_spread(run, beyond), run.written_out(smooth).series))


def _threshold(run: _TapeEvaluation, u: Any, threshold: float, value: float) -> Jet:
    v = run.jet(u)
    return run.pick(_above(v, Jet.number(threshold), run), v, Jet.number(value))


def _softshrink(run: _TapeEvaluation, u: Any, lambd: float = 0.5) -> Jet:
    return run.jet(u) - _clamp(run, u, -lambd, lambd)


def _hard_sigmoid(run: _TapeEvaluation, u: Any) -> Jet:
    return _clamp(run, run.jet(u) + Jet.number(3.0), 0.0, 6.0) / Jet.number(6.0)


def _sign(run: _TapeEvaluation, u: Any) -> Jet:
    v = run.jet(u)
    below = run.pick(_above(_ZERO, v, run), -_ONE, _ZERO)
    return run.pick(_above(v, _ZERO, run), _ONE, below)


def _heaviside(run: _TapeEvaluation, u: Any, at_zero: Any) -> Jet:
    v = run.jet(u)
    below = run.pick(_above(_ZERO, v, run), _ZERO, run.jet(at_zero))
    return run.pick(_above(v, _ZERO, run), _ONE, below)


def _log_add_exp(a: Jet, b: Jet) -> Jet:
    return a + (b - a).softplus()


def _log_sum_exp(run: _TapeEvaluation, parts: list[Jet]) -> Jet:
    out = parts[0]
    for part in parts[1:]:
        out = _log_add_exp(out, part)
    return out


def _folded(combine: Callable[[Jet, Jet], Jet]) -> Callable[..., Jet]:
    def over(run: _TapeEvaluation, parts: list[Jet]) -> Jet:
        out = parts[0]
        for part in parts[1:]:
            out = combine(out, part)
        return out

    return over


_total = _folded(lambda a, b: a + b)


def _mean(run: _TapeEvaluation, parts: list[Jet]) -> Jet:
    return _total(run, parts) / Jet.number(float(len(parts)))


def _where(run: _TapeEvaluation, condition: Any, a: Any, b: Any) -> Jet:
    return run.pick(run.choice(condition), run.jet(a), run.jet(b))


def _same(run: _TapeEvaluation, u: Any, *_: Any, **__: Any) -> Value:
    return u if isinstance(u, Choice) else run.jet(u)


def _cast(run: _TapeEvaluation, u: Any, *_: Any, **__: Any) -> Jet:
    return run.jet(u)


_FUNCTIONS: dict[str, Callable[[Jet], Jet]] = {
    "abs": Jet.absolute,
    "asinh": Jet.asinh,
    "atan": Jet.atan,
    "cos": Jet.cos,
    "cosh": Jet.cosh,
    "erf": Jet.erf,
    "erfc": Jet.erfc,
    "exp": Jet.exp,
    "exp2": lambda u: (u * _LOG_2).exp(),
    "expm1": Jet.expm1,
    "log": Jet.log,
    "log10": lambda u: u.log() / _LOG_10,
    "log1p": Jet.log1p,
    "log2": lambda u: u.log() / _LOG_2,
    "mish": lambda u: u * u.softplus().tanh(),
    "neg": Jet.__neg__,
    "reciprocal": Jet.reciprocal,
    "relu": _positive_part,
    "rsqrt": lambda u: u.power(-0.5),
    "sigmoid": Jet.sigmoid,
    "silu": lambda u: u * u.sigmoid(),
    "sin": Jet.sin,
    "sinh": Jet.sinh,
    "sqrt": Jet.sqrt,
    "square": Jet.square,
    "tan": Jet.tan,
    "tanh": Jet.tanh,
}

_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: _unary(function) for name, function in _FUNCTIONS.items()},
    "_to_copy": _cast,
    "add": _add,
    "addcdiv": lambda run, c, a, b, value=1.0: _add(run, c, run.jet(a) / run.jet(b), value),
    "addcmul": lambda run, c, a, b, value=1.0: _add(run, c, run.jet(a) * run.jet(b), value),
    "alias": _same,
    "bitwise_and": _logical(lambda a, b: a & b),
    "bitwise_not": _logical(lambda a: ~a),
    "bitwise_or": _logical(lambda a, b: a | b),
    "bitwise_xor": _logical(lambda a, b: a ^ b),
    "celu": _celu,
    "clamp": _clamp,
    "clamp_max": lambda run, u, max: _clamp(run, u, None, max),
    "clamp_min": _clamp,
    "clone": _same,
    "detach": _same,
    "div": _divide,
    "elu": _elu,
    "eq": _compared(lambda a, b, run: ~_differs(a, b, run)),
    "full_like": lambda run, u, value: Jet.number(float(value)),
    "ge": _compared(lambda a, b, run: ~_above(b, a, run)),
    "gelu": _gelu,
    "gt": _compared(_above),
    "hardsigmoid": _hard_sigmoid,
    "hardswish": lambda run, u: run.jet(u) * _hard_sigmoid(run, u),
    "hardtanh": lambda run, u, min_val=-1.0, max_val=1.0: _clamp(run, u, min_val, max_val),
    "heaviside": _heaviside,
    "hypot": _binary(lambda a, b: (a.square() + b.square()).sqrt()),
    "le": _compared(lambda a, b, run: ~_above(a, b, run)),
    "leaky_relu": _leaky,
    "_prelu_kernel": _leaky,
    "lerp": lambda run, a, b, t: run.jet(a) + run.jet(t) * (run.jet(b) - run.jet(a)),
    "log_sigmoid_forward": lambda run, u: -(-run.jet(u)).softplus(),
    "logaddexp": _binary(_log_add_exp),
    "logical_and": _logical(lambda a, b: a & b),
    "logical_not": _logical(lambda a: ~a),
    "logical_or": _logical(lambda a, b: a | b),
    "logical_xor": _logical(lambda a, b: a ^ b),
    "lt": _compared(lambda a, b, run: _above(b, a, run)),
    "masked_fill": lambda run, u, mask, value: _where(run, mask, value, u),
    "maximum": _binary(Jet.largest),
    "minimum": _binary(Jet.smallest),
    "mul": _multiply,
    "ne": _compared(_differs),
    "ones_like": lambda run, u: _ONE,
    "pow": _power,
    "rsub": lambda run, a, b, alpha=1.0: _subtract(run, b, a, alpha),
    "sgn": _sign,
    "sign": _sign,
    "softplus": _softplus,
    "softshrink": _softshrink,
    "stacked_amax": _folded(Jet.largest),
    "stacked_amin": _folded(Jet.smallest),
    "stacked_logsumexp": _log_sum_exp,
    "stacked_mean": _mean,
    "stacked_prod": _folded(lambda a, b: a * b),
    "stacked_sum": _total,
    "sub": _subtract,
    "threshold": _threshold,
    "where": _where,
    "zeros_like": lambda run, u: _ZERO,
}
KNOWN = frozenset(_OPERATIONS)
