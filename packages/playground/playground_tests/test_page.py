"""The page in a real browser: Chromium, driven by playwright, against the real server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright

from iceform.computer import Computer
from iceform.computer.library import EXAMPLES
from iceform.interpolation import Interpolant
from iceform_playground.algorithms import features_of
from iceform_playground.answers import TableAnswer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install the package chromium"),
    pytest.mark.xdist_group("browser"),
]

_PATIENCE = 60_000  # milliseconds; a cold worker on a busy machine fits its tables first
_AUDIT = Path(__file__).with_name("audit.js").read_text(encoding="utf-8")
_PHONE = {"width": 390, "height": 844}
_DESKTOP = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The server, as a user starts it; a busy machine gets time."""
    options = ["--port", "0", "--no-open", "--workers", "1"]
    options += ["--time-limit", str(_PATIENCE // 1000)]
    command = [sys.executable, "-m", "iceform", "play", *options]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"the server did not say where it is: {line!r}"
        yield found[0]
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    found = browser.new_context(viewport=_DESKTOP, color_scheme="light")
    found.set_default_timeout(_PATIENCE)
    yield found
    found.close()


class Visit:
    """The page as one visitor sees it; it collects what the console says."""

    def __init__(self, context: BrowserContext, address: str, fragment: str = "") -> None:
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda m: self.said.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.said.append(f"error: {e}"))
        self.page.goto(address + fragment)
        self.settled()

    def settled(self) -> None:
        """Wait for an answer to what is asked now."""
        expect(self.page.locator("#unchanged")).to_contain_text("the same", timeout=_PATIENCE)

    @property
    def runs(self) -> int:
        text = self.page.locator("#unchanged").text_content() or ""
        return int(re.search(r"\d+", text)[0])  # type: ignore[index]

    def after_run(self, act) -> None:
        """Do something, and wait until the machine has answered it."""
        before = self.runs
        act()
        expect(self.page.locator("#unchanged")).not_to_contain_text(
            re.compile(rf"after {before} run"), timeout=_PATIENCE
        )

    @property
    def digest(self) -> str | None:
        return self.page.locator("#digest").get_attribute("data-digest")

    @property
    def curve(self) -> str | None:
        return self.page.locator("[data-fit=machine]").get_attribute("d")

    @property
    def points(self) -> int:
        return self.page.locator(".point").count()

    def tab(self, name: str) -> None:
        self.page.locator(f"#tab-{name}").click()
        expect(self.page.locator(f"#panel[data-drawn={name}][aria-busy=false]")).to_be_visible(
            timeout=_PATIENCE
        )


def test_loads_and_fits(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address)
    assert visit.points == 80
    assert visit.curve
    assert re.fullmatch(r"[0-9a-f]{64}", visit.digest or "")
    expect(visit.page.locator("#status")).to_contain_text("proven to be at most")
    assert visit.said == []


def relabelled(kind: str, error: float | None, answers: list[dict]):
    """Answers of the server, with another kind and another error in every bound."""

    def change(found: object) -> None:
        if isinstance(found, dict):
            if "kind" in found and ({"error", "certified"} & found.keys()):
                found["kind"] = kind
                name = "error" if "error" in found else "certified"
                if not isinstance(found[name], list):
                    found[name] = error
            for value in found.values():
                change(value)
        elif isinstance(found, list):
            for value in found:
                change(value)

    def handle(route: Route) -> None:
        reply = route.fetch()
        body = reply.json()
        change(body)
        answers.append(body)
        route.fulfill(response=reply, json=body)

    return handle


@pytest.mark.parametrize("kind", ["proven", "estimated"])
def test_what_is_not_proven_is_not_called_so(
    context: BrowserContext, address: str, kind: str
) -> None:
    """An error of 1.21e-7: rounded to nearest, both printed digits would say less."""
    answers: list[dict] = []
    context.route(re.compile("/api/(fit|program|lookup)$"), relabelled(kind, 1.21e-7, answers))
    visit = Visit(context, address)
    other = "estimated" if kind == "proven" else "proven"
    status, facts = visit.page.locator("#status"), visit.page.locator("#facts")
    expect(status).to_contain_text(f"error {kind} to be at most 1.3·10⁻⁷")
    expect(facts).to_contain_text(f"{kind} ≤ 1.3·10⁻⁷")
    expect(facts).not_to_contain_text(other)
    visit.tab("passes")
    expect(visit.page.locator("#panel p").first).to_contain_text(f"{kind} at most 1.3·10⁻⁷")
    visit.tab("certificate")
    told = {"proven": "Proven: no", "estimated": "Not proven, estimated: no"}[kind]
    expect(visit.page.locator("#panel p").first).to_contain_text(told)
    visit.tab("lookup")
    expect(visit.page.locator("#panel")).to_contain_text(f"{kind} to 1.3·10⁻⁷")
    visit.tab("program")
    shown = visit.page.locator("#program-facts")
    expect(shown).to_contain_text(f"{kind} ≤ 1.3·10⁻⁷", timeout=_PATIENCE)
    expect(shown).not_to_contain_text(other)
    expect(visit.page.locator("#panel summary").first).to_contain_text(f"What is {kind} of")
    assert len(answers) >= 3
    assert visit.said == []


@pytest.mark.slow
def test_all_algorithms_on_the_same_weights(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address, "#preset=blobs")
    chosen = visit.page.locator("#algorithm")
    names = visit.page.locator("#algorithm option").evaluate_all("all => all.map(o => o.value)")
    assert len(names) >= 16
    digests, pictures = {visit.digest}, set()
    for name in names:
        if name != chosen.input_value():
            visit.after_run(lambda name=name: chosen.select_option(name))
        digests.add(visit.digest)
        expect(visit.page.locator("[data-fit=machine]")).to_have_count(1)
        pictures.add(visit.curve)
    assert len(digests) == 1
    # Ridge and the lasso may draw the same line; most do not.
    assert len(pictures) >= len(names) - 3
    assert visit.said == []


def test_drawing_moving_and_erasing(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address)
    page = visit.page
    visit.after_run(lambda: page.locator("#preset").select_option("blobs"))
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#status")).to_contain_text("Draw a point")
    box = page.locator("#board").bounding_box()
    assert box

    def at(x: float, y: float) -> tuple[float, float]:
        return box["x"] + (x + 1) / 2 * box["width"], box["y"] + (1 - y) / 2 * box["height"]

    for x, y in ((-0.8, -0.5), (0.0, 0.0), (0.8, 0.5)):
        page.mouse.click(*at(x, y))
    expect(page.locator(".point")).to_have_count(3)
    # A stroke draws several points, of the other group.
    page.get_by_role("button", name="Group 2").click()
    page.mouse.move(*at(-0.5, 0.7))
    page.mouse.down()
    page.mouse.move(*at(0.5, 0.7), steps=20)
    page.mouse.up()
    drawn = page.locator(".point.g1").count()
    assert drawn >= 5
    # A point that is dragged moves, and no other appears.
    page.mouse.move(*at(0.0, 0.0))
    page.mouse.down()
    page.mouse.move(*at(0.0, -0.6), steps=5)
    page.mouse.up()
    assert visit.points == 3 + drawn
    moved = page.locator(".point.g0").nth(1).get_attribute("cy")
    assert float(moved or 0) == pytest.approx(480, abs=4)
    page.get_by_role("button", name="Erase").click()
    page.mouse.click(*at(0.0, -0.6))
    expect(page.locator(".point.g0")).to_have_count(2)
    expect(page.locator("[data-fit=machine]")).to_have_count(1, timeout=_PATIENCE)
    assert visit.said == []


def test_by_keyboard_alone(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address)
    page = visit.page
    page.keyboard.press("Tab")  # the link past the header
    page.keyboard.press("Enter")
    page.locator("#board").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert visit.points == 81
    page.keyboard.press("g")
    expect(page.locator("[data-tool='1']")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Delete")
    assert visit.points == 80
    page.locator("#tab-passes").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-prompt")).to_have_attribute("aria-selected", "true")
    assert visit.said == []


def test_a_loss_of_ones_own(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address)
    page = visit.page
    visit.after_run(lambda: page.locator("#algorithm").select_option("custom"))
    formula = page.locator("#set-formula")
    visit.after_run(lambda: formula.fill("log(cosh(4*z))/4"))
    expect(page.locator("#trouble")).to_be_hidden()
    before, digest = visit.curve, visit.digest
    visit.after_run(lambda: formula.fill("z^2/2"))
    assert visit.curve != before
    assert visit.digest == digest
    assert visit.said == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("z.__class__", "formula"),
        ("import os", "unknown name"),
        ("9^9^9^9*z", "power|exponent"),
        ("(z + 1", "parenthesis"),
        ("", "formula|empty"),
        ("abs(z)", "jump"),
    ],
)
def test_a_bad_formula_is_explained(
    context: BrowserContext, address: str, typed: str, says: str
) -> None:
    visit = Visit(context, address, "#algorithm=custom")
    visit.page.locator("#set-formula").fill(typed)
    trouble = visit.page.locator("#trouble")
    expect(trouble).to_be_visible(timeout=_PATIENCE)
    expect(trouble).to_contain_text(re.compile(says, re.IGNORECASE))
    # The browser itself notes that the answer was a 4xx; nothing else is said.
    assert all("422" in line or "400" in line for line in visit.said), visit.said


def test_a_step_that_is_too_long_is_explained(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address, "#method=gradient&rate=3.9&passes=200")
    expect(visit.page.locator("#trouble")).to_contain_text("learning rate")
    assert visit.said == []


def test_the_link_restores_everything(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address)
    page = visit.page
    visit.after_run(lambda: page.locator("#algorithm").select_option("quantile"))
    visit.after_run(lambda: page.locator("#set-quantile").fill("0.9"))
    page.locator("#board").click(position={"x": 30, "y": 30})
    visit.tab("certificate")
    page.locator("#frame").fill("7")
    page.wait_for_timeout(600)  # until the address has been written
    visit.settled()
    again = Visit(context, page.url)
    expect(again.page.locator("#algorithm")).to_have_value("quantile")
    expect(again.page.locator("#frame")).to_have_value("7")
    expect(again.page.locator("#set-quantile")).to_have_value("0.9")
    expect(again.page.locator("#tab-certificate")).to_have_attribute("aria-selected", "true")
    assert again.points == 81
    assert again.curve == visit.curve
    assert again.digest == visit.digest
    assert visit.said == again.said == []


def test_a_link_that_makes_no_sense_is_not_followed(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address, "#algorithm=nothing&points=!!!&degree=NaN&panel=x&preset=y")
    expect(visit.page.locator("#algorithm")).to_have_value("ridge")
    assert visit.points == 80
    assert visit.said == []


def test_points_from_a_file(context: BrowserContext, address: str, tmp_path: Path) -> None:
    visit = Visit(context, address)
    page = visit.page
    page.get_by_role("button", name="Load…").click()
    page.locator("#loader-text").fill("1, 2\nthree, 4")
    page.get_by_role("button", name="Take these points").click()
    expect(page.locator("#loader-trouble")).to_contain_text("Point 2")
    table = tmp_path / "points.csv"
    table.write_text("x,y,group\n10,1,0\n20,4,1\n30,2,0\n", encoding="utf-8")
    page.locator("#loader-file").set_input_files(table)
    expect(page.locator("#loader-text")).to_have_value(re.compile("30,2,0"))
    visit.after_run(lambda: page.get_by_role("button", name="Take these points").click())
    assert visit.points == 3
    assert visit.said == []


def test_every_panel(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address, "#algorithm=logistic&preset=blobs")
    page = visit.page
    for name in ("passes", "prompt", "attention", "lookup", "margin", "rate"):
        visit.tab(name)
        expect(page.locator("#panel .plot .main-svg").first).to_be_visible(timeout=_PATIENCE)
    visit.tab("certificate")
    expect(page.locator("#panel")).to_contain_text("Proven")
    visit.tab("attention")
    page.locator("#pick-network").select_option("two_layers")
    expect(page.locator("#pick-layer option")).to_have_count(2, timeout=_PATIENCE)
    page.locator("#pick-layer").select_option("1")
    expect(page.locator("#pick-head")).to_contain_text("target head", timeout=_PATIENCE)
    assert visit.said == []


def test_steps_are_played(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address, "#passes=8")
    page = visit.page
    page.locator("#frame").fill("0")
    start = visit.curve
    page.get_by_role("button", name="Play").click()
    expect(page.locator("#frame")).to_have_value("8", timeout=_PATIENCE)
    assert visit.curve != start
    assert visit.said == []


class Stepping:
    """The panel that steps through a program."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def at(self, cycle: int) -> None:
        """Wait until a cycle and its attention are shown."""
        shown = f"#panel[data-cycle='{cycle}'][data-attention='{cycle}']"
        expect(self.page.locator(shown)).to_be_visible(timeout=_PATIENCE)

    def held(self, variable: str) -> list[str]:
        return self.page.locator(f"tr[data-variable='{variable}'] td").all_text_contents()

    @property
    def digest(self) -> str | None:
        return self.page.locator("#program-facts dd").first.get_attribute("data-digest")


def test_a_program_is_stepped_through(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address, "#panel=program&program=least_squares&p.steps=2&cycle=6")
    page, panel = visit.page, Stepping(visit.page)
    example = EXAMPLES["least_squares"]
    program = example.compile()
    trace = Computer.for_programs([program]).trace(program, example.X, example.y, steps=2)
    panel.at(6)
    for cycle in (6, 7, 8):
        done = trace.instructions[cycle - 1]
        current = page.locator("tr[aria-current=step]")
        expect(current).to_contain_text(re.compile(rf"^{done.address}\D"))
        expect(page.locator("[data-layer=fetch]")).to_contain_text(f"instruction, {done.address}")
        held = trace.memory["w"][cycle, 0, :3].tolist()
        assert [float(v) for v in panel.held("w")] == pytest.approx(held, rel=1e-2)
        page.get_by_role("button", name="Step", exact=True).click()
        panel.at(cycle + 1)
    page.get_by_role("button", name="Back").click()
    panel.at(8)
    page.locator("#cycle").fill("0")
    panel.at(0)
    expect(page.locator("#now")).to_contain_text("before the first cycle")
    page.get_by_role("button", name="Play", exact=True).last.click()
    panel.at(trace.cycles)
    assert [float(v) for v in panel.held("w")] == pytest.approx(
        trace.memory["w"][-1, 0, :3].tolist(), rel=1e-2
    )
    digest = panel.digest
    page.locator("#pick-program").select_option("kernel_regression")
    expect(page.locator("#program-facts")).to_contain_text("the same for 2 programs")
    assert panel.digest == digest
    assert visit.said == []


def test_a_program_in_the_link_and_a_setting_that_is_refused(
    context: BrowserContext, address: str
) -> None:
    visit = Visit(context, address, "#panel=program&program=ridge&p.steps=2&cycle=3")
    page, panel = visit.page, Stepping(visit.page)
    panel.at(3)
    page.locator("#parameter-lr").fill("0.25")
    page.locator("#parameter-lr").press("Enter")
    expect(page.locator("#program-facts")).not_to_contain_text("CHANGED")
    page.wait_for_url("**p.lr=0.25**")
    panel.at(3)
    again = Stepping(Visit(context, page.url).page)
    again.at(3)
    expect(again.page.locator("#parameter-lr")).to_have_value("0.25")
    expect(again.page.locator("#parameter-steps")).to_have_value("2")
    assert again.held("w") == panel.held("w")
    page.locator("#parameter-steps").fill("900")
    page.locator("#parameter-steps").press("Enter")
    expect(page.locator("#panel .trouble")).to_contain_text("take fewer steps")
    page.locator("#parameter-steps").fill("2")  # the way back is still there
    page.locator("#parameter-steps").press("Enter")
    panel.at(3)
    assert all("422" in line for line in visit.said), visit.said


@pytest.mark.parametrize(
    ("window", "scheme"),
    [
        pytest.param(_DESKTOP, "light", id="desktop-light"),
        pytest.param(_PHONE, "dark", id="phone-dark"),
        pytest.param(_DESKTOP, "dark", id="desktop-dark", marks=pytest.mark.slow),
        pytest.param(_PHONE, "light", id="phone-light", marks=pytest.mark.slow),
    ],
)
def test_names_contrast_and_room(
    browser: Browser, address: str, window: dict[str, int], scheme: str
) -> None:
    context = browser.new_context(viewport=window, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(_PATIENCE)
    visit = Visit(context, address, "#algorithm=custom")
    for name in ("passes", "attention", "lookup", "certificate", "program"):
        visit.tab(name)
        assert visit.page.evaluate(_AUDIT) == [], name
    assert visit.said == []
    context.close()


def test_the_page_computes_what_the_server_does(context: BrowserContext, address: str) -> None:
    """Features and look-ups are evaluated on both sides."""
    page = Visit(context, address).page
    place = torch.tensor([[0.3, -0.7], [-1.0, 1.0], [0.05, 0.9]], dtype=torch.float64)
    for task, degree in (("curve", 7), ("classes", 3), ("classes", 1)):
        features = features_of(place, task, degree)
        coef = torch.linspace(-1, 2, features.shape[1], dtype=torch.float64)
        script = """async ([task, degree, coef, places]) => {
          const { linear } = await import('/page/model.js');
          return places.map(([x, y]) => linear(task, degree, coef, 0.25)(x, y));
        }"""
        theirs = page.evaluate(script, [task, degree, coef.tolist(), place.tolist()])
        assert theirs == pytest.approx((features @ coef + 0.25).tolist(), rel=1e-12)
    table = Interpolant.fit(torch.tanh, -4, 4, tokens=33)
    z = [-4.0, -0.3, 0.0, 2.7]
    script = """async ([table, z]) => {
      const { lookUp } = await import('/page/model.js');
      return z.map((at) => lookUp(table, at));
    }"""
    sent = TableAnswer.of(table).model_dump()
    ours = table(torch.tensor(z, dtype=torch.float64)).tolist()
    assert page.evaluate(script, [sent, z]) == pytest.approx(ours, rel=1e-9, abs=1e-12)


def test_points_survive_the_link(context: BrowserContext, address: str) -> None:
    page = Visit(context, address).page
    script = """async (points) => {
      const { packPoints, unpackPoints } = await import('/page/state.js');
      return unpackPoints(packPoints(points));
    }"""
    points = [{"x": i / 10 - 1, "y": 1 - (i % 7) / 3.5, "group": i % 2} for i in range(21)]
    for sent, back in zip(points, page.evaluate(script, points), strict=True):
        assert back == pytest.approx(sent, abs=5.1e-4)


def test_nothing_is_fetched_from_elsewhere(context: BrowserContext, address: str) -> None:
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    visit = Visit(context, address)
    visit.tab("rate")
    assert asked
    assert all(url.startswith(address) for url in asked), asked
