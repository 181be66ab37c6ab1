"""Pool: a bounded number of processes that compute, and a bounded queue in front of them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from iceform.validation import human_bytes
from iceform_playground.request_error import RequestError
from iceform_playground.settings import Settings
from iceform_playground.wire import HEADER, Kind, frame
from iceform_playground.worker import Orders

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before a worker that would not start is retried
_RETRY_AFTER = 1  # seconds; a place in the queue is free again after one answer
_GONE = (asyncio.IncompleteReadError, ConnectionError)  # what a pipe raises whose reader has ended


class _Worker:
    """A process that answers one question at a time."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._inlet, self._outlet = process, process.stdin, process.stdout
        self._reply: asyncio.Task[tuple[Kind, bytes]] | None = None

    @classmethod
    async def start(cls, settings: Settings) -> Self:
        """Start a process; it is not ready yet.

        It sits in a session of its own, so that Ctrl-C reaches the server alone, and looks for
        modules where this process does, but not in the working directory (-P).
        """
        patience = settings.time_limit + 2 * settings.grace
        orders = Orders(settings.tasks, settings.warm_up, settings.memory, patience)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "iceform_playground.worker", json.dumps(asdict(orders))),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "OMP_NUM_THREADS": "1",
                "MKL_NUM_THREADS": "1",
            },
        )
        return cls(process)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.returncode is None

    async def ready(self) -> None:
        """Return once it takes questions."""
        await self._read()

    async def ended(self) -> int:
        """The exit status, once it has ended."""
        return await self._process.wait()

    async def ask(self, task: str, body: bytes) -> tuple[Kind, bytes]:
        """The reply to a question. Where this is cancelled, ``settle`` must follow."""
        self._inlet.write(frame(Kind.QUESTION, task.encode() + b"\n" + body))
        self._reply = asyncio.create_task(self._read())
        return await asyncio.shield(self._reply)

    async def settle(self, grace: float) -> bool:
        """Make it drop its question; whether it did so within the grace."""
        assert self._reply is not None
        self._inlet.write(frame(Kind.STOP))
        await asyncio.wait({self._reply}, timeout=grace)
        return self._reply.done() and self._reply.exception() is None

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def end(self, grace: float) -> None:
        """Let it end by itself, as it does once nobody can speak to it, or kill it."""
        self._inlet.close()
        try:
            await asyncio.wait_for(self._process.wait(), grace)
        except TimeoutError:
            self.kill()
            await self._process.wait()
        if self._reply is not None:  # which breaks off, and somebody must take note
            await asyncio.wait({self._reply})
            self._reply.exception()

    async def _read(self) -> tuple[Kind, bytes]:
        kind, size = HEADER.unpack(await self._outlet.readexactly(HEADER.size))
        return Kind(kind), await self._outlet.readexactly(size)


class Pool:
    """Workers, and those who wait for one. An asynchronous context.

    Each worker is kept by a task that starts another when it ends. Whoever asks takes an idle one
    or a place in the line; a worker that becomes free goes to the first in the line.

    Parameters
    ----------
    settings
        How many workers and places there are, and how long a question may take.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ready: set[_Worker] = set()
        self._idle: list[_Worker] = []  # not empty only where the line is
        self._line: deque[asyncio.Future[_Worker]] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        for _ in range(self._settings.workers):
            self._run(self._keep())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    @property
    def ready(self) -> int:
        """Workers that take questions."""
        return len(self._ready)

    @property
    def busy(self) -> int:
        """Workers that compute."""
        return len(self._ready) - len(self._idle)

    @property
    def waiting(self) -> int:
        """Questions that wait for a worker."""
        return len(self._line)

    async def ask(self, task: str, body: bytes) -> bytes:
        """The answer to a question, as JSON.

        Raises
        ------
        RequestError
            The queue is full, the time is over, the library refused, or something failed. Where
            this is cancelled or late, the worker is told, and killed if it will not stop.
        """
        if not self._idle and len(self._line) >= self._settings.queue:
            raise RequestError(
                "busy", "too many questions are waiting; ask again soon", retry_after=_RETRY_AFTER
            )
        try:
            async with asyncio.timeout(self._settings.time_limit):
                return await self._answer(await self._next_worker(), task, body)
        except TimeoutError:
            if not self._ready:
                raise RequestError(
                    "busy",
                    "no process is there to compute: they start, or end as soon as they do, which "
                    "the server's log says; ask again soon",
                    retry_after=_RETRY_AFTER,
                ) from None
            raise RequestError(
                "late",
                f"no answer within {self._settings.time_limit:g} s; ask for less, or try again",
            ) from None

    async def _next_worker(self) -> _Worker:
        if self._idle:
            return self._idle.pop()
        place: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            if place in self._line:
                self._line.remove(place)
            if not place.cancelled():  # given a worker at the moment of leaving
                self._free(place.result())
            raise

    def _free(self, worker: _Worker) -> None:
        """Give a worker to the first in the line, if there is anybody."""
        if not worker.alive:
            return
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(worker)
                return
        self._idle.append(worker)

    async def _answer(self, worker: _Worker, task: str, body: bytes) -> bytes:
        try:
            kind, reply = await worker.ask(task, body)
        except asyncio.CancelledError:
            self._run(self._settle(worker))
            raise
        except _GONE:
            self._run(worker.end(self._settings.grace))
            _LOG.error("a worker died while it answered %s", task)
            raise RequestError(
                "crashed", "the computation ended unexpectedly; ask for less"
            ) from None
        if kind is Kind.MEMORY:  # what it holds may be what is missing
            self._run(worker.end(self._settings.grace))
            most = human_bytes(self._settings.memory)
            raise RequestError("memory", f"this needs more than the {most} there are; ask for less")
        self._free(worker)
        if kind is Kind.REFUSAL:
            raise RequestError("refused", reply.decode())
        if kind is not Kind.ANSWER:
            _LOG.error("%s failed in a worker:\n%s", task, reply.decode())
            raise RequestError("internal", "something went wrong here; the server's log has more")
        return reply

    async def _settle(self, worker: _Worker) -> None:
        if await worker.settle(self._settings.grace):
            self._free(worker)
        else:
            worker.kill()

    async def _keep(self) -> None:
        """Keep one worker, and start another when it ends."""
        pause = _FIRST_PAUSE
        while True:
            worker = await _Worker.start(self._settings)
            try:
                await worker.ready()
                self._ready.add(worker)
                self._free(worker)
                pause = _FIRST_PAUSE
                await worker.ended()
            except _GONE:
                _LOG.error("a worker ended before it was ready; the next starts in %g s", pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            finally:
                self._ready.discard(worker)
                if worker in self._idle:
                    self._idle.remove(worker)
                await worker.end(self._settings.grace)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run beside whoever asks, until it ends or the pool does."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
