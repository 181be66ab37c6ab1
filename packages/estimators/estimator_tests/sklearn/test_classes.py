"""Estimators are classes that a reader, an editor and a type checker see."""

import ast
import inspect
from dataclasses import fields
from pathlib import Path

import pytest

import iceform_estimators
from iceform_estimators import estimators
from iceform_estimators.algorithms import kinds

NAMES = iceform_estimators.ESTIMATORS
SOURCE = ast.parse(Path(inspect.getfile(estimators)).read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in SOURCE.body if isinstance(node, ast.ClassDef)}


def test_every_algorithm_on_a_table_has_one_class_by_the_name_its_record_says():
    assert len(NAMES) == 15
    assert {kind.estimator for kind in kinds()} == set(NAMES) == set(CLASSES)
    assert set(NAMES) <= set(dir(iceform_estimators))
    assert all(name in iceform_estimators.__all__ for name in NAMES)
    for kind in kinds():
        assert iceform_estimators.estimator_of(kind).__name__ == kind.estimator


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_written_out_with_the_records_defaults(name):
    """A default that differs from the record's, or a parameter that a record does not have."""
    kind = getattr(iceform_estimators, name)
    written = [one.name for one in fields(kind) if one.init]
    assert sorted([*written, "peer"]) == sorted(inspect.signature(kind).parameters)
    made = kind()
    assert list(made.get_params()) == sorted(written)
    for option in kind.algorithm.options().values():
        expected = None if option.estimator == "random_state" else option.default
        assert getattr(made, option.estimator) == expected, option.name
        assert option.estimator in written
    assert set(kind._parameter_constraints) == set(written)


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_say_every_parameter(name):
    """Their examples are run by ``test_docstrings``."""
    kind = getattr(iceform_estimators, name)
    said = inspect.getdoc(kind).partition("Parameters")[2].partition("Examples")[0]
    for parameter in kind().get_params():
        assert parameter in said, parameter


def test_what_a_class_does_not_have_is_refused_by_name():
    from iceform.errors import ParameterError

    assert iceform_estimators.InContextRidge(copy_X=False).get_params()["alpha"] == 1.0
    with pytest.raises(ParameterError, match="InContextLasso has no parameter 'alfa'"):
        iceform_estimators.InContextLasso(alfa=1.0)
