"""Folders: loaded without iceform, attested, refused when changed."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import iceform as ice
from iceform import store, targets

from .alone import alone
from .stock import data, exact

SPEC = targets.LinearDescent(2, 3, positions=40, pairs=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("folder")
    targets.write("gpt2", SPEC, path)
    return path


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


RUN = """
    from transformers import AutoModel
    folder, prompt, out = sys.argv[1:]
    network = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        hidden = network(**load_file(prompt)).last_hidden_state
    save_file({"hidden": hidden, "dtype": torch.zeros(1, dtype=network.dtype)}, out)
"""


def test_a_process_without_iceform_runs_it(folder, tmp_path):
    model = targets.load(folder)
    x, y = data()
    save_file({"inputs_embeds": model.prompt(x, y, lr=0.4)}, tmp_path / "prompt.safetensors")
    alone(RUN, str(folder), str(tmp_path / "prompt.safetensors"), str(tmp_path / "out.safetensors"))
    out = load_file(tmp_path / "out.safetensors")
    assert out["dtype"].dtype == torch.float64  # by the folder's own config
    wrong = (model.read(out["hidden"]) - exact(model, x, y, lr=0.4)).abs().max()
    assert float(wrong) <= model.certificate(x, y, lr=0.4).error <= 1e-10


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_check_says_what_is_certified_and_measured(folder, attention):
    found = ice.check(folder, *data(), attention=attention, lr=0.3)
    assert found
    assert found.measured <= found.certificate.error <= 1e-10
    record = json.loads((folder / "iceform.json").read_text())
    assert found.attestation.ok
    assert found.attestation.weights == record["weights_sha256"]
    assert "within the certified" in str(found)


def change(path, name, index, to):
    tensors = load_file(path / "model.safetensors")
    tensors[name].view(-1)[index] = to(tensors[name].view(-1)[index])
    resave(path, tensors)


def resave(path, tensors=None, change=lambda record: None):
    """By someone who also seals the file again."""
    stored = store.read_tensors(path / "model.safetensors")
    change(stored.content)
    kept = stored.tensors if tensors is None else tensors
    store.write_tensors(path / "model.safetensors", stored.kind, stored.content, kept)


def reconfigure(path, **more):
    """The same for the config."""
    config = store.read_json(path / "config.json", "config.json")
    store.write_json(path / "config.json", config | more, "config.json")


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("h.1.attn.c_proj.weight", lambda v: torch.nextafter(v, v + 1)),
        ("h.0.attn.c_attn.bias", lambda v: torch.nextafter(v, v + 1)),
        ("wpe.weight", lambda v: -v),  # -0.0
        ("ln_f.weight", lambda v: v * float("nan")),
    ],
)
def test_one_changed_weight_is_refused(copy, name, to):
    change(copy, name, 5, to)
    with pytest.raises(ice.errors.IntegrityError, match=f"1 weight.*{name}"):
        ice.check(copy, *data())


SETTINGS = {
    "layer_norm_epsilon": 1e-5, "n_head": 8, "attn_pdrop": 0.1, "activation_function": "gelu",
    "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True, "is_decoder": True,
    "nobody_knows": 3,
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_a_changed_setting_is_refused(copy, name):
    reconfigure(copy, **{name: SETTINGS[name]})
    with pytest.raises(ice.errors.IntegrityError, match=name):
        ice.check(copy, *data())


def test_weights_that_went_through_eight_bits_are_refused(copy):
    tensors = load_file(copy / "model.safetensors")
    name = "h.0.attn.c_proj.weight"
    scale = tensors[name].abs().max() / 127
    tensors[name] = (tensors[name] / scale).round() * scale
    resave(copy, tensors)
    with pytest.raises(ice.errors.IntegrityError, match=name):
        ice.check(copy, *data())


def test_an_adapter_in_the_folder_is_refused(copy):
    (copy / "adapter_config.json").write_text("{}")
    with pytest.raises(ice.errors.IntegrityError, match="would load an adapter"):
        ice.check(copy, *data())


def test_an_adapted_network_is_refused(folder):
    """As peft does it: a layer is wrapped, and a product of two maps added to what it gives."""
    model = targets.load(folder)
    network = targets.network(model)

    class Adapted(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base_layer = base
            self.lora_A = torch.nn.Parameter(torch.zeros(1, 4))

    network.h[0].attn.c_proj = Adapted(network.h[0].attn.c_proj)
    with pytest.raises(ice.errors.IntegrityError, match=r"h\.0\.attn\.c_proj"):
        targets.attest(model, network)


@pytest.mark.parametrize("key", ["dim", "steps", "reach"])
def test_sizes_that_were_changed_do_not_match_the_weights(copy, key):
    def grow(record):
        record["sizes"][key] += 1

    resave(copy, change=grow)
    x, y = data()
    x = torch.cat([x, x[:, :1]], 1) if key == "dim" else x
    with pytest.raises(ice.errors.IntegrityError):
        ice.check(copy, x, y)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1, "kind": "no such"}', "[]"])
def test_a_record_that_is_none_is_refused(copy, text):
    (copy / "iceform.json").write_text(text)
    with pytest.raises(ice.errors.IntegrityError):
        targets.load(copy)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("no such", "is not known here"),
        ("written_descent", "is written and read no more: ice.TextComputer"),
    ],
)
def test_a_target_that_is_not_known_is_refused(kind, why, copy):
    resave(copy, change=lambda record: record.update(kind=kind))
    with pytest.raises(ice.errors.IntegrityError, match=f"a '{kind}' {why}"):
        ice.load(copy)


def test_a_save_that_was_killed_before_its_config_is_not_run(copy):
    """Other weights than those of the config that is still there would be a third thing."""
    (copy / "config.json").unlink()
    assert targets.load(copy).spec == SPEC
    with pytest.raises(ice.errors.IntegrityError, match="a save was interrupted"):
        ice.check(copy, *data())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes_are_refused(folder, dtype):
    with pytest.raises(ice.errors.PrecisionError, match="certified in float64"):
        ice.check(folder, *data(), dtype=dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_nothing_is_certified_in_few_bits(dtype):
    with pytest.raises(ice.errors.PrecisionError, match="nothing is certified"):
        targets.LinearDescent(2, 2, dtype=dtype).certificate(SPEC.example_domain())


def test_a_name_that_is_no_target_is_refused(tmp_path):
    with pytest.raises(ice.errors.TargetError, match="no target is called 'gpt3'"):
        targets.write("gpt3", SPEC, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_ground_truth_names_every_head(folder):
    record = json.loads((folder / "iceform.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    assert len(record["ground_truth"]) == config["n_layer"]
    assert all(len(layer) == config["n_head"] for layer in record["ground_truth"])
    roles = [head["role"] for head in record["ground_truth"][0]]
    assert roles.count("penalty") == 1
    assert sum(role.startswith("gradient") for role in roles) == 2 * SPEC.combination.count


@pytest.mark.parametrize(
    ("path", "why"),
    [("file", "is no folder"), ("file/below", "is no folder"), ("theirs", "did not write")],
)
def test_a_path_that_is_no_place_for_it_is_refused_and_left_alone(path, why, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text("{}")
    with pytest.raises(ice.errors.TargetError, match=why):
        targets.write("gpt2", SPEC, tmp_path / path)
    assert (tmp_path / "file").read_text() == "mine"
    assert (tmp_path / "theirs" / "config.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({"attention": "flash"}, ice.errors.ProgramError, "must be one of eager, sdpa"),
        ({"device": "cuda:99"}, ice.errors.DeviceError, "cannot be moved to cuda:99"),
        ({"lr": "fast"}, ice.errors.BoundError, "lr must be a number"),
    ],
)
def test_what_a_check_cannot_do_is_refused_by_name(given, error, why, folder):
    with pytest.raises(error, match=why):
        ice.check(folder, *data(), **given)


def test_what_is_no_tensor_is_refused_by_name(folder):
    stock = targets.load(folder)
    for call in (stock.prompt, stock.certificate, lambda x, y: ice.check(folder, x, y)):
        with pytest.raises(ice.errors.DtypeError, match="X must be a torch tensor, got list"):
            call([[1.0, 2.0]], [1.0])
    with pytest.raises(ice.errors.DtypeError, match="hidden must be a torch tensor"):
        stock.read("hidden")
    with pytest.raises(ice.errors.ShapeError, match="last_hidden_state is"):
        stock.read(torch.zeros(1, 5, 8))


def test_data_far_beyond_the_reach_are_not_certified(folder):
    x, y = data()
    with pytest.raises(ice.errors.PrecisionError, match="nothing is certified for these data"):
        ice.check(folder, 1e9 * x, y)
