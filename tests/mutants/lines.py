"""Which tests execute which lines: recorded once, so that a mutant meets only tests that see it.

A plugin of pytest, ``-p tests.mutants.lines``: it writes what one run of pytest has executed of
``src/iceform`` into the file that ``ICEFORM_LINES`` names. Each test file is run by itself, so
that nothing is left over from the tests of another.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).parents[2]
_SOURCE = ROOT / "src" / "iceform"
_seconds: dict[str, float] = {}
_watch = coverage.Coverage(data_file=None, source=[str(_SOURCE)], config_file=False)
_watch.start()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lines belong to the test that is running; those of imports to none."""
    _watch.switch_context(item.nodeid)
    began = time.process_time()
    yield
    _seconds[item.nodeid] = time.process_time() - began


def pytest_sessionfinish() -> None:
    """Seconds by test, and for each line of each file the tests that executed it, by number."""
    _watch.stop()
    data, number = _watch.get_data(), {test: i for i, test in enumerate(_seconds)}
    lines = {
        str(Path(path).relative_to(_SOURCE)): {
            line: sorted(number[test] for test in tests if test)
            for line, tests in data.contexts_by_lineno(path).items()
        }
        for path in data.measured_files()
    }
    found = {"seconds": _seconds, "lines": lines}
    Path(os.environ["ICEFORM_LINES"]).write_text(json.dumps(found), encoding="utf-8")
