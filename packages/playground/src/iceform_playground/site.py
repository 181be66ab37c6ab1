"""Build the page: ``python -m iceform_playground.site [FOLDER]``. It needs npm the first time.

The page is static files. What it runs are three ONNX networks, by onnxruntime-web, in the browser;
what takes the library to compute is computed now and written beside them: tables with their proven
errors, literal runs of the computer, and bounds of what the live GPT-2's heads do.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from iceform_playground import BUILT
from iceform_playground.catalogue import MOST_POINTS, algorithms
from iceform_playground.descent_files import descent_files
from iceform_playground.loss_tables import loss_tables
from iceform_playground.machine_files import machine_files, the_machine
from iceform_playground.npm import PACKAGES
from iceform_playground.program_runs import PROGRAMS, program_run
from iceform_playground.text_files import text_files

_SOURCE = (".html", ".css", ".js", ".svg")


def build(folder: Path = BUILT, *, keep: Path = Path("out/npm")) -> None:
    """Write the page into a folder.

    Parameters
    ----------
    folder
        Written anew.
    keep
        Where archives from npm are kept for the next time.
    """
    parts = {
        entry.name: entry.read_bytes()
        for entry in files("iceform_playground").joinpath("page").iterdir()
        if entry.name.endswith(_SOURCE)
    }
    for package in PACKAGES:
        parts |= package.fetch(keep)
    parts |= machine_files() | text_files() | descent_files()
    parts["catalogue.json"] = json.dumps(catalogue()).encode()
    parts["stored.json.gz"] = _zipped(loss_tables())
    parts |= {f"program-{name}.json.gz": _zipped(program_run(name)) for name in PROGRAMS}
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "page").mkdir(parents=True)
    (folder / "index.html").write_bytes(parts.pop("index.html"))
    for name, data in parts.items():
        (folder / "page" / name).write_bytes(data)


def catalogue() -> dict[str, Any]:
    """What the page offers: algorithms and programs; and the machine that it runs."""
    machine = the_machine()
    return {
        "algorithms": algorithms(),
        "machine": {"digest": machine.digest},
        "most_points": MOST_POINTS,
        "programs": [{"name": name, "title": title} for name, (title, _) in PROGRAMS.items()],
    }


def _zipped(content: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps(content).encode(), mtime=0)


def main() -> None:
    """Build into the folder that is named, or where ``iceform play`` looks for it."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else BUILT
    build(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 10**6:.1f} MB")


if __name__ == "__main__":
    main()
