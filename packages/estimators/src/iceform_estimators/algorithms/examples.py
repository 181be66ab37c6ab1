"""Small data worth a picture: what an algorithm is shown on unless other data are given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Twelve flats: small enough to print, with a target for every kind of algorithm.
_FLATS: dict[str, list[Any]] = {
    "size": [31, 38, 44, 52, 55, 63, 67, 74, 81, 88, 96, 110],
    "floor": [4, 1, 3, 2, 5, 0, 3, 1, 4, 2, 5, 3],
    "rent": [520, 545, 640, 700, 790, 745, 860, 880, 1010, 1030, 1190, 1280],
    "viewings": [14, 9, 11, 8, 10, 4, 7, 4, 6, 3, 4, 2],
    "let": ["yes", "yes", "yes", "yes", "yes", "no", "yes", "no", "yes", "no", "yes", "no"],
}


@dataclass(frozen=True, eq=False)
class ExampleTable:
    """A table.

    Attributes
    ----------
    source
        What it is.
    columns
        Features by name.
    target
        The name of what is predicted, None where nothing is, and its values.
    """

    source: str
    columns: dict[str, list[float]]
    target: str | None = None
    labels: list[Any] | None = None

    @property
    def x(self) -> Tensor:
        """Samples, shape (n, d)."""
        return torch.tensor(list(self.columns.values()), dtype=torch.float64).mT.contiguous()

    @property
    def y(self) -> Tensor:
        """Labels, shape (n,): numbers, or the place of a class among them; zeros without any."""
        if self.labels is None:
            return torch.zeros(len(self.x), dtype=torch.float64)
        if isinstance(self.labels[0], str):
            classes = sorted(set(self.labels))
            return torch.tensor([classes.index(c) for c in self.labels], dtype=torch.float64)
        return torch.tensor(self.labels, dtype=torch.float64)


def flats(target: str | None = "rent") -> ExampleTable:
    """Twelve flats: their size, floor and one more column."""
    features = {name: _FLATS[name] for name in ("size", "floor")}
    return ExampleTable(
        "twelve flats", features, target, None if target is None else _FLATS[target]
    )


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def _line(rows: int) -> Tensor:
    return torch.linspace(-1, 1, rows, dtype=torch.float64)


def _example(source: str, x: Tensor, y: Tensor | list[Any] | None) -> ExampleTable:
    """Features x1, x2, ... and a target y, rounded so that they can be printed."""
    columns = {f"x{j + 1}": _rounded(x[:, j]) for j in range(x.shape[1])}
    if y is None:
        return ExampleTable(source, columns)
    return ExampleTable(source, columns, "y", _rounded(y) if isinstance(y, Tensor) else y)


def _rounded(values: Tensor) -> list[float]:
    return [round(v, 3) for v in values.tolist()]


def outliers() -> ExampleTable:
    """A line with four samples far above it."""
    x = _line(24)
    y = x + _random(24) / 8
    y[3::6] += 2.0
    return _example("a line with outliers", x[:, None], y)


def fan() -> ExampleTable:
    """A line whose noise grows along it."""
    x = _line(40)
    return _example("a fan", x[:, None], (x + (1 + x / 2) * _random(40)) / 2)


def wave() -> ExampleTable:
    """One period of a sine, with noise."""
    x = _line(24)
    return _example("a wave", x[:, None], torch.sin(math.pi * x) + _random(24) / 8)


def counts() -> ExampleTable:
    """Viewings of the twelve flats."""
    return flats("viewings")


def blobs() -> ExampleTable:
    """Two groups of points that a line separates."""
    side = torch.arange(24) % 2 == 0
    x = _random(24, 2) / 3 + torch.where(side, 1.0, -1.0)[:, None]
    return _example("two groups", x, ["right" if s else "left" for s in side.tolist()])


def ellipse() -> ExampleTable:
    """Points along a tilted ellipse."""
    turned = torch.tensor([[4, 3], [-3, 4]]).double() / 5
    return _example("a tilted cloud", _random(24, 2) * torch.tensor([3, 1]) / 3 @ turned, None)
