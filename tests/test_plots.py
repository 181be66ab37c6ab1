"""Figures: what is on them, and that drawing leaves no trace."""

import pytest
import torch
from matplotlib import rcParams
from matplotlib._pylab_helpers import Gcf
from matplotlib.figure import Figure

from iceform import GradientStep, Interpolant, plots

SIZES = (17, 33)
THEMES = pytest.mark.parametrize("theme", [plots.LIGHT, plots.DARK], ids=lambda t: t.name)


@pytest.fixture(scope="module")
def curves():
    return plots.error_curves(tokens=SIZES)


@pytest.fixture(scope="module")
def step():
    return GradientStep("squared", 0.5, dim=3, samples=4, eps=1e-6, backend="dense")


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(0)
    x, y, w = (2 * torch.rand(*shape, dtype=torch.float64) - 1 for shape in ((4, 3), (4,), (3,)))
    return x, y, w


def labels(figure: Figure) -> set[str]:
    return {text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel()) if text}


def test_error_curves_are_measured_and_certified(curves):
    hard, spectral = curves
    assert (hard.regime, spectral.regime) == ("hard", "spectral")
    assert hard.tokens == spectral.tokens == SIZES
    for curve in curves:
        for measured, certified in zip(curve.measured, curve.certified, strict=True):
            assert 0 < measured <= certified
    assert spectral.measured[-1] < hard.measured[-1] / 100


@THEMES
def test_error_against_tokens(curves, theme):
    figure = plots.error_against_tokens(curves, theme=theme)
    (axes,) = figure.axes
    assert labels(figure) == {"grid tokens per sample", "largest error"}
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    drawn = {tuple(line.get_ydata()) for line in axes.lines}
    for curve in curves:
        assert {curve.measured, curve.certified} <= drawn
    styles = [line.get_linestyle() for line in axes.lines]
    assert (styles.count("--"), styles.count("-"), styles.count(":")) == (2, 2, 1)
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["measured", "certified"]


@THEMES
def test_lookup_weights(theme):
    hard = Interpolant.hard(torch.tanh, -10, 10, cells=16)
    spectral = Interpolant.fit(torch.tanh, -10, 10, tokens=17)
    figure = plots.lookup_weights(hard, spectral, theme=theme)
    assert len(figure.axes) == 5, "two maps, two curves, one colour bar"
    assert labels(figure) == {"where the token sits", "what is read off", "z", "attention weight"}
    titles = {axes.get_title(loc="left") for axes in figure.axes}
    assert {"hard, 17 tokens", "spectral, 17 tokens"} <= titles
    shown = figure.axes[0].collections[0].get_array()
    assert float(shown.min()) >= 0
    assert float(shown.max()) <= 1


@THEMES
def test_attention_shows_the_blocks(step, data, theme):
    figure = plots.attention(step, *data, theme=theme)
    axes = figure.axes[0]
    assert {"query of sample", "attends to the look-up table of sample"} <= labels(figure)
    assert f"margin M = {step.margin:.0f}" in axes.get_title(loc="left")
    decades = torch.tensor(axes.images[0].get_array())
    block = step.interpolant.tokens
    assert decades.shape == (4, step.plan.tokens)
    for i, row in enumerate(10.0**decades):
        own = row[i * block : (i + 1) * block].sum()
        assert float(own) == pytest.approx(1.0, abs=1e-12)
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2", "3", "4", "queries"]


@THEMES
def test_trajectories(theme):
    exact = torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)
    emulated = exact + 1e-9
    figure = plots.trajectories(emulated, exact, [1e-8, 2e-8, 3e-8], theme=theme)
    above, below = figure.axes
    assert len(above.lines) == 2 * 3
    assert below.get_yscale() == "log"
    certified, measured = below.lines
    assert list(certified.get_ydata()) == [1e-8, 2e-8, 3e-8]
    assert all(g < c for g, c in zip(measured.get_ydata(), certified.get_ydata(), strict=True))
    assert labels(figure) == {
        "coefficients", "largest difference", "passes through the frozen layer"
    }  # fmt: skip


def test_an_exact_result_can_be_drawn_on_a_logarithmic_axis():
    exact = torch.ones(3, 2, dtype=torch.float64)
    figure = plots.trajectories(exact, exact, [1e-8, 1e-8])
    assert min(figure.axes[1].lines[1].get_ydata()) > 0


def test_drawing_leaves_no_trace(curves):
    before = dict(rcParams)
    image = plots.png(plots.error_against_tokens(curves))
    assert image.startswith(b"\x89PNG")
    assert image == plots.png(plots.error_against_tokens(curves)), "the same bytes every time"
    assert dict(rcParams) == before
    assert not Gcf.get_all_fig_managers(), "no figure is left with pyplot"


def test_main_writes_the_picture_of_the_readme(tmp_path, monkeypatch, curves):
    monkeypatch.setattr(plots, "error_curves", lambda: curves)
    plots.main(str(tmp_path / "images"))
    written = tmp_path / "images" / "error_against_tokens.png"
    assert 10_000 < written.stat().st_size < 120_000
