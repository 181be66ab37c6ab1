"""Settings: where the playground listens, and how much one request may take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from iceform.errors import ProgramError

_LAST_PORT = 65535
_LEAST_MEMORY = 1 << 29  # a worker has loaded torch and what it needs into less than this


@dataclass(frozen=True)
class Settings:
    """Settings of the playground's server.

    Attributes
    ----------
    host, port
        Where it listens; port 0 is any that is free.
    workers
        Processes that compute, each with one thread.
    queue
        Requests that may wait for a worker; one more is refused.
    time_limit
        Seconds that a request may take, its time in the queue included.
    grace
        Seconds that a worker has to stop once nobody waits for its answer; then it is killed.
    memory
        Bytes that a worker may allocate, where the system can limit them.
    body_bytes, body_seconds
        Largest body of a request, and how long it may take to arrive.
    header_seconds
        How long a connection may take to ask something.
    connections
        Connections that are held at once. For one more, one that asks nothing is closed; where all
        ask, it is answered 503.
    tasks, warm_up, catalogue
        ``module:name`` of the mapping of tasks, of an iterator whose steps a worker takes while
        nobody asks, and of what says what the page offers.
    """

    host: str = "127.0.0.1"
    port: int = 8642
    workers: int = 2
    queue: int = 16
    time_limit: float = 10.0
    grace: float = 0.5
    memory: int = 2 << 30
    body_bytes: int = 256 << 10
    body_seconds: float = 10.0
    header_seconds: float = 10.0
    connections: int = 512
    tasks: str = "iceform_playground.tasks:TASKS"
    warm_up: str = "iceform_playground.tasks:warm_up"
    catalogue: str = "iceform_playground.tasks:catalogue"

    def __post_init__(self) -> None:
        if not 0 <= self.port <= _LAST_PORT:
            raise ProgramError(f"port must be 0 (any free one) to {_LAST_PORT}, got {self.port}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least):
                raise ProgramError(f"{name} must be finite and at least {least:g}, got {value!r}")


_LEAST = {
    "workers": 1,
    "queue": 0,
    "time_limit": 0.01,
    "grace": 0.01,
    "memory": _LEAST_MEMORY,
    "body_bytes": 1,
    "body_seconds": 0.01,
    "header_seconds": 0.01,
    "connections": 1,
}
