"""The definition: the studies' networks as plain modules, one model at a time.

Every token is projected, every one of the p tokens becomes a query, a key and a value, and the
rows that are not asked for are thrown away at the end. Slow on purpose: the stacked networks are
compared with these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from studies.networks import CrossAttention, SelfAttention

__all__ = ["PlainCross", "PlainSelf"]


class _TokenMap(nn.Module):
    """Linear(d -> hidden) times a scale per position, then learned tokens appended."""

    def __init__(self, features: int, tokens: int, hidden: int, points: int) -> None:
        super().__init__()
        self.project = nn.Linear(features, hidden)
        self.scale = nn.Parameter(torch.ones(tokens, hidden))
        ramp = torch.linspace(-1, 1, points - tokens)[:, None].repeat(1, hidden)
        self.constant = nn.Parameter(ramp)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.project(x) * self.scale
        constant = self.constant.expand(x.shape[0], -1, -1)
        return torch.cat([tokens, constant], 1)


class PlainSelf(nn.Module):
    """:class:`SelfAttention` for one model."""

    def __init__(self, spec: SelfAttention) -> None:
        super().__init__()
        self.spec = spec
        h = spec.hidden
        self.tokens = _TokenMap(spec.features, spec.tokens, h, spec.points)
        self.query, self.key, self.value = nn.Linear(h, h), nn.Linear(h, h), nn.Linear(h, h)
        self.out = nn.Linear(h, h if spec.final else spec.outputs)
        self.final = nn.Linear(h, spec.outputs) if spec.final else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        t = self.tokens(x)
        b, p, h = t.shape
        heads, width = self.spec.heads, h // self.spec.heads
        q, k, v = (
            layer(t).view(b, p, heads, width).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        weights = torch.softmax(q @ k.mT / math.sqrt(width), -1)
        out = (weights @ v).transpose(1, 2).reshape(b, p, h)
        read: Tensor = self.final(self.out(out))[:, : self.spec.read]
        return read

    @torch.no_grad()
    def load(self, p: Mapping[str, Tensor]) -> PlainSelf:
        """Take the parameters of one model of a stack."""
        h = self.spec.hidden
        _copy(self.tokens.project, p["in.weight"], p["in.bias"])
        self.tokens.scale.copy_(p["in.scale"])
        self.tokens.constant.copy_(p["constant"])
        for place, layer in enumerate((self.query, self.key, self.value)):
            part = slice(place * h, (place + 1) * h)
            _copy(layer, p["qkv.weight"][:, part], p["qkv.bias"][:, part])
        _copy(self.out, p["out.weight"], p["out.bias"])
        if isinstance(self.final, nn.Linear):
            _copy(self.final, p["final.weight"], p["final.bias"])
        return self


class PlainCross(nn.Module):
    """:class:`CrossAttention` for one model."""

    def __init__(self, spec: CrossAttention) -> None:
        super().__init__()
        self.spec = spec
        h = spec.hidden
        self.data = _TokenMap(spec.features, spec.tokens, h, spec.points)
        self.prompt = _TokenMap(spec.prompt_features, spec.tokens, h, spec.points)
        self.query, self.key = nn.Linear(h, h), nn.Linear(h, h)
        self.value = nn.Linear(h, spec.outputs if spec.bare else h)
        self.out = nn.Identity() if spec.bare else nn.Linear(h, spec.outputs)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        data, prompt = self.data(x), self.prompt(w)
        q, k, v = self.query(prompt), self.key(data), self.value(data)
        scores = k @ q.mT if self.spec.over_prompt else q @ k.mT
        scale = 1.0 if self.spec.bare else math.sqrt(self.spec.hidden)
        weights = torch.softmax(scores / scale, -1)
        read: Tensor = self.out(weights @ v)[:, : self.spec.tokens]
        return read

    @torch.no_grad()
    def load(self, p: Mapping[str, Tensor]) -> PlainCross:
        """Take the parameters of one model of a stack."""
        for name, part in (("data", self.data), ("prompt", self.prompt)):
            _copy(part.project, p[f"{name}.weight"], p[f"{name}.bias"])
            part.scale.copy_(p[f"{name}.scale"])
            if f"{name}.constant" in p:
                part.constant.copy_(p[f"{name}.constant"])
        for name, layer in (("q", self.query), ("k", self.key), ("v", self.value)):
            _copy(layer, p[f"{name}.weight"], p[f"{name}.bias"])
        if isinstance(self.out, nn.Linear):
            _copy(self.out, p["out.weight"], p["out.bias"])
        return self


def _copy(layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    layer.weight.copy_(weight.mT)
    layer.bias.copy_(bias[0])
