"""Docstrings of public names have an example, and every example runs."""

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import iceform

# Rooms inside a level, and commands: nobody outside imports from them.
INNER = ("iceform.cli", "iceform.networks.pieces", "iceform.run.triton")
PACKAGES = ["iceform"] + [
    module.name for module in pkgutil.walk_packages(iceform.__path__, "iceform.") if module.ispkg
]
MODULES = [name for name in PACKAGES if not name.startswith(INNER)]


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


def check_examples(package: str) -> None:
    """Run every example of its modules, with ``torch``, ``ice`` and its public names at hand."""
    beside = {name.rpartition(".")[2]: value for name, value in public(package)}
    found = importlib.import_module(package)
    inner = [m.name for m in pkgutil.iter_modules(found.__path__, f"{package}.") if not m.ispkg]
    finder = doctest.DocTestFinder()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for name in [package, *inner]:
        if ">>>" not in (find_spec(name).loader.get_source(name) or ""):
            continue
        module = importlib.import_module(name)
        own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", None) == name}
        names = {"torch": torch, "ice": iceform, **own, **beside}
        for example in finder.find(module, name, globs=names):
            report: list[str] = []
            runner.run(example, out=report.append)
            assert not report, "".join(report)


def test_every_public_name_has_an_example():
    assert not without_example(MODULES)


@pytest.mark.parametrize("module", PACKAGES)
def test_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an empty folder
    check_examples(module)
