"""Formulas as MathML, set by docutils while the pages are built.

Browsers draw MathML by themselves, so pages need no script, no font and no network.
"""

import re
from html import escape

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def mathml(node: nodes.math | nodes.math_block, *, block: bool) -> str:
    """The formula of a node; one that docutils cannot read is a warning, and shown as it is."""
    code = node.astext().strip()
    readable = re.sub(r"\\([bB]ig)(?![a-z])", r"\\\1l", code)  # docutils knows \bigl, not \big
    try:
        return tex2mathml(readable, as_block=block)
    except MathError as error:
        logger.warning("formula not understood: %s\n%s", error, code, location=node, type="mathml")
        return f"<code>{escape(code)}</code>"


def inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(f'<span class="math notranslate">{mathml(node, block=False)}</span>')
    raise nodes.SkipNode


def display(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math-block notranslate"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append(f"{mathml(node, block=True)}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
