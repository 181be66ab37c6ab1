"""Every algorithm of the library with small data to run it on, and what to compile it for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from iceform.computer.compile import Program, compile
from iceform.computer.language import Algorithm
from iceform.computer.library import algorithms as of
from iceform.computer.library import classics


@dataclass(frozen=True, eq=False)
class LibraryExample:
    """An algorithm of the library, with small data to run it on.

    Attributes
    ----------
    algorithm
        What is run.
    X, y
        Samples (n, d) and targets (n,).
    settings
        Parameters of the run; the others have their defaults.
    compiled
        What :func:`iceform.compile` is told beyond the sizes: domain, bounds, ranges.

    Examples
    --------
    >>> from iceform.computer.library import EXAMPLES
    >>> example = EXAMPLES["sort"]
    >>> example.name, example.X.shape
    ('sort', torch.Size([8, 1]))
    """

    algorithm: Algorithm
    X: Tensor
    y: Tensor
    settings: Mapping[str, Any] = field(default_factory=dict)
    compiled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The algorithm's."""
        return self.algorithm.name

    def compile(self, eps: float = 1e-8) -> Program:
        """The program for these sizes."""
        n, d = self.X.shape
        return compile(self.algorithm, d, n, eps=eps, **self.compiled)

    @classmethod
    def with_example(cls, algorithm: Algorithm, X: Tensor, y: Tensor) -> LibraryExample:
        """Compiled with the data themselves as the example."""
        return cls(algorithm, X, y, compiled={"example": (X, y)})


_HERE: Any = {"dtype": torch.float64, "device": "cpu"}  # whatever the default device is


def _uniform(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cpu").manual_seed(seed)
    X = 2 * torch.rand(n, d, generator=generator, **_HERE) - 1
    return X, 2 * torch.rand(n, generator=generator, **_HERE) - 1


def _numbers(*values: Any) -> Tensor:
    return torch.tensor(values, **_HERE)


_X, _Y = _uniform(12, 3)
_LABELS = (_X @ _numbers(1.0, -0.5, 0.3) + 0.3 * _Y > 0).double()
_PAIR, _PAIR_Y = _uniform(12, 2, 2)
_PAIR_LABELS = (_PAIR[:, 0] + 0.3 * _PAIR_Y > 0).double()
_BOXED = {"bounds": {"w": 4.0}}

_PLACES = torch.arange(4, **_HERE) / 4
_LINKS = _numbers(
    [0, 0, 1, 0.5], [1 / 3, 0, 0, 0], [1 / 3, 0.5, 0, 0.5], [1 / 3, 0.5, 0, 0]
)  # page j's visitors in column j
_COSTS = torch.exp(-_uniform(4, 4, 5)[0].abs())
_WAYS = _numbers([0, 1, 1, 0.1], [0.3, 0, 1, 1], [0.9, 0.2, 0, 1], [1, 1, 0.15, 0])

_POINTS = torch.linspace(-1, 1, 5, **_HERE)[:, None]
_KERNEL = torch.exp(-((_POINTS - _POINTS.T) ** 2) / 0.5) * 0.5 + 0.2 * torch.eye(5, **_HERE)
_SIMILAR = 0.5 * torch.exp(-((_POINTS[:, 0] - 0.3) ** 2) / 0.5)  # to the point 0.3

_QUERY = _numbers(0.2, -0.1, 0.3)
_LINE = torch.arange(5, **_HERE)[:, None] * 0.5 - 1
_REWARDS = _numbers(0.1, -0.2, 0.3, 0.0, 0.5)
_TIMES = torch.arange(8, **_HERE)[:, None] * 0.1
_SEEN = _uniform(8, 1, 9)[1]
_GROUPS = torch.cat([_uniform(6, 2, 3)[0] * 0.4 - 0.5, _uniform(6, 2, 4)[0] * 0.4 + 0.5])

_BITS = _numbers(0, 0, 1, 0, 1, 1, 1, 0)
_WORDS = _numbers(*zip((1, 2, 3, 3, 2, 4), (2, 3, 3, 1, 4, 4), strict=True))
_ROADS = _numbers(
    [0, 9, 9, 9, 9], [4, 0, 2, 9, 9], [1, 9, 0, 9, 9], [9, 1.5, 5, 0, 9], [9, 9, 9, 3, 0]
)
_SYSTEM = _numbers([0.1, 0.8, -0.5], [0.9, -0.3, 0.4], [-0.6, 0.7, 0.8])


def _none(count: int) -> Tensor:
    """Features that nothing reads."""
    return torch.zeros(count, 1, **_HERE)


EXAMPLES: dict[str, LibraryExample] = {
    e.name: e
    for e in (
        LibraryExample(of.least_squares, _X, _Y, {"steps": 50}, _BOXED),
        LibraryExample(of.huber, _X, _Y, {"steps": 50}, _BOXED),
        LibraryExample(of.nesterov, _X, _Y, {"steps": 30}),
        LibraryExample(of.ridge, _X, _Y, {"steps": 40}, _BOXED),
        LibraryExample(of.lasso, _X, _Y, {"steps": 40}, _BOXED),
        LibraryExample(of.elastic_net, _X, _Y, {"steps": 40}, _BOXED),
        LibraryExample(of.logistic, _X, _LABELS, {"steps": 60}, _BOXED),
        LibraryExample(of.perceptron, _X, 2 * _LABELS - 1, {"steps": 20}, _BOXED),
        LibraryExample(of.newton_logistic, _PAIR, _PAIR_LABELS, {"steps": 5}, _BOXED),
        LibraryExample(of.conjugate_gradients, _PAIR, _PAIR_Y, {"steps": 2}),
        LibraryExample(of.power_iteration, _X, _Y, {"steps": 25}),
        LibraryExample(
            of.pagerank,
            _LINKS,
            _PLACES,
            {"places": _PLACES, "steps": 30},
            {
                "domain": {"x": (0, 1), "y": (0, 1)},
                "nodes": (4, 4),
                "damping": (0.5, 0.9),
                "bounds": {"rank": (0, 1)},
            },
        ),
        LibraryExample(
            of.sinkhorn,
            _COSTS,
            _numbers(0.1, 0.2, 0.3, 0.4),
            {"steps": 20},
            {"domain": {"x": (0, 1), "y": (0, 1)}, "rows": (4, 4), "columns": (0.2, 0.3)},
        ),
        LibraryExample(
            of.bellman_ford,
            _WAYS,
            _PLACES,
            {"places": _PLACES, "source": _numbers(0, 2, 2, 2), "steps": 3},
            {"nodes": (4, 4), "source": (0, 2), "bounds": {"reached": (0, 2)}},
        ),
        LibraryExample(
            of.gaussian_process,
            _KERNEL,
            torch.sin(2 * _POINTS[:, 0]),
            {"similar": _SIMILAR, "steps": 150},
            {"domain": {"x": (0, 0.75), "y": (-1, 1)}},
        ),
        LibraryExample(of.softmax_attention, _X, _Y),
        LibraryExample(of.kernel_regression, _X, _Y, {"query": _QUERY}),
        LibraryExample(of.nearest_neighbours, _X, _Y, {"query": _QUERY}, {"share": (0.1, 0.5)}),
        LibraryExample(
            of.value_iteration, _LINE, _REWARDS, {"steps": 10}, {"sharpness": (160, 160)}
        ),
        LibraryExample(of.kalman_filter, _TIMES, _SEEN, {"steps": 8}, {"sharpness": (4000, 4000)}),
        LibraryExample(of.k_means, _GROUPS, torch.zeros(12).double(), {"steps": 6}),
        LibraryExample(of.mixture, _GROUPS, _GROUPS[:, 0], {"steps": 10}, {"sigma": (0.3, 0.3)}),
        LibraryExample(of.geometric_median, _X, _Y, {"steps": 20}),
        LibraryExample(of.bisection, _X, _Y),
        LibraryExample.with_example(classics.sort, _none(8), _SEEN),
        LibraryExample.with_example(
            classics.greatest_common_divisor, _none(2), _numbers(48.0, 36.0)
        ),
        LibraryExample.with_example(classics.collatz, _none(1), _numbers(6.0)),
        LibraryExample.with_example(classics.balanced_brackets, _none(8), 1 - 2 * _BITS),
        LibraryExample.with_example(classics.histogram, _none(12), (_Y + 1) / 2),
        LibraryExample.with_example(classics.largest_sample, _X, _Y),
        LibraryExample.with_example(classics.hidden_markov, _none(8), _BITS),
        LibraryExample.with_example(classics.viterbi, _none(8), _BITS),
        LibraryExample.with_example(classics.edit_distance, _WORDS, torch.zeros(6, **_HERE)),
        LibraryExample.with_example(classics.dijkstra, _ROADS, torch.zeros(5, **_HERE)),
        LibraryExample.with_example(
            classics.gaussian_elimination, _SYSTEM, _numbers(0.3, -0.2, 0.5)
        ),
        LibraryExample.with_example(classics.lbfgs, _X, _Y),
        LibraryExample.with_example(classics.adam, _X, _Y),
    )
}
