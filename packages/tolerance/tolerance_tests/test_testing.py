"""`assert_attention_close`: right kernels pass, wrong ones are refused and named."""

import math

import pytest
import torch
from planted_kernels import flash
from torch.nn.functional import scaled_dot_product_attention as sdpa

from iceform.errors import DtypeError, ProgramError, ShapeError
from iceform_tolerance.testing import assert_attention_close

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def some(dtype, seed=0, n=200):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 2, n, 64, generator=generator).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_right_kernels_pass(dtype):
    q, k, v = some(dtype)
    assert_attention_close(sdpa(q, k, v), q, k, v)
    assert_attention_close(sdpa(q, k, v, is_causal=True), q, k, v, causal=True)
    if dtype != torch.float64:
        for block in (16, 64, 200):
            assert_attention_close(flash(q, k, v, block=block), q, k, v)
        assert_attention_close(flash(q, k, v, causal=True), q, k, v, causal=True)
        assert_attention_close(flash(q, k, v, exp2=False), q, k, v)


BUGS = {
    "scale": ({"scale": 1 / 64}, {}, "scale: applied twice, or 1/dim"),
    "another scale": ({"scale": 0.2}, {}, "scale: 0.2 fits"),
    "no scale": ({"scale": 1.0}, {}, "scale: none was applied"),
    "a key too few": ({"causal": True, "diagonal": -1}, {"causal": True}, "one key too few"),
    "a key too many": ({"causal": True, "diagonal": 1}, {"causal": True}, "one key too many"),
    "no mask": ({}, {"causal": True}, "the causal mask is missing"),
    "dropped block": ({"drop_last": True}, {}, "block of keys is dropped: 8 of 200"),
    "no rescale": ({"rescale": False}, {}, "missing rescale"),
    "no log2(e)": ({"log2e": False}, {}, "exp2 without the factor log2(e)"),
}


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_planted_bugs_are_caught_and_named(bug, dtype):
    wrong, right, says = BUGS[bug]
    q, k, v = some(dtype)
    with pytest.raises(AssertionError) as refused:
        assert_attention_close(flash(q, k, v, **wrong), q, k, v, **right)
    message = str(refused.value)
    assert message.splitlines()[-1].startswith("hint: "), message
    assert says in message.splitlines()[-1], message
    for part in ("worst at (", "proven bound", "ratio"):
        assert part in message


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_in_the_low_precision_are_caught(dtype):
    q, k, v = some(dtype)
    with pytest.raises(AssertionError, match="hint: accumulation: the errors fit sums in"):
        assert_attention_close(flash(q, k, v, low_sums=True), q, k, v)


def test_wrong_heads_are_named():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, 40, 16, generator=generator) for h in (6, 2, 2))
    out = sdpa(q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1))
    with pytest.raises(AssertionError, match="query heads read the wrong key-value heads"):
        assert_attention_close(out, q, k, v)
    assert_attention_close(sdpa(q, k, v, enable_gqa=True), q, k, v)


def test_one_wrong_element_is_found():
    q, k, v = some(torch.bfloat16, n=32)
    out = sdpa(q, k, v)
    out[0, 1, 7, 5] += 0.25
    with pytest.raises(AssertionError, match=r"1 of 4,096 .*\nworst at \(0, 1, 7, 5\)"):
        assert_attention_close(out, q, k, v)


def test_nan_is_no_answer():
    q, k, v = some(torch.float32, n=16)
    mask = torch.ones(16, 16, dtype=torch.bool)
    mask[3] = False
    out = sdpa(q, k, v, attn_mask=mask)
    assert_attention_close(out, q, k, v, mask=mask)
    out[..., 3, :] = math.nan
    with pytest.raises(AssertionError, match="rows that see no key are NaN"):
        assert_attention_close(out, q, k, v, mask=mask)
    assert_attention_close(out, q, k, v, mask=mask, empty_rows="any")
    out[..., 4, 0] = math.nan
    with pytest.raises(AssertionError, match="rows hold NaN"):
        assert_attention_close(out, q, k, v, mask=mask)


def test_the_output_may_be_wider_or_narrower():
    q, k, v = some(torch.float8_e4m3fn, n=32)
    out = sdpa(*(x.bfloat16() for x in (q, k, v)))
    assert_attention_close(out, q, k, v, probabilities=torch.bfloat16)
    wide = [x.float() for x in some(torch.bfloat16, n=32)]
    assert_attention_close(sdpa(*wide), *wide, dtype=torch.bfloat16, probabilities=torch.float32)


def test_outputs_of_another_shape_or_kind_are_refused():
    q, k, v = some(torch.float32, n=16)
    with pytest.raises(ShapeError, match="out is"):
        assert_attention_close(sdpa(q, k, v)[..., 1:], q, k, v)
    with pytest.raises(ProgramError, match="empty_rows must be one of"):
        assert_attention_close(sdpa(q, k, v), q, k, v, empty_rows="zero")
    with pytest.raises(DtypeError, match=r"out must be .* got torch.int32"):
        assert_attention_close(sdpa(q, k, v).int(), q, k, v)
    with pytest.raises(DtypeError, match="out must be"):
        assert_attention_close([1.0], q, k, v)
