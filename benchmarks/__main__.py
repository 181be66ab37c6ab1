"""``python -m benchmarks``: print the tables, keep them as JSON, draw the plots."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from benchmarks.suites import SUITES
from benchmarks.timing import Bench, machine, markdown


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; all by default")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for JSON and plots")
    parser.add_argument("--plot", type=Path, help="draw the plots of a saved JSON and stop")
    parser.add_argument("--table", type=Path, help="print a saved JSON as Markdown and stop")
    asked = parser.parse_args()
    if asked.table is not None:
        print(markdown(json.loads(asked.table.read_text(encoding="utf-8"))))
        return
    if asked.plot is not None:
        draw(asked.plot, asked.out)
        return
    unknown = [name for name in asked.suites if name not in SUITES]
    if unknown:
        parser.error(f"no suite is called {', '.join(unknown)}; there are {', '.join(SUITES)}")
    torch.manual_seed(0)
    bench = Bench(torch.device(asked.device))
    print(", ".join(f"{k} {v}" for k, v in machine(bench.device).items()))
    saved = asked.out / f"benchmarks-{bench.device.type}.json"
    for name in asked.suites or SUITES:
        SUITES[name](bench)
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
        bench.save(saved, "python -m benchmarks " + " ".join(sys.argv[1:]))
    print(f"wrote {saved}")
    draw(saved, asked.out)


def draw(saved: Path, folder: Path) -> None:
    """Cost against n, and error against cost, where matplotlib is there."""
    try:
        from benchmarks import plots
    except ModuleNotFoundError:
        print("no plots: install matplotlib, then python -m benchmarks --plot", saved)
        return
    for path in plots.draw(json.loads(saved.read_text(encoding="utf-8")), folder, saved.stem):
        print(f"wrote {path}")


main()
