"""Write the list anew: ``python -m tests.pinned``. A change that is meant to move a value says so.

The changelog names what moved and why; whoever reads the commit sees the lines that changed.
"""

import tempfile
from pathlib import Path

from tests.pinned.values import every, write_list

LIST = Path(__file__).with_name("values.json")

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_list(LIST, every(Path(folder)))
