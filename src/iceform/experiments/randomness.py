"""Random numbers by name: every tensor of a study has a stream of its own."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

__all__ = ["generator", "permutation", "take"]

_SEED_BYTES = 7  # manual_seed takes 64 bits with a sign; 56 are enough to tell streams apart


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
