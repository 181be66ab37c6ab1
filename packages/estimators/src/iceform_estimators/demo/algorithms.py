"""Every algorithm on the Ames houses, beside what its record names as its peer in scikit-learn.

The houses are split first, then prepared.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn import linear_model
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, mean_squared_error

import iceform_estimators
from iceform.arithmetic import at_most
from iceform.certificates import ErrorBound, Ledger
from iceform.errors import IntegrityError, PrecisionError
from iceform.run import bind
from iceform_estimators.command.running import build_peer
from iceform_estimators.machine import IDENTITY, Machine
from iceform_estimators.preparation import Preparation
from iceform_estimators.tables import ames
from iceform_estimators.tuning import PEER_TOLERANCE, SMALL, TEST_SHARE

Tick = Callable[[str], None]
_STOPPED = 1e-4  # what scikit-learn leaves where it stops at relative progress
Array = np.ndarray[Any, np.dtype[np.float64]]
SEED = 0


@dataclass(frozen=True, eq=False)
class Houses:
    """Training and test rows as numbers.

    Attributes
    ----------
    x, x_test
        Prepared features.
    price, price_test
        Sale prices in dollars.
    names
        Of the features.
    repeats
        Features left out because they repeat another one on the training rows.
    features
        Columns of the table before preparation.
    """

    x: Array
    x_test: Array
    price: Array
    price_test: Array
    names: list[str]
    repeats: int
    features: int


def load(rows: int | None = None, seed: int = SEED) -> Houses:
    """Split, then prepare: what is learnt is learnt from the training rows.

    Parameters
    ----------
    rows
        Only so many houses, for a quick look; all by default.
    seed
        Of the split.
    """
    table = ames()
    order = np.random.default_rng(seed).permutation(len(table))[:rows]
    tests = round(TEST_SHARE * len(order))
    train, test = table.take(np.sort(order[tests:])), table.take(np.sort(order[:tests]))
    # A level that only the test rows have is encoded as none of the known ones.
    prepared = Preparation.fit(train, reference=True, unknown="ignore")
    x, x_test = (prepared.transform(part) for part in (train, test))
    _, first = np.unique(x, axis=1, return_index=True)
    keep = np.sort(first)
    return Houses(
        x[:, keep],
        x_test[:, keep],
        train.numbers(),
        test.numbers(),
        [prepared.names[j] for j in keep],
        x.shape[1] - len(keep),
        table.features.shape[1],
    )


@dataclass(frozen=True)
class ComparisonRow:
    """One algorithm on both sides.

    Attributes
    ----------
    name, task, other
        What runs, on what, and who else computes it.
    measure
        What ``score`` and ``other_score`` are.
    difference
        Largest difference of the two answers, relative to the largest entry of scikit-learn's.
    certified
        Proven distance of ours from the exact answer, on the same scale; infinite where nothing is
        proven.
    what
        What ``difference`` and ``certified`` speak of.
    ledger
        What was computed where.
    same
        Whether both compute the same thing.
    note
        A word on preconditioning, or on what else differs.
    """

    name: str
    task: str
    other: str
    measure: str
    score: float
    other_score: float
    difference: float
    certified: float
    what: str
    passes: int
    seconds: float
    digest: str
    ledger: Ledger
    same: bool = True
    note: str = ""


@dataclass(frozen=True)
class _Job:
    """One row of the table: the algorithm's name, its options, and which answers are compared."""

    name: str
    task: str
    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    what: str = "coefficients"
    note: str = ""  # why the two are not the same algorithm


def _jobs(alphas: Mapping[str, float]) -> list[_Job]:
    """Every algorithm, in the order of the table."""
    price, side, few = "log price", "dearer than the median?", {"n_neighbors": 5}
    net, upper = {"alpha": alphas["net"], "l1_ratio": 0.5}, {"quantile": 0.9, "alpha": SMALL}
    weak = {"C": 0.1}
    together = "all samples at once here, one after the other in scikit-learn"
    return [
        _Job("least squares", price, "linear"),
        _Job("ridge", price, "ridge", {"alpha": alphas["ridge"]}),
        _Job("lasso", price, "lasso", {"alpha": alphas["lasso"]}),
        _Job("elastic net", price, "elastic-net", net),
        _Job("Huber", price, "huber", {"alpha": 1.0}),
        _Job("90% quantile", price, "quantile", upper),
        _Job("Poisson", "price", "poisson", {"alpha": 0.1}),
        _Job("logistic", side, "logistic", weak),
        _Job("linear SVM", side, "svm", weak),
        _Job("perceptron", side, "perceptron", {"max_passes": 100}, note=together),
        _Job("kernel regression", price, "kernel", {"gamma": "scale"}, "predictions"),
        _Job("5 neighbours", price, "knn", few, "fitted values"),
        _Job("5 neighbours", side, "knn-classifier", few, "test labels"),
        _Job("5 components", "all features", "pca", {"n_components": 5}, "components"),
    ]


class _Comparisons:
    """The jobs on the houses; penalties by cross-validation on the training rows."""

    def __init__(self, data: Houses) -> None:
        self.data = data
        self.y, self.y_test = np.log(data.price), np.log(data.price_test)
        middle = np.median(data.price)
        self.dear, self.dear_test = data.price > middle, data.price_test > middle
        self.labels = {"log price": self.y, "price": data.price / data.price.mean()}
        nets = {"alphas": 30, "cv": 5, "max_iter": 50_000}
        chosen = {
            "ridge": linear_model.RidgeCV(np.logspace(-1, 3, 33)),
            "lasso": linear_model.LassoCV(**nets),
            "net": linear_model.ElasticNetCV(l1_ratio=0.5, **nets),
        }
        self.alphas = {n: float(m.fit(data.x, self.y).alpha_) for n, m in chosen.items()}

    def run(self, job: _Job) -> tuple[ComparisonRow, Machine]:
        """Fit both sides on the training rows; compare their answers and their scores."""
        entry = iceform_estimators.algorithms.named(job.algorithm)
        named = {entry.options()[name].estimator: value for name, value in job.options.items()}
        ours = iceform_estimators.estimator_of(entry)(**named)
        labels = self.labels.get(job.task, self.dear)
        started = time.perf_counter()
        ours.fit(self.data.x, labels)
        seconds = time.perf_counter() - started
        options = {n: getattr(ours, f"{n}_", value) for n, value in job.options.items()}
        theirs = _Huber(**named) if job.algorithm == "huber" else build_peer(entry, options)
        theirs.fit(self.data.x, labels)
        # Where features depend on each other, the fitted values are what is one thing.
        what = "fitted values" if "what" in ours.certificate_.domain else job.what
        a, b = (self._answers(model, what) for model in (ours, theirs))
        if what == "components":
            b = b * np.sign((a * b).sum(1, keepdims=True))
        measure, *scores = zip(*(self._score(job, model) for model in (ours, theirs)), strict=True)
        size = float(np.abs(b).max())
        row = ComparisonRow(
            name=job.name,
            task=job.task,
            other=entry.peer.path.rpartition(".")[2] if entry.peer else "",
            measure=measure[0],
            score=scores[0][0],
            other_score=scores[0][1],
            difference=float(np.abs(a - b).max()) / size,
            certified=proven(ours.certificate_, size),
            what=what,
            passes=ours.n_passes_,
            seconds=seconds,
            digest=ours.digest_,
            ledger=ours.ledger_,
            same=not job.note,
            note=job.note,
        )
        return row, ours.machine_

    def _answers(self, model: Any, what: str) -> Array:
        """What is compared, as numbers."""
        if what == "coefficients":
            return np.asarray(model.coef_).ravel()
        if what == "components":
            return np.asarray(model.components_)
        points = self.data.x if what == "fitted values" else self.data.x_test
        return np.asarray(model.predict(points), dtype=np.float64)

    def _score(self, job: _Job, model: Any) -> tuple[str, float]:
        """What the score is, and the model's on the test rows."""
        if job.algorithm == "pca":
            return "variance kept", float(model.explained_variance_ratio_.sum())
        found = model.predict(self.data.x_test)
        if job.task not in self.labels:
            return "accuracy", float(accuracy_score(self.dear_test, found))
        if job.algorithm == "quantile":
            return "below the line", float((self.y_test <= found).mean())
        if job.task == "price":
            found = np.log(found * self.data.price.mean())
        return "test MSE", float(mean_squared_error(self.y_test, found))


class _Huber(linear_model.HuberRegressor):  # type: ignore[misc]
    """scikit-learn's, whose optimiser stops at a fixed relative progress, run on to the end."""

    def fit(self, X: Array, y: Array) -> Any:
        from sklearn.linear_model._huber import _huber_loss_and_gradient

        self.set_params(tol=PEER_TOLERANCE, max_iter=100_000)
        super().fit(X, y)
        start = np.concatenate([self.coef_, [self.intercept_, self.scale_]])
        bounds = [(-np.inf, np.inf)] * (len(start) - 1) + [(np.finfo(float).eps * 10, np.inf)]
        found = minimize(
            _huber_loss_and_gradient,
            start,
            args=(X, y, self.epsilon, self.alpha, np.ones(len(y))),
            method="L-BFGS-B",
            jac=True,
            bounds=bounds,
            options={
                "ftol": 0,
                "gtol": PEER_TOLERANCE,
                "maxiter": 10**5,
                "maxfun": 10**6,
                "maxcor": 200,
            },
        )
        self.coef_: Array = found.x[:-2]
        self.intercept_: float = float(found.x[-2])
        self.scale_: float = float(found.x[-1])
        return self


def run_all(data: Houses, tick: Tick) -> tuple[list[ComparisonRow], dict[str, float]]:
    """Every algorithm, each checked: one digest for one size, the answer within its certificate.

    Averages of samples hold all of them in one prompt, which may take a larger layer.
    """
    comparisons = _Comparisons(data)
    tick("penalties by cross-validation")
    rows: list[ComparisonRow] = []
    weights: dict[tuple[int, int, int], str] = {}
    for job in _jobs(comparisons.alphas):
        with warnings.catch_warnings():
            # Two perceptrons on classes that overlap never come to rest.
            warnings.simplefilter("ignore", ConvergenceWarning)
            row, machine = comparisons.run(job)
        others = weights.setdefault((machine.dim, machine.samples, machine.tokens), row.digest)
        if row.digest != others:
            raise IntegrityError(
                f"{row.name} ran on weights {row.digest[:12]}, others of its size on {others[:12]}"
            )
        if row.same and not row.difference <= row.certified + other_slack(row):
            raise PrecisionError(
                f"{row.name} is {row.difference:.3g} from scikit-learn's, certified is "
                f"{at_most(row.certified, '.3g')}"
            )
        rows.append(row)
        tick(f"{job.name} ({job.task})")
    return rows, comparisons.alphas


def other_slack(row: ComparisonRow) -> float:
    """What the other side may be off by: its own stopping rule and rounding."""
    return _STOPPED if row.name in ("Huber", "linear SVM") else math.sqrt(np.finfo(float).eps)


def proven(certificate: ErrorBound, size: float = 1.0) -> float:
    """A bound relative to a size, rounded up; infinite where the certificate is no proof."""
    if certificate.kind != "proven":
        return math.inf
    share = certificate.error / size
    return math.nextafter(share, math.inf) if share else 0.0


def literal_difference(data: Houses, machine: Machine) -> float:
    """How far one prompt by the literal matrices is from the formula they amount to."""
    rows = machine.samples
    x = torch.from_numpy(data.x[:rows])
    y = torch.from_numpy(np.log(data.price[:rows]) - np.log(data.price).mean())
    w = torch.full(x.shape[1:], 1 / x.shape[1], dtype=torch.float64)
    z = x @ w - y
    table = IDENTITY.on(float(z.abs().max()))
    prompt = machine.start().look_ups(table, x, y, w)
    literal, fused = (bind(machine.network, name).run(prompt) for name in ("literal", "fused"))
    return float((literal - fused).abs().max() / fused.abs().max())
