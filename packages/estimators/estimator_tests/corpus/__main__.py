"""``python -m estimator_tests.corpus``: add the folders that are missing."""

from estimator_tests.corpus.folders import FOLDERS, ROOT
from tests.corpus.folders import add_missing

if __name__ == "__main__":
    add_missing(FOLDERS, ROOT)
