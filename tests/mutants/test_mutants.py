"""The wrong programs can be made: what they replace stands in the source, once."""

import re

import pytest

from tests.mutants.__main__ import BEGIN, END, PAGE
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_replaces_what_is_there(mutant: Mutant):
    text = (ROOT / "src" / "iceform" / mutant.path).read_text(encoding="utf-8")
    assert text.count(mutant.before) == 1
    assert mutant.after != mutant.before
    files = [test.split("::")[0] for test in mutant.tests if test.startswith("tests/")]
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
    for _, file, test in rows:
        text = (ROOT / "tests" / file).read_text(encoding="utf-8") + inherited
        assert f"def {test.rpartition('::')[2]}(" in text, (file, test)
