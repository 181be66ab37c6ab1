"""Quantile regression: the pinball loss, its corner sharp, or rounded where that is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from iceform.certificates import DerivationStep, Result
from iceform.expressions import Loss, loss_named
from iceform_estimators.algorithms.examples import fan
from iceform_estimators.algorithms.in_memory import in_memory
from iceform_estimators.algorithms.linear import LinearModel, LinearPredictor, fitted
from iceform_estimators.algorithms.pinball import (
    BENT,
    Vertex,
    magnified,
    sharply,
    solved,
    still_open,
    through_samples,
)
from iceform_estimators.algorithms.record import Peer, setting
from iceform_estimators.algorithms.thresholds import minimise_penalised, prove_penalised
from iceform_estimators.machine.convexity_bounds import of_degree_one
from iceform_estimators.machine.problem import Coordinates, LinearProblem, Scaling
from iceform_estimators.machine.program import with_terms
from iceform_estimators.machine.proofs import Proof, prove
from iceform_estimators.machine.solvers import Solution, minimise
from iceform_estimators.machine.sources import ArraySource, Source
from iceform_estimators.machine.stream import MachineRun
from iceform_estimators.tuning import CORNER, PATIENCE, ROUNDED, SHARE_SLIDER

UNIT = "unit"  # the step of a certificate that says what a corner's width is in
_NARROWER, _SLOWEST = 4.0, 1 + CORNER  # by how much at once, at most and at least
_NARROWEST = _NARROWER**16  # in all,
_NARROW = _NARROWER**5  # and where more than one line is best
_PASSES = 5 * PATIENCE  # for one width
_WIDER = 3  # turns back at most, for an answer of which more is proven


@dataclass(frozen=True)
class Quantile(LinearModel):
    """A quantile's line.

    It is found by rounded corners, narrower and narrower, until the samples that it goes through
    are proven; where there is no such line the corner stays rounded, and the certificate says over
    what width, and how far the answer is above the least value of the sharp problem at most.
    Coefficients that a penalty makes 0 are 0, and proven to be: on the way by thresholds
    (:mod:`iceform_estimators.algorithms.thresholds`), in the end by two samples for each
    coefficient.

    Parameters
    ----------
    quantile
        Which.
    alpha
        alpha sum_j |w_j| beside the mean loss.
    width
        Of the loss's rounded corner, in standard deviations of the labels; None for a sharp one.
    fit_intercept, tol, max_passes, precondition
        As for :class:`LinearModel`.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X, y = torch.tensor([[-1.0], [0], [1]]).double(), torch.tensor([-2.0, 0, 2]).double()
    >>> print(Machine(2).run(Quantile(0.5), X, y).coef.numpy().round(6))
    [2.]
    """

    name: ClassVar[str] = "quantile"
    title: ClassVar[str] = "Quantile regression"
    task: ClassVar[str] = "regression"
    says: ClassVar[str] = "The line below which a share of the samples lies."
    objective: ClassVar[str] = "min mean_i p(r_i) + alpha |w|_1, p the pinball loss"
    lookup: ClassVar[str] = "a smooth step from quantile - 1 to quantile"
    estimator: ClassVar[str] = "InContextQuantileRegressor"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.linear_model.QuantileRegressor", options={"width": None}, settings={"alpha": 0.0}
    )
    penalised: ClassVar[bool] = False
    example = staticmethod(fan)

    quantile: float = setting(
        0.5, "Which quantile, between 0 and 1.", low=0, high=1, open="low high", slider=SHARE_SLIDER
    )
    alpha: float = setting(0.0, "The penalty's weight.", low=0)
    width: float | None = setting(
        None,
        "Width of a rounded corner, in deviations of the labels; without one it is sharp.",
        kind=float,
        low=0,
        open="low",
        optional=True,
    )

    def loss(self) -> Loss:
        """As it is looked up first."""
        return loss_named("quantile", quantile=self.quantile, width=self.width or CORNER)

    def scores(self, y: Tensor, predicted: Tensor) -> dict[str, float]:
        above = y - predicted
        pinball = torch.maximum(self.quantile * above, (self.quantile - 1) * above)
        below = (y <= predicted).double()
        return {"pinball loss": float(pinball.mean()), "share below": float(below.mean())}

    def thresholds(self, scaling: Scaling) -> Tensor:
        """Of the coefficients' absolute values, on scaled data; none for the intercept."""
        found = self.alpha / scaling.scale
        return torch.cat([found, found.new_zeros(1)]) if scaling.intercept else found

    def penalised_by_samples(self, source: Source) -> tuple[Quantile, ArraySource]:
        """The same problem without a penalty: two samples more for each coefficient.

        A constant column stands for the intercept, of which these have 0.
        """
        data = in_memory(source, weighed=True)
        ones = data.y.new_ones(data.rows)
        one, pulls = ones[:, None], torch.eye(data.dim).to(data.x)
        if self.fit_intercept:
            x = torch.cat([data.x, one], 1)
            pulls = torch.cat([pulls, pulls.new_zeros(data.dim, 1)], 1)
        else:
            x = data.x
        weights = ones if data.weights is None else data.weights
        heavy = ones.new_full((2 * data.dim,), self.alpha * data.total)
        beside = ArraySource(
            torch.cat([x, pulls, -pulls]), torch.cat([data.y, torch.zeros_like(heavy)]),
            weights=torch.cat([weights, heavy]),
        )  # fmt: skip
        return replace(self, alpha=0.0, fit_intercept=False), beside

    def coordinates(self, problem: LinearProblem, w: Tensor) -> Coordinates | None:
        """Thresholds are of scaled coefficients, and so are the passes with them."""
        return None if self.alpha else super().coordinates(problem, w)

    def prove(self, problem: LinearProblem, w: Tensor) -> Proof:
        if self.alpha:
            return prove_penalised(problem, w, self.thresholds(problem.scaling))
        proof = prove(problem, w)
        excess = None if proof.excess is None else of_degree_one(problem, proof.excess)
        return replace(proof, excess=excess)

    def stream(self, machine: MachineRun, source: Source) -> Result:
        if self.width is not None and not self.alpha:
            found = super().stream(machine, source)
            return _rounded(found, self.width, self.scaling(source).size)
        first = self.problem(machine, source)
        path = _Path(self, first)
        if self.width is not None:
            *_, last = path.turns(1.0)
            return self._answer(path, last, self.prove(last.problem, last.found.w), self.width)
        sharp = self._sharp(machine, source, first) if self.alpha else None
        several = False
        for turn in path.turns(_NARROWEST):
            if several and (turn.times >= _NARROW or not turn.found.converged):
                break
            vertex = None if several else self._through(turn, sharp)
            if vertex is not None and vertex.proof is not None:
                return self._line(sharp or turn.problem, vertex, vertex.proof, path.spent)
            several = several or vertex is not None  # other lines are as good
        last, proof = path.narrowest()
        proof = replace(
            proof, excess=sharply(last.problem, last.found.w, path.thresholds, self.quantile)
        )
        return self._answer(path, last, proof, CORNER / last.times)

    def _answer(self, path: _Path, turn: _Turn, proof: Proof, width: float) -> Result:
        turn.problem.passes = path.spent
        size = turn.problem.scaling.size
        return _rounded(fitted(self, turn.problem, turn.found, proof), width, size)

    def _sharp(self, machine: MachineRun, source: Source, first: LinearProblem) -> LinearProblem:
        """The problem without a penalty, as large as the one with it."""
        machine.ledger.note("prompt", "two samples for each coefficient, in the penalty's place")
        plain, beside = self.penalised_by_samples(source)
        found = plain.problem(machine, beside)
        return replace(found, scaling=replace(found.scaling, size=first.scaling.size))

    def _through(self, turn: _Turn, sharp: LinearProblem | None) -> Vertex | None:
        """The line through samples near the one that was found, if it is a best one."""
        if turn.times < 1 or still_open(turn.problem, turn.found.w):
            return None
        if sharp is None:
            return through_samples(turn.problem, turn.found.w, self.quantile)
        coef, intercept = turn.problem.scaling.raw(turn.found.w)
        coef = torch.cat([coef, intercept[None]]) if self.fit_intercept else coef
        return through_samples(sharp, sharp.scaling.scaled(coef, intercept), self.quantile)

    def _line(self, problem: LinearProblem, vertex: Vertex, proof: Proof, spent: int) -> Result:
        problem = replace(problem, passes=spent + vertex.passes)
        found = fitted(self, problem, vertex.solution, proof)
        whole, certificate = found.coef, found.certificate
        if self.fit_intercept and not self.alpha:
            whole = torch.cat([whole, found.intercept[None]])
        dim = len(whole) - self.fit_intercept  # the last is the intercept's, or a constant column's
        last = certificate.error if self.alpha else found.errors["intercept"]
        exact = solved(vertex.samples, whole)
        if exact is not None:
            problem.machine.ledger.note("host", "the line through them, to the last digit")
            (whole, low), off = exact
            last = ROUNDED * float(low[-1].abs() + off[-1])
            step = DerivationStep(
                "e", "of the line through B, in pairs", float(off.max()), "solved again"
            )
            terms = {
                "distance to the optimum": float(off[:dim].max()),
                "rounding": float(low[:dim].abs().max()),
            }
            certificate = with_terms(replace(certificate, derivation=proof.steps), terms, step)
        coef, constant = whole[:dim], whole[dim:].sum()
        return replace(
            found, answer=coef, parts={**found.parts, "intercept": constant},
            certificate=certificate, errors={"intercept": last if self.fit_intercept else 0.0},
            predictor=LinearPredictor(problem.machine.machine, coef, constant),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Turn:
    """Where passes for one width ended."""

    problem: LinearProblem
    found: Solution
    times: float  # by which the corner is narrower than the loss's

    @property
    def w(self) -> Tensor:
        """Coefficients as they are without magnifying."""
        return self.found.w / self.times


class _Path:
    """Minimisers for corners that get narrower, each begun where the last ones lead."""

    def __init__(self, model: Quantile, first: LinearProblem) -> None:
        self.model, self.first = model, first
        self.thresholds = model.thresholds(first.scaling)
        self.spent = 0
        self.kept: list[_Turn] = []  # those that converged
        self.last: _Turn

    def turns(self, most: float) -> Iterator[_Turn]:
        """Narrower and narrower, up to ``most`` times, as far as passes lead."""
        times, faster = 1.0, _NARROWER
        if self.model.alpha:
            times = min(1.0, self.model.width or CORNER)  # begun at a whole deviation
        while True:
            problem = magnified(self.first, times)
            found = self._minimised(problem, times * self._ahead(times), precise=times == most)
            self.spent += problem.passes
            turn = self.last = _Turn(problem, found, times)
            if found.converged:
                self.kept.append(turn)
                yield turn
                if times >= most:
                    return
                faster = min(_NARROWER, 1.5 * faster)
            else:  # too narrow at once
                yield turn
                times, faster = times / faster, math.sqrt(faster)
            if self.spent >= self.model.max_passes or faster < _SLOWEST:
                return
            times = min(most, times * faster)

    def _minimised(self, problem: LinearProblem, start: Tensor, *, precise: bool) -> Solution:
        model = self.model
        least = min(1, model.max_passes)
        most = problem.passes + min(_PASSES, max(least, model.max_passes - self.spent))
        if not model.alpha:
            return minimise(
                problem, tol=model.tol, max_passes=most, precondition=model.precondition,
                start=start,
            )  # fmt: skip
        share = min(1.0, problem.dim / problem.source.rows)
        near = 0.0 if precise else BENT * math.sqrt((model.width or CORNER) * share)
        return minimise_penalised(
            problem, self.thresholds, tol=model.tol, near=near, max_passes=most, start=start
        )

    def _ahead(self, times: float) -> Tensor:
        """On a straight line in the width, as the path's last stretch is, zeros staying zeros."""
        if not self.kept:
            begun = self.model.start(self.first.scaling)
            return self.first.start() if begun is None else begun
        last = self.kept[-1]
        if len(self.kept) < 2 or not self.model.alpha:
            return last.w
        before = self.kept[-2]
        share = (1 / times - 1 / last.times) / (1 / last.times - 1 / before.times)
        ahead = last.w + share * (last.w - before.w)
        stays = (self.thresholds > 0) & (ahead * last.w <= 0)
        return torch.where(stays, 0.0, ahead)

    def narrowest(self) -> tuple[_Turn, Proof]:
        """The last turn, or one of hardly wider corners if only of that something is proven."""
        answers: list[tuple[_Turn, Proof]] = []
        for turn in reversed(self.kept[-_WIDER:] or [self.last]):
            problem, found = replace(turn.problem, passes=0), turn.found
            if self.model.alpha:
                found = self._minimised(problem, found.w, precise=True)
                self.spent += problem.passes
            proof = self.model.prove(problem, found.w)
            answers.append((_Turn(problem, found, turn.times), proof))
            if proof.radius < math.inf:
                return answers[-1]
        return answers[0]


def _rounded(result: Result, width: float, size: float) -> Result:
    """Certified against a rounded corner, and said so."""
    what = f"the pinball loss, its corner rounded over {width:g} deviations of the labels"
    certificate = result.certificate
    domain = {**certificate.domain, "objective": what}
    step = DerivationStep(
        UNIT, "of the labels, in which the corner's width is a number", size, "given"
    )
    steps = (*certificate.derivation, step)
    return replace(result, certificate=replace(certificate, domain=domain, derivation=steps))
