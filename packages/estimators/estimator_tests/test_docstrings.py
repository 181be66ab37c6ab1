"""Docstrings of public names have an example, and the examples run."""

import pytest

from tests.test_docstrings import check_examples, without_example

PACKAGES = ["iceform_estimators", "iceform_estimators.algorithms", "iceform_estimators.machine"]


def test_every_public_name_has_an_example():
    assert not without_example([*PACKAGES, "iceform_estimators.tables"])


@pytest.mark.parametrize("package", PACKAGES)
def test_examples_run(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an empty folder
    check_examples(package)
