"""Building trees, lightly simplified on the way.

Every rule is an identity over the reals wherever its left hand side is defined. Some are there to
keep derivatives short, some because what is usually typed overflows: ``log(cosh(u))``,
``log(1 + exp(u))`` and ``1/(1 + exp(u))`` are recognised for what they are. Numbers
are rational and folded exactly, as long as they can be written as decimals that float64 has room
for. Those typed by name are left alone, so that ``2*pi`` stays ``2*pi``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction

from iceform.expressions.formulas.trees import Node, Number, Operation

ZERO, ONE = Number(Fraction(0)), Number(Fraction(1))

_LARGEST = Fraction(sys.float_info.max)
_LEAST = Fraction(sys.float_info.min) * 2**100  # float64 holds its digits, and of what is near
DIGITS = 200  # that a number may be written with


def is_decimal(value: Fraction) -> bool:
    """Whether a number can be a number: a decimal, neither too large, too small nor too long."""
    if value and not _LEAST <= abs(value) <= _LARGEST:
        return False
    rest, digits = value.denominator, 0
    for prime in (2, 5):
        while rest % prime == 0:
            rest, digits = rest // prime, digits + 1
    return rest == 1 and digits <= 2 * DIGITS and value.numerator.bit_length() <= 8 * DIGITS


def _plain(node: Node) -> Fraction | None:
    """The value of a number that was not typed by name."""
    return node.value if isinstance(node, Number) and node.name is None else None


def _parts(node: Node, name: str) -> tuple[Node, ...]:
    """What the operation of that name acts on; nothing if the tree is another."""
    return node.arguments if isinstance(node, Operation) and node.name == name else ()


def _scaled(node: Node) -> tuple[Fraction, Node]:
    """A plain factor and the rest: ``(-3, u)`` of ``-(3*u)``, ``(3, 1/u)`` of ``3/u``."""
    if (value := _plain(node)) is not None:
        return value, ONE
    if below := _parts(node, "neg"):
        factor, rest = _scaled(below[0])
        return -factor, rest
    if (below := _parts(node, "*")) and (value := _plain(below[0])) is not None:
        return value, below[1]
    if (below := _parts(node, "/")) and (value := _plain(below[0])) is not None:
        return value, Operation("/", (ONE, below[1]))
    return Fraction(1), node


def _times(factor: Fraction, rest: Node) -> Node:
    """A factor put before a tree that has none."""
    if factor == 0 or rest == ONE:
        return Number(factor)
    if factor == 1:
        return rest
    if below := _parts(rest, "/"):
        if below[0] == ONE:
            return Operation("/", (Number(factor), below[1]))
        divisor = _plain(below[1])
        if divisor and is_decimal(factor / divisor):
            return _times(factor / divisor, below[0])
    return Operation("neg", (rest,)) if factor == -1 else Operation("*", (Number(factor), rest))


def negate(a: Node) -> Node:
    """Minus a tree."""
    if below := _parts(a, "-"):
        return subtract(below[1], below[0])
    factor, rest = _scaled(a)
    return _times(-factor, rest)


def add(a: Node, b: Node) -> Node:
    """The sum of two trees."""
    (c, u), (d, v) = _scaled(a), _scaled(b)
    if ZERO in (a, b):
        return b if a == ZERO else a
    if u == v and is_decimal(c + d):
        return _times(c + d, u)
    return subtract(a, negate(b)) if d < 0 else Operation("+", (a, b))


def subtract(a: Node, b: Node) -> Node:
    """The difference of two trees."""
    (c, u), (d, v) = _scaled(a), _scaled(b)
    if ZERO in (a, b):
        return negate(b) if a == ZERO else a
    if u == v and is_decimal(c - d):
        return _times(c - d, u)
    return add(a, negate(b)) if d < 0 else Operation("-", (a, b))


def multiply(a: Node, b: Node) -> Node:
    """The product of two trees, with a plain number in front."""
    (c, u), (d, v) = _scaled(a), _scaled(b)
    if not is_decimal(c * d):
        return Operation("*", (a, b))
    rest = _product(u, v)
    return _times(c * d, Operation("*", (u, v)) if rest is None else rest)


def _product(u: Node, v: Node) -> Node | None:
    """A shorter form of u v, where there is one."""
    if ONE in (u, v):
        return v if u == ONE else u
    (x, m), (y, n) = _as_power(u), _as_power(v)
    if x == y and m > 0 and n > 0 and m.denominator == 1 and n.denominator == 1:
        return power(x, m + n)
    return _one_way(u, v) or _one_way(v, u)


def _one_way(u: Node, v: Node) -> Node | None:
    if (below := _parts(u, "/")) and below[0] == ONE:
        return divide(v, below[1])
    if (below := _parts(u, "abs")) and below == _parts(v, "sign"):
        return below[0]
    return u if _parts(u, "relu") and _parts(u, "relu") == _parts(v, "step") else None


def divide(a: Node, b: Node) -> Node:
    """The quotient of two trees."""
    if value := _plain(b):
        return _divided_by(a, value)
    if exponent := _one_plus_exp(b):
        # Neither exp(u)/(1 + exp(u)) nor v/(1 + exp(u)) overflows as a sigmoid.
        if _parts(a, "exp") == exponent:
            return call("sigmoid", *exponent)
        return multiply(a, call("sigmoid", negate(*exponent)))
    factor, rest = _scaled(a)
    if factor == 1:
        return Operation("/", (a, b))
    return _times(factor, divide(rest, b))


def _divided_by(a: Node, value: Fraction) -> Node:
    """A quotient by a number: into the factor if there is one, else ``u/2`` stays."""
    factor, rest = _scaled(a)
    if value < 0 or factor == -1:
        return negate(_divided_by(negate(a), value) if value > 0 else _divided_by(a, -value))
    if (factor != 1 or rest == ONE) and is_decimal(factor / value):
        return _times(factor / value, rest)
    if (below := _parts(a, "/")) and (inner := _plain(below[1])) and is_decimal(inner * value):
        return _divided_by(below[0], inner * value)
    for name, combine in (("+", add), ("-", subtract)):
        if (terms := _parts(a, name)) and all(abs(_scaled(t)[0]) == value for t in terms):
            return combine(*(_divided_by(t, value) for t in terms))
    return a if value == 1 else Operation("/", (a, Number(value)))


def _one_plus_exp(node: Node) -> tuple[Node, ...]:
    """The exponent of ``1 + exp(u)``, in either order."""
    if ONE not in (below := _parts(node, "+")):
        return ()
    return _parts(below[1] if below[0] == ONE else below[0], "exp")


def power(a: Node, exponent: Fraction | int) -> Node:
    """A tree to the power of a number."""
    exponent = Fraction(exponent)
    if exponent == 0:
        return ONE
    if (number := _plain(a)) is not None and exponent.denominator == 1 and (number or exponent > 0):
        folded = number ** int(exponent)
        if is_decimal(folded):
            return Number(folded)
    base, inner = _as_power(a)
    if inner != 1:
        if inner.denominator == 1 and exponent.denominator == 1:
            return power(base, inner * exponent)
        if _even(inner):
            return power(call("abs", base), inner * exponent)
    if _even(exponent) and (below := _parts(a, "abs") or _parts(a, "neg")):
        return power(below[0], exponent)
    return a if exponent == 1 else Operation("^", (a, Number(exponent)))


def _as_power(node: Node) -> tuple[Node, Fraction]:
    """Base and exponent; any tree is the first power of itself."""
    below = _parts(node, "^")
    exponent = _plain(below[1]) if below else None
    return (node, Fraction(1)) if exponent is None else (below[0], exponent)


def _even(exponent: Fraction) -> bool:
    return exponent.denominator == 1 and exponent % 2 == 0


def call(name: str, *arguments: Node) -> Node:
    """A function of trees."""
    rewritten = _REWRITE[name](arguments[0]) if name in _REWRITE else None
    return Operation(name, arguments) if rewritten is None else rewritten


def _rewrite_log(u: Node) -> Node | None:
    if below := _parts(u, "cosh"):
        return call("logcosh", *below)
    if below := _parts(u, "exp"):
        return below[0]
    if below := _one_plus_exp(u):
        return call("softplus", *below)
    terms = [_parts(term, "exp") for term in _parts(u, "+")]
    if not (terms and all(terms)):
        return None
    (a,), (b,) = terms
    return add(a, call("softplus", subtract(b, a)))


def _rewrite_log1p(u: Node) -> Node | None:
    below = _parts(u, "exp")
    return call("softplus", *below) if below else None


def _rewrite_sqrt(u: Node) -> Node | None:
    """Of an even power: a power of ``abs``, whose derivative is known on either side of 0."""
    base, exponent = _as_power(u)
    return power(call("abs", base), exponent / 2) if _even(exponent) and exponent > 0 else None


def _rewrite_abs(u: Node) -> Node | None:
    if _parts(u, "abs") or _even(_as_power(u)[1]):
        return u
    below = _parts(u, "neg")
    return call("abs", *below) if below else None


_REWRITE: dict[str, Callable[[Node], Node | None]] = {
    "abs": _rewrite_abs,
    "log": _rewrite_log,
    "log1p": _rewrite_log1p,
    "sqrt": _rewrite_sqrt,
}
