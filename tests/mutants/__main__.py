"""Run every mutant against the tests that should see it; write the table into the documentation.

python -m tests.mutants            all of them
python -m tests.mutants prompt     those whose name holds a word
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.mutants import MUTANTS

PAGE = ROOT / "docs" / "certificates.md"
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"


def table(rows: list[tuple[Mutant, str | None]]) -> str:
    """As Markdown."""
    lines = ["| wrong program | noticed by |", "|---|---|"]
    for mutant, killer in rows:
        where = (
            "**nothing**" if killer is None else f"`{killer.split('[')[0].removeprefix('tests/')}`"
        )
        lines.append(f"| {mutant.name} | {where} |")
    return "\n".join(lines)


def write(rows: list[tuple[Mutant, str | None]]) -> None:
    """Between the marks on the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    killed = sum(killer is not None for _, killer in rows)
    words = f"{killed} of {len(rows)} are noticed (`make mutants`):"
    PAGE.write_text(f"{before}{BEGIN}\n{words}\n\n{table(rows)}\n{END}{after}", encoding="utf-8")


def main(words: list[str]) -> int:
    """Exit status 1 where one survives."""
    chosen = [m for m in MUTANTS if all(word in m.name for word in words)]
    rows: list[tuple[Mutant, str | None]] = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        for mutant, killer in zip(chosen, pool.map(Mutant.killed_by, chosen), strict=True):
            print(f"{'killed  ' if killer else 'SURVIVED'} {mutant.name}: {killer}", flush=True)
            rows.append((mutant, killer))
    if not words:
        write(rows)
    return int(any(killer is None for _, killer in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
