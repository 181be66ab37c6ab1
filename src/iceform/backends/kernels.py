"""Which of the Triton kernels can run what."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from iceform.interpolation import Interpolant

__all__ = ["has_triton", "is_transformed", "kernels_for", "own_kernels"]


def kernels_for(tensor: Tensor, it: Interpolant, backend: str) -> ModuleType | None:
    """The Triton kernels where they should run, else None.

    "triton" insists on them and says why they cannot run; other backends take them for anything
    on a GPU that they can do.
    """
    insisted = backend == "triton"
    if not insisted and (not tensor.is_cuda or not has_triton()):
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
    if backend != "triton" and (not tensor.is_cuda or not has_triton()):
        return None
    from iceform.backends import triton

    return triton if triton.can_run(tensor) else None


def is_transformed(tensor: Tensor) -> bool:
    """Whether it is inside torch.func's vmap or grad, which want plain operations."""
    if torch.compiler.is_compiling():
        return False
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return wrapped


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None
