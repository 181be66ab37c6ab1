"""Notebooks with their outputs: ``python -m tests.notebooks [name ...]`` runs and stores them.

What is stored is what a reader sees where nothing runs. The tests run every notebook and compare
what it prints, numbers to a few digits: the last ones differ between machines.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
PATIENCE = 300  # seconds for a kernel or a cell on a busy machine; an idle core needs few
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?")
CLOSE, SMALL = 1e-3, 1e-6  # relative; and below this only the size of a number is compared
TIMES = 10.0


def executed(path: Path, folder: Path) -> NotebookNode:
    """A notebook after running it in a folder; raises, with its traceback, where a cell does."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=PATIENCE,
        startup_timeout=PATIENCE,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    ).execute()
    return notebook


def printed(cell: NotebookNode) -> str:
    """What a cell writes."""
    return "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")


def alike(first: str, second: str) -> bool:
    """Whether two outputs say the same, numbers compared as numbers."""
    if NUMBER.sub("#", first).split() != NUMBER.sub("#", second).split():
        return False
    pairs = zip(NUMBER.findall(first), NUMBER.findall(second), strict=True)
    return all(_close(float(a), float(b)) for a, b in pairs)


def _close(a: float, b: float) -> bool:
    if max(abs(a), abs(b)) < SMALL:  # errors and what rounding leaves: no more than their size
        return min(abs(a), abs(b)) * TIMES >= max(abs(a), abs(b)) or max(abs(a), abs(b)) < 1e-12
    return abs(a - b) <= CLOSE * max(abs(a), abs(b))


def main() -> None:
    """Run notebooks and store what they print and draw."""
    with tempfile.TemporaryDirectory() as place:
        os.environ["IPYTHONDIR"] = place
        for path in sorted(FOLDER.glob("*.ipynb")):
            if sys.argv[1:] and path.stem not in sys.argv[1:]:
                continue
            notebook = executed(path, Path(place))
            count = 0
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    count += 1
                    cell.execution_count, cell.metadata = count, {}
                    for output in cell.outputs:
                        if "execution_count" in output:
                            output.execution_count = count
            notebook.metadata.pop("widgets", None)
            notebook.metadata["language_info"] = {"name": "python"}
            nbformat.write(notebook, path)
            print(f"{path.name}: {path.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
