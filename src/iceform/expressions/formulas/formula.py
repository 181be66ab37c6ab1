"""Formula: a scalar function that somebody typed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise

import torch
from torch import Tensor

from iceform import tuning
from iceform.errors import DtypeError, FormulaError, ProgramError
from iceform.expressions.extremes import extremes, signed
from iceform.expressions.formulas import parsing, printing
from iceform.expressions.formulas.calculus import canonical, derivative
from iceform.expressions.formulas.enclosing import jets
from iceform.expressions.formulas.functions import evaluate
from iceform.expressions.formulas.pieces import (
    Piecewise,
    SmoothPiece,
    cut,
    gap,
    jumps,
    merged,
    pieces,
)
from iceform.expressions.formulas.polynomials import line, polynomial
from iceform.expressions.formulas.trees import Node
from iceform.expressions.losses import Curvature, Loss, Steps, vouched
from iceform.expressions.scalar import ScalarFunction, Vouched, check_range, find_kinks

_ROUNDED = "round it: for example tanh(4*u) in place of sign(u), sigmoid(4*u) in place of step(u)"
_ROUNDED_LOSS = (
    "round the corner: for example sqrt(u^2 + 0.01) or 0.25*log(cosh(4*u)) in place of abs(u), "
    "softplus(4*u)/4 in place of relu(u)"
)
_ABSURD = 1e30  # a bound this large says nothing
_EVERYWHERE = 1e300  # as far as float64 goes, but for overflow
_CLOSE = 1e-9  # what values on either side of a kink may differ by in float64


@dataclass(frozen=True, init=False)
class Formula:
    """A function of one real variable, typed as text and evaluated elementwise.

    ``Formula(text)`` is :meth:`parse`. The text is parsed by a whitelist of names and never run as
    code.

    Attributes
    ----------
    tree
        What was typed, as a tree.
    variable
        The name of its variable.

    Examples
    --------
    >>> loss = Formula("0.25*log(cosh(4*z))")
    >>> str(loss.derivative())
    'tanh(4*z)'
    """

    tree: Node
    variable: str

    def __init__(self, tree: Node | str, variable: str | None = None) -> None:
        if not isinstance(tree, Node):
            tree, read = parsing.parse(tree, parsing.MOST_CHARACTERS)
            variable = read if variable is None else variable
        object.__setattr__(self, "tree", tree)
        object.__setattr__(self, "variable", variable or "z")

    @classmethod
    def parse(cls, text: str, *, most: int = parsing.MOST_CHARACTERS) -> Formula:
        """Read a formula of at most ``most`` characters.

        Numbers, one variable (``z``, or else ``t``, ``r``, ``x`` or ``m``), ``pi``, ``e``,
        ``+ - * / ^`` (or ``**``), parentheses, ``|...|`` and the functions abs, atan, clip, cos,
        cosh, erf, exp, expm1, log, log1p, logcosh, max, min, relu, sigmoid, sign, sin, sinh,
        softplus, sqrt, step, tan and tanh. Exponents are numbers from -16 to 16.

        Raises
        ------
        FormulaError
            Quotes what was typed and points at the place; ``.position`` is its index.
        """
        return cls(*parsing.parse(text, most))

    @cached_property
    def text(self) -> str:
        """The formula as one would type it; :meth:`parse` reads it back."""
        return printing.text(self.tree, self.variable)

    def __str__(self) -> str:
        return self.text

    def __call__(self, z: Tensor) -> Tensor:
        """The values at z, in its dtype; differentiable by autograd.

        Anything else that has an ``apply`` method (a value of a program) is handed the tree.
        """
        if not isinstance(z, Tensor) and hasattr(type(z), "apply"):
            return z.apply(self.tree)
        if isinstance(z, Tensor) and not z.is_floating_point():
            raise DtypeError(f"a formula is evaluated in floating point, got {z.dtype}")
        return evaluate(self._canonical, z)

    def derivative(self) -> Formula:
        """d/dz, by the rules; at a kink the mean of the slopes on either side."""
        tree = derivative(self._canonical)
        if tree.size > tuning.FORMULA_MOST_NODES or tree.depth > tuning.FORMULA_MOST_DEPTH:
            raise FormulaError(f"the derivative of {self._name} is too long; shorten it")
        return Formula(tree, self.variable)

    @property
    def _name(self) -> str:
        return printing.brief(self.text)

    @cached_property
    def _canonical(self) -> Node:
        return canonical(self.tree)

    # --------------------------------------------------------------------- what can be proved

    def bound(self, low: float, high: float, order: int = 4) -> float | None:
        """A proven bound of the absolute derivative of that order over ``[low, high]``.

        Away from kinks, which must be known exactly; by interval arithmetic, so for every real
        number in the range. None where there is no bound, or none worth having.
        """
        check_range(low, high)
        parts = pieces(self._canonical, low, high)
        if parts is None:
            return None
        largest = max(extremes(partial(jets, p.tree), *p.ends, order).size for p in parts)
        return largest if largest < _ABSURD else None

    def convex_on(self, low: float, high: float) -> bool | None:
        """Whether the function is convex on ``[low, high]``; None where neither is proved."""
        check_range(low, high)
        parts = pieces(self._canonical, low, high)
        if parts is None:
            return None
        bends = [signed(partial(jets, p.tree), *p.ends, order=2) for p in parts]
        steps = [gap(a.tree, b.tree, b.low) for a, b in pairwise(parts)]
        turns = [gap(derivative(a.tree), derivative(b.tree), b.low) for a, b in pairwise(parts)]
        if not all(bool(step.has_zero) for step in steps):
            return False
        if min([*(b.seen_low for b in bends), *(float(t.high) for t in turns)]) < 0:
            return False
        proved = min([*(b.low for b in bends), *(float(t.low) for t in turns)]) >= 0
        return True if proved else None

    # ------------------------------------------------------------------------ what is looked up

    @cached_property
    def function(self) -> ScalarFunction:
        """For a look-up table on any range; what can be proved is, once the range is known."""
        enclosed = Vouched(self, partial(jets, self._canonical))
        facts = Vouched(self, self.scalar_function)
        return ScalarFunction(self, self._name, kinks=None, facts=facts, encloser=enclosed)

    def scalar_function(self, low: float, high: float) -> ScalarFunction:
        """For a look-up table on ``[low, high]``, with its kinks and proven derivatives.

        Raises
        ------
        FormulaError
            If the formula is not finite or jumps there.
        """
        return _facts(self, low, high, None)

    def loss(self, span: tuple[float, float] | None = None) -> Loss:
        """The loss l(z) of the residual z = w.x - y that the formula is: l' is looked up.

        Where ``span`` is given, l' is checked there and then; else once a table is made.

        Raises
        ------
        FormulaError
            If l' is not finite or jumps there, as that of ``abs(z)`` does.
        """
        rate = self.derivative()
        facts = Vouched(rate, partial(_facts, rate, loss=self))
        if span is not None:
            facts(*span)
        enclosed = Vouched(rate, partial(jets, rate._canonical))
        f = ScalarFunction(rate, rate._name, kinks=None, facts=facts, encloser=enclosed)
        return vouched(Loss(None, "residual", f, _broken_line(rate)))


def _broken_line(rate: Formula) -> Curvature | None:
    """The facts of a loss whose derivative is a convex broken line: l'' is a step function."""
    parts = pieces(rate._canonical, -_EVERYWHERE, _EVERYWHERE)
    lines = [polynomial(p.tree) for p in parts or []]
    known = [p for p in lines if p is not None and len(p) <= 2]
    if not known or len(known) < len(lines):
        return None
    steps = [gap(a.tree, b.tree, b.low) for a, b in pairwise(parts or [])]
    slopes = [float(p[1]) if len(p) == 2 else 0.0 for p in known]
    if min(slopes) < 0 or not all(bool((s.low == 0) & (s.high == 0)) for s in steps):
        return None
    breaks = tuple(float(p.low) for p in (parts or [])[1:])
    return Curvature(
        Steps(breaks, tuple(slopes)),
        bounds=(min(slopes), max(slopes)),
        concordance=None if breaks else 0.0,
        kinks=breaks,
        encloser=Piecewise.of(parts or [], continuous=True).jets,
    )


@lru_cache(maxsize=128)
def _facts(formula: Formula, low: float, high: float, loss: Formula | None) -> ScalarFunction:
    """What is known of a formula, the derivative of ``loss`` if given, on a range."""
    check_range(low, high)
    name, advice = formula._name, _ROUNDED
    if loss is not None:
        name, advice = f"the derivative of {loss._name}, {name},", _ROUNDED_LOSS
        _check_finite(loss, low, high, loss._name)
    _check_finite(formula, low, high, name)
    cuts = cut(formula._canonical, low, high)
    enclosed = Vouched(formula, partial(jets, formula._canonical))
    plain = ScalarFunction(formula, formula._name, kinks=None, encloser=enclosed)
    if cuts is None:
        return replace(plain, kinks=_looked_for(plain, low, high, advice))
    _check_continuous(formula, cuts, name, advice)
    parts = merged(cuts)
    call = Piecewise.of(parts, continuous=not jumps(formula._canonical))
    straight = line(parts[0].tree) if len(parts) == 1 else None
    enclosed = Vouched(call, call.jets)
    return replace(plain, call=call, kinks=call.breaks, affine=straight, encloser=enclosed)


def _check_finite(formula: Formula, low: float, high: float, name: str) -> None:
    mesh = torch.linspace(low, high, tuning.MESH + 1, dtype=torch.float64)
    finite = torch.isfinite(formula(mesh))
    if not bool(finite.all()):
        raise FormulaError(
            f"{name} is not finite at {formula.variable} = {float(mesh[~finite][0]):.6g}; "
            f"narrow the range [{low:.6g}, {high:.6g}] or change the formula"
        )


def _check_continuous(formula: Formula, parts: list[SmoothPiece], name: str, advice: str) -> None:
    for left, right in pairwise(parts):
        at = torch.tensor([float(right.low)], dtype=torch.float64)
        ends = [float(evaluate(p.tree, at)) for p in (left, right)]
        where = f"at {formula.variable} = {float(at):.6g}"
        if not bool(gap(left.tree, right.tree, right.low).has_zero):
            raise FormulaError(
                f"{name} jumps from {ends[0]:.6g} to {ends[1]:.6g} {where}; attention looks up "
                f"continuous functions only, so {advice}"
            )
        if not abs(float(formula(at)) - ends[1]) <= _CLOSE * (1 + abs(ends[1])):
            raise FormulaError(f"{name} has another value {where} than next to it; {advice}")


def _looked_for(f: ScalarFunction, low: float, high: float, advice: str) -> tuple[float, ...]:
    try:
        return find_kinks(f, low, high)
    except ProgramError as found:
        raise FormulaError(f"{found}; in a formula, {advice}") from None
