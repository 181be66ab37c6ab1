"""A worker: the process in which the playground computes. ``python -m iceform_playground.worker``.

Its main thread computes. A second one listens to the server: it takes in questions, notes that
nobody waits any more, and ends the process when the server is gone.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

from iceform.errors import IceformError
from iceform_playground.task import Pulse, Stopped, Task
from iceform_playground.wire import Kind, frame, load, load_tasks, read_frame


@dataclass(frozen=True)
class Orders:
    """What a worker is told when it starts.

    Attributes
    ----------
    tasks, warm_up
        ``module:name`` of the tasks, and of an iterator of steps to take while nobody asks.
    memory
        Bytes it may allocate.
    patience
        Seconds for one question after which the process ends itself, whatever holds it.
    """

    tasks: str
    warm_up: str
    memory: int
    patience: float


class _Listener(threading.Thread):
    """Hears the server out while the main thread computes."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(daemon=True)
        self.questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._stream = stream
        self._unwanted = threading.Event()

    def run(self) -> None:
        while (heard := read_frame(self._stream)) is not None:
            kind, body = heard
            if kind is Kind.STOP:
                self._unwanted.set()
            else:
                self._unwanted.clear()
                self.questions.put(body)
        os._exit(0)  # the server is gone; the main thread may be deep in a computation

    def pulse(self) -> None:
        """Raise where nobody waits for the answer any more."""
        if self._unwanted.is_set():
            raise Stopped


def main() -> None:
    """Answer questions, one at a time, until the server is gone."""
    orders = Orders(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    _limit_memory(orders.memory)
    inlet, outlet = _take_pipes()
    listener = _Listener(inlet)
    listener.start()
    tasks = load_tasks(orders.tasks)
    steps: Iterator[None] = load(orders.warm_up)()
    outlet.write(frame(Kind.READY))
    while True:
        question = _next_question(listener.questions, steps)
        faulthandler.dump_traceback_later(orders.patience, exit=True)
        reply = reply_to(question, tasks, listener.pulse)
        faulthandler.cancel_dump_traceback_later()
        outlet.write(frame(*reply))


def _next_question(questions: queue.SimpleQueue[bytes], steps: Iterator[None]) -> bytes:
    """The next question; until it comes, what is left of the warm-up goes on, step by step."""
    try:
        while questions.empty():
            next(steps)
    except StopIteration:
        pass
    except Exception:  # a cold worker answers too, only later
        traceback.print_exc()
    return questions.get()


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the server's pipes for frames alone: what a computation prints goes to stderr."""
    inlet, outlet = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return inlet, outlet


def _limit_memory(most: int) -> None:
    """Limit private writable memory (RLIMIT_DATA: Linux counts anonymous mappings), if possible.

    The address space is no measure: torch maps far more of it than it ever touches.
    """
    try:
        import resource
    except ModuleNotFoundError:  # not a POSIX system
        return
    with suppress(ValueError, OSError):  # a lower limit is in force already
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def reply_to(
    question: bytes, tasks: Mapping[str, Task[Any, Any]], pulse: Pulse
) -> tuple[Kind, bytes]:
    """The reply to a question, whatever comes of it."""
    name, _, body = question.partition(b"\n")
    task = tasks[name.decode()]
    try:
        given = task.work(task.asked.model_validate_json(body), pulse)
        return Kind.ANSWER, given.model_dump_json().encode()
    except Stopped:
        return Kind.STOPPED, b""
    except IceformError as refusal:
        return Kind.REFUSAL, str(refusal).encode(errors="replace")
    except Exception as failure:
        if _out_of_memory(failure):
            return Kind.MEMORY, b""
        return Kind.FAILURE, traceback.format_exc().encode(errors="replace")


def _out_of_memory(failure: Exception) -> bool:
    """Whether an allocation failed: torch's own allocator raises a RuntimeError that says so."""
    return isinstance(failure, MemoryError) or (
        isinstance(failure, RuntimeError) and "allocate memory" in str(failure)
    )


if __name__ == "__main__":
    main()
