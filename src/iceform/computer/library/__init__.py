"""Algorithms written in the language, each at most fifteen lines."""

from iceform.computer.language import Algorithm
from iceform.computer.library.descent import (
    elastic_net,
    gradient_descent,
    huber,
    lasso,
    least_squares,
    logistic,
    nesterov,
    perceptron,
    ridge,
)
from iceform.computer.library.examples import EXAMPLES, Example
from iceform.computer.library.matrices import bellman_ford, gaussian_process, pagerank, sinkhorn
from iceform.computer.library.similarity import (
    kalman_filter,
    kernel_regression,
    nearest_neighbours,
    softmax_attention,
    value_iteration,
)
from iceform.computer.library.solvers import conjugate_gradients, newton_logistic, power_iteration
from iceform.computer.library.statistics import bisection, geometric_median, k_means, mixture

__all__ = [
    "ALGORITHMS",
    "EXAMPLES",
    "Example",
    "bellman_ford",
    "bisection",
    "conjugate_gradients",
    "elastic_net",
    "gaussian_process",
    "geometric_median",
    "gradient_descent",
    "huber",
    "k_means",
    "kalman_filter",
    "kernel_regression",
    "lasso",
    "least_squares",
    "logistic",
    "mixture",
    "nearest_neighbours",
    "nesterov",
    "newton_logistic",
    "pagerank",
    "perceptron",
    "power_iteration",
    "ridge",
    "sinkhorn",
    "softmax_attention",
    "value_iteration",
]

ALGORITHMS: dict[str, Algorithm] = {name: e.algorithm for name, e in EXAMPLES.items()}
