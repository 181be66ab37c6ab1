"""Attack every kind of certificate; write the table into the documentation.

python -m tests.attacks                          a hundred of each family, and the table
python -m tests.attacks --count 1000 quantile    of families whose name holds a word

Many processes share a campaign: each begins at a seed of its own and keeps what it found.

python -m tests.attacks --first 20000 --count 400 --seconds 500 --json out/2.json
python -m tests.attacks --merge out/*.json       the table of all of them, into the documentation

Those of the Triton kernels, which need a GPU, are asked for by their kind.

python -m tests.attacks device --count 200 --seconds 45 --json out/device.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch

from iceform import IceformError
from tests.attacks import families
from tests.attacks.families import CHEAP
from tests.attacks.kernels import KERNELS
from tests.attacks.outcomes import Outcome

PAGE = Path(__file__).parents[2] / "results" / "attacks.md"
KEPT = Path(__file__).parents[2] / "results" / "pages" / "attacks.json"
_TIMES = {"cheap": 5.0, "usual": 1.0, "dear": 0.2, "ordinary": 0.2, "device": 1.0}  # of ``--count``
FAMILIES, ORDINARY, DEAR = families.FAMILIES, families.ORDINARY, families.DEAR
if find_spec("iceform_estimators") and find_spec("estimator_tests"):  # attacks on fits, if it can
    fits = import_module("estimator_tests.attacks.families")
    FAMILIES = {**FAMILIES, **fits.FAMILIES}
    ORDINARY = {**fits.ORDINARY, **ORDINARY}
    DEAR = (*DEAR, *fits.DEAR)
_LOOSE = 100  # of a few cases; of many the median is in results/attacks.md
_BROKEN = "BROKEN by"
_INSTEAD = ("refused", "infinite", "estimated")


def kind_of(family: str) -> str:
    """How much an attack costs; ordinary runs are no attacks."""
    if family in KERNELS:
        return "device"
    if family.startswith("ordinary: "):
        return "ordinary"
    return "cheap" if family in CHEAP else "dear" if family in DEAR else "usual"


@dataclass
class Row:
    """What became of a family's attacks."""

    family: str
    count: int = 0  # numbers that were compared
    cases: int = 0
    certified: int = 0  # of the cases
    violated: list[int] = field(default_factory=list)  # seeds
    ratios: dict[str, list[float]] = field(default_factory=dict)  # by dtype
    instead: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, seed: int, found: Outcome | str) -> None:
        """One more case."""
        self.cases += 1
        if isinstance(found, str):
            self.count += 1
            self.certified += found == "proven"
            if found != "proven":
                word = "broken" if found.startswith(_BROKEN) else found
                self.instead[word] = self.instead.get(word, 0) + 1
            return
        self.count += found.tried
        self.certified += 1
        if found.violated:
            self.violated.append(seed)
        dtype = str(found.dtype).removeprefix("torch.")
        self.ratios.setdefault(dtype, []).append(found.ratio)

    def merge(self, other: Row) -> None:
        """And those of another process."""
        self.count, self.cases = self.count + other.count, self.cases + other.cases
        self.certified, self.seconds = (
            self.certified + other.certified,
            self.seconds + other.seconds,
        )
        self.violated += other.violated
        for dtype, ratios in other.ratios.items():
            self.ratios.setdefault(dtype, []).extend(ratios)
        self.instead = dict(Counter(self.instead) + Counter(other.instead))

    @property
    def ratio(self) -> float:
        """Median over both dtypes."""
        every = [r for ratios in self.ratios.values() for r in ratios]
        return median(every) if every else math.nan

    @property
    def share(self) -> float:
        """Of cases without a proven bound."""
        return 1 - self.certified / self.cases if self.cases else 0.0

    def __str__(self) -> str:
        tight = ", ".join(f"{d} {median(r):.3g}" for d, r in sorted(self.ratios.items()))
        said = ", ".join(f"{n} {word}" for word, n in sorted(self.instead.items()))
        return (
            f"{self.family:28} {self.count:9,} in {self.cases:5} cases, {self.certified:5} proven"
            f"{f' ({said})' if said else ''}, {len(self.violated)} violated "
            f"{self.violated[:5] or ''} ratio {tight or '-'}; {self.seconds:.0f} s"
        )


def assert_unbroken(
    family: str, attack: Callable[[int], Outcome | str], count: int, most: float | None = None
) -> None:
    """A few cases of a family: none is violated, some are certified, not too loosely."""
    row = Row(family)
    for seed in range(10_000, 10_000 + count):
        row.add(seed, attack(seed))
    assert not row.violated, row
    assert row.certified, "nothing was certified, so nothing was attacked"
    assert row.ratio <= (most or _LOOSE), row


def outcome(family: str, seed: int) -> Outcome | str:
    """Of one case; an error that is not the library's own breaks it, and is no refusal."""
    try:
        return (FAMILIES | KERNELS | ORDINARY)[family](seed)
    except IceformError:
        return "refused"
    except Exception as error:
        return f"{_BROKEN} {type(error).__name__}: {error}"[:200]


def attempts(
    families: list[str], count: int, first: int, seconds: float
) -> Iterator[tuple[str, int, Outcome | str, float]]:
    """Cases of every family, the least complete of them next, until all are or time is over."""
    begun = time.monotonic()
    wanted = {f: max(1, round(_TIMES[kind_of(f)] * count)) for f in families}
    done = dict.fromkeys(families, 0)
    while time.monotonic() - begun < seconds:
        family = min(families, key=lambda f: done[f] / wanted[f])
        if done[family] >= wanted[family]:
            return
        seed, start = first + done[family], time.process_time()
        found = outcome(family, seed)
        done[family] += 1
        yield family, seed, found, time.process_time() - start


def campaign(families: list[str], count: int, first: int, seconds: float) -> dict[str, Row]:
    """What one process finds."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = {family: Row(family) for family in families}
    for family, seed, found, spent in attempts(families, count, first, seconds):
        rows[family].add(seed, found)
        rows[family].seconds += spent
        if rows[family].violated[-1:] == [seed]:
            print(f"VIOLATED: {family}, seed {seed}: {found}", flush=True)
        if isinstance(found, str) and found.startswith(_BROKEN):
            print(f"{family}, seed {seed} {found}", flush=True)
    return rows


def merged(files: list[Path]) -> dict[str, Row]:
    """What several processes found, in the order in which they have the families."""
    rows: dict[str, Row] = {}
    for file in files:
        for content in json.loads(file.read_text(encoding="utf-8")):
            rows.setdefault(content["family"], Row(content["family"])).merge(Row(**content))
    return rows


def attack_table(rows: list[Row]) -> str:
    """As Markdown."""
    lines = [
        "| family | attacks | cases | certified | violated | certified/actual, float64 | float32 |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        tight = (
            f"{median(row.ratios[dtype]):.2g}" if row.ratios.get(dtype) else ""
            for dtype in ("float64", "float32")
        )
        lines.append(
            f"| {row.family} | {row.count:,} | {row.cases:,} | {row.certified:,} "
            f"| {len(row.violated)} | {' | '.join(tight)} |"
        )
    total = [sum(getattr(r, name) for r in rows) for name in ("count", "cases", "certified")]
    violated = sum(len(row.violated) for row in rows)
    lines.append(f"| all | {' | '.join(f'{n:,}' for n in total)} | {violated} | | |")
    return "\n".join(lines)


def ordinary_table(rows: list[Row]) -> str:
    """What is said of ordinary input in the place of a proven bound, as Markdown."""
    lines = [
        "| program | runs | refused | infinite | estimated | together |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        said = " | ".join(str(row.instead.get(word, 0)) for word in _INSTEAD)
        name = row.family.removeprefix("ordinary: ")
        lines.append(f"| {name} | {row.cases:,} | {said} | {row.share:.1%} |")
    runs, proven = (sum(getattr(r, name) for r in rows) for name in ("cases", "certified"))
    every = " | ".join(str(sum(r.instead.get(word, 0) for r in rows)) for word in _INSTEAD)
    lines.append(f"| all | {runs:,} | {every} | {1 - proven / max(runs, 1):.1%} |")
    return "\n".join(lines)


def tables(rows: list[Row]) -> dict[str, str]:
    """By the marks on the page."""
    attacked = [row for row in rows if kind_of(row.family) != "ordinary"]
    usual = [row for row in rows if kind_of(row.family) == "ordinary"]
    return {"attacks": attack_table(attacked), "ordinary": ordinary_table(usual)}


def write(rows: list[Row]) -> None:
    """Keep them, and write the tables between the marks on the page."""
    KEPT.write_text(json.dumps([asdict(row) for row in rows]) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    for mark, table in tables(rows).items():
        begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    PAGE.write_text(text, encoding="utf-8")


def main() -> int:
    """Exit status 1 where a certificate is violated, or something breaks."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.attacks", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("words", nargs="*", help="families whose name, or kind, holds one of them")
    parser.add_argument("--count", type=int, default=100, help="cases of a usual family")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case after them")
    parser.add_argument("--json", type=Path, help="keep what was found here, and write no table")
    parser.add_argument("--merge", type=Path, nargs="+", help="print what these files hold")
    asked = parser.parse_args()
    if asked.merge:
        rows = merged(asked.merge)
    else:
        every = [*FAMILIES, *KERNELS, *ORDINARY]
        chosen = [
            f
            for f in every
            if any(w in f or w == kind_of(f) for w in asked.words)
            or (not asked.words and kind_of(f) != "device")
        ]
        rows = campaign(chosen, asked.count, asked.first, asked.seconds)
    for row in rows.values():
        print(row, flush=True)
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps([asdict(row) for row in rows.values()]), encoding="utf-8")
    elif asked.merge or not asked.words:
        write(list(rows.values()))
    return int(any(row.violated or "broken" in row.instead for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
