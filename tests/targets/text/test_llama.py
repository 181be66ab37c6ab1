"""The text machine as a Llama: positions turn queries and keys, and nothing else says them."""

import json
import math

import pytest
import torch

import iceform as ice
from iceform.errors import IceformError
from iceform.targets.text import TextComputer
from iceform.targets.text.campaign import Campaign, drawn_run, drawn_runs, forced
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


def _scaled(layer, role, part, factor):
    """A mutant that scales the queries, keys or values of the heads of one role."""

    def change(computer, tensors):
        size = computer.design.head_size
        weight = tensors[f"model.layers.{layer}.self_attn.{part}_proj.weight"]
        for index, head in enumerate(computer.design.layers[layer]):
            if head.role.startswith(role):
                weight[index * size : (index + 1) * size] *= factor

    return change


def _turned(layer, role, places, angle):
    """A mutant whose queries at some places are turned further, by so many radians a place."""

    def change(computer, tensors):
        size = computer.design.head_size
        weight = tensors[f"model.layers.{layer}.self_attn.q_proj.weight"]
        for index, head in enumerate(computer.design.layers[layer]):
            if head.role.startswith(role):
                for place in places(computer):
                    at = [index * size + place, index * size + place + SPEEDS]
                    c, s = math.cos(angle(computer, place)), math.sin(angle(computer, place))
                    turn = torch.tensor([[c, -s], [s, c]], dtype=weight.dtype)
                    weight[at] = turn @ weight[at]

    return change


def _one_more(computer, place):
    return -float(computer.layers.speeds[place])


def _mirrored_phase(computer, _):
    return -2 * computer.layers.phase


def _swapped(computer, tensors):
    """Codes that are matched at the fastest speeds: right only where nothing is far away."""
    size = computer.design.head_size
    for part in "qk":
        weight = tensors[f"model.layers.1.self_attn.{part}_proj.weight"]
        held = weight[:size].clone()
        weight[:size] = held.view(2, SPEEDS, -1).flip(1).reshape(size, -1)


def _tie(computer, tensors):
    layer = len(computer.design.layers) - len(computer.features.digits) - 1
    at = computer.features.all["one"]
    tensors[f"model.layers.{layer}.self_attn.v_proj.weight"][:, at] *= -1


def _feed_forward(computer, tensors):
    tensors["model.layers.6.mlp.down_proj.weight"] += 0.5


def _norm(computer, tensors):
    tensors["model.layers.4.input_layernorm.weight"] *= 1.01


def _bias(computer, tensors):
    tensors["model.layers.2.self_attn.q_proj.bias"] = torch.ones(computer.design.inner)


def _theta_places(computer):
    return range(12)


def _recency(computer):
    return [computer.layers.recency_place]


MUTANTS = {
    "leak: labels are matched softly": _scaled(1, "fetch", "q", 2.0**-12),
    "leak: names are matched softly": _scaled(4, "read b", "q", 2.0**-14),
    "recency is forgotten": _scaled(2, "index", "q", 0.0),
    "the oldest write is read": _turned(4, "read b", _recency, _mirrored_phase),
    "off by one": _turned(0, "1 back", _theta_places, _one_more),
    "codes at fast places": _swapped,
    "ties go down": _tie,
    "a bit of a factor is lost": _scaled(5, "times", "v", 0.0),
    "a branch is inverted": _scaled(1, "branch", "v", -1.0),
    "the feed-forward map adds something": _feed_forward,
    "a norm is no identity": _norm,
    "attention has a bias": _bias,
}
# Those that a GPT-2 has a quick test of, at the same place of the proof.
ALIKE = ("leak: names are matched softly", "ties go down", "a bit of a factor is lost",
         "a branch is inverted")  # fmt: skip
SILENT = ("the feed-forward map adds something", "a norm is no identity", "attention has a bias")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ALIKE)) for n in MUTANTS]
)
def test_a_mutant_voids_the_certificate(llama, name):
    tensors = llama.tensors()
    MUTANTS[name](llama, tensors)
    assert not llama.certify(tensors).holds


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in SILENT])
def test_a_mutant_writes_something_else(llama, name):
    tensors = llama.tensors()
    MUTANTS[name](llama, tensors)
    mutant = llama.model()
    mutant.load_state_dict(tensors)
    found = Campaign()
    runs = drawn_runs(llama.sizes, "7", 24, (0, llama.sizes.positions))
    form = llama.sizes.format
    ties = "\n".join(f"{k}: c = {form.word(2 * k + 1)} * 0.5" for k in range(1, 16))
    forced(mutant, [*runs, drawn_run(llama.check(f"{ties} goto end"))], found)
    assert found.wrong > 0


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
