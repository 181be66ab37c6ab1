"""The demo's first part: ten lines of Python, and the frozen block that executes them."""

from __future__ import annotations

import inspect
import re
import time
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import iceform as ice
from iceform import plots
from iceform_estimators.demo.algorithms import proven
from iceform_estimators.pages import Illustration, illustrate

_SAMPLES, _DIM, _DRAWN = 12, 3, 6


@ice.algorithm
def descent(x: Any, y: Any, *, lr: float = 0.5, steps: int = 25) -> Any:
    w = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        p = torch.sigmoid((x * w).sum())
        w = w - lr * ice.mean((p - y) * x)
    return w


@dataclass(frozen=True, eq=False)
class ProgramDemo:
    """A program that a frozen block has run, beside the same lines run by torch."""

    source: str
    instructions: int
    cycles: int
    digest: str
    tokens: int
    answer: Tensor
    certified: float
    measured: float
    literal: float  # how far the block's matrices and the fused run are apart
    illustration: Illustration
    seconds: float


def execute() -> ProgramDemo:
    """Compile the lines, run them by literal attention and fused, and draw the memory."""
    started = time.perf_counter()
    draw = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(_SAMPLES, _DIM, generator=draw, dtype=torch.float64) - 1
    y = (x @ torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64) > 0).double()
    program = ice.compile(descent, dim=_DIM, samples=_SAMPLES)
    computer = ice.Computer.for_programs([program])
    run = computer.run(program, x, y, backend="literal")
    fused = computer.run(program, x, y, backend="fused")
    exact = program.reference(x, y)
    plan = computer.plan(program, _SAMPLES)
    traced = computer.trace(program, x[:_DRAWN], y[:_DRAWN], steps=6)

    def picture(theme: plots.Theme) -> Figure:
        return plots.memory(traced, theme=theme)

    return ProgramDemo(
        source=_shown(inspect.getsource(descent.function)),
        instructions=len(program.assembly.instructions),
        cycles=run.passes,
        digest=computer.digest,
        tokens=plan.tokens,
        answer=run.value,
        certified=proven(run.enclosure or run.certificate),
        measured=float((run.value - exact).abs().max()),
        literal=float((run.value - fused.value).abs().max()),
        illustration=illustrate(
            picture,
            title="Memory over time",
            text=(
                "The same program on six samples, for six steps: above, which instruction each "
                "cycle fetched; below, what every variable held. All of it is in the tokens."
            ),
            alt="Every variable of the program, cycle by cycle, while the frozen block runs it",
        ),
        seconds=time.perf_counter() - started,
    )


def _shown(source: str) -> str:
    """As a user would write it, without the types that this file needs."""
    plain = re.sub(r": (?:Any|float|int)( = )?", lambda found: "=" if found[1] else "", source)
    return plain.replace(" -> Any", "").strip()
