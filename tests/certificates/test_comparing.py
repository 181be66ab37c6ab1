"""What was computed against what runs again: differences of either sign, and the worst of many."""

import math
from dataclasses import replace

import pytest
import torch

from iceform.certificates import Attestation
from iceform.certificates.attester import Comparison
from iceform.certificates.witness import ReplayedEntry, _look_up_allowance
from iceform.heads import LookUpLayout, LookUps, SoftmaxAttention
from iceform.run import bind
from iceform.run.base import rounding_of
from iceform.tables import Interpolant

F64 = torch.float64
ROUNDING = bind(LookUpLayout(dim=2, samples=4, tokens=80).build(), "literal").rounding


def layer(residual):
    g = torch.Generator().manual_seed(0)
    weights = [torch.randn(2, 3, 3, generator=g, dtype=F64) for _ in range(3)]
    mix = torch.randn(2, 5, 5, generator=g, dtype=F64)
    return SoftmaxAttention(*weights, mix, residual=residual)


@pytest.mark.parametrize("residual", [False, True])
def test_entries_are_those_of_the_layer_and_differences_have_no_sign(residual):
    attention = layer(residual)
    tokens = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=F64)
    out = attention(tokens)
    for token in range(5):
        for feature in range(3):
            got = out[token, feature]
            exact = ReplayedEntry(attention, tokens, token, feature, got, ROUNDING).compare()
            assert exact.difference <= exact.allowed <= 1e-11
            for off in (-1e-3, 1e-3):
                found = ReplayedEntry(
                    attention, tokens, token, feature, got + off, ROUNDING
                ).compare()
                assert found.difference == pytest.approx(1e-3, rel=1e-9)
                assert found.allowed == exact.allowed
                assert found.rows == 1


def test_what_is_added_is_rounded_once_more():
    """What a layer read and what it wrote, each to a few units in the last place."""
    plain, added = layer(False), layer(True)
    tokens = 50 * torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=F64)
    written, unit = plain(tokens), 2.0**-53
    for token in range(5):
        got = (written[token, 1], tokens[token, 1] + written[token, 1])
        found = [
            ReplayedEntry(kind, tokens, token, 1, value, ROUNDING).compare().allowed
            for kind, value in zip((plain, added), got, strict=True)
        ]
        size = float(tokens[token, 1].abs() + written[token, 1].abs())
        assert found[1] - found[0] == pytest.approx(4 * unit * size, rel=1e-2, abs=0)


def test_the_worst_of_what_was_compared_is_kept():
    near, far, over = Comparison(1, 1e-3, 1.0), Comparison(2, 0.5, 1.0), Comparison(1, 2.0, 1.0)
    for parts, worst in (((near, far), far), ((far, near), far), ((near, over, far), over)):
        total = Comparison()
        for part in parts:
            total = total.plus(part)
        assert (total.difference, total.allowed) == (worst.difference, worst.allowed)
        assert total.rows == sum(part.rows for part in parts)
    for gone in (
        Comparison(1, math.nan, 1.0),
        Comparison(4, math.inf, 0.0),
        Comparison(0, 2.0, 1.0),
    ):
        for lost in (near.plus(gone), gone.plus(near), gone.plus(far).plus(near)):
            assert not lost.difference <= lost.allowed


def test_of_several_networks_the_row_nearest_to_its_limit_counts():
    def part(digest, rows, difference, allowed=1.0, expected=None):
        return Attestation(digest, expected or digest, "fused", rows, difference, allowed)

    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        literal = replace(part("c", 0, 0.0, 0.0), literal=True)
        parts = [part("a", 2, 0.25), part("b", 3, 3e-4, 1e-3), literal]
        found = Attestation.together([parts[i] for i in order])
        assert (found.rows, found.difference, found.allowed) == (5, 3e-4, 1e-3)
        assert found.ok is True
        unseen = [*parts[:2], part("c", 0, 0.0, 0.0)]  # nothing of it was run again
        assert Attestation.together([unseen[i] for i in order]).ok is None
    for wrong in (part("a", 1, 2.0), part("a", 1, math.nan), part("a", 1, math.inf, math.inf)):
        found = Attestation.together([part("b", 1, 0.9), wrong, part("c", 1, 0.1)])
        assert not found.ok
        assert not found.within
    assert not Attestation.together([part("a", 1, 0.1), part("b", 1, 0.1, expected="c")]).ok
    assert not Attestation.together([]).ok
    missing = Attestation.none("because")
    assert Attestation.together([part("a", 1, 0.1), missing]) is missing


def test_what_is_allowed_covers_the_terms_of_every_argument():
    """z = x w - y is made of x w and of y less the table's centre, wherever those are."""
    layout = LookUpLayout(dim=2, samples=4, tokens=80)
    table = Interpolant.fit(torch.sin, 499.0, 501.0, 1e-8)
    x, y = torch.full((3, 2), 500.0, dtype=F64), torch.zeros(3, dtype=F64)
    w = torch.tensor([0.5, 0.5], dtype=F64)
    prompt = LookUps(layout, table, x, y, w)
    terms = float((x @ w).max() + (y - table.grid.center).abs().max())
    both = [rounding_of(n).model(F64, table, terms, 2) for n in ("literal", "fused")]
    needed = 500.0 * sum(table.rounding(model) for model in both)
    allowed = _look_up_allowance(prompt, "literal", "fused")
    assert needed <= allowed <= 20 * needed
    kept = replace(prompt, keep=1.0, gain=0.5), replace(prompt, keep=0.0, gain=0.5)
    more = _look_up_allowance(kept[0], "fused") - _look_up_allowance(kept[1], "fused")
    assert more == pytest.approx((2 * table.tokens + 16) * 2.0**-53 * 0.5, rel=1e-3, abs=0)


def test_what_is_allowed_covers_values_that_hardly_weigh():
    """A token a few cells away may have been read whole before its weight made it small."""
    table = Interpolant.hard(torch.tanh, -1.0, 1.0, cells=8)
    tokens = torch.tensor([[1.0, 0.0], [1.0 - 3 * table.sharpness, 1e6]], dtype=F64)
    first, second = torch.tensor([[[1.0, 0.0]]], dtype=F64), torch.zeros(1, 2, 2, dtype=F64)
    second[0, 1, 1] = 1.0
    attention = SoftmaxAttention(first, first, second, torch.eye(2, dtype=F64)[None])
    got = attention(tokens)[0, 1]
    found = [
        ReplayedEntry(attention, tokens, 0, 1, got, ROUNDING, t).compare() for t in ((), (table,))
    ]
    assert found[0].allowed < 1e-3 * 2.0**-53 * 1e6
    assert 2.0**-53 * 1e6 <= found[1].allowed <= 1e-8
