"""The text machine as a Llama: positions turn queries and keys, and nothing else says them."""

import json
import math

import pytest
import torch

import iceform as ice
from iceform.errors import IceformError
from iceform.targets.text import TextComputer
from iceform.targets.text.campaign import Campaign, drawn_runs, forced
from iceform.targets.text.proof.rotary import ANGLE
from iceform.targets.text.rotary import SPEEDS
from tests.targets.alone import alone
from tests.targets.text.test_machine import NEWTON, NEWTON_DATA, SMALL

transformers = pytest.importorskip("transformers")
UNIT = 2.0**-24


@pytest.fixture(scope="module")
def llama():
    return TextComputer(**SMALL, architecture="llama")


@pytest.fixture(scope="module")
def network(llama):
    return llama.model()


def test_random_programs_token_for_token(llama, network):
    found = Campaign()
    runs = drawn_runs(llama.sizes, "5", 12, (0, llama.sizes.positions))
    for start in range(0, len(runs), 4):
        forced(network, runs[start : start + 8], found)
    assert found.tokens > 300
    assert (found.wrong, found.failed) == (0, [])
    assert found.margin > 127


def test_a_folder_runs_in_a_stock_pipeline_without_iceform(llama, tmp_path):
    llama.save(tmp_path / "machine")
    texts = [f"{NEWTON}\n{NEWTON_DATA}", "1: B[i] = A(q) goto end\nA = [1, 4, 9] q = 1.5 i = 3"]
    code = """
        from transformers import pipeline
        run = pipeline("text-generation", sys.argv[1], batch_size=2)
        print(type(run.model).__name__)
        for found in run(sys.argv[2:], return_full_text=False):
            print(found[0]["generated_text"])
    """
    kind, *said = alone(code, str(tmp_path / "machine"), *texts).splitlines()
    assert kind == "LlamaForCausalLM"
    expected = [llama.interpret(t).removesuffix("[end]").split() for t in texts]
    assert [line.split() for line in said] == expected  # padded on the left
    assert TextComputer.load(tmp_path / "machine").digest == llama.digest
    config = json.loads((tmp_path / "machine" / "config.json").read_text())
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 500_000.0}
    assert (config["attention_bias"], config["rms_norm_eps"]) == (False, 1e-5)


def test_a_program_in_the_weights(llama):
    held = TextComputer(**SMALL, architecture="llama", mode="weights", program=NEWTON)
    assert held.run(NEWTON_DATA) == llama.interpret(f"{NEWTON}\n{NEWTON_DATA}")


# -------------------------------------------------------------------------------- certificate


def test_the_certificate_holds(llama):
    assert llama.certificate.holds, llama.certificate.failures


@pytest.mark.slow
def test_how_many_positions_it_holds_for():
    assert TextComputer(architecture="llama").certificate.holds
    wider = TextComputer(architecture="llama", positions=8192).certificate
    assert not wider.holds
    read = next(m for m in wider.margins if m.what == "4: read b")
    assert 215 < read.error <= 216
    assert 128 <= read.gap < 129


def test_angles_are_as_taken_for_granted(llama, network):
    """Every angle of every position, as transformers turns by it, against float64."""
    positions = torch.arange(llama.sizes.positions)
    cos, sin = network.model.rotary_emb(torch.zeros(1), positions[None])
    angles = torch.outer(positions.double(), llama.layers.speeds)
    allowed = ANGLE * UNIT * angles + 2 * UNIT
    for found, exact in ((cos, angles.cos()), (sin, angles.sin())):
        assert bool(((found[0, :, :SPEEDS].double() - exact).abs() <= allowed).all())


def test_the_two_halves_of_a_head_turn_together(llama, network):
    """The logit of a look-back is the proof's curve, wherever query and key are."""
    head = llama.design.layers[0][0]
    assert head.role.startswith("1 back")
    size = llama.design.head_size
    attention = network.model.layers[0].self_attn
    seen = network.model.layers[0].input_layernorm(network.model.embed_tokens.weight[5:6])
    q, k = (m(seen)[:, :size].expand(64, -1) for m in (attention.q_proj, attention.k_proj))
    turn = network.model.rotary_emb(seen, torch.arange(64)[None])
    rotate = transformers.models.llama.modeling_llama.apply_rotary_pos_emb
    q, k = (x[0, 0] for x in rotate(q[None, None], k[None, None], *turn))
    logits = (q @ k.T / math.sqrt(size)).double()
    pairs = zip(head.logit[:SPEEDS], head.logit[SPEEDS:], llama.layers.speeds, strict=True)
    curve = torch.zeros(64).double()
    for (first, _), (second, _), speed in pairs:
        c, s = (row.reads.get(("one", 0), 0.0) for row in (first, second))
        turns = speed * torch.arange(64)
        curve += c * turns.cos() - s * turns.sin()
    for distance in range(64):
        assert torch.allclose(logits.diagonal(-distance), curve[distance], atol=0.05, rtol=0)
    assert curve.argmax() == 1


# ------------------------------------------------------------------------------------ refusals


def test_a_network_that_turns_otherwise_is_refused(llama):
    other = llama.model()
    other.config.rope_parameters["rope_theta"] = 10_000.0
    with pytest.raises(ice.errors.IntegrityError, match="rope_parameters"):
        llama.run("1: c = 7 goto end", network=other)


@pytest.mark.parametrize(
    ("asked", "said"),
    [({"dtype": "float64"}, "float32"), ({"architecture": "mamba"}, "gpt2, llama"),
     ({"positions": 2**16}, "positions=65536")],
)  # fmt: skip
def test_what_no_llama_can_be_is_refused(asked, said):
    with pytest.raises(IceformError, match=said):
        print(TextComputer(**{**SMALL, "architecture": "llama", **asked}))
