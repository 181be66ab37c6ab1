"""Every algorithm: literal and fused are one algorithm."""

import math
import re
from dataclasses import replace
from functools import cache

import pytest
import torch

import iceform as ice
import iceform_estimators
from estimator_tests.algorithms.conformance.data import example, machine, made, names
from iceform.certificates import Result
from iceform.heads import FrozenNetwork, unchecked
from iceform_estimators.algorithms import kinds

NAMES = names()


@cache
def run(name: str, backend: str) -> tuple[Result, iceform_estimators.Machine]:
    """Run once: the tests only look at it."""
    algorithm = made(name)
    x, y = example(algorithm)
    used = machine(x, backend)
    return used.run(algorithm, x, None if name == "pca" else y), used


@pytest.mark.parametrize("name", NAMES)
def test_literal_and_fused_agree_within_their_certificates(name):
    (literal, one), (fused, other) = (run(name, b) for b in ("literal", "fused"))
    assert one.digest == other.digest
    allowed = literal.certificate.error + fused.certificate.error
    assert math.isfinite(allowed), (literal.certificate.error, fused.certificate.error)
    off = float((literal.value - fused.value).abs().max())
    assert off <= allowed, (off, allowed)
    assert (literal.certificate.backend, fused.certificate.backend) == ("literal", "fused")


def blind(network: FrozenNetwork) -> None:
    """Another valid network: keys without the first feature, or values with less of it."""
    if "key_x" in network.features:
        network.layers[1].w_k[0, 0, network.features["key_x"].start] = 0.0
    else:
        network.layers[-1].w_v[..., 0, :] *= 0.8


# Where a loop ends is the same: its residuals are 0 whatever a step is made of, or it is done
# before its first look-up matters.
SAME_END = {"perceptron"}


@pytest.mark.parametrize("name", NAMES)
def test_changed_weights_are_refused_and_followed_where_asked(name):
    """The matrices give the changed network's answer, by default too; it is not the first one."""
    algorithm = made(name)
    if "max_passes" in algorithm.options():  # it need not get there
        algorithm = replace(algorithm, max_passes=40)
    x, y = example(algorithm)
    data = (x, None if name == "pca" else y)
    plain = machine(x, "fused").run(algorithm, *data).value
    changed = []
    for backend in ("literal", "auto"):
        used = machine(x, backend)
        blind(used.network)
        with pytest.raises(ice.errors.IntegrityError, match="weights were changed"):
            used.run(algorithm, *data)
        with unchecked():
            changed.append(used.run(algorithm, *data).value)
    size = float(plain.abs().max())
    assert float((changed[0] - changed[1]).abs().max()) <= 1e-6 * max(size, 1.0)
    if name not in SAME_END:
        assert float((changed[0] - plain).abs().max()) > 1e-2 * size


@pytest.mark.parametrize("name", NAMES)
def test_what_every_result_has(name):
    result, used = run(name, "fused")
    assert result.attestation.ok
    assert result.digest == used.digest
    assert re.fullmatch("[0-9a-f]{64}", result.digest)
    assert result.passes >= 1
    assert isinstance(result.value, torch.Tensor)
    assert {where for where, _, _ in result.ledger} >= {"prompt"}
    text = result.explain()
    assert "because" in text
    assert result.digest[:12] in text
    assert "prompt " in text
    kept = result.to_dict()
    assert kept["attestation"]["weights"] == used.digest
    assert kept["ledger"] == result.ledger.to_dict()


# Least squares and its kin look a straight line up: taking attention out changes nothing but the
# look-up's error; an expectile of 1/2 is least squares. A perceptron of separable groups is done
# before its first look-up matters.
STRAIGHT = {"linear", "ridge", "expectile", "pca"}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
def test_how_much_of_an_answer_attention_computes(name):
    result, _ = run(name, "fused")
    moved = result.without_attention()
    if name in STRAIGHT:
        assert moved <= 1e-10 * float(result.value.abs().max())
        assert "without attention the answer is the same" in str(result.ledger)
    elif name != "perceptron":
        assert moved > 1e-3 * float(result.value.abs().max()), moved
        assert "without attention" not in str(result.ledger)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_traces_and_plans(name):
    """The first prompt is what the network reads: its trace's output is the network's."""
    algorithm = made(name)
    x, y = example(algorithm)
    used = machine(x, "fused")
    labels = None if name == "pca" else y
    prompt = used.prompt(algorithm, x, labels)
    assert prompt.tokens.shape == (used.plan.tokens, used.plan.features)
    trace = used.trace(algorithm, x, labels)
    output = used.network(prompt.tokens)
    off = float((trace.output - output).abs().max())
    assert off <= 1e-13 * max(1.0, float(output.abs().max())), off


def test_machines_are_saved_and_refused_when_altered(tmp_path):
    algorithm = made("ridge")
    x, y = example(algorithm)
    used = machine(x, "fused")
    again = iceform_estimators.Machine.load(used.save(tmp_path / "machine"))
    assert again.digest == used.digest
    assert torch.equal(again.run(algorithm, x, y).value, used.run(algorithm, x, y).value)
    weights = tmp_path / "machine" / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-3] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(ice.errors.IntegrityError):
        iceform_estimators.Machine.load(tmp_path / "machine")


@pytest.mark.parametrize("name", ["ridge", "logistic", "huber", "pca", "kernel"])
def test_a_stream_in_float32_is_within_its_certificate(name):
    """The proof is of the answer, whatever arithmetic it was found in."""
    algorithm = made(name)
    x, y = example(algorithm)
    exact = iceform_estimators.Machine(x.shape[1] + 1, layout="stream").run(algorithm, x, y)
    short = iceform_estimators.Machine(x.shape[1] + 1, layout="stream", dtype=torch.float32)
    found = short.run(algorithm, x, y)
    assert {b.dtype for b in short.network.buffers()} == {torch.float32}
    if name == "kernel":  # its certificate is about float64
        assert float((found.value - exact.value).abs().max()) <= 1e-4
        return
    off = float((found.value - exact.value).abs().max())
    assert 0 < off <= found.certificate.error + exact.certificate.error, off


def test_the_machines_eps_holds_for_tables():
    algorithm = made("logistic")
    x, y = example(algorithm)
    strict = iceform_estimators.Machine(3, layout="stream", eps=1e-18)
    with pytest.raises(ice.errors.PrecisionError, match="not to the machine's eps = 1e-18"):
        strict.run(algorithm, x, y)
    assert iceform_estimators.Machine(3, layout="stream", eps=1e-3).run(algorithm, x, y).converged


def test_a_head_in_the_prompt_is_the_librarys():
    """The machine in rows has moved: one error names where to, from a file as from a call."""
    with pytest.raises(ice.errors.ProgramError, match=r"is iceform\.paper\.library\.PromptLibrary"):
        iceform_estimators.Machine(3, layout="rows")
    with pytest.raises(ice.errors.ProgramError, match=r"is iceform\.paper\.library\.PromptLibrary"):
        iceform_estimators.Machine.unpack({"machine": {"layout": "rows"}}, {})
    with pytest.raises(ice.errors.ProgramError, match="layout must be one of stream"):
        iceform_estimators.Machine(3, layout="columns")


def test_every_table_algorithm_is_in_the_list_of_the_documentation():
    from pathlib import Path

    page = (Path(__file__).parents[5] / "docs" / "estimators.md").read_text(encoding="utf-8")
    for kind in kinds():
        assert f"`{kind.name}`" in page, kind.name
        assert f"iceform_estimators.{kind.estimator}`" in page, kind.estimator
