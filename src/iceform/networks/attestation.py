"""Attestation of a network in context: which pieces ran, and some of them run again literally."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from torch import Tensor

from iceform import tuning
from iceform.certificates import Attestation, Ledger
from iceform.certificates.attester import Attester
from iceform.certificates.witness import ReplayedEntry
from iceform.run import rounding_of

if TYPE_CHECKING:
    from iceform.networks.pieces.base import Piece, PieceSettings

_RecordedPiece = tuple["Piece", tuple[Tensor, ...], Tensor]

_NOW: ContextVar[PieceRecorder | None] = ContextVar("what watches a network run", default=None)


def piece_recorder() -> PieceRecorder | None:
    """The recorder of the run that this code is in, if it is recorded."""
    return _NOW.get()


class PieceRecorder:
    """Counts the pieces that run, and keeps some of them to be run again.

    Attributes
    ----------
    ledger
        What was computed where.
    """

    def __init__(self, settings: PieceSettings) -> None:
        self._settings = settings
        self.ledger = Ledger()
        self._attester = Attester[_RecordedPiece](tuning.REPLAYED)

    @property
    def passes(self) -> int:
        """Pieces that the frozen layers ran."""
        return self._attester.seen

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch what runs inside."""
        token = _NOW.set(self)
        try:
            yield
        finally:
            _NOW.reset(token)

    def saw(self, piece: Piece, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Take note of a piece that has run."""
        self.ledger.note("host", "ranges checked")
        self.ledger.note("prompt", f"{piece.kind}: inputs, and what the network is made of")
        self.ledger.note("attention", f"{piece.kind}: {piece.how}")
        self._attester.offer(lambda: (piece, inputs, output.detach()))

    def attest(self) -> Attestation:
        """Hash the weights once more, and run entries of some pieces again literally."""
        frozen, backend = self._settings.layers, self._settings.backend
        weights = frozen.check()
        expected = frozen.network.expected or weights
        if rounding_of(backend).literal or not frozen.built:
            return Attestation(weights, expected, "literal", literal=True)
        return self._attester.attest(weights, expected, backend, self._questions)

    def _questions(self, seen: _RecordedPiece) -> Iterator[ReplayedEntry]:
        piece, inputs, output = seen
        return piece.questions(inputs, output, self._attester.draw)
