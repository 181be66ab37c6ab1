"""Data run where they lie: no algorithm mixes devices, and answers stay where data are."""

import pytest
import torch

from iceform import validation
from iceform.run import primitives
from iceform_estimators import algorithms
from iceform_estimators.machine import ArraySource, Machine
from tests.elsewhere import Elsewhere, MixedError, here, is_there, there


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """A GPU of the host's memory, without kernels of its own."""
    monkeypatch.setattr(primitives, "has_triton", lambda: False)
    monkeypatch.setattr(validation, "available_bytes", lambda device: 1 << 34)


def data() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=g).double()
    y = x @ torch.tensor([1.0, -0.5, 0.2]).double() + 0.3 * torch.randn(60, generator=g).double()
    noisy = y + 0.5 * torch.randn(60, generator=g).double()
    dependent = torch.cat([x, x[:, :1] - 2 * x[:, 1:2]], 1)
    return {
        "number": (x, y), "class": (x, (noisy > 0).double()), "dependent": (dependent, y),
        "three": (x, torch.randint(0, 3, (60,), generator=g).double()),
    }  # fmt: skip


FITS = {
    "ridge": (algorithms.Ridge(1.0), "number"),
    "least squares": (algorithms.LinearRegression(), "dependent"),
    "lasso": (algorithms.Lasso(0.05), "number"),
    "logistic": (algorithms.Logistic(positive=1.0), "class"),
    "several classes": (algorithms.Logistic(classes=3), "three"),
    "huber": (algorithms.Huber(), "number"),
    "neighbours": (algorithms.KNeighbors(3), "number"),
    "kernel": (algorithms.KernelRegression(2.0), "number"),
    "inside": (
        algorithms.Logistic(positive=1.0, solver="inside", bound=4.0, max_passes=9), "class",
    ),
}  # fmt: skip


def test_mixing_is_noticed():
    """What the other tests rely on."""
    x = torch.ones(2, 2)
    with Elsewhere():
        far = there(x)
        assert (
            (far @ far).device == torch.zeros(1, device=far.device).device == torch.device("cuda:0")
        )
        assert torch.zeros(1).device.type == far.to("cpu").device.type == "cpu"
        for wrong in (lambda: far + torch.ones(2), lambda: x.clone()[far > 0], far.numpy):
            with pytest.raises(MixedError):
                wrong()


@pytest.mark.parametrize("name", FITS)
def test_an_algorithm_stays_where_its_data_are(name):
    program, which = FITS[name]
    x, y = data()[which]
    machine = Machine(5)
    one = machine.run(program, x, y)
    with Elsewhere():
        other = machine.run(program, there(x.clone()), there(y.clone()))
        value, points = other.value, other.predict(there(x[:5].clone()))
        assert is_there(value)
        assert is_there(points)
        assert other.attestation.ok
    allowed = one.certificate.error + other.certificate.error
    assert float((here(value) - one.value).abs().max()) <= allowed
    assert torch.allclose(here(points), one.predict(x[:5]), rtol=0, atol=1e-6 + allowed)


def test_weights_and_estimators():
    x, y = data()["number"]
    from iceform_estimators import InContextRidge

    plain = InContextRidge().fit(x, y, torch.linspace(1, 2, 60))
    with Elsewhere():
        far, labels, weights = (there(t.clone()) for t in (x, y, torch.linspace(1, 2, 60).double()))
        weighed = Machine(4).run(algorithms.Ridge(1.0), ArraySource(far, labels, weights=weights))
        tensors = InContextRidge().fit(far, labels, weights)
        arrays = InContextRidge(device="cuda").fit(x.numpy(), y.numpy(), torch.linspace(1, 2, 60))
        found = [weighed.coef.cpu().numpy(), tensors.coef_, arrays.coef_]
        assert abs(tensors.predict(far) - plain.predict(x)).max() < 1e-12
    assert max(abs(coef - plain.coef_).max() for coef in found) < 1e-12
