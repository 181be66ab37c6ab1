"""One attester: entries of a run, kept at random, are run again literally and compared.

Whoever runs something offers what it computed; each offer is as likely to be kept as any other.
At the end the kept ones are asked how their entries are computed literally, one after the other as
long as time is left. An entry is a :class:`Question`: it knows about how long its literal
computation takes, and compares that with what came back, within the errors of both.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from iceform import tuning
from iceform.certificates.result import Attestation
from iceform.errors import IntegrityError
from iceform.heads.network import is_checked

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Comparison:
    """Entries that were run again: how many, and the worst one's difference and allowance."""

    rows: int = 0
    difference: float = 0.0
    allowed: float = 0.0
    note: str = ""

    @classmethod
    def of(cls, off: Tensor, allowed: Tensor, rows: int) -> Comparison:
        """Of several entries the one whose difference is the largest share of its limit."""
        found = cls()
        limits = allowed.expand_as(off).flatten().tolist()
        for one, limit in zip(off.flatten().tolist(), limits, strict=True):
            found = found.plus(cls(1, one, limit))
        return replace(found, rows=rows)

    @property
    def share(self) -> float:
        """The difference as a share of what is allowed; infinite where either is NaN."""
        if math.isnan(self.difference) or math.isnan(self.allowed):
            return math.inf
        if not self.allowed:
            return math.inf if self.difference else 0.0
        return self.difference / self.allowed

    def plus(self, other: Comparison) -> Comparison:
        """Both comparisons as one: all rows, and the worst entry of either."""
        worse = other.share > self.share or not (self.difference or self.allowed)
        worst = other if worse else self
        rows, note = self.rows + other.rows, self.note or other.note
        return Comparison(rows, worst.difference, worst.allowed, note)


class Question(Protocol):
    """Entries that came back, and how they are computed literally."""

    @property
    def seconds(self) -> float:
        """About how many seconds running them again takes."""

    def compare(self) -> Comparison:
        """Run them through the literal matrices."""


@dataclass(frozen=True)
class Replay:
    """A question given as a function, which is called if any time is left."""

    compare: Callable[[], Comparison]
    seconds: float = 0.0


def run_again(asked: Iterable[Question], until: float, *, one_at_least: bool = True) -> Comparison:
    """Compare one after the other, as long as time is left.

    Without one nothing is known of a run, so the first does not wait for the clock, unless it
    takes about as long as all that may be kept.
    """
    found = Comparison()
    for one in asked:
        left = until - time.perf_counter()
        if one_at_least and not found.rows:
            left = max(left, tuning.REPLAYED * tuning.REPLAY_SECONDS)
        if one.seconds > left:
            why = f"a literal row takes about {one.seconds:.2g} s, {max(left, 0.0):.2g} s were left"
            return found if found.rows else found.plus(Comparison(note=why))
        found = found.plus(one.compare())
    return found


class Attester(Generic[Kept]):
    """A uniform sample of what a run computed, run again at its end.

    Parameters
    ----------
    kept
        How many offers are kept.
    last
        Whether the last offer, which an answer rests on, is always run again, and first.
    seconds
        That running again may take, or ``REPLAY_SHARE`` of the run; ``REPLAY_SECONDS`` by default.

    Attributes
    ----------
    seen
        Offers so far.
    """

    def __init__(self, kept: int, *, last: bool = False, seconds: float | None = None) -> None:
        self.seen = 0
        self.kept: list[Kept] = []
        self.draw = random.Random()  # of its own: a run must not disturb anybody's seeds
        self._most, self._seconds = kept, seconds
        self._last: list[Kept] | None = [] if last else None
        self._begun = time.perf_counter()

    def offer(self, make: Callable[[], Kept]) -> None:
        """Offer one entry; ``make`` is called only if it is drawn to be kept."""
        self.seen += 1
        made = [make()] if self._last is not None else []
        if made:
            self._last = made
        if len(self.kept) < self._most:
            self.kept.append(made[0] if made else make())
        elif (at := int(self.draw.random() * self.seen)) < self._most:
            self.kept[at] = made[0] if made else make()

    def attest(
        self,
        weights: str,
        expected: str,
        backend: str,
        literally: Callable[[Kept], Iterable[Question]],
        note: Callable[[int], str] | None = None,
    ) -> Attestation:
        """Run entries of what was kept again; refused where they differ by more than is allowed.

        ``literally`` says how entries of one that was kept are computed literally; ``note`` what
        to add, given how many comparisons were made.
        """
        seconds = tuning.REPLAY_SECONDS if self._seconds is None else self._seconds
        now = time.perf_counter()
        until = now + max(seconds, tuning.REPLAY_SHARE * (now - self._begun))
        again, done = Comparison(), 0

        def counted(asked: Iterable[Question]) -> Iterator[Question]:
            nonlocal done
            for question in asked:
                yield question
                done += 1

        for kept in self._in_order():
            if again.rows and time.perf_counter() > until:
                break  # before anything is prepared
            asked = counted(literally(kept))
            again = again.plus(run_again(asked, until, one_at_least=not again.rows))
        said = "" if again.rows else again.note
        found = Attestation(
            weights, expected, backend, again.rows, again.difference, again.allowed,
            said if note is None else note(done),
        )  # fmt: skip
        if not found.within and is_checked():
            raise IntegrityError(
                f"the {backend} backend is off by {found.difference:.3g} from the literal "
                f"matrices, {found.allowed:.3g} is allowed; use backend='literal', and please "
                "report it"
            )
        return found

    def _in_order(self) -> list[Kept]:
        last = self._last or []
        others = [one for one in self.kept if not any(one is it for it in last)]
        return [*last, *self.draw.sample(others, len(others))]
