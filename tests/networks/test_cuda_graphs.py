"""Recorded runs on a GPU, and without one: a stand-in repeats what it was shown, in its memory."""

import contextlib
import copy

import pytest
import torch
from torch import nn

import iceform as ice
from iceform import tuning
from iceform.heads import FrozenNetwork, unchecked
from iceform.networks import cuda_graphs, in_context
from iceform.networks.pieces.base import DeferredChecks

F64 = torch.float64


class Stream:
    """Of a device that does one thing after the other."""

    def wait_stream(self, other):
        assert isinstance(other, Stream)

    def record_event(self):
        return "all before"

    def wait_event(self, event):
        assert event == "all before"


class StandIn:
    """A CUDA graph: what ran while it was recorded runs again, on what its inputs hold then."""

    def replay(self):
        results, numbers, _ = self.run(*self.args)
        for there, here in zip((*self.results, self.numbers), (*results, numbers), strict=True):
            there.copy_(here)


@contextlib.contextmanager
def recording(graph, **_):
    kept = cuda_graphs._run

    def run(*args):
        results, numbers, later = kept(*args)
        graph.run, graph.args, graph.results, graph.numbers = kept, args, results, numbers
        return results, numbers, later

    cuda_graphs._run = run
    try:
        yield
    finally:
        cuda_graphs._run = kept


def stood_in(monkeypatch):
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "CUDAGraph", StandIn)
    monkeypatch.setattr(cuda, "graph", recording)
    monkeypatch.setattr(cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(cuda, "current_stream", Stream)
    monkeypatch.setattr(cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(cuda_graphs, "_beside", lambda _: Stream())
    monkeypatch.setattr(cuda_graphs, "has_triton", lambda: True)
    monkeypatch.setattr(cuda_graphs, "_is_here", lambda _: True)
    monkeypatch.setattr(cuda_graphs, "_tables", lambda *_: [])
    monkeypatch.setattr(FrozenNetwork, "is_flagged", property(lambda n: n._sealed is not None))


@pytest.fixture(params=["stand-in", "cuda"])
def net(request, monkeypatch):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).double().eval()
    made = in_context(model, calibration=[given()], headroom=4.0)
    if request.param == "cuda":
        return made.to("cuda")
    stood_in(monkeypatch)
    made.model.forward = lambda *args: called(made.model, *args)
    return made


def given(net=None):
    torch.manual_seed(1)
    x = torch.randn(3, 5, 8, dtype=F64)
    return x if net is None else x.to(next(net.buffers()).device)


def called(model, *args):
    """As on a GPU."""
    structure, tensors = model.signature.flatten(args, {})
    return model.replays.run(model, model.graph_for(structure, tensors), tensors)[0]


def thrice(net, x):
    """Run, recorded, replayed."""
    first, second, third = (net(x) for _ in range(3))
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    return first


def recordings(net):
    return [one for one in net.model.replays._known.values() if one is not None]


def test_the_second_call_is_recorded_and_later_ones_replay_it(net):
    x, want = given(net), net(given(net))
    assert not recordings(net)
    assert torch.equal(net(x), want)
    (held,) = recordings(net)
    later = net(0.5 * x)
    assert recordings(net) == [held]
    assert float((later - net.reference(0.5 * x)).abs().max()) <= 1e-9
    assert torch.equal(net(x), want)
    assert float((later - want).abs().max()) > 1e-3  # what was handed out is not written over
    for size in range(1, 7):
        net(x[:1, : min(size, 5)]), net(x[:2, : min(size, 5)])
    assert len(net.model.replays._known) <= tuning.NETWORK_GRAPHS_KEPT


def test_maps_and_sums_are_left_to_the_piece_behind_them(net, monkeypatch):
    """With the same numbers, and every piece judged; not where somebody looks at them."""
    x, graph = given(net), net.model.graphs[0]
    joined = net.model.joined(graph)
    behind = [net.model.get_submodule(node.args[0]).kind for node in graph.nodes
              if node.op == "piece" and joined & set(node.needs)]  # fmt: skip
    assert behind == ["norm", "activation", "norm"]
    later = DeferredChecks()
    with later.on():
        (apart,) = graph.run(net.model, [x])
    (want,) = graph.run(net.model, [x], joined=joined)
    assert torch.equal(apart, want)
    assert torch.equal(net(x), want)
    _, _, together = cuda_graphs._run(net.model, graph, [x])
    assert {p.name for p, _ in later._seen} >= {p.name for p, _ in together._seen}
    table = next(p for p in net.pieces if p.kind == "activation")
    assert any(p is table for p, _ in together._seen)
    monkeypatch.setattr(table, "high", 1e-3)
    with pytest.raises(ice.errors.BoundError, match=r"max \|input\| of gelu"):
        net(x)
    handle = table.hook_out.register_forward_hook(lambda *_: None)
    assert not net.model.joined(graph)
    handle.remove()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e6])
def test_inputs_out_of_range_are_refused(net, bad):
    x = given(net)
    want = thrice(net, x)
    y = x.clone()
    y[1, 2, 3] = bad
    with pytest.raises(
        ice.errors.BoundError, match=r"in_proj.*2-norm of a token is|in_proj: max \|"
    ):
        net(y)
    assert torch.equal(net(x), want)


@pytest.mark.parametrize(("index", "value"), [(1, float("nan")), (1, 2.0), (0, 2.0)])
def test_changed_weights_are_refused_or_followed(net, index, value):
    x, weight = given(net), net.frozen.network.layers[index].w_k
    want = thrice(net, x)
    kept = weight.clone()
    weight.data.view(-1)[0] = value
    with pytest.raises(ice.errors.IntegrityError, match="weights were changed"):
        net(x)
    weight.copy_(2 * kept)
    with unchecked():
        moved = net(x)
    # A line that is read at another sharpness is nearly a line.
    assert float((moved - want).abs().max()) > (1e-3 if index else 1e-7)
    with pytest.raises(ice.errors.IntegrityError, match="weights were changed"):
        net(x)
    weight.copy_(kept)
    assert torch.equal(net(x), want)


def test_prompts_that_lie_elsewhere_are_recorded_again(net):
    x = given(net)
    want = thrice(net, x)
    (held,) = recordings(net)
    piece = next(p for p in net.pieces if p.kind == "linear")
    piece.offset.add_(0.01)
    assert float((net(x) - want).abs().max()) > 1e-6
    assert recordings(net) == [held]
    piece.offset = piece.offset - 0.01
    assert float((net(x) - want).abs().max()) < 1e-12
    assert recordings(net) != [held]


def test_hooks_gradients_and_watched_runs_are_not_replayed(net):
    x, seen = given(net), []
    want = thrice(net, x)
    handle = net.pieces[0].hook_out.register_forward_hook(lambda *a: seen.append(1))
    net(x)
    handle.remove()
    net(x)
    assert len(seen) == 1
    y = x.clone().requires_grad_()
    net(y).sum().backward()
    assert bool(y.grad.isfinite().all())
    assert net.run(x).attestation.ok
    with net.model.replays._lock:  # somebody else replays
        assert torch.equal(net(x), want)
    assert not recordings(copy.deepcopy(net))


def test_what_cannot_be_recorded_runs_as_it_is(net, monkeypatch):
    @contextlib.contextmanager
    def waits(*_, **__):
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", waits)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    x = given(net)
    want = net(x)
    assert torch.equal(net(x), want)
    assert torch.equal(net(x), want)
    assert not recordings(net)
