"""What a network computes outside its pieces: found by watching it run, never taken on trust."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from iceform.errors import ProgramError
from iceform.networks.convert import MultiHead, SelfAttention
from iceform.networks.pieces import Piece

__all__ = ["operations_outside", "refuse_missed", "unsupported"]

# Operations that move or make numbers without computing with them.
_MOVES = {
    "alias", "arange", "as_strided", "bitwise_and", "bitwise_not", "cat", "clone",
    "constant_pad_nd",
    "copy", "copy_", "detach", "empty", "eq", "expand", "fill", "fill_", "full", "full_like",
    "gather", "ge", "gt", "index", "is_same_size", "item", "le", "lift_fresh", "logical_not",
    "logical_and", "lt", "masked_fill", "masked_fill_", "ne", "new_empty", "new_full", "new_ones",
    "new_zeros",
    "ones", "ones_like", "permute", "repeat", "scalar_tensor", "select", "slice", "split",
    "squeeze", "stack", "t", "transpose", "tril", "triu", "unbind", "unsqueeze", "view", "where",
    "zeros", "zeros_like", "_local_scalar_dense", "_to_copy", "_unsafe_view", "all", "any",
    "equal", "empty_like", "logical_or", "bitwise_or", "isinf", "isneginf", "empty_strided",
    "scatter", "to", "reshape", "eye", "_reshape_alias", "unflatten", "movedim", "contiguous",
}  # fmt: skip
# Operations that a piece stands for; outside of one they are a map that was not emulated.
_MAPS = {
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "dot", "linear", "convolution", "conv2d",
    "matmul", "_scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math", "_transformer_encoder_layer_fwd", "embedding",
    "_native_multi_head_attention", "_embedding_bag", "einsum",
    "relu", "relu_", "gelu", "gelu_", "tanh", "tanh_", "sigmoid", "silu", "silu_", "elu", "erf",
    "softplus", "hardtanh", "leaky_relu", "mish", "hardswish", "_softmax", "_log_softmax",
}  # fmt: skip


_OURS = (Piece, MultiHead, SelfAttention)  # what they compute is in the report


class _Watch(TorchDispatchMode):
    """Counts operations while no piece is running."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: list[str] = [""]
        self.inside = 0
        self.seen: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        floats = any(isinstance(a, torch.Tensor) and a.is_floating_point() for a in args)
        if not self.inside and name not in _MOVES and (floats or name in _MAPS):
            self.seen[name, self.places[-1]] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def _hooked(model: nn.Module, watch: _Watch) -> Iterator[None]:
    def enter(name: str, part: nn.Module) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            watch.places.append(name or type(model).__name__)
            watch.inside += isinstance(part, _OURS)

        return hook

    def leave(part: nn.Module) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            watch.places.pop()
            watch.inside -= isinstance(part, _OURS)

        return hook

    handles = []
    for name, part in model.named_modules():
        handles.append(part.register_forward_pre_hook(enter(name, part)))
        handles.append(part.register_forward_hook(leave(part)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def operations_outside(
    model: nn.Module, run: Callable[[], object]
) -> tuple[dict[str, int], dict[str, str]]:
    """(what is computed outside the pieces and how often, maps that were missed and where)."""
    watch = _Watch()
    with _hooked(model, watch), watch:
        run()
    missed = {name: place for (name, place) in watch.seen if name in _MAPS}
    listed: Counter[str] = Counter()
    for (name, _), count in watch.seen.items():
        listed[name] += count
    return dict(listed), missed


def unsupported(model: nn.Module) -> list[str]:
    """Modules that still have parameters: nothing here stands for them."""
    return [
        f"{name or 'the model'} ({type(part).__name__})"
        for name, part in model.named_modules()
        if not isinstance(part, _OURS) and any(True for _ in part.parameters(recurse=False))
    ]


def refuse_missed(missed: dict[str, str]) -> None:
    """Raise if a map was computed outside every piece."""
    if missed:
        listed = ", ".join(f"{op} in {place}" for op, place in sorted(missed.items()))
        raise ProgramError(
            f"not emulated: {listed}; give these maps modules of their own (nn.Linear, nn.GELU, "
            "...), or pass strict=False to have them listed in the report instead"
        )
