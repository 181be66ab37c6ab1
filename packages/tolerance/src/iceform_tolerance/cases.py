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
    """batch, heads, queries, dim, and what differs from them."""

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
    """What a kernel is called with."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    causal: bool = False
    scale: float | None = None

    def problem(self) -> Problem:
        """The same, checked."""
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


def _plain(draw: _Draw) -> Inputs:
    return draw.made()


def _large_logits(draw: _Draw) -> Inputs:
    return draw.made(q=draw.q * 8, k=draw.k * 8)


def _ties(draw: _Draw) -> Inputs:
    """All keys of a head are one key."""
    return draw.made(k=draw.k[..., :1, :].expand_as(draw.k))


def _one_dominates(draw: _Draw) -> Inputs:
    k = draw.k.clone()
    k[..., draw.shape.length // 2, :] = draw.q.mean((1, 2)).sign()[:, None] * 8
    return draw.made(q=draw.q.abs() + 1, k=k)


def _masked_rows(draw: _Draw) -> Inputs:
    """Boolean, a query that sees nothing and one that sees one key among them."""
    mask = draw.uniform(draw.shape.queries, draw.shape.length) < 0.5
    mask[0] = False
    mask[-1] = False
    mask[-1, 0] = True
    return draw.made(mask=mask)


def _added_mask(draw: _Draw) -> Inputs:
    """Slopes, and -1e4 for keys to hide, as many models have it."""
    slope = -torch.arange(draw.shape.length).double().expand(draw.shape.queries, -1) / 16
    hidden = draw.uniform(draw.shape.queries, draw.shape.length) < 0.25
    most = torch.finfo(draw.dtype).max
    return draw.made(mask=torch.where(hidden, max(-1e4, -most), slope))


def _causal(draw: _Draw) -> Inputs:
    return draw.made(causal=True)


def _subnormals(draw: _Draw) -> Inputs:
    """Values below the smallest normal number, and keys so far away that weights underflow."""
    tiny = torch.finfo(draw.dtype).smallest_normal / 4
    far = draw.k.clone()
    far[..., 1::2, :] *= 16
    return draw.made(k=far, v=draw.v * tiny)


def _offset_values(draw: _Draw) -> Inputs:
    return draw.made(v=draw.v / 16 + 3)


def _rising(draw: _Draw) -> Inputs:
    """Each key a little above the last: the running maximum moves at every one of them."""
    rise = torch.linspace(0.5, 1.5, draw.shape.length)[:, None]
    return draw.made(q=torch.ones_like(draw.q), k=(draw.k * 0.01 + 1) * rise)


def _steep(draw: _Draw) -> Inputs:
    """The maximum moves by much: what comes before has to be rescaled to nothing."""
    rise = torch.linspace(-4.0, 8.0, draw.shape.length)[:, None]
    return draw.made(q=torch.ones_like(draw.q), k=draw.k * 0.1 + rise)


def _cancelling(draw: _Draw) -> Inputs:
    """Large products that cancel in the logit."""
    sign = torch.ones(draw.shape.dim)
    sign[1::2] = -1
    return draw.made(q=draw.q * 0.1 + 4, k=draw.k * 0.1 + 4 * sign)


def _outliers(draw: _Draw) -> Inputs:
    """A few keys and values a hundred times as large."""
    k, v = draw.k.clone(), draw.v.clone()
    k[..., ::7, :] *= 30
    v[..., ::5, :] *= 100
    return draw.made(k=k, v=v)


def _same_sign(draw: _Draw) -> Inputs:
    """Nothing cancels: errors of one direction add up."""
    return draw.made(q=draw.q.abs(), k=draw.k.abs(), v=draw.v.abs())


def _paths(draw: _Draw) -> Inputs:
    """Near-equal logits by different ways: half the keys pass through negative partial sums."""
    k = torch.ones_like(draw.k) * (1 + 0.01 * draw.uniform(*draw.k.shape))
    half = draw.shape.dim // 2
    k[..., 1::2, :half] -= 3
    k[..., 1::2, half : 2 * half] += 3
    v = torch.ones_like(draw.v)
    v[..., 1::2, :] = -1
    return draw.made(q=1 + 0.01 * draw.uniform(*draw.q.shape), k=k, v=v)


def _own_scale(draw: _Draw) -> Inputs:
    return draw.made(scale=-0.3 / math.sqrt(draw.shape.dim))


CASES: Mapping[str, Callable[[_Draw], Inputs]] = {
    "random": _plain,
    "large logits": _large_logits,
    "ties": _ties,
    "one key dominates": _one_dominates,
    "masked rows": _masked_rows,
    "added mask": _added_mask,
    "causal": _causal,
    "subnormals": _subnormals,
    "offset values": _offset_values,
    "rising maximum": _rising,
    "steep maximum": _steep,
    "cancelling products": _cancelling,
    "outliers": _outliers,
    "same sign": _same_sign,
    "paths": _paths,
    "own scale": _own_scale,
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
