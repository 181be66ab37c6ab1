"""What the playground answers. A number that is not finite is null."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from iceform.arithmetic import exactly
from iceform.certificates import ErrorBound
from iceform.interpolation import Interpolant


def finite(value: Any) -> Any:
    """The number, or None where JSON has none for it."""
    return value if value is None or math.isfinite(value) else None


Number = Annotated[float | None, BeforeValidator(finite)]

_DIGITS = 6  # significant digits of numbers that are only drawn


def numbers(values: Iterable[float]) -> list[float]:
    """Numbers to draw."""
    return [float(f"{v:.{_DIGITS}g}") for v in values]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class MachineAnswer(_Answer):
    """The frozen weights that ran: their digest and sizes."""

    digest: str
    dim: int
    samples: int
    tokens: int
    parameters: int


class StepAnswer(_Answer):
    """One line of a derivation."""

    symbol: str
    formula: str
    value: Number
    why: str
    least: bool


class CertificateAnswer(_Answer):
    """A certificate or an enclosure, JSON-ready; ``kind`` is "proven" or "estimated"."""

    error: Number
    kind: str
    terms: dict[str, Number]
    domain: dict[str, str]
    derivation: list[StepAnswer]
    assumptions: list[str]

    @classmethod
    def of(cls, certificate: ErrorBound) -> CertificateAnswer:
        """From the library's."""
        return cls(
            error=certificate.error,
            kind=certificate.kind,
            terms=dict(certificate.terms),
            domain={
                name: value if isinstance(value, str) else exactly(value)
                for name, value in certificate.domain.items()
            },
            derivation=[StepAnswer(**vars(step)) for step in certificate.derivation],
            assumptions=list(certificate.assumptions),
        )


class TableAnswer(_Answer):
    """A look-up table: softmax(slopes (z - center) + biases) . values."""

    regime: str
    tokens: int
    sharpness: float
    low: float
    high: float
    center: float
    error: Number
    kind: str
    nodes: list[float]
    slopes: list[float]
    biases: list[float]
    values: list[float]
    assumptions: list[str]

    @classmethod
    def of(cls, it: Interpolant) -> TableAnswer:
        """From the library's."""
        return cls(
            regime=it.regime,
            tokens=it.tokens,
            sharpness=it.sharpness,
            low=it.low,
            high=it.high,
            center=it.grid.center,
            error=it.error,
            kind=it.kind,
            nodes=it.grid.nodes.tolist(),
            slopes=it.keys.slopes.tolist(),
            biases=it.keys.biases.tolist(),
            values=it.values.tolist(),
            assumptions=list(it.assumptions),
        )


class Frame(_Answer):
    """The model after a step.

    Attributes
    ----------
    passes
        Passes of the machine up to here.
    coef, intercept
        Of the features as the page computes them.
    exact
        The same after the same steps without the machine, the intercept last.
    gap
        Largest difference of the two.
    distance
        Largest difference from the exact optimum; null where that is not known.
    certified, kind
        What that distance is at most, null where nothing is known, and whether that is "proven" or
        "estimated".
    """

    passes: int
    coef: list[float]
    intercept: float
    exact: list[float] | None
    gap: Number
    distance: Number
    certified: Number
    kind: str


class FitAnswer(_Answer):
    """A run.

    Attributes
    ----------
    frames
        The model after each step; empty for an average over samples.
    curve, plane
        Values on the page's mesh, for an average: along x, or by rows of y.
    axes
        Directions with their standard deviations, and the mean, for components.
    table
        What was looked up last.
    attestation, ledger
        Which weights ran, and what was computed where, in words.
    prompts
        Prompts of one pass.
    note
        Why a run ended early, and what to do; null where it did not.
    """

    machine: MachineAnswer
    frames: list[Frame]
    certificate: CertificateAnswer
    attestation: str
    ledger: str
    passes: int
    prompts: int
    table: TableAnswer | None = None
    curve: list[float] | None = None
    plane: list[list[float]] | None = None
    axes: list[list[float]] | None = None
    note: str | None = None


class PromptAnswer(_Answer):
    """A prompt: tokens by features; ``hidden`` tokens that no query sees are left out."""

    roles: list[str]
    features: list[str]
    values: list[list[float]]
    hidden: int


class Attention(_Answer):
    """The attention of one head: rows are queries, columns keys."""

    layers: list[list[str]]  # names of the heads of each layer
    layer: int
    head: int
    queries: list[str]
    keys: list[str]
    weights: list[list[float]]


class Margins(_Answer):
    """How firmly each query looks where it should, and what leaks.

    ``margin`` is M, null where queries have no blocks; a query's own ``gaps`` entry falls by as
    much as M is lowered, and 1/(1 + e^gap) of its attention leaks.
    """

    queries: list[str]
    gaps: list[Number]
    leaks: list[Number]
    between: str
    margin: Number
    mass: list[list[float]]  # log10 of a query's attention on each block
    blocks: list[str]


class InsideAnswer(_Answer):
    """One prompt of a run, looked into.

    ``literal`` is the largest difference of what the frozen matrices return and the fast path.
    """

    digest: str
    prompt: PromptAnswer
    attention: Attention
    margins: Margins
    literal: Number


class LookupAnswer(_Answer):
    """A function and its look-ups, on a mesh."""

    name: str
    z: list[float]
    exact: list[float]
    spectral: TableAnswer | None
    hard: TableAnswer
    note: str | None = None


class Rate(_Answer):
    """Errors of a regime by number of grid tokens; ``kind`` is the weakest of all."""

    regime: str
    tokens: list[int]
    measured: list[float]
    certified: list[Number]
    kind: str


class RatesAnswer(_Answer):
    """Error against grid tokens."""

    name: str
    rates: list[Rate]


class SliderAnswer(_Answer):
    """A setting: its range, and whether it goes by whole numbers or powers of ten.

    ``zero`` says that 0 lies left of the lowest power; ``choices`` are all that there is, where a
    page has tables of those alone.
    """

    name: str
    title: str
    low: float
    high: float
    start: float
    whole: bool
    powers: bool
    zero: bool
    choices: list[float] | None = None


class OptionAnswer(_Answer):
    """An algorithm as the page lists it.

    ``linear`` ones have features of some degree, those that descend can be followed step by step,
    and ``typed`` ones take a formula.
    """

    name: str
    title: str
    task: str
    says: str
    objective: str
    sliders: list[SliderAnswer]
    typed: bool
    linear: bool
    descends: bool


class CatalogueAnswer(_Answer):
    """What the page offers."""

    algorithms: list[OptionAnswer]
    machine: MachineAnswer
    most_points: int
    programs: list[ProgramOption]


# ---------------------------------------------------------------------------------------------
# the frozen computer
# ---------------------------------------------------------------------------------------------

Held = list[list[float]]  # lanes by components; one component where all are the same


class ProgramOption(_Answer):
    """A program of the computer's library, as the page lists it."""

    name: str
    title: str


class ParameterAnswer(_Answer):
    """A number in the prompt, and the range that the program was compiled for."""

    name: str
    value: float
    low: float
    high: float
    whole: bool


class InstructionAnswer(_Answer):
    """One instruction: assembly, what its table computes, and the line that asked for it.

    ``when`` is +1 or -1 for the two sides of a branch.
    """

    address: int
    when: int
    text: str
    f: str
    g: str
    note: str
    line: int
    halts: bool


class VariableAnswer(_Answer):
    """A name in memory: "lane0" or "samples", and what it starts with."""

    name: str
    lanes: str
    start: Held


class CycleStep(_Answer):
    """One cycle: which instruction it executed, and what then was different in memory."""

    instruction: int
    changed: dict[str, Held]


class OutputAnswer(_Answer):
    """An answer, and the exact program's."""

    name: str
    value: list[float]
    exact: list[float]


class ProgramAnswer(_Answer):
    """A literal run, cycle by cycle.

    Attributes
    ----------
    digest
        Of the block that ran, from its bytes.
    tokens, features, heads, layers
        Of the prompt and of the block.
    source, first_line
        The algorithm as its author wrote it, and where that begins in its file.
    off
        Largest difference of an answer from the exact program's in float64.
    """

    name: str
    says: str
    digest: str
    tokens: int
    features: int
    heads: int
    layers: int
    source: list[str]
    first_line: int
    parameters: list[ParameterAnswer]
    instructions: list[InstructionAnswer]
    variables: list[VariableAnswer]
    cycles: list[CycleStep]
    outputs: list[OutputAnswer]
    off: float
    certificate: CertificateAnswer
    attestation: str
    ledger: str


class HeadAnswer(_Answer):
    """A head that somebody asks: rows are tokens that ask, columns tokens that answer."""

    name: str
    queries: list[str]
    keys: list[str]
    weights: list[list[float]]


class AttentionAnswer(_Answer):
    """A layer in one cycle.

    ``copies`` of its tokens are copied to themselves by the self head; ``idle`` heads are asked by
    nobody, and ``hidden`` ones look components up that this program does not use.
    """

    layer: str
    copies: int
    idle: int
    hidden: int
    heads: list[HeadAnswer]


class CycleAnswer(_Answer):
    """The attention of one cycle, layer by layer."""

    digest: str
    cycle: int
    layers: list[AttentionAnswer]
