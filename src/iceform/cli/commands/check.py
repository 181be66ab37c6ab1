"""``iceform check``: a stock checkpoint held to its certificate."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iceform.cli.as_json import AsJson, print_json
from iceform.cli.failures import one_line_errors
from iceform.errors import ProgramError

if TYPE_CHECKING:
    from torch import Tensor

    from iceform.targets import Checked

_PANEL = "Data"
_BROKEN = 1  # exit status when an answer is not where it was proven to be


def check(
    path: Annotated[Path, typer.Argument(help="A folder that iceform.targets wrote.")],
    data: Annotated[Path, typer.Option(help="CSV.", rich_help_panel=_PANEL)],
    target: Annotated[
        str | None,
        typer.Option(help="The column of labels; the last by default.", rich_help_panel=_PANEL),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", help="A parameter in the prompt, as lr=0.3; again for more."),
    ] = None,
    attention: Annotated[str, typer.Option(help="eager or sdpa.")] = "sdpa",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Load a written checkpoint with transformers, check its weights, run it, compare with exact.

    Example: iceform check folder --data samples.csv --set lr=0.3
    """
    with one_line_errors():
        from iceform import targets

        x, y = _read(data, target)
        settings: dict[str, Any] = dict(_setting(text) for text in given or [])
        found = targets.check(path, x, y, attention=attention, device=device, **settings)
        if as_json:
            print_json(_as_dict(found))
        else:
            typer.echo(str(found))
            typer.echo(f"answer {found.value.tolist()}")
    if not found.ok:
        raise typer.Exit(_BROKEN)


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
