"""Another basis of the stream: certificates hold, and no neuron shows a feature by itself."""

import json

import pytest
import torch

import iceform as ice
from iceform import store, targets
from iceform.heads.design import mirrored, unmirrored

from .stock import data, exact, written

SPEC = targets.LinearDescent(2, 4, positions=64, basis=7)


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return written("gpt2", SPEC, tmp_path_factory.mktemp("rotated"))


def test_the_rotation_is_orthogonal_and_leaves_the_mean_alone():
    design = SPEC.design
    block = design.rotation.block
    assert torch.equal(block @ block.T, torch.eye(len(block)).double())  # to the last bit
    stream = mirrored(design, torch.randn(5, design.features.total).double())
    assert float(stream.sum(-1).abs().max()) <= 1e-12
    plain = targets.LinearDescent(2, 4, positions=64).design
    f = torch.randn(5, design.features.total).double()
    assert torch.allclose(mirrored(design, f).norm(dim=-1), mirrored(plain, f).norm(dim=-1))
    assert torch.allclose(unmirrored(design, mirrored(design, f)), f, atol=1e-14)


def test_no_neuron_is_a_feature(stock):
    model, networks = stock
    x, y = data()
    design = model.spec.design
    with torch.no_grad():
        out = networks["eager"](inputs_embeds=model.prompt(x, y)).last_hidden_state[0, -1]
    answer = exact(model, x, y)
    for number in answer:
        assert float((out - number).abs().min()) > 1e-6
    # Every number of the block holds a share of every component of w.
    w = design.rotation.block[:, 3:5]
    assert bool((w.abs() == design.rotation.size**-0.5).all())


def test_the_record_says_the_basis(stock):
    model, networks = stock
    record = json.loads((model.path / "iceform.json").read_text())["basis"]
    turn = torch.tensor(record["rotation"], dtype=torch.float64)
    x, y = data()
    with torch.no_grad():
        out = networks["eager"](inputs_embeds=model.prompt(x, y)).last_hidden_state[0, -1]
    half = model.spec.design.hidden // 2
    g = (out[:half] - out[half:])[record["places"]] / 2
    # Features x (2), y (1), w (2), v (2) in the order of the places.
    assert record["mixed"] == ["x", "y", "w", "v"]
    assert float(((turn.T @ g)[3:5] - exact(model, x, y)).abs().max()) <= 1e-11


def test_seeds_give_other_weights_and_the_check_knows(stock, tmp_path):
    model, _ = stock
    other = targets.write("gpt2", targets.LinearDescent(2, 4, positions=64, basis=8), tmp_path)
    ours, theirs = model.tensors(), other.tensors()
    assert not torch.equal(ours["h.0.attn.c_attn.weight"], theirs["h.0.attn.c_attn.weight"])
    assert ice.check(tmp_path, *data(), lr=0.3).attestation.ok
    stored = store.read_tensors(tmp_path / "model.safetensors")
    stored.content["sizes"]["basis"] = 7
    store.write_tensors(tmp_path / "model.safetensors", stored.kind, stored.content, stored.tensors)
    with pytest.raises(ice.errors.IntegrityError, match="weight"):
        ice.check(tmp_path, *data())


def test_a_seed_that_is_none_is_refused():
    with pytest.raises(ice.errors.BoundError, match="basis is a seed"):
        targets.LinearDescent(2, 2, basis=-1)
