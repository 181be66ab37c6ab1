r"""Descent, recognised in a traced program: which steps, penalty and momentum it takes.

The graph is run once more, in an arithmetic of forms. With H = mean(x x') and b = mean(x y), what a
program of least squares makes of the samples is

===========  =====================================================================================
number       alpha
residual     x . p + beta y + alpha, one a sample
products     x * p, elementwise
row          x times a residual
state        p, a combination of H^k b and of averages mean(f(z_i) x_i), rational coefficients
===========  =====================================================================================

and mean(x (x . p + beta y)) = H p + beta b. Coefficients are rational and exact, since parameters
are float64 numbers. Anything else (a product of residuals, a mean of x alone, a maximum) is no step
of descent, and the line that asks for it is named.

Every p that a gradient is asked at is an iterate, and so is the answer. They have to satisfy, as
forms,

.. math:: w_{t+1} = w_t + \beta (w_t - w_{t-1}) - \eta_t (g(w_t) + \lambda w_t),\qquad
    g(w) = H w - b \ \text{or}\ \mathrm{mean}(f(w \cdot x_i - y_i) x_i),

from w_0 = 0. H^k b are independent for some data, so for least squares a program that satisfies
this for all data is found, whatever way it is written.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from torch import Tensor

from iceform.computer.graph import Graph, run
from iceform.computer.virtual import compose
from iceform.errors import TargetError
from iceform.expressions.formulas import Formula, trees
from iceform.program import Node, SourceLine

Combination = dict[tuple[str, int], Fraction]  # of H^k g, by (g, k)
Line = tuple[Fraction, Fraction]  # shift and slope
_B = ("b", 0)
_PASSED = ("bounded", "stored", "spread")


@dataclass(frozen=True)
class RecognisedDescent:
    """What a program does to its data.

    Attributes
    ----------
    steps
        eta_t, exactly.
    penalty, momentum
        lambda and beta, exactly.
    f
        Of the residual; None where it is the residual itself.
    """

    steps: tuple[Fraction, ...]
    penalty: Fraction
    momentum: Fraction
    f: str | None = None


def recognised(graph: Graph, parameters: Mapping[str, Tensor]) -> RecognisedDescent:
    """The descent that an algorithm is at these parameters; refused where it is none."""
    forms = _DescentForms(graph.name)

    def start(node: Node) -> _DescentForm:
        if node.op == "data":
            return _DescentForm(row=_ONE) if node.attr == "x" else _DescentForm(residual=_LABEL)
        if graph.parameters[node.attr].vector:
            raise forms.no(f"the parameter {node.attr} is a vector", node.place)
        return _number(Fraction(float(parameters[node.attr][0])))

    if any(loop.count is None for loop in graph.block.loops()):
        raise forms.no("it has a loop that ends when the data say so", None)
    answer, *more = run(graph, forms, start).values()
    if more or answer.state is None or not forms.asked:
        raise forms.no("its answer is not one vector of coefficients", graph.place)
    return forms.descent([*forms.asked, answer.state])


@dataclass(frozen=True)
class _Residual:
    """x . p + label y + one; with ``f``, that function of it, ``times`` so much."""

    p: Combination = field(default_factory=dict)
    label: Fraction = Fraction(0)
    one: Fraction = Fraction(0)
    f: trees.Node | None = None
    times: Fraction = Fraction(1)

    @property
    def constant(self) -> bool:
        return self.f is None and not self.p and not self.label

    def scaled(self, factor: Fraction) -> _Residual:
        if self.f is not None:
            return _Residual(self.p, self.label, self.one, self.f, self.times * factor)
        return _Residual(_times(self.p, factor), self.label * factor, self.one * factor)


_ONE, _LABEL = _Residual(one=Fraction(1)), _Residual(label=Fraction(1))


@dataclass(frozen=True)
class _DescentForm:
    """One of the five; a number is a constant residual."""

    residual: _Residual | None = None
    row: _Residual | None = None
    products: Combination | None = None
    state: Combination | None = None

    @property
    def number(self) -> Fraction | None:
        found = self.residual
        return found.one if found is not None and found.constant else None

    def scaled(self, factor: Fraction) -> _DescentForm:
        return _DescentForm(
            None if self.residual is None else self.residual.scaled(factor),
            None if self.row is None else self.row.scaled(factor),
            None if self.products is None else _times(self.products, factor),
            None if self.state is None else _times(self.state, factor),
        )


def _number(value: Fraction) -> _DescentForm:
    return _DescentForm(residual=_Residual(one=value))


class _DescentForms:
    """The arithmetic, and the points at which gradients were asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[Combination] = []
        self.bent: list[tuple[trees.Node, Combination]] = []

    def no(self, why: str, place: SourceLine | None) -> TargetError:
        """The refusal, with the line that asks for it."""
        where = ""
        if place is not None:
            source = linecache.getline(place.file, place.line).strip()
            where = f'\n  in "{place.file}", line {place.line}:\n    {source}'
        return TargetError(f"{self.name} is not recognised as descent: {why}{where}")

    # ----------------------------------------------------------------------------- as arithmetic

    def constant(self, node: Node) -> _DescentForm:
        if node.op != "constant":
            raise self.no("it treats components or samples apart", node.place)
        value = Fraction(float(node.attr))
        return _DescentForm(state={}) if node.width is not None and not value else _number(value)

    def compute(self, node: Node, args: list[_DescentForm]) -> _DescentForm:
        if not args:
            return self.constant(node)
        if node.op in _PASSED:
            return args[0]
        known: dict[str, Callable[..., _DescentForm | None]] = {
            "add": self._add, "mul": self._multiply, "sum": self._sum, "mean": self._mean,
            "apply": self._apply,
        }  # fmt: skip
        found = known.get(node.op)
        value = None if found is None else found(node, *args)
        if value is None:
            raise self.no(f"{node.op} of these is no part of a gradient step", node.place)
        return value

    def positive(self, value: _DescentForm, where: SourceLine | None) -> bool:
        raise self.no("the data decide", where)

    def whole(self, value: _DescentForm) -> int:
        turns = value.number
        if turns is None or turns.denominator != 1:
            raise self.no("the number of turns is no whole number", None)
        return int(turns)

    def _add(self, node: Node, a: _DescentForm, b: _DescentForm) -> _DescentForm | None:
        for one, other in ((a, b), (b, a)):
            if one.number == 0:
                return other
        if a.state is not None and b.state is not None:
            return _DescentForm(state=_sum(a.state, b.state))
        if a.products is not None and b.products is not None:
            return _DescentForm(products=_sum(a.products, b.products))
        if a.row is not None and b.row is not None:
            row = _added(a.row, b.row)
            return None if row is None else _DescentForm(row=row)
        if a.residual is not None and b.residual is not None:
            both = _added(a.residual, b.residual)
            return None if both is None else _DescentForm(residual=both)
        return None

    def _multiply(self, node: Node, a: _DescentForm, b: _DescentForm) -> _DescentForm | None:
        for one, other in ((a, b), (b, a)):
            if one.number is not None:
                return other.scaled(one.number)
            if one.row is not None and one.row.constant:
                if other.state is not None:
                    return _DescentForm(products=_times(other.state, one.row.one))
                if other.residual is not None:
                    return _DescentForm(row=other.residual.scaled(one.row.one))
        return None

    def _sum(self, node: Node, a: _DescentForm) -> _DescentForm | None:
        return None if a.products is None else _DescentForm(residual=_Residual(a.products))

    def _mean(self, node: Node, a: _DescentForm) -> _DescentForm | None:
        if a.row is None:
            return None
        if a.row.f is not None:
            return self._average(node, a.row, a.row.f)
        if a.row.one:
            raise self.no("it takes the mean of x, which is no part of the gradient", node.place)
        p, label = a.row.p, a.row.label
        if p or not self.asked:
            self._ask(_times(p, -1 / label) if label else p)
        return _DescentForm(state=_sum({(g, k + 1): c for (g, k), c in p.items()}, {_B: label}))

    def _average(self, node: Node, row: _Residual, f: trees.Node) -> _DescentForm:
        if not row.label or row.one:
            raise self.no("f is not of w.x - y", node.place)
        w = _times(row.p, -1 / row.label)
        self._ask(w)
        self.bent.append((compose(f, _multiple(-row.label, trees.Variable())), w))
        return _DescentForm(state={(f"f{len(self.bent) - 1}", 0): row.times})

    def _ask(self, w: Combination) -> None:
        if not self.asked or self.asked[-1] != w:
            self.asked.append(w)

    def _apply(self, node: Node, a: _DescentForm) -> _DescentForm | None:
        if a.number is not None:
            value = _affine(compose(node.attr, trees.Number(a.number)))
            if value is not None:
                return _number(value[0])
            if not node.samples:
                return None
        line = _affine(node.attr)
        if line is not None:
            shift, slope = line
            if not shift:
                return a.scaled(slope)
            if a.residual is not None and a.residual.f is None:
                return _DescentForm(residual=_added(a.residual.scaled(slope), _Residual(one=shift)))
        r = a.residual
        if r is None:
            return None
        f = node.attr if r.f is None else compose(node.attr, _multiple(r.times, r.f))
        return _DescentForm(residual=_Residual(r.p, r.label, r.one, f))

    # ----------------------------------------------------------------------------- the recurrence

    def descent(self, path: list[Combination]) -> RecognisedDescent:
        """The steps that lead from each iterate to the next."""
        if path[0]:
            raise self.no("it does not start at 0", None)
        f = self._function(path)
        moves = [_sum(b, _times(a, Fraction(-1))) for a, b in pairwise(path)]
        steps, rests = [], []
        for t, (w, move) in enumerate(zip(path, moves, strict=False)):
            gradient = self._gradient(t, w)
            eta = self._step(t, w, move)
            steps.append(eta)
            before = moves[t - 1] if t else {}
            rests.append((_sum(move, _times(gradient, eta)), before, _times(w, -eta)))
        momentum, penalty = _solved(rests)
        for t, (rest, before, shrunk) in enumerate(rests):
            if rest != _sum(_times(before, momentum), _times(shrunk, penalty)):
                raise self.no(
                    f"step {t + 1} is not w + momentum (w - before) - lr (gradient + penalty w), "
                    "with one momentum and one penalty for all steps, the gradient taken at w",
                    None,
                )
        return RecognisedDescent(tuple(steps), penalty, momentum, f)

    def _gradient(self, t: int, w: Combination) -> Combination:
        if self.bent:
            return {(f"f{t}", 0): Fraction(1)}
        return _sum({(g, k + 1): c for (g, k), c in w.items()}, {_B: Fraction(-1)})

    def _function(self, path: list[Combination]) -> str | None:
        if not self.bent:
            return None
        used = {f for f, _ in self.bent}
        if len(used) != 1 or [w for _, w in self.bent] != path[:-1]:
            raise self.no("f is not the same in every step, or not taken at w", None)
        return Formula(used.pop(), "z").text

    def _step(self, t: int, w: Combination, move: Combination) -> Fraction:
        """eta: what the gradient's leading term is multiplied by."""
        if self.bent:
            eta = -move.get((f"f{t}", 0), Fraction(0))
        else:
            leading = max((k for _, k in w), default=-1)
            key = ("b", leading + 1)
            held = w[("b", leading)] if w else Fraction(-1)
            eta = -move.get(key, Fraction(0)) / held
        if eta <= 0:
            raise self.no(f"step {t + 1} does not go down the gradient", None)
        return eta


# --------------------------------------------------------------------------------------- algebra


def _sum(a: Combination, b: Combination) -> Combination:
    out = dict(a)
    for key, c in b.items():
        out[key] = out.get(key, Fraction(0)) + c
    return {key: c for key, c in out.items() if c}


def _times(a: Combination, factor: Fraction) -> Combination:
    return {key: factor * c for key, c in a.items()} if factor else {}


def _added(a: _Residual, b: _Residual) -> _Residual | None:
    if a.f is None and b.f is None:
        return _Residual(_sum(a.p, b.p), a.label + b.label, a.one + b.one)
    return None


def _solved(
    rests: Iterable[tuple[Combination, Combination, Combination]],
) -> tuple[Fraction, Fraction]:
    """(momentum, penalty) with rest = momentum before + penalty shrunk; the penalty alone first."""
    rows = [
        (before.get(key, Fraction(0)), shrunk.get(key, Fraction(0)), rest.get(key, Fraction(0)))
        for rest, before, shrunk in rests
        for key in {**rest, **before, **shrunk}
    ]
    rows = [row for row in rows if row[0] or row[1]]
    for i, (a, b, c) in enumerate(rows):
        for p, q, r in rows[:i]:
            determinant = a * q - b * p
            if determinant:
                return (c * q - b * r) / determinant, (a * r - c * p) / determinant
    for a, b, c in rows:  # all say the same
        if b and c / b >= 0:
            return Fraction(0), c / b
        if a:
            return c / a, Fraction(0)
    return Fraction(0), Fraction(0)


def _multiple(factor: Fraction, tree: trees.Node) -> trees.Node:
    return tree if factor == 1 else trees.Operation("*", (trees.Number(factor), tree))


def _affine(tree: trees.Node) -> Line | None:
    """(shift, slope) of a function that is a line."""
    if isinstance(tree, trees.Number):
        return tree.value, Fraction(0)
    if isinstance(tree, trees.Variable):
        return Fraction(0), Fraction(1)
    parts = [_affine(a) for a in tree.arguments]
    lines = [part for part in parts if part is not None]
    known = _LINES.get(tree.name)
    return None if known is None or len(lines) < len(parts) else known(*lines)


def _product(a: Line, b: Line) -> Line | None:
    return None if a[1] and b[1] else (a[0] * b[0], a[0] * b[1] + b[0] * a[1])


def _quotient(a: Line, b: Line) -> Line | None:
    return None if b[1] or not b[0] else (a[0] / b[0], a[1] / b[0])


def _power(a: Line, b: Line) -> Line | None:
    whole = not a[1] and not b[1] and b[0].denominator == 1
    return (a[0] ** int(b[0]), Fraction(0)) if whole and (a[0] or b[0] > 0) else None


_LINES: dict[str, Callable[..., Line | None]] = {
    "neg": lambda a: (-a[0], -a[1]),
    "+": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "-": lambda a, b: (a[0] - b[0], a[1] - b[1]),
    "*": _product,
    "/": _quotient,
    "^": _power,
}
