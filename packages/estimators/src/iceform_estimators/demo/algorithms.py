"""Every algorithm on the houses, ours and scikit-learn's on the same split."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn import decomposition, linear_model, neighbors
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, mean_squared_error
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import LinearSVC

import iceform_estimators as in_context
from iceform.arithmetic import at_most
from iceform.certificates import ErrorBound, Ledger
from iceform.errors import IntegrityError, PrecisionError
from iceform.run import bind
from iceform_estimators.demo.houses import Array, Houses
from iceform_estimators.machine import IDENTITY, Machine

Tick = Callable[[str], None]
_PERCEPTRON_PASSES = 100
_COMPONENTS = 5
_NEIGHBOURS = 5
_RATIO = 0.5  # of the elastic net
_QUANTILE = 0.9
_QUANTILE_ALPHA = 1e-3
_HUBER_ALPHA = 1.0
_POISSON_ALPHA = 0.1
_C = 0.1  # inverse penalty of the classifiers
_TIGHT = 1e-12  # scikit-learn's tolerances, so that both sides are at the optimum


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


@dataclass(frozen=True, eq=False)
class _Job:
    name: str
    task: str
    other: str
    run: Callable[[], _Comparison]


@dataclass(frozen=True, eq=False)
class _Comparison:
    """Scores, the two answers to compare, and what ours cost."""

    ours: Any
    theirs: Any
    measure: str
    scores: tuple[float, float]
    values: tuple[Array, Array]
    what: str
    seconds: tuple[float, float]
    same: bool = True
    note: str = ""


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


class _Jobs:
    """The library on the houses; penalties by cross-validation on the training rows."""

    def __init__(self, data: Houses) -> None:
        self.data = data
        self.y, self.y_test = np.log(data.price), np.log(data.price_test)
        middle = np.median(data.price)
        self.dear, self.dear_test = data.price > middle, data.price_test > middle
        self.alphas = self._cross_validated()

    def _cross_validated(self) -> dict[str, float]:
        x, y = self.data.x, self.y
        grid = np.logspace(-1, 3, 33)
        nets = {"alphas": 30, "cv": 5, "max_iter": 50_000}
        return {
            "ridge": float(linear_model.RidgeCV(grid).fit(x, y).alpha_),
            "lasso": float(linear_model.LassoCV(**nets).fit(x, y).alpha_),
            "net": float(linear_model.ElasticNetCV(l1_ratio=_RATIO, **nets).fit(x, y).alpha_),
        }

    def all(self) -> list[_Job]:
        """Every algorithm, in the order of the table."""
        price, side = "log price", "dearer than the median?"
        return [
            _Job("least squares", price, "LinearRegression", self.least_squares),
            _Job("ridge", price, "Ridge", self.ridge),
            _Job("lasso", price, "Lasso", self.lasso),
            _Job("elastic net", price, "ElasticNet", self.elastic_net),
            _Job("Huber", price, "HuberRegressor", self.huber),
            _Job("90% quantile", price, "QuantileRegressor", self.quantile),
            _Job("Poisson", "price", "PoissonRegressor", self.poisson),
            _Job("logistic", side, "LogisticRegression", self.logistic),
            _Job("linear SVM", side, "LinearSVC", self.svm),
            _Job("perceptron", side, "Perceptron", self.perceptron),
            _Job("kernel regression", price, "rbf_kernel", self.kernel),
            _Job("5 neighbours", price, "KNeighborsRegressor", self.neighbours),
            _Job("5 neighbours", side, "KNeighborsClassifier", self.votes),
            _Job("5 components", "all features", "PCA", self.components),
        ]

    def _errors(self, ours: Array, theirs: Array) -> tuple[float, float]:
        """Mean squared error of two predictions of the log price."""
        a, b = (float(mean_squared_error(self.y_test, p)) for p in (ours, theirs))
        return a, b

    def _accuracies(self, ours: Array, theirs: Array) -> tuple[float, float]:
        a, b = (float(accuracy_score(self.dear_test, p)) for p in (ours, theirs))
        return a, b

    # ------------------------------------------------------------------------ linear models

    def _regression(
        self, ours: Any, theirs: Any, *, what: str = "coefficients", y: Array | None = None
    ) -> _Comparison:
        """Fit both on log price (or y) and compare coefficients (or predictions)."""
        data, labels = self.data, self.y if y is None else y
        _, mine = _timed(lambda: ours.fit(data.x, labels))
        _, other = _timed(lambda: theirs.fit(data.x, labels))
        a, b = ours.predict(data.x_test), theirs.predict(data.x_test)
        scores = self._errors(a, b)
        if what == "coefficients":
            values = (np.append(ours.coef_, 0), np.append(theirs.coef_, 0))
        else:
            values = (ours.predict(data.x), theirs.predict(data.x))
        return _Comparison(ours, theirs, "test MSE", scores, values, what, (mine, other))

    def least_squares(self) -> _Comparison:
        """Features depend on each other, so the fitted values are what is compared."""
        ours, theirs = in_context.InContextLinearRegression(), linear_model.LinearRegression()
        found = self._regression(ours, theirs)
        if "what" in ours.certificate_.domain:
            return self._regression(ours, theirs, what="fitted values")
        return found

    def ridge(self) -> _Comparison:
        alpha = self.alphas["ridge"]
        return self._regression(in_context.InContextRidge(alpha), linear_model.Ridge(alpha))

    def lasso(self) -> _Comparison:
        alpha = self.alphas["lasso"]
        theirs = linear_model.Lasso(alpha, tol=_TIGHT, max_iter=10**6)
        found = self._regression(in_context.InContextLasso(alpha), theirs)
        return replace(found, note=self._sparsity(found))

    def elastic_net(self) -> _Comparison:
        alpha = self.alphas["net"]
        ours = in_context.InContextElasticNet(alpha, l1_ratio=_RATIO)
        theirs = linear_model.ElasticNet(alpha, l1_ratio=_RATIO, tol=_TIGHT, max_iter=10**6)
        found = self._regression(ours, theirs)
        return replace(found, note=self._sparsity(found))

    def _sparsity(self, found: _Comparison) -> str:
        kept = int((found.ours.coef_ != 0).sum())
        return (
            f"{kept} of {self.data.x.shape[1]} kept; {found.ours.n_thresholds_} prompts of soft "
            "thresholds, then in whitened coordinates of the support"
        )

    def huber(self) -> _Comparison:
        """scikit-learn stops early on these data; its own objective is followed to the end."""
        ours = in_context.InContextHuberRegressor(alpha=_HUBER_ALPHA)
        found = self._regression(ours, _Huber(alpha=_HUBER_ALPHA))
        count = int(ours.outliers_.sum())
        return replace(found, note=f"{count} outliers; whitened again as they change")

    def quantile(self) -> _Comparison:
        ours = in_context.InContextQuantileRegressor(_QUANTILE, alpha=_QUANTILE_ALPHA)
        theirs = linear_model.QuantileRegressor(quantile=_QUANTILE, alpha=_QUANTILE_ALPHA)
        found = self._regression(ours, theirs)
        a, b = (e.predict(self.data.x_test) for e in (ours, theirs))
        scores = (float((self.y_test <= a).mean()), float((self.y_test <= b).mean()))
        note = f"{int((ours.coef_ != 0).sum())} coefficients; the others are proven to be 0"
        return replace(found, measure="below the line", scores=scores, note=note)

    def poisson(self) -> _Comparison:
        y = self.data.price / self.data.price.mean()
        ours = in_context.InContextPoissonRegressor(_POISSON_ALPHA)
        theirs = linear_model.PoissonRegressor(
            alpha=_POISSON_ALPHA, tol=_TIGHT, solver="newton-cholesky", max_iter=1000
        )
        found = self._regression(ours, theirs, y=y)
        a, b = (
            np.log(e.predict(self.data.x_test) * self.data.price.mean()) for e in (ours, theirs)
        )
        return replace(found, scores=self._errors(a, b))

    # -------------------------------------------------------------------------- classifiers

    def logistic(self) -> _Comparison:
        ours = in_context.InContextLogisticRegression(C=_C)
        theirs = linear_model.LogisticRegression(C=_C, tol=_TIGHT, solver="newton-cholesky")
        return self._separator(ours, theirs, "")

    def _classification(self, ours: Any, theirs: Any) -> _Comparison:
        data = self.data
        _, mine = _timed(lambda: ours.fit(data.x, self.dear))
        _, other = _timed(lambda: theirs.fit(data.x, self.dear))
        a, b = ours.predict(data.x_test), theirs.predict(data.x_test)
        scores = self._accuracies(a, b)
        values = (a.astype(float), b.astype(float))
        return _Comparison(ours, theirs, "accuracy", scores, values, "test labels", (mine, other))

    def _separator(self, ours: Any, theirs: Any, note: str) -> _Comparison:
        found = self._classification(ours, theirs)
        values = (ours.coef_.ravel(), theirs.coef_.ravel())
        return replace(found, values=values, what="coefficients", same=not note, note=note)

    def svm(self) -> _Comparison:
        # A large intercept scale makes liblinear's penalty on the intercept vanish.
        theirs = LinearSVC(C=_C, dual=False, tol=1e-10, max_iter=100_000, intercept_scaling=1e3)
        return self._separator(in_context.InContextLinearSVC(_C), theirs, "")

    def perceptron(self) -> _Comparison:
        theirs = linear_model.Perceptron(max_iter=1000, tol=None, random_state=0)
        note = "all samples at once here, one after the other in scikit-learn"
        ours = in_context.InContextPerceptron(max_iter=_PERCEPTRON_PASSES)
        return self._separator(ours, theirs, note)

    # ---------------------------------------------------------------------- one look at the data

    def kernel(self) -> _Comparison:
        data = self.data
        ours = in_context.InContextKernelRegressor("scale")
        _, mine = _timed(lambda: ours.fit(data.x, self.y))
        a, more = _timed(lambda: ours.predict(data.x_test))

        def average() -> Array:
            weights = rbf_kernel(data.x_test, data.x, gamma=ours.gamma_)
            return np.asarray(weights @ self.y / weights.sum(1))

        b, other = _timed(average)
        scores = self._errors(a, b)
        return _Comparison(
            ours, None, "test MSE", scores, (a, b), "predictions", (mine + more, other)
        )

    def neighbours(self) -> _Comparison:
        ours = in_context.InContextKNeighborsRegressor(_NEIGHBOURS)
        theirs = neighbors.KNeighborsRegressor(_NEIGHBOURS, algorithm="brute")
        found = self._regression(ours, theirs, what="fitted values")
        return found

    def votes(self) -> _Comparison:
        ours = in_context.InContextKNeighborsClassifier(_NEIGHBOURS)
        theirs = neighbors.KNeighborsClassifier(_NEIGHBOURS, algorithm="brute")
        return self._classification(ours, theirs)

    def components(self) -> _Comparison:
        data = self.data
        ours, theirs = (
            in_context.InContextPCA(_COMPONENTS),
            decomposition.PCA(_COMPONENTS, svd_solver="full"),
        )
        _, mine = _timed(lambda: ours.fit(data.x))
        _, other = _timed(lambda: theirs.fit(data.x))
        signs = np.sign((ours.components_ * theirs.components_).sum(1, keepdims=True))
        kept = [float(e.explained_variance_ratio_.sum()) for e in (ours, theirs)]
        scores = (kept[0], kept[1])
        values = (ours.components_.ravel(), (signs * theirs.components_).ravel())
        return _Comparison(
            ours, theirs, "variance kept", scores, values, "components", (mine, other),
            note="each found component is taken out of the prompt",
        )  # fmt: skip


class _Huber(linear_model.HuberRegressor):  # type: ignore[misc]
    """scikit-learn's, whose optimiser stops at a fixed relative progress, run on to the end."""

    def fit(self, X: Array, y: Array) -> Any:
        from sklearn.linear_model._huber import _huber_loss_and_gradient

        self.set_params(tol=_TIGHT, max_iter=100_000)
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
            options={"ftol": 0, "gtol": 1e-11, "maxiter": 10**5, "maxfun": 10**6, "maxcor": 200},
        )
        self.coef_: Array = found.x[:-2]
        self.intercept_: float = float(found.x[-2])
        self.scale_: float = float(found.x[-1])
        return self


def run_all(data: Houses, tick: Tick) -> tuple[list[ComparisonRow], dict[str, float]]:
    """Every algorithm, each checked: one digest for one size, the answer within its certificate.

    Averages of samples hold all of them in one prompt, which may take a larger layer.
    """
    jobs = _Jobs(data)
    tick("penalties by cross-validation")
    rows: list[ComparisonRow] = []
    weights: dict[tuple[int, int, int], str] = {}
    for job in jobs.all():
        with warnings.catch_warnings():
            # Two perceptrons on classes that overlap never come to rest.
            warnings.simplefilter("ignore", ConvergenceWarning)
            answer = job.run()
        row, machine = _row(job, answer), answer.ours.machine_
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
    return rows, jobs.alphas


def other_slack(row: ComparisonRow) -> float:
    """What the other side may be off by: its own stopping rule and rounding."""
    return {"Huber": 1e-5, "linear SVM": 1e-4, "least squares": 1e-9}.get(row.name, 1e-8)


def proven(certificate: ErrorBound, size: float = 1.0) -> float:
    """A bound relative to a size, rounded up; infinite where the certificate is no proof."""
    if certificate.kind != "proven":
        return math.inf
    share = certificate.error / size
    return math.nextafter(share, math.inf) if share else 0.0


def _row(job: _Job, answer: _Comparison) -> ComparisonRow:
    ours, theirs = answer.values
    size = float(np.abs(theirs).max())
    return ComparisonRow(
        name=job.name,
        task=job.task,
        other=job.other,
        measure=answer.measure,
        score=answer.scores[0],
        other_score=answer.scores[1],
        difference=float(np.abs(ours - theirs).max()) / size,
        certified=proven(answer.ours.certificate_, size),
        what=answer.what,
        passes=answer.ours.n_passes_,
        seconds=answer.seconds[0],
        digest=answer.ours.digest_,
        ledger=answer.ours.ledger_,
        same=answer.same,
        note=answer.note,
    )


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
