"""How the documentation is built: ``make docs``.

Pages are MyST text; those that begin with ``file_format: mystnb`` are notebooks, and so is
everything in ``notebooks/``. The build runs every code cell, and a cell that raises, a warning of
a cell, a link that leads nowhere and a formula that cannot be set all fail it.
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path

from jupyter_cache import get_cache

import iceform

DOCS = Path(__file__).parent
ROOT = DOCS.parent

sys.path.insert(0, str(DOCS / "_extensions"))

# Cells call `iceform` as a reader would, and write tables as wide as the page.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["COLUMNS"] = "96"
# tqdm, which nnsight brings along, would like to draw progress bars in notebooks.
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"

# Kernels start in a profile of their own: nobody's start-up files, and no remarks on how they are
# connected.
PROFILE = ROOT / "out" / "ipython" / "profile_default"
PROFILE.mkdir(parents=True, exist_ok=True)
(PROFILE / "ipython_kernel_config.py").write_text("get_config().IPKernelApp.log_level = 'ERROR'\n")
os.environ["IPYTHONDIR"] = str(PROFILE.parent)


def kept_outputs() -> Path:
    """Where outputs of cells are kept: they depend on the packages, and go when these change."""
    digest = hashlib.sha256()
    for folder in (ROOT / "src", *sorted(ROOT.glob("packages/*/src"))):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    place = ROOT / "out" / "cells" / digest.hexdigest()[:16]
    for old in set(place.parent.glob("*")) - {place}:
        shutil.rmtree(old)
    return place


project = "iceform"
author = "The iceform authors"
copyright = f"2026, {author}"
release = iceform.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "myst_nb",
    "mathml",
    "names",
    "signatures",
    "repository_links",
    "streams",
]
# What is built for a host has no copy of the source.
if tags.has("site"):
    extensions.remove("sphinx.ext.viewcode")
exclude_patterns = ["notebooks/README.md"]

# Text
myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_links_external_new_tab = False
# Programs, prompts and targets have one short name on two levels in signatures: ref.python.
suppress_warnings = ["ref.python", "myst.xref_ambiguous"]

# Cells
nb_execution_mode = "cache"
nb_execution_cache_path = str(kept_outputs())
# Made here: processes that build pages side by side would each make it, and all but one fail.
get_cache(nb_execution_cache_path).list_cache_records()
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_output_stderr = "warn"
nb_merge_streams = True
nb_code_prompt_show = "Show the {type}"
nb_code_prompt_hide = "Hide the {type}"

# The reference
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "show-inheritance": True,
    # What scikit-learn adds to every estimator for its metadata routing.
    "exclude-members": "set_fit_request, set_partial_fit_request, set_predict_request, "
    "set_score_request",
}
autodoc_class_signature = "mixed"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False  # what a section on answers says is a sentence, not always a type
napoleon_attr_annotations = False
napoleon_custom_sections = [("Attributes", "params_style")]
python_display_short_literal_types = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# What other packages document.
FOREIGN = "abc|collections|dask|jaxtyping|matplotlib|numpy|pandas|pathlib|sklearn|torch|typing"
nitpick_ignore_regex = [(r"py:.*", rf"({FOREIGN})\..*")]

# Pages
html_theme = "furo"
html_title = "iceform"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["iceform.css"]
html_favicon = "_static/crystal.svg"
html_copy_source = False
html_theme_options = {
    "light_logo": "wordmark-light.svg",
    "dark_logo": "wordmark-dark.svg",
    "sidebar_hide_name": True,
    "navigation_with_keys": True,
    "light_css_variables": {
        "color-brand-primary": "#0b6e99",
        "color-brand-content": "#0b6e99",
        "font-stack": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif",
        "font-stack--monospace": "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6cc5ea",
        "color-brand-content": "#6cc5ea",
    },
}
pygments_style = "tango"
pygments_dark_style = "monokai"
copybutton_exclude = ".linenos, .gp"
