"""Weights that are not those of their sizes are followed nowhere but where that is asked for.

Every algorithm on every engine: packages/estimators/estimator_tests/algorithms/conformance.
"""

import pytest
import torch

from iceform.errors import IntegrityError
from iceform.heads import unchecked
from iceform_estimators import algorithms
from iceform_estimators.machine import Machine


def test_the_soft_threshold_goes_through_the_network():
    """The last value, which look-ups of numbers return, doubled: thresholds double."""
    u, tau = torch.tensor([3.0, -0.5, 1.5, 0.2]).double(), torch.full((4,), 0.4).double()
    for backend in ("literal", "auto"):
        machine = Machine(4, backend=backend)
        value = machine.network.features["value"]
        machine.network.layers[1].w_v[0, -1, value.stop - 1] = 2.0
        with unchecked():
            found = algorithms.elastic_net.soft_threshold(machine.start(), u, tau)
        want = u - 2 * (u / tau).clamp(-1, 1) * tau
        assert torch.allclose(found, want, atol=1e-4)


@pytest.mark.parametrize("how", ["in place", "data", "numpy", "swapped"])
def test_changed_weights_are_refused_however_they_were_written(how):
    machine = Machine(4)
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
        machine.run(algorithms.Ridge(1.0), torch.eye(3).double(), torch.ones(3).double())


def test_the_digest_is_of_the_bytes_as_they_are():
    machine = Machine(4)
    before = machine.digest
    machine.network.layers[1].w_k.data[0, 0, 0] += 1e-9
    assert machine.digest != before
    assert Machine(4).digest == before
