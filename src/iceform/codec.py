"""One codec for files: dataclasses as plain data, and back by what their fields are said to be.

A dataclass is a dictionary of what its constructor takes, a tuple a list, a dtype its name, a
tensor the list of its numbers or, in a folder, a tensor of its own under the path of its field.
:func:`decode` is told the type and reads no other: a name that is none of its fields, a field that
has no default and is missing, text where a number belongs are refused. A field with a default may
be missing, so that what earlier versions wrote is read. A private field, or one whose metadata
say ``kept=False``, is in no file; ``codec=(encode, decode)`` names a field's own pair of functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from iceform.errors import IntegrityError, ParameterError
from iceform.validation import dtype_name

T = TypeVar("T")
Tensors = dict[str, Tensor]


def encode(value: Any, tensors: Tensors | None = None, at: str = "") -> Any:
    """Plain data for JSON; with ``tensors`` given, tensors go there under their path.

    >>> from iceform.tables import Grid
    >>> encode(Grid(-1.0, 1.0, 8))
    {'low': -1.0, 'high': 1.0, 'cells': 8, 'guards': 0}
    """
    if isinstance(value, Tensor) and tensors is not None:
        tensors[at] = value
        return None
    if isinstance(value, Mapping):
        return {str(k): encode(v, tensors, f"{at}.{k}" if at else str(k)) for k, v in value.items()}
    if is_dataclass(value):
        return dict(_encoded(value, tensors, at))
    if isinstance(value, list | tuple):
        return [encode(v, tensors, f"{at}.{i}") for i, v in enumerate(value)]
    return _encoded_leaf(value)


def _encoded_leaf(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().double().tolist()
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"files hold no {type(value).__name__}")


def _encoded(value: Any, tensors: Tensors | None, at: str) -> Iterator[tuple[str, Any]]:
    kind: type = type(value)
    for one in kept_fields(kind):
        held, path = getattr(value, one.name), f"{at}.{one.name}" if at else one.name
        if "codec" in one.metadata:
            yield one.name, one.metadata["codec"][0](held)
        elif tensors is None or not isinstance(held, Tensor):
            yield one.name, encode(held, tensors, path)
        else:
            tensors[path] = held


def decode(kind: type[T], said: Any, tensors: Mapping[str, Tensor] | None = None) -> T:
    """The inverse of :func:`encode`; ``kind`` is a dataclass or another type.

    >>> from iceform.tables import Grid
    >>> decode(Grid, {"low": -1.0, "high": 1.0, "cells": 8})
    Grid(low=-1.0, high=1.0, cells=8, guards=0)

    Raises
    ------
    IntegrityError
        If it says something else.
    """
    return cast(T, _decoded(kind, said, tensors or {}, ""))


def check_fields(value: Any) -> None:
    """Refuse a dataclass whose fields hold something else than their types say.

    Raises
    ------
    ParameterError
        That names the field, what it holds and what it should.
    """
    kind: type = type(value)
    for one in kept_fields(kind):
        try:
            _decoded(_hints(kind)[one.name], getattr(value, one.name), {}, one.name)
        except IntegrityError as wrong:
            raise ParameterError(f"{kind.__name__}: {wrong}") from None


@cache
def kept_fields(kind: type) -> tuple[Field[Any], ...]:
    """The fields of a dataclass that files hold."""
    return tuple(f for f in fields(kind) if f.init and _kept(f))


def _kept(one: Field[Any]) -> bool:
    return one.metadata.get("kept", True) and not one.name.startswith("_")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _wrong(kind: Any, said: Any, at: str) -> IntegrityError:
    shown = repr(said) if isinstance(said, str | int | float | None) else type(said).__name__
    return IntegrityError(f"{at or 'what was read'} is {shown}, not {_name(kind)}")


_PLAIN = {int: "a whole number", float: "a number", str: "text", bool: "True or False"}


def _name(kind: Any) -> str:
    return _PLAIN.get(kind) or (f"a {kind.__name__}" if isinstance(kind, type) else str(kind))


def _decoded(kind: Any, said: Any, tensors: Mapping[str, Tensor], at: str) -> Any:
    if is_dataclass(kind):
        is_value = isinstance(said, cast(type, kind))  # of a dataclass in memory, not of a file
        return said if is_value else _dataclass(cast(type, kind), said, tensors, at)
    if _is_tensor(kind):
        return _tensor(said, tensors, at)
    origin = get_origin(kind)
    if origin is None:
        return _leaf(kind, said, at)
    if origin in (Union, UnionType):
        return _one_of(kind, said, tensors, at)
    if issubclass(origin, Mapping) and isinstance(said, Mapping):
        inside = get_args(kind)[1]
        return {k: _decoded(inside, v, tensors, f"{at}.{k}") for k, v in said.items()}
    return _sequence(kind, said, tensors, at)


def _leaf(kind: Any, said: Any, at: str) -> Any:
    if kind is Any:
        return said
    if kind is torch.dtype and isinstance(said, str):
        said = getattr(torch, said.removeprefix("torch."), None)
    if kind is float and isinstance(said, int) and not isinstance(said, bool):
        said = float(said)
    wanted = NoneType if kind is None else kind
    if not isinstance(said, wanted) or (wanted is int and isinstance(said, bool)):
        raise _wrong(kind, said, at)
    return said


def _one_of(kind: Any, said: Any, tensors: Mapping[str, Tensor], at: str) -> Any:
    if said is None and NoneType in get_args(kind) and at not in tensors:
        return None
    for one in get_args(kind):
        try:
            return _decoded(one, said, tensors, at)
        except IntegrityError:
            continue
    raise _wrong(kind, said, at)


def _sequence(kind: Any, said: Any, tensors: Mapping[str, Tensor], at: str) -> Any:
    origin, inside = get_origin(kind), get_args(kind)
    if not issubclass(origin, Sequence) or not isinstance(said, list | tuple):
        raise _wrong(kind, said, at)
    several = origin is tuple and inside[-1] is not ...
    if several and len(said) != len(inside):
        raise _wrong(kind, said, at)
    kinds = inside if several else inside[:1] * len(said)
    parts = [
        _decoded(one, v, tensors, f"{at}.{i}")
        for i, (one, v) in enumerate(zip(kinds, said, strict=True))
    ]
    return parts if origin is list else tuple(parts)


def _is_tensor(kind: Any) -> bool:
    return kind is Tensor or getattr(kind, "array_type", None) is Tensor


def _tensor(said: Any, tensors: Mapping[str, Tensor], at: str) -> Tensor:
    if at in tensors:
        return tensors[at]
    try:
        return torch.tensor(said, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise _wrong(Tensor, said, at) from None


def _dataclass(kind: type, said: Any, tensors: Mapping[str, Tensor], at: str) -> Any:
    named = {one.name: one for one in kept_fields(kind)}
    if isinstance(said, list | tuple):  # by place, as earlier versions wrote small ones
        said = dict(zip(named, said, strict=False)) if len(said) <= len(named) else None
    if not isinstance(said, Mapping):
        raise _wrong(kind, said, at)
    if strange := sorted(said.keys() - named.keys()):
        raise IntegrityError(f"{at or kind.__name__} has no field {strange[0]!r}")
    found: dict[str, Any] = {}
    for name, one in named.items():
        path = f"{at}.{name}" if at else name
        if name in said and "codec" in one.metadata:
            found[name] = one.metadata["codec"][1](said[name])
        elif name in said or path in tensors:
            found[name] = _decoded(_hints(kind)[name], said.get(name), tensors, path)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise IntegrityError(f"{at or kind.__name__} has no {name!r}")
    try:
        return kind(**found)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError) as broken:
        raise IntegrityError(f"{at or 'what was read'} is no {kind.__name__}: {broken}") from None
