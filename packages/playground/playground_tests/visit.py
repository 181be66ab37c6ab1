"""The page as one visitor sees it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 120_000  # milliseconds, on a busy machine
AUDIT = Path(__file__).with_name("audit.js").read_text(encoding="utf-8")
LAPTOP = {"width": 1366, "height": 768}
PHONE = {"width": 390, "height": 844}


class Visit:
    """A page that was opened; it collects what the console says."""

    def __init__(self, context: BrowserContext, address: str, fragment: str = "") -> None:
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.bytes = 0
        self.page.on("console", lambda m: self.said.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.said.append(f"error: {e}"))
        self.page.on("response", lambda r: self._count(r.headers.get("content-length", "0")))
        self.page.goto(address + fragment)
        self.settled()

    def _count(self, length: str) -> None:
        self.bytes += int(length)

    def settled(self) -> None:
        """Wait for an answer to what is asked now."""
        expect(self.page.locator("#unchanged")).to_contain_text("the same", timeout=PATIENCE)
        expect(self.page.locator("#board[aria-busy=true]")).to_have_count(0, timeout=PATIENCE)

    @property
    def runs(self) -> int:
        text = self.page.locator("#unchanged").text_content() or ""
        return int(re.search(r"\d+", text)[0])  # type: ignore[index]

    def after_run(self, act: Callable[[], object]) -> None:
        """Do something, and wait until the machine has answered it."""
        before = self.runs
        act()
        expect(self.page.locator("#unchanged")).not_to_contain_text(
            re.compile(rf"after {before} run"), timeout=PATIENCE
        )

    @property
    def digest(self) -> str | None:
        return self.page.locator("#digest").get_attribute("data-digest")

    @property
    def curve(self) -> str | None:
        return self.page.locator("[data-fit=machine]").get_attribute("d")

    @property
    def points(self) -> int:
        return self.page.locator(".point").count()

    def tab(self, name: str) -> None:
        self.page.locator(f"#tab-{name}").click()
        self.drawn(name)

    def drawn(self, name: str) -> None:
        """Wait until a panel is drawn, and nothing is wrong in it."""
        shown = f"#panel[data-drawn={name}][aria-busy=false]"
        expect(self.page.locator(shown)).to_be_visible(timeout=PATIENCE)
        expect(self.page.locator("#panel .trouble:visible")).to_have_count(0)
