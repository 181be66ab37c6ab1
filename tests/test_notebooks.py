"""Every tutorial notebook is stored with its outputs, and prints and draws the same when run."""

import json
import re

import nbformat
import pytest

from tests.notebooks import (
    FOLDER,
    INSTALL,
    alike,
    assert_as_stored,
    code,
    needs_a_package,
    pictures,
    stored,
    texts,
)

NAMES = (
    "certificates", "first_algorithm", "gpt2_gradient_descent", "look_ups", "own_loss", "own_table",
    "patching_ground_truth", "primal_or_dual", "prompt_to_descent", "score_a_method",
    "text_computer",
)  # fmt: skip
LARGEST = 400_000  # bytes of a file, pictures included
PLACE = re.compile(r"(?<![\w:/.])(/(home|root|tmp|work|Users)/|~/|[A-Z]:\\)")


def test_all_notebooks_are_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_as_it_ran_from_top_to_bottom(name):
    notebook = stored(name)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code(notebook)] == [*range(1, len(code(notebook)) + 1)]
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert {o.output_type for o in outputs} <= {"stream", "display_data", "execute_result"}
    assert [o.text for o in outputs if o.get("name") == "stderr"] == []
    assert any(pictures(cell) for cell in code(notebook))
    assert (FOLDER / f"{name}.ipynb").stat().st_size <= LARGEST


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_claims_something_and_explains_it_first(name):
    notebook = stored(name)
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert code(notebook)[0].source == INSTALL
    assert any(re.search(r"^\s*assert ", cell.source, re.MULTILINE) for cell in code(notebook))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_names_no_place_on_anybodys_machine(name):
    """In what it says and in what it prints."""
    notebook = stored(name)
    for cell in notebook.cells:
        said = texts(cell) if cell.cell_type == "code" else []
        for text in (cell.source, json.dumps(cell.metadata), *said):
            assert not PLACE.search(text)
            assert " at 0x" not in text


@pytest.mark.parametrize("name", [*NAMES, "README"])
def test_links_lead_somewhere(name):
    if name == "README":
        text = (FOLDER / "README.md").read_text(encoding="utf-8")
        assert set(re.findall(r"\]\((\w+)\.ipynb\)", text)) == set(NAMES)
    else:
        text = "\n".join(c.source for c in stored(name).cells if c.cell_type == "markdown")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (FOLDER / link).exists(), link


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("off by 1.2e-11", "off by 3.4e-11", True),  # rounding
        ("tokens^-1.01, 83", "tokens^-1.00, 83", True),
        ("proven to 5e-4", "proven to 6e-4", False),
        ("weights b7700f", "weights c7700f", False),
        ("61 of 80", "51 of 80", False),
        ("holds", "fails", False),
    ],
)
def test_what_counts_as_the_same(a, b, same):
    assert alike(a, b) is same


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if not needs_a_package(name)])
def test_a_notebook_says_what_is_stored(name, tmp_path, monkeypatch):
    """Those that import a package, its tests run; the documentation runs all of them too."""
    assert_as_stored(name, tmp_path, monkeypatch)
