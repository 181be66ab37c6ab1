r"""Means and second moments of data in one sweep.

Two sets of n_a and n_b samples with means m_a and m_b and centred sums of products
:math:`M = \sum_i (x_i - m)(x_i - m)^\top` combine, with :math:`\delta = m_b - m_a`, to

.. math:: m = m_a + \tfrac{n_b}{n} \delta, \qquad
   M = M_a + M_b + \tfrac{n_a n_b}{n} \delta\delta^\top,

which loses nothing to cancellation however far from zero the data lie. Samples that have weights
count by them.

**Weights** travel beside the labels: a chunk's y is (n,), or (n, 2) of labels and weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Moments", "split"]


def split(y: Tensor) -> tuple[Tensor, Tensor | None]:
    """Labels and weights of a chunk; None where it has no weights."""
    return (y, None) if y.ndim == 1 else (y[:, 0], y[:, 1])


@dataclass(frozen=True, eq=False)
class Moments:
    """What one sweep tells of samples and labels.

    Attributes
    ----------
    rows
        How many, or what they weigh where they have weights.
    mean
        Of the samples, shape (d,).
    spread
        sum_i (x_i - mean)^2 per column, shape (d,).
    products
        sum_i (x_i - mean)(x_i - mean)', shape (d, d), where asked for.
    center, label_spread
        The same of the labels.
    low, high
        The least and the largest label.
    largest
        max_i |x_i| per column, shape (d,).
    """

    rows: float
    mean: Tensor
    spread: Tensor
    products: Tensor | None
    center: float
    label_spread: float
    low: float
    high: float
    largest: Tensor

    @classmethod
    def of_sums(cls, parts: Sequence[Tensor]) -> Moments:
        """From what :class:`MomentsTask` returned for everything."""
        rows, mean, second, center, label_spread, low, high, largest = parts
        products = second if second.ndim == 2 else None
        spread = second if products is None else products.diagonal()
        return cls(
            float(rows), mean, spread, products,
            float(center), float(label_spread), float(low), float(high), largest,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class MomentsTask:
    """Count, means and centred moments of a chunk, (d, d) or only its diagonal."""

    products: bool

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        y, weights = split(y)
        if weights is not None:
            return self._weighed(x, y, weights)
        mean, center = x.mean(0), y.mean()
        moved, labels = x - mean, y - center
        second = moved.mT @ moved if self.products else moved.square_().sum(0)
        count = mean.new_tensor(float(len(x)))
        least, most = torch.aminmax(x, dim=0)
        largest = torch.maximum(most, -least)
        return [count, mean, second, center, labels @ labels, *torch.aminmax(y), largest]

    def _weighed(self, x: Tensor, y: Tensor, weights: Tensor) -> list[Tensor]:
        count = weights.sum()
        mean, center = weights @ x / count, weights @ y / count
        moved, labels = x - mean, y - center
        second = (
            (moved * weights[:, None]).mT @ moved if self.products else weights @ moved.square()
        )
        spread = weights @ labels.square()
        return [count, mean, second, center, spread, *torch.aminmax(y), x.abs().amax(0)]


def merged(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
    """The moments of two disjoint sets of samples together."""
    n_a, mean_a, moment_a, center_a, spread_a, low_a, high_a, largest_a = first
    n_b, mean_b, moment_b, center_b, spread_b, low_b, high_b, largest_b = second
    rows = n_a + n_b
    share, weight = n_b / rows, n_a * n_b / rows
    delta, shift = mean_b - mean_a, center_b - center_a
    between = torch.outer(weight * delta, delta) if moment_a.ndim == 2 else weight * delta.square()
    return [
        rows,
        mean_a + share * delta,
        moment_a + moment_b + between,
        center_a + share * shift,
        spread_a + spread_b + weight * shift.square(),
        torch.minimum(low_a, low_b),
        torch.maximum(high_a, high_b),
        torch.maximum(largest_a, largest_b),
    ]
