"""Measure and draw docs/images/one_layer.png: tokens at depth one against passes at fixed width.

``python docs/figures/one_layer.py measure`` builds and runs every network (about two minutes) and
writes docs/figures/one_layer.json; ``python docs/figures/one_layer.py`` draws what is in that file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from iceform.paper import (
    Emulator,
    LeastSquares,
    OneLayerLeastSquares,
    OneLayerRidge,
    RidgeRegression,
)
from iceform.plots import LIGHT
from iceform.plots.themes import png

HERE = Path(__file__).parent
MEASURED, TARGET = HERE / "one_layer.json", HERE.parent / "images" / "one_layer.png"
EPS, ALPHA, DATA_SETS = 1e-4, 1.0, 200
SIZES, CONDITIONS = (1, 2, 3, 4), (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def _drawn(samples: int, least: float) -> tuple[Tensor, Tensor]:
    """Data sets with |X|^2 at least ``least``: one entry in three of them is as small as it may."""
    generator = torch.Generator().manual_seed(0)
    x, y = (
        2 * torch.rand(DATA_SETS, samples, generator=generator, dtype=torch.float64) - 1
        for _ in range(2)
    )
    low = (least / samples) ** 0.5 * (1 + 1e-9)
    x = torch.where(x >= 0, 1.0, -1.0) * (low + (1 - low) * x.abs())
    x[::3, 0] = low
    return x[..., None], y


def _seen(emulator: Emulator, samples: int, least: float = 0.0) -> dict[str, float]:
    x, y = _drawn(samples, least)
    found = torch.cat([emulator(x[i : i + 8], y[i : i + 8]) for i in range(0, DATA_SETS, 8)])
    off = float((found - emulator.reference(x, y)).abs().max())
    return {"error": off, "certified": emulator.certificate.error}


def _ridge(samples: int) -> dict[str, Any]:
    wide = OneLayerRidge(ALPHA, dim=1, samples=samples, eps=EPS)
    deep = RidgeRegression(ALPHA, dim=1, samples=samples, eps=EPS, radius=samples**0.5)
    return {
        "samples": samples,
        "one layer": {"tokens": wide.grid.tokens + 1, "passes": 1, **_seen(wide, samples)},
        "passes": {"tokens": deep.plan.tokens, "passes": deep.passes, **_seen(deep, samples)},
    }


def _least_squares(condition: float) -> dict[str, Any]:
    wide = OneLayerLeastSquares(samples=1, condition=condition, eps=EPS)
    deep = LeastSquares(dim=1, samples=1, condition=condition, eps=EPS, radius=condition**0.5)
    least = wide.least
    return {
        "condition": condition,
        "one layer": {"tokens": wide.grid.tokens + 1, "passes": 1, **_seen(wide, 1, least)},
        "passes": {"tokens": deep.plan.tokens, "passes": deep.passes, **_seen(deep, 1, least)},
    }


def measure() -> None:
    """Build and run everything."""
    found = {
        "eps": EPS,
        "alpha": ALPHA,
        "data sets": DATA_SETS,
        "ridge": [_ridge(samples) for samples in SIZES],
        "least squares": [_least_squares(condition) for condition in CONDITIONS],
    }
    MEASURED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _column(rows: list[dict[str, Any]], way: str, what: str) -> list[float]:
    return [row[way][what] for row in rows]


def draw() -> None:
    """The plot of what was measured."""
    kept = json.loads(MEASURED.read_text(encoding="utf-8"))
    ridge, squares = kept["ridge"], kept["least squares"]
    with LIGHT.applied():
        figure = Figure(figsize=(9.2, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        entries = [row["samples"] for row in ridge]
        left.semilogy(entries, _column(ridge, "one layer", "tokens"), "o-", color=LIGHT.hard)
        left.semilogy(entries, _column(ridge, "passes", "tokens"), "s-", color=LIGHT.spectral)
        for n, row in zip(entries, ridge, strict=True):
            text = f"{row['passes']['passes']} passes"
            left.annotate(text, (n, row["passes"]["tokens"]), (0, 7), textcoords="offset points",
                          ha="center", color=LIGHT.spectral, fontsize=8)  # fmt: skip
        left.text(entries[-1] - 0.1, ridge[-1]["one layer"]["tokens"], "one layer, 1 pass",
                  ha="right", va="center", color=LIGHT.hard)  # fmt: skip
        left.text(entries[-1], 0.45 * ridge[-1]["passes"]["tokens"], "gradient descent",
                  ha="right", color=LIGHT.spectral)  # fmt: skip
        left.set_xticks(entries)
        left.set_xlabel("entries of X (n samples, d = 1)")
        left.set_ylabel("tokens")
        left.set_ylim(8, None)
        left.set_xlim(entries[0] - 0.4, entries[-1] + 0.4)
        left.set_title(f"ridge, α = {kept['alpha']:g}, proven to {kept['eps']:g}")
        kappas = [row["condition"] for row in squares]
        right.loglog(kappas, _column(squares, "one layer", "tokens"), "o-", color=LIGHT.hard,
                     label="tokens of one layer, 1 pass")  # fmt: skip
        right.loglog(kappas, _column(squares, "passes", "passes"), "s-", color=LIGHT.spectral,
                     label=f"passes at {squares[0]['passes']['tokens']} tokens")  # fmt: skip
        root = [12 * kappa**0.5 for kappa in kappas]
        right.loglog(kappas, root, "--", color=LIGHT.faint, label="12 √κ")
        right.set_xticks(kappas, [f"{kappa:g}" for kappa in kappas])
        right.minorticks_off()
        right.set_xlabel("condition number κ")
        right.set_title(f"least squares, n = d = 1, proven to {kept['eps']:g}")
        right.legend(loc="upper left")
    TARGET.write_bytes(png(figure))


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        measure()
    draw()
