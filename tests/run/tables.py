"""Look-up tables of every kind, shared by the tests of the backends."""

from functools import lru_cache

import torch

from iceform.tables import Interpolant

KINDS = ("line", "loose line", "fitted", "steep", "hard", "graded")
UNIFORM = KINDS[:-1]


@lru_cache(maxsize=16)
def table(kind: str) -> Interpolant:
    """On [-5, 5]: affine values, fitted without guards, values far beyond the range, kinks."""
    make = {
        "line": lambda: Interpolant.identity(-5, 5, None),
        "loose line": lambda: Interpolant.identity(-5, 5, 1e-4),
        "fitted": lambda: Interpolant.fit(torch.tanh, -5, 5, 1e-6),
        "steep": lambda: Interpolant.fit(torch.exp, -5, 5, 1e-5),
        "hard": lambda: Interpolant.hard(torch.tanh, -5, 5, cells=60),
        "graded": lambda: Interpolant.fit(torch.relu, -5, 5, 1e-3),
    }
    return make[kind]()


def points(it: Interpolant, dtype: torch.dtype, count: int = 4001) -> torch.Tensor:
    """Random points of the range, its ends, the nodes and the middles between them."""
    nodes = it.grid.nodes
    inside = torch.cat([nodes, 0.5 * (nodes[1:] + nodes[:-1])])
    inside = inside[(inside > it.low) & (inside < it.high)]
    drawn = torch.rand(count, dtype=torch.float64) * (it.high - it.low) + it.low
    ends = torch.tensor([it.low, it.high], dtype=torch.float64)
    return torch.cat([ends, inside, drawn]).to(dtype).clamp(it.low, it.high)


def rounding_bound(it: Interpolant, dtype: torch.dtype) -> float:
    """What the fused backends declare for a look-up of z that is given, not computed."""
    from iceform.run import rounding_of

    return it.rounding(rounding_of("fused").model(dtype, it, 0.0, 0))
