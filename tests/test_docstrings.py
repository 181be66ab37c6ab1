"""Docstrings of public names have an example, and the examples run."""

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

import iceform

# Public classes and functions whose docstring has no example. It only becomes smaller.
MOST_WITHOUT = 182
PACKAGES = [
    module for module in pkgutil.walk_packages(iceform.__path__, "iceform.") if module.ispkg
]
MODULES = ["iceform", *(p.name for p in PACKAGES if not p.name.startswith("iceform.cli"))]


def public(module: str) -> Iterator[tuple[str, Any]]:
    """Classes and functions of a package's table of contents."""
    package = importlib.import_module(module)
    for name in getattr(package, "__all__", ()):
        value = getattr(package, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield f"{module}.{name}", value


def has_example(value: Any) -> bool:
    return ">>>" in (inspect.getdoc(value) or "")


def without_example(modules: Iterable[str]) -> list[str]:
    """Names of what has none, each once."""
    every = {id(value): (name, value) for m in modules for name, value in public(m)}
    return sorted(name for name, value in every.values() if not has_example(value))


def check_examples(module: str) -> None:
    """Run them; each has ``torch``, ``ice`` and the public names beside it, no more."""
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    beside = {name.rpartition(".")[2]: value for name, value in public(module)}
    for name, value in public(module):
        if value.__module__.startswith("iceform") and has_example(value):
            report: list[str] = []
            names = {"torch": torch, "ice": iceform, **beside}
            for example in finder.find(value, name, globs=names):
                runner.run(example, out=report.append)
            assert not report, "".join(report)


def test_every_public_name_has_an_example_or_is_counted():
    without = without_example(MODULES)
    assert len(without) <= MOST_WITHOUT, "\n".join(without)


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an empty folder
    check_examples(module)
