"""The live GPT-2 of the page: lines against Python's, heads against their circuit, its pace."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from playwright.sync_api import BrowserContext

from iceform_playground.descent_files import live_network, points, samples, specification
from playground_tests.visit import AUDIT, CHROMIUM, Visit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install the package chromium"),
    pytest.mark.xdist_group("browser"),
]
MOST_OF_A_DRAG = (
    200  # milliseconds from a move of the pointer to lines that are drawn, in the middle
)
BOARD = "document.getElementById('descent-board')"
LINES = (
    "async ([points, gone]) => "
    "(await (await import('./page/descent.js')).DescentNetwork.load()).lines(points, gone)"
)


def answered(visit: Visit, act) -> float:
    """Milliseconds until the network has answered, and the lines are drawn."""
    runs = visit.page.locator("#descent-board").get_attribute("data-runs")
    began = time.perf_counter()
    act()
    visit.page.wait_for_function(f"{BOARD}.dataset.runs != '{runs}'")
    return 1e3 * (time.perf_counter() - began)


@pytest.fixture
def live(context: BrowserContext, address: str) -> Visit:
    """Where the page opens."""
    visit = Visit(context, address)
    visit.drawn("descent")
    visit.page.wait_for_function(f"{BOARD}.dataset.runs")
    return visit


def test_its_lines_are_those_of_transformers(live: Visit, tmp_path: Path) -> None:
    """With all heads, and with one of them gone; the last line is the exact algorithm's."""
    run, spec = live_network(tmp_path), specification()
    for layer, head in ((None, None), (0, 2), (6, 9), (11, 0)):
        gates = torch.ones(spec.steps, spec.design.heads, dtype=torch.float64)
        if layer is not None:
            gates[layer, head] = 0.0
        with torch.no_grad():
            ours, _ = run(points(), gates)
        gone = None if layer is None else {"layer": layer, "head": head}
        found = live.page.evaluate(LINES, [points().tolist(), gone])
        theirs = torch.tensor(found, dtype=torch.float64)
        assert (ours - theirs).abs().max() <= 1e-11 * (1 + ours.abs().max())
        if layer is None:
            exact = spec.reference(*samples(points()))
            assert (theirs[-1] - exact).abs().max() <= 5e-11  # what the page calls proven
    assert live.said == []


def test_a_dragged_point_moves_twelve_lines(live: Visit, capsys) -> None:
    page = live.page
    lines = page.locator("#descent-board .fit.step, #descent-board .fit[data-step='12']")
    dot = page.locator("#descent-board .point").nth(3).bounding_box()
    assert dot is not None
    x, y = dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2
    before = [line.get_attribute("d") for line in lines.all()]
    page.mouse.move(x, y)
    page.mouse.down()
    took = [answered(live, lambda k=k: page.mouse.move(x + 3 * k, y - 4 * k)) for k in range(1, 25)]
    page.mouse.up()
    after = [line.get_attribute("d") for line in lines.all()]
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 12  # before the first is 0
    median = sorted(took)[len(took) // 2]
    with capsys.disabled():
        print(f"\ntwelve lines redrawn {median:.0f} ms after a move (most {max(took):.0f} ms)")
    assert median <= MOST_OF_A_DRAG
    assert live.said == []


def test_every_head_does_what_its_circuit_predicts(live: Visit, capsys) -> None:
    """Taken out one by one, on points that a visitor has moved."""
    page, worst = live.page, 0.0
    page.locator("#descent-board").focus()
    for _ in range(12):
        answered(live, lambda: page.keyboard.press("ArrowUp"))
    for cell in page.locator(".grid button").all():
        answered(live, cell.click)
        shown = page.locator("#descent-damage")
        apart, within = (
            float(shown.get_attribute(f"data-{n}") or "nan") for n in ("apart", "within")
        )
        assert apart <= within <= 1e-8
        worst = max(worst, apart)
    assert "estimated" in (shown.text_content() or "")
    assert "proven" not in (shown.text_content() or "")  # of points that were moved nothing is
    answered(live, page.locator("#descent-reset").click)
    assert "proven" in (shown.text_content() or "")
    with capsys.disabled():
        print(f"\n132 heads: predicted and seen at most {worst:.0e} apart")
    assert page.evaluate(AUDIT) == []
    assert live.said == []
