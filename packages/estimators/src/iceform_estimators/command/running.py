"""An algorithm on a table: split, prepare, fit until what was asked for is certified, compare.

Everything that can be wrong with the data or the settings is refused before the first pass.
"""

from __future__ import annotations

import importlib
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn import metrics
from sklearn.utils._param_validation import InvalidParameterError

import iceform_estimators
from iceform.arithmetic import at_most
from iceform.certificates import Certificate
from iceform.errors import BoundError, DtypeError, PrecisionError, ProgramError
from iceform.run import resolve
from iceform.validation import check_eps
from iceform_estimators._base import check_device
from iceform_estimators.algorithms import EstimationAlgorithm, LinearModel
from iceform_estimators.preparation import Preparation
from iceform_estimators.tables import TableData
from iceform_estimators.tuning import SMALL, TEST_SHARE

_LABELLED = ("train", "test")


@dataclass(frozen=True)
class RunSettings:
    """What was asked for.

    Attributes
    ----------
    entry
        The algorithm.
    options
        Its options that were given.
    device, backend
        Where the passes run, and how they are evaluated.
    eps
        The certified error to reach; None takes what the tolerance gives.
    test_share, seed
        The split.
    unknown, scale
        As for :class:`iceform_estimators.preparation.Preparation`.
    compare
        Whether scikit-learn runs beside.
    """

    entry: type[EstimationAlgorithm]
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    eps: float | None = None
    test_share: float = TEST_SHARE
    seed: int = 0
    unknown: str = "error"
    scale: bool = True
    compare: bool = True
    backend: str = "auto"

    def __post_init__(self) -> None:
        self.entry.check_options(self.options)
        for name, value in self.options.items():
            one = self.entry.options()[name]
            one.check(one.parse(value))
        resolve(self.backend)
        check_eps(self.eps)
        check_device(self.device)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("device", "eps", "test_share", "seed", "unknown", "scale", "backend")
        given = {name: getattr(self, name) for name in names}
        return {"algorithm": self.entry.name, "options": dict(self.options), **given}


@dataclass(frozen=True, eq=False)
class PreparedData:
    """Matrices of every part of the table: "train", "test", "unlabelled", "new" where there are.

    Attributes
    ----------
    preparation
        What was done to the columns.
    tables, x, y
        Rows, matrices and targets by part.
    unknowns
        Texts that the training rows do not have.
    """

    preparation: Preparation
    tables: Mapping[str, TableData]
    x: Mapping[str, np.ndarray]
    y: Mapping[str, np.ndarray]
    unknowns: list[dict[str, Any]]

    @classmethod
    def of(
        cls, settings: RunSettings, table: TableData, new: TableData | None = None
    ) -> PreparedData:
        """Split the table, learn the preparation from its training rows, and encode all parts."""
        entry, parts = settings.entry, {}
        if entry.needs_target():
            table, parts["unlabelled"] = table.labelled()
        labels = _labels(entry, table)
        strata = labels if entry.task == "classification" else None
        train, test = table.split(settings.test_share, settings.seed, strata)
        made = Preparation.fit(
            train, scale=settings.scale, reference=not entry.penalised, unknown=settings.unknown
        )
        parts = {"train": train, "test": test, **parts, **({} if new is None else {"new": new})}
        parts = {name: part for name, part in parts.items() if len(part)}
        y = {name: _labels(entry, part) for name, part in parts.items() if name in _LABELLED}
        if entry.needs_target() and len(np.unique(y["train"])) < 2:
            raise BoundError(
                f"the target column {train.target.name!r} of {table.source} is always "
                f"{y['train'][0]} in the training rows: there is nothing to learn; name another "
                "column or use more rows"
            )
        x = {name: made.transform(part) for name, part in parts.items()}
        unknowns = [one for part in parts.values() for one in made.unknowns(part)]
        return cls(made, parts, x, y, unknowns)

    @property
    def scored(self) -> str:
        """The part that is scored: "test" or, without test rows, "train"."""
        return "test" if "test" in self.x else "train"


def _labels(entry: type[EstimationAlgorithm], table: TableData) -> np.ndarray:
    if not entry.needs_target():
        return np.zeros(len(table))
    if entry.task != "classification":
        return table.numbers()
    labels = table.classes()
    kinds = len(np.unique(labels))
    if kinds > 2 and 2 * kinds > len(labels) > 2:
        raise DtypeError(
            f"the target column {table.target.name!r} of {table.source} has {kinds:,} different "
            f"values in {len(labels):,} rows, which are no classes; name another column or use a "
            "regression"
        )
    return labels


@dataclass(frozen=True)
class Score:
    """A figure of merit, ours and the peer's."""

    name: str
    ours: float
    peer: float | None = None


@dataclass(frozen=True)
class Coefficient:
    """One coefficient, ours and the peer's."""

    name: str
    value: float
    peer: float | None = None


@dataclass(frozen=True, eq=False)
class Predictions:
    """Some rows with their predictions.

    Attributes
    ----------
    name
        Which part of the table they are.
    rows
        Their numbers in the file, counted from 1.
    actual
        Targets, where they are known.
    predicted
        Shape (n,) or, for components, (n, k).
    """

    name: str
    rows: np.ndarray
    actual: np.ndarray | None
    predicted: np.ndarray


@dataclass(frozen=True, eq=False)
class PeerFit:
    """What scikit-learn found on the same matrices.

    Attributes
    ----------
    name, seconds
        The class, and what its fit took.
    model
        The fitted estimator.
    distance
        Largest difference of a coefficient; None where there are none to compare.
    apart
        Largest difference of a prediction, or the share of labels that differ.
    """

    name: str
    seconds: float
    model: Any
    distance: float | None
    apart: float


@dataclass(frozen=True, eq=False)
class TableRun:
    """An algorithm's run on a table, and all there is to say about it.

    Attributes
    ----------
    settings, source, target, data_digest
        What was asked for, of which file and column, and the SHA-256 of the table as it was read.
    data, model, seconds
        Matrices with what was done to the columns, the fitted estimator, and what its fit took.
    certificate
        The estimator's.
    scores, coefficients, intercept, parts
        What was found; scores and coefficients beside scikit-learn's.
    peer
        scikit-learn's fit, if it was asked for.
    warnings
        What was warned of on the way.
    """

    settings: RunSettings
    source: str
    target: str | None
    data_digest: str
    data: PreparedData
    model: Any
    seconds: float
    certificate: Certificate
    scores: list[Score]
    coefficients: list[Coefficient]
    intercept: float | None
    parts: list[Predictions]
    peer: PeerFit | None
    warnings: list[str]

    @property
    def counts(self) -> dict[str, int]:
        """Rows by part of the table."""
        return {name: len(part) for name, part in self.data.tables.items()}

    @property
    def largest(self) -> float:
        """The largest coefficient."""
        return max((abs(c.value) for c in self.coefficients), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; numbers that are not finite are null."""
        entry, peer, model = self.settings.entry, self.peer, self.model
        preparation = self.data.preparation
        return {
            **self.settings.to_dict(),
            "data": {
                "source": self.source,
                "target": self.target,
                "rows": self.counts,
                "features": len(preparation.names),
                "digest": self.data_digest,
            },
            "preparation": preparation.report(),
            "unknown_values": self.data.unknowns,
            "scored_on": self.data.scored,
            "scores": {s.name: finite(s.ours) for s in self.scores},
            "coefficients": {c.name: finite(c.value) for c in self.coefficients},
            "intercept": finite(self.intercept),
            "certified_error": finite(self.certificate.error),
            "certificate_terms": {k: finite(v) for k, v in self.certificate.terms.items()},
            "attestation": model.attestation_.to_dict(),
            "ledger": model.ledger_.to_dict(),
            "passes": int(model.n_passes_),
            "seconds": self.seconds,
            "digest": model.digest_,
            "scikit_learn": peer
            and {
                "class": peer.name,
                "differs": (entry.peer and entry.peer.differs) or None,
                "scores": {s.name: finite(s.peer) for s in self.scores if s.peer is not None},
                "seconds": peer.seconds,
                "coefficient_distance": finite(peer.distance),
                "prediction_distance": finite(peer.apart),
            },
            "warnings": self.warnings,
        }


def finite(value: float | None) -> float | None:
    """The number, or None where JSON has none."""
    return None if value is None or not math.isfinite(value) else float(value)


def run(
    settings: RunSettings,
    table: TableData,
    new: TableData | None = None,
    tick: Callable[[str], None] = lambda stage: None,
) -> TableRun:
    """Fit on the training rows, score the test rows, predict.

    Parameters
    ----------
    settings
        What to run.
    table
        The data.
    new
        More rows to predict, with the same columns.
    tick
        Told when a stage begins.
    """
    tick("preparing")
    data = PreparedData.of(settings, table, new)
    tick("fitting")
    warned: list[str] = []
    start = time.perf_counter()
    model = with_warnings(warned, "", lambda: fitted(settings, data))
    seconds = time.perf_counter() - start
    tick("comparing")
    peer = _fit_peer(settings, data, model, warned) if settings.compare else None
    tick("predicting")
    return TableRun(
        settings,
        table.source,
        None if table.target is None else str(table.target.name),
        table.digest,
        data,
        model,
        seconds,
        model.certificate_,
        scores_of(settings.entry, data, model, None if peer is None else peer.model),
        *_coefficients(model, data, peer),
        _predictions(settings.entry, data, model),
        peer,
        list(dict.fromkeys(warned)),
    )


def with_warnings(warned: list[str], who: str, work: Callable[[], Any]) -> Any:
    """What work returns; its warnings go to the list, in one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return work()
        finally:
            warned += [who + " ".join(str(one.message).split()) for one in caught]


def fitted(settings: RunSettings, data: PreparedData) -> Any:
    """The model, its tolerance tightened until the certificate is what was asked for."""
    entry, options = settings.entry, dict(settings.options)
    rows, features = data.x["train"].shape
    for name, most in (("n_neighbors", rows), ("n_components", min(rows, features))):
        if name in options and not 1 <= options[name] <= most:
            raise BoundError(
                f"{name} must be between 1 and {most} for these data, got {options[name]}"
            )
    free = "tol" in entry.options() and "tol" not in options
    while True:
        named = {
            entry.options()[n].estimator: entry.options()[n].parse(v) for n, v in options.items()
        }
        where = None if settings.device == "cpu" else settings.device
        estimator = iceform_estimators.estimator_of(entry)
        model = estimator(**named, device=where, backend=settings.backend)
        try:
            model.fit(data.x["train"], data.y["train"] if entry.needs_target() else None)
        except InvalidParameterError as refused:
            raise ProgramError(" ".join(str(refused).split())) from None
        certified = model.certificate_.error
        if settings.eps is None or certified <= settings.eps:
            return model
        options["tol"] = SMALL * getattr(model, "tol", 0.0)
        if not free or options["tol"] < np.finfo(float).eps:
            raise PrecisionError(_short_of(settings, certified), best=certified)


def _short_of(settings: RunSettings, certified: float) -> str:
    name = settings.entry.name
    if not math.isfinite(certified):
        return f"no error can be certified for {name} on these data; leave out --eps"
    return (
        f"eps = {settings.eps:g} was asked for, {at_most(certified, '.3g')} is the error that can "
        f"be certified for {name} on these data; ask for that or more"
    )


# ---------------------------------------------------------------------------------------------
# the same problem by scikit-learn
# ---------------------------------------------------------------------------------------------


def build_peer(entry: type[EstimationAlgorithm], options: Mapping[str, Any]) -> Any:
    """What computes the same elsewhere, with the same options; None where nobody does."""
    peer = entry.peer
    if peer is None:
        return None
    named = dict(peer.settings)
    for name, value in options.items():
        one = entry.options()[name]
        there = peer.options.get(name, one.estimator)
        if there is not None and name not in LinearModel.options():  # those are of our loop
            named[there] = one.parse(value)
    if peer.made is not None:
        return peer.made(**named)
    module, _, name = peer.path.rpartition(".")
    return getattr(importlib.import_module(module), name)(**named)


def _fit_peer(
    settings: RunSettings, data: PreparedData, model: Any, warned: list[str]
) -> PeerFit | None:
    """What scikit-learn finds on the same matrices; None, with a warning, where it fails."""
    entry, options = settings.entry, dict(settings.options)
    if entry.peer is None:
        warned.append(f"nobody else is known to compute {entry.name}: nothing to compare with")
        return None
    if hasattr(model, "gamma_"):  # its default depends on the data
        options["gamma"] = model.gamma_
    start = time.perf_counter()
    try:
        peer = build_peer(entry, options)
        fit = lambda: peer.fit(data.x["train"], data.y["train"])  # noqa: E731
        with_warnings(warned, "scikit-learn: ", fit)
    except (ValueError, np.linalg.LinAlgError) as failed:
        warned.append(f"scikit-learn: {' '.join(str(failed).split())}")
        return None
    seconds = time.perf_counter() - start
    x = data.x[data.scored]
    ours, theirs = answers(model, x), answers(peer, x)
    if entry.task == "classification":
        apart = float((ours != theirs).mean())
    else:
        apart = float(np.abs(ours - theirs).max()) if ours.size else 0.0
    mine, other = coefficient_rows(model), coefficient_rows(peer)
    alike = mine is not None and other is not None and mine.shape == other.shape
    distance = float(np.abs(mine - other).max()) if alike else None  # type: ignore[operator]
    return PeerFit(entry.peer.path, seconds, peer, distance, apart)


def answers(model: Any, x: np.ndarray) -> np.ndarray:
    """Predictions of shape (n,) or, of components, scores of shape (n, k)."""
    return np.asarray(model.predict(x) if hasattr(model, "predict") else model.transform(x))


def coefficient_rows(model: Any) -> np.ndarray | None:
    """Coefficients or components, shape (k, d); None where the model has none."""
    coef = getattr(model, "coef_", getattr(model, "components_", None))
    return None if coef is None else np.atleast_2d(coef)


# ---------------------------------------------------------------------------------------------
# coefficients, predictions, figures of merit
# ---------------------------------------------------------------------------------------------


def _coefficients(
    model: Any, data: PreparedData, peer: PeerFit | None
) -> tuple[list[Coefficient], float | None]:
    coef = coefficient_rows(model)
    if coef is None:
        return [], None
    labels = [""]
    if len(coef) > 1:
        classes = getattr(model, "classes_", ())
        known = len(classes) == len(coef)
        labels = [f"{c}: " if known else f"component {c + 1}: "
                  for c in (classes if known else range(len(coef)))]  # fmt: skip
    theirs = None if peer is None or peer.distance is None else coefficient_rows(peer.model)
    found = [
        Coefficient(
            label + name, float(coef[i, j]), None if theirs is None else float(theirs[i, j])
        )
        for i, label in enumerate(labels)
        for j, name in enumerate(data.preparation.names)
    ]
    intercept = np.ravel(getattr(model, "intercept_", []))
    return found, float(intercept[0]) if len(intercept) == 1 else None


def _predictions(
    entry: type[EstimationAlgorithm], data: PreparedData, model: Any
) -> list[Predictions]:
    """What the model says of every part but the training rows; of all rows for components."""
    left = set() if data.scored == "train" or not entry.needs_target() else {"train"}
    targets = data.y if entry.needs_target() else {}
    return [
        Predictions(name, table.rows, targets.get(name), answers(model, data.x[name]))
        for name, table in data.tables.items()
        if name not in left
    ]


def scores_of(
    entry: type[EstimationAlgorithm], data: PreparedData, model: Any, peer: Any
) -> list[Score]:
    """The figures of merit that suit the task, on the rows that are scored; both models'."""
    x, y = data.x[data.scored], data.y[data.scored]
    ours = _figures(entry, data, model, model, x, y)
    theirs = {} if peer is None else _figures(entry, data, peer, model, x, y)
    return [Score(name, value, theirs.get(name)) for name, value in ours.items()]


def _figures(
    entry: type[EstimationAlgorithm], data: PreparedData, model: Any, ours: Any, x: Any, y: Any
) -> dict[str, float]:
    if entry.task == "decomposition":
        centred = x - data.x["train"].mean(0)
        kept = ((centred @ coefficient_rows(model).T) ** 2).sum()  # type: ignore[union-attr]
        return {"variance explained": float(kept / (centred**2).sum())}
    predicted = answers(model, x)
    if entry.task == "classification":
        right = {"accuracy": float((predicted == y).mean())}
        return right | (_of_chances(model, x, y) if hasattr(model, "predict_proba") else {})
    own = ours.as_algorithm().scores(*(torch.as_tensor(part).double() for part in (y, predicted)))
    return {
        "R²": float(metrics.r2_score(y, predicted)) if len(y) > 1 else math.nan,
        "RMSE": float(metrics.root_mean_squared_error(y, predicted)),
        "MAE": float(metrics.mean_absolute_error(y, predicted)),
        "median error": float(metrics.median_absolute_error(y, predicted)),
        **own,
    }


def _of_chances(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Log-loss and Brier's score; a class that was not learnt has the chance 0."""
    chances, own = np.asarray(model.predict_proba(x)), y[:, None] == model.classes_
    least = np.finfo(float).eps  # of a chance, whose logarithm is taken
    squares = ((chances - own) ** 2).sum(1) + ~own.any(1)
    return {
        "log-loss": float(-np.log(np.maximum((chances * own).sum(1), least)).mean()),
        "Brier score": float(squares.mean()) / (2 if chances.shape[1] == 2 else 1),
    }
