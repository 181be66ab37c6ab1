"""Algorithms as prompts: one file each, with everything about it.

An :class:`Algorithm` is run by a :class:`iceform.Machine` of a layout that it names among its
engines. A file outside this package that defines a subclass appears wherever these do.
"""

from iceform.algorithms.components import PCA
from iceform.algorithms.descent import Descent
from iceform.algorithms.expectile import Expectile
from iceform.algorithms.head import Head
from iceform.algorithms.hopfield import HopfieldRetrieval
from iceform.algorithms.kernel import KernelRegression
from iceform.algorithms.lasso import Lasso
from iceform.algorithms.linear import LinearClassifier, LinearModel, fitted
from iceform.algorithms.linear_regression import LinearRegression
from iceform.algorithms.logistic import Logistic
from iceform.algorithms.neighbours import KNeighbors, KNeighborsVote, sharpest
from iceform.algorithms.perceptron import Perceptron
from iceform.algorithms.places import Places
from iceform.algorithms.poisson import Poisson
from iceform.algorithms.quantile import Quantile
from iceform.algorithms.record import Algorithm, Option, Peer, kinds, named, option
from iceform.algorithms.recursion import Recursion
from iceform.algorithms.ridge import Ridge
from iceform.algorithms.robust import Huber
from iceform.algorithms.sparse import ElasticNet, soft_threshold
from iceform.algorithms.svm import LinearSVM
from iceform.algorithms.verification import enclosed
from iceform.functions import LOSSES
from iceform.machine.machine import Program, Sizes, Target, set_library

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
