"""The shape of a torch model as plain data, and a model of that shape from the data.

Only kinds that are listed here are ever built, from numbers and names: nothing in a file can name
code to run.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

from iceform.errors import IntegrityError, ProgramError
from iceform.networks.activations import activation_name
from iceform.networks.convert import MeanPooling

__all__ = ["build", "describe"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "elu": nn.ELU,
}
# Encoders of transformers that have BERT's shape.
_ENCODERS = ("BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel", "ElectraModel")
_PATHS = ("_name_or_path", "name_or_path", "auto_map")


def describe(model: nn.Module) -> dict[str, Any] | None:
    """A JSON-ready description, or None for a shape that is not known here."""
    act = activation_name(model)
    if act is not None:
        return {"kind": "activation", "name": act}
    maker = _DESCRIBED.get(type(model).__name__)
    if maker is not None:
        known: dict[str, Any] | None = maker(model)
        return known
    source: Any = getattr(model, "config", None)
    if type(model).__name__ in _ENCODERS and source is not None:
        config = {k: v for k, v in source.to_dict().items() if k not in _PATHS}
        pooled = getattr(model, "pooler", None) is not None
        return {
            "kind": "encoder",
            "class": type(model).__name__,
            "config": config,
            "pooler": pooled,
        }
    return None


def _children(model: nn.Module) -> dict[str, Any] | None:
    parts = {name: describe(child) for name, child in model.named_children()}
    return None if None in parts.values() else {"kind": "Sequential", "parts": parts}


def _linear(model: Any) -> dict[str, Any]:
    return {"kind": "Linear", "in": model.in_features, "out": model.out_features,
            "bias": model.bias is not None}  # fmt: skip


def _norm(model: Any) -> dict[str, Any]:
    return {"kind": "LayerNorm", "width": model.normalized_shape[0], "eps": model.eps}


def _attention(model: Any) -> dict[str, Any] | None:
    if model.kdim != model.embed_dim or model.vdim != model.embed_dim:
        return None
    return {"kind": "MultiheadAttention", "dim": model.embed_dim, "heads": model.num_heads,
            "bias": model.in_proj_bias is not None, "batch_first": model.batch_first}  # fmt: skip


def _layer(model: Any) -> dict[str, Any]:
    return {
        "kind": "TransformerEncoderLayer",
        "dim": model.linear1.in_features,
        "heads": model.self_attn.num_heads,
        "wide": model.linear1.out_features,
        "activation": activation_name(model.activation),
        "eps": model.norm1.eps,
        "batch_first": model.self_attn.batch_first,
        "norm_first": model.norm_first,
        "bias": model.linear1.bias is not None,
    }


def _encoder(model: Any) -> dict[str, Any]:
    norm = None if model.norm is None else describe(model.norm)
    return {"kind": "TransformerEncoder", "layer": _layer(model.layers[0]),
            "count": len(model.layers), "norm": norm}  # fmt: skip


def _pooled(model: Any) -> dict[str, Any] | None:
    inner = describe(model.encoder)
    return None if inner is None else {"kind": "MeanPooling", "encoder": inner}


_DESCRIBED: dict[str, Any] = {
    "Linear": _linear,
    "Embedding": lambda m: {"kind": "Embedding", "count": m.num_embeddings, "dim": m.embedding_dim},
    "LayerNorm": _norm,
    "Dropout": lambda m: {"kind": "Identity"},
    "Identity": lambda m: {"kind": "Identity"},
    "Sequential": _children,
    "MultiheadAttention": _attention,
    "TransformerEncoderLayer": _layer,
    "TransformerEncoder": _encoder,
    "MeanPooling": _pooled,
}


def build(spec: Any) -> nn.Module:
    """A model of the described shape, its weights yet to be filled in."""
    try:
        built: nn.Module = _BUILT[spec["kind"]](spec)
        return built
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        raise IntegrityError(f"not the description of a network: {broken!r}") from None


def _build_sequence(spec: Any) -> nn.Module:
    return nn.Sequential(OrderedDict((k, build(v)) for k, v in spec["parts"].items()))


def _build_layer(spec: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        int(spec["dim"]), int(spec["heads"]), int(spec["wide"]), dropout=0.0,
        activation=_ACTIVATIONS[spec["activation"]](), layer_norm_eps=float(spec["eps"]),
        batch_first=bool(spec["batch_first"]), norm_first=bool(spec["norm_first"]),
        bias=bool(spec["bias"]),
    )  # fmt: skip


def _build_encoder(spec: Any) -> nn.Module:
    norm = None if spec["norm"] is None else build(spec["norm"])
    return nn.TransformerEncoder(
        _build_layer(spec["layer"]), int(spec["count"]), norm=norm, enable_nested_tensor=False
    )


def _build_pretrained(spec: Any) -> nn.Module:
    if spec["class"] not in _ENCODERS:
        raise IntegrityError(f"{spec['class']!r} is no encoder that can be rebuilt")
    try:
        import transformers
    except ImportError:
        raise ProgramError(
            f"{spec['class']} needs transformers: pip install 'iceform[export]'"
        ) from None
    kind = getattr(transformers, spec["class"])
    model: nn.Module = kind(kind.config_class(**spec["config"]), add_pooling_layer=spec["pooler"])
    return model


def _build_activation(spec: Any) -> nn.Module:
    if spec["name"] == "gelu_tanh":
        return nn.GELU(approximate="tanh")
    return _ACTIVATIONS[spec["name"]]()


_BUILT: dict[str, Any] = {
    "activation": _build_activation,
    "Linear": lambda s: nn.Linear(int(s["in"]), int(s["out"]), bias=bool(s["bias"])),
    "Embedding": lambda s: nn.Embedding(int(s["count"]), int(s["dim"])),
    "LayerNorm": lambda s: nn.LayerNorm(int(s["width"]), eps=float(s["eps"])),
    "Identity": lambda s: nn.Identity(),
    "Sequential": _build_sequence,
    "MultiheadAttention": lambda s: nn.MultiheadAttention(
        int(s["dim"]), int(s["heads"]), bias=bool(s["bias"]), batch_first=bool(s["batch_first"])
    ),
    "TransformerEncoderLayer": _build_layer,
    "TransformerEncoder": _build_encoder,
    "encoder": _build_pretrained,
    "MeanPooling": lambda s: MeanPooling(build(s["encoder"])),
}
