"""From text to trees, by a whitelist: nothing that is typed is ever run.

The grammar, loosest first; powers go to the right, everything else to the left::

    sum      = product (("+" | "-") product)*
    product  = signed (("*" | "/") signed)*
    signed   = ("-" | "+") signed | power
    power    = atom (("^" | "**") signed)?
    atom     = number | "pi" | "e" | variable | function "(" sum ("," sum)* ")"
             | "(" sum ")" | "|" sum "|"

Where an operand is due a bar opens, where an operator is due it closes; since products are never
implied, that leaves no choice.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import NamedTuple, NoReturn

from iceform.errors import FormulaError
from iceform.expressions.formulas.algebra import DIGITS
from iceform.expressions.formulas.functions import constant_value
from iceform.expressions.formulas.polynomials import MOST_DEGREE
from iceform.expressions.formulas.table import arities
from iceform.expressions.formulas.trees import Node, Number, Operation, Variable

MOST_CHARACTERS = DIGITS
MOST_DEPTH = 48  # a sum of n terms is n deep
MOST_NESTING = 32  # brackets and signs inside each other
LARGEST_EXPONENT = float(MOST_DEGREE)
MOST_EXPONENT = 400  # of a number: 10^-400 is as good as 0 beside any float64
VARIABLES = ("z", "t", "r", "x", "m")
CONSTANTS = {"pi": math.pi, "e": math.e}

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<symbol>\*\*|[-+*/^(),|])"
    r"|(?P<other>.)",
    re.ASCII | re.DOTALL,
)
_NO_COMPARISONS = "for cases use relu, step, sign, min, max, clip or abs"
_HINTS = {
    ".": "there are no attributes in it",
    "[": "there is nothing to index in it",
    "{": "group with parentheses ( )",
    ":": "a formula is one expression",
    ";": "a formula is one expression",
    "%": "there are no remainders in it",
    "!": "there are no factorials in it",
    "·": "multiplication is written *",
    "×": "multiplication is written *",
    "−": "the minus sign is written -",
    "÷": "division is written /",
    "²": "powers are written ^2",
    "³": "powers are written ^3",
    "√": "square roots are written sqrt(...)",
    "π": "write pi",
    **dict.fromkeys("<>=", _NO_COMPARISONS),
    **dict.fromkeys("'\"`", "there is no text in it"),
}
_EXCERPT = 60  # characters of a long text that a message quotes


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def parse(text: str, most: int = MOST_CHARACTERS) -> tuple[Node, str]:
    """The tree of a formula and the name of its variable."""
    if not isinstance(text, str):
        raise FormulaError(f"a formula is text, got {type(text).__name__}; type for example z^2/2")
    if len(text) > most:
        raise FormulaError(
            f"a formula has at most {most} characters, this one has {len(text)}; shorten it", most
        )
    return _Parser(text).parse()


def _refuse(text: str, position: int, message: str) -> NoReturn:
    """Quote what was typed, point at the place, say what is wrong with it."""
    start = max(0, min(position - _EXCERPT // 2, len(text) - _EXCERPT))
    shown = "".join(c if c.isprintable() else "�" for c in text[start : start + _EXCERPT])
    caret = " " * (position - start) + "^"
    raise FormulaError(f"{message} (at character {position + 1})\n  {shown}\n  {caret}", position)


def _tokens(text: str) -> list[_Token]:
    found = (_Token(m.lastgroup or "", m.group(), m.start()) for m in _TOKEN.finditer(text))
    return [*(t for t in found if t.kind != "space"), _Token("end", "", len(text))]


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.next = 0
        self.nesting = 0
        self.variable: str | None = None

    # ------------------------------------------------------------------------------- tokens

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def advance(self) -> _Token:
        token = self.token
        self.next += 1
        return token

    def accept(self, *symbols: str) -> _Token | None:
        found = self.token.kind == "symbol" and self.token.text in symbols
        return self.advance() if found else None

    def refuse(self, token: _Token, message: str) -> NoReturn:
        _refuse(self.text, token.position, message)

    def refuse_character(self, token: _Token) -> NoReturn:
        character = token.text
        shown = f"`{character}`" if character.isprintable() else f"U+{ord(character):04X}"
        hint = _HINTS.get(character, "it has numbers, + - * / ^, parentheses and functions")
        self.refuse(token, f"{shown} is not part of a formula; {hint}")

    # ------------------------------------------------------------------------------ grammar

    def parse(self) -> tuple[Node, str]:
        if self.token.kind == "end":
            self.refuse(self.token, "the formula is empty; type for example z^2/2")
        tree = self.sum()
        if self.token.kind != "end":
            self.refuse_operand()
        return tree, self.variable or VARIABLES[0]

    def sum(self) -> Node:
        left = self.product()
        while (operator := self.accept("+", "-")) is not None:
            left = self.operation(operator, operator.text, left, self.product())
        return left

    def product(self) -> Node:
        left = self.signed()
        while (operator := self.accept("*", "/")) is not None:
            right = self.signed()
            if operator.text == "/" and right.constant and constant_value(right) == 0:
                self.refuse(operator, "division by zero")
            left = self.operation(operator, operator.text, left, right)
        return left

    def signed(self) -> Node:
        sign = self.accept("-", "+")
        if sign is None:
            return self.power()
        self.enter(sign)
        inner = self.signed()
        self.nesting -= 1
        return self.operation(sign, "neg", inner) if sign.text == "-" else inner

    def power(self) -> Node:
        base = self.atom()
        operator = self.accept("^", "**")
        if operator is None:
            return base
        self.enter(operator)
        start = self.token
        exponent = self.signed()
        self.nesting -= 1
        self.check_exponent(start, exponent)
        return self.operation(operator, "^", base, exponent)

    def check_exponent(self, start: _Token, exponent: Node) -> None:
        if not exponent.constant:
            self.refuse(
                start, "an exponent must be a number; for a variable one write exp(... * log(...))"
            )
        value = constant_value(exponent)
        if abs(value) > LARGEST_EXPONENT:
            self.refuse(
                start,
                f"the exponent {value:.6g} is out of range; exponents go from "
                f"-{LARGEST_EXPONENT:g} to {LARGEST_EXPONENT:g}",
            )

    def atom(self) -> Node:
        token = self.advance()
        if token.kind == "number":
            return self.number(token)
        if token.kind == "name":
            return self.named(token)
        if token.text in ("(", "|"):
            self.enter(token)
            inner = self.sum()
            self.close(token, ")" if token.text == "(" else "|")
            self.nesting -= 1
            return inner if token.text == "(" else self.operation(token, "abs", inner)
        if token.kind == "other":
            self.refuse_character(token)
        found = "the formula ends" if token.kind == "end" else f"`{token.text}` stands"
        self.refuse(token, f"expected a number, {VARIABLES[0]} or a function where {found}")

    def number(self, token: _Token) -> Node:
        if not math.isfinite(float(token.text)):
            self.refuse(token, "the number is too large; numbers go up to 1.8e308")
        if abs(int((token.text.lower().partition("e")[2]) or 0)) > MOST_EXPONENT:
            self.refuse(token, f"the number is too small; exponents go to -{MOST_EXPONENT}")
        return Number(Fraction(token.text))

    def named(self, token: _Token) -> Node:
        name = token.text
        if name in arities():
            return self.function(token)
        if self.token.text == "(" and (name in CONSTANTS or name in VARIABLES):
            self.refuse(self.token, f"`{name}` is not a function; for a product write {name}*(...)")
        if name in CONSTANTS:
            return Number(Fraction(CONSTANTS[name]), name)
        if name not in VARIABLES:
            self.refuse(
                token,
                f"unknown name `{name[:_EXCERPT]}`; the variable is {VARIABLES[0]}, the constants "
                f"are {', '.join(CONSTANTS)} and the functions {', '.join(sorted(arities()))}",
            )
        if self.variable not in (None, name):
            self.refuse(
                token, f"a formula has one variable, here are two, {self.variable} and {name}"
            )
        self.variable = name
        return Variable()

    def function(self, token: _Token) -> Node:
        name, arity = token.text, arities()[token.text]
        opened = self.accept("(")
        if opened is None:
            self.refuse(token, f"{name} needs its argument in parentheses: {name}(...)")
        self.enter(opened)
        arguments = [self.sum()]
        while self.accept(",") is not None:
            arguments.append(self.sum())
        self.close(opened, ")")
        self.nesting -= 1
        if len(arguments) != arity:
            plural = "" if arity == 1 else "s"
            self.refuse(token, f"{name} takes {arity} argument{plural}, got {len(arguments)}")
        if name == "clip":
            self.check_ends(token, *arguments[1:])
        return self.operation(token, name, *arguments)

    def check_ends(self, token: _Token, low: Node, high: Node) -> None:
        if not (low.constant and high.constant and constant_value(low) <= constant_value(high)):
            self.refuse(token, "clip(u, a, b) needs numbers a <= b; else use min and max")

    # -------------------------------------------------------------------------------- limits

    def enter(self, token: _Token) -> None:
        self.nesting += 1
        if self.nesting > MOST_NESTING:
            self.refuse(token, f"nested deeper than {MOST_NESTING}; write it with fewer brackets")

    def close(self, opened: _Token, closing: str) -> None:
        if self.accept(closing) is not None:
            return
        what = "a closing parenthesis" if closing == ")" else "a closing bar |"
        if self.token.kind == "end":
            self.refuse(self.token, f"expected {what} for that at {opened.position + 1}")
        self.refuse_operand(what)

    def refuse_operand(self, expected: str = "an operator") -> NoReturn:
        """Something stands where an operator or a closing bracket is due."""
        token = self.token
        if token.kind == "other":
            self.refuse_character(token)
        if token.kind in ("number", "name") or token.text == "(":
            self.refuse(
                token, f"expected an operator before `{token.text}`; multiplication is written *"
            )
        self.refuse(token, f"expected {expected}, found `{token.text}`")

    def operation(self, token: _Token, name: str, *arguments: Node) -> Operation:
        made = Operation(name, arguments)
        if made.depth > MOST_DEPTH:
            self.refuse(token, f"more than {MOST_DEPTH} operations inside each other; shorten it")
        if made.constant and not math.isfinite(constant_value(made)):
            self.refuse(token, "this part is not a finite number; check its value")
        return made
