"""What all of them need: numbers as balls, and whose exact answer is enclosed by which function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

from torch import Tensor

from iceform.arithmetic.balls import ball_arithmetic
from iceform.certificates import Result
from iceform.errors import PrecisionError, ProgramError
from iceform_estimators.machine.program import MachineProgram, RunData

Ball = Any  # flint.arb, which ships no types
Pairs = list[tuple[Ball, Ball]]  # what was found, and what is exact

ROUNDS = 200  # of Newton's method, which squares its error, and of changes of the support
MARGIN = 96  # bits that the box around an optimum is wider than what is known of it


@singledispatch
def exact_of(program: MachineProgram, found: Result, given: RunData) -> Pairs:
    """By the kind of program; the modules beside this one register theirs."""
    raise ProgramError(
        f"ball arithmetic does not know the exact answer of {program.label}; its certificate "
        "stands, unverified"
    )


def arb(value: float) -> Ball:
    """A number that is known exactly."""
    return ball_arithmetic().arb(value)


def balls_in(values: Tensor) -> list[Ball]:
    """Of a tensor, one after the other."""
    return [arb(v) for v in values.detach().double().flatten().tolist()]


def rows_in(values: Tensor) -> list[list[Ball]]:
    """Of a matrix, row by row."""
    return [balls_in(row) for row in values]


def dot(a: Sequence[Ball], b: Sequence[Ball]) -> Ball:
    """Sum of products."""
    return sum((s * t for s, t in zip(a, b, strict=True)), arb(0))


def not_enclosed(why: str) -> PrecisionError:
    """What is raised where nothing is proved, neither that a bound holds nor that it fails."""
    return PrecisionError(
        f"the exact answer is not enclosed: {why}; verify with more bits", best=math.inf
    )


def bits() -> int:
    """Of the balls that are being computed with."""
    return int(ball_arithmetic().ctx.prec)


def softmax(logits: list[Ball]) -> list[Ball]:
    """Weights of an average, the largest logit taken away first."""
    top = max(logits, key=lambda a: float(a.mid()))
    masses = [(a - top).exp() for a in logits]
    total = sum(masses, arb(0))
    return [m / total for m in masses]
