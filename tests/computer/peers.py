"""Each example of the library beside its peer elsewhere.

A peer is another library's answer to the same question, or the textbook's formula in NumPy where
there is no such library; ``within`` is how far apart the two may be for reasons of the algorithm
(an iteration that is not yet at its limit), not of the computer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from iceform.computer.library import EXAMPLES, LibraryExample, classics


@dataclass(frozen=True)
class Case:
    """An example of the library beside its peer."""

    example: LibraryExample
    peer: Callable[[np.ndarray, np.ndarray], Any]
    within: float

    algorithm = property(lambda self: self.example.algorithm)
    X = property(lambda self: self.example.X)
    y = property(lambda self: self.example.y)
    settings = property(lambda self: self.example.settings)
    compiled = property(lambda self: self.example.compiled)


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


def _pagerank(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(4))
    graph.add_weighted_edges_from((j, i, X[i, j]) for i in range(4) for j in range(4) if X[i, j])
    found = nx.pagerank(graph, alpha=0.85, tol=1e-14, max_iter=1000)
    return np.array([found[i] for i in range(4)])


def _sinkhorn(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    u, v = np.ones(4), np.ones(4)
    for _ in range(20):
        u = y / (X @ v)
        v = 0.25 / (X.T @ u)
    return {"u": u, "v": v}


def _shortest(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_weighted_edges_from(
        (j, i, X[i, j]) for i in range(4) for j in range(4) if 0 < X[i, j] < 1
    )
    found = nx.single_source_bellman_ford_path_length(graph, 0)
    return np.array([found[i] for i in range(4)])


def _process(X: np.ndarray, y: np.ndarray) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    kernel = ConstantKernel(0.5, "fixed") * RBF(0.5, "fixed")
    model = GaussianProcessRegressor(kernel, alpha=0.2, optimizer=None)
    return model.fit(np.linspace(-1, 1, 5)[:, None], y).predict([[0.3]])[0]


# ---------------------------------------------------------------------------------- similarity


_QUERY = EXAMPLES["kernel_regression"].settings["query"].numpy()


def _attention(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    from scipy.special import softmax

    return softmax(2.0 * X @ X.T, axis=1) @ X


def _kernel(X: np.ndarray, y: np.ndarray) -> Any:
    from sklearn.metrics.pairwise import rbf_kernel

    weights = rbf_kernel(_QUERY[None], X, gamma=2.0)[0]
    return weights @ y / weights.sum()


def _neighbours(X: np.ndarray, y: np.ndarray) -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor(3).fit(X, y).predict(_QUERY[None])[0]


def _values(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    value = np.zeros(len(y))
    for _ in range(10):
        left, right = value[[0, 0, 1, 2, 3]], value[[1, 2, 3, 4, 4]]
        value = y + 0.5 * np.maximum(value, np.maximum(left, right))
    return value


def _kalman(X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    state, spread = 0.0, 1.0
    for seen in y:
        spread += 0.1
        gain = spread / (spread + 0.2)
        state, spread = state + gain * (seen - state), (1 - gain) * spread
    return {"state": state, "spread": spread}


# ---------------------------------------------------------------------------------- statistics


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


def _collatz(X: np.ndarray, y: np.ndarray) -> float:
    n, steps = int(y[0]), 0
    while n > 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return float(steps)


def _brackets(X: np.ndarray, y: np.ndarray) -> float:
    return float(np.cumsum(y).min() >= 0 and y.sum() == 0)


def _levenshtein(X: np.ndarray, y: np.ndarray) -> float:
    n = len(X)
    table = np.zeros((n + 1, n + 1))
    table[0], table[:, 0] = range(n + 1), range(n + 1)
    for i in range(n):
        for j in range(n):
            swapped = table[i, j] + (X[i, 0] != X[j, 1])
            table[i + 1, j + 1] = min(table[i, j + 1] + 1, table[i + 1, j] + 1, swapped)
    return float(table[n, n])


def _roads(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    from scipy.sparse.csgraph import dijkstra

    return dijkstra(np.where(X.T >= 9, 0, X.T), indices=0)


def _markov(X: np.ndarray, y: np.ndarray) -> Any:
    chance = np.array([0.5, 0.5])
    for symbol in y.astype(int):
        chance = (chance * np.array(classics.SAID)[:, symbol]) @ np.array(classics.MOVES)
    return {"log": np.log(chance.sum()), "state": chance / chance.sum()}


def _likeliest(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The likeliest of all ways, each tried."""
    moves, said, best = np.array(classics.MOVES), np.array(classics.SAID), (0.0, ())
    for start, *way in product((0, 1), repeat=len(y) + 1):
        chance, here = 1.0, start
        for state, symbol in zip(way, y.astype(int), strict=True):
            chance, here = chance * moves[here, state] * said[state, symbol], state
        best = max(best, (chance, tuple(way)))
    return np.array(best[1], dtype=float)


def _adam(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """PyTorch's own."""
    import torch

    data, targets = torch.tensor(X), torch.tensor(y)
    w = torch.zeros(X.shape[1], dtype=torch.float64, requires_grad=True)
    made = torch.optim.Adam([w], lr=0.05)
    for _ in range(40):
        made.zero_grad()
        loss = ((data @ w - targets) ** 2).mean() / 2 + 0.05 * (w * w).sum()
        loss.backward()
        made.step()
    return w.detach().numpy()


_PEERS: dict[str, tuple[Callable[[np.ndarray, np.ndarray], Any], float]] = {
    "least_squares": (_least_squares, 1e-2),
    "huber": (_minimised(_huber_loss), 1e-2),
    "nesterov": (_least_squares, 1e-2),
    "ridge": (_ridge(0.1), 1e-3),
    "lasso": (_scikit(lambda: _lasso(0.05)), 1e-3),
    "elastic_net": (_scikit(lambda: _elastic(0.05, 0.5)), 1e-3),
    "logistic": (_minimised(_logistic_loss, 0.1), 1e-3),
    "perceptron": (_perceptron, 1e-12),
    "newton_logistic": (_minimised(_logistic_loss, 0.1), 1e-6),
    "conjugate_gradients": (_solved(0.2), 1e-9),
    "power_iteration": (_leading, 1e-3),
    "pagerank": (_pagerank, 1e-4),
    "sinkhorn": (_sinkhorn, 1e-12),
    "bellman_ford": (_shortest, 1e-12),
    "gaussian_process": (_process, 1e-2),
    "softmax_attention": (_attention, 1e-12),
    "kernel_regression": (_kernel, 1e-12),
    "nearest_neighbours": (_neighbours, 1e-12),
    "value_iteration": (_values, 1e-12),
    "kalman_filter": (_kalman, 1e-12),
    "k_means": (_centres, 1e-12),
    "mixture": (_two_normals, 1e-12),
    "geometric_median": (_median, 1e-5),
    "bisection": (_root, 1e-2),
    "sort": (lambda X, y: np.sort(y), 1e-12),
    "greatest_common_divisor": (lambda X, y: np.gcd(int(y[0]), int(y[1])), 1e-12),
    "collatz": (_collatz, 1e-12),
    "balanced_brackets": (_brackets, 1e-12),
    "histogram": (lambda X, y: np.histogram(y, 4, (0, 1))[0], 1e-12),
    "largest_sample": (lambda X, y: {"value": y.max(), "place": y.argmax()}, 1e-9),
    "hidden_markov": (_markov, 1e-12),
    "viterbi": (_likeliest, 1e-12),
    "edit_distance": (_levenshtein, 1e-12),
    "dijkstra": (_roads, 1e-9),
    "gaussian_elimination": (np.linalg.solve, 1e-12),
    "lbfgs": (_ridge(0.1), 2e-2),
    "adam": (_adam, 1e-9),
}

CASES = {name: Case(EXAMPLES[name], *peer) for name, peer in _PEERS.items()}
