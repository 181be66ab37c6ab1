"""Checks at the border: once, before anything is allocated."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from iceform.errors import (
    BoundError,
    CapacityError,
    DeviceError,
    DtypeError,
    ParameterError,
    PrecisionError,
    ProgramError,
    ShapeError,
)

__all__ = [
    "check_capacity", "check_choice", "check_dtype", "check_eps", "check_positive", "check_size",
    "dtype_name", "full_precision", "guard", "path_of", "plain_array", "plain_tensor", "tensor_of",
    "unit_roundoff",
]  # fmt: skip

_DTYPES = (torch.float32, torch.float64)
_TAUGHT = 2  # NumPy's ``isbuiltin`` of a dtype that another package has registered
_LOWERED = ("cpu", "cuda")  # devices whose products torch.autocast rounds to half the digits

_SMALLEST_NORMAL, _HALF = sys.float_info.min, 0.5

P = ParamSpec("P")
R = TypeVar("R")


def check_size(name: str, value: object) -> int:
    """A whole number of at least one; anything else is a ``ShapeError`` that names it.

    Example
    -------
    >>> check_size("samples", 8)
    8
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ShapeError(f"{name} must be a whole number of at least 1, got {value!r}")
    return value


def path_of(path: object) -> Path:
    """A path as a ``Path``, or a ``ParameterError``.

    Example
    -------
    >>> path_of("folder").name
    'folder'
    """
    if not isinstance(path, str | os.PathLike):
        raise ParameterError(f"a path is a str or a Path, got {path!r}. Give the folder's name.")
    return Path(path)


def check_positive(
    name: str, value: object, *, zero: bool = False, dtype: torch.dtype | None = None
) -> float:
    """A positive (with ``zero``: non-negative) finite number, or a ``BoundError``.

    A bound on data of ``dtype`` reaches to the number that stands for it there, if that is larger,
    as the float32 nearest to 3/5 is.

    Example
    -------
    >>> check_positive("alpha", 0, zero=True) == 0
    True
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BoundError(f"{name} must be a number, got {value!r}")
    if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        kind = "non-negative" if zero else "positive"
        raise BoundError(f"{name} must be {kind} and finite, got {value!r}")
    return float(value) if dtype is None else max(value, float(torch.tensor(value, dtype=dtype)))


def check_eps(eps: float | None) -> float | None:
    """A positive error to certify, or None for the best there is; else a ``PrecisionError``."""
    if eps is None:
        return None
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not eps > 0:
        raise PrecisionError(
            f"eps must be positive, got {eps!r}; use eps=None for the best the dtype can do"
        )
    return float(eps)


def check_pair(name: str, value: object) -> tuple[float, float]:
    """Two finite numbers in order."""
    try:
        low, high = map(float, value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BoundError(
            f"{name} must be finite numbers (low, high) with low < high, got {value!r}"
        )
    return low, high


def check_choice(name: str, value: object, choices: Sequence[str]) -> str:
    """One of a few names, or a ``ProgramError`` that lists them.

    Example
    -------
    >>> check_choice("kernel", "rbf", ("rbf", "linear"))
    'rbf'
    """
    if value not in choices:
        raise ProgramError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return str(value)


def check_dtype(dtype: object) -> torch.dtype:
    """A dtype that certificates cover, float32 or float64, or a ``DtypeError``."""
    if dtype not in _DTYPES:
        raise DtypeError(f"dtype must be torch.float32 or torch.float64, got {dtype!r}")
    assert isinstance(dtype, torch.dtype)
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """As people and files write it.

    Example
    -------
    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


def unit_roundoff(dtype: torch.dtype) -> float:
    """u: half the distance from 1 to the next number.

    Example
    -------
    >>> unit_roundoff(torch.float64) == 2.0**-53
    True
    """
    return torch.finfo(dtype).eps / 2


def check_tensors(
    tensors: dict[str, tuple[Tensor, tuple[int, ...]]], dtype: torch.dtype, device: torch.device
) -> None:
    """Trailing shapes, dtype and device of named tensors; batch shapes must broadcast."""
    for name, (value, shape) in tensors.items():
        if not isinstance(value, Tensor):
            raise DtypeError(
                f"{name} must be a torch tensor, got {type(value).__name__}; "
                f"use torch.as_tensor({name}, dtype={dtype})"
            )
        if value.dtype != dtype:
            raise DtypeError(
                f"{name} has dtype {value.dtype}, the certificate holds for {dtype}; "
                f"convert with {name}.to({dtype}) or build the emulator with that dtype"
            )
        if value.device != device:
            raise DeviceError(
                f"{name} is on {value.device}, other inputs are on {device}; move one with .to()"
            )
        if value.ndim < len(shape) or tuple(value.shape[value.ndim - len(shape) :]) != shape:
            wanted = ", ".join(["*batch", *map(str, shape)])
            raise ShapeError(f"{name} must have shape ({wanted}), got {tuple(value.shape)}")
    if device.type == "meta":
        raise DeviceError("inputs on the meta device hold no numbers; move them to a real one")
    batches = [v.shape[: v.ndim - len(shape)] for v, shape in tensors.values()]
    try:
        common_batch(*batches)
    except RuntimeError:
        listed = ", ".join(f"{n}: {tuple(b)}" for n, b in zip(tensors, batches, strict=True))
        raise ShapeError(f"batch shapes must broadcast, got {listed}") from None


def plain_array(values: Any) -> Any:
    """The numbers of a NumPy array as one that torch can share; a copy where it cannot.

    It cannot where rows are reversed or fields of a record, nor in the byte order of another
    machine. Formats that a package has taught NumPy (bfloat16, float8) become float32, which holds
    all their numbers.
    """
    if values.dtype.isbuiltin == _TAUGHT:
        values = values.astype("float32")
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    odd = any(stride < 0 or stride % max(values.itemsize, 1) for stride in values.strides)
    return values if values.flags.aligned and not odd else values.copy()


def tensor_of(name: str, values: Any) -> Tensor:
    """The numbers of a tensor, an array or nested lists, as :func:`plain_tensor` has them.

    Example
    -------
    >>> tensor_of("X", [[1.0, 2.0]]).shape
    torch.Size([1, 2])
    """
    if not isinstance(values, Tensor):
        if hasattr(values, "__array_interface__") and hasattr(values, "strides"):
            values = plain_array(values)
            values = values if values.flags.writeable else values.copy()
        try:
            values = torch.as_tensor(values)
        except (TypeError, ValueError, RuntimeError) as broken:
            raise DtypeError(
                f"{name} cannot be read as numbers: {broken}; give a tensor or an array of numbers"
            ) from None
    return plain_tensor(name, values)


def plain_tensor(name: str, values: Tensor) -> Tensor:
    """The numbers of a tensor, for code that looks at their bits or hands them to NumPy.

    What a graph holds is detached, since no gradient flows through a run, and a view that negates
    when it is read (``torch.imag`` of a conjugate, say) is written out. Nothing else is copied.

    Raises
    ------
    DtypeError
        If it is no tensor, or a sparse, nested or quantised one.
    DeviceError
        If it holds no numbers, on the meta device or inside vmap.
    """
    if not isinstance(values, Tensor):
        raise DtypeError(
            f"{name} must be a torch tensor, got {type(values).__name__}; use "
            f"torch.as_tensor({name})"
        )
    if values.layout != torch.strided or values.is_quantized:
        kind = "quantised" if values.is_quantized else f"stored as {values.layout}"
        raise DtypeError(f"{name} is {kind}, and runs read dense numbers; give {name}.to_dense()")
    if values.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(values):
        where = "the meta device" if values.is_meta else "torch.func's transforms (vmap, grad)"
        raise DeviceError(
            f"{name} holds no numbers: it comes from {where}; give a tensor of numbers"
        )
    return values.detach().resolve_neg().resolve_conj()


def written_out(values: Tensor) -> Tensor:
    """The numbers of a tensor as one run of memory, for code that reads them by their address.

    ``contiguous`` alone leaves a view that negates when it is read (:func:`plain_tensor`) as it is.
    """
    return values.resolve_neg().contiguous()


def common_batch(*shapes: torch.Size) -> torch.Size:
    """What the shapes broadcast to.

    Those that agree, as most do, are not given to torch, which imports sympy to look at them.
    """
    first = shapes[0] if shapes else torch.Size()
    return first if all(s == first for s in shapes) else torch.broadcast_shapes(*shapes)


def check_bound(name: str, value: Tensor, bound: float, fix: str) -> None:
    """|value| <= bound everywhere; NaN and infinity are named as such."""
    if value.numel() == 0:
        raise ShapeError(f"{name} is empty, shape {tuple(value.shape)}")
    check_largest(name, float(largest_entry(value)), bound, fix)


def unwrapped(value: Tensor) -> Tensor:
    """The tensor inside torch.func's wrappers, so that values can be read inside vmap and grad."""
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


def largest_entry(value: Tensor) -> Tensor:
    """max |value| without a copy of the data; NaN where any of it is."""
    value = unwrapped(value.detach())
    if value.is_cuda:  # one launch, and none to widen it
        largest: Tensor = torch.linalg.vector_norm(value, math.inf, dtype=torch.float64)
        return largest
    least, most = torch.aminmax(value)
    return torch.maximum(most, -least)


def check_largest(name: str, seen: float, bound: float, fix: str) -> None:
    """The same, knowing only the largest entry."""
    # Written so that NaN fails: every comparison with NaN is false.
    if not seen <= bound:
        # With all digits: a limit that is rounded may be no limit.
        what, most = (repr(float(v)).removesuffix(".0") for v in (seen, bound))
        shown = f"max {name}" if name.startswith("|") else f"max |{name}|"
        what = "NaN" if math.isnan(seen) else what
        raise BoundError(f"{shown} is {what}, the certificate holds up to {most}; {fix}")


def check_matmul_precision(dtype: torch.dtype) -> None:
    """float32 products must be float32 products: TF32 and bf16 ruin the logits."""
    precision = torch.get_float32_matmul_precision()
    if dtype == torch.float32 and precision != "highest":
        raise PrecisionError(
            f"float32 matrix products are set to {precision!r}, which rounds logits to 10 bits or "
            "fewer; call torch.set_float32_matmul_precision('highest')"
        )


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run it in the dtype of its inputs: ``torch.autocast`` around a call ends at this border.

    Autocast rounds float32 products to bfloat16 or float16, which no certificate covers; nor do
    they cover subnormal numbers that are taken for 0 (``torch.set_flush_denormal``). A default
    device (``torch.set_default_device``) would move what is made here and not what was given. All
    three are switched off inside and as they were afterwards.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if _SMALLEST_NORMAL * _HALF == 0.0:
            torch.set_flush_denormal(False)
            try:
                return call(*args, **kwargs)
            finally:
                torch.set_flush_denormal(True)
        for device in _LOWERED:
            if torch.is_autocast_enabled(device):
                with torch.autocast(device, enabled=False):
                    return call(*args, **kwargs)  # another device may be lowered too
        if not torch.compiler.is_compiling() and torch.get_default_device().type != "cpu":
            with torch.device("cpu"):
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def guard(kind: type, names: Iterable[str]) -> None:
    """Make those of these methods that a class defines run in :func:`full_precision`.

    Call it in ``__init_subclass__``, so that a subclass that overrides one is covered too.
    """
    for name in names:
        if name in vars(kind):
            setattr(kind, name, full_precision(vars(kind)[name]))


def for_later(function: Callable[P, R]) -> Callable[P, R]:
    """Run it outside ``torch.inference_mode``: what it makes is kept, and used outside too.

    Tensors that are made inside cannot take part in a backward pass, ever.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return call


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """As ``torch.compiler.disable``, for what a compiler must not look into.

    That loads torch._dynamo as soon as it decorates something, which takes as long as importing the
    rest of torch; this leaves it to whoever compiles.
    """
    disabled: list[Callable[P, R]] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        compiler = sys.modules.get("torch._dynamo")
        if compiler is None:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(compiler.disable(function))
        return disabled[0](*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


def available_bytes(device: torch.device) -> int:
    """Memory that could be allocated now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_capacity(what: str, needed: int, device: torch.device, fix: str) -> None:
    """Refuse with a ``CapacityError`` what would not fit, before it is allocated.

    Parameters
    ----------
    what
        What needs the memory, as the message says it.
    needed
        Bytes.
    device
        Where they would be.
    fix
        What a user can do, the end of the message.
    """
    there = available_bytes(device)
    if needed > there:
        raise CapacityError(
            f"{what}: {human_bytes(needed)} ({needed} bytes) needed, {human_bytes(there)} "
            f"available on {device}; {fix}"
        )


def human_bytes(count: float) -> str:
    """12.3 MiB and the like."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} EiB"
