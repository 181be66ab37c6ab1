"""Every algorithm with data that it takes, from its own record: a new one is here by itself."""

from __future__ import annotations

from torch import Tensor

import iceform_estimators
from iceform_estimators.algorithms import EstimationAlgorithm, LinearModel


def names() -> list[str]:
    """Every algorithm that there is."""
    return list(EstimationAlgorithm.kinds)


def made(name: str) -> EstimationAlgorithm:
    """The algorithm with its defaults."""
    return EstimationAlgorithm.kinds[name]()


def example(algorithm: EstimationAlgorithm) -> tuple[Tensor, Tensor]:
    """Its example."""
    shown = algorithm.example()
    margin = isinstance(algorithm, LinearModel) and algorithm.loss().kind == "margin"
    return shown.x, 2 * shown.y - 1 if margin else shown.y


def machine(x: Tensor, backend: str) -> iceform_estimators.Machine:
    """A machine for it."""
    return iceform_estimators.Machine(x.shape[1] + 1, backend=backend)
