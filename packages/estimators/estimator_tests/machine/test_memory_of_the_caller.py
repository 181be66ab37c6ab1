"""What a caller writes into data after a run changes nothing that was certified, or is refused."""

import numpy as np
import pytest
import torch

import iceform_estimators as estimators
from estimator_tests.exact import verify
from iceform.errors import IntegrityError
from iceform.run import FusedBackend
from iceform_estimators import Machine, algorithms
from iceform_estimators.machine import ArraySource

KEEP = {
    "kernel": algorithms.KernelRegression(1.0),
    "neighbours": algorithms.KNeighbors(3),
    "votes": algorithms.KNeighborsVote(3),
    "ridge": algorithms.Ridge(),
}


def drawn(rows: int = 14):
    g = torch.Generator().manual_seed(rows)
    x = 2 * torch.rand(rows, 2, generator=g, dtype=torch.float64) - 1
    return x, 0.5 * x[:, 0]


@pytest.mark.parametrize("name", KEEP)
@pytest.mark.parametrize("same", [False, True], ids=["spread", "in one place"])
def test_a_result_is_of_the_data_as_they_were(name, same):
    program = KEEP[name]
    x, y = drawn()
    if same:
        x[:] = x[0]
    asked = x[:4].clone()
    machine = Machine(3, 14)
    found = machine.run(program, x, y)
    before = found.value.clone(), found.predict(asked)
    x -= 3.0
    y -= 5.0
    assert torch.equal(found.value, before[0])
    assert torch.equal(found.predict(asked), before[1])
    assert verify(found)


def test_long_data_are_not_copied_and_noticed_when_they_change():
    x, y = drawn(200)
    stream = Machine(3, layout="stream").run(algorithms.Ridge(), x, y)
    assert stream.without_attention() < 1e-6
    y[7] = -y[7]
    with pytest.raises(IntegrityError, match="changed between two passes"):
        stream.without_attention()


def test_programs_copy_what_they_are_made_of():
    begin = (torch.ones(2).double(), torch.zeros(()).double())
    model = algorithms.Ridge(begin=begin)
    begin[0].zero_()
    assert model.begin is not None
    assert float(model.begin[0].sum()) == 2.0


@pytest.mark.parametrize("name", ["KernelRegressor", "KNeighborsRegressor", "KNeighborsClassifier"])
@pytest.mark.parametrize("columns", [0, 2])
def test_estimators_that_keep_samples_keep_copies(name, columns):
    if columns and name == "KernelRegressor":
        columns = 0
    x, y = (part.numpy() for part in drawn())
    y = (y > 0).astype(float) if name.endswith("Classifier") else y.copy()
    y = np.stack([y] * columns, 1) if columns else y
    model = getattr(estimators, f"InContext{name}")().fit(x, y)
    asked = x[:4].copy()
    before = model.predict(asked)
    x -= 3.0
    y -= 5.0
    np.testing.assert_array_equal(model.predict(asked), before)
    assert verify(model.certificate_)


# ----------------------------------------------------------------- what was attested is the answer


@pytest.mark.parametrize("name", ["kernel", "neighbours"])
def test_a_run_attests_its_answer_and_not_some_other_reads(name, monkeypatch):
    """Wrong for every point but the first eight: a run that replays those alone sees nothing."""
    x, y = drawn(400)
    right = FusedBackend.run

    def wrong(self, prompt):
        out = right(self, prompt).clone()
        if name == "kernel" or not bool(prompt.keys.any()):  # of neighbours, the last read
            out[8:] += 0.25
        return out

    monkeypatch.setattr(FusedBackend, "run", wrong)
    machine = Machine(3, layout="stream", backend="fused")
    with pytest.raises(IntegrityError, match="off by"):
        machine.run(KEEP[name], x, y)


@pytest.mark.parametrize("name", ["kernel", "neighbours"])
def test_what_is_asked_later_looks_at_the_weights(name):
    x, y = drawn()
    machine = Machine(3, layout="stream", backend="fused")
    found = machine.run(KEEP[name], x, y)
    assert found.attestation.ok
    assert found.attestation.rows > 0
    value = found.value.clone()
    for weights in machine.network.state_dict().values():
        weights.mul_(1.5)
    assert torch.equal(found.value, value)
    with pytest.raises(IntegrityError):
        found.predict(x[:2])


def test_a_fit_of_many_samples_says_what_was_read():
    x, y = drawn(1100)
    model = estimators.InContextKNeighborsRegressor(1).fit(x.numpy(), y.numpy())
    assert model.attestation_.ok
    assert "first 1024 of 1100 samples" in model.attestation_.explain()


def test_a_source_may_be_run_again():
    source = ArraySource(*drawn(40))
    machine = Machine(3, layout="stream")
    first, second = (machine.run(algorithms.KernelRegression(1.0), source) for _ in range(2))
    assert torch.equal(first.value, second.value)
