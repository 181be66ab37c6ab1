"""Draw docs/images/playground.png: the page that ``iceform play`` serves, in Chromium.

Run as ``python docs/figures/playground.py``.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

TARGET = Path(__file__).parents[1] / "images" / "playground.png"
WINDOW = {"width": 1366, "height": 1430}
PATIENCE = 120_000  # milliseconds


def show(page: Page, address: str) -> None:
    """The page as it opens: a wave, ridge regression by momentum, every step proven.

    It is opened twice: the first answer of a process also loads the library.
    """
    page.set_default_timeout(PATIENCE)
    for _ in range(2):
        page.goto(address)
        expect(page.locator("#facts dd").first).to_contain_text("≤", timeout=PATIENCE)
        page.locator("#tab-passes").click()
        for busy in ("#board", "#panel"):
            expect(page.locator(f"{busy}[aria-busy=true]")).to_have_count(0, timeout=PATIENCE)
        page.wait_for_timeout(2000)  # plots are drawn


def main() -> None:
    """Serve it and take the picture."""
    command = [sys.executable, "-m", "iceform", "play", "--port", "0", "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found
        with sync_playwright() as play:
            chromium = play.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = chromium.new_page(viewport=WINDOW, color_scheme="light")
            show(page, found[0])
            page.screenshot(path=TARGET)
            chromium.close()
        server.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
