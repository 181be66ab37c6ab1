"""A mutant: one place changed so that a claim becomes false, and the tests that should say so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """A change of the source.

    Attributes
    ----------
    name
        What is wrong with the program then.
    path
        The file, under ``src/iceform``.
    before, after
        The text that is replaced; it must stand there exactly once.
    tests
        What should notice, as arguments to pytest.
    """

    name: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]

    def apply(self, source: Path) -> None:
        """Change a copy of the source."""
        path = source / "iceform" / self.path
        text = path.read_text(encoding="utf-8")
        if text.count(self.before) != 1:
            raise LookupError(
                f"{self.name}: {self.path} holds the text {text.count(self.before)} times, not "
                f"once: {self.before!r}"
            )
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")

    def killed_by(self) -> str | None:
        """The first test that fails on it; None where it survives."""
        with TemporaryDirectory() as folder:
            source = Path(folder) / "src"
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
            self.apply(source)
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", *self.tests],
                cwd=ROOT, capture_output=True, text=True, check=False,
                env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        return _first_failure(done.stdout) if done.returncode == 1 else _odd(done)


def _first_failure(output: str) -> str:
    failed = [
        line.split()[1] for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))
    ]
    return failed[0] if failed else "a test"


def _odd(done: subprocess.CompletedProcess[str]) -> str | None:
    """Nothing failed; or pytest could not even collect, which is noticed in its own way."""
    if done.returncode == 0:
        return None
    if done.returncode == 2:
        return _first_failure(done.stdout)
    raise RuntimeError(
        f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    )
