"""solver="inside": steps are planned by what is stated of the data, not by the data."""

from dataclasses import replace

import pytest
import torch

from estimator_tests.machine.data import normal
from iceform.errors import BoundError, ProgramError
from iceform_estimators import algorithms
from iceform_estimators.machine import ArraySource, Machine, fixed_schedule

STATED = {
    "ridge": algorithms.Ridge(20.0, solver="inside", bound=4.0, label_bound=8.0),
    "ridge through 0": algorithms.Ridge(
        20.0, solver="inside", bound=4.0, label_bound=8.0, fit_intercept=False
    ),
    "logistic": algorithms.Logistic(0.03, solver="inside", bound=4.0, tol=1e-6),
}
FAST = {
    "ridge": algorithms.Ridge(20.0),
    "ridge through 0": algorithms.Ridge(20.0, fit_intercept=False),
    "logistic": algorithms.Logistic(0.03),
}


def data(name: str, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = normal(g, 40, 3).clamp(-3, 3)
    x[:, 1] += 0.9 * x[:, 0].clamp(-1, 1)
    y = x @ torch.tensor([1.0, -0.5, 0.2]).double() + 0.5 + 0.3 * normal(g, 40)
    return x, (y > 0).double() if name == "logistic" else y


@pytest.mark.parametrize("name", STATED)
def test_it_finds_what_the_other_solver_finds(name):
    x, y = data(name)
    planned, fast = (Machine(4).run(p[name], x, y) for p in (STATED, FAST))
    assert planned.converged
    assert planned.digest == fast.digest
    assert planned.certificate.error <= 1e-6
    off = float((planned.coef - fast.coef).abs().max())
    assert off <= planned.certificate.error + fast.certificate.error
    apart = abs(float(planned.intercept - fast.intercept))
    assert apart <= planned.errors["intercept"] + fast.errors["intercept"]


@pytest.mark.parametrize("name", STATED)
def test_the_host_writes_and_adds(name, monkeypatch):
    """No eigenvector, moment, Gram matrix or range of the data is there until the answer is."""

    def gone(*args, **kwargs):
        raise AssertionError

    x, y = data(name)
    fit = Machine(4).run(STATED[name], x, y)
    assert fit.ledger.host == (
        "refusal of data beyond what is stated of them",
        "the proof of the answer, after the fact",
    )
    program = STATED[name]
    for thing in ("eigh", "eigvalsh", "svd", "lstsq", "solve", "cholesky", "matrix_norm"):
        monkeypatch.setattr(torch.linalg, thing, gone)
    monkeypatch.setattr(ArraySource, "moments", gone)
    machine, source = Machine(4).start(), ArraySource(x, y)
    problem = fixed_schedule.problem_inside(
        machine, source, fixed_schedule.PlannedDomain(4.0, 8.0), program.loss(), program.l2(40),
        intercept=program.fit_intercept,
    )  # fmt: skip
    monkeypatch.setattr(fixed_schedule.InsideProblem, "hessian", gone)
    w = fixed_schedule.descend_inside(problem, program.tol, program.max_passes).w
    assert torch.equal(problem.scaling.raw(w)[0], fit.coef)
    assert not machine.ledger.host


@pytest.mark.parametrize("name", STATED)
def test_how_many_passes_there_are_does_not_depend_on_the_data(name):
    counts = set()
    for seed in (3, 4):
        x, y = data(name, seed)
        program = replace(STATED[name], tol=0.1)
        counts.add(Machine(4).run(program, x, y).passes)
        counts.add(Machine(4).run(program, 0.01 * x, y).passes)
    assert len(counts) == 1


def test_few_passes_are_told_and_still_certified():
    x, y = data("ridge")
    short = algorithms.Ridge(20.0, solver="inside", bound=4.0, label_bound=8.0, max_passes=40)
    fit, exact = Machine(4).run(short, x, y), Machine(4).run(FAST["ridge"], x, y)
    assert not fit.converged
    assert fit.passes == 40
    off = float((fit.coef - exact.coef).abs().max())
    assert 1e-6 < off <= fit.certificate.error + exact.certificate.error


def test_the_lasso_finds_its_support_and_values():
    """Its passes are as many as it may take; what it is worth is proven."""
    x, y = data("ridge")
    stated = {"solver": "inside", "bound": 4.0, "label_bound": 8.0, "max_passes": 250}
    planned, fast = (Machine(4).run(algorithms.Lasso(0.3, **how), x, y) for how in (stated, {}))
    assert planned.passes == 250
    assert planned.certificate.error <= 1e-2
    assert 0 < int((fast.coef == 0).sum()) == int((planned.coef == 0).sum())
    off = float((planned.coef - fast.coef).abs().max())
    assert off <= planned.certificate.error + fast.certificate.error
    assert planned.ledger.host == (
        "refusal of data beyond what is stated of them",
        "what is but a look-up's error, set to 0 at the end",
        "the proof of the answer, after the fact",
    )


def test_literal_and_fused_take_the_same_steps():
    x, y = data("ridge")
    short = algorithms.Ridge(9.0, solver="inside", bound=4.0, label_bound=8.0, max_passes=30)
    one, two = (Machine(4, backend=b).run(short, x, y).coef for b in ("literal", "fused"))
    assert torch.allclose(one, two, rtol=0, atol=1e-10)


REFUSED = {
    "samples": ({"bound": 2.0}, BoundError, "state a larger bound"),
    "labels": ({"label_bound": 1.0}, BoundError, "stated is label_bound = 1"),
    "no penalty": ({"alpha": 0.0}, ProgramError, "fixes its steps by the penalty"),
    "solver": ({"solver": "outside"}, ProgramError, "solver must be one of auto, inside"),
    "bound": ({"bound": -1.0}, BoundError, "bound"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_stated_is_refused(case):
    changed, kind, message = REFUSED[case]
    x, y = data("ridge")
    given = {"alpha": 2.0, "solver": "inside", "bound": 4.0, "label_bound": 8.0, **changed}
    with pytest.raises(kind, match=message):
        Machine(4).run(algorithms.Ridge(**given), x, y)
