"""Formula: a scalar function that somebody typed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from iceform.constructions.losses import Loss
from iceform.errors import DtypeError, FormulaError
from iceform.formulas import parsing, printing
from iceform.formulas.calculus import canonical, derivative
from iceform.formulas.functions import evaluate
from iceform.formulas.trees import Node
from iceform.interpolation import ScalarFunction

__all__ = ["Formula"]

_MOST_NODES = 10_000  # of a derivative
_MOST_DEPTH = 200


@dataclass(frozen=True)
class Formula:
    """A function of one real variable, typed as text and evaluated elementwise.

    Read one with :meth:`parse`. The text is parsed by a whitelist of names and never run as code.

    Attributes
    ----------
    tree
        What was typed, as a tree.
    variable
        The name of its variable.

    Examples
    --------
    >>> loss = Formula.parse("0.25*log(cosh(4*z))")
    >>> str(loss.derivative())
    'tanh(4*z)'
    """

    tree: Node
    variable: str

    @classmethod
    def parse(cls, text: str, *, most: int = parsing.MOST_CHARACTERS) -> Formula:
        """Read a formula of at most ``most`` characters.

        Numbers, one variable (``z``, or else ``t``, ``r``, ``x`` or ``m``), ``pi``, ``e``,
        ``+ - * / ^`` (or ``**``), parentheses, ``|...|`` and the functions abs, atan, clip, cos,
        cosh, exp, expm1, log, log1p, logcosh, max, min, relu, sigmoid, sign, sin, sinh, softplus,
        sqrt, step, tan and tanh. Exponents are numbers from -16 to 16.

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

    def to_text(self) -> str:
        """The same as :attr:`text`."""
        return self.text

    def to_latex(self) -> str:
        """For a page that sets mathematics."""
        return printing.latex(self.tree, self.variable)

    def __call__(self, z: Tensor) -> Tensor:
        """The values at z, in its dtype; differentiable by autograd."""
        if isinstance(z, Tensor) and not z.is_floating_point():
            raise DtypeError(f"a formula is evaluated in floating point, got {z.dtype}")
        return evaluate(self._canonical, z)

    def derivative(self) -> Formula:
        """d/dz, by the rules; at a kink the mean of the slopes on either side."""
        tree = derivative(self._canonical)
        if tree.size > _MOST_NODES or tree.depth > _MOST_DEPTH:
            raise FormulaError(f"the derivative of {self.text[:60]} is too long; shorten it")
        return Formula(tree, self.variable)

    @cached_property
    def _canonical(self) -> Node:
        return canonical(self.tree)

    @property
    def function(self) -> ScalarFunction:
        """For a look-up table: what is known of it is worked out once its range is."""
        return ScalarFunction(self, self.text, kinks=None)

    def loss(self) -> Loss:
        """The loss l(z) of the residual z = w.x - y that the formula is: l' is looked up."""
        return Loss(None, "residual", self.derivative().function)
