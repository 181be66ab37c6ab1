"""Drawn mutants against the tests that execute their lines, quickest first.

Which tests those are is recorded once (:mod:`tests.mutants.lines`) and kept in ``out/mutants``.
A mutant is a copy of the source with one fault. Of the tests of its folder that execute its line
it meets as many as take ``SECONDS`` of processor time, one of each function first; then, as
answers are also kept between tests, the others of the same files. The first that fails kills it.
A mutant that computes ``PATIENCE`` times as long as its tests do otherwise hangs, which is noticed
too. A killer must pass without the fault.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.drawn import Fault
from tests.mutants.mutant import FAILED, ROOT

SECONDS = 60.0
PATIENCE = 4.0
_START = 30.0  # seconds of processor time that pytest, torch and a compiler may take to begin
_KEPT = ROOT / "out" / "mutants"
_CONFORMANCE = "tests/constructions/test_residual.py"
SUITES = {
    "arithmetic": ("tests/arithmetic",),
    "interpolation": ("tests/interpolation", _CONFORMANCE),
    "attention": ("tests/attention", "tests/backends/test_interventions.py", _CONFORMANCE),
    "backends": ("tests/backends", _CONFORMANCE),
    "computer": ("tests/computer",),
    "certificates": ("tests/certificates", "tests/test_shown.py", _CONFORMANCE),
}


@dataclass(frozen=True)
class Record:
    """Of one test file: seconds by test, and by file and line of the source who executes it."""

    tests: tuple[str, ...]
    seconds: dict[str, float]
    lines: dict[str, dict[str, list[int]]]

    def executing(self, fault: Fault) -> list[str]:
        """The tests that run a fault's line; all of them, of a line that runs on import."""
        if fault.path not in self.lines:
            return []
        found = self.lines[fault.path].get(str(fault.line))
        if found is None:  # a line inside of an expression: the nearest line above that counts
            above = [int(n) for n in self.lines[fault.path] if int(n) <= fault.line]
            found = self.lines[fault.path][str(max(above))] if above else []
        return [self.tests[i] for i in found] or list(self.tests)


def record(folder: str) -> list[Record]:
    """What the tests of a folder execute; run and written anew where it is out of date."""
    files = [p for s in SUITES[folder] for p in sorted(_files(ROOT / s))]
    newest = max(p.stat().st_mtime for p in (ROOT / "src" / "iceform" / folder).rglob("*.py"))
    records = []
    for file in files:
        name = str(file.relative_to(ROOT))
        kept = _KEPT / "lines" / f"{name.replace('/', '-')}.json"
        if not kept.exists() or kept.stat().st_mtime < max(newest, file.stat().st_mtime):
            kept.parent.mkdir(parents=True, exist_ok=True)
            print(f"recording which lines {name} executes", flush=True)
            done = _pytest(ROOT / "src", "-p", "tests.mutants.lines", name, lines=kept)
            if done.returncode:
                raise RuntimeError(f"{name} fails as it is:\n{done.stdout[-3000:]}")
        found = json.loads(kept.read_text(encoding="utf-8"))
        records.append(Record(tuple(found["seconds"]), found["seconds"], found["lines"]))
    return records


def _files(path: Path) -> Sequence[Path]:
    return [path] if path.is_file() else list(path.glob("test_*.py"))


def chosen(fault: Fault, records: Sequence[Record]) -> list[str]:
    """The tests that a mutant meets, in order."""
    seconds = {test: s for known in records for test, s in known.seconds.items()}
    found = [test for known in records for test in known.executing(fault)]
    files = {test.split("::")[0] for test in found}
    rest = [test for test in seconds if test.split("::")[0] in files and test not in set(found)]
    firsts, others, functions = [], [], set()
    for test in sorted(found, key=lambda test: seconds[test]):
        function = test.split("[")[0]
        (others if function in functions else firsts).append(test)
        functions.add(function)
    taken, total = [], 0.0
    for test in (*firsts, *others, *sorted(rest, key=lambda test: seconds[test])):
        total += seconds[test]
        if total > SECONDS and taken:
            break
        taken.append(test)
    return taken


def killer(fault: Fault, tests: Sequence[str], records: Sequence[Record]) -> str | None:
    """The first test that fails on a mutant; ``hangs``; None where it survives."""
    expected = sum(known.seconds.get(test, 0.0) for known in records for test in tests)
    with TemporaryDirectory() as folder:
        source, order = Path(folder) / "src", Path(folder) / "order.json"
        # Compiled files are copied with the times of their sources: only one is compiled anew.
        shutil.copytree(ROOT / "src", source)
        fault.apply(source)
        order.write_text(json.dumps(tests), encoding="utf-8")
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        done = _pytest(source, "-x", "-p", "tests.mutants.order", *files, order=order,
                       limit=_START + PATIENCE * expected)  # fmt: skip
    if done.returncode < 0:
        return "hangs" if done.returncode in (-24, -9) else f"signal {-done.returncode}"
    failed = [m[1] for line in done.stdout.splitlines() if (m := FAILED.match(line))]
    if failed or done.returncode in (1, 2, 3, 4):
        return failed[0] if failed else files[0]
    return None


def passes(tests: Sequence[str]) -> bool:
    """Whether killers pass on the source as it is."""
    return _pytest(ROOT / "src", *tests).returncode == 0


def _pytest(
    source: Path, *arguments: str, limit: float | None = None, **files: Path
) -> subprocess.CompletedProcess[str]:
    named = {f"ICEFORM_{name.upper()}": str(path) for name, path in files.items()}
    paths = os.pathsep.join([str(source), str(ROOT)])

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))

    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, preexec_fn=limited,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **named},
    )  # fmt: skip
