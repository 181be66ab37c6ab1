"""Quantile regression: the pinball loss, its corner sharp, or rounded where that is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from iceform.algorithms.examples import fan
from iceform.algorithms.linear import Line, LinearModel, fitted
from iceform.algorithms.memory import in_memory
from iceform.algorithms.pinball import magnified, through_samples
from iceform.algorithms.record import Peer, option
from iceform.certificates import Result
from iceform.functions import Loss, loss_named
from iceform.machine.problem import LinearProblem
from iceform.machine.proofs import Proof, prove
from iceform.machine.solvers import Solution, minimise
from iceform.machine.sources import ArraySource, Source
from iceform.machine.stream import Running

_WIDTH = 0.05  # of a corner, in deviations of the labels, to begin with
_NARROWER, _SLOWEST = 4.0, 1.05  # by how much at once, at most and at least
_NARROWEST = 2.0**32  # in all
_PASSES = 60  # for one width


@dataclass(frozen=True)
class Quantile(LinearModel):
    """A quantile's line.

    It is found by rounded corners, narrower and narrower, until the samples that it goes through
    are proven; where there is no such line the corner stays rounded, and the certificate says over
    what width. A penalty is two more samples for each coefficient.

    Parameters
    ----------
    quantile
        Which.
    alpha
        alpha sum_j |w_j| beside the mean loss.
    width
        Of a rounded corner, in standard deviations of the labels, that of a penalty as well; None
        for a sharp one.
    fit_intercept, tol, max_passes, precondition
        As for :class:`LinearModel`.
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

    quantile: float = field(
        default=0.5,
        metadata=option(
            "Which quantile, between 0 and 1.", low=0, high=1, open="low high", slider=(0.02, 0.98)
        ),
    )
    alpha: float = field(default=0.0, metadata=option("The penalty's weight.", low=0))
    width: float | None = field(
        default=None,
        metadata=option(
            "Width of a rounded corner, in deviations of the labels; without one it is sharp.",
            kind=float,
            low=0,
            open="low",
            optional=True,
        ),
    )

    def loss(self) -> Loss:
        """As it is looked up first."""
        return loss_named("quantile", quantile=self.quantile, width=self.width or _WIDTH)

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

    def problem(self, machine: Any, source: Source) -> LinearProblem:
        if not self.alpha:
            return super().problem(machine, source)
        machine.ledger.note("prompt", "two samples for each coefficient, in the penalty's place")
        plain, beside = self.penalised_by_samples(source)
        found = plain.problem(machine, beside)
        return replace(found, scaling=replace(found.scaling, size=self.scaling(source).size))

    def stream(self, machine: Running, source: Source) -> Result:
        found = self._found(machine, source)
        if not (self.alpha and self.fit_intercept):
            return found
        *_, last = found.coef  # the constant column's
        coef = found.coef[:-1]
        return replace(
            found, answer=coef, parts={**found.parts, "intercept": last},
            errors={"intercept": found.certificate.error},
            _predict=Line(machine.machine, coef, last),
        )  # fmt: skip

    def _found(self, machine: Running, source: Source) -> Result:
        if self.width is not None:
            return _rounded(super().stream(machine, source), self.width)
        first = self.problem(machine, source)
        w, times, faster, spent = first.start(), 1.0, _NARROWER, 0
        kept: list[Turn] = []
        while True:
            problem = magnified(first, times)
            found = minimise(
                problem, tol=self.tol, max_passes=min(_PASSES, max(1, self.max_passes - spent)),
                precondition=self.precondition, start=times * w,
            )  # fmt: skip
            spent += problem.passes
            vertex = through_samples(problem, found.w, self.quantile)
            if vertex is not None:
                problem.passes = spent + vertex.passes
                return fitted(self, problem, vertex.solution, vertex.proof)
            if spent >= self.max_passes or times >= _NARROWEST or faster < _SLOWEST:
                break
            if found.converged:
                kept.append((problem, found, times))
                w, faster = found.w / times, min(_NARROWER, 1.5 * faster)
            else:  # too narrow at once
                times, faster = times / faster, math.sqrt(faster)
            times *= faster
        (problem, found, times), proof = _narrowest(kept or [(problem, found, times)])
        problem.passes = spent
        return _rounded(fitted(self, problem, found, proof), _WIDTH / times)


Turn = tuple[LinearProblem, Solution, float]


def _narrowest(turns: Sequence[Turn]) -> tuple[Turn, Proof]:
    """The last of which something is proven, or else the first."""
    for turn in reversed(turns):
        proof = prove(turn[0], turn[1].w)
        if proof.radius < math.inf:
            break
    return turn, proof


def _rounded(result: Result, width: float) -> Result:
    """Certified against a rounded corner, and said so."""
    what = f"the pinball loss, its corner rounded over {width:g} deviations of the labels"
    certificate = result.certificate
    domain = {**certificate.domain, "objective": what}
    return replace(result, certificate=replace(certificate, domain=domain))
