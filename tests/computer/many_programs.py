"""Random programs by the thousand: ``python -m tests.computer.many_programs --count 4000``.

Every program at every level against the exact interpreter, as in ``test_random_programs``; every
fourth also on the frozen computer, literal and fused, against its certificate, in float64 and
float32 in turn. ``--rich`` draws from all of the language. Violations are printed with their seed;
the exit status says whether there were any.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import torch

from tests.computer.test_random_programs import check, on_computer


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
    print(f"{counts.total()} programs from seed {asked.first}: {dict(counts)}")
    return 1 if counts["violated"] else 0


if __name__ == "__main__":
    sys.exit(main())
