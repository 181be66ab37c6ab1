"""Every tutorial notebook runs from top to bottom, and prints and draws what is stored of it."""

import re

import nbformat
import pytest

from tests.notebooks import FOLDER, alike, executed, printed

NAMES = (
    "certificates", "first_program", "gpt2_gradient_descent", "ground_truth", "own_loss",
    "own_table", "paper_rate", "prompt_to_descent",
)  # fmt: skip
FEWEST_FIGURES = 2
MOST_BYTES = 800_000  # of a notebook with its pictures


def stored(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_all_notebooks_are_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_with_its_outputs_and_nothing_else(name):
    notebook = stored(name)
    nbformat.validate(notebook)
    cells = code(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell.metadata == {} for cell in cells)
    assert any(printed(cell) for cell in cells)
    outputs = [output for cell in cells for output in cell.outputs]
    assert len([o for o in outputs if "image/png" in o.get("data", {})]) >= FEWEST_FIGURES
    assert (FOLDER / f"{name}.ipynb").stat().st_size <= MOST_BYTES


def test_outputs_are_compared_by_what_they_say():
    assert alike("off by 1.2e-16, proven 3.4e-09\n", "off by  2.2e-16, proven 3.4e-09")
    assert not alike("off by 0.5", "off by 0.6")
    assert not alike("proven 3e-9", "proven 3e-7")
    assert not alike("found ['a', 'b']", "found ['a']")


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


QUICK = ("first_program", "gpt2_gradient_descent", "prompt_to_descent")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES]
)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # nobody's start-up files
    notebook = executed(FOLDER / f"{name}.ipynb", tmp_path)
    for then, now in zip(code(stored(name)), code(notebook), strict=True):
        assert alike(printed(then), printed(now)), (
            f"{now.source}\n--- stored\n{printed(then)}\n--- now\n{printed(now)}\n"
            "Run: python -m tests.notebooks " + name
        )
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    complaints = [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    assert complaints == []
    figures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(figures) >= FEWEST_FIGURES
