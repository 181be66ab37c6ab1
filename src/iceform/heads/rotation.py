r"""Another basis of the residual stream: features that no neuron shows by itself.

The stream holds every feature twice, as (g, -g) (``rounding``). A rotation R takes g to R g in both
halves. The vectors (g, -g) are orthogonal to that of all ones, and so are (R g, -R g): a norm still
finds the mean 0, the same variance, and is the identity. Rows are read by R row, written by R.

R mixes the named features, and spare places up to a power of four, N = 4^k, and leaves all others
alone: flags and log odds are large, and a token whose named features are 0 must keep exact zeros
(a null token outweighs the samples by 2^K, so its value must be 0 to the last bit). It is

.. math:: R = 2^{-k}\, P_1 D_1 H D_2 P_2,

with a Hadamard matrix H, signs D and permutations P drawn from a seed. Its entries are +-2^-k, so
it is orthogonal exactly, in every dtype, and rounds no weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.heads.network import Features

_SQUARE = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class Rotation:
    """Which features are mixed, and the seed that says how."""

    features: Features
    names: tuple[str, ...]
    seed: int

    @property
    def mixed(self) -> int:
        """Features that are mixed."""
        return sum(size for name, size in self.features.sizes if name in self.names)

    @property
    def size(self) -> int:
        """N: the least power of four that holds them."""
        found = 4
        while found < self.mixed:
            found *= 4
        return found

    @property
    def total(self) -> int:
        """Features and spare places."""
        return self.features.total + self.size - self.mixed

    @cached_property
    def places(self) -> list[int]:
        """Where R is not the identity."""
        named = [i for name in self.names for i in range(*self.features[name].indices(self.total))]
        return named + list(range(self.features.total, self.total))

    @cached_property
    def block(self) -> Float[Tensor, "n n"]:
        """R there: entries +-2^-k."""
        generator = torch.Generator().manual_seed(self.seed)
        h = torch.ones(1, 1, dtype=torch.float64)
        for _ in range(int(math.log2(self.size))):
            h = torch.kron(h, _SQUARE)
        for turned in (True, False):
            order = torch.randperm(self.size, generator=generator)
            signs = 2.0 * torch.randint(2, (self.size,), generator=generator).double() - 1
            h = signs[:, None] * h[order] if turned else signs * h[:, order]
        return h / math.sqrt(self.size)

    def turn(self, g: Float[Tensor, "*b half"]) -> Float[Tensor, "*b half"]:
        """R g."""
        out = g.clone()
        out[..., self.places] = g[..., self.places] @ self.block.T.to(g)
        return out

    def back(self, g: Float[Tensor, "*b half"]) -> Float[Tensor, "*b half"]:
        """R' g."""
        out = g.clone()
        out[..., self.places] = g[..., self.places] @ self.block.to(g)
        return out

    def describe(self) -> dict[str, object]:
        """For iceform.json: column i of ``places`` in feature order, R row by row."""
        return {
            "seed": self.seed, "mixed": list(self.names), "places": self.places,
            "rotation": self.block.tolist(),
            "means": "g[places] = rotation @ f[places]; the stream is g, and -g at hidden/2",
        }  # fmt: skip
