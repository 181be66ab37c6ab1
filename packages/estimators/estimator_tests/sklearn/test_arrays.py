"""Numbers in any dress: strides, byte orders, formats, graphs, views that NumPy or torch lack."""

import numpy as np
import pytest
import torch

import iceform_estimators
import iceform_estimators as estimators
from estimator_tests.exact import verify
from iceform.errors import DeviceError, DtypeError
from iceform_estimators import algorithms, certify_minimiser


def _record(a):
    fields = np.zeros(a.shape, dtype=[("flag", "i1"), ("value", "f8")])
    fields["value"] = a
    return fields["value"]


def _taught(a):
    return a.astype(pytest.importorskip("ml_dtypes").bfloat16)


ARRAYS = {
    "reversed": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "of another machine": lambda a: a.astype(">f8"),
    "fields of a record": _record,
    "taught to NumPy": _taught,
}
DENSE = {
    "requires_grad": lambda a: torch.from_numpy(a.copy()).requires_grad_(),
    "negated view": lambda a: torch._neg_view(torch.from_numpy(-a)),
    "imaginary part of a conjugate": lambda a: torch.imag(
        torch.complex(torch.zeros(a.shape).double(), torch.from_numpy(-a)).conj()
    ),
}
SHORT = {
    "bfloat16": lambda a: torch.from_numpy(a).bfloat16(),
    "float8": lambda a: torch.from_numpy(a).to(torch.float8_e4m3fn),
}
REFUSED = {
    "sparse": lambda a: torch.from_numpy(a.copy()).to_sparse(),
    "without numbers": lambda a: torch.from_numpy(a).to("meta"),
}


def drawn(name=""):
    """Eighths, which every format holds."""
    draw = np.random.default_rng(0)
    x = draw.integers(-8, 9, size=(20, 2)) / 8.0
    y = np.round(4 * x @ [1.0, -0.5]) / 8
    if any(word in name for word in ("Logistic", "SVC", "Perceptron", "Classifier")):
        return x, (y > 0).astype(float)
    return x, np.abs(y) if "Poisson" in name else y


def answered(model, x):
    return np.asarray((model.transform if hasattr(model, "transform") else model.predict)(x), float)


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", estimators.ESTIMATORS)
def test_estimators_read_the_same_numbers(name):
    kind, (x, y) = getattr(estimators, name), drawn(name)
    plain = answered(kind().fit(x, y), x)
    for dress in (ARRAYS | DENSE | SHORT).values():
        model = kind().fit(dress(x), dress(y))
        np.testing.assert_allclose(answered(model, dress(x)), plain, atol=1e-5)
        if name != "InContextPCA":
            model.score(dress(x), dress(y))
    for dress in REFUSED.values():
        with pytest.raises((DtypeError, DeviceError), match="X "):
            kind().fit(dress(x), y)
    if hasattr(kind, "partial_fit"):
        weights = np.ones(len(y))[::-1]
        kind().partial_fit(DENSE["negated view"](x), y[::-1][::-1], weights)


def test_machines_read_the_same_numbers_or_refuse_them_by_name():
    x, y = drawn()
    machine = iceform_estimators.Machine(3, 20)
    for program in (algorithms.Ridge(), algorithms.KNeighbors(2), algorithms.PCA(1)):
        plain = machine.run(program, torch.from_numpy(x), torch.from_numpy(y)).value
        for dress in DENSE.values():
            found = machine.run(program, dress(x), dress(y))
            assert torch.equal(found.value, plain)
            assert not found.value.requires_grad
            assert verify(found)
            found.without_attention()
            if found.predictor is not None:
                assert not found.predict(dress(x)).requires_grad
        for dress in (*SHORT.values(), *REFUSED.values()):
            with pytest.raises((DtypeError, DeviceError)):
                machine.run(program, dress(x), dress(y))
        for call in (machine.prompt, machine.trace):
            call(program, DENSE["negated view"](x), DENSE["requires_grad"](y))


def test_other_ways_in_read_the_same_numbers():
    x, y = drawn()
    plain = certify_minimiser(torch.ones(2).double(), x, y).error
    for dress in (ARRAYS | DENSE | SHORT).values():
        assert certify_minimiser(dress(np.ones(2)), dress(x), dress(y)).error == plain
    with pytest.raises(DtypeError, match="X cannot be read as numbers"):
        certify_minimiser(torch.ones(2), np.array([["a", "b"]]), y)
    model = estimators.InContextRidge().fit(x, y)
    assert verify(model.certificate_, x[::-1][::-1], y[::-1][::-1])
