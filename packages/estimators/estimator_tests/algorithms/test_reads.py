"""Answers are what attention returned: with softmax and every look-up gone, none comes back."""

import math
from dataclasses import replace

import pytest
import torch

import iceform_estimators
from iceform.errors import PrecisionError
from iceform.run import primitives, windowed
from iceform.tables import Interpolant
from iceform_estimators import algorithms
from iceform_estimators.algorithms.index_codes import IndexCodes
from iceform_estimators.algorithms.neighbours import NeighborsMemory
from iceform_estimators.machine import Machine

PROGRAMS = {
    "neighbours": algorithms.KNeighbors(3),
    "neighbours by distance": algorithms.KNeighbors(3, weights="distance"),
    "vote": algorithms.KNeighborsVote(3),
    "kernel": algorithms.KernelRegression(2.0),
    "ridge": algorithms.Ridge(1.0),
    "ridge inside": algorithms.Ridge(9.0, solver="inside", bound=4.0, max_passes=20),
    "lasso inside": algorithms.Lasso(0.05, solver="inside", bound=4.0, max_passes=20),
    "logistic inside": algorithms.Logistic(solver="inside", bound=4.0, max_passes=20),
    "lasso": algorithms.Lasso(0.05),
    "logistic": algorithms.Logistic(positive=1.0),
}


class GoneError(Exception):
    """What is called instead of a primitive."""


def gone(*args, **kwargs):
    raise GoneError


def take_out(monkeypatch) -> None:
    """Softmax in every spelling, and everything that backends look up or attend with."""
    for home in (torch, torch.Tensor, torch.nn.functional):
        for name in ("softmax", "log_softmax", "scaled_dot_product_attention"):
            if hasattr(home, name):
                monkeypatch.setattr(home, name, gone)
    for module in (primitives, windowed):
        for name, found in list(vars(module).items()):
            own = getattr(found, "__module__", None) == module.__name__
            if own and callable(found) and not name.startswith("_"):
                monkeypatch.setattr(module, name, gone)
    monkeypatch.setattr(Interpolant, "weights", gone)


def data(rows: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(11)
    x = torch.randn(rows, 3, generator=g).double()
    return x, (x[:, 0] + 0.5 * torch.randn(rows, generator=g).double() > 0).double()


@pytest.mark.parametrize("backend", ["fused", "literal"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_softmax_and_look_ups_no_answer_comes_back(name, backend, monkeypatch):
    """Not from a new fit, and not from one that was made before."""
    x, y = data()
    stream = Machine(4, backend=backend)
    before = stream.run(PROGRAMS[name], x, y)
    take_out(monkeypatch)
    with pytest.raises(GoneError):
        stream.run(PROGRAMS[name], x, y).value  # noqa: B018
    with pytest.raises(GoneError):
        before.predict(x[:5])


def test_softmax_alone_is_enough_to_stop_the_reads(monkeypatch):
    """Backends as they are: what they attend with is torch.softmax."""
    x, y = data(400)
    memory = Machine(4).run(algorithms.KNeighbors(3), x, y).predictor
    monkeypatch.setattr(torch, "softmax", gone)
    with pytest.raises(GoneError):
        memory.neighbors(x[:3])


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_literal_prompts_find_the_same_neighbours(weights):
    """Ties, copies and an outlier, so that reads mix, zoom and hide."""
    g = torch.Generator().manual_seed(5)
    x = torch.cat([torch.randint(-1, 2, (20, 2), generator=g).double(),
                   1e-4 * torch.randn(8, 2, generator=g).double()])  # fmt: skip
    x[0] = 300.0
    y = torch.randn(28, generator=g).double()
    points = torch.cat([x[1:9], 0.5 * x[20:24]])
    squares = (points[:, None] - x).square().sum(-1)
    want = torch.sort(squares, dim=1, stable=True).indices[:, :4]
    program, answers = algorithms.KNeighbors(4, weights=weights), []
    for backend in ("literal", "fused"):
        fit = Machine(2, samples=2, tokens=14, backend=backend).run(program, x, y)
        assert torch.equal(fit.predictor.neighbors(points), want)
        answers.append((fit.predict(points), fit.certificate.error))
    (one, first), (two, second) = answers
    assert float((one - two).abs().max()) <= first + second


def test_what_is_hidden_and_replaced_decides(monkeypatch):
    """The reads see what the prompt holds: another sample in its place, another answer."""
    x, y = data()
    memory = Machine(4).run(algorithms.KNeighbors(1), x, y).predictor
    point = x[:1] + 1e-3
    assert memory.neighbors(point).tolist() == [[0]]
    moved = replace(memory, x=torch.cat([memory.x[1:], memory.x[:1]]))
    assert isinstance(moved, NeighborsMemory)
    assert moved.neighbors(point).tolist() == [[39]]


def test_neighbours_in_float32():
    """Fewer digits of the numbers fit into a read: more columns are read."""
    x, y = data(300)
    points = x[:20] + 0.01
    fits = [Machine(4, dtype=d).run(algorithms.KNeighbors(3), x, y)
            for d in (torch.float32, torch.float64)]  # fmt: skip
    single, double = (fit.predictor.neighbors(points) for fit in fits)
    assert torch.equal(single, double)
    off = float((fits[0].predict(points) - fits[1].predict(points)).abs().max())
    assert off <= fits[0].certificate.error + fits[1].certificate.error
    assert fits[0].certificate.dtype == torch.float32


@pytest.mark.parametrize("count", [1, 2, 5, 1000, 50_000, 300_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_read_back_and_mixtures_are_told(count, dtype):
    if dtype == torch.float32 and count > 5000:
        with pytest.raises(PrecisionError, match=r"use dtype=torch\.float64"):
            IndexCodes.of(count, dtype)
        return
    places = IndexCodes.of(count, dtype)
    values = places.values(torch.zeros(1, dtype=dtype))
    assert values.abs().max() <= 1
    one = torch.tensor([0, count // 3, count - 1])
    number, clear, mean = places.read(values[one])
    assert torch.equal(number, one)
    assert bool(clear.all())
    assert torch.allclose(mean.double(), one.double(), rtol=1e-6)
    if count > 1:
        g = torch.Generator().manual_seed(count)
        pairs = torch.randint(count, (200, 2), generator=g)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        for share in (0.2, 0.5, 0.7):
            mixed = share * values[pairs[:, 0]] + (1 - share) * values[pairs[:, 1]]
            assert not bool(places.read(mixed)[1].any())


def test_the_ledger_and_the_attestation_are_of_reads():
    x, y = data()
    fit = Machine(4).run(algorithms.KNeighbors(3), x, y)
    assert fit.attestation.ok
    assert fit.attestation.rows > 0
    assert fit.passes == 4
    assert dict(fit.ledger.times)["attention", "prompts through the frozen network"] == 4 * len(x)
    assert not any("largest logits" in what or "topk" in what for what in fit.ledger.host)
    assert fit.without_attention() > 0.1
    assert math.isfinite(fit.certificate.error)


def test_the_first_prompt_is_a_read():
    x, y = data()
    stream = iceform_estimators.Machine(4, layout="stream")
    program = algorithms.KNeighbors(3)
    rows = stream.network(stream.prompt(program, x, y).tokens)[stream.samples :]
    number, clear, _ = IndexCodes.of(len(x), torch.float64).read(rows[:, :2])
    assert bool(clear.all())
    assert number.tolist() == list(range(stream.samples))
