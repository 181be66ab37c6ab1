"""Runs on a GPU: nobody waits for it in the middle, and what comes again is recorded and replayed.

Pieces leave what they have seen of their inputs on the device, and so do the frozen layers whether
their weights are as they were; a run ends with one reading of these numbers, before anything is
handed out. The second call with inputs of the same shapes is recorded as a CUDA graph, checks
included, and later ones replay it: prompts are read from where they lie, so that one that is
changed in place is followed, and a recording whose prompts are not there any more is made again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from iceform import tuning
from iceform.errors import BoundError
from iceform.networks.attestation import piece_recorder
from iceform.networks.frozen import FrozenLayers
from iceform.networks.graph import NetworkGraph
from iceform.networks.pieces.base import DeferredChecks
from iceform.run.loops import record
from iceform.run.primitives import (
    count_nonzero,
    has_triton,
    is_transformed,
    seen_together,
)

if TYPE_CHECKING:
    from iceform.networks.model import NetworkModel


@dataclass(frozen=True, eq=False)
class _Recording:
    """A run that was captured as a CUDA graph and can be replayed.

    Attributes
    ----------
    again
        Does on the device what was recorded.
    inputs, results, numbers
        Where it reads and writes.
    deferred
        Whose numbers they are.
    hooks
        Of the network's parts: what is called there is not in the recording.
    held
        Those parts, and the prompts that are read, by the places where the network keeps them.
    tables
        And the tables, which are nobody's to take away.
    """

    again: Callable[[], None]
    inputs: list[Tensor]
    results: list[Any]
    numbers: Tensor
    deferred: DeferredChecks
    hooks: Sequence[Mapping[int, object]]
    held: Sequence[tuple[Mapping[str, object], str, object]]
    tables: list[object]

    def is_of(self, model: NetworkModel) -> bool:
        """Whether the network still has all that it reads where it was."""
        return all(places.get(name) is one for places, name, one in self.held)

    @property
    def hooked(self) -> bool:
        """As :func:`hooked`; what takes a part's place is seen by :meth:`is_of`."""
        return _hooked_anywhere() or any(self.hooks)

    def replay(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Copies of the results."""
        for held, given in zip(self.inputs, tensors, strict=True):
            held.copy_(given)
        self.again()
        return [r.clone() if isinstance(r, Tensor) else r for r in self.results]


class RecordedRuns:
    """The recordings of one network, made by the second call of a kind."""

    def __init__(self) -> None:
        self._known: OrderedDict[Any, _Recording | None] = OrderedDict()
        self._never: set[Any] = set()  # calls that cannot be recorded
        self._lock = threading.Lock()

    def run(self, model: NetworkModel, graph: NetworkGraph, tensors: Sequence[Tensor]) -> list[Any]:
        """The graph's results, once weights and inputs are known to be what they should be."""
        frozen = model.settings.layers
        with torch.cuda.device(tensors[0].device):
            while True:
                if not frozen.is_flagged:
                    frozen.check()
                built = frozen.built
                results, numbers, later = self._ran(model, graph, tensors)
                if not numbers[0]:
                    frozen.check()  # refuses the weights, or says that they are others
                    if frozen.built is not built:
                        continue
                try:
                    later.check_range(numbers[1:])
                except BoundError:
                    graph.run(model, tensors)  # waits for every piece, and says more
                    raise
                return results

    def _ran(
        self, model: NetworkModel, graph: NetworkGraph, tensors: Sequence[Tensor]
    ) -> tuple[list[Any], list[float], DeferredChecks]:
        """Results, the weights' flag and the pieces' numbers, and whose they are."""
        alone = _is_plain(model, tensors) and self._lock.acquire(blocking=False)
        begun = torch.cuda.current_stream().record_event()
        try:
            found = self._recording(model, graph, tensors) if alone else None
            if found is None or found.hooked:
                results, numbers, later = _run(model, graph, tensors)
            else:
                results, numbers, later = found.replay(tensors), found.numbers, found.deferred
            flag = _flag(model.settings.layers, tensors[0].device, begun)
            # Others may use the recording when this has been read.
            return results, torch.cat([flag.double()[None], numbers]).tolist(), later
        finally:
            if alone:
                self._lock.release()

    def _recording(
        self, model: NetworkModel, graph: NetworkGraph, tensors: Sequence[Tensor]
    ) -> _Recording | None:
        """The recording for these shapes; None at their first call, or where none can be made."""
        key = (id(graph), tensors[0].device, *(tuple(t.shape) for t in tensors))
        if key in self._never:
            return None
        first, found = key not in self._known, self._known.pop(key, None)
        if not first and (found is None or not found.is_of(model)):
            found = _recorded(model, graph, tensors)
            if found is None and not hooked(model.modules()):
                self._never.add(key)
                return None
        self._known[key] = found
        while len(self._known) > tuning.NETWORK_GRAPHS_KEPT:
            self._known.popitem(last=False)
        return found


def _flag(frozen: FrozenLayers, device: torch.device, begun: torch.cuda.Event) -> Tensor:
    """Whether the weights are those that were built; compared beside the run, on a GPU."""
    if not frozen.is_flagged:
        return torch.ones((), device=device)  # they have just been checked
    stream = _beside(device)
    stream.wait_event(begun)  # with all that was written before
    with torch.cuda.stream(stream):
        found = frozen.network.unchanged(count_nonzero)
    torch.cuda.current_stream().wait_stream(stream)
    return found


@cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _run(
    model: NetworkModel, graph: NetworkGraph, tensors: Sequence[Tensor]
) -> tuple[list[Any], Tensor, DeferredChecks]:
    later = DeferredChecks()
    with later.on(), seen_together(tensors[0]):
        joined = () if _is_followed(tensors) else model.joined(graph)
        results = graph.run(model, tensors, covered=model.covered(graph), joined=joined)
    return results, later.numbers(tensors[0]), later


def _recorded(
    model: NetworkModel, graph: NetworkGraph, tensors: Sequence[Tensor]
) -> _Recording | None:
    """Capture a run; None where an operation waits for the host, or memory is short."""
    parts = list(model.modules())
    if hooked(parts):
        return None
    model.covered(graph)  # which waits, the first time
    kept = [places for part in parts for places in (part._buffers, part._modules)]
    held = [(places, name, one) for places in kept for name, one in places.items()]
    with torch.inference_mode(False), torch.no_grad():
        inputs = [t.detach().clone() for t in tensors]
        try:
            (results, numbers, later), again = record(lambda: _run(model, graph, inputs))
        except RuntimeError:
            torch.cuda.synchronize()
            return None
    tables = _tables(model, tensors[0].device)
    hooks = [calls for part in parts for calls in (part._forward_hooks, part._forward_pre_hooks)]
    return _Recording(again, inputs, results, numbers, later, hooks, held, tables)


def _tables(model: NetworkModel, device: torch.device) -> list[object]:
    """The tables as kernels read them."""
    from iceform.run.triton.tables import table_of

    dtype = model.settings.dtype
    tables = (table for piece in model.pieces for table in piece.tables)
    return [table_of(it, dtype, device, dtype) for it in tables]


def _is_plain(model: NetworkModel, tensors: Sequence[Tensor]) -> bool:
    """Whether a run does nothing but compute: nobody watches, differentiates or widens."""
    settings = model.settings
    if settings.on_range == "widen" or not settings.attends or piece_recorder() is not None:
        return False
    if not has_triton() or torch.cuda.is_current_stream_capturing():
        return False
    return not _is_followed(tensors) and all(_is_here(t) for t in tensors)


def _is_followed(tensors: Sequence[Tensor]) -> bool:
    """Whether what is computed is differentiated, or mapped over more."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return True
    return any(is_transformed(t) for t in tensors)


def hooked(parts: Iterable[nn.Module]) -> bool:
    """Whether anybody reads or changes what comes out of a part."""
    if _hooked_anywhere():
        return True
    return any(part._forward_hooks or part._forward_pre_hooks or _patched(part) for part in parts)


def _hooked_anywhere() -> bool:
    return bool(torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)


def _patched(part: nn.Module) -> bool:
    """Whether a piece hands its numbers to something else than a place for hooks."""
    points = (one for name, one in part._modules.items() if name.startswith("hook_"))
    return any(type(one) is not nn.Identity for one in points)


def _is_here(tensor: Tensor) -> bool:
    return tensor.is_cuda
