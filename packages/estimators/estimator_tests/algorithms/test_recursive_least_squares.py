"""Ridge regression by batches against the exact solution of all samples so far."""

import math

import pytest
import torch
from flint import arb

from estimator_tests.machine import data
from estimator_tests.machine.exact import ExactLoss, ExactModel, apart
from iceform.errors import BoundError, ProgramError
from iceform_estimators import algorithms
from iceform_estimators.machine import ArraySource, Machine

KINDS = ["normal", "ill 1e2", "ill 1e4", "offset 1e6", "tiny 1e-8", "huge 1e8", "mixed sizes",
         "heavy tails", "single feature", "wide", "collinear", "constant column"]  # fmt: skip


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_is_within_its_certificate(kind, intercept):
    g = torch.Generator().manual_seed(11)
    x = (data.REGULAR | data.DEPENDENT)[kind](g)
    y = data.labels(x, g, offset=3.0)
    machine = Machine(x.shape[1] + 1)
    recursion = algorithms.Recursion(1.0, fit_intercept=intercept)
    seen, finite = 0, 0
    for rows in torch.split(x, 7):
        batch = slice(seen, seen + len(rows))
        seen += len(rows)
        fit = recursion.update(machine.start(), ArraySource(x[batch], y[batch], chunk=3))
        if not math.isfinite(fit.certificate.error):
            continue
        finite += 1
        model = ExactModel.of(
            x[:seen], y[:seen], ExactLoss.named("squared"), arb(1) / seen, intercept=intercept
        )
        coef, constant = model.near(fit.coef, float(fit.intercept))
        off = apart(fit.coef, coef)
        assert off <= fit.certificate.error, (kind, seen, off, fit.certificate.error)
        if intercept:
            shift = apart(fit.intercept.reshape(1), [constant])
            assert shift <= fit.errors["intercept"], (kind, seen, shift, fit.errors["intercept"])
    assert finite, "no batch was certified"
    assert (recursion.rows, fit.digest) == (len(x), machine.digest)


def test_batches_and_one_fit_agree():
    g = torch.Generator().manual_seed(0)
    x = data.normal(g, 60, 4)
    y = data.labels(x, g)
    machine = Machine(5)
    recursion = algorithms.Recursion(2.0)
    for batch in range(0, 60, 20):
        part = recursion.update(
            machine.start(), ArraySource(x[batch : batch + 20], y[batch : batch + 20])
        )
    whole = machine.run(algorithms.Ridge(2.0, fit_intercept=True), x, y)
    allowed = part.certificate.error + whole.certificate.error
    assert float((part.coef - whole.coef).abs().max()) <= allowed < 1e-11


def test_bad_batches_are_refused():
    machine = Machine(3)
    x, y = torch.randn(5, 2).double(), torch.randn(5).double()
    with pytest.raises(BoundError, match="alpha must be non-negative"):
        algorithms.Recursion(-1.0).update(machine.start(), ArraySource(x, y))
    with pytest.raises(ProgramError, match="build one with dim >= 4"):
        algorithms.Recursion(1.0).update(
            machine.start(), ArraySource(torch.randn(5, 3).double(), y)
        )
    recursion = algorithms.Recursion(1.0)
    recursion.update(machine.start(), ArraySource(x, y))
    with pytest.raises(ProgramError, match=r"1 feature.*2"):
        recursion.update(machine.start(), ArraySource(x[:, :1].contiguous(), y))
