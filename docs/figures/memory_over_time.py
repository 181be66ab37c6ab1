"""Draw docs/images/memory_over_time.png: gradient descent, executed by one frozen block.

Run as ``python docs/figures/memory_over_time.py``.
"""

from __future__ import annotations

from pathlib import Path

import torch

import iceform as ice
from iceform.plots import memory

TARGET = Path(__file__).parents[1] / "images" / "memory_over_time.png"


@ice.algorithm
def descent(x, y, *, lr=0.5, steps=8):
    """As in the README, a few steps."""
    w = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        w = w - lr * ice.mean(x * ((x * w).sum() - y))
    return w


def main() -> None:
    """Trace a run and draw its memory."""
    draw = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(6, 3, generator=draw, dtype=torch.float64) - 1
    y = x @ torch.tensor([0.6, -0.3, 0.4], dtype=torch.float64)
    program = ice.compile(descent, dim=3, samples=6, eps=1e-8)
    computer = ice.Computer.for_programs([program])
    figure = memory(computer.trace(program, x, y))
    figure.savefig(TARGET, dpi=160)


if __name__ == "__main__":
    main()
