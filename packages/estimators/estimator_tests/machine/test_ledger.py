"""What the host computes from data in the course of a fit is in its ledger, and how often."""

import pytest
import torch

from iceform_estimators import Machine, algorithms
from iceform_estimators.machine import problem
from iceform_estimators.machine.problem import GradientTask, LinearProblem


def drawn():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=g, dtype=torch.float64)
    return x, x @ torch.tensor([2.0, 0.0, -1.0]).double() + 0.3 * torch.randn(60, generator=g)


MODELS = {
    "ridge": algorithms.Ridge(),
    "lasso": algorithms.Lasso(0.1),
    "huber": algorithms.Huber(),
    "expectile": algorithms.Expectile(0.8),
    "by momentum": algorithms.Ridge(precondition="diagonal", max_passes=30),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_look_at_all_residuals_is_counted(name, monkeypatch):
    """And every table that is written because of one."""
    looked, wider = [], []
    call, on = GradientTask.__call__, LinearProblem._mean

    def watched(self, x, y):
        looked.append(self.table.high)
        return call(self, x, y)

    def mean(self, *args):
        first = len(looked)
        out = on(self, *args)
        wider.append(len(looked) - first - 1)
        return out

    monkeypatch.setattr(GradientTask, "__call__", watched)
    monkeypatch.setattr(LinearProblem, "_mean", mean)
    fit = Machine(4, layout="stream").run(MODELS[name], *drawn())
    times = fit.ledger.times
    assert times["host", problem.WATCHED] >= len(looked) > 0
    if name != "huber":  # which looks for its scale besides
        assert times["host", problem.WATCHED] == len(looked)
        assert times.get(("host", problem.WIDENED), 0) == sum(wider)


@pytest.mark.parametrize("name", MODELS)
def test_coordinates_from_the_data_are_host_work(name):
    fit = Machine(4, layout="stream").run(MODELS[name], *drawn())
    if name != "lasso":  # which is done before it gets to them
        assert (("host", problem.TURNED) in fit.ledger.times) == (name != "by momentum")
    assert not any("T'x" in what for where, what, _ in fit.ledger if where == "prompt")
    assert ("host", problem.SCALED) in fit.ledger.times
    if name in ("lasso", "by momentum"):
        assert any("momentum" in what for what in fit.ledger.host)


def test_a_lasso_says_what_it_snaps_clips_and_cuts():
    host = Machine(4, layout="stream").run(MODELS["lasso"], *drawn()).ledger.host
    for word in ("set to 0", "clipped", "begins anew", "change its sign"):
        assert any(word in what for what in host), word


def test_where_the_host_only_writes_and_adds_nothing_of_this_is_there():
    x, y = drawn()
    x, y = x / x.abs().max(), y / y.abs().max()
    fit = Machine(4, layout="stream").run(algorithms.Ridge(solver="inside"), x, y)
    assert set(fit.ledger.host) == {
        "refusal of data beyond what is stated of them",
        "the proof of the answer, after the fact",
    }


def test_a_straight_line_is_named_as_such():
    x, y = drawn()
    machine = Machine(4, layout="stream")
    for program in (algorithms.Ridge(), algorithms.Expectile(0.5), algorithms.PCA(1)):
        assert ("attention", problem.STRAIGHT) in machine.run(program, x, y).ledger.times
    for name in ("huber", "expectile"):
        fit = machine.run(MODELS[name], x, y)
        assert ("attention", problem.STRAIGHT) not in fit.ledger.times
