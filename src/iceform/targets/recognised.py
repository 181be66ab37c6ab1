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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise

from torch import Tensor

from iceform.computer.graph import Graph, refuse, run
from iceform.computer.virtual import compose
from iceform.errors import TargetError
from iceform.expressions.formulas import Formula, trees
from iceform.expressions.formulas.polynomials import polynomial
from iceform.program import Node, SourceLine

Combination = dict[tuple[str, int], Fraction]  # of H^k g, by (g, k)
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
            return replace(_ONE, kind="row") if node.attr == "x" else _LABEL
        if graph.parameters[node.attr].vector:
            raise forms.no(f"the parameter {node.attr} is a vector", node.place)
        return _number(Fraction(float(parameters[node.attr][0])))

    if any(loop.count is None for loop in graph.block.loops()):
        raise forms.no("it has a loop that ends when the data say so", None)
    answer, *more = run(graph, forms, start).values()
    if more or answer.kind != "state" or not forms.asked:
        raise forms.no("its answer is not one vector of coefficients", graph.place)
    return forms.descent([*forms.asked, answer.p])


@dataclass(frozen=True)
class _DescentForm:
    """One of the table's: x . p + label y + one; with ``f``, that function of it times so much.

    A row is x times that, products are x * p, a state is p itself; a number is a residual of which
    nothing but ``one`` is left.
    """

    kind: str
    p: Combination = field(default_factory=dict)
    label: Fraction = Fraction(0)
    one: Fraction = Fraction(0)
    f: trees.Node | None = None
    times: Fraction = Fraction(1)

    @property
    def constant(self) -> bool:
        return self.f is None and not self.p and not self.label

    @property
    def number(self) -> Fraction | None:
        return self.one if self.kind == "residual" and self.constant else None

    def scaled(self, factor: Fraction) -> _DescentForm:
        if self.f is not None:
            return replace(self, times=self.times * factor)
        return _DescentForm(
            self.kind, _times(self.p, factor), self.label * factor, self.one * factor
        )


_ONE = _DescentForm("residual", one=Fraction(1))
_LABEL = _DescentForm("residual", label=Fraction(1))


def _number(value: Fraction) -> _DescentForm:
    return _DescentForm("residual", one=value)


class _DescentForms:
    """The arithmetic, and the points at which gradients were asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[Combination] = []
        self.bent: list[tuple[trees.Node, Combination]] = []

    def no(self, why: str, place: SourceLine | None) -> TargetError:
        """The refusal, with the line that asks for it."""
        return TargetError(str(refuse(f"{self.name} is not recognised as descent: {why}", place)))

    # ----------------------------------------------------------------------------- as arithmetic

    def constant(self, node: Node) -> _DescentForm:
        if node.op != "constant":
            raise self.no("it treats components or samples apart", node.place)
        value = Fraction(float(node.attr))
        is_zero_vector = node.width is not None and not value
        return _DescentForm("state") if is_zero_vector else _number(value)

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
        if a.kind != b.kind or a.f is not None or b.f is not None:
            return None
        return _DescentForm(a.kind, _sum(a.p, b.p), a.label + b.label, a.one + b.one)

    def _multiply(self, node: Node, a: _DescentForm, b: _DescentForm) -> _DescentForm | None:
        becomes = {"state": "products", "residual": "row"}
        for one, other in ((a, b), (b, a)):
            if one.number is not None:
                return other.scaled(one.number)
            if one.kind == "row" and one.constant and other.kind in becomes:
                return replace(other.scaled(one.one), kind=becomes[other.kind])
        return None

    def _sum(self, node: Node, a: _DescentForm) -> _DescentForm | None:
        return replace(a, kind="residual") if a.kind == "products" else None

    def _mean(self, node: Node, a: _DescentForm) -> _DescentForm | None:
        if a.kind != "row":
            return None
        if a.f is not None:
            return self._average(node, a, a.f)
        if a.one:
            raise self.no("it takes the mean of x, which is no part of the gradient", node.place)
        if a.p or not self.asked:
            self._ask(_times(a.p, -1 / a.label) if a.label else a.p)
        return _DescentForm("state", _sum(_curved(a.p), {_B: a.label}))

    def _average(self, node: Node, row: _DescentForm, f: trees.Node) -> _DescentForm:
        if not row.label or row.one:
            raise self.no("f is not of w.x - y", node.place)
        w = _times(row.p, -1 / row.label)
        self._ask(w)
        self.bent.append((compose(f, _multiple(-row.label, trees.Variable())), w))
        return _DescentForm("state", {(f"f{len(self.bent) - 1}", 0): row.times})

    def _ask(self, w: Combination) -> None:
        if not self.asked or self.asked[-1] != w:
            self.asked.append(w)

    def _apply(self, node: Node, a: _DescentForm) -> _DescentForm | None:
        if a.number is not None:
            value = polynomial(compose(node.attr, trees.Number(a.number)))
            if value is not None:
                return _number(sum(value, Fraction(0)))
            if not node.samples:
                return None
        line = polynomial(node.attr)
        if line is not None and len(line) < 3:
            shift, slope = (*line, Fraction(0), Fraction(0))[:2]
            if not shift:
                return a.scaled(slope)
            if a.kind == "residual" and a.f is None:
                return self._add(node, a.scaled(slope), _number(shift))
        if a.kind != "residual":
            return None
        f = node.attr if a.f is None else compose(node.attr, _multiple(a.times, a.f))
        return replace(a, f=f, times=Fraction(1))

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
        return _sum(_curved(w), {_B: Fraction(-1)})

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


def _curved(a: Combination) -> Combination:
    """H times a combination."""
    return {(g, k + 1): c for (g, k), c in a.items()}


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
