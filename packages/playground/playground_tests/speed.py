"""How long the page takes, in Chromium: a run of the text GPT-2, and a move of a point.

``python -m playground_tests.speed`` in ``packages/playground`` builds the page, or takes the one in
the folder that ``ICEFORM_SITE`` names. Processor time is that of all of Chromium's processes,
drawing included; on a machine that does other work it says more than the clock does.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from iceform_playground import site
from playground_tests.conftest import ROOT, hosted
from playground_tests.visit import CHROMIUM, LAPTOP, PATIENCE, Visit

TEXT = "bubble sort"
MOVES = 40
_TICK = os.sysconf("SC_CLK_TCK")


def processor_time() -> float:
    """Seconds of all processes that descend from this one, itself left out."""
    parents, spent = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it ended meanwhile
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        spent[pid] = (int(fields[11]) + int(fields[12])) / _TICK
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(spent[pid] for pid in own - {os.getpid()})


def text_run(page: Page) -> str:
    """One run, every token of it drawn."""
    page.locator("#text-example").select_option(TEXT)
    before = processor_time()
    page.locator("#text-run").click()
    said = page.locator("#text-said")
    expect(said).to_contain_text("the end", timeout=PATIENCE)
    busy = processor_time() - before
    seconds = float(said.get_attribute("data-seconds") or "nan")
    count = page.locator(".written .word").count()
    return (
        f"{TEXT}: {count} tokens in {seconds:.1f} s and {busy:.1f} s of processor time; "
        f"300 of them {300 * seconds / count:.1f} s and {300 * busy / count:.1f} s"
    )


def moves(page: Page) -> str:
    """One point moved by the keyboard, and twelve lines drawn after each move."""
    board = page.locator("#descent-board")
    board.focus()
    taken, before = [], processor_time()
    for _ in range(MOVES):
        runs = board.get_attribute("data-runs") or "0"
        page.keyboard.press("ArrowUp" if len(taken) % 2 else "ArrowDown")
        expect(board).not_to_have_attribute("data-runs", runs, timeout=PATIENCE)
        taken.append(float(board.get_attribute("data-milliseconds") or "nan"))
    busy = 1000 * (processor_time() - before) / MOVES
    return (
        f"twelve lines after a move: {statistics.median(taken):.0f} ms in the median, "
        f"{max(taken):.0f} ms at most, {busy:.0f} ms of processor time, of {MOVES} moves"
    )


def main() -> None:
    """Print both."""
    named = os.environ.get("ICEFORM_SITE")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as play:
        folder = Path(named or scratch)
        if not named:
            site.build(folder, keep=ROOT / "out" / "npm")
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with hosted(folder) as address:
            context = started.new_context(viewport=LAPTOP)
            context.set_default_timeout(PATIENCE)
            for fragment, panel, told in (
                ("#lesson=1", "descent", moves),
                ("#panel=text", "text", text_run),
            ):
                visit = Visit(context, address, fragment)
                visit.drawn(panel)
                time.sleep(1)  # what loads in the background
                print(told(visit.page), flush=True)
                visit.page.close()
        started.close()


if __name__ == "__main__":
    main()
