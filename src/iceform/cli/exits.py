"""Exit statuses, and the extra that brings a missing module."""

from __future__ import annotations

import signal

EXTRAS = {"matplotlib": "plots", "jinja2": "plots", "transformers": "export", "onnx": "export"}
BROKEN = 1  # exit status when an answer is not where it was proven to be
USAGE = 2  # exit status for what a user can mend
INTERRUPTED = 128 + signal.SIGINT  # exit status after Ctrl-C, as shells have it


def missing_extra(missing: ModuleNotFoundError) -> str | None:
    """One line that names the extra to install, or None if no extra brings the module."""
    package = (missing.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    extra = EXTRAS[package]
    return f"error: {package} is not installed; run pip install 'iceform[{extra}]'"
