"""Attention in one kernel against torch's, in Triton's interpreter where there is no GPU."""

import pytest
import torch

pytest.importorskip("triton", reason="the gpu extra is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def short_attention():
    from iceform.run import triton

    if DEVICE == "cpu" and not triton.interpreted():
        pytest.skip("Triton was imported before its interpreter was asked for")
    from iceform.lab.attention import short_attention

    return short_attention


# Sizes that fill a block of 16 and sizes that do not: what is beside them is another prompt's.
@pytest.mark.parametrize(("tokens", "heads", "size"), [(16, 1, 16), (7, 3, 5), (18, 2, 4)])
def test_one_kernel_reads_what_torch_reads_and_its_gradient(short_attention, tokens, heads, size):
    source = torch.Generator().manual_seed(tokens)
    asked, weights = (
        torch.randn(2, tokens, parts * heads * size, generator=source).to(DEVICE)
        for parts in (3, 1)
    )
    asked.requires_grad_()

    def torchs(given):
        parts = given.unflatten(-1, (3, heads, size)).permute(2, 0, 3, 1, 4)
        read = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return read.transpose(1, 2).flatten(2)

    found = []
    for read in (torchs(asked), short_attention(asked, heads, False)):
        (gradient,) = torch.autograd.grad((read * weights).sum(), asked)
        found.append((read.detach(), gradient))
    for ours, theirs in zip(*reversed(found), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
