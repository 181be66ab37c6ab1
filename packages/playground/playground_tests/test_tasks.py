"""What the playground computes: against the exact optimum, scikit-learn and the literal weights."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor

from iceform.attention.lookups import MARGIN
from iceform.errors import BoundError, ProgramError
from iceform_playground import questions as asked
from iceform_playground.algorithms import entries, features_of
from iceform_playground.fitting import CURVE_MESH, PLANE_MESH, the_machine
from iceform_playground.task import Stopped
from iceform_playground.tasks import TASKS, catalogue

_NAMES = list(entries())
_DESCENDING = [name for name, entry in entries().items() if entry.descends]
_UNIT = torch.finfo(torch.float64).eps / 2


def points(count: int = 60, seed: int = 0) -> list[asked.Point]:
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        x = draw.uniform(-1, 1)
        y = max(-1.0, min(1.0, 0.6 * math.sin(3 * x) + draw.gauss(0, 0.15)))
        made.append(asked.Point(x=x, y=y, group=int(draw.random() < 1 / (1 + math.exp(-4 * x)))))
    return made


def ask(name: str, question: Any) -> Any:
    return TASKS[name].work(question, lambda: None)


def fit(algorithm: str, method: str = "momentum", passes: int = 40, **settings: Any) -> Any:
    lookup = settings.pop("lookup", asked.Lookup())
    board = settings.pop("points", None) or points()
    degree = settings.pop("degree", 3)
    own = {n: float(v) for n, v in settings.items() if n in entries()[algorithm].sliders}
    model = asked.Model(algorithm=algorithm, degree=degree, options=own)
    running = asked.Running(method=method, passes=passes)  # type: ignore[arg-type]
    return ask("fit", asked.FitQuestion(points=board, model=model, running=running, lookup=lookup))


@pytest.mark.parametrize("algorithm", _NAMES)
def test_every_algorithm_answers_on_the_same_weights(algorithm: str) -> None:
    answer = fit(algorithm)
    assert answer.machine.digest == the_machine().digest
    assert answer.frames or answer.curve or answer.plane or answer.axes
    if answer.curve:
        assert len(answer.curve) == CURVE_MESH
    if answer.plane:
        assert [len(row) for row in answer.plane] == [PLANE_MESH] * PLANE_MESH
    assert type(answer).model_validate_json(answer.model_dump_json())  # survives the wire


@pytest.mark.parametrize("algorithm", _DESCENDING)
@pytest.mark.parametrize("regime", ["spectral", "hard"])
def test_a_frame_is_never_further_than_proven(algorithm: str, regime: str) -> None:
    answer = fit(algorithm, alpha=0.02, lookup=asked.Lookup(regime=regime))
    compared = 0
    for frame in answer.frames:
        if frame.certified is not None and frame.distance is not None:
            # The optimum it is measured from is itself known to about 1e-13.
            assert frame.distance <= frame.certified + 1e-12
            compared += 1
    assert compared > 0 or algorithm == "custom" or regime == "hard"


@pytest.mark.parametrize("algorithm", _DESCENDING)
def test_drift_stays_near_the_look_ups_error(algorithm: str) -> None:
    answer = fit(algorithm, alpha=0.02, passes=10)
    # Ten steps of at most 1/L each, on features of unit size: each adds about the look-up's error.
    worst = max(frame.gap for frame in answer.frames)
    assert worst <= 1e3 * (answer.table.error + _UNIT), f"{worst:.3g} of {answer.table.error:.3g}"


def test_against_scikit_learn() -> None:
    board = points(80, 3)
    place = torch.tensor([[p.x, p.y] for p in board], dtype=torch.float64)
    curve, plane = (features_of(place, task, 3).numpy() for task in ("curve", "classes"))
    y, groups = place[:, 1].numpy(), np.array([p.group for p in board])
    peers = {
        "ridge": Ridge(alpha=0.05, tol=1e-12).fit(curve, y),
        "elastic-net": ElasticNet(alpha=0.05, l1_ratio=0.5, tol=1e-12, max_iter=10**6).fit(
            curve, y
        ),
        "logistic": LogisticRegression(C=0.05, tol=1e-10, max_iter=1000).fit(plane, groups),
    }
    for name, peer in peers.items():
        answer = fit(name, "newton", 200, points=board, degree=3, alpha=0.05, l1_ratio=0.5, C=0.05)
        last = answer.frames[-1]
        assert answer.certificate.error is not None
        off = np.abs(np.array(last.coef) - peer.coef_.ravel()).max()
        assert off <= answer.certificate.error + 1e-5, f"{name}: {off:.3g}"
    nearest = fit("knn", points=board, n_neighbors=3)
    mesh = np.linspace(-1, 1, CURVE_MESH)[:, None]
    exact = KNeighborsRegressor(3).fit(place[:, :1].numpy(), y).predict(mesh)
    assert np.abs(np.array(nearest.curve) - exact).max() <= 1e-5  # drawn to six digits


@pytest.mark.parametrize("network", ["stream", "two_layers"])
@pytest.mark.parametrize("algorithm", ["ridge", "expectile", "logistic", "custom"])
def test_what_is_shown_is_the_literal_network(network: str, algorithm: str) -> None:
    question = asked.InsideQuestion(
        points=points(),
        model=asked.Model(algorithm=algorithm),
        network=network,  # type: ignore[arg-type]
        frame=3,
        first=5,
    )
    seen = ask("inside", question)
    assert seen.literal <= 1e-11
    assert len(seen.prompt.values) == len(seen.prompt.roles)
    assert all(len(row) == len(seen.prompt.features) for row in seen.prompt.values)
    for row in seen.attention.weights:
        assert sum(row) == pytest.approx(1, abs=1e-5 * len(row))  # six digits each
    if network == "stream":
        assert seen.digest == the_machine().digest
        # A query reads its own point's block alone.
        for i, row in enumerate(seen.margins.mass):
            assert row[i] == pytest.approx(0, abs=1e-5)
            assert max(row[:i] + row[i + 1 :]) <= -30
        assert (seen.margins.margin, max(seen.margins.leaks)) == (MARGIN, 0)


def test_a_lower_margin_is_another_network_and_leaks() -> None:
    leaks = []
    for margin in (2.0, 16.0, 4096.0):
        question = asked.InsideQuestion(points=points(), frame=3, first=5, margin=margin)
        seen = ask("inside", question)
        assert (seen.margins.between, seen.margins.margin, seen.literal) == ("blocks", margin, None)
        assert seen.digest != the_machine().digest
        mass = [1 - 10 ** row[i] for i, row in enumerate(seen.margins.mass)]
        assert seen.margins.leaks == pytest.approx(mass, abs=1e-5)
        leaks.append(max(seen.margins.leaks))
    assert leaks[0] > 0.1 > leaks[1] > leaks[2] == 0


def test_an_average_has_keys_and_no_blocks() -> None:
    question = asked.InsideQuestion(points=points(), model=asked.Model(algorithm="kernel"))
    seen = ask("inside", question)
    assert (seen.margins.between, seen.margins.margin) == ("keys", None)
    assert all(0 <= leak < 1 for leak in seen.margins.leaks)
    assert min(seen.margins.gaps) >= 0
    assert seen.literal <= 1e-11


def test_a_layer_that_is_not_there() -> None:
    question = asked.InsideQuestion(points=points(), layer=5)
    with pytest.raises(ProgramError, match="this network has 1"):
        ask("inside", question)
    shape = asked.InsideQuestion(points=points(), model=asked.Model(algorithm="pca"))
    with pytest.raises(ProgramError, match="no prompt to show"):
        ask("inside", shape)


@pytest.mark.parametrize("algorithm", _DESCENDING)
def test_tables_hold_what_they_certify(algorithm: str) -> None:
    question = asked.LookupQuestion(loss=asked.Loss(algorithm=algorithm))
    found = ask("lookup", question)
    z = np.array(found.z)
    for table in (found.spectral, found.hard):
        logits = np.outer(z - table.center, table.slopes) + np.array(table.biases)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        values = weights @ np.array(table.values) / weights.sum(1)
        drawn = 1e-5 * max(1.0, np.abs(found.exact).max())  # z and f are sent with six digits
        assert np.abs(values - found.exact).max() <= table.error + 20 * drawn


def test_rates_fall_and_hold() -> None:
    loss = asked.Loss(algorithm="hinge")
    spectral, hard = ask("rates", asked.LookupQuestion(loss=loss, reach=2.0)).rates
    for rate in (spectral, hard):
        assert all(m <= c for m, c in zip(rate.measured, rate.certified, strict=True))
        assert rate.certified[-1] < rate.certified[0]
    at = spectral.tokens.index(65)
    assert spectral.certified[at] < 1e-3 * hard.measured[hard.tokens.index(65)]


def test_eps_picks_the_tokens() -> None:
    coarse, fine = (
        fit("absolute", lookup=asked.Lookup(tokens=None, eps=eps)).table for eps in (1e-2, 1e-6)
    )
    assert coarse.tokens < fine.tokens
    assert fine.error <= 1e-6


def test_a_run_that_diverges_says_so() -> None:
    question = asked.FitQuestion(
        points=points(), running=asked.Running(method="gradient", rate=3.9, passes=200)
    )
    answer = ask("fit", question)
    assert "learning rate" in answer.note
    assert 1 < len(answer.frames) < 200


def test_a_run_ends_when_nobody_waits() -> None:
    beats = 0

    def pulse() -> None:
        nonlocal beats
        beats += 1
        if beats > 5:
            raise Stopped

    with pytest.raises(Stopped):
        TASKS["fit"].work(asked.FitQuestion(points=points()), pulse)
    assert beats == 6


@pytest.mark.parametrize("count", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
@pytest.mark.parametrize("algorithm", _NAMES)
def test_few_points(algorithm: str, count: int) -> None:
    """Nothing is unique, and nothing breaks."""
    own = {"n_neighbors": 1.0} if "n_neighbors" in entries()[algorithm].sliders else {}
    model = asked.Model(algorithm=algorithm, options=own)
    question = asked.FitQuestion(points=points(count), model=model)
    answer = ask("fit", question)
    assert answer.machine.digest == the_machine().digest


def test_the_catalogue_lists_everything() -> None:
    offered = catalogue()
    assert [entry.name for entry in offered.algorithms] == _NAMES
    for entry in offered.algorithms:
        for slider in entry.sliders:
            assert slider.low <= slider.start <= slider.high, (entry.name, slider)
            assert not slider.whole or slider.start == int(slider.start), (entry.name, slider)


def test_settings_that_an_algorithm_does_not_have_are_refused() -> None:
    with pytest.raises(ProgramError, match="Lasso has no n_neighbors; it has alpha"):
        ask("fit", asked.FitQuestion(points=points(), model=asked.Model(
            algorithm="lasso", options={"n_neighbors": 3.0})))  # fmt: skip
    with pytest.raises(BoundError, match="l1_ratio must be a number in"):
        ask("fit", asked.FitQuestion(points=points(), model=asked.Model(
            algorithm="elastic-net", options={"l1_ratio": 3.0})))  # fmt: skip
    with pytest.raises(ProgramError, match="no algorithm is called 'magic'"):
        ask("fit", asked.FitQuestion(points=points(), model=asked.Model(algorithm="magic")))
