"""Memory over time: what every variable holds while the frozen computer runs a program."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from iceform.computer import FLAG, ComputerTrace, Instruction
from iceform.errors import ProgramError
from iceform.plots.axes import NAMED, name_axis, signed_norm, without_frame
from iceform.plots.themes import LIGHT, PAD, Theme

_NOTE = 34  # letters of an instruction that fit beside the picture


def memory(
    trace: ComputerTrace, variables: Sequence[str] | None = None, *, theme: Theme = LIGHT
) -> Figure:
    """Values down, by variable, and cycles across; above them the program counter.

    Of a lane-0 variable every component is a row, or one if all are equal; of a variable of the
    samples a row is a lane, up to sixteen, in component 0.

    Parameters
    ----------
    trace
        From ``computer.trace(...)``.
    variables
        Which to draw, in this order; None for those that change.
    theme
        LIGHT or DARK.

    Examples
    --------
    >>> @ice.algorithm
    ... def mean_of(x, y):
    ...     return ice.mean(x * y)
    >>> program = ice.compile(mean_of, dim=1, samples=2, eps=1e-2)
    >>> X, y = torch.ones(2, 1).double(), torch.ones(2).double()
    >>> trace = ice.Computer.for_programs([program]).trace(program, X, y)
    >>> memory(trace).axes[0].get_title(loc="left").startswith("mean_of: ")
    True
    """
    held = trace.memory
    chosen = _changing(trace) if variables is None else list(variables)
    unknown = [name for name in chosen if name not in held]
    if unknown or not chosen:
        raise ProgramError(f"nothing to draw: there is no {unknown}; there are {sorted(held)}")
    rows = {name: _rows(held[name][..., : trace.prompt.assembly.width]) for name in chosen}
    count = sum(len(r) for r in rows.values())
    ran = sorted(set(trace.instructions), key=lambda i: (i.address, -i.when))
    above, below = 1 + len(ran) / 5, 1 + count / 5
    with theme.applied():
        figure = Figure(figsize=(8, above + below), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[above, below])
        _counter(top, trace, ran, theme)
        _values(bottom, torch.cat(list(rows.values())), theme)
        name_axis(bottom, "y", [(name, len(r)) for name, r in rows.items()], theme, "")
        bottom.set_xlabel("cycle")
        without_frame(bottom)
        name = trace.prompt.assembly.name
        top.set_title(f"{name}: {trace.cycles} cycles of one frozen block", loc="left")
    return figure


def _changing(trace: ComputerTrace) -> list[str]:
    """Variables that are ever written, the flag last."""
    written = {i.dst for i in trace.instructions}
    names = [v.name for v in trace.prompt.assembly.variables if v.name in written]
    return sorted(names, key=lambda name: name == FLAG)


def _rows(values: Tensor) -> Tensor:
    """(rows, cycles + 1) of values (cycles + 1, lanes, m)."""
    if values.shape[1] > 1:
        return values[:, :NAMED, 0].mT
    single = values[:, 0]
    return single[:, :1].mT if bool((single == single[:, :1]).all()) else single.mT


def _counter(axes: Axes, trace: ComputerTrace, ran: list[Instruction], theme: Theme) -> None:
    """Which instruction every cycle executed."""
    heights = [ran.index(i) for i in trace.instructions]
    axes.scatter(range(len(heights)), heights, s=9, color=theme.spectral, marker="s", linewidths=0)
    axes.set_yticks(range(len(ran)), labels=[_note(i) for i in ran], fontsize=8)
    axes.set_ylim(len(ran) - 0.5, -0.5)
    axes.grid(axis="y")
    without_frame(axes)


def _note(instruction: Instruction) -> str:
    """An instruction in few letters."""
    words = instruction.note or f"{instruction.a}, {instruction.b}".removesuffix(", 0")
    sign = {0: "", 1: "+", -1: "−"}[instruction.when]
    note = f"{instruction.address}{sign}  {instruction.dst} ← {words}"
    return note if len(note) <= _NOTE else f"{note[: _NOTE - 1]}…"


def _values(axes: Axes, values: Tensor, theme: Theme) -> None:
    """Logarithmic in either sign: orange below zero, blue above."""
    shown = values.detach().cpu().double()
    mesh = axes.imshow(
        shown.numpy(), aspect="auto", cmap=theme.signed, norm=signed_norm(shown)[0],
        interpolation="nearest",
    )  # fmt: skip
    bar = axes.figure.colorbar(mesh, ax=axes, label="value", pad=PAD, aspect=30)
    bar.minorticks_off()
