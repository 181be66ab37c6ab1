"""The demo's first part: ten lines of Python, by one frozen block and as a stock GPT-2."""

from __future__ import annotations

import inspect
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import iceform as ice
from iceform import plots
from iceform_estimators.demo.algorithms import proven
from iceform_estimators.pages import Illustration, illustrate


@ice.algorithm
def descent(x: Any, y: Any, *, lr: float = 0.5, steps: int = 12) -> Any:
    w = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        w = w - lr * ice.mean(x * ((x * w).sum() - y))
    return w


@dataclass(frozen=True, eq=False)
class StockDemo:
    """The same lines as a checkpoint, run by transformers."""

    folder: Path
    layers: int
    width: int
    answer: Tensor
    certified: float
    measured: float


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
    stock: StockDemo
    illustration: Illustration
    seconds: float


def execute(folder: Path) -> ProgramDemo:
    """Compile the lines, run them by literal attention and fused, and draw the memory.

    The same lines become a GPT-2 in ``folder``, whose layers are the steps.
    """
    started = time.perf_counter()
    draw = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(12, 3, generator=draw, dtype=torch.float64) - 1
    y = x @ torch.tensor([4, -2, 1]).double() / 8
    samples, dim = x.shape
    program = ice.compile(descent, dim=dim, samples=samples)
    computer = ice.Computer.for_programs([program])
    run = computer.run(program, x, y, backend="literal")
    fused = computer.run(program, x, y, backend="fused")
    exact = program.reference(x, y)
    plan = computer.plan(program, samples)
    traced = computer.trace(program, x[:6], y[:6], steps=6)

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
        stock=_stock(program, folder, x, y, exact),
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


def _stock(program: ice.Program, folder: Path, x: Tensor, y: Tensor, exact: Tensor) -> StockDemo:
    """Write the program as a GPT-2, and run what transformers loads."""
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    written = program.to("gpt2", folder)
    network = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        hidden = network(inputs_embeds=written.prompt(x, y)).last_hidden_state
    answer = written.read(hidden)
    return StockDemo(
        folder=folder,
        layers=network.config.n_layer,
        width=network.config.n_embd,
        answer=answer,
        certified=proven(ice.check(folder, x, y).certificate),
        measured=float((answer - exact).abs().max()),
    )


def _shown(source: str) -> str:
    """As a user would write it, without the types that this file needs."""
    plain = re.sub(r": (?:Any|float|int)( = )?", lambda found: "=" if found[1] else "", source)
    return plain.replace(" -> Any", "").strip()
