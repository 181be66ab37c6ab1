"""Docstrings and signatures as they are written.

The library's docstrings write mathematics the short way, ``|A - f|`` and ``(*batch, n, d)``, which
reStructuredText would take for markup. Its annotations say shapes, ``Float[Tensor, "n d"]``, whose
evaluated classes have names of several lines. Both are shown as the source has them.
"""

import inspect
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

# Displayed formulas (a directive and what is indented below it), literals and roles.
MARKUP = re.compile(
    r"(^ *\.\. math::[^\n]*(?:\n(?: *\n)* {3,}\S[^\n]*)*|``.+?``|:[\w:]+:`[^`]+`)",
    re.MULTILINE | re.DOTALL,
)


def escaped(text: str) -> str:
    """The same text, with bars and a shape's asterisk protected outside of any markup."""
    parts = MARKUP.split(text)
    parts[::2] = [re.sub(r"(\||\*(?=batch\b|b\b))", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def protect(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape a docstring in place."""
    lines[:] = escaped("\n".join(lines)).split("\n")


class Made:
    """Stands for a default that is made anew for every instance."""

    def __repr__(self) -> str:
        return "..."


def shown(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter with a default that can be read."""
    made = repr(parameter.default) == "<factory>"
    return parameter.replace(default=Made()) if made else parameter


def as_written(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, arguments: str | None, result: Any
) -> tuple[str, str] | None:
    """Arguments and result with annotations unevaluated; None leaves them as they were found."""
    if arguments is None or not (inspect.isroutine(obj) or inspect.isclass(obj)):
        return None
    signature = inspect.signature(obj)
    hidden = re.compile("self$|_")
    public = [shown(p) for name, p in signature.parameters.items() if not hidden.match(name)]
    returned = "" if what == "class" else signature.return_annotation
    return (
        stringify_signature(signature.replace(parameters=public), show_return_annotation=False),
        "" if returned is inspect.Signature.empty else str(returned),
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-signature", as_written)
    app.connect("autodoc-process-docstring", protect, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
