"""Every algorithm on every engine that its record names: literal and fused are one algorithm."""

import math
import re
from dataclasses import replace
from functools import cache

import pytest
import torch

import iceform as ice
import iceform_estimators
from estimator_tests.algorithms.conformance.data import example, machine, made, pairs
from iceform.attention import FrozenNetwork, unchecked
from iceform.certificates import Result
from iceform_estimators.algorithms import Algorithm, kinds

PAIRS = pairs()


@cache
def run(name: str, engine: str, backend: str) -> tuple[Result, iceform_estimators.Machine]:
    """Run once: the tests only look at it."""
    algorithm = made(name, engine)
    x, y = example(algorithm, engine)
    used = machine(engine, x, algorithm, backend)
    return used.run(algorithm, x, None if name in ("pca", "head") else y), used


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_literal_and_fused_agree_within_their_certificates(name, engine):
    (literal, one), (fused, other) = (run(name, engine, b) for b in ("literal", "fused"))
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
SAME_END = {("linear", "rows"), ("perceptron", "stream")}


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_changed_weights_are_refused_and_followed_where_asked(name, engine):
    """Both backends give the changed network's answer, which is not the first one."""
    algorithm = made(name, engine)
    if "max_passes" in algorithm.options():  # it need not get there
        algorithm = replace(algorithm, max_passes=40)
    x, y = example(algorithm, engine)
    data = (x, None if name in ("pca", "head") else y)
    plain = machine(engine, x, algorithm, "fused").run(algorithm, *data).value
    changed = []
    for backend in ("literal", "fused"):
        used = machine(engine, x, algorithm, backend)
        blind(used.network)
        with pytest.raises(ice.IntegrityError, match="weights were changed"):
            used.run(algorithm, *data)
        with unchecked():
            changed.append(used.run(algorithm, *data).value)
    size = float(plain.abs().max())
    assert float((changed[0] - changed[1]).abs().max()) <= 1e-6 * max(size, 1.0)
    if (name, engine) not in SAME_END:
        assert float((changed[0] - plain).abs().max()) > 1e-2 * size


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_what_every_result_has(name, engine):
    result, used = run(name, engine, "fused")
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


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_how_much_of_an_answer_attention_computes(name, engine):
    result, _ = run(name, engine, "fused")
    moved = result.without_attention()
    if engine == "stream" and name in STRAIGHT:
        assert moved <= 1e-10 * float(result.value.abs().max())
        assert "without attention the answer is the same" in str(result.ledger)
    elif name != "perceptron":
        assert moved > 1e-3 * float(result.value.abs().max()), moved
        assert engine == "rows" or "without attention" not in str(result.ledger)


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_an_engine_that_a_record_does_not_name_is_refused(name, engine):
    others = set(iceform_estimators.Machine.layouts) - set(Algorithm.kinds[name].engines())
    algorithm = made(name, engine)
    for other in others:
        x = torch.zeros(4, 3, dtype=torch.float64)
        wrong = iceform_estimators.Machine(4, 4, layout=other)
        with pytest.raises(ice.ProgramError, match=f"does not run on {other}; it runs on Machine"):
            wrong.run(algorithm, x, x[:, 0])


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_prompts_traces_and_plans(name, engine):
    """The first prompt is what the network reads: its trace's output is the network's."""
    algorithm = made(name, engine)
    x, y = example(algorithm, engine)
    used = machine(engine, x, algorithm, "fused")
    labels = None if name in ("pca", "head") else y
    prompt = used.prompt(algorithm, x, labels)
    assert prompt.tokens.shape == (used.plan.tokens, used.plan.features)
    trace = used.trace(algorithm, x, labels)
    output = used.network(prompt.tokens)
    off = float((trace.output - output).abs().max())
    assert off <= 1e-13 * max(1.0, float(output.abs().max())), off


@pytest.mark.parametrize("engine", ["rows", "stream"])
def test_machines_are_saved_and_refused_when_altered(engine, tmp_path):
    algorithm = made("ridge", engine)
    x, y = example(algorithm, engine)
    used = machine(engine, x, algorithm, "fused")
    again = iceform_estimators.Machine.load(used.save(tmp_path / "machine"))
    assert again.layout == engine
    assert again.digest == used.digest
    assert torch.equal(again.run(algorithm, x, y).value, used.run(algorithm, x, y).value)
    weights = tmp_path / "machine" / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-3] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(ice.IntegrityError):
        iceform_estimators.Machine.load(tmp_path / "machine")


TABLES = [name for name, engine in PAIRS if engine == "stream" and "kernel" not in name]


@pytest.mark.parametrize("name", [n for n in TABLES if not n.startswith("knn")])
def test_a_specialised_stream_returns_the_machines_rows(name):
    """The table is in the weights; the data alone are read."""
    from iceform.attention.lookups import data_tokens
    from iceform_estimators.machine import ArraySource

    algorithm = made(name, "stream")
    x, y = example(algorithm, "stream")
    used = machine("stream", x, algorithm, "fused")
    module = used.specialize(algorithm, x, y)
    asked = algorithm.opening(used.start(), ArraySource(x, y)).part(slice(0, used.samples))
    rows = module(data_tokens(asked))[: asked.count]
    want = used.network(used.prompt(algorithm, x, y).tokens)[: asked.count]
    off = float((rows - want).abs().max())
    assert off <= 1e-13 * max(1.0, float(want.abs().max())), off
    assert module.digest != used.digest


def test_a_stream_without_a_table_cannot_be_specialised():
    x, y = example(made("kernel", "stream"), "stream")
    used = iceform_estimators.Machine(3, layout="stream")
    with pytest.raises(ice.ProgramError, match="looks no table up"):
        used.specialize(made("kernel", "stream"), x, y)
    with pytest.raises(ice.ProgramError, match="depends on the data"):
        used.specialize(made("ridge", "stream"))


@pytest.mark.parametrize("name", ["ridge", "logistic", "huber", "pca", "kernel"])
def test_a_stream_in_float32_is_within_its_certificate(name):
    """The proof is of the answer, whatever arithmetic it was found in."""
    algorithm = made(name, "stream")
    x, y = example(algorithm, "stream")
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
    algorithm = made("logistic", "stream")
    x, y = example(algorithm, "stream")
    strict = iceform_estimators.Machine(3, layout="stream", eps=1e-18)
    with pytest.raises(ice.PrecisionError, match="not to the machine's eps = 1e-18"):
        strict.run(algorithm, x, y)
    assert iceform_estimators.Machine(3, layout="stream", eps=1e-3).run(algorithm, x, y).converged


def test_layouts_are_named():
    with pytest.raises(ice.ProgramError, match="layout must be one of rows, stream"):
        iceform_estimators.Machine(3, layout="columns")
    with pytest.raises(ice.ProgramError, match="not by programs"):
        iceform_estimators.Machine(3, layout="stream", programs=[made("ridge", "rows")])


def test_every_table_algorithm_is_in_the_list_of_the_documentation():
    from pathlib import Path

    page = (Path(__file__).parents[5] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    for kind in kinds():
        assert f"`{kind.name}`" in page, kind.name
        assert f"iceform_estimators.{kind.estimator}`" in page, kind.estimator
        assert kind.says in page, kind.says
