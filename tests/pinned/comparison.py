"""What was pinned beside what is computed now: what moved, by its name.

A list holds ``[kind, value]`` for each name.
"""

import math

from iceform.arithmetic.units import NOISE
from tests.pinned.values import Pinned

Kept = dict[str, list]
# Answers may change in their last bits: processors differ in how they round a sum. Bounds after the
# fact hold that rounding, so they change by more than its share of them.
ROUNDING = 1e-8
BOUNDS = 1e-4
EPS = 1e-8  # that programs of the library are compiled for


def compare(kept: Kept, now: dict[str, Pinned]) -> None:
    """Weights are the same bits as before, certificates no larger, answers the same numbers."""
    assert set(kept) == set(now)
    assert not moved_digests(kept, now)
    assert not grown_bounds(kept, now)
    assert not moved_answers(kept, now)


def moved_digests(kept: Kept, now: dict[str, Pinned]) -> dict:
    pairs = {n: (v, now[n].value) for n, (k, v) in kept.items() if k == "digest"}
    return {n: pair for n, pair in pairs.items() if pair[0] != pair[1]}


def grown_bounds(kept: Kept, now: dict[str, Pinned]) -> dict:
    return {
        name: (value, now[name].value)
        for name, (kind, value) in kept.items()
        if kind == "bound" and not now[name].value <= value * (1 + BOUNDS)
    }


def moved_answers(kept: Kept, now: dict[str, Pinned]) -> dict:
    """Both within the certified distance of the exact ones, or else the same but for rounding."""
    apart = {}
    for name, (kind, value) in kept.items():
        if kind != "answer":
            continue
        size = max(map(abs, value))
        scale = size if size > NOISE else 1.0  # an answer of 0 is no better than its terms round
        allowed = max(ROUNDING * scale, _certified(kept, name))
        off = max(abs(a - b) for a, b in zip(value, now[name].value, strict=True))
        if not off <= allowed:
            apart[name] = (off, allowed)
    return apart


def _certified(kept: Kept, name: str) -> float:
    row = kept.get(name.replace("answer", "certificate"))
    if row and not math.isfinite(row[1]):  # two answers that are each within eps of the exact one
        return 2 * EPS
    return 2 * row[1] if row and row[1] < 1e-6 else 0.0
