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
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.mutants.drawn import Fault
from tests.mutants.mutant import FAILED, ROOT

SECONDS = 60.0
PATIENCE = 4.0
_START = 30.0  # seconds of processor time that pytest, torch and a compiler may take to begin
_KEPT = ROOT / "out" / "mutants"
_QUIET = ("-q", "-p", "no:cacheprovider", "--tb=no")
os.environ["OMP_NUM_THREADS"] = "1"
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["torch", "pytest", "numpy", "mpmath", "beartype"])
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
            done = _pytest("-p", "tests.mutants.lines", name, lines=kept)
            if done.returncode:
                raise RuntimeError(f"{name} fails as it is:\n{done.stdout[-3000:]}")
        found = json.loads(kept.read_text(encoding="utf-8"))
        records.append(Record(tuple(found["seconds"]), found["seconds"], found["lines"]))
    return records


def _files(path: Path) -> Sequence[Path]:
    return [path] if path.is_file() else list(path.glob("test_*.py"))


def chosen(fault: Fault, records: Sequence[Record]) -> tuple[list[str], float]:
    """The tests that a mutant meets, in order, and the seconds that they take."""
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
        if total + seconds[test] > SECONDS and taken:
            break
        total += seconds[test]
        taken.append(test)
    return taken, total


def killer(fault: Fault, tests: Sequence[str], expected: float) -> str | None:
    """The first test that fails on a mutant; ``hangs``; None where it survives."""
    with TemporaryDirectory() as folder:
        source, order, said = (Path(folder) / name for name in ("src", "order.json", "said.txt"))
        # Compiled files are copied with the times of their sources: only one is compiled anew.
        shutil.copytree(ROOT / "src", source)
        fault.apply(source)
        order.write_text(json.dumps(tests), encoding="utf-8")
        if fault.path != "backends/windowed.py":
            shutil.copytree(_library(), Path(folder) / "tables")
        named = {"ICEFORM_ORDER": str(order), "ICEFORM_CACHE": str(Path(folder) / "tables")}
        limit = int(_START + PATIENCE * expected)
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        arguments = [*_QUIET, "-x", "-p", "tests.mutants.order", *files]
        child = _FORKS.Process(target=_child, args=(source, said, limit, arguments, named))
        child.start()
        child.join()
        shown = said.read_text(encoding="utf-8", errors="replace")
    if child.exitcode in (-24, -9):
        return "hangs"
    failed = [m[1] for line in shown.splitlines() if (m := FAILED.match(line))]
    if child.exitcode == 0 and "passed" in shown:
        return None
    if child.exitcode == 5:
        raise RuntimeError(f"no test was run on {fault.key}:\n{shown[-2000:]}")
    return failed[0] if failed else files[0]


def _child(
    source: Path, said: Path, limit: int, arguments: list[str], named: dict[str, str]
) -> None:
    """Pytest in a process that has torch already, on another source."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    descriptor = os.open(said, os.O_CREAT | os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(ROOT)
    os.environ |= {**named, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])}
    sys.path[:0] = [str(source), str(ROOT)]
    os._exit(int(pytest.main(arguments)))


@cache
def _library() -> Path:
    """A folder with the compiled look-ups and nothing else: no fault is in the C source."""
    kept = _KEPT / "library"
    if not kept.exists():
        large = "torch.zeros(1 << 16, dtype=torch.float64)"
        made = f"import torch; from iceform.backends import windowed; windowed.ready({large})"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "ICEFORM_CACHE": str(kept)}
        subprocess.run([sys.executable, "-c", made], env=environment, check=True)
    return kept


def passes(tests: Sequence[str]) -> bool:
    """Whether killers pass on the source as it is."""
    return _pytest(*tests).returncode == 0


def _pytest(*arguments: str, **files: Path) -> subprocess.CompletedProcess[str]:
    named = {f"ICEFORM_{name.upper()}": str(path) for name, path in files.items()}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *_QUIET, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **named},
    )  # fmt: skip
