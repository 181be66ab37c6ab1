"""What a trace says, and that torch's hooks and nnsight see the same."""

import dataclasses
import math

import pytest
import torch

import iceform as ice
from iceform.arithmetic import at_least
from iceform.heads.inspection import trace_network
from iceform.paper.library import KernelPrompts, PromptLibrary
from tests.conformance import assert_within

ROUNDING = 64 * torch.finfo(torch.float64).eps  # sums of a few dozen numbers of order one


def uniform(*shape: int):
    return 2 * torch.rand(shape, dtype=torch.float64) - 1


def residual_data(*batch: int):
    return uniform(*batch, 4, 3), uniform(*batch, 4), uniform(*batch, 3)


def head_data(*batch: int):
    return uniform(*batch, 4, 3), *(uniform(*batch, 2, 3) for _ in range(3))


SIZES = {"dim": 3, "samples": 4}
CASES = {
    "residual map": (lambda: ice.paper.ResidualMap(torch.tanh, **SIZES), residual_data),
    "step": (lambda: ice.paper.GradientStep("squared", 0.5, **SIZES), residual_data),
    "literal step": (
        lambda: ice.paper.GradientStep("squared", **SIZES, backend="literal"),
        residual_data,
    ),
    "loop": (
        lambda: ice.paper.GradientDescent("squared", 3, 0.1, **SIZES, w_bound=2.0),
        residual_data,
    ),
    "unrolled": (
        lambda: ice.paper.GradientDescent(
            "squared", 3, 0.1, **SIZES, w_bound=2.0, unrolled=True, schedule="nesterov", eps=None
        ),
        residual_data,
    ),
    "hopfield residual": (lambda: ice.paper.HopfieldResidual(torch.tanh, **SIZES), residual_data),
    "hopfield step": (lambda: ice.paper.HopfieldStep("squared", 0.5, **SIZES), residual_data),
    "hopfield map": (
        lambda: ice.paper.HopfieldMap(torch.tanh, [1.0, 0.5, -0.5], samples=4),
        lambda *batch: (uniform(*batch, 4, 3),),
    ),
    "linear": (
        lambda: ice.paper.LinearLayer(3, 2, samples=4),
        lambda *batch: (uniform(*batch, 4, 3), uniform(*batch, 2, 3)),
    ),
    "head, rows": (lambda: ice.paper.AttentionHead(3, 2, 2, 4), head_data),
    "head, embedding": (
        lambda: ice.paper.AttentionHead(3, 2, 2, 4, encoding="embedding"),
        head_data,
    ),
}
WITH_BLOCKS = {
    "residual map", "step", "literal step", "loop", "unrolled", "hopfield residual",
    "hopfield step",
}  # fmt: skip


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture(params=CASES)
def case(request, known):
    build, draw = CASES[request.param]
    if request.param not in known:
        known[request.param] = build()
    return request.param, known[request.param], draw


# ------------------------------------------------------------------------------- what it says


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
def test_a_trace_is_the_network_layer_by_layer(case, batch):
    _, em, draw = case
    inputs = draw(*batch)
    trace, prompt = em.trace(*inputs), em.prompt(*inputs)
    assert torch.equal(trace.tokens, prompt.tokens)
    assert (trace.features, trace.roles) == (prompt.features, prompt.roles)
    assert torch.equal(trace.output, em.network(prompt.tokens))
    assert [layer.name for layer in trace] == [
        name for name, _ in em.network.named_modules(remove_duplicate=False)
        if name.startswith("layers.")
    ]  # fmt: skip
    assert len(trace) == len(em.network.layers)
    for name, where in prompt.features.items():
        assert torch.equal(trace.named(name), prompt.tokens[..., where])
    stream = prompt.tokens
    for layer, after in zip(trace, em.network.stream(prompt.tokens), strict=True):
        assert torch.equal(layer.tokens, stream)
        assert torch.equal(layer.output, after)
        stream = after


def test_shapes_and_rows_that_sum_to_one(case):
    _, em, draw = case
    trace = em.trace(*draw(2))
    batch = trace.tokens.shape[:-2]
    assert batch[0] == 2
    for layer in trace:
        assert layer.scores.shape == layer.attention.shape
        shape = (*batch, len(layer.labels), len(layer.queries), len(layer.keys))
        assert layer.scores.shape == shape
        assert layer.margins.shape == layer.leak.shape == shape[:-1]
        assert layer.read.shape == shape[-2:-1]
        total = layer.attention.sum(-1)
        assert torch.allclose(total, torch.ones_like(total), rtol=0, atol=ROUNDING)
        if layer.features is not None:
            assert layer.features.total == layer.tokens.shape[-1]
            for name in layer.features:
                assert torch.equal(layer.named(name), layer.tokens[..., layer.features[name]])
        if layer.out_features is not None:
            assert layer.out_features.total == layer.output.shape[-1]


def single(em, inputs):
    """The trace of the only prompt."""
    trace = em.trace(*inputs)
    return trace.of(*(0 for _ in trace.tokens.shape[:-2]))


def test_margins_are_what_the_docstring_says(case):
    """By plain sums of exponentials, query by query."""
    name, em, draw = case
    for layer in single(em, draw()):
        if not layer.labels:
            continue
        assert (layer.own is not None) == (name in WITH_BLOCKS)
        for query in layer.asked.nonzero().flatten().tolist():
            for head in range(len(layer.labels)):
                scores = layer.scores[head, query]
                if name in WITH_BLOCKS:
                    block, sample = em.layout.tokens, int(layer.queries[query].split()[-1])
                    inside = torch.zeros(len(scores), dtype=torch.bool)
                    inside[sample * block : (sample + 1) * block] = True
                    want = scores[inside].logsumexp(0) - scores[~inside].logsumexp(0)
                else:
                    ordered = scores.sort(descending=True).values
                    want = ordered[0] - ordered[1]
                bound = ROUNDING * float(scores.abs().max())
                assert_within(layer.margins[head, query], want, bound, f"head {head}, {query}")


def test_a_margin_implies_its_leak(case):
    name, em, draw = case
    for layer in single(em, draw()):
        if not layer.labels:
            continue
        margins, leak = layer.margins[:, layer.asked], layer.leak[:, layer.asked]
        attention = layer.attention[:, layer.asked]
        if layer.own is not None:
            assert float(leak.max()) == 0.0
            assert float(attention.masked_fill(layer.own[layer.asked], 0.0).max()) == 0.0
        else:
            strays = 1 - attention.amax(-1)
            assert_within(leak, strays, ROUNDING, name)
            rivals = attention.shape[-1] - 1
            assert bool((leak <= rivals / (rivals + margins.exp()) + ROUNDING).all())
        assert layer.smallest_margin == float(margins.min())
        assert layer.largest_leak == float(leak.max())


@pytest.mark.parametrize("margin", [3.0, 20.0, 60.0])
def test_the_leak_of_a_smaller_margin_is_what_strays(margin):
    """Margins that the constructions do not use, in their own layer: attention outside the block,
    summed up, is the leak that the margin says, and one more in the weights is one more of it.
    """
    em = ice.paper.ResidualMap(torch.tanh, **SIZES, eps=1e-2, z_range=(-4, 4))
    prompt = em.prompt(*residual_data())
    layout = dataclasses.replace(em.layout, margin=margin)
    layer = trace_network(layout.build(), prompt.tokens, roles=prompt.roles)["layers.1"].of(0)
    strays = layer.attention.masked_fill(layer.own, 0.0).sum(-1)[:, layer.asked]
    leak, margins = layer.leak[:, layer.asked], layer.margins[:, layer.asked]
    assert layer.asked.sum() == 4
    assert float(strays.min()) > 0
    relative = ROUNDING * float(layer.scores[:, layer.asked].clamp(min=-1e3).abs().max())
    assert_within(leak / strays, torch.ones_like(strays), relative, "leak")
    firmer = dataclasses.replace(em.layout, margin=margin + 1)
    layer = trace_network(firmer.build(), prompt.tokens, roles=prompt.roles)["layers.1"].of(0)
    assert_within(layer.margins[:, layer.asked], margins + 1, relative, "one more")


def test_only_what_belongs_to_no_block_has_no_margin():
    em = ice.paper.GradientStep("squared", 0.5, **SIZES)
    layer = single(em, residual_data())["layers.1"]
    assert layer.queries == em.layout.roles
    of_block = torch.tensor([role.startswith("query of block") for role in layer.queries])
    asks = of_block | torch.tensor([role.startswith("free query") for role in layer.queries])
    assert torch.equal(layer.margins[0].isnan(), ~of_block)
    assert torch.equal(layer.read, asks)
    assert torch.equal(layer.asked, of_block)


def test_longer_data_are_a_batch_of_prompts():
    """Eleven samples fill one prompt of eight and three places of the next."""
    em = ice.paper.GradientStep("squared", 0.5, dim=3, samples=11)
    inputs = uniform(11, 3), uniform(11), uniform(3)
    trace = em.trace(*inputs)
    assert trace.tokens.shape[:-1] == (2, em.layout.count)
    second = trace.of(1)["layers.1"]
    rows = second.output[: em.layout.samples, :3]
    exact = inputs[2] - 0.5 * ((inputs[0] @ inputs[2] - inputs[1])[:, None] * inputs[0])
    assert_within(rows[:3], exact[8:], em.certificate.error, "rows of the second prompt")
    assert repr(trace).startswith("2 prompts of ")


def test_one_sample_in_a_hopfield_layer_has_nowhere_to_leak():
    em = ice.paper.HopfieldResidual(torch.tanh, dim=3, samples=1)
    layer = em.trace(uniform(1, 3), uniform(1), uniform(3))["layers.1"]
    assert layer.smallest_margin == math.inf
    assert layer.largest_leak == 0


# ----------------------------------------------------------------------------------- names


def test_heads_say_what_they_are_for():
    em = ice.paper.AttentionHead(3, 5, 2, 4)
    first, second = em.network.layers
    assert first.labels[3] == "K row 3"
    assert list(second.labels) == ["target head 0"]
    x, v = uniform(4, 3), uniform(2, 3)
    trace = em.trace(x, uniform(5, 3), uniform(5, 3), v)
    assert trace["layers.0"].labels[3] == "K row 3"
    rows = [f"{m} row {j}" for m, n in (("K", 5), ("Q", 5), ("V", 2)) for j in range(n)]
    assert list(trace["layers.0"].out_features) == list(trace["layers.1"].features) == rows
    looked = trace["layers.1"].named("V row 1")
    assert_within(looked, x @ v[1:].mT, em.certificate.error, "V row 1")
    assert trace["layers.1"].queries == trace.roles[:4]


def test_the_residual_stream_keeps_its_names():
    build, draw = CASES["unrolled"]
    em = build()
    x, y, w = draw()
    trace = em.trace(x, y, w)
    assert trace.features == em.features
    embedding, *steps, readout = trace
    assert embedding.features == em.features
    iterates = em.trajectory(x, y, w)
    for layer, iterate in zip(steps, iterates, strict=False):
        assert layer.features == embedding.out_features
        assert set(layer.features) > set(em.features)
        assert layer.queries == trace.roles
        assert_within(layer.named("previous")[0], iterate, em.certificate.error, layer.name)
    assert (readout.labels, readout.scores.shape[0]) == ((), 0)
    assert math.isnan(readout.smallest_margin)


def test_a_name_that_is_not_there():
    build, draw = CASES["step"]
    trace = build().trace(*draw())
    with pytest.raises(KeyError, match=r"no layer 'layers\.2'; there are layers\.0, layers\.1"):
        trace["layers.2"]
    with pytest.raises(KeyError, match="keys"):
        trace.named("keys")
    read = CASES["hopfield step"][0]().trace(*draw())["layers.1"]
    assert read.named("block").shape == (1, len(trace.roles), 4)
    assert dict(read.out_features.sizes) == {"retrieval": 4}
    truncated = ice.paper.TruncatedLinear(-1, 1, 3, **SIZES)
    layer = truncated.trace(uniform(4, 3), uniform(3), uniform())["layers.0"]
    assert layer.out_features is None, "all its heads write the same feature"


def test_a_trace_prints_as_a_short_table():
    build, draw = CASES["hopfield step"]
    trace = build().trace(*draw())
    title, heading, first, second = repr(trace).splitlines()
    assert title == f"{trace.tokens.shape[-2]} tokens of 12 features"
    assert heading.split() == [
        "layer", "heads", "queries", "keys", "margin", "between", "leak", "output",
    ]  # fmt: skip
    layer = trace["layers.1"]
    assert first.split() == ["layers.0", "none", "1", "x", str(len(trace.roles)), "x", "21"]
    assert second.split()[:4] == ["layers.1", "1", "8", str(len(layer.keys))]
    assert at_least(layer.smallest_margin, ".4g") in second
    assert [line.split() for line in repr(layer).splitlines()] == [heading.split(), second.split()]


# -------------------------------------------------------------------------------- the border


def test_a_network_without_an_emulator():
    layer = ice.heads.SoftmaxAttention(*(torch.eye(2).double()[None] for _ in range(4)))
    network = ice.heads.FrozenNetwork([layer], ice.heads.Features.of(a=1, b=1))
    tokens = uniform(2, 2)
    trace = trace_network(network, tokens)
    assert trace.roles == ("token 0", "token 1")
    assert torch.equal(trace.named("b"), tokens[:, 1:])
    with pytest.raises(ice.errors.ShapeError, match=r"1 roles and 2 feature names .* \(2, 2\)"):
        trace_network(network, tokens, roles=["only one"])


def test_inputs_are_checked_before_anything_is_built():
    em = ice.paper.GradientStep("squared", 0.5, **SIZES)
    x, y, w = residual_data()
    with pytest.raises(ice.errors.BoundError):
        em.trace(x, y, 2 * w / w.abs().max())
    with pytest.raises(ice.errors.ShapeError):
        em.trace(x[:3], y, w)
    assert "_network" not in em._modules


def test_what_would_not_fit_is_refused_before_anything_is_built():
    em = ice.paper.GradientStep("squared", dim=1, samples=10**6, backend="literal")
    zeros = [torch.zeros(shape, dtype=torch.float64) for shape in ((10**6, 1), (10**6,), (1,))]
    with pytest.raises(ice.errors.CapacityError, match="a trace of the literal network"):
        em.trace(*zeros)
    assert "_network" not in em._modules
    many = dataclasses.replace(em.prompt(*zeros), w=torch.zeros(10**4, 1, dtype=torch.float64))
    with pytest.raises(
        ice.errors.CapacityError, match=r"literal tokens of 1250000000 prompts.*chunks"
    ):
        many.tokens  # noqa: B018


def test_a_library_shows_its_first_pass():
    program = KernelPrompts(2.0)
    machine = PromptLibrary(2, 5, algorithms=[program])
    x, y = uniform(5, 2), uniform(5)
    trace = machine.trace(program, x, y)
    assert torch.equal(trace.tokens, machine.prompt(program, x, y).tokens)
    assert torch.equal(trace.output, machine.network(trace.tokens))
    target = program.target(x, y)
    got = trace.output[machine.padded(target).queries, : len(target.w_v)]
    attended, error = machine.attend(target)
    assert_within(got, attended, 2 * error, "the first pass")
    with pytest.raises(ice.errors.ProgramError):
        machine.trace(program, uniform(50, 2), uniform(50))


# ---------------------------------------------------------------------------- other people's tools


def test_plain_hooks_see_what_a_trace_reports(case):
    _, em, draw = case
    inputs = draw()
    trace = em.trace(*inputs)
    seen = []
    hooks = [
        layer.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
        for layer in dict.fromkeys(em.network.layers)
    ]
    try:
        em.network(em.prompt(*inputs).tokens)
    finally:
        for hook in hooks:
            hook.remove()
    for layer, (tokens, output) in zip(trace, seen, strict=True):
        assert torch.equal(layer.tokens, tokens)
        assert torch.equal(layer.output, output)


def test_plain_hooks_run_with_the_literal_backend():
    em = ice.paper.GradientStep("squared", 0.5, **SIZES, backend="literal")
    inputs = residual_data()
    with torch.no_grad():
        hook = em.network.layers[1].register_forward_hook(lambda _, args, out: out + 1)
        moved = em(*inputs)
        hook.remove()
        assert_within(moved, em(*inputs) + 1, ROUNDING, "every row moved by one")


@pytest.fixture(scope="module")
def nnsight():
    return pytest.importorskip("nnsight", reason="nnsight comes with the dev extra")


@pytest.mark.parametrize("encoding", ["rows", "embedding"])
def test_nnsight_sees_what_a_trace_reports(nnsight, encoding):
    em = ice.paper.AttentionHead(3, 2, 2, 4, encoding=encoding)
    inputs = head_data()
    trace = em.trace(*inputs)
    model = nnsight.NNsight(em.network)
    with model.trace(trace.tokens) as tracer:
        cache = tracer.cache()
        read = nnsight.save(model.layers[0].input)
        final = nnsight.save(model.output)
    assert torch.equal(read, trace.tokens)
    assert torch.equal(final, trace.output)
    for layer in trace:
        assert torch.equal(cache[f"model.{layer.name}"].output, layer.output)


@pytest.mark.parametrize("encoding", ["rows", "embedding"])
@pytest.mark.parametrize("row", [0, 1])
def test_a_value_row_reaches_its_own_output_alone(nnsight, encoding, row):
    """Attention weights sum to one: what is added to V row r arrives in coordinate r."""
    em = ice.paper.AttentionHead(3, 2, 2, 4, encoding=encoding)
    trace = em.trace(*head_data())
    at = trace["layers.0"].out_features[f"V row {row}"]
    model = nnsight.NNsight(em.network)
    with model.trace(trace.tokens):
        model.layers[0].output[..., at] += 0.5
        moved = nnsight.save(model.output)
    change = moved - trace.output
    assert torch.equal(change[:, 1 - row], torch.zeros(4, dtype=torch.float64))
    assert_within(change[:, row], torch.full((4,), 0.5).double(), ROUNDING, f"V row {row}")
    assert torch.equal(em.network(trace.tokens), trace.output), "the network is as it was"


def test_a_query_row_of_one_token_reaches_that_token_alone(nnsight):
    """Q row 0 of token 2 is read by query 2 alone."""
    em = ice.paper.AttentionHead(3, 2, 2, 4)
    trace = em.trace(*head_data())
    at = trace["layers.0"].out_features["Q row 0"]
    model = nnsight.NNsight(em.network)
    with model.trace(trace.tokens):
        model.layers[0].output[2, at] += 1.0
        moved = nnsight.save(model.output)
    changed = (moved != trace.output).any(-1)
    assert changed.tolist() == [False, False, True, False]
