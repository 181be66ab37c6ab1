"""What the playground may be asked, with the limits of every number."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from iceform.attention import MARGIN

MOST_POINTS = 500
MOST_CYCLES = 300  # of a program that is stepped through


class _Strict(BaseModel):
    """No field that is not named, no number that is not finite, no conversion of types."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True, frozen=True)


class Point(_Strict):
    """A point of the board: a place, and one of two groups."""

    x: Annotated[float, Field(ge=-1, le=1)]
    y: Annotated[float, Field(ge=-1, le=1)]
    group: Annotated[int, Field(ge=0, le=1)] = 0


class Moved(_Strict):
    """A value of the table, moved by hand: what the network reads is then another function."""

    token: Annotated[int, Field(ge=0, le=128)]
    by: Annotated[float, Field(ge=-2, le=2)]


class Lookup(_Strict):
    """How a function is written as look-up tokens.

    ``tokens`` is the number of grid tokens; null takes as many as ``eps`` needs. A ``sharpness``
    of null is the rule of the regime.
    """

    regime: Literal["spectral", "hard"] = "spectral"
    tokens: Annotated[int, Field(ge=5, le=129)] | None = 65
    eps: Annotated[float, Field(ge=1e-14, le=0.5)] = 1e-6
    sharpness: Annotated[float, Field(ge=0.02, le=64)] | None = None
    moved: Moved | None = None


class Loss(_Strict):
    """A loss: that of an algorithm of the catalogue, with its settings and a formula."""

    algorithm: Annotated[str, Field(max_length=60)] = "ridge"
    options: Annotated[
        dict[Annotated[str, Field(max_length=40)], Annotated[float, Field(ge=0, le=1e6)]],
        Field(max_length=8),
    ] = {}
    formula: Annotated[str, Field(max_length=200)] = "sqrt(z^2 + 0.01)"


class Model(Loss):
    """An algorithm with the degree of its features."""

    degree: Annotated[int, Field(ge=1, le=7)] = 3


class Running(_Strict):
    """How the machine is run: which step, how long, how many passes."""

    method: Literal["gradient", "momentum", "newton"] = "momentum"
    rate: Annotated[float, Field(ge=0.01, le=4)] = 1.0
    passes: Annotated[int, Field(ge=1, le=200)] = 40


class FitQuestion(_Strict):
    """Run an algorithm on points."""

    points: Annotated[list[Point], Field(min_length=1, max_length=MOST_POINTS)]
    model: Model = Model()
    running: Running = Running()
    lookup: Lookup = Lookup()


class InsideQuestion(FitQuestion):
    """Look into one prompt of a run.

    Attributes
    ----------
    network
        "stream" is the machine that ran; "two_layers" is the machine that is given a whole head.
    margin
        M between the blocks of a look-up, for "stream", instead of the frozen one: another
        network, with another digest, which leaks where M is small.
    frame
        After which step, for "stream".
    first
        The first of the samples that the prompt holds.
    layer, head
        Whose attention to show.
    """

    network: Literal["stream", "two_layers"] = "stream"
    margin: Annotated[float, Field(ge=0, le=MARGIN)] | None = None
    frame: Annotated[int, Field(ge=0, le=200)] = 0
    first: Annotated[int, Field(ge=0, lt=MOST_POINTS)] = 0
    layer: Annotated[int, Field(ge=0, le=7)] = 0
    head: Annotated[int, Field(ge=0, le=255)] = 0


class LookupQuestion(_Strict):
    """The look-up of a loss's derivative on [-reach, reach], hard and spectral."""

    loss: Loss = Loss()
    lookup: Lookup = Lookup()
    reach: Annotated[float, Field(ge=0.25, le=64)] = 4.0


class ProgramQuestion(_Strict):
    """Run a program of the computer's library on its example, cycle by cycle.

    ``settings`` are numbers for its parameters; the others are as the page starts with them.
    """

    program: Annotated[str, Field(max_length=60)] = "least_squares"
    settings: Annotated[
        dict[Annotated[str, Field(max_length=40)], Annotated[float, Field(ge=-1e6, le=1e6)]],
        Field(max_length=8),
    ] = {}


class CycleQuestion(ProgramQuestion):
    """Every layer's attention in one cycle of the same run."""

    cycle: Annotated[int, Field(ge=0, lt=MOST_CYCLES)] = 0
