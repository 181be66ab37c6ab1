"""Chromium, a plain host of files, and the page, built once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from iceform_playground import site
from iceform_playground.command import page_server
from playground_tests.visit import CHROMIUM, LAPTOP, PATIENCE

ROOT = Path(__file__).parents[3]


@contextmanager
def hosted(folder: Path) -> Iterator[str]:
    """Files of a folder, as ``iceform play`` serves them."""
    with page_server(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page, built now, or the one in a folder that ``ICEFORM_SITE`` names."""
    named = os.environ.get("ICEFORM_SITE")
    folder = Path(named) if named else tmp_path_factory.mktemp("site") / "play"
    if not named:
        site.build(folder, keep=ROOT / "out" / "npm")
    with hosted(folder) as url:
        yield url


@pytest.fixture
def context(browser: Browser, address: str) -> Iterator[BrowserContext]:
    """Nothing but the host can be reached."""
    made = browser.new_context(viewport=LAPTOP, color_scheme="light")
    made.set_default_timeout(PATIENCE)
    made.route(
        lambda url: not url.startswith((address, "blob:", "data:")), lambda route: route.abort()
    )
    yield made
    made.close()
