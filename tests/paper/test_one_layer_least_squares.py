"""Least squares and ridge by one frozen head on a grid of data sets."""

import itertools
import json
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import flint
import pytest
import torch

import iceform as ice
from iceform.heads import Lift, SoftmaxAttention
from iceform.paper import OneLayerLeastSquares, OneLayerRidge
from iceform.tables.norm_quotient import ExponentialSum, NormQuotient
from tests.conformance import assert_within
from tests.paper.suite import Suite

F64 = torch.float64


class _OneLayer(Suite):
    regimes = ("spectral",)
    captured = False
    eps = (1e-5, 2e-3, None)

    def test_gradients_agree_with_finite_differences(self, differentiable):
        """Data of so few entries: the suite takes them for classes, which are held fixed."""
        drawn = self.interior(self.draw(differentiable, (3,)))
        inputs = [t.detach().requires_grad_() for t in drawn]
        assert torch.autograd.gradcheck(differentiable, inputs, eps=1e-7, atol=2e-5, rtol=1e-3)


class TestRidgeOneOne(_OneLayer):
    samples, dim = 1, 1
    captured = True
    make = partial(ice.paper.OneLayerRidge, 1.0, samples=1, dim=1)


class TestRidgeOneTwo(_OneLayer):
    samples, dim = 1, 2
    make = partial(ice.paper.OneLayerRidge, 1.0, samples=1, dim=2)


class TestRidgeTwoOne(_OneLayer):
    samples, dim = 2, 1
    make = partial(ice.paper.OneLayerRidge, 1.0, samples=2, dim=1)


class TestLeastSquaresOneOne(_OneLayer):
    samples, dim = 1, 1
    eps = (8e-5, 1.6e-2, None)
    make = partial(ice.paper.OneLayerLeastSquares, samples=1, dim=1, condition=8.0)

    def draw(self, emulator, batch):
        x, y = super().draw(emulator, batch)
        return torch.where(x >= 0, 0.4 + 0.6 * x, 0.6 * x - 0.4), y

    def interior(self, inputs):
        return [0.95 * t for t in inputs]


SUITES = {
    ("least squares", 1, 1): TestLeastSquaresOneOne,
    ("ridge", 1, 1): TestRidgeOneOne,
    ("ridge", 1, 2): TestRidgeOneTwo,
    ("ridge", 2, 1): TestRidgeTwoOne,
}
CASES = list(SUITES)


def fresh(*case, dtype=F64):
    """A construction of its own, which a test may break."""
    return SUITES[case]().build("spectral", dtype, "fused")


built = cache(fresh)


def data_sets(emulator, seed=0):
    """1000 random data sets, then all corners, and for least squares the smallest allowed |x|."""
    n, d = emulator.domain.samples, emulator.domain.dim
    generator = torch.Generator().manual_seed(seed)
    drawn = 2 * torch.rand(1000, n * d + n, generator=generator, dtype=F64) - 1
    edges = [-1.0, 1.0] if emulator.least else [-1.0, 0.0, 1.0]
    corners = torch.tensor(list(itertools.product(edges, repeat=n * d + n)), dtype=F64)
    flat = torch.cat([drawn, corners])
    x, y = flat[:, : n * d].reshape(-1, n, d), flat[:, n * d :]
    if emulator.least:
        low = emulator.least**0.5
        x = torch.where(x >= 0, 1.0, -1.0) * (low + (1 - low) * x.abs())
        x[:8] = x[:8].sign() * low
    return x, y


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_thousand_data_sets_and_all_corners_are_within_the_certificate(case, dtype):
    em = built(*case, dtype=dtype)
    x, y = (t.to(dtype) for t in data_sets(em))
    if em.least:
        x[:8] = x[:8] * (1 + 1e-6)  # float32 may round below what is allowed
    assert em.certificate.kind == "proven"
    seen = assert_within(em(x, y), em.reference(x, y), em.certificate.error, "data sets")
    assert seen > 1e-3 * em.certificate.error, "the certificate is loose by 1000"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_shape_is_the_theorem_s_one_head_behind_one_affine_map(case):
    """Attn o Lin on the data alone: the same weights for all data, and no data in them."""
    em = built(*case)
    lift, layer = em.network.layers
    assert type(lift) is Lift
    assert type(layer) is SoftmaxAttention
    assert len(layer.labels) == 1
    x, y = (t[0] for t in data_sets(em))
    assert em.prompt(x, y).tokens.shape == (em.domain.samples, em.domain.dim + 1)
    assert len(lift.constant) == em.grid.tokens + 1 == em.grid.table.tokens ** x.numel() + 1
    again = type(em)._rebuild(em._config(), em.interpolant, None)
    assert again.digest == em.digest
    assert again.certificate.error == em.certificate.error


def test_both_signs_of_x_are_solved():
    em = OneLayerLeastSquares(samples=1, condition=16.0, eps=1e-5)
    x = torch.tensor([-1.0, -0.25, 0.25, 0.5, 1.0], dtype=F64)[:, None, None]
    y = torch.ones(5, 1, dtype=F64)
    assert_within(em(x, y), 1 / x[:, 0], em.certificate.error, "1/x")
    assert em.certificate.error <= 1e-5


@pytest.mark.parametrize("case", CASES, ids=str)
def test_balls_enclose_the_solution(case):
    em = built(*case)
    x, y = (t[3] for t in data_sets(em))
    verified = em.certificate.verify(x, y)
    assert verified.holds, verified


# ------------------------------------------------------------------------------------- mutants


def _other(**changed):
    return lambda grid: replace(grid, **{k: f(grid) for k, f in changed.items()})


def _without_a_term(grid):
    kept = grid.exponentials
    worst = int(grid._damped.abs().argmax())
    keep = [m for m in range(len(kept.rates)) if m != worst]
    less = replace(kept, rates=kept.rates[keep], weights=kept.weights[keep])
    tables = {name: tuple(getattr(grid, name)[m] for m in keep) for name in ("even", "odd")}
    return replace(grid, exponentials=less, **tables)


MUTANTS = {
    "a value of the other sign": _other(
        odd=lambda g: tuple(replace(t, values=-t.values) for t in g.odd)
    ),
    "a term dropped": _without_a_term,
    "the penalty left out of the values": _other(alpha=lambda g: g.alpha + 0.01),
    "a tenth sharper": _other(
        odd=lambda g: tuple(replace(t, sharpness=1.1 * t.sharpness) for t in g.odd)
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_leave_the_certificate(case, name):
    """A wrong grid with the right one's certificate: 1000 data sets see it."""
    em = built(*case)
    wrong = fresh(*case)
    wrong.grid = MUTANTS[name](em.grid)
    x, y = data_sets(em)
    off = (wrong(x, y) - em.reference(x, y)).abs().max()
    assert float(off) > em.certificate.error


@pytest.mark.parametrize(
    "asked", [{"alpha": 2.0}, {"alpha": 1.0, "bound": 2.0}, {"alpha": 1.0, "dim": 2}], ids=str
)
def test_a_grid_for_other_data_is_refused(asked):
    """It says of itself what it was fitted for; that is no proof for another penalty or bound."""
    kept = OneLayerRidge(1.0, dim=1, samples=1, eps=1e-3).grid
    with pytest.raises(ice.errors.ProgramError, match="is for"):
        OneLayerRidge(**{"dim": 1, "samples": 1, "eps": None, **asked}, grid=kept)


def test_a_grid_that_is_handed_in_is_proven_anew():
    em = OneLayerLeastSquares(samples=1, condition=4.0, eps=1e-4)
    again = OneLayerLeastSquares(samples=1, condition=4.0, eps=1e-4, grid=em.grid)
    assert again.certificate.error == em.certificate.error
    with pytest.raises(ice.errors.ProgramError, match="least = "):
        OneLayerLeastSquares(samples=1, condition=64.0, eps=None, grid=em.grid)
    odd = tuple(replace(t, values=1.01 * t.values, error=0.0) for t in em.grid.odd)
    told = replace(em.grid, odd=odd)  # its tables say that they are exact
    wrong = OneLayerLeastSquares(samples=1, condition=4.0, eps=None, grid=told)
    x, y = torch.tensor([[0.5]], dtype=F64), torch.ones(1, dtype=F64)
    off = float((wrong(x, y) - wrong.reference(x, y)).abs().max())
    assert 0.01 < off <= wrong.certificate.error
    sharper = tuple(replace(t, sharpness=1.1 * t.sharpness) for t in em.grid.odd)
    with pytest.raises(ice.errors.ProgramError, match="not on the same keys"):
        OneLayerLeastSquares(samples=1, condition=4.0, eps=None, grid=replace(em.grid, odd=sharper))


def test_a_changed_term_changes_what_is_proven():
    """The proof is of the numbers that are there: one weight moved by 1e-3 shows in it."""
    total = ExponentialSum.fit(1.0, 3.0, 1e-6)
    weights = total.weights.clone()
    weights[0] += 1e-3
    assert total.error <= 1e-6
    assert replace(total, weights=weights).error > 1e-4


# --------------------------------------------------------------------------------------- proofs


def test_exponentials_hold_their_error_in_balls():
    total = ExponentialSum.fit(0.25, 2.25, 1e-7)
    pairs = list(zip(total.weights.tolist(), total.rates.tolist(), strict=True))
    most = flint.arb(0)
    for k in range(2001):
        s = flint.arb(0.25 + 0.001 * k)
        value = sum((flint.arb(w) * (-flint.arb(t) * s).exp() for w, t in pairs), flint.arb(0))
        gap = abs(value * s - 1)
        most = gap if gap > most else most
    assert most < flint.arb(total.error)
    assert float(most.mid()) > 0.9 * total.error


def test_the_quotient_holds_its_error_off_the_grid_and_near_its_least_norm():
    found = NormQuotient.fit(2, 1.0, least=0.5, eps=1e-4)
    generator = torch.Generator().manual_seed(1)
    x = 2 * torch.rand(4000, 2, generator=generator, dtype=F64) - 1
    x = x[x.square().sum(-1) >= 0.5]
    x[:50] *= (0.5**0.5 / x[:50].norm(dim=-1, keepdim=True)).clamp(max=1) * (1 + 1e-12)
    looked = torch.softmax(x @ found.slopes.mT + found.biases, -1) @ found.values
    assert_within(looked, x / x.square().sum(-1, keepdim=True), found.error, "x_i/|x|^2")
    assert found.kind == "proven"


# ------------------------------------------------------------------------------------- refusals


def test_what_would_not_fit_is_refused_with_its_number():
    with pytest.raises(ice.errors.ProgramError, match=r"4 axes, about \d+\^4 = \d+ tokens"):
        OneLayerRidge(1.0, dim=2, samples=2)
    with pytest.raises(ice.errors.CapacityError, match=r"\d+\^9 = \d{10,} tokens.*passes instead"):
        OneLayerRidge(1.0, dim=1, samples=9, eps=1e-3)
    with pytest.raises(ice.errors.ProgramError, match="no unique least-squares solution"):
        OneLayerLeastSquares(dim=2, samples=1, condition=4.0)
    with pytest.raises(ice.errors.PrecisionError, match="raise eps, or use float64"):
        OneLayerRidge(1.0, dim=1, samples=1, eps=1e-6, dtype=torch.float32)
    with pytest.raises(ice.errors.BoundError, match="alpha"):
        OneLayerRidge(0.0, dim=1, samples=1)


def test_data_below_the_least_norm_are_refused():
    em = built("least squares", 1, 1)
    ones = torch.ones(1, dtype=F64)
    em(torch.tensor([[em.least**0.5 * (1 + 1e-12)]], dtype=F64), ones)
    with pytest.raises(ice.errors.BoundError, match=r"\|X\|\^2 is 0.01.*raise condition="):
        em(torch.tensor([[0.1]], dtype=F64), ones)
    with pytest.raises(ice.errors.BoundError, match="scale the samples"):
        em(torch.tensor([[1.1]], dtype=F64), ones)


# ------------------------------------------------------------------------------------ the page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_s_numbers_are_the_measured_ones():
    kept = json.loads((DOCS / "figures" / "one_layer.json").read_text(encoding="utf-8"))
    page = (DOCS / "theorems" / "least_squares.md").read_text(encoding="utf-8")
    ridge, squares = kept["ridge"], kept["least squares"]
    for row in (*ridge, *squares):
        for way in ("one layer", "passes"):
            assert row[way]["error"] <= row[way]["certified"] <= kept["eps"]
    roots = {round((r["one layer"]["tokens"] - 1) ** (1 / r["samples"]), 6) for r in ridge}
    assert len(roots) == 1
    least, most = ridge[0]["passes"], ridge[-1]["passes"]
    text = (
        f"One layer has ${roots.pop():.0f}^n$ grid tokens; gradient descent has one block of them "
        f"a sample and takes {least['passes']} to {most['passes']} passes"
    )
    assert [r["passes"]["tokens"] for r in ridge] == [n * least["tokens"] for n in (1, 2, 3, 4)]
    assert text in " ".join(page.split())
    grown = squares[-1]["condition"] / squares[0]["condition"]
    for way, what in (("one layer", "tokens"), ("passes", "passes")):
        ratio = squares[-1][way][what] / squares[0][way][what]
        assert abs(ratio / grown**0.5 - 1) < 0.3, "both grow like the root of the condition number"


def test_one_small_row_of_the_measured_is_measured_again():
    kept = json.loads((DOCS / "figures" / "one_layer.json").read_text(encoding="utf-8"))
    row = kept["ridge"][1]["one layer"]
    em = OneLayerRidge(kept["alpha"], dim=1, samples=2, eps=kept["eps"])
    assert em.grid.tokens + 1 == row["tokens"]
    assert em.certificate.error == pytest.approx(row["certified"], rel=1e-3)
