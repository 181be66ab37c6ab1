"""Algorithms as prompts: one file each, with everything about it.

An :class:`Algorithm` is run by a :class:`iceform_estimators.Machine` of a layout that it names
among its engines. A file outside this package that defines a subclass appears wherever these do.
"""

from iceform.functions import LOSSES
from iceform_estimators.algorithms.components import PCA
from iceform_estimators.algorithms.descent import Descent
from iceform_estimators.algorithms.expectile import Expectile
from iceform_estimators.algorithms.head import Head
from iceform_estimators.algorithms.hopfield import HopfieldRetrieval
from iceform_estimators.algorithms.kernel import KernelRegression
from iceform_estimators.algorithms.lasso import Lasso
from iceform_estimators.algorithms.linear import LinearClassifier, LinearModel, fitted
from iceform_estimators.algorithms.linear_regression import LinearRegression
from iceform_estimators.algorithms.logistic import Logistic
from iceform_estimators.algorithms.neighbours import KNeighbors, KNeighborsVote, sharpest
from iceform_estimators.algorithms.perceptron import Perceptron
from iceform_estimators.algorithms.places import Places
from iceform_estimators.algorithms.poisson import Poisson
from iceform_estimators.algorithms.quantile import Quantile
from iceform_estimators.algorithms.record import Algorithm, Option, Peer, kinds, named, option
from iceform_estimators.algorithms.recursion import Recursion
from iceform_estimators.algorithms.ridge import Ridge
from iceform_estimators.algorithms.robust import Huber
from iceform_estimators.algorithms.sparse import ElasticNet, soft_threshold
from iceform_estimators.algorithms.svm import LinearSVM
from iceform_estimators.algorithms.verification import enclosed
from iceform_estimators.machine.machine import Program, Sizes, Target, set_library

__all__ = [
    "PCA",
    "Algorithm",
    "Descent",
    "ElasticNet",
    "Expectile",
    "Head",
    "HopfieldRetrieval",
    "Huber",
    "KNeighbors",
    "KNeighborsVote",
    "KernelRegression",
    "Lasso",
    "LinearClassifier",
    "LinearModel",
    "LinearRegression",
    "LinearSVM",
    "Logistic",
    "Option",
    "Peer",
    "Perceptron",
    "Places",
    "Poisson",
    "Program",
    "Quantile",
    "Recursion",
    "Ridge",
    "Sizes",
    "Target",
    "enclosed",
    "fitted",
    "kinds",
    "library",
    "named",
    "option",
    "sharpest",
    "soft_threshold",
]


_SHARPEST = 200.0  # gamma of the narrowest kernel that a machine in rows is sized for


def library(tokens: int = 33) -> list[Program]:
    """The programs that a machine in rows is sized for unless told otherwise."""
    descents = [
        Descent(
            name,
            l2=0.1,
            w_bound=1.0 if name == "poisson" else 2.0,
            tokens=None if name == "squared" else tokens,
        )
        for name in LOSSES
    ]
    return [
        *descents,
        LinearRegression(),
        Ridge(),
        KernelRegression(2.0),
        KernelRegression(_SHARPEST),
        PCA(),
        HopfieldRetrieval(),
    ]


set_library(library)
