"""Algorithms as prompts: one file each, with everything about it.

An :class:`EstimationAlgorithm` is run by a :class:`iceform_estimators.Machine`. A file outside this
package that defines a subclass appears wherever these do.
"""

from iceform_estimators.algorithms.components import PCA
from iceform_estimators.algorithms.elastic_net import ElasticNet, Lasso, soft_threshold
from iceform_estimators.algorithms.expectile import Expectile
from iceform_estimators.algorithms.huber import Huber
from iceform_estimators.algorithms.index_codes import IndexCodes
from iceform_estimators.algorithms.kernel import KernelRegression
from iceform_estimators.algorithms.linear import LinearClassifier, LinearModel, fitted
from iceform_estimators.algorithms.logistic import Logistic
from iceform_estimators.algorithms.neighbours import KNeighbors, KNeighborsVote, sharpest
from iceform_estimators.algorithms.perceptron import Perceptron
from iceform_estimators.algorithms.poisson import Poisson
from iceform_estimators.algorithms.quantile import Quantile
from iceform_estimators.algorithms.record import (
    EstimationAlgorithm,
    Option,
    Peer,
    kinds,
    named,
    option,
    setting,
)
from iceform_estimators.algorithms.recursive_least_squares import Recursion
from iceform_estimators.algorithms.ridge import LinearRegression, Ridge
from iceform_estimators.algorithms.svm import LinearSVM
from iceform_estimators.machine import MachineProgram

__all__ = [
    "PCA",
    "ElasticNet",
    "EstimationAlgorithm",
    "Expectile",
    "Huber",
    "IndexCodes",
    "KNeighbors",
    "KNeighborsVote",
    "KernelRegression",
    "Lasso",
    "LinearClassifier",
    "LinearModel",
    "LinearRegression",
    "LinearSVM",
    "Logistic",
    "MachineProgram",
    "Option",
    "Peer",
    "Perceptron",
    "Poisson",
    "Quantile",
    "Recursion",
    "Ridge",
    "fitted",
    "kinds",
    "named",
    "option",
    "setting",
    "sharpest",
    "soft_threshold",
]
