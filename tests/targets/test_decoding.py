"""generate(): tokens are the rounded exact numbers, and where that is not certain it is said."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import iceform as ice
from iceform import targets
from iceform.targets.quantizer import Quantizer

from .alone import alone
from .decoded import (
    ANSWERER,
    KINDS,
    WRITER,
    asked,
    data,
    decoded,
    judge_answered,
    judge_written,
    plain,
)
from .stock import written


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    return written("gpt2", WRITER, tmp_path_factory.mktemp("writer"))


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    return written("gpt2", ANSWERER, tmp_path_factory.mktemp("answerer"))


def generated(network, prompts, count):
    ids = torch.cat(prompts)
    return network.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False,
        min_new_tokens=count, max_new_tokens=count,
    )  # fmt: skip


def written_tokens(model, networks, problems):
    """Problems of one size at once; returns tokens, and how many of them were not certain."""
    tokens = unsure = 0
    for network in networks.values():
        prompts = [model.prompt(x, y, steps=4) for x, y in problems]
        for ids, problem in zip(generated(network, prompts, 8), problems, strict=True):
            made, ties, wrong = judge_written(model, ids, *problem)
            assert not wrong
            tokens, unsure = tokens + made, unsure + ties
    return tokens, unsure


def test_iterates_are_written_token_for_token(writer):
    model, networks = writer
    tokens, unsure = written_tokens(model, networks, [data(6, s) for s in range(40)])
    assert unsure <= tokens / 100


def test_predictions_are_the_next_token(answerer):
    model, networks = answerer
    problems, unsure = [asked(5, s) for s in range(40)], 0
    for network in networks.values():
        prompts = [model.prompt(x, y, query=q) for x, y, q in problems]
        for ids, problem in zip(generated(network, prompts, 1), problems, strict=True):
            _, ties, wrong = judge_answered(model, ids, *problem)
            assert not wrong
            unsure += ties
    assert unsure <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_thousand_problems_token_for_token_where_iceform_is_not(name, tmp_path):
    problems, tokens, ties, violations = decoded(name, 0, 1000, tmp_path)
    assert problems == 1000
    assert violations == 0
    assert ties <= tokens / 50


def test_the_prediction_is_least_squares(answerer):
    """Against descent written again, on data that are levels already."""
    model, networks = answerer
    x, y, q = asked(8, 3)
    x, y, q = (model.spec.levels.nearest(v) for v in (x, y, q))
    w = torch.zeros(2, dtype=torch.float64)
    for _ in range(4):
        w = w - 0.5 * x.T @ (x @ w - y) / 8
    found = model.spec.run(networks["eager"], x, y, query=q)
    assert abs(float(found - w @ q)) <= model.spec.step / 2 + 1e-9


@pytest.mark.parametrize("spec", [WRITER, ANSWERER], ids=["writer", "answerer"])
def test_check(spec, tmp_path):
    targets.write("gpt2", spec, tmp_path)
    found = ice.check(tmp_path, *data(4, 1))
    assert found.ok
    assert found.certificate.terms["arithmetic"] < 1e-6


@pytest.mark.slow
def test_a_process_without_iceform_generates(writer, tmp_path):
    model, _ = writer
    x, y = data(6, 77)
    prompt, out = tmp_path / "prompt.safetensors", tmp_path / "out.safetensors"
    save_file({"ids": model.prompt(x, y, steps=3)}, prompt)
    alone(
        """
        from transformers import AutoModelForCausalLM
        network = AutoModelForCausalLM.from_pretrained(sys.argv[1])
        ids = load_file(sys.argv[2])["ids"]
        made = network.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6
        )
        save_file({"made": made}, sys.argv[3])
        """,
        str(model.path), str(prompt), str(out),
    )  # fmt: skip
    path = model.read(load_file(out)["made"])
    assert not len(model.spec.ties(path, x, y))
    assert torch.equal(path, plain(WRITER, x, y, 3))


def test_a_tie_is_named():
    levels = Quantizer(2.0, 2.0**-7)
    numbers = torch.tensor([0.5, 0.5 + 2.0**-8, 0.5 + 2.0**-8 + 1e-7, -2.0, 2.5]).double()
    assert levels.certain(numbers, 1e-6).tolist() == [True, False, False, True, True]
    assert levels.certain(numbers, 1e-8).tolist() == [True, False, True, True, True]


@pytest.mark.parametrize(("bound", "step"), [(2.0, 0.01), (2.0, 4.0), (2.1, 0.5), (1e6, 1.0)])
def test_levels_that_are_not_exact_are_refused(bound, step):
    with pytest.raises(ice.errors.BoundError):
        targets.WrittenDescent(2, bound=bound, step=step)


def test_decoders_are_gpt2_in_float64(tmp_path):
    with pytest.raises(ice.errors.TargetError, match="an encoder does not generate"):
        targets.write("bert", WRITER, tmp_path / "no")
    with pytest.raises(ice.errors.DtypeError, match="float64"):
        targets.AnsweringDescent(2, 2, dtype="float32")
