"""A program of the catalogue on a table: split, prepare, fit, compare, predict.

Everything that can be wrong with the data or the settings is refused before the first pass.
"""

from __future__ import annotations

import importlib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from iceform.catalogue import Entry
from iceform.certificates import Certificate
from iceform.errors import BoundError, DeviceError, DtypeError, PrecisionError, ProgramError
from iceform.tables import Preparation, Table, Unknown
from iceform.validation import check_eps

__all__ = [
    "STAGES",
    "Coefficient",
    "Data",
    "Model",
    "Part",
    "Peer",
    "Run",
    "Score",
    "Settings",
    "build",
    "check_device",
    "fitted",
    "gamma_of",
    "run",
]

STAGES = ("preparing", "fitting", "comparing", "predicting")
Tick = Callable[[str], None]

_TIGHTENING = 1e-2  # of the tolerance, when an eps was asked for that is not certified yet
_TIGHTEST = 1e-15


@dataclass(frozen=True)
class Settings:
    """What was asked for.

    Attributes
    ----------
    entry
        The program.
    options
        Its options that were given.
    device
        Where the passes run.
    eps
        The certified error to reach; None takes what the tolerance gives.
    test_share, seed
        The split.
    unknown, scale, strict
        As for :class:`iceform.tables.Preparation`.
    compare
        Whether scikit-learn runs beside.
    """

    entry: Entry
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    eps: float | None = None
    test_share: float = 0.2
    seed: int = 0
    unknown: str = "error"
    scale: bool = True
    strict: bool = False
    compare: bool = True

    def __post_init__(self) -> None:
        self.entry.check(self.options)
        check_eps(self.eps)
        check_device(self.device)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("device", "eps", "test_share", "seed", "unknown", "scale", "strict")
        return {
            "program": self.entry.name,
            "options": dict(self.options),
            **{name: getattr(self, name) for name in names},
        }


def check_device(name: str) -> torch.device:
    """A device that is there and has float64."""
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as refused:
        reason = " ".join(str(refused).split("\n")[0].split())
        raise DeviceError(f"device {name!r} cannot be used: {reason}; use cpu") from None
    if device.type == "meta":
        raise DeviceError("the meta device holds no numbers; use cpu")
    return device


# ---------------------------------------------------------------------------------------------
# models
# ---------------------------------------------------------------------------------------------


class Model(Protocol):
    """What an estimator of ``iceform.sklearn`` leaves behind when fitted."""

    certificate_: Certificate
    digest_: str
    n_passes_: int
    machine_: Any

    def fit(self, x: np.ndarray, y: np.ndarray | None) -> Any:
        """Learn."""


class ProgramModel:
    """A program without an estimator, with an estimator's manners.

    Parameters
    ----------
    entry
        Which.
    options
        Its parameters.
    device
        Where it runs.
    """

    certificate_: Certificate
    digest_: str
    n_passes_: int
    machine_: Any

    def __init__(self, entry: Entry, options: Mapping[str, Any], device: torch.device) -> None:
        assert entry.program is not None
        self.entry, self.device = entry, device
        self.program = _made(importlib.import_module("iceform.programs"), entry.program, options)

    def fit(self, x: np.ndarray, y: np.ndarray | None) -> ProgramModel:
        """Loop the machine over the data."""
        from iceform.streaming import StreamMachine

        assert y is not None
        labels = self._labels(y) if self.entry.task == "classification" else y
        self.machine_ = StreamMachine(x.shape[1] + 1)
        self.result_ = self.machine_.run(self.program, self._on(x), self._on(labels))
        self.coef_ = self.result_.coef.cpu().numpy()
        self.intercept_ = float(self.result_.intercept)
        self.certificate_, self.digest_ = self.result_.certificate, self.result_.digest
        self.n_passes_ = self.result_.passes
        if not getattr(self.result_, "converged", True):
            warnings.warn(
                f"{self.entry.name} stopped after {self.n_passes_} passes above its tolerance",
                RuntimeWarning,
                stacklevel=2,
            )
        return self

    def _labels(self, y: np.ndarray) -> np.ndarray:
        self.classes_ = np.unique(y)
        if len(self.classes_) != 2:
            raise ProgramError(
                f"{self.entry.name} separates two classes, the target has {len(self.classes_)}; "
                "use logistic or knn-classifier"
            )
        return np.where(y == self.classes_[1], 1.0, -1.0)

    def _on(self, values: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.float64).to(self.device)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Numbers or labels, shape (n,)."""
        z = self.result_.predict(self._on(x)).cpu().numpy()
        if self.entry.task == "classification":
            return np.asarray(self.classes_[(z > 0).astype(int)])
        return np.exp(z) if self.entry.name == "poisson" else np.asarray(z)


def _made(module: Any, name: str, options: Mapping[str, Any]) -> Any:
    cls = getattr(module, name, None)
    if cls is None:
        raise ProgramError(f"this version of iceform has no {name}; update it")
    return cls(**options)


def build(entry: Entry, options: Mapping[str, Any], device: torch.device) -> Any:
    """The estimator or program with these options."""
    entry.check(options)
    if entry.estimator is None:
        return ProgramModel(entry, options, device)
    named = {("max_iter" if n == "max_passes" else n): v for n, v in options.items()}
    model = _made(importlib.import_module("iceform.sklearn"), entry.estimator, named)
    if device.type != "cpu":
        if "device" not in model.get_params():
            raise DeviceError(f"{entry.name} runs on the CPU only, got device {device}")
        model.set_params(device=str(device))
    return model


def gamma_of(model: Any) -> float:
    """The gamma that a kernel regression was fitted with."""
    return float(model._memory.gamma)


class KernelPeer:
    """Kernel regression with scikit-learn's distances; its own kernel would underflow far out."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def fit(self, x: np.ndarray, y: np.ndarray) -> KernelPeer:
        """Remember the samples."""
        self.x, self.y = x, y
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Weighted averages."""
        distances = importlib.import_module("sklearn.metrics.pairwise").euclidean_distances
        squared = distances(x, self.x, squared=True)
        weights = np.exp(self.gamma * (squared.min(1, keepdims=True) - squared))
        return np.asarray(weights @ self.y / weights.sum(1))


def build_peer(entry: Entry, options: Mapping[str, Any], classes: int) -> Any:
    """What computes the same elsewhere, with the same options."""
    module, _, name = entry.peer.rpartition(".")
    here = set(options) - {"tol", "max_passes", "precondition"}
    there = {name: entry.peer_options.get(name, name) for name in here}
    named = {peer: options[name] for name, peer in there.items() if peer is not None}
    if entry.name == "kernel":
        return KernelPeer(**named)
    peer = getattr(importlib.import_module(module), name)(**{**entry.peer_settings, **named})
    if entry.name == "logistic" and classes > 2:
        return importlib.import_module("sklearn.multiclass").OneVsRestClassifier(peer)
    return peer


# ---------------------------------------------------------------------------------------------
# what a run leaves behind
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """A figure of merit on rows that were not learnt from, ours and the peer's."""

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
class Part:
    """Some rows with their predictions."""

    name: str  # "train", "test", "unlabelled" or "new"
    rows: np.ndarray
    actual: np.ndarray | None
    predicted: np.ndarray  # (n,) or, for components, (n, k)


@dataclass(frozen=True, eq=False)
class Peer:
    """What the other library found."""

    name: str
    seconds: float
    coef: np.ndarray | None
    predicted: np.ndarray  # of the rows that are scored
    distance: float | None  # largest difference of a coefficient
    apart: float  # largest difference of a prediction, or the share of labels that differ


@dataclass(frozen=True, eq=False)
class Run:
    """A program's run on a table, and all there is to say about it.

    Attributes
    ----------
    settings, source, target, notes
        What was asked for, of which file and column, and what was done on reading it.
    preparation, unknowns
        What was done to the columns, and what the training rows did not know.
    counts
        Rows for training, testing, and without a target.
    scored
        "test" or, without test rows, "train".
    scores, coefficients, intercept
        What was found.
    certificate, digest, passes, seconds
        How it was found.
    peer
        The other library's, if it was asked.
    parts
        Predictions.
    warnings
        What was warned of on the way.
    """

    settings: Settings
    source: str
    target: str | None
    notes: tuple[str, ...]
    preparation: Preparation
    unknowns: tuple[Unknown, ...]
    counts: Mapping[str, int]
    scored: str
    scores: tuple[Score, ...]
    coefficients: tuple[Coefficient, ...]
    intercept: float | None
    certificate: Certificate
    digest: str
    passes: int
    seconds: float
    peer: Peer | None
    parts: tuple[Part, ...]
    warnings: tuple[str, ...]

    @property
    def largest(self) -> float:
        """The largest coefficient."""
        return max((abs(c.value) for c in self.coefficients), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; numbers that are not finite are null."""
        entry, peer = self.settings.entry, self.peer
        return {
            **self.settings.to_dict(),
            "data": {
                "source": self.source,
                "target": self.target,
                "rows": dict(self.counts),
                "features": len(self.preparation.names),
                "notes": list(self.notes),
            },
            "preparation": self.preparation.report(),
            "unknown_values": [vars(u) for u in self.unknowns],
            "scored_on": self.scored,
            "scores": {s.name: finite(s.ours) for s in self.scores},
            "coefficients": {c.name: finite(c.value) for c in self.coefficients},
            "intercept": None if self.intercept is None else finite(self.intercept),
            "certified_error": finite(self.certificate.error),
            "certificate_terms": {k: finite(v) for k, v in self.certificate.terms.items()},
            "passes": self.passes,
            "seconds": self.seconds,
            "digest": self.digest,
            "scikit_learn": None
            if peer is None
            else {
                "class": entry.peer,
                "differs": entry.differs or None,
                "scores": {s.name: finite(s.peer) for s in self.scores if s.peer is not None},
                "seconds": peer.seconds,
                "coefficient_distance": None if peer.distance is None else finite(peer.distance),
                "prediction_distance": finite(peer.apart),
            },
            "warnings": list(self.warnings),
        }


def finite(value: float) -> float | None:
    """The number, or None where JSON has none."""
    return float(value) if math.isfinite(value) else None


# ---------------------------------------------------------------------------------------------
# running
# ---------------------------------------------------------------------------------------------


def run(
    settings: Settings, table: Table, new: Table | None = None, tick: Tick = lambda stage: None
) -> Run:
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
        Told when a stage of :data:`STAGES` begins.
    """
    tick("preparing")
    data = Data.of(settings, table, new)
    tick("fitting")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        model = fitted(settings, data)
        seconds = time.perf_counter() - start
    tick("comparing")
    ours = _answers(model, data.scored_x)
    warned = [_message(w) for w in caught]
    peer = _compare(settings, data, model, ours, warned) if settings.compare else None
    tick("predicting")
    coef, intercept = _coefficients(model, data, peer)
    return Run(
        settings=settings,
        source=table.source,
        target=None if table.target is None else str(table.target.name),
        notes=table.notes,
        preparation=data.preparation,
        unknowns=tuple(data.unknowns),
        counts=data.counts,
        scored=data.scored,
        scores=tuple(_scores(settings, data, model, ours, peer)),
        coefficients=coef,
        intercept=intercept,
        certificate=model.certificate_,
        digest=model.digest_,
        passes=int(model.n_passes_),
        seconds=seconds,
        peer=peer,
        parts=tuple(data.predicted(model)),
        warnings=tuple(dict.fromkeys(warned)),
    )


def _message(warning: warnings.WarningMessage) -> str:
    return " ".join(str(warning.message).split())


@dataclass(frozen=True, eq=False)
class Data:
    """Matrices of every part of the table."""

    entry: Entry
    preparation: Preparation
    train: Table
    test: Table
    others: Mapping[str, Table]
    x: Mapping[str, np.ndarray]
    y: Mapping[str, np.ndarray]
    unknowns: list[Unknown]

    @classmethod
    def of(cls, settings: Settings, table: Table, new: Table | None) -> Data:
        entry = settings.entry
        known, unlabelled = table.labelled() if entry.target else (table, table.take(_NONE))
        _check_suits(entry, known)
        labels = _labels(entry, known)
        strata = labels if entry.task == "classification" else None
        known.check_varies()
        train, test = known.split(settings.test_share, settings.seed, strata)
        preparation = Preparation.fit(
            train,
            scale=settings.scale,
            reference=not entry.penalised,
            unknown=settings.unknown,
            strict=settings.strict,
        )
        parts = {"train": train, "test": test}
        others = {"unlabelled": unlabelled, **({} if new is None else {"new": new})}
        parts |= {name: part for name, part in others.items() if len(part)}
        x = {name: preparation.transform(part) for name, part in parts.items()}
        y = {n: _labels(entry, p) for n, p in (("train", train), ("test", test))}
        _check_varies(entry, train, y["train"])
        unknowns = [u for part in parts.values() for u in preparation.unknowns(part)]
        return cls(entry, preparation, train, test, others, x, y, unknowns)

    @property
    def scored(self) -> str:
        return "test" if len(self.test) else "train"

    @property
    def scored_x(self) -> np.ndarray:
        return self.x[self.scored]

    @property
    def scored_y(self) -> np.ndarray:
        return self.y[self.scored]

    @property
    def counts(self) -> dict[str, int]:
        sizes = {"train": len(self.train), "test": len(self.test)}
        return sizes | {name: len(part) for name, part in self.others.items()}

    def predicted(self, model: Any) -> list[Part]:
        """What the model says of every part but the training rows; of all rows for components."""
        tables = {"train": self.train, "test": self.test, **self.others}
        wanted = [n for n in self.x if n != "train" or not self.entry.target or n == self.scored]
        return [
            Part(
                name,
                tables[name].rows,
                self.y[name] if self.entry.target and name in self.y else None,
                _answers(model, self.x[name]),
            )
            for name in wanted
            if len(tables[name])
        ]


_NONE = np.array([], dtype=np.int64)


def _labels(entry: Entry, table: Table) -> np.ndarray:
    if not entry.target:
        return np.zeros(len(table))
    if not len(table):
        return np.zeros(0)
    return table.classes() if entry.task == "classification" else table.numbers()


def _check_suits(entry: Entry, table: Table) -> None:
    """Refuse a target with so many values that they are no classes."""
    if entry.task != "classification":
        return
    labels = table.classes()
    kinds = len(np.unique(labels))
    if kinds > 2 and 2 * kinds > len(labels):
        raise DtypeError(
            f"the target column {table.target.name!r} has {kinds:,} different values in "
            f"{len(labels):,} rows, which are no classes; name another column or use a regression"
        )


def _check_varies(entry: Entry, train: Table, y: np.ndarray) -> None:
    if not entry.target:
        return
    if len(np.unique(y)) < 2:
        raise BoundError(
            f"the target column {train.target.name!r} is always {y[0]} in the training rows: there "
            "is nothing to learn; name another column or use more rows"
        )
    if entry.name == "poisson" and (y < 0).any():
        raise BoundError(f"poisson needs counts, the target goes down to {y.min():.6g}; use ridge")


def fitted(settings: Settings, data: Data) -> Any:
    """The model, its tolerance tightened until the certificate is what was asked for."""
    device = check_device(settings.device)
    options = dict(settings.options)
    y = data.y["train"] if settings.entry.target else None
    while True:
        model = build(settings.entry, options, device)
        _check_counts(options, data)
        _fit(model, data.x["train"], y)
        certified = model.certificate_.error
        if settings.eps is None or certified <= settings.eps:
            return model
        if not _can_tighten(settings, options, model):
            raise PrecisionError(_short_of(settings, certified), best=certified)
        options["tol"] = _TIGHTENING * _tol(options, model)


def _tol(options: Mapping[str, Any], model: Any) -> float:
    own = getattr(model, "tol", getattr(getattr(model, "program", None), "tol", 0.0))
    return float(options.get("tol", own))


def _can_tighten(settings: Settings, options: Mapping[str, Any], model: Any) -> bool:
    """Whether a smaller tolerance may help, and may be taken."""
    free = "tol" in settings.entry.options and "tol" not in settings.options
    return free and _TIGHTENING * _tol(options, model) >= _TIGHTEST


def _short_of(settings: Settings, certified: float) -> str:
    name = settings.entry.name
    if not math.isfinite(certified):
        return f"no error can be certified for {name} on these data; leave out --eps"
    return (
        f"eps = {settings.eps:g} was asked for, {certified:.3g} is the error that can be certified "
        f"for {name} on these data; ask for that or more"
    )


def _fit(model: Any, x: np.ndarray, y: np.ndarray | None) -> None:
    """Fit; scikit-learn's refusal of an option is one of ours."""
    refusal = importlib.import_module("sklearn.utils._param_validation").InvalidParameterError
    try:
        model.fit(x, y)
    except refusal as refused:
        raise ProgramError(" ".join(str(refused).split())) from None


def _check_counts(options: Mapping[str, Any], data: Data) -> None:
    rows, features = data.x["train"].shape
    for name, most in (("n_neighbors", rows), ("n_components", min(rows, features))):
        if name in options and not 1 <= options[name] <= most:
            raise BoundError(
                f"{name} must be between 1 and {most} for these data, got {options[name]}"
            )


def _answers(model: Any, x: np.ndarray) -> np.ndarray:
    return np.asarray(model.predict(x) if hasattr(model, "predict") else model.transform(x))


def _compare(
    settings: Settings, data: Data, model: Any, ours: np.ndarray, warned: list[str]
) -> Peer | None:
    entry = settings.entry
    classes = len(np.unique(data.y["train"]))
    try:
        options = dict(settings.options)
        if entry.name == "kernel":  # its default depends on the data
            options["gamma"] = gamma_of(model)
        peer = build_peer(entry, options, classes)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = time.perf_counter()
            peer.fit(data.x["train"], data.y["train"])
            seconds = time.perf_counter() - start
            theirs = _answers(peer, data.scored_x)
    except (ValueError, np.linalg.LinAlgError) as failed:
        warned.append(f"scikit-learn: {' '.join(str(failed).split())}")
        return None
    warned += [f"scikit-learn: {_message(w)}" for w in caught]
    coef = _peer_coef(peer)
    return Peer(
        entry.peer, seconds, coef, theirs, _distance(model, coef), _apart(entry, ours, theirs)
    )


def _peer_coef(peer: Any) -> np.ndarray | None:
    if hasattr(peer, "estimators_") and hasattr(peer, "n_classes_"):  # one against the rest
        return np.vstack([e.coef_ for e in peer.estimators_])
    coef = getattr(peer, "coef_", getattr(peer, "components_", None))
    return None if coef is None else np.atleast_2d(coef)


def _distance(model: Any, theirs: np.ndarray | None) -> float | None:
    ours = _matrix(model)
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return None
    return float(np.abs(ours - theirs).max())


def _matrix(model: Any) -> np.ndarray | None:
    coef = getattr(model, "coef_", getattr(model, "components_", None))
    return None if coef is None else np.atleast_2d(coef)


def _apart(entry: Entry, ours: np.ndarray, theirs: np.ndarray) -> float:
    if entry.task == "classification":
        return float((ours != theirs).mean())
    return float(np.abs(ours - theirs).max()) if ours.size else 0.0


def _coefficients(
    model: Any, data: Data, peer: Peer | None
) -> tuple[tuple[Coefficient, ...], float | None]:
    coef = _matrix(model)
    if coef is None:
        return (), None
    names = _row_names(model, len(coef))
    theirs = peer.coef if peer is not None and peer.distance is not None else None
    found = tuple(
        Coefficient(
            label + name, float(coef[i, j]), None if theirs is None else float(theirs[i, j])
        )
        for i, label in enumerate(names)
        for j, name in enumerate(data.preparation.names)
    )
    intercept = np.ravel(getattr(model, "intercept_", []))
    return found, float(intercept[0]) if len(intercept) == 1 else None


def _row_names(model: Any, rows: int) -> list[str]:
    if rows == 1:
        return [""]
    classes = getattr(model, "classes_", None)
    if classes is not None and len(classes) == rows:
        return [f"{label}: " for label in classes]
    return [f"component {i + 1}: " for i in range(rows)]


def _scores(
    settings: Settings, data: Data, model: Any, ours: np.ndarray, peer: Peer | None
) -> Sequence[Score]:
    entry, y, x = settings.entry, data.scored_y, data.scored_x
    theirs = None if peer is None else peer.predicted

    def both(name: str, score: Callable[[np.ndarray], float]) -> Score:
        return Score(name, score(ours), None if theirs is None else score(theirs))

    if entry.task == "classification":
        return [both("accuracy", lambda p: float((p == y).mean()))]
    if entry.task == "decomposition":
        return [_explained(x, data.x["train"].mean(0), _matrix(model), peer)]
    found = [
        both("R²", lambda p: _r_squared(y, p)),
        both("RMSE", lambda p: float(np.sqrt(((p - y) ** 2).mean()))),
    ]
    if entry.name == "quantile":
        found.append(both("share below", lambda p: float((y <= p).mean())))
    return found


def _r_squared(y: np.ndarray, predicted: np.ndarray) -> float:
    spread = float(((y - y.mean()) ** 2).sum())
    return 1 - float(((y - predicted) ** 2).sum()) / spread if spread > 0 else math.nan


def _explained(
    x: np.ndarray, mean: np.ndarray, ours: np.ndarray | None, peer: Peer | None
) -> Score:
    """The share of the variance around the training mean that the components hold."""
    centred = x - mean
    total = float((centred**2).sum())

    def share(components: np.ndarray) -> float:
        return float(((centred @ components.T) ** 2).sum()) / total if total > 0 else math.nan

    assert ours is not None
    theirs = None if peer is None or peer.coef is None else share(peer.coef)
    return Score("variance explained", share(ours), theirs)
