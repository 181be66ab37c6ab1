"""Blocks of pages that are written from kept files, and what writes them.

A block stands between ``<!-- name: begin -->`` and ``<!-- name: end -->``. Its numbers are those of
a file in results/ or benchmarks/results, shown by a function here; ``python -m tests.claims
--write`` puts them into the pages again, and a test compares. So a number can be changed on a page
only by changing the file that a command wrote.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimator_tests.sklearn import scoreboard as estimators

from benchmarks import text_tables
from iceform.bench import board
from tests.attacks import __main__ as attacks
from tests.claims.scan import ROOT
from tests.mutants import __main__ as mutants
from tests.mutants.mutants import MUTANTS
from tests.networks import attack, figures, scoreboard

BENCHMARKS = ROOT / "benchmarks" / "results"
BENCH = ROOT / "results" / "pages" / "bench.json"


@dataclass(frozen=True)
class Block:
    """One block: its page and name, the command that keeps the file, and how it is shown."""

    page: str
    name: str
    command: str
    kept: Path
    made: Callable[[], str]

    def shown(self) -> str:
        """What the file says."""
        return self.made() if self.kept.exists() else "No run is kept at present."

    def __str__(self) -> str:
        return f"{self.page} {self.name}"

    def text(self) -> str:
        """As the page has it."""
        return self._split()[1]

    def write(self) -> None:
        """As the file has it."""
        before, _, after = self._split()
        made = f"{before}\n\n{self.shown()}\n\n{after}"
        (ROOT / self.page).write_text(made, encoding="utf-8")

    def _split(self) -> tuple[str, str, str]:
        text = (ROOT / self.page).read_text(encoding="utf-8")
        begin, end = f"<!-- {self.name}: begin -->", f"<!-- {self.name}: end -->"
        first, last = text.index(begin) + len(begin), text.index(end)
        return text[:first], text[first:last].strip(), text[last:]


def benchmark_rows(name: str) -> list[dict]:
    """Of a file of benchmarks/results."""
    return json.loads((BENCHMARKS / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def _emulator() -> str:
    """GradientStep as called, against native PyTorch, compiled or not, and the literal network."""
    cases: dict[str, dict[str, dict]] = {}
    for row in benchmark_rows("h200-users"):
        if row["suite"] == "emulator":
            cases.setdefault(row["case"], {})[row["method"]] = row
    lines = [
        "| `GradientStep` as called | time | against native | against compiled native "
        "| the literal network |",
        "|---|---:|---:|---:|---:|",
    ]
    for case in sorted(cases, key=lambda case: (-_size(case)[0], _size(case))):
        by = cases[case]
        own, native = by["GradientStep, called again"]["ms"], by["native"]["ms"]
        compiled, literal = by["native, compiled"]["ms"], by["GradientStep, literal"]
        n, d, dtype = _size(case)
        lines.append(
            f"| 2^{n} x {d}, {dtype} | {own:.3f} ms | {own / native:.2f}x ({native:.2f} ms) "
            f"| {own / compiled:.2f}x ({compiled:.2f} ms) "
            f"| {literal['ms'] / 1e3:.0f} s, {literal['ratio'] / 1e5:.1f} x 10^5 times native |"
        )
    return "\n".join(lines)


def _size(case: str) -> tuple[int, int, str]:
    n, d, dtype = re.fullmatch(r"n=(\d+) d=(\d+) (\w+)", case).groups()
    return int(n).bit_length() - 1, int(d), dtype


def _json(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))


def _attacks(mark: str) -> str:
    return attacks.tables(list(attacks.merged([attacks.KEPT]).values()))[mark]


def _mutants() -> str:
    """What the page has, if every mutant of the list is there and noticed by a test."""
    text = (ROOT / "results" / "attacks.md").read_text(encoding="utf-8")
    block = text.split("<!-- mutants: begin -->")[1].split("<!-- mutants: end -->")[0].strip()
    rows = re.findall(r"^\| (.+?) \| `\S+` \|$", block, re.MULTILINE)
    whole = rows == [mutant.name for mutant in MUTANTS]
    told = f"{len(MUTANTS)} of {len(MUTANTS)} are noticed"
    return block if whole and block.startswith(told) else ""


def _computer() -> str:
    lines = [
        "| samples x features | plain torch, ms a step | a whole call | one more step | "
        "as called, with proof |",
        "|---|---:|---:|---:|---:|",
    ]
    cases: dict[str, dict[str, Any]] = {}
    for row in benchmark_rows("computer-cpu"):
        cases.setdefault(row["case"].replace(", float64", ""), {})[row["method"]] = row
    for case, rows in cases.items():
        methods = "fused, the whole call", "fused, one more step", "computer.run, as called"
        ratios = [
            f"{rows[name]['note'].split('x plain')[0]}x" if name in rows else "" for name in methods
        ]
        lines.append(f"| {case} | {rows['plain torch']['rate']:.3g} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def _sizes() -> str:
    """The literal block by lanes, and folders by what holds the program."""
    lines = ["| what | | |", "|---|---:|---|"]
    for row in benchmark_rows("computer-sizes"):
        rate = f"{row['rate']:.3g}" if row["rate"] < 1000 else f"{row['rate']:.0f}"
        lines.append(f"| {row['case']} | {row['method']}: {rate} {row['unit']} | {row['note']} |")
    return "\n".join(lines)


BLOCKS = (
    Block("benchmarks/README.md", "computer",
          "python -m benchmarks.computer --only fused --device cpu",
          BENCHMARKS / "computer-cpu.json", _computer),
    Block("benchmarks/README.md", "computer sizes",
          "python -m benchmarks.computer --only lanes folders --device cpu",
          BENCHMARKS / "computer-sizes.json", _sizes),
    Block("benchmarks/README.md", "emulator", "python -m benchmarks emulator --device cuda",
          BENCHMARKS / "h200-users.json", _emulator),
    Block("docs/networks.md", "scoreboard", "python -m tests.networks.scoreboard",
          scoreboard.KEPT, scoreboard.told),
    Block("docs/networks.md", "unseen", "python -m tests.networks.figures --page",
          figures.UNSEEN, lambda: figures.told(_json(figures.UNSEEN))),
    Block("docs/networks.md", "attacked", "python -m tests.networks.attack --page",
          attack.KEPT, lambda: attack.told(_json(attack.KEPT))),
    Block("results/attacks.md", "attacks", "make attack", attacks.KEPT,
          lambda: _attacks("attacks")),
    Block("results/attacks.md", "ordinary", "make attack", attacks.KEPT,
          lambda: _attacks("ordinary")),
    Block("results/attacks.md", "mutants", "make mutants",
          ROOT / "tests" / "mutants" / "mutants.py", _mutants),
    Block("results/attacks.md", "drawn mutants", "python -m tests.mutants --random all",
          mutants.KEPT, mutants.kept_table),
    Block("docs/text_computer.md", "library", "python -m benchmarks.text library",
          text_tables.LIBRARY, text_tables.library),
    Block("docs/text_computer.md", "random programs", "python -m benchmarks.text greedy",
          text_tables.RANDOM, text_tables.random_programs),
    Block("docs/text_computer.md", "speed", "python -m benchmarks.text speed",
          text_tables.SPEED, text_tables.speed),
    Block("docs/text_computer.md", "speed on a GPU",
          "python -m benchmarks.text speed --device cuda", text_tables.GPU, text_tables.gpu_speed),
    Block("docs/text_computer.md", "forced programs", "python -m benchmarks.text forced",
          text_tables.FORCED, text_tables.forced_programs),
    Block("docs/text_computer.md", "llama", "python -m benchmarks.text forced --architecture llama",
          text_tables.LLAMA, text_tables.llama),
    Block("docs/estimators.md", "scoreboard", "python -m estimator_tests.sklearn.scoreboard",
          estimators.ROWS, lambda: estimators.table(_json(estimators.ROWS))),
    *(Block("docs/bench.md", f"bench {part}", "iceform bench board --out results/pages/bench.json",
            BENCH, lambda part=part: board.told(_json(BENCH))[f"bench {part}"])
      for part in ("summary", "circuits", "seeds", "variants", "targets", "effects", "variables")),
)  # fmt: skip
