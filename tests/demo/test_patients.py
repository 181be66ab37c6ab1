"""The demo in small: the same code on 16 patients, one step each; the library on 12."""

import io
import os
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from iceform import IntegrityError, PrecisionError, algorithms, pages
from iceform.demo.patients import library as demo_library
from iceform.demo.patients import losses, pictures, report
from iceform.demo.patients import page as demo_page
from iceform.functions import LOSSES

SAMPLES = 16
PATIENTS = 12


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new" / "report.html"
    text = io.StringIO()
    console = Console(file=text, width=100)
    result = demo_page.show(out, samples=SAMPLES, passes=1, patients=PATIENTS, console=console)
    return result, out, text.getvalue()


def test_every_loss_runs_on_the_same_weights(shown):
    result, _, _ = shown
    assert [row.loss for row in result.rows] == list(losses.TASKS)
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


def test_the_whole_library_runs_on_the_same_weights(shown):
    library = shown[0].library
    assert len(library.rows) >= 12
    assert {row.digest for row in library.rows} == {library.digest}
    jobs = demo_library.programs_for(demo_library.load_patients(PATIENTS))
    kinds = {job.program.name for job in jobs}
    known = algorithms.Algorithm.kinds
    assert kinds == {name for name, kind in known.items() if "rows" in kind.engines()}
    descents = [job.program for job in jobs if isinstance(job.program, algorithms.Descent)]
    assert sorted(program.loss.name for program in descents) == sorted(LOSSES)


def test_programs_are_within_certificates_worth_having(shown):
    """But for the rounding of the references, which are float64's: certificates are as tight."""
    for row in shown[0].library.rows:
        assert 0 < row.error <= row.certified + 1e-13 <= 1e-2, row.program


def test_programs_agree_with_other_libraries(shown):
    """To what the look-up and the number of steps leave."""
    rows = {row.program: row for row in shown[0].library.rows}
    coarse = {"absolute, rounded": 5e-4, "Huber loss": 5e-4}
    for name, row in rows.items():
        if row.same:
            assert row.difference <= coarse.get(name, 1e-5), name
    assert all(row.same for row in rows.values())


def test_the_literal_matrices_agree(shown):
    assert shown[0].library.literal <= 1e-9


def test_both_tables_are_printed_and_written(shown):
    result, out, text = shown
    page = out.read_text(encoding="utf-8")
    for row in result.library.rows:
        line = next(line for line in text.splitlines() if line.strip().startswith(row.program))
        numbers = (f"{row.error:.1e}", f"{row.certified:.1e}", f"{row.difference:.1e}")
        assert all(word in line for word in (row.library, *numbers, f" {row.passes} "))
        assert f"<td>{row.program}<small>{row.library}" in page
        assert str(pages._power(row.certified)) in page
    assert text.count(result.library.digest[:12]) == 1
    assert page.count(result.library.digest[:12]) == 1


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
    path = pages.write(tmp_path / "report.html", "old")

    def broken(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="no space"):
        pages.write(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_labels_suit_their_losses():
    data = losses.load_data(442)
    assert data.x.shape == (442, 10)
    assert float(data.x.abs().max()) == 1.0
    assert float(data.labels["squared"].abs().max()) == 1.0
    assert set(data.labels["logistic"].tolist()) == {0.0, 1.0}
    assert set(data.labels["hinge"].tolist()) == {-1.0, 1.0}
    assert len(set(data.labels["poisson"].tolist())) == 4
    assert all(int(label.abs().max()) <= 1 for label in data.labels.values())


def test_the_start_tries_both_sides_of_the_corners():
    data = losses.load_data()
    z = data.x @ losses.first_coefficients(data) - data.labels["huber"]
    assert float(z.abs().max()) > 1
    assert float(z.abs().min()) < 1


def test_ticks_are_announced(monkeypatch):
    monkeypatch.setattr(pictures, "illustrate", lambda draw, **words: words)
    monkeypatch.setattr(pictures.plots, "error_curves", _two_curves)
    seen = []
    monkeypatch.setattr(demo_page, "programs_for", _two_programs)
    demo_page.run(SAMPLES, 1, seen.append, patients=4)
    assert len(seen) == demo_page.ticks(1)


def _two_programs(data):
    return [*demo_library._descents(data)[:1], *demo_library._looks(data)[:1]]


def _two_curves():
    curve = pictures.plots.ErrorCurve("hard", (17,), (0.1,), (0.2,))
    return curve, replace(curve, regime="spectral")


@pytest.mark.parametrize(
    ("change", "error"),
    [({"digest": "other"}, IntegrityError), ({"error": 1.0}, PrecisionError),
     ({"error": float("nan")}, PrecisionError)],
)  # fmt: skip
def test_a_row_that_breaks_its_promise_is_refused(change, error):
    row = report.LossRow("squared", "the score", 1e-9, 1e-8, 97, 1.0, "digest")
    losses._check(row, "digest")
    with pytest.raises(error, match="squared"):
        losses._check(replace(row, **change), "digest")


@pytest.mark.parametrize(
    ("change", "error"),
    [({"digest": "other"}, IntegrityError), ({"error": 1.0}, PrecisionError),
     ({"certified": float("nan")}, PrecisionError)],
)  # fmt: skip
def test_a_program_that_breaks_its_promise_is_refused(change, error):
    row = report.ProgramRow("ridge", "sklearn Ridge", True, 1e-9, 1e-8, 1e-7, 9, 1.0, "digest")
    demo_library._check(row, "digest")
    with pytest.raises(error, match="ridge"):
        demo_library._check(replace(row, **change), "digest")


def test_a_gradient_without_a_root_is_noticed():
    x = np.ones((2, 1))
    answer = demo_library._stationary(lambda z: np.sign(z - 1) + 0.5, x, np.zeros(2))
    with pytest.raises(PrecisionError, match="no root"):
        answer()


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with demo_library._one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_weights_that_depend_on_the_loss_would_be_noticed():
    step = losses.frozen_step("huber", losses.shared_table(), 4, 10)
    losses._check_built_afresh(step, "squared", step.digest)
    with pytest.raises(IntegrityError, match="built for the squared loss"):
        losses._check_built_afresh(step, "squared", "other")


@pytest.mark.parametrize(
    ("value", "want"), [(1.24e-5, "1.2 × 10<sup>−5</sup>"), (3.0, "3.0 × 10<sup>0</sup>")]
)
def test_powers_of_ten_are_set_as_such(value, want):
    assert str(pages._power(value)) == want


def test_the_demo_is_deterministic():
    step = losses.frozen_step("huber", losses.shared_table(), 4, 10)
    data = losses.load_data(4)
    w = losses.first_coefficients(data)
    once, again = (step(data.x, data.labels["huber"], w) for _ in range(2))
    assert torch.equal(once, again)
