"""Nested arguments and results as plain data: tensors by number, everything else by value.

A structure is JSON-ready, so that a saved network gives back what its original gave: tuples, lists,
dictionaries and the named outputs of transformers.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from iceform.errors import IntegrityError, ProgramError

_OUTPUTS = re.compile(r"transformers(\.models\.\w+\.modeling_\w+|\.modeling_outputs)\.(\w+)")


def flatten(value: Any, tensors: list[Tensor], what: str = "the output") -> Any:
    """The structure of a value; its tensors are appended to ``tensors``."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, Mapping):
        kind = f"{type(value).__module__}.{type(value).__name__}"
        named = _OUTPUTS.fullmatch(kind) is not None
        items = {
            str(k): flatten(v, tensors, what) for k, v in value.items() if not (named and v is None)
        }
        return {"object": kind if named else "dict", "items": items}
    if type(value) in (tuple, list):
        parts = [flatten(v, tensors, what) for v in value]
        return {type(value).__name__: parts}
    raise ProgramError(
        f"{what} holds a {type(value).__name__}, which is no tensor, number, tuple, list or "
        "dictionary; leave it out (use_cache=False for transformers)"
    )


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Tuples, lists and mappings with every other value in them changed."""
    if isinstance(value, tuple | list):
        return type(value)([mapped(v, change) for v in value])
    if isinstance(value, Mapping):
        return {k: mapped(v, change) for k, v in value.items()}
    return change(value)


def leaves(value: Any) -> Iterator[Any]:
    """The values in tuples, lists and mappings."""
    if isinstance(value, tuple | list | Mapping):
        for v in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(v)
    else:
        yield value


def arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments from what stands for them: one, several, or named ones."""
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given) if isinstance(given, tuple | list) else (given,)), {}


def _check_tensor(name: str, tensor: Tensor) -> None:
    """Refuse what no graph reads."""
    odd = "complex" if tensor.is_complex() else "quantized" if tensor.is_quantized else ""
    odd = "nested" if tensor.is_nested else odd
    if tensor.is_meta:
        raise ProgramError(f"the argument {name} is on the meta device and has no numbers")
    if odd or tensor.layout != torch.strided:
        raise ProgramError(
            f"the argument {name} is a {odd or tensor.layout} tensor; pass a dense one of reals, "
            "integers or booleans"
        )


def floats_of(output: Any) -> list[Tensor]:
    """The floating-point tensors of an output."""
    if isinstance(output, Tensor):
        return [output]
    found: list[Tensor] = []
    flatten(output, found)
    return [t for t in found if t.is_floating_point()]


def unflatten(structure: Any, tensors: Sequence[Tensor]) -> Any:
    """The inverse of :func:`flatten`."""
    try:
        ((kind, inner), *rest) = structure.items()
        if kind == "tensor":
            return tensors[inner]
        if kind == "value":
            return inner
        if kind in ("tuple", "list"):
            parts = [unflatten(v, tensors) for v in inner]
            return tuple(parts) if kind == "tuple" else parts
        items = {k: unflatten(v, tensors) for k, v in rest[0][1].items()}
        return items if inner == "dict" else _output(inner)(**items)
    except (AttributeError, LookupError, TypeError, ValueError) as broken:
        raise IntegrityError(f"not a structure of arguments or results: {broken!r}") from None


def _output(name: str) -> Any:
    """A named output of transformers; no other code can be named."""
    found = _OUTPUTS.fullmatch(name)
    if found is None:
        raise IntegrityError(f"{name!r} is no named output of transformers")
    try:
        base = importlib.import_module("transformers.utils").ModelOutput
    except ImportError:
        raise ProgramError(f"{name} needs transformers: pip install 'iceform[export]'") from None
    kind = getattr(importlib.import_module(name.rpartition(".")[0]), found[2], None)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise IntegrityError(f"{name!r} is no named output of transformers")
    return kind


class Signature:
    """The names of a network's arguments: every way of passing the same ones is one call.

    Parameters
    ----------
    parameters
        (name, kind, whether None is its default) of each, kinds as ``inspect.Parameter`` numbers
        them.
    """

    def __init__(self, parameters: Sequence[tuple[str, int, bool]]) -> None:
        self.parameters = tuple((str(n), int(k), bool(d)) for n, k, d in parameters)
        self._signature = inspect.Signature(
            [
                inspect.Parameter(name, inspect._ParameterKind(kind))
                for name, kind, _ in self.parameters
            ]
        )

    @classmethod
    def of(cls, model: nn.Module) -> Signature:
        """Of a module's ``forward``."""
        found = inspect.signature(model.forward).parameters.values()
        return cls([(p.name, int(p.kind), p.default is None) for p in found])

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Tensor]]:
        """(structure, tensors) of a call; None is left out where it is the default."""
        try:
            bound = self._signature.bind_partial(*args, **kwargs)
        except TypeError as wrong:
            raise ProgramError(f"not the network's arguments: {wrong}") from None
        tensors: list[Tensor] = []
        kinds = {name: (kind, default) for name, kind, default in self.parameters}
        found = {}
        for name, value in bound.arguments.items():
            if value is not None or not kinds[name][1]:
                starred = kinds[name][0] == inspect.Parameter.VAR_POSITIONAL
                given = tuple(value) if starred else value
                before = len(tensors)
                found[name] = flatten(given, tensors, f"the argument {name}")
                for tensor in tensors[before:]:
                    _check_tensor(name, tensor)
        return found, tensors

    def unflatten(
        self, structure: Mapping[str, Any], tensors: Sequence[Tensor]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments of the call."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, kind, _ in self.parameters:
            value = unflatten(structure[name], tensors) if name in structure else None
            if kind == inspect.Parameter.VAR_POSITIONAL:
                args += value or ()
            elif kind == inspect.Parameter.VAR_KEYWORD:
                kwargs |= value or {}
            elif kind == inspect.Parameter.KEYWORD_ONLY:
                kwargs |= {} if name not in structure else {name: value}
            elif kind == inspect.Parameter.POSITIONAL_ONLY or self._starred:
                args.append(value)
            elif name in structure:
                kwargs[name] = value
        return args, kwargs

    @property
    def _starred(self) -> bool:
        return any(kind == inspect.Parameter.VAR_POSITIONAL for _, kind, _ in self.parameters)
