"""Random programs by the thousand: ``python -m tests.computer.many_programs --count 4000``.

Every program at every level against the exact interpreter; every fourth also on the frozen
computer, literal and fused, against its certificate, in float64 and float32 in turn. ``--rich``
draws from all of the language. Violations are printed with their seed, the counts as one line of
JSON; the exit status says whether there were any.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter

import torch

from iceform.computer import Computer
from iceform.computer.compile import compile
from iceform.errors import BoundError, PrecisionError
from tests.computer.random_programs import data, program

EPS = 1e-7


def on_computer(
    seed: int, kinks: bool, rich: bool = False, dtype: torch.dtype = torch.float64
) -> str:
    """Both backends within the certificates of their runs, those within what is known before."""
    made, dim = program(seed, kinks, rich)
    X, y = data(seed, dim)
    compiled = compile(made, dim, 5, eps=EPS, steps=(1, 10))
    computer, exact = Computer.for_programs([compiled], dtype=dtype), made(X, y)
    for backend in ("literal", "fused"):
        try:
            found = computer.run(compiled, X, y, backend=backend)
        except (PrecisionError, BoundError):
            return "refused"
        bound, before = found.certificate.error, compiled.certify(dtype, backend)[0].error
        assert bound <= before, f"{backend}: {bound} beyond {before}, known before the fact"
        for name, value in exact.items():
            off = float((found.parts[name] - value).abs().max())
            assert off <= bound + 1e-15, f"{backend}, {name}: {off} beyond {bound}"
    return "held"


def check(seed: int, kinks: bool, rich: bool = False) -> str:
    """One program on one set of data: "refused" or "held"; anything else is an assertion."""
    made, dim = program(seed, kinks, rich)
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
    for name, value in exact.items():
        torch.testing.assert_close(traced[name], value, rtol=0, atol=0)
        torch.testing.assert_close(instructions[name], value, rtol=0, atol=1e-11)
        off = float((tables[name] - value).abs().max())
        assert off <= enclosed.distance + 1e-15, f"{off} beyond {enclosed.distance}"
    before = compiled.certificate.error
    assert enclosed.distance <= before, (
        f"{enclosed.distance} beyond {before}, known before the fact"
    )
    if not kinks and math.isfinite(before):
        assert enclosed.distance <= 100 * EPS
    return "held"


def one(seed: int, kinks: bool, rich: bool, dtype: torch.dtype | None) -> str:
    """What became of a program: "held", "refused" or "violated"."""
    try:
        found = check(seed, kinks, rich)
        if found == "held" and dtype is not None:
            return f"{on_computer(seed, kinks, rich, dtype)} on the computer in {str(dtype)[6:]}"
        return found
    except Exception as error:  # whatever it is, it is not what should happen
        print(f"seed {seed}, kinks {kinks}: {type(error).__name__}: {error}", flush=True)
        return "violated"


def main() -> int:
    """Count them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=100_000, help="seed of the first program")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which to stop")
    parser.add_argument("--rich", action="store_true", help="draw from all of the language")
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    until = time.monotonic() + asked.seconds
    for at in range(asked.count):
        if time.monotonic() > until:
            break
        seed = asked.first + at
        dtype = {0: torch.float64, 4: torch.float32}.get(at % 8)
        counts[one(seed, at % 5 == 0, asked.rich, dtype)] += 1
    line = {"programs": counts.total(), "first": asked.first, "rich": asked.rich}
    print(
        json.dumps({**line, "violated": counts["violated"], "found": dict(sorted(counts.items()))})
    )
    return 1 if counts["violated"] else 0


if __name__ == "__main__":
    sys.exit(main())
