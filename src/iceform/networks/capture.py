"""What a network does, operation by operation: ``torch.export`` of one call.

Hooks, subclasses, patched methods, loops, skips and shared weights are in the graph because they
ran. Sizes stay symbolic where the network allows it; every condition that the network put on them
is a guard of the graph, and a call that breaks one is captured anew. A branch on the value of a
tensor cannot be captured and is refused.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import transformer
from torch.utils._python_dispatch import TorchDispatchMode

from iceform.errors import ProgramError
from iceform.networks.decompositions import take_apart
from iceform.networks.graph import Guard
from iceform.networks.structure import Signature, flatten

_SIZE = r"L\['flat'\]\[(\d+)\]\.size\(\)\[(\d+)\]"
_GUARD = re.compile(rf"{_SIZE} (==|!=|>=|<=|>|<) (?:(\d+)|{_SIZE})")
_COMPOSED = {"einsum.default", "bilinear.default", "cosine_similarity.default", "gru.input",
             "lstm.input", "rnn_tanh.input", "rnn_relu.input", "gru_cell.default",
             "lstm_cell.default", "rnn_tanh_cell.default", "rnn_relu_cell.default"}  # fmt: skip
_WRITTEN = threading.RLock()
_ROOT = "model"  # the network's name inside the module that is exported


@dataclass(frozen=True, eq=False)
class Captured:
    """One call of a network.

    Attributes
    ----------
    nodes
        Of the exported graph, outputs left out.
    constants
        Parameters, buffers and lifted tensors: (name in the network, tensor) by placeholder.
    inputs
        Placeholders of the tensors of the call.
    results
        Output nodes.
    guards
        Conditions on sizes.
    output
        Structure of what was returned.
    """

    nodes: tuple[fx.Node, ...]
    constants: dict[str, tuple[str, Tensor]]
    inputs: tuple[str, ...]
    results: tuple[Any, ...]
    guards: tuple[Guard, ...]
    output: Any


class _CapturedOutput:
    """A place for the structure of the output: torch.export undoes changes of module attributes."""

    structure: Any = None


class _FlatModel(nn.Module):
    """The network as a function of tensors to tensors."""

    def __init__(self, model: nn.Module, signature: Signature, given: Any) -> None:
        super().__init__()
        self.model = model
        self._signature, self._given = signature, given
        self.returned = _CapturedOutput()

    def forward(self, *flat: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = self._signature.unflatten(self._given, flat)
        found: list[Tensor] = []
        self.returned.structure = flatten(self.model(*args, **kwargs), found)
        return tuple(found)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Run modules by their Python code, without torch's fused encoder; one thread at a time.

    Torch's fused encoder zeroes padded tokens, and on a GPU is not the same to rounding.
    """
    with _WRITTEN:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _masks_unread() -> Iterator[None]:
    """Keep torch's encoders and decoders of this thread from reading the values of their masks.

    Inside of :func:`as_written`, which has the lock.

    They compare a mask with the causal one, entry by entry, and leave it out where it is that and
    their heads have a way of their own to be causal. Added as it is it does the same.
    """
    own, looks = threading.get_ident(), transformer._detect_is_causal_mask

    def unread(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return bool(is_causal) if threading.get_ident() == own else looks(mask, is_causal, size)

    transformer._detect_is_causal_mask = unread
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = looks


class _Lifted(TorchDispatchMode):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types

        def wide(value: Any) -> Any:
            return torch.float64 if value is self._dtype else value

        return func(*map(wide, args), **{k: wide(v) for k, v in (kwargs or {}).items()})


def lifted(dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    """Inside, casts to ``dtype`` are casts to float64: the network runs without its rounding."""
    return contextlib.nullcontext() if dtype == torch.float64 else _Lifted(dtype)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep the log and the warnings of torch's exporters quiet: failures are raised instead."""
    log = logging.getLogger("torch")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def capture(
    model: nn.Module, signature: Signature, given: Any, tensors: Sequence[Tensor]
) -> Captured:
    """Capture the call with these arguments.

    Raises
    ------
    ProgramError
        If it cannot be captured: a branch on data, a state that it changes.
    """
    flat = _FlatModel(model, signature, given)
    shared = len({id(t) for t in tensors}) < len(tensors)
    tensors = [t.clone() for t in tensors] if shared else list(tensors)
    try:
        program = _exported(flat, tensors, dynamic=True)
        if (guards := _guards(program, tensors)) is not None:
            take_apart(program.graph)
    except Exception:  # whatever it is, static sizes may do; if not, theirs is the message
        guards = None
    if guards is None:
        program = _static(flat, tensors)
        guards = tuple(
            Guard(i, d, "==", int(size)) for i, t in enumerate(tensors)
            for d, size in enumerate(t.shape)
        )  # fmt: skip
        take_apart(program.graph)
    return _read(program, guards, flat.returned.structure)


def _exported(flat: _FlatModel, tensors: list[Tensor], *, dynamic: bool) -> Any:
    auto = torch.export.Dim.AUTO
    shapes = (tuple(dict.fromkeys(range(t.ndim), auto) for t in tensors),) if dynamic else None
    with quietly(), as_written(), _masks_unread(), torch.no_grad():
        program = torch.export.export(flat, tuple(tensors), dynamic_shapes=shapes, strict=False)
        named = {str(node.target).partition(".")[2] for node in program.graph.nodes}
        apart = {op: how for op, how in _apart().items() if str(op).partition(".")[2] in named}
        if apart or any(_mutates(node) for node in program.graph.nodes):
            program = program.run_decompositions(apart)
    return program


@cache
def _apart() -> dict[Any, Any]:
    """Operations that torch itself defines by others, taken apart."""
    known = torch.export.default_decompositions()
    return {op: known[op] for op in known if str(op).partition(".")[2] in _COMPOSED}


def _static(flat: _FlatModel, tensors: list[Tensor]) -> Any:
    try:
        return _exported(flat, tensors, dynamic=False)
    except ProgramError:
        raise
    except Exception as failed:
        name = type(flat.model).__name__
        kind = type(failed).__name__
        if "data-dependent" in str(failed) or "DataDependent" in kind:
            raise ProgramError(
                f"{name}: its Python code branches on the value of a tensor, which no graph of "
                "operations holds; write the choice as torch.where, or convert the branches apart"
            ) from failed
        first = str(failed).strip().splitlines()[0] if str(failed).strip() else kind
        raise ProgramError(f"{name} cannot be captured by torch.export: {first}") from failed


def _mutates(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _guards(program: Any, tensors: Sequence[Tensor]) -> tuple[Guard, ...] | None:
    """Conditions on sizes, or None if one of them is not of the kind that can be kept."""
    found = []
    for text in program._guards_code or ():
        match = _GUARD.fullmatch(text)
        if match is None:
            return None
        i, d, relation, number, j, e = match.groups()
        other = int(number) if number is not None else (int(j), int(e))
        found.append(Guard(int(i), int(d), relation, other))
    return (*found, *_symbol_guards(program, tensors))


def _symbol_guards(program: Any, tensors: Sequence[Tensor]) -> Iterator[Guard]:
    """Sizes that are numbers, equal sizes, and ranges: what the placeholders' shapes say."""
    first: dict[Any, tuple[int, int]] = {}
    names = list(program.graph_signature.user_inputs)
    by_name = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for i, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
        for d, size in enumerate(by_name[name].meta["val"].shape):
            symbol = getattr(getattr(size, "node", None), "expr", None)
            if symbol is None or not getattr(symbol, "is_Symbol", False):
                yield Guard(i, d, "==", tensor.shape[d])
                continue
            if symbol in first:
                yield Guard(i, d, "==", first[symbol])
                continue
            first[symbol] = (i, d)
            limits = program.range_constraints.get(symbol)
            # Sizes 0 and 1 are special to torch (they broadcast), whatever the range says.
            yield Guard(i, d, ">=", max(2, 2 if limits is None else int(limits.lower)))
            if limits is not None and limits.upper < 2**62:
                yield Guard(i, d, "<=", int(limits.upper))


def _read(program: Any, guards: tuple[Guard, ...], output: Any) -> Captured:
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    changed += list(getattr(signature, "parameters_to_mutate", {}).values())
    if changed:
        raise ProgramError(
            f"a call changes {', '.join(sorted(set(changed)))} in place; a network in context has "
            "no state: keep it out of forward, or pass it in and out"
        )
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants = {p: (_plain(fqn), _tensor(program, fqn)) for p, fqn in named.items()}
    for placeholder, fqn in signature.inputs_to_lifted_tensor_constants.items():
        constants[placeholder] = (_plain(fqn), program.constants[fqn])
    (last,) = (node for node in program.graph.nodes if node.op == "output")
    nodes = tuple(node for node in program.graph.nodes if node.op != "output")
    inputs = tuple(signature.user_inputs)
    return Captured(nodes, constants, inputs, tuple(last.args[0]), guards, output)


def _tensor(program: Any, fqn: str) -> Tensor:
    found: Tensor = program.state_dict[fqn] if fqn in program.state_dict else program.constants[fqn]
    return found.detach()


def _plain(fqn: str) -> str:
    return fqn.removeprefix(f"{_ROOT}.")


def module_path(node: fx.Node) -> str:
    """The module in whose forward an operation is."""
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    path = next((p for p in reversed(stack) if p == _ROOT or p.startswith(f"{_ROOT}.")), _ROOT)
    return re.sub(r"@\d+", "", path.removeprefix(_ROOT).removeprefix("."))


def op_of(node: fx.Node) -> str:
    """The name of an operation of aten; nothing for any other."""
    return str(node.target).split(".")[1] if isinstance(node.target, torch._ops.OpOverload) else ""
