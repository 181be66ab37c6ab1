"""What the page offers: the library's algorithms, from their records, and a few of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from iceform import Formula
from iceform.expressions import Loss, loss_named
from iceform_estimators.algorithms import (
    EstimationAlgorithm,
    KernelRegression,
    LinearModel,
    Option,
    kinds,
)
from iceform_estimators.machine import Scaling, Source
from iceform_estimators.tuning import PENALTY_SLIDER

MOST_POINTS = 500  # on the board
SHARES = (0.1, 0.5, 0.9)  # quantiles and expectiles that have tables
FORMULAS = ("sqrt(z^2 + 0.01)", "log(cosh(4*z))/4", "softplus(z) - z/2", "z^2/2")
ROUNDED = 0.1  # width of a rounded corner, on a board of height 2
_TASKS = {"regression": "curve", "classification": "classes", "decomposition": "shape"}
_PENALTY = Option("alpha", "The penalty's weight.", float, 0.01, low=0, slider=PENALTY_SLIDER)


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
class CatalogueEntry:
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
    make: Callable[..., EstimationAlgorithm]
    typed: bool = False

    @classmethod
    def of(cls, kind: type[EstimationAlgorithm]) -> CatalogueEntry:
        """From a record."""
        options = kind.options()
        sliders = {n: o for n, o in options.items() if o.slider is not None}
        make = lambda formula, **given: kind(**given)  # noqa: E731
        without = [n for n in options.keys() - sliders if f"{n} |w|" in kind.objective]
        objective = "; ".join([kind.objective, *(f"{n} = {options[n].default:g}" for n in without)])
        return cls(kind.name, kind.title, kind.says, objective, _TASKS[kind.task], sliders, make)

    def algorithm(self, formula: str = FORMULAS[0], **chosen: float) -> EstimationAlgorithm:
        """With the settings that were chosen, and where sliders start for the others."""
        given = {name: one.kind(_start_of(one)) for name, one in self.sliders.items()}
        given |= {name: self.sliders[name].kind(value) for name, value in chosen.items()}
        return self.make(formula, **given)

    @property
    def linear(self) -> bool:
        """Whether its features are polynomials."""
        return isinstance(self.algorithm(), LinearModel)

    @property
    def descends(self) -> bool:
        """Whether it is a linear model found by the library's own loop, step by step."""
        made = self.algorithm()
        usual = isinstance(made, LinearModel) and type(made).solve is LinearModel.solve
        whole = getattr(type(made), "problem_at", None) is LinearModel.problem_at
        return usual and whole and not hasattr(made, "iterates")


def _start_of(one: Option) -> float:
    """Where a slider stands first: the default, or the middle of what it offers."""
    assert one.slider is not None
    low, high = one.slider
    if isinstance(one.default, int | float) and low <= one.default <= high:
        return float(one.default)
    middle = float((low * high) ** 0.5) if low > 0 else float(low)
    return float(math.ceil(middle)) if one.kind is int else middle


def _own() -> list[CatalogueEntry]:
    """Entries of the board alone: losses with rounded corners, a typed loss, a vote by kernel."""
    absolute = loss_named("absolute", width=ROUNDED)
    hinge = loss_named("hinge", width=ROUNDED)
    gamma = KernelRegression.options()["gamma"]
    return [
        CatalogueEntry(
            "absolute", "Least absolute deviations",
            "The curve through the median, with a rounded corner.",
            "min mean |f(x) − y| + α/2 |w|²", "curve", {"alpha": _PENALTY},
            lambda formula, alpha: BoardModel(absolute, alpha),
        ),
        CatalogueEntry(
            "custom", "Your own loss", "Any loss of the residual z = f(x) − y that you can type.",
            "min mean l(f(x) − y) + α/2 |w|²", "curve", {"alpha": _PENALTY},
            lambda formula, alpha: BoardModel(_typed(formula), alpha), typed=True,
        ),
        CatalogueEntry(
            "hinge", "Support vectors, hinge",
            "A street between the groups by the hinge, its corner rounded.",
            "min mean max(0, 1 − s f) + α/2 |w|²", "classes", {"alpha": _PENALTY},
            lambda formula, alpha: BoardModel(hinge, alpha),
        ),
        CatalogueEntry(
            "kernel-classes", "Kernel classifier",
            "The share of the second group around, weighted by distance.",
            "Σ e^(−γ|p − pᵢ|²) gᵢ / Σ e^(−γ|p − pᵢ|²)", "classes", {"gamma": gamma},
            lambda formula, gamma: KernelRegression(gamma),
        ),
    ]  # fmt: skip


@cache
def entries() -> Mapping[str, CatalogueEntry]:
    """Everything that the page offers, by name."""
    # The board draws x.w + b, and its heights are no counts.
    drawn = [kind for kind in kinds() if getattr(kind, "response", None) is None]
    made = [*(CatalogueEntry.of(kind) for kind in drawn), *_own()]
    order = list(_TASKS.values())
    made.sort(key=lambda entry: order.index(entry.task))
    return MappingProxyType({entry.name: entry for entry in made})


def algorithms() -> list[dict[str, Any]]:
    """The list for the page."""
    return [
        {
            "name": name, "title": entry.title, "task": entry.task, "says": entry.says,
            "objective": entry.objective, "typed": entry.typed, "linear": entry.linear,
            "descends": entry.descends, "sliders": [_slider(s) for s in entry.sliders.values()],
        }
        for name, entry in entries().items()
    ]  # fmt: skip


def _slider(one: Option) -> dict[str, Any]:
    """A setting: its range, and whether it goes by whole numbers or powers of ten.

    ``zero`` says that 0 lies left of the lowest power; ``choices`` are all that there is, where the
    page has tables of those alone.
    """
    assert one.slider is not None
    low, high = one.slider
    return {
        "name": one.name, "title": one.says.rstrip("."), "low": low, "high": high,
        "start": _start_of(one), "whole": one.kind is int,
        "powers": one.kind is float and low > 0 and high >= 100 * low,
        "zero": one.low == 0 and "low" not in one.open,
        "choices": SHARES if one.name in ("quantile", "expectile") else None,
    }  # fmt: skip


@cache
def _typed(text: str) -> Loss:
    """One loss object for each text, so that its tables are computed once."""
    return Formula.parse(text).loss()
