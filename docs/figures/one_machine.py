"""Draw docs/images/one_machine.png: one frozen layer, six prompts, six algorithms.

Run as ``python docs/figures/one_machine.py``.
"""

from __future__ import annotations

import random
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

from iceform.expressions import loss_named
from iceform.tables import Interpolant
from iceform_estimators.algorithms import KernelRegression, LinearModel
from iceform_estimators.machine import ArraySource
from iceform_playground.catalogue import BoardModel, entries
from iceform_playground.machine_files import the_machine

TARGET = Path(__file__).parents[1] / "images" / "one_machine.png"
CHOSEN: dict[str, tuple[str, dict[str, float]]] = {
    "linear": ("Least squares", {}),
    "absolute": ("Absolute deviations", {"alpha": 0.0001}),
    "quantile": ("0.9 quantile", {"quantile": 0.9}),
    "lasso": ("Lasso", {"alpha": 0.01}),
    "kernel": ("Kernel regression", {"gamma": 40.0}),
    "knn": ("Nearest neighbours", {"n_neighbors": 9.0}),
}
DEGREE = 5
HIDDEN = 2.0**40  # a bias this low is of a token that holds nothing
INK, FIT, POINT = "#14202b", "#0b5fb0", "#b3480a"


def points() -> tuple[np.ndarray, np.ndarray]:
    """A wave, and four points far below it."""
    draw = random.Random(4)
    x = np.linspace(-0.98, 0.98, 80)
    far = np.isin(np.arange(80), (46, 54, 62, 71))
    noise = np.array([draw.gauss(0, 0.04 if low else 0.1) for low in far])
    return x, np.where(far, -0.8, 0.55 * np.sin(3.4 * x) + 0.1) + noise


def features(x: np.ndarray) -> torch.Tensor:
    """Legendre polynomials of degrees 1 to DEGREE."""
    return torch.from_numpy(np.polynomial.legendre.legvander(x, DEGREE)[:, 1:])


def run(name: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The curve that is found on 201 places, and a prompt of the machine that finds it."""
    machine, mesh = the_machine(), np.linspace(-1, 1, 201)
    algorithm = entries()[name].algorithm(**CHOSEN[name][1])
    if name == "quantile":  # with a rounded corner, as on the page
        algorithm = BoardModel(loss_named("quantile", width=0.05, **CHOSEN[name][1]), 0.0001)
    of = features if isinstance(algorithm, LinearModel) else lambda z: torch.from_numpy(z[:, None])
    source = ArraySource(of(x), torch.from_numpy(y))
    found = machine.run(algorithm, source)
    if isinstance(algorithm, LinearModel):
        few = slice(0, machine.samples)
        rows = torch.cat([source.x[few], torch.ones(machine.samples, 1, dtype=torch.float64)], 1)
        w = torch.cat([found.coef, found.intercept.reshape(1)])
        table = Interpolant.fit(algorithm.loss().derivative, -4, 4, tokens=65)
        prompt = machine.start().look_ups(table, rows, source.y[few], w)
    else:
        gamma = algorithm.gamma_for(source) if isinstance(algorithm, KernelRegression) else 100.0
        asks = torch.linspace(-0.75, 0.75, machine.samples, dtype=torch.float64)[:, None]
        prompt = machine.start().kernel(source.x, source.y[:, None], asks, gamma)
    tokens = prompt.tokens[0].numpy()
    return found.predict(of(mesh)).numpy(), tokens[(np.abs(tokens) < HIDDEN).all(1)]


def draw_fit(axes: Axes, name: str, x: np.ndarray, y: np.ndarray, curve: np.ndarray) -> None:
    """Points and curve."""
    axes.scatter(x, y, s=7, c=POINT, linewidths=0)
    axes.plot(np.linspace(-1, 1, len(curve)), curve, c=FIT, lw=2)
    axes.set(xlim=(-1, 1), ylim=(-1, 1), xticks=[], yticks=[])
    axes.set_title(CHOSEN[name][0], fontsize=10, color=INK)


def draw_prompt(axes: Axes, values: np.ndarray) -> None:
    """Tokens by features, each feature relative to its largest entry."""
    largest = np.abs(values).max(0)
    axes.imshow(
        values / np.where(largest > 0, largest, 1), aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1,
        interpolation="nearest",
    )  # fmt: skip
    axes.set(xticks=[], yticks=[])


def main() -> None:
    """Draw it."""
    x, y = points()
    figure, rows = plt.subplots(
        2, len(CHOSEN), figsize=(12, 4.1), height_ratios=(1, 0.85), layout="constrained"
    )
    for column, name in enumerate(CHOSEN):
        curve, prompt = run(name, x, y)
        draw_fit(rows[0, column], name, x, y, curve)
        draw_prompt(rows[1, column], prompt)
    rows[0, 0].set_ylabel("answer", color=INK)
    rows[1, 0].set_ylabel("prompt: tokens", color=INK)
    rows[1, 0].set_xlabel("features", color=INK)
    digest = the_machine().digest[:12]
    figure.suptitle(f"One frozen attention layer, SHA-256 {digest}…, and six prompts", color=INK)
    figure.savefig(TARGET, dpi=130)


if __name__ == "__main__":
    main()
