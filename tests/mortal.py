"""Writers that die at a named point of their work, and not when a clock says so."""

import os
import signal
from typing import Any


class Mortal:
    """The ``os`` of a writer that dies at one point of its work; without one it only counts them.

    Every call that touches the disk is two points, before and after it; a write dies in its middle
    too, when half of it is done.
    """

    CALLS = ("open", "write", "fsync", "replace", "unlink", "close")

    def __init__(self, end: int | None = None) -> None:
        self.end, self.points = end, list[str]()

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        if name not in self.CALLS:
            return call

        def passed(*given: Any, **named: Any) -> Any:
            self._reach(f"before {name}")
            if name == "write":
                handle, part = given
                if self._next():
                    os.write(handle, part[: len(part) // 2])
                self._reach("amid write")
            found = call(*given, **named)
            self._reach(f"after {name}")
            return found

        return passed

    def _next(self) -> bool:
        return self.end == len(self.points)

    def _reach(self, point: str) -> None:
        if self._next():
            os.kill(os.getpid(), signal.SIGKILL)
        self.points.append(point)
