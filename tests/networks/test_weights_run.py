"""A network in context runs on its two frozen layers: what they hold is what comes out."""

import copy
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import iceform as ice
from iceform import tuning
from iceform.heads import unchecked
from iceform.networks import in_context
from iceform.networks.pieces import (
    AttentionPiece,
    Gate,
    LinearMap,
    Norm,
    ProductPiece,
    TabulatedActivation,
)

F32, F64 = torch.float32, torch.float64


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """However slow the machine is, everything that was kept is run again."""
    monkeypatch.setattr(tuning, "REPLAY_SECONDS", 60.0)


class Small(nn.Module):
    """Every kind of piece: embedding, heads, linear maps, a table, a gate, norms, products."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.inner, self.table = nn.Linear(4, 5), nn.Tanh()
        self.outer, self.gate = nn.Linear(5, 3), nn.SiLU()
        self.last = nn.RMSNorm(3, eps=1e-5, elementwise_affine=False)

    def forward(self, ids):
        x = self.words(ids)
        attended, _ = self.attention(x, x, x, need_weights=False)
        y = self.outer(self.table(self.inner(self.norm(x + attended))))
        return self.last(self.gate(y) * y @ y.mT[..., :3])


IDS = torch.tensor([[0, 3, 5, 6], [1, 2, 4, 4]])


def built(backend="auto", dtype=F64):
    torch.manual_seed(0)
    model = Small().double().eval()
    return in_context(model, calibration=[IDS], dtype=dtype, backend=backend)


@pytest.fixture(scope="module")
def pair():
    return built("literal"), built()


def layers(network):
    return network.frozen.network.layers


# ---------------------------------------------------------------------------------- interventions


def permute_reading_keys(net):
    w_k = layers(net)[0].w_k
    order = [2, 0, 1, *range(3, w_k.shape[-2])]
    w_k.copy_(w_k[:, order].clone())


def permute_attending_queries(net):
    w_q = layers(net)[1].w_q
    w_q.copy_(w_q[:, [1, 0, *range(2, w_q.shape[-2])]].clone())


def scale_read_values(net):
    layers(net)[0].w_v.mul_(1.5)


def scale_attended_values(net):
    layers(net)[1].w_v.mul_(1.5)


def double_sharpness(net):
    layers(net)[1].w_k.mul_(2.0)


def shift_a_value(net):
    layers(net)[0].constant[net.frozen.table.tokens // 2, -3] += 0.1


def swap_rows(net):
    layers(net)[0].picks.copy_(layers(net)[0].picks.flip(0).clone())


INTERVENTIONS = (
    permute_reading_keys, permute_attending_queries, scale_read_values, scale_attended_values,
    double_sharpness, shift_a_value, swap_rows,
)  # fmt: skip


@pytest.mark.parametrize("change", INTERVENTIONS, ids=lambda f: f.__name__)
def test_every_piece_follows_the_weights(pair, change):
    """Ranges are those of the original, so pieces are asked one by one."""
    moved = 0.0
    for dense, fused in zip(pair[0].pieces, pair[1].pieces, strict=True):
        torch.manual_seed(1)
        inputs = example(fused)
        if inputs is None:
            continue
        want, before = fused.emulate(*inputs), {}
        with torch.no_grad():
            for net in pair:
                before[id(net)] = copy.deepcopy(net.frozen.network.state_dict())
                change(net)
        with unchecked():
            digests = [net.frozen.check() for net in pair]
            literal, ours = dense.emulate(*inputs), fused.emulate(*inputs)
        for net in pair:
            net.frozen.network.load_state_dict(before[id(net)])
            net.frozen.check()
        assert digests[0] == digests[1] != pair[0].frozen.digest
        assert torch.equal(literal, ours), fused.name
        moved = max(moved, float((literal - want).abs().max()))
    assert moved >= 1e-2, f"the intervention changed {moved:.3e} only"


def example(piece):
    if isinstance(piece, LinearMap):
        x = torch.randn(3, piece.in_features, dtype=F64)
        return (0.4 * piece.norm * x / x.norm(dim=-1, keepdim=True),)
    if isinstance(piece, AttentionPiece):
        return tuple(0.3 * torch.randn(1, 2, 4, piece.head_dim, dtype=F64) for _ in "qkv")
    if isinstance(piece, TabulatedActivation | Gate):
        return (torch.linspace(-0.9, 0.9, 7, dtype=F64) * piece.high,)
    if isinstance(piece, Norm):  # squares stay positive when features are permuted
        x = torch.ones(piece.width, dtype=F64)
        x[-1] = 1 - piece.width if piece.centred else 1
        return (torch.outer(torch.tensor([0.5, 1.0, 3.0], dtype=F64), x),)
    if isinstance(piece, ProductPiece):
        return torch.randn(2, 3, 3, dtype=F64), torch.randn(2, 3, 3, dtype=F64)
    return (IDS,) if piece.kind == "embedding" else None


def test_pieces_of_both_backends_agree_on_their_own_weights(pair):
    for dense, fused in zip(pair[0].pieces, pair[1].pieces, strict=True):
        inputs = example(fused)
        if inputs is not None:
            off = float((dense.emulate(*inputs) - fused.emulate(*inputs)).abs().max())
            assert off <= dense.certified + fused.certified, fused.name


# ------------------------------------------------------------------------------------- integrity


def in_place(weight):
    weight.view(-1)[0] = float("nan")


def through_data(weight):
    weight.data.view(-1)[0] = float("nan")


def through_numpy(weight):
    weight.detach().numpy().reshape(-1)[0] = np.nan


def scaled(weight):
    weight.mul_(1.5)


def swapped(weight):
    weight.copy_(weight.flip(-2).clone())


@pytest.mark.parametrize(
    ("forge", "index"),
    [(in_place, 0), (through_data, 1), (through_numpy, 0), (scaled, 1), (swapped, 0)],
)
def test_changed_weights_are_refused(pair, forge, index):
    for net in pair:
        kept = copy.deepcopy(net.frozen.network.state_dict())
        forge(layers(net)[index].w_k)
        for run in (net, net.run):
            with pytest.raises(ice.errors.IntegrityError, match="weights were changed"):
                run(IDS)
        net.frozen.network.load_state_dict(kept)
        assert net(IDS).isfinite().all()


def test_other_weights_are_multiplied_as_they_are_and_that_is_said():
    net, insists = built(), built("fused")
    want = net(IDS)
    for one in (net, insists):
        layers(one)[1].w_v.mul_(0.999)
    with unchecked():
        result = net.run(IDS)
        with pytest.raises(ice.errors.IntegrityError, match="that a design implies"):
            insists(IDS)
    assert (result.attestation.backend, result.attestation.ok) == ("literal", False)
    assert float((result.value - want).abs().max()) > 1e-4
    layers(net)[1].w_v.fill_(float("nan"))
    with unchecked(), pytest.raises(ice.errors.BoundError, match="nan"):
        net(IDS)


# ------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("dtype", [F64, F32])
def test_a_run_is_attested_and_says_what_was_computed_where(dtype):
    net = built(dtype=dtype)
    result = net.run(IDS)
    assert torch.equal(result.value, net(IDS))
    assert result.parts["output"] is result.value
    assert result.attestation.ok
    assert result.attestation.rows >= 5
    assert result.digest == net.digest
    assert result.passes == len(net.pieces)
    assert set(result.ledger.host) == {"ranges checked", "add between pieces"}
    whole = {(a, b): n for a, b, n in result.ledger}
    assert whole["attention", "linear: look-up, weights in the prompt"] == 4
    assert whole["attention", "heads: attended, Q, K, V looked up"] == 1


def test_a_literal_run_needs_no_rows_run_again(pair):
    assert "every row" in pair[0].run(IDS).attestation.explain()


@pytest.mark.parametrize("kind", ["linear", "heads", "activation", "embedding", "norm", "product"])
def test_a_piece_that_is_off_is_noticed(pair, kind, monkeypatch):
    _, net = pair
    for piece in net.pieces:
        if piece.kind == kind:
            right = piece.checked
            monkeypatch.setattr(piece, "checked", lambda *x, f=right, **k: f(*x, **k) * (1 + 1e-8))
    with pytest.raises(ice.errors.IntegrityError, match="off by"):
        net.run(IDS)


def test_what_no_range_bounds_is_not_proven_of_every_input():
    class Ratio(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(2, 2, dtype=F64)

        def forward(self, x):
            return self.one(x) / x

    x = torch.randn(3, 2, dtype=F64)
    result = in_context(Ratio(), calibration=[x]).run(x)
    assert result.certificate.error == float("inf")
    assert "div between pieces" in result.ledger.host


def test_widening_in_many_threads_keeps_every_answer_right():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 2)).double()
    x = torch.randn(16, 3, dtype=F64)
    net = in_context(model, calibration=[0.1 * x], on_range="widen")
    off = []

    def work(factor):
        for _ in range(20):
            off.append(float((net(factor * x) - model(factor * x)).detach().abs().max()))

    threads = [threading.Thread(target=work, args=(2.0**k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(off) == 120
    assert max(off) <= net.certificate.error < 1e-8


def test_a_table_that_outgrows_the_frozen_layers_is_refused():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 2), nn.Softplus()).double()
    x = torch.randn(8, 2, dtype=F64)
    net = in_context(model, calibration=[0.01 * x], on_range="widen")
    before = net.pieces[1].high
    with pytest.raises(
        ice.errors.BoundError, match=r"has \d+ tokens, the frozen layers are sized for"
    ):
        net(16 * x)
    assert net.pieces[1].high == before


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("step", ["_mean", "_square"])
def test_a_sum_inside_a_norm_that_leaves_out_a_feature_is_noticed(step, plain, monkeypatch):
    """What is run again is not only what comes after the sums."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(16, elementwise_affine=not plain, dtype=F64)
    x = torch.randn(3, 16, dtype=F64)
    net = in_context(nn.Sequential(norm), calibration=[x], dtype=F64)
    assert net.run(x).attestation.ok
    right = getattr(Norm, step)

    def wrong(self, values, *rest):
        kept = values.clone()
        kept[..., -1] = 0.0
        return replace(right(self, values, *rest), z=right(self, kept, *rest).z)

    monkeypatch.setattr(Norm, step, wrong)
    with unchecked():
        assert net.run(x).attestation.ok is False
