"""What has moved to a package of its own says so, whichever way it is asked for."""

import importlib

import pytest

import iceform

MOVED = {
    "tolerance": "iceform_tolerance",
    "tolerances": "iceform_tolerance",
    "testing": "iceform_tolerance.testing",
}


@pytest.mark.parametrize(("name", "module"), MOVED.items())
def test_an_old_name_says_where_it_is_now(name, module):
    says = f"pip install {module.partition('.')[0].replace('_', '-')}, then import {module}$"
    with pytest.raises(AttributeError, match=says):
        getattr(iceform, name)
    with pytest.raises(ModuleNotFoundError, match=says):
        importlib.import_module(f"iceform.{name}")


def test_a_name_that_never_was_is_pythons_own_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        iceform.nothing  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'iceform.nothing'$"):
        importlib.import_module("iceform.nothing")
