"""An architecture is one row: it is in every target that can hold it, one from outside too."""

import pytest
import torch
import transformers
from safetensors.torch import load_file

import iceform as ice
from iceform.errors import TargetError
from iceform.targets import ARCHITECTURES
from iceform.targets.architectures import Architecture, TensorNames
from iceform.targets.target import KINDS

from .stock import data, descent


@pytest.fixture(scope="module")
def program():
    return ice.compile(descent, dim=2, samples=6, eps=0.1)


def _phi_config(design, positions):
    return {
        "architectures": ["PhiModel"],
        "model_type": "phi",
        "vocab_size": 1,
        "hidden_size": design.hidden,
        "intermediate_size": 1,
        "num_hidden_layers": len(design.unrolled),
        "num_attention_heads": design.heads,
        "num_key_value_heads": design.heads,
        "hidden_act": "relu",
        "max_position_embeddings": positions,
        "layer_norm_eps": design.norm,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.0,
        },
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }  # fmt: skip


PHI = TensorNames(
    "embed_tokens.weight", "", "final_layernorm", "layers.{}.",
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.dense",
    ("input_layernorm",), ("mlp.fc1",), "mlp.fc2",
)  # fmt: skip


@pytest.fixture
def phi():
    row = Architecture("phi", True, 0, (torch.float32,), PHI, _phi_config)
    ARCHITECTURES[row.name] = row
    yield row
    del ARCHITECTURES[row.name]


@pytest.mark.parametrize("name", ["gpt_neox", "phi"])
def test_a_row_is_a_checkpoint_that_runs_and_is_checked(name, program, phi, tmp_path):
    model = program.to(name, tmp_path, dtype="float32")
    network = transformers.AutoModel.from_pretrained(tmp_path)
    assert network.config.model_type == name
    assert network.config.num_hidden_layers == 2
    x, y = data()
    with torch.no_grad():
        hidden = network(inputs_embeds=model.prompt(x, y, lr=0.25)).last_hidden_state
    exact = program.reference(x, y, lr=0.25)
    assert float((model.read(hidden) - exact).abs().max()) <= 1e-5
    checked = ice.check(tmp_path, x, y, lr=0.25)
    assert checked.ok
    assert checked.measured <= checked.certificate.error < 1e-3


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_heads_of_a_fused_map_are_in_their_places(attention, program, tmp_path):
    """GPT-NeoX keeps queries, keys and values head by head: against GPT-2."""
    x, y = data()
    answers = []
    for name in ("gpt2", "gpt_neox"):
        model = program.to(name, tmp_path / name, dtype="float32")
        network = transformers.AutoModel.from_pretrained(
            tmp_path / name, attn_implementation=attention
        )
        with torch.no_grad():
            answers.append(model.read(network(inputs_embeds=model.prompt(x, y)).last_hidden_state))
    assert float((answers[0] - answers[1]).abs().max()) <= 1e-6
    held = load_file(tmp_path / "gpt_neox" / "model.safetensors")
    fused = held["layers.0.attention.query_key_value.weight"]
    assert fused.shape[0] == 3 * fused.shape[1]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_a_target_needs_of_an_architecture_it_says_by_facts(kind, phi):
    """A row from outside is taken or refused as those like it are: nothing goes by the name."""
    target = KINDS[kind]
    like = {name: row for name, row in ARCHITECTURES.items() if name != "phi"}
    for name, row in like.items():
        if (row.causal, row.dtypes, row.tied) == (phi.causal, phi.dtypes, phi.tied):
            assert (name in target.architectures()) == ("phi" in target.architectures())
    assert target.architectures()
    for name in ARCHITECTURES.keys() - set(target.architectures()):
        with pytest.raises(TargetError, match=f"{kind} cannot be a {name}: .*; use "):
            target.check_architecture(name)


def test_float64_of_a_norm_in_float32_is_refused(program, phi, tmp_path):
    with pytest.raises(TargetError, match="a phi computes its norms"):
        program.to("phi", tmp_path / "no")
    assert not (tmp_path / "no").exists()
