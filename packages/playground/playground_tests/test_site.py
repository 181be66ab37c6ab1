"""The page that needs no server: Chromium, a plain host of files, and Python's own results."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, BrowserContext, Page, expect

import iceform_playground
from iceform.attention import digested
from iceform.interpolation import Interpolant
from iceform_estimators.machine import Machine
from iceform_playground import fitting, site
from iceform_playground import questions as asked
from iceform_playground.algorithms import entries, entry_named
from iceform_playground.answers import TableAnswer
from iceform_playground.fitting import Setting, fit, the_machine
from iceform_playground.inside import inside
from iceform_playground.stepping import step_through
from iceform_playground.stock import STORED, stock_run
from playground_tests.test_page import _AUDIT, _PATIENCE, _PHONE, CHROMIUM, browser

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.xdist_group("browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install it")

ROOT = Path(__file__).parents[3]
F64 = torch.float64
MOST_BYTES = 25_000_000
WITHIN = 1e-12
LAPTOP = {"width": 1366, "height": 768}
ABOUT_THE_BOARD = (5, 6, 7)  # steps of the lesson; the others are about what their panel shows


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def hosted(folder: Path) -> Iterator[str]:
    """Files of a folder, and nothing else."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as host:
        thread = threading.Thread(target=host.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{host.server_address[1]}/"
        finally:
            host.shutdown()
            thread.join()


# ---------------------------------------------------------------------------------------------
# the parts, without a build
# ---------------------------------------------------------------------------------------------


def some_prompts():
    machine = the_machine()
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return 2 * torch.rand(*shape, generator=generator, dtype=F64) - 1

    table = Interpolant.fit(torch.tanh, -8, 8, tokens=33)
    looked = machine.start().look_ups(table, draw(6, 5), draw(6), draw(5), draw(6))
    read = machine.start().kernel(draw(30, 2), draw(30, 1), draw(7, 2), 5.0)
    seen = torch.rand(3, 30, generator=generator) < 0.5
    hiding = machine.start().kernel(draw(30, 2), draw(30, 2), draw(3, 2), 5.0, seen=seen)
    return looked, read, hiding


def test_the_network_as_a_file_is_the_network(tmp_path):
    import onnxruntime

    for name, data in site._network(the_machine().network).items():
        (tmp_path / name).write_bytes(data)
    session = onnxruntime.InferenceSession(str(tmp_path / "machine.onnx"))
    network = the_machine().network
    for prompt in some_prompts():
        tokens = prompt.tokens
        (out,) = session.run(["output"], {"tokens": tokens.numpy()})
        assert float((torch.from_numpy(out) - network(tokens)).abs().max()) <= 1e-13
    # Other weights beside the same graph are another network: nothing is folded into it.
    weights = bytearray((tmp_path / "machine.weights").read_bytes())
    weights[:] = bytes(len(weights))
    (tmp_path / "machine.weights").write_bytes(weights)
    session = onnxruntime.InferenceSession(str(tmp_path / "machine.onnx"))
    (out,) = session.run(["output"], {"tokens": tokens.numpy()})
    assert not out.any()


def test_the_digest_is_of_the_bytes_that_the_page_has():
    files = site._network(the_machine().network)
    about, weights = json.loads(files["machine.json"]), files["machine.weights"]
    sha = hashlib.sha256()
    for part in about["digested"]:
        text = isinstance(part, str)
        sha.update(part.encode() if text else weights[part[0] : part[0] + part[1]])
    assert sha.hexdigest() == the_machine().digest
    named = [piece for piece in digested(the_machine().network) if not isinstance(piece, str)]
    assert len(weights) == sum(len(data) for _, data in named)


@pytest.fixture(scope="module")
def parts(browser: Browser) -> Iterator[Page]:
    """A page of the same host as the page's modules, which can be tried one by one."""
    with hosted(Path(iceform_playground.__file__).parent / "page") as address:
        page = browser.new_page()
        page.goto(address + "icon.svg")
        yield page
        page.close()


@needs_chromium
def test_prompts_are_written_as_python_writes_them(parts: Page):
    looked, read, hiding = some_prompts()
    layout = looked.layout
    sizes = {"dim": layout.dim, "samples": layout.samples, "tokens": layout.tokens}
    script = """async ([sizes, kind, ...given]) => {
      const prompts = await import('/prompts.js');
      const { tokens } = prompts[kind](new prompts.Layout(sizes), ...given);
      return [...tokens];
    }"""
    data = {
        "x": looked.x.tolist(), "y": looked.y.tolist(), "w": looked.w.tolist(),
        "offsets": looked.offsets.tolist(),
    }  # fmt: skip
    table = TableAnswer.of(looked.table).model_dump()
    assert (
        parts.evaluate(script, [sizes, "lookUps", table, data]) == looked.tokens.flatten().tolist()
    )
    for average in (read, hiding):
        data = {
            "keys": average.keys.tolist(), "biases": average.biases.tolist(),
            "values": average.values.tolist(), "points": average.points.tolist(),
            "seen": None if average.seen is None else average.seen.tolist(),
        }  # fmt: skip
        written = parts.evaluate(script, [sizes, "averages", data])
        assert written == average.tokens.flatten().tolist()


@needs_chromium
def test_losses_and_their_curvatures_are_pythons(parts: Page):
    z = torch.linspace(-4, 4, 41, dtype=F64)
    for held in site._losses():
        loss = site.loss_of(held.asked)
        script = """async ([name, parameters, z]) => {
          const { LOSSES } = await import('/losses.js');
          const { slope, bend } = LOSSES[name](parameters);
          return [z.map(slope), z.map(bend)];
        }"""
        slope, bend = parts.evaluate(script, [held.loss, dict(held.parameters), z.tolist()])
        assert slope == pytest.approx(loss.derivative(z).tolist(), rel=1e-14, abs=1e-15), held
        assert bend == pytest.approx(loss.curvature.bend(z).tolist(), rel=1e-12, abs=1e-14), held


@needs_chromium
def test_eigenvalues_and_metrics(parts: Page):
    rows = torch.rand(20, 6, generator=torch.Generator().manual_seed(3), dtype=F64)
    matrix = rows.mT @ rows
    script = """async (matrix) => {
      const { eigen, Metric } = await import('/algebra.js');
      const { values, vectors } = eigen(matrix);
      return [values, vectors, new Metric(matrix, 20).step(matrix[0])];
    }"""
    values, vectors, step = parts.evaluate(script, matrix.tolist())
    assert values == pytest.approx(torch.linalg.eigvalsh(matrix).tolist(), rel=1e-12)
    found = torch.tensor(vectors, dtype=F64)
    assert (
        float((found @ matrix - torch.tensor(values, dtype=F64)[:, None] * found).abs().max())
        < 1e-12
    )
    assert step == pytest.approx([1.0, *[0.0] * 5], abs=1e-11)


def test_the_catalogue_is_the_servers_and_every_program_has_a_run():
    offer = site._offer()
    assert [one["name"] for one in offer["algorithms"]] == list(entries())
    (quantile,) = (one for one in offer["algorithms"] if one["name"] == "quantile")
    assert quantile["objective"].endswith("; alpha = 0"), "what no slider sets is said"
    assert {one["name"] for one in offer["programs"]} == set(site.PROGRAMS)


# ---------------------------------------------------------------------------------------------
# the whole, built once
# ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """The page, built now, or the one in a folder that ``ICEFORM_SITE`` names."""
    built = os.environ.get("ICEFORM_SITE")
    folder = Path(built) if built else tmp_path_factory.mktemp("site")
    if not built:
        site.build(folder / "play", keep=ROOT / "out" / "npm")
    size = sum(path.stat().st_size for path in (folder / "play").rglob("*") if path.is_file())
    assert size < MOST_BYTES / 2, "documentation takes the other half"
    with hosted(folder) as address:
        yield address + "play/"


@pytest.fixture
def context(browser: Browser, address: str) -> Iterator[BrowserContext]:
    """Nothing but the host can be reached."""
    found = browser.new_context(viewport=LAPTOP, color_scheme="light")
    found.set_default_timeout(2 * _PATIENCE)
    host = address.removesuffix("play/")
    found.route(
        lambda url: not url.startswith((host, "blob:", "data:")), lambda route: route.abort()
    )
    yield found
    found.close()


def opened(context: BrowserContext, address: str, fragment: str = "") -> Page:
    page = context.new_page()
    page.goto(address + fragment)
    return page


def settled(page: Page) -> None:
    expect(page.locator("#unchanged")).to_contain_text("the same", timeout=2 * _PATIENCE)
    expect(page.locator("#board[aria-busy=true]")).to_have_count(0, timeout=2 * _PATIENCE)


def ask(page: Page, question: asked.FitQuestion):
    script = "async (q) => (await import('./page/api.js')).ask('fit', q)"
    answer = page.evaluate(script, question.model_dump())
    return answer


def question_of(name: str, **more) -> asked.FitQuestion:
    entry = entry_named(name)
    generator = torch.Generator().manual_seed(len(name))
    x = (2 * torch.rand(30, generator=generator, dtype=F64) - 1).mul(1000).round() / 1000
    noise = torch.randn(30, generator=generator, dtype=F64)
    y = (0.5 * torch.sin(3 * x) + 0.15 * noise).clamp(-1, 1).mul(1000).round() / 1000
    groups = (x + y + 0.4 * torch.randn(30, generator=generator, dtype=F64) > 0).long()
    points = [
        asked.Point(x=a, y=b, group=g)
        for a, b, g in zip(x.tolist(), y.tolist(), groups.tolist(), strict=True)
    ]
    options = {n: o.start for n, o in ((s.name, s) for s in _sliders(entry))}
    options |= {"alpha": 0.01} if name in ("lasso", "elastic-net") else {}
    model = asked.Model(algorithm=name, degree=3, options=options, **more.pop("model", {}))
    return asked.FitQuestion(points=points, model=model, **more)


def _sliders(entry):
    from iceform_playground.algorithms import _slider

    return [_slider(one) for one in entry.sliders.values()]


@functools.cache
def literal_machine():
    sizes = {"tokens": the_machine().tokens, "layout": "stream", "backend": "literal"}
    return Machine(the_machine().dim, the_machine().samples, **sizes)


def assert_same(found: dict, question: asked.FitQuestion) -> float:
    """What the page found is what Python's literal network does; the largest difference.

    A logit s z + b that is summed without fused multiply-adds, which WebAssembly has not, is
    another by u |s z|: beside a kink, where keys are steepest, that is more than WITHIN. The
    default backend leaves out of a table what is small beside the table's stated error.
    """
    setting = Setting.of(question)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "the_machine", literal_machine)
        ours = fit(question, lambda: None)
    if ours.frames:
        last = fit(question, lambda: None).frames[-1]
        apart = max(abs(a - b) for a, b in zip(found["frames"][-1]["coef"], last.coef, strict=True))
        left_out = ours.table.error if ours.table else 0.0
        assert apart <= 10 * WITHIN * max(1.0, *map(abs, last.coef)) + left_out
    assert found["machine"]["digest"] == ours.machine.digest == the_machine().digest
    if ours.frames:
        assert len(found["frames"]) == len(ours.frames)
        pairs = [
            ([*theirs["coef"], theirs["intercept"]], [*mine.coef, mine.intercept])
            for theirs, mine in zip(found["frames"], ours.frames, strict=True)
        ]
    elif ours.axes:
        pairs = list(zip(found["axes"], ours.axes, strict=True))
    else:
        values = found["curve"] or [v for row in found["plane"] for v in row]
        count = len(values) if found["curve"] else len(found["plane"])
        ticks = torch.tensor([-1 + 2 * i / (count - 1) for i in range(count)], dtype=F64)
        y, x = torch.meshgrid(ticks, ticks, indexing="ij")
        mesh = ticks[:, None] if found["curve"] else torch.stack([x.flatten(), y.flatten()], 1)
        run = literal_machine().run(setting.algorithm, setting.source)
        pairs = [(values, run.predict(mesh).tolist())]
    off = max(abs(a - b) for theirs, mine in pairs for a, b in zip(theirs, mine, strict=True))
    size = max(1.0, *(abs(b) for _, mine in pairs for b in mine))
    steep = max(map(abs, ours.table.slopes)) * ours.table.high if ours.table else 0.0
    allowed = max(WITHIN * size, 2.0**-53 * steep)
    assert off <= allowed, f"{question.model.algorithm}: off by {off:.3g} of {size:.3g}"
    return off / size


@pytest.mark.slow
@needs_chromium
def test_every_algorithm_is_pythons(context: BrowserContext, address: str, capsys):
    page = opened(context, address)
    settled(page)
    said = []
    for name in entries():
        question = question_of(name, running=asked.Running(passes=12))
        said.append((name, assert_same(ask(page, question), question)))
    for method in ("gradient", "newton"):
        for name in ("ridge", "logistic", "svm"):
            question = question_of(name, running=asked.Running(method=method, passes=8))
            said.append((f"{name}, {method}", assert_same(ask(page, question), question)))
    for lookup in (asked.Lookup(regime="hard", tokens=33), asked.Lookup(tokens=33)):
        question = question_of("logistic", lookup=lookup)
        said.append((f"logistic, {lookup.regime} 33", assert_same(ask(page, question), question)))
    with capsys.disabled():
        print("\n" + "\n".join(f"{name:22s} {off:.1e}" for name, off in said))


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("name", ["ridge", "logistic", "lasso"])
def test_a_value_moved_by_hand_changes_the_fit_as_python_says(
    context: BrowserContext, address: str, name: str
):
    page = opened(context, address)
    settled(page)
    running = asked.Running(passes=6)
    moved = asked.Lookup(moved=asked.Moved(token=13, by=0.25))
    plain, changed = (
        question_of(name, running=running, lookup=lookup) for lookup in (asked.Lookup(), moved)
    )
    before, after = ask(page, plain), ask(page, changed)
    assert_same(after, changed)
    # A value that nearly every residual reads moves the intercept before all else.
    then, now = ([*one["frames"][-1]["coef"], one["frames"][-1]["intercept"]]
                 for one in (before, after))  # fmt: skip
    assert max(abs(a - b) for a, b in zip(now, then, strict=True)) > 1e-3


@pytest.mark.slow
@needs_chromium
def test_another_margin_is_the_network_that_python_builds(context: BrowserContext, address: str):
    page = opened(context, address)
    settled(page)
    script = "async (q) => (await import('./page/api.js')).ask('inside', q)"
    for margin in (2.0, 16.0, None):
        fit_question = question_of("ridge", running=asked.Running(passes=3))
        question = asked.InsideQuestion(**fit_question.model_dump(), margin=margin, frame=3)
        found = page.evaluate(script, question.model_dump())
        ours = inside(question, lambda: None)
        assert found["digest"] == ours.digest
        leaks = [ours.margins.leaks, found["margins"]["leaks"]]
        assert leaks[1] == pytest.approx(leaks[0], rel=1e-9, abs=1e-300)
        assert (max(leaks[0]) > 0) == (margin is not None)


@pytest.mark.slow
@needs_chromium
def test_the_page_by_hand(context: BrowserContext, address: str):
    """Controls, panels, the computer and the lesson, with no server behind them."""
    said: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    settled(page)
    assert page.locator("#digest").get_attribute("data-digest") == the_machine().digest
    for name in ("passes", "prompt", "attention", "lookup", "margin", "rate", "stock"):
        page.locator(f"#tab-{name}").click()
        shown = f"#panel[data-drawn={name}][aria-busy=false]"
        expect(page.locator(shown)).to_be_visible(timeout=2 * _PATIENCE)
        expect(page.locator("#panel .trouble")).to_have_count(0)
    page.locator("#tab-program").click()
    ours = step_through(
        asked.ProgramQuestion(program="least_squares", settings={"steps": 3}), lambda: None
    )
    shown = page.locator("#program-facts dd").first
    expect(shown).to_have_attribute("data-digest", ours.digest, timeout=_PATIENCE)
    for cycle in (2, 3):
        page.get_by_role("button", name="Step", exact=True).click()
        expect(
            page.locator(f"#panel[data-cycle='{cycle}'][data-attention='{cycle}']")
        ).to_be_visible()
        address_done = ours.instructions[ours.cycles[cycle - 1].instruction].address
        expect(page.locator("tr[aria-current=step]")).to_contain_text(
            re.compile(rf"^{address_done}\D")
        )
    page.locator("#tab-lookup").click()
    before = page.locator("[data-fit=machine]").get_attribute("d")
    page.locator("#move-by").fill("0.5")
    page.locator("#move-by").dispatch_event("change")
    expect(page.locator("[data-fit=machine]")).not_to_have_attribute("d", before or "")
    assert said == []


@pytest.mark.slow
@needs_chromium
def test_what_a_browser_lacks_is_said_in_a_sentence(browser: Browser, address: str):
    def visit(prepare) -> str:
        context = browser.new_context(viewport=LAPTOP)
        prepare(context)
        page = opened(context, address)
        trouble = page.locator("#trouble")
        expect(trouble).to_be_visible(timeout=_PATIENCE)
        text = trouble.text_content() or ""
        context.close()
        return text

    text = visit(lambda c: c.add_init_script("delete window.WebAssembly"))
    assert "WebAssembly" in text
    assert "iceform play" in text
    for name in (
        "machine.onnx",
        "machine.weights",
        "ort.wasm.gz",
        "ort.js",
        "stored.json.gz",
        "catalogue.json",
    ):
        text = visit(lambda c, name=name: c.route(f"**/{name}", lambda route: route.abort()))
        assert name in text, text
        assert "reload the page" in text
    text = visit(lambda c: c.route("**/machine.weights", lambda r: r.fulfill(status=404)))
    assert "404" in text


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("window", [LAPTOP, _PHONE], ids=["laptop", "phone"])
def test_every_step_of_the_lesson(browser: Browser, address: str, scheme, window):
    context = browser.new_context(viewport=window, color_scheme=scheme)
    context.set_default_timeout(2 * _PATIENCE)
    page = opened(context, address, "#lesson=1")
    expect(page.locator("#lesson h2")).to_contain_text("1 of", timeout=2 * _PATIENCE)
    steps = page.locator(".dots a").count()
    assert 8 <= steps <= 10
    for step in range(1, steps + 1):
        expect(page.locator("#lesson h2")).to_contain_text(f"{step} of {steps}")
        settled(page)
        expect(page.locator("#panel[aria-busy=false]")).to_be_visible(timeout=2 * _PATIENCE)
        assert page.locator("#panel .trouble").count() == 0, step
        shown = "#board" if step in ABOUT_THE_BOARD else "#panel"
        top = page.evaluate(f"document.querySelector('{shown}').getBoundingClientRect().top")
        assert top + page.evaluate("scrollY") <= 0.75 * window["height"], (step, shown, top)
        assert page.evaluate("document.documentElement.scrollWidth") <= window["width"], step
        assert page.evaluate(_AUDIT) == [], step
        if step < steps:
            page.get_by_role("button", name="Next").click()
    context.close()


@pytest.mark.slow
@needs_chromium
def test_proof_and_controls_are_above_the_fold(context: BrowserContext, address: str):
    page = opened(context, address)
    settled(page)
    for place in (
        "#facts",
        "#algorithm",
        "#set-passes",
        "#set-tokens",
        "#play",
        "#status",
        "#board",
    ):
        box = page.locator(place).bounding_box()
        assert box, place
        assert box["y"] + min(box["height"], 500) <= LAPTOP["height"], place


@pytest.mark.slow
def test_the_stored_gpt2_is_what_runs():
    stored, now = json.loads(STORED.read_text(encoding="utf-8")), stock_run()
    for key in ("stream", "exact"):
        ours, theirs = (torch.tensor(run[key], dtype=F64) for run in (now, stored))
        assert float((ours - theirs).abs().max()) <= 1e-12
    assert max(now["off"]) <= now["certified"]
    assert {k: now[k] for k in ("architecture", "layers", "heads", "code")} == {
        k: stored[k] for k in ("architecture", "layers", "heads", "code")
    }
