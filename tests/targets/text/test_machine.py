"""The text machine's network against the interpreter, and what is said of it."""

import json
import math
import random
import re

import numpy as np
import pytest
import torch

import iceform as ice
from iceform.errors import IceformError
from iceform.targets.text import TEXTS, TextComputer
from iceform.targets.text.campaign import Campaign, drawn_run, drawn_runs, forced
from iceform.targets.text.features import TextFeatures
from iceform.targets.text.proof.stream import MEAN, NORM, ROOT
from iceform.targets.text.proof.words import WordProof
from tests.targets.alone import alone

pytest.importorskip("transformers")

SMALL = {"positions": 512, "labels": 20, "scalars": 20, "arrays": 2, "indices": 2, "cells": 8}
NEWTON = """1: t = r * r
2: t = t * a
3: t = 3 - t
4: t = t * 0.5
5: r = r * t
6: n = n - 1 if > 0 goto 1
7: A[j] = max(r, 0.25) goto end"""
NEWTON_DATA = "a = 2  r = 0.5  n = 3  j = 1"


@pytest.fixture(scope="session")
def small():
    return TextComputer(**SMALL)


@pytest.fixture(scope="session")
def network(small):
    return small.model()


def _campaign(computer, network, count, seed):
    found = Campaign()
    runs = drawn_runs(computer.sizes, str(seed), count, (0, computer.sizes.positions))
    for start in range(0, count, 8):
        forced(network, runs[start : start + 8], found)
    return found


def test_random_programs_token_for_token(small, network):
    found = _campaign(small, network, 40, seed=5)
    assert found.tokens > 1000
    assert (found.wrong, found.failed) == (0, [])
    assert found.margin > 127


def test_generate_writes_the_run_alone_and_in_a_padded_batch(small):
    texts = [f"{NEWTON}\n{NEWTON_DATA}", "1: B[i] = i - -0.5 goto end\ni = 3", "1: c = 7 goto end"]
    expected = [small.interpret(text) for text in texts]
    assert small.run(texts[0]) == expected[0]
    assert small.run(texts) == expected


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_batch_of_a_long_prompt_and_a_long_run(architecture):
    """Each fits the positions; padded to one prompt, the longer run would leave them."""
    computer = TextComputer(**SMALL | {"positions": 48}, architecture=architecture)
    texts = [
        "1: c = 7 goto end\n" + "a = 1 " * 18,
        "1: n = n - 1 if > 0 goto 1\n2: n = 0 goto end\nn = 9",
    ]
    assert computer.run(texts) == [computer.interpret(text) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in TEXTS if n != "rule 110"])
def test_the_usual_machine_runs_the_texts(name):
    computer = TextComputer()
    assert computer.run(TEXTS[name]) == computer.interpret(TEXTS[name])


@pytest.mark.slow
def test_the_float64_machine():
    computer = TextComputer.library()
    assert computer.certificate.holds, computer.certificate.failures
    found = _campaign(computer, computer.model(), 16, seed=6)
    assert found.wrong == 0


@pytest.mark.parametrize("operation", ["+", "-", "*"])
def test_results_at_ties_and_beyond_the_range(small, network, operation):
    """Pairs whose exact result is a tie, next to one, or beyond the largest level."""
    form, draw = small.sizes.format, random.Random(operation)
    exact = {"+": lambda a, b: a + b, "-": lambda a, b: a - b,
             "*": lambda a, b: a * b / 2**form.fraction}[operation]  # fmt: skip
    pairs = []
    while len(pairs) < 60:
        a, b = draw.choice(form.levels), draw.choice(form.levels)
        value = exact(a, b)
        step = 2.0 ** max(0, math.frexp(value)[1] - form.bits)
        near = abs(value / step - math.floor(value / step) - 0.5) < 2 / 2**form.bits
        if (near and value % step) or abs(value) > form.largest:
            pairs.append((form.word(a), form.word(b)))
    found, runs = Campaign(), []
    for start in range(0, len(pairs), 15):
        lines = [f"{k + 1}: c = {a} {operation} {b}" for k, (a, b) in
                 enumerate(pairs[start : start + 15])]  # fmt: skip
        runs.append(drawn_run(small.check("\n".join(lines) + " goto end")))
    forced(network, runs, found)
    assert found.wrong == 0, found.failed


def test_every_function_of_a_literal_and_of_a_variable(small, network):
    from iceform.targets.text.words import FUNCTIONS

    found, runs, draw = Campaign(), [], random.Random(3)
    for f in FUNCTIONS:
        words = [draw.choice(small.sizes.format.words) for _ in range(6)]
        lines = [f"{k + 1}: b = {f}({w})" for k, w in enumerate(words)]
        runs.append(drawn_run(small.check("\n".join([*lines, f"7: b = {f}(b) goto end"]))))
    forced(network, runs, found)
    assert found.wrong == 0, found.failed


def test_a_table_of_ones_own_at_halves_and_beyond_its_ends(small, network):
    """The nearest cell, ties up, and the first or last one beyond; a call beside a call."""
    cells = small.sizes.cells
    around = [k + off for k in range(-1, cells + 1) for off in (-0.5, -0.4921875, 0, 0.4921875)]
    words = [small.sizes.format.nearest(x) for x in [*around, -127, 127]]
    table = ", ".join(str(3 * k - 7) for k in range(cells))
    found, runs = Campaign(), []
    for start in range(0, len(words), 10):
        lines = []
        for w in words[start : start + 10]:
            lines += [f"{len(lines) + 1}: s = {w}", f"{len(lines) + 2}: r = A(s) + A(r)"]
        text = "\n".join(lines) + f" goto end\nA = [{table}] r = 1"
        runs.append(drawn_run(small.check(text)))
    forced(network, runs, found)
    assert found.wrong == 0, found.failed


# ------------------------------------------------------------------------------------ folders


def test_a_folder_runs_in_a_stock_pipeline_without_iceform(small, tmp_path):
    small.save(tmp_path / "machine")
    text = f"{NEWTON}\n{NEWTON_DATA}"
    short = "1: B[i] = A(q) goto end\nA = [1, 4, 9] q = 1.5 i = 3"
    code = """
        from transformers import pipeline
        run = pipeline("text-generation", sys.argv[1], batch_size=2)
        for found in run(sys.argv[2:], return_full_text=False):
            print(found[0]["generated_text"])
        torch.manual_seed(0)
        print(run(sys.argv[3], return_full_text=False, do_sample=True)[0]["generated_text"])
    """
    said = alone(code, str(tmp_path / "machine"), text, short).splitlines()
    expected = [small.interpret(t).removesuffix("[end]").split() for t in (text, short, short)]
    assert [line.split() for line in said] == expected  # padded on the left; and even drawn
    again = TextComputer.load(tmp_path / "machine")
    assert again.digest == small.digest
    names = {p.name for p in (tmp_path / "machine").iterdir()}
    assert {"ground_truth.json", "generation_config.json", "tokenizer.json", "README.md"} <= names


@pytest.mark.parametrize("path", [3, None, b"folder"], ids=str)
def test_what_is_no_path_is_refused_by_name(small, path):
    for door in (small.save, TextComputer.load, ice.load):
        with pytest.raises(ice.errors.ParameterError, match=re.escape(f"got {path!r}")):
            door(path)


def test_transformer_lens_opens_the_folder(small, tmp_path):
    """Its logits say the run, and the head that reads a table looks where the truth says."""
    bridge = pytest.importorskip("transformer_lens.model_bridge", reason="needs transformer-lens")
    small.save(tmp_path / "machine")
    opened = bridge.TransformerBridge.boot_transformers(
        str(tmp_path / "machine"), dtype=torch.float32
    )
    text = "1: r = A(q)\n2: s = r * 0.5 goto end\nA = [3, 1, 2] q = 2"
    run = small.check(text)
    ids = small.tokenizer(text).input_ids
    prompt = len(ids)
    ids = ids + [small.sizes.ids[word] for word in run.words]
    with torch.no_grad():
        logits, cache = opened.run_with_cache(torch.tensor([ids]))
    assert logits[0, prompt - 1 : -1].argmax(-1).tolist() == ids[prompt:]
    roles = [head["role"] for head in small.ground_truth()["heads"][4]]
    pattern = cache["blocks.4.attn.hook_pattern"][0, roles.index("read b")]
    looked = int(pattern[prompt].argmax())  # from 'r =', which comes before the result
    words = [small.sizes.words[k].text for k in ids]
    assert words[prompt] == "r ="
    assert words[looked - 1 : looked + 1] == ["A[2] =", "2"]


def test_the_folder_asks_for_greedy_decoding_left_padding_and_its_own_dtype(small, tmp_path):
    small.save(tmp_path / "machine")
    read = {n: json.loads((tmp_path / "machine" / f"{n}.json").read_text())
            for n in ("generation_config", "tokenizer_config", "config")}  # fmt: skip
    generation = read["generation_config"]
    assert (generation["do_sample"], generation["num_beams"]) == (False, 1)
    assert generation["max_length"] == read["tokenizer_config"]["model_max_length"] == 512
    assert read["tokenizer_config"]["padding_side"] == "left"
    assert read["config"]["dtype"] == "float32"


def test_a_prompt_that_is_too_long_is_refused_before_anything_is_generated(small):
    data = " ".join(f"A = [{', '.join('0' * 8)}]" for _ in range(32))
    with pytest.raises(IceformError, match="of 512 positions"):
        small.run(f"1: c = 7 goto end\n{data}")


def test_stock_means_stock(small):
    config = small.config()
    assert config["layer_norm_epsilon"] == 1e-5
    assert config["architectures"] == ["GPT2LMHeadModel"]
    assert config["activation_function"] == "gelu_new"


def test_ground_truth_names_every_head_feature_and_token(small):
    truth = small.ground_truth()
    heads = [head for layer in truth["heads"] for head in layer]
    assert len(heads) == len(small.design.layers) * small.design.heads
    assert all(head["role"] for head in heads)
    held = sorted(k for at in truth["features"].values() for k in range(*at))
    assert held == list(range(len(held)))
    assert len(held) <= small.design.hidden
    assert [t["text"] for t in truth["tokens"]] == [w.text for w in small.sizes.words]


# ------------------------------------------------------------------------------ in the weights


def test_a_program_in_the_weights_takes_data_only(small):
    held = TextComputer(**SMALL, mode="weights", program=NEWTON)
    expected = small.interpret(f"{NEWTON}\n{NEWTON_DATA}")
    assert held.interpret(NEWTON_DATA) == expected
    assert held.run(NEWTON_DATA) == expected
    assert len(held.tokenizer(NEWTON_DATA).input_ids) < 16
    assert held.digest != small.digest


@pytest.mark.parametrize(
    ("data", "said"),
    [("a = 2  r = 0.5", "n is read"), ("a = 2\nzz = 1", "line 2, 'zz'"),
     ("1: a = 2 goto end", "in the weights")],
)  # fmt: skip
def test_bad_data_of_a_program_in_the_weights(data, said):
    held = TextComputer(**SMALL, mode="weights", program=NEWTON)
    with pytest.raises(IceformError, match=said):
        held.run(data)


# ---------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("asked", "said"),
    [({"do_sample": True}, "greedy"), ({"temperature": 2}, "greedy"), ({"num_beams": 4}, "greedy")],
)  # fmt: skip
def test_decoding_otherwise_is_refused(small, asked, said):
    with pytest.raises(ice.errors.ParameterError, match=said):
        small.run(f"{NEWTON}\n{NEWTON_DATA}", **asked)


def test_other_dtypes_and_other_weights_are_refused(small):
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        with pytest.raises(ice.errors.PrecisionError, match=str(dtype).removeprefix("torch.")):
            small.model(dtype)
    with pytest.raises(ice.errors.PrecisionError, match="bfloat16"):
        small.run("1: c = 7 goto end", network=small.model().to(torch.bfloat16))
    mixed = small.model()
    mixed.transformer.h[3].to(torch.bfloat16)
    with pytest.raises(ice.errors.PrecisionError, match="bfloat16"):
        small.run("1: c = 7 goto end", network=mixed)
    moved = small.model()
    with torch.no_grad():
        moved.transformer.h[2].attn.c_attn.weight[3, 5] += 1e-3
    with pytest.raises(ice.errors.IntegrityError, match="weights"):
        small.run("1: c = 7 goto end", network=moved)


@pytest.mark.parametrize(
    ("where", "setting", "value"),
    [("config", "layer_norm_epsilon", 1e-3), ("config", "scale_attn_by_inverse_layer_idx", True),
     ("generation_config", "repetition_penalty", 2.0),
     ("generation_config", "max_new_tokens", 2), ("generation_config", "do_sample", True)],
)  # fmt: skip
def test_a_network_with_other_settings_is_refused(small, network, where, setting, value):
    """The weights are right, and the run would not be."""
    held = getattr(network, where)
    before = getattr(held, setting)
    setattr(held, setting, value)
    try:
        with pytest.raises(ice.errors.IntegrityError, match=setting):
            small.run("1: c = 7 goto end", network=network)
    finally:
        setattr(held, setting, before)


def test_a_hook_that_changes_the_run_is_noticed(small):
    """Weights and settings are right, and what is written is not what the program says."""
    network = small.model()
    network.transformer.h[5].attn.register_forward_hook(lambda _, __, out: (0 * out[0], *out[1:]))
    with pytest.raises(ice.errors.IntegrityError, match=r"word 2 of the run.*'7'.*hook"):
        small.run("1: c = 7 goto end", network=network)


def test_a_machine_that_is_not_proven_does_not_answer_wrongly():
    """Its largest product is so large that the norm sees it."""
    wide = TextComputer(bits=7, fraction=2, top=15, positions=32, labels=2, scalars=2, arrays=0,
                        indices=0, cells=1)  # fmt: skip
    assert not wide.certificate.holds
    with pytest.raises(ice.errors.IntegrityError, match=r"'32256'.*'32512'.*does not hold.*top"):
        wide.run("1: a = 32512 * 32512 goto end")


@pytest.mark.parametrize("text", [None, 3, b"1: c = 7 goto end", ["1: c = 7 goto end", None]])
def test_what_is_no_text_is_refused(small, text):
    with pytest.raises(ice.errors.ProgramError, match="Pass a str"):
        small.run(text)
    assert small.run([]) == []


@pytest.mark.parametrize(
    "asked",
    [{"mode": "weights"}, {"program": NEWTON}, {"mode": "tape"}, {"steps": 3}, {"dtype": "float16"},
     {"mode": "weights", "program": f"{NEWTON}\na = 1"}, {"positions": 512.0}, {"cells": True},
     {"bits": 7.5}, {"top": 100}, {"sizes": 3}],
)  # fmt: skip
def test_what_is_no_machine_is_refused(asked):
    with pytest.raises(IceformError):
        TextComputer(**{**SMALL, **asked})


# -------------------------------------------------------------------------------- certificate


def test_the_certificate_holds_and_says_why(small):
    certificate = small.certificate
    assert certificate.holds, certificate.failures
    said = certificate.explain()
    for part in ("every token", "ends of segments", "clearance", "taking for granted"):
        assert part in said
    form = small.sizes.format
    assert certificate.enumerated["pairs of levels, each added, multiplied and compared"] == (
        form.count**2
    )


def test_three_operands_are_bounded_where_pairs_are_enumerated():
    """In float64 c + a b comes nearer to a boundary than a sum or a product of two does."""
    computer = TextComputer(**SMALL, dtype="float64", bits=3, fraction=3, top=3)
    proof = WordProof(computer.layers, computer._words(), computer.tensors())
    proof.leaks[0, 0] = 0.0
    errors = (0.0, 0.0, 0.0, 0.0)
    assert max(proof.clearance) < min(proof._enumerated(*errors))
    assert computer.certificate.holds, computer.certificate.failures


def test_norms_are_as_taken_for_granted(small, network):
    """The root and the mean of every norm, read off the ballast and the empty place."""
    own, design = small.design.own_places(), small.design
    unit = 2.0**-24
    seen = []

    def look(_, inputs, out):
        seen.append(out.double().flatten(0, 1))

    hooks = [b.ln_1.register_forward_hook(look) for b in network.transformer.h]
    forced(network, drawn_runs(small.sizes, "11", 1, (0, small.sizes.positions)), Campaign())
    for hook in hooks:
        hook.remove()
    out = torch.cat(seen)
    off = (out[:, own["ballast"][0]] / design.ballast - 1).abs().max() / unit
    mean = out[:, own["nil"][0]].abs().max()
    deviation = next(s.value for s in small.certificate.derivation if s.symbol == "deviation")
    assert float(off) <= ROOT + NORM + deviation / unit, float(off)
    assert float(mean) <= MEAN * unit * design.ballast, float(mean)


def test_every_level_has_a_code_of_its_own():
    features = TextFeatures(TextComputer(**SMALL).sizes)
    codes = features.level_codes(np.array(features.format.levels))
    assert len(torch.cat([*codes.values()], 1).unique(dim=0)) == features.format.count


@pytest.mark.parametrize("seed", range(6))
def test_a_weight_moved_at_random_changes_the_certificate(small, seed):
    draw = random.Random(seed)
    tensors = {k: t.clone() for k, t in small.tensors().items()}
    layer = draw.randrange(len(small.design.layers))
    name = f"transformer.h.{layer}.attn." + draw.choice(["c_attn", "c_proj"]) + ".weight"
    used = tensors[name].nonzero()
    where = tuple(used[draw.randrange(len(used))].tolist())
    tensors[name][where] *= 1.5
    assert float(tensors[name][where]) != float(small.tensors()[name][where])
    moved, held = small.certify(tensors), small.certificate
    assert not moved.holds or moved.to_dict() != held.to_dict()
