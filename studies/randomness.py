"""Random numbers by name: every tensor of a study has a stream of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

__all__ = ["forget", "generator", "permutation", "shared", "take"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_CACHES: list[_lru_cache_wrapper[object]] = []

_SEED_BYTES = 7  # manual_seed takes 64 bits with a sign; 56 are enough to tell streams apart


def shared(draw: Callable[_P, _T]) -> Callable[_P, _T]:
    """Stacks that ask for the same data hold it once; only the last is kept."""
    cached = lru_cache(maxsize=1)(draw)
    _CACHES.append(cached)
    return cached  # type: ignore[return-value]


def forget() -> None:
    """Let go of all shared data."""
    for cache in _CACHES:
        cache.cache_clear()


def generator(device: torch.device | str, *name: object) -> torch.Generator:
    """A generator seeded by what it is for, such as ("heads", seed, "X")."""
    digest = hashlib.sha256(repr(name).encode()).digest()
    seed = int.from_bytes(digest[:_SEED_BYTES], "big")
    return torch.Generator(device).manual_seed(seed)


def permutation(count: int, device: torch.device | str, *name: object) -> Tensor:
    """A random order of ``count`` things."""
    return torch.randperm(count, generator=generator(device, *name), device=device)


def take(data: Tensor, index: Tensor) -> Tensor:
    """Rows of every data set: (S, N, ...) at (S, B) gives (S, B, ...)."""
    sets = torch.arange(data.shape[0], device=data.device)[:, None]
    return data[sets, index]
