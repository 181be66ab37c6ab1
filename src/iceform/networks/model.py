"""The network made of pieces: which graph a call runs, and whether it is the original."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from iceform.errors import ProgramError, ShapeError
from iceform.networks.attestation import piece_recorder
from iceform.networks.bounds import extend
from iceform.networks.capture import as_written, capture, lifted
from iceform.networks.convert import Conversion
from iceform.networks.cuda_graphs import RecordedRuns, hooked
from iceform.networks.graph import NetworkGraph, NetworkNode
from iceform.networks.parts import Maker, Parts
from iceform.networks.pieces import LinearMap, Norm, Piece, PieceSettings, TabulatedActivation
from iceform.networks.structure import Signature, flatten, mapped, unflatten
from iceform.validation import untraced

_AGREES = 2.0**-30  # of the largest output: graph and original, both in float64, differ by rounding
_NUDGE = 2.0**-4  # by which entries of perturbed inputs are scaled
_CAPTURING = threading.RLock()


def cast(given: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors as ``dtype``, wherever they are in an input."""

    def changed(value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(dtype) if is_float else value

    return mapped(given, changed)


class NetworkModel(Parts):
    """The pieces by name, and a graph for every kind of call.

    Parameters
    ----------
    settings
        Shared with the pieces.
    signature
        Names of the arguments.
    original
        The network itself, which is never run in place of the graph but always beside it; None
        where it was read from a file.
    strict
        Refuse maps that nothing here emulates.
    title
        The network's name.
    """

    def __init__(
        self,
        settings: PieceSettings,
        signature: Signature,
        original: nn.Module | None,
        *,
        strict: bool = True,
        title: str = "network",
    ) -> None:
        super().__init__()
        self.settings, self.signature, self.title = settings, signature, title
        self._original = (original,)  # in a tuple: its parameters are not parts of this
        self.graphs: list[NetworkGraph] = []
        self.strict = strict
        self.left: dict[str, str] = {}
        self.settled = False
        self.replays = RecordedRuns()
        self._covered: dict[NetworkGraph, frozenset[str]] = {}
        self._wide: list[nn.Module] = []

    # ----------------------------------------------------------------------------------- running

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the network as the original is called."""
        graph, tensors = self.called(args, kwargs)
        if self.settings.mode != "run" or torch.compiler.is_exporting():
            return unflatten(graph.output, graph.run(self, tensors))
        if tensors and tensors[0].is_cuda and not torch.compiler.is_compiling():
            return unflatten(graph.output, self.replays.run(self, graph, tensors))
        self.settings.layers.check()
        return unflatten(graph.output, graph.run(self, tensors, covered=self.covered(graph)))

    def covered(self, graph: NetworkGraph) -> frozenset[str]:
        """The nodes whose inputs are in range whatever they are; none where hooks may change them.

        A piece only ever accepts more than it did.
        """
        if torch.compiler.is_compiling() or hooked(self.modules()):
            return frozenset()
        if graph not in self._covered:
            self._covered[graph] = extend(self, graph, self.settings.unit, widen=False)
        return self._covered[graph]

    def joined(self, graph: NetworkGraph) -> frozenset[str]:
        """The nodes that the next piece computes in one call with its own; none if watched."""
        if (
            piece_recorder() is not None
            or hooked(self.modules())
            or self.settings.on_range == "widen"
        ):
            return frozenset()
        named = {node.name: node for node in graph.nodes}
        pairs = (
            (named[a], self.get_submodule(str(named[b].args[0]))) for a, b in graph.pairs.items()
        )
        return frozenset(node.name for node, piece in pairs if self._joins(node, piece))

    def _joins(self, node: NetworkNode, piece: nn.Module) -> bool:
        if isinstance(piece, Norm):
            return node.op == "aten.add.Tensor" and not node.kwargs and len(node.needs) == 2
        if not isinstance(piece, TabulatedActivation) or node.op != "piece":
            return False
        return isinstance(self.get_submodule(str(node.args[0])), LinearMap)

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Tensor]]:
        """The graph of a call, and the tensors that it is run on."""
        given, tensors = self.signature.flatten(args, kwargs)
        return self.graph_for(given, tensors), tensors

    def graph_for(self, given: Any, tensors: list[Tensor]) -> NetworkGraph:
        """The graph of such a call; captured now, and checked, if there is none."""
        traced = torch.compiler.is_compiling() or torch.compiler.is_exporting()
        for graph in self.graphs:
            if graph.fits(given, tensors, sizes=not traced):
                return graph
        if traced:
            raise ProgramError("call the network once with inputs of this kind before tracing it")
        return self._learn(given, tensors)

    @untraced
    def _learn(self, given: Any, tensors: list[Tensor]) -> NetworkGraph:
        with _CAPTURING, torch.no_grad():
            for graph in self.graphs:
                if graph.fits(given, tensors):
                    return graph
            home = self._home()
            graph = self.capture(given, [t.detach().to(home) for t in tensors])
            if tensors and tensors[0].device != home:
                self.to(tensors[0].device)  # with the numbers that this graph brought
            if self.settled:
                self.compare(graph, tensors)
            self.graphs.append(graph)
            return graph

    def _home(self) -> torch.device:
        """The device of the original, which does not move with the pieces."""
        (original,) = self._original
        held = [] if original is None else [*original.parameters(), *original.buffers()]
        return held[0].device if held else torch.device("cpu")

    def capture(self, given: Any, tensors: list[Tensor]) -> NetworkGraph:
        """The graph of one call."""
        (original,) = self._original
        if any(t.numel() == 0 for t in tensors):
            raise ShapeError("an input is empty; nothing is looked up for it")
        if original is None:
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
            raise ProgramError(
                f"this network was saved for other arguments than {', '.join(given)} of shapes "
                f"{shapes}; save it after calling it with such, or convert the original"
            )
        maker = Maker(self, self.settings, self.strict, self.title)
        maker.frozen = self.settled
        found = capture(original, self.signature, given, tensors)
        graph = Conversion(maker, found).graph(given, tensors)
        self.left |= maker.left
        return graph

    # -------------------------------------------------------------------------- the original

    def original(self, given: Any, tensors: Sequence[Tensor]) -> Any:
        """The original's output, computed in float64."""
        wide = cast(list(tensors), torch.float64)
        (source,) = self._original
        if source is None:
            graph = self.graph_for(given, list(tensors))
            return unflatten(graph.output, self._exactly(graph, wide))
        args, kwargs = self.signature.unflatten(given, wide)
        try:
            with as_written():
                if not self._wide:
                    self._wide.append(copy.deepcopy(source).double())
                if wide:
                    self._wide[0].to(wide[0].device)
                with torch.no_grad(), lifted(self.settings.dtype):
                    return self._wide[0](*args, **kwargs)
        except (RuntimeError, TypeError, ValueError) as failed:
            raise ProgramError(
                f"{self.title} does not run in float64, in which it is checked: {failed}; does it "
                "make tensors of a fixed dtype, or hold on to another module's weights?"
            ) from failed

    def _exactly(self, graph: NetworkGraph, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The graph with the exact maps, in float64."""
        with lifted(self.settings.dtype):
            return graph.run(self.exact_parts(), tensors)

    def exact_parts(self) -> nn.Module:
        """The exact maps in float64, with settings of their own: threads may be running."""
        parts, settings = Parts(), copy.copy(self.settings)
        settings.mode = "exact"
        memo: dict[int, Any] = {}
        for name, child in self._modules.items():
            parts.add_module(name, copy.deepcopy(child, memo))
        for piece in parts.modules():
            if isinstance(piece, Piece):
                piece.settings = settings
        return parts if settings.dtype == torch.float64 else parts.double()

    def __deepcopy__(self, memo: dict[int, Any]) -> NetworkModel:
        copied = NetworkModel(
            self.settings, self.signature, self._original[0], strict=self.strict, title=self.title
        )
        for name, child in self._modules.items():
            copied.add_module(name, copy.deepcopy(child, memo))
        copied.graphs, copied.left = list(self.graphs), dict(self.left)
        copied.settled, copied._wide = self.settled, self._wide
        return copied

    def compare(self, graph: NetworkGraph, tensors: Sequence[Tensor]) -> None:
        """Run graph and original on an input and on perturbed copies of it.

        Raises
        ------
        ProgramError
            If they differ by more than rounding.
        """
        if self._original[0] is None:
            return
        exact = self.exact_parts()
        for copied in (list(tensors), *_perturbed(tensors)):
            wide = cast(copied, torch.float64)
            theirs: list[Tensor] = []
            structure = flatten(self.original(graph.given, wide), theirs)
            with lifted(self.settings.dtype):
                ours = graph.run(exact, wide)
            self._compare_one(graph, ours, structure, theirs)

    def _compare_one(
        self, graph: NetworkGraph, ours: list[Tensor], structure: Any, theirs: list[Tensor]
    ) -> None:
        rounded = any(isinstance(p, LinearMap) and p.rounded for p in self.pieces)
        # Weights that were computed are rounded to the dtype: half of its digits must agree.
        share = max(_AGREES, math.sqrt(self.settings.unit)) if rounded else _AGREES
        same = structure == graph.output and all(
            a.shape == b.shape and _near(a, b, share) for a, b in zip(ours, theirs, strict=True)
        )
        if same:
            return
        off = max(
            (float((a.double() - b.double()).abs().max()) for a, b in zip(ours, theirs, strict=True)
             if a.shape == b.shape and a.numel()), default=float("nan"),
        )  # fmt: skip
        raise ProgramError(
            f"{self.title}: what was captured is not what the original does: they differ by "
            f"{off:.3g} on a calibration input or a perturbed copy. Does it keep a state, draw at "
            "random, or choose by the values of tensors in Python?"
        )

    @property
    def pieces(self) -> list[Piece]:
        """Every piece once, in the order in which the graphs run them."""
        named = (n.args[0] for g in self.graphs for n in g.nodes if n.op == "piece")
        found = dict.fromkeys(self.get_submodule(name) for name in dict.fromkeys(named))
        return list(dict.fromkeys(m for m in (*found, *self.modules()) if isinstance(m, Piece)))


def _near(ours: Tensor, theirs: Tensor, share: float) -> bool:
    if not theirs.is_floating_point():
        return torch.equal(ours, theirs)
    finite = theirs.isfinite()
    if not torch.equal(finite, ours.isfinite()):
        return False
    a, b = ours.double()[finite], theirs.double()[finite]
    return not a.numel() or float((a - b).abs().max()) <= share * float(b.abs().max())


def _perturbed(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Two perturbed copies of inputs: numbers scaled a little, ids shuffled, masks unchanged."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for sign in (1.0, -1.0):
        copied = []
        for t in tensors:
            if t.is_floating_point():
                noise = torch.rand(t.shape, generator=draw, dtype=torch.float64).to(t)
                copied.append(t * (1 - sign * _NUDGE * noise))
            elif t.dtype != torch.bool and t.numel() and int(t.max()) > 1:
                order = torch.randperm(t.numel(), generator=draw).to(t.device)
                copied.append(t.reshape(-1)[order].reshape(t.shape))
            else:
                copied.append(t)
        found.append(copied)
    return found
