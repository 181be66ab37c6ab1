"""The text GPT-2 of the page: its files, its check of a text, and its tokens, against Python's."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

import iceform as ice
import iceform_playground
from iceform.targets.text import TEXTS, TextError, parse
from iceform_playground.text_files import text_files
from playground_tests.conftest import hosted
from playground_tests.test_parts import hashed, needs_chromium
from playground_tests.visit import AUDIT, PATIENCE, PHONE, Visit

pytestmark = pytest.mark.xdist_group("browser")
SOURCE = Path(iceform_playground.__file__).parent / "page"
SHORT = ("greatest common divisor", "inverse square root", "binary search", "brackets")
WRONG = (
    "", "a = 1", "1: a = 1", "1: a = 1 goto 3", "2: a = 1 goto end", "1: a = b / c goto end\nb = 1",
    "1: a = tan(b) goto end\nb = 1", "1: a = a+1 goto 1", "1: a = 0.333 goto end", "1: a goto end",
    "1: A = 1 goto end", "1: A[40] = 1 goto end", "1: A[b] = 1 goto end", "1: a = -b goto end",
    "1: a = max(b) goto end\nb = 1", "1: a = 1 if == 0 goto end", "1: a = 1 if > 1 goto end",
    "1: a = 1 goto end\n2: a = 2 goto end\nb = c", "1: a = 1 goto end\nA[i] = 2",
    "1: é = 1 goto end",
    "1: a = 1 + 2 + 3 goto end", "1: a = 1 goto 99", "1: a = (1 + 2) goto end",
    "1: a = 1e3 goto end",
    "1: a = 1 goto end\nb = 2 goto 1", "1: a = abs( goto end", "1: a = abs(b + 1) goto end\nb = 1",
    "1: if = 1 goto end", "1: a = C(2) goto end", "1: a = C(b goto end\nb = 1",
    "1: a = 1 goto end\nA = 3", "1: a = 1 goto end\nA = [1, b]", "1: a = 1 goto end\nA = [1 2]",
    "1: a = 1 goto end b = 2", "1: a = b > 1 goto end\nb = 1", "1:",
)  # fmt: skip


@pytest.fixture(scope="module")
def computer() -> ice.TextComputer:
    return ice.TextComputer()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's own modules and the text network, in one folder."""
    folder = tmp_path_factory.mktemp("text")
    for source in SOURCE.iterdir():
        (folder / source.name).write_bytes(source.read_bytes())
    for name, data in text_files().items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def about(files: Path) -> dict:
    return json.loads((files / "text.json").read_text(encoding="utf-8"))


def test_the_weights_are_those_that_python_hashes(files, about, computer):
    weights = gzip.decompress((files / "text.weights.gz").read_bytes())
    assert hashed(about, weights) == about["digest"] == computer.digest
    assert sum((files / name).stat().st_size for name in ("text.onnx.gz", "text.weights.gz")) < 1e6


def test_the_graph_writes_what_the_interpreter_writes(files, about, computer, tmp_path):
    import numpy as np
    import onnxruntime

    for name in ("text.onnx", "text.weights"):
        (tmp_path / name).write_bytes(gzip.decompress((files / f"{name}.gz").read_bytes()))
    session = onnxruntime.InferenceSession(str(tmp_path / "text.onnx"))
    text = TEXTS["greatest common divisor"]
    ids, words = computer.tokenizer(text).input_ids, []
    past = np.zeros((0, 2, about["layers"], about["heads"], about["size"]), np.float32)
    while not words or words[-1] != "[end]":
        scores, attention, new = session.run(None, {"ids": np.array([ids]), "past": past})
        past = np.concatenate([past, new])
        assert attention.shape == (about["layers"], about["heads"], len(past))
        assert attention.sum(-1) == pytest.approx(1, abs=1e-5)
        ids = [int(scores.argmax())]
        words.append(about["words"][ids[0]])
    assert " ".join(words) == computer.interpret(text)


def test_roles_are_the_ground_truth(about, computer):
    for layer, known in zip(about["roles"], computer.ground_truth()["heads"], strict=True):
        assert [role or "idle" for role in layer] == [head["role"] for head in known]


# ---------------------------------------------------------------------------------------------
# the check of a text, in Chromium
# ---------------------------------------------------------------------------------------------

READ = """async (texts) => {
  const { Language, TextTrouble } = await import('/text_language.js');
  const language = new Language(await (await fetch('/text.json')).json());
  return texts.map((text) => {
    try {
      return language.prompt(text);
    } catch (error) {
      if (!(error instanceof TextTrouble)) throw error;
      return { line: error.line, word: error.word, message: error.message };
    }
  });
}"""


@pytest.fixture(scope="module")
def language(browser: Browser, files: Path) -> Iterator[Page]:
    with hosted(files) as address:
        page = browser.new_page()
        page.goto(address + "icon.svg")
        yield page
        page.close()


@needs_chromium
def test_texts_are_read_as_the_tokenizer_reads_them(language, computer):
    texts = list(TEXTS.values())
    for text, read in zip(texts, language.evaluate(READ, texts), strict=True):
        assert read["ids"] == computer.tokenizer(text).input_ids
        assert read["words"][1:-1] == list(parse(computer.sizes, text).words)


@needs_chromium
def test_a_wrong_text_is_refused_at_pythons_line_and_word(language, computer):
    for text, read in zip(WRONG, language.evaluate(READ, list(WRONG)), strict=True):
        with pytest.raises(TextError) as refused:
            computer.check(text)
        assert (read["line"], read["word"]) == (refused.value.line, refused.value.word), text
        assert len(read["message"]) > 30, text


def refusal_of(computer, text: str) -> tuple[int, str] | None:
    """Line and word that the parser refuses."""
    try:
        parse(computer.sizes, text)
    except TextError as refused:
        return refused.line, refused.word
    return None


@needs_chromium
def test_changed_texts_are_refused_or_read_as_python_does(language, computer):
    """One word of a good text is exchanged, doubled or left out."""
    draw = random.Random(5)
    spare = [
        "+",
        "goto 3",
        "a",
        "A[i]",
        "0.3",
        "1:",
        "=",
        "abs(",
        ")",
        "if > 0 goto 2",
        "A[99]",
        ",",
    ]
    texts = []
    for text in TEXTS.values():
        words = text.split(" ")
        for _ in range(40):
            at = draw.randrange(len(words))
            new = draw.choice([[], [words[at]] * 2, [draw.choice(spare)]])
            texts.append(" ".join([*words[:at], *new, *words[at + 1 :]]))
    refusals = 0
    for text, read in zip(texts, language.evaluate(READ, texts), strict=True):
        refusal = refusal_of(computer, text)
        refusals += refusal is not None
        if "nothing is ever written" in read.get("message", ""):
            assert refusal is None, text
            with pytest.raises(TextError, match="before anything is written"):
                computer.check(text)
        elif refusal is None:
            assert read["words"][1:-1] == list(parse(computer.sizes, text).words), text
        else:
            assert (read.get("line"), read.get("word")) == refusal, text
    assert refusals > len(texts) / 4


# ---------------------------------------------------------------------------------------------
# the panel
# ---------------------------------------------------------------------------------------------


def written(page: Page) -> str:
    return " ".join(page.locator(".written .word").all_text_contents())


def press_run(page: Page) -> None:
    page.locator("#text-run").click()
    expect(page.locator("#text-said")).to_contain_text("the end", timeout=PATIENCE)


@pytest.mark.slow
@needs_chromium
def test_the_page_writes_what_the_interpreter_writes(
    context: BrowserContext, address: str, computer, capsys
):
    visit = Visit(context, address, "#panel=text")
    page = visit.page
    visit.drawn("text")
    expect(page.locator("#panel")).to_have_attribute("data-digest", computer.digest)
    for name in (*SHORT, "long division"):
        page.locator("#text-example").select_option(name)
        press_run(page)
        assert written(page) == computer.interpret(TEXTS[name]), name
    count = page.locator(".written .word").count()
    seconds = float(page.locator("#text-said").get_attribute("data-seconds") or "nan")
    with capsys.disabled():
        print(f"\n{count} tokens in {seconds:.1f} s: {300 * seconds / count:.1f} s for 300")
    # What is typed runs too: the same program on other data.
    text = TEXTS["greatest common divisor"].replace("a = 84  b = 36", "a = 35  b = 21")
    page.locator("#text-program").fill(text)
    press_run(page)
    assert written(page) == computer.interpret(text)
    expect(page.locator("#text-said")).to_contain_text("g = 7")
    assert visit.said == []


@pytest.mark.slow
@needs_chromium
def test_a_token_shows_where_its_heads_looked(context: BrowserContext, address: str, computer):
    """Beside the attention of the PyTorch network on the same tokens."""
    import torch

    visit = Visit(context, address, "#panel=text")
    page = visit.page
    visit.drawn("text")
    press_run(page)
    page.locator(".written .word").nth(4).click()
    expect(page.locator("#text-looks h3")).to_contain_text("token 5")
    text = TEXTS["greatest common divisor"]
    ids = computer.tokenizer(text).input_ids
    ids += [computer.sizes.ids[word] for word in computer.check(text).words[:4]]
    with torch.no_grad():
        out = computer.model(attention="eager")(torch.tensor([ids]), output_attentions=True)
    truth, seen = computer.ground_truth()["heads"], set()
    for layer, attention in enumerate(out.attentions):
        for head, row in enumerate(attention[0, :, -1]):
            at = int(row.argmax())
            if at and truth[layer][head]["role"] != "idle":
                word = computer.sizes.words[ids[at]].text
                seen.add((str(layer + 1), word.replace("\n", "↵")))
    rows = page.locator("#text-looks tbody tr")
    shown = {
        (row.locator("td").nth(0).inner_text(), row.locator("code").inner_text())
        for row in rows.all()
    }
    assert shown == seen
    expect(page.locator("#text-looks")).to_contain_text("fetch the line")
    assert page.locator(".word.looked").count() > 0
    assert visit.said == []


@pytest.mark.slow
@needs_chromium
def test_a_wrong_text_is_shown_and_nothing_runs(context: BrowserContext, address: str):
    visit = Visit(context, address, "#panel=text")
    page = visit.page
    visit.drawn("text")
    page.locator("#text-program").fill("1: a = b / c goto end\nb = 1  c = 2")
    page.locator("#text-run").click()
    trouble = page.locator("#panel .trouble")
    expect(trouble).to_contain_text("Line 1, “/”: there is no division")
    assert page.locator(".written .word").count() == 0
    assert page.evaluate("getSelection().toString()") == "/"
    # A run that does not end can be stopped.
    page.locator("#text-program").fill("1: a = a + 1 goto 1\na = 0")
    page.locator("#text-run").click()
    expect(page.locator(".written .word").nth(5)).to_be_visible(timeout=PATIENCE)
    page.locator("#text-run").click()
    expect(page.locator("#text-said")).to_contain_text("Stopped after")
    expect(page.locator("#text-run")).to_have_text("Run")
    assert visit.said == []


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_panel_is_for_everybody(browser: Browser, address: str, scheme):
    made = browser.new_context(viewport=PHONE, color_scheme=scheme)
    visit = Visit(made, address, "#panel=text")
    visit.drawn("text")
    press_run(visit.page)
    assert visit.page.evaluate(AUDIT) == []
    made.close()
