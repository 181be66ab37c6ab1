"""The matrices of a table's parts, and estimators that are built and read alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from iceform.errors import BoundError, DtypeError
from iceform_estimators import estimator_of
from iceform_estimators.algorithms import Algorithm
from iceform_estimators.command.running.results import Part, Settings
from iceform_estimators.tables import Preparation, Table, Unknown

_NONE = np.array([], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Data:
    """Matrices of every part of the table."""

    entry: type[Algorithm]
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
        known, unlabelled = table.labelled() if entry.needs_target() else (table, table.take(_NONE))
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
        wanted = [
            n for n in self.x if n != "train" or not self.entry.needs_target() or n == self.scored
        ]
        return [
            Part(
                name,
                tables[name].rows,
                self.y[name] if self.entry.needs_target() and name in self.y else None,
                answers(model, self.x[name]),
            )
            for name in wanted
            if len(tables[name])
        ]


def _labels(entry: type[Algorithm], table: Table) -> np.ndarray:
    if not entry.needs_target():
        return np.zeros(len(table))
    if not len(table):
        return np.zeros(0)
    return table.classes() if entry.task == "classification" else table.numbers()


def _check_suits(entry: type[Algorithm], table: Table) -> None:
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


def _check_varies(entry: type[Algorithm], train: Table, y: np.ndarray) -> None:
    if not entry.needs_target():
        return
    if len(np.unique(y)) < 2:
        raise BoundError(
            f"the target column {train.target.name!r} is always {y[0]} in the training rows: there "
            "is nothing to learn; name another column or use more rows"
        )


def build(
    entry: type[Algorithm], options: Mapping[str, Any], device: torch.device, backend: str = "auto"
) -> Any:
    """The estimator with these options."""
    entry.check_options(options)
    known = entry.options()
    named = {known[n].estimator: known[n].parse(v) for n, v in options.items()}
    where = None if device.type == "cpu" else str(device)
    return estimator_of(entry)(**named, device=where, backend=backend)


def answers(model: Any, x: np.ndarray) -> np.ndarray:
    """Predictions of shape (n,) or, of components, scores of shape (n, k)."""
    return np.asarray(model.predict(x) if hasattr(model, "predict") else model.transform(x))


def chances(model: Any, x: np.ndarray) -> np.ndarray | None:
    """Probabilities of the classes, shape (n, k); None where a model tells none."""
    return np.asarray(model.predict_proba(x)) if hasattr(model, "predict_proba") else None


def coefficient_matrix(model: Any) -> np.ndarray | None:
    """Coefficients or components as rows, shape (k, d); None where the model has none."""
    coef = getattr(model, "coef_", getattr(model, "components_", None))
    return None if coef is None else np.atleast_2d(coef)
