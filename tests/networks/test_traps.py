"""What a converter by class or by name gets wrong: right within the certificate, or refused."""

import copy
import os
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

import iceform as ice
from iceform.networks import InContext, in_context
from iceform.networks.capture import as_written
from tests.networks.architectures import architecture, words

os.environ.setdefault("HF_HUB_OFFLINE", "1")
F64 = torch.float64


def right(model, *inputs, within=1e-8, **named):
    """Within the certificate of this input, against the original run by hand."""
    model = model.double().eval()
    given = named or inputs
    net = in_context(model, calibration=[given], headroom=2.0)
    with torch.no_grad():
        want = model(*inputs, **named)
    got = net(*inputs, **named)
    for a, b in zip(tensors(got), tensors(want), strict=True):
        bound = net.enclosure(*inputs, **named).error
        assert float((a - b).abs().max()) <= bound < within
    return net


def tensors(output):
    if isinstance(output, torch.Tensor):
        return [output]
    return list(output.values() if hasattr(output, "values") else output)


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(3, 4, 6, dtype=F64)


# ------------------------------------------------------------------------------------- subclasses


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class LowRank(nn.Linear):
    def __init__(self, n, m):
        super().__init__(n, m)
        self.a, self.b = nn.Parameter(torch.randn(2, n)), nn.Parameter(torch.randn(m, 2))

    def forward(self, x):
        return super().forward(x) + 0.5 * x @ self.a.T @ self.b.T


class Merged(nn.Linear):
    def __init__(self, n, m):
        super().__init__(n, m)
        self.a, self.b = nn.Parameter(torch.randn(2, n)), nn.Parameter(torch.randn(m, 2))

    def forward(self, x):
        return F.linear(x, self.weight + self.b @ self.a, self.bias)


class Shifted(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + x


class Longer(nn.Embedding):
    def forward(self, ids):
        return 3 * super().forward(ids)


class Gated(nn.TransformerEncoderLayer):
    def forward(self, src, **options):
        return src - 0.5 * super().forward(src, **options)


def test_layers_of_one_encoder_that_differ(tmp_path, x):
    layers = [
        nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, norm_first=f) for f in (False, True)
    ]
    model = nn.TransformerEncoder(layers[0], 2, enable_nested_tensor=False)
    model.layers[1] = layers[1]
    net = right(model, x)
    again = InContext.from_pretrained(net.save_pretrained(tmp_path))
    assert torch.equal(again(x), net(x))


# ------------------------------------------------------------------------------------- containers


class Skip(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Looped(nn.Sequential):
    def forward(self, x):
        for _ in range(3):
            x = super().forward(x)
        return x


def hooked():
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
    model[0].register_forward_hook(lambda module, given, out: out + 1)
    return model


def patched():
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
    plain = model[0].forward
    model[0].forward = lambda x: -plain(x)
    return model.double()


OWN = {
    "Doubled": lambda: nn.Sequential(Doubled(6, 5), nn.GELU(), nn.Linear(5, 2)),
    "LowRank": lambda: nn.Sequential(LowRank(6, 5), nn.GELU(), nn.Linear(5, 2)),
    "Merged": lambda: nn.Sequential(Merged(6, 5), nn.GELU(), nn.Linear(5, 2)),
    "Shifted": lambda: nn.Sequential(nn.Linear(6, 5), Shifted(5)),
    "Gated": lambda: Gated(6, 2, 8, batch_first=True),
    "a forward hook": hooked,
    "a patched forward": patched,
    "Skip": lambda: Skip(nn.Linear(6, 6), nn.Tanh()),
    "Looped": lambda: Looped(nn.Linear(6, 6), nn.Tanh()),
}


@pytest.mark.parametrize("name", OWN)
def test_models_whose_code_is_their_own(name, x):
    torch.manual_seed(1)
    net = right(OWN[name](), x)
    assert name != "Looped" or len(net.pieces) == 2


def test_a_subclass_of_embedding():
    net = right(nn.Sequential(Longer(9, 4), nn.Linear(4, 3)), torch.tensor([[1, 3, 8], [0, 2, 2]]))
    assert [p.kind for p in net.pieces] == ["embedding", "linear"]


class Fourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.two(torch.fft.fft(self.one(x)).real)


def test_a_fourier_transform_between_maps_is_refused(x):
    with pytest.raises(ice.errors.ProgramError, match=r"fft\w* in Fourier"):
        in_context(Fourier().double(), calibration=[x])


# ---------------------------------------------------------------------------------------- refusals


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.one(x) if x.sum() > 0 else self.two(x)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(6, 6), 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x) * self.calls


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return F.dropout(self.inner(x), 0.5, training=True)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return self.inner(x).exp() / self.inner(x).exp().sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Branch, "branches on the value of a tensor"),
        (Counting, "not what the original does|cannot be captured"),
        (Noisy, "at random"),
        (Attending, "not emulated: exp in Attending"),
    ],
)
def test_what_no_graph_holds_is_refused(kind, why, x):
    with pytest.raises(ice.errors.ProgramError, match=why):
        in_context(kind().double(), calibration=[x])


def test_weights_that_are_no_numbers_are_refused(x):
    model = nn.Linear(6, 3).double()
    model.weight.data[1, 2] = float("nan")
    with pytest.raises(ice.errors.ProgramError, match="weight holds NaN"):
        in_context(model, calibration=[x])


@pytest.mark.parametrize(("model", "why"), [
    (lambda: torch.tanh, "must be a torch.nn.Module, got a"),
    (lambda: nn.Linear(6, 6, device="meta"), "on the meta device and has no numbers"),
    (lambda: nn.LazyLinear(6), "has no size yet"),
    (lambda: nn.Linear(6, 6, dtype=torch.complex128), "compute with reals"),
    (lambda: torch.jit.trace(nn.Linear(6, 6, dtype=F64), torch.randn(4, 6, dtype=F64)), "scripted"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:Lazy:UserWarning")
def test_models_without_numbers_of_their_own_are_refused(model, why, x):
    with pytest.raises(ice.errors.ProgramError, match=why):
        in_context(model(), calibration=[x])


@pytest.mark.parametrize(("given", "why"), [
    (lambda x: x.to("meta"), "meta device"),
    (lambda x: x.to_sparse(), "pass a dense one"),
    (lambda x: x + 0j, "complex"),
    (lambda x: x.long(), "same dtype"),
])  # fmt: skip
def test_inputs_that_no_graph_reads_are_refused(given, why, x):
    net = in_context(nn.Sequential(nn.Linear(6, 3), nn.Tanh()).double(), calibration=[x])
    with pytest.raises(ice.IceformError, match=why):
        net(given(x))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_calibration_that_is_not_finite_is_refused(bad, x):
    x[1, 2, 3] = bad
    with pytest.raises(ice.errors.BoundError, match=r"NaN|finite numbers"):
        in_context(nn.Sequential(nn.Linear(6, 3), nn.Tanh()).double(), calibration=[x])


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_weights_that_hooks_compute(x):
    """Old-style weight_norm and pruning keep a computed tensor that cannot be copied as it is."""
    pruned = nn.Linear(6, 5)
    prune.l1_unstructured(pruned, "weight", 0.5)
    right(nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(6, 6)), nn.Tanh(), pruned), x)
    new = torch.nn.utils.parametrizations
    right(nn.Sequential(new.weight_norm(nn.Linear(6, 6)), new.orthogonal(nn.Linear(6, 6))), x)


class Below(nn.Linear):
    """A map with parts that are called like what a piece has."""

    def __init__(self):
        super().__init__(6, 6)
        self.norm, self.range = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x):
        return self.range(self.norm(super().forward(x)))


def test_parts_called_like_attributes_of_ours(tmp_path, x):
    names = ("place", "graphs", "settings", "pieces", "constants", "original", "replays")
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(6, 6))
    model.add_module("covered", Below())
    net = right(model, x)
    net.save(tmp_path / "kept")
    assert torch.equal(ice.load(tmp_path / "kept")(x), net(x))


def test_weights_are_not_loaded_into_a_network_in_context(x):
    net = in_context(nn.Linear(6, 3).double(), calibration=[x])
    for target in (net, net.model):
        with pytest.raises(ice.errors.ProgramError, match="load them into the original"):
            target.load_state_dict(target.state_dict())


# ------------------------------------------------------------------------------------------ files


def test_pickled_and_copied(x):
    net = in_context(nn.Sequential(nn.Linear(6, 5), nn.GELU("tanh")).double(), calibration=[x])
    for again in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert torch.equal(again(x), net(x))
        assert again.enclosure(x).error == net.enclosure(x).error


def test_another_kind_of_call_is_captured_when_it_comes(x):
    model = nn.MultiheadAttention(6, 2, batch_first=True).double().eval()
    net = in_context(model, calibration=[(x, x, x)], headroom=2.0)
    for y in (x[:1], torch.cat([x, x[:2]])):
        assert float((net(y, y, y)[0] - model(y, y, y)[0]).detach().abs().max()) <= 1e-11
    again = pickle.loads(pickle.dumps(net))
    with pytest.raises(ice.errors.ProgramError, match="saved for other arguments"):
        again(x, x, x, need_weights=False)


class Shaped(nn.Module):
    """Another network for squares, and for single rows."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        if x.shape[0] == x.shape[1] or x.shape[0] == 1:
            return self.one(x)
        return self.two(x)


def test_branches_on_sizes_are_followed_or_refused():
    model, x = Shaped().double(), torch.randn(4, 4, dtype=F64)
    net = in_context(model, calibration=[x, torch.randn(3, 4, dtype=F64)], headroom=3.0)
    for rows in (1, 2, 3, 4):
        assert float((net(x[:rows]) - model(x[:rows])).detach().abs().max()) <= 1e-12


# ------------------------------------------------------------------------- numbers that are put in


class Two(nn.Module):
    """Something of one map, which is small, and of another."""

    def __init__(self, of):
        super().__init__()
        self.one, self.two, self.of = nn.Linear(6, 6), nn.Linear(6, 6), of
        self.register_buffer("mask", torch.arange(6) % 2 == 0)
        self.register_buffer("number", torch.tensor(1e4))
        self.register_buffer("places", torch.zeros(3, 4, 6, dtype=torch.long))

    def forward(self, x):
        return self.of(self, self.one(x) / 1024, self.two(x))


def _norm(own, a, b):
    return F.layer_norm(a + b, (6,), 1 / 3 + own.number * own.one.bias, own.two.bias / 3)


NUMBERS = {
    "full_like": lambda own, a, b: b * torch.full_like(a, 1e4),
    "ones_like": lambda own, a, b: b * torch.ones_like(a),
    "fill_": lambda own, a, b: b * a.fill_(1e4),
    "masked_fill": lambda own, a, b: b * a.masked_fill(own.mask, own.number),
    "scatter": lambda own, a, b: b * a.scatter(1, own.places, 1e4),
    "rsub": lambda own, a, b: torch.rsub(b, 1.0, alpha=1e3),
    "add": lambda own, a, b: torch.add(1.0, b, alpha=1e3),
    "softplus": lambda own, a, b: F.softplus(30 * b),
    "computed weights of a norm": _norm,
}


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_in_the_certificate_of_the_range(name, dtype, x):
    torch.manual_seed(1)
    net = in_context(Two(NUMBERS[name]).to(dtype), calibration=[x.to(dtype)])
    off = float((net(x.to(dtype)).double() - net.reference(x.to(dtype))).abs().max())
    assert 0 < off <= net.certificate.error < 1e6 * net.settings.unit * 1e4


def test_what_jumps_has_no_certificate(x):
    """A quotient rounded to an integer is no division."""
    jumps = Two(lambda own, a, b: torch.div(b, 2, rounding_mode="floor")).double()
    net = in_context(jumps, calibration=[x])
    assert net.certificate.error == net.enclosure(x).error == float("inf")


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_weights_that_were_computed_are_rounded(dtype, x):
    torch.manual_seed(1)
    made = torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)).to(dtype)
    net, x = in_context(nn.Sequential(made, nn.Tanh()), calibration=[x.to(dtype)]), x.to(dtype)
    off = float((net(x).double() - net.reference(x)).abs().max())
    assert off <= net.enclosure(x).error <= net.certificate.error


# ------------------------------------------------------------------------------------------ masks


class Masked(nn.Module):
    """Attention as tutorials write it: logits that are replaced by a number."""

    def __init__(self, of):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in "qkv")
        self.of = of

    def forward(self, x, *masks):
        logits = self.q(x) @ self.k(x).mT / 6**0.5
        return torch.softmax(self.of(logits, *(m[:, None, :] for m in masks)), -1) @ self.v(x)


HIDES = {str(n): (lambda s, m, n=n: s.masked_fill(m, n)) for n in (-1e9, -1e4, 0.0)} | {
    "where": lambda s, m: torch.where(m, torch.full((), -1e9, dtype=s.dtype), s),
    "added before": lambda s, m: (s + m).masked_fill(m, 0.5),
    "added after": lambda s, m: s.masked_fill(m, 0.5) + m,
    "replaced twice": lambda s, m: s.masked_fill(m, 0.5).masked_fill(m.roll(1, -1), 0.25),
    "least": lambda s, m: s.masked_fill(m, torch.finfo(s.dtype).min),
}


@pytest.mark.parametrize(("backend", "dtype"), [("auto", F64), ("literal", torch.float32)])
@pytest.mark.parametrize("name", HIDES)
def test_tokens_that_masks_hide_even_all_of_them(name, backend, dtype, x):
    """Calibrated on a few hidden tokens, run with rows in which every token is."""
    torch.manual_seed(1)
    few = torch.zeros(3, 4, dtype=torch.bool)
    few[0, 2] = few[1, 0] = True
    net, x = Masked(HIDES[name]).to(dtype), x.to(dtype)
    net = in_context(net, calibration=[(x, few)], backend=backend, headroom=3.0)
    every = few.clone()
    every[2] = True
    for mask in (few, every):
        off = float((net(x, mask).double() - net.reference(x, mask)).abs().max())
        assert off <= min(net.certificate.error, net.enclosure(x, mask).error)
        assert off <= 2**12 * net.settings.unit


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_masks_without_a_softmax_are_refused(bad, x):
    net = in_context(Masked(lambda s, m: s + m).double(), calibration=[(x, x[..., 0] * 0)])
    mask = torch.zeros(3, 4, dtype=F64)
    mask[1] = bad
    with pytest.raises(ice.errors.BoundError, match="a row of its mask is -inf"):
        net(x, mask)


# --------------------------------------------------------------------------------- transformers

QUICK = ("AlbertModel", "GPT2Model")
SLOW = ("BertModel", "RobertaModel", "ElectraModel", "DistilBertModel")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_encoders_of_transformers(name, tmp_path):
    pytest.importorskip("transformers", reason="needs iceform[export]")
    torch.manual_seed(2)
    model, given = architecture(name).double(), words()
    net = right(model, **given)
    assert {p.kind for p in net.pieces} >= {"linear", "embedding", "heads"}
    again = InContext.from_pretrained(net.save_pretrained(tmp_path))
    want, got = net(**given), again(**given)
    assert type(got) is type(want)
    assert torch.equal(got.last_hidden_state, want.last_hidden_state)


def test_a_cache_is_refused_by_name():
    pytest.importorskip("transformers", reason="needs iceform[export]")
    model = architecture("GPT2Model").double()
    model.config.use_cache = True
    with pytest.raises(ice.errors.ProgramError, match="use_cache=False"):
        in_context(model, calibration=[words()["input_ids"]])


class OwnPrecision(nn.Module):
    """Rotary positions as transformers has them: angles in float32 whatever the network's dtype."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(4, 4)
        self.register_buffer("rates", torch.tensor([1.0, 0.3, 0.1, 0.01]))

    def forward(self, x):
        places = torch.arange(x.shape[-2], device=x.device)[:, None].float()
        return self.map(x) * (places * self.rates.float()).cos().to(x.dtype)


def test_what_code_computes_in_float32_stays_that_in_a_float64_network():
    torch.manual_seed(0)
    model = OwnPrecision().double().requires_grad_(False)
    x = torch.randn(3, 7, 4, dtype=torch.float64)
    net = in_context(model, calibration=[x])
    assert float((net(x) - model(x)).abs().max()) <= net.enclosure(x).error < 1e-11
    angles = torch.arange(7.0)[:, None].double() * model.rates
    assert float((net(x) - model.map(x) * angles.cos()).abs().max()) > 1e-9  # float64's are others


def test_the_original_runs_as_written_in_every_thread():
    """Leaving it in one thread must not switch torch's fused encoder on in another."""
    before, seen = torch.backends.mha.get_fastpath_enabled(), []
    inside, left = threading.Event(), threading.Event()

    def work():
        with as_written():
            inside.set()
            left.wait(0.5)
            seen.append(torch.backends.mha.get_fastpath_enabled())

    thread = threading.Thread(target=work)
    with as_written():
        thread.start()
        inside.wait(0.2)
    left.set()
    thread.join()
    assert seen == [False]
    assert torch.backends.mha.get_fastpath_enabled() == before


def test_a_mask_that_torch_itself_compares_with_the_causal_one(x):
    """One graph for masks of either kind, though the encoder's Python code asks which it is."""
    causal = torch.full((4, 4), -torch.inf, dtype=F64).triu(1)
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    net = right(model, x, causal)
    for mask in (causal, causal.mT.contiguous()):
        off = (net(x, mask) - net.reference(x, mask)).abs().max()
        assert float(off) <= net.enclosure(x, mask).error < 1e-8
    assert len(net.model.graphs) == 1
    right(
        nn.TransformerDecoder(nn.TransformerDecoderLayer(6, 2, 8, batch_first=True), 1),
        x,
        x,
        causal,
    )


class Written(nn.Module):
    """Writes into what it has computed."""

    def __init__(self, write):
        super().__init__()
        self.write, self.a, self.b = write, nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        y, z = self.a(x), torch.tanh(self.b(x))
        self.write(y, z)
        return torch.tanh(y) @ y.mT


WRITES = {
    "slice": lambda y, z: y[..., 1:4].copy_(z[..., 2:5]),
    "every second": lambda y, z: y[..., ::2].copy_(z[..., :3]),
    "one for many": lambda y, z: y[:, 1].copy_(z[0, 0, 0]),
    "numbers": lambda y, z: (y[:, 1].fill_(0.5), y[..., 2:4].fill_(0.25)),
    "integers": lambda y, z: y[..., 2].copy_(torch.arange(4)),
    "product": lambda y, z: y[:, :, 2:].mul_(z[:, :, 2:]),
    "filled": lambda y, z: y[:, 1].fill_(z.sum()),
    "filled, all of it": lambda y, z: y.fill_(z[0, 0, 0]),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_in_place(write, x):
    """Certified: what is filled with a computed number is off as that is."""
    right(Written(write), x)
