"""Level 3: algorithms as prompts for one frozen machine."""

from iceform.programs.base import Program, Result, Sizes, Target
from iceform.programs.descent import GradientDescent, LeastSquares, PrincipalComponent, Ridge
from iceform.programs.kernels import Head, HopfieldRetrieval, NadarayaWatson, NearestNeighbors

__all__ = [
    "GradientDescent",
    "Head",
    "HopfieldRetrieval",
    "LeastSquares",
    "NadarayaWatson",
    "NearestNeighbors",
    "PrincipalComponent",
    "Program",
    "Result",
    "Ridge",
    "Sizes",
    "Target",
]
