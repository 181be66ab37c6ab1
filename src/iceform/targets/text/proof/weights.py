"""Stored weights by what they are for, whatever a stock architecture calls them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gpt2Weights:
    """The tensors of a ``GPT2LMHeadModel``, in float64."""

    tensors: dict[str, Tensor]
    word: ClassVar[str] = "transformer.wte.weight"
    position: ClassVar[str | None] = "transformer.wpe.weight"

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name].double()

    @property
    def words(self) -> Tensor:
        """What words start with."""
        return self[self.word]

    @property
    def scores(self) -> Tensor:
        """The language-model head."""
        return self["lm_head.weight"]

    @property
    def embeddings(self) -> tuple[Tensor, ...]:
        """All that a token starts with the sum of: of its word, and of its position if any."""
        return tuple(self[name] for name in (self.word, self.position) if name)

    def maps(self, layer: int) -> dict[str, Tensor]:
        """Queries, keys, values and outputs, each (out, in)."""
        at = f"transformer.h.{layer}.attn."
        q, k, v = self[at + "c_attn.weight"].T.chunk(3)
        return {"q": q, "k": k, "v": v, "o": self[at + "c_proj.weight"].T}

    def biases(self, layer: int) -> dict[str, Tensor]:
        """Of queries, keys and values."""
        q, k, v = self[f"transformer.h.{layer}.attn.c_attn.bias"].chunk(3)
        return {"q": q, "k": k, "v": v}

    def required(self, name: str, norm: float) -> float | None:
        """The one number that all entries of this tensor must be, if there is one."""
        if name.split(".")[-2].startswith("ln_"):
            return norm if name.endswith("weight") else 0.0
        return 0.0 if ".mlp.c_proj" in name or name.endswith("attn.c_proj.bias") else None


@dataclass(frozen=True)
class LlamaWeights(Gpt2Weights):
    """The tensors of a ``LlamaForCausalLM`` without biases, in float64."""

    word: ClassVar[str] = "model.embed_tokens.weight"
    position: ClassVar[str | None] = None

    def maps(self, layer: int) -> dict[str, Tensor]:
        """Queries, keys, values and outputs, each (out, in)."""
        return {kind: self[f"model.layers.{layer}.self_attn.{kind}_proj.weight"] for kind in "qkvo"}

    def biases(self, layer: int) -> dict[str, Tensor]:
        """None: zeros."""
        return {k: torch.zeros(len(m)).double() for k, m in self.maps(layer).items() if k != "o"}

    def required(self, name: str, norm: float) -> float | None:
        """The one number that all entries of this tensor must be, if there is one."""
        if name.endswith("norm.weight"):
            return norm
        return 0.0 if ".mlp.down_proj" in name or name.endswith("bias") else None


WEIGHTS = {"gpt2": Gpt2Weights, "llama": LlamaWeights}
