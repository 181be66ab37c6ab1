"""The same problem by scikit-learn, and how far the two are apart."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from iceform.cli.catalogue import Entry
from iceform.cli.running.data import Data
from iceform.cli.running.models import answers, coefficient_matrix, gamma_of
from iceform.cli.running.results import Peer
from iceform.cli.running.settings import Settings

__all__ = ["KernelPeer", "build_peer", "compare_with_peer", "one_line"]


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


def compare_with_peer(
    settings: Settings, data: Data, model: Any, ours: np.ndarray, warned: list[str]
) -> Peer | None:
    """What scikit-learn finds on the same matrices; None, with a warning, where it fails."""
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
            theirs = answers(peer, data.scored_x)
    except (ValueError, np.linalg.LinAlgError) as failed:
        warned.append(f"scikit-learn: {' '.join(str(failed).split())}")
        return None
    warned += [f"scikit-learn: {one_line(w)}" for w in caught]
    coef = _peer_coef(peer)
    return Peer(
        entry.peer, seconds, coef, theirs, _distance(model, coef), _apart(entry, ours, theirs)
    )


def one_line(warning: warnings.WarningMessage) -> str:
    """A warning's message without its line breaks."""
    return " ".join(str(warning.message).split())


def _peer_coef(peer: Any) -> np.ndarray | None:
    if hasattr(peer, "estimators_") and hasattr(peer, "n_classes_"):  # one against the rest
        return np.vstack([e.coef_ for e in peer.estimators_])
    coef = getattr(peer, "coef_", getattr(peer, "components_", None))
    return None if coef is None else np.atleast_2d(coef)


def _distance(model: Any, theirs: np.ndarray | None) -> float | None:
    ours = coefficient_matrix(model)
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return None
    return float(np.abs(ours - theirs).max())


def _apart(entry: Entry, ours: np.ndarray, theirs: np.ndarray) -> float:
    if entry.task == "classification":
        return float((ours != theirs).mean())
    return float(np.abs(ours - theirs).max()) if ours.size else 0.0
