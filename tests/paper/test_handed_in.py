"""Nothing that is handed in is believed: it is proven for the function that it is to stand for."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import iceform as ice
from iceform.errors import BoundError, PrecisionError, ProgramError
from iceform.expressions import ScalarFunction
from iceform.tables import Grid, Interpolant
from tests.attacks.handed_in import handed_in

SIZES = {"dim": 2, "samples": 4, "w_bound": 1.0}


def sine():
    return Interpolant.fit(torch.sin, -3.5, 3.5, 1e-9)


def test_a_table_of_another_function_does_not_hold_eps():
    with pytest.raises(PrecisionError, match="is certified"):
        ice.paper.ResidualMap(torch.tanh, eps=1e-6, interpolant=sine(), **SIZES)
    em = ice.paper.ResidualMap(torch.tanh, eps=None, interpolant=sine(), **SIZES)
    assert em.interpolant.error > 1.3  # |sin - tanh| at 3.5
    assert em.certificate.kind == "proven"


@pytest.mark.sampled(15)
@pytest.mark.parametrize("seed", [s for s in range(24) if s != 18])  # 18 is refused
def test_certificates_of_what_is_handed_in_hold(seed):
    found = handed_in(seed)
    assert not found.violated, found


@pytest.mark.parametrize("build", [
    lambda it: ice.paper.HopfieldMap(torch.tanh, [1.5, 3.0], samples=3, eps=None, interpolant=it),
    lambda it: ice.paper.LinearLayer(4, 2, eps=None, interpolant=it),
    lambda it: ice.paper.ResidualMap(torch.tanh, dim=4, samples=2, eps=None, interpolant=it),
])  # fmt: skip
def test_a_table_that_is_too_narrow_is_refused(build):
    with pytest.raises(BoundError, match="the look-up table covers"):
        build(sine())


def test_what_is_no_table_is_refused():
    for wrong, words in (
        (torch.tanh, "must be an ice.Interpolant"),
        (replace(sine(), values=torch.zeros(3, dtype=torch.float64)), "no table"),
        (replace(sine(), values=sine().values * math.nan), "no table"),
    ):
        with pytest.raises(ProgramError, match=words):
            ice.paper.ResidualMap(torch.tanh, eps=None, interpolant=wrong, **SIZES)
    graded = Interpolant.fit(torch.relu, -6.0, 6.0, 1e-3)
    with pytest.raises(ProgramError, match="equally spaced"):
        ice.paper.LinearLayer(4, 2, eps=None, interpolant=graded)


def outside(z):
    """tanh on [-4, 4], and far away from it beyond."""
    return torch.tanh(z) + 100 * torch.relu(z - 4) + 100 * torch.relu(-4 - z)


def test_a_hard_table_with_guards_is_not_proven_by_a_theorem_without():
    """f beyond the range is none of the modulus of continuity's business."""
    grid = Grid(-4.0, 4.0, 64, guards=2)
    values = ScalarFunction.of(outside, -4.0, 4.0).extended(grid.nodes, -4.0, 4.0)
    it = Interpolant(grid, 0.5, values, "hard", 1e-3)
    em = ice.paper.HopfieldMap(outside, [3.9], samples=201, eps=None, interpolant=it)
    z = torch.linspace(-1, 1, 201, dtype=torch.float64)[:, None]
    off = float((em(z) - em.reference(z)).abs().max())
    assert 1.0 < off <= em.certificate.error


class Opaque:
    """tanh, but for a bump that no mesh of 257 places hits, and nothing that can be traced."""

    def __call__(self, z):
        return torch.from_numpy(self._values(z.detach().numpy())).to(z)

    def _values(self, z):
        return np.tanh(z) + np.clip(1 - 1e4 * abs(z - 0.123456), 0, None)


def lie(cells, order):
    return ScalarFunction(torch.tanh, "tanh").jets(cells, order)


def test_an_encloser_of_the_users_own_proves_nothing():
    f = ScalarFunction(Opaque(), "opaque", encloser=lie)
    with pytest.raises(PrecisionError, match="nothing proves the encloser that was handed in"):
        Interpolant.fit(f, -1.0, 1.0, 1e-6)
    it = Interpolant.fit(replace(f, estimate=True), -1.0, 1.0, tokens=33)
    assert it.kind == "estimated"
    known = replace(ice.Formula("tanh(z)").function, call=Opaque())
    assert known.obstacle is not None  # what is known of a formula is not of another callable


def test_facts_of_the_users_own_are_hints():
    told = ScalarFunction(torch.sin, "sin", kinks=())
    f = ScalarFunction(torch.tanh, "tanh", kinks=None, facts=lambda low, high: told)
    it = Interpolant.fit(f, -2.0, 2.0, 1e-8)
    z = torch.linspace(-2, 2, 1001, dtype=torch.float64)
    assert float((it(z) - torch.tanh(z)).abs().max()) <= 1e-8
