"""Level 3: algorithms as prompts.

:class:`Program` subclasses run on a :class:`iceform.Machine`, :class:`StreamProgram` subclasses
on a :class:`iceform.StreamMachine`, ridge and least squares on both.
"""

from iceform.programs.base import Program, Result, Sizes, Target
from iceform.programs.components import PCA, Components
from iceform.programs.descent import GradientDescent, LeastSquares, PrincipalComponent, Ridge
from iceform.programs.kernels import Head, HopfieldRetrieval, NadarayaWatson, NearestNeighbors
from iceform.programs.neighbours import KernelRegression, KNeighbors
from iceform.programs.perceptron import Perceptron
from iceform.programs.recursion import Recursion
from iceform.programs.robust import Huber
from iceform.programs.sparse import ElasticNet, Lasso
from iceform.programs.stream import (
    Fit,
    LinearModel,
    LinearSVM,
    Logistic,
    Poisson,
    Quantile,
    StreamProgram,
)

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
]
