"""Figures: what is on them, and that drawing leaves no trace."""

import dataclasses
import itertools
import math

import pytest
import torch
from matplotlib import rcParams
from matplotlib._pylab_helpers import Gcf
from matplotlib.figure import Figure

from iceform import Interpolant, plots
from iceform.errors import ShapeError
from iceform.heads import Prompt
from iceform.heads.inspection import trace_network
from iceform.heads.lookups import HIDDEN, MARGIN
from iceform.paper import AttentionHead, GradientStep, HopfieldResidual
from iceform.plots.__main__ import main as write_picture

SIZES = (17, 33)
THEMES = pytest.mark.parametrize("theme", [plots.LIGHT, plots.DARK], ids=lambda t: t.name)


@pytest.fixture(scope="module")
def curves():
    return plots.error_curves(tokens=SIZES)


@pytest.fixture(scope="module")
def step():
    return GradientStep("squared", 0.5, dim=3, samples=4, eps=1e-6, backend="literal")


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(0)
    x, y, w = (2 * torch.rand(*shape, dtype=torch.float64) - 1 for shape in ((4, 3), (4,), (3,)))
    return x, y, w


@pytest.fixture(scope="module")
def head(data):
    torch.manual_seed(1)
    weights = (2 * torch.rand(2, 3, dtype=torch.float64) - 1 for _ in range(3))
    return AttentionHead(3, 2, 2, 4).trace(data[0], *weights)


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


def test_a_line_that_is_estimated_is_called_so(curves):
    for kind, told in (("proven", "certified"), ("estimated", "estimated")):
        drawn = plots.error_against_tokens([dataclasses.replace(curves[0], kind=kind), curves[1]])
        words = [text.get_text() for text in drawn.axes[0].get_legend().get_texts()]
        assert words == ["measured", told]
    assert {curve.kind for curve in curves} == {"proven"}


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
    title = axes.get_title(loc="left")
    assert "2^{50}" in title
    assert "nothing strays" in title
    decades = torch.tensor(axes.images[0].get_array())
    block = step.layout.tokens
    assert decades.shape == (4, step.plan.tokens)
    for i, row in enumerate(10.0**decades):
        own = row[i * block : (i + 1) * block].sum()
        assert float(own) == pytest.approx(1.0, abs=1e-12)
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2", "3", "4", "queries"]


BLOCKS = ["block 0", "block 1", "block 2", "block 3"]


def test_attention_of_a_layer_is_named_by_its_tokens(step, data):
    layer = step.trace(*data)["layers.1"]
    figure = plots.attention(layer)
    axes = figure.axes[0]
    drawn = torch.tensor(axes.images[0].get_array())
    (same,) = plots.attention(step, *data).axes[0].images
    assert torch.equal(drawn, torch.tensor(same.get_array()))
    assert axes.get_title(loc="left") == f"layers.1: {layer.labels[0]}"
    assert labels(figure) == {"key", "query of block", "attention weight"}
    assert [t.get_text() for t in axes.get_yticklabels()] == ["0", "1", "2", "3"]
    names = [t.get_text() for t in axes.get_xticklabels()]
    assert names == [*BLOCKS, "query of block 0–3"], "no room for the free queries"


def test_attention_of_a_soft_look_up_is_linear(head):
    layer = head["layers.0"]
    axes = plots.attention(layer, head=3).axes[0]
    assert axes.get_title(loc="left") == "layers.0: Q row 1"
    drawn = torch.tensor(axes.images[0].get_array())
    assert torch.equal(drawn, layer.attention[3, :4])
    assert axes.get_ylabel() == "query x"


def test_attention_of_a_hopfield_layer_has_no_queries_among_its_keys(data):
    em = HopfieldResidual(torch.tanh, dim=3, samples=4)
    axes = plots.attention(em, *data).axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2", "3", "4"]
    assert axes.get_xlim() == (-0.5, 4 * em.layout.tokens - 0.5)


@THEMES
def test_features_are_named_and_signed(step, data, theme):
    prompt = step.prompt(*data)
    figure = plots.features(prompt, theme=theme)
    axes, bar = figure.axes
    (mesh,) = axes.collections
    (tokens,) = prompt.tokens
    drawn = torch.tensor(mesh.get_array().filled(math.nan)).view(tokens.shape)
    hidden = tokens == -HIDDEN
    assert torch.equal(drawn[~hidden], tokens[~hidden])
    assert bool(drawn[hidden].isnan().all())
    assert [t.get_text() for t in axes.get_xticklabels()] == list(prompt.features)
    names = [t.get_text() for t in axes.get_yticklabels()]
    assert names == [*BLOCKS, "query of block 0–3"], "no room for the free queries"
    low, high = mesh.norm.vmin, mesh.norm.vmax
    assert -low == high == float(tokens[~hidden].abs().max()) < HIDDEN
    assert float(mesh.norm(0.0)) == pytest.approx(0.5)
    assert axes.yaxis_inverted(), "the first token is on top"
    assert bar.get_ylabel() == "value"
    spare = step.layout.tokens - step.interpolant.tokens
    assert sum(round(patch.get_height()) for patch in axes.patches) == 4 * spare > 0


def test_names_of_narrow_blocks_have_room(step, data):
    axes = plots.features(step.prompt(*data)).axes[0]
    left, right = axes.get_xlim()
    at = axes.get_xticks()
    # A name needs its block's width; 20 of them would still fit.
    assert min(b - a for a, b in itertools.pairwise(at)) > (right - left) / 20


def test_an_empty_prompt_can_be_drawn(step, data):
    prompt = step.prompt(*data).prompt()
    figure = plots.features(Prompt(0 * prompt.tokens, prompt.features, prompt.roles))
    assert plots.png(figure).startswith(b"\x89PNG")


@THEMES
@pytest.mark.parametrize("margin", [60.0, MARGIN])
def test_margins_and_the_leaks_they_imply(step, data, theme, margin):
    prompt = step.prompt(*data).prompt()
    network = dataclasses.replace(step.layout, margin=margin).build()
    trace = trace_network(network, prompt.tokens, roles=prompt.roles)
    layer = trace["layers.1"].of(0)
    figure = plots.margins(trace, theme=theme)
    left = figure.axes[0]
    points, unit, *beyond = left.lines
    assert list(points.get_ydata()) == layer.margins[0, layer.asked].tolist()
    assert unit.get_ydata()[0] == pytest.approx(53 * math.log(2))
    if margin == MARGIN:  # nothing leaks: lines instead of an axis of leaks
        assert labels(figure) == {"query of block", "own block ahead by"}
        (zero,) = (line.get_ydata()[0] for line in beyond)
        assert math.exp(-zero * (1 + 1e-9)) == 0 < math.exp(-zero * (1 - 1e-3))
        assert left.get_yscale() == "log"
        return
    (right,) = figure.axes[1:]
    assert labels(figure) == {"query of block", "own block ahead by", "and leaks"}
    assert left.get_ylim() == right.get_ylim()
    for at, text in zip(right.get_yticks(), right.get_yticklabels(), strict=True):
        power = float(torch.sigmoid(-torch.tensor(at, dtype=torch.float64)).log10())
        assert text.get_text() == f"$10^{{{power:.0f}}}$"


def test_margins_have_a_panel_per_attention_layer(head):
    figure = plots.margins(head)
    first, second = figure.axes
    assert first.get_title(loc="left") == "layers.0: 6 heads"
    names = [t.get_text() for t in first.get_legend().get_texts()]
    assert names == list(head["layers.0"].labels)
    assert second.get_legend() is None
    assert labels(figure) == {"query x", "best key ahead by"}, "soft: nothing is implied"
    alone = plots.margins(head["layers.1"]).axes[0]
    assert alone.get_title(loc="left") == second.get_title(loc="left")


def test_an_infinite_margin_can_be_drawn():
    em = HopfieldResidual(torch.tanh, dim=3, samples=1)
    one = [torch.zeros(shape, dtype=torch.float64) for shape in ((1, 3), (1,), (3,))]
    plots.png(plots.margins(em.trace(*one)))
    assert "nothing strays" in plots.attention(em, *one).axes[0].get_title(loc="left")


def test_a_batch_is_not_one_picture(step, data):
    batch = [t.expand(2, *t.shape) for t in data]
    draw = (plots.margins, lambda trace: plots.attention(trace["layers.1"]))
    for one in draw:
        with pytest.raises(ShapeError, match=r"one prompt, .*\(2, 1, \d+, \d+\); .*of\(0, 0\)"):
            one(step.trace(*batch))
        one(step.trace(*batch).of(1, 0))
    with pytest.raises(ShapeError, match="one prompt"):
        plots.features(step.prompt(*batch))


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
    monkeypatch.setattr("iceform.plots.__main__.error_curves", lambda: curves)
    write_picture(str(tmp_path / "images"))
    written = tmp_path / "images" / "error_against_tokens.png"
    assert 10_000 < written.stat().st_size < 120_000
