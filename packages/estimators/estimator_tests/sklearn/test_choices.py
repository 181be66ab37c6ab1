"""Several classes at once: attention over a token for each, and the proof of what is found."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import datasets
from sklearn.linear_model import LogisticRegression

import iceform_estimators as ice
from iceform.errors import BoundError, ProgramError
from iceform_estimators import Machine
from iceform_estimators.algorithms import Logistic
from iceform_estimators.machine import ArraySource
from iceform_estimators.machine.multinomial import ChoiceProblem, basis, chances, prove_choices

EXACT = {"tol": 1e-13, "max_iter": 100_000, "solver": "newton-cholesky"}


def table(classes: int = 4, rows: int = 90, dim: int = 3, seed: int = 0):
    """More classes than a value row of the machine has room for, so that it takes two prompts."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(rows, dim))
    y = (z @ rng.normal(size=(dim, classes)) + rng.gumbel(size=(rows, classes))).argmax(1)
    assert len(np.unique(y)) == classes
    return z * [1.0, 10.0, 0.1][:dim] + 5, y


@pytest.mark.parametrize(("name", "C", "intercept"), [
    ("iris", 1.0, True), ("iris", 100.0, False), ("wine", 1.0, True), ("wine", 100.0, False),
])  # fmt: skip
def test_real_data_agree_with_scikit_learns(name, C, intercept):
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    ours = ice.InContextLogisticRegression(C=C, fit_intercept=intercept).fit(x, y)
    theirs = LogisticRegression(C=C, fit_intercept=intercept, **EXACT).fit(x, y)
    assert (ours.predict(x) == theirs.predict(x)).all()
    apart = np.abs(ours.predict_proba(x) - theirs.predict_proba(x)).max()
    assert apart < 1e-8, apart
    assert ours.certificate_.kind == "proven"
    assert ours.certificate_.error < 1e-6
    # Both are near the optimum: theirs by its tolerance, which says little where C is large.
    off = np.abs(ours.coef_ - theirs.coef_).max()
    assert off <= ours.certificate_.error + 1e-8 * np.abs(theirs.coef_).max()
    np.testing.assert_allclose(ours.coef_.sum(0), 0, atol=1e-10)
    assert ours.attestation_.within


@pytest.mark.parametrize("classes", [3, 4, 7])
@pytest.mark.parametrize("weighed", [False, True])
def test_the_certificate_holds_in_more_digits(classes, weighed):
    """Against Newton's method in 80-bit numbers from where it ended."""
    x, y = table(classes)
    weights = np.random.default_rng(1).uniform(0.2, 3, len(x)) if weighed else np.ones(len(x))
    model = ice.InContextLogisticRegression(C=3.0)
    model.fit(x, y, sample_weight=weights if weighed else None)
    coef = _refined(x, y, weights, 3.0, model.coef_, model.intercept_)
    off = float(np.abs(model.coef_ - coef).max())
    assert off <= model.certificate_.error, (off, model.certificate_.error)
    assert model.certificate_.error < 1e-8


def _refined(x, y, weights, C, coef, intercept):
    wide, classes = np.longdouble, len(coef)
    rows = np.hstack([x, np.ones((len(x), 1))]).astype(wide)
    own = np.eye(classes)[y].astype(wide)
    w = np.hstack([coef, intercept[:, None]]).astype(wide)
    penalty = np.tile([1.0 / C] * x.shape[1] + [0.0], classes)
    for _ in range(3):
        z = rows @ w.T
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        gradient = ((p - own) * weights[:, None]).T @ rows + w * penalty.reshape(w.shape)
        bend = np.einsum(
            "n,nk,kl,na,nb->kalb", weights, p.astype(float), np.eye(classes), rows, rows
        )
        bend -= np.einsum(
            "n,nk,nl,na,nb->kalb", weights, p.astype(float), p.astype(float), rows, rows
        )
        matrix = bend.reshape(w.size, w.size).astype(float) + np.diag(penalty)
        step = np.linalg.lstsq(matrix, gradient.ravel().astype(float), rcond=None)[0]
        w = w - step.reshape(w.shape)
    return w[:, :-1]


def test_the_proof_covers_points_beside_the_optimum():
    """What is moved away is proven to be no nearer than it is."""
    x, y = (torch.from_numpy(part).double() for part in table())
    machine, model = Machine(4, layout="stream"), Logistic(classes=4)
    best = machine.run(model, x, y)
    source = ArraySource(x, y)
    problem = model._choices(machine.start(), source)
    assert isinstance(problem, ChoiceProblem)
    rows = [problem.scaling.scaled(*one) for one in zip(best.coef, best.intercept, strict=True)]
    w = torch.stack(rows)
    for size in (1e-6, 1e-4):
        moved = w + size * torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=w.dtype)[:, None]
        proof = prove_choices(problem, moved)
        along = torch.kron(problem.basis, problem.scaling.functionals()[:3])
        off = (size * torch.tensor([1.0, -1, 0.5, -0.5])[:, None] / problem.scaling.scale).flatten()
        assert bool((off.abs() <= proof.bounds(along)).all())
        assert float(proof.bounds(along).max()) < 1e4 * size
    far = prove_choices(problem, w + 30 * torch.randn(w.shape, generator=torch.manual_seed(0)))
    assert far.radius == math.inf


def test_probabilities_are_attention():
    """The frozen weights answer with a softmax; taken out, nothing is learnt."""
    x, y = (torch.from_numpy(part).double() for part in table())
    machine = Machine(4, layout="stream")
    scores = torch.linspace(-40, 40, 24, dtype=torch.float64).reshape(4, 6)
    for backend in ("literal", "fused"):
        found = chances(Machine(4, layout="stream", backend=backend).start(), scores)
        torch.testing.assert_close(found, scores.softmax(1), rtol=1e-12, atol=0)
    result = machine.run(Logistic(classes=4), x, y)
    assert result.without_attention() > 0.1
    assert "a token for each class" in result.ledger.explain()
    literal = Machine(4, layout="stream", backend="literal").run(Logistic(classes=4), x, y)
    allowed = result.certificate.error + literal.certificate.error
    assert float((result.coef - literal.coef).abs().max()) <= allowed
    assert len(machine.prompt(Logistic(classes=4), x, y).tokens) == machine.geometry.count


def test_a_basis_of_what_adds_up_to_nothing():
    for classes in (3, 5, 12):
        b = basis(classes, torch.zeros((), dtype=torch.float64))
        eye = torch.eye(classes - 1, dtype=torch.float64)
        torch.testing.assert_close(b.mT @ b, eye, rtol=0, atol=1e-15)
        assert float(b.sum(0).abs().max()) < 1e-15


def test_warm_starts_of_several_classes_take_fewer_passes():
    x, y = table()
    model = ice.InContextLogisticRegression(warm_start=True).fit(x, y)
    first, coef = model.n_passes_, model.coef_
    assert model.fit(x, y).n_passes_ < first
    assert np.abs(model.coef_ - coef).max() <= 2 * model.certificate_.error
    two = y % 2
    assert model.fit(x, two).coef_.shape == (1, 3)  # of two classes: begun anew
    assert model.fit(x, y).coef_.shape == (4, 3)


def test_refusals():
    x, y = (torch.from_numpy(part).double() for part in table())
    machine, model = Machine(4, layout="stream"), Logistic(classes=4)
    with pytest.raises(BoundError, match=r"labels of 3 classes .* the data hold 3"):
        machine.run(replace(model, classes=3), x, y)
    with pytest.raises(BoundError, match="number the classes from 0"):
        machine.run(model, x, y + 0.5)
    with pytest.raises(ProgramError, match="classes=2 for one class against the rest"):
        machine.run(replace(model, solver="inside"), x, y)
    with pytest.raises(ProgramError, match="there are 4 classes, a prompt of this machine holds 2"):
        Machine(4, layout="stream", samples=1, tokens=2).run(model, x, y)


@pytest.mark.parametrize("classes", [2, 3])
def test_no_penalty_at_all(classes):
    x, y = table(classes)
    ours = ice.InContextLogisticRegression(C=np.inf).fit(x, y)
    theirs = LogisticRegression(C=np.inf, **EXACT).fit(x, y)
    off = np.abs(ours.coef_ - theirs.coef_).max()
    assert off <= ours.certificate_.error + 1e-8 * np.abs(theirs.coef_).max()
    assert ours.certificate_.error < 1e-6
    with pytest.raises(ValueError, match=r"\(0\.0, inf\]"):
        ice.InContextLogisticRegression(C=0.0).fit(x, y)
