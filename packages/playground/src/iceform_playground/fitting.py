"""Runs for the page: one frozen machine, every algorithm, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from iceform.errors import IceformError
from iceform_estimators.algorithms import (
    PCA,
    Algorithm,
    ElasticNet,
    LinearModel,
    Perceptron,
    fitted,
)
from iceform_estimators.machine import (
    ArraySource,
    LinearProblem,
    Machine,
    Scaling,
    Solution,
    Stream,
    minimise,
)
from iceform_playground import questions as asked
from iceform_playground.algorithms import Entry, descends, entry_named, features_of, labels_of
from iceform_playground.answers import (
    CertificateAnswer,
    FitAnswer,
    Frame,
    MachineAnswer,
    TableAnswer,
    numbers,
)
from iceform_playground.paths import ExactProblem, LookedProblem, steps
from iceform_playground.task import Pulse

CURVE_MESH = 201  # places along x at which an average is drawn
PLANE_MESH = 41  # places along either axis of the plane
_UNIT = torch.finfo(torch.float64).eps / 2


@lru_cache(maxsize=1)
def the_machine() -> Stream:
    """The playground's machine: ten features, four samples to a prompt, blocks of 129 tokens."""
    return Machine(10, 4, layout="stream", tokens=129)


def fit(question: asked.FitQuestion, pulse: Pulse) -> FitAnswer:
    """Run the algorithm on the points."""
    setting = Setting.of(question)
    if descends(setting.algorithm):
        return _by_steps(setting, pulse)
    if isinstance(setting.algorithm, Perceptron):
        return _perceptron(setting, setting.algorithm, pulse)
    if isinstance(setting.algorithm, LinearModel):
        return _line(setting)
    if setting.entry.task == "shape":
        return _components(setting)
    return _average(setting, pulse)


@dataclass(frozen=True, eq=False)
class Setting:
    """A question in the library's terms.

    Attributes
    ----------
    entry, algorithm
        What runs.
    points, groups
        Of the board, shapes (n, 2) and (n,).
    source
        Features and labels.
    """

    question: asked.FitQuestion
    entry: Entry
    algorithm: Algorithm
    points: Tensor
    groups: Tensor
    source: ArraySource

    @classmethod
    def of(cls, question: asked.FitQuestion) -> Setting:
        """From a question."""
        entry = entry_named(question.model.algorithm)
        algorithm = entry.algorithm(question.model)
        points = torch.tensor([[p.x, p.y] for p in question.points], dtype=torch.float64)
        groups = torch.tensor([p.group for p in question.points], dtype=torch.float64)
        features = points if entry.task != "curve" else points[:, :1]
        if isinstance(algorithm, LinearModel):
            features = features_of(points, entry.task, question.model.degree)
        labels = labels_of(points, groups, algorithm, entry.task)
        return cls(question, entry, algorithm, points, groups, ArraySource(features, labels))

    @property
    def model(self) -> LinearModel:
        """The algorithm, where it is a linear model."""
        assert isinstance(self.algorithm, LinearModel)
        return self.algorithm

    def problem(self) -> LookedProblem:
        """The objective, as the machine sees it."""
        return LookedProblem.of(self._plain(), self.question.lookup)

    def exact(self) -> ExactProblem:
        """The objective, without the machine."""
        return ExactProblem.of(self._plain())

    def _plain(self) -> LinearProblem:
        return self.model.problem(the_machine().start(), self.source)

    def line(self, scaling: Scaling, w: Tensor) -> Tensor:
        """Coefficients, intercept last; a constant column may stand for the intercept."""
        coef, intercept = scaling.raw(w)
        return torch.cat([coef, intercept.reshape(1)])[: self.source.dim + 1]

    def thresholds(self, scaling: Scaling) -> Tensor:
        """Of the absolute values in the penalty."""
        if isinstance(self.algorithm, ElasticNet):
            return self.algorithm.thresholds(scaling)
        return torch.zeros(scaling.dim, dtype=torch.float64)


# ---------------------------------------------------------------------------------------------
# linear models
# ---------------------------------------------------------------------------------------------


def _by_steps(setting: Setting, pulse: Pulse) -> FitAnswer:
    problem, exact = setting.problem(), setting.exact()
    best = _optimum(setting)
    pulse()
    frames, note, w = [], None, problem.start()
    try:
        for w, beside in walk(setting, problem, exact):
            pulse()
            frames.append(_frame(setting, problem, w, beside, best))
    except IceformError as refused:
        note = str(refused)
    passes = problem.passes
    proof = setting.model.prove(problem, w)
    found = fitted(setting.model, problem, Solution(w, math.nan), proof)
    table = problem.table.on(problem.covered)
    return FitAnswer(
        machine=describe(the_machine()),
        frames=frames,
        certificate=CertificateAnswer.of(found.certificate),
        attestation=found.attestation.explain(),
        ledger=found.ledger.explain(),
        passes=passes,
        prompts=the_machine().prompts(setting.source.rows),
        table=TableAnswer.of(table),
        note=note,
    )


def walk(
    setting: Setting, problem: LookedProblem, exact: ExactProblem
) -> Iterator[tuple[Tensor, Tensor]]:
    """Coefficients by the machine and without it, step by step."""
    running = setting.question.running
    thresholds = setting.thresholds(problem.scaling)
    both = zip(steps(problem, running, thresholds), steps(exact, running, thresholds), strict=False)
    for index, pair in enumerate(both):
        yield pair
        if index >= running.passes:
            return


def _frame(
    setting: Setting, problem: LookedProblem, w: Tensor, beside: Tensor, best: Tensor | None
) -> Frame:
    scaling = problem.scaling
    here, there = setting.line(scaling, w), setting.line(scaling, beside)
    raw = scaling.raw(w)
    rounding = 4 * _UNIT * float(raw[0].abs().max()) + float(scaling.intercept_slip(*raw))
    proof = setting.model.prove(problem, w)
    bound = float(proof.bounds(scaling.functionals()).max())
    return Frame(
        passes=problem.passes,
        coef=here[:-1].tolist(),
        intercept=float(here[-1]),
        exact=there.tolist(),
        gap=float((here - there).abs().max()),
        distance=None if best is None else float((here - best).abs().max()),
        certified=math.nextafter(bound + rounding, math.inf),
        kind=proof.kind,
    )


def _bare_frame(passes: int, coef: Tensor, intercept: Tensor) -> Frame:
    return Frame(
        passes=passes,
        coef=coef.tolist(),
        intercept=float(intercept),
        exact=None,
        gap=None,
        distance=None,
        certified=None,
        kind="proven",
    )


def _optimum(setting: Setting) -> Tensor | None:
    """The exact optimum to compare with, intercept last; None where it is not found."""
    try:
        if isinstance(setting.algorithm, ElasticNet):
            found = the_machine().run(replace(setting.algorithm, tol=_TIGHT), setting.source)
            return torch.cat([found.coef, found.intercept[None]])
        exact = setting.exact()
        solution = minimise(exact, tol=_TIGHT, max_passes=_PATIENCE)
    except IceformError:
        return None
    if not solution.length <= _NEAR:
        return None
    return setting.line(exact.scaling, solution.w)


_TIGHT = 1e-13  # tolerance of the optimum that distances are measured from,
_NEAR = 1e-9  # and where it is near enough to be called one
_PATIENCE = 200


def _line(setting: Setting) -> FitAnswer:
    """A linear model whose loop is its own: where it ended."""
    machine = the_machine()
    found = machine.run(setting.model, setting.source)
    return FitAnswer(
        machine=describe(machine),
        frames=[_bare_frame(found.passes, found.coef, found.intercept)],
        certificate=CertificateAnswer.of(found.certificate),
        attestation=found.attestation.explain(),
        ledger=found.ledger.explain(),
        passes=found.passes,
        prompts=machine.prompts(setting.source.rows),
    )


def _perceptron(setting: Setting, chosen: Perceptron, pulse: Pulse) -> FitAnswer:
    machine, running = the_machine(), the_machine().start()
    program = replace(chosen, max_passes=max(2, setting.question.running.passes))
    frames: list[Frame] = []
    states = list(program.iterates(running, setting.source))
    for state in states:
        pulse()
        coef, intercept = state.encoding.scaling.raw(state.w)
        frames.append(_bare_frame(state.passes, coef, intercept))
    found = program.fit(running, setting.source, states[-1])
    left = found.parts["n_mistakes"]
    return FitAnswer(
        machine=describe(machine),
        frames=frames,
        certificate=CertificateAnswer.of(found.certificate),
        attestation=found.attestation.explain(),
        ledger=found.ledger.explain(),
        passes=found.passes,
        prompts=machine.prompts(setting.source.rows),
        note=f"{left} points are on the wrong side" if left else None,
    )


# ---------------------------------------------------------------------------------------------
# averages and components
# ---------------------------------------------------------------------------------------------


def _average(setting: Setting, pulse: Pulse) -> FitAnswer:
    machine = the_machine()
    curve = setting.entry.task == "curve"
    mesh = _mesh_line() if curve else _square()
    found = machine.run(setting.algorithm, setting.source)
    pulse()
    values = found.predict(mesh)
    pulse()
    rows = values.view(PLANE_MESH, PLANE_MESH) if not curve else None
    return FitAnswer(
        machine=describe(machine),
        frames=[],
        certificate=CertificateAnswer.of(found.certificate),
        attestation=found.attestation.explain(),
        ledger=found.ledger.explain(),
        passes=found.passes,
        prompts=machine.prompts(len(mesh)),
        curve=numbers(values.tolist()) if curve else None,
        plane=None if rows is None else [numbers(row) for row in rows.tolist()],
    )


def _mesh_line() -> Tensor:
    return torch.linspace(-1, 1, CURVE_MESH, dtype=torch.float64)[:, None]


def _square() -> Tensor:
    """Rows of y, each along x, shape (PLANE_MESH^2, 2)."""
    ticks = torch.linspace(-1, 1, PLANE_MESH, dtype=torch.float64)
    y, x = torch.meshgrid(ticks, ticks, indexing="ij")
    return torch.stack([x.reshape(-1), y.reshape(-1)], 1)


def _components(setting: Setting) -> FitAnswer:
    machine = the_machine()
    found = machine.run(PCA(n_components=min(2, setting.source.rows)), setting.source)
    spread = found.parts["explained_variance"].sqrt()
    axes = [[*v.tolist(), float(s)] for v, s in zip(found.value, spread, strict=True)]
    return FitAnswer(
        machine=describe(machine),
        frames=[],
        certificate=CertificateAnswer.of(found.certificate),
        attestation=found.attestation.explain(),
        ledger=found.ledger.explain(),
        passes=found.passes,
        prompts=machine.prompts(setting.source.rows),
        axes=[*axes, [*found.parts["mean"].tolist(), 0.0]],
    )


def describe(machine: Stream) -> MachineAnswer:
    """The machine, for the page."""
    buffers = machine.network.buffers()
    return MachineAnswer(
        digest=machine.digest,
        dim=machine.dim,
        samples=machine.samples,
        tokens=machine.tokens,
        parameters=sum(buffer.numel() for buffer in buffers),
    )
