"""One program and the stock checkpoint that runs it: what ``Program.to`` returns.

In prompt mode the folder is a ``StockComputer``: its weights know the sizes alone, so any program
that fits may take this one's place (``holding``). In weights mode it is a ``LayeredProgram``: its
layers are the instructions, and another program may take its place if it differs in tables alone.
A program whose loops are all counted takes the same instructions whatever the data are; they are
found by interpreting it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from iceform.computer.checkpoint import set_writer
from iceform.computer.compile import Program
from iceform.errors import TargetError
from iceform.targets.architectures import architecture
from iceform.targets.checking import Checked, check
from iceform.targets.folder import StockModel, write
from iceform.targets.layered_program import LayeredProgram
from iceform.targets.program_target import ProgramTarget, trace
from iceform.targets.stock_computer import StockComputer
from iceform.targets.stock_descent import StockDescent, write_descent

__all__ = ["StockProgram"]

_CYCLES = "give cycles= (program.interpreted(X, y).cycles counts those of data)"


@dataclass(frozen=True, eq=False)
class StockProgram:
    """A program for a folder that transformers loads.

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
        if not isinstance(self.model.spec, ProgramTarget):
            raise TargetError(
                f"{self.model.path} holds a {self.model.spec.kind}, whose algorithm is in its "
                "weights; programs are for folders that program.to has written"
            )
        self.program.parameters(**self.settings)

    @property
    def path(self) -> Path:
        """The folder."""
        return self.model.path

    @property
    def spec(self) -> ProgramTarget:
        """What the folder holds."""
        assert isinstance(self.model.spec, ProgramTarget)
        return self.model.spec

    def prompt(self, X: Tensor, y: Tensor, **settings: Any) -> Tensor:
        """``inputs_embeds`` for these data, the program before them."""
        return self.model.prompt(X, y, program=self.program, **{**self.settings, **settings})

    def read(self, hidden: Tensor) -> Any:
        """The answer in ``last_hidden_state``, in float64 and in the form the algorithm returns.

        Refused if the program has not come to its halt. The number of samples follows from that
        of tokens.
        """
        return self.program.packed(self.spec.found(self.model.read(hidden), self.program))

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
    mode: str | None = None,
    cycles: int | None = None,
    dtype: str = "float64",
    beside: Iterable[Program] = (),
    **settings: Any,
) -> StockProgram | StockDescent:
    """As :meth:`iceform.Program.to` says."""
    others = list(beside)
    program.parameters(**settings)
    if dtype not in ("float64", "float32"):
        raise TargetError(f"programs are written in float64 or float32, got dtype={dtype!r}")
    mode = mode or ("descent" if architecture(name).causal else "prompt")
    if mode != "prompt" and (cycles is not None or others):
        raise TargetError(
            "here the layers are one program's steps or instructions: cycles= and beside= are for "
            'mode="prompt", of an albert or a bert'
        )
    if mode == "descent":
        return write_descent(program, name, path, dtype, settings)
    if mode == "weights":
        LayeredProgram.check_architecture(name)
        layered = LayeredProgram.of(program, settings, dtype)
        return StockProgram(write(name, layered, path), program, settings)
    if mode != "prompt":
        raise TargetError(f'mode is "prompt", "weights" or "descent", got {mode!r}')
    StockComputer.check_architecture(name)
    if cycles is None:
        each = [(program, settings), *((p, {}) for p in others)]
        cycles = max(1, *(len(trace(p, given, _CYCLES)) for p, given in each))
    spec = StockComputer.for_programs([program, *others], cycles, dtype)
    return StockProgram(write(name, spec, path), program, settings)


set_writer(write_program)
