"""Write the list anew: ``python -m tests.pinned``. A change that is meant to move a value says so.

The changelog names what moved and why; whoever reads the commit sees the lines that changed.
"""

import json
import tempfile
from pathlib import Path

from tests.pinned.values import every

LIST = Path(__file__).with_name("values.json")

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = every(Path(folder))
    rows = {name: [pinned.kind, pinned.value] for name, pinned in sorted(found.items())}
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    LIST.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(rows)} values in {LIST.name}")
