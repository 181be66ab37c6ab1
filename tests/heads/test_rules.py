"""What a trace says of layers that are not square, entries of layers, and a table in weights."""

from dataclasses import replace

import pytest
import torch

from iceform.errors import IntegrityError
from iceform.heads import (
    Features,
    FrozenNetwork,
    HopfieldLayer,
    LiftedAttention,
    LookUpLayout,
    LookUps,
    Prompt,
    SoftmaxAttention,
)
from iceform.heads.inspection import trace_network
from iceform.heads.lookups import baked, data_tokens
from iceform.tables import Interpolant

F64 = torch.float64


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def layer(readout, features=3):
    """Two heads of width 2 on three features."""
    keys, queries = drawn(2, 2, features, seed=0), drawn(2, 2, features, seed=1)
    return SoftmaxAttention(keys, queries, drawn(2, features, features, seed=2), readout)


def traced(*layers, tokens=4, batch=()):
    network = FrozenNetwork(layers, Features.of(x=2, y=1))
    return trace_network(network, drawn(*batch, tokens, 3, seed=3))


def test_queries_that_are_read_and_asked():
    """Rows of W_O that are zero in every head are not read; columns say nothing about that."""
    readout = torch.zeros(2, 4, 4, dtype=F64)
    readout[0, 0, 1], readout[1, 0, 2], readout[1, 3, 2] = 1.0, 2.0, -1.0
    trace = traced(layer(readout), batch=(5,))
    (done,) = trace.layers
    assert done.read.tolist() == [True, False, False, True]
    assert done.asked.tolist() == done.read.tolist()
    own = torch.ones(5, 4, 4, dtype=torch.bool)
    own[:, 3, :] = False  # the last query belongs to no block
    assert replace(done, own=own).asked.tolist() == [True, False, False, False]
    one = trace.of(2)
    assert torch.equal(one.tokens, trace.tokens[2])
    assert torch.equal(one.output, trace.output[2])
    assert torch.equal(one.layers[0].scores, done.scores[2])
    assert torch.equal(one.layers[0].margins, done.margins[2])


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_margins_between_the_best_keys(tokens):
    trace = traced(layer(torch.ones(2, tokens, tokens, dtype=F64)), tokens=tokens)
    scores = trace.layers[0].scores
    if tokens == 1:
        assert bool(trace.layers[0].margins.isinf().all())
        return
    best = scores.sort(-1, descending=True).values
    torch.testing.assert_close(trace.layers[0].margins, best[..., 0] - best[..., 1])


def test_roles_and_features_go_on_where_they_can():
    """A token that one query alone makes keeps its role; features are named by their head."""
    readout = torch.zeros(1, 4, 3, dtype=F64)
    readout[0, 2, 0], readout[0, 0, 1], readout[0, 1, 1] = 1.0, 1.0, 1.0
    values = torch.zeros(2, 3, 3, dtype=F64)
    values[0, 0, 0] = values[1, 1, 1] = values[1, 2, 2] = 1.0
    heads = drawn(2, 2, 3, seed=0), drawn(2, 2, 3, seed=1), values
    shared = SoftmaxAttention(*heads, readout, labels=("near", "far"))
    after = SoftmaxAttention(*(drawn(1, 3, 3, seed=s) for s in (4, 5, 6)), drawn(1, 3, 3, seed=7))
    trace = traced(shared, after)
    assert trace.layers[0].queries == tuple(f"token {i}" for i in range(4))
    assert trace.layers[1].queries == ("token 2", "token 1", "token 2")
    assert trace.layers[0].out_features == Features.of(near=1, far=2)
    assert trace.layers[1].features == trace.layers[0].out_features
    memory = HopfieldLayer(
        drawn(4, 3, seed=8), drawn(4, 3, seed=9), drawn(2, 4, seed=10), 1.0, stored=3
    )
    kept = traced(memory, tokens=5)
    assert kept.layers[0].out_features is not None
    assert kept.layers[0].out_features.total == 2 == kept.output.shape[-1]
    assert kept.layers[0].queries == ("token 3", "token 4")
    assert kept.layers[0].keys == ("token 0", "token 1", "token 2")


def test_prompts_are_packed_and_read_back():
    prompt = Prompt(drawn(2, 3, seed=11), Features.of(x=2, y=1), ("a", "b"))
    content, tensors = prompt.pack()
    again = Prompt.unpack(content, tensors)
    assert torch.equal(again.tokens, prompt.tokens)
    assert (again.features, again.roles) == (prompt.features, prompt.roles)
    assert torch.equal(again["y"], prompt.tokens[:, 2:])
    with pytest.raises(IntegrityError, match="do not fit"):
        Prompt.unpack({**content, "roles": ["a"]}, tensors)


def test_an_entry_is_its_number_and_the_sizes_of_its_terms():
    attention = layer(drawn(2, 4, 4, seed=12))
    tokens = drawn(4, 3, seed=13)
    out = attention(tokens)
    for token in range(4):
        for feature in range(3):
            entry = attention.entry(tokens, token, feature)
            torch.testing.assert_close(entry.value, out[token, feature])
            for head in range(2):
                queries, keys = tokens @ attention.w_q[head].mT, tokens @ attention.w_k[head].mT
                terms = (queries[:, None] * keys[None]).abs().sum(-1)
                torch.testing.assert_close(entry.terms[head], terms)
                torch.testing.assert_close(entry.scores[head], queries @ keys.mT)


def test_the_work_of_an_entry_grows_with_what_is_lifted():
    """Maps to q features and m tokens first, then what any layer does."""
    n, p, q, m, heads = 4, 3, 3, 6, 2
    weights = [
        drawn(heads, 2, q, seed=14),
        drawn(heads, 2, q, seed=15),
        drawn(heads, q, q, seed=16),
    ]
    lifted = LiftedAttention(
        drawn(q, p, seed=17), drawn(n, m, seed=18), drawn(1, q, p, seed=19), [heads],
        drawn(heads, n, seed=20), drawn(m, seed=21), drawn(m, q, seed=22),
        *weights, drawn(heads, m, m, seed=23),
    )  # fmt: skip
    x = drawn(n, p, seed=24)
    torch.testing.assert_close(lifted.entry(x, 1, 2).value, lifted(x)[1, 2])
    plain = SoftmaxAttention(*weights, drawn(heads, m, m, seed=23))
    more = lifted.entry_work(x, 1, 2) - plain.entry_work(drawn(m, q, seed=25), 1, 2)
    assert more == n * p * q + m * n * q + heads * (n * p + p * q + m * q)


@pytest.mark.parametrize("offsets", [False, True])
def test_a_table_in_weights_looks_up_what_the_prompt_does(offsets):
    """The same numbers from one token a sample, for a table that is neither odd nor even."""
    layout = LookUpLayout(dim=2, samples=3, tokens=40)
    table = Interpolant.fit(torch.exp, -2.0, 1.0, 1e-6)
    x, y = 0.3 * drawn(3, 2, seed=30), 0.3 * drawn(3, seed=31).abs()
    w = torch.tensor([0.5, -0.25], dtype=F64)
    more = {"offsets": drawn(3, seed=32)} if offsets else {}
    prompt = LookUps(layout, table, x, y, w, **more)
    literal = layout.build()(prompt.tokens)[..., : layout.samples, :].flatten(-3, -2)
    found = baked(prompt, F64)(data_tokens(prompt))[..., : layout.samples, :]
    torch.testing.assert_close(found, literal[: layout.samples], rtol=1e-11, atol=1e-11)
    want = torch.exp(x @ w - y) - (more["offsets"] if offsets else 0.0)
    torch.testing.assert_close(found[:, -1], want, rtol=0, atol=1e-5)
    torch.testing.assert_close(found[:, :2], want[:, None] * x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("share", [0.01, 0.9])
@pytest.mark.parametrize("wide", [64, 1024])
def test_weights_that_change_are_noticed_whatever_their_size(wide, share):
    """Mostly zeros or hardly any, large and small: an entry, a zero, the sign of a zero."""
    kept = torch.rand(1, wide, wide, generator=torch.Generator().manual_seed(33)) < share
    weights = [torch.where(kept, 1.0, 0.0).double() for _ in range(3)]
    network = FrozenNetwork(
        [SoftmaxAttention(*weights, torch.ones(1, 2, 2, dtype=F64))], Features.of(x=wide)
    ).seal()
    digest = network.check()
    assert network.check() == digest == network.digest
    buffer = network.layers[0].w_k
    for place, value in ((kept[0].nonzero()[0], 2.0), ((~kept[0]).nonzero()[0], 1e-300),
                         ((~kept[0]).nonzero()[1], -0.0)):  # fmt: skip
        before = float(buffer[0, place[0], place[1]])
        buffer[0, place[0], place[1]] = value
        assert not bool(network.unchanged())
        with pytest.raises(IntegrityError, match="weights were changed"):
            network.check()
        buffer[0, place[0], place[1]] = before
        assert network.check() == digest
