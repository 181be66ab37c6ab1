"""Measure the constructions of others that the note compares with.

``python docs/note/neighbours.py --giannou DIR --loom DIR`` runs the published code of Giannou and
others (github.com/jysohn1108/Looped-Transformer) and of Loom (github.com/mkturkcan/Loom) from two
checkouts, and writes docs/note/neighbours.json. The weights of von Oswald and others and of Bai and
others are formulas in their papers; they are written down here and run with the note's numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

KEPT = Path(__file__).parent / "neighbours.json"
F64 = torch.float64


# ------------------------------------------------------------- von Oswald and others, 2212.07677


def linear_attention_step(x: Tensor, y: Tensor, asked: Tensor, rate: float) -> Tensor:
    """One layer of linear self-attention on [x_j; y_j]: the prediction after a step from w = 0.

    W_K = W_Q = diag(I, 0), W_V = diag(0, -1), P = (rate/n) I: the last entry of the token [x; 0]
    becomes -(rate/n) sum_j y_j x_j.x, minus the prediction.
    """
    n, d = x.shape
    tokens = torch.cat([x, y[:, None]], 1)
    query = torch.cat([asked, torch.zeros(len(asked), 1, dtype=F64)], 1)
    seen = torch.diag(torch.tensor([1.0] * d + [0.0], dtype=F64))
    value = torch.diag(torch.tensor([0.0] * d + [-1.0], dtype=F64))
    logits = (query @ seen) @ (tokens @ seen).mT
    return -(query + (rate / n) * logits @ (tokens @ value))[:, -1]


# -------------------------------------------------------------------- Bai and others, 2306.04637


def relu_attention_ridge(x: Tensor, y: Tensor, alpha: float, rate: float, layers: int) -> Tensor:
    """Ridge by ReLU attention, three heads a layer: tokens [x_j; y_j; w; 1], all with the same w.

    Two heads make the residual of relu(z) - relu(-z), the third shrinks w.
    """
    n, d = x.shape
    one = torch.ones(n, 1, dtype=F64)
    tokens = torch.cat([x, y[:, None], torch.zeros(n, d, dtype=F64), one], 1)
    wide, at = tokens.shape[1], slice(d + 1, 2 * d + 1)
    asks = torch.zeros(wide, wide, dtype=F64)  # [w; -1] of the asking token
    asks[:d, at], asks[d, -1] = torch.eye(d, dtype=F64), -1.0
    holds = torch.zeros(wide, wide, dtype=F64)  # [x; y] of the token that answers
    holds[: d + 1, : d + 1] = torch.eye(d + 1, dtype=F64)
    gives = torch.zeros(wide, wide, dtype=F64)
    gives[at, :d] = rate * torch.eye(d, dtype=F64)
    shrinks, flag = torch.zeros(wide, wide, dtype=F64), torch.zeros(wide, wide, dtype=F64)
    shrinks[at, at], flag[0, -1] = -rate * alpha * torch.eye(d, dtype=F64), 1.0
    heads = ((asks, holds, -gives), (-asks, holds, gives), (flag, flag, shrinks))
    for _ in range(layers):
        added = torch.zeros_like(tokens)
        for ask, hold, give in heads:
            scores = torch.relu((tokens @ ask.mT) @ (tokens @ hold.mT).mT) / n
            added = added + scores @ (tokens @ give.mT)
        tokens = tokens + added
    return tokens[0, at]


def layers_of_theorem_four(condition: float, bound: float, eps: float) -> int:
    """L = ceil(2 kappa ln(B_x B_w / (2 eps))) + 1 of their Theorem 4."""
    return math.ceil(2 * condition * math.log(bound / (2 * eps))) + 1


def relu_sum_error(f: Any, reach: float, heads: int) -> float:
    """sup |f - a line - a sum of relus| on [-reach, reach]: interpolation at equal knots.

    A head is a relu, the two ends of the line included, so ``heads`` of them have heads - 1 cells.
    """
    knots = torch.linspace(-reach, reach, heads, dtype=F64)
    z = torch.linspace(-reach, reach, 20 * heads + 1, dtype=F64)
    cell = (torch.searchsorted(knots, z) - 1).clamp(0, heads - 2)
    share = (z - knots[cell]) / (knots[cell + 1] - knots[cell])
    values = f(knots)
    return float((values[cell] * (1 - share) + values[cell + 1] * share - f(z)).abs().max())


# ------------------------------------------------------------------------------ published code


def _commit(folder: Path) -> str:
    told = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    return told.stdout.strip()


def giannou(folder: Path, loops: int = 20) -> dict[str, Any]:
    """SUBLEQ commands at random on random memory, through their layers and by hand."""
    sys.path.insert(0, str(folder))
    import numpy as np
    import subleq
    import utils

    s, m, n, bits = 8, 8, 32, 8
    logn = int(math.log2(n))
    parts = [*utils.get_nrows_subleq(logn, bits), 1]
    rows = int(sum(parts))
    at = utils.get_row_idx_list_subleq(parts)
    built: list[Any] = []
    whole = subleq.TF.__init__

    def counted(self: Any, *args: Any, **options: Any) -> None:
        whole(self, *args, **options)
        built.append(self)

    subleq.TF.__init__ = counted
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        option = SimpleNamespace(
            output_folder=scratch,
            mode="subleq",
            save_all=0,
            lam=10,
            our_curr_result=None,
            num_loops=loops,
        )
        (Path(scratch) / "subleq").mkdir()
        commands = []
        for _ in range(n - s - m - 1):
            a, b = draw.choice(np.arange(s + 2, s + m), 2, replace=False)
            commands.append((a, b, draw.integers(s + m, n)))
        commands.append((s, s + 1, n - 1))
        start = [0, -1, *draw.integers(-(2 ** (bits - 2)), 2 ** (bits - 2) - 1, m - 2)]
        x, memory = utils.init_input(
            s, m, n, logn, bits, rows, commands, parts, at, opt=option, mem_given=start
        )
        byhand = utils.run_manual_subleq(
            commands, memory, s, m, n, bits, opt=option, num_loops=loops
        )
        found, layers, worst = [], 0, 0.0
        for turn in range(1, loops + 1):
            built.clear()
            x, *_ = subleq.read_inst(x, s, m, n, logn, rows, bits, turn, parts, at, option)
            for part in (
                subleq.read_mem, subleq.subtract_mem, subleq.write_mem,
                subleq.conditional_branching,
            ):  # fmt: skip
                x, *_ = part(x, n, logn, rows, bits, turn, parts, at, option)
            held = x[at[0] : at[0] + bits, s : s + m]
            worst = max(worst, float(abs(abs(held) - 1).max()))
            x, *_ = subleq.error_correction(x, n, logn, rows, bits, turn, parts, at, option)
            layers = len(built)
            found.append(tuple(option.our_curr_result))
    subleq.TF.__init__ = whole
    same = sum(tuple(a) == tuple(b) for a, b in zip(found, byhand, strict=True))
    return {
        "commit": _commit(folder), "layers": layers, "heads": max(f.num_heads for f in built),
        "width": rows, "tokens": n, "feed_forward": max(len(f.W1) for f in built),
        "loops": loops, "same": same, "bits": bits, "before_correction": worst,
    }  # fmt: skip


def loom(folder: Path) -> dict[str, Any]:
    """Increments of one cell, one instruction a pass."""
    sys.path.insert(0, str(folder))
    for name in ("subleq", "utils"):
        sys.modules.pop(name, None)
    from loom_v1 import OP_HALT, OP_INC, LoomComputer, LoomConfig, get_pc, init_state, read_memory

    config = LoomConfig(s=32, m=8, n=64, N=8)
    machine = LoomComputer(config)
    count = 20
    state = init_state(
        config, [5, 0, 0, 0, 0, 0, 0, 0],
        [*[(OP_INC, config.s, 0)] * count, (OP_HALT, 0, 0)],
    )  # fmt: skip
    steps = 0
    with torch.no_grad():
        while get_pc(state, config) != 0:
            state = machine.step(state)
            steps += 1
    off = float((state - state.round()).abs().max())
    return {
        "commit": _commit(folder), "layers": len(machine.layers), "opcodes": 21,
        "heads": max(layer.num_heads for layer in machine.layers), "width": state.shape[0],
        "tokens": state.shape[1], "feed_forward": max(len(layer.W1) for layer in machine.layers),
        "steps": steps, "right": int(read_memory(state, config)[0] == 5 + count), "off": off,
    }  # fmt: skip


def main() -> None:
    """Run what the checkouts hold and keep what was seen."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--giannou", type=Path, required=True)
    words.add_argument("--loom", type=Path, required=True)
    asked = words.parse_args()
    kept = {"giannou": giannou(asked.giannou), "loom": loom(asked.loom)}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
