"""The documentation speaks of names that the package has; their examples run."""

from tests.test_docstrings import check_examples, without_example
from tests.test_documentation import missing_names


def test_names_that_pages_refer_to_exist():
    assert not missing_names("iceform_tolerance")


def test_every_public_name_has_an_example():
    assert not without_example(["iceform_tolerance", "iceform_tolerance.testing"])


def test_examples_run():
    check_examples("iceform_tolerance")
