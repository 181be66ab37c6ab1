"""``python -m benchmarks.startup``: what a fresh process pays before its first result.

Every figure is CPU time of fresh processes, the least of a few, with an empty folder of tables:
only those are there that ship with the library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

RUNS = 3
DATA = "import numpy as np; g = np.random.default_rng(0); X = g.normal(size=(320, 10)); "
DATA += "y = X @ g.normal(size=10) + 0.1 * g.standard_t(2, size=320); "
CLOCK = "import time; t = time.process_time(); "
SAID = "; print(time.process_time() - t)"


def fresh(before: str, timed: str) -> float:
    """CPU seconds of some code in a process of its own, after other code."""
    found = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            settings = {**os.environ, "ICEFORM_CACHE": folder, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-c", before + CLOCK + timed + SAID]
            done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
        found.append(float(done.stdout))
    return min(found)


def main() -> None:
    """Print imports and first fits."""
    torch = fresh("", "import torch")
    ours = fresh("import torch; ", "import iceform")
    print(f"import torch {torch:.2f} s; iceform on top {ours:.3f} s, ratio {ours / torch:.3f}")
    for ours_name, theirs_name in (
        ("InContextHuberRegressor", "HuberRegressor"),
        ("InContextLogisticRegression", "LogisticRegression"),
        ("InContextLasso", "Lasso"),
    ):
        labels = "y = (y > 0).astype(int); " if "Logistic" in ours_name else ""
        times = [
            fresh(f"from {module} import {name}; {DATA}{labels}", f"{name}().fit(X, y)")
            for module, name in (
                ("iceform_estimators", ours_name),
                ("sklearn.linear_model", theirs_name),
            )
        ]
        print(
            f"first {ours_name}().fit on 320 x 10: {times[0]:.3f} s, scikit-learn's "
            f"{times[1]:.3f} s, {times[0] - times[1]:+.3f} s"
        )


if __name__ == "__main__":
    main()
