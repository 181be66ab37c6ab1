"""TransformerLens and nnsight see what trace() sees, and a patch does what it should."""

import pytest
import torch
from torch import nn

import iceform as ice
from iceform.errors import ProgramError
from iceform.export import nnsight, transformer_lens
from iceform.networks import in_context
from iceform.paper.library import PromptLibrary, RidgePrompts

pytest.importorskip("transformer_lens", reason="needs iceform[interp]")
pytest.importorskip("nnsight", reason="needs iceform[interp]")

from transformer_lens import ActivationCache, HookedRootModule

F64 = torch.float64
CASES = {
    "residual": (lambda: ice.paper.ResidualMap(torch.tanh, dim=2, samples=3, eps=1e-4),
                 [(3, 2), (3,), (2,)]),
    "step": (
        lambda: ice.paper.GradientStep("squared", 0.3, dim=2, samples=3), [(3, 2), (3,), (2,)]
    ),
    "descent": (lambda: ice.paper.GradientDescent("squared", 2, dim=2, samples=3, unrolled=True,
                                            backend="literal"), [(3, 2), (3,), (2,)]),
    "linear": (lambda: ice.paper.LinearLayer(3, 2, samples=4), [(4, 3), (2, 3)]),
    "embedding": (lambda: ice.paper.LinearLayer(3, 2, samples=4, encoding="embedding"),
                  [(4, 3), (2, 3)]),
    "head": (lambda: ice.paper.AttentionHead(3, 2, 2, 4), [(4, 3), (2, 3), (2, 3), (2, 3)]),
    "hopfield": (lambda: ice.paper.HopfieldMap(torch.sin, [0.5, -1.0], 0.2, samples=3, eps=1e-4),
                 [(3, 2)]),
}  # fmt: skip


def case(name):
    build, shapes = CASES[name]
    generator = torch.Generator().manual_seed(3)
    return build(), [torch.rand(s, generator=generator, dtype=F64) for s in shapes]


def compare(cache, trace):
    """Every activation that both know: the prompt to the bit, what follows to rounding."""
    assert torch.equal(cache["hook_prompt"], trace.tokens)
    for index, layer in enumerate(trace):
        assert_same(cache[f"blocks.{index}.hook_resid_pre"], layer.tokens)
        assert_same(cache[f"blocks.{index}.hook_resid_post"], layer.output)
        if f"blocks.{index}.attn.hook_pattern" in cache:
            assert_same(cache["attn_scores", index], layer.scores)
            assert_same(cache["pattern", index], layer.attention)


def assert_same(got, want):
    """To rounding: a trace asks every query, a pass those that are read."""
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_cached_activations_are_those_of_the_trace(name):
    em, inputs = case(name)
    model = transformer_lens(em)
    assert isinstance(model, HookedRootModule)
    out, cache = model.run_with_cache(*inputs)
    assert isinstance(cache, ActivationCache)
    compare(cache, em.trace(*inputs))
    # The encoder and the readout are inside: inputs go in, the emulator's answer comes out.
    assert torch.equal(cache["hook_readout"], out)
    off = float((out - em.reference(*inputs)).abs().max())
    assert off <= 2 * em.certificate.error + 1e-12


def test_a_machine_and_a_bare_network():
    machine = PromptLibrary(2, 3, algorithms=[RidgePrompts()])
    x, y = torch.rand(3, 2, dtype=F64), torch.rand(3, dtype=F64)
    model = transformer_lens(machine)
    out, cache = model.run_with_cache(RidgePrompts(), x, y)
    compare(cache, machine.trace(RidgePrompts(), x, y))
    target = RidgePrompts().target(x, y)
    assert float((out - machine.attend(target)[0]).abs().max()) <= 1e-10
    prompt = machine.prompt(RidgePrompts(), x, y).tokens
    bare = transformer_lens(machine.network)
    assert torch.equal(bare(prompt), machine.network(prompt))
    assert torch.equal(model(prompt), machine.network(prompt))


@pytest.mark.parametrize("row", [0, 1])
def test_a_patch_at_a_named_head_changes_exactly_its_output(row):
    em, inputs = case("head")
    model = transformer_lens(em)
    block, head = model.head(f"V row {row}")
    before = model(*inputs)

    def clear(z, hook):
        z = z.clone()
        z[..., head, :] = 0.0
        return z

    after = model.run_with_hooks(*inputs, fwd_hooks=[(f"blocks.{block}.attn.hook_z", clear)])
    # V[row] = 0 for every token: that output is 0, the other is what it was, to the bit.
    assert float(after[:, row].abs().max()) == 0.0
    assert torch.equal(after[:, 1 - row], before[:, 1 - row])
    # Hooks are gone afterwards.
    assert torch.equal(model(*inputs), before)
    with pytest.raises(KeyError, match="no head 'V row 9'; there are K row 0"):
        model.head("V row 9")


def test_nnsight_sees_and_patches_the_same():
    em, inputs = case("head")
    model = nnsight(em)
    with model.trace(*inputs):
        pattern = model.blocks[0].attn.hook_pattern.output.save()
        scores = model.blocks[1].attn.hook_attn_scores.output.save()
        out = model.output.save()
    trace = em.trace(*inputs)
    assert_same(pattern, trace["layers.0"].attention)
    assert_same(scores, trace["layers.1"].scores)
    with model.trace(*inputs):
        z = model.blocks[0].attn.hook_z.output.clone()
        z[..., 4, :] = 0.0  # "V row 0"
        model.blocks[0].attn.hook_z.output = z
        patched = model.output.save()
    assert float(patched[:, 0].abs().max()) == 0.0
    assert torch.equal(patched[:, 1], out[:, 1])


def network():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).double().eval()
    x = torch.randn(2, 4, 6, dtype=F64)
    return in_context(model, calibration=[x], on_range="widen"), x


def test_networks_in_context_have_a_point_behind_every_piece():
    net, x = network()
    model = transformer_lens(net)
    out, cache = model.run_with_cache(x)
    assert torch.equal(out, net(x))
    assert len([k for k in cache if k.endswith("hook_out")]) == len(net.pieces)
    pattern = cache["layers.0.self_attn.heads.hook_pattern"]
    assert pattern.shape == (2, 2, 4, 4)
    assert float((pattern.sum(-1) - 1).abs().max()) <= 1e-14

    def clear(z, hook):
        z = z.clone()
        z[:, 1] = 0.0
        return z

    name = "layers.0.self_attn.heads.hook_out"
    with model.hooks(fwd_hooks=[(name, clear)]):
        _, patched = model.run_with_cache(x, reset_hooks_end=False)
    weight = net.model.layers[0].self_attn.out_proj.weight
    heads = cache[name].transpose(1, 2).flatten(-2)
    lost = heads[..., 3:] @ weight[:, 3:].T
    moved = (
        cache["layers.0.self_attn.out_proj.hook_out"]
        - patched["layers.0.self_attn.out_proj.hook_out"]
    )
    moved = moved.reshape(4, 2, 6).transpose(0, 1)  # torch's attention puts tokens first
    assert float((moved - lost).abs().max()) <= 1e-12
    # The network itself has no hooks.
    assert torch.equal(net(x), out)


def test_nnsight_on_networks_in_context():
    net, x = network()
    model = nnsight(net)
    with model.trace(x):
        hidden = model.layers[0].gelu.output.save()
        out = model.output.save()
    assert torch.equal(out, net(x))
    assert hidden.shape == (2, 4, 8)


def test_what_loops_or_has_no_network_is_refused():
    with pytest.raises(ProgramError, match="loops one layer"):
        transformer_lens(ice.paper.GradientDescent("squared", 2, dim=2, samples=3))
    with pytest.raises(ProgramError, match="no frozen network"):
        transformer_lens(RidgePrompts())
