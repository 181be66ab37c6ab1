"""Connections that say nothing are closed: after a while, and at once where room is needed.

A connection is idle while it has no request under way: it sends nothing, or a head that does not
end. Each has ``header_seconds`` for that. Where as many are open as the server holds, or one client
has more than its share, an idle one of the client that has most goes: of those that never asked
anything the first that came or, where all have, of those between two requests. One whose request
has come and is not read yet, as a busy server has them, goes last.
"""

from __future__ import annotations

import asyncio
import select
from collections import Counter
from collections.abc import Sequence
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from iceform_playground.settings import Settings

_ROOM = 8  # places kept free below the limit, at which the server refuses requests
_SHARE = 0.75  # of the places that one client may hold


def protocol(settings: Settings) -> type[asyncio.Protocol]:
    """HTTP with these limits, as the server takes it."""
    most = max(1, settings.connections - min(_ROOM, settings.connections // 2))
    share = max(1, int(_SHARE * most))
    opened: dict[_Patient, None] = {}  # in the order in which they came

    class Limited(_Patient):
        patience = settings.header_seconds

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            opened[self] = None
            held = Counter(c.address for c in opened)
            if held[self.address] > share:
                _close_oldest(opened, self.address, self)
            elif len(opened) > most:
                _close_oldest(opened, held.most_common(1)[0][0], self)

        def connection_lost(self, exc: Exception | None) -> None:
            opened.pop(self, None)
            super().connection_lost(exc)

    return Limited


def _close_oldest(opened: dict[Any, None], address: str, but: object) -> None:
    idle = [c for c in opened if c.address == address and c.idle and c is not but]
    said = _said(idle)
    # A stable sort: the first that came.
    for one in sorted(idle, key=lambda c: (c in said, c.asked))[:1]:
        opened.pop(one)
        one.transport.close()


def _said(connections: Sequence[Any]) -> set[Any]:
    """Those that have sent what is not read yet, where the system tells."""
    if not hasattr(select, "poll"):
        return set()
    poller, by_file = select.poll(), {}
    for one in connections:
        file = one.transport.get_extra_info("socket").fileno()
        if file >= 0:
            by_file[file] = one
            poller.register(file, select.POLLIN)
    return {by_file[file] for file, event in poller.poll(0) if event & select.POLLIN}


class _Patient(H11Protocol):
    """Closed when a head takes longer than ``patience`` seconds."""

    patience: float
    _deadline: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """Of the client."""
        return "" if self.client is None else self.client[0]

    @property
    def asked(self) -> bool:
        """Whether a request has come in it."""
        return self.cycle is not None

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._wait()
        super().data_received(data)
        if not self.idle:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._deadline = self.loop.call_later(self.patience, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.idle and not self.transport.is_closing():
            self.transport.close()
