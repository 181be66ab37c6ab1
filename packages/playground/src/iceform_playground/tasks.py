"""Everything that the playground can be asked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from iceform_estimators.machine import CLIP
from iceform_playground import questions as asked
from iceform_playground.algorithms import entries, options
from iceform_playground.answers import (
    CatalogueAnswer,
    CycleAnswer,
    FitAnswer,
    InsideAnswer,
    LookupAnswer,
    ProgramAnswer,
    RatesAnswer,
)
from iceform_playground.fitting import describe, fit, the_machine
from iceform_playground.inside import inside
from iceform_playground.lookups import look_up, rates
from iceform_playground.stepping import attention, programs, step_through
from iceform_playground.task import Task

TASKS: Mapping[str, Task[Any, Any]] = {
    task.name: task
    for task in (
        Task("fit", "Run an algorithm on points, step by step.", asked.FitQuestion, FitAnswer, fit),
        Task(
            "inside",
            "Look into one prompt of a run: tokens, attention, margins.",
            asked.InsideQuestion,
            InsideAnswer,
            inside,
        ),
        Task(
            "lookup",
            "The look-up tables of a loss's derivative.",
            asked.LookupQuestion,
            LookupAnswer,
            look_up,
        ),
        Task(
            "rates",
            "Error against grid tokens, measured and certified.",
            asked.LookupQuestion,
            RatesAnswer,
            rates,
        ),
        Task(
            "program",
            "Run a program on the frozen computer, cycle by cycle.",
            asked.ProgramQuestion,
            ProgramAnswer,
            step_through,
        ),
        Task(
            "cycle",
            "Every layer's attention in one cycle of a program.",
            asked.CycleQuestion,
            CycleAnswer,
            attention,
        ),
    )
}


def catalogue() -> CatalogueAnswer:
    """What the page offers; it does not change."""
    return CatalogueAnswer(
        algorithms=options(),
        machine=describe(the_machine()),
        most_points=asked.MOST_POINTS,
        programs=programs(),
    )


_POINTS = [  # no two groups that a plane parts, no curve through all of them
    (x / 10, 0.6 * math.sin(0.3 * x) + 0.3 * math.cos(7 * x), int(math.cos(5 * x) < 0.2))
    for x in range(-9, 10)
]
_THRESHOLD_REACH = 1024  # of a soft threshold's ratio: beyond it the table is not widened


def warm_up() -> Iterator[None]:
    """Run everything once, a little at a time, so that nobody waits for tables to be fitted."""
    points = [asked.Point(x=x, y=y, group=g) for x, y, g in _POINTS]
    for algorithm in entries():
        fit(asked.FitQuestion(points=points, model=asked.Model(algorithm=algorithm)), _unhurried)
        yield
    reach = 1.0
    while reach <= _THRESHOLD_REACH:
        CLIP.on(reach)
        reach *= 2
        yield
    for name, entry in entries().items():
        if entry.descends:
            look_up(asked.LookupQuestion(loss=asked.Loss(algorithm=name)), _unhurried)
            yield
    step_through(asked.ProgramQuestion(), _unhurried)
    yield


def _unhurried() -> None:
    pass
