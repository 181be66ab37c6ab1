"""Beside other people's constructions, at their sizes: errors, float64, on a CPU.

``python -m benchmarks.others --json FILE`` writes what docs/comparison.md quotes. With ``--tracr
FOLDER`` and a Python that has its dependencies, ``python benchmarks/others.py --tracr FOLDER`` runs
Tracr itself on its part; nothing of it is in this repository.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

SEEDS = 5
TOKENS, POINTS, WIDTHS, BETAS = 12, (20, 100), (4, 16), (2.0, 16.0)  # the authors' frozen head
SAMPLES, FEATURES, STEPS = 10, 10, 20  # a regression as von Oswald and others have it


def frozen_heads() -> list[dict[str, Any]]:
    """The theorem's head on rows at the sizes of the authors' hand-made one, and ours beside it.

    Entries of X and of the weights are uniform in [-1, 1]; the grid covers [-d, d]; beta counts in
    cells of the grid, as in the theorem.
    """
    import torch

    import iceform as ice

    rows = []
    for d in WIDTHS:
        for points in POINTS:
            ways: list[tuple[str, Any]] = [("spectral", None)]
            ways += [(f"hard, beta {b:g}", b) for b in BETAS]
            for way, beta in ways:
                table = None
                if beta is not None:
                    cells = points - 1
                    table = ice.Interpolant.hard(
                        lambda z: z, -float(d), float(d), cells=cells, sharpness=beta
                    )
                head = ice.paper.AttentionHead(
                    d, d, d, TOKENS, eps=None, interpolant=table,
                    regime="spectral" if beta is None else "hard",
                    grid_tokens=min(points, 24) if beta is None else None,
                )  # fmt: skip
                off = []
                for seed in range(SEEDS):
                    generator = torch.Generator().manual_seed(seed)
                    shapes = [(TOKENS, d), (d, d), (d, d), (d, d)]
                    drawn = [
                        2 * torch.rand(*s, generator=generator, dtype=torch.float64) - 1
                        for s in shapes
                    ]
                    error = head(*drawn) - head.reference(*drawn)
                    off.append(float(error.square().mean()))
                rows.append({"case": "frozen head", "d": d, "points": points, "way": way,
                             "tokens": head.interpolant.tokens,
                             "least mse": min(off), "largest mse": max(off)})  # fmt: skip
    return rows


def linear_attention(x: Any, y: Any, eta: float, steps: int) -> Any:
    """Von Oswald and others' layer, stacked: tokens (x_j, y_j), a query (x, 0); no softmax.

    One head with keys and queries x and values y: y_j <- y_j - eta/N sum_i y_i <x_i, x_j>. The
    query's entry becomes minus the prediction.
    """
    import torch

    n = len(y)
    tokens = torch.cat([x, torch.cat([y, y.new_zeros(n)])[:, None]], 1)
    for _ in range(steps):
        scores = tokens[:, :-1] @ tokens[:n, :-1].T  # linear attention: no softmax
        moved = tokens.clone()
        moved[:, -1] -= eta / n * scores @ tokens[:n, -1]
        tokens = moved
    return -tokens[n:, -1]


def gradient_descent() -> list[dict[str, Any]]:
    """Predictions after some steps of descent: linear attention, softmax look-ups, and exactly."""
    import torch

    import iceform as ice

    rows = []
    for loss in ("squared", "huber"):
        off: dict[str, list[float]] = {"linear attention": [], "iceform": []}
        for seed in range(SEEDS):
            generator = torch.Generator().manual_seed(seed)
            x = 2 * torch.rand(SAMPLES, FEATURES, generator=generator, dtype=torch.float64) - 1
            y = 2 * torch.rand(SAMPLES, generator=generator, dtype=torch.float64) - 1
            eta = 0.3
            descent = ice.paper.GradientDescent(
                loss, dim=FEATURES, samples=SAMPLES, lr=eta, steps=STEPS, w_bound=3.0, eps=None
            )
            w0 = torch.zeros(FEATURES, dtype=torch.float64)
            exact = x @ descent.reference(x, y, w0)
            off["iceform"].append(float((x @ descent(x, y, w0) - exact).abs().max()))
            if loss == "squared":
                twice = torch.cat([x, x])
                made = linear_attention(twice, y, eta, STEPS)
                off["linear attention"].append(float((made - exact).abs().max()))
        for name, values in off.items():
            if values:
                rows.append({"case": "descent", "loss": loss, "way": name,
                             "largest error": max(values)})  # fmt: skip
    return rows


def tracr_fractions(folder: Path) -> list[dict[str, Any]]:
    """Tracr's own example: the share of x among the tokens so far, against exact fractions."""
    sys.path.insert(0, str(folder))
    from tracr.compiler import compiling, lib

    length = 20
    model = compiling.compile_rasp_to_model(
        lib.make_frac_prevs(_is_x()), vocab={"x", "y"}, max_seq_len=length, compiler_bos="BOS"
    )
    worst = 0.0
    for number in range(64):
        word = [("x", "y")[number * 2654435761 >> k & 1] for k in range(length)]
        made = model.apply(["BOS", *word]).decoded[1:]
        exact = [word[: k + 1].count("x") / (k + 1) for k in range(length)]
        worst = max(worst, *(abs(float(a) - b) for a, b in zip(made, exact, strict=True)))
    return [{"case": "shares", "way": "Tracr", "tokens": length, "largest error": worst}]


def _is_x() -> Any:
    from tracr.rasp import rasp

    return rasp.numerical(rasp.Map(lambda t: 1.0 if t == "x" else 0.0, rasp.tokens))


def shares() -> list[dict[str, Any]]:
    """The same by the frozen computer: the mean of what is 1 for x and 0 for y."""
    import torch

    import iceform as ice

    @ice.algorithm
    def share(x: Any, y: Any) -> Any:
        return ice.mean(x)

    length = 20
    program = ice.compile(share, dim=1, samples=length, eps=1e-9)
    computer = ice.Computer.for_programs([program])
    worst, bound = 0.0, 0.0
    for number in range(8):
        word = torch.tensor(
            [[float(number * 2654435761 >> k & 1)] for k in range(length)], dtype=torch.float64
        )
        result = computer.run(program, word, word[:, 0])
        exact = Fraction(int(word.sum()), length)
        worst = max(worst, *(float(abs(Fraction(v) - exact)) for v in result.value.tolist()))
        bound = max(bound, result.enclosure.error)
    return [{"case": "shares", "way": "iceform", "tokens": length, "largest error": worst,
             "certified": bound}]  # fmt: skip


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The lines that docs/comparison.md has of the frozen heads."""
    heads = [r for r in rows if r["case"] == "frozen head"]
    ways = list(dict.fromkeys(r["way"] for r in heads))
    lines = ["| width, grid points | " + " | ".join(ways) + " |", "|---" * (len(ways) + 1) + "|"]
    for d, points in dict.fromkeys((r["d"], r["points"]) for r in heads):
        own = [r for r in heads if (r["d"], r["points"]) == (d, points)]
        cells = [f"{r['least mse']:.0e} to {r['largest mse']:.0e}" for r in own]
        lines.append(f"| {d}, {points} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tracr", type=Path, help="a copy of Tracr's repository")
    parser.add_argument("--json", type=Path, help="where the rows go; kept rows stay")
    arguments = parser.parse_args()
    if arguments.tracr:
        rows = tracr_fractions(arguments.tracr)
    else:
        rows = frozen_heads() + gradient_descent() + shares()
    for row in rows:
        print(row)
        assert all(not isinstance(v, float) or math.isfinite(v) for v in row.values())
    if arguments.json:
        kept = []
        if arguments.json.exists():
            done = {(r["case"], r["way"]) for r in rows}
            kept = json.loads(arguments.json.read_text())["rows"]
            kept = [r for r in kept if (r["case"], r["way"]) not in done]
        content = {"command": "python -m benchmarks.others", "rows": kept + rows}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
