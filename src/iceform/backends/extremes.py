r"""The largest entry and the longest row of samples, seen a part at a time.

A pass over samples can hand each part on while it is in cache, so that checking them costs no
second reading; on a GPU the sizes stay there until somebody asks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from iceform.backends.kernels import own_kernels
from iceform.validation import largest_entry, unwrapped

__all__ = ["Extremes"]

_CACHED = 1 << 22  # bytes of samples that stay in cache between two looks at them


class Extremes:
    r"""max :math:`|x_{ij}|` and max :math:`\|x_i\|_2` of samples.

    Parameters
    ----------
    length
        What no row may be longer than. Since :math:`\|x\|_2 \le \sqrt d \max_j |x_j|`, lengths are
        measured only where the largest entry does not settle it; None never measures them.
    backend
        "triton" insists on its kernel; others use it on a GPU.
    """

    def __init__(self, length: float | None, backend: str = "fused") -> None:
        self._length = length
        self._backend = backend
        self._seen: list[Tensor] = []

    def __call__(self, part: Tensor) -> None:
        """Look at some more samples, shape (..., d)."""
        self._seen.append(self._measure(part.detach()))

    @property
    def lengths(self) -> bool:
        """Whether rows are to be measured beside entries."""
        return self._length is not None

    def take(self, sizes: Tensor) -> None:
        """What a pass has seen itself: (max |x|, max ||x||_2), the latter where asked for."""
        self._seen.append(sizes)

    def watch_all(self, x: Tensor) -> None:
        """Look at all samples, on a CPU in parts that are read from memory once."""
        if x.device.type != "cpu" or x.numel() * x.element_size() <= _CACHED:
            self(x)
            return
        rows = x.detach().reshape(-1, x.shape[-1])
        for part in rows.split(max(1, _CACHED // (x.shape[-1] * x.element_size()))):
            self(part)

    @property
    def sizes(self) -> Tensor:
        """(largest entry, a bound of the longest row), float64; not a number where x has any.

        The bound is the length itself wherever that exceeds what was allowed.
        """
        if len(self._seen) == 1:
            return self._seen[0]
        return torch.stack(self._seen).amax(0)

    def _measure(self, part: Tensor) -> Tensor:
        kernels = own_kernels(part, self._backend)
        if kernels is not None:
            found: Tensor = kernels.extremes(part)
            return found
        largest = largest_entry(part).double()
        longest = largest * math.sqrt(part.shape[-1])
        # On a GPU nothing is decided here, since the host would have to wait.
        if self._length is not None and (part.is_cuda or not bool(longest <= self._length)):
            longest = unwrapped(part.norm(dim=-1)).amax().double()
        return torch.stack([largest, longest])
