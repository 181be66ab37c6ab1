"""scikit-learn's own tests with our estimators: ``python -m estimator_tests.sklearn.scoreboard``.

A name such as ``sklearn.linear_model.Ridge`` is bound to ours while one of scikit-learn's test
files is imported and run, each file in a process of its own. A test counts if it builds one of
ours. Two kinds do not apply: tests that end in a refusal by name, of a parameter
(``iceform_estimators._refusals.REASONS`` says why) or of sparse storage, which are counted by
what is refused; and tests of a solver from the inside, which ``not_applicable.json`` lists with a
reason each and with what they fail at: one that fails at something else applies, and so does one
that
passes. Of those that apply the share that passes is printed; what fails is named with
``--failures``.

Outcomes are kept in ``out/scikit-learn`` as they come. A run that ``--seconds`` ends goes on where
it stopped; ``--fresh`` begins again; ``--workers`` processes share the tests, and with 0 of them
what is kept is told. The table of the files that are complete is written into
docs/estimators.md, which names the others.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import inspect
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "estimators.md"
BEGIN, END = "<!-- scoreboard: begin -->", "<!-- scoreboard: end -->"
KEPT = ROOT / "out" / "scikit-learn"
ROWS = ROOT / "results" / "pages" / "scikit-learn.json"
LISTED = Path(__file__).with_name("not_applicable.json")
SECONDS = 120  # of processor time for one test: a busy machine changes nothing

LEFT = "left for another run, or for another process"

_LINEAR = "sklearn.linear_model"
MODULES = {
    f"{_LINEAR}.tests.test_base": (f"{_LINEAR}.LinearRegression",),
    f"{_LINEAR}.tests.test_ridge": (f"{_LINEAR}.Ridge",),
    f"{_LINEAR}.tests.test_coordinate_descent": (f"{_LINEAR}.Lasso", f"{_LINEAR}.ElasticNet"),
    f"{_LINEAR}.tests.test_huber": (f"{_LINEAR}.HuberRegressor",),
    f"{_LINEAR}.tests.test_logistic": (f"{_LINEAR}.LogisticRegression",),
    f"{_LINEAR}.tests.test_quantile": (f"{_LINEAR}.QuantileRegressor",),
    f"{_LINEAR}.tests.test_perceptron": (f"{_LINEAR}.Perceptron",),
    f"{_LINEAR}._glm.tests.test_glm": (f"{_LINEAR}.PoissonRegressor",),
    "sklearn.svm.tests.test_svm": ("sklearn.svm.LinearSVC",),
    "sklearn.neighbors.tests.test_neighbors": (
        "sklearn.neighbors.KNeighborsRegressor",
        "sklearn.neighbors.KNeighborsClassifier",
    ),
    "sklearn.decomposition.tests.test_pca": ("sklearn.decomposition.PCA",),
}
# What is refused by name: an exception that says so is the reason.
_REFUSALS = (
    (re.compile(r"refuses (\w+)="), "refused parameter {1}"),
    (re.compile(r"'(n_components)' parameter .* Got 'mle'"), "refused parameter {1}"),
    (re.compile(r"unexpected keyword argument '(sparse\w*)'|Sparse data was passed"),
     "sparse storage"),
)  # fmt: skip


@dataclass
class Outcomes:
    """What the tests of a file came to; how they ended, of those that build ours."""

    collected: int = -1  # before the first run
    ran: set[str] = field(default_factory=set)
    ended: dict[str, list[str]] = field(default_factory=dict)  # id: outcome, last line
    taken: set[str] = field(default_factory=set)  # by a process of this run

    @property
    def complete(self) -> bool:
        """Whether every test has been run."""
        return len(self.ran) == self.collected

    @property
    def left(self) -> bool:
        """Whether there is a test that no process has taken."""
        return len(self.taken | self.ran) != self.collected


class Record:
    """The outcomes of a file's tests: a line of JSON each, which several processes add to."""

    def __init__(self, module: str) -> None:
        self.path = KEPT / f"{module}.jsonl"

    def read(self) -> Outcomes:
        """Of the runs so far."""
        found = Outcomes()
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        for kind, *told in map(json.loads, text.splitlines()):
            if kind == "collected":
                found.collected = told[0]
            elif kind == "taken":
                found.taken.add(told[0])
            else:
                found.ran.add(told[0])
                if kind == "ended":
                    found.ended[told[0]] = told[1:3]
        return found

    def add(self, *line: str | float) -> None:
        """One line."""
        KEPT.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")  # one write: whole lines, whoever else adds some

    def take(self, test: str) -> bool:
        """Whether the test is this process's to run."""
        with self.path.open("r", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            found = self.read()
            free = test not in found.taken | found.ran
            if free:
                self.add("taken", test)
        return free

    def begin(self, fresh: bool) -> None:
        """A run: what an earlier one took and did not end is to be had again."""
        if self.path.exists():
            lines = [] if fresh else self.path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if json.loads(line)[0] != "taken"]
            self.path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


@dataclass(eq=False)
class Board:
    """A pytest plugin: which tests build ours, and how they end."""

    record: Record
    until: float  # on the clock: later tests are left for another run
    built: bool = False
    running: bool = False  # tests, no longer collecting them

    def put_in(self, path: str) -> None:
        """Bind scikit-learn's name to ours."""
        from sklearn.base import _clone_parametrized

        import iceform_estimators as ours
        from iceform.errors import ParameterError

        board, base = self, getattr(ours, _ours(path))

        def new(cls, *args, **kwargs):
            board.built = True
            return object.__new__(cls)

        def init(self, *args, **kwargs):
            try:
                base.__init__(self, *args, **kwargs)
            except ParameterError as refused:
                if board.running:
                    raise
                base.__init__(self)  # in a list of cases: refused when a test takes it
                self.refused = refused

        def copy(self):
            if hasattr(self, "refused"):
                raise self.refused
            return _clone_parametrized(self)

        def fit(self, *args, **kwargs):
            if hasattr(self, "refused"):
                raise self.refused
            return base.fit(self, *args, **kwargs)

        init.__signature__ = inspect.signature(base.__init__)
        fit.__signature__ = inspect.signature(base.fit)
        module, _, name = path.rpartition(".")
        theirs = getattr(importlib.import_module(module), name)
        # A test asks by this base, of which ours shadow everything, whether there is a k.
        marks = [kind for kind in theirs.__mro__ if kind.__name__ == "KNeighborsMixin"]
        assert all(hasattr(base, n) for kind in marks for n in vars(kind) if n[0] != "_")
        own = type(
            name, (base, *marks),
            {"__new__": new, "__init__": init, "__sklearn_clone__": copy, "fit": fit,
             "__module__": __name__},
        )  # fmt: skip
        setattr(sys.modules[__name__], name, own)  # for pickle
        setattr(importlib.import_module(module), name, own)
        self.kinds = (*getattr(self, "kinds", ()), own)

    def pytest_collection_modifyitems(self, items):
        self.record.add("collected", len(items))
        ran = self.record.read().ran
        items[:] = [item for item in items if _name(item) not in ran]

    def pytest_runtest_setup(self, item):
        if time.monotonic() > self.until or not self.record.take(_name(item)):
            import pytest

            pytest.skip(LEFT)
        given = getattr(getattr(item, "callspec", None), "params", {}).values()
        self.built = any(isinstance(value, self.kinds) for value in given)
        self.running = True
        signal.setitimer(signal.ITIMER_PROF, SECONDS)

    def pytest_runtest_teardown(self, item):
        signal.setitimer(signal.ITIMER_PROF, 0)

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown" or (report.when == "setup" and report.passed):
            return
        if report.skipped and LEFT in str(report.longrepr):
            return
        if self.built and not report.skipped:
            chain = getattr(report.longrepr, "chain", ())  # one may have come of another
            last = " / ".join(str(crash.message)[:600] for _, crash, _ in chain if crash)
            ended = (report.outcome, last, round(report.duration, 1))
            self.record.add("ended", _name(report), *ended)
        else:
            self.record.add("ran", _name(report))


def _ours(path: str) -> str:
    """The estimator in the place of scikit-learn's."""
    from iceform_estimators.algorithms import kinds

    return next(k.estimator for k in kinds() if k.peer is not None and k.peer.path == path)


def _name(of) -> str:
    return of.nodeid.partition("::")[2]


def run_here(module: str, until: float) -> None:
    """What is left of one test file, in this process."""
    import pytest

    KEPT.mkdir(parents=True, exist_ok=True)
    output = os.open(KEPT / f"{module}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)

    def late(*_):
        raise TimeoutError(f"{SECONDS} s of processor time are over")

    signal.signal(signal.SIGPROF, late)
    # Its conftest gives a process as many threads as it has cores, less where it knows of others.
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(os.cpu_count())
    board = Board(Record(module), until)
    for path in MODULES[module]:
        board.put_in(path)
    os.chdir(KEPT)  # where no conftest of ours is, which would begin with no tables
    ended = pytest.main(
        ["-q", "--pyargs", module, "-p", "no:cacheprovider", "-c", os.devnull, "--tb=short",
         "--rootdir", str(KEPT), "-W", "ignore::pytest.PytestConfigWarning", "--no-header"],
        plugins=[board],
    )  # fmt: skip
    if ended not in (0, 1, 5):  # 5: nothing is left
        raise SystemExit(f"{module}: pytest ended with {ended!r}")


def run_shared(modules: list[str], until: float, workers: int) -> None:
    """The test files, each process running one of them as long as it has tests that are not taken.

    Processes are forks of this one, which has imported and fitted what they will.
    """
    _warm()
    forks = multiprocessing.get_context("fork")
    begun: dict[int, tuple[str, BaseProcess]] = {}
    broken: set[str] = set()
    while True:
        left = [m for m in modules if m not in broken and Record(m).read().left]
        left.sort(key=lambda m: sum(m == one for one, _ in begun.values()))
        if left and len(begun) < workers and time.monotonic() < until:
            process = forks.Process(target=run_here, args=(left[0], until))
            process.start()
            begun[process.sentinel] = (left[0], process)
            continue
        if not begun:
            break
        for ended in connection.wait(list(begun)):
            module, process = begun.pop(ended)
            process.join()
            if process.exitcode:
                broken.add(module)
    if broken:
        raise SystemExit(f"ended early: {', '.join(sorted(broken))}; {KEPT} has their output")


def _warm() -> None:
    """Import what tests import, fit what they fit, once; on one thread, as forks have no others."""
    import numpy as np
    import pytest  # noqa: F401
    import torch
    from sklearn.base import is_classifier
    from threadpoolctl import threadpool_limits

    import iceform_estimators as ours

    torch.set_num_threads(1)
    threadpool_limits(1)
    x = np.random.default_rng(0).normal(size=(30, 3))
    for path in sorted({path for paths in MODULES.values() for path in paths}):
        estimator = getattr(ours, _ours(path))()
        classes = (x[:, 0] > 0).astype(float)
        estimator.fit(x, classes if is_classifier(estimator) else np.exp(x[:, 0]))


Listed = dict[str, dict[str, str]]  # by the test's name: why, and what it fails at


def reason_for(test: str, outcome: list[str], listed: Listed) -> str | None:
    """Why a test does not apply; None where it does. A name alone stands for all its variants."""
    ended, last = outcome
    if ended == "passed":
        return None
    last = " ".join(last.split())
    for pattern, text in _REFUSALS:
        if match := pattern.search(last):
            return text.format(match.group(0), *match.groups())
    one = listed.get(test, listed.get(test.partition("[")[0]))
    return one["why"] if one is not None and re.search(one["fails"], last) else None


@dataclass(frozen=True)
class Row:
    """A line of the board."""

    name: str
    built: int
    applies: int
    passed: int

    @property
    def share(self) -> str:
        return f"{self.passed / self.applies:.1%}" if self.applies else "-"


@dataclass(frozen=True)
class Judged:
    """One file's outcomes, sorted."""

    row: Row
    why: Counter[str]  # of those that do not apply
    failed: dict[str, str]


def judge(module: str, outcomes: Outcomes, listed: dict[str, Listed]) -> Judged:
    """Which tests apply, and which of these pass."""
    short = module.rpartition(".")[2]
    reasons = {t: reason_for(t, o, listed.get(short, {})) for t, o in outcomes.ended.items()}
    applies = {t: o for t, o in outcomes.ended.items() if reasons[t] is None}
    failed = {t: last for t, (ended, last) in applies.items() if ended != "passed"}
    why = Counter(
        r.partition(":")[0] if r.startswith(("refused", "sparse")) else "a solver from the inside"
        for r in reasons.values() if r
    )  # fmt: skip
    row = Row(short, len(outcomes.ended), len(applies), len(applies) - len(failed))
    return Judged(row, why, failed)


def total(rows: list[Row]) -> Row:
    """Of all files."""
    return Row("all", *(sum(getattr(r, n) for r in rows) for n in ("built", "applies", "passed")))


def summary(found: list[Judged], missing: list[str]) -> dict:
    """What a run found, as it is kept."""
    why = sum((f.why for f in found), Counter())
    return {"rows": [asdict(f.row) for f in found], "why": dict(why), "missing": missing}


def table(found: dict) -> str:
    """As the page has it."""
    rows, missing = [Row(**row) for row in found["rows"]], found["missing"]
    why = Counter(found["why"])
    lines = ["| scikit-learn's file | tests that build ours | apply | pass | share |",
             "| --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    lines += [f"| `{r.name}` | {r.built} | {r.applies} | {r.passed} | {r.share} |"
              for r in (*rows, total(rows))]  # fmt: skip
    listed = "; ".join(f"{reason}, {count}" for reason, count in why.most_common())
    lines += ["", f"Do not apply: {listed}."]
    if missing:
        lines += ["", f"Not measured as a whole: {'; '.join(missing)}."]
    return "\n".join(lines)


def main() -> int:
    """The board."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", help="last parts of test files' names; all of them")
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="after which this run begins no further test")  # fmt: skip
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument("--fresh", action="store_true", help="run all tests again")
    parser.add_argument("--failures", action="store_true", help="name what fails")
    asked = parser.parse_args()
    chosen = [m for m in MODULES if not asked.modules or m.rpartition(".")[2] in asked.modules]
    if asked.workers:  # with none, another run may be under way
        for module in chosen:
            Record(module).begin(asked.fresh)
        run_shared(chosen, time.monotonic() + asked.seconds, asked.workers)
    listed = json.loads(LISTED.read_text(encoding="utf-8"))
    every = {module: Record(module).read() for module in MODULES}
    print(f"{'test file':<28}{'build ours':>11}{'apply':>7}{'pass':>6}{'share':>8}")
    for module in chosen:
        outcomes = every[module]
        judged = judge(module, outcomes, listed)
        _line(judged.row)
        if not outcomes.complete:
            print(f"  {len(outcomes.ran)} of {outcomes.collected} tests so far")
        if asked.failures:
            for test, last in judged.failed.items():
                print(f"  fails: {test}: {' '.join(last.split())[:200]}")
    found = [judge(module, kept, listed) for module, kept in every.items() if kept.complete]
    _line(total([f.row for f in found]))
    missing = [_so_far(judge(m, kept, listed).row, kept)
               for m, kept in every.items() if not kept.complete]  # fmt: skip
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    board = summary(found, missing)
    ROWS.write_text(json.dumps(board, indent=1) + "\n", encoding="utf-8")
    made = f"{before}{BEGIN}\n{table(board)}\n{END}{rest.partition(END)[2]}"
    PAGE.write_text(made, encoding="utf-8")
    return 0


def _so_far(row: Row, kept: Outcomes) -> str:
    if not kept.ran:
        return f"`{row.name}`"
    return (
        f"`{row.name}` ({len(kept.ran)} of {kept.collected} tests run: {row.passed} of "
        f"{row.applies} that apply pass)"
    )


def _line(row: Row) -> None:
    counts = f"{row.built:>11}{row.applies:>7}{row.passed:>6}{row.share:>8}"
    print(f"{row.name:<28}{counts}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
