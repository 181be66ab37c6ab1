"""Networks to convert: architectures of transformers, tiny and random, and modules of torch.

A case makes a network and an input of it; drawn twice, the input is another of the same kind.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCABULARY = 40


@dataclass(frozen=True)
class Case:
    """A network by name, and what it is called with."""

    name: str
    make: Callable[[], nn.Module]
    draw: Callable[[], Any]


# ---------------------------------------------------------------------------------- transformers

COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12, "max_position_embeddings": 32, "initializer_range": 0.2,
    "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 1, "head_dim": 4}
GPT = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32}
SEQUENCES = {
    "d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "init_std": 0.2,
    "decoder_start_token_id": 2,
}  # fmt: skip
T5 = {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2,
      "decoder_start_token_id": 1}  # fmt: skip
PICTURE = {"image_size": 8, "patch_size": 4, "num_channels": 3}
SOUND = {"conv_dim": (8, 8), "conv_stride": (3, 2), "conv_kernel": (4, 3),
         "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
         "num_feat_extract_layers": 2}  # fmt: skip


def words() -> dict[str, Any]:
    """Two sentences, one of them padded."""
    ids = torch.randint(3, VOCABULARY, (2, 5))
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def ids_only() -> dict[str, Any]:
    return {"input_ids": torch.randint(3, VOCABULARY, (2, 5))}


def causal() -> dict[str, Any]:
    return {"input_ids": torch.randint(3, VOCABULARY, (2, 5)), "use_cache": False}


def translated() -> dict[str, Any]:
    return {**words(), "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 4)),
            "use_cache": False}  # fmt: skip


def picture() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 8, 8)}


def large_picture() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def sound() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 60)}


def spectrum() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 4, 16)}


# Name of the class, how it is called, what its configuration has beside or instead of COMMON.
ARCHITECTURES: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, Any]]] = {
    "BertModel": (words, {}),
    "RobertaModel": (words, {}),
    "DistilBertModel": (words, {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12}),
    "AlbertModel": (words, {"embedding_size": 6}),
    "ElectraModel": (words, {"embedding_size": 6}),
    "MPNetModel": (words, {}),
    "CamembertModel": (words, {}),
    "XLMRobertaModel": (words, {}),
    "DebertaModel": (words, {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "DebertaV2Model": (words, {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "MobileBertModel": (words, {"embedding_size": 8, "intra_bottleneck_size": 8,
                                "num_feedforward_networks": 2}),
    "SqueezeBertModel": (words, {"embedding_size": 8, **{f"{k}_groups": 2 for k in (
        "q", "k", "v", "post_attention", "intermediate", "output")}}),
    "FNetModel": (ids_only, {}),
    "FunnelModel": (words, {"d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 12,
                            "block_sizes": [1, 1], "num_decoder_layers": 1}),
    "BigBirdModel": (words, {"attention_type": "original_full"}),
    "LongformerModel": (words, {"attention_window": 4}),
    "NystromformerModel": (words, {"num_landmarks": 2, "segment_means_seq_len": 4}),
    "XLNetModel": (words, {"d_model": 8, "n_layer": 2, "n_head": 2, "d_inner": 12}),
    "RemBertModel": (words, {"input_embedding_size": 6, "output_embedding_size": 6}),
    "ConvBertModel": (words, {"embedding_size": 8, "head_ratio": 1, "conv_kernel_size": 3}),
    "ModernBertModel": (words, {"global_attn_every_n_layers": 1}),
    "GPT2Model": (causal, GPT),
    "GPTNeoModel": (causal, {"num_layers": 2, "num_heads": 2, "max_position_embeddings": 32,
                             "attention_types": [[["global", "local"], 1]], "window_size": 3}),
    "GPTJModel": (causal, {**GPT, "rotary_dim": 2}),
    "GPTNeoXModel": (causal, {"rotary_pct": 0.5}),
    "GPTBigCodeModel": (causal, GPT),
    "CodeGenModel": (causal, {**GPT, "n_head": 4, "n_embd": 16, "rotary_dim": 2}),
    "OPTModel": (causal, {"ffn_dim": 12, "word_embed_proj_dim": 8}),
    "BloomModel": (causal, {"n_head": 2, "n_layer": 2}),
    "FalconModel": (causal, {"alibi": False, "num_kv_heads": 1}),
    "LlamaModel": (causal, GROUPED),
    "MistralModel": (causal, {**GROUPED, "sliding_window": 3}),
    "MixtralModel": (causal, {**GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "Qwen2Model": (causal, GROUPED),
    "Qwen3Model": (causal, GROUPED),
    "GemmaModel": (causal, GROUPED),
    "Gemma2Model": (causal, GROUPED),
    "Gemma3TextModel": (causal, GROUPED),
    "PhiModel": (causal, {"num_key_value_heads": 1, "partial_rotary_factor": 0.5}),
    "Phi3Model": (causal, {"num_key_value_heads": 1}),
    "StableLmModel": (causal, {"num_key_value_heads": 1, "partial_rotary_factor": 0.5}),
    "OlmoModel": (causal, {"num_key_value_heads": 1}),
    "CohereModel": (causal, {"num_key_value_heads": 1}),
    "MambaModel": (causal, {"state_size": 4, "time_step_rank": 2}),
    "T5EncoderModel": (words, T5),
    "T5Model": (translated, T5),
    "BartModel": (translated, SEQUENCES),
    "MarianModel": (translated, SEQUENCES),
    "PegasusModel": (translated, SEQUENCES),
    "CLIPTextModel": (words, {}),
    "CLIPVisionModel": (picture, PICTURE),
    "ViTModel": (picture, PICTURE),
    "DeiTModel": (picture, PICTURE),
    "BeitModel": (picture, PICTURE),
    "Dinov2Model": (picture, PICTURE),
    "ConvNextModel": (large_picture, {"hidden_sizes": [4, 6], "depths": [1, 1], "num_stages": 2}),
    "ResNetModel": (large_picture, {"embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 1],
                                    "layer_type": "basic"}),
    "Wav2Vec2Model": (sound, SOUND),
    "WhisperEncoder": (spectrum, {**SEQUENCES, "num_mel_bins": 4, "max_source_positions": 8}),
}  # fmt: skip
# Given on its own where the class is not the model's: its configuration, and where it lives.
_ELSEWHERE = {
    "WhisperEncoder": ("WhisperConfig", "transformers.models.whisper.modeling_whisper"),
    "CLIPTextModel": ("CLIPTextConfig", "transformers"),
    "CLIPVisionModel": ("CLIPVisionConfig", "transformers"),
    "T5EncoderModel": ("T5Config", "transformers"),
    "Gemma3TextModel": ("Gemma3TextConfig", "transformers"),
}


# What a configuration does not take.
_REFUSED = {
    "FunnelModel": ("num_hidden_layers",),
    "XLNetModel": ("max_position_embeddings",),
}


def architecture(name: str) -> nn.Module:
    """A tiny random network of that class."""
    import importlib

    config, module = _ELSEWHERE.get(name, (f"{name.removesuffix('Model')}Config", "transformers"))
    transformers = importlib.import_module("transformers")
    kind = getattr(transformers, config)
    own = getattr(kind, "attribute_map", {})
    beside = {own.get(k, k): v for k, v in COMMON.items()}
    for refused in _REFUSED.get(name, ()):
        del beside[refused]
    model = getattr(importlib.import_module(module), name)(
        kind(**{**beside, **ARCHITECTURES[name][1]})
    )
    return model.eval().requires_grad_(False)


# ----------------------------------------------------------------------------------------- torch


class CNN(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.GELU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
        )  # fmt: skip


class Decoder(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True, **options)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.inner(x, memory, tgt_mask=mask, tgt_is_causal=True)


class Causal(nn.Module):
    """scaled_dot_product_attention with is_causal."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(-2))


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Einsum(nn.Module):
    """Attention written with einsum, weights of every head in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(3, 8, 2, 4) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = torch.einsum("btd,sdhe->sbhte", x, self.qkv)
        p = torch.softmax(torch.einsum("bhte,bhse->bhts", q, k) / 2, -1)
        return torch.einsum("bhts,bhse->bthe", p, v)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 5))
        self.channels = nn.Sequential(nn.LayerNorm(8), SwiGLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(x.mT).mT
        return x + self.channels(x)


def tokens() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 5, 8),)


def two() -> tuple[torch.Tensor, ...]:
    return torch.randn(2, 5, 8), torch.randn(2, 4, 8)


def three() -> tuple[torch.Tensor, ...]:
    return torch.randn(2, 5, 8), torch.randn(2, 4, 8), torch.randn(2, 4, 8)


def signal() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 4, 9),)


def image() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 1, 8, 8),)


def volume() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 1, 4, 4, 4),)


def channels() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 4, 6, 6),)


class Cosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.cosine_similarity(self.inner(a), self.inner(b), dim=-1)


def two_rows() -> tuple[torch.Tensor, ...]:
    return torch.randn(4, 8), torch.randn(4, 8)


def between(*parts: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(8, 8), *parts, nn.Linear(8, 3))


def _layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, **options)


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 12), nn.Tanh(),
                                  nn.Linear(12, 3)), tokens),
    "CNN": (CNN, image),
    "TransformerEncoderLayer": (_layer, tokens),
    "TransformerEncoderLayer, norm first": (
        lambda: _layer(norm_first=True, activation="gelu"), tokens),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(_layer(), 2, enable_nested_tensor=False), tokens),
    "TransformerDecoderLayer": (Decoder, two),
    "TransformerDecoderLayer, norm first": (lambda: Decoder(norm_first=True), two),
    "Transformer": (lambda: nn.Transformer(8, 2, 1, 1, 12, batch_first=True), two),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), three),
    "MultiheadAttention, other widths": (
        lambda: nn.MultiheadAttention(8, 2, kdim=8, vdim=8, add_bias_kv=True, batch_first=True),
        three),
    "scaled_dot_product_attention, causal": (Causal, tokens),
    "einsum": (Einsum, tokens),
    "SwiGLU": (SwiGLU, tokens),
    "Mixer": (Mixer, tokens),
    "Bilinear": (lambda: nn.Bilinear(8, 8, 3), lambda: (torch.randn(4, 8), torch.randn(4, 8))),
    "EmbeddingBag": (lambda: nn.Sequential(nn.EmbeddingBag(20, 8), nn.Linear(8, 3)),
                     lambda: (torch.randint(0, 20, (3, 4)),)),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, dilation=2, padding=2), signal),
    "Conv1d, same": (lambda: nn.Conv1d(4, 6, 4, padding="same"), signal),
    "Conv2d, groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, stride=2), channels),
    "Conv2d, reflected": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), channels),
    "Conv3d": (lambda: nn.Conv3d(1, 3, 2), volume),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), signal),
    "AvgPool2d": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.AvgPool2d(2)), channels),
    "BatchNorm1d": (lambda: nn.Sequential(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4)), signal),
    "GroupNorm": (lambda: nn.Sequential(nn.Conv1d(4, 4, 1), nn.GroupNorm(2, 4)), signal),
    "InstanceNorm1d": (lambda: nn.Sequential(nn.Conv1d(4, 4, 1), nn.InstanceNorm1d(4)), signal),
    "RMSNorm": (between(nn.RMSNorm(8)), tokens),
    "LayerNorm over two axes": (lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm((5, 8))),
                                tokens),
    "GRU": (lambda: nn.GRU(8, 4, batch_first=True), tokens),
    "LSTM": (lambda: nn.LSTM(8, 4, batch_first=True), tokens),
    "RNN": (lambda: nn.RNN(8, 4, batch_first=True), tokens),
    "GRUCell": (lambda: nn.GRUCell(8, 4), lambda: (torch.randn(3, 8), torch.randn(3, 4))),
    "PReLU": (between(nn.PReLU()), tokens),
    "SELU": (between(nn.SELU()), tokens),
    "ELU, alpha": (between(nn.ELU(0.5)), tokens),
    "Softplus, beta": (between(nn.Softplus(2.0)), tokens),
    "Hardswish": (between(nn.Hardswish()), tokens),
    "Hardsigmoid": (between(nn.Hardsigmoid()), tokens),
    "Mish": (between(nn.Mish()), tokens),
    "GLU": (lambda: nn.Sequential(nn.Linear(8, 8), nn.GLU(), nn.Linear(4, 3)), tokens),
    "Softsign": (between(nn.Softsign()), tokens),
    "Tanhshrink": (between(nn.Tanhshrink()), tokens),
    "Softmax": (between(nn.Softmax(-1)), tokens),
    "LogSoftmax": (between(nn.LogSoftmax(-1)), tokens),
    "Threshold": (between(nn.Threshold(0.1, 0.0)), tokens),
    "RReLU": (between(nn.RReLU()), tokens),
    "Upsample": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.Upsample(scale_factor=2)), channels),
    "PixelShuffle": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.PixelShuffle(2)), channels),
    "CosineSimilarity": (Cosine, two_rows),
}  # fmt: skip


def cases() -> list[Case]:
    """All of them: those of transformers first."""
    found = [
        Case(name, lambda name=name: architecture(name), draw)
        for name, (draw, _) in ARCHITECTURES.items()
    ]
    return found + [Case(name, *rest) for name, rest in MODULES.items()]
