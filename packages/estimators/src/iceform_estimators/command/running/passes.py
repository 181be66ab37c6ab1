"""A program on a table: prepare, fit until what was asked for is certified, compare, predict."""

from __future__ import annotations

import importlib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from iceform.arithmetic import at_most
from iceform.errors import BoundError, PrecisionError, ProgramError
from iceform_estimators.algorithms import Algorithm, LinearModel, Option
from iceform_estimators.command.running.data import (
    Data,
    answers,
    build,
    chances,
    coefficient_matrix,
)
from iceform_estimators.command.running.results import (
    Coefficient,
    Peer,
    Run,
    Score,
    Settings,
    check_device,
)
from iceform_estimators.tables import Table

STAGES = ("preparing", "fitting", "comparing", "predicting")
Tick = Callable[[str], None]
_TIGHTENING = 1e-2  # of the tolerance, when an eps was asked for that is not certified yet
_TIGHTEST = 1e-15
_LEAST = float(np.finfo(float).eps)  # of a chance, whose logarithm is taken


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
    ours = answers(model, data.scored_x)
    warned = [one_line(w) for w in caught]
    peer = compare_with_peer(settings, data, model, ours, warned) if settings.compare else None
    tick("predicting")
    coef, intercept = named_coefficients(model, data, peer)
    return Run(
        settings=settings,
        source=table.source,
        target=None if table.target is None else str(table.target.name),
        notes=table.notes,
        data_digest=table.digest,
        preparation=data.preparation,
        unknowns=tuple(data.unknowns),
        counts=data.counts,
        scored=data.scored,
        scores=tuple(scores_of(settings, data, model, ours, peer)),
        coefficients=coef,
        intercept=intercept,
        certificate=model.certificate_,
        attestation=model.attestation_,
        ledger=model.ledger_,
        digest=model.digest_,
        passes=int(model.n_passes_),
        seconds=seconds,
        peer=peer,
        parts=tuple(data.predicted(model)),
        warnings=tuple(dict.fromkeys(warned)),
    )


# ---------------------------------------------------------------------------------------------
# the fit
# ---------------------------------------------------------------------------------------------


def fitted(settings: Settings, data: Data) -> Any:
    """The model, its tolerance tightened until the certificate is what was asked for."""
    device = check_device(settings.device)
    options = dict(settings.options)
    y = data.y["train"] if settings.entry.needs_target() else None
    while True:
        model = build(settings.entry, options, device, settings.backend)
        _check_counts(options, data)
        _fit(model, data.x["train"], y)
        certified = model.certificate_.error
        if settings.eps is None or certified <= settings.eps:
            return model
        if not _can_tighten(settings, options, model):
            raise PrecisionError(_short_of(settings, certified), best=certified)
        options["tol"] = _TIGHTENING * _tol(options, model)


def _tol(options: Mapping[str, Any], model: Any) -> float:
    return float(options.get("tol", getattr(model, "tol", 0.0)))


def _can_tighten(settings: Settings, options: Mapping[str, Any], model: Any) -> bool:
    """Whether a smaller tolerance may help, and may be taken."""
    free = "tol" in settings.entry.options() and "tol" not in settings.options
    return free and _TIGHTENING * _tol(options, model) >= _TIGHTEST


def _short_of(settings: Settings, certified: float) -> str:
    name = settings.entry.name
    if not math.isfinite(certified):
        return f"no error can be certified for {name} on these data; leave out --eps"
    return (
        f"eps = {settings.eps:g} was asked for, {at_most(certified, '.3g')} is the error that can "
        "be certified "
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


# ---------------------------------------------------------------------------------------------
# the same problem by scikit-learn
# ---------------------------------------------------------------------------------------------


def build_peer(entry: type[Algorithm], options: Mapping[str, Any]) -> Any:
    """What computes the same elsewhere, with the same options; None where nobody does."""
    peer = entry.peer
    if peer is None:
        return None
    own = {n: o for n, o in entry.options().items() if not _of_the_loop(o)}
    here = {n: own[n].parse(v) for n, v in options.items() if n in own}
    there = {peer.options.get(n, own[n].estimator): v for n, v in here.items()}
    named = {name: value for name, value in there.items() if name is not None}
    settings = {**peer.settings, **named}
    if peer.made is not None:
        return peer.made(**settings)
    module, _, name = peer.path.rpartition(".")
    return getattr(importlib.import_module(module), name)(**settings)


def _of_the_loop(one: Option) -> bool:
    """Whether an option is about our loop, which a peer does not have."""
    return one.name in LinearModel.options()


def compare_with_peer(
    settings: Settings, data: Data, model: Any, ours: np.ndarray, warned: list[str]
) -> Peer | None:
    """What scikit-learn finds on the same matrices; None, with a warning, where it fails."""
    entry = settings.entry
    try:
        options = dict(settings.options)
        if hasattr(model, "gamma_"):  # its default depends on the data
            options["gamma"] = model.gamma_
        peer = build_peer(entry, options)
        if peer is None:
            warned.append(f"nobody else is known to compute {entry.name}: nothing to compare with")
            return None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = time.perf_counter()
            peer.fit(data.x["train"], data.y["train"])
            seconds = time.perf_counter() - start
            theirs, shares = answers(peer, data.scored_x), chances(peer, data.scored_x)
    except (ValueError, np.linalg.LinAlgError) as failed:
        warned.append(f"scikit-learn: {' '.join(str(failed).split())}")
        return None
    warned += [f"scikit-learn: {one_line(w)}" for w in caught]
    coef = coefficient_matrix(peer)
    assert entry.peer is not None
    return Peer(
        entry.peer.path, seconds, coef, theirs, _distance(model, coef),
        _apart(entry, ours, theirs), shares,
    )  # fmt: skip


def one_line(warning: warnings.WarningMessage) -> str:
    """A warning's message without its line breaks."""
    return " ".join(str(warning.message).split())


def _distance(model: Any, theirs: np.ndarray | None) -> float | None:
    ours = coefficient_matrix(model)
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return None
    return float(np.abs(ours - theirs).max())


def _apart(entry: type[Algorithm], ours: np.ndarray, theirs: np.ndarray) -> float:
    if entry.task == "classification":
        return float((ours != theirs).mean())
    return float(np.abs(ours - theirs).max()) if ours.size else 0.0


# ---------------------------------------------------------------------------------------------
# coefficients and figures of merit
# ---------------------------------------------------------------------------------------------


def named_coefficients(
    model: Any, data: Data, peer: Peer | None
) -> tuple[tuple[Coefficient, ...], float | None]:
    """Every coefficient beside the peer's, and the intercept where there is one."""
    coef = coefficient_matrix(model)
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


def scores_of(
    settings: Settings, data: Data, model: Any, ours: np.ndarray, peer: Peer | None
) -> Sequence[Score]:
    """The figures of merit that suit the task, on the rows that are scored."""
    entry, y, x = settings.entry, data.scored_y, data.scored_x
    theirs = None if peer is None else peer.predicted

    def both(name: str, score: Callable[[np.ndarray], float]) -> Score:
        return Score(name, score(ours), None if theirs is None else score(theirs))

    if entry.task == "classification":
        right = both("accuracy", lambda p: float((p == y).mean()))
        return [right, *_of_chances(y, model, chances(model, x), peer)]
    if entry.task == "decomposition":
        return [_explained(x, data.x["train"].mean(0), coefficient_matrix(model), peer)]
    scores = {
        "R²": lambda p: _r_squared(y, p),
        "RMSE": lambda p: float(np.sqrt(((p - y) ** 2).mean())),
        "MAE": lambda p: float(np.abs(p - y).mean()),
        "median error": lambda p: float(np.median(np.abs(p - y))),
        **_of_loss(y, model.as_algorithm(), ours),
    }
    return [both(name, score) for name, score in scores.items()]


def _of_loss(
    y: np.ndarray, algorithm: Algorithm, ours: np.ndarray
) -> dict[str, Callable[[np.ndarray], float]]:
    """Those that the algorithm's record has."""

    def told(predicted: np.ndarray) -> dict[str, float]:
        return algorithm.scores(*(torch.as_tensor(part).double() for part in (y, predicted)))

    def one(name: str, predicted: np.ndarray) -> float:
        return told(predicted)[name]

    return {name: partial(one, name) for name in told(ours)}


def _of_chances(
    y: np.ndarray, model: Any, ours: np.ndarray | None, peer: Peer | None
) -> list[Score]:
    """Log-loss and Brier's score; a class that was not learnt has the chance 0."""
    if ours is None or not len(y):
        return []
    own = y[:, None] == model.classes_
    theirs = None if peer is None else peer.chances

    def log_loss(p: np.ndarray) -> float:
        return float(-np.log(np.maximum((p * own).sum(1), _LEAST)).mean())

    def brier(p: np.ndarray) -> float:
        unknown = (~own.any(1)).astype(float)  # all of its own column is missed
        squares = ((p - own) ** 2).sum(1) + unknown
        return float(squares.mean()) / (2 if p.shape[1] == 2 else 1)

    return [
        Score(name, score(ours), None if theirs is None else score(theirs))
        for name, score in (("log-loss", log_loss), ("Brier score", brier))
    ]


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
