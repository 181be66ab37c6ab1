"""scikit-learn's own tests with our estimators put in: ``python -m tests.sklearn.scoreboard``.

A name such as ``sklearn.linear_model.Ridge`` is bound to ours while one of scikit-learn's test
files is imported and run, each file in a process of its own. A test counts if it builds one of
ours. Two kinds do not apply: tests that end in a refusal by name, of a parameter
(``iceform.sklearn._refusals.REASONS`` says why) or of sparse storage, which are counted by what is
refused; and tests of a solver from the inside, which ``not_applicable.json`` lists with a reason
each. Of the others the share that passes is printed; what fails is named with ``--failures``.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

LISTED = Path(__file__).with_name("not_applicable.json")
SECONDS = 60  # of processor time for one test: a busy machine changes nothing

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


@dataclass(eq=False)
class Board:
    """A pytest plugin: which tests build ours, and how they end."""

    out: str  # a file that always has the outcomes so far
    built: bool = False
    running: bool = False  # tests, no longer collecting them
    outcomes: dict[str, list[str]] = field(default_factory=dict)  # id: outcome, last line

    def put_in(self, path: str) -> None:
        """Bind scikit-learn's name to ours."""
        from sklearn.base import _clone_parametrized

        from iceform import sklearn as ours
        from iceform.algorithms import kinds
        from iceform.errors import ParameterError

        kind = next(k for k in kinds() if k.peer is not None and k.peer.path == path)
        board, base = self, getattr(ours, kind.estimator)

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
        own = type(
            name, (base,),
            {"__new__": new, "__init__": init, "__sklearn_clone__": copy, "fit": fit,
             "__module__": __name__},
        )  # fmt: skip
        setattr(sys.modules[__name__], name, own)  # for pickle
        setattr(importlib.import_module(module), name, own)
        self.kinds = (*getattr(self, "kinds", ()), own)

    def pytest_runtest_setup(self, item):
        given = getattr(getattr(item, "callspec", None), "params", {}).values()
        self.built = any(isinstance(value, self.kinds) for value in given)
        self.running = True
        signal.setitimer(signal.ITIMER_PROF, SECONDS)

    def pytest_runtest_teardown(self, item):
        signal.setitimer(signal.ITIMER_PROF, 0)

    def pytest_runtest_logreport(self, report):
        decided = report.when == "call" or report.outcome != "passed"
        if not decided or not self.built or report.outcome == "skipped":
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        last = "" if crash is None else str(crash.message)
        self.outcomes[report.nodeid.partition("::")[2]] = [report.outcome, last[:600]]
        Path(self.out).write_text(json.dumps(self.outcomes), encoding="utf-8")


def run_here(module: str, out: str) -> None:
    """One test file, in this process."""
    import pytest

    def late(*_):
        raise TimeoutError(f"{SECONDS} s of processor time are over")

    signal.signal(signal.SIGPROF, late)
    board = Board(out)
    Path(out).write_text("{}", encoding="utf-8")
    for path in MODULES[module]:
        board.put_in(path)
    folder = os.path.dirname(out)
    ended = pytest.main(
        ["-q", "--pyargs", module, "-p", "no:cacheprovider", "-c", os.devnull, "--tb=short",
         "--rootdir", folder, "-W", "ignore::pytest.PytestConfigWarning", "--no-header"],
        plugins=[board],
    )  # fmt: skip
    if ended not in (0, 1):
        raise SystemExit(f"{module}: pytest ended with {ended!r}")


def run_apart(module: str, seconds: float | None) -> tuple[dict[str, list[str]], bool]:
    """One test file, in a process of its own: what its tests came to, and whether all have ended.

    Of tests, those that build ours.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "outcomes.json")
        command = [sys.executable, "-m", "tests.sklearn.scoreboard", "--here", module, out]
        ended = True
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=seconds
            )
            if ran.returncode:
                raise SystemExit(f"{module} could not be run:\n{ran.stdout[-2000:]}{ran.stderr}")
        except subprocess.TimeoutExpired:
            ended = False
        return json.loads(Path(out).read_text(encoding="utf-8")), ended


def reason_for(test: str, outcome: list[str], listed: dict[str, str]) -> str | None:
    """Why a test does not apply; None where it does. A name alone stands for all its variants."""
    ended, last = outcome
    if ended != "passed":
        for pattern, text in _REFUSALS:
            if match := pattern.search(last.replace("\n", " ")):
                return text.format(match.group(0), *match.groups())
    return listed.get(test, listed.get(test.partition("[")[0]))


def main() -> int:
    """The board."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", help="last parts of test files' names; all of them")
    parser.add_argument("--here", nargs=2, metavar=("MODULE", "OUT"), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help="most time for one test file")
    parser.add_argument("--failures", action="store_true", help="name what fails")
    asked = parser.parse_args()
    if asked.here:
        run_here(*asked.here)
        return 0
    listed = json.loads(LISTED.read_text(encoding="utf-8")) if LISTED.exists() else {}
    totals, why = [0, 0, 0], Counter()
    print(f"{'test file':<28}{'build ours':>11}{'apply':>7}{'pass':>6}{'share':>8}")
    for module in MODULES:
        short = module.rpartition(".")[2]
        if asked.modules and short not in asked.modules:
            continue
        own = listed.get(short, {})
        outcomes, ended = run_apart(module, asked.seconds)
        reasons = {t: reason_for(t, o, own) for t, o in outcomes.items()}
        why.update(r if r.startswith(("refused", "sparse")) else "a solver from the inside"
                   for r in reasons.values() if r)  # fmt: skip
        applies = {t: o for t, o in outcomes.items() if reasons[t] is None}
        failed = {t: o[1] for t, o in applies.items() if o[0] != "passed"}
        counts = len(outcomes), len(applies), len(applies) - len(failed)
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        _line(short, counts)
        if not ended:
            print(f"  stopped after {asked.seconds:g} s: the counts are of the tests before")
        if asked.failures:
            for test, last in failed.items():
                print(f"  fails: {test}: {' '.join(last.split())[:200]}")
    _line("all", totals)
    print("do not apply:", ", ".join(f"{k}: {v}" for k, v in why.most_common()))
    return 0


def _line(name, counts) -> None:
    share = f"{counts[2] / counts[1]:.1%}" if counts[1] else "-"
    print(f"{name:<28}{counts[0]:>11}{counts[1]:>7}{counts[2]:>6}{share:>8}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
