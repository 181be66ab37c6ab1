"""Folders in the Hub's layout: what is saved comes back, what was touched does not."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import iceform as ice
from iceform import store
from iceform.errors import IntegrityError, ProgramError, TargetError
from iceform.export import from_pretrained, save_pretrained
from iceform.networks import InContext, MeanPooling, in_context
from iceform.paper.library import PromptLibrary, RidgePrompts

F64 = torch.float64
FILES = ["README.md", "config.json", "model.safetensors"]


def encoder():
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(6), enable_nested_tensor=False)
    return model.double().eval()


def network():
    torch.manual_seed(2)
    return in_context(encoder(), calibration=[torch.randn(3, 4, 6, dtype=F64)], headroom=4.0)


def bert():
    transformers = pytest.importorskip("transformers", reason="needs iceform[export]")
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=6, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=7, max_position_embeddings=12,
    )  # fmt: skip
    model = MeanPooling(transformers.BertModel(config, add_pooling_layer=False)).double().eval()
    ids = torch.randint(0, 30, (2, 5))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return in_context(model, calibration=[given]), given


STEP = {"dim": 2, "samples": 3, "eps": 1e-6}
THINGS = {
    "network": network,
    "library": lambda: PromptLibrary(dim=2, samples=3, algorithms=[RidgePrompts()]),
    "emulator": lambda: ice.paper.GradientStep("huber", 0.1, **STEP),
    "prompt": lambda: ice.paper.LinearLayer(2, 3, samples=3, eps=1e-6).prompt(
        torch.eye(3, 2, dtype=F64), torch.ones(3, 2, dtype=F64)
    ),
}  # fmt: skip


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, InContext | PromptLibrary | ice.paper.Emulator):
        assert a.digest == b.digest
    if isinstance(a, InContext):
        x = torch.randn(2, 3, 6, dtype=F64)
        assert torch.equal(a(x), b(x))
        assert a.certificate.to_json() == b.certificate.to_json()
        assert str(a.report()) == str(b.report())
    elif isinstance(a, ice.heads.Prompt):
        assert torch.equal(a.tokens, b.tokens)
        assert (a.features, a.roles) == (b.features, b.roles)
    elif isinstance(a, PromptLibrary):
        x, y = torch.rand(3, 2, dtype=F64), torch.rand(3, dtype=F64)
        assert torch.equal(*(m.run(RidgePrompts(), x, y).value for m in (a, b)))


@pytest.mark.parametrize("name", THINGS)
def test_what_is_saved_comes_back(tmp_path, name):
    check_round_trip(THINGS[name](), same, tmp_path)


def check_round_trip(thing, same, tmp_path):
    """A folder with all three files, read back as the same thing, and the same when saved again."""
    folder = thing.save_pretrained(tmp_path / "saved")
    assert sorted(p.name for p in folder.iterdir()) == FILES
    same(thing, from_pretrained(folder))
    same(thing, type(thing).from_pretrained(str(folder)))
    card = (folder / "README.md").read_text(encoding="utf-8")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert card.startswith("---\nlibrary_name: iceform\n")
    digest = store.read_tensors(folder / "model.safetensors").sha256
    assert digest in card
    assert config["iceform"]["of"] == digest
    if hasattr(thing, "certificate"):
        assert f"{thing.certificate:.3e}" in card
        assert thing.digest in card
    # Saved once more, it is the same file.
    again = save_pretrained(from_pretrained(folder), tmp_path / "again")
    for file in FILES:
        assert (again / file).read_bytes() == (folder / file).read_bytes(), file


def test_a_bert_comes_back_without_its_original(tmp_path):
    net, given = bert()
    folder = net.save_pretrained(tmp_path / "bert")
    assert str(tmp_path) not in (folder / "config.json").read_text(encoding="utf-8")
    again = InContext.from_pretrained(folder)
    assert torch.equal(net(**given), again(**given))


PROGRAM = """
import sys, torch
from safetensors.torch import load_file, save_file
from iceform.networks import InContext
network = InContext.from_pretrained(sys.argv[1])
x = load_file(sys.argv[2])["x"].clone()  # torch's own alignment, on which sums depend
save_file({"out": network(x).contiguous()}, sys.argv[3])
print(network.digest)
"""


def test_a_fresh_process_gives_the_same_digest_and_the_same_bits(tmp_path):
    net = network()
    folder = net.save_pretrained(tmp_path / "saved")
    x = torch.randn(2, 3, 6, dtype=F64)
    save_file({"x": x}, tmp_path / "x.safetensors")
    path = os.pathsep.join([str(Path(ice.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    arguments = [folder, tmp_path / "x.safetensors", tmp_path / "out.safetensors"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == net.digest
    assert torch.equal(load_file(tmp_path / "out.safetensors")["out"], net(x))


# ---------------------------------------------------------------------------------- damaged files


@pytest.fixture(scope="module", params=["network", "library", "emulator", "prompt"])
def whole(request, tmp_path_factory):
    return save_pretrained(THINGS[request.param](), tmp_path_factory.mktemp("whole") / "saved")


@pytest.fixture
def saved(whole, tmp_path):
    """A copy that may be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "saved"))


def test_a_flipped_bit_anywhere_in_the_weights_raises(saved):
    file = saved / "model.safetensors"
    content = file.read_bytes()
    size = len(content)
    places = [8, size // 3, size // 2, 2 * size // 3, size - 1]
    for place in places:
        for bit in (0, 7):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            file.write_bytes(bytes(changed))
            with pytest.raises(IntegrityError):
                from_pretrained(saved)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_truncated_and_missing_files_raise(saved, file, share):
    content = (saved / file).read_bytes()
    (saved / file).write_bytes(content[: int(share * len(content))])
    with pytest.raises(IntegrityError):
        from_pretrained(saved)
    (saved / file).unlink()
    if file == "config.json":  # a view
        from_pretrained(saved)
        return
    with pytest.raises(IntegrityError, match=r"cannot be read"):
        from_pretrained(saved)


def edit(folder, change):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    change(config)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize(
    ("key", "value"),
    [("type", "Telepathy"), ("library_name", "other"), ("content", {}), ("iceform", {}),
     ("iceform", None)],
)  # fmt: skip
def test_an_edited_config_is_noticed(saved, key, value):
    edit(saved, lambda config: config.update({key: value}))
    with pytest.raises(IntegrityError):
        from_pretrained(saved)


def test_a_pickle_in_place_of_the_weights_is_not_read(saved):
    torch.save({"tokens": torch.zeros(2)}, saved / "model.safetensors")
    with pytest.raises(IntegrityError, match="cannot be read"):
        from_pretrained(saved)


def resign(folder, change):
    """An edit by someone who also seals the file again: structure is checked on its own."""
    stored = store.read_tensors(folder / "model.safetensors")
    change(stored.content)
    file = folder / "model.safetensors"
    store.write_tensors(file, stored.kind, stored.content, stored.tensors)


@pytest.mark.parametrize(
    "op", ["os.system", "aten.add_.Tensor", "aten.nothing.default", "size.eval", "prims.iota"]
)
def test_a_network_cannot_name_other_code(tmp_path, op):
    folder = network().save_pretrained(tmp_path)
    resign(folder, lambda c: c["graphs"][0]["nodes"][-1].update(op=op))
    with pytest.raises(IntegrityError, match="is no operation that a network can hold"):
        from_pretrained(folder)


def test_a_network_cannot_name_another_class_for_its_output(tmp_path):
    x = torch.randn(3, 4, 6, dtype=F64)
    net = network()
    folder = net.save_pretrained(tmp_path)
    other = {"object": "subprocess.Popen", "items": {"args": {"value": "ls"}}}
    resign(folder, lambda c: c["graphs"][0].update(output=other))
    with pytest.raises(IntegrityError, match="is no named output of transformers"):
        from_pretrained(folder)(x)


def test_weights_of_another_network_are_noticed(tmp_path):
    folder = network().save_pretrained(tmp_path)
    resign(folder, lambda config: config["sizes"].update(tokens=99))
    with pytest.raises(IntegrityError, match="not the ones that were saved"):
        from_pretrained(folder)


# --------------------------------------------------------------------------------------- borders


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    for thing in ({"a": 1}, RidgePrompts()):
        with pytest.raises(ProgramError, match="cannot be saved"):
            save_pretrained(thing, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_network_of_any_shape_comes_back(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3, dtype=F64)

        def forward(self, x):
            return self.inner(x) + x

    torch.manual_seed(0)
    model, x = Two(), torch.randn(2, 3, dtype=F64)
    net = in_context(model, calibration=[x])
    folder = net.save_pretrained(tmp_path)
    assert torch.equal(InContext.from_pretrained(folder)(x), net(x))


def test_the_wrong_class_is_named(tmp_path):
    folder = THINGS["emulator"]().save_pretrained(tmp_path)
    with pytest.raises(IntegrityError, match="holds a GradientStep, not a PromptLibrary"):
        PromptLibrary.from_pretrained(folder)


def test_tensors_are_plain(tmp_path):
    folder = network().save_pretrained(tmp_path)
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = list(file.keys())
    assert "layers.0.self_attn.in_proj.weight" in names


def test_a_folder_of_a_stock_model_is_loaded_as_any_other(tmp_path):
    spec = ice.targets.LinearDescent(dim=1, steps=2)
    ice.targets.write("gpt2", spec, tmp_path / "descent")
    model = ice.load(tmp_path / "descent")
    x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([0.5, 0.25]).double()
    given, own = (ice.targets.contribution(one, x, y, head=0) for one in (model, spec))
    assert (model.spec, given.value) == (spec, own.value)
    with pytest.raises(TargetError, match="got str; read a folder"):
        ice.targets.contribution(str(tmp_path / "descent"), x, y, head=0)
