"""LinearLayer and AttentionHead: weights in the prompt."""

from functools import partial
from itertools import pairwise

import pytest
import torch

import iceform as ice
from tests.conformance import assert_within, uniform
from tests.paper.suite import OfSamples
from tests.properties.adversary import hardest_inputs

ENCODINGS = ("rows", "embedding")


class _Rows(OfSamples):
    samples, dim = 5, 3

    def rounding(self, emulator):
        """Rounding of the whole output: what is certified beyond the look-ups' interpolation."""
        terms = emulator.certificate.terms
        rest = sum(v for k, v in terms.items() if k != "interpolation")
        return 2 * rest


class TestLinearLayer(_Rows):
    eps = (1e-8, 1e-3, 0.3)
    make = partial(ice.paper.LinearLayer, 3, 2, samples=5)


class TestLinearLayerEmbedding(TestLinearLayer):
    make = partial(TestLinearLayer.make, encoding="embedding")


class TestAttentionHead(_Rows):
    eps, hard = (1e-8, 1e-1, None), {"grid_tokens": 33}
    make = partial(ice.paper.AttentionHead, 3, 2, 4, 5)


class TestAttentionHeadEmbedding(TestAttentionHead):
    captured = False
    make = partial(TestAttentionHead.make, encoding="embedding")


class TestManyTokens(TestAttentionHead):
    """More tokens than grid points: padding must be kept out of every look-up."""

    captured = False
    samples = 40
    eps, hard = (None, None, None), {"grid_tokens": 17}
    make = partial(ice.paper.AttentionHead, 3, 2, 4, 40)


class TestManyTokensEmbedding(TestManyTokens):
    make = partial(TestManyTokens.make, encoding="embedding")


class TestSplitAttentionHead(_Rows):
    """The theorem's own shape."""

    regimes, smooth = ("hard",), ()  # a staircase: finite differences see a step or a plateau
    eps = (None, None, None)
    make = partial(ice.paper.SplitAttentionHead, 3, 2, 4, 5, split=3)


def paper_setting():
    """d = 24, n = 20, d_h = 48, X ~ 2 N(0,1) - 1, N(0,1) weights; 120 rows in all."""
    x = 2 * torch.randn(20, 24, dtype=torch.float64) - 1
    weights = [torch.randn(r, 24, dtype=torch.float64) for r in (48, 48, 24)]
    reach = 1.2 * max(float((x @ w.T).abs().max()) for w in weights)
    return (x, *weights), reach


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(("dtype", "at_most"), [(torch.float64, 1e-10), (torch.float32, 5e-5)])
def test_the_papers_setting(encoding, dtype, at_most):
    inputs, reach = paper_setting()
    em = ice.paper.AttentionHead(
        24, 48, 24, 20, bound=12.0, weight_bound=6.0, reach=reach, eps=None, encoding=encoding,
        dtype=dtype, backend="literal",
    )  # fmt: skip
    assert em.plan.heads == 121
    assert em.interpolant.tokens <= 27
    assert em.network.layers[0].heads[3].label == "K row 3"
    inputs = tuple(t.to(dtype) for t in inputs)
    assert_within(em(*inputs), em.reference(*inputs), at_most, f"{encoding} {dtype}")
    if dtype == torch.float64:
        assert em.certify(*inputs).error <= at_most


@pytest.mark.parametrize(("grid", "table"), [(27, 47.6), (513, 0.12)])
def test_the_hard_regime_in_the_papers_setting(grid, table):
    """Within a factor two of what the construction was seen to give."""
    errors = []
    for seed in range(5):
        torch.manual_seed(seed)
        inputs, reach = paper_setting()
        em = ice.paper.AttentionHead(
            24, 48, 24, 20, bound=12.0, weight_bound=6.0, reach=reach, eps=None, regime="hard",
            grid_tokens=grid,
        )  # fmt: skip
        errors.append(float((em(*inputs) - em.reference(*inputs)).abs().max()))
    middle = sorted(errors)[2]
    assert table / 2 <= middle <= 2 * table, errors


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        ((6, 6, 4), torch.float64),
        ((6, 6, 4), torch.float32),
        pytest.param((48, 48, 24), torch.float32, marks=pytest.mark.slow),  # 1.7 GB of weights
    ],
)
def test_the_theorems_own_shape_in_the_papers_setting(rows, dtype):
    """n tokens and H heads to a row: within the certificate, which halves as H doubles."""
    (x, *weights), reach = paper_setting()
    weights = [w[:r] for w, r in zip(weights, rows, strict=True)]
    inputs = tuple(t.to(dtype) for t in (x, *weights))
    x, *weights = (t.double() for t in inputs)
    exact = torch.cat([x @ w.mT for w in weights], -1)
    proven, seen = [], []
    for split in (1, 2, 4, 8):
        em = ice.paper.SplitAttentionHead(
            24, rows[0], rows[2], 20, split=split, bound=12.0, weight_bound=6.0, reach=reach,
            dtype=dtype,
        )  # fmt: skip
        assert em.plan.heads == sum(rows) * split + 1
        prompt = em.prompt(*inputs)
        assert prompt.tokens.shape[-2] == em.plan.tokens == 20
        first, *_ = em.bind().stream(prompt)
        proven.append(em.line.certificate.terms["interpolation"])
        seen.append(float((first.double() - exact).abs().max()))
        assert seen[-1] <= em.line.certificate.error
        off = float((em(*inputs).double() - em.reference(*inputs)).abs().max())
        assert off <= em.certify(*inputs).error <= em.certificate.error
    for coarse, fine in pairwise(proven):
        assert 0.49 <= fine / coarse <= 0.52
    # Half a cell at any temperature; at this one a step is off by a third of a cell at most.
    assert all(s >= 0.5 * p for s, p in zip(seen, proven, strict=True)), (seen, proven)


def test_a_split_row_is_the_truncated_line():
    """Bit for bit the matrices of the theorem that it is composed of."""
    em = ice.paper.SplitAttentionHead(3, 2, 2, 6, split=2, backend="literal")
    x, w_k, w_q, w_v = (uniform(r, 3, dtype=torch.float64) for r in (6, 2, 2, 2))
    first, _ = em.network.stream(em.prompt(x, w_k, w_q, w_v).tokens)
    zero = torch.zeros((), dtype=torch.float64)
    rows = [em.line(x, w, zero) for matrix in (w_k, w_q, w_v) for w in matrix]
    assert_within(first, torch.stack(rows, -1), 1e-12, "rows against the line")


def test_two_tokens_have_no_grid_to_split():
    with pytest.raises(ice.errors.ProgramError, match="leave no grid point"):
        ice.paper.SplitAttentionHead(3, 2, 2, 2, split=4)


def test_eps_chooses_the_grid():
    coarse, fine = (
        ice.paper.AttentionHead(4, 3, 2, 6, bound=0.5, eps=eps) for eps in (1e-3, 1e-12)
    )
    assert coarse.interpolant.tokens < fine.interpolant.tokens
    for em in (coarse, fine):
        inputs = [uniform(32, r, 4, dtype=torch.float64, bound=0.5) for r in (6, 3, 3, 2)]
        assert em.certificate.error <= em.eps
        assert_within(em(*inputs), em.reference(*inputs), em.certificate.error, f"{em.eps}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_certificate_of_the_inputs_is_sharper_and_holds(encoding, dtype):
    em = ice.paper.AttentionHead(
        5, 4, 3, 7, eps=None, encoding=encoding, dtype=dtype, backend="literal"
    )
    inputs = [uniform(r, 5, dtype=dtype) for r in (7, 4, 4, 3)]
    sharp = em.certify(*inputs)
    assert sharp.error <= em.certificate.error
    assert_within(em(*inputs), em.reference(*inputs), sharp.error, "certify")


def test_the_weights_know_nothing_of_the_target():
    em = ice.paper.AttentionHead(3, 2, 2, 4, eps=1e-8, backend="literal")
    before = em.digest
    for _ in range(3):
        inputs = [uniform(r, 3, dtype=torch.float64) for r in (4, 2, 2, 2)]
        assert_within(em(*inputs), em.reference(*inputs), em.certificate.error, "another target")
        assert em.digest == before


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_random_targets_and_an_adversary(encoding):
    em = ice.paper.AttentionHead(3, 2, 2, 4, eps=1e-6, encoding=encoding)
    starts = tuple(uniform(256, r, 3, dtype=torch.float64) for r in (4, 2, 2, 2))
    found, where = hardest_inputs(em, starts, bound=1.0)
    assert found <= em.certificate.error, where
    assert_within(em(*where), em.reference(*where), em.certify(*where).error, "certify")


@pytest.mark.slow
def test_a_hundred_thousand_targets():
    violations = 0
    for chunk in range(50):
        torch.manual_seed(chunk)
        bound = 0.2 + 0.8 * torch.rand(()).item()
        em = ice.paper.AttentionHead(4, 3, 2, 5, bound=bound, eps=1e-5)
        inputs = [uniform(2000, r, 4, dtype=torch.float64, bound=bound) for r in (5, 3, 3, 2)]
        if chunk % 3 == 0:  # a third climbs the error from the corners, where products are largest
            corners = tuple(bound * t.sign() for t in inputs)
            found, inputs = hardest_inputs(em, corners, steps=8, bound=bound)
            violations += int(not found <= em.certificate.error)
        error = (em(*inputs) - em.reference(*inputs)).abs().amax((1, 2))
        violations += int((~(error <= em.certificate.error)).sum())
    assert violations == 0


def test_values_out_of_the_grids_range_are_refused():
    em = ice.paper.LinearLayer(3, 2, samples=2, bound=1.0, reach=0.5)
    x, theta = torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(
        ice.errors.BoundError, match=r"max \|theta x\| is 3, beyond the grid's range 0.5"
    ):
        em(x, theta)
    em = ice.paper.AttentionHead(3, 2, 2, 2)
    with pytest.raises(ice.errors.BoundError, match=r"max \|Q\| is 2, .* raise weight_bound="):
        em(x, theta, 2 * theta, theta)
    with pytest.raises(ice.errors.ShapeError, match=r"V must have shape \(\*batch, 2, 3\)"):
        em(x, theta, theta, torch.ones(3, 3, dtype=torch.float64))
    with pytest.raises(ice.errors.BoundError, match=r"max \|K\| is NaN"):
        em(x, theta * torch.nan, theta, theta)


def test_verify_in_ball_arithmetic():
    pytest.importorskip("flint", reason="ball arithmetic needs python-flint")
    em = ice.paper.AttentionHead(2, 2, 2, 3, eps=1e-8)
    assert em.certificate.verify(*(uniform(r, 2, dtype=torch.float64) for r in (3, 2, 2, 2)))
    em = ice.paper.LinearLayer(2, 2, samples=3, eps=1e-8)
    assert em.certificate.verify(*(uniform(r, 2, dtype=torch.float64) for r in (3, 2)))
