"""``--json``: one object on stdout."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option ``--json`` of a command."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def print_json(content: Mapping[str, Any]) -> None:
    """Print an object; numbers in it are finite."""
    print(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False))
