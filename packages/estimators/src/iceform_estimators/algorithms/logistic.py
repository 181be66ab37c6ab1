"""Logistic regression."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.certificates import Result
from iceform.errors import ProgramError
from iceform.expressions import Loss, loss_named
from iceform.validation import check_positive, check_size
from iceform_estimators.algorithms.examples import flats
from iceform_estimators.algorithms.in_memory import in_memory
from iceform_estimators.algorithms.linear import LinearClassifier, fitted_choices, planned
from iceform_estimators.algorithms.record import Peer, setting
from iceform_estimators.machine import Machine, MachineRun, Source
from iceform_estimators.machine.multinomial import ChoiceProblem, chances, prompts
from iceform_estimators.machine.problem import SCALED
from iceform_estimators.machine.solvers import minimise
from iceform_estimators.machine.stream import table_of
from iceform_estimators.tuning import C_SLIDER, PEER_TOLERANCE, SATURATED


@dataclass(frozen=True)
class Logistic(LinearClassifier):
    r"""Logistic regression, :math:`\min C \sum_i \ln(1 + e^{-s_i(w.x_i + b)}) + \|w\|^2/2`.

    Labels are 0 and 1, s = 2 y - 1. More classes, 0, ..., K - 1, are fitted together by
    :math:`\min C \sum_i (\ln \sum_k e^{z_{ik}} - z_{i y_i}) + \sum_k \|w_k\|^2/2` with
    :math:`z_{ik} = w_k.x_i + b_k` (:mod:`iceform_estimators.machine.multinomial`): a row for each
    class.

    Parameters
    ----------
    C
        The inverse penalty, scikit-learn's convention.
    classes
        How many there are.
    positive, fit_intercept, tol, max_passes, precondition
        As for :class:`LinearClassifier`.
    solver, bound
        "inside" plans its steps by this bound of the samples' entries, and the host only writes
        prompts and adds answers up (:mod:`iceform_estimators.machine.fixed_schedule`). "auto" takes
        fewer passes, in coordinates that the host computes from the data.

    Examples
    --------
    >>> from iceform_estimators import Machine
    >>> X = torch.tensor([[-2.0], [-1], [1], [2]]).double()
    >>> print(Machine(2).run(Logistic(), X, (X[:, 0] > 0).double()).coef.numpy().round(3))
    [1.007]
    """

    name: ClassVar[str] = "logistic"
    title: ClassVar[str] = "Logistic regression"
    task: ClassVar[str] = "classification"
    says: ClassVar[str] = "Classes and their probabilities."
    objective: ClassVar[str] = (
        "min C sum_i ln(1 + e^(-s_i (x_i w + b))) + |w|^2 / 2; a softmax for more classes"
    )
    lookup: ClassVar[str] = "the logistic curve"
    estimator: ClassVar[str] = "InContextLogisticRegression"
    peer: ClassVar[Peer | None] = Peer(
        "sklearn.linear_model.LogisticRegression",
        settings={"tol": PEER_TOLERANCE, "max_iter": 100_000, "solver": "newton-cholesky"},
    )
    example = staticmethod(lambda: flats("let"))

    C: float = setting(
        1.0,
        "The inverse of the penalty's weight; inf for none.",
        low=0,
        open="low, infinite",
        slider=C_SLIDER,
    )

    classes: int = field(default=2, kw_only=True)
    solver: str = field(default="auto", kw_only=True)
    bound: float = field(default=1.0, kw_only=True)

    def loss(self) -> Loss:
        return loss_named("logistic")

    def stream(self, machine: MachineRun, source: Source) -> Result:
        if self.classes > 2:
            return self._chosen(machine, source)
        inside = planned(self, machine, source, (self.bound,))
        return inside or super().stream(machine, source)

    def _chosen(self, machine: MachineRun, source: Source) -> Result:
        """Several classes at once."""
        if self.solver != "auto" or self.positive is not None:
            raise ProgramError(
                f"classes={self.classes} are fitted together by solver='auto', none of them being "
                "the positive one; use classes=2 for one class against the rest"
            )
        problem = self._choices(machine, source)
        begin = None
        if self.begin is not None:
            coef, constants = (part.to(problem.scaling.mean) for part in self.begin)
            rows = [problem.scaling.scaled(*one) for one in zip(coef, constants, strict=True)]
            begin = problem.reduced(torch.stack(rows))
        found = minimise(
            problem, tol=self.tol, max_passes=self.max_passes, precondition=self.precondition,
            start=begin,
        )  # fmt: skip
        return fitted_choices(problem, found)

    def _choices(self, machine: MachineRun, source: Source) -> ChoiceProblem:
        scaling = self.scaling(source)
        ridge = scaling.penalty(check_positive("penalty", self.l2(source.total), zero=True))
        machine.ledger.note("host", SCALED)
        return ChoiceProblem(
            machine,
            source,
            scaling,
            self.loss(),
            ridge,
            classes=check_size("classes", self.classes),
        )

    def opening(self, machine: MachineRun, source: Source) -> Any:
        if self.classes == 2:
            return super().opening(machine, source)
        problem, data = self._choices(machine, source), in_memory(source, weighed=True)
        samples = problem.scaling.samples(data.x[: machine.machine.samples])
        return prompts(machine, problem.rows(problem.start()), samples)[0]

    def l2(self, rows: float) -> float:
        return 1 / (self.C * rows)

    def chances(self, machine: Machine, scores: Tensor) -> Tensor:
        """The probabilities that scores stand for: looked up, or attention over the classes."""
        if scores.shape[1] > 1:
            return chances(machine.start(), scores)
        reach = float(scores.abs().max()) if scores.numel() else 1.0
        table = table_of(self.loss(), machine.tokens).on(min(reach, SATURATED))
        inside = scores.clamp(table.low, table.high)
        return machine.look_up(table, inside).clamp(0, 1)
