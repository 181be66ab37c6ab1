"""Triton: the fused backend that insists on its GPU kernels."""

from __future__ import annotations

from iceform.backends.fused import Fused
from iceform.backends.kernels import has_triton
from iceform.backends.rounding import Rounding
from iceform.errors import DeviceError

__all__ = ["Triton"]


class Triton(Fused):
    """As fused, and refused where a kernel cannot run."""

    name = "triton"
    rounding = Rounding(literal=False)

    @classmethod
    def require(cls) -> None:
        if not has_triton():
            raise DeviceError(
                "backend='triton' needs Triton; install iceform[gpu], or use backend='fused'"
            )
