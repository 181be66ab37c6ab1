"""Ledger: what was computed where.

``prompt``
    Written into tokens: affine in the data, with coefficients that the program fixes.
``attention``
    By the frozen network.
``readout``
    A fixed linear map of what the network returned.
``host``
    Everything else that was computed from data: Gram matrices, step sizes, stopping, proofs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PLACES", "Ledger"]

PLACES = ("prompt", "attention", "readout", "host")


@dataclass(eq=False)
class Ledger:
    """How often what was done where.

    Attributes
    ----------
    times
        Times by (place, what).
    """

    times: dict[tuple[str, str], int] = field(default_factory=dict)

    def note(self, where: str, what: str, times: int = 1) -> None:
        """Count something that was done."""
        if where not in PLACES:
            raise ValueError(f"where must be one of {', '.join(PLACES)}, got {where!r}")
        self.times[where, what] = self.times.get((where, what), 0) + times

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """(place, what, times), place by place."""
        for place in PLACES:
            for (where, what), times in self.times.items():
                if where == place:
                    yield where, what, times

    @property
    def entries(self) -> tuple[tuple[str, str, int], ...]:
        """(place, what, times), place by place."""
        return tuple(self)

    @property
    def host(self) -> tuple[str, ...]:
        """What the host computed from data."""
        return tuple(what for where, what, _ in self if where == "host")

    def merge(self, other: Ledger) -> None:
        """Count what another ledger holds."""
        for where, what, times in other:
            self.note(where, what, times)

    def explain(self) -> str:
        """A line for each."""
        shown = [(where, what, f"x {times}" if times > 1 else "") for where, what, times in self]
        return "\n".join(f"{where:<9} {what} {times}".rstrip() for where, what, times in shown)

    def __str__(self) -> str:
        return self.explain()

    def to_dict(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [{"where": a, "what": b, "times": c} for a, b, c in self]
