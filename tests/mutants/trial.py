"""Drawn mutants against the tests that execute their lines, quickest first.

Which tests those are is recorded once (:mod:`tests.mutants.lines`) and kept in ``out/mutants``. Of
the tests of its folder that execute its line a mutant meets as many as take ``SECONDS`` of
processor time, one of each function first; then, as answers are also kept between tests, the others
of the same files. The first that fails kills it. A mutant that computes ``PATIENCE`` times as long
as its tests do otherwise hangs, which is noticed too.

This is a plugin of pytest as well: a session that has collected the tests of a folder forks once a
mutant, changes the code of the functions that the fault is in, and runs its tests. What is wrong
outside of functions runs when a module is imported: for that the session is begun anew on a copy.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.drawn import FOLDERS, SOURCE, Fault, all_faults
from tests.mutants.mutant import ROOT

SECONDS = 30.0
PATIENCE = 4.0
_START = 20.0  # seconds of processor time that the first test may take more
_AGAIN = "begin anew"
_KEPT = ROOT / "out" / "mutants"
_CONFORMANCE = "tests/paper/test_residual.py"
_SUITES = {
    "heads": ("tests/run/test_interventions.py", _CONFORMANCE),
    "tables": (_CONFORMANCE,),
    "run": (_CONFORMANCE,),
    "certificates": ("tests/test_shown.py", _CONFORMANCE),
}
SUITES = {folder: (f"tests/{folder}", *_SUITES.get(folder, ())) for folder in FOLDERS}

# ------------------------------------------------------------------------------ who meets whom


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
    places = [ROOT / suite for suite in SUITES[folder]]
    files = [f for p in places for f in ([p] if p.is_file() else sorted(p.glob("test_*.py")))]
    newest = max(p.stat().st_mtime for p in (SOURCE / folder).glob("*.py"))
    records = []
    for file in files:
        name = str(file.relative_to(ROOT))
        kept = _KEPT / "lines" / f"{name.replace('/', '-')}.json"
        if not kept.exists() or kept.stat().st_mtime < max(newest, file.stat().st_mtime):
            kept.parent.mkdir(parents=True, exist_ok=True)
            print(f"recording which lines {name} executes", flush=True)
            done = _pytest(SOURCE.parent, "-p", "tests.mutants.lines", name, LINES=kept)
            if done.returncode:
                raise RuntimeError(f"{name} fails as it is:\n{done.stdout[-3000:]}")
        found = json.loads(kept.read_text(encoding="utf-8"))
        records.append(Record(tuple(found["seconds"]), found["seconds"], found["lines"]))
    return records


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


# --------------------------------------------------------------------------------- the sessions


def run(faults: Sequence[Fault], records: Sequence[Record], workers: int, kept: Path) -> None:
    """Add a line to ``kept`` for each mutant: its key, and the first test that fails or None."""
    work = [(fault.path, fault.key, *chosen(fault, records)) for fault in faults]
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        _session(SOURCE.parent, work, workers, kept)
        verdicts = dict(json.loads(line) for line in kept.read_text().splitlines())
        for fault, job in zip(faults, work, strict=True):
            if verdicts.get(fault.key) == _AGAIN:
                shutil.copytree(SOURCE.parent, copy)
                fault.apply(copy)
                _session(copy, [job], workers, kept)
                shutil.rmtree(copy)


def _session(source: Path, work: Sequence[Any], workers: int, kept: Path) -> None:
    files = dict.fromkeys(test.split("::")[0] for job in work for test in job[2])
    with TemporaryDirectory() as folder:
        listed = Path(folder) / "work.json"
        listed.write_text(json.dumps([workers, work]), encoding="utf-8")
        done = _pytest(source, "-p", "tests.mutants.trial", *files, WORK=listed, VERDICTS=kept)
    if done.returncode not in (0, 5) and len(work) == 1:  # it cannot even be imported
        _write(kept, work[0][1], next(iter(files)))
    elif done.returncode not in (0, 5):
        raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])


def passes(tests: Sequence[str]) -> bool:
    """Whether killers pass on the source as it is."""
    return _pytest(SOURCE.parent, *tests).returncode == 0


def _pytest(source: Path, *arguments: str, **files: Path) -> subprocess.CompletedProcess[str]:
    named = {f"ICEFORM_{name}": str(path.resolve()) for name, path in files.items()}
    paths = os.pathsep.join([str(source), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **named},
    )  # fmt: skip


def _write(kept: Path, key: str, killer: str | None) -> None:
    with kept.open("a", encoding="utf-8") as file:
        file.write(json.dumps([key, killer]) + "\n")


@cache
def _library() -> Path:
    """A folder with the compiled look-ups and nothing else: no fault is in the C source."""
    kept = _KEPT / "library"
    if not kept.exists():
        made = "import torch; from iceform.run import windowed; windowed.ready(torch.zeros(1))"
        environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "ICEFORM_CACHE": str(kept)}
        subprocess.run([sys.executable, "-c", made], env=environment, check=True)
    return kept


# ---------------------------------------------------------------------------- inside of pytest


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Instead of the tests: every mutant in a fork, so many at once."""
    if "ICEFORM_WORK" not in os.environ or session.testsfailed:
        return None
    workers, work = json.loads(Path(os.environ["ICEFORM_WORK"]).read_text(encoding="utf-8"))
    kept = Path(os.environ["ICEFORM_VERDICTS"])
    items = {item.nodeid: item for item in session.items}
    running: dict[int, str] = {}
    for path, key, tests, seconds in work:
        if len(running) == workers:
            _wait(running, kept)
        child = os.fork()
        if not child:
            wanted = [items[test] for test in tests if test in items]
            _fork(path, key, wanted, seconds, kept)
        running[child] = key
    while running:
        _wait(running, kept)
    return True


def _wait(running: dict[int, str], kept: Path) -> None:
    child, status = os.wait()
    if status:  # it was ended, as it took too long, or has crashed
        _write(kept, running[child], "hangs" if os.WIFSIGNALED(status) else "crashes")
    del running[child]


def _fork(path: str, key: str, items: list[pytest.Item], seconds: float, kept: Path) -> None:
    """One mutant: never returns."""
    status = 1
    try:
        limit = int(_START + PATIENCE * seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        with TemporaryDirectory() as folder:
            tables = Path(folder) / "tables"
            if path != "run/windowed.py":
                shutil.copytree(_library(), tables)
            os.environ["ICEFORM_CACHE"] = str(tables)
            _write(kept, key, _met(path, key, items))
        status = 0
    finally:
        os._exit(status)


def _met(path: str, key: str, items: list[pytest.Item]) -> str | None:
    module = importlib.import_module(f"iceform.{path.removesuffix('.py').replace('/', '.')}")
    own = Path(str(module.__file__))
    if own == SOURCE / path and not _change(own, path, key):
        return _AGAIN
    files = list(dict.fromkeys(item.nodeid.split("::")[0] for item in items))
    items = sorted(items, key=lambda item: files.index(item.nodeid.split("::")[0]))
    for item, following in pairwise([*items, None]):
        assert item is not None
        if any(report.failed for report in runtestprotocol(item, False, following)):
            return item.nodeid
    return None


def _change(own: Path, path: str, key: str) -> bool:
    """Give the functions of a file the code that they have with a fault; False where that fails."""
    fault = next(fault for fault in all_faults(path) if fault.key == key)
    before, (start, stop) = own.read_bytes(), fault.span
    after = before[:start] + fault.after.encode() + before[stop:]
    old, new = (list(_codes(compile(text, str(own), "exec"))) for text in (before, after))
    if len(old) != len(new) or any(
        not a.co_flags & 1 and _bare(a) != _bare(b) for a, b in zip(old, new, strict=True)
    ):  # functions went away, or what runs on import is different
        return False
    wrong: dict[str, list[tuple[int, CodeType]]] = {}
    for a, b in zip(old, new, strict=True):
        wrong.setdefault(a.co_qualname, []).append((a.co_firstlineno, b))
    gc.unfreeze()
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == str(own):
            among = wrong.get(function.__code__.co_qualname, [])
            line = function.__code__.co_firstlineno
            found = [b for at, b in among if len(among) == 1 or at == line]
            if len(found) == 1:
                function.__code__ = found[0]
    return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _bare(code: CodeType) -> tuple[Any, ...]:
    """What a module or a class does, whatever its functions do."""
    constants = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
    return code.co_code, constants, code.co_names
