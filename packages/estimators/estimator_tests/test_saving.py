"""Machines, algorithms and fits in folders: what is saved comes back, and is believed no more."""

import io
import re
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

import iceform as ice
from iceform.errors import IntegrityError, ProgramError
from iceform.export import from_pretrained
from iceform_estimators import Machine, algorithms
from iceform_estimators.command.app import command
from tests.export.test_hub import check_round_trip, resign
from tests.store_faults import Kind
from tests.test_save_load import DATA, check_kept
from tests.test_store import FILES, check_failing_disk, unnoticed

F64 = torch.float64
STREAM = {"dim": 3, "samples": 8, "layout": "stream"}
THINGS = {
    "machine": lambda: Machine(dim=3, samples=3, tokens=33, layout="stream"),
    "ridge": lambda: algorithms.Ridge(alpha=0.3),
    "lasso": lambda: algorithms.Lasso(alpha=0.3, tol=1e-6),
}
RESULTS = {
    "stream": lambda: Machine(**STREAM).run(algorithms.Lasso(alpha=0.01), *DATA),
    "no labels": lambda: Machine(**STREAM).run(algorithms.PCA(n_components=1), DATA[0]),
}


def same(a, b):
    assert type(a) is type(b)
    if not isinstance(a, Machine):
        assert a == b
        return
    assert a.digest == b.digest
    x, y = torch.rand(3, 2, dtype=F64), torch.rand(3, dtype=F64)
    assert torch.equal(*(m.run(algorithms.Ridge(), x, y).value for m in (a, b)))


@pytest.mark.parametrize("name", THINGS)
def test_what_is_saved_comes_back(tmp_path, name):
    check_round_trip(THINGS[name](), same, tmp_path)


@pytest.mark.parametrize("name", THINGS)
def test_a_flipped_bit_is_noticed(tmp_path, name):
    folder = THINGS[name]().save_pretrained(tmp_path)
    for file in FILES:
        assert not unnoticed(folder / file, 20)


def test_the_wrong_class_is_named(tmp_path):
    folder = THINGS["ridge"]().save_pretrained(tmp_path)
    with pytest.raises(IntegrityError, match="holds a Ridge, not a Machine"):
        Machine.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["Program", "os", "__class__", "Sizes", "Result"])
def test_a_config_cannot_name_code_to_run(tmp_path, kind):
    folder = THINGS["ridge"]().save_pretrained(tmp_path)
    resign(folder, lambda config: config.update(program=kind))
    with pytest.raises(IntegrityError, match=r"not a program|cannot be read by this version"):
        from_pretrained(folder)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_comes_back_with_all_that_is_known_of_it(name, tmp_path):
    check_kept(RESULTS[name](), tmp_path)


@pytest.mark.parametrize("name", RESULTS)
def test_a_fit_from_a_file_knows_its_data_and_is_not_verified(name, tmp_path):
    data = DATA[:1] if name == "no labels" else DATA
    again = ice.load(RESULTS[name]().save(tmp_path / "kept"))
    with pytest.raises(ProgramError, match=r"verify\(\) is not offered for fits"):
        again.verify(*data)
    with pytest.raises(IntegrityError, match="the result is about data with"):
        again.verify(data[0] + 2.0**-50, *data[1:])


def run_on_a_table() -> Kind:
    """``iceform run --report``, whole: a report has its last line and says how many rows."""

    tables = []
    for rows in (20, 40):
        lines = [f"{i % 5},{i * i % 7},{i * i % 11}" for i in range(rows)]
        tables.append(Path(tempfile.mkdtemp()) / "table.csv")
        tables[-1].write_text("\n".join(["a,b,y", *lines, ""]), encoding="utf-8")

    def keep(table: Path, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        words = ["run", "ridge", "--data", table, "--target", "y", "--report", path / "page.html"]
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
            refused = command([str(word) for word in words])
        if refused:
            raise OSError(said.getvalue())

    def read(path: Path) -> str:
        page = (path / "page.html").read_text(encoding="utf-8")
        assert page.rstrip().endswith("</html>"), "half a page"
        return re.findall(r"these (\d+) x 2", page)[0]

    return Kind(tuple(tables), keep, read, ("16", "32"))  # a fifth is for the test


def test_a_disk_that_fails_at_any_step_of_a_report_leaves_old_or_new(tmp_path, monkeypatch):
    check_failing_disk(run_on_a_table(), tmp_path, monkeypatch)
