"""Draw docs/images/one_machine.png: one frozen layer, six prompts, six algorithms.

Run as ``python docs/figures/one_machine.py``.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

from iceform_playground import questions as asked
from iceform_playground.algorithms import features_of
from iceform_playground.answers import FitAnswer, InsideAnswer
from iceform_playground.tasks import TASKS

TARGET = Path(__file__).parents[1] / "images" / "one_machine.png"
CHOSEN: dict[str, tuple[str, dict[str, float]]] = {
    "linear": ("Least squares", {}),
    "absolute": ("Absolute deviations", {"alpha": 0.0001}),
    "quantile": ("0.9 quantile", {"quantile": 0.9, "alpha": 0.0001}),
    "lasso": ("Lasso", {"alpha": 0.01}),
    "kernel": ("Kernel regression", {"gamma": 40.0}),
    "knn": ("Nearest neighbours", {"n_neighbors": 9.0}),
}
DEGREE = 5
INK, FIT, POINT = "#14202b", "#0b5fb0", "#b3480a"


def points() -> list[asked.Point]:
    """A wave, and four points far below it."""
    draw = random.Random(4)
    made = []
    for i in range(80):
        x = -0.98 + 1.96 * i / 79
        far = i in (46, 54, 62, 71)
        y = -0.8 if far else 0.55 * math.sin(3.4 * x) + 0.1
        made.append(asked.Point(x=x, y=y + draw.gauss(0, 0.04 if far else 0.1)))
    return made


def run(name: str, board: list[asked.Point]) -> tuple[FitAnswer, InsideAnswer]:
    """The fit, and the prompt of its last step."""
    model = asked.Model(algorithm=name, degree=DEGREE, options=CHOSEN[name][1])
    question = asked.FitQuestion(points=board, model=model, running=asked.Running(passes=200))
    fit = TASKS["fit"].work(question, lambda: None)
    frame = max(0, len(fit.frames) - 1)
    looking = asked.InsideQuestion(**dict(question), frame=frame)
    return fit, TASKS["inside"].work(looking, lambda: None)


def draw_fit(axes: Axes, name: str, board: list[asked.Point], fit: FitAnswer) -> None:
    """Points and curve."""
    axes.scatter([p.x for p in board], [p.y for p in board], s=7, c=POINT, linewidths=0)
    if fit.curve is not None:
        x = torch.linspace(-1, 1, len(fit.curve), dtype=torch.float64)
        y = np.asarray(fit.curve)
    else:
        x = torch.linspace(-1, 1, 201, dtype=torch.float64)
        last = fit.frames[-1]
        features = features_of(torch.stack([x, x], 1), "curve", DEGREE)
        y = (features @ torch.tensor(last.coef, dtype=torch.float64) + last.intercept).numpy()
    axes.plot(x, y, c=FIT, lw=2)
    axes.set(xlim=(-1, 1), ylim=(-1, 1), xticks=[], yticks=[])
    axes.set_title(CHOSEN[name][0], fontsize=10, color=INK)


def draw_prompt(axes: Axes, seen: InsideAnswer) -> None:
    """Tokens by features, each feature relative to its largest entry."""
    values = np.asarray(seen.prompt.values)
    largest = np.abs(values).max(0)
    axes.imshow(
        values / np.where(largest > 0, largest, 1), aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1,
        interpolation="nearest",
    )  # fmt: skip
    axes.set(xticks=[], yticks=[])


def main() -> None:
    """Draw it."""
    board = points()
    figure, rows = plt.subplots(
        2, len(CHOSEN), figsize=(12, 4.1), height_ratios=(1, 0.85), layout="constrained"
    )
    digests = set()
    for column, name in enumerate(CHOSEN):
        fit, seen = run(name, board)
        digests |= {fit.machine.digest, seen.digest}
        draw_fit(rows[0, column], name, board, fit)
        draw_prompt(rows[1, column], seen)
    (digest,) = digests
    rows[0, 0].set_ylabel("answer", color=INK)
    rows[1, 0].set_ylabel("prompt: tokens", color=INK)
    rows[1, 0].set_xlabel("features", color=INK)
    figure.suptitle(
        f"One frozen attention layer, SHA-256 {digest[:12]}…, and six prompts", color=INK
    )
    figure.savefig(TARGET, dpi=130)


if __name__ == "__main__":
    main()
