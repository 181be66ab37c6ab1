"""Heads taken out, padding put in, and the tools that researchers open checkpoints with."""

import pytest
import torch

from iceform import targets

from .stock import assert_within, exact, written

SPEC = targets.LinearDescent(2, 4, positions=64)


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return written("gpt2", SPEC, tmp_path_factory.mktemp("inspected"))


def data(n=10, seed=0):
    torch.manual_seed(seed)
    x = 2 * torch.rand(n, 2, dtype=torch.float64) - 1
    return x, (x @ torch.tensor([0.5, -0.7]).double() + 0.1 * torch.randn(n).double()).clamp(-1, 1)


def without(model, network, head, x, y, **given):
    """The answer with a head of the last layer silenced on its way to the stream."""
    size = model.spec.design.head_size

    def silence(module, inputs):
        (carried,) = inputs
        carried = carried.clone()
        carried[..., head * size : (head + 1) * size] = 0.0
        return (carried,)

    hook = network.h[-1].attn.c_proj.register_forward_pre_hook(silence)
    try:
        return model.spec.run(network, x, y, **given)
    finally:
        hook.remove()


def test_taking_a_head_out_does_what_the_ground_truth_says(stock):
    model, networks = stock
    given = {"lr": 0.4, "penalty": 0.3, "momentum": 0.5}
    x, y = data()
    whole = exact(model, x, y, **given)
    moved = 0
    for head, truth in enumerate(model.spec.design.ground_truth()[-1]):
        found = targets.contribution(model.spec, x, y, head, **given)
        assert found.role == truth["role"]
        got = without(model, networks["eager"], head, x, y, **given)
        assert float((got - (whole - found.value)).abs().max()) <= found.error, truth
        moved += float(found.value.abs().max()) > 100 * found.error
    assert moved >= 2 * model.spec.combination.count  # the pairs all matter


def test_heads_that_do_nothing_do_nothing(tmp_path):
    spec = targets.LinearDescent(12, 2, pairs=1, positions=32)  # wide features, few heads
    model = targets.write("gpt2", spec, tmp_path)
    network = targets.network(model, "eager")
    roles = [head["role"] for head in spec.design.ground_truth()[-1]]
    idle = [i for i, role in enumerate(roles) if role == "idle"]
    assert idle
    torch.manual_seed(1)
    x, y = 0.3 * torch.randn(9, 12).double(), torch.rand(9).double()
    plain = spec.run(network, x, y)
    for head in idle:
        assert torch.equal(without(model, network, head, x, y), plain)


def test_padding_changes_nothing_beyond_the_certificate(stock):
    model, networks = stock
    x, y = data()
    for padding in (1, 7, 40):
        certified, _ = assert_within(model, networks, x, y, padding=padding)
        assert certified <= 1e-10


def test_nnsight_opens_the_folder(stock):
    nnsight = pytest.importorskip("nnsight", reason="needs nnsight")
    model, networks = stock
    x, y = data()
    watched = nnsight.NNsight(networks["eager"])
    size = model.spec.design.head_size
    with torch.no_grad(), watched.trace(inputs_embeds=model.prompt(x, y)):
        carried = watched.h[3].attn.c_proj.input.save()
        out = watched.ln_f.output.save()
    assert (
        float((model.read(out) - exact(model, x, y)).abs().max()) <= model.certificate(x, y).error
    )
    # The first head's own output at the state is what the contribution says, before its weight.
    found = targets.contribution(model.spec, x, y, 0)
    weight = networks["eager"].h[-1].attn.c_proj.weight
    at = model.spec.design.features["w"]
    added = carried[0, -1, :size] @ weight.detach()[:size, at]
    assert float((added - found.value).abs().max()) <= found.error


@pytest.mark.parametrize(
    ("name", "spec"),
    [("gpt2", SPEC), ("bert", targets.GeneralDescent(2, 2, positions=64))],
    ids=["gpt2", "bert"],
)
def test_transformer_lens_opens_what_takes_features(name, spec, tmp_path):
    bridge = pytest.importorskip("transformer_lens.model_bridge", reason="needs transformer-lens")
    model = targets.write(name, spec, tmp_path)
    opened = bridge.TransformerBridge.boot_transformers(str(tmp_path), dtype=torch.float64)
    design = spec.design
    assert tuple(opened.W_Q.shape) == (
        len(design.layers), design.heads, design.hidden, design.head_size,
    )  # fmt: skip
    whole = opened.original_model
    x, y = data(6)
    value = spec.run(getattr(whole, whole.base_model_prefix), x, y)
    assert spec.distance(value, x, y) <= model.certificate(x, y).error


def test_transformer_lens_opens_a_decoder(tmp_path):
    bridge = pytest.importorskip("transformer_lens.model_bridge", reason="needs transformer-lens")
    spec = targets.WrittenDescent(2, lr=0.7, positions=64, step=2.0**-6)
    model = targets.write("gpt2", spec, tmp_path)
    opened = bridge.TransformerBridge.boot_transformers(str(tmp_path), dtype=torch.float64)
    design = spec.design
    assert (opened.cfg.n_layers, opened.cfg.n_heads) == (len(design.layers), design.heads)
    assert tuple(opened.W_Q.shape) == (4, design.heads, design.hidden, design.head_size)
    ids = model.prompt(*data(5))
    with torch.no_grad():
        theirs, ours = opened(ids), targets.network(model, "eager")(ids).logits
    assert torch.equal(theirs, ours)
    _, cache = opened.run_with_cache(ids)
    pattern = cache["blocks.0.attn.hook_pattern"]
    # A y token's gathering head looks at one position: its own sample's.
    assert float(pattern[0, 0, 3, 1]) == 1.0
    assert float(pattern[0, 1, 3, 2]) == 1.0
