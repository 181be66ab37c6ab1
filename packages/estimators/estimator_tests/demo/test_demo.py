"""The demo on a third of the Ames houses: an honest split, one digest."""

import io
import json
import math
import os
import re
from contextlib import redirect_stdout
from html import unescape

import numpy as np
import pytest

from iceform_estimators import pages
from iceform_estimators.demo import algorithms
from iceform_estimators.demo import page as ames_page
from iceform_estimators.tables import ames


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "report.html"
    said = io.StringIO()
    with redirect_stdout(said):
        page = ames_page.show(out, rows=900)
    return page, out.read_text(encoding="utf-8"), said.getvalue()


def row(page, name):
    return next(r for r in page.rows if r.name == name)


def test_every_row_ran_on_the_same_weights(shown):
    page, _, _ = shown
    assert {r.digest for r in page.rows} == {page.machine.digest}
    assert len(page.rows) == 14


@pytest.mark.parametrize(
    ("name", "apart"), [("ridge", 1e-4), ("Huber", 1e-4), ("lasso", 1e-3), ("elastic net", 1e-3)]
)
def test_coefficients_are_scikit_learns(shown, name, apart):
    found = row(shown[0], name)
    assert found.what == "coefficients"
    assert found.difference <= apart, found.difference
    assert found.certified <= apart, found.certified


def test_least_squares_predicts_as_scikit_learn_does(shown):
    found = row(shown[0], "least squares")
    assert found.difference <= 1e-4, found.difference


def test_test_errors_agree_to_four_digits(shown):
    for r in shown[0].same:
        assert r.score == pytest.approx(r.other_score, rel=5e-5), r.name


def test_every_answer_lies_within_its_certificate(shown):
    for r in shown[0].same:
        # The houses' columns nearly depend on each other: of least squares nothing is proven.
        assert math.isfinite(r.certified) == (r.name != "least squares"), r.name
        assert r.difference <= r.certified + algorithms.other_slack(r), r.name


def test_every_row_says_what_was_computed_where(shown):
    """Averages attend when they are asked, so that of their fit there is but the prompt."""
    page, html, _ = shown
    shown_text = unescape(html)
    for r in page.rows:
        assert {"prompt", "attention"} & {where for where, _, _ in r.ledger}, r.name
        assert str(r.ledger) in shown_text, r.name
    assert html.count("by eigenvectors of their Gram matrix") >= 8


def test_the_literal_matrices_agree(shown):
    assert shown[0].literal < 1e-12


def test_the_page_is_whole(shown):
    page, html, text = shown
    assert page.digest[:12] in html
    assert html.count("<figure>") == 1 + len(page.illustrations) == 2
    assert not re.search(r'(src|href)="(?!data:)', html), "the page must need nothing else"
    assert all(r.name in text for r in page.rows)
    assert text.index("@ice.algorithm") < text.index("Ames housing")


def test_what_is_learnt_is_learnt_from_the_training_rows():
    whole = algorithms.load()
    table = ames()
    order = np.random.default_rng(algorithms.SEED).permutation(len(table))
    tests = len(whole.price_test)
    assert len(whole.price) + tests == len(table) == 2930
    expected = np.asarray(table.take(np.sort(order[:tests])).target, dtype=float)
    assert np.array_equal(whole.price_test, expected)
    # Numbers are scaled by the training rows: their means are 0 there, and not on the test rows.
    numeric = [j for j, name in enumerate(whole.names) if name in set(table.features)]
    assert len(numeric) > 20
    assert np.abs(whole.x[:, numeric].mean(0)).max() < 1e-9
    assert np.abs(whole.x_test[:, numeric].mean(0)).max() > 1e-3


def test_the_program_shown_first_ran_within_its_certificate(shown):
    ran = shown[0].program
    assert ran.measured <= ran.certified + 1e-15 <= 1e-10
    assert 0 < ran.literal <= 1e-13, (
        "fused and literal round differently, or one of them did not run"
    )
    assert "ice.repeat" in ran.source
    assert len(ran.source.splitlines()) <= 10


def test_the_same_lines_ran_as_a_gpt2(shown):
    page, html, said = shown
    stock = page.program.stock
    assert stock.layers == 12
    assert json.loads((stock.folder / "config.json").read_text())["model_type"] == "gpt2"
    assert stock.measured <= stock.certified <= 1e-10
    apart = (stock.answer - page.program.answer).abs().max()
    assert apart <= stock.certified + page.program.certified
    assert "a stock GPT-2" in html
    assert f"GPT-2 of {stock.layers} layers" in said


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = pages.write(tmp_path / "report.html", "old")

    def broken(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="no space"):
        pages.write(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (1.24e-5, "1.2 × 10<sup>−5</sup>"),
        (3.0, "3.0 × 10<sup>0</sup>"),
        (0.0, "0"),
        (float("inf"), "∞"),
    ],
)
def test_powers_of_ten_are_set_as_such(value, want):
    assert str(pages._power(value)) == want
