"""The wrong programs can be made: what they replace stands in the source, once."""

import re
import warnings

import pytest

from tests.mutants.__main__ import BEGIN, BEGIN_DRAWN, END, END_DRAWN, PAGE
from tests.mutants.drawn import COUNT, FOLDERS, REASONS, all_faults, drawn, every
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_replaces_what_is_there(mutant: Mutant):
    trees = (ROOT / "src", *ROOT.glob("packages/*/src"))
    (path,) = (tree / mutant.file for tree in trees if (tree / mutant.file).exists())
    assert path.read_text(encoding="utf-8").count(mutant.before) == 1
    assert mutant.after != mutant.before
    files = [test.split("::")[0] for test in mutant.tests if test.startswith(("tests/", "pack"))]
    assert files
    assert all((ROOT / file).exists() for file in files), files


def test_names_are_their_own():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)


def test_the_page_has_every_mutant_and_tests_that_are_there():
    shown = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    rows = re.findall(r"^\| (.+?) \| `(\S+?)(?:::(\S+))?` \|$", shown, re.MULTILINE)
    assert [name for name, _, _ in rows] == [mutant.name for mutant in MUTANTS]
    inherited = (ROOT / "tests" / "conformance.py").read_text(encoding="utf-8")
    folders = [ROOT / "tests", *ROOT.glob("packages/*/*tests")]
    for _, file, test in rows:
        (found,) = (folder / file for folder in folders if (folder / file).exists())
        text = found.read_text(encoding="utf-8") + inherited
        assert f"def {test.rpartition('::')[2]}(" in text, (file, test)


@pytest.mark.parametrize("folder", FOLDERS)
def test_mutants_can_be_drawn(folder):
    """As many as are said, all of them programs, no two alike, and the same every time."""
    faults = drawn(folder)
    assert len({fault.key for fault in faults}) == len(faults) == COUNT
    assert drawn(folder) == faults
    assert drawn(folder, 1) != faults
    for fault in faults:
        text, (start, stop) = (ROOT / "src" / "iceform" / fault.path).read_bytes(), fault.span
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # a number that is called
            compile(text[:start] + fault.after.encode() + text[stop:], fault.path, "exec")


def test_what_is_spared_is_not_drawn(tmp_path):
    """Text and tuning stay; a fault of every kind is there."""
    text = '''"""1 + 1"""
_CHUNK = 1 << 4
def explain(x: int) -> str:
    return f"{x + 1}"
def f(x, y):
    if x < _CHUNK:
        raise ValueError(f"{x - 1}")
    return max(abs(x) + 1, y, key=-x) * 2.0
'''
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "local.py").write_text(text)
    found = {(f.before, f.after) for f in all_faults("tables/local.py", tmp_path)}
    assert found == {
        ("x < _CHUNK", "(not x < _CHUNK)"),
        ("max(abs(x) + 1, y, key=-x) * 2.0", "(max(abs(x) + 1, y, key=-x) / 2.0)"),
        ("max(abs(x) + 1, y, key=-x) * 2.0", "(max(abs(x) + 1, y, key=-x))"),
        ("max(abs(x) + 1, y, key=-x)", "(min(abs(x) + 1, y, key=-x))"),
        ("max(abs(x) + 1, y, key=-x)", "(max(abs(x) + 1, y))"),
        ("abs(x) + 1", "(abs(x) - 1)"), ("abs(x) + 1", "(abs(x))"), ("abs(x) + 1", "(1)"),
        ("abs(x)", "(x)"), ("1", "(2)"), ("-x", "(x)"), ("2.0", "(4.0)"),
    }  # fmt: skip
    changed = tmp_path / "iceform" / "tables" / "local.py"
    changed.parent.mkdir(parents=True)
    results = set()
    for fault in all_faults("tables/local.py", tmp_path):
        changed.write_text(text)
        fault.apply(tmp_path)
        results.add(changed.read_text())
    assert len(results) == len(found)
    assert text not in results


def test_reasons_are_about_faults_that_exist():
    """One whose statement has changed is about nothing: run and reason anew."""
    keys = {fault.key for folder in FOLDERS for fault in every(folder)}
    assert [key for key in REASONS if key not in keys] == []
    assert all(len(reason) > 40 for reason in REASONS.values())


def test_the_page_counts_what_is_drawn():
    shown = PAGE.read_text(encoding="utf-8").split(BEGIN_DRAWN)[1].split(END_DRAWN)[0]
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", shown, re.MULTILINE)
    assert {row[0] for row in rows} <= set(FOLDERS)
    for _, count, noticed, unseen, left in rows:
        assert int(noticed) + int(unseen) + int(left) == int(count) <= COUNT
