"""Level 3: algorithms as prompts.

:class:`Program` subclasses run on a :class:`iceform.Machine`, :class:`StreamProgram` subclasses
on a :class:`iceform.StreamMachine`, ridge and least squares on both.
"""

from iceform.algorithms.components import PCA, Components
from iceform.algorithms.descent import GradientDescent, LeastSquares, PrincipalComponent, Ridge
from iceform.algorithms.kernels import Head, HopfieldRetrieval, NadarayaWatson, NearestNeighbors
from iceform.algorithms.neighbours import KernelRegression, KNeighbors
from iceform.algorithms.perceptron import Perceptron
from iceform.algorithms.recursion import Recursion
from iceform.algorithms.robust import Huber
from iceform.algorithms.sparse import ElasticNet, Lasso
from iceform.algorithms.stream import (
    Fit,
    LinearModel,
    LinearSVM,
    Logistic,
    Poisson,
    Quantile,
    StreamProgram,
)
from iceform.functions import LOSSES
from iceform.machine.program import Program, Result, Sizes, Target, set_library

__all__ = [
    "PCA",
    "Components",
    "ElasticNet",
    "Fit",
    "GradientDescent",
    "Head",
    "HopfieldRetrieval",
    "Huber",
    "KNeighbors",
    "KernelRegression",
    "Lasso",
    "LeastSquares",
    "LinearModel",
    "LinearSVM",
    "Logistic",
    "NadarayaWatson",
    "NearestNeighbors",
    "Perceptron",
    "Poisson",
    "PrincipalComponent",
    "Program",
    "Quantile",
    "Recursion",
    "Result",
    "Ridge",
    "Sizes",
    "StreamProgram",
    "Target",
    "library",
]


def library(tokens: int = 33) -> list[Program]:
    """The programs that a machine is sized for unless told otherwise."""
    descents = [
        GradientDescent(
            name,
            l2=0.1,
            w_bound=1.0 if name == "poisson" else 2.0,
            tokens=None if name == "squared" else tokens,
        )
        for name in LOSSES
    ]
    return [
        *descents,
        LeastSquares(),
        Ridge(),
        NadarayaWatson(),
        NearestNeighbors(),
        NearestNeighbors(k=3),
        PrincipalComponent(),
        HopfieldRetrieval(),
    ]


set_library(library)
