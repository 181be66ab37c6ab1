"""Docstrings of public names have an example, and the examples run."""

import pytest

from tests.test_docstrings import check_examples, without_example

PUBLIC = ("algorithms", "machine", "tables")
MODULES = ["iceform_estimators", *(f"iceform_estimators.{name}" for name in PUBLIC)]


def test_every_public_name_has_an_example():
    assert not without_example(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an empty folder
    check_examples(module)
