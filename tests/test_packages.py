"""Packages beside iceform are built on its public names; its own tests need no package."""

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = sorted(ROOT.glob("src/iceform/**/*.py"))
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
CORE_TESTS = sorted(ROOT.glob("tests/**/*.py"))
PACKAGE_TESTS = sorted(ROOT.glob("packages/*/*tests/**/*.py"))
# What tests of a package reach into: to break it, to watch it, or to hold an answer against it.
REACHED = {
    "iceform.export.onnx_file.PromptRunner",
    "iceform.run.primitives",
    "iceform.run.triton",
    "iceform.run.windowed",
    "iceform.tables.regimes",
    "iceform.tables.storage",
}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def private_uses(tree: ast.Module) -> Iterator[str]:
    """Names of the core that no ``__all__`` has."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("iceform.") and not public_module(alias.name):
                    yield f"{node.lineno}: {alias.name}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "iceform":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if not offers(node.module, alias.name) and not public_module(name):
                    yield f"{node.lineno}: {name}"
                elif public_module(name):
                    modules[alias.asname or alias.name] = name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module is not None and not offers(module, node.attr):
                yield f"{node.lineno}: {module}.{node.attr}"


def public_module(name: str) -> bool:
    """Whether a module says what it offers."""
    try:
        return hasattr(importlib.import_module(name), "__all__")
    except ModuleNotFoundError:
        return False


def offers(module: str, name: str) -> bool:
    return name in getattr(importlib.import_module(module), "__all__", ())


def bound_names(tree: ast.Module) -> Iterator[str]:
    """What a module defines: functions, variables, parameters and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


@pytest.mark.parametrize("package", ["estimators", "playground", "tolerance"])
def test_a_package_uses_no_private_attribute_of_the_core(package):
    """Neither of an object nor of a base class."""
    trees = {path: parsed(path) for path in SOURCES if package in path.parts}
    own = {name for tree in trees.values() for name in bound_names(tree)}
    core = {name for path in CORE for name in bound_names(parsed(path))}
    private = {name for name in core - own if name.startswith("_") and not name.startswith("__")}
    foreign = [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if getattr(node, "attr", getattr(node, "arg", None)) in private
    ]
    assert len(trees) > 5
    assert not [use for use in foreign if not use.endswith("X._meta")]  # Dask's own


def test_packages_use_public_names_of_the_core_alone():
    uses = {str(path.relative_to(ROOT)): list(private_uses(parsed(path))) for path in SOURCES}
    assert not {name: found for name, found in uses.items() if found}


def test_tests_of_packages_reach_into_the_core_where_a_table_says_so():
    reached = {
        use.partition(": ")[2] for path in PACKAGE_TESTS for use in private_uses(parsed(path))
    }
    assert reached == REACHED


def test_the_cores_own_tests_need_no_package():
    """Not even late; a campaign takes up the attacks of a package that is there."""
    imports = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in CORE_TESTS
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or node.names[0].name]
        if name.startswith("iceform_")
    }
    assert not imports


def test_private_uses_are_seen():
    tree = ast.parse(
        "import iceform.run.windowed\n"
        "from iceform.heads.lookups import baked\n"
        "from iceform.arithmetic import double_double, UNIT\n"
        "from iceform import validation as checks, store\n"
        "double_double.add, double_double._halves, checks.human_bytes, store.write\n"
    )
    assert sorted(private_uses(tree)) == [
        "1: iceform.run.windowed",
        "2: iceform.heads.lookups.baked",
        "5: iceform.arithmetic.double_double._halves",
        "5: iceform.validation.human_bytes",
    ]
