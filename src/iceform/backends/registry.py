"""The backends by name, the rounding each one declares, and which of them can run what."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from iceform.errors import DeviceError
from iceform.interpolation import Interpolant, RoundingModel
from iceform.validation import check_choice, unit_roundoff

__all__ = [
    "BACKENDS",
    "Rounding",
    "is_transformed",
    "kernels_for",
    "own_kernels",
    "resolve",
    "sum_block",
]

_FEW = 4096  # samples whose sums cost nothing in float64
_BLOCK = 128  # rows summed in float32 before they are added in float64, where there are more


def sum_block(dtype: torch.dtype, samples: int) -> int:
    """Rows that a fused pass may sum in ``dtype`` before it goes on in float64."""
    return 1 if dtype == torch.float64 or samples <= _FEW else _BLOCK


@dataclass(frozen=True)
class Rounding:
    """How a backend computes logits and sums over samples.

    Parameters
    ----------
    name
        The backend's name.
    literal
        True where logits come from the literal inner product of keys and queries.
    wide_sums
        True where sums over samples are accumulated in float64 whatever the dtype, but for
        blocks of :func:`sum_block` rows.
    """

    name: str
    literal: bool
    wide_sums: bool

    def model(
        self, dtype: torch.dtype, it: Interpolant, magnitude: float, dim: int
    ) -> RoundingModel:
        """The rounding of one look-up of z = w.x - y whose terms add up to ``magnitude``."""
        unit = unit_roundoff(dtype)
        if self.literal or not it.uniform:
            # d products, the label and the bias; the block code adds exact zeros.
            return RoundingModel(unit, False, magnitude, dim + 2)
        return RoundingModel(unit, True, magnitude, dim + 1, it.half_width(unit))

    def sum_error(self, dtype: torch.dtype, count: int) -> float:
        """Relative error of a mean over ``count`` samples."""
        unit = unit_roundoff(dtype)
        if not self.wide_sums:
            return _gamma(count + 2, unit) + 2 * unit
        block = sum_block(dtype, count)
        in_blocks = _gamma(block, unit) if block > 1 else 0.0
        return _gamma(count + 2, unit_roundoff(torch.float64)) + in_blocks + 2 * unit


def _gamma(terms: int, unit: float) -> float:
    return terms * unit / (1 - terms * unit)


BACKENDS = {
    "dense": Rounding("dense", literal=True, wide_sums=False),
    "fused": Rounding("fused", literal=False, wide_sums=True),
    "triton": Rounding("triton", literal=False, wide_sums=True),
}


def resolve(name: str) -> str:
    """The backend that ``name`` stands for.

    "auto" is "fused", which takes the fastest certified way for the device, dtype and size of
    every call; "triton" insists on the GPU kernels.
    """
    choice = check_choice("backend", name, ("auto", *BACKENDS))
    if choice == "triton" and not _has_triton():
        raise DeviceError(
            "backend='triton' needs Triton; install iceform[gpu], or use backend='fused'"
        )
    return "fused" if choice == "auto" else choice


def kernels_for(tensor: Tensor, it: Interpolant, backend: str) -> ModuleType | None:
    """The Triton kernels where they should run, else None.

    "triton" insists on them and says why they cannot run; other backends take them for anything
    on a GPU that they can do.
    """
    insisted = backend == "triton"
    if not insisted and (not tensor.is_cuda or not _has_triton()):
        return None
    if torch.compiler.is_compiling() or is_transformed(tensor):
        return None
    from iceform.backends import triton

    if insisted:
        triton.require(tensor, it)
        return triton
    able = triton.can_run(tensor) and triton.can_look_up(it, tensor.dtype)
    return triton if able else None


def own_kernels(tensor: Tensor, backend: str) -> ModuleType | None:
    """The kernels that look nothing up, where they can run on ``tensor``."""
    if backend != "triton" and (not tensor.is_cuda or not _has_triton()):
        return None
    from iceform.backends import triton

    return triton if triton.can_run(tensor) else None


def is_transformed(tensor: Tensor) -> bool:
    """Whether it is inside torch.func's vmap or grad, which want plain operations."""
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return wrapped


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
