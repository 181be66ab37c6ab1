"""Trajectories of gradient descent."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor

from iceform.plots.axes import positive
from iceform.plots.themes import LIGHT, THIN, WIDTH, Theme


def trajectories(
    emulated: Tensor, exact: Tensor, certified: Sequence[float], *, theme: Theme = LIGHT
) -> Figure:
    """Coefficients over the passes, and below them how far emulated and exact are apart.

    Parameters
    ----------
    emulated, exact
        All iterates, shape (passes + 1, d).
    certified
        The proven error after 1, 2, ... passes.
    theme
        LIGHT or DARK.

    Examples
    --------
    >>> exact = torch.tensor([[0.0], [0.5], [0.75]])
    >>> figure = trajectories(exact + 1e-6, exact, certified=[1e-5, 1e-5])
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['coefficients', 'largest difference']
    """
    passes = range(len(emulated))
    gap = (emulated - exact).abs().amax(-1)[1:].tolist()
    with theme.applied():
        figure = Figure(figsize=(WIDTH, 5), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for j in range(emulated.shape[-1]):
            colour = theme.lines[j % len(theme.lines)]
            above.plot(passes, exact[:, j].tolist(), color=colour, lw=THIN)
            above.plot(passes, emulated[:, j].tolist(), "o", color=colour, ms=3)
        above.set_ylabel("coefficients")
        above.set_title("exact (lines) and by frozen attention (dots)", loc="left")
        below.semilogy(passes[1:], certified, "--", color=theme.hard, lw=THIN, label="certified")
        below.semilogy(passes[1:], positive(gap), "o-", color=theme.spectral, ms=3,
                       lw=THIN, label="measured")  # fmt: skip
        below.set_ylabel("largest difference")
        below.set_xlabel("passes through the frozen layer")
        below.grid(axis="y")
        below.legend(loc="lower right")
    return figure
