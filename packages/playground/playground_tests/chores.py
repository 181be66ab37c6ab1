"""Tasks for the tests of the server: they add, wait, crash, refuse, fail and hoard."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from iceform.errors import BoundError
from iceform_playground.task import Pulse, Task

TICK = 0.005  # seconds between pulses


class Point(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    x: Annotated[float, Field(ge=-1, le=1)]
    y: Annotated[float, Field(ge=-1e9, le=1e9)]


class Points(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    points: Annotated[list[Point], Field(min_length=1, max_length=1000)]
    name: Annotated[str, Field(max_length=20)] = "sum"


class Total(BaseModel):
    name: str
    total: float


class Loose(BaseModel):
    """Takes what it is given: the server itself must hold to JSON."""

    value: Annotated[float, Field(strict=True)] = 0.0
    anything: object = None


class Time(BaseModel):
    seconds: Annotated[float, Field(ge=0, le=60)] = 0.0


class Gate(BaseModel):
    """A file whose coming is waited for: tests open it when they have seen what they want."""

    path: str


class Done(BaseModel):
    pid: int


def add(question: Points, pulse: Pulse) -> Total:
    pulse()
    return Total(name=question.name, total=sum(point.x + point.y for point in question.points))


def loosely(question: Loose, pulse: Pulse) -> Done:
    return Done(pid=os.getpid())


def wait(question: Time, pulse: Pulse) -> Done:
    end = time.monotonic() + question.seconds
    while time.monotonic() < end:
        pulse()
        time.sleep(TICK)
    return Done(pid=os.getpid())


def hold(question: Gate, pulse: Pulse) -> Done:
    """Until the gate is open, or nobody waits for it."""
    while not os.path.exists(question.path):
        pulse()
        time.sleep(TICK)
    return Done(pid=os.getpid())


def stay(question: Gate, pulse: Pulse) -> Done:
    """Until the gate is open, whoever has left."""
    while not os.path.exists(question.path):
        time.sleep(TICK)
    return Done(pid=os.getpid())


def hang(question: Time, pulse: Pulse) -> Done:
    time.sleep(question.seconds)
    return Done(pid=os.getpid())


def crash(question: Time, pulse: Pulse) -> Done:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def refuse(question: Time, pulse: Pulse) -> Done:
    raise BoundError(f"seconds = {question.seconds} is beyond what can be certified")


def fail(question: Time, pulse: Pulse) -> Done:
    raise RuntimeError("the password is swordfish")


def hoard(question: Time, pulse: Pulse) -> Done:
    import torch

    held = torch.ones(1 << 32, dtype=torch.float64)  # 32 GiB
    return Done(pid=int(held[0]))


def talk(question: Time, pulse: Pulse) -> Done:
    print("to stdout, where the frames go")
    sys.stdout.flush()
    os.write(1, b"the same, past Python\n")
    return Done(pid=os.getpid())


class Offer(BaseModel):
    tasks: list[str]


def catalogue() -> Offer:
    return Offer(tasks=list(TASKS))


def warm_up() -> Iterator[None]:
    yield


def cold() -> Iterator[None]:
    yield
    raise RuntimeError("no fuel")


def _task(work: Callable[..., BaseModel], asked: type[BaseModel], given: type[BaseModel]) -> Task:
    return Task(work.__name__, f"To {work.__name__}.", asked, given, work)


_TIMED = (wait, hang, crash, refuse, fail, hoard, talk)
TAME = {"add": _task(add, Points, Total), "loosely": _task(loosely, Loose, Done)}
TASKS = TAME | {work.__name__: _task(work, Time, Done) for work in _TIMED}
TASKS |= {work.__name__: _task(work, Gate, Done) for work in (hold, stay)}
