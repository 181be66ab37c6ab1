"""Stacked networks against the plain modules, which are their definition."""

import pytest
import torch

from iceform.errors import ShapeError
from studies.networks import (
    CrossAttention,
    InContext,
    PromptedAttention,
    SelfAttention,
    stack,
)
from studies.plain import PlainCross, PlainSelf

MODELS, BATCH = 3, 4
SELF = {
    f"{heads} heads, read {read}, {'final' if final else 'out'}": SelfAttention(
        features=5, tokens=6, read=read, hidden=24, heads=heads, points=11, outputs=3, final=final
    )
    for heads in (1, 2, 12)
    for read in (6, 2)
    for final in (False, True)
}
CROSS = {
    f"{'over W' if over else 'over keys'}{', bare' if bare else ''}": CrossAttention(
        6, 5, 7, 16, 12, 5, over_prompt=over, bare=bare
    )
    for over in (True, False)
    for bare in (True, False)
}


def models_of(network):
    """Models with random parameters everywhere: constants and scales, too."""
    source = torch.Generator().manual_seed(1)
    return [
        {
            name: torch.randn(p.shape, generator=source, dtype=torch.float64) / 3
            for name, p in network.initial(source).items()
        }
        for _ in range(MODELS)
    ]


def compare(stacked, plain):
    rounding = 64 * torch.finfo(torch.float64).eps
    off = (stacked - plain).abs().max()
    assert off <= rounding * plain.abs().max(), f"off by {off:.3g} of {plain.abs().max():.3g}"


@pytest.mark.parametrize("name", SELF)
def test_stacked_self_attention_is_the_plain_one(name):
    network = SELF[name]
    models = models_of(network)
    x = torch.randn(MODELS, BATCH, network.tokens, network.features, dtype=torch.float64)
    out = network(stack(models), x)
    for place, model in enumerate(models):
        compare(out[place], PlainSelf(network).double().load(model)(x[place]))


@pytest.mark.parametrize("name", CROSS)
def test_stacked_cross_attention_is_the_plain_one(name):
    network = CROSS[name]
    models = models_of(network)
    x = torch.randn(MODELS, BATCH, 7, 6, dtype=torch.float64)
    w = torch.randn(MODELS, BATCH, 7, 5, dtype=torch.float64)
    out = network(stack(models), x, w)
    for place, model in enumerate(models):
        compare(out[place], PlainCross(network).double().load(model)(x[place], w[place]))


@pytest.mark.parametrize("name", SELF)
def test_gradients_are_the_plain_ones(name):
    network = SELF[name]
    models = models_of(network)
    x = torch.randn(MODELS, BATCH, network.tokens, network.features, dtype=torch.float64)
    parameters = {k: p.requires_grad_() for k, p in stack(models).items()}
    network(parameters, x).square().mean((1, 2, 3)).sum().backward()
    plain = PlainSelf(network).double().load(models[1])
    plain(x[1]).square().mean().backward()
    compare(parameters["in.weight"].grad[1], plain.tokens.project.weight.grad.mT)
    compare(parameters["in.scale"].grad[1], plain.tokens.scale.grad)
    compare(parameters["constant"].grad[1], plain.tokens.constant.grad)
    h = network.hidden
    for place, layer in enumerate((plain.query, plain.key, plain.value)):
        part = slice(place * h, (place + 1) * h)
        compare(parameters["qkv.weight"].grad[1][:, part], layer.weight.grad.mT)


def test_the_published_network_has_the_published_size():
    for heads in (1, 2, 4, 6, 8, 12):
        assert SelfAttention(24, 20, 20, 48, heads, 60, 48).count() == 13488


def test_the_published_ames_configuration_cannot_be_built():
    with pytest.raises(ShapeError, match=r"8 heads do not divide a width of 524.* is 4"):
        SelfAttention(524, 1, 1, 524, 8, 100, 1)


def test_the_context_s_order_does_not_matter_to_the_auxiliary_network():
    main = SelfAttention(6, 1, 1, 8, 2, 5, 1, final=True)
    network = PromptedAttention(main, dim=3, codes=2, width=7)
    p = {k: v.double() for k, v in stack([network.initial(torch.Generator())]).items()}
    contexts = torch.randn(1, 2, 9, 4, dtype=torch.float64)
    code = torch.eye(2, dtype=torch.float64)[None]
    which = torch.tensor([[0, 1]])
    shuffled = contexts[:, :, torch.randperm(9)]
    once = network.prompt(p, contexts, code, which)
    compare(network.prompt(p, shuffled, code, which), once)
    other = network.prompt(p, contexts, code.flip(1), which)
    assert (other - once).abs().max() > 1e-3, "the algorithm's code must change the prompt"


def plain_in_context(network, p, x):
    """One model on one sample, head by head and token by token."""

    def of(name, t):
        return t @ p[f"{name}.weight"] + p[f"{name}.bias"][0]

    def normal(t):
        off = t - t.mean()
        return off / (off.square().mean() + 1e-5).sqrt()

    t, width = of("in", x), network.hidden // network.heads
    for layer in range(network.layers):
        q, k, v = of(f"{layer}.qkv", torch.stack([normal(row) for row in t])).chunk(3, -1)
        seen = torch.zeros_like(t)
        for h in range(network.heads):
            part = slice(h * width, (h + 1) * width)
            for i in range(len(t)):
                logits = k[network.read :, part] @ q[i, part] / width**0.5
                seen[i, part] = torch.softmax(logits, 0) @ v[network.read :, part]
        t = t + of(f"{layer}.out", seen)
        inner = of(f"{layer}.up", torch.stack([normal(row) for row in t])).clamp(min=0)
        t = t + of(f"{layer}.down", inner)
    return of("final", torch.stack([normal(row) for row in t[: network.read]]))


def test_a_stack_of_in_context_transformers_is_the_definition():
    network = InContext(features=5, read=2, hidden=12, heads=3, layers=2, outputs=1)
    models = models_of(network)
    x = torch.randn(MODELS, BATCH, 7, 5, dtype=torch.float64)
    out = network(stack(models), x)
    for place, model in enumerate(models):
        for sample in range(BATCH):
            compare(out[place, sample], plain_in_context(network, model, x[place, sample]))
