"""An event loop that complains (an exception that nobody looked at) fails the tests."""

import gc
import logging

import pytest


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


@pytest.fixture(scope="module", autouse=True)
def _quiet_loops():
    kept, log = _Kept(), logging.getLogger("asyncio")
    log.addHandler(kept)
    yield
    gc.collect()
    log.removeHandler(kept)
    assert not kept.said, "\n".join(kept.said)
