"""Designs: the literal networks are what they say, to the last bit, and do nothing else."""

from dataclasses import replace

import pytest
import torch

from iceform import paper
from iceform.computer.block import TransformerBlock
from iceform.computer.layout import ComputerLayout as Tokens
from iceform.computer.layout import ComputerSizes
from iceform.errors import ShapeError
from iceform.heads import (
    Design,
    Features,
    FrozenNetwork,
    Head,
    HopfieldLayer,
    LookUpLayout,
    Move,
    Row,
    SoftmaxAttention,
    attention,
    moves,
    products,
    rows,
)
from iceform.heads.head import stacked
from iceform.heads.variants import ProjectedAttention
from iceform.networks.frozen import FrozenLayers, NetworkSizes, identity_table
from iceform.targets import ARCHITECTURES

F64 = torch.float64
SIZES = ComputerSizes(2, 3, 4, 2, 8, 30)
ROOM = {"bound": 0.5, "eps": None}


def block(residual):
    found = TransformerBlock(Tokens.of(SIZES), SIZES.margins(F64))
    return found.design(residual=residual), found.network(F64, residual=residual)


def construction(kind, *args, **options):
    em = kind(*args, **options, **ROOM)
    return em.design, em.network


def frozen():
    layers = FrozenLayers(NetworkSizes.covering(5, 3, 2, 2, 20), identity_table(None, F64), F64)
    read, attend = layers.rows.design, layers.design
    return [(read, layers.network.layers[:1]), (attend, layers.network.layers[1:])]


def one_layer(design, layers):
    return design, FrozenNetwork(layers, design.features)


NETWORKS = {
    "look-ups": lambda: (LookUpLayout(3, 2, 7).design, LookUpLayout(3, 2, 7).build()),
    "steps unrolled": lambda: construction(
        paper.GradientDescent, "squared", 3, 0.1, 0.1, dim=2, samples=3, unrolled=True
    ),
    "accelerated": lambda: construction(
        paper.GradientDescent, "squared", 3, 0.1, l2=0.1, schedule="nesterov", hessian=(0.1, 2.0),
        dim=2, samples=3, unrolled=True,
    ),
    "one prompt": lambda: construction(paper.CompactStep, "squared", 0.1, dim=2, samples=3),
    "stored patterns": lambda: construction(
        paper.HopfieldMap, torch.tanh, torch.tensor([0.5, -0.3], dtype=F64), 0.2, samples=3
    ),
    "stored look-ups": lambda: construction(
        paper.HopfieldResidual, torch.sin, dim=2, samples=3
    ),
    "rows": lambda: construction(paper.AttentionHead, 3, 2, 2, 4, heads=2),
    "embedded rows": lambda: construction(paper.AttentionHead, 3, 2, 2, 4, encoding="embedding"),
    "linear": lambda: construction(paper.LinearLayer, 3, 2, samples=4),
    "split rows": lambda: construction(paper.SplitAttentionHead, 3, 2, 2, 6, split=2),
    "truncated line": lambda: construction(
        paper.TruncatedLinear, -1.0, 1.0, 4, dim=3, samples=9
    ),
    "computer": lambda: block(False),
    "residual computer": lambda: block(True),
    "networks' rows": lambda: one_layer(*frozen()[0]),
    "networks' heads": lambda: one_layer(*frozen()[1]),
}  # fmt: skip


def bits(tensor):
    return tensor.detach().double().contiguous().numpy().tobytes()


def heads_of(network):
    """Per attention layer: role, W_Q, W_K, and the map from values into the stream, by head."""
    for layer in network.layers:
        if isinstance(layer, SoftmaxAttention):
            count = len(layer.labels)
            parts = (w.expand(count, -1, -1) for w in (layer.w_q, layer.w_k, layer.w_v))
            yield list(zip(layer.labels, *parts, strict=True))
        elif isinstance(layer, ProjectedAttention):
            yield [
                (role, group.w_q[h], group.w_k[h], group.w_o[h] @ group.w_v[h])
                for group in layer.head_groups
                for h, role in enumerate(group.labels)
            ]
        elif isinstance(layer, HopfieldLayer):
            met = int(layer.w_q.any(1).sum())
            yield [("retrieval", layer.w_q[:met], layer.w_k[:met], layer.w_v @ layer.w_k)]


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_the_designs_to_the_bit(name):
    """Catches a row that is built and not said, or said and not built."""
    design, network = NETWORKS[name]()
    layers = list(heads_of(network))
    assert len(layers) == len(design.layers)
    for number, found in enumerate(layers):
        said = design.matrices(number)
        assert [role for role, *_ in found] == [head.role for head in design.layers[number]]
        for h, (_, w_q, w_k, moved) in enumerate(found):
            for held, map_ in ((w_q, said["q"][h]), (w_k, said["k"][h])):
                assert bits(held) == bits(map_[: len(held)])
                assert not map_[len(held) :].any()
            assert torch.equal(moved, said["o"][h] @ said["v"][h])


@pytest.mark.parametrize("name", NETWORKS)
def test_the_ground_truth_names_every_head(name):
    design, network = NETWORKS[name]()
    truth = design.ground_truth()
    assert sum(map(len, truth)) == network.heads == design.cost()["heads"]
    for layer, heads in zip(truth, design.layers, strict=True):
        for said, head in zip(layer, heads, strict=True):
            assert said["role"] == head.role != "idle"
            assert said["writes"]
    streams = design.streams
    known = {name for names in (*streams, design.keys or ()) for name in names}
    assert set(design.edges()) <= known


def contributions(network, number, tokens):
    """What every head of a layer adds, by itself."""
    layer = [x for x in network.layers if hasattr(x, "labels")][number]
    if isinstance(layer, SoftmaxAttention):
        count = len(layer.labels)
        each = [w.expand(count, -1, -1) for w in (layer.w_k, layer.w_q, layer.w_v, layer.w_o)]
        return [SoftmaxAttention(*(w[h : h + 1] for w in each))(tokens) for h in range(count)]
    out = []
    for group in layer.head_groups:
        looked = group.weights(tokens, tokens) @ group.values(tokens)
        out += [looked[..., h, :, :] @ group.w_o[h].mT for h in range(len(group.labels))]
    return out


@pytest.mark.parametrize(
    ("name", "number"),
    [("look-ups", 0), ("one prompt", 0), ("one prompt", 1), ("truncated line", 0)]
    + [("residual computer", layer) for layer in range(4)],
)
def test_an_edge_that_is_not_listed_carries_nothing(name, number):
    """A feature is moved in every token: heads that are listed for it change, others do not."""
    design, network = NETWORKS[name]()
    draw, wide = torch.Generator().manual_seed(0), design.streams[number]
    layer = [x for x in network.layers if hasattr(x, "labels")][number]
    count = layer.w_o.shape[1] if isinstance(layer, SoftmaxAttention) else 6
    # Small, so that no margin decides everything.
    tokens = 1e-3 * torch.rand(count, wide.total, generator=draw, dtype=F64)
    before, edges = contributions(network, number, tokens), design.edges()
    changed = 0
    for feature in wide:
        moved = tokens.clone()
        moved[:, wide[feature]] += 1e-3 * torch.rand(count, 1, generator=draw, dtype=F64)
        listed = {
            tuple(place)
            for kind, places in edges.get(feature, {}).items()
            for place in places
            if kind != "written"
        }
        after = contributions(network, number, moved)
        for h, (old, new) in enumerate(zip(before, after, strict=True)):
            if (number, h) in listed:
                changed += not torch.equal(old, new)
            else:
                assert torch.equal(old, new), (feature, h)
    assert changed >= len(before)


@pytest.mark.parametrize("name", ["look-ups", "one prompt", "residual computer"])
def test_a_head_writes_the_features_that_it_is_listed_for(name):
    design, network = NETWORKS[name]()
    for number, layer in enumerate(heads_of(network)):
        into = design.streams[number + 1]
        for h, (*_, moved) in enumerate(layer):
            for feature in into:
                listed = [number, h] in design.edges().get(feature, {}).get("written", [])
                assert bool(moved[into[feature]].any()) == listed


def test_stock_weights_are_the_designs():
    design = replace(Design(AT, ((SUM,),)), norm=2.0**80)
    maps, weights = design.matrices(0), ARCHITECTURES["gpt2"].tensors(design, 8)
    both = torch.cat([maps[name] for name in "qkv"]).T
    assert bits(weights["h.0.attn.c_attn.weight"]) == bits(both)
    assert bits(weights["h.0.attn.c_proj.weight"]) == bits(maps["o"].T)


# ------------------------------------------------------------------------------ the language

AT = Features.of(x=2, y=1, one=1)
SUM = Head("sum", products(AT, {"x": 1.0}, {"x": 2.0}), moves(AT, {"x": 1.0, "one": 3.0}, "x"))


def test_blocks_are_rows_number_by_number():
    assert [(q.reads, k.reads) for q, k in SUM.logit] == [
        ({("x", 0): 1.0}, {("x", 0): 2.0}),
        ({("x", 1): 1.0}, {("x", 1): 2.0}),
    ]
    assert SUM.moves[1] == Move(Row({("x", 1): 1.0, ("one", 0): 3.0}), {("x", 1): 1.0})
    assert stacked([SUM], "v", AT)[0].tolist() == [[1, 0, 0, 3], [0, 1, 0, 3]]
    assert Row.of("x", 1, 2.0).times(-0.5).reads == {("x", 1): -1.0}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: products(AT, {"x": 1.0}, {"y": 1.0}), "x has 2 numbers and y 1"),
        (lambda: rows(Features.of(x=2, z=3), {"x": 1.0, "z": 1.0}), "do not add up"),
        (lambda: rows(AT, {"w": 1.0}), "no feature is called 'w'; there are x, y, one"),
        (lambda: stacked([Head("", (), (Move(Row.of("y", 1), {}),))], "v", AT), r"y\[1\] is read"),
    ],
)
def test_rows_that_leave_their_blocks_are_refused(wrong, said):
    with pytest.raises(ShapeError, match=said):
        wrong()


def test_cost_and_digest_are_of_the_weights():
    design = Design(AT, ((SUM,),), repeats=3)
    assert design.cost() == {
        "layers": 3, "heads": 3, "head_size": 2, "width": 4, "weights": 32, "nonzero": 10,
    }  # fmt: skip
    louder = replace(SUM, logit=((SUM.logit[0][0], SUM.logit[0][1].times(2.0)),) * 2)
    others = [
        Design(AT, ((louder,),), repeats=3),
        Design(AT, ((SUM,),)),
        Design(AT, ((SUM, SUM),), repeats=3),
        Design(AT, ((SUM,),), repeats=3, norm=2.0**80),
    ]
    assert len({d.digest() for d in (design, *others)}) == 5
    assert design.digest() == Design(AT, ((replace(SUM, role="?"),),), repeats=3).digest()


def test_one_design_in_three_streams_says_the_same_heads():
    """The heads that a stock block adds to hide features are idle."""
    plain = Design(AT, ((SUM,),))
    mirrored = replace(plain, norm=2.0**80)
    ballasted = replace(plain, norm=1e-5, ballast=2.0**20)
    assert plain.edges() == mirrored.edges() == ballasted.edges()
    tokens = torch.rand(5, 4, dtype=F64)
    logits = []
    for design in (plain, mirrored, ballasted):
        maps = {name: m[0] if m.ndim == 3 else m for name, m in design.matrices(0).items()}
        held = tokens if design.is_plain else design.embedded(tokens)
        scale = 1.0 if design.is_plain else design.head_size**0.5
        logits.append((held @ maps["q"].T) @ (held @ maps["k"].T).T / scale)
        assert [t["role"] for t in design.ground_truth()[0] if t["role"] != "idle"] == ["sum"]
    assert float((logits[0] - logits[1]).abs().max()) < 1e-14
    assert float((logits[0] - logits[2]).abs().max()) < 1e-14


def test_what_a_plain_layer_cannot_hold_is_refused():
    biased = Head("biased", ((Row.of("x"), Row({}, 2.5)),), ())
    with pytest.raises(ShapeError, match=r"constant 2\.5.*no biases"):
        Design(AT, ((biased,),))
    twice = Head("twice", SUM.logit, (Move(Row.of("y"), {("x", 0): 1.0}),) * 2)
    with pytest.raises(ShapeError, match="one feature twice"):
        attention(Design(AT, ((twice,),)), 0, torch.eye(2, dtype=F64))
    louder = replace(SUM, logit=SUM.logit[::-1])
    both = Design(AT, ((SUM, louder),))
    with pytest.raises(ShapeError, match="differ in k"):
        attention(both, 0, torch.eye(2, dtype=F64), shared="k")


def test_heads_that_share_a_map_hold_it_once():
    other = replace(SUM, role="other", moves=moves(AT, {"y": 1.0}, "y"))
    layer = attention(Design(AT, ((SUM, other),)), 0, torch.eye(3, dtype=F64), shared="kq")
    apart = attention(Design(AT, ((SUM, other),)), 0, torch.eye(3, dtype=F64))
    assert (len(layer.w_k), len(layer.w_q), len(layer.w_v)) == (1, 1, 2)
    tokens = torch.rand(3, 4, dtype=F64)
    assert torch.equal(layer(tokens), apart(tokens))
    assert layer.residual
