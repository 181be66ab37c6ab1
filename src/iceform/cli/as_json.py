"""``--json``: one object on stdout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def print_json(content: Mapping[str, Any]) -> None:
    """Print an object; numbers in it are finite."""
    typer.echo(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False))
