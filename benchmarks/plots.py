"""Two pictures of a run: cost against n, and error against cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt

__all__ = ["draw"]


def draw(run: dict[str, Any], folder: Path, stem: str) -> list[Path]:
    """Write the pictures that the run has data for."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, picture in (("cost", _cost), ("error", _error)):
        figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
        if picture(axes, run["rows"]):
            axes.set_title(run["machine"]["device"], fontsize=9)
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8)
            path = folder / f"{stem}-{name}.png"
            figure.savefig(path, dpi=120)
            made.append(path)
        plt.close(figure)
    return made


def _cost(axes: Any, rows: list[dict[str, Any]]) -> bool:
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        found = re.match(r"n=(\d+)", row["case"])
        if row["suite"] == "scaling" and found:
            lines.setdefault(row["method"], []).append((int(found[1]), row["ms"]))
    for name, points in lines.items():
        axes.loglog(*zip(*sorted(points), strict=True), "o-", label=name)
    axes.set(xlabel="samples n", ylabel="ms per pass")
    return bool(lines)


def _error(axes: Any, rows: list[dict[str, Any]]) -> bool:
    lines: dict[str, list[tuple[float, float]]] = {}
    native = None
    for row in rows:
        if row["suite"] == "accuracy" and row["method"] == "native":
            native = row["ms"]
        elif row["suite"] == "accuracy":
            lines.setdefault(row["method"], []).append((row["ms"], row["error"]))
    for name, points in lines.items():
        axes.loglog(*zip(*points, strict=True), "o-", label=name)
    if native is not None:
        axes.axvline(native, color="k", ls=":", label="tanh itself")
    axes.set(xlabel="ms for all look-ups", ylabel="largest error")
    return bool(lines)
