"""The documentation has the package's public names, and its notebooks print what is stored."""

import pytest

pytest.importorskip("nbclient", reason="needs nbclient and nbformat")

from tests.notebooks import assert_as_stored
from tests.test_documentation import missing_names, undocumented

NOTEBOOKS = ("certificates", "own_table")  # those that import this package


def test_names_that_pages_refer_to_exist():
    assert not missing_names("iceform_estimators")


def test_the_reference_has_every_public_name():
    modules = ["iceform_estimators", "iceform_estimators.algorithms", "iceform_estimators.machine"]
    assert not undocumented(modules)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_says_what_is_stored(name, tmp_path, monkeypatch):
    assert_as_stored(name, tmp_path, monkeypatch)
