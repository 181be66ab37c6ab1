"""The tutorial notebooks, which are stored with their outputs.

``python -m tests.notebooks [NAME ...]``, or ``make notebooks``, runs them and stores what they
print and draw. The tests run them again and compare.
"""

from __future__ import annotations

import base64
import os
import re
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
PATIENCE = 300  # seconds for a kernel or a cell on a busy machine; an idle core needs few
# Errors that are rounding, and figures that follow from them, differ between machines.
# The first cell of each: what a hosted notebook needs, and others pass over.
INSTALL = """\
# In a hosted notebook, once the packages are published; the README says how to install from a copy.
import importlib.util

if importlib.util.find_spec("iceform") is None:
    %pip install --quiet "iceform[plots,export,interp]" iceform-estimators"""
ROUNDING = 1e-9
SHARE = 0.05
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")


def stored(name: str) -> Any:
    """A notebook as it lies there."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(notebook: Any) -> list[Any]:
    """Its code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def needs_a_package(name: str) -> bool:
    """Whether it imports one beside iceform."""
    return any(re.search(r"(import|from) iceform_", cell.source) for cell in code(stored(name)))


def assert_as_stored(name: str, folder: Path, environment: pytest.MonkeyPatch) -> None:
    """It prints and draws what is stored, but for rounding."""
    environment.setenv("IPYTHONDIR", str(folder / "ipython"))  # nobody's start-up files
    environment.setenv("PYTHONWARNINGS", "default")
    before, after = stored(name), executed(name, folder)
    for old, new in zip(code(before), code(after), strict=True):
        assert len(texts(old)) == len(texts(new)), new.source
        for a, b in zip(texts(old), texts(new), strict=True):
            assert alike(a, b), f"stored:\n{a}\nnow:\n{b}"
        assert pictures(old) == pictures(new)


def executed(name: str, folder: Path) -> Any:
    """It, run anew in a folder; raises, with the cell and its traceback, where a cell does."""
    notebook = stored(name)
    if code(notebook)[0].source != INSTALL:
        hidden = {"tags": ["remove-cell"]}
        notebook.cells.insert(1, nbformat.v4.new_code_cell(INSTALL, id="install", metadata=hidden))
    # tqdm, which TransformerLens and nnsight bring along, would like to draw progress bars.
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"
    NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=PATIENCE,
        startup_timeout=PATIENCE,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    # What the front end of whoever ran it adds.
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def texts(cell: Any) -> list[str]:
    """What a cell prints or says."""
    return [
        output.text if output.output_type == "stream" else output.data.get("text/plain", "")
        for output in cell.outputs
    ]


def pictures(cell: Any) -> list[tuple[int, int]]:
    """Width and height of what a cell draws."""
    drawn = [o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})]
    return [struct.unpack(">II", base64.b64decode(data)[16:24]) for data in drawn]


def alike(a: str, b: str) -> bool:
    """The same words, and numbers that agree but for rounding."""
    if " ".join(_NUMBER.sub("#", a).split()) != " ".join(_NUMBER.sub("#", b).split()):
        return False
    pairs = zip(map(float, _NUMBER.findall(a)), map(float, _NUMBER.findall(b)), strict=True)
    return all(abs(x - y) <= max(ROUNDING, SHARE * max(abs(x), abs(y))) for x, y in pairs)


def main(names: list[str]) -> None:
    """Run notebooks and store them."""
    for name in names or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(name, Path(folder))
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")
        size = (FOLDER / f"{name}.ipynb").stat().st_size
        print(f"{name}: {size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
