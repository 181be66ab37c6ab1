"""Draw docs/images/playground.png: the page that ``iceform play`` serves, in Chromium.

The page must be built: ``make page``.
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
WINDOW = {"width": 1366, "height": 1100}
PATIENCE = 120_000  # milliseconds


def show(page: Page, address: str) -> None:
    """The last step of the lesson: the text GPT-2 has run its example."""
    page.set_default_timeout(PATIENCE)
    page.goto(address + "#lesson=11")
    page.locator("#text-run").click()
    expect(page.locator("#text-said")).to_contain_text("the end", timeout=PATIENCE)
    page.locator(".written .word").nth(4).click()


def main() -> None:
    """Serve it and take the picture."""
    command = [sys.executable, "-m", "iceform", "play", "--port", "0", "--no-open"]
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
