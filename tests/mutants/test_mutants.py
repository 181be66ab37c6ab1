"""The wrong programs can be made: what they replace stands in the source, once."""

import pytest

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
