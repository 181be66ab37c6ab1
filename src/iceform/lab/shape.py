"""The shape of a GPT-2 that reads pairs (x, y) as Garg et al. write them: x1, y1, x2, ..."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.errors import BoundError, ShapeError
from iceform.targets.architectures import gpt2_config
from iceform.validation import check_size

EPSILON = torch.nn.LayerNorm(1).eps  # which is GPT-2's own


@dataclass(frozen=True)
class GPT2Shape:
    """Sizes of a stock GPT-2 with a linear map in and one out.

    Parameters
    ----------
    dim
        d of the inputs x.
    layers, width, heads, inner
        As ``n_layer``, ``n_embd``, ``n_head`` and ``n_inner`` of transformers; ``inner=None`` is
        four times the width.
    positions
        Tokens that a prompt may have, two for every example.

    Examples
    --------
    >>> GPT2Shape(dim=5, layers=8, width=128, heads=8).head_size
    16
    """

    dim: int = 5
    layers: int = 8
    width: int = 128
    heads: int = 8
    inner: int | None = None
    positions: int = 64

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            if size is not None:
                check_size(name, size)
        if self.width % self.heads:
            raise ShapeError(
                f"width {self.width} is no multiple of heads {self.heads}; GPT-2 shares its width "
                "out to its heads"
            )
        if self.positions % 2:
            raise ShapeError(f"positions must be even, two an example, got {self.positions}")

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.width // self.heads

    @property
    def units(self) -> int:
        """Units of every MLP."""
        return 4 * self.width if self.inner is None else self.inner

    @property
    def examples(self) -> int:
        """Pairs that a prompt may have."""
        return self.positions // 2

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, by transformers' names.

        ``wte.weight`` holds what GPT-2 has no place for when it is given embeddings: d rows that x
        is read in by, one for y, and last the row that the answer is read out by.
        """
        h, u = self.width, self.units
        out: dict[str, tuple[int, ...]] = {
            "wte.weight": (self.dim + 2, h),
            "wpe.weight": (self.positions, h),
        }
        block: dict[str, tuple[int, ...]] = {
            "ln_1.weight": (h,), "ln_1.bias": (h,),
            "attn.c_attn.weight": (h, 3 * h), "attn.c_attn.bias": (3 * h,),
            "attn.c_proj.weight": (h, h), "attn.c_proj.bias": (h,),
            "ln_2.weight": (h,), "ln_2.bias": (h,),
            "mlp.c_fc.weight": (h, u), "mlp.c_fc.bias": (u,),
            "mlp.c_proj.weight": (u, h), "mlp.c_proj.bias": (h,),
        }  # fmt: skip
        for layer in range(self.layers):
            out |= {f"h.{layer}.{name}": shape for name, shape in block.items()}
        return out | {"ln_f.weight": (h,), "ln_f.bias": (h,)}

    def config(self) -> dict[str, Any]:
        """config.json for ``AutoModel``: stock, but that nothing is dropped out."""
        stock = gpt2_config(self.width, self.layers, self.heads, self.units, self.positions)
        own = {"vocab_size": self.dim + 2, "activation_function": "gelu_new"}
        return {**stock, **own, "layer_norm_epsilon": EPSILON, "dtype": "float32"}

    def check_data(self, x: Tensor, y: Tensor) -> None:
        """Refuse data that no prompt of this shape holds."""
        if x.ndim < 2 or x.shape[-1] != self.dim or y.shape != x.shape[:-1]:
            raise ShapeError(
                f"x is (*batch, examples, {self.dim}) and y (*batch, examples), got "
                f"{tuple(x.shape)} and {tuple(y.shape)}"
            )
        if not 1 <= x.shape[-2] <= self.examples:
            raise ShapeError(
                f"a prompt of {self.positions} positions holds 1 to {self.examples} examples, got "
                f"{x.shape[-2]}; give the shape more positions"
            )
        for name, values in (("x", x), ("y", y)):
            if not bool(torch.isfinite(values).all()):
                raise BoundError(f"{name} holds NaN or infinity; a prompt takes finite numbers")


def interleaved(x: Float[Tensor, "*b n d"], y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m c"]:
    """Tokens x1, y1, x2, y2, ...: (*batch, 2 n, d + 1), y in the last column."""
    at_x = torch.cat([x, torch.zeros_like(y)[..., None]], -1)
    at_y = torch.cat([torch.zeros_like(x), y[..., None]], -1)
    return torch.stack([at_x, at_y], -2).flatten(-3, -2)
