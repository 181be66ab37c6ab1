r"""The exact answer of an algorithm on given data, enclosed in ball arithmetic.

Data, options and answers are floating-point numbers, so known exactly; only the answer that is
meant needs enclosing, and nothing of how the machine found its own is looked at.

**Optima.** With g the gradient of a convex objective, v near its zero, V a box around v and J an
enclosure of the slopes of g on V, kinks included: where every entry of :math:`J^{-1} g(v)` is
smaller than V is wide, g has one zero in V, within :math:`v - J^{-1} g(v)` (Newton's method for
intervals). It is the optimum, since the objective is convex, and the only one. Coefficients that an
absolute value holds at 0 are checked by the slope beside it, a quantile's line by the dual of its
linear program in exact fractions.

**Dependent features.** Where coefficients are not unique those of independent columns, found by
exact elimination, give the same fitted values, and these are compared.

**Others** are replayed: averages, retrieval, steps of descent, passes of a perceptron.
"""

from iceform.certificates import Result
from iceform_estimators.algorithms.record import set_exact
from iceform_estimators.algorithms.verification import corners, lines, replays  # noqa: F401  they say of what
from iceform_estimators.algorithms.verification.balls import Pairs, exact_of
from iceform_estimators.machine.machine import Given, Program


def enclosed(program: Program, found: Result, given: Given) -> Pairs:
    """What was found beside what is exact, one pair for each number that the certificate covers."""
    return exact_of(program, found, given)


set_exact(enclosed)
