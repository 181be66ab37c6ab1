"""The layers against plain loops written from their definitions, tokens as columns."""

import math

import pytest
import torch
from torch import nn

from iceform import tuning
from iceform.errors import ShapeError
from iceform.heads import HopfieldLayer, Lift, LiftedAttention, SoftmaxAttention
from iceform.heads.network import AttentionTrace
from iceform.heads.variants import HeadGroup

F64 = torch.float64
UNIT = torch.finfo(F64).eps / 2


def random_weights(heads=3, head_dim=4, features=5, out=6, tokens=7, out_tokens=2, dtype=F64):
    return (
        torch.randn(heads, head_dim, features, dtype=dtype),
        torch.randn(heads, head_dim, features, dtype=dtype),
        torch.randn(heads, out, features, dtype=dtype),
        torch.randn(heads, tokens, out_tokens, dtype=dtype),
    )


def attention_by_hand(X, w_k, w_q, w_v, w_o):
    """sum_h W_V X softmax((W_K X)' W_Q X) W_O for one X of shape (features, tokens)."""
    count = X.shape[1]
    total = torch.zeros(w_v.shape[1], w_o.shape[2], dtype=F64)
    for h in range(len(w_k)):
        keys, queries, values = w_k[h] @ X, w_q[h] @ X, w_v[h] @ X
        weights = torch.zeros(count, count, dtype=F64)  # a column for each query
        for query in range(count):
            scores = [float(keys[:, key] @ queries[:, query]) for key in range(count)]
            top = max(scores)
            powers = [math.exp(s - top) for s in scores]
            for key in range(count):
                weights[key, query] = powers[key] / math.fsum(powers)
        assert torch.allclose(weights.sum(0), torch.ones(count, dtype=F64))
        total += values @ weights @ w_o[h]
    return total


def assert_close(got, want, terms, what):
    """Agreement to the rounding of sums of ``terms`` products."""
    off = (got - want).abs()
    worst = int(off.argmax())
    bound = terms * UNIT * max(1.0, float(want.abs().max()))
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), off.shape))
    assert float(off.max()) <= bound, f"{what}: off by {float(off.max()):.3e} at {where}"


# ---------------------------------------------------------------------------- SoftmaxAttention


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(
    ("tokens", "out_tokens", "features", "head_dim", "out"),
    [(7, 2, 5, 4, 6), (1, 1, 1, 1, 1), (4, 4, 3, 8, 3), (6, 1, 2, 1, 5), (3, 9, 4, 2, 1)],
)
def test_attention_is_its_definition(heads, tokens, out_tokens, features, head_dim, out):
    weights = random_weights(heads, head_dim, features, out, tokens, out_tokens)
    X = torch.randn(features, tokens, dtype=F64)
    want = attention_by_hand(X, *weights)
    layer = SoftmaxAttention(*weights)
    got = layer(X.T)
    assert got.shape == (out_tokens, out)
    raw = torch.einsum("hkd,dq,hke,en->hqn", weights[1], X, weights[0], X)  # not scaled
    torch.testing.assert_close(layer.attend(X.T).scores, raw, rtol=1e-12, atol=1e-12)
    large = SoftmaxAttention(1e6 * weights[0], 1e6 * weights[1], *weights[2:])
    assert bool(large(X.T).isfinite().all())
    # Rounded scores of size s change weights by about s units.
    scores = (weights[0] @ X).abs().sum(1).max() * (weights[1] @ X).abs().max()
    assert_close(got.T, want, 64 * (1 + float(scores)) * heads * tokens, "attention")


def test_trace_has_a_row_for_each_query_that_sums_to_one_over_keys():
    weights = random_weights()
    x = torch.randn(2, 7, 5, dtype=F64)
    trace = SoftmaxAttention(*weights).attend(x)
    assert isinstance(trace, AttentionTrace)
    assert trace.scores.shape == trace.weights.shape == (2, 3, 7, 7)
    assert trace.output.shape == (2, 2, 6)
    sums = trace.weights.sum(-1)
    assert float((sums - 1).abs().max()) <= 16 * UNIT
    # Over queries they do not: the softmax has one axis only.
    assert float((trace.weights.sum(-2) - 1).abs().max()) > 0.1


@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 3), (2, 1, 3)])
def test_attention_is_batched(batch):
    layer = SoftmaxAttention(*random_weights())
    x = torch.randn(*batch, 7, 5, dtype=F64)
    out = layer(x)
    assert out.shape == (*batch, 2, 6)
    for flat, one in zip(x.reshape(-1, 7, 5), out.reshape(-1, 2, 6), strict=True):
        assert_close(one, layer(flat), 1024, "one of a batch")


def test_residual_adds_the_input():
    weights = random_weights(features=5, out=5, tokens=7, out_tokens=7)
    x = torch.randn(3, 7, 5, dtype=F64)
    plain, residual = SoftmaxAttention(*weights), SoftmaxAttention(*weights, residual=True)
    assert_close(residual(x), x + plain(x), 8, "residual")


def test_weights_that_all_heads_share_are_given_once():
    w_k, w_q, w_v, w_o = random_weights(heads=3)
    x = torch.randn(7, 5, dtype=F64)
    every = [w_k[:1].expand(3, -1, -1), w_q, w_v, w_o[:1].expand(3, -1, -1)]
    shared = SoftmaxAttention(w_k[:1], w_q, w_v, w_o[:1])
    assert_close(shared(x), SoftmaxAttention(*every)(x), 1024, "shared weights")
    assert shared.labels == ("head 0", "head 1", "head 2")
    assert shared.attend(x).weights.shape == (3, 7, 7)


def test_attention_prints_its_sizes():
    text = repr(SoftmaxAttention(*random_weights()))
    assert "heads=3, head_dim=4, features=5, tokens=7" in text


def test_attention_is_differentiable_in_its_input():
    layer = SoftmaxAttention(*random_weights(heads=2, tokens=3))
    x = torch.randn(3, 5, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, x)


@pytest.mark.parametrize("shape", [(6, 5), (7, 4), (7,), (2, 5, 7), (5, 7)])
def test_attention_refuses_other_inputs(shape):
    layer = SoftmaxAttention(*random_weights())
    with pytest.raises(ShapeError, match=r"takes \(\*batch, 7 tokens, 5 features\), got"):
        layer(torch.zeros(*shape, dtype=F64))


@pytest.mark.parametrize(
    ("position", "shape"),
    [
        (0, (3, 4)), (0, (4, 5)), (3, (3, 7)), (3, (7, 2)), (0, (3, 9, 5)), (1, (3, 4, 6)),
        (2, (3, 6, 4)), (2, (2, 6, 5)), (3, (2, 7, 2)),
    ],
)  # fmt: skip
def test_attention_refuses_weights_that_do_not_fit(position, shape):
    weights = list(random_weights())
    weights[position] = torch.zeros(*shape, dtype=F64)
    said = (
        rf"{('w_k', 'w_q', 'w_v', 'w_o')[position]} \({shape[0]}, .* do not make one layer, whose"
    )
    with pytest.raises(ShapeError, match=said):
        SoftmaxAttention(*weights)


@pytest.mark.parametrize("sizes", [{"out": 6}, {"out": 5, "out_tokens": 2}])
def test_a_residual_layer_must_keep_its_shape(sizes):
    weights = random_weights(**{"features": 5, "tokens": 7, "out_tokens": 7, **sizes})
    with pytest.raises(ShapeError, match="a residual layer must keep tokens and features"):
        SoftmaxAttention(*weights, residual=True)


def test_as_many_labels_as_heads():
    with pytest.raises(ShapeError, match=r"2 labels .* 3 heads"):
        SoftmaxAttention(*random_weights(heads=3), labels=["one", "two"])


# ---------------------------------------------------------------------------------------- Lift


def lift_by_hand(Z, maps, tokens, constant):
    """sum_l A_l Z R_l + C, Z of shape (features, tokens), C of (out_features, out_tokens)."""
    return sum((A @ Z @ R for A, R in zip(maps, tokens, strict=True)), constant.clone())


@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize(("n", "m", "p", "q"), [(4, 9, 3, 7), (1, 1, 1, 1), (5, 2, 6, 2)])
def test_lift_is_its_definition(terms, n, m, p, q):
    maps = torch.randn(terms, q, p, dtype=F64)
    tokens = torch.randn(terms, n, m, dtype=F64)
    constant = torch.randn(m, q, dtype=F64)
    Z = torch.randn(p, n, dtype=F64)
    got = Lift(maps, tokens, constant)(Z.T)
    assert got.shape == (m, q)
    want = lift_by_hand(Z, maps, tokens, constant.T)
    assert_close(got.T, want, 64 * terms * n * p, "lift")


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_lift_is_batched(batch):
    lift = Lift(
        torch.randn(2, 7, 3, dtype=F64),
        torch.randn(2, 4, 9, dtype=F64),
        torch.randn(9, 7, dtype=F64),
    )
    z = torch.randn(*batch, 4, 3, dtype=F64)
    assert lift(z).shape == (*batch, 9, 7)
    for flat, one in zip(z.reshape(-1, 4, 3), lift(z).reshape(-1, 9, 7), strict=True):
        assert_close(one, lift(flat), 256, "one of a batch")


@pytest.mark.parametrize("shape", [(5, 3), (4, 2), (3,), (3, 4)])
def test_lift_refuses_other_inputs(shape):
    lift = Lift(torch.zeros(1, 7, 3), torch.zeros(1, 4, 9), torch.zeros(9, 7))
    with pytest.raises(ShapeError, match=r"takes \(\*batch, 4 tokens, 3 features\), got"):
        lift(torch.zeros(*shape))


@pytest.mark.parametrize(
    ("maps", "tokens", "constant"),
    [
        ((2, 7, 3), (1, 4, 9), (9, 7)),
        ((1, 7, 3), (1, 4, 9), (7, 9)),
        ((1, 7, 3), (1, 4, 9), (9, 6)),
        ((7, 3), (1, 4, 9), (9, 7)),
        ((1, 7, 3), (4, 9), (9, 7)),
    ],
)
def test_lift_refuses_parts_that_do_not_fit(maps, tokens, constant):
    with pytest.raises(ShapeError, match="do not make one map"):
        Lift(torch.zeros(*maps), torch.zeros(*tokens), torch.zeros(*constant))


# ----------------------------------------------------------------------------- LiftedAttention


def lifted():
    """Five heads in two groups, 4 tokens of 6 features lifted to 7 tokens of 5 features."""
    p, q, n, m = 6, 5, 4, 7
    groups = (2, 3)
    parts = [
        torch.randn(q, p, dtype=F64),
        torch.randn(n, m, dtype=F64),
        torch.randn(2, q, p, dtype=F64),
        groups,
        torch.eye(n, dtype=F64)[[0, 1, 0, 2, 3]],
        torch.randn(m, dtype=F64),
        torch.randn(m, q, dtype=F64),
    ]
    return parts, random_weights(heads=5, features=q, tokens=m)


def test_lifted_attention_is_a_sum_of_attention_after_a_lift():
    (a0, r0, maps, sizes, picks, ramp, constant), weights = lifted()
    layer = LiftedAttention(a0, r0, maps, sizes, picks, ramp, constant, *weights)
    Z = torch.randn(6, 4, dtype=F64)
    want = torch.zeros(6, 2, dtype=F64)
    group = [g for g, size in enumerate(sizes) for _ in range(size)]
    for h in range(5):
        own = maps[group[h]] @ Z @ torch.outer(picks[h], ramp)
        lifted_tokens = a0 @ Z @ r0 + own + constant.T
        want += attention_by_hand(lifted_tokens, *(w[h : h + 1] for w in weights))
    got = layer(Z.T)
    # Scores are sums of products of four matrices of size one: their rounding moves weights.
    assert_close(got.T, want, 1e5, "lifted attention")
    batch = torch.randn(2, 3, 4, 6, dtype=F64)
    assert_close(layer(batch)[1, 2], layer(batch[1, 2]), 1e5, "one of a batch")


@pytest.mark.parametrize("shape", [(5, 6), (4, 5), (7, 5), (6,)])
def test_lifted_attention_refuses_other_inputs(shape):
    parts, weights = lifted()
    with pytest.raises(ShapeError, match=r"takes \(\*batch, 4 tokens, 6 features\), got"):
        LiftedAttention(*parts, *weights)(torch.zeros(*shape, dtype=F64))


# ------------------------------------------------------------------------------- HopfieldLayer


def hopfield_by_hand(R, Y, w_k, w_q, w_v, beta):
    """W_V W_K Y softmax(beta (W_K Y)' W_Q R) with patterns and states as columns."""
    keys = w_k @ Y
    columns = []
    for state in (w_q @ R).T:
        scores = [beta * float(key @ state) for key in keys.T]
        top = max(scores)
        powers = torch.tensor([math.exp(s - top) for s in scores], dtype=F64)
        columns.append(w_v @ keys @ (powers / powers.sum()))
    return torch.stack(columns, -1)


HOPFIELD = [(4, 3), (4, 5), (2, 4)]  # w_k, w_q, w_v


def test_hopfield_layer_is_its_definition():
    w_k, w_q, w_v = (torch.randn(*s, dtype=F64) for s in HOPFIELD)
    Y, R = torch.randn(3, 6, dtype=F64), torch.randn(5, 9, dtype=F64)
    layer = HopfieldLayer(w_k, w_q, w_v, 0.7, patterns=Y.T)
    want = hopfield_by_hand(R, Y, w_k, w_q, w_v, 0.7)
    assert_close(layer(R.T).T, want, 4096, "Hopfield layer")
    trace = layer.attend(R.T)
    assert trace.weights.shape == (1, 9, 6)
    assert float((trace.weights.sum(-1) - 1).abs().max()) <= 16 * UNIT


def test_hopfield_patterns_may_come_with_the_states():
    w_k, w_v = torch.randn(4, 3, dtype=F64), torch.randn(2, 4, dtype=F64)
    w_q = torch.randn(4, 3, dtype=F64)
    Y, R = torch.randn(6, 3, dtype=F64), torch.randn(9, 3, dtype=F64)
    kept = HopfieldLayer(w_k, w_q, w_v, 1.3, patterns=Y)
    given = HopfieldLayer(w_k, w_q, w_v, 1.3, stored=6)
    assert_close(given(torch.cat([Y, R])), kept(R), 1024, "patterns in the input")
    batch = torch.randn(2, 15, 3, dtype=F64)
    assert given(batch).shape == (2, 9, 2)


def test_hopfield_layer_refuses_parts_that_do_not_fit():
    w_k, w_q, w_v = (torch.zeros(*s, dtype=F64) for s in HOPFIELD)
    with pytest.raises(ShapeError, match="do not make one layer"):
        HopfieldLayer(w_k, w_q[:3], w_v, 1.0, stored=2)
    with pytest.raises(ShapeError, match="do not make one layer"):
        HopfieldLayer(w_k, w_q, w_v[:, :3], 1.0, stored=2)
    with pytest.raises(ShapeError, match="either the patterns or how many"):
        HopfieldLayer(w_k, w_q, w_v, 1.0)
    with pytest.raises(ShapeError, match="either the patterns or how many"):
        HopfieldLayer(w_k, w_q, w_v, 1.0, patterns=torch.zeros(6, 3), stored=2)


def test_hopfield_layer_refuses_other_inputs():
    w_k, w_q, w_v = (torch.zeros(*s, dtype=F64) for s in HOPFIELD)
    layer = HopfieldLayer(w_k, w_q, w_v, 1.0, patterns=torch.zeros(6, 3, dtype=F64))
    with pytest.raises(ShapeError, match=r"5 features\), got \(9, 4\)"):
        layer(torch.zeros(9, 4, dtype=F64))


# ---------------------------------------------------------------------------------------- all


@pytest.mark.parametrize(
    "layer",
    [
        lambda: SoftmaxAttention(*random_weights()),
        lambda: Lift(torch.zeros(1, 7, 3), torch.zeros(1, 4, 9), torch.zeros(9, 7)),
        lambda: LiftedAttention(*lifted()[0], *lifted()[1]),
        lambda: HopfieldLayer(
            *(torch.zeros(*s) for s in HOPFIELD), 1.0, patterns=torch.zeros(6, 3)
        ),
    ],
    ids=["attention", "lift", "lifted attention", "hopfield"],
)
def test_weights_are_buffers(layer):
    module: nn.Module = layer()
    assert not list(module.parameters())
    assert len(list(module.buffers())) == len(module.state_dict())
    assert not any(b.requires_grad for b in module.buffers())


@pytest.mark.parametrize("shape", [(1000, 12), (1003, 12), (3, 401, 12)])
def test_chunks_of_queries_are_the_whole(monkeypatch, shape):
    """Catches a chunk that is softmaxed over queries, dropped, repeated or joined out of order;

    and chunks of 13 rows, whose products are rounded otherwise. Rows that a library's tiles leave
    over are rounded otherwise too: bits are equal where there are none.
    """
    draw = torch.Generator().manual_seed(0)

    def drawn(*sizes):
        return torch.randn(*sizes, generator=draw, dtype=torch.float64)

    group = HeadGroup(drawn(4, 9, 12), drawn(4, 9, 12), drawn(4, 5, 12), drawn(4, 12, 5), "abcd")
    tokens = drawn(*shape)
    whole = group.project(group.weights(tokens, tokens) @ group.values(tokens))
    sizes = []
    softmax = torch.softmax
    monkeypatch.setattr(torch, "softmax", lambda z, d: sizes.append(z.numel()) or softmax(z, d))
    monkeypatch.setattr(tuning, "ATTENTION_ENTRIES", 1 << 18)
    found = group(tokens, tokens)
    if shape[-2] % 8 == 0:
        assert torch.equal(found, whole)
    assert float((found - whole).abs().max()) < 1e-12 * float(whole.abs().max())
    assert len(sizes) > 5
    assert max(sizes) <= 1 << 18
