"""What a mean over samples may be off by: one rounding of terms and mean, and those of its sums."""

import pytest
import torch

from iceform.run import rounding_of

UNITS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24}


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("name", ["literal", "fused"])
def test_sums_are_in_float64_but_for_short_blocks_of_many(name, dtype):
    for count in (1, 100, 4096, 4097, 1 << 20):
        n = (count + 2) * 2.0**-53
        want = n / (1 - n) + 2 * UNITS[dtype]
        if name == "fused" and dtype == torch.float32 and count > 4096:
            in_blocks = 128 * 2.0**-24  # rows that are added in float32 first
            want += in_blocks / (1 - in_blocks)
        assert rounding_of(name).sum_error(dtype, count) == pytest.approx(want, rel=1e-12, abs=0)
