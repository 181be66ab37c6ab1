"""Proven and estimated are two kinds: printed, saved, and not mistaken for each other."""

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator

import pytest
import torch

import iceform as ice
from iceform.expressions.losses import Curvature
from tests import paper
from tests.conformance import Conformance

F64 = torch.float64
SIZES = {"dim": 2, "samples": 3, "bound": 1.0}


def hidden(z):
    """tanh, where nothing can follow it."""
    return torch.from_numpy(torch.tanh(z).detach().numpy() + 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ice.paper.ResidualMap(torch.tanh, eps=1e-8, **SIZES),
        lambda: ice.paper.ResidualMap(torch.nn.functional.gelu, eps=1e-6, **SIZES),
        lambda: ice.paper.ResidualMap(torch.relu, eps=1e-3, **SIZES),
        lambda: ice.paper.ResidualMap(torch.tanh, eps=0.1, regime="hard", **SIZES),
        lambda: ice.paper.GradientStep("poisson", 0.1, eps=1e-4, **SIZES),
        lambda: ice.paper.GradientDescent("huber", steps=2, lr=0.1, eps=1e-2, **SIZES),
        lambda: ice.paper.HopfieldMap(
            torch.sin, torch.tensor([0.3, -0.5], dtype=F64), 0.1, eps=1e-4, samples=3
        ),
    ],
    ids=["tanh", "gelu", "relu", "hard", "poisson", "descent", "hopfield"],
)
def test_what_torch_and_the_library_define_is_proven(make):
    certificate = make().certificate
    assert (certificate.kind, certificate.assumptions) == ("proven", ())
    assert "(proven)" in certificate.explain()


def test_eps_is_a_promise():
    with pytest.raises(ice.errors.PrecisionError, match=r"nothing is proven of f \(hidden\)"):
        ice.paper.ResidualMap(hidden, eps=1e-2, **SIZES)


def test_eps_is_a_promise_of_many_steps_too():
    """The steps alone are proven here; how far errors grow rests on a slope that is not."""

    def saturating(z):
        return torch.where(z.abs() < 1, z, z.sign())

    sizes = {"steps": 2, "lr": 0.1, **SIZES}
    with pytest.raises(ice.errors.PrecisionError, match="is a promise, and this descent is only"):
        ice.paper.GradientDescent(saturating, eps=0.1, **sizes)
    taken = ice.paper.GradientDescent(saturating, eps=0.1, estimate=True, **sizes)
    assert taken.certificate.kind == "estimated"
    # Nobody can check on the data that they have such a Hessian.
    with pytest.raises(ice.errors.PrecisionError, match="is a promise, and this descent is only"):
        ice.paper.GradientDescent(saturating, eps=0.1, hessian=(0.0, 2.0), **sizes)
    known = ice.paper.GradientDescent("squared", eps=0.1, hessian=(0.0, 2.0), **sizes)
    assert known.certificate.kind == "proven"


def test_what_is_said_of_a_loss_of_ones_own_is_looked_at():
    """Its slopes are enclosed, and where they cannot be what was said is an assumption."""

    def steep(z):
        return 8 * torch.tanh(z)

    said = Curvature(torch.ones_like, bounds=(0.0, 0.1))
    sizes = {"steps": 5, "lr": 0.9, "w_bound": 1e3, "tokens": 17, **SIZES}
    lie = ice.Loss(None, "residual", ice.expressions.ScalarFunction(steep, "steep"), facts=said)
    found = ice.paper.GradientDescent(lie, eps=None, **sizes)
    plain = ice.paper.GradientDescent(steep, eps=None, **sizes)
    assert found.hessian == plain.hessian
    square = Curvature(torch.ones_like, bounds=(1.0, 1.0), kinks=())
    lie = ice.Loss(None, "residual", ice.expressions.ScalarFunction(steep, "steep"), facts=square)
    momentum = {**sizes, "schedule": "nesterov"}
    errors = [
        ice.paper.GradientDescent(f, eps=None, **momentum).certificate.error for f in (lie, steep)
    ]
    assert errors[0] == errors[1]
    untold = ice.Loss(
        None, "residual", ice.expressions.ScalarFunction(hidden, "hidden"), facts=said
    )
    certificate = ice.paper.GradientDescent(untold, eps=None, **sizes).certificate
    assert certificate.kind == "estimated"
    assert "the slope of hidden is as stated" in certificate.assumptions


@pytest.mark.parametrize("eps", [0.05, None])
def test_an_estimate_says_so_wherever_it_is_written(eps, tmp_path):
    em = ice.paper.ResidualMap(hidden, eps=eps, estimate=eps is not None, tokens=33, **SIZES)
    assert em.interpolant.kind == em.certificate.kind == "estimated"
    assert "(estimated)" in em.certificate.explain()
    assert json.loads(em.certificate.to_json())["kind"] == "estimated"
    em.save(tmp_path / "em")
    again = ice.load(tmp_path / "em", f=hidden)
    assert again.interpolant.kind == again.certificate.kind == "estimated"


def suites(base: type = Conformance) -> Iterator[type]:
    for kind in base.__subclasses__():
        yield from (kind, *suites(kind))


def test_every_construction_is_in_a_conformance_suite():
    """A new one without a suite, with what it promises of weights and prompts, is noticed here."""
    for _, name, _ in pkgutil.iter_modules(paper.__path__):
        importlib.import_module(f"{paper.__name__}.{name}")
    built = "".join(inspect.getsource(suite) for suite in suites())
    kinds = [getattr(ice.paper, name) for name in ice.paper.__all__]
    emulators = [
        k.__name__ for k in kinds if inspect.isclass(k) and issubclass(k, ice.paper.Emulator)
    ]
    concrete = {name for name in emulators if name not in ("Emulator", "ResidualEmulator")}
    assert concrete <= set(re.findall(r"\bice\.(?:paper\.)?([A-Z]\w+)", built))
