"""What a trace says, and that torch's hooks and nnsight see the same."""

import math

import pytest
import torch

import iceform as ice
from iceform.algorithms import KernelRegression
from iceform.attention.inspection import trace_network
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
    "residual map": (lambda: ice.ResidualMap(torch.tanh, **SIZES), residual_data),
    "step": (lambda: ice.GradientStep("squared", 0.5, **SIZES), residual_data),
    "literal step": (
        lambda: ice.GradientStep("squared", **SIZES, backend="literal"),
        residual_data,
    ),
    "loop": (lambda: ice.GradientDescent("squared", 3, 0.1, **SIZES, w_bound=2.0), residual_data),
    "unrolled": (
        lambda: ice.GradientDescent(
            "squared", 3, 0.1, **SIZES, w_bound=2.0, unrolled=True, schedule="nesterov", eps=None
        ),
        residual_data,
    ),
    "hopfield residual": (lambda: ice.HopfieldResidual(torch.tanh, **SIZES), residual_data),
    "hopfield step": (lambda: ice.HopfieldStep("squared", 0.5, **SIZES), residual_data),
    "hopfield map": (
        lambda: ice.HopfieldMap(torch.tanh, [1.0, 0.5, -0.5], samples=4),
        lambda *batch: (uniform(*batch, 4, 3),),
    ),
    "linear": (
        lambda: ice.LinearLayer(3, 2, samples=4),
        lambda *batch: (uniform(*batch, 4, 3), uniform(*batch, 2, 3)),
    ),
    "head, rows": (lambda: ice.AttentionHead(3, 2, 2, 4), head_data),
    "head, embedding": (lambda: ice.AttentionHead(3, 2, 2, 4, encoding="embedding"), head_data),
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
    for name in prompt.features:
        assert torch.equal(trace.named(name), prompt[name])
    stream = prompt.tokens
    for layer, after in zip(trace, em.network.stream(prompt.tokens), strict=True):
        assert torch.equal(layer.tokens, stream)
        assert torch.equal(layer.output, after)
        stream = after


def test_shapes_and_rows_that_sum_to_one(case):
    _, em, draw = case
    for layer in em.trace(*draw(2)):
        assert layer.scores.shape == layer.attention.shape
        shape = (2, len(layer.labels), len(layer.queries), len(layer.keys))
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


def test_margins_are_what_the_docstring_says(case):
    """By plain sums of exponentials, query by query."""
    name, em, draw = case
    block = em.interpolant.tokens
    for layer in em.trace(*draw()):
        if not layer.labels:
            continue
        assert (layer.own is not None) == (name in WITH_BLOCKS)
        for query in layer.read.nonzero().flatten().tolist():
            for head in range(len(layer.labels)):
                scores = layer.scores[head, query]
                if name in WITH_BLOCKS:
                    sample = int(layer.queries[query].removeprefix("query of sample "))
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
    for layer in em.trace(*draw()):
        if not layer.labels:
            continue
        margins, leak = layer.margins[:, layer.read], layer.leak[:, layer.read]
        attention = layer.attention[:, layer.read]
        if layer.own is not None:
            strays = attention.masked_fill(layer.own[layer.read], 0.0).sum(-1)
            relative = ROUNDING * float(layer.scores.abs().max())
            assert_within(leak / strays, torch.ones_like(strays), relative, name)
        else:
            strays = 1 - attention.amax(-1)
            assert_within(leak, strays, ROUNDING, name)
            rivals = attention.shape[-1] - 1
            assert bool((leak <= rivals / (rivals + margins.exp()) + ROUNDING).all())
        assert layer.smallest_margin == float(margins.min())
        assert layer.largest_leak == float(leak.max())


def test_only_what_belongs_to_no_block_has_no_margin():
    em = ice.GradientStep("squared", 0.5, **SIZES)
    layer = em.trace(*residual_data())["layers.0"]
    assert layer.queries == em.prompt(*residual_data()).roles
    grid = torch.tensor(["grid" in role for role in layer.queries])
    assert torch.equal(layer.margins[0].isnan(), grid)
    assert torch.equal(layer.read, ~grid)


def test_the_leak_is_within_the_certificate():
    em = ice.GradientStep("squared", 0.5, **SIZES, backend="literal")
    (proven,) = (s.value for s in em.certificate.derivation if s.symbol == "leak")
    assert 0 < em.trace(*residual_data())["layers.0"].largest_leak <= proven


def test_one_sample_in_a_hopfield_layer_has_nowhere_to_leak():
    em = ice.HopfieldResidual(torch.tanh, dim=3, samples=1)
    layer = em.trace(uniform(1, 3), uniform(1), uniform(3))["layers.0"]
    assert layer.smallest_margin == math.inf
    assert layer.largest_leak == 0


# ----------------------------------------------------------------------------------- names


def test_heads_say_what_they_are_for():
    em = ice.AttentionHead(3, 5, 2, 4)
    first, second = em.network.layers
    assert first.heads[3].label == "K row 3"
    assert [head.label for head in second.heads] == list(second.labels)
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
    *steps, readout = trace
    iterates = em.trajectory(x, y, w)
    for layer, iterate in zip(steps, iterates, strict=False):
        assert layer.features == em.features
        assert layer.queries == trace.roles
        assert_within(layer.named("previous")[0], iterate, em.certificate.error, layer.name)
    assert (readout.labels, readout.scores.shape[0]) == ((), 0)
    assert math.isnan(readout.smallest_margin)


def test_a_name_that_is_not_there():
    build, draw = CASES["step"]
    trace = build().trace(*draw())
    with pytest.raises(KeyError, match=r"no layer 'layers\.1'; there are layers\.0"):
        trace["layers.1"]
    with pytest.raises(KeyError, match="keys"):
        trace.named("keys")
    readout = CASES["hopfield step"][0]().trace(*draw())["layers.1"]
    assert readout.named("retrieval").shape == (4, 3)
    truncated = ice.TruncatedLinear(-1, 1, 3, **SIZES)
    layer = truncated.trace(uniform(4, 3), uniform(3), uniform())["layers.0"]
    assert layer.out_features is None, "all its heads write the same feature"


def test_a_trace_prints_as_a_short_table():
    build, draw = CASES["hopfield step"]
    trace = build().trace(*draw())
    title, heading, first, second = repr(trace).splitlines()
    assert title == f"{trace.tokens.shape[0]} tokens of 20 features"
    assert heading.split() == [
        "layer", "heads", "queries", "keys", "margin", "between", "leak", "output",
    ]  # fmt: skip
    layer = trace["layers.0"]
    assert first.split()[:4] == ["layers.0", "1", "4", str(len(layer.keys))]
    assert f"{layer.smallest_margin:.4g}" in first
    assert second.split() == ["layers.1", "none", "1", "x", "3"]
    assert repr(layer) == "\n".join([heading.rstrip(), first])


# -------------------------------------------------------------------------------- the border


def test_a_network_without_an_emulator():
    layer = ice.SoftmaxAttention(*(torch.eye(2).double()[None] for _ in range(4)))
    network = ice.FrozenNetwork([layer], ice.Features.of(a=1, b=1))
    tokens = uniform(2, 2)
    trace = trace_network(network, tokens)
    assert trace.roles == ("token 0", "token 1")
    assert torch.equal(trace.named("b"), tokens[:, 1:])
    with pytest.raises(ice.ShapeError, match=r"1 roles and 2 feature names .* \(2, 2\)"):
        trace_network(network, tokens, roles=["only one"])


def test_inputs_are_checked_before_anything_is_built():
    em = ice.GradientStep("squared", 0.5, **SIZES)
    x, y, w = residual_data()
    with pytest.raises(ice.BoundError):
        em.trace(x, y, 2 * w / w.abs().max())
    with pytest.raises(ice.ShapeError):
        em.trace(x[:3], y, w)
    assert "_network" not in em._modules


def test_what_would_not_fit_is_refused_before_anything_is_built():
    em = ice.GradientStep("squared", dim=1, samples=10**6)
    zeros = [torch.zeros(shape, dtype=torch.float64) for shape in ((10**6, 1), (10**6,), (1,))]
    with pytest.raises(ice.CapacityError, match=f"{em.plan.literal_bytes} bytes"):
        em.trace(*zeros)
    assert "_network" not in em._modules


def test_a_machine_shows_its_first_pass():
    program = KernelRegression(2.0)
    machine = ice.Machine(2, 5, programs=[program])
    x, y = uniform(5, 2), uniform(5)
    trace = machine.trace(program, x, y)
    assert torch.equal(trace.tokens, machine.prompt(program, x, y).tokens)
    assert torch.equal(trace.output, machine.network(trace.tokens))
    target = program.targets(x, y)
    got = trace.output[machine.padded(target).queries, : len(target.w_v)]
    attended, error = machine.attend(target)
    assert_within(got, attended, 2 * error, "the first pass")
    with pytest.raises(ice.ProgramError):
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
    em = ice.GradientStep("squared", 0.5, **SIZES, backend="literal")
    inputs = residual_data()
    with torch.no_grad():
        hook = em.network.layers[0].register_forward_hook(lambda _, args, out: out + 1)
        moved = em(*inputs)
        hook.remove()
        assert torch.equal(moved, em(*inputs) + 1)


@pytest.fixture(scope="module")
def nnsight():
    return pytest.importorskip("nnsight", reason="nnsight comes with the dev extra")


@pytest.mark.parametrize("encoding", ["rows", "embedding"])
def test_nnsight_sees_what_a_trace_reports(nnsight, encoding):
    em = ice.AttentionHead(3, 2, 2, 4, encoding=encoding)
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
    em = ice.AttentionHead(3, 2, 2, 4, encoding=encoding)
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
    em = ice.AttentionHead(3, 2, 2, 4)
    trace = em.trace(*head_data())
    at = trace["layers.0"].out_features["Q row 0"]
    model = nnsight.NNsight(em.network)
    with model.trace(trace.tokens):
        model.layers[0].output[2, at] += 1.0
        moved = nnsight.save(model.output)
    changed = (moved != trace.output).any(-1)
    assert changed.tolist() == [False, False, True, False]
