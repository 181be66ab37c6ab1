"""The way of a fit through the source: ``python -m estimator_tests.path [estimator ...]``.

Counts the files of the package that run at least one function while an estimator fits: which,
how many functions of each, how many calls. What modules do when they are imported is not counted.
"""

import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import CodeType, FrameType

import numpy as np

import iceform
import iceform_estimators

# One folder where both are installed, two in a checkout.
ROOTS = {Path(package.__file__).parents[1] for package in (iceform, iceform_estimators)}

ESTIMATORS = (
    "InContextRidge",
    "InContextLasso",
    "InContextHuberRegressor",
    "InContextLogisticRegression",
)


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """A small regression, or whether its answers are above zero."""
    g = np.random.default_rng(0)
    x = g.normal(size=(32, 3))
    y = x @ [1.0, -2.0, 0.5] + g.normal(size=32)
    return x, (y > 0 if "Logistic" in name else y)


def calls_of_a_fit(name: str) -> Counter[CodeType]:
    """Every function of the package that ``fit`` enters, with how often."""
    x, y = data(name)
    estimator = getattr(iceform_estimators, name)()
    entered: Counter[CodeType] = Counter()
    importing = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal importing
        code = frame.f_code
        if code.co_name == "_find_and_load":  # an import, with all that it finds and runs
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing and is_of_the_package(code):
            entered[code] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        estimator.fit(x, y)
    finally:
        sys.setprofile(before)
    return entered


def is_of_the_package(code: CodeType) -> bool:
    return any(code.co_filename.startswith(f"{root}/iceform") for root in ROOTS)


def files_of_a_fit(name: str) -> dict[str, Counter[str]]:
    """File by file, its functions that ran and how often."""
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for code, n in calls_of_a_fit(name).items():
        path = Path(code.co_filename)
        (root,) = (root for root in ROOTS if path.is_relative_to(root))
        files[str(path.relative_to(root))][code.co_qualname] += n
    return dict(files)


def main(names: list[str]) -> None:
    """The first fit of each in this process, file by file, and the number of files of a second."""
    for name in names or ESTIMATORS:
        files = files_of_a_fit(name)
        again = len(files_of_a_fit(name))
        print(f"{name}().fit runs functions of {len(files)} files; of {again}, its tables made")
        for path, functions in sorted(files.items()):
            print(f"  {path:38} {len(functions):4} functions {functions.total():7} calls")


if __name__ == "__main__":
    main(sys.argv[1:])
