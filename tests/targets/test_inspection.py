"""Heads taken out, padding put in, and the tools that researchers open checkpoints with."""

import contextlib
import json

import pytest
import torch

import iceform as ice
from iceform import export, targets

from .stock import assert_within, data, descent, written

SPEC = targets.LinearDescent(2, 4, positions=64)
GIVEN = {"lr": 0.4, "penalty": 0.3, "momentum": 0.5}
FEATURES = {
    "gpt2": ("gpt2", SPEC, GIVEN),
    "rotated": ("gpt2", targets.LinearDescent(2, 3, positions=64, basis=7), GIVEN),
    "hidden": ("gpt2", targets.LinearDescent(2, 2, positions=64, pairs=3, idle=3, copies=2), GIVEN),
    "llama": (
        "llama", targets.LinearDescent(2, 2, positions=64, dtype="float32", reach=2.0), {"lr": 0.2},
    ),
    "stochastic": ("gpt2", targets.StochasticDescent(2, 1, positions=128), {}),
    "bert": ("bert", targets.GeneralDescent(2, 2, positions=64), {}),
}  # fmt: skip
PROGRAMS = {"layered": ("bert", {"mode": "weights"}), "albert": ("albert", {})}


@ice.algorithm
def covariance(x, y, *, slope=0.5):
    return slope * ice.mean(x * y)


@pytest.fixture(scope="module")
def program():
    return ice.compile(covariance, dim=2, samples=4, eps=0.01)


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return written("gpt2", SPEC, tmp_path_factory.mktemp("inspected"))


def output_map(network, layer, output="output"):
    """What a layer's heads are carried to the stream by, in any of the architectures."""
    return {
        "gpt2": lambda: network.h[layer].attn.c_proj,
        "llama": lambda: network.layers[layer].self_attn.o_proj,
        "bert": lambda: getattr(network.encoder.layer[layer].attention, output).dense,
        "albert": lambda: (
            network.encoder.albert_layer_groups[0].albert_layers[layer].attention.dense
        ),
    }[network.config.model_type]()


@contextlib.contextmanager
def silenced(spec, network, layer, head):
    """A head taken out on its way to the stream, by a hook of torch."""
    size = spec.design.head_size

    def silence(module, inputs):
        (carried,) = inputs
        carried = carried.clone()
        carried[..., head * size : (head + 1) * size] = 0.0
        return (carried,)

    hook = output_map(network, layer).register_forward_pre_hook(silence)
    try:
        yield
    finally:
        hook.remove()


def chosen(spec):
    """(layer, head) of every kind of head in the first and the last layer."""
    found = {}
    for layer in {0, len(spec.design.layers) - 1}:
        for head, truth in enumerate(spec.design.ground_truth()[layer]):
            found.setdefault((layer, truth["role"].split(",")[0]), (layer, head))
    return list(found.values())


def assert_predicted(spec, network, x, y, given, way):
    """Without each kind of head the network answers what was predicted; how many matter."""
    repeat, given = given.get("repeat"), {k: v for k, v in given.items() if k != "repeat"}
    whole, mattered = spec.run(network, x, y, **given), 0
    for layer, head in chosen(spec):
        try:
            found = targets.contribution(spec, x, y, head, layer=layer, repeat=repeat, **given)
        except ice.errors.ProgramError:
            continue  # without it the program does not come to its halt
        with way(spec, network, layer, head):
            got = spec.run(network, x, y, **given)
        off = float((got - found.answer).abs().max())
        assert off <= found.error, f"layer {layer}, {found.role}: {off:.1e} > {found.error:.1e}"
        assert float((whole - got - found.value).abs().max()) <= found.error
        if found.role == "idle":
            assert torch.equal(got, whole)
        mattered += float(found.value.abs().max()) > 100 * found.error
    return mattered


@contextlib.contextmanager
def lens(spec, bridge, layer, head):
    """The same by TransformerLens."""

    def silence(z, hook):
        z = z.clone()
        z.view(*z.shape[:2], spec.design.heads, -1)[:, :, head] = 0.0
        return z

    with bridge.hooks(fwd_hooks=[(f"blocks.{layer}.attn.hook_z", silence)]):
        yield


class Sighted:
    """A network whose forward pass is a trace of nnsight, a head taken out on the way."""

    def __init__(self, network):
        import nnsight

        self.network, self.device, self.gone = network, network.device, None
        self.watched = nnsight.NNsight(network)

    def __call__(self, inputs_embeds):
        with self.watched.trace(inputs_embeds=inputs_embeds):
            if self.gone is not None:
                layer, at = self.gone
                output_map(self.watched, layer, "E_output").input[..., at] = 0.0
            out = self.watched.output.save()
        return out

    @property
    def config(self):
        return self.network.config


@contextlib.contextmanager
def sighted(spec, network, layer, head):
    size = spec.design.head_size
    network.gone = layer, slice(head * size, (head + 1) * size)
    try:
        yield
    finally:
        network.gone = None


class Bridged:
    """A folder as TransformerLens opens it; features go in where it would look words up."""

    def __init__(self, model):
        from transformer_lens.model_bridge import TransformerBridge

        spec = model.spec
        self.bridge = TransformerBridge.boot_transformers(str(model.path), dtype=spec.torch_dtype)
        design, whole = spec.design, self.bridge.original_model
        shape = (len(design.layers), design.heads, design.hidden, design.head_size)
        assert tuple(self.bridge.W_Q.shape) == shape
        assert (self.bridge.cfg.n_layers, self.bridge.cfg.n_heads) == shape[:2]
        self.base = getattr(whole, whole.base_model_prefix)
        self.device, self.hooks = torch.device("cpu"), self.bridge.hooks

    def __call__(self, inputs_embeds):
        return self.base(inputs_embeds=inputs_embeds)


# How a folder is opened, and how a head is taken out; what each needs.
TOOLS = {
    "transformers": (lambda model: targets.network(model, "eager"), silenced, "transformers"),
    "nnsight": (lambda model: Sighted(targets.network(model, "eager")), sighted, "nnsight"),
    "lens": (Bridged, lens, "transformer_lens.model_bridge"),
}


@pytest.mark.filterwarnings("ignore:Module .* has a submodule named 'output'")
@pytest.mark.sampled(10)
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("key", FEATURES)
def test_taking_a_head_out_does_what_is_predicted(tool, key, tmp_path):
    opened, way, needs = TOOLS[tool]
    pytest.importorskip(needs, reason=f"needs {tool}")
    name, spec, given = FEATURES[key]
    network = opened(targets.write(name, spec, tmp_path))
    assert assert_predicted(spec, network, *data(), given, way) >= 2


@pytest.mark.filterwarnings("ignore:Module .* has a submodule named 'output'")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("tool", ["transformers", "nnsight"])
@pytest.mark.parametrize("key", PROGRAMS)
def test_taking_a_head_out_of_a_program_does_what_is_predicted(tool, key, program, tmp_path):
    opened, way, needs = TOOLS[tool]
    pytest.importorskip(needs, reason=f"needs {tool}")
    name, given = PROGRAMS[key]
    model = program.to(name, tmp_path, **given)
    network = opened(model.model)
    # nnsight reaches the first call of a module, and an ALBERT calls its layers again and again.
    once = {"repeat": 0} if tool == "nnsight" else {}
    x, y = data(3)
    assert assert_predicted(model.spec, network, x, y, {"program": program, **once}, way) >= 1


def test_a_prediction_is_of_that_head_and_no_other(stock):
    model, networks = stock
    x, y = data()
    found = targets.contribution(model.spec, x, y, 0, layer=1, **GIVEN)
    for layer, head in ((1, 1), (2, 0)):
        with silenced(model.spec, networks["eager"], layer, head):
            got = model.spec.run(networks["eager"], x, y, **GIVEN)
        assert float((got - found.answer).abs().max()) > 1e3 * found.error


@pytest.mark.parametrize(("layer", "head"), [(4, 0), (-5, 0), (0, 19), (0, -1)])
def test_a_head_that_is_not_there_is_refused(layer, head):
    with pytest.raises(ice.errors.ShapeError, match="4 layers of 19 heads"):
        targets.contribution(SPEC, *data(), head, layer=layer)


def test_of_a_decoder_the_next_scores_are_predicted(tmp_path):
    spec = targets.AnsweringDescent(2, 2, positions=64, step=2.0**-6)
    model = targets.write("gpt2", spec, tmp_path)
    network = targets.network(model, "eager")
    x, y = data(4)
    ids = model.prompt(x, y, query=x[0])
    with torch.no_grad():
        whole = network(ids).logits[0, -1]
    mattered = 0
    for layer, head in chosen(spec):
        found = targets.contribution(spec, x, y, head, layer=layer, query=x[0])
        with silenced(spec, network.transformer, layer, head), torch.no_grad():
            got = network(ids).logits[0, -1]
        assert float((got - found.answer).abs().max()) <= found.error
        assert float((whole - got - found.value).abs().max()) <= found.error
        mattered += float(found.value.abs().max()) > 100 * found.error
    assert mattered >= 2


@pytest.mark.parametrize("key", ["gpt2", "hidden", "bert"])
def test_the_record_holds_what_taking_a_head_out_does(key, tmp_path):
    name, spec, _ = FEATURES[key]
    model = targets.write(name, spec, tmp_path)
    record = json.loads((tmp_path / "iceform.json").read_text())["ablation"]
    x, y = (torch.tensor(record[k], dtype=torch.float64) for k in "xy")
    network = targets.network(model, "eager")
    whole, last = spec.run(network, x, y), len(spec.design.layers) - 1
    assert len(record["heads"]) == spec.design.heads
    for head, truth in enumerate(record["heads"]):
        with silenced(spec, network, last, head):
            got = spec.run(network, x, y)
        off = float((whole - got - torch.tensor(truth["value"], dtype=torch.float64)).abs().max())
        assert off <= truth["within"] <= 1e-9


@pytest.mark.parametrize("key", ["gpt2", "stochastic", "bert", "hidden"])
def test_the_edges_are_those_of_the_weights(key):
    """What a head writes meets what a later one reads in listed features, and nowhere else."""
    spec = FEATURES[key][1]
    design, listed = spec.design, spec.design.edges()
    half, size = design.hidden // 2, design.head_size
    maps = [design.matrices(layer) for layer in range(len(design.layers))]
    kinds = {"written": "o", "read_as_query": "q", "read_as_key": "k", "read_as_value": "v"}
    for number, layer in enumerate(maps):
        for head in range(design.heads):
            at = slice(head * size, (head + 1) * size)
            for kind, name in kinds.items():
                part = layer[name][:half, at].T if name == "o" else layer[name][at, :half]
                held = {
                    feature for feature, count in design.features.sizes
                    if part[:, design.features[feature]].any()
                }  # fmt: skip
                said = {f for f, by in listed.items() if [number, head] in by.get(kind, [])}
                assert held == said, (number, head, kind)


def test_copies_share_what_a_head_does():
    x, y = data()
    one = targets.LinearDescent(2, 2, positions=64, pairs=3)
    two = targets.LinearDescent(2, 2, positions=64, pairs=3, idle=2, copies=2)
    roles = [truth["role"] for truth in two.design.ground_truth()[-1]]
    assert roles.count("idle") >= 2
    whole = targets.contribution(one, x, y, 0)
    parts = [i for i, role in enumerate(roles) if role.startswith(whole.role)]
    assert len(parts) == 2
    for head in parts:
        part = targets.contribution(two, x, y, head)
        assert float((2 * part.value - whole.value).abs().max()) <= 2 * part.error + whole.error
    plain = one.certificate(one.domain(x, y)).error
    assert plain < two.certificate(two.domain(x, y)).error <= 2 * plain


@pytest.mark.parametrize("given", [{"idle": -1}, {"copies": 3}, {"copies": 0}])
def test_knobs_that_cannot_be_are_refused(given):
    with pytest.raises(ice.errors.BoundError, match=next(iter(given))):
        targets.LinearDescent(2, 2, **given)


def test_padding_changes_nothing_beyond_the_certificate(stock):
    model, networks = stock
    x, y = data()
    for padding in (1, 7, 40):
        certified, _ = assert_within(model, networks, x, y, padding=padding)
        assert certified <= 1e-10


def test_a_head_is_found_by_its_role_and_switched_off_in_transformer_lens(tmp_path):
    """As README and the page on inspection say: the folder, its roles and the bridge alone."""
    pytest.importorskip("transformer_lens.model_bridge", reason="needs transformer-lens")
    program = ice.compile(descent, dim=2, samples=4, eps=1e-8)
    model = program.to("gpt2", tmp_path, steps=3)
    record = json.loads((tmp_path / "iceform.json").read_text())
    assert model.ground_truth == model.model.ground_truth == record["ground_truth"]
    assert model.find("gradient") == [
        (layer, head)
        for layer, heads in enumerate(record["ground_truth"])
        for head, one in enumerate(heads)
        if one["role"].startswith("gradient")
    ]
    third = [head for layer, head in model.find("gradient") if layer == 2]
    bridge = export.transformer_lens(model)
    x, y = data(4)
    kept = {}

    def off(z, hook):
        z[:, :, third] = 0.0
        return z

    hooks = [
        ("blocks.2.attn.hook_z", off),
        ("ln_final.hook_out", lambda states, hook: kept.update(last=states)),
    ]
    with torch.no_grad():
        bridge.run_with_hooks(model.prompt(x, y, steps=3), fwd_hooks=hooks)
    # Without the gradient of the third step the answer is that of two.
    two = program.reference(x, y, steps=2)
    assert (model.read(kept["last"]) - two).abs().max() < 1e-9


def test_an_albert_is_not_for_transformer_lens(tmp_path):
    pytest.importorskip("transformer_lens", reason="needs transformer-lens")
    model = targets.write("albert", targets.GeneralDescent(1, 1, positions=64), tmp_path)
    with pytest.raises(ice.errors.ProgramError, match="no adapter for an albert"):
        export.transformer_lens(model)


@pytest.mark.filterwarnings("ignore:Module .* has a submodule named 'output'")
def test_nnsight_takes_a_folder(tmp_path):
    pytest.importorskip("nnsight", reason="needs nnsight")
    model = targets.write("gpt2", targets.LinearDescent(2, 2), tmp_path)
    x, y = (part[..., :2] if part.ndim == 2 else part for part in data(4))
    watched = export.nnsight(model)
    with torch.no_grad(), watched.trace(inputs_embeds=model.prompt(x, y)):
        hidden = watched.output.last_hidden_state.save()
    assert (model.read(hidden) - model.spec.reference(x, y)).abs().max() < 1e-9


def test_transformer_lens_opens_a_decoder(tmp_path):
    bridge = pytest.importorskip("transformer_lens.model_bridge", reason="needs transformer-lens")
    spec = targets.AnsweringDescent(2, 1, positions=64, step=2.0**-6)
    model = targets.write("gpt2", spec, tmp_path)
    opened = bridge.TransformerBridge.boot_transformers(str(tmp_path), dtype=torch.float64)
    design = spec.design
    assert (opened.cfg.n_layers, opened.cfg.n_heads) == (len(design.layers), design.heads)
    assert tuple(opened.W_Q.shape) == (4, design.heads, design.hidden, design.head_size)
    ids = model.prompt(*data(5))
    with torch.no_grad():
        theirs, ours = opened(ids), targets.network(model, "eager")(ids).logits
    assert torch.equal(theirs, ours)
    _, cache = opened.run_with_cache(ids)
    pattern = cache["blocks.0.attn.hook_pattern"]
    # A y token's gathering head looks at one position: its own sample's.
    assert float(pattern[0, 0, 3, 1]) == 1.0
    assert float(pattern[0, 1, 3, 2]) == 1.0
