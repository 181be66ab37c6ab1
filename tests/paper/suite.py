"""The conformance suite of a construction, from what is built and what it is asked for."""

from collections.abc import Callable
from typing import ClassVar

import torch

from iceform.paper import Emulator
from tests.conformance import Conformance, assert_within, uniform


class Suite(Conformance):
    """Inputs are drawn for the construction's shapes, those of the domain's size."""

    make: Callable[..., Emulator]
    eps: tuple[float | None, float | None, float | None]  # in float64, in float32, hard
    hard: ClassVar[dict] = {}  # what the paper's regime is asked for beside

    def build(self, regime, dtype, backend):
        if regime == "hard":
            eps = self.eps[2]
        else:
            eps = self.eps[0] if dtype == torch.float64 else self.eps[1]
        said = {"regime": regime} if "spectral" in self.regimes and "hard" in self.regimes else {}
        more = self.hard if regime == "hard" else {}
        return self.make(eps=eps, dtype=dtype, backend=backend, **said, **more)

    def draw(self, emulator, batch):
        shapes = emulator.shapes.values()
        return tuple(uniform(*batch, *shape, dtype=emulator.dtype) for shape in shapes)


class OfSamples(Suite):
    """Only the first input has samples."""

    permutes_output = True

    def test_permutation_of_samples(self, emulator):
        x, *rest = self.draw(emulator, (2,))
        order = torch.randperm(self.samples)
        got, want = emulator(x[:, order], *rest), emulator(x, *rest)[:, order]
        assert_within(got, want, self.rounding(emulator), "permuted samples")


def draw(emulator, batch, kind="residual"):
    """X, y and w; labels are -1 and 1 for margins, 0 and 1 for generalised linear models."""
    n, d, dtype = emulator.domain.samples, emulator.domain.dim, emulator.dtype
    x, w = uniform(*batch, n, d, dtype=dtype), uniform(*batch, d, dtype=dtype)
    y = uniform(*batch, n, dtype=dtype)
    if kind == "margin":
        y = torch.where(y > 0, 1.0, -1.0).to(dtype)
    if kind == "glm":
        y = (y > 0).to(dtype)
    return x, y, w


class OfLosses(Suite):
    """X, y and w, labels as the loss has them."""

    eps = (1e-6, 1e-2, 0.5)

    def draw(self, emulator, batch):
        return draw(emulator, batch, emulator.loss.kind)

    def corners(self, inputs):
        """Labels of classes are where they are."""
        x, y, w = inputs
        y = y if y.unique().numel() <= 3 else super().corners((y,))[0]
        return *super().corners((x,)), y, *super().corners((w,))
