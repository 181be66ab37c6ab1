"""Tables that make fitting hard: every kind by name, from a seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Maker = Callable[[torch.Generator], Tensor]


def normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def _ill(g: torch.Generator, decades: float) -> Tensor:
    q, _ = torch.linalg.qr(normal(g, 60, 5))
    v, _ = torch.linalg.qr(normal(g, 5, 5))
    return q * torch.logspace(0, -decades, 5, dtype=torch.float64) @ v.mT * 8


def _tails(g: torch.Generator) -> Tensor:
    return normal(g, 80, 4) / torch.rand(80, 4, generator=g, dtype=torch.float64)


# Full rank, more samples than features: coefficients are unique.
REGULAR: dict[str, Maker] = {
    "normal": lambda g: normal(g, 50, 5),
    "ill 1e2": lambda g: _ill(g, 2),
    "ill 1e4": lambda g: _ill(g, 4),
    "offset 1e6": lambda g: normal(g, 60, 3) + 1e6,
    "tiny 1e-8": lambda g: 1e-8 * normal(g, 40, 4),
    "huge 1e8": lambda g: 1e8 * normal(g, 40, 4),
    "mixed sizes": lambda g: normal(g, 60, 5) * torch.logspace(-8, 8, 5, dtype=torch.float64),
    "heavy tails": _tails,
    "single feature": lambda g: normal(g, 30, 1),
    "few samples": lambda g: normal(g, 6, 3),
    "counts": lambda g: torch.randint(0, 4, (60, 4), generator=g).double(),
}


# Dependent features: fitted values are unique, coefficients are not (without a penalty). Whole
# numbers, so that what should be dependent is so in floating point too.
def _collinear(g: torch.Generator) -> Tensor:
    x = torch.randint(-9, 10, (40, 3), generator=g).double()
    return torch.cat([x, x[:, :1] + x[:, 1:2]], 1)


def _constant(g: torch.Generator) -> Tensor:
    return torch.cat([normal(g, 40, 3), torch.full((40, 1), 7.0, dtype=torch.float64)], 1)


DEPENDENT: dict[str, Maker] = {
    "wide": lambda g: normal(g, 8, 15),
    "collinear": _collinear,
    "constant column": _constant,
}


def labels(x: Tensor, g: torch.Generator, noise: float = 0.3, offset: float = 0.0) -> Tensor:
    """A line of the scaled samples with some noise."""
    scaled = (x - x.mean(0)) / x.std(0, correction=0).clamp(min=1e-300)
    w = normal(g, x.shape[1])
    return scaled.clamp(-50, 50) @ w + noise * normal(g, len(x)) + offset
