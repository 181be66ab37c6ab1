"""The text GPT-2 as files that a browser runs: one step of ``generate()`` as an ONNX graph.

The graph is what ``torch.onnx`` makes of the very ``GPT2LMHeadModel`` that
``ice.TextComputer().model()`` returns. It takes tokens and the keys and values of those before, and
returns the scores of the next word, the attention of the last token in every layer, and the
keys and values of the new tokens, which the page appends to the others.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import torch
from torch import Tensor, nn

from iceform import TextComputer
from iceform.targets.text import FUNCTIONS, PAIRS, TESTS, TEXTS
from iceform_playground.onnx_graph import exported
from iceform_playground.weights_file import WeightsFile

_IDLE = "idle"  # the role of a head that does nothing


class TextStep(nn.Module):
    """Tokens and what came before them, in; scores, attention, and new keys and values, out.

    ``past`` has the shape (tokens before, 2, layers, heads, size of a head): keys, then values.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from transformers import DynamicCache

        keys, values = past.permute(1, 2, 3, 0, 4)
        before, count = past.shape[0], ids.shape[1]
        cache: Any = DynamicCache()
        for layer in range(past.shape[2]):
            cache.update(keys[layer][None], values[layer][None], layer)
        places = torch.arange(count)[None] + before
        out = self.network(
            ids, position_ids=places, past_key_values=cache, use_cache=True, output_attentions=True
        )
        attention = torch.stack([layer[0, :, -1] for layer in out.attentions])
        after = out.past_key_values.layers
        new = [[part[0, :, before:] for part in (layer.keys, layer.values)] for layer in after]
        kept = torch.stack([torch.stack(both) for both in new])  # layers, 2, heads, tokens, size
        return out.logits[0, -1], attention, kept.permute(3, 1, 0, 2, 4)


def text_files() -> dict[str, bytes]:
    """Graph, weights, and what the page needs to know of the text."""
    computer = TextComputer()
    weights = WeightsFile.of("text.weights", _digested(computer))
    return {
        "text.onnx.gz": gzip.compress(_graph(computer, weights), mtime=0),
        "text.weights.gz": gzip.compress(weights.data, mtime=0),
        "text.json": json.dumps(_about(computer, weights)).encode(),
    }


def _digested(computer: TextComputer) -> Any:
    """Pieces that a digest of the weights is taken of: names, shapes and bytes."""
    for name, tensor in sorted(computer.tensors().items()):
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}\n"
        yield name, tensor.contiguous().numpy().tobytes()


def _graph(computer: TextComputer, weights: WeightsFile) -> bytes:
    network = computer.model(attention="eager")
    step = TextStep(network).eval()
    config = network.config
    shape = (5, 2, config.n_layer, config.n_head, config.n_embd // config.n_head)
    example = (torch.zeros(1, 3, dtype=torch.int64), torch.zeros(shape))
    any_length = torch.export.Dim.DYNAMIC
    return exported(
        step, example, weights, ["ids", "past"], ["scores", "attention", "new"],
        dynamic_shapes=({1: any_length}, {0: any_length}),
    )  # fmt: skip


def _about(computer: TextComputer, weights: WeightsFile) -> dict[str, Any]:
    sizes, design = computer.sizes, computer.design
    return {
        "layers": len(design.layers), "heads": design.heads, "size": design.head_size,
        "roles": [[_role(head) for head in layer] for layer in computer.ground_truth()["heads"]],
        "digest": computer.digest, "digested": weights.digested, "dtype": sizes.dtype,
        "words": [word.text for word in sizes.words],
        "kinds": [word.kind for word in sizes.words],
        "prefix": list(sizes.prefix), "positions": sizes.positions,
        "labels": sizes.labels, "cells": sizes.cells,
        "scalars": list(sizes.scalar_names), "indices": list(sizes.index_names),
        "arrays": list(sizes.array_names), "functions": list(FUNCTIONS), "pairs": list(PAIRS),
        "tests": list(TESTS), "largest": sizes.format.word(sizes.format.largest),
        "examples": {name: text.strip() for name, text in TEXTS.items()},
    }  # fmt: skip


def _role(head: dict[str, Any]) -> str | None:
    role: str = head["role"]
    return None if role == _IDLE else role
