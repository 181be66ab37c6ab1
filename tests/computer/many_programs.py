"""Random programs by the thousand: ``python -m tests.computer.many_programs --count 4000``.

Every program at every level against the exact interpreter; every fourth also on the frozen
computer, literal and fused, against its certificate, in float64 and float32 in turn. Every second
one is drawn from all of the language, one in ten is of whole numbers and of samples in their order,
and one in ten blows errors up. Violations are printed with
their seed, the counts as one line of JSON; the exit status says whether there were any.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections import Counter
from statistics import median

import torch

from iceform.computer import Computer
from iceform.computer.compile import compile
from iceform.errors import BoundError, PrecisionError
from tests.computer.random_programs import data, program

EPS = 1e-7
BOUNDED = 1e-3  # before the fact, more says nothing of how well tables were chosen


def on_computer(
    seed: int,
    kinks: bool,
    rich: bool = False,
    dtype: torch.dtype = torch.float64,
    whole: bool = False,
) -> str:
    """Both backends within the certificates of their runs, those within what is known before."""
    made, dim = program(seed, kinks, rich, whole=whole)
    X, y = data(seed, dim)
    compiled = compile(made, dim, 5, eps=EPS, steps=(1, 10))
    computer, exact = Computer.for_programs([compiled], dtype=dtype), made(X, y)
    for backend in ("literal", "fused"):
        try:
            found = computer.run(compiled, X, y, backend=backend)
        except (PrecisionError, BoundError):
            return "refused"
        bound, before = found.enclosure.error, compiled.certify(dtype, backend)[0].error
        assert bound <= before, f"{backend}: {bound} beyond {before}, known before the fact"
        for name, value in exact.items():
            off = float((found.parts[name] - value).abs().max())
            assert off <= bound + 1e-15, f"{backend}, {name}: {off} beyond {bound}"
    return "held"


def check(
    seed: int,
    kinks: bool,
    rich: bool = False,
    ratios: dict[str, float] | None = None,
    whole: bool = False,
) -> str:
    """One program on one set of data: "refused" or "held"; anything else is an assertion.

    ``ratios`` is told what is certified of the run over what it was off by, and what is certified
    before the fact over that.
    """
    made, dim = program(seed, kinks, rich, whole=whole)
    X, y = data(seed, dim)
    exact = made(X, y)
    compiled = compile(made, dim, 5, eps=EPS, steps=(1, 10))
    traced = compiled.traced(X, y)
    instructions = compiled.interpreted(X, y, exact=True).outputs
    tables = compiled.interpreted(X, y, width=compiled.assembly.width + seed % 2).outputs
    try:
        enclosed = compiled.enclosed(X, y, tables)
    except (PrecisionError, BoundError):
        return "refused"
    worst = torch.finfo(torch.float64).eps
    for name, value in exact.items():
        torch.testing.assert_close(traced[name], value, rtol=0, atol=0)
        torch.testing.assert_close(instructions[name], value, rtol=0, atol=1e-11)
        off = float((tables[name] - value).abs().max())
        assert off <= enclosed.distance + 1e-15, f"{off} beyond {enclosed.distance}"
        worst = max(worst, off)
    before = compiled.certificate.error
    assert enclosed.distance <= before, (
        f"{enclosed.distance} beyond {before}, known before the fact"
    )
    if not kinks and before < BOUNDED:
        assert enclosed.distance <= 100 * EPS
    if ratios is not None:
        certified = max(enclosed.distance, torch.finfo(torch.float64).eps)
        ratios |= {
            "certified / actual": certified / worst,
            "before / certified": before / certified,
        }
    return "held"


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


def one(at: int, first: int) -> dict[str, object]:
    """What became of a program: "held", "refused" or "violated"."""
    seed, kinks, rich = first + at, at % 5 == 0, at % 2 == 1
    dtype = {0: torch.float64, 1: torch.float64, 4: torch.float32, 5: torch.float32}.get(at % 16)
    ratios: dict[str, float] = {}
    line: dict[str, object] = {"seed": seed, "kinks": kinks, "rich": rich, "ratios": ratios}
    try:
        whole = at % 10 == 3
        found = unstable(seed, rich) if at % 10 == 7 else check(seed, kinks, rich, ratios, whole)
        if found == "held" and dtype is not None:
            ran = on_computer(seed, kinks, rich, dtype, whole)
            found = f"{ran} on the computer in {str(dtype)[6:]}"
        return {**line, "found": found}
    except Exception as error:  # whatever it is, it is not what should happen
        return {**line, "found": "violated", "why": f"{type(error).__name__}: {error}"}


def some(part: int, parts: int, first: int, count: int, seconds: float) -> list[dict[str, object]]:
    """Every so-manieth program, as long as there is time."""
    torch.set_num_threads(1)
    until, out = time.monotonic() + seconds, []
    for at in range(part, count, parts):
        if time.monotonic() > until:
            break
        out.append(one(at, first))
        if out[-1]["found"] == "violated":
            print(json.dumps(out[-1]), flush=True)
    return out


def summary(lines: list[dict[str, object]]) -> dict[str, object]:
    """Counts, and what was violated."""
    kinds = {name: [line for line in lines if line["rich"] == rich]
             for name, rich in (("plain", False), ("rich", True))}  # fmt: skip
    return {
        "programs": len(lines),
        "violated": [line for line in lines if line["found"] == "violated"],
        **{
            name: {
                "found": dict(sorted(Counter(str(line["found"]) for line in each).items())),
                "medians": {key: _median(each, key) for key in ("certified / actual",
                                                                "before / certified")},
                "before the fact: infinite": sum(_ratio(line, "before / certified") == math.inf
                                                 for line in each),
            }
            for name, each in kinds.items()
        },
    }  # fmt: skip


def _ratio(line: dict[str, object], key: str) -> float | None:
    ratios = line["ratios"]
    assert isinstance(ratios, dict)
    return ratios.get(key)


def _median(lines: list[dict[str, object]], key: str) -> float | None:
    found = [ratio for line in lines if (ratio := _ratio(line, key)) is not None]
    return median(found) if found else None


def main() -> int:
    """Count them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=100_000, help="seed of the first program")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which to stop")
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.parse_args()
    parts = asked.processes
    jobs = [(part, parts, asked.first, asked.count, asked.seconds) for part in range(parts)]
    if parts == 1:
        lines = some(*jobs[0])
    else:
        with multiprocessing.get_context("spawn").Pool(parts) as pool:
            lines = [line for each in pool.starmap(some, jobs, chunksize=1) for line in each]
    found = summary(lines)
    print(json.dumps(found))
    return 1 if found["violated"] else 0


if __name__ == "__main__":
    sys.exit(main())
