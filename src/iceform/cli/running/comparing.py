"""The same problem by scikit-learn, and how far the two are apart."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from iceform.algorithms import Algorithm, LinearModel, Option
from iceform.cli.running.data import Data
from iceform.cli.running.models import answers, chances, coefficient_matrix
from iceform.cli.running.results import Peer
from iceform.cli.running.settings import Settings

__all__ = ["build_peer", "compare_with_peer", "one_line"]


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
    coef = _peer_coef(peer)
    assert entry.peer is not None
    return Peer(
        entry.peer.path, seconds, coef, theirs, _distance(model, coef),
        _apart(entry, ours, theirs), shares,
    )  # fmt: skip


def one_line(warning: warnings.WarningMessage) -> str:
    """A warning's message without its line breaks."""
    return " ".join(str(warning.message).split())


def _peer_coef(peer: Any) -> np.ndarray | None:
    coef = getattr(peer, "coef_", getattr(peer, "components_", None))
    return None if coef is None else np.atleast_2d(coef)


def _distance(model: Any, theirs: np.ndarray | None) -> float | None:
    ours = coefficient_matrix(model)
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return None
    return float(np.abs(ours - theirs).max())


def _apart(entry: type[Algorithm], ours: np.ndarray, theirs: np.ndarray) -> float:
    if entry.task == "classification":
        return float((ours != theirs).mean())
    return float(np.abs(ours - theirs).max()) if ours.size else 0.0
