"""Noise is not fed back in the stock form either, where copies go through a norm.

Every feature of a token of every kind is moved by 1e-6 and the ALBERT as the transformers library
has it runs 200 cycles: what that does to any token may not grow.
"""

import pytest
import torch

import iceform as ice

from .stock import transformers

NOISE = 1e-6
CYCLES = 200
GROWTH = 1.05  # a contracting program is still on its way to its fixed point


@ice.algorithm
def settle(x, y):
    """A loop that has no end, and contracts: a counter would add up what is off, turn by turn."""
    w, size = ice.zeros_like(x), ice.constant(1.0)
    while ice.while_(size > 0.1):
        size = 0.5 * size + 0.25
        w = 0.5 * w - 0.25 * ice.mean(x * (x * w).sum() - x * y)
    return w


def moved(model, x, y):
    """The prompt with one token of every kind moved, one kind a problem, the last as it is."""
    program = model.spec.computer.prompt(model.program, x, y, **model.settings)
    kinds = dict(program.kinds, **{f"memory of {n}": program.variables[n] for n in ("x", "w")})
    stream = model.prompt(x, y)[0]
    noise = torch.zeros(len(kinds) + 1, *stream.shape, dtype=stream.dtype)
    for problem, at in enumerate(kinds.values()):
        signs = 2 * torch.randint(2, stream.shape[-1:]) - 1
        noise[problem, at.start] = NOISE * signs
    return list(kinds), stream + noise


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


@pytest.mark.slow
def test_noise_does_not_grow_in_the_stock_form(tmp_path):
    program = ice.compile(settle, dim=1, samples=2, eps=0.1)
    model = program.to("albert", tmp_path, cycles=CYCLES)
    x = torch.tensor([[0.5], [-0.3]], dtype=torch.float64)
    kinds, given = moved(model, x, torch.tensor([0.2, 0.4], dtype=torch.float64))
    network = transformers.AutoModel.from_pretrained(tmp_path)
    off = followed(network, given)
    assert len(off) == CYCLES
    early = off[8 : CYCLES // 2].amax(0).clamp(min=NOISE)
    late = off[-16:].amax(0)
    grown = {kind: float(ratio) for kind, ratio in zip(kinds, late / early, strict=True)}
    assert max(grown.values()) <= GROWTH, grown
    # An entry's code that is off by 1e-6 is off by that much of a mask, for good. The null token
    # may compare noise with 0, and forgets it: what is left at the end is of the noise's size.
    others = [k for k, kind in enumerate(kinds) if kind != "entry"]
    assert float(off[-1, others].max()) <= 1e2 * NOISE
