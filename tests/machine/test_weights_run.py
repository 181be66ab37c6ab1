"""Every pass of a fit goes through the frozen network: change its weights, and the fit changes."""

import pytest
import torch

from iceform import algorithms
from iceform.attention import unchecked
from iceform.errors import IntegrityError
from iceform.machine import Stream
from tests.machine.data import normal

PROGRAMS = {
    "ridge": algorithms.Ridge(1.0, fit_intercept=True),
    "lasso": algorithms.Lasso(0.05, max_passes=40),
    "huber": algorithms.Huber(max_passes=60),
    "quantile": algorithms.Quantile(0.4, max_passes=40),
    "logistic": algorithms.Logistic(positive=1.0, max_passes=30),
    "svm": algorithms.LinearSVM(positive=1.0, max_passes=30),
    "poisson": algorithms.Poisson(0.1, max_passes=30),
    "components": algorithms.PCA(2),
}


def fit(machine, name):
    g = torch.Generator().manual_seed(3)
    x = normal(g, 30, 3)
    labels = x @ torch.tensor([1.0, -0.5, 0.2]).double() + 0.1 * normal(g, 30)
    labels = (labels > 0).double() if name in ("logistic", "svm", "poisson") else labels
    found = machine.run(PROGRAMS[name], x, labels)
    return found.value


def tamper(machine):
    """Keys that hold half of the first feature: another valid network, with another optimum."""
    machine.network.layers[1].w_k[0, 0, machine.network.features["key_x"].start] = 0.5


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fit_follows_the_weights(name):
    """Both backends give the changed network's answer, which is not the first one."""
    plain = fit(Stream(4), name)
    changed = []
    for backend in ("literal", "fused"):
        machine = Stream(4, backend=backend)
        tamper(machine)
        with pytest.raises(IntegrityError, match="weights were changed"):
            fit(machine, name)
        with unchecked():
            changed.append(fit(machine, name))
    assert float((changed[0] - plain).abs().max()) > 1e-4
    assert torch.allclose(*changed, rtol=0, atol=1e-6)


def test_the_soft_threshold_goes_through_the_network():
    """The last value, which look-ups of numbers return, doubled: thresholds double."""
    u, tau = torch.tensor([3.0, -0.5, 1.5, 0.2]).double(), torch.full((4,), 0.4).double()
    for backend in ("literal", "fused"):
        machine = Stream(4, backend=backend)
        value = machine.network.features["value"]
        machine.network.layers[1].w_v[0, -1, value.stop - 1] = 2.0
        with unchecked():
            found = algorithms.sparse.soft_threshold(machine.start(), u, tau)
        want = u - 2 * (u / tau).clamp(-1, 1) * tau
        assert torch.allclose(found, want, atol=1e-4)


@pytest.mark.parametrize("how", ["in place", "data", "numpy", "swapped"])
def test_changed_weights_are_refused_however_they_were_written(how):
    machine = Stream(4)
    weight = machine.network.layers[1].w_k
    if how == "in place":
        weight[0, 0, 0] = float("nan")
    elif how == "data":
        weight.data.mul_(1.5)
    elif how == "numpy":
        weight.numpy()[0, 0, 0] = 2.0
    else:
        weight[0, :2] = weight[0, :2].flip(0).clone()
    with pytest.raises(IntegrityError, match="weights were changed"):
        fit(machine, "ridge")


def test_the_digest_is_of_the_bytes_as_they_are():
    machine = Stream(4)
    before = machine.digest
    machine.network.layers[1].w_k.data[0, 0, 0] += 1e-9
    assert machine.digest != before
    assert Stream(4).digest == before
