"""Ridge regression on a million rows beside scikit-learn's LSQR: time, memory, distance.

Run with ``python -m benchmarks.large_ridge``. Both are fitted in turn on the same arrays, with the
threads the machine gives them; memory is the peak of a process of its own that makes the data and
fits them once.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import Ridge

from iceform_estimators import InContextRidge

ALPHA = 1.0
KINDS = ("standard", "scaled")
_AT_ONCE = 20_000  # rows in extended precision


def make(kind: str, rows: int, dim: int) -> tuple[Any, Any]:
    """Normal columns; "scaled" ones differ in size by 100 and do not lie around zero."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, dim))
    if kind == "scaled":
        x += rng.uniform(-3, 3, dim)
        x *= np.geomspace(0.1, 10, dim)
    y = x @ (rng.standard_normal(dim) / x[:1000].std(0))
    y += rng.standard_normal(rows)
    return x, y


def distance(x: Any, y: Any, model: Any) -> float:
    """How far coefficients are from the exact ones: a Newton step by extended precision.

    The gradient is added up in long doubles, so the step is right to about 1e-3 of itself.
    """
    rows, dim = x.shape
    coef, last = model.coef_.astype(np.longdouble), np.longdouble(model.intercept_)
    gradient = np.zeros(dim + 1, dtype=np.longdouble)
    gram = np.zeros((dim + 1, dim + 1))
    for start in range(0, rows, _AT_ONCE):
        part = np.hstack([x[start : start + _AT_ONCE], np.ones((len(x[start:][:_AT_ONCE]), 1))])
        gram += part.T @ part
        wide = part.astype(np.longdouble)
        residual = wide[:, :dim] @ coef + last - y[start : start + _AT_ONCE]
        gradient += residual @ wide
    gradient[:dim] += ALPHA * coef
    gram[np.arange(dim), np.arange(dim)] += ALPHA
    return float(np.abs(np.linalg.solve(gram, gradient.astype(float)))[:dim].max())


def timed(fit: Callable[[], Any]) -> tuple[Any, float, float]:
    """A fit, its seconds, and the seconds all threads spent on it."""
    wall, cpu = time.perf_counter(), time.process_time()
    model = fit()
    return model, time.perf_counter() - wall, time.process_time() - cpu


def compare(kind: str, rows: int, dim: int, repeats: int) -> float:
    """Print both, and return the ratio of the median times."""
    x, y = make(kind, rows, dim)
    fits = {
        "InContextRidge": lambda: InContextRidge(ALPHA).fit(x, y),
        "Ridge(lsqr)": lambda: Ridge(ALPHA, solver="lsqr").fit(x, y),
        "Ridge(lsqr, tol=1e-10)": lambda: Ridge(ALPHA, solver="lsqr", tol=1e-10).fit(x, y),
    }
    walls: dict[str, list[float]] = {name: [] for name in fits}
    cpus: dict[str, list[float]] = {name: [] for name in fits}
    models = {}
    for _ in range(repeats):
        for name, fit in fits.items():
            models[name], wall, cpu = timed(fit)
            walls[name].append(wall)
            cpus[name].append(cpu)
    print(f"\n{rows} x {dim}, {kind} columns, median (least) of {repeats}")
    print(f"{'':24}{'seconds':>16}{'CPU s':>8}{'passes':>8}{'certified':>11}{'measured':>11}")
    for name, model in models.items():
        seconds = f"{statistics.median(walls[name]):.2f} ({min(walls[name]):.2f})"
        passes = np.max(model.n_iter_)
        proven = f"{model.certificate_:.1e}" if hasattr(model, "certificate_") else "-"
        print(
            f"{name:24}{seconds:>16}{statistics.median(cpus[name]):8.2f}{passes:>8}{proven:>11}"
            f"{distance(x, y, model):11.1e}"
        )
    ours, theirs = (statistics.median(walls[name]) for name in list(fits)[:2])
    print(f"ratio to Ridge(lsqr): {ours / theirs:.2f}")
    return ours / theirs


def peak(rows: int, dim: int) -> float:
    """GiB that this process has had at most, data included."""
    x, y = make("standard", rows, dim)
    InContextRidge(ALPHA).fit(x, y)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Compare, and measure memory in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak", action="store_true", help="only fit once and print the memory")
    asked = parser.parse_args()
    if asked.peak:
        print(peak(asked.rows, asked.dim))
        return
    command = [sys.executable, "-m", "benchmarks.large_ridge", "--peak"]
    command += ["--rows", str(asked.rows), "--dim", str(asked.dim)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    print(f"peak memory of data and fit: {float(found.stdout):.2f} GiB")
    for kind in KINDS:
        compare(kind, asked.rows, asked.dim, asked.repeats)


if __name__ == "__main__":
    main()
