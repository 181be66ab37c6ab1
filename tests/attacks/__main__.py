"""Attack every kind of certificate; write the table into the documentation.

python -m tests.attacks                         a hundred of each family, and the table
python -m tests.attacks --count 1000 quantile   of some families
"""

from __future__ import annotations

import argparse
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from tests.attacks.families import CHEAP, DEAR, FAMILIES, Outcome

PAGE = Path(__file__).parents[2] / "docs" / "certificates.md"
BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"


@dataclass(frozen=True)
class Row:
    """What became of a family's attacks."""

    family: str
    count: int  # numbers that were compared
    cases: int
    claimed: int  # of the cases
    violated: tuple[int, ...]  # seeds
    ratio: float

    @classmethod
    def of(cls, family: str, seeds: range, outcomes: list[Outcome | None]) -> Row:
        told = [(s, o) for s, o in zip(seeds, outcomes, strict=True) if o is not None]
        violated = tuple(s for s, o in told if not o.off <= o.certified)
        ratios = [o.certified / max(o.off, o.unit) for _, o in told]
        tried = sum(1 if o is None else o.tried for o in outcomes)
        middle = median(ratios) if ratios else 0.0
        return cls(family, tried, len(seeds), len(told), violated, middle)

    def __str__(self) -> str:
        return (
            f"{self.family:28} {self.count:8} attacks, {self.claimed:5} of {self.cases} certified, "
            f"{len(self.violated)} violated {list(self.violated)[:5]}, "
            f"median ratio {self.ratio:.2f}"
        )


def attack(family: str, seeds: range) -> list[Outcome | None]:
    """One after the other."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return [FAMILIES[family](seed) for seed in seeds]


def table(rows: list[Row]) -> str:
    """As Markdown."""
    lines = [
        "| family | attacks | cases | certified | violated | median certified/actual |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.family} | {r.count:,} | {r.cases} | {r.claimed} | {len(r.violated)} "
        f"| {r.ratio:.2g} |"
        for r in rows
    ]
    violated = sum(len(r.violated) for r in rows)
    total = sum(r.count for r in rows)
    lines.append(
        f"| all | {total:,} | {sum(r.cases for r in rows)} | "
        f"{sum(r.claimed for r in rows)} | {violated} | |"
    )
    return "\n".join(lines)


def write(rows: list[Row]) -> None:
    """Between the marks on the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> int:
    """Exit status 1 where a certificate is violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("words", nargs="*", help="families whose name holds one of them")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    asked = parser.parse_args()
    chosen = [f for f in FAMILIES if not asked.words or any(w in f for w in asked.words)]
    first = asked.seed

    def seeds_of(family: str) -> range:
        """What is cheap is attacked five times as often, what is dear a fifth."""
        times = 5 if family in CHEAP else 0.2 if family in DEAR else 1
        return range(first, first + max(1, round(times * asked.count)))

    with ProcessPoolExecutor(max_workers=2) as pool:
        rows = []
        several = [seeds_of(family) for family in chosen]
        found = pool.map(attack, chosen, several)
        for family, seeds, outcomes in zip(chosen, several, found, strict=True):
            rows.append(Row.of(family, seeds, outcomes))
            print(rows[-1], flush=True)
    if not asked.words:
        write(rows)
    return int(any(row.violated for row in rows))


if __name__ == "__main__":
    sys.exit(main())
