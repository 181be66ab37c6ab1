"""Stock GPT-2 as a function of its tensors, for many networks of one shape side by side.

Every tensor has a leading axis of networks. What is computed is ``transformers.GPT2Model`` on
``inputs_embeds`` in evaluation mode, between the maps in and out that ``wte.weight`` holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.lab.shape import EPSILON, GPT2Shape, interleaved

Stacked = Mapping[str, Tensor]
States = Float[Tensor, "e b t h"]
# What tokens read, (n, t, width), of (n, t, 3 width) queries, keys and values, and a head count.
Attention = Callable[[Tensor, int], Tensor]


def stacked(networks: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of several networks with a leading axis."""
    return {name: torch.stack([n[name] for n in networks]) for name in networks[0]}


def embedded(tensors: Stacked, shape: GPT2Shape, x: Tensor, y: Tensor) -> States:
    """Prompts with positions: (networks, batch, tokens, width), of data (networks, batch, ...)."""
    tokens = interleaved(x, y)
    maps = tensors["wte.weight"][:, None, : shape.dim + 1]
    return tokens @ maps + tensors["wpe.weight"][:, None, : tokens.shape[-2]]


def of_layer(tensors: Stacked, layer: int) -> dict[str, Tensor]:
    """A layer's tensors, by names that are the same for all layers."""
    at = f"h.{layer}."
    return {name.removeprefix(at): t for name, t in tensors.items() if name.startswith(at)}


def block(own: Stacked, shape: GPT2Shape, h: States, attention: Attention | None = None) -> States:
    """One layer: attention and MLP on the normed stream, added to it."""
    asked = _affine(_norm(h, own, "ln_1"), own, "attn.c_attn")
    if attention is None:
        read = _attended(asked, shape)
    else:
        read = attention(asked.flatten(0, 1), shape.heads).view_as(h)
    h = h + _affine(read, own, "attn.c_proj")
    units = _affine(_norm(h, own, "ln_2"), own, "mlp.c_fc")
    units = torch.nn.functional.gelu(units, approximate="tanh")
    return h + _affine(units, own, "mlp.c_proj")


def _attended(asked: Tensor, shape: GPT2Shape) -> States:
    """What every token reads, in torch's own operations."""
    e, b, t, _ = asked.shape
    heads = asked.view(e, b, t, 3, shape.heads, shape.head_size).permute(3, 0, 1, 4, 2, 5)
    query, key, value = heads
    logits = query @ key.mT / math.sqrt(shape.head_size)
    hidden = torch.full((t, t), -torch.inf, dtype=asked.dtype, device=asked.device).triu(1)
    read: Tensor = (logits + hidden).softmax(-1) @ value
    return read.transpose(2, 3).reshape(e, b, t, shape.width)


def answers(tensors: Stacked, shape: GPT2Shape, h: States) -> Float[Tensor, "e b n"]:
    """What the network says at every x, of the stream behind the last layer."""
    return read_out(tensors, _norm(h, tensors, "ln_f"))


def read_out(tensors: Stacked, normed: States) -> Float[Tensor, "e b n"]:
    """The answers in ``last_hidden_state``."""
    row = tensors["wte.weight"][:, -1]
    return (normed[:, :, ::2] @ row[:, None, :, None])[..., 0]


def run(
    tensors: Stacked, shape: GPT2Shape, h: States, first: int = 0, keep: list[Tensor] | None = None
) -> Float[Tensor, "e b n"]:
    """The answers from the stream before a layer; the stream after every layer goes to ``keep``."""
    for layer in range(first, shape.layers):
        h = block(of_layer(tensors, layer), shape, h)
        if keep is not None:
            keep.append(h)
    return answers(tensors, shape, h)


def _norm(h: States, tensors: Stacked, name: str) -> States:
    centred = h - h.mean(-1, keepdim=True)
    root = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPSILON)
    gain, bias = (tensors[f"{name}.{part}"][:, None, None] for part in ("weight", "bias"))
    return centred * root * gain + bias


def _affine(h: States, tensors: Stacked, name: str) -> States:
    """One product for each network, whatever the batch is; a compiler fuses the sum."""
    weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
    if torch.compiler.is_compiling():
        out = h.flatten(1, 2) @ weight + bias[:, None]
    else:
        out = torch.baddbmm(bias[:, None], h.flatten(1, 2), weight)
    return out.view(*h.shape[:3], -1)
