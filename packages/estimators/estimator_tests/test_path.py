"""How many files a fit goes through: a number that does not grow in silence."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]


def in_a_process(code: str) -> subprocess.CompletedProcess:
    places = [str(ROOT), str(ROOT / "packages" / "estimators"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )


# Files that run a function in a fit: all of the four estimators', whose tables are proved in it,
# and those of one whose tables are made; ``python -m estimator_tests.path`` prints them.
WAY, WAY_AGAIN = 43, 26


def test_the_way_of_a_fit_does_not_grow_in_silence():
    """More files on it are more to read before a fit is understood: say why, or merge them.

    Nor does a first fit load compiler or algebra: each would take longer than the fit.
    """
    code = textwrap.dedent(
        """
        import json
        import sys
        from estimator_tests.path import ESTIMATORS, files_of_a_fit
        first = sorted(set().union(*map(files_of_a_fit, ESTIMATORS)))
        loaded = {"sympy", "torch._dynamo", "torch.distributed.tensor"} & set(sys.modules)
        again = [sorted(files_of_a_fit(name)) for name in ESTIMATORS]
        print(json.dumps([first, again, sorted(loaded)]))
        """
    )
    done = in_a_process(code)
    assert done.returncode == 0, done.stderr
    first, again, loaded = json.loads(done.stdout)
    assert not loaded
    assert "iceform/run/base.py" in first, "nothing was seen"
    assert len(first) <= WAY, first
    assert max(map(len, again)) <= WAY_AGAIN, again
    told = f"at most {WAY_AGAIN} once the tables are made, and {WAY} in the first fits"
    assert told in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
