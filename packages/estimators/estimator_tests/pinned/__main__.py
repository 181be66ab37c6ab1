"""Write the list anew: ``python -m estimator_tests.pinned``, as ``python -m tests.pinned`` does."""

from pathlib import Path

from estimator_tests.pinned.values import every
from tests.pinned.values import write_list

LIST = Path(__file__).with_name("values.json")

if __name__ == "__main__":
    write_list(LIST, every())
