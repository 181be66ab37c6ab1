"""What the command, its pages and the demo print of a bound is true to the last digit."""

import html
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import iceform_estimators
from iceform.certificates import Certificate
from iceform_estimators.command import console as terminal
from iceform_estimators.command.run_page import page
from iceform_estimators.command.running import RunSettings, TableRun, run
from iceform_estimators.demo.page import _first
from iceform_estimators.demo.program import execute
from iceform_estimators.tables import read
from tests.attacks.printed import Said, after, assert_true

_FOLDER = tempfile.TemporaryDirectory()


@cache
def _run() -> TableRun:
    """A real run, whose certificate surfaces replace."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(40, 2))
    y = x @ [1.0, -2.0] + 0.1 * draw.normal(size=40)
    lines = [
        "a,b,y",
        *(f"{a!r},{b!r},{c!r}" for a, b, c in zip(*x.T.tolist(), y.tolist(), strict=True)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_text("\n".join(lines), encoding="utf-8")
        table = read(path, "y")
    return run(RunSettings(iceform_estimators.algorithms.named("ridge")), table)


def terminals(c: Certificate) -> list[Said]:
    ran = replace(_run(), certificate=c)
    first = terminal.proven(ran)[0]
    word = {"proven": "Certified:", "estimated": "Estimated:", "claimed": "Claimed:"}[c.kind]
    assert first.startswith(word)
    assert (c.kind == "proven") == ("Not proven" not in first)
    share = c.error / ran.largest
    return [Said(after("more than ", first), c.error), Said(after(" (", first), share)]


def run_pages(c: Certificate) -> list[Said]:
    shown = html.unescape(page(replace(_run(), certificate=c), "iceform run"))
    assert f"<dt>{c.kind}: " in shown
    assert ("a proven bound on its error" in shown) == (c.kind == "proven")
    return [Said(after("<dd>", after(f"<dt>{c.kind}: ", shown)), c.error)]


def demonstrations(c: Certificate) -> list[Said]:
    said = _first(replace(_executed(), certified=c.error))
    return [Said(after("proven ", said), c.error)]


@cache
def _executed() -> Any:
    return execute(Path(_FOLDER.name))


@pytest.mark.parametrize(
    ("shown", "count"), [(terminals, 40), (run_pages, 3), (demonstrations, 40)]
)
def test_no_printed_bound_is_smaller_than_the_bound(shown, count):
    assert assert_true(shown, count, seed=sum(map(ord, shown.__name__))) >= count
