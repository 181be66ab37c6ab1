"""Run every mutant against the tests that should see it; write the table into the documentation.

python -m tests.mutants                          all of them
python -m tests.mutants prompt                   those whose name holds a word
python -m tests.mutants --workers 12 --kept F    so many at once; each verdict is added to F
python -m tests.mutants --table F ...            the table from verdicts that were kept
python -m tests.mutants --random arithmetic ...  drawn ones of these folders; ``all`` of all six
python -m tests.mutants --random all --seed 7    another draw, which is not written down
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.mutants import trial
from tests.mutants.drawn import FOLDERS, REASONS, SEED, drawn
from tests.mutants.mutant import ROOT
from tests.mutants.mutants import MUTANTS

PAGE = ROOT / "results" / "attacks.md"
KEPT = (
    ROOT / "results" / "pages" / "drawn-mutants.jsonl"
)  # verdicts of the draw that the page shows
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"
BEGIN_DRAWN, END_DRAWN = "<!-- drawn mutants: begin -->", "<!-- drawn mutants: end -->"

Verdicts = Mapping[str, str | None]  # by name: the test that notices, or None
Drawn = dict[str, str | None]  # the same by key


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


def write(shown: str, begin: str, end: str) -> None:
    """Between two marks on the page."""
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    PAGE.write_text(f"{before}{begin}\n{shown}\n{end}{rest.split(end)[1]}", encoding="utf-8")


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


def draw(folders: Sequence[str], seed: int, workers: int, kept: Path) -> Drawn:
    """Verdicts of drawn mutants by key; those that are kept are not run again, survivors are."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.touch()
    chosen = {folder: drawn(folder, seed) for folder in folders}
    for folder, faults in chosen.items():
        known = _verdicts(kept)
        left = [
            f for f in faults if not (known.get(f.key) or (f.key in known and f.key in REASONS))
        ]
        if left:
            trial.run(left, trial.record(folder), workers, kept)
        known = _verdicts(kept)
        for fault in left:
            print(f"{known[fault.key] or 'SURVIVED'} | {fault.kind}: {fault.key}", flush=True)
    known = _verdicts(kept)
    return {fault.key: known[fault.key] for faults in chosen.values() for fault in faults}


def _verdicts(kept: Path) -> Drawn:
    """The last one of each counts."""
    return dict(json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines())


def drawn_table(verdicts: Drawn) -> str:
    """By folder, as Markdown."""
    lines = [
        "| folder | drawn | noticed | no test can see it | unnoticed |",
        "|---|---|---|---|---|",
    ]
    for folder in dict.fromkeys(key.split("/")[0] for key in verdicts):
        own = {key: by for key, by in verdicts.items() if key.startswith(f"{folder}/")}
        killed = sum(by is not None for by in own.values())
        reasons = sum(by is None and key in REASONS for key, by in own.items())
        left = len(own) - killed - reasons
        lines.append(f"| {folder} | {len(own)} | {killed} | {reasons} | {left} |")
    return "\n".join(lines)


def kept_table() -> str:
    """The table of the page's own draw: those of it that have a verdict."""
    known = _verdicts(KEPT)
    chosen = [fault.key for folder in FOLDERS for fault in drawn(folder, SEED)]
    return drawn_table({key: known[key] for key in chosen if key in known})


def random_ones(folders: Sequence[str], seed: int, workers: int, kept: Path | None) -> int:
    """Draw, run, print; write down the draw that the page is about."""
    folders = FOLDERS if folders == ["all"] else folders
    kept = kept or (KEPT if seed == SEED else ROOT / "out" / "mutants" / f"drawn-{seed}.jsonl")
    verdicts = draw(folders, seed, workers, kept)
    shown = drawn_table(verdicts)
    print(shown)
    tests = sorted({by for by in verdicts.values() if by and by.startswith("tests/")})
    if tests and not trial.passes(tests):
        print("a test that notices one of them fails without it too")
        return 1
    wrong = [key for key, by in verdicts.items() if by is not None and key in REASONS]
    for key in wrong:
        print(f"{verdicts[key]} sees what no test is said to see: {key}")
    if seed == SEED and set(folders) == set(FOLDERS):
        write(shown, BEGIN_DRAWN, END_DRAWN)
    return int(bool(wrong) or any(by is None and k not in REASONS for k, by in verdicts.items()))


def main() -> int:
    """Exit status 1 where one survives or did not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--random", nargs="+", choices=(*FOLDERS, "all"), metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=SEED)
    asked = parser.parse_args()
    if asked.random:
        return random_ones(asked.random, asked.seed, asked.workers, asked.kept)
    if asked.table:
        lines = [line for path in asked.table for line in path.read_text().splitlines()]
        verdicts, whole = dict(json.loads(line) for line in lines), True
    else:
        verdicts, whole = run(asked.words, asked.workers, asked.kept)
    if not asked.words and whole:
        killed = sum(verdicts[mutant.name] is not None for mutant in MUTANTS)
        words = f"{killed} of {len(MUTANTS)} are noticed (`make mutants`):"
        write(f"{words}\n\n{table(verdicts)}", BEGIN, END)
    return int(not whole or None in verdicts.values())


if __name__ == "__main__":
    sys.exit(main())
