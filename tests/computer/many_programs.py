"""Random programs by the thousand: ``python -m tests.computer.many_programs --count 10000``.

Every program at every level against the exact interpreter: the graph on tensors and in balls, its
instructions, these with tables, and on the frozen computer the literal matrices and the fused run,
in float64 or float32, against the enclosures of their runs, and those against what is known before
the fact. Eight in ten are drawn from all of the language, every second one of them compiled with an
example; one in ten has the words of the first edition alone, and one in ten blows errors up.

What was found is kept in a file, which a second call goes on with. It has the seeds of what was
violated, counts of what was refused, and in how many programs each construct was. The exit status
says whether anything was violated. Two processes share a campaign by ranges of seeds, and --join.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iceform.computer import Computer
from iceform.computer.compile import Program, compile
from iceform.computer.language import Algorithm
from iceform.errors import BoundError, CapacityError, CompileError, PrecisionError, PrecisionWarning
from tests.computer.random_programs import constructs, data, program

EPS = 1e-7
BOUNDED = 1e-3  # before the fact, more says nothing of how well tables were chosen
KEPT = Path(__file__).parents[2] / "results" / "pages" / "random-programs.json"
_APART = 1_000_000  # of the seeds of data and of the example that a program is compiled with
_REFUSED = (PrecisionError, BoundError, CapacityError)
_BACKENDS = ("literal", "fused")


@dataclass(frozen=True)
class Case:
    """A program and its data.

    ``example`` says whether it is compiled with data such as those; the rest is what is drawn, see
    :func:`tests.computer.random_programs.source`.
    """

    seed: int
    kinks: bool = False
    rich: bool = False
    whole: bool = False
    every: bool = False
    example: bool = False

    @property
    def drawn(self) -> dict[str, bool]:
        """What the program is drawn from."""
        return {name: getattr(self, name) for name in ("kinks", "rich", "whole", "every")}

    @cached_property
    def made(self) -> tuple[Algorithm, int]:
        """The program, and for how many features."""
        return program(self.seed, **self.drawn)

    @cached_property
    def data(self) -> tuple[Tensor, Tensor]:
        """X and y."""
        return data(self.seed, self.made[1])

    @cached_property
    def compiled(self) -> Program:
        """For these data, or for such data."""
        made, dim = self.made
        example = data(self.seed + _APART, dim) if self.example else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)
            return compile(made, dim, 5, 1.0, EPS, steps=(1, 10), example=example)

    @cached_property
    def exact(self) -> dict[str, Tensor]:
        """The exact interpreter's answers, by name."""
        return self.named(self.made[0](*self.data))

    def named(self, answers: Any) -> dict[str, Tensor]:
        """Answers in the author's form, by name."""
        names, form = list(self.compiled.graph.outputs), self.compiled.graph.packed
        if isinstance(answers, Mapping):
            return dict(answers)
        return dict(zip(names, [answers] if form == "one" else answers, strict=True))

    @cached_property
    def rounded(self) -> float:
        """How far the exact interpreter, which rounds, is from the exact answer."""
        return self.enclosed(self.exact)

    def enclosed(self, found: Mapping[str, Tensor]) -> float:
        """The proven distance of answers from the exact ones."""
        return self.compiled.enclosed(*self.data, found).distance

    def within(self, found: Mapping[str, Tensor], bound: float, what: str) -> float:
        """How far answers are from the exact interpreter's, which is no farther than both say."""
        worst = 0.0
        for name, value in self.exact.items():
            off = float((found[name] - value).abs().max())
            assert off <= bound + self.rounded, f"{what}, {name}: {off} beyond {bound}"
            worst = max(worst, off)
        return worst

    def levels(self, ratios: dict[str, float] | None = None) -> str:
        """All that is not the computer: "refused" or "held"; else an assertion.

        ``ratios`` is told what is certified of the run over what it was off by, and what is
        certified before the fact over that.
        """
        compiled, (X, y) = self.compiled, self.data
        try:
            compiled.checked(X, y)
            size = max(1.0, *(float(value.abs().max()) for value in self.exact.values()))
            assert self.rounded <= 1e-9 * size, f"balls are {self.rounded} from the interpreter"
        except _REFUSED:
            return "refused"
        for name, value in self.named(compiled.traced(X, y)).items():
            torch.testing.assert_close(value, self.exact[name], rtol=0, atol=0)
        instructions = compiled.interpreted(X, y, exact=True).outputs
        self.within(instructions, min(self.enclosed(instructions), 1e-9 * size), "instructions")
        width = compiled.assembly.width + self.seed % 2
        tables = compiled.interpreted(X, y, width=width).outputs
        certified, before = self.enclosed(tables), compiled.certificate.error
        worst = max(self.within(tables, certified, "tables"), torch.finfo(torch.float64).eps)
        assert certified <= before, f"{certified} beyond {before}, known before the fact"
        if not (self.kinks or self.every) and before < BOUNDED:
            assert certified <= 100 * EPS
        if ratios is not None:
            certified = max(certified, torch.finfo(torch.float64).eps)
            ratios |= {
                "certified / actual": certified / worst,
                "before / certified": before / certified,
            }
        return "held"

    def on_computer(self, dtype: torch.dtype = torch.float64) -> str:
        """Both backends within the certificates of their runs, those within what is known before.

        What one backend refuses the other refuses too, in float64: in float32 what a literal run
        stores where something large was is rounded as coarsely as that was.
        """
        compiled = self.compiled
        computer, outcomes = Computer.for_programs([compiled], dtype=dtype), []
        for backend in _BACKENDS:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", PrecisionWarning)
                    found = computer.run(compiled, *self.data, backend=backend)
            except _REFUSED as refused:
                outcomes.append(f"refused on the computer: {type(refused).__name__}")
                continue
            bound, before = found.enclosure.error, compiled.certify(dtype, backend)[0].error
            assert bound <= before, f"{backend}: {bound} beyond {before}, known before the fact"
            self.within({k: v.double() for k, v in found.parts.items()}, bound, backend)
            outcomes.append("held")
        if dtype == torch.float64:
            assert len(set(outcomes)) == 1, f"{_BACKENDS}: {outcomes}"
        return min(outcomes, key=lambda found: found == "held")


def on_computer(seed: int, kinks: bool, rich: bool = False, dtype: torch.dtype = torch.float64,
                **drawn: bool) -> str:  # fmt: skip
    """:meth:`Case.on_computer`."""
    return Case(seed, kinks, rich, **drawn).on_computer(dtype)


def check(seed: int, kinks: bool, rich: bool = False, **drawn: bool) -> str:
    """:meth:`Case.levels`."""
    return Case(seed, kinks, rich, **drawn).levels()


def unstable(seed: int, rich: bool = False) -> str:
    """A wild program: its run is within what is known before the fact, which may be nothing."""
    made, dim = program(seed, rich=rich, wild=True)
    X, y = data(seed, dim)
    compiled = compile(made, dim, 5, eps=1e-3, steps=(1, 10))
    tables = compiled.interpreted(X, y).outputs
    try:
        found = compiled.enclosed(X, y, tables).distance
    except (PrecisionError, BoundError):
        return "refused, wild"
    before = compiled.certificate.error
    assert found <= before, f"{found} beyond {before}, known before the fact"
    return "held, wild"


def case_of(seed: int) -> Case:
    """The case of a campaign with this seed."""
    kinks = seed % 5 == 0
    if seed % 10 == 3:
        return Case(seed, kinks, rich=seed % 20 == 3, whole=seed % 20 == 13)
    return Case(seed, kinks, rich=True, every=True, example=seed % 2 == 1)


def one(seed: int, ratios: dict[str, float]) -> str:
    """What became of a program: "held", "refused" in some way, or an error that says how."""
    if seed % 10 == 7:
        return unstable(seed, rich=seed % 20 == 7)
    case = case_of(seed)
    try:
        _ = case.compiled
    except (CompileError, CapacityError):
        return "refused by the compiler"
    found = case.levels(ratios)
    if found != "held":
        return found
    return case.on_computer(torch.float32 if seed % 4 == 0 else torch.float64)


class Campaign:
    """What was found of the programs so far, in a file."""

    def __init__(self, path: Path, first: int) -> None:
        self.path = path
        self.kept: dict[str, Any] = {
            "first": first, "programs": 0, "violated": [], "found": {}, "constructs": {},
            "with an example": 0, "most certified / actual": {}, "seconds": 0.0,
        }  # fmt: skip
        if path.exists():
            self.kept = json.loads(path.read_text(encoding="utf-8"))

    def go_on(self, count: int, seconds: float) -> None:
        """To so many programs in all, as long as there is time."""
        begun = saved = time.monotonic()
        before = self.kept["seconds"]
        while self.kept["programs"] < count and time.monotonic() - begun < seconds:
            self.add(self.kept["first"] + self.kept["programs"])
            self.kept["seconds"] = round(before + time.monotonic() - begun, 1)
            if time.monotonic() - saved > 10:
                self.save()
                saved = time.monotonic()
        self.save()

    def add(self, seed: int) -> None:
        """One more."""
        kept, ratios = self.kept, dict[str, float]()
        try:
            found = one(seed, ratios)
        except Exception as error:  # whatever it is, it is not what should happen
            found = "violated"
            kept["violated"].append({"seed": seed, "why": f"{type(error).__name__}: {error}"[:300]})
            traceback.print_exc()
        case = case_of(seed)
        kept["programs"] += 1
        kept["found"] = _counted(kept["found"], [found])
        if found.startswith("held") and seed % 10 != 7:
            kept["constructs"] = _counted(kept["constructs"], constructs(seed, **case.drawn))
            kept["with an example"] += case.example
        if ratios:
            digits = f"1e{math.ceil(math.log10(ratios['certified / actual']))}"
            key = "most certified / actual"
            kept[key] = _counted(kept[key], [digits])

    def join(self, path: Path) -> None:
        """Add a campaign whose seeds follow on this one's."""
        own, other = self.kept, json.loads(path.read_text(encoding="utf-8"))
        following = own["first"] + own["programs"]
        if other["first"] != following:
            raise SystemExit(f"{path} begins at seed {other['first']}, not at {following}")
        for key, value in other.items():
            if isinstance(value, dict):
                own[key] = _counted(own[key], value)
            elif key != "first":
                own[key] += value
        self.save()

    def save(self) -> None:
        """Replace the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(self.kept, indent=1) + "\n", encoding="utf-8")
        beside.replace(self.path)


def _counted(known: Mapping[str, int], found: Mapping[str, int] | list[str]) -> dict[str, int]:
    return dict(sorted((Counter(known) + Counter(found)).items()))


def main() -> int:
    """Go on with a campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="programs in all")
    parser.add_argument("--first", type=int, default=6_000_000, help="seed of the first program")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which to stop")
    parser.add_argument("--kept", type=Path, default=KEPT, help="the file")
    parser.add_argument("--join", type=Path, help="another file, whose seeds follow on this one's")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    campaign = Campaign(asked.kept, asked.first)
    if asked.join is not None:
        campaign.join(asked.join)
    campaign.go_on(asked.count, asked.seconds)
    print(json.dumps(campaign.kept))
    return 1 if campaign.kept["violated"] else 0


if __name__ == "__main__":
    sys.exit(main())
