"""Random programs by the thousand: ``python -m tests.computer.many_programs --count 4000``.

Every program at every level against the exact interpreter, as in ``test_random_programs``; every
fourth also on the frozen computer, literal and fused, against its certificate. Violations are
printed with their seed; the exit status says whether there were any.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.computer.test_random_programs import check, on_computer


def one(seed: int, kinks: bool, everywhere: bool) -> str:
    """What became of a program: "held", "refused" or "violated"."""
    try:
        found = check(seed, kinks)
        if found == "held" and everywhere:
            on_computer(seed, kinks)
            return "held on the computer too"
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
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    until = time.monotonic() + asked.seconds
    for at in range(asked.count):
        if time.monotonic() > until:
            break
        seed = asked.first + at
        counts[one(seed, kinks=at % 5 == 0, everywhere=at % 4 == 0)] += 1
    print(f"{counts.total()} programs from seed {asked.first}: {dict(counts)}")
    return 1 if counts["violated"] else 0


if __name__ == "__main__":
    sys.exit(main())
