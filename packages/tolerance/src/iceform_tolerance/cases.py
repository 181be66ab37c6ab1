"""Inputs that are hard for attention kernels, at any shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.errors import ShapeError
from iceform.validation import check_size
from iceform_tolerance.inputs import Problem, problem_of


@dataclass(frozen=True)
class Shape:
    """batch, heads, queries, dim, and what differs from them.

    Examples
    --------
    >>> str(Shape(1, 2, 8, 16, keys=32)), Shape(1, 2, 8, 16).length
    ('1x2x8x16, 32 keys', 8)
    """

    batch: int
    heads: int
    queries: int
    dim: int
    keys: int | None = None
    kv_heads: int | None = None

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size is not None:
                check_size(name, size)
        if self.heads % (self.kv_heads or 1):
            raise ShapeError(f"{self.heads} query heads cannot share {self.kv_heads} evenly")

    @property
    def length(self) -> int:
        """Keys."""
        return self.queries if self.keys is None else self.keys

    def __str__(self) -> str:
        text = f"{self.batch}x{self.heads}x{self.queries}x{self.dim}"
        return text if self.length == self.queries else f"{text}, {self.length} keys"


@dataclass(frozen=True, eq=False)
class Inputs:
    """Arguments of an attention kernel."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    causal: bool = False
    scale: float | None = None

    def problem(self) -> Problem:
        """The arguments as a checked problem."""
        return problem_of(
            self.q, self.k, self.v, scale=self.scale, mask=self.mask, causal=self.causal
        )


class _Draw:
    """Random tensors of a shape, made on the CPU so that a seed means the same everywhere."""

    def __init__(
        self, shape: Shape, dtype: torch.dtype, generator: torch.Generator, device: torch.device
    ) -> None:
        self.shape, self.dtype, self.generator, self.device = shape, dtype, generator, device
        kv = shape.kv_heads or shape.heads
        self.q = self.normal(shape.batch, shape.heads, shape.queries, shape.dim)
        self.k = self.normal(shape.batch, kv, shape.length, shape.dim)
        self.v = self.normal(shape.batch, kv, shape.length, shape.dim)

    def normal(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.generator, dtype=torch.float64)

    def uniform(self, *size: int) -> Tensor:
        return torch.rand(*size, generator=self.generator, dtype=torch.float64)

    def made(self, **changes: object) -> Inputs:
        parts: dict[str, object] = {"q": self.q, "k": self.k, "v": self.v, **changes}
        for name in ("q", "k", "v"):
            part = parts[name]
            assert isinstance(part, Tensor)
            most = torch.finfo(self.dtype).max
            parts[name] = part.clamp(-most, most).to(self.device).to(self.dtype)
        mask = parts.get("mask")
        if isinstance(mask, Tensor):
            parts["mask"] = mask.to(self.device)
            if mask.is_floating_point():
                narrow = self.dtype.itemsize == 1  # masks are not kept in float8
                wanted = torch.bfloat16 if narrow else self.dtype
                parts["mask"] = mask.to(self.device).to(wanted)
        return Inputs(**parts)  # type: ignore[arg-type]


def _one_dominates(draw: _Draw) -> Inputs:
    k = draw.k.clone()
    k[..., draw.shape.length // 2, :] = draw.q.mean((1, 2)).sign()[:, None] * 8
    return draw.made(q=draw.q.abs() + 1, k=k)


def _masked_rows(draw: _Draw) -> Inputs:
    mask = draw.uniform(draw.shape.queries, draw.shape.length) < 0.5
    mask[[0, -1]] = False
    mask[-1, 0] = True
    return draw.made(mask=mask)


def _added_mask(draw: _Draw) -> Inputs:
    slope = -torch.arange(draw.shape.length).double().expand(draw.shape.queries, -1) / 16
    hidden = 4 * draw.uniform(draw.shape.queries, draw.shape.length) < 1
    most = torch.finfo(draw.dtype).max
    return draw.made(mask=torch.where(hidden, max(-10_000.0, -most), slope))


def _subnormals(draw: _Draw) -> Inputs:
    far = draw.k.clone()
    far[..., 1::2, :] *= 16
    return draw.made(k=far, v=draw.v * torch.finfo(draw.dtype).smallest_normal / 4)


def _climbing(draw: _Draw, noise: int, low: float, high: float) -> Inputs:
    """Keys that are larger and larger, as all queries see them."""
    rise = torch.linspace(low, high, draw.shape.length)[:, None]
    return draw.made(q=torch.ones_like(draw.q), k=draw.k / noise + rise)


def _cancelling(draw: _Draw) -> Inputs:
    sign = torch.ones(draw.shape.dim)
    sign[1::2] = -1
    return draw.made(q=draw.q / 10 + 4, k=draw.k / 10 + 4 * sign)


def _outliers(draw: _Draw) -> Inputs:
    k, v = draw.k.clone(), draw.v.clone()
    k[..., ::7, :] *= 30
    v[..., ::5, :] *= 100
    return draw.made(k=k, v=v)


def _paths(draw: _Draw) -> Inputs:
    k = 1 + draw.uniform(*draw.k.shape) / 100
    half = draw.shape.dim // 2
    k[..., 1::2, :half] -= 3
    k[..., 1::2, half : 2 * half] += 3
    v = torch.ones_like(draw.v)
    v[..., 1::2, :] = -1
    return draw.made(q=1 + draw.uniform(*draw.q.shape) / 100, k=k, v=v)


CASES: Mapping[str, Callable[[_Draw], Inputs]] = {
    "random": lambda d: d.made(),
    "large logits": lambda d: d.made(q=d.q * 8, k=d.k * 8),
    "ties": lambda d: d.made(k=d.k[..., :1, :].expand_as(d.k)),  # all keys of a head are one key
    "one key dominates": _one_dominates,
    # Boolean, a query that sees nothing and one that sees one key among them.
    "masked rows": _masked_rows,
    # Slopes, and -1e4 for keys to hide, as many models have it.
    "added mask": _added_mask,
    "causal": lambda d: d.made(causal=True),
    # Values below the smallest normal number, and keys so far away that weights underflow.
    "subnormals": _subnormals,
    "offset values": lambda d: d.made(v=d.v / 16 + 3),
    # The running maximum moves at every key, by little or by so much that what comes before has to
    # be rescaled to nothing.
    "rising maximum": lambda d: _climbing(d, 100, 0.5, 2.0),
    "steep maximum": lambda d: _climbing(d, 10, -4, 8),
    "cancelling products": _cancelling,  # large ones, in the logit
    "outliers": _outliers,  # a few keys and values a hundred times as large
    # Nothing cancels: errors of one direction add up.
    "same sign": lambda d: d.made(q=d.q.abs(), k=d.k.abs(), v=d.v.abs()),
    # Near-equal logits by different ways: half the keys pass through negative partial sums.
    "paths": _paths,
    "own scale": lambda d: d.made(scale=-1 / (3 * math.sqrt(d.shape.dim))),
}


def draw(
    name: str,
    shape: Shape,
    dtype: torch.dtype,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
) -> Inputs:
    """One case."""
    return CASES[name](_Draw(shape, dtype, generator, torch.device(device)))
