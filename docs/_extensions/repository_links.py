"""Links to the repository's own pages, wherever they are shown.

The site shows files that live elsewhere in the repository: its changelog, its benchmarks, the
record of its studies. Their links, and links to them, are paths in the repository; here they become
links between pages of the site.
"""

import os
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

# Files outside the documentation's folder, and the pages that show them.
SHOWN = {
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "benchmarks/README.md": "performance",
    "results/README.md": "results",
    "results/attacks.md": "results",
    "results/settings.md": "results",
}


def page_of(app: Sphinx, target: str) -> str | None:
    """The page that shows a file of the repository; None if there is none."""
    path = os.path.relpath(app.srcdir / target.removesuffix(".md"), app.srcdir.parent) + ".md"
    if not Path(target).is_absolute():
        path = os.path.normpath(target)
    inside = path.removeprefix(f"{app.srcdir.name}/").removesuffix(".md")
    return SHOWN.get(path) or (inside if inside in app.env.found_docs else None)


def redirect(app: Sphinx, doctree: nodes.document) -> None:
    """Point links that lead to a shown file at the page that shows it."""
    for link in doctree.findall(addnodes.pending_xref):
        unknown = link["reftarget"] not in app.env.found_docs
        if link.get("reftype") == "myst" and unknown:
            page = page_of(app, link["reftarget"])
            if page is not None:
                link.attributes.update(refdomain="doc", reftarget=page, reftargetid=None)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", redirect)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
