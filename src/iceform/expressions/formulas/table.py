"""The one table of scalar operations: what each is in every arithmetic that trees are computed in.

A row says what an operation computes in torch, how it is enclosed with its derivatives (jets), how
in balls, and what its derivative is, as a tree. What a row leaves out follows from its
``definition``, a tree of other operations; so the least row is a definition alone::

    TABLE["softsign"] = ScalarOperation(definition=lambda u: divide(u, add(ONE, call("abs", u))))

and ``Formula("softsign(3*z)")`` is parsed, printed, differentiated, looked up and proven from then
on. A torch function that calls torch's operation of the same name is followed.

**Conditions** are three-valued: of a cell or a ball that both branches of a choice meet it is open
which holds, and the choice encloses both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from iceform.arithmetic import Interval, Jet, balls
from iceform.arithmetic.jets import Choice, choose, chosen
from iceform.expressions.formulas.algebra import (
    ONE,
    ZERO,
    add,
    call,
    divide,
    multiply,
    negate,
    power,
    subtract,
)
from iceform.expressions.formulas.trees import Node, Number, Operation, fold

_LINEAR_FROM = 40.0  # softplus(u) - u < e^-40, far below an ulp of u
_LOG_2 = math.log(2.0)
_HALF, _TWO, _FOUR = (Number(Fraction(value)) for value in ("1/2", 2, 4))


@dataclass(frozen=True)
class ScalarOperation:
    """A function of one real number or a few.

    Attributes
    ----------
    value
        Elementwise in torch, by operations that autograd differentiates four times.
    jet
        On jets: Taylor coefficients, enclosed.
    ball
        On balls (``flint.arb``).
    slope
        The tree of g'(u) from that of u, of a function of one argument.
    definition
        The same as a tree of other operations, from the trees of the arguments.
    arity
        How many arguments it takes.
    rational
        Of rational numbers: the value where it is known to be rational, else None. Only of what is
        continuous.
    branches
        Of a function with a kink or a jump: what decides by its sign, what it is where that is
        positive, and what where it is negative.
    jumps
        Whether it jumps there.
    condition
        Whether it is a condition, not a number.
    typed
        Whether formulas may be typed with it.
    """

    value: Callable[..., Any] | None = None
    jet: Callable[..., Any] | None = None
    ball: Callable[..., Any] | None = None
    slope: Callable[[Node], Node] | None = None
    definition: Callable[..., Node] | None = None
    arity: int = 1
    rational: Callable[..., Fraction | None] | None = None
    branches: Callable[..., tuple[Node, Node, Node]] | None = None
    jumps: bool = False
    condition: bool = False
    typed: bool = True


# ---------------------------------------------------------------------------------------------
# in torch
# ---------------------------------------------------------------------------------------------


def _softplus(u: Tensor) -> Tensor:
    return F.softplus(u, threshold=_LINEAR_FROM)


def _logcosh(u: Tensor) -> Tensor:
    """log1p(2 sinh(u/2)^2) near 0, |u| + log1p(e^(-2|u|)) - log 2 elsewhere.

    Each branch sees only arguments at which it and its derivatives are accurate.
    """
    near = u.abs() < 1
    small = torch.where(near, u, 0.0)
    large = torch.where(near, 1.0, u).abs()
    middle = torch.log1p(2 * torch.sinh(small / 2).square())
    return torch.where(near, middle, large + torch.log1p(torch.exp(-2 * large)) - _LOG_2)


def _power(a: Any, b: Any) -> Any:
    return a ** (int(b) if isinstance(b, float) and b.is_integer() else b)


def _min(a: Any, b: Any) -> Tensor:
    if isinstance(a, float):
        return torch.clamp(b, max=a)
    return torch.clamp(a, max=b) if isinstance(b, float) else torch.minimum(a, b)


def _max(a: Any, b: Any) -> Tensor:
    if isinstance(a, float):
        return torch.clamp(b, min=a)
    return torch.clamp(a, min=b) if isinstance(b, float) else torch.maximum(a, b)


# ---------------------------------------------------------------------------------------------
# in jets
# ---------------------------------------------------------------------------------------------


_CUBIC = 0.044715  # of the cube in the tanh form of GELU


def _next_to(low: float) -> Jet:
    """A constant that lies between a float and the next."""
    ends = torch.tensor([[low], [math.nextafter(low, math.inf)]], dtype=torch.float64, device="cpu")
    return Jet.number(Interval(ends[0], ends[1]))


def _around(value: Decimal) -> Jet:
    """A decimal constant, between the floats beside it."""
    near = float(value)
    low = math.nextafter(near, -math.inf) if Decimal(near) > value else near
    return _next_to(low)


_JET_LOG_2 = _around(Decimal(2).ln())
_JET_LOG_10 = _around(Decimal(10).ln())
_JET_ROOT_HALF = _around(Decimal("0.5").sqrt())
_JET_ROOT_2_OVER_PI = _next_to(0.7978845608028653)
_JET_ZERO, _JET_HALF, _JET_ONE, _JET_TWO = (Jet.number(value) for value in (0.0, 0.5, 1.0, 2.0))


def _jet_power(base: Jet, exponent: Jet) -> Jet:
    """By the float64 that the exponent is; where there is none u^p = e^(p ln u), for u > 0."""
    if exponent.constant and bool(exponent.value.low == exponent.value.high):
        return base.power(float(exponent.value.low))
    return (exponent * base.log()).exp()


def _jet_quotient(a: Jet, b: Jet) -> Jet:
    one = a.constant and bool((a.value.low == 1) & (a.value.high == 1))
    return b.reciprocal() if one else a / b


def _by_sign(u: Jet, low: Jet, middle: Jet, high: Jet) -> Jet:
    """One of three numbers by the sign of u."""
    return choose(Choice.above(u, _JET_ZERO), high, choose(Choice.above(_JET_ZERO, u), low, middle))


def _jet_gelu(v: Jet) -> Jet:
    # Phi(v) = erfc(-v/sqrt 2)/2 is small to its last digits where it is small.
    return v * (-(v * _JET_ROOT_HALF)).erfc() * _JET_HALF


def _jet_gelu_tanh(v: Jet) -> Jet:
    inner = _JET_ROOT_2_OVER_PI * (v + Jet.number(_CUBIC) * v.power(3.0))
    return v * (inner * _JET_TWO).sigmoid()


def _jet_torch_softplus(u: Jet, threshold: Jet) -> Jet:
    """Torch goes on with u itself beyond the threshold; both are enclosed there.

    The step from one to the other is a jump: of a cell that holds it only the value is known.
    """
    smooth = u.softplus()
    either = Jet(smooth.series.hull(u.series), u.constant)
    before, beyond = u.value.high <= threshold.value.low, u.value.low > threshold.value.high
    found = chosen(before, beyond, smooth, either, len(u.series))
    return Jet(found.series, u.constant)


def _ball_torch_softplus(u: Any, threshold: Any) -> Any:
    """The same of balls."""
    smooth = balls.softplus(u)
    return smooth if u <= threshold else smooth.union(u)


# ---------------------------------------------------------------------------------------------
# as trees
# ---------------------------------------------------------------------------------------------


def _zero(u: Node) -> Node:
    return ZERO


def _times_mirror(u: Node) -> Node:
    """The sigmoid's slope s(u) s(-u); s(u) (1 - s(u)) would round relative to 1, not to itself."""
    return multiply(call("sigmoid", u), call("sigmoid", negate(u)))


def _sech_squared(u: Node) -> Node:
    return multiply(_FOUR, _times_mirror(multiply(_TWO, u)))


def _normal(u: Node) -> Node:
    """2 exp(-u^2)/sqrt(pi), the slope of erf."""
    scale = divide(_TWO, call("sqrt", Number(Fraction(math.pi), "pi")))
    return multiply(scale, call("exp", negate(power(u, 2))))


def _gelu(u: Node) -> Node:
    return divide(multiply(u, call("erfc", negate(divide(u, call("sqrt", _TWO))))), _TWO)


def _gelu_tanh(u: Node) -> Node:
    scale = call("sqrt", divide(Number(Fraction(8)), Number(Fraction(math.pi), "pi")))
    cubed = multiply(Number(Fraction(_CUBIC)), power(u, 3))
    return multiply(u, call("sigmoid", multiply(scale, add(u, cubed))))


def _clip(u: Node, low: Node, high: Node) -> Node:
    return Operation("min", (Operation("max", (u, low)), high))


# ---------------------------------------------------------------------------------------------
# the table
# ---------------------------------------------------------------------------------------------


def _at_zero(value: int) -> Callable[[Fraction], Fraction | None]:
    """The one rational value that is known, at 0."""
    return lambda u: None if u else Fraction(value)


def _whole_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    whole = exponent.denominator == 1 and (base != 0 or exponent > 0)
    bits = base.numerator.bit_length() + base.denominator.bit_length()
    return base ** int(exponent) if whole and abs(exponent) * bits <= MOST_BITS else None


MOST_BITS = 1 << 16  # of an exact number; beyond it is not worth having

_zero_at_zero, _one_at_zero = _at_zero(0), _at_zero(1)
_Row = ScalarOperation

TABLE: dict[str, ScalarOperation] = {
    # Operators. The rules by which they are differentiated are in `calculus`.
    "+": _Row(lambda a, b: a + b, lambda a, b: a + b, lambda a, b: a + b,
              arity=2, rational=lambda a, b: a + b, typed=False),
    "-": _Row(lambda a, b: a - b, lambda a, b: a - b, lambda a, b: a - b,
              arity=2, rational=lambda a, b: a - b, typed=False),
    "*": _Row(lambda a, b: a * b, lambda a, b: a.square() if a is b else a * b,
              lambda a, b: balls.whole_power(a, 2) if a is b else a * b,
              arity=2, rational=lambda a, b: a * b, typed=False),
    "/": _Row(lambda a, b: a / b, _jet_quotient, lambda a, b: a / b,
              arity=2, rational=lambda a, b: a / b if b else None, typed=False),
    "^": _Row(_power, _jet_power, balls.power, arity=2, rational=_whole_power, typed=False),
    "neg": _Row(lambda a: -a, Jet.__neg__, lambda a: -a, rational=lambda a: -a, typed=False),
    # Functions with kinks and jumps.
    "abs": _Row(torch.abs, Jet.absolute, abs, lambda u: call("sign", u), rational=abs,
                branches=lambda u: (u, u, negate(u))),
    "relu": _Row(torch.relu, lambda u: u.largest(_JET_ZERO), lambda u: u.max(u * 0),
                 lambda u: call("step", u), rational=lambda u: max(u, Fraction(0)),
                 branches=lambda u: (u, u, ZERO)),
    "max": _Row(_max, Jet.largest, lambda a, b: a.max(b), arity=2, rational=max,
                branches=lambda a, b: (subtract(a, b), a, b)),
    "min": _Row(_min, Jet.smallest, lambda a, b: a.min(b), arity=2, rational=min,
                branches=lambda a, b: (subtract(a, b), b, a)),
    "clip": _Row(torch.clamp, definition=_clip, arity=3),
    "sign": _Row(torch.sign, lambda u: _by_sign(u, -_JET_ONE, _JET_ZERO, _JET_ONE), balls.sign,
                 _zero, branches=lambda u: (u, ONE, negate(ONE)), jumps=True),
    "step": _Row(lambda u: 0.5 * (1 + torch.sign(u)),
                 lambda u: _by_sign(u, _JET_ZERO, _JET_HALF, _JET_ONE),
                 lambda u: (1 + balls.sign(u)) / 2,
                 _zero, branches=lambda u: (u, ONE, ZERO), jumps=True),
    # Smooth functions.
    "asinh": _Row(torch.asinh, Jet.asinh, lambda u: u.asinh(),
                  lambda u: power(add(ONE, power(u, 2)), Fraction(-1, 2)),
                  rational=_zero_at_zero, typed=False),
    "atan": _Row(torch.atan, Jet.atan, lambda u: u.atan(),
                 lambda u: divide(ONE, add(ONE, power(u, 2))), rational=_zero_at_zero),
    "cos": _Row(torch.cos, Jet.cos, lambda u: u.cos(), lambda u: negate(call("sin", u)),
                rational=_one_at_zero),
    "cosh": _Row(torch.cosh, Jet.cosh, lambda u: u.cosh(), lambda u: call("sinh", u),
                 rational=_one_at_zero),
    "erf": _Row(torch.erf, Jet.erf, lambda u: u.erf(), _normal, rational=_zero_at_zero),
    "erfc": _Row(torch.erfc, Jet.erfc, lambda u: u.erfc(), lambda u: negate(_normal(u)),
                 rational=_one_at_zero, typed=False),
    "exp": _Row(torch.exp, Jet.exp, lambda u: u.exp(), lambda u: call("exp", u),
                rational=_one_at_zero),
    "exp2": _Row(torch.exp2, lambda u: (u * _JET_LOG_2).exp(), rational=_one_at_zero, typed=False,
                 definition=lambda u: call("exp", multiply(u, call("log", _TWO)))),
    "expm1": _Row(torch.expm1, Jet.expm1, lambda u: u.expm1(), lambda u: call("exp", u),
                  rational=_zero_at_zero),
    "gelu": _Row(F.gelu, _jet_gelu, definition=_gelu, rational=_zero_at_zero, typed=False),
    "gelu_tanh": _Row(lambda u: F.gelu(u, approximate="tanh"), _jet_gelu_tanh,
                      definition=_gelu_tanh, rational=_zero_at_zero, typed=False),
    "log": _Row(torch.log, Jet.log, lambda u: u.log(), lambda u: divide(ONE, u)),
    "log10": _Row(torch.log10, lambda u: u.log() / _JET_LOG_10, typed=False,
                  definition=lambda u: divide(call("log", u), call("log", Number(Fraction(10))))),
    "log1p": _Row(torch.log1p, Jet.log1p, lambda u: u.log1p(), lambda u: divide(ONE, add(ONE, u)),
                  rational=_zero_at_zero),
    "log2": _Row(torch.log2, lambda u: u.log() / _JET_LOG_2, typed=False,
                 definition=lambda u: divide(call("log", u), call("log", _TWO))),
    "logcosh": _Row(_logcosh, Jet.logcosh, balls.logcosh, lambda u: call("tanh", u)),
    "mish": _Row(F.mish, lambda u: u * u.softplus().tanh(),
                 definition=lambda u: multiply(u, call("tanh", call("softplus", u))),
                 rational=_zero_at_zero, typed=False),
    "sigmoid": _Row(torch.sigmoid, Jet.sigmoid, balls.sigmoid, _times_mirror),
    "silu": _Row(F.silu, lambda u: u * u.sigmoid(), rational=_zero_at_zero, typed=False,
                 definition=lambda u: multiply(u, call("sigmoid", u))),
    "sin": _Row(torch.sin, Jet.sin, lambda u: u.sin(), lambda u: call("cos", u),
                rational=_zero_at_zero),
    "sinh": _Row(torch.sinh, Jet.sinh, lambda u: u.sinh(), lambda u: call("cosh", u),
                 rational=_zero_at_zero),
    "softplus": _Row(_softplus, Jet.softplus, balls.softplus, lambda u: call("sigmoid", u)),
    "sqrt": _Row(torch.sqrt, Jet.sqrt, lambda u: u.sqrt(),
                 lambda u: divide(_HALF, call("sqrt", u)), rational=_zero_at_zero),
    "tan": _Row(torch.tan, Jet.tan, lambda u: u.tan(),
                lambda u: add(ONE, power(call("tan", u), 2)), rational=_zero_at_zero),
    "tanh": _Row(torch.tanh, Jet.tanh, lambda u: u.tanh(), _sech_squared, rational=_zero_at_zero),
    # torch's softplus of u, a line from a threshold on.
    "torch_softplus": _Row(lambda u, threshold: F.softplus(u, threshold=float(threshold)),
                           _jet_torch_softplus, _ball_torch_softplus,
                           definition=lambda u, threshold: call("softplus", u), arity=2,
                           typed=False),
    # Conditions, and what they choose.
    ">": _Row(torch.gt, Choice.above, balls.above, arity=2, condition=True, typed=False),
    ">=": _Row(torch.ge, lambda a, b: ~Choice.above(b, a),
               lambda a, b: balls.negated(balls.above(b, a)),
               arity=2, condition=True, typed=False),
    "==": _Row(torch.eq, lambda a, b: ~Choice.differs(a, b), balls.same,
               arity=2, condition=True, typed=False),
    "and": _Row(torch.logical_and, Choice.__and__, balls.both,
                arity=2, condition=True, typed=False),
    "not": _Row(torch.logical_not, Choice.__invert__, balls.negated, condition=True, typed=False),
    "where": _Row(torch.where, choose, balls.chosen, arity=3, typed=False),
}  # fmt: skip


def arities() -> dict[str, int]:
    """The functions that formulas may be typed with, and how many arguments each takes."""
    return {name: row.arity for name, row in TABLE.items() if row.typed}


def is_condition(node: Node) -> bool:
    """Whether a tree is a condition, not a number."""
    return isinstance(node, Operation) and TABLE[node.name].condition


def expanded(tree: Node, lacks: Callable[[ScalarOperation], bool]) -> Node:
    """The tree with operations of which something is lacking written out by their definitions."""

    def rebuilt(node: Node, below: list[Node]) -> Node:
        if not isinstance(node, Operation):
            return node
        row = TABLE[node.name]
        if lacks(row) and row.definition is not None:
            return expanded(row.definition(*below), lacks)
        return node if tuple(below) == node.arguments else Operation(node.name, tuple(below))

    return fold(tree, rebuilt)
