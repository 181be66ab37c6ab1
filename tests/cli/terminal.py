"""Commands as a terminal runs them: words in; what is printed and the exit status out."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from iceform.cli import main


@dataclass(frozen=True)
class Shown:
    """What a command leaves behind."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def run(*words: object) -> Shown:
    """``iceform`` with these words."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main([str(word) for word in words])
        except SystemExit as stopped:
            status = stopped.code
    return Shown(status or 0, out.getvalue(), err.getvalue())
