"""Stock architectures as files: a design's config.json and tensors, by transformers' own names.

Nothing of transformers is needed to write them. Feed-forward maps, embeddings and positions are
zero; every norm is the identity (``rounding``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from iceform.errors import CapacityError, TargetError
from iceform.heads import Design, Vocabulary
from iceform.targets.rounding import KernelRounding
from iceform.validation import check_capacity, dtype_name

Tensors = dict[str, Tensor]
ROPE_THETA = 500_000.0  # of a Llama whose positions are used, as Llama 3 has it
_MAPS = 8  # of a layer: queries, keys, values, outputs, and once more while they are laid out


@dataclass(frozen=True)
class Architecture:
    """One stock model: how a design becomes its config and its tensors.

    Attributes
    ----------
    name
        ``model_type`` in config.json.
    causal
        Whether a token sees only those before it.
    norms
        Norms that the stream itself passes through in a layer (0: they are on the branches).
    dtypes
        In which it can be certified.
    tied
        Whether repeated layers are held once.
    tokenizer
        Files of a tokenizer of one word, for tools that ask for one though prompts are features.
    """

    name: str
    causal: bool
    norms: int
    dtypes: tuple[torch.dtype, ...]
    config: Callable[[Design, int], dict[str, Any]]
    tensors: Callable[[Design, int], Tensors]
    with_ids: Callable[[Design, Vocabulary], tuple[dict[str, Any], Tensors]] | None = None
    tied: bool = False
    tokenizer: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def layers(self, design: Design) -> int:
        """Layers that the file holds."""
        return len(design.layers) * (1 if self.tied else design.repeats)

    def check_fits(self, design: Design) -> None:
        """Refuse weights that memory does not hold, before they are made."""
        layers = self.layers(design)
        fix = "an albert holds repeated layers once" if design.repeats > 1 and not self.tied else ""
        try:
            check_capacity(
                f"a {self.name} of {layers} layers, {design.hidden} wide",
                _MAPS * layers * design.hidden * design.inner * torch.float64.itemsize,
                torch.device("cpu"),
                fix or "take fewer features or fewer steps",
            )
        except CapacityError as refused:
            raise TargetError(str(refused)) from None

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Refuse a dtype that the stock code does not compute in."""
        if dtype not in self.dtypes:
            KernelRounding(dtype)
            name = dtype_name(dtype)
            raise TargetError(
                f"a {self.name} computes its norms and its softmax in float32 whatever it is "
                f"loaded in, so {name} promises nothing; write it in float32, or as gpt2"
            )


def architecture(name: str) -> Architecture:
    """The architecture of that name."""
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise TargetError(f"no target is called {name!r}; there are {known}")
    return ARCHITECTURES[name]


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


def _weights(design: Design, number: int) -> tuple[Tensors, Tensors]:
    """Maps and biases of a layer, repeats one by one."""
    layer = number % len(design.layers)
    return design.matrices(layer), design.biases(layer)


def _norm(prefix: str, design: Design) -> Tensors:
    width = design.hidden
    return {f"{prefix}.weight": _zeros(width) + design.norm_weight, f"{prefix}.bias": _zeros(width)}


def _gpt2_config(design: Design, positions: int) -> dict[str, Any]:
    return {
        "architectures": ["GPT2Model"],
        "model_type": "gpt2",
        "vocab_size": 1,
        "n_positions": positions,
        "n_embd": design.hidden,
        "n_layer": len(design.unrolled),
        "n_head": design.heads,
        "n_inner": 1,
        "activation_function": "relu",
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "layer_norm_epsilon": design.norm,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }


def _gpt2_tensors(design: Design, positions: int) -> Tensors:
    h = design.hidden
    out = {"wte.weight": _zeros(1, h), "wpe.weight": _zeros(positions, h), **_norm("ln_f", design)}
    for number in range(len(design.unrolled)):
        maps, biases = _weights(design, number)
        at = f"h.{number}."
        out |= _norm(at + "ln_1", design) | _norm(at + "ln_2", design)
        # Conv1D keeps (in, out), queries, keys and values side by side.
        out[at + "attn.c_attn.weight"] = torch.cat([maps["q"], maps["k"], maps["v"]]).T.contiguous()
        out[at + "attn.c_attn.bias"] = torch.cat([biases["q"], biases["k"], biases["v"]])
        out[at + "attn.c_proj.weight"] = maps["o"].T.contiguous()
        out[at + "attn.c_proj.bias"] = _zeros(h)
        out[at + "mlp.c_fc.weight"], out[at + "mlp.c_fc.bias"] = _zeros(h, 1), _zeros(1)
        out[at + "mlp.c_proj.weight"], out[at + "mlp.c_proj.bias"] = _zeros(1, h), _zeros(h)
    return out


def _gpt2_with_ids(design: Design, words: Vocabulary) -> tuple[dict[str, Any], Tensors]:
    """GPT2LMHeadModel: the same network between embeddings and a head of its own."""
    positions = len(words.positions)
    config = {
        **_gpt2_config(design, positions),
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": len(words),
        "tie_word_embeddings": False,
        "use_cache": True,
    }
    tensors = _gpt2_tensors(design, positions)
    tensors["wte.weight"] = design.embedded(words.tokens)
    tensors["wpe.weight"] = design.moved(words.positions)
    named = {f"transformer.{name}": tensor for name, tensor in tensors.items()}
    return config, {**named, "lm_head.weight": design.readout(words.scores)}


def _encoder_config(design: Design, positions: int, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": 1,
        "hidden_size": design.hidden,
        "num_attention_heads": design.heads,
        "intermediate_size": 1,
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": positions,
        "type_vocab_size": 1,
        "layer_norm_eps": design.norm,
        "pad_token_id": None,
        **more,
    }


def _bert_config(design: Design, positions: int) -> dict[str, Any]:
    return _encoder_config(
        design, positions, architectures=["BertModel"], model_type="bert",
        num_hidden_layers=len(design.unrolled),
    )  # fmt: skip


def _albert_config(design: Design, positions: int) -> dict[str, Any]:
    return _encoder_config(
        design, positions, architectures=["AlbertModel"], model_type="albert",
        embedding_size=design.hidden, num_hidden_layers=design.repeats, num_hidden_groups=1,
        inner_group_num=len(design.layers), classifier_dropout_prob=0.0, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip


def _linear(prefix: str, out: int, into: int) -> Tensors:
    return {f"{prefix}.weight": _zeros(out, into), f"{prefix}.bias": _zeros(out)}


def _encoder_tensors(
    design: Design, positions: int, layers: int, at: str, names: tuple[str, ...]
) -> Tensors:
    """Embeddings that are zero, and layers; ``names`` are of maps, norms and feed-forward maps."""
    h = design.hidden
    out = _norm("embeddings.LayerNorm", design)
    for name, rows in (("word", 1), ("position", positions), ("token_type", 1)):
        out[f"embeddings.{name}_embeddings.weight"] = _zeros(rows, h)
    *maps, inner, outer, up, down = names
    for number in range(layers):
        found, biases = _weights(design, number)
        here = f"{at}{number}."
        for name, key in zip(maps, "qkvo", strict=True):
            out[f"{here}attention.{name}.weight"] = found[key]
            out[f"{here}attention.{name}.bias"] = biases.get(key, _zeros(h))
        out |= _norm(here + inner, design) | _norm(here + outer, design)
        out |= _linear(here + up, 1, h) | _linear(here + down, h, 1)
    return out


def _bert_tensors(design: Design, positions: int) -> Tensors:
    names = (
        "self.query", "self.key", "self.value", "output.dense", "attention.output.LayerNorm",
        "output.LayerNorm", "intermediate.dense", "output.dense",
    )  # fmt: skip
    out = _encoder_tensors(design, positions, len(design.unrolled), "encoder.layer.", names)
    return out | _linear("pooler.dense", design.hidden, design.hidden)


def _bert_with_ids(design: Design, words: Vocabulary) -> tuple[dict[str, Any], Tensors]:
    """BertForTokenClassification: every token's labels are the words."""
    positions = len(words.positions)
    config = {
        **_bert_config(design, positions),
        "architectures": ["BertForTokenClassification"],
        "vocab_size": len(words),
        "id2label": {str(i): str(i) for i in range(len(words))},
        "label2id": {str(i): i for i in range(len(words))},
        "classifier_dropout": 0.0,
    }
    held = _bert_tensors(design, positions)
    tensors = {f"bert.{n}": t for n, t in held.items() if not n.startswith("pooler")}
    tensors["bert.embeddings.word_embeddings.weight"] = design.embedded(words.tokens)
    tensors["bert.embeddings.position_embeddings.weight"] = design.moved(words.positions)
    out = {"classifier.weight": design.readout(words.scores), "classifier.bias": _zeros(len(words))}
    return config, {**tensors, **out}


def _albert_tensors(design: Design, positions: int) -> Tensors:
    h, at = design.hidden, "encoder.albert_layer_groups.0.albert_layers."
    names = (
        "query", "key", "value", "dense", "attention.LayerNorm", "full_layer_layer_norm", "ffn",
        "ffn_output",
    )  # fmt: skip
    into = "encoder.embedding_hidden_mapping_in"
    out = _encoder_tensors(design, positions, len(design.layers), at, names)
    out |= _linear("pooler", h, h) | _linear(into, h, h)
    out[f"{into}.weight"] = torch.eye(h, dtype=torch.float64)
    return out


def _llama_config(design: Design, positions: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaModel"],
        "model_type": "llama",
        "vocab_size": 1,
        "hidden_size": design.hidden,
        "intermediate_size": 1,
        "num_hidden_layers": len(design.unrolled),
        "num_attention_heads": design.heads,
        "num_key_value_heads": design.heads,
        "head_dim": design.head_size,
        "hidden_act": "relu",
        "max_position_embeddings": positions,
        "rms_norm_eps": design.norm,
        # Angles of 1e-30 times the position: every rotation is the identity.
        "rope_parameters": {"rope_type": "linear", "factor": 1e30, "rope_theta": 1e4},
        "attention_bias": True,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }


def _llama_tensors(design: Design, positions: int) -> Tensors:
    h = design.hidden
    one = _zeros(h) + design.norm_weight
    out = {"embed_tokens.weight": _zeros(1, h), "norm.weight": one}
    for number in range(len(design.unrolled)):
        maps, biases = _weights(design, number)
        at = f"layers.{number}."
        for name in ("q", "k", "v", "o"):
            out[f"{at}self_attn.{name}_proj.weight"] = maps[name]
            out[f"{at}self_attn.{name}_proj.bias"] = biases.get(name, _zeros(h))
        out[at + "mlp.gate_proj.weight"] = out[at + "mlp.up_proj.weight"] = _zeros(1, h)
        out[at + "mlp.down_proj.weight"] = _zeros(h, 1)
        out[at + "input_layernorm.weight"] = out[at + "post_attention_layernorm.weight"] = one
    return {name: tensor.clone() for name, tensor in out.items()}


def _llama_with_ids(design: Design, words: Vocabulary) -> tuple[dict[str, Any], Tensors]:
    """LlamaForCausalLM without biases, turning by ROPE_THETA; positions have no features."""
    positions = len(words.positions)
    config = {
        **_llama_config(design, positions),
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": len(words),
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "attention_bias": False,
        "tie_word_embeddings": False,
        "use_cache": True,
    }
    held = _llama_tensors(design, positions)
    tensors = {f"model.{name}": t for name, t in held.items() if not name.endswith(".bias")}
    tensors["model.embed_tokens.weight"] = design.embedded(words.tokens)
    return config, {**tensors, "lm_head.weight": design.readout(words.scores)}


def _neox_config(design: Design, positions: int) -> dict[str, Any]:
    """As Pythia's; no part of a head is turned by its position."""
    return {
        "architectures": ["GPTNeoXModel"],
        "model_type": "gpt_neox",
        "vocab_size": 1,
        "hidden_size": design.hidden,
        "intermediate_size": 1,
        "num_hidden_layers": len(design.unrolled),
        "num_attention_heads": design.heads,
        "hidden_act": "relu",
        "max_position_embeddings": positions,
        "layer_norm_eps": design.norm,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.0,
        },
        "use_parallel_residual": True,
        "attention_bias": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }  # fmt: skip


def _neox_tensors(design: Design, positions: int) -> Tensors:
    h = design.hidden
    out = {"embed_in.weight": _zeros(1, h), **_norm("final_layer_norm", design)}
    for number in range(len(design.unrolled)):
        maps, biases = _weights(design, number)
        at = f"layers.{number}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            out |= _norm(at + name, design)
        # Queries, keys and values side by side, head by head.
        for name, of in (("weight", maps), ("bias", biases)):
            rows = [of[key].unflatten(0, (design.heads, -1)) for key in "qkv"]
            out[f"{at}attention.query_key_value.{name}"] = torch.cat(rows, 1).flatten(0, 1)
        out[at + "attention.dense.weight"] = maps["o"]
        out[at + "attention.dense.bias"] = _zeros(h)
        out |= _linear(at + "mlp.dense_h_to_4h", 1, h) | _linear(at + "mlp.dense_4h_to_h", h, 1)
    return out


_WORD = "[feature]"
_ONE_WORD: dict[str, dict[str, Any]] = {
    "tokenizer.json": {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {_WORD: 0}, "unk_token": _WORD},
    },
    "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **dict.fromkeys(("unk_token", "pad_token", "bos_token", "eos_token"), _WORD),
    },
}  # fmt: skip
_BOTH = (torch.float64, torch.float32)
_KNOWN = (
    Architecture("gpt2", True, 0, _BOTH, _gpt2_config, _gpt2_tensors, _gpt2_with_ids),
    Architecture(
        "llama",
        True,
        0,
        (torch.float32,),
        _llama_config,
        _llama_tensors,
        _llama_with_ids,
        tokenizer=_ONE_WORD,
    ),
    Architecture("gpt_neox", True, 0, (torch.float32,), _neox_config, _neox_tensors),
    Architecture("bert", False, 2, _BOTH, _bert_config, _bert_tensors, _bert_with_ids),
    Architecture("albert", False, 2, _BOTH, _albert_config, _albert_tensors, tied=True),
)
ARCHITECTURES = {known.name: known for known in _KNOWN}
