"""What the server and a worker say to each other over a pipe: a kind, a length, and bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from typing import Any, BinaryIO

from iceform_playground.task import Task

HEADER = struct.Struct(">cI")


class Kind(Enum):
    """What a frame is."""

    QUESTION = b"q"  # to the worker: a task's name, a line break, and a question as JSON
    STOP = b"s"  # to the worker: nobody waits for the answer any more
    READY = b"r"  # questions may come
    ANSWER = b"a"  # JSON
    STOPPED = b"z"
    REFUSAL = b"i"  # why the library refused, for whoever asked
    MEMORY = b"m"  # the worker's memory did not suffice
    FAILURE = b"f"  # a traceback, for the log alone


def frame(kind: Kind, body: bytes = b"") -> bytes:
    """A frame as it is sent."""
    return HEADER.pack(kind.value, len(body)) + body


def read_frame(stream: BinaryIO) -> tuple[Kind, bytes] | None:
    """The next frame, or None where the stream ends."""
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    kind, size = HEADER.unpack(head)
    body = stream.read(size)
    return (Kind(kind), body) if len(body) == size else None


def load(name: str) -> Any:
    """What ``module:name`` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def load_tasks(name: str) -> Mapping[str, Task[Any, Any]]:
    """The mapping of tasks that ``module:name`` names."""
    tasks: Mapping[str, Task[Any, Any]] = load(name)
    return tasks
