"""What the kernels can run, where, and in which precision."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from iceform.errors import DeviceError
from iceform.run.windowed import window_of
from iceform.tables import Interpolant

_DTYPES = (torch.float32, torch.float64, torch.bfloat16)
_OLDEST = (7, 0)  # compute capability that Triton supports
TILE = 4096  # entries, or bytes of a row, that a program holds at once
LANES = 128  # of a row that is read together, and rows that are summed together


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter."""
    return bool(triton.knobs.runtime.interpret)


def can_run(tensor: Tensor) -> bool:
    """Whether the kernels can run on this tensor: its device and its dtype."""
    if tensor.dtype not in _DTYPES:
        return False
    if interpreted():
        return tensor.device.type in ("cpu", "cuda")
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= _OLDEST


def can_look_up(it: Interpolant, dtype: torch.dtype) -> bool:
    """Whether a table can be read: by a window, or graded and so read whole."""
    return not it.uniform or window_of(it, wide_dtype(dtype)) is not None


def can_sum(x: Tensor, y: Tensor, w: Tensor, it: Interpolant) -> bool:
    """Whether ``residual_sum`` takes these shapes and this table."""
    same = y.dtype == w.dtype == wide_dtype(x.dtype)
    return same and x.ndim <= 3 and y.ndim <= 2 and w.ndim <= 2 and can_look_up(it, x.dtype)


def should_project(x: Tensor) -> bool:
    """Whether ``project`` beats a library's matrix product followed by a look-up.

    Tensor cores multiply bfloat16 as fast here as there; full float32 and float64 products are
    the library's strength.
    """
    return x.dtype == torch.bfloat16


def require(tensor: Tensor, it: Interpolant) -> None:
    """Say why the kernels cannot run, where somebody insists on them."""
    if not can_run(tensor):
        raise DeviceError(
            f"backend='triton' cannot run {tensor.dtype} on {tensor.device}; move the data to a "
            "CUDA device in float32, float64 or bfloat16, set TRITON_INTERPRET=1 to try it on "
            "the CPU, or use backend='fused'"
        )
    if not can_look_up(it, tensor.dtype):
        raise DeviceError(
            f"backend='triton' has no window for a table of sharpness {it.sharpness:.3g}; use "
            "backend='fused'"
        )


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """What numbers of this dtype are computed in."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


@lru_cache(maxsize=16)
def multiprocessors(device: torch.device) -> int:
    """How many there are to fill."""
    if device.type != "cuda":
        return 2  # in the interpreter: enough to try the second stage
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def ceil_div(a: int, b: int) -> int:
    """As triton.cdiv, which takes microseconds to find out that it is called by the host."""
    return -(-a // b)
