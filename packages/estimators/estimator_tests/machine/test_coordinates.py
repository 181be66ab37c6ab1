"""Coordinates are in the prompt: what is written, what comes back, and what is done to it."""

from itertools import pairwise

import pytest
import torch

from iceform.heads import LookUps
from iceform_estimators import algorithms
from iceform_estimators.algorithms.linear import LinearModel
from iceform_estimators.algorithms.recursive_least_squares import Recursion
from iceform_estimators.machine import ArraySource, Machine, MachineRun
from iceform_estimators.machine.problem import metric_of

ROWS = 60


def data(labels: str = "number") -> tuple[torch.Tensor, torch.Tensor]:
    """Columns that are far from uncorrelated, of three sizes."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 3, generator=g).double()
    x[:, 1] += 10 * x[:, 0]
    x[:, 2] = 100 * (x[:, 2] + x[:, 1]) + 7
    z = x[:, 0] - 0.3 * x[:, 1] + 0.02 * x[:, 2] + torch.randn(ROWS, generator=g).double()
    noisy = z + 3 * torch.randn(ROWS, generator=g).double()
    return x, z if labels == "number" else (noisy > z.mean()).double()


@pytest.fixture
def passes(monkeypatch) -> list[tuple[LookUps, torch.Tensor]]:
    """What every pass of a run asked, and what came back."""
    seen, total = [], MachineRun.total

    def watched(self, prompt):
        out = total(self, prompt)
        seen.append((prompt, out))
        return out

    monkeypatch.setattr(MachineRun, "total", watched)
    return seen


NEWTON = {
    "logistic": (algorithms.Logistic(C=float("inf")), "class"),
    "expectile": (algorithms.Expectile(0.3), "number"),
}


def test_a_pass_is_a_gradient_step_on_samples_that_are_white(passes):
    """The next u is this one less what came back, over n: no matrix is applied to it."""
    x, y = data()
    fit = Machine(4).run(algorithms.LinearRegression(tol=1e-14), x, y)
    assert len(passes) == fit.passes >= 2
    for prompt, _ in passes:
        white = prompt.x.mT @ prompt.x / ROWS
        assert float((white - torch.eye(4)).abs().max()) < 1e-9
    for (one, came_back), (after, _) in pairwise(passes):
        assert float((one.w - came_back / ROWS - after.w).abs().max()) < 1e-14
    last, came_back = passes[-1]
    assert float((last.residuals() - (x @ fit.coef + fit.intercept - y) / y.std(correction=0))
                 .abs().max()) < 1e-12  # fmt: skip
    assert float(came_back.abs().max()) / ROWS < 1e-12


@pytest.mark.parametrize("name", NEWTON)
def test_where_the_curvature_changes_each_pass_has_its_own(name, passes):
    program, labels = NEWTON[name]
    x, y = data(labels)
    fit = Machine(4).run(program, x, y)
    bend = program.loss().curvature.bend
    apart = [
        float(((p.x * bend(p.residuals())[:, None]).mT @ p.x / ROWS - torch.eye(4)).abs().max())
        for p, _ in passes
    ]
    assert fit.converged
    assert 4 <= len(passes) <= fit.passes  # of a pass whose table was too short nothing came back
    assert max(apart) < 1e-8, apart
    shown = [text for where, text, _ in fit.ledger if where in ("prompt", "host")]
    assert any("other coordinates" in text for text in shown)
    assert any("eigenvectors" in text for text in shown)


@pytest.mark.parametrize(
    "program",
    [
        algorithms.Ridge(2.0),
        algorithms.Ridge(2.0, precondition="diagonal", max_passes=5),
        algorithms.Logistic(positive=1.0),
        algorithms.Huber(),
        algorithms.Lasso(0.1),
    ],
    ids=lambda program: f"{program.name} {program.precondition}",
)
def test_the_prompt_that_is_shown_is_the_one_that_ran(program: LinearModel, passes):
    """Its table may reach less far: the run's covers all samples, this one's the first."""
    x, y = data("class" if program.name == "logistic" else "number")
    machine = Machine(4)
    machine.run(program, x, y)
    ran = passes[0][0].part(slice(0, machine.samples))
    shown = program.opening(machine.start(), ArraySource(x, y))
    assert torch.equal(machine.prompt(program, x, y).tokens, next(shown.chunks())[0])
    for one, other in ((shown.x, ran.x), (shown.y, ran.y), (shown.w, ran.w)):
        assert torch.equal(one, other)


def test_dependent_columns_leave_directions_that_are_not_stepped_along():
    x, y = data()
    x = torch.cat([x, x[:, :1] - 2 * x[:, 1:2]], 1)
    running = Machine(5).start()
    problem = algorithms.LinearRegression().problem(running, ArraySource(x, y))
    within = metric_of(problem.hessian(problem.start()), ROWS).coordinates
    w = torch.linspace(-1, 1, 5, dtype=torch.float64)
    assert within.rank == 4
    assert float((within.back(within.of(w)) - w).abs().max()) < 1e-12
    slope = problem.slope(within.of(w), within)
    assert float((within.gradient(slope) - problem.gradient(w)).abs().max()) < 1e-10
    assert float(slope[4].abs()) < 1e-10
    assert within.along(torch.ones_like(slope)).tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_several_classes_have_their_sums_in_the_prompt_too(passes):
    """All that is done to what comes back is adding it up: it is the slope in u."""
    x, _ = data()
    y = torch.arange(ROWS).double() % 3
    running = Machine(4).start()
    problem = algorithms.Logistic(C=2.0, classes=3)._choices(running, ArraySource(x, y))
    w = torch.linspace(-1, 1, 8, dtype=torch.float64)
    within = metric_of(problem.hessian(w), ROWS).coordinates
    slope = problem.slope(within.of(w), within)
    samples, turned = problem.scaling.samples(x), within.turned.reshape(2, 4, 8)
    came_back = torch.zeros(8, dtype=torch.float64)
    for (prompt, out), (r, at) in zip(passes, [(0, 0), (0, 4), (1, 0), (1, 4)], strict=True):
        assert torch.equal(prompt.x, samples @ turned[r][:, at : at + 4])
        assert not prompt.w.any()
        came_back[at : at + 4] += out
    penalty = problem.ridge.repeat(2) * within.back(within.of(w))
    assert float((came_back / ROWS + within.turned.mT @ penalty - slope).abs().max()) < 1e-15
    chances = (samples @ problem.rows(w).mT).softmax(1)
    own = torch.nn.functional.one_hot(y.long(), 3)
    exact = problem.reduced((chances - own).mT @ samples) / ROWS + problem.ridge.repeat(2) * w
    assert float((slope - within.turned.mT @ exact).abs().max()) < 1e-12
    assert float((problem.gradient(w) - exact).abs().max()) < 1e-12
    host = [text for where, text, _ in running.ledger if where == "host"]
    assert not any("sum" in text or "turned" in text for text in host)


def test_batches_are_written_in_coordinates_of_all_so_far(passes):
    x, y = data()
    recursion, machine = Recursion(alpha=0.0), Machine(4)
    steps, before = [], torch.zeros(4, dtype=torch.float64)
    for part in (slice(0, 25), slice(25, ROWS)):
        fit = recursion.update(machine.start(), ArraySource(x[part], y[part]))
        after = recursion._state[0]
        steps.append(after - before)
        before = after
    scaling, written = recursion._scaling, []
    for (prompt, came_back), part, step in zip(
        passes, (slice(0, 25), slice(25, ROWS)), steps, strict=True
    ):
        samples = scaling.samples(x[part])
        turned = torch.linalg.lstsq(samples, prompt.x).solution
        assert float((step + turned @ came_back).abs().max()) < 1e-9 * float(step.abs().max())
        written.append(scaling.samples(x[: part.stop]) @ turned)
    for white in written:
        assert float((white.mT @ white - torch.eye(4)).abs().max()) < 1e-9
    exact = torch.linalg.lstsq(torch.cat([x, torch.ones(ROWS, 1).double()], 1), y).solution
    assert float((fit.coef - exact[:3]).abs().max()) < 1e-11
    shown = {where: text for where, text, _ in fit.ledger if "coordinates: T'x" in text}
    assert set(shown) == {"host"}, "T is found from the data"
