"""The documentation: every page is reachable, every link and name leads somewhere, all code is run.

The full build is ``make docs``; what it would find late is found here early.
"""

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("sphinx", reason="needs iceform[docs]")

from docutils.utils.math.latex2mathml import tex2mathml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOK = "---\nfile_format: mystnb\n"
LISTED_ELSEWHERE = {"notebooks/README.md"}  # for those who read the repository, not the site
# Pages whose shell commands are run by tests of their own.
RUN_BY_TESTS = {"studies.md": "packages/estimators/estimator_tests/studies/test_studies.py"}

# Modules whose public names the reference must have.
PUBLIC = [
    "iceform",
    "iceform.errors",
    "iceform.heads",
    "iceform.paper",
    "iceform.export",
    "iceform.expressions.formulas",
    "iceform.tables",
    "iceform.networks",
]
NOT_OBJECTS = {"__version__", "algorithms", "bench", "errors", "lab", "paper", "plots", "targets"}


@cache
def text_of(page: str) -> str:
    """A page's text; of a notebook, its markdown."""
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for pattern in ("**/*.md", "**/*.ipynb")
    for path in DOCS.glob(pattern)
)


def prose(page: str) -> str:
    """A page's text without its fenced blocks and literals."""
    text = re.sub(r"^(`{3,})[^`\n]*\n.*?^\1$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`(?!_)", "", text)


def fences(page: str) -> list[tuple[str, str]]:
    """What kind each block of a page is, and what it holds."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    return [(kind.strip(), body) for kind, body in found]


def listed_in(page: str) -> set[str]:
    """Pages that a page's tables of contents name."""
    folder = (DOCS / page).parent
    entries = [
        line.strip()
        for kind, body in fences(page)
        if kind == "{toctree}"
        for line in body.splitlines()
        if line.strip() and not line.startswith(":")
    ]
    return {
        path.relative_to(DOCS).as_posix()
        for entry in entries
        for path in folder.glob(f"{entry}.*")
        if path.suffix in {".md", ".ipynb"}
    }


def test_every_page_is_in_a_table_of_contents():
    listed = set.union(*map(listed_in, PAGES))
    assert listed == set(PAGES) - {"index.md"} - LISTED_ELSEWHERE


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:|#)([^)\s#]+)", prose(page)):
        assert (DOCS / page).parent.joinpath(link).exists(), link


def missing_names(package: str) -> list[str]:
    """What pages refer to by a name in a package, and is not there."""
    refers = rf"\{{(?:class|func|meth|mod)\}}`[^`]*?~?({package}(?:\.[\w.]*)?)>?`"
    names = {name for page in PAGES for name in re.findall(refers, text_of(page))}
    assert names, "pages refer to nothing of it"
    return sorted(name for name in names if not exists(name))


def test_names_that_are_referred_to_exist():
    """Those of a package beside iceform, the package's own tests look up."""
    assert not missing_names("iceform")


def exists(name: str) -> bool:
    """Whether a dotted name leads to a module or an attribute."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found is not None
    return False


@pytest.mark.parametrize("page", PAGES)
def test_no_code_is_left_that_nobody_runs(page):
    """Code is a cell; what cannot be run is marked as text."""
    kinds = {kind for kind, _ in fences(page) if not kind.startswith("{")}
    allowed = {"text"} | ({"sh"} if page in RUN_BY_TESTS or page in LISTED_ELSEWHERE else set())
    assert kinds <= allowed
    if any(kind == "{code-cell}" for kind, _ in fences(page)):
        assert text_of(page).startswith(NOTEBOOK)


@pytest.mark.parametrize("page", RUN_BY_TESTS)
def test_commands_that_the_build_leaves_out_are_run_by_tests(page):
    shell = [line for kind, body in fences(page) if kind == "sh" for line in body.splitlines()]
    tested = (ROOT / RUN_BY_TESTS[page]).read_text(encoding="utf-8")
    assert shell
    for line in shell:
        *command, verb = line.split()[:4]
        assert command == ["python", "-m", "studies"]
        assert f'"{verb}"' in tested, line


@pytest.mark.parametrize("page", PAGES)
def test_formulas_can_be_set(page):
    text = prose(page)
    for block, inline in re.findall(r"\$\$(.+?)\$\$|\$([^$]+?)\$", text, re.DOTALL):
        assert "<math" in tex2mathml((block or inline).strip(), as_block=bool(block))


def documented() -> list[str]:
    """What the reference documents, by public name."""
    pages = "".join(text_of(page) for page in PAGES if page.startswith("api/"))
    return re.findall(r"^\.\. (?:auto\w+|py:data):: (iceform\w*\.\S+)$", pages, re.MULTILINE)


def test_the_reference_has_every_public_name():
    assert not undocumented(PUBLIC)


def undocumented(modules: list[str]) -> set[str]:
    """Public names of modules that the reference does not have."""
    short = {name.split(".")[-1] for name in documented()}
    names = {name for module in modules for name in importlib.import_module(module).__all__}
    return names - NOT_OBJECTS - short


def test_the_reference_names_nothing_that_is_gone():
    """Names of a package beside iceform, the package's own tests look up."""
    assert [n for n in documented() if n.startswith("iceform.") and not exists(n)] == []


def test_the_reference_names_nothing_twice():
    assert len(documented()) == len(set(documented()))


def extension(name: str) -> ModuleType:
    """An extension of the build, which is no package of ours."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_extensions" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("sup |A - f| on (*batch, n)", r"sup \|A - f\| on (\*batch, n)"),
        ("a *margin*, **bold**", "a *margin*, **bold**"),
        ("``|x|`` and :math:`|x|`", "``|x|`` and :math:`|x|`"),
        (".. math:: |x|\n   \\le |y|\n\n|z|", ".. math:: |x|\n   \\le |y|\n\n\\|z\\|"),
    ],
)
def test_bars_and_asterisks_of_docstrings_are_not_markup(written, shown):
    assert extension("signatures").escaped(written) == shown


def test_what_a_cell_prints_is_put_together_as_it_came():
    pieces = [("stdout", "a wo"), ("stderr", "!"), ("stdout", "rd\n\nmore")]
    outputs = [{"output_type": "stream", "name": n, "text": t} for n, t in pieces]
    outputs.insert(1, {"output_type": "display_data", "data": {}})
    whole = extension("streams").coalesced(outputs)
    assert [output.get("text") for output in whole] == ["a word\n\nmore", None, "!"]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    for package in ("iceform_estimators", "iceform_playground", "iceform_tolerance"):
        pytest.importorskip(package, reason="the site has pages of the packages too")
    command = [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", "-j", "4"]
    done = subprocess.run(
        [*command, "-d", tmp_path / "doctrees", DOCS, tmp_path / "site"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "index.html").exists()
