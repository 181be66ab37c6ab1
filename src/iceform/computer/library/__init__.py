"""Algorithms written in the language, each at most fifteen lines: ``library.ridge`` is one.

:data:`ALGORITHMS` has all of them by name, :data:`EXAMPLES` each with small data to run it on.
"""

from iceform.computer.language import Algorithm
from iceform.computer.library.algorithms import gradient_descent
from iceform.computer.library.examples import EXAMPLES, LibraryExample

ALGORITHMS: dict[str, Algorithm] = {name: e.algorithm for name, e in EXAMPLES.items()}

__all__ = ["ALGORITHMS", "EXAMPLES", "LibraryExample", "gradient_descent"]


def __getattr__(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise AttributeError(f"the library has no attribute {name!r}; it has {known}")
    return ALGORITHMS[name]


def __dir__() -> list[str]:
    return sorted([*__all__, *ALGORITHMS])
