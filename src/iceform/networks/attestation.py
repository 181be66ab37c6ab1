"""A network under watch: what its pieces computed where, and some of it run again literally."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import TYPE_CHECKING

from torch import Tensor

from iceform import tuning
from iceform.certificates import Attestation, Ledger
from iceform.certificates.witness import run_again
from iceform.errors import IntegrityError
from iceform.heads import is_checked
from iceform.run import rounding_of

if TYPE_CHECKING:
    from iceform.networks.pieces.base import Piece, PieceSettings

_NOW: ContextVar[PieceRecorder | None] = ContextVar("what watches a network run", default=None)


def piece_recorder() -> PieceRecorder | None:
    """What watches this run, if anything does."""
    return _NOW.get()


class PieceRecorder:
    """Sees every piece run.

    Attributes
    ----------
    ledger
        What was computed where.
    passes
        Pieces that the frozen layers ran.
    """

    def __init__(self, settings: PieceSettings) -> None:
        self._settings = settings
        self.ledger, self.passes = Ledger(), 0
        self._seen: list[tuple[Piece, tuple[Tensor, ...], Tensor]] = []
        self._random = random.Random()  # of its own: a run must not disturb anybody's seeds
        self._begun = time.perf_counter()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch what runs inside."""
        token = _NOW.set(self)
        try:
            yield
        finally:
            _NOW.reset(token)

    def saw(self, piece: Piece, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """A piece ran."""
        self.ledger.note("host", "ranges checked")
        if not piece.emulated:
            self.ledger.note("host", f"{piece.kind}, as the original has it")
            return
        self.ledger.note("prompt", f"{piece.kind}: inputs, and what the network is made of")
        self.ledger.note("attention", f"{piece.kind}: {piece.how}")
        self.passes += 1
        one = (piece, inputs, output)
        if len(self._seen) < tuning.REPLAYED:
            self._seen.append(one)
        elif (place := self._random.randrange(self.passes)) < tuning.REPLAYED:
            self._seen[place] = one

    def attest(self) -> Attestation:
        """Hash the weights once more, and run entries of some pieces again literally."""
        frozen, backend = self._settings.layers, self._settings.backend
        weights = frozen.check()
        expected = frozen.network.expected or weights
        rounding = rounding_of(backend)
        if rounding.literal or not frozen.built:
            return Attestation(weights, expected, "literal", literal=True)
        now = time.perf_counter()
        until = now + max(tuning.REPLAY_SECONDS, tuning.REPLAY_SHARE * (now - self._begun))
        self._random.shuffle(self._seen)
        asked = (p.questions(inputs, out.detach(), self._random) for p, inputs, out in self._seen)
        again = run_again(chain.from_iterable(asked), rounding, until)
        found = Attestation(
            weights, expected, backend, again.rows, again.difference, again.allowed, again.note
        )
        if not found.within and is_checked():
            raise IntegrityError(
                f"the {backend} backend is off by {found.difference:.3g} from the literal "
                f"matrices, {found.allowed:.3g} is allowed; use backend='literal', and please "
                "report it"
            )
        return found
