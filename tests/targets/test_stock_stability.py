"""Noise is not fed back in the stock form either, where copies go through a norm.

Every feature of a token of every kind is moved by 1e-6, and the ALBERT as the transformers library
has it runs 400 cycles, 1200 layers in one forward pass: what that does to any token may not grow.
The program is the one that the plain and the residual form run.
"""

import pytest
import torch

from iceform import targets
from iceform.heads.design import mirrored
from iceform.targets.stock_block import fetched

from ..computer.test_stability import GROWTH, LOOP, NOISE, all_features_of, small
from .stock import transformers

CYCLES = 400


def followed(network, given):
    """How far every problem's tokens are from the last one's, cycle by cycle."""
    found = []

    def seen(module, arguments, output):
        stream = output[0] if isinstance(output, tuple) else output
        found.append((stream[:-1] - stream[-1:]).abs().flatten(1).amax(1))

    (group,) = network.encoder.albert_layer_groups
    handle = group.register_forward_hook(seen)
    with torch.no_grad():
        network(inputs_embeds=given)
    handle.remove()
    return torch.stack(found)


def growth(network, spec):
    """By kind of token: how much further tokens are off late in a run than in its first half."""
    _, prompt = small()
    cases = list(all_features_of(prompt))
    tokens = fetched(prompt) + torch.stack([moved for _, moved in cases] + [0 * prompt.tokens])
    off = followed(network, mirrored(spec.design, spec.block.held(tokens)))
    early = off[LOOP : len(off) // 2].amax(0).clamp(min=NOISE)
    late = off[-2 * LOOP :].amax(0)
    return len(off), {k: float(r) for (k, _), r in zip(cases, late / early, strict=True)}


@pytest.mark.slow
def test_noise_does_not_grow_in_the_stock_form(tmp_path):
    computer, _ = small()
    spec = targets.StockComputer(**vars(computer.sizes), cycles=CYCLES)
    targets.write("albert", spec, tmp_path)
    network = transformers.AutoModel.from_pretrained(tmp_path)
    cycles, grown = growth(network, spec)
    assert cycles == CYCLES
    assert max(grown.values()) <= GROWTH, grown
