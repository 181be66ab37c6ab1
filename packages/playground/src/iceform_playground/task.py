"""Task: a question that the playground can be asked, as its server and its workers see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

Asked = TypeVar("Asked", bound=BaseModel)
Given = TypeVar("Given", bound=BaseModel)

Pulse = Callable[[], None]


class Stopped(Exception):  # noqa: N818
    """Nobody waits for the answer any more."""


@dataclass(frozen=True)
class Task(Generic[Asked, Given]):
    """A typed question and the function that answers it.

    Attributes
    ----------
    name
        Last part of its address.
    says
        What it answers, in one line.
    asked, given
        Types of the question and of the answer.
    work
        Answers; calls ``pulse`` every few milliseconds, which raises :class:`Stopped` where the
        answer is no longer wanted.
    """

    name: str
    says: str
    asked: type[Asked]
    given: type[Given]
    work: Callable[[Asked, Pulse], Given]
