"""Networks in context on a GPU: recorded and replayed, and nothing that was checked is skipped."""

import copy
import threading
from functools import cache

import pytest
import torch
from torch import nn

from iceform.networks import in_context

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
F32, F64 = torch.float32, torch.float64


@cache
def converted(dtype, norm_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, activation="gelu", norm_first=norm_first
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(dtype).eval()
    x = torch.randn(8, 10, 16, dtype=dtype)
    net = in_context(model, calibration=[x], headroom=4.0)
    return net, net(x), x


def built(dtype=F64, norm_first=False):
    net, want, x = converted(dtype, norm_first)
    return net, want, copy.deepcopy(net).to("cuda"), x.to("cuda")


def thrice(net, x):
    """Run, recorded, replayed."""
    first, second, third = (net(x) for _ in range(3))
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    return first


def recordings(net):
    return sum(one is not None for one in net.model.replays._known.values())


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("dtype", [F64, F32])
def test_a_replay_is_the_run_that_was_recorded(dtype, norm_first):
    _, want, net, x = built(dtype, norm_first)
    first = thrice(net, x)
    assert recordings(net) == 1
    kept = first.clone()
    found = net.enclosure(x)
    assert torch.equal(found.outputs[0], first)  # step by step it is the same run
    certified = found.error
    assert float((first.double() - net.reference(x)).abs().max()) <= certified
    assert float((first.cpu() - want).abs().max()) <= 2 * certified
    other = 0.5 * x.flip(0)
    at_other = net.enclosure(other).error
    assert float((net(other).double() - net.reference(other)).abs().max()) <= at_other
    assert torch.equal(first, kept)  # a later replay does not write over what was handed out
    assert net.run(x).attestation.ok
    for shape in ((3, 10), (8, 4), (3, 10)):
        y = torch.randn(*shape, 16, dtype=dtype, device="cuda")
        assert float((net(y).double() - net.reference(y)).abs().max()) <= net.enclosure(y).error


def test_another_kind_of_call_is_captured_where_the_pieces_are():
    """Norms, maps and constants of the new graph are those that there are."""
    _, _, net, x = built()
    pieces = len(net.pieces)
    allowed = torch.zeros(10, 10, dtype=F64, device="cuda").masked_fill(
        torch.ones(10, 10, dtype=torch.bool, device="cuda").triu(1), float("-inf")
    )
    for given in ((x[:1],), (x, allowed)):
        off = (net(*given) - net.reference(*given)).abs().max()
        assert float(off) <= net.enclosure(*given).error
    assert len(net.pieces) == pieces


class Placed(nn.Module):
    """Tensors made and moved by the device of others."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x, mask):
        places = torch.arange(x.shape[1]).to(x.device) + torch.zeros(x.shape[1], device=x.device)
        return (self.inner(x) + places[:, None]) * mask[..., None].to(x)


def test_devices_that_code_names_are_those_of_the_inputs():
    x, mask = torch.randn(3, 5, 4, dtype=F64), torch.ones(3, 5, dtype=torch.long)
    model = Placed().double()
    net = in_context(model, calibration=[(x, mask)], headroom=4.0).to("cuda")
    want = model(x, mask).detach()
    x, mask = x.to("cuda"), mask.to("cuda")
    assert float((net(x, mask).cpu() - want).abs().max()) <= net.enclosure(x, mask).error


def test_threads_and_modes():
    _, _, net, x = built()
    with torch.inference_mode():
        inside = thrice(net, x)
    want, off = net(x), []
    assert torch.equal(inside, want)

    def work(scale):
        for _ in range(10):
            y = scale * x
            off.append(float((net(y) - net.reference(y)).abs().max()))

    threads = [threading.Thread(target=work, args=(0.5 + 0.1 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(off) == 40
    assert max(off) <= 1e-9
    assert torch.equal(net(x), want)
