"""A program on a table: prepare, fit, compare, predict."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

from iceform.cli.running.comparing import compare_with_peer, one_line
from iceform.cli.running.data import Data
from iceform.cli.running.fitting import fitted
from iceform.cli.running.models import answers
from iceform.cli.running.results import Run
from iceform.cli.running.scoring import named_coefficients, scores_of
from iceform.cli.running.settings import Settings
from iceform.tables import Table

__all__ = ["STAGES", "Tick", "run"]

STAGES = ("preparing", "fitting", "comparing", "predicting")
Tick = Callable[[str], None]


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
