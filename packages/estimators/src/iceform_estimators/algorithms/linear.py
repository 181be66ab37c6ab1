"""Linear models: what they share.

A model is a loss, a penalty, a solver and a proof. Its gradient is looked up by the frozen machine;
the optimum that it is near is proven after the fact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from iceform.arithmetic import UNIT
from iceform.certificates import Certificate, DerivationStep, Result
from iceform.errors import ProgramError, ShapeError
from iceform.expressions import Loss, loss_named
from iceform.heads import LookUps
from iceform.tables import Interpolant
from iceform.validation import check_choice, check_positive, plain_tensor
from iceform_estimators.algorithms.in_memory import in_memory
from iceform_estimators.algorithms.record import EstimationAlgorithm, setting
from iceform_estimators.machine import Machine, MachineRun, Source
from iceform_estimators.machine.fixed_schedule import (
    SOLVERS,
    PlannedDomain,
    descend_inside,
    problem_inside,
)
from iceform_estimators.machine.multinomial import (
    ChoiceProblem,
    certificate_of_choices,
    prove_choices,
    raw_rows,
)
from iceform_estimators.machine.problem import (
    SCALED,
    STRAIGHT,
    Coordinates,
    LinearProblem,
    Scaling,
    check_magnitudes,
)
from iceform_estimators.machine.program import FITTED, with_terms
from iceform_estimators.machine.proofs import Proof, certificate_of, prove
from iceform_estimators.machine.solvers import PRECONDITIONERS, Solution, minimise, whitened_at
from iceform_estimators.machine.sources import split
from iceform_estimators.machine.stream import read_line, table_of
from iceform_estimators.tuning import TOLERANCE


@dataclass(frozen=True, eq=False)
class LinearPredictor:
    """Predictions x.coef + intercept, looked up by the frozen machine; coef (d,) or (d, K)."""

    machine: Machine
    coef: Tensor
    intercept: Tensor
    response: Callable[[Tensor], Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[1] != len(self.coef):
            raise ShapeError(f"samples must have shape (n, {len(self.coef)}), got {tuple(x.shape)}")
        z = read_line(self.machine, x.to(self.coef) @ self.coef + self.intercept)
        return z if self.response is None else self.response(z)


@dataclass(frozen=True)
class LinearModel(EstimationAlgorithm):
    """What all linear models share.

    Parameters
    ----------
    fit_intercept
        Whether there is one; it is not penalised.
    tol
        Length of the last step, in the metric of the Hessian, relative to the coefficients.
    max_passes
        Most passes over the data.
    precondition
        "whiten", "diagonal" or "none", as for :func:`iceform_estimators.machine.solvers.minimise`.
    begin
        Coefficients and intercept to begin with, of data as they come, which are copied; zeros by
        default.

    Attributes
    ----------
    several
        Whether estimators take labels of several columns, each fitted on its own.
    column
        Whether one column of several stays one, coefficients a row and predictions a column.

    Examples
    --------
    >>> Ridge().loss().name, issubclass(Ridge, LinearModel)
    ('squared', True)
    """

    several: ClassVar[bool] = False
    column: ClassVar[bool] = False
    family: ClassVar[str] = "line"
    response: ClassVar[Callable[[Tensor], Tensor] | None] = None

    _: KW_ONLY
    fit_intercept: bool = setting(
        True, "Whether there is an intercept; it is not penalised.", command=False
    )
    tol: float = setting(
        TOLERANCE,
        "Length of the last step, relative to the coefficients.",
        low=0,
        open="low",
    )
    max_passes: int = setting(
        1000,
        "Most passes of the frozen machine over the data.",
        low=0,
        estimator="max_iter",
    )
    precondition: str = setting(
        "whiten",
        "How steps are scaled: whiten (Newton's method), diagonal or none (momentum).",
        choices=PRECONDITIONERS,
    )
    begin: tuple[Tensor, Tensor] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.begin is not None:
            coef, intercept = (plain_tensor("begin", part).clone() for part in self.begin)
            object.__setattr__(self, "begin", (coef, intercept))

    def loss(self) -> Loss:
        """l, on scaled labels."""
        return loss_named("squared")

    def l2(self, rows: float) -> float:
        """The penalty (l2/2) ||coef||^2 beside a mean over samples, which weigh ``rows`` in all."""
        return 0.0

    def scaling(self, source: Source) -> Scaling:
        """How the data are scaled before anything else."""
        return Scaling.of(
            source,
            intercept=self.fit_intercept,
            labels=self.loss().kind == "residual",
            columns=self.precondition != "none",
        )

    def positive_label(self) -> float | None:
        """For one class against the rest: the label that counts as 1."""
        return None

    def check_labels(self, source: Source) -> None:
        """Refuse labels that the loss is not defined for."""
        loss = self.loss()
        if loss.kind != "residual" and self.positive_label() is None:

            def checked(x: Tensor, y: Tensor) -> list[Tensor]:
                loss.check_labels(split(y)[0])
                return [y.new_zeros(())]

            source.reduce(checked)

    def problem(self, machine: Any, source: Source) -> LinearProblem:
        """The objective on scaled data."""
        l2 = check_positive("penalty", self.l2(source.total), zero=True)
        self.check_labels(source)
        scaling = self.scaling(source)
        ridge = scaling.penalty(l2)
        problem = LinearProblem(machine, source, scaling, self.loss(), ridge, self.positive_label())
        machine.ledger.note("host", SCALED)
        return problem

    def solve(self, problem: LinearProblem) -> Solution:
        """Passes to the minimiser; of many, to the one that :meth:`chosen` names."""
        found = minimise(
            problem, tol=self.tol, max_passes=self.max_passes, precondition=self.precondition,
            start=self.start(problem.scaling),
        )  # fmt: skip
        return self.chosen(problem, found)

    def chosen(self, problem: LinearProblem, found: Solution) -> Solution:
        """Which of many minimisers is the answer: the one found, unless a subclass overrides it."""
        return found

    def start(self, scaling: Scaling) -> Tensor | None:
        """Where passes begin, on scaled data; None for zeros."""
        if self.begin is None:
            return None
        return scaling.scaled(*(part.to(scaling.mean) for part in self.begin))

    def prove(self, problem: LinearProblem, w: Tensor) -> Proof:
        """How far w can be from the optimum."""
        return prove(problem, w)

    def table(self, machine: Machine, reach: float) -> Interpolant:
        """The table that is looked up, covering [-reach, reach]."""
        return table_of(self.loss(), machine.tokens).on(reach)

    def problem_at(
        self, machine: MachineRun, source: Source, parts: Mapping[str, Any] | None = None
    ) -> LinearProblem:
        """The problem of the first pass, or of those that ended with an answer of these parts."""
        return self.problem(machine, source)

    def coordinates(self, problem: LinearProblem, w: Tensor) -> Coordinates | None:
        """Coordinates that samples are written in for a pass at w; None for scaled ones."""
        whitened = self.precondition == "whiten" and getattr(self, "solver", "auto") == "auto"
        return whitened_at(problem, w) if whitened else None

    def opening(self, machine: MachineRun, source: Source) -> LookUps:
        """The look-ups of the first samples, where passes begin."""
        return self.look_ups(machine, self.problem_at(machine, source))

    def look_ups(
        self, machine: MachineRun, problem: LinearProblem, w: Tensor | None = None
    ) -> LookUps:
        """The prompt of the first samples in memory at w, or where passes begin."""
        data = in_memory(problem.source, weighed=True)
        rows = slice(0, machine.machine.samples)
        w = self.start(problem.scaling) if w is None else w
        w = problem.start() if w is None else w
        encoding, within = problem.encoding, self.coordinates(problem, w)
        if within is not None:
            encoding, w = replace(encoding, turned=within.turned), within.of(w)
        x, y, w, offsets, factors = encoding.written(data.x[rows], data.labels[rows], w)
        table = self.table(machine.machine, max(float((x @ w - y).abs().max()), 1.0))
        return machine.look_ups(table, x, y, w, offsets, factors)

    def note_line(self, machine: MachineRun) -> None:
        """Say in the ledger where all that attention looks up is a straight line."""
        bounds = self.loss().curvature.bounds
        if bounds is not None and bounds[0] == bounds[1]:
            machine.ledger.note("attention", STRAIGHT)

    def stream(self, machine: MachineRun, source: Source) -> Result:
        self.note_line(machine)
        problem = self.problem(machine, source)
        solution = self.solve(problem)
        return fitted(self, problem, solution, self.prove(problem, solution.w))


def planned(
    model: LinearModel,
    machine: MachineRun,
    source: Source,
    bounds: tuple[float, ...],
    l1: float = 0,
) -> Result | None:
    """The fit whose passes are planned by bounds of the data, where ``solver`` asks for that."""
    if check_choice("solver", getattr(model, "solver", "auto"), SOLVERS) != "inside":
        return None
    return fitted_inside(model, machine, source, PlannedDomain(*bounds), l1)


def fitted_inside(
    model: LinearModel, machine: MachineRun, source: Source, domain: PlannedDomain, l1: float = 0.0
) -> Result:
    """A fit whose passes are planned by what is stated of the data, and proven after the fact."""
    if source.weighed or getattr(model, "positive", None) is True:  # a class is no sign
        raise ProgramError(
            "solver='inside' plans its steps for samples of one weight and coefficients of either "
            "sign; use solver='auto' for sample weights and positive=True"
        )
    loss = model.loss()
    machine.check_dim(source.dim + model.fit_intercept)
    if not l1:
        model.note_line(machine)
    machine.ledger.note("host", "refusal of data beyond what is stated of them")
    domain.check(source, labels=loss.kind == "residual")
    check_magnitudes(source)
    model.check_labels(source)
    problem = problem_inside(
        machine, source, domain, loss, model.l2(source.rows),
        intercept=model.fit_intercept, positive=model.positive_label(), l1=l1,
    )  # fmt: skip
    solution = descend_inside(problem, model.tol, model.max_passes)
    done = dict(machine.ledger.times)
    proof = model.prove(problem, solution.w)
    machine.ledger.times = done  # all of that is the proof's
    machine.ledger.note("host", "the proof of the answer, after the fact")
    return fitted(model, problem, solution, proof)


def fitted_choices(problem: ChoiceProblem, solution: Solution) -> Result:
    """A row of coefficients for each of several classes, with their certificate."""
    w = problem.rows(solution.w)
    proof = prove_choices(problem, w)
    coef, intercept = raw_rows(problem.scaling, w)
    certificate, last = certificate_of_choices(problem, w, coef, intercept, proof)
    return line_result(
        problem.machine, (coef, intercept), certificate, problem.passes, last,
        converged=solution.converged, history=tuple(solution.history),
    )  # fmt: skip


def fitted(
    model: LinearModel,
    problem: LinearProblem,
    solution: Solution,
    proof: Proof,
    parts: Mapping[str, Any] | None = None,
    instead: tuple[Tensor, Tensor] | None = None,
) -> Result:
    """Raw coefficients with their certificate.

    What ``stream`` of an algorithm for lines returns.

    Parameters
    ----------
    model, problem
        The algorithm, and its problem on scaled data.
    solution, proof
        Where its loop ended, and how far that is from the optimum.
    parts
        What else the fit found, by name.
    instead
        Coefficients and an intercept with the same fitted values, up to rounding.

    Examples
    --------
    >>> from iceform.expressions import loss_named
    >>> from iceform_estimators import Machine
    >>> from iceform_estimators.machine import ArraySource, LinearProblem, Scaling, minimise
    >>> source = ArraySource(torch.tensor([[0.0], [2.0]]).double(), torch.ones(2).double())
    >>> scaling = Scaling.of(source, intercept=True)
    >>> squared, q = loss_named("squared"), scaling.penalty(1.0)
    >>> problem = LinearProblem(Machine(2).start(), source, scaling, squared, q)
    >>> solution, ridge = minimise(problem, tol=1e-9, max_passes=9), Ridge(alpha=2.0)
    >>> float(fitted(ridge, problem, solution, ridge.prove(problem, solution.w)).intercept)
    1.0
    """
    scaling, source = problem.scaling, problem.source
    coef, intercept = scaling.raw(solution.w)
    rows = scaling.functionals()
    certificate = certificate_of(proof, rows[: len(coef)], coef, source)
    last = intercept_error(proof, scaling, coef, intercept)
    if scaling.intercept:
        step = DerivationStep(
            "intercept", "bound of its distance", last, "D times its norm, and rounding"
        )
        certificate = replace(certificate, derivation=(*certificate.derivation, step))
    if not certificate.error < math.inf and proof.radius < math.inf:
        told = instead or (coef, intercept)
        certificate = _about_fitted_values(problem, proof, certificate, (coef, intercept), told)
        coef, intercept = told
        last = math.inf if scaling.intercept else 0.0  # other coefficients may come with another
    return line_result(
        problem.machine, (coef, intercept), certificate, problem.passes, last,
        parts=parts or {}, response=type(model).response, converged=solution.converged,
        history=tuple(solution.history),
    )  # fmt: skip


def intercept_error(proof: Proof, scaling: Scaling, coef: Tensor, intercept: Tensor) -> float:
    """Error bound of the intercept: its distance on scaled data, and rounding."""
    if not scaling.intercept:
        return 0.0
    bounds = proof.bounds(scaling.functionals()[len(coef) :])
    return float(bounds.sum() + scaling.intercept_slip(coef, intercept))


def line_result(
    machine: MachineRun,
    line: tuple[Tensor, Tensor],
    certificate: Certificate,
    passes: int,
    last: float,
    *,
    parts: Mapping[str, Any] = MappingProxyType({}),
    response: Callable[[Tensor], Tensor] | None = None,
    **rest: Any,
) -> Result:
    """The result of a run that ended with a line; its intercept is off by ``last`` at most.

    Of several classes the coefficients are rows.
    """
    coef, intercept = line
    along = coef.mT if coef.ndim > 1 else coef
    return machine.result(
        coef, certificate, passes, errors={"intercept": last},
        parts={"intercept": intercept, **parts},
        predictor=LinearPredictor(machine.machine, along, intercept, response), **rest,
    )  # fmt: skip


def _about_fitted_values(
    problem: LinearProblem,
    proof: Proof,
    certificate: Certificate,
    found: tuple[Tensor, Tensor],
    told: tuple[Tensor, Tensor],
) -> Certificate:
    """A certificate of the fitted values, for coefficients that are not unique."""
    scaling = problem.scaling
    worst = scaling.size * proof.movement(problem)
    (coef, intercept), (other, constant) = found, told

    def lines(x: Tensor, y: Tensor) -> list[Tensor]:
        """The largest difference of fitted values, and the terms they add up."""
        apart = x @ (coef - other) + (intercept - constant)
        sizes = (x.abs() + scaling.mean.abs()) @ (coef.abs() + other.abs())
        return [apart.abs().max(), (sizes + intercept.abs() + constant.abs()).max()]

    moved, size = problem.source.largest(lines)
    rounding = (len(found[0]) + 16) * UNIT * (float(size) + abs(scaling.center))
    step = DerivationStep(
        "fitted", "distance of the fitted values", worst, "D max_i ||x_i||_{H^{-1}}"
    )
    terms = {
        "distance of the fitted values": worst,
        "choice of the coefficients": float(moved),
        "rounding": rounding,
    }
    domain = {**certificate.domain, "what": "fitted values; the coefficients are not unique"}
    return with_terms(certificate, terms, step, compared=FITTED, domain=domain)


@dataclass(frozen=True)
class LinearClassifier(LinearModel):
    """What lines between two classes share.

    Parameters
    ----------
    positive
        The label that counts as 1, every other one being the other class; None where labels are
        as the loss takes them.

    Examples
    --------
    >>> Logistic().loss().name, issubclass(Logistic, LinearClassifier)
    ('logistic', True)
    """

    family: ClassVar[str] = "separator"

    positive: float | None = field(default=None, kw_only=True)

    def positive_label(self) -> float | None:
        return self.positive
