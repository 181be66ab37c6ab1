"""all-MiniLM-L6-v2 in context on 200 sentences that no calibration has, as docs/networks.md says.

``python -m tests.networks.figures`` prints how many are refused, what embeddings differ by, the
time against the original's, and with ``--certify N`` the certificates of N of them.
"""

import argparse
import importlib.util
import statistics
import time
from pathlib import Path

import torch

import iceform as ice
from iceform.backends import windowed
from iceform.networks import in_context

EXAMPLE = Path(__file__).parents[2] / "examples" / "semantic_search.py"
SENTENCES = Path(__file__).with_name("sentences.txt")
TURNS = 7


def example():
    """The example's functions."""
    spec = importlib.util.spec_from_file_location("semantic_search", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unseen(count=None):
    """Sentences that no calibration has."""
    return SENTENCES.read_text(encoding="utf-8").splitlines()[:count]


def converted(dtype):
    """(original in float64, tokenizer, network calibrated on twelve sentences)."""
    ours = example()
    model, tokenizer = ours.load(torch.float64)
    given = ours.batches(tokenizer, ours.sentences()[::17])
    network = in_context(model.to(dtype), calibration=given)
    return model.to(torch.float64), tokenizer, network


def accuracy(network, model, inputs):
    """(refused, largest difference); a batch that is refused counts sentence by sentence."""
    refused, off = 0, 0.0
    with torch.no_grad():
        for batch in inputs:
            try:
                found = network(**batch).double()
            except ice.BoundError as why:
                refused += len(batch["input_ids"])
                print(why)
                continue
            off = max(off, float((found - model(**batch)).abs().max()))
    return refused, off


def ratio(network, model, batch):
    """Median time against the original's, in turns."""
    for piece in network.pieces:
        if hasattr(piece, "table"):
            windowed.compile_now(piece.table, network.dtype)
    windowed.compile_now(network.frozen.table, network.dtype)
    found = []
    with torch.no_grad():
        for call in (network, model) * 2:
            call(**batch)
        for _ in range(TURNS):
            times = []
            for call in (network, model):
                begun = time.perf_counter()
                call(**batch)
                times.append(time.perf_counter() - begun)
            found.append(times[0] / times[1])
    return statistics.median(found)


def certified(network, model, tokenizer, texts):
    """(tokens, seconds, certified, actual) of each."""
    for text in texts:
        batch = dict(tokenizer([text], return_tensors="pt"))
        given = {k: batch[k] for k in ("input_ids", "attention_mask")}
        begun = time.perf_counter()
        bound = network.certificate(**given).error
        seconds = time.perf_counter() - begun
        with torch.no_grad():
            off = float((network(**given) - model(**given)).abs().max())
        yield given["input_ids"].shape[1], seconds, bound, off


def main():
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--certify", type=int, default=0, help="sentences to certify, float64")
    parser.add_argument("--dtype", choices=("float64", "float32"), action="append")
    chosen = parser.parse_args()
    for name in chosen.dtype or ("float64", "float32"):
        dtype = getattr(torch, name)
        model, tokenizer, network = converted(dtype)
        inputs = example().batches(tokenizer, unseen())
        refused, off = accuracy(network, model, inputs)
        times = ratio(network, model.to(dtype), inputs[0])
        print(f"{name}: {refused} of {len(unseen())} refused, embeddings off by {off:.1e}, "
              f"{times:.2f} times the original's time", flush=True)  # fmt: skip
        if dtype == torch.float64 and chosen.certify:
            texts = unseen()[:: max(1, len(unseen()) // chosen.certify)][: chosen.certify]
            wide = model.double()
            for tokens, seconds, bound, away in certified(network, wide, tokenizer, texts):
                print(f"  {tokens} tokens: certified {bound:.1e}, off by {away:.1e}, "
                      f"{bound / away:.0f} times, {seconds:.0f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
