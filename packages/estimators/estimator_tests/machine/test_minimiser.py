"""What is proven of a program's answer as a minimiser, against the minimiser found elsewhere."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import Ridge

from iceform.computer import Computer
from iceform.computer.library import EXAMPLES
from iceform.errors import BoundError, ShapeError
from iceform.expressions import loss_named
from iceform_estimators import certify_minimiser

ROUNDING = 1e-12  # of the other minimiser


def answer(name, **settings):
    """What the frozen block leaves."""
    example = EXAMPLES[name]
    program = example.compile()
    computer = Computer.for_programs([program])
    given = {**example.settings, **settings}
    return computer.run(program, example.X, example.y, backend="fused", **given).value, example


@pytest.mark.parametrize(("steps", "near"), [(5, 0.5), (400, 1e-12)])
def test_a_ridge_by_descent(steps, near):
    w, example = answer("ridge", steps=steps)
    proven = certify_minimiser(w, example.X, example.y, alpha=0.1)
    X, y = example.X.numpy(), example.y.numpy()
    exact = Ridge(alpha=0.1 * len(X), fit_intercept=False, solver="cholesky").fit(X, y).coef_
    assert proven.kind == "proven"
    assert np.abs(w.numpy() - exact).max() <= proven.error + ROUNDING
    assert proven.error <= near
    assert (proven.error > 1e-3) == (steps == 5)  # five steps are not there yet, and it says so


def test_logistic_regression_by_descent_and_by_newton():
    w, example = answer("logistic", steps=300)
    proven = certify_minimiser(w, example.X, example.y, "logistic", alpha=0.1)

    def objective(v):
        z = example.X.numpy() @ v
        return np.mean(np.logaddexp(0, z) - example.y.numpy() * z) + 0.05 * v @ v

    exact = minimize(objective, np.zeros(3), method="BFGS", options={"gtol": 1e-11}).x
    assert proven.error <= 1e-8
    assert np.abs(w.numpy() - exact).max() <= proven.error + 1e-7  # as far as BFGS goes
    w, example = answer("newton_logistic", steps=8)
    newton = certify_minimiser(w, example.X, example.y, "logistic", alpha=0.1)
    assert newton.error <= 1e-12


def test_a_loss_with_kinks():
    w, example = answer("huber", steps=400)
    loss = loss_named("huber", delta=0.5)
    proven = certify_minimiser(w, example.X, example.y, loss)
    far = certify_minimiser(w + 0.1, example.X, example.y, loss)
    assert proven.error <= 1e-5
    assert far.error >= 0.1 - proven.error


def test_what_is_no_minimiser_of_anything_is_not_proven():
    example = EXAMPLES["ridge"]
    X = torch.cat([example.X, example.X[:, :1] * (1 + 1e-14)], 1)  # nearly dependent, not quite
    assert certify_minimiser(torch.zeros(4).double(), X, example.y).error == math.inf


def test_shapes_and_labels():
    example = EXAMPLES["logistic"]
    with pytest.raises(ShapeError, match=r"\(n, d\), \(n,\) and \(d,\)"):
        certify_minimiser(torch.zeros(2), example.X, example.y)
    with pytest.raises(BoundError, match="label"):
        certify_minimiser(torch.zeros(3), example.X, 3 * example.y, "logistic")
