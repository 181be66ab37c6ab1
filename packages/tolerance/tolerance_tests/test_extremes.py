"""Tolerances of sums, linear maps and norms where formats end: no kernel is further off."""

import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from format_extremes import NAMES, findings

import iceform_tolerance as tolerances
from iceform.errors import BoundError


def attacked(rows, seed):
    found = list(findings(rows, seed))
    broken = [f for f in found if not f.ratio <= 1]
    said = Counter(f.name for f in found if f.finite)
    assert len(found) >= rows
    assert not broken, (len(broken), len(found), broken[:5])
    # A bound that is infinite everywhere would hold too.
    for name in NAMES:
        share = said[name] / sum(f.name == name for f in found)
        assert share > 0.3, (name, share)
        assert max(f.ratio for f in found if f.name == name) > 0.3, name


def test_no_kernel_breaks_its_tolerance_near_the_ends_of_its_format():
    attacked(800, seed=0)


@pytest.mark.slow
def test_no_kernel_breaks_its_tolerance_in_twenty_thousand_rows():
    attacked(20_000, seed=1)


FORM = {"dtype": torch.float32}


def test_squares_that_overflow_leave_no_bound_and_others_keep_theirs():
    x = torch.tensor([[1.0, -2.0, 3.0], [3e19, -2e19, 1e19], [1e18, -1e18, 1e17]])
    out, exact = F.rms_norm(x, (3,), eps=1e-6), F.rms_norm(x.double(), (3,), eps=1e-6)
    assert float((out[1] - exact[1]).abs().max()) > 0.9  # r is infinite, the answer 0
    for bound in (
        tolerances.rms_norm(x, eps=1e-6, **FORM),
        tolerances.layer_norm(x, eps=1e-6, **FORM),
        tolerances.layer_norm(x, eps=1e-6, moments=True, **FORM),
    ):
        assert bool(bound[1].isinf().all())
        assert bool((bound[0] < 1e-5).all())
    bound = tolerances.rms_norm(x, eps=1e-6, **FORM)
    assert bool(((out - exact).abs() <= bound).all())
    assert bool((bound[2] < 1e-5).all())


def test_an_eps_below_the_format_is_no_floor():
    x = torch.tensor([[1e-25, 2e-25, 0.0], [1e-3, 2e-3, 0.0]])
    bound = tolerances.rms_norm(x, eps=1e-44, **FORM)
    assert bool(bound[0].isinf().all())  # squares and eps are subnormal: they may be read as zero
    assert bool((bound[1] < 1e-5).all())
    assert bool((tolerances.rms_norm(x, eps=1e-30, **FORM) < 1e-5).all())


def test_sums_and_products_that_overflow_leave_no_bound():
    big = torch.tensor([3e38, 3e38, -3e38])
    assert tolerances.total(big, **FORM) == math.inf
    assert float(tolerances.total(big / 4, **FORM)) < math.inf
    row = torch.tensor([[1e20, 1.0]])
    weight = torch.tensor([[1e20, 1.0], [1.0, 1.0]])
    assert tolerances.linear(row, weight, **FORM).isinf().tolist() == [[True, False]]
    # The answer fits into the accumulator, not into its own format.
    halves = torch.full((3,), 6e4)
    assert tolerances.total(halves, dtype=torch.float16) == math.inf
    assert tolerances.total(halves, dtype=torch.float16, output=torch.float32) < 1.0
    # A gain that makes a representable quotient overflow.
    x, gain = torch.tensor([[1.0, 2.0, -2.0]]), torch.tensor([1.0, 3e38, 1.0])
    bound = tolerances.rms_norm(x, gain, eps=1e-6, **FORM)
    assert bound.isinf().tolist() == [[False, True, False]]


def test_what_underflows_before_the_gain_is_multiplied_by_it():
    """1e-8 is rounded to 0 in float16 on the way; the gain makes it visible."""
    x = torch.tensor([[1e-7, 1.0, 1.0]]).half()
    gain = torch.tensor([6e4, 1.0, 1.0]).half()
    lost = float(x[0, 0]) / (2 / 3) ** 0.5 * float(gain[0])
    bound = tolerances.rms_norm(x * 0.01, gain, eps=1.0, dtype=torch.float16)
    assert float(bound[0, 0]) >= 2.0**-25 * float(gain[0])
    assert float(bound[0, 0]) < lost


def test_an_accumulator_that_cannot_hold_what_is_read_is_refused_by_name():
    x = torch.tensor([[1e30, 1.0]]).bfloat16()
    with pytest.raises(
        BoundError, match=r"x reaches 1.*e\+30, and accumulate=float16 ends at 65504"
    ):
        tolerances.total(x, dtype=torch.bfloat16, accumulate=torch.float16)
    with pytest.raises(BoundError, match="root_ulps"):
        tolerances.rms_norm(x, eps=1e-6, dtype=torch.bfloat16, root_ulps=math.nan)
