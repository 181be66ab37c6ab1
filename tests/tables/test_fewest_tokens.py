"""The lower bound on a look-up's tokens."""

import pytest
import torch

import iceform as ice
from iceform.tables.fewest_tokens import fewest_tokens

F64 = torch.float64


@pytest.mark.parametrize("tokens", [1, 2, 3, 4])
def test_no_look_up_needs_more_tokens_than_it_has(tokens):
    """Random keys and values, some of them made to alternate: one too many would refute them."""
    torch.manual_seed(tokens)
    most = 0
    for _ in range(100):
        slopes = 3 * torch.randn(tokens, dtype=F64).sort().values
        biases = torch.randn(tokens, dtype=F64)
        values = torch.randn(tokens, dtype=F64).abs() * (-1.0) ** torch.arange(tokens)

        def looked(z, keys=(slopes, biases, values)):
            return torch.softmax(z[:, None] * keys[0] + keys[1], -1) @ keys[2]

        found = fewest_tokens(looked, -6.0, 6.0, 1e-9)
        assert found <= tokens
        most = max(most, found)
    assert most == tokens  # and the bound is reached


def test_waves_ask_for_a_token_each_and_fits_hold_more():
    for times, least in ((1, 8), (5, 33)):
        f = lambda z, times=times: torch.sin(times * z)  # noqa: E731
        assert fewest_tokens(f, -10.0, 10.0, 1e-3) == least
        assert least <= ice.Interpolant.fit(f, -10.0, 10.0, 1e-2).tokens <= 3 * least
    assert fewest_tokens(torch.sin, -10.0, 10.0, 1.5) == 1
