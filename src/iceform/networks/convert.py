"""From a torch module to the same module made of pieces.

Every supported part is replaced; containers keep their own ``forward``. What is left over with
parameters of its own is refused, or listed where the caller allows it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iceform.errors import ProgramError, ShapeError
from iceform.networks.activations import activation_name, make_activation
from iceform.networks.pieces import EmbeddingMap, Heads, LinearMap, Norm, Piece, Settings, Span

__all__ = ["EncoderLayer", "MeanPooling", "MultiHead", "Pooling", "SelfAttention", "convert"]

_EAGER = "eager"  # the attention of transformers whose masks are additive


class MultiHead(nn.Module):
    """``nn.MultiheadAttention`` in context: three maps looked up, heads attended, one map more."""

    q: LinearMap
    k: LinearMap
    v: LinearMap

    def __init__(self, name: str, settings: Settings, source: nn.MultiheadAttention) -> None:
        super().__init__()
        if source.bias_k is not None or source.add_zero_attn:
            raise ProgramError(f"{name}: add_bias_kv and add_zero_attn have no counterpart here")
        self.num_heads, self.batch_first = source.num_heads, source.batch_first
        self.head_dim = source.head_dim
        if source.in_proj_weight is not None:
            weights = source.in_proj_weight.chunk(3)
        else:
            weights = (source.q_proj_weight, source.k_proj_weight, source.v_proj_weight)
        bias = source.in_proj_bias
        biases = (None, None, None) if bias is None else bias.chunk(3)
        gains = (1 / math.sqrt(self.head_dim), 1.0, 1.0)
        for key, weight, offset, gain in zip("qkv", weights, biases, gains, strict=True):
            setattr(self, key, LinearMap(f"{name}.{key}", settings, weight, offset, gain))
        out = source.out_proj
        self.out_proj = LinearMap(f"{name}.out_proj", settings, out.weight, out.bias)
        self.core = Heads(f"{name}.heads", settings, self.num_heads, self.head_dim, self.head_dim)

    @property
    def maps(self) -> dict[str, LinearMap]:
        """The maps that make queries, keys and values."""
        return {"q": self.q, "k": self.k, "v": self.v}

    def _split(self, x: Tensor) -> Tensor:
        split: Tensor = x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(-3, -2)
        return split

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``nn.MultiheadAttention``'s; ``is_causal`` is a hint there and needs no action."""
        del is_causal
        single = query.ndim == 2
        turn = not (self.batch_first or single)
        if turn:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = self._split(self.q(query)), self._split(self.k(key)), self._split(self.v(value))
        mask = _joined_mask(key_padding_mask, attn_mask, q, self.num_heads)
        looked = self.core(q, k, v) if mask is None else self.core(q, k, v, mask)
        out: Tensor = self.out_proj(looked.transpose(-3, -2).flatten(-2))
        weights = self.core.weights(q, k, mask) if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(-3)
        return (out.transpose(0, 1) if turn else out), weights

    def walk(self, query: Span, key: Span) -> Span:
        """Ranges and error behind the attention."""
        return self.out_proj.walk(self.core.walk(self.maps, query, key))


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """Boolean masks forbid where true; others are added as they are."""
    if mask.dtype != torch.bool:
        return mask.to(like)
    return torch.zeros(mask.shape).to(like).masked_fill(mask, -math.inf)


def _joined_mask(
    padding: Tensor | None, mask: Tensor | None, like: Tensor, heads: int
) -> Tensor | None:
    """One additive mask of shape (*b, heads or 1, queries, keys)."""
    joined = None
    if mask is not None:
        joined = _additive(mask, like)
        joined = joined.unflatten(0, (-1, heads)) if joined.ndim == 3 else joined
    if padding is not None:
        ignored = _additive(padding, like)[..., None, None, :]
        joined = ignored if joined is None else joined + ignored
    return joined


class EncoderLayer(nn.Module):
    """``nn.TransformerEncoderLayer`` in context; residual additions are ordinary additions."""

    def __init__(self, name: str, settings: Settings, source: nn.TransformerEncoderLayer) -> None:
        super().__init__()
        self.norm_first = source.norm_first
        self.self_attn = MultiHead(f"{name}.self_attn", settings, source.self_attn)
        self.linear1 = _linear(f"{name}.linear1", settings, source.linear1)
        self.linear2 = _linear(f"{name}.linear2", settings, source.linear2)
        self.norm1 = Norm(f"{name}.norm1", settings, source.norm1)
        self.norm2 = Norm(f"{name}.norm2", settings, source.norm2)
        act = activation_name(source.activation)
        if act is None:
            raise ProgramError(f"{name}: the activation {source.activation!r} is not known")
        self.activation = make_activation(act, f"{name}.activation", settings)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """As ``nn.TransformerEncoderLayer``'s."""
        del is_causal

        def attended(x: Tensor) -> Tensor:
            out, _ = self.self_attn(
                x, x, x, key_padding_mask=src_key_padding_mask, attn_mask=src_mask,
                need_weights=False,
            )  # fmt: skip
            assert isinstance(out, Tensor)
            return out

        if self.norm_first:
            src = src + attended(self.norm1(src))
            return src + self._feed_forward(self.norm2(src))
        src = self.norm1(src + attended(src))
        out: Tensor = self.norm2(src + self._feed_forward(src))
        return out

    def _feed_forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(self.activation(self.linear1(x)))
        return out


class SelfAttention(nn.Module):
    """The self-attention of a BERT-style encoder of transformers, in context."""

    query: LinearMap
    key: LinearMap
    value: LinearMap

    def __init__(self, name: str, settings: Settings, source: nn.Module) -> None:
        super().__init__()
        self.num_attention_heads = int(source.num_attention_heads)  # type: ignore[arg-type]
        self.attention_head_size = int(source.attention_head_size)  # type: ignore[arg-type]
        gains = {"query": 1 / math.sqrt(self.attention_head_size), "key": 1.0, "value": 1.0}
        for key, gain in gains.items():
            part = getattr(source, key)
            linear = LinearMap(f"{name}.{key}", settings, part.weight, part.bias, gain)
            setattr(self, key, linear)
        size = self.attention_head_size
        self.core = Heads(f"{name}.heads", settings, self.num_attention_heads, size, size)

    @property
    def maps(self) -> dict[str, LinearMap]:
        """The maps that make queries, keys and values."""
        return {"q": self.query, "k": self.key, "v": self.value}

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Hidden states and no weights, as the source returns with its fast attention."""
        refused = [
            k for k in ("past_key_values", "encoder_hidden_states") if kwargs.get(k) is not None
        ]
        if refused:
            raise ProgramError(f"{self.core.name}: {', '.join(refused)} is not for an encoder")
        shape = (self.num_attention_heads, self.attention_head_size)
        maps = (self.query, self.key, self.value)
        q, k, v = (m(hidden_states).unflatten(-1, shape).transpose(-3, -2) for m in maps)
        if attention_mask is None:
            looked = self.core(q, k, v)
        else:
            # Boolean masks of transformers allow where true.
            mask = ~attention_mask if attention_mask.dtype == torch.bool else attention_mask
            looked = self.core(q, k, v, _additive(mask, q))
        return looked.transpose(-3, -2).flatten(-2), None


class Pooling(Piece):
    """The mean of a sentence's tokens, scaled to length 1: not emulated."""

    kind = "pooling"
    how = "not emulated"
    emulated = False

    def __init__(self, name: str, settings: Settings) -> None:
        super().__init__(name, settings)
        self.least, self.length = math.inf, 1

    @staticmethod
    def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
        weights = mask[..., None].to(hidden)
        return (hidden * weights).sum(-2) / weights.sum(-2)

    def exact(self, *inputs: Tensor) -> Tensor:
        return F.normalize(self._mean(*inputs), dim=-1)

    def emulate(self, *inputs: Tensor) -> Tensor:
        return self.exact(*inputs)

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.least = min(self.least, float(self._mean(*inputs).norm(dim=-1).min()))
        self.length = max(self.length, inputs[0].shape[-2])

    def settle(self) -> None:
        self.least /= self.settings.headroom

    def settle_for(self, span: Span) -> None:
        del span
        self.least = 0.0

    def check(self, *inputs: Tensor) -> None:
        least = float(self._mean(*inputs).detach().norm(dim=-1).min())
        if least >= self.least:
            return
        if not self._widens:
            self._out_of_range("1 / the least 2-norm of a mean", 1 / least, 1 / self.least)
        self.least = least

    @property
    def range(self) -> float:
        return 1.0

    @property
    def certified(self) -> float:
        return 8 * self.settings.unit

    def walk(self, span: Span) -> Span:
        """Ranges and error of the sentence vector."""
        unit = self.settings.unit
        mean = span.error + (self.settings.layers.sizes.tokens + 4) * unit * span.norm
        least = self.least - mean
        error = min(2.0, mean / least if least > 0 else math.inf) + (span.width + 8) * unit
        return Span(1.0, 1.0, error, span.width)

    def ranges(self) -> dict[str, Any]:
        return {"least": self.least}

    def restore(self, ranges: dict[str, Any]) -> None:
        self.least = float(ranges["least"])


class MeanPooling(nn.Module):
    """Sentence embeddings: an encoder's token states, averaged over the mask, of length 1.

    Parameters
    ----------
    encoder
        Called with ``input_ids`` and ``attention_mask``; its result has ``last_hidden_state``.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling: nn.Module = _PlainPooling()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **kwargs: Any) -> Tensor:
        """Shape (batch, hidden)."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        out: Tensor = self.pooling(states.last_hidden_state, attention_mask)
        return out


class _PlainPooling(nn.Module):
    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return F.normalize(Pooling._mean(hidden, mask), dim=-1)


# ---------------------------------------------------------------------------------------------
# replacing
# ---------------------------------------------------------------------------------------------


def _linear(name: str, settings: Settings, source: nn.Linear) -> LinearMap:
    return LinearMap(name, settings, source.weight, source.bias)


def _is_self_attention(module: nn.Module) -> bool:
    """Query, key and value maps and a number of heads, as BERT and its kin have them."""
    maps = all(isinstance(getattr(module, k, None), nn.Linear) for k in ("query", "key", "value"))
    heads = ("num_attention_heads", "attention_head_size")
    return maps and all(isinstance(getattr(module, k, None), int) for k in heads)


def _refused_features(module: nn.Module, name: str) -> None:
    relative = getattr(module, "position_embedding_type", "absolute")
    if relative not in (None, "absolute"):
        raise ProgramError(f"{name}: position embeddings of type {relative!r} are not supported")
    if getattr(module, "is_decoder", False):
        raise ProgramError(f"{name}: a decoder's attention is not supported; this is for encoders")


def _embedding(name: str, settings: Settings, source: nn.Embedding) -> EmbeddingMap:
    if source.max_norm is not None:
        raise ProgramError(f"{name}: an embedding that renormalises (max_norm=) is not linear")
    return EmbeddingMap(name, settings, source.weight)


def _norm(name: str, settings: Settings, source: nn.LayerNorm) -> Norm:
    if len(source.normalized_shape) != 1:
        raise ShapeError(f"{name}: LayerNorm over {source.normalized_shape}; one axis is needed")
    return Norm(name, settings, source)


_MAKERS: tuple[tuple[type[nn.Module], Any], ...] = (
    (nn.Linear, _linear),
    (nn.Embedding, _embedding),
    (nn.LayerNorm, _norm),
    (nn.MultiheadAttention, MultiHead),
    (nn.TransformerEncoderLayer, EncoderLayer),
    (_PlainPooling, lambda name, settings, _: Pooling(name, settings)),
)


def _piece_for(module: nn.Module, name: str, settings: Settings) -> nn.Module | None:
    """What stands for a part, or None for a container."""
    act = activation_name(module)
    if act is not None:
        return make_activation(act, name, settings)
    for kind, make in _MAKERS:
        if isinstance(module, kind):
            made: nn.Module = make(name, settings, module)
            return made
    if _is_self_attention(module):
        _refused_features(module, name)
        return SelfAttention(name, settings, module)
    return None


def convert(
    module: nn.Module,
    settings: Settings,
    name: str = "",
    memo: dict[nn.Module, nn.Module] | None = None,
) -> nn.Module:
    """The same module with every supported part replaced, in place for containers.

    A part that is used in several places is one piece in all of them; ``memo`` keeps the parts
    alive meanwhile, so that none is taken for another.
    """
    memo = {} if memo is None else memo
    if module in memo:
        return memo[module]
    piece = _piece_for(module, name or type(module).__name__, settings)
    memo[module] = module if piece is None else piece
    if piece is not None:
        return piece
    for key, child in module._modules.items():
        if child is None:
            continue
        path = f"{name}.{key}" if name else key
        setattr(module, key, convert(child, settings, path, memo))
    if isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False
    config: Any = getattr(module, "config", None)
    if hasattr(config, "_attn_implementation"):
        config._attn_implementation = _EAGER
    return module
