"""Estimators that run on one frozen attention layer, for people with a table.

``fit`` writes prompts and loops the frozen machine, ``predict`` runs it. After ``fit`` every
estimator has ``certificate_`` (how far its numbers can be from the exact algorithm's),
``attestation_`` (which weights ran), ``ledger_`` (what was computed where), ``digest_`` and
``n_passes_``. Parameters have scikit-learn's names and meaning.

Beneath them: :class:`Machine`, the frozen network that every prompt runs on, ``algorithms`` with
their records, and :func:`certify_minimiser`, which proves how far any coefficients are from the
minimiser of a loss. An estimator for an algorithm of one's own is a subclass of
:class:`LineEstimator`, say, that names it; :func:`estimator_of` finds the class of an algorithm.
"""

from iceform_estimators import algorithms
from iceform_estimators._base import InContextEstimator
from iceform_estimators._base import LinearEstimator as LineEstimator
from iceform_estimators.algorithms import EstimationAlgorithm
from iceform_estimators.estimators import (
    InContextElasticNet,
    InContextExpectileRegressor,
    InContextHuberRegressor,
    InContextKernelRegressor,
    InContextKNeighborsClassifier,
    InContextKNeighborsRegressor,
    InContextLasso,
    InContextLinearRegression,
    InContextLinearSVC,
    InContextLogisticRegression,
    InContextPCA,
    InContextPerceptron,
    InContextPoissonRegressor,
    InContextQuantileRegressor,
    InContextRidge,
)
from iceform_estimators.machine import ArraySource, Machine
from iceform_estimators.minimiser import certify_minimiser

__version__ = "0.3.0"

ESTIMATORS = sorted(kind.__name__ for kind in InContextEstimator.classes.values())
__all__ = [
    "ESTIMATORS",
    "ArraySource",
    "InContextElasticNet",
    "InContextEstimator",
    "InContextExpectileRegressor",
    "InContextHuberRegressor",
    "InContextKNeighborsClassifier",
    "InContextKNeighborsRegressor",
    "InContextKernelRegressor",
    "InContextLasso",
    "InContextLinearRegression",
    "InContextLinearSVC",
    "InContextLogisticRegression",
    "InContextPCA",
    "InContextPerceptron",
    "InContextPoissonRegressor",
    "InContextQuantileRegressor",
    "InContextRidge",
    "LineEstimator",
    "Machine",
    "algorithms",
    "certify_minimiser",
    "estimator_of",
]


def estimator_of(kind: type[EstimationAlgorithm]) -> type[InContextEstimator]:
    """The estimator whose class names this algorithm.

    Examples
    --------
    >>> from iceform_estimators import algorithms
    >>> estimator_of(algorithms.Ridge).__name__
    'InContextRidge'
    """
    return InContextEstimator.classes[kind]
