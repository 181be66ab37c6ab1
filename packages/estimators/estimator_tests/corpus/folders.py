"""Folders of machines, algorithms and fits as version 2 wrote them (see tests/corpus)."""

from pathlib import Path

from iceform_estimators import Machine, algorithms
from tests.corpus.folders import Kept, X, Y

ROOT = Path(__file__).parent
SIZES = {"dim": 2, "samples": 2, "layout": "stream"}


def _run(algorithm):
    return Machine(**SIZES).run(algorithm, X, Y)


FOLDERS = {
    "machine": Kept(
        lambda path: Machine(**SIZES).save(path),
        lambda machine: machine.run(algorithms.Ridge(alpha=0.5), X, Y).value,
    ),
    "lasso": Kept(
        lambda path: algorithms.Lasso(alpha=0.01, tol=1e-6).save(path),
        lambda lasso: _run(lasso).value,
        digest=repr,
    ),
    "fit": Kept(
        lambda path: _run(algorithms.Lasso(alpha=0.01)).save(path),
        lambda result: result.value,
    ),
}
