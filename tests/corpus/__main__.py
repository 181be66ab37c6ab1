"""``python -m tests.corpus``: add the folders that are missing."""

from tests.corpus.folders import FOLDERS, ROOT, add_missing

if __name__ == "__main__":
    add_missing(FOLDERS, ROOT)
