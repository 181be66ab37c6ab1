"""Graphs on tensors: the reference in float64, and on tensors of balls the exact program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from iceform.computer.graph import MOST_TURNS, Graph, run
from iceform.errors import ProgramError
from iceform.program import Node, SourceLine


class Exact:
    """Tensors of shape (n, width) in the samples' lanes and (width,) in lane 0; scalars are 1 wide.

    ``width`` is what masks are as wide as.
    """

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def constant(self, node: Node) -> Tensor:
        """The value of what is known without data."""
        if node.op == "index":
            return torch.arange(self.samples, dtype=torch.float64)[:, None]
        if node.op == "count":
            return torch.tensor((self.samples,), dtype=torch.float64)
        known: Tensor = node.operation.value(self, node)
        return known

    def compute(self, node: Node, args: list[Tensor]) -> Tensor:
        """The value of an operation."""
        found: Tensor = node.operation.value(self, node, *args)
        return found

    def positive(self, value: Tensor, where: SourceLine | None) -> bool:
        """Whether a condition's value, 0 or 1, is 1."""
        return bool(value > 0.5)

    def whole(self, value: Tensor) -> int:
        """A number of turns."""
        return whole(float(value))

    def lanes(self, value: Tensor) -> Tensor:
        """A value, given to every sample's lane."""
        return value if value.ndim == 2 else value.expand(self.samples, -1)


def whole(turns: float) -> int:
    """A number of turns, or a refusal."""
    if not (math.isfinite(turns) and turns == int(turns) and turns >= 0):
        raise ProgramError(f"repeat takes a whole number of turns, got {turns:g}")
    return int(turns)


def run_exactly(
    graph: Graph, given: Mapping[str, Tensor], seen: Callable[[Node, Tensor], None] | None = None,
    most_turns: int = MOST_TURNS,
) -> dict[str, Tensor]:  # fmt: skip
    """A graph's answers on data and parameters by name, as columns."""
    watch = seen or (lambda node, value: None)
    found = run(graph, Exact(len(given["x"])), lambda node: given[node.attr], watch, most_turns)
    return {name: shown(value, graph.outputs[name].width) for name, value in found.items()}


def as_column(value: object, vector: bool) -> Tensor:
    """Data or a parameter as the arithmetic has it: float64, scalars 1 wide."""
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError):
        raise ProgramError(f"data and parameters are numbers, got {value!r}") from None
    return tensor if vector else tensor[..., None]


def shown(value: Tensor, width: int | None) -> Tensor:
    """A value without the axis of a scalar."""
    return value[..., 0] if width is None else value
