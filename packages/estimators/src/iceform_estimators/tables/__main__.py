"""``python -m iceform_estimators.tables FILE`` writes the Ames houses as a CSV file."""

from __future__ import annotations

import sys
from pathlib import Path

from iceform_estimators.tables.columns import ames
from iceform_estimators.tables.reading import write_rows


def main(path: str) -> None:
    """Write the Ames table as a CSV file: something to try the command line on."""
    table = ames()
    columns = {"price": table.target, **dict(table.features.items())}
    Path(path).write_bytes(write_rows([columns], ".csv"))


if __name__ == "__main__":
    main(sys.argv[1])
