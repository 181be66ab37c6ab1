"""What runs is the network and the prompt: change either, and the answer is that one's.

Every fast path is inside every certificate, so only an intervention can tell it from a formula
that reads neither. With the checks off, another network is multiplied as it is, and whoever insists
on the fast path is refused; another prompt is read as the data it is. Every construction does so
in its own suite (tests/conformance.py), every algorithm in those of the estimators.
"""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from iceform.errors import IntegrityError
from iceform.heads import LookUpLayout, LookUps, SoftmaxAverage, unchecked
from iceform.paper import LinearLayer
from iceform.run import bind
from iceform.tables import Interpolant

LAYOUT = LookUpLayout(dim=3, samples=4, tokens=80)
TABLES = {
    "fitted": Interpolant.fit(torch.tanh, -8, 8, 1e-8),
    "line": Interpolant.identity(-8, 8),
    "crowded": Interpolant.fit(lambda z: z.clamp(-1, 1), -8, 8, tokens=79, kinks=(-1.0, 1.0)),
}
FAR = 1e-3  # an intervention moves the answer by more than this
NEAR = 1e-11  # and both backends by the same, to this


def look_ups(table: Interpolant, rows: int = 11) -> LookUps:
    x, y = 2 * torch.rand(rows, 3).double() - 1, torch.rand(rows).double()
    w = torch.tensor([1.5, -0.7, 0.4]).double()
    return LookUps(LAYOUT, table, x, y, w, offsets=y, gain=-0.5, keep=0.9)


def average() -> SoftmaxAverage:
    x, values = torch.randn(50, 3).double(), torch.randn(50, 2).double()
    return SoftmaxAverage(LAYOUT, 2 * x, -x.square().sum(1), values, torch.randn(9, 3).double())


def permute(network):
    order = torch.tensor([2, 0, 1])
    key_x = network.layers[1].w_k[0, :, network.features["key_x"]]
    network.layers[1].w_k[0, :, network.features["key_x"]] = key_x[:, order].clone()


def sharpen(network):
    network.layers[1].w_k.mul_(2)


def scale_values(network):
    network.layers[1].w_v.mul_(1.5)


def mix_values(network):
    network.layers[1].w_v[0, 0, network.features["value"]] += 0.25


def swap_answers(network):
    w_o = network.layers[1].w_o[0]
    first, free = w_o.shape[0] - 2 * LAYOUT.samples, w_o.shape[0] - LAYOUT.samples
    for start in (first, free):
        w_o[start : start + 2] = w_o[start : start + 2].flip(0).clone()


def scale_embedding(network):
    network.layers[0].features[network.features["w"], network.features["w"]] *= 0.5


def shift_label(network):
    w_q = network.layers[1].w_q
    w_q[0, 0, LAYOUT.features["is_query"]] = 0.3


NETWORKS = {f.__name__: f for f in (
    permute, sharpen, scale_values, mix_values, swap_answers, scale_embedding, shift_label,
)}  # fmt: skip


def no_margin(network):
    network.layers[1].w_k[0, -LAYOUT.samples :] *= 2.0**-45


def leaking_value(network):
    network.layers[1].w_v[0, 0, 0] = 0.1


def a_nan(network):
    network.layers[0].places[0, 0] = float("nan")


def another_layer(network):
    network.layers.append(torch.nn.Identity())


def through_a_view(network):
    network.layers[1].w_v.data.view(-1)[-1] = torch.finfo(torch.float64).tiny


def answers(network, prompt):
    backends = [bind(network, name) for name in ("literal", "auto")]
    rows = [b.run(prompt) for b in backends]
    if isinstance(prompt, LookUps):
        sums = [(b.total(prompt), b.count(prompt)) for b in backends]
        assert torch.allclose(sums[0][0], sums[1][0], rtol=0, atol=20 * NEAR)
        assert torch.allclose(sums[0][1], sums[1][1], rtol=0, atol=20 * NEAR)
        assert torch.allclose(sums[1][0], rows[1][..., :-1].sum(-2), rtol=0, atol=20 * NEAR)
    return rows


def apart() -> SoftmaxAverage:
    """Points from which other tokens are hidden, in a prompt each."""
    whole = average()
    return replace(whole, seen=torch.rand(9, 50) > 0.6)


ASKED = {"look-ups": lambda: look_ups(TABLES["fitted"]), "average": average, "apart": apart}


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize("change", NETWORKS)
def test_another_network_gives_its_own_answer(change, kind):
    prompt, network = ASKED[kind](), LAYOUT.build()
    before, kept = answers(network, prompt)[0], deepcopy(network.state_dict())
    assert bind(network, "auto").name == "fused"
    NETWORKS[change](network)
    with pytest.raises(IntegrityError, match="weights were changed"):
        bind(network, "auto")
    with unchecked():
        assert bind(network, "auto").name == "literal"
        literal, ours = answers(network, prompt)
    assert float((literal - before).abs().max()) > FAR
    assert torch.equal(literal, ours)
    network.load_state_dict(kept)
    with unchecked():
        assert bind(network, "auto").name == "fused"
    assert torch.equal(answers(network, prompt)[0], before)


UNSEEN = (no_margin, leaking_value, a_nan, another_layer, through_a_view)


@pytest.mark.parametrize("change", [*NETWORKS.values(), *UNSEEN], ids=lambda f: f.__name__)
def test_the_fast_path_runs_the_weights_that_were_built_and_no_others(change):
    """However small the change, and whatever it is to."""
    network = LAYOUT.build()
    bind(network, "fused")
    change(network)
    with unchecked(), pytest.raises(IntegrityError, match=r"a design implies.* 'literal', which"):
        bind(network, "fused")


def test_look_ups_are_for_their_own_layer():
    """A prompt for other sizes, and a margin that leaks, are the matrices' to read."""
    prompt = look_ups(TABLES["fitted"])
    for other in (LookUpLayout(3, 4, 81), LookUpLayout(3, 4, 80, margin=2.0)):
        with pytest.raises(IntegrityError, match="where the network is their layer"):
            bind(other.build(), "fused").run(replace(prompt, layout=LAYOUT))
    loose = replace(LAYOUT, margin=2.0)
    with pytest.raises(IntegrityError, match="where the network is their layer"):
        bind(loose.build(), "fused").run(replace(prompt, layout=loose))


AVERAGES = {
    "sharpness doubled": lambda p: replace(p, keys=2 * p.keys, biases=2 * p.biases),
    "a sample replaced": lambda p: replace(p, keys=torch.cat([p.keys[1:], p.keys[:1]])),
    "a value shifted": lambda p: replace(p, values=p.values + 0.1),
    "others hidden": lambda p: replace(p, seen=p.seen.roll(1, 1)),
    "biases of each point": lambda p: replace(p, biases=p.biases + torch.rand(9, 50).double()),
}


@pytest.mark.parametrize("change", AVERAGES)
def test_another_average_gives_its_own_answer(change):
    network, prompt = LAYOUT.build(), apart()
    before = answers(network, prompt)[0]
    weights = torch.softmax(prompt.points @ prompt.keys.mT + prompt.biases, 1) * prompt.seen
    want = weights @ prompt.values / weights.sum(1, keepdim=True)
    assert torch.allclose(before, want, rtol=0, atol=NEAR)
    literal, fused = answers(network, AVERAGES[change](prompt))
    assert float((literal - before).abs().max()) > FAR
    assert torch.allclose(literal, fused, rtol=0, atol=NEAR)


@pytest.mark.parametrize("sharp", [1.0, 1e4, 1e9])
def test_a_read_of_few_tokens_is_the_read_of_all(sharp):
    """Sharp reads are taken from the tokens that weigh anything; at 1.0 that is all of them."""
    g = torch.Generator().manual_seed(7)
    x, points = (torch.randn(n, 3, generator=g).double() for n in (300, 12))
    values = torch.randn(300, 2, generator=g).double()
    x[5] = x[4]  # one read mixes two
    points[0] = x[4]
    seen = torch.rand(12, 300, generator=g) > 0.3
    seen[0, 4:6] = True
    prompt = SoftmaxAverage(LAYOUT, 2 * sharp * x, -sharp * x.square().sum(1), values, points, seen)
    literal, fused = answers(LAYOUT.build(), prompt)
    assert torch.allclose(literal, fused, rtol=0, atol=1e-14 * sharp + 1e-13)
    changed = replace(prompt, values=values.flip(0))
    assert torch.allclose(*answers(LAYOUT.build(), changed), rtol=0, atol=1e-14 * sharp + 1e-13)


def shifted_value(prompt):
    middle = int((prompt.table.weights(prompt.residuals()[:1])[0]).argmax())
    values = prompt.values.clone()
    values[middle] += 0.1
    return replace(prompt, values=values)


def moved_token(prompt):
    slopes = prompt.slopes.clone()
    slopes[len(slopes) // 2] += 0.5
    return replace(prompt, slopes=slopes)


PROMPTS = {
    "a value shifted": shifted_value,
    "sharpness doubled": lambda p: replace(p, slopes=2 * p.slopes, biases=2 * p.biases),
    "a token moved": moved_token,
    "a sample replaced": lambda p: replace(p, x=torch.cat([p.x[1:], p.x[:1]])),
    "labels moved": lambda p: replace(p, y=p.y + 0.2),
    "another w": lambda p: replace(p, w=p.w.flip(0)),
    "another step": lambda p: replace(p, gain=-0.25),
}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("change", PROMPTS)
def test_another_prompt_gives_its_own_answer(change, kind):
    network, prompt = LAYOUT.build(), look_ups(TABLES[kind])
    before = answers(network, prompt)[0]
    literal, fused = answers(network, PROMPTS[change](prompt))
    if not (kind == "line" and change == "sharpness doubled"):  # a line at any temperature
        assert float((literal - before).abs().max()) > FAR
    assert torch.allclose(literal, fused, rtol=0, atol=NEAR)


def test_program_tokens_are_the_same_for_all_data():
    """Where data are zero, only the program is left; and what is written for data is affine."""
    table = TABLES["fitted"]
    first, second = look_ups(table, 4), look_ups(table, 4)

    def tokens(x, y, w, o):
        return LookUps(LAYOUT, table, x, y, w, offsets=o, gain=-0.5, keep=0.9).tokens

    zero = tokens(0 * first.x, 0 * first.y, 0 * first.w, 0 * first.y)
    again = tokens(0 * second.x, 0 * second.y, 0 * second.w, 0 * second.y)
    assert torch.equal(zero, again)
    # x, y and w alone, then with offsets: o x is the one feature that is not linear in the data.
    a, b = (tokens(p.x, p.y, p.w, 0 * p.y) for p in (first, second))
    both = tokens(first.x + second.x, first.y + second.y, first.w + second.w, 0 * first.y)
    assert torch.allclose(both - zero, (a - zero) + (b - zero), rtol=0, atol=1e-11)


def test_a_bound_backend_refuses_weights_that_change_after():
    """A fused run reads the design, so it would go on as if nothing had been changed."""
    layer = LinearLayer(2, 2, samples=3, tokens=64)
    x, theta = torch.full((3, 2), 0.5).double(), torch.eye(2).double() / 2
    bound = layer.bind()
    before = layer.through(bound, x, theta)
    layer.network.layers[0].w_v.mul_(2)
    with pytest.raises(IntegrityError, match="weights were changed"):
        layer.through(bound, x, theta)
    with unchecked():
        with pytest.raises(IntegrityError, match="bind the network again"):
            layer.through(bound, x, theta)
        assert (layer.through(layer.bind(), x, theta) - before).abs().max() > FAR
