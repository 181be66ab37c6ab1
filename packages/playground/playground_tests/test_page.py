"""The whole page, built once: Chromium, a plain host of files, and Python's own results."""

from __future__ import annotations

import functools
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, BrowserContext, Route, expect

from iceform.tables import Interpolant
from iceform_estimators.machine import ArraySource, Machine
from iceform_playground.catalogue import algorithms, entries
from iceform_playground.machine_files import the_machine
from iceform_playground.program_runs import program_run
from playground_tests.visit import AUDIT, CHROMIUM, LAPTOP, PATIENCE, PHONE, Visit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install the package chromium"),
    pytest.mark.xdist_group("browser"),
]
F64 = torch.float64
FIRST_VIEW = 5_000_000  # bytes, the most
ABOUT_THE_BOARD = (6, 7, 8)  # steps of the lesson; the others are about what their panel shows


# ---------------------------------------------------------------------------------------------
# answers
# ---------------------------------------------------------------------------------------------


def some_points() -> list[dict]:
    generator = torch.Generator().manual_seed(7)
    x = (2 * torch.rand(30, generator=generator, dtype=F64) - 1).mul(1000).round() / 1000
    noise = torch.randn(30, generator=generator, dtype=F64)
    y = (0.5 * torch.sin(3 * x) + 0.15 * noise).clamp(-1, 1).mul(1000).round() / 1000
    groups = (x + y + 0.4 * torch.randn(30, generator=generator, dtype=F64) > 0).long()
    rows = zip(x.tolist(), y.tolist(), groups.tolist(), strict=True)
    return [{"x": a, "y": b, "group": g} for a, b, g in rows]


def question_of(name: str, degree: int = 2, **running) -> dict:
    (entry,) = (one for one in algorithms() if one["name"] == name)
    options = {slider["name"]: slider["start"] for slider in entry["sliders"]}
    options |= {"alpha": 0.01} if name in ("lasso", "elastic-net") else {}
    formula = "sqrt(z^2 + 0.01)"
    return {
        "points": some_points(),
        "model": {"algorithm": name, "degree": degree, "options": options, "formula": formula},
        "running": {"method": "momentum", "rate": 1, "passes": 40, **running},
        "lookup": {"regime": "spectral", "tokens": 129, "sharpness": None, "moved": None},
    }


def ask(visit: Visit, name: str, question: dict) -> dict:
    script = "async ([name, q]) => (await import('./page/engine.js')).ask(name, q)"
    return visit.page.evaluate(script, [name, question])


@functools.cache
def literal_machine():
    sizes = {"tokens": the_machine().tokens, "layout": "stream", "backend": "literal"}
    return Machine(the_machine().dim, the_machine().samples, **sizes)


def source_of(question: dict) -> ArraySource:
    """Samples and labels: features are 1, x, (3 x^2 - 1)/2 and their products, of degree 2."""
    name = question["model"]["algorithm"]
    entry = entries()[name]
    x, y, group = torch.tensor(
        [[p["x"], p["y"], p["group"]] for p in question["points"]], dtype=F64
    ).unbind(1)
    p2 = lambda z: (3 * z * z - 1) / 2  # noqa: E731
    if entry.linear:
        parts = [x, p2(x)] if entry.task == "curve" else [x, y, p2(x), x * y, p2(y)]
    else:
        parts = [x] if entry.task == "curve" else [x, y]
    loss = getattr(entry.algorithm(), "loss", None)
    signs = name == "perceptron" or (loss is not None and loss().kind == "margin")
    labels = y if entry.task == "curve" else 2 * group - 1 if signs else group
    return ArraySource(torch.stack(parts, 1), labels)


def pythons(question: dict):
    """The literal network's own answer, by the library's loop."""
    model = question["model"]
    made = entries()[model["algorithm"]].algorithm(**model["options"])
    return literal_machine().run(made, source_of(question))


METHODS = dict.fromkeys(("lasso", "elastic-net", "hinge"), "momentum")  # others: Newton steps
ROUNDED = {"quantile": 0.05}  # the page rounds a corner by so much, the library's answer does not


def test_every_algorithm_is_pythons(context: BrowserContext, address: str, capsys):
    visit, said = Visit(context, address), []
    for name in entries():
        passes = 200 if name in METHODS else 60
        question = question_of(name, method=METHODS.get(name, "newton"), passes=passes)
        answer, ours = ask(visit, "fit", question), pythons(question)
        assert answer["machine"]["digest"] == the_machine().digest
        if answer["frames"]:
            last = answer["frames"][-1]
            theirs, mine = [*last["coef"], last["intercept"]], [*ours.coef, ours.intercept]
        elif answer["axes"]:
            spread = ours.parts["explained_variance"].sqrt()
            theirs = [v for axis in answer["axes"][:2] for v in axis]
            mine = [v for row, s in zip(ours.value, spread, strict=True) for v in (*row, s)]
        else:
            curve, plane = answer["curve"], answer["plane"]
            count = len(curve or plane)
            ticks = torch.linspace(-1, 1, count, dtype=F64)
            b, a = torch.meshgrid(ticks, ticks, indexing="ij")
            mesh = ticks[:, None] if curve else torch.stack([a.flatten(), b.flatten()], 1)
            theirs = curve or [v for row in plane for v in row]
            mine = ours.predict(mesh).tolist()
        off = max(abs(float(a) - float(b)) for a, b in zip(theirs, mine, strict=True))
        said.append((name, off))
    with capsys.disabled():
        print("\n" + "\n".join(f"{name:22s} {off:.1e}" for name, off in said))
    # Both have stopped near the optimum, by tolerances of their own.
    assert {name: off for name, off in said if off > ROUNDED.get(name, 1e-6)} == {}


def test_gradient_steps_are_those_of_the_textbook(context: BrowserContext, address: str):
    """Least squares on standardised features, written in ten lines."""
    question = question_of("linear", method="gradient", passes=8)
    answer = ask(Visit(context, address), "fit", question)
    source = source_of(question)
    mean, scale = source.x.mean(0), source.x.std(0, correction=0)
    center, size = source.y.mean(), source.y.std(correction=0)
    x = torch.cat([(source.x - mean) / scale, torch.ones(source.rows, 1, dtype=F64)], 1)
    y, w = (source.y - center) / size, torch.zeros(3, dtype=F64)
    step = 1 / torch.linalg.eigvalsh(x.mT @ x / len(x))[-1]
    assert len(answer["frames"]) == 9
    for frame in answer["frames"]:
        coef = size * w[:-1] / scale
        exact = [*coef.tolist(), float(size * w[-1] + center - mean @ coef)]
        assert [*frame["coef"], frame["intercept"]] == pytest.approx(exact, rel=1e-12, abs=1e-12)
        assert frame["exact"] == pytest.approx(exact, rel=1e-12, abs=1e-12)
        w = w - step * x.mT @ (x @ w - y) / len(x)


@pytest.mark.parametrize(("name", "middle"), [("ridge", 13), ("logistic", 64), ("lasso", 13)])
def test_a_value_moved_by_hand_changes_the_fit(
    context: BrowserContext, address: str, name: str, middle: int
):
    visit = Visit(context, address)
    plain, changed = question_of(name, passes=6), question_of(name, passes=6)
    changed["lookup"]["moved"] = {"token": middle, "by": 0.25}
    before, after = (ask(visit, "fit", question)["frames"][-1] for question in (plain, changed))
    # A value that nearly every residual reads moves the intercept before all else.
    then, now = ([*one["coef"], one["intercept"]] for one in (before, after))
    assert max(abs(a - b) for a, b in zip(now, then, strict=True)) > 1e-3
    assert after["exact"] == before["exact"], "steps without the machine know nothing of it"


def test_another_margin_is_another_network(context: BrowserContext, address: str):
    visit, zeros = Visit(context, address), torch.zeros(1, dtype=F64)
    started = the_machine().start()
    layout = started.look_ups(Interpolant.identity(-1, 1), zeros[:, None], zeros, zeros).layout
    for margin in (2.0, 16.0, None):
        question = {**question_of("ridge", passes=3), "margin": margin, "frame": 3, "first": 0}
        seen = ask(visit, "inside", question)
        built = the_machine().network if margin is None else replace(layout, margin=margin).build()
        assert seen["digest"] == built.digest
        assert (max(seen["margins"]["leaks"]) > 0) == (margin is not None)


# ---------------------------------------------------------------------------------------------
# by hand
# ---------------------------------------------------------------------------------------------


def test_it_opens_small(context: BrowserContext, address: str) -> None:
    """On the live GPT-2, all of whose board is in view."""
    visit = Visit(context, address)
    visit.drawn("descent")
    assert visit.digest == the_machine().digest
    assert visit.bytes < FIRST_VIEW, f"{visit.bytes / 1e6:.2f} MB"
    box = visit.page.locator("#descent-board").bounding_box()
    assert box
    assert box["y"] + box["height"] <= LAPTOP["height"]
    assert visit.said == []


def test_what_is_set_is_in_view(context: BrowserContext, address: str) -> None:
    """Outside of the lesson."""
    visit = Visit(context, address, "#preset=wave")
    visit.drawn("passes")
    assert visit.points == 80
    assert visit.curve
    for place in ("#facts", "#algorithm", "#set-passes", "#set-tokens", "#play", "#board"):
        box = visit.page.locator(place).bounding_box()
        assert box, place
        assert box["y"] + min(box["height"], 500) <= LAPTOP["height"], place
    assert visit.said == []


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
    expect(page.locator("[data-fit=machine]")).to_have_count(1, timeout=PATIENCE)
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


def test_a_step_that_is_too_long_is_explained(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address, "#method=gradient&rate=3.9&passes=200")
    expect(visit.page.locator("#trouble")).to_contain_text("learning rate")
    assert visit.said == []


def test_the_link_restores_everything(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address)
    page = visit.page
    visit.after_run(lambda: page.locator("#algorithm").select_option("quantile"))
    visit.after_run(lambda: page.locator("#set-quantile").select_option("0.9"))
    page.locator("#board").click(position={"x": 30, "y": 30})
    visit.tab("ran")
    page.locator("#frame").fill("7")
    page.wait_for_timeout(600)  # until the address has been written
    visit.settled()
    again = Visit(context, page.url)
    expect(again.page.locator("#algorithm")).to_have_value("quantile")
    expect(again.page.locator("#frame")).to_have_value("7")
    expect(again.page.locator("#set-quantile")).to_have_value("0.9")
    expect(again.page.locator("#tab-ran")).to_have_attribute("aria-selected", "true")
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


def test_steps_are_played(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address, "#passes=8")
    page = visit.page
    page.locator("#frame").fill("0")
    start = visit.curve
    page.get_by_role("button", name="Play").click()
    expect(page.locator("#frame")).to_have_value("8", timeout=PATIENCE)
    assert visit.curve != start
    assert visit.said == []


def test_nothing_is_fetched_from_elsewhere(context: BrowserContext, address: str) -> None:
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    visit = Visit(context, address)
    visit.tab("rate")
    assert asked
    assert all(url.startswith(address) for url in asked), asked


def test_a_loss_of_ones_own(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address)
    page = visit.page
    visit.after_run(lambda: page.locator("#algorithm").select_option("custom"))
    formula = page.locator("#set-formula")
    visit.after_run(lambda: formula.select_option("log(cosh(4*z))/4"))
    expect(page.locator("#trouble")).to_be_hidden()
    before, digest = visit.curve, visit.digest
    visit.after_run(lambda: formula.select_option("z^2/2"))
    assert visit.curve != before
    assert visit.digest == digest
    assert visit.said == []


def test_settings_of_the_look_up(context: BrowserContext, address: str) -> None:
    """Every setting that is offered has an answer."""
    visit = Visit(context, address, "#algorithm=logistic&preset=blobs&panel=lookup")
    page = visit.page
    for regime in ("hard", "spectral"):
        visit.after_run(lambda regime=regime: page.locator("#set-regime").select_option(regime))
        for tokens in ("33", "129", "65"):
            visit.after_run(lambda n=tokens: page.locator("#set-tokens").select_option(n))
            expect(page.locator("#facts")).to_contain_text(f"{tokens} tokens")
            visit.drawn("lookup")
            expect(page.locator("#trouble")).to_be_hidden()
    assert visit.said == []


def relabelled(kind: str, error: float):
    """A stored file with another kind and another error in every bound."""

    def change(part: object) -> None:
        if isinstance(part, dict):
            if "kind" in part and "error" in part:
                part |= {"kind": kind, "error": error}
            for value in part.values():
                change(value)
        elif isinstance(part, list):
            for value in part:
                change(value)

    def handle(route: Route) -> None:
        content = json.loads(gzip.decompress(route.fetch().body()))
        change(content)
        route.fulfill(json=content)

    return handle


@pytest.mark.parametrize("kind", ["proven", "estimated"])
def test_what_is_not_proven_is_not_called_so(
    context: BrowserContext, address: str, kind: str
) -> None:
    """An error of 1.21e-7: rounded to nearest, both printed digits would say less."""
    context.route(re.compile(r"\.json\.gz$"), relabelled(kind, 1.21e-7))
    visit = Visit(context, address, "#algorithm=logistic&preset=blobs")
    other = "estimated" if kind == "proven" else "proven"
    facts, panel = visit.page.locator("#facts"), visit.page.locator("#panel")
    expect(facts).to_contain_text(f"{kind} ≤ 1.3·10⁻⁷")
    expect(facts).not_to_contain_text(other)
    visit.tab("ran")
    expect(panel.locator("p").first).to_contain_text(f"{kind} ≤ 1.3·10⁻⁷")
    visit.tab("lookup")
    expect(panel).to_contain_text(f"{kind} to 1.3·10⁻⁷")
    visit.tab("program")
    shown = visit.page.locator("#program-facts")
    expect(shown).to_contain_text(f"{kind} ≤ 1.3·10⁻⁷", timeout=PATIENCE)
    expect(shown).not_to_contain_text(other)
    expect(panel.locator("summary").first).to_contain_text(f"What is {kind} of")
    assert visit.said == []


def test_every_panel(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address, "#algorithm=logistic&preset=blobs")
    for name in ("passes", "prompt", "attention", "lookup", "margin", "rate", "program"):
        visit.tab(name)
        drawn = visit.page.locator("#panel .plot .main-svg").first
        expect(drawn).to_be_visible(timeout=PATIENCE)
    visit.tab("ran")
    expect(visit.page.locator("#panel")).to_contain_text(the_machine().digest)
    assert visit.said == []


def test_a_program_is_stepped_through(context: BrowserContext, address: str) -> None:
    visit = Visit(context, address, "#panel=program&program=least_squares&cycle=6")
    page, answer = visit.page, program_run("least_squares")["answer"]

    def at(cycle: int) -> None:
        shown = f"#panel[data-cycle='{cycle}'][data-attention='{cycle}']"
        expect(page.locator(shown)).to_be_visible(timeout=PATIENCE)

    def memory() -> list[float]:
        cells = page.locator("tr[data-variable='w'] td").all_text_contents()
        return [float(v) for v in cells]

    at(6)
    digest = page.locator("#program-facts dd").first.get_attribute("data-digest")
    assert digest == answer["digest"]
    for cycle in (6, 7, 8):
        done = answer["instructions"][answer["cycles"][cycle - 1]["instruction"]]
        current = page.locator("tr[aria-current=step]")
        expect(current).to_contain_text(re.compile(rf"^{done['address']}\D"))
        page.get_by_role("button", name="Step", exact=True).click()
        at(cycle + 1)
    page.get_by_role("button", name="Back", exact=True).last.click()
    at(8)
    page.locator("#cycle").fill("0")
    at(0)
    expect(page.locator("#now")).to_contain_text("before the first cycle")
    page.locator("#cycle").fill(str(len(answer["cycles"])))
    at(len(answer["cycles"]))
    assert memory() == pytest.approx(answer["outputs"]["value"], rel=1e-2)
    page.locator("#pick-program").select_option("kernel_regression")
    expect(page.locator("#program-facts")).to_contain_text("the same for 2 programs")
    assert visit.said == []


def test_what_a_browser_lacks_is_said_in_a_sentence(browser: Browser, address: str):
    def visit(prepare) -> str:
        made = browser.new_context(viewport=LAPTOP)
        prepare(made)
        page = made.new_page()
        page.goto(address)
        trouble = page.locator("#trouble")
        expect(trouble).to_be_visible(timeout=PATIENCE)
        text = trouble.text_content() or ""
        made.close()
        return text

    assert "WebAssembly" in visit(lambda c: c.add_init_script("delete window.WebAssembly"))
    for name in ("machine.onnx", "machine.weights.gz", "ort.wasm.gz", "ort.js", "stored.json.gz"):
        text = visit(lambda c, name=name: c.route(f"**/{name}", lambda route: route.abort()))
        assert name in text, text
        assert "reload the page" in text
    text = visit(lambda c: c.route("**/machine.weights.gz", lambda r: r.fulfill(status=404)))
    assert "404" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("window", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_every_step_of_the_lesson(browser: Browser, address: str, scheme, window):
    made = browser.new_context(viewport=window, color_scheme=scheme)
    made.set_default_timeout(PATIENCE)
    visit = Visit(made, address, "#lesson=1")
    page = visit.page
    steps = page.locator(".dots a").count()
    assert steps == 11
    for step in range(1, steps + 1):
        expect(page.locator("#lesson h2")).to_contain_text(f"{step} of {steps}")
        visit.settled()
        expect(page.locator("#panel[aria-busy=false]")).to_be_visible(timeout=PATIENCE)
        assert page.locator("#panel .trouble:visible").count() == 0, step
        shown = "#board" if step in ABOUT_THE_BOARD else "#panel"
        top = page.evaluate(f"document.querySelector('{shown}').getBoundingClientRect().top")
        assert top + page.evaluate("scrollY") <= 0.75 * window["height"], (step, shown, top)
        assert page.evaluate("document.documentElement.scrollWidth") <= window["width"], step
        assert page.evaluate(AUDIT) == [], step
        if step < steps:
            page.get_by_role("button", name="Next").click()
    assert visit.said == []
    made.close()


def test_a_step_shows_nothing_of_the_step_before(context: BrowserContext, address: str) -> None:
    """Numbers and curves are hidden from the click until the answer is there."""
    visit = Visit(context, address, "#lesson=6")
    shown = """(hash) => new Promise((seen) => {
      const all = () => ['#facts dd', '[data-fit=machine]'].map((place) =>
        getComputedStyle(document.querySelector(place)).visibility);
      const before = all();
      location.hash = hash;
      addEventListener('hashchange', () => requestAnimationFrame(() => seen([before, all()])));
    })"""
    before, after = visit.page.evaluate(shown, "#lesson=7")
    assert before == ["visible", "visible"]
    assert after == ["hidden", "hidden"]
    visit.settled()
    expect(visit.page.locator("#facts dd").first).to_be_visible(timeout=PATIENCE)


def test_a_value_that_was_moved_is_put_back_from_the_lesson(
    context: BrowserContext, address: str
) -> None:
    """Where the curve is seen: the panel with the sliders is below it."""
    visit = Visit(context, address, "#lesson=8")
    page, button = visit.page, visit.page.locator("#lesson-act")
    gaps, curves = [], []
    for words in ("Put it back", "Move it again", "Put it back"):
        visit.settled()
        expect(button).to_have_text(words)
        gaps.append(float(page.locator("#facts").get_attribute("data-gap") or "nan"))
        curves.append(visit.curve)
        visit.after_run(button.click)
    assert gaps[0] == gaps[2] > 1e-3
    assert gaps[1] < gaps[0] / 100
    assert curves[0] == curves[2] != curves[1]
    assert visit.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("window", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_names_contrast_and_room(browser: Browser, address: str, scheme, window) -> None:
    made = browser.new_context(viewport=window, color_scheme=scheme)
    made.set_default_timeout(PATIENCE)
    visit = Visit(made, address, "#algorithm=custom")
    for name in ("passes", "attention", "lookup", "ran", "program", "text"):
        visit.tab(name)
        assert visit.page.evaluate(AUDIT) == [], name
    assert visit.said == []
    made.close()
