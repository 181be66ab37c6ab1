"""The documentation speaks of names that the package has."""

from tests.test_documentation import missing_names


def test_names_that_pages_refer_to_exist():
    assert not missing_names("iceform_tolerance")
