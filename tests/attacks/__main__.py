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

from tests.attacks.families import FAMILIES, Outcome

PAGE = Path(__file__).parents[2] / "docs" / "certificates.md"
BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"


@dataclass(frozen=True)
class Row:
    """What became of a family's attacks."""

    family: str
    count: int
    claimed: int
    violated: tuple[int, ...]  # seeds
    ratio: float

    @classmethod
    def of(cls, family: str, seeds: range, outcomes: list[Outcome | None]) -> Row:
        told = [(s, o) for s, o in zip(seeds, outcomes, strict=True) if o is not None]
        violated = tuple(s for s, o in told if not o.off <= o.certified)
        ratios = [o.certified / max(o.off, o.unit) for _, o in told]
        return cls(family, len(seeds), len(told), violated, median(ratios) if ratios else 0.0)

    def __str__(self) -> str:
        return (
            f"{self.family:28} {self.count:6} attacks, {self.claimed:6} certified, "
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
        "| family | attacks | certified | violated | median certified/actual |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.family} | {r.count} | {r.claimed} | {len(r.violated)} | {r.ratio:.2g} |"
        for r in rows
    ]
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
    seeds = range(asked.seed, asked.seed + asked.count)
    with ProcessPoolExecutor(max_workers=2) as pool:
        rows = []
        for family, outcomes in zip(
            chosen, pool.map(attack, chosen, [seeds] * len(chosen)), strict=True
        ):
            rows.append(Row.of(family, seeds, outcomes))
            print(rows[-1], flush=True)
    if not asked.words:
        write(rows)
    return int(any(row.violated for row in rows))


if __name__ == "__main__":
    sys.exit(main())
