"""``iceform diagnose``: what the precision of an algorithm of one's own hangs on, on given data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from iceform.cli.as_json import add_json, print_json
from iceform.cli.commands.compile import add_program, algorithm_in, ranges_of
from iceform.errors import ProgramError

if TYPE_CHECKING:
    from torch import Tensor


SUMMARY = "Say which lines of an algorithm lose precision on given data."


def main(words: Sequence[str]) -> int:
    """Compile an algorithm with data as the example, and diagnose it on them."""
    options = _parser().parse_args(words)
    from iceform import compile

    found = algorithm_in(options.file, options.name)
    rows = _rows(options.data, 1 + (found.data == 2))
    X, y = (rows[:, :-1], rows[:, -1]) if found.data == 2 else (rows, None)
    given, stated = ranges_of(found, options.ranges)
    n, d = X.shape
    program = compile(found, d, n, None, options.eps, stated, (X, y), None, **given)
    diagnosis = program.diagnose(X, y)
    if options.json:
        print_json(asdict(diagnosis))
    else:
        print(diagnosis)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="iceform diagnose",
        description="Compile an algorithm from a Python file, which is run to find it, with the "
        "data as the example, and say what its precision hangs on.",
        epilog="Example: iceform diagnose lasso.py data.csv",
    )
    add_program(parser)
    parser.add_argument(
        "data", type=Path, help="numbers separated by commas, a line a sample, its target last"
    )
    add_json(parser)
    return parser


def _rows(file: Path, least: int) -> Tensor:
    """The numbers of a file, (n, columns); a first line that is no numbers is left out."""
    import torch

    if not file.is_file():
        raise ProgramError(f"there is no file {file}")
    lines = [line.split(",") for line in file.read_text().splitlines() if line.strip()]
    for skipped in (0, 1):
        try:
            rows = torch.tensor(
                [[float(v) for v in line] for line in lines[skipped:]], dtype=torch.float64
            )
        except ValueError:
            continue
        if rows.ndim == 2 and rows.shape[1] >= least:
            return rows
    raise ProgramError(
        f"{file} does not hold lines of numbers separated by commas, all as long, with at least "
        f"{least} a line"
    )
