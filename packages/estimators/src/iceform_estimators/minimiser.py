r"""How far the answer is from a minimiser, whatever the program did.

A program that descends ends somewhere. Its run's enclosure says how far that is from where the
exact program ends; this certificate says how far it is from

.. math:: \arg\min_w \; \frac1n \sum_i l(w \cdot x_i, y_i) + \frac{\alpha}{2} |w|^2,

by the proofs of :mod:`iceform_estimators.machine.proofs`: the gradient at the answer, enclosed,
and the curvature of the loss. Neither the program nor its steps are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from iceform.certificates import Certificate, Ledger
from iceform.errors import ShapeError
from iceform.expressions import Loss, loss_named
from iceform.validation import check_positive, tensor_of
from iceform_estimators.machine.problem import LinearProblem, Scaling, check_coefficients
from iceform_estimators.machine.proofs import certificate_of, prove
from iceform_estimators.machine.sources import ArraySource


@dataclass(frozen=True)
class _Unasked:
    """In place of a machine: nothing is run."""

    ledger: Ledger = field(default_factory=Ledger)

    def check_dim(self, dim: int) -> None:
        """Any will do."""


def certify_minimiser(
    w: Tensor, X: Any, y: Any, loss: str | Loss = "squared", *, alpha: float = 0.0
) -> Certificate:
    r"""Bound the distance of w from the minimiser of mean l + (alpha/2) \\|w\\|^2.

    Parameters
    ----------
    w
        Coefficients (d,), the answer of a program, say.
    X, y
        The data, shapes (n, d) and (n,).
    loss
        By name ("squared", "logistic", "huber", ...) or a loss: of the residual w.x - y, or with
        labels as the loss has them.
    alpha
        The penalty.

    Returns
    -------
    Certificate
        Of every coefficient's distance; infinite where nothing can be proven.

    Examples
    --------
    >>> X = torch.tensor([[-1.0], [1.0]]).double()
    >>> w = torch.tensor([2.0]).double()
    >>> certify_minimiser(w, X, 2 * X[:, 0]).error < 1e-15
    True
    """
    x, targets, w = (
        tensor_of(name, part).to("cpu", torch.float64)
        for name, part in (("X", X), ("y", y), ("w", w))
    )
    if x.ndim != 2 or targets.shape != x.shape[:1] or w.shape != x.shape[1:]:
        raise ShapeError(
            f"X, y and w must have shapes (n, d), (n,) and (d,), got {tuple(x.shape)}, "
            f"{tuple(targets.shape)} and {tuple(w.shape)}"
        )
    chosen = loss_named(loss) if isinstance(loss, str) else loss
    chosen.check_labels(targets)
    penalty = check_positive("alpha", alpha, zero=True)
    d, found = x.shape[1], w.double()
    scaling = Scaling(torch.zeros(d).double(), torch.ones(d).double(), 0.0, 1.0, intercept=False)
    source = ArraySource(x, targets)
    problem = LinearProblem(_Unasked(), source, scaling, chosen, scaling.penalty(penalty))
    check_coefficients(source, found)
    domain: dict[str, float | str] = {"loss": chosen.name or "own", "alpha": penalty}
    proof = prove(problem, found)
    return certificate_of(proof, torch.eye(d).double(), found, source, domain=domain)
