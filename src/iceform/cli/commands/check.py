"""``iceform check``: a stock checkpoint held to its certificate."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iceform.cli.as_json import add_json, print_json
from iceform.cli.exits import BROKEN
from iceform.errors import ProgramError

if TYPE_CHECKING:
    from torch import Tensor

    from iceform.targets import Checked

SUMMARY = "Hold a written checkpoint to its certificate on data of yours."


def main(words: Sequence[str]) -> int:
    """Check a folder; the exit status is 1 if an answer is not where it was proven to be."""
    options = _parser().parse_args(words)
    from iceform import targets

    x, y = _read(options.data, options.target)
    settings: dict[str, Any] = dict(map(_setting, options.given))
    found = targets.check(
        options.path, x, y, attention=options.attention, device=options.device, **settings
    )
    if options.json:
        print_json(_as_dict(found))
    else:
        print(found)
        print(f"answer {found.value.tolist()}")
    return 0 if found.ok else BROKEN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="iceform check",
        description="Load a written checkpoint with transformers, check its weights, run it, and "
        "compare its answer with the exact one. Exit status 1 says that it broke its bound.",
        epilog="Example: iceform check folder --data samples.csv --set lr=0.3",
    )
    add = parser.add_argument
    add("path", type=Path, help="a folder that program.to or iceform.targets.write wrote")
    add("--data", type=Path, required=True, help="a CSV file of numbers with a header")
    add("--target", help="the column of labels; the last by default")
    add(
        "--set", dest="given", action="append", default=[], metavar="NAME=VALUE",
        help="a parameter in the prompt, as lr=0.3; again for more",
    )  # fmt: skip
    add("--attention", default="sdpa", help="eager or sdpa (%(default)s)")
    add("--device", default="cpu", help="cpu or cuda (%(default)s)")
    add_json(parser)
    return parser


def _as_dict(found: Checked) -> dict[str, Any]:
    return {
        "answer": found.value.tolist(),
        "measured": found.measured,
        "certified": found.certificate.error,
        "kind": found.certificate.kind,
        "ok": found.ok,
        "attestation": found.attestation.to_dict(),
    }


def _setting(text: str) -> tuple[str, float | str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise ProgramError(f"--set takes name=value, got {text!r}")
    try:
        return name, float(value)
    except ValueError:
        return name, value  # a formula


def _read(data: Path, target: str | None) -> tuple[Tensor, Tensor]:
    """Samples and labels out of a CSV file of numbers with a header."""
    import torch

    try:
        with data.open(encoding="utf-8", newline="") as lines:
            names, *rows = csv.reader(lines)
        table = torch.tensor([[float(v) for v in row] for row in rows], dtype=torch.float64)
    except OSError as broken:
        raise ProgramError(f"{data} cannot be read: {broken.strerror}") from None
    except (ValueError, TypeError) as broken:
        raise ProgramError(f"{data} is no table of numbers with a header: {broken}") from None
    wanted = names[-1] if target is None else target
    if wanted not in names:
        raise ProgramError(f"{data.name} has no column {wanted!r}; it has {', '.join(names)}")
    at = names.index(wanted)
    rest = [j for j in range(len(names)) if j != at]
    return table[:, rest], table[:, at]
