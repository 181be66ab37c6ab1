"""Eleven small constructions, data for each, and the features of the answer that heads move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.paper import (
    AttentionHead,
    Emulator,
    GradientDescent,
    GradientStep,
    LinearLayer,
    ResidualMap,
    TruncatedLinear,
)

DTYPE = torch.float64
DATA = ((4, 3), (4,), (3,))  # samples, labels and w


@dataclass(frozen=True)
class Specimen:
    """A construction, and what is known of it.

    ``affects`` gives, for a layer and a head's role, the features of the answer that depend on it;
    ``labels`` are those that y is drawn from, where it is not drawn from [-1, 1].
    """

    make: Callable[[], Emulator]
    shapes: tuple[tuple[int, ...], ...]
    affects: Callable[[int, str], tuple[int, ...]]
    labels: tuple[float, float] | None = None

    def inputs(self, seed: int = 0) -> tuple[Tensor, ...]:
        """Entries in [-1, 1], the same for the same seed."""
        draw = torch.Generator().manual_seed(seed)

        def uniform(shape: tuple[int, ...]) -> Tensor:
            return 2 * torch.rand(shape, generator=draw, dtype=DTYPE) - 1

        if self.labels is None:
            return tuple(map(uniform, self.shapes))
        x, w = uniform(self.shapes[0]), uniform(self.shapes[2])
        low, high = self.labels
        y = (torch.rand(self.shapes[1], generator=draw, dtype=DTYPE) > 0.5).to(DTYPE)
        return x, low + (high - low) * y, w


def residual(f: Callable[[Tensor], Tensor]) -> Specimen:
    def make() -> Emulator:
        return ResidualMap(f, dim=3, samples=4, eps=1e-8, backend="literal")

    return Specimen(make, DATA, lambda *_: (0, 1, 2))


def step(loss: str, labels: tuple[float, float] | None = None, **options: object) -> Specimen:
    options = {"eps": 1e-7, **options}

    def make() -> Emulator:
        return GradientStep(loss, 0.5, dim=3, samples=4, backend="literal", **options)

    return Specimen(make, DATA, lambda *_: (0, 1, 2), labels)


def head(*sizes: int, shapes: tuple[tuple[int, ...], ...], heads: int = 1) -> Specimen:
    def affects(layer: int, role: str) -> tuple[int, ...]:
        """A row of V is one feature of the answer; all else moves all of them."""
        row = int(role.split()[-1])
        return (row,) if layer == 0 and role.startswith("V") else tuple(range(sizes[2]))

    def make() -> Emulator:
        return AttentionHead(*sizes, heads=heads, eps=1e-8, backend="literal")

    return Specimen(make, shapes, affects)


SPECIMENS = {
    "residual-tanh": residual(torch.tanh),
    "residual-sin": residual(torch.sin),
    "gd-squared": step("squared"),
    "gd-huber": step("huber", eps=None, tokens=33),
    "gd-logistic": step("logistic", (0.0, 1.0)),
    "gd-hinge": step("hinge", (-1.0, 1.0)),
    "gd-unrolled": Specimen(
        lambda: GradientDescent(
            "squared", 3, dim=2, samples=3, eps=1e-6, backend="literal", unrolled=True
        ),
        ((3, 2), (3,), (2,)),
        lambda *_: (0, 1),
    ),
    "linear": Specimen(
        lambda: LinearLayer(4, 3, samples=5, eps=1e-10, backend="literal"),
        ((5, 4), (3, 4)),
        lambda _, role: (int(role.split()[-1]),),
    ),
    "attention-head": head(4, 2, 3, 5, shapes=((5, 4), (2, 4), (2, 4), (3, 4))),
    "two-heads": head(3, 2, 2, 4, shapes=((4, 3), (2, 2, 3), (2, 2, 3), (2, 2, 3)), heads=2),
    "truncated-line": Specimen(
        lambda: TruncatedLinear(-2.0, 2.0, 4, dim=2, samples=5, tokens=16, backend="literal"),
        ((5, 2), (2,), ()),
        lambda *_: (0,),
    ),
}
