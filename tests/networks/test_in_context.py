"""Networks in context: within their certificates, fused against literal, ranges kept."""

import copy
import json
import math
import os
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import iceform as ice
from iceform.export import onnx
from iceform.networks import InContext, in_context
from iceform.networks.activations import ACTIVATIONS, activation_of
from iceform.networks.pieces import AttentionPiece, Gate, LinearMap, PieceSettings, make_activation
from iceform.run import primitives

os.environ.setdefault("HF_HUB_OFFLINE", "1")
F32, F64 = torch.float32, torch.float64


def mlp(generator):
    """Every kind of activation, sizes drawn."""
    sizes = [int(torch.randint(2, 7, (), generator=generator)) for _ in range(6)]
    parts = []
    acts = [nn.GELU(), nn.ReLU(), nn.Tanh(), nn.SiLU(), nn.Sigmoid()]
    for act, (a, b) in zip(acts, pairwise(sizes), strict=True):
        parts += [nn.Linear(a, b), act]
    return nn.Sequential(*parts[:6], nn.LayerNorm(sizes[3]), *parts[6:]).double().eval(), sizes[0]


def encoder(generator, **options):
    heads = int(torch.randint(1, 4, (), generator=generator))
    dim = heads * int(torch.randint(2, 5, (), generator=generator))
    wide = int(torch.randint(4, 12, (), generator=generator))
    chosen = {"batch_first": True, "activation": "gelu", **options}
    layer = nn.TransformerEncoderLayer(dim, heads, wide, **chosen)
    made = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
    return made.double().eval(), dim


def distance(a, b):
    return float((a.detach().double() - b.detach().double()).abs().max())


def rounded(model):
    """The model that float32 holds, evaluated in float64."""
    return copy.deepcopy(model).float().double()


# ---------------------------------------------------------------------------- within certificate


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("backend", ["fused", "literal"])
@pytest.mark.parametrize("seed", range(3))
def test_a_perceptron_is_within_its_certificate(seed, backend, dtype):
    generator = torch.Generator().manual_seed(seed)
    model, width = mlp(generator)
    x = torch.randn(4, 3, width, generator=generator, dtype=F64)
    network = in_context(model, calibration=[x], backend=backend, dtype=dtype)
    want = (model if dtype == F64 else rounded(model))(x.to(dtype).double())
    off = distance(network(x.to(dtype)), want)
    assert off <= network.certificate.error, (off, network.certificate.error)
    assert distance(network.reference(x.to(dtype)), want) <= 1e-12


@pytest.mark.parametrize(
    ("seed", "norm_first"),
    [
        (0, False),
        (1, True),
        *(
            pytest.param(*c, marks=pytest.mark.slow)
            for c in ((0, True), (1, False), (2, True), (2, False))
        ),
    ],
)
def test_an_encoder_is_within_its_certificate_fused_and_literal(seed, norm_first):
    generator = torch.Generator().manual_seed(10 + seed)
    activation = ("gelu", "relu", F.silu)[seed]
    model, dim = encoder(generator, norm_first=norm_first, activation=activation)
    x = torch.randn(2, 5, dim, generator=generator, dtype=F64)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    inputs = (x, None, padding)
    fused = in_context(model, calibration=[inputs])
    dense = in_context(model, calibration=[inputs], backend="literal")
    want, ours, literal = model(*inputs), fused(*inputs), dense(*inputs)
    # float64: the certificate of two layers still says something.
    assert distance(ours, want) <= fused.certificate.error < 1e-2
    assert distance(literal, want) <= dense.certificate.error < 1e-2
    assert distance(ours, literal) <= fused.certificate.error + dense.certificate.error
    # Both are read by the same frozen layers.
    assert fused.digest == dense.digest


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_bert_with_random_weights_is_within_its_certificate(seed):
    transformers = pytest.importorskip("transformers", reason="needs iceform[export]")
    generator = torch.Generator().manual_seed(20 + seed)
    heads = int(torch.randint(1, 4, (), generator=generator))
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=heads * int(torch.randint(2, 6, (), generator=generator)),
        num_hidden_layers=2,
        num_attention_heads=heads,
        intermediate_size=int(torch.randint(6, 20, (), generator=generator)),
        max_position_embeddings=16,
        initializer_range=0.3,
        hidden_act=("gelu", "relu")[seed],
    )
    model = transformers.BertModel(config).double().eval()
    ids = torch.randint(0, 50, (3, 7), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    want = model(**inputs)
    for backend in ("fused", "literal"):
        network = in_context(model, calibration=[inputs], backend=backend)
        out = network(**inputs)
        bound = network.certificate.error
        assert distance(out.last_hidden_state, want.last_hidden_state) <= bound < 1e-1
        pooled = network.carried()["pooler.activation"]
        assert distance(out.pooler_output, want.pooler_output) <= pooled
    counts = {"linear": 13, "embedding": 3, "heads": 2, "activation": 3, "norm": 5}
    kinds = [row.kind for row in network.report().rows]
    assert {k: kinds.count(k) for k in counts} == counts


def test_pieces_are_within_their_own_certificates():
    generator = torch.Generator().manual_seed(5)
    model, dim = encoder(generator)
    x = torch.randn(8, 6, dim, generator=generator, dtype=F64)
    for dtype in (F64, F32):
        network = in_context(model, calibration=[x], dtype=dtype)
        report = network.report(measure=[x, x.flip(0)])
        for row in report.rows:
            assert row.measured <= row.certified, row
        assert any(row.measured > 0 for row in report.rows)


# ------------------------------------------------------------------------------------ attention

MASKS = {
    "none": {},
    "causal": {"attn_mask": torch.triu(torch.full((4, 4), -math.inf, dtype=F64), 1)},
    "forbidden": {"attn_mask": torch.triu(torch.ones(4, 4, dtype=torch.bool), 2)},
    "per head": {"attn_mask": (torch.arange(6 * 16).reshape(6, 4, 4) % 5 == 4)},
    "padding": {"key_padding_mask": torch.tensor([[False] * 4, [False, False, True, True]])},
    "bias": {"attn_mask": torch.linspace(-2, 2, 16, dtype=F64).reshape(4, 4)},
}


OTHER = {  # heads of other sequences, widths and keys
    "two sequences": ({"kdim": 3, "vdim": 5}, ((3, 4), (6, 3), (6, 5))),
    "extra keys": ({"add_bias_kv": True}, ((3, 4), (3, 4), (3, 4))),
}


@pytest.mark.parametrize("backend", ["fused", "literal"])
@pytest.mark.parametrize("name", OTHER)
def test_attention_to_other_tokens(name, backend):
    options, shapes = OTHER[name]
    model = nn.MultiheadAttention(4, 2, batch_first=True, dtype=F64, **options).eval()
    inputs = tuple(torch.randn(2, n, d, dtype=F64) for n, d in shapes)
    network = in_context(model, calibration=[inputs], backend=backend)
    off = distance(network(*inputs)[0], model(*inputs)[0])
    assert off <= network.enclosure(*inputs).error < 1e-10


def masked():
    """Every mask fused, every kind of mask literal, both orders; all pairs in `make test-all`."""
    for number, mask in enumerate(MASKS):
        for backend in ("fused", "literal"):
            for batch_first in (True, False):
                quick = batch_first == ((number + (backend == "literal")) % 2 == 0)
                quick = quick and (backend == "fused" or mask in ("per head", "padding", "bias"))
                marks = () if quick else pytest.mark.slow
                yield pytest.param(mask, backend, batch_first, marks=marks)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("mask", "backend", "batch_first"), list(masked()))
def test_multi_head_attention_with_every_mask(mask, backend, batch_first):
    model = nn.MultiheadAttention(6, 3, batch_first=batch_first, dtype=F64).eval()
    x = torch.randn(2, 4, 6, dtype=F64)
    x = x if batch_first else x.transpose(0, 1)
    named = {"query": x, "key": x, "value": x, **MASKS[mask]}
    network = in_context(model, calibration=[named], backend=backend)
    (out, weights), (want, attention) = network(**named), model(**named)
    bound = network.enclosure(**named).error
    assert max(distance(out, want), distance(weights, attention)) <= bound < 1e-9


# ----------------------------------------------------------------------------------- activations


def settled(name, high, dtype=F64, backend="fused"):
    model = nn.Sequential(nn.Linear(1, 1), nn.Identity()).to(dtype)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
    network = in_context(model, bound=high, dtype=dtype, backend=backend)
    piece = make_activation(name, name, network.settings)
    piece._set(high)
    network._size(max(2, piece.tokens))
    return piece


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_within_their_certificates_everywhere(name):
    for dtype in (F64, F32):
        if name == "elu" and dtype == F32:
            continue  # a kink's graded keys are for float64; the certificate says so
        piece = settled(name, 6.0, dtype)
        z = torch.linspace(-6, 6, 20011, dtype=F64).to(dtype)
        off = distance(piece.emulate(z), piece.function(z.double()))
        assert off <= piece.certified, (name, dtype, off, piece.certified)


@pytest.mark.parametrize("name", ["gelu", "relu", "silu"])
def test_activations_fused_and_literal(name):
    fused, dense = settled(name, 4.0), settled(name, 4.0, backend="literal")
    z = torch.linspace(-4, 4, 41, dtype=F64)
    assert distance(fused.emulate(z), dense.emulate(z)) <= fused.certified + dense.certified
    assert distance(dense.emulate(z), dense.function(z)) <= dense.certified


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_activation_is_steeper_than_said(name):
    known = ACTIVATIONS[name]
    z = torch.linspace(-12, 12, 200_001, dtype=F64)
    values = known.function(z)
    slopes = values.diff() / z.diff()
    assert float(slopes.abs().max()) <= known.slope * (1 + 1e-9)


def test_a_gate_is_relu_in_float32_where_tables_are_not():
    piece = settled("relu", 8.0, F32)
    assert isinstance(piece, Gate)
    assert piece.certified < 1e-5
    z = torch.tensor([-1e-3, -1e-20, 0.0, 1e-20, 1e-3, 8.0])
    assert distance(piece.emulate(z), F.relu(z)) <= piece.certified


def test_activations_by_operation_and_settings():
    assert activation_of("gelu", (), {"approximate": "tanh"}) == "gelu_tanh"
    assert activation_of("gelu", (), {}) == "gelu"
    assert activation_of("softplus", (2.0,), {}) is None
    assert activation_of("elu", (1.0,), {}) == "elu"
    assert activation_of("exp", (), {}) is None
    with pytest.raises(ice.errors.ProgramError, match="no activation"):
        make_activation("swoosh", "x", PieceSettings(None, F64, "fused", 1.0, "raise"))


# ---------------------------------------------------------------------------------------- ranges


def small():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2)).double()


def test_out_of_range_raises_and_says_where():
    x = torch.randn(16, 3, dtype=F64)
    network = in_context(small(), calibration=[x])
    network(x)
    with pytest.raises(ice.errors.BoundError, match=r"0: .*calibrated up to .*on_range='widen'"):
        network(10 * x)
    with pytest.raises(ice.errors.BoundError, match="0: "):
        network(torch.full_like(x, math.nan))


def test_widening_changes_the_prompt_and_not_the_weights():
    model, x = small(), torch.randn(16, 3, dtype=F64)
    network = in_context(model, calibration=[x], on_range="widen", tokens=128)
    digest, before = network.digest, network.certificate.error
    out = network(10 * x)
    assert distance(out, model(10 * x)) <= network.certificate.error
    assert network.digest == digest
    assert network.certificate.error > before
    assert network.report().rows[0].widened == 1
    with pytest.raises(ice.errors.BoundError):
        network(torch.full_like(x, math.inf))


def test_ranges_from_norms_hold_for_every_input():
    model = small()
    network = in_context(model, bound=2.0)
    x = 2 * (2 * torch.rand(500, 3, dtype=F64) - 1)
    x[:8] = torch.cartesian_prod(*[torch.tensor([-2.0, 2.0], dtype=F64)] * 3)
    assert distance(network(x), model(x)) <= network.certificate.error
    with pytest.raises(ice.errors.ProgramError, match="calibration= or bound="):
        in_context(model)


def test_lengths_behind_a_norm_are_not_measured_unless_somebody_changes_them(monkeypatch):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    net = in_context(model, calibration=[x], headroom=2.0)
    measured = []
    longest = primitives.longest
    monkeypatch.setattr(primitives, "longest", lambda t: measured.append(1) or longest(t))
    want = net(x)
    assert len(measured) == 1  # of what comes in; behind the first map all are proven
    first, second = (p for p in net.pieces if p.name.endswith("in_proj"))
    for wild in (lambda *a: 1e3 * a[2], lambda *a: a[2] + float("nan")):
        handle = second.hook_out.register_forward_hook(wild)
        with pytest.raises(ice.errors.BoundError, match="2-norm of a query"):
            net(x)
        handle.remove()
    second.hook_out = nn.Threshold(1e9, 1e9)  # no hook, and no place for hooks either
    with pytest.raises(ice.errors.BoundError, match="2-norm of a query"):
        net(x)
    second.hook_out = nn.Identity()
    assert torch.equal(net(x), want)
    assert first is not second


def test_eps_is_held_or_refused():
    model, x = small(), torch.randn(16, 3, dtype=F64)
    coarse, fine = (in_context(model, calibration=[x], eps=e) for e in (1e-4, 1e-9))
    assert coarse.frozen.table.tokens < fine.frozen.table.tokens
    assert distance(coarse(x), model(x)) <= coarse.certificate.error
    assert distance(fine(x), model(x)) < 1e-7 < distance(coarse(x), model(x)) * 1e3
    with pytest.raises(ice.errors.PrecisionError, match="not to eps"):
        in_context(model, calibration=[x], eps=1e-9, dtype=F32)


def test_sequences_longer_than_the_layers_are_refused():
    model, dim = encoder(torch.Generator().manual_seed(0))
    x = torch.randn(1, 3, dim, dtype=F64)
    network = in_context(model, calibration=[x])
    longest = network.frozen.sizes.tokens
    with pytest.raises(ice.errors.BoundError, match=rf"sized for {longest}; pass tokens="):
        network(x[:, :1].expand(1, longest + 1, dim))


# --------------------------------------------------------------------------------------- honesty


class Functional(nn.Module):
    """An activation and a product of two activations that no module stands for."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3, dtype=F64)

    def forward(self, x):
        return F.relu(self.linear(x)) @ x.mT


def test_functional_calls_are_emulated_or_listed():
    x = torch.randn(2, 3, dtype=F64)
    model = Functional()
    network = in_context(model, calibration=[x])
    assert [p.name for p in network.pieces] == ["linear", "relu", "product"]
    assert network.report().not_emulated == ()
    assert distance(network(x), model(x)) <= 1e-12


def test_modules_that_nothing_emulates_are_refused_or_listed():
    model = nn.Sequential(nn.ConvTranspose1d(2, 2, 1), nn.Linear(4, 2)).double()
    x = torch.randn(1, 2, 4, dtype=F64)
    with pytest.raises(ice.errors.ProgramError, match=r"not emulated: conv_transpose1d in 0;"):
        in_context(model, calibration=[x])
    network = in_context(model, calibration=[x], strict=False)
    assert "conv_transpose1d in 0" in network.report().not_emulated
    assert distance(network(x), model(x)) <= 1e-12
    assert network.certificate.error == math.inf
    assert "conv_transpose1d in 0" in network.certificate.explain()


def test_what_is_not_emulated_is_listed():
    model, dim = encoder(torch.Generator().manual_seed(1))
    network = in_context(model, calibration=[torch.randn(2, 3, dim, dtype=F64)])
    listed = network.report().not_emulated
    assert listed == ("add between pieces (4 times)",)
    read = json.loads(network.report().to_json())
    assert read["outside"] == {"add": 4}
    assert read["measured"] is None


def test_the_original_is_not_touched_and_nothing_can_be_trained():
    model, dim = encoder(torch.Generator().manual_seed(2), dropout=0.5)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(2, 3, dim, dtype=F64)
    network = in_context(model, calibration=[x])
    assert isinstance(network, InContext)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not list(network.parameters())
    assert torch.equal(network.train()(x), network(x))


def test_bad_arguments():
    model, x = small(), torch.randn(4, 3, dtype=F64)
    with pytest.raises(ice.errors.ProgramError, match="on_range"):
        in_context(model, calibration=[x], on_range="clip")
    with pytest.raises(ice.errors.BoundError, match="headroom"):
        in_context(model, calibration=[x], headroom=0.5)
    with pytest.raises(ice.errors.ProgramError, match="calibration is empty"):
        in_context(model, calibration=[])
    with pytest.raises(ice.errors.ProgramError, match="no parameters"):
        in_context(nn.Sequential(nn.ReLU()), calibration=[x])
    with pytest.raises(ice.errors.DtypeError, match="float32"):
        in_context(model, calibration=[x])(x.float())
    with pytest.raises(ice.errors.DtypeError, match="casting"):
        in_context(model, calibration=[x]).float()


def test_a_layer_used_twice_is_one_piece():
    shared = nn.Linear(3, 3, dtype=F64)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    x = torch.randn(4, 3, dtype=F64)
    network = in_context(model, calibration=[x])
    assert sum(isinstance(p, LinearMap) for p in network.pieces) == 1
    assert distance(network(x), model(x)) <= network.certificate.error


# --------------------------------------------------------------------------------- other tools


def test_gradients_flow_to_the_input():
    model, x = small(), torch.randn(3, 3, dtype=F64, requires_grad=True)
    network = in_context(model, calibration=[x.detach()], headroom=2.0)
    (got,) = torch.autograd.grad(network(x).sum(), x)
    (want,) = torch.autograd.grad(model(x).sum(), x)
    assert distance(got, want) <= 1e-8


def test_torch_export_with_dynamic_batch():
    model, dim = encoder(torch.Generator().manual_seed(4))
    x = torch.randn(2, 3, dim, dtype=F64)
    network = in_context(model, calibration=[x])
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(network, (x,), dynamic_shapes=(({0: batch},),))
    y = torch.cat([x, 0.9 * x.flip(0), x[:1]])
    assert distance(exported.module()(y), network(y)) <= 1e-13


def test_prompts_of_the_frozen_layers_can_be_looked_at():
    x = torch.randn(2, 3, dtype=F64)
    network = in_context(small(), calibration=[x])
    piece = next(p for p in network.pieces if isinstance(p, LinearMap))
    tokens = network.frozen.read_prompt(x, piece.theta)
    layer = network.frozen.network.layers[0]
    assert tokens.shape[-2:] == (
        network.frozen.rows.prompt_tokens,
        network.frozen.rows.features.total,
    )
    assert layer(tokens).shape == (2, 1, 1, network.frozen.sizes.rows)
    assert not any(isinstance(p, AttentionPiece) for p in network.pieces)


class Scaled(nn.Module):
    """One operation behind its pieces."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3, dtype=F64)

    def forward(self, x):
        return 100 * self.inner(x)


def test_operations_between_pieces_are_in_the_certificate():
    x = torch.randn(2, 3, dtype=F64)
    model = nn.Sequential(Scaled())
    network = in_context(model, calibration=[x])
    piece = network.pieces[0]
    assert 100 * piece.certified <= network.certificate.error <= 101 * piece.certified
    assert "mul between pieces (1 times)" in network.report().not_emulated


def test_a_mask_beyond_calibration_is_refused():
    model = nn.MultiheadAttention(4, 2, batch_first=True, dtype=F64).eval()
    x, mask = torch.randn(2, 3, 4, dtype=F64), torch.ones(3, 3, dtype=F64)
    given = {"query": x, "key": x, "value": x, "attn_mask": mask}
    network = in_context(model, calibration=[given])
    with pytest.raises(ice.errors.BoundError, match="largest entry of a mask"):
        network(x, x, x, attn_mask=5 * mask)


def test_compiled_code_still_checks_ranges():
    model, x = small(), torch.randn(8, 3, dtype=F64)
    network = in_context(model, calibration=[x])
    compiled = torch.compile(network, backend="eager")
    assert distance(compiled(x), network(x)) <= 1e-13
    with pytest.raises(ice.errors.BoundError, match="calibrated up to"):
        compiled(10 * x)


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float64, marks=pytest.mark.slow), torch.float32]
)
def test_a_network_as_an_onnx_file(tmp_path, dtype):
    """Every piece of a BERT in one file, for any batch and length, within what is certified."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs iceform[export]")
    transformers = pytest.importorskip("transformers", reason="needs iceform[export]")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=12, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False).to(dtype).eval()

    def given(*shape):
        mask = torch.ones(shape, dtype=torch.long)
        mask[0, shape[1] // 2 :] = 0
        return {"input_ids": torch.randint(20, shape), "attention_mask": mask}

    network = ice.in_context(model, calibration=[given(3, 6)], headroom=4.0)
    path = onnx(network, tmp_path / "bert.onnx", example=given(3, 6))
    session = onnxruntime.InferenceSession(path.read_bytes())
    other = given(2, 9)
    names = [i.name for i in session.get_inputs()]
    fed = {k: v.numpy() for k, v in zip(names, other.values(), strict=True)}
    off = (
        torch.from_numpy(session.run(None, fed)[0]).double() - network.reference(**other)[0]
    ).abs()
    bound = network.enclosure(**other).error + torch.finfo(dtype).eps
    assert bool((off <= 8 * bound).all()), f"{float(off.max()):.3g} of {bound:.3g}"
    with pytest.raises(ice.errors.ProgramError, match="example="):
        onnx(network, path)


class Cast(torch.nn.Module):
    """Moves by position: to(x) and to(dtype) hold a device and a dtype among their arguments."""

    def __init__(self):
        super().__init__()
        self.map = torch.nn.Linear(3, 3)

    def forward(self, x, mask):
        return self.map(x).to(torch.float32) * mask[..., None].to(x)


def test_what_is_moved_by_position_goes_where_the_inputs_are():
    given = {"x": torch.rand(2, 4, 3), "mask": torch.ones(2, 4, dtype=torch.long)}
    net = ice.in_context(Cast().eval(), calibration=[given])
    graph, parts = net.model.graphs[0], net.model.exact_parts().to("meta")
    (out,) = graph.run(parts, [t.to("meta") for t in given.values()])
    assert out.device.type == "meta"
    certificate = net.enclosure(**given)
    off = (net(**given).double() - net.reference(**given)).abs().max()
    assert float(off) <= certificate.error
