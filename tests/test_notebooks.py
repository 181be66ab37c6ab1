"""Every tutorial notebook runs from top to bottom, without errors or warnings, and draws."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NAMES = (
    "certificates", "first_program", "gpt2_gradient_descent", "own_loss", "paper_rate",
    "prompt_to_descent",
)  # fmt: skip
FEWEST_FIGURES = 2
PATIENCE = 300  # seconds for a kernel or a cell on a busy machine; an idle core needs few


def stored(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_all_notebooks_are_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_without_what_running_it_leaves_behind(name):
    notebook = stored(name)
    nbformat.validate(notebook)
    for cell in code(notebook):
        assert cell.outputs == []
        assert cell.execution_count is None
        assert cell.metadata == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_claims_something_and_explains_it_first(name):
    notebook = stored(name)
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert any(re.search(r"^\s*assert ", cell.source, re.MULTILINE) for cell in code(notebook))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_names_no_place_on_anybodys_machine(name):
    for cell in stored(name).cells:
        assert not re.search(r"(?<![\w:/.])(/(home|root|tmp|work|Users)/|~/|[A-Z]:\\)", cell.source)


@pytest.mark.parametrize("name", [*NAMES, "README"])
def test_links_lead_somewhere(name):
    if name == "README":
        text = (FOLDER / "README.md").read_text(encoding="utf-8")
        assert set(re.findall(r"\]\((\w+)\.ipynb\)", text)) == set(NAMES)
    else:
        text = "\n".join(c.source for c in stored(name).cells if c.cell_type == "markdown")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (FOLDER / link).exists(), link


QUICK = ("first_program",)  # the documentation runs all of them too


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES]
)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # nobody's start-up files
    notebook = stored(name)
    # Raises, with the cell and its traceback, where a cell does.
    NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=PATIENCE,
        startup_timeout=PATIENCE,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    complaints = [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    assert complaints == []
    figures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(figures) >= FEWEST_FIGURES
