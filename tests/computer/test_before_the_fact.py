"""What is known before the fact of fifty-six algorithms, and that no run is further off."""

import pytest

from tests.computer.before_the_fact import CASES, USEFUL, known, off

# Not known: preconditioners that grow as gradients fall, chaos, and norms that data may make large.
OPEN = (
    "adaboost", "adagrad_100", "adam", "als_rank1", "cg", "lbfgs", "logistic_map", "lorenz",
    "mean_shift", "mlp", "power_deflate", "rmsprop", "secant", "soft_sign_gd_100",
    "softmax_regression", "ucb",
)  # fmt: skip
QUICK = ("components", "gcd", "lasso_admm", "newton_schulz", "sort", "td0")


def check(name: str) -> None:
    """The certificate is useful, and holds."""
    program, certificate = known(name)
    assert certificate.kind == "proven"
    assert certificate.error < USEFUL
    distance, enclosed = off(name, program)
    assert distance <= enclosed + 1e-13
    assert enclosed <= certificate.error


@pytest.mark.parametrize("name", QUICK)
def test_some_are_known_before_the_fact(name):
    check(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::iceform.errors.PrecisionWarning")
@pytest.mark.parametrize("name", [n for n in CASES if n not in (*QUICK, *OPEN)])
def test_the_others_are_too(name):
    check(name)


def test_forty_of_them_are():
    assert len(CASES) == 56
    assert len(CASES) - len(OPEN) == 40
