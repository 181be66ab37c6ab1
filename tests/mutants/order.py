"""A plugin of pytest, ``-p tests.mutants.order``: the tests of ``ICEFORM_ORDER``, in that order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files stay together, so that what a file's tests share is made once."""
    order = json.loads(Path(os.environ["ICEFORM_ORDER"]).read_text(encoding="utf-8"))
    place = {test: i for i, test in enumerate(order)}
    files: dict[str, int] = {}
    for test in order:
        files.setdefault(test.split("::")[0], len(files))
    wanted = [item for item in items if item.nodeid in place]
    items[:] = sorted(
        wanted, key=lambda item: (files[item.nodeid.split("::")[0]], place[item.nodeid])
    )
