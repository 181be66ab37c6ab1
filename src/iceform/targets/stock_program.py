"""One program in the prompt of a stock checkpoint: what ``Program.to`` returns.

The folder is a ``StockComputer``: its weights know the sizes alone, so any program that fits may
take this one's place (``holding``). A program whose loops are all counted takes the same number of
cycles whatever the data are; it is found by interpreting it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iceform.computer.checkpoint import set_writer
from iceform.computer.compile import Program
from iceform.errors import TargetError
from iceform.targets.architectures import architecture
from iceform.targets.checking import Checked, check
from iceform.targets.folder import StockModel, write
from iceform.targets.stock_computer import StockComputer

__all__ = ["StockProgram"]


@dataclass(frozen=True, eq=False)
class StockProgram:
    """A program for the prompt of a folder that transformers loads.

    Attributes
    ----------
    model
        The folder.
    program
        What its prompts hold.
    settings
        The program's parameters where a prompt is not given them.
    """

    model: StockModel
    program: Program
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.model.spec, StockComputer):
            raise TargetError(
                f"{self.model.path} holds a {self.model.spec.kind}, whose algorithm is in its "
                "weights; programs are prompts of a computer, as program.to writes one"
            )
        self.program.parameters(**self.settings)

    @property
    def path(self) -> Path:
        """The folder."""
        return self.model.path

    @property
    def computer(self) -> StockComputer:
        """What the folder holds."""
        assert isinstance(self.model.spec, StockComputer)
        return self.model.spec

    def prompt(self, X: Tensor, y: Tensor, **settings: Any) -> Tensor:
        """``inputs_embeds`` for these data, the program before them."""
        return self.model.prompt(X, y, program=self.program, **{**self.settings, **settings})

    def read(self, hidden: Tensor) -> Any:
        """The answer in ``last_hidden_state``, in float64 and in the form the algorithm returns.

        Refused if the program has not come to its halt. The number of samples is that of tokens.
        """
        features = self.model.read(hidden)
        blank = self.computer.blank(self.program, len(features))
        return self.program.packed(self.computer.outputs(features, blank))

    def check(self, X: Tensor, y: Tensor, *, attention: str = "sdpa", **settings: Any) -> Checked:
        """:func:`iceform.check` of the folder with this program."""
        given = {**self.settings, **settings}
        return check(self.path, X, y, attention=attention, program=self.program, **given)

    def holding(self, program: Program, **settings: Any) -> StockProgram:
        """The same folder with another program in the prompt."""
        return StockProgram(self.model, program, settings)


def write_program(
    program: Program,
    name: str,
    path: str | Path,
    *,
    cycles: int | None = None,
    dtype: str = "float64",
    beside: Iterable[Program] = (),
    **settings: Any,
) -> StockProgram:
    """As :meth:`iceform.Program.to` says."""
    programs = [program, *beside]
    program.parameters(**settings)
    if dtype not in ("float64", "float32"):
        raise TargetError(f"programs are written in float64 or float32, got dtype={dtype!r}")
    architecture(name)
    StockComputer.check_architecture(name)
    if cycles is None:
        cycles = max(_cycles(program, settings), *(_cycles(p, {}) for p in programs[1:]), 1)
    spec = StockComputer.for_programs(programs, cycles, dtype)
    return StockProgram(write(name, spec, path), program, settings)


def _cycles(program: Program, settings: Mapping[str, Any]) -> int:
    """What a program takes whatever the data are; refused where that depends on them."""
    if any(loop.count is None for loop in program.graph.block.loops()):
        raise TargetError(
            f"{program.name} has a loop that ends when the data say so, and a checkpoint has so "
            "many layers: give cycles= (program.interpreted(X, y).cycles counts those of data)"
        )
    blank = torch.zeros(1, program.graph.dim, dtype=torch.float64)
    return program.interpreted(blank, blank[:, 0], **settings).cycles


set_writer(write_program)
