"""Functions to be learned in context, after Garg et al., "What can transformers learn ...".

Every prompt has a function of its own. Inputs are standard normal, and so are the function's
weights; labels may be noisy:

=============  =====================================================================================
linear         w . x
sparse         w . x, with ``nonzero`` coefficients other than 0
noisy          linear with noise of this standard deviation
logistic       1 with probability sigmoid(w . x), else -1
two_layer      sqrt(2/r) sum_i a_i relu(w_i . x), r units
=============  =====================================================================================
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.errors import ProgramError, ShapeError
from iceform.validation import check_choice, check_positive, check_size

TASKS = ("linear", "sparse", "noisy", "logistic", "two_layer")


class Examples(NamedTuple):
    """Prompts: inputs, labels, labels without noise, and the weights of linear functions."""

    x: Float[Tensor, "b n d"]
    y: Float[Tensor, "b n"]
    clean: Float[Tensor, "b n"]
    w: Float[Tensor, "b d"]


@dataclass(frozen=True)
class InContextTask:
    """A distribution of functions and data.

    Parameters
    ----------
    kind
        "linear", "sparse", "noisy", "logistic" or "two_layer".
    dim
        d of the inputs.
    noise
        Standard deviation of what is added to labels.
    nonzero
        Coefficients of a sparse function.
    units
        r of a two-layer function.
    x_scale, w_scale
        What inputs and weights are multiplied by.
    decay
        Inputs have the standard deviations 1, 2^-decay, 3^-decay, ..., scaled to a mean square of
        one.

    Examples
    --------
    >>> task = InContextTask("noisy", dim=3, noise=0.5)
    >>> task.draw(2, 4, torch.Generator().manual_seed(0)).x.shape
    torch.Size([2, 4, 3])
    """

    kind: str = "linear"
    dim: int = 5
    noise: float = 0.0
    nonzero: int = 1
    units: int = 64
    x_scale: float = 1.0
    w_scale: float = 1.0
    decay: float = 0.0

    def __post_init__(self) -> None:
        check_choice("task", self.kind, TASKS)
        for name in ("dim", "nonzero", "units"):
            check_size(name, getattr(self, name))
        for name in ("noise", "decay"):
            check_positive(name, getattr(self, name), zero=True)
        for name in ("x_scale", "w_scale"):
            check_positive(name, getattr(self, name))
        if self.nonzero > self.dim:
            raise ShapeError(f"nonzero {self.nonzero} is more than dim {self.dim}")
        if self.kind == "noisy" and not self.noise:
            raise ProgramError("a noisy task needs noise, its standard deviation: give noise=")

    def shifted(self, **changes: Any) -> InContextTask:
        """The same task with other numbers."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @property
    def is_linear(self) -> bool:
        """Whether functions are w . x with w normal, so that ridge is Bayes' answer."""
        return self.kind in ("linear", "noisy")

    @property
    def penalty(self) -> float:
        """The penalty of the ridge that is Bayes' answer, noise over weights as variances."""
        return (self.noise / self.w_scale) ** 2

    def draw(self, prompts: int, examples: int, source: torch.Generator) -> Examples:
        """Prompts in float32, on the CPU, so that every device sees the same ones."""
        x = torch.randn(prompts, examples, self.dim, generator=source)
        if self.decay:
            sizes = torch.arange(1, self.dim + 1).double() ** -self.decay
            x = x * (sizes / sizes.square().mean().sqrt()).float()
        x = x * self.x_scale
        w = self.w_scale * torch.randn(prompts, self.dim, generator=source)
        if self.kind == "sparse":
            kept = torch.rand(prompts, self.dim, generator=source).argsort(-1) < self.nonzero
            w = w * kept
        clean = (x @ w[..., None])[..., 0]
        if self.kind == "two_layer":
            inner = torch.randn(prompts, self.dim, self.units, generator=source)
            outer = torch.randn(prompts, self.units, 1, generator=source)
            clean = ((x @ inner).relu() @ outer)[..., 0] * (
                self.w_scale * math.sqrt(2 / self.units)
            )
        if self.kind == "logistic":
            clean = 2 * torch.sigmoid(clean) - 1
            ups = torch.rand(clean.shape, generator=source)
            return Examples(x, torch.where(2 * ups - 1 < clean, 1.0, -1.0), clean, w)
        y = clean + self.noise * torch.randn(clean.shape, generator=source)
        return Examples(x, y, clean, w)
