"""Every estimator with every matrix multiplied: the default's answer within both certificates."""

import numpy as np
import pytest

from estimator_tests.algorithms.conformance.data import names
from iceform.errors import IntegrityError
from iceform.heads import LookUpLayout
from iceform_estimators import estimator_of
from iceform_estimators.algorithms import named
from tests.conformance import WRITES

NAMES = [name for name in names() if named(name).estimator]


def table(rows: int, seed: int = 5):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    score = x @ [1.0, -0.5, 0.25] + 0.3 * rng.normal(size=rows)
    return x, score


def labels(name: str, score: np.ndarray) -> np.ndarray:
    kind = named(name)
    if kind.task == "classification":
        return (score > 0).astype(int)
    return np.round(np.exp(score.clip(-2, 2))) if name == "poisson" else score


def agree(name: str, rows: int) -> None:
    x, score = table(rows)
    if name == "perceptron":  # its mistakes end where a plane separates the classes
        score = x @ [1.0, -0.5, 0.25]
    y = labels(name, score)
    make = estimator_of(named(name))
    usual, literal = make().fit(x, y), make(backend="literal").fit(x, y)
    assert (usual.attestation_.backend, literal.attestation_.backend) == ("fused", "literal")
    assert usual.attestation_.ok
    assert literal.attestation_.ok
    assert usual.digest_ == literal.digest_
    allowed = usual.certificate_.error + literal.certificate_.error
    if named(name).family in ("line", "separator"):
        ours, theirs = usual.coef_, literal.coef_
    elif named(name).family == "components":
        ours, theirs = usual.components_, literal.components_
    else:
        ours, theirs = (model.predict(x[:20]) for model in (usual, literal))
    off = np.abs(np.asarray(ours, dtype=float) - theirs).max()
    assert off <= allowed < np.inf, (off, allowed)


@pytest.mark.parametrize("name", NAMES)
def test_the_literal_matrices_fit_the_same(name):
    agree(name, 24)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_literal_matrices_fit_the_same_on_200_rows(name):
    agree(name, 200)


@pytest.mark.parametrize("name", NAMES)
def test_changed_weights_are_refused(name, monkeypatch):
    """A NaN, a scaled matrix or swapped rows: before a fit, and before a prediction."""
    x, score = table(24)
    y, make, build = labels(name, score), estimator_of(named(name)), LookUpLayout.build
    fitted = make().fit(x, y)
    ask = fitted.transform if named(name).family == "components" else fitted.predict
    for write in WRITES.values():
        network = fitted.machine_.network
        kept = {key: value.clone() for key, value in network.state_dict().items()}
        write(network)
        with pytest.raises(IntegrityError, match="weights were changed"):
            ask(x)
        network.load_state_dict(kept)
        ask(x)

        def changed(*sizes, write=write):
            made = build(*sizes)
            write(made)
            return made

        with monkeypatch.context() as patch:
            patch.setattr(LookUpLayout, "build", changed)
            for backend in ("auto", "literal"):
                with pytest.raises(IntegrityError, match="weights were changed"):
                    make(backend=backend).fit(x, y)
