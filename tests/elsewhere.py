"""Tensors that claim to lie on a GPU, so that code which mixes devices fails without one.

Inside :class:`Elsewhere` a tensor made by :func:`there` says that it is on ``cuda:0``; whatever is
computed of it, or made with ``device="cuda"``, does so too. An operation on such tensors and on
others of the host raises, as CUDA would; numbers (0 axes) and index tensors are let through, as
CUDA lets them. Nothing is known of kernels: memory is the host's.
"""

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map

__all__ = ["Elsewhere", "MixedError", "here", "is_there", "there"]

_DEVICE = torch.device("cuda", 0)
_SAID = {Tensor.device.__get__: _DEVICE, Tensor.is_cuda.__get__: True, Tensor.is_cpu.__get__: False}
_HOST = {"cpu", "tolist", "item", "__bool__", "__float__", "__int__", "__repr__", "__index__"}
_IN_PLACE = {
    f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "and", "or", "xor", "pow")
} | {"__setitem__"}


class MixedError(Exception):
    """Tensors of two devices in one operation."""


class _There(Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


def there(t: Tensor) -> Tensor:
    """The same memory, said to be on a GPU."""
    return t.as_subclass(_There) if type(t) is Tensor else t


def here(t: Tensor) -> Tensor:
    """The same memory, on the host again."""
    return t.as_subclass(Tensor) if isinstance(t, _There) else t


def is_there(t: object) -> bool:
    """Whether it is said to be on the GPU."""
    return isinstance(t, _There)


def _on(tree, move):
    return tree_map(lambda t: move(t) if isinstance(t, Tensor) else t, tree)


def _named(value) -> bool | None:
    """Whether an argument names the GPU; None where it names no device."""
    if isinstance(value, Tensor):
        return is_there(value)
    if isinstance(value, torch.device | str):
        return torch.device(value).type == "cuda"
    return None


def _at_home(value):
    return torch.device("cpu") if isinstance(value, torch.device | str) else value


class Elsewhere(TorchFunctionMode):
    """Where :func:`there` means something."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        tensors = [t for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)]
        far = [t for t in tensors if is_there(t)]
        if far and func in _SAID:
            return _SAID[func]
        if name == "to":
            return self._moved(func, args, kwargs)
        made = _named(kwargs.get("device")) or name == "cuda"
        if made:
            kwargs["device"] = torch.device("cpu")
        self._check(name, args, tensors, far)
        if name == "cuda":
            return there(args[0])
        out = func(*_on(args, here), **_on(kwargs, here))
        if name in _HOST or isinstance(out, torch.Size):
            return out
        if far and (name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))):
            return args[0]
        if "out" in kwargs:
            return kwargs["out"]
        return _on(out, there) if far or made else out

    @staticmethod
    def _moved(func, args, kwargs):
        tensor, *rest = args
        asked = [_named(value) for value in (*rest, *kwargs.values())]
        target = next((value for value in asked if value is not None), is_there(tensor))
        rest = _on([_at_home(value) for value in rest], here)
        kwargs = _on({k: _at_home(value) for k, value in kwargs.items()}, here)
        out = func(here(tensor), *rest, **kwargs)
        return there(out) if target else out

    @staticmethod
    def _check(name, args, tensors, far):
        if not far or name in ("__get__", "copy_"):
            return
        if name == "numpy":
            raise MixedError("numpy() of a tensor on the GPU")
        near = [t for t in tensors if not is_there(t) and t.ndim]
        if name in ("__getitem__", "__setitem__") and is_there(args[0]):
            near = [t for t in near if t.dtype.is_floating_point]
        if near:
            shapes = [[tuple(t.shape) for t in some] for some in (far, near)]
            raise MixedError(f"{name} of {shapes[0]} on the GPU and {shapes[1]} on the host")
