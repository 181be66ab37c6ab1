"""Each algorithm of the library with data, what to compile it for, and its peer elsewhere.

A peer is another library's answer to the same question, or the textbook's formula in NumPy where
there is no such library; ``within`` is how far apart the two may be for reasons of the algorithm
(an iteration that is not yet at its limit), not of the computer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iceform.computer import library


@dataclass(frozen=True)
class Case:
    """One algorithm on one set of data."""

    algorithm: Any
    X: Tensor
    y: Tensor
    peer: Callable[[np.ndarray, np.ndarray], Any]
    within: float
    settings: dict[str, Any] = field(default_factory=dict)
    compiled: dict[str, Any] = field(default_factory=dict)
    smooth: bool = True  # whether 1e-8 is to be certified


def _uniform(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = 2 * torch.rand(n, d, dtype=torch.float64, generator=generator) - 1
    return X, 2 * torch.rand(n, dtype=torch.float64, generator=generator) - 1


_X, _Y = _uniform(12, 3)
_LABELS = (_X @ torch.tensor([1.0, -0.5, 0.3]).double() + 0.3 * _Y > 0).double()


def _scikit(make: Callable[[], Any]) -> Callable[[np.ndarray, np.ndarray], Any]:
    return lambda X, y: make().fit(X, y).coef_


def _lasso(alpha: float) -> Any:
    from sklearn.linear_model import Lasso

    return Lasso(alpha=alpha, fit_intercept=False, tol=1e-12, max_iter=100_000)


def _elastic(alpha: float, ratio: float) -> Any:
    from sklearn.linear_model import ElasticNet

    return ElasticNet(alpha=alpha, l1_ratio=ratio, fit_intercept=False, tol=1e-12, max_iter=100_000)


def _least_squares(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(X, y, rcond=None)[0]


def _ridge(alpha: float) -> Callable[[np.ndarray, np.ndarray], Any]:
    def solve(X: np.ndarray, y: np.ndarray) -> Any:
        from sklearn.linear_model import Ridge

        return Ridge(alpha=alpha * len(X), fit_intercept=False, tol=1e-14).fit(X, y).coef_

    return solve


def _minimised(loss: Callable[[np.ndarray], np.ndarray], alpha: float = 0.0) -> Any:
    def solve(X: np.ndarray, y: np.ndarray) -> Any:
        from scipy.optimize import minimize

        def objective(w: np.ndarray) -> float:
            return float(np.mean(loss(X @ w, y)) + alpha / 2 * w @ w)  # type: ignore[call-arg]

        return minimize(objective, np.zeros(X.shape[1]), method="BFGS", options={"gtol": 1e-10}).x

    return solve


def _huber_loss(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    from scipy.special import huber

    return huber(0.5, z - y)


def _logistic_loss(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, z) - y * z


def _perceptron(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    w = np.zeros(X.shape[1])
    for _ in range(20):
        wrong = y * (X @ w) < 0.1
        w = w + 0.5 * (X * (y * wrong)[:, None]).mean(0)
    return w


def _solved(alpha: float) -> Any:
    def solve(X: np.ndarray, y: np.ndarray) -> Any:
        from scipy.sparse.linalg import cg

        matrix = X.T @ X / len(X) + alpha * np.eye(X.shape[1])
        return cg(matrix, X.T @ y / len(X), rtol=1e-14)[0]

    return solve


def _leading(X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    from scipy.linalg import eigh

    values, vectors = eigh(X.T @ X / len(X))
    v = vectors[:, -1]
    return {"value": values[-1], "vector": v * np.sign(v.sum())}


# ------------------------------------------------------------------------------------ matrices

_LINKS = np.array([[0, 0, 1, 0.5], [1 / 3, 0, 0, 0], [1 / 3, 0.5, 0, 0.5], [1 / 3, 0.5, 0, 0]])
_PLACES = torch.arange(4, dtype=torch.float64) / 4


def _pagerank(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(4))
    graph.add_weighted_edges_from((j, i, X[i, j]) for i in range(4) for j in range(4) if X[i, j])
    found = nx.pagerank(graph, alpha=0.85, tol=1e-14, max_iter=1000)
    return np.array([found[i] for i in range(4)])


_COSTS = torch.exp(-_uniform(4, 4, 5)[0].abs())
_ROWS = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def _sinkhorn(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    u, v = np.ones(4), np.ones(4)
    for _ in range(20):
        u = y / (X @ v)
        v = 0.25 / (X.T @ u)
    return {"u": u, "v": v}


_WAYS = torch.tensor(
    [[0, 1, 1, 0.1], [0.3, 0, 1, 1], [0.9, 0.2, 0, 1], [1, 1, 0.15, 0]], dtype=torch.float64
)


def _shortest(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_weighted_edges_from(
        (j, i, X[i, j]) for i in range(4) for j in range(4) if 0 < X[i, j] < 1
    )
    found = nx.single_source_bellman_ford_path_length(graph, 0)
    return np.array([found[i] for i in range(4)])


_POINTS = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
_HEIGHTS = torch.sin(2 * _POINTS[:, 0])
_KERNEL = torch.exp(-((_POINTS - _POINTS.T) ** 2) / 0.5) * 0.5 + 0.2 * torch.eye(5).double()
_SIMILAR = 0.5 * torch.exp(-((_POINTS[:, 0] - 0.3) ** 2) / 0.5)


def _process(X: np.ndarray, y: np.ndarray) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    kernel = ConstantKernel(0.5, "fixed") * RBF(0.5, "fixed")
    model = GaussianProcessRegressor(kernel, alpha=0.2, optimizer=None)
    return model.fit(_POINTS.numpy(), y).predict([[0.3]])[0]


# ---------------------------------------------------------------------------------- similarity

_QUERY = torch.tensor([0.2, -0.1, 0.3], dtype=torch.float64)


def _attention(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    from scipy.special import softmax

    return softmax(2.0 * X @ X.T, axis=1) @ X


def _kernel(X: np.ndarray, y: np.ndarray) -> Any:
    from sklearn.metrics.pairwise import rbf_kernel

    weights = rbf_kernel(_QUERY.numpy()[None], X, gamma=2.0)[0]
    return weights @ y / weights.sum()


def _neighbours(X: np.ndarray, y: np.ndarray) -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor(3).fit(X, y).predict(_QUERY.numpy()[None])[0]


_LINE = torch.arange(5, dtype=torch.float64)[:, None] * 0.5 - 1
_REWARDS = torch.tensor([0.1, -0.2, 0.3, 0.0, 0.5], dtype=torch.float64)


def _values(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    value = np.zeros(len(y))
    for _ in range(10):
        left, right = value[[0, 0, 1, 2, 3]], value[[1, 2, 3, 4, 4]]
        value = y + 0.5 * np.maximum(value, np.maximum(left, right))
    return value


_TIMES = torch.arange(8, dtype=torch.float64)[:, None] * 0.1
_SEEN = _uniform(8, 1, 9)[1]


def _kalman(X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    state, spread = 0.0, 1.0
    for seen in y:
        spread += 0.1
        gain = spread / (spread + 0.2)
        state, spread = state + gain * (seen - state), (1 - gain) * spread
    return {"state": state, "spread": spread}


# ---------------------------------------------------------------------------------- statistics

_GROUPS = torch.cat([_uniform(6, 2, 3)[0] * 0.4 - 0.5, _uniform(6, 2, 4)[0] * 0.4 + 0.5])


def _centres(X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    from sklearn.cluster import KMeans

    start = np.array([[-0.5, -0.5], [0.5, 0.5]])
    found = KMeans(2, init=start, n_init=1, tol=0.0).fit(X).cluster_centers_
    return {"first": found[0], "second": found[1]}


def _two_normals(X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    from scipy.stats import norm

    a, b, share = -0.5, 0.5, 0.5
    for _ in range(10):
        mine = share * norm.pdf(y, a, 0.3)
        mine = mine / (mine + (1 - share) * norm.pdf(y, b, 0.3))
        share = mine.mean()
        a, b = (mine * y).mean() / share, ((1 - mine) * y).mean() / (1 - share)
    return {"left": a, "right": b, "share": share}


def _median(X: np.ndarray, y: np.ndarray) -> Any:
    from scipy.optimize import minimize

    def objective(m: np.ndarray) -> float:
        return float(np.sqrt(((X - m) ** 2).sum(1) + 0.1).mean())

    return minimize(objective, X.mean(0), method="BFGS", options={"gtol": 1e-11}).x


def _root(X: np.ndarray, y: np.ndarray) -> Any:
    from scipy.optimize import brentq

    return brentq(lambda t: np.tanh(4 * (y - t)).mean(), -1, 1, xtol=1e-14)


_SIGNS = 2 * _LABELS - 1
_PAIR, _PAIR_Y = _uniform(12, 2, 2)
_PAIR_LABELS = (_PAIR[:, 0] + 0.3 * _PAIR_Y > 0).double()
_BOXED = {"bounds": {"w": 4.0}}

CASES: dict[str, Case] = {
    c.algorithm.name: c
    for c in (
        Case(library.least_squares, _X, _Y, _least_squares, 1e-2, {"steps": 50}, _BOXED),
        Case(library.huber, _X, _Y, _minimised(_huber_loss), 1e-2, {"steps": 50}, _BOXED, False),
        Case(library.nesterov, _X, _Y, _least_squares, 1e-2, {"steps": 30}),
        Case(library.ridge, _X, _Y, _ridge(0.1), 1e-3, {"steps": 40}, _BOXED),
        Case(
            library.lasso, _X, _Y, _scikit(lambda: _lasso(0.05)), 1e-3, {"steps": 40}, _BOXED, False
        ),
        Case(
            library.elastic_net,
            _X,
            _Y,
            _scikit(lambda: _elastic(0.05, 0.5)),
            1e-3,
            {"steps": 40},
            _BOXED,
            False,
        ),
        Case(
            library.logistic,
            _X,
            _LABELS,
            _minimised(_logistic_loss, 0.1),
            1e-3,
            {"steps": 60},
            _BOXED,
        ),
        Case(library.perceptron, _X, _SIGNS, _perceptron, 1e-12, {"steps": 20}, _BOXED),
        Case(
            library.newton_logistic,
            _PAIR,
            _PAIR_LABELS,
            _minimised(_logistic_loss, 0.1),
            1e-6,
            {"steps": 5},
            {"bounds": {"w": 4.0}},
        ),
        Case(library.conjugate_gradients, _PAIR, _PAIR_Y, _solved(0.2), 1e-9, {"steps": 2}),
        Case(library.power_iteration, _X, _Y, _leading, 1e-3, {"steps": 25}),
        Case(
            library.pagerank,
            torch.tensor(_LINKS),
            _PLACES,
            _pagerank,
            1e-4,
            {"places": _PLACES, "steps": 30},
            {"nodes": (4, 4), "damping": (0.5, 0.9)},
        ),
        Case(
            library.sinkhorn,
            _COSTS,
            _ROWS,
            _sinkhorn,
            1e-12,
            {"steps": 20},
            {"domain": {"x": (0, 1), "y": (0, 1)}, "rows": (4, 4), "columns": (0.2, 0.3)},
        ),
        Case(
            library.bellman_ford,
            _WAYS,
            _PLACES,
            _shortest,
            1e-12,
            {"places": _PLACES, "source": torch.tensor([0.0, 2, 2, 2]).double(), "steps": 3},
            {"nodes": (4, 4), "source": (0, 2)},
            False,
        ),
        Case(
            library.gaussian_process,
            _KERNEL,
            _HEIGHTS,
            _process,
            1e-2,
            {"similar": _SIMILAR, "steps": 150},
        ),
        Case(library.softmax_attention, _X, _Y, _attention, 1e-12),
        Case(library.kernel_regression, _X, _Y, _kernel, 1e-12, {"query": _QUERY}),
        Case(
            library.nearest_neighbours,
            _X,
            _Y,
            _neighbours,
            1e-12,
            {"query": _QUERY},
            {"share": (0.1, 0.5)},
        ),
        Case(
            library.value_iteration,
            _LINE,
            _REWARDS,
            _values,
            1e-12,
            {"steps": 10},
            {"sharpness": (160, 160)},
            False,
        ),
        Case(
            library.kalman_filter,
            _TIMES,
            _SEEN,
            _kalman,
            1e-12,
            {"steps": 8},
            {"sharpness": (4000, 4000)},
        ),
        Case(library.k_means, _GROUPS, torch.zeros(12).double(), _centres, 1e-12, {"steps": 6}),
        Case(
            library.mixture,
            _GROUPS,
            _GROUPS[:, 0],
            _two_normals,
            1e-12,
            {"steps": 10},
            {"sigma": (0.3, 0.3)},
        ),
        Case(library.geometric_median, _X, _Y, _median, 1e-5, {"steps": 20}),
        Case(library.bisection, _X, _Y, _root, 1e-2),
    )
}
