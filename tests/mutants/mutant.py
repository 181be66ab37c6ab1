"""A mutant: one place changed so that a claim becomes false, and the tests that should say so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
# What pytest says last of a test: its parameters may hold anything.
FAILED = re.compile(r"(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$")
_LONGEST = 420.0  # seconds that the tests of one mutant may take


@dataclass(frozen=True)
class Mutant:
    """A change of the source.

    Attributes
    ----------
    name
        What is wrong with the program then.
    path
        The file, under ``src/iceform``; one of a package begins with the package's name.
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

    @property
    def file(self) -> str:
        """The file below the folder that holds the packages."""
        return self.path if self.path.startswith("iceform_") else f"iceform/{self.path}"

    def apply(self, source: Path) -> None:
        """Change a copy of the source."""
        path = source / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.before) != 1:
            raise LookupError(
                f"{self.name}: {self.path} holds the text {text.count(self.before)} times, not "
                f"once: {self.before!r}"
            )
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")

    def killed_by(self) -> str | None:
        """The first test that fails on it, and passes without; None where it survives.

        Raises
        ------
        RuntimeError
            If that is not known: its tests are skipped here, fail anyway, or take too long.
        """
        with TemporaryDirectory() as folder:
            source = Path(folder) / "src"
            copy_sources(source)
            self.apply(source)
            killer = _verdict(_pytest(source, *self.tests))
        if killer is not None:
            only = () if "::" in killer else ("--collect-only",)
            if _pytest(ROOT / "src", killer, *only).returncode != 0:
                raise RuntimeError(f"{killer} fails without it too")
        return killer


def copy_sources(folder: Path) -> None:
    """The core and the packages beside each other."""
    for tree in (ROOT / "src", *sorted(ROOT.glob("packages/*/src"))):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(tree, folder, ignore=ignored, dirs_exist_ok=True)


def _pytest(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    try:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", *arguments],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=_LONGEST,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"its tests took more than {_LONGEST:.0f} s") from None


def _verdict(done: subprocess.CompletedProcess[str]) -> str | None:
    """The first failure, also of collecting, which is noticing in its own way; None of none."""
    lines = done.stdout.splitlines()
    if done.returncode in (1, 2):
        failed = [found[1] for line in lines if (found := FAILED.match(line))]
        if failed:
            return failed[0]
    if done.returncode == 0 and re.search(r"\d+ passed", lines[-1]):
        return None
    raise RuntimeError(
        f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    )
