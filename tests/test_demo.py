"""The demo in small: the same code on 16 patients, one step each."""

import io
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from iceform import IntegrityError, PrecisionError, demo, report

SAMPLES = 16


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new" / "report.html"
    text = io.StringIO()
    console = Console(file=text, width=100)
    result = demo.show(out, samples=SAMPLES, passes=1, console=console)
    return result, out, text.getvalue()


def test_every_loss_runs_on_the_same_weights(shown):
    result, _, _ = shown
    assert [row.loss for row in result.rows] == list(demo.TASKS)
    assert len({row.digest for row in result.rows}) == 1
    assert len({row.grid_tokens for row in result.rows}) == 1


def test_errors_are_within_certificates_worth_having(shown):
    for row in shown[0].rows:
        assert 0 < row.error <= row.certified <= 1e-4, row.loss


def test_the_table_is_printed(shown):
    result, out, text = shown
    for row in result.rows:
        line = next(line for line in text.splitlines() if f" {row.loss} " in line)
        assert f"{row.error:.1e}" in line
        assert f"{row.certified:.1e}" in line
        assert result.digest[:12] in line
    assert out.name in text


def test_the_report_stands_alone(shown):
    result, out, _ = shown
    page = out.read_text(encoding="utf-8")
    assert "://" not in page
    assert "<script" not in page
    sources = re.findall(r'(?:src|srcset|href)="([^"]{0,30})', page)
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert page.count("<img ") == len(result.illustrations) == 4
    assert page.count("prefers-color-scheme: dark") == 1 + 4
    for alt in re.findall(r'alt="([^"]*)"', page):
        assert len(alt) > 40
    assert result.digest[:12] in page


def test_nothing_but_the_report_is_left(shown):
    _, out, _ = shown
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = report.write(tmp_path / "report.html", "old")

    def broken(*_):
        raise OSError("no space left")

    monkeypatch.setattr(report.os, "replace", broken)
    with pytest.raises(OSError, match="no space"):
        report.write(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_labels_suit_their_losses():
    data = demo.load_data(442)
    assert data.x.shape == (442, 10)
    assert float(data.x.abs().max()) == 1.0
    assert float(data.labels["squared"].abs().max()) == 1.0
    assert set(data.labels["logistic"].tolist()) == {0.0, 1.0}
    assert set(data.labels["hinge"].tolist()) == {-1.0, 1.0}
    assert len(set(data.labels["poisson"].tolist())) == 4
    assert all(int(label.abs().max()) <= 1 for label in data.labels.values())


def test_the_start_tries_both_sides_of_the_corners():
    data = demo.load_data()
    z = data.x @ demo._first_coefficients(data) - data.labels["huber"]
    assert float(z.abs().max()) > 1
    assert float(z.abs().min()) < 1


def test_ticks_are_announced(monkeypatch):
    monkeypatch.setattr(demo, "illustrate", lambda draw, **words: words)
    monkeypatch.setattr(demo.plots, "error_curves", _two_curves)
    seen = []
    demo.run(SAMPLES, 1, seen.append)
    assert len(seen) == demo.ticks(1)


def _two_curves():
    curve = demo.plots.ErrorCurve("hard", (17,), (0.1,), (0.2,))
    return curve, replace(curve, regime="spectral")


@pytest.mark.parametrize(
    ("change", "error"),
    [({"digest": "other"}, IntegrityError), ({"error": 1.0}, PrecisionError),
     ({"error": float("nan")}, PrecisionError)],
)  # fmt: skip
def test_a_row_that_breaks_its_promise_is_refused(change, error):
    row = report.LossRow("squared", "the score", 1e-9, 1e-8, 97, 1.0, "digest")
    demo._check(row, "digest")
    with pytest.raises(error, match="squared"):
        demo._check(replace(row, **change), "digest")


def test_weights_that_depend_on_the_loss_would_be_noticed():
    step = demo.frozen_step("huber", demo.shared_table(), 4, 10)
    demo._check_built_afresh(step, "squared", step.digest)
    with pytest.raises(IntegrityError, match="built for the squared loss"):
        demo._check_built_afresh(step, "squared", "other")


@pytest.mark.parametrize(
    ("value", "want"), [(1.24e-5, "1.2 × 10<sup>−5</sup>"), (3.0, "3.0 × 10<sup>0</sup>")]
)
def test_powers_of_ten_are_set_as_such(value, want):
    assert str(report._power(value)) == want


def test_the_demo_is_deterministic():
    step = demo.frozen_step("huber", demo.shared_table(), 4, 10)
    data = demo.load_data(4)
    w = demo._first_coefficients(data)
    once, again = (step(data.x, data.labels["huber"], w) for _ in range(2))
    assert torch.equal(once, again)
