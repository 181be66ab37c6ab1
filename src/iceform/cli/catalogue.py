"""The library as data: every program that runs on a table, its options, and who else computes it.

Nothing is imported until a program is asked for, so that a list costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from iceform.errors import ProgramError

__all__ = ["ENTRIES", "OPTIONS", "Entry", "Option", "entry_named"]


@dataclass(frozen=True)
class Option:
    """A setting that programs may have, named as scikit-learn names it.

    Attributes
    ----------
    name
        As a parameter.
    says
        What it does.
    """

    name: str
    says: str

    @property
    def flag(self) -> str:
        """As on the command line."""
        return "--" + self.name.replace("_", "-")


OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        option.name: option
        for option in (
            Option("alpha", "The penalty's weight."),
            Option("l1_ratio", "Share of the absolute values in the penalty, 0 to 1."),
            Option("C", "The inverse of the penalty's weight."),
            Option("epsilon", "Where squares end, in units of the residuals' scale."),
            Option("quantile", "Which quantile, between 0 and 1."),
            Option("n_neighbors", "How many neighbours are averaged."),
            Option("gamma", "The kernel is exp(-gamma |x - x'|^2)."),
            Option("n_components", "How many components."),
            Option("tol", "Length of the last step, relative to the coefficients."),
            Option("max_passes", "Most passes of the frozen machine over the data."),
            Option("precondition", "whiten, diagonal or none."),
        )
    }
)

_LOOP = ("tol", "max_passes", "precondition")


@dataclass(frozen=True)
class Entry:
    """One program.

    Attributes
    ----------
    name, title
        As on the command line, and in print.
    task
        "regression", "classification" or "decomposition".
    says
        What it is, in one line.
    objective
        What it minimises or returns, in symbols.
    lookup
        What its prompts look up, in words.
    options
        Names in :data:`OPTIONS`.
    estimator
        Class in ``iceform.sklearn``; None where ``program`` is used.
    program
        Class in ``iceform.algorithms``.
    loss
        Name of the loss whose derivative is looked up; None for an average over samples.
    peer
        Dotted name of the class that computes the same elsewhere.
    peer_options
        What its parameters are called there, where the names differ, None where it has none.
    peer_settings
        Its other parameters: tolerances at which it is a reference.
    differs
        What the peer does differently; empty where it is the same problem.
    penalised
        Whether coefficients are determined however the columns depend on each other.
    """

    name: str
    title: str
    task: str
    says: str
    objective: str
    lookup: str
    options: tuple[str, ...]
    peer: str
    estimator: str | None = None
    program: str | None = None
    loss: str | None = None
    peer_options: Mapping[str, str | None] = field(default_factory=dict)
    peer_settings: Mapping[str, Any] = field(default_factory=dict)
    differs: str = ""
    penalised: bool = True

    @property
    def target(self) -> bool:
        """Whether it needs a target column."""
        return self.task != "decomposition"

    def check(self, given: Iterable[str]) -> None:
        """Refuse options that this program does not have."""
        for name in given:
            if name not in self.options:
                has = ", ".join(OPTIONS[o].flag for o in self.options)
                owners = ", ".join(e.name for e in ENTRIES.values() if name in e.options)
                raise ProgramError(
                    f"{self.name} has no {OPTIONS[name].flag}; it has {has} "
                    f"({OPTIONS[name].flag} belongs to {owners})"
                )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "task": self.task,
            "says": self.says,
            "objective": self.objective,
            "lookup": self.lookup,
            "options": [OPTIONS[name].flag for name in self.options],
            "estimator": self.estimator and f"iceform.sklearn.{self.estimator}",
            "program": self.program and f"iceform.algorithms.{self.program}",
            "scikit_learn": self.peer,
            "differs": self.differs or None,
        }


_EXACT = {"tol": 1e-12, "max_iter": 100_000}  # of a peer that iterates

ENTRIES: Mapping[str, Entry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Entry(
                "linear",
                "Least squares",
                "regression",
                "Least squares.",
                "min |Xw + b - y|^2",
                "the residual itself: a straight line",
                _LOOP,
                "sklearn.linear_model.LinearRegression",
                estimator="InContextLinearRegression",
                loss="squared",
                penalised=False,
            ),
            Entry(
                "ridge",
                "Ridge regression",
                "regression",
                "Least squares with small coefficients.",
                "min |Xw + b - y|^2 + alpha |w|^2",
                "the residual itself: a straight line",
                ("alpha", *_LOOP),
                "sklearn.linear_model.Ridge",
                estimator="InContextRidge",
                loss="squared",
            ),
            Entry(
                "lasso",
                "Lasso",
                "regression",
                "Least squares with few coefficients.",
                "min |Xw + b - y|^2 / 2n + alpha |w|_1",
                "the residual, and in a second prompt a clip: the soft threshold",
                ("alpha", *_LOOP),
                "sklearn.linear_model.Lasso",
                estimator="InContextLasso",
                loss="squared",
                peer_settings=_EXACT,
            ),
            Entry(
                "elastic-net",
                "Elastic net",
                "regression",
                "Least squares with few and small coefficients.",
                "min |Xw + b - y|^2 / 2n + alpha (r |w|_1 + (1 - r) |w|^2 / 2), r = l1_ratio",
                "the residual, and in a second prompt a clip: the soft threshold",
                ("alpha", "l1_ratio", *_LOOP),
                "sklearn.linear_model.ElasticNet",
                estimator="InContextElasticNet",
                loss="squared",
                peer_settings=_EXACT,
            ),
            Entry(
                "huber",
                "Huber regression",
                "regression",
                "A line that outliers do not pull.",
                "min sum_i (s + s H(r_i / s)) + alpha |w|^2, H a square up to epsilon",
                "a clip: the residual, but no more than epsilon scales",
                ("epsilon", "alpha", *_LOOP),
                "sklearn.linear_model.HuberRegressor",
                estimator="InContextHuberRegressor",
                loss="huber",
                peer_settings={"tol": 1e-10, "max_iter": 100_000},
            ),
            Entry(
                "quantile",
                "Quantile regression",
                "regression",
                "The line below which a share of the samples lies.",
                "min mean_i p(r_i), p the pinball loss with a rounded corner",
                "a smooth step from quantile - 1 to quantile",
                ("quantile", "alpha", *_LOOP),
                "sklearn.linear_model.QuantileRegressor",
                program="Quantile",
                loss="quantile",
                peer_options={"alpha": None},
                peer_settings={"alpha": 0.0},
                differs="its corner is sharp and its penalty is |w|_1",
                penalised=False,
            ),
            Entry(
                "poisson",
                "Poisson regression",
                "regression",
                "Counts.",
                "min mean_i (e^z_i - y_i z_i) + alpha |w|^2 / 2, z = Xw + b",
                "the exponential",
                ("alpha", *_LOOP),
                "sklearn.linear_model.PoissonRegressor",
                program="Poisson",
                loss="poisson",
                peer_settings={**_EXACT, "solver": "newton-cholesky"},
            ),
            Entry(
                "kernel",
                "Kernel regression",
                "regression",
                "An average of all samples, the near ones first.",
                "sum_j y_j k(x, x_j) / sum_j k(x, x_j), k = exp(-gamma |x - x'|^2)",
                "nothing: softmax attention is the average",
                ("gamma",),
                "sklearn.metrics.pairwise.euclidean_distances",
                estimator="InContextKernelRegressor",
            ),
            Entry(
                "knn",
                "Nearest neighbours",
                "regression",
                "An average of the nearest samples.",
                "mean of y over the n_neighbors samples nearest to x",
                "nothing: cold softmax attention finds the nearest",
                ("n_neighbors",),
                "sklearn.neighbors.KNeighborsRegressor",
                estimator="InContextKNeighborsRegressor",
            ),
            Entry(
                "logistic",
                "Logistic regression",
                "classification",
                "Classes and their probabilities.",
                "min C sum_i ln(1 + e^(-s_i (x_i w + b))) + |w|^2 / 2, one class against the rest",
                "the logistic curve",
                ("C", *_LOOP),
                "sklearn.linear_model.LogisticRegression",
                estimator="InContextLogisticRegression",
                loss="logistic",
                peer_settings={**_EXACT, "solver": "newton-cholesky"},
            ),
            Entry(
                "svm",
                "Support vector machine",
                "classification",
                "Two classes with a wide margin between them.",
                "min C sum_i max(0, 1 - s_i (x_i w + b))^2 + |w|^2 / 2",
                "the squared hinge's derivative: a line up to the margin, then nothing",
                ("C", *_LOOP),
                "sklearn.svm.LinearSVC",
                program="LinearSVM",
                loss="squared_hinge",
                peer_settings={**_EXACT, "intercept_scaling": 1e3},
                differs="it penalises the intercept, if only a little",
            ),
            Entry(
                "perceptron",
                "Perceptron",
                "classification",
                "Two classes, learnt from mistakes.",
                "w <- w + s_i x_i wherever s_i (x_i w + b) <= 0",
                "a step: mistaken or not",
                ("max_passes",),
                "sklearn.linear_model.Perceptron",
                program="Perceptron",
                loss="perceptron",
                differs="it visits the samples in a shuffled order",
                penalised=False,
            ),
            Entry(
                "knn-classifier",
                "Nearest neighbours",
                "classification",
                "The most frequent class among the nearest samples.",
                "mode of y over the n_neighbors samples nearest to x",
                "nothing: cold softmax attention finds the nearest",
                ("n_neighbors",),
                "sklearn.neighbors.KNeighborsClassifier",
                estimator="InContextKNeighborsClassifier",
            ),
            Entry(
                "pca",
                "Principal components",
                "decomposition",
                "The directions in which the samples vary most.",
                "max |Xv| over unit v, each orthogonal to those before",
                "the projection itself: a straight line",
                ("n_components",),
                "sklearn.decomposition.PCA",
                estimator="InContextPCA",
                loss="squared",
            ),
        )
    }
)


def entry_named(name: str) -> Entry:
    """The program of this name; hyphens, underscores and case do not matter."""
    wanted = name.strip().lower().replace("_", "-")
    if wanted in ENTRIES:
        return ENTRIES[wanted]
    close = get_close_matches(wanted, ENTRIES, n=2)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(ENTRIES)}"
    raise ProgramError(f"no program is called {name!r}; {hint}")
