"""Coefficients with their names, and figures of merit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from iceform.cli.running.data import Data
from iceform.cli.running.models import chances, coefficient_matrix
from iceform.cli.running.results import Coefficient, Peer, Score
from iceform.cli.running.settings import Settings

__all__ = ["named_coefficients", "scores_of"]

_LEAST = float(np.finfo(float).eps)  # of a chance, whose logarithm is taken


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
        **_of_loss(y, model),
    }
    return [both(name, score) for name, score in scores.items()]


def _of_loss(y: np.ndarray, model: Any) -> dict[str, Callable[[np.ndarray], float]]:
    """What a fit minimises the mean of, where that is no squared or absolute error."""
    below = getattr(model, "quantile", None)
    if below is not None:
        return {
            "pinball loss": lambda p: float(
                np.maximum(below * (y - p), (below - 1) * (y - p)).mean()
            ),
            "share below": lambda p: float((y <= p).mean()),
        }
    tau = getattr(model, "expectile", None)
    if tau is not None:
        return {
            "expectile loss": lambda p: float((np.where(y > p, tau, 1 - tau) * (y - p) ** 2).mean())
        }
    if model.algorithm.name == "poisson":
        return {"Poisson deviance": lambda p: _poisson_deviance(y, p)}
    return {}


def _poisson_deviance(y: np.ndarray, predicted: np.ndarray) -> float:
    logs = np.where(y > 0, y * np.log(np.where(y > 0, y, 1.0) / predicted), 0.0)
    return float(2 * (logs - y + predicted).mean())


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
