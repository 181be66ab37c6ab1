"""Kernels to hold against their tolerance: PyTorch's, or a function of the caller's."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from iceform.errors import ProgramError
from iceform_tolerance.cases import Inputs
from iceform_tolerance.kind import KernelKind

_NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class KernelBackend:
    """A kernel and its kind on a device.

    Examples
    --------
    >>> attention = torch.nn.functional.scaled_dot_product_attention
    >>> mine = KernelBackend("mine", lambda inputs: attention(inputs.q, inputs.k, inputs.v))
    >>> mine.kind(torch.float16, torch.device("cpu")).accumulate
    torch.float32
    """

    name: str
    call: Callable[[Inputs], Tensor]
    positive: bool = False  # whether it takes a scale to be positive

    def reads(self, dtype: torch.dtype) -> torch.dtype:
        """What it computes with: PyTorch has no attention for float8 and reads it as bfloat16."""
        return torch.bfloat16 if dtype in _NARROW else dtype

    def kind(self, dtype: torch.dtype, device: torch.device) -> KernelKind:
        """Its kind, with the defaults of its device."""
        return KernelKind.of(self.reads(dtype), device=device)

    def run(self, inputs: Inputs) -> Tensor | str:
        """Its output, or why it cannot run on these inputs."""
        if self.positive and inputs.scale is not None and inputs.scale < 0 and inputs.q.is_cuda:
            return f"takes the scale to be positive and returns NaN for {inputs.scale:g}"
        read = self.reads(inputs.q.dtype)
        parts = {name: getattr(inputs, name).to(read) for name in ("q", "k", "v")}
        mask = inputs.mask
        if mask is not None and mask.is_floating_point():
            mask = mask.to(read)
        given = Inputs(**parts, mask=mask, causal=inputs.causal, scale=inputs.scale)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch's reasons for not running a kernel
                return self.call(given)
        except (RuntimeError, NotImplementedError) as refused:
            return str(refused).splitlines()[0]


def _called(function: Callable[..., Tensor], inputs: Inputs, **more: bool) -> Tensor:
    return function(
        inputs.q, inputs.k, inputs.v, attn_mask=inputs.mask, is_causal=inputs.causal,
        scale=inputs.scale, **more,
    )  # fmt: skip


def _sdpa(inputs: Inputs) -> Tensor:
    shared = inputs.q.shape[-3] != inputs.k.shape[-3]
    return _called(scaled_dot_product_attention, inputs, enable_gqa=shared)


def _only(which: SDPBackend) -> Callable[[Inputs], Tensor]:
    def call(inputs: Inputs) -> Tensor:
        with sdpa_kernel([which]):
            return _sdpa(inputs)

    return call


BACKENDS = {
    "sdpa": KernelBackend("sdpa", _sdpa, positive=True),
    "math": KernelBackend("math", _only(SDPBackend.MATH)),
    "efficient": KernelBackend("efficient", _only(SDPBackend.EFFICIENT_ATTENTION)),
    "flash": KernelBackend("flash", _only(SDPBackend.FLASH_ATTENTION), positive=True),
    "cudnn": KernelBackend("cudnn", _only(SDPBackend.CUDNN_ATTENTION), positive=True),
}


def backend_named(name: str) -> KernelBackend:
    """One of PyTorch's by name, or ``module:function`` with the arguments of PyTorch's.

    Examples
    --------
    >>> backend_named("sdpa").name
    'sdpa'
    """
    if name in BACKENDS:
        return BACKENDS[name]
    module, colon, function = name.partition(":")
    if not colon:
        known = ", ".join(BACKENDS)
        raise ProgramError(f"no kernel is called {name!r}; there are {known}, or module:function")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as missing:
        raise ProgramError(f"{name} cannot be imported: {missing}") from None
    return KernelBackend(name, partial(_called, found))
