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
_STOCK_THETA = 1e4  # of rotary embeddings that turn nothing
ROPE_THETA = 500_000.0  # of a Llama whose positions are used, as Llama 3 has it
STILL = 1e30  # factor of a rotary embedding by which no position turns anything


@dataclass(frozen=True)
class TensorNames:
    """What a stock model calls its tensors, without the prefix of a model of token ids.

    Attributes
    ----------
    words, places
        Embeddings; no places where positions turn queries and keys.
    norm
        The one beside the embeddings, or after the last layer.
    layer
        What stands before a layer's, with {} for its number.
    maps, back
        Queries, keys and values, in one tensor or three; what heads carry into the stream.
    norms
        Of a layer.
    up, down
        Feed-forward maps.
    is_transposed
        Whether maps are kept (in, out).
    has_biases
        Of norms and feed-forward maps.
    is_by_head
        Whether queries, keys and values in one tensor alternate head by head.
    """

    words: str
    places: str
    norm: str
    layer: str
    maps: tuple[str, ...]
    back: str
    norms: tuple[str, ...]
    up: tuple[str, ...]
    down: str
    is_transposed: bool = False
    has_biases: bool = True
    is_by_head: bool = False

    def layer_maps(self, held: Mapping[str, Tensor], at: str, heads: int = 1) -> Tensors:
        """The maps q, k, v and o, each (out, in), of the layer whose names begin with ``at``.

        ``heads`` counts where queries, keys and values alternate head by head.
        """
        found = [self.turned(held[f"{at}{name}.weight"]) for name in (*self.maps, self.back)]
        if len(found) == 2:
            of_heads = found[0].unflatten(0, (heads if self.is_by_head else 1, -1))
            found[:1] = [part.flatten(0, 1) for part in of_heads.chunk(3, 1)]
        return dict(zip("qkvo", found, strict=True))

    def together(self, parts: list[Tensor], heads: int) -> Tensor:
        """Queries, keys and values as one tensor; one alone is as it is."""
        count = heads if self.is_by_head and len(parts) > 1 else 1
        return torch.cat([part.unflatten(0, (count, -1)) for part in parts], 1).flatten(0, 1)

    def turned(self, weight: Tensor) -> Tensor:
        """A map as (out, in), whichever way it is kept; and back."""
        return weight.T if self.is_transposed else weight

    def written(self, design: Design, number: int) -> Tensors:
        """A layer of a design; feed-forward maps are zero, norms the identity."""
        layer, h = number % len(design.layers), design.hidden
        maps, biases = design.matrices(layer), design.biases(layer)
        at, out = self.layer.format(number), {}
        kinds = ["q", "k", "v", "o"] if len(self.maps) > 1 else ["qkv", "o"]
        for name, each in zip((*self.maps, self.back), kinds, strict=True):
            weight = self.together([maps[k] for k in each], design.heads)
            rows = [biases[k] if k in biases else _zeros(len(maps[k])) for k in each]
            out[f"{at}{name}.weight"] = self.turned(weight).contiguous()
            out[f"{at}{name}.bias"] = self.together(rows, design.heads)
        for name in self.norms:
            out |= self.identity(at + name, design)
        for name, shape in (*((up, (1, h)) for up in self.up), (self.down, (h, 1))):
            out[f"{at}{name}.weight"] = self.turned(_zeros(*shape)).contiguous()
            if self.has_biases:
                out[f"{at}{name}.bias"] = _zeros(shape[0])
        return out

    def identity(self, name: str, design: Design) -> Tensors:
        """A norm from which features come out as they go in."""
        out = {f"{name}.weight": _zeros(design.hidden) + design.norm_weight}
        return out | ({f"{name}.bias": _zeros(design.hidden)} if self.has_biases else {})


@dataclass(frozen=True)
class WordModel:
    """The same architecture between embeddings of token ids and a head that scores words.

    Attributes
    ----------
    name
        Of transformers' class.
    prefix
        Before the names of the plain model's tensors.
    scores
        The head.
    settings
        What its config says besides, for so many words.
    lacks
        Ends of names that it has not.
    """

    name: str
    prefix: str
    scores: str
    settings: Callable[[int], dict[str, Any]]
    lacks: tuple[str, ...] = ()


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
    names
        Of its tensors.
    config
        config.json for a design and so many positions.
    ids
        Its model of token ids, if that is written.
    more
        Tensors that no map of a design is in.
    tied
        Whether repeated layers are held once.
    tokenizer
        Files of a tokenizer of one word, for tools that ask for one though prompts are features.
    """

    name: str
    causal: bool
    norms: int
    dtypes: tuple[torch.dtype, ...]
    names: TensorNames
    config: Callable[[Design, int], dict[str, Any]]
    ids: WordModel | None = None
    more: Callable[[int], Tensors] = lambda hidden: {}
    tied: bool = False
    tokenizer: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def tensors(self, design: Design, positions: int) -> Tensors:
        """All weights; embeddings are zero."""
        out = self.names.identity(self.names.norm, design) | self.more(design.hidden)
        out[self.names.words] = _zeros(1, design.hidden)
        if self.names.places:
            out[self.names.places] = _zeros(positions, design.hidden)
        for number in range(self.layers(design)):
            out |= self.names.written(design, number)
        return out

    def with_ids(self, design: Design, words: Vocabulary) -> tuple[dict[str, Any], Tensors]:
        """Config and tensors of the model of token ids."""
        if self.ids is None:
            raise TargetError(f"a {self.name} that reads token ids is not written yet")
        ids, at, positions = self.ids, f"{self.ids.prefix}.", len(words.positions)
        config = {
            **self.config(design, positions), "architectures": [ids.name],
            "vocab_size": len(words), **ids.settings(len(words)),
        }  # fmt: skip
        held = self.tensors(design, positions)
        tensors = {at + name: t for name, t in held.items() if not name.endswith(ids.lacks)}
        tensors[at + self.names.words] = design.embedded(words.tokens)
        if self.names.places:
            tensors[at + self.names.places] = design.moved(words.positions)
        tensors[f"{ids.scores}.weight"] = design.readout(words.scores)
        if ids.scores == "classifier":
            tensors[f"{ids.scores}.bias"] = _zeros(len(words))
        return config, tensors

    def layers(self, design: Design) -> int:
        """Layers that the file holds."""
        return len(design.layers) * (1 if self.tied else design.repeats)

    def check_fits(self, design: Design) -> None:
        """Refuse weights that memory does not hold twice, before they are made and laid out."""
        layers = self.layers(design)
        fix = "an albert holds repeated layers once" if design.repeats > 1 and not self.tied else ""
        try:
            check_capacity(
                f"a {self.name} of {layers} layers, {design.hidden} wide",
                2 * len("qkvo") * layers * design.hidden * design.inner * torch.float64.itemsize,
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


def gpt2_config(width: int, layers: int, heads: int, inner: int, positions: int) -> dict[str, Any]:
    """A GPT-2 of these sizes that drops nothing out; its epsilon is left to say."""
    return {
        "architectures": ["GPT2Model"],
        "model_type": "gpt2",
        "vocab_size": 1,
        "n_positions": positions,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": inner,
        "activation_function": "relu",
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }


def _gpt2_config(design: Design, positions: int) -> dict[str, Any]:
    stock = gpt2_config(design.hidden, len(design.unrolled), design.heads, 1, positions)
    return {**stock, "layer_norm_epsilon": design.norm}


def _config(design: Design, positions: int, epsilon: str, **more: Any) -> dict[str, Any]:
    """What all but GPT-2 say, by the name of their norms' epsilon and with what each says more."""
    return {
        "vocab_size": 1,
        "hidden_size": design.hidden,
        "num_hidden_layers": len(design.unrolled),
        "num_attention_heads": design.heads,
        "intermediate_size": 1,
        "hidden_act": "relu",
        "max_position_embeddings": positions,
        epsilon: design.norm,
        **more,
    }


_ENCODER = {
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "type_vocab_size": 1,
    "pad_token_id": None,
}  # fmt: skip
_DECODER = {
    "attention_bias": True, "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": None,
    "use_cache": False,
}  # fmt: skip


def _bert_config(design: Design, positions: int) -> dict[str, Any]:
    return _config(
        design, positions, "layer_norm_eps", architectures=["BertModel"], model_type="bert",
        **_ENCODER,
    )  # fmt: skip


def _albert_config(design: Design, positions: int) -> dict[str, Any]:
    return {
        **_config(
            design, positions, "layer_norm_eps", architectures=["AlbertModel"],
            model_type="albert", **_ENCODER,
        ),
        "embedding_size": design.hidden, "num_hidden_layers": design.repeats,
        "num_hidden_groups": 1, "inner_group_num": len(design.layers),
        "classifier_dropout_prob": 0.0, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip


def _llama_config(design: Design, positions: int) -> dict[str, Any]:
    return _config(
        design, positions, "rms_norm_eps", architectures=["LlamaModel"], model_type="llama",
        num_key_value_heads=design.heads, head_dim=design.head_size, mlp_bias=False,
        # Every rotation is the identity.
        rope_parameters={"rope_type": "linear", "factor": STILL, "rope_theta": _STOCK_THETA},
        **_DECODER,
    )  # fmt: skip


def _neox_config(design: Design, positions: int) -> dict[str, Any]:
    """As Pythia's; no part of a head is turned by its position."""
    return _config(
        design, positions, "layer_norm_eps", architectures=["GPTNeoXModel"],
        model_type="gpt_neox", use_parallel_residual=True, hidden_dropout=0.0,
        rope_parameters={
            "rope_type": "default", "rope_theta": _STOCK_THETA, "partial_rotary_factor": 0.0,
        },
        **_DECODER,
    )  # fmt: skip


def _linear(prefix: str, out: int, into: int) -> Tensors:
    return {f"{prefix}.weight": _zeros(out, into), f"{prefix}.bias": _zeros(out)}


def _bert_more(hidden: int) -> Tensors:
    kinds = {"embeddings.token_type_embeddings.weight": _zeros(1, hidden)}
    return kinds | _linear("pooler.dense", hidden, hidden)


def _albert_more(hidden: int) -> Tensors:
    into = "encoder.embedding_hidden_mapping_in"
    return {
        "embeddings.token_type_embeddings.weight": _zeros(1, hidden),
        **_linear("pooler", hidden, hidden),
        **_linear(into, hidden, hidden),
        f"{into}.weight": torch.eye(hidden, dtype=torch.float64),
    }


def _labels(words: int) -> dict[str, Any]:
    names = {str(i): str(i) for i in range(words)}
    return {
        "id2label": names, "label2id": {name: int(name) for name in names},
        "classifier_dropout": 0.0,
    }  # fmt: skip


_EMBEDDINGS = (
    "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight",
    "embeddings.LayerNorm",
)  # fmt: skip
_GPT2 = TensorNames(
    "wte.weight", "wpe.weight", "ln_f", "h.{}.", ("attn.c_attn",), "attn.c_proj",
    ("ln_1", "ln_2"), ("mlp.c_fc",), "mlp.c_proj", is_transposed=True,
)  # fmt: skip
_BERT = TensorNames(
    *_EMBEDDINGS, "encoder.layer.{}.",
    ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output.dense", ("attention.output.LayerNorm", "output.LayerNorm"),
    ("intermediate.dense",), "output.dense",
)  # fmt: skip
_ALBERT = TensorNames(
    *_EMBEDDINGS, "encoder.albert_layer_groups.0.albert_layers.{}.",
    ("attention.query", "attention.key", "attention.value"), "attention.dense",
    ("attention.LayerNorm", "full_layer_layer_norm"), ("ffn",), "ffn_output",
)  # fmt: skip
_LLAMA = TensorNames(
    "embed_tokens.weight", "", "norm", "layers.{}.",
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.o_proj",
    ("input_layernorm", "post_attention_layernorm"), ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj", has_biases=False,
)  # fmt: skip
_NEOX = TensorNames(
    "embed_in.weight", "", "final_layer_norm", "layers.{}.", ("attention.query_key_value",),
    "attention.dense", ("input_layernorm", "post_attention_layernorm"), ("mlp.dense_h_to_4h",),
    "mlp.dense_4h_to_h", is_by_head=True,
)  # fmt: skip
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
_WRITES = {"tie_word_embeddings": False, "use_cache": True}  # a model that generates
_KNOWN = (
    Architecture(
        "gpt2", True, 0, _BOTH, _GPT2, _gpt2_config,
        WordModel("GPT2LMHeadModel", "transformer", "lm_head", lambda words: _WRITES),
    ),
    Architecture(
        "llama", True, 0, (torch.float32,), _LLAMA, _llama_config,
        # Without biases, turning by ROPE_THETA; positions have no features.
        WordModel("LlamaForCausalLM", "model", "lm_head", lambda words: {
            "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
            "attention_bias": False, **_WRITES,
        }, (".bias",)),
        tokenizer=_ONE_WORD,
    ),
    Architecture("gpt_neox", True, 0, (torch.float32,), _NEOX, _neox_config),
    Architecture(
        "bert", False, 2, _BOTH, _BERT, _bert_config,
        WordModel("BertForTokenClassification", "bert", "classifier", _labels,
                  ("pooler.dense.weight", "pooler.dense.bias")), _bert_more,
    ),
    Architecture(
        "albert", False, 2, _BOTH, _ALBERT, _albert_config, more=_albert_more, tied=True
    ),
)  # fmt: skip
ARCHITECTURES = {known.name: known for known in _KNOWN}
