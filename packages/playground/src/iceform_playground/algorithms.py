"""The playground's algorithms: those of the library, from their records, and a few of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from iceform import Formula
from iceform.errors import ProgramError
from iceform.functions import Loss, loss_named
from iceform_estimators.algorithms import Algorithm, KernelRegression, LinearModel, Option, kinds
from iceform_estimators.machine import Scaling, Source
from iceform_playground import questions as asked
from iceform_playground.answers import OptionAnswer, SliderAnswer

_ROUNDED = 0.1  # width of a rounded corner, on a board of height 2
_PLANE_DEGREE = 3  # of the polynomials in two variables
_TASKS = {"regression": "curve", "classification": "classes", "decomposition": "shape"}
_PENALTY = Option("alpha", "The penalty's weight.", float, 0.01, low=0, slider=(1e-5, 10))


@dataclass(frozen=True)
class BoardModel(LinearModel):
    """Any loss on the board's own units, with (penalty/2) ||coef||^2 beside the mean."""

    given: Loss = field(default_factory=lambda: loss_named("squared"))
    penalty: float = 0.0

    def loss(self) -> Loss:
        return self.given

    def l2(self, rows: float) -> float:
        return self.penalty

    def scaling(self, source: Source) -> Scaling:
        """Labels are centred, but keep their unit: the board is 2 high, and formulas are in it."""
        return replace(super().scaling(source), size=1.0)


@dataclass(frozen=True, eq=False)
class Entry:
    """An algorithm of the playground.

    Attributes
    ----------
    name, title, says, objective
        As the page lists it.
    task
        "curve" (y from x), "classes" (the group from x and y) or "shape" (neither).
    sliders
        Its own settings.
    make
        The algorithm with settings of these names, and the formula that was typed.
    typed
        Whether it takes a formula.
    """

    name: str
    title: str
    says: str
    objective: str
    task: str
    sliders: Mapping[str, Option]
    make: Callable[..., Algorithm]
    typed: bool = False

    @classmethod
    def of(cls, kind: type[Algorithm]) -> Entry:
        """From a record."""
        options = kind.options()
        sliders = {n: o for n, o in options.items() if o.slider is not None}
        make = lambda formula, **given: kind(**given)  # noqa: E731
        without = [n for n in options.keys() - sliders if f"{n} |w|" in kind.objective]
        objective = "; ".join([kind.objective, *(f"{n} = {options[n].default:g}" for n in without)])
        return cls(kind.name, kind.title, kind.says, objective, _TASKS[kind.task], sliders, make)

    def algorithm(self, chosen: asked.Loss) -> Algorithm:
        """With the settings that were chosen, and defaults for the others."""
        for name, value in chosen.options.items():
            if name not in self.sliders:
                raise ProgramError(
                    f"{self.title} has no {name}; it has {', '.join(self.sliders) or 'no settings'}"
                )
            self.sliders[name].check(value)
        given = {n: o.kind(start_of(o)) for n, o in self.sliders.items()}
        given |= {n: self.sliders[n].kind(v) for n, v in chosen.options.items()}
        return self.make(chosen.formula, **given)

    @property
    def linear(self) -> bool:
        """Whether its features are polynomials."""
        return isinstance(self.algorithm(asked.Loss(algorithm=self.name)), LinearModel)

    @property
    def descends(self) -> bool:
        """Whether it is a linear model found by steps that can be followed one by one."""
        return descends(self.algorithm(asked.Loss(algorithm=self.name)))


def descends(algorithm: Algorithm) -> bool:
    """Whether the loop is the library's own: descent, or descent with thresholds."""
    usual = (
        type(algorithm).solve is LinearModel.solve if isinstance(algorithm, LinearModel) else False
    )
    whole = getattr(type(algorithm), "problem_at", None) is LinearModel.problem_at
    return usual and whole and not hasattr(algorithm, "iterates")


def start_of(one: Option) -> float:
    """Where a slider stands first: the default, or the middle of what it offers."""
    assert one.slider is not None
    low, high = one.slider
    if isinstance(one.default, int | float) and low <= one.default <= high:
        return float(one.default)
    middle = float((low * high) ** 0.5) if low > 0 else float(low)
    return float(math.ceil(middle)) if one.kind is int else middle


def _own() -> list[Entry]:
    """What only the board has: losses with rounded corners, a typed one, a vote by kernel."""
    absolute = loss_named("absolute", width=_ROUNDED)
    hinge = loss_named("hinge", width=_ROUNDED)
    gamma = KernelRegression.options()["gamma"]
    return [
        Entry(
            "absolute", "Least absolute deviations",
            "The curve through the median, with a rounded corner.",
            "min mean |f(x) − y| + α/2 |w|²", "curve", {"alpha": _PENALTY},
            lambda formula, alpha: BoardModel(absolute, alpha),
        ),
        Entry(
            "custom", "Your own loss", "Any loss of the residual z = f(x) − y that you can type.",
            "min mean l(f(x) − y) + α/2 |w|²", "curve", {"alpha": _PENALTY},
            lambda formula, alpha: BoardModel(_typed(formula), alpha), typed=True,
        ),
        Entry(
            "hinge", "Support vectors, hinge",
            "A street between the groups by the hinge, its corner rounded.",
            "min mean max(0, 1 − s f) + α/2 |w|²", "classes", {"alpha": _PENALTY},
            lambda formula, alpha: BoardModel(hinge, alpha),
        ),
        Entry(
            "kernel-classes", "Kernel classifier",
            "The share of the second group around, weighted by distance.",
            "Σ e^(−γ|p − pᵢ|²) gᵢ / Σ e^(−γ|p − pᵢ|²)", "classes", {"gamma": gamma},
            lambda formula, gamma: KernelRegression(gamma),
        ),
    ]  # fmt: skip


@lru_cache(maxsize=1)
def _entries(count: int) -> Mapping[str, Entry]:
    # The board draws x.w + b, and its heights are no counts.
    drawn = [kind for kind in kinds() if getattr(kind, "response", None) is None]
    found = [*(Entry.of(kind) for kind in drawn), *_own()]
    order = list(_TASKS.values())
    found.sort(key=lambda entry: order.index(entry.task))
    return MappingProxyType({entry.name: entry for entry in found})


def entries() -> Mapping[str, Entry]:
    """Everything that the page offers, by name."""
    return _entries(len(Algorithm.kinds))


def entry_named(name: str) -> Entry:
    """The entry of this name."""
    if name not in entries():
        raise ProgramError(f"no algorithm is called {name!r}; there are {', '.join(entries())}")
    return entries()[name]


def options() -> list[OptionAnswer]:
    """The list for the page."""
    return [
        OptionAnswer(
            name=name,
            title=entry.title,
            task=entry.task,
            says=entry.says,
            objective=entry.objective,
            sliders=[_slider(one) for one in entry.sliders.values()],
            typed=entry.typed,
            linear=entry.linear,
            descends=entry.descends,
        )
        for name, entry in entries().items()
    ]


def _slider(one: Option) -> SliderAnswer:
    assert one.slider is not None
    low, high = one.slider
    return SliderAnswer(
        name=one.name,
        title=one.says.rstrip("."),
        low=low,
        high=high,
        start=start_of(one),
        whole=one.kind is int,
        powers=one.kind is float and low > 0 and high / low >= _DECADES,
        zero=one.low == 0 and "low" not in one.open,
    )


_DECADES = 100.0  # a slider that spans more than this goes by powers of ten


def loss_of(chosen: asked.Loss) -> Loss:
    """The loss whose derivative is looked up."""
    entry = entry_named(chosen.algorithm)
    algorithm = entry.algorithm(chosen)
    if not isinstance(algorithm, LinearModel) or hasattr(algorithm, "iterates"):
        raise ProgramError(
            f"{entry.title} looks no loss up: it averages samples, or counts mistakes"
        )
    return algorithm.loss()


@lru_cache(maxsize=64)
def _typed(text: str) -> Loss:
    """The same object for the same text, so that tables are remembered."""
    return Formula.parse(text).loss()


def labels_of(points: Tensor, groups: Tensor, algorithm: Any, task: str) -> Tensor:
    """What an algorithm takes as labels, shape (n,)."""
    if task == "curve":
        return points[:, 1].clone()
    margin = isinstance(algorithm, LinearModel) and algorithm.loss().kind == "margin"
    return 2 * groups - 1 if margin else groups


def features_of(points: Tensor, task: str, degree: int) -> Tensor:
    """Legendre polynomials P_1(x), P_2(x), ..., or P_a(x) P_b(y) by total degree; (n, features).

    On points that are spread evenly they are nearly orthogonal, so that plain descent gets on.
    """
    x = legendre(points[:, 0], degree)
    if task == "curve":
        return torch.stack(x[1:], 1)
    y = legendre(points[:, 1], degree)
    most = min(degree, _PLANE_DEGREE)
    return torch.stack(
        [x[total - j] * y[j] for total in range(1, most + 1) for j in range(total + 1)], 1
    )


def legendre(x: Tensor, degree: int) -> list[Tensor]:
    """P_0, ..., P_degree by (j + 1) P_{j+1} = (2 j + 1) x P_j - j P_{j-1}."""
    values = [torch.ones_like(x), x]
    for j in range(1, degree):
        values.append(((2 * j + 1) * x * values[j] - j * values[j - 1]) / (j + 1))
    return values[: degree + 1]
