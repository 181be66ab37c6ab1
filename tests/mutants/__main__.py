"""Run every mutant against the tests that should see it; write the table into the documentation.

python -m tests.mutants                          all of them
python -m tests.mutants prompt                   those whose name holds a word
python -m tests.mutants --workers 12 --kept F    so many at once; each verdict is added to F
python -m tests.mutants --table F ...            the table from verdicts that were kept
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.mutants.mutant import ROOT
from tests.mutants.mutants import MUTANTS

PAGE = ROOT / "docs" / "certificates.md"
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"

Verdicts = Mapping[str, str | None]  # by name: the test that notices, or None


def table(verdicts: Verdicts) -> str:
    """As Markdown, in the order in which mutants are listed."""
    lines = ["| wrong program | noticed by |", "|---|---|"]
    for mutant in MUTANTS:
        killer = verdicts[mutant.name]
        where = (
            "**nothing**" if killer is None else f"`{killer.split('[')[0].removeprefix('tests/')}`"
        )
        lines.append(f"| {mutant.name} | {where} |")
    return "\n".join(lines)


def write(verdicts: Verdicts) -> None:
    """Between the marks on the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    killed = sum(verdicts[mutant.name] is not None for mutant in MUTANTS)
    words = f"{killed} of {len(MUTANTS)} are noticed (`make mutants`):"
    shown = f"{before}{BEGIN}\n{words}\n\n{table(verdicts)}\n{END}{after}"
    PAGE.write_text(shown, encoding="utf-8")


def run(words: list[str], workers: int, kept: Path | None) -> tuple[dict[str, str | None], bool]:
    """Verdicts, and whether all chosen tests ran."""
    verdicts: dict[str, str | None] = {}
    whole = True
    with ThreadPoolExecutor(max_workers=workers) as pool:
        chosen = [m for m in MUTANTS if all(word in m.name for word in words)]
        running = {pool.submit(mutant.killed_by): mutant.name for mutant in chosen}
        for done in as_completed(running):
            name = running[done]
            try:
                killer = done.result()
            except RuntimeError as failed:
                print(f"NOT RUN  {name}: {failed}", flush=True)
                whole = False
                continue
            verdicts[name] = killer
            print(f"{'killed  ' if killer else 'SURVIVED'} {name}: {killer}", flush=True)
            if kept is not None:
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([name, killer]) + "\n")
    return verdicts, whole


def main() -> int:
    """Exit status 1 where one survives or did not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--table", type=Path, nargs="+")
    asked = parser.parse_args()
    if asked.table:
        lines = [line for path in asked.table for line in path.read_text().splitlines()]
        verdicts, whole = dict(json.loads(line) for line in lines), True
    else:
        verdicts, whole = run(asked.words, asked.workers, asked.kept)
    if not asked.words and whole:
        write(verdicts)
    return int(not whole or None in verdicts.values())


if __name__ == "__main__":
    sys.exit(main())
