"""What a name in a docstring or a signature refers to.

Docstrings call things by their short names, and the reference lists them under their public ones.
A name that the reference documents becomes a link; one that exists, in the library or in what it
imports, stays text; any other is a broken reference, which the build reports.
"""

import ast
import builtins
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

import iceform
import iceform_estimators
import iceform_tolerance

PACKAGES = {
    package.__name__: package for package in (iceform, iceform_estimators, iceform_tolerance)
}


def bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds."""
    match node:
        case ast.Import(names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name.split(".")[0] for alias in names)
        case ast.ClassDef(name) | ast.FunctionDef(name) | ast.arg(name):
            yield name
        case ast.Name(name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name


@cache
def known_names() -> frozenset[str]:
    """Every name that the source of the packages binds or imports, and Python's own."""
    names = set(vars(builtins))
    for package in PACKAGES.values():
        for path in Path(package.__file__).parent.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names.update(bound_by(node))
    return frozenset(names)


def exists(target: str) -> bool:
    """Whether a dotted name leads to something."""
    first, *rest = target.split(".")
    if first not in PACKAGES:
        return first in known_names()
    for length in range(len(rest), -1, -1):
        try:
            found = importlib.import_module(".".join([first, *rest[:length]]))
        except ImportError:
            continue
        for name in rest[length:]:
            found = getattr(found, name, None)
        return found is not None
    return False


def documented(env: BuildEnvironment, target: str, inside: str | None) -> str | None:
    """The public name of a thing that the reference documents, from any of its names.

    A member of the class at hand comes first, then what is no member of any class.
    """
    tail = "." + target.split(".")[-1]
    found = [name for name in env.domains.python_domain.objects if name.endswith(tail)]
    own = [name for name in found if inside and name.endswith(f"{inside}{tail}")]
    top = [name for name in found if name.removesuffix(tail).islower()]
    return next((names[0] for names in (own, top) if len(names) == 1), None)


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """A link, plain text, or None for a reference that is broken."""
    if node.get("refdomain") != "py":
        return None
    name = documented(env, node["reftarget"], node.get("py:class"))
    if name is None:
        return content if exists(node["reftarget"]) else None
    place = env.domains.python_domain.objects[name]
    return make_refnode(app.builder, node["refdoc"], place.docname, place.node_id, content, name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
