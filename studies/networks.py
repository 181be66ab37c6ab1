r"""The networks of the studies, many models at once.

Every parameter has a leading model axis M and every product is one explicit batched matrix
product, so M models cost a few large kernels instead of M small ones. A network maps its inputs
to tokens, appends constant tokens that it learns, and attends:

.. math::
    t_i = s_i \odot (W_{in} x_i + b_{in}), \qquad
    o_i = W_{out} \sum_j p_{ij} v_j + b_{out}, \qquad
    p_i = \mathrm{softmax}_j(q_i \cdot k_j / \sqrt{d_h}),

with j over the data's tokens and the constant ones. Two things make this cheap and change nothing:
only tokens whose output is read become queries, and the keys and values of constant tokens are
computed once for a whole batch. :mod:`studies.plain` is the definition, one model at a
time and without either; the tests compare the two.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.errors import ShapeError

__all__ = [
    "CrossAttention", "InContext", "Network", "PromptedAttention", "SelfAttention", "attend",
    "stack",
]  # fmt: skip

Parameters = dict[str, Tensor]


class Network(ABC):
    """A network as a function of its parameters."""

    @abstractmethod
    def initial(self, generator: torch.Generator) -> Parameters:
        """The parameters of one model, drawn on the CPU so that every device starts alike."""

    @abstractmethod
    def __call__(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        """Outputs of all models: (M, batch, rows, out) from inputs (M, batch, ...)."""

    def count(self) -> int:
        """Parameters of one model."""
        return sum(p.numel() for p in self.initial(torch.Generator()).values())


def stack(models: Sequence[Parameters]) -> Parameters:
    """One set of parameters with a leading model axis."""
    return {name: torch.stack([m[name] for m in models]) for name in models[0]}


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weight (in, out) and bias (1, out), uniform in +-1/sqrt(in) as torch.nn.Linear has them."""
    root = 1 / math.sqrt(inputs)
    weight = torch.rand(inputs, outputs, generator=generator) * (2 * root) - root
    bias = torch.rand(1, outputs, generator=generator) * (2 * root) - root
    return weight, bias


def _ramp(count: int, width: int) -> Tensor:
    """Constant tokens before training: linspace(-1, 1) in every feature."""
    return torch.linspace(-1, 1, count)[:, None].repeat(1, width)


def _affine(x: Float[Tensor, "m r i"], weight: Tensor, bias: Tensor) -> Float[Tensor, "m r o"]:
    return torch.baddbmm(bias, x, weight)


def _tokens(x: Float[Tensor, "m b n i"], p: Mapping[str, Tensor], name: str) -> Tensor:
    """Projected tokens times the learned scale of their position, shape (m, b n, hidden)."""
    m, b, n, i = x.shape
    projected = _affine(x.reshape(m, b * n, i), p[f"{name}.weight"], p[f"{name}.bias"])
    scaled = projected.view(m, b, n, -1) * p[f"{name}.scale"][:, None]
    return scaled.view(m, b * n, -1)


def _by_head(t: Float[Tensor, "m r w"], heads: int) -> Float[Tensor, "m h r c"]:
    m, r, w = t.shape
    return t.view(m, r, heads, w // heads).transpose(1, 2)


def attend(
    query: Float[Tensor, "m bn w"],
    keys: Float[Tensor, "m bj w"],
    values: Float[Tensor, "m bj v"],
    constant_keys: Float[Tensor, "m k w"],
    constant_values: Float[Tensor, "m k v"],
    *,
    batch: int,
    heads: int,
    scaled: bool = True,
) -> Float[Tensor, "m bn v"]:
    """Softmax attention over each sample's own tokens and the constant ones.

    A query attends to the j data tokens of its own sample and to the k constant tokens, which all
    samples share; ``scaled`` divides logits by the root of a head's width. Either the constant keys
    join each sample's own, or the two sets of logits are joined: whichever copies less. Both are
    the same sums.
    """
    m, rows, width = query.shape
    each, read = width // heads, rows // batch
    asking = query * (1 / math.sqrt(each)) if scaled else query
    q, k, v = (
        _by_head(t, heads).contiguous().view(m * heads, batch, -1, t.shape[-1] // heads)
        for t in (asking, keys, values)
    )
    ck, cv = (
        _by_head(t, heads).reshape(m * heads, -1, t.shape[-1] // heads)
        for t in (constant_keys, constant_values)
    )
    join = _join_keys if each <= read else _join_logits
    out = join(q, k, v, ck, cv)
    return out.view(m, heads, rows, -1).transpose(1, 2).reshape(m, rows, values.shape[-1])


def _join_keys(q: Tensor, k: Tensor, v: Tensor, ck: Tensor, cv: Tensor) -> Tensor:
    """Every sample's keys and values with the constant ones behind them."""
    groups, batch, read, each = q.shape
    k, v = (
        torch.cat([own, shared[:, None].expand(-1, batch, -1, -1)], 2).flatten(0, 1)
        for own, shared in ((k, ck), (v, cv))
    )
    weights = torch.softmax(torch.bmm(q.view(groups * batch, read, each), k.mT), -1)
    return torch.bmm(weights, v)


def _join_logits(q: Tensor, k: Tensor, v: Tensor, ck: Tensor, cv: Tensor) -> Tensor:
    """One product of all queries with the constant keys, beside each sample's own."""
    groups, batch, read, each = q.shape
    own, rows = k.shape[2], batch * read
    to_own = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT)
    to_constant = torch.bmm(q.view(groups, rows, each), ck.mT)
    logits = torch.cat([to_own.view(groups, rows, own), to_constant], -1)
    p_own, p_constant = torch.softmax(logits, -1).split([own, ck.shape[1]], -1)
    from_own = torch.bmm(p_own.view(groups * batch, read, own), v.flatten(0, 1))
    return torch.baddbmm(from_own.view(groups, rows, v.shape[-1]), p_constant, cv)


@dataclass(frozen=True)
class SelfAttention(Network):
    """One multi-head layer on projected tokens and learned constant tokens.

    Parameters
    ----------
    features
        Entries of a data token.
    tokens
        Data tokens of a sample.
    read
        How many of them, from the first, are queries whose output is read.
    hidden, heads
        Width, and the heads that split it.
    points
        All tokens, the learned constant ones included.
    outputs
        Entries of an output row.
    final
        Width of a further affine map to ``outputs``; without it the output projection ends there.
    xavier
        Whether the attention's own weights start as those of torch.nn.MultiheadAttention do:
        Glorot-uniform, with biases of zero.
    """

    features: int
    tokens: int
    read: int
    hidden: int
    heads: int
    points: int
    outputs: int
    final: bool = False
    xavier: bool = False

    def __post_init__(self) -> None:
        check_width(self.hidden, self.heads)

    def initial(self, generator: torch.Generator) -> Parameters:
        h, out = self.hidden, self.hidden if self.final else self.outputs
        p: Parameters = {}
        p["in.weight"], p["in.bias"] = _linear(self.features, h, generator)
        p["in.scale"] = torch.ones(self.tokens, h)
        p["constant"] = _ramp(self.points - self.tokens, h)
        p["qkv.weight"], p["qkv.bias"] = _linear(h, 3 * h, generator)
        p["out.weight"], p["out.bias"] = _linear(h, out, generator)
        if self.final:
            p["final.weight"], p["final.bias"] = _linear(h, self.outputs, generator)
        if self.xavier:
            torch.nn.init.xavier_uniform_(p["qkv.weight"], generator=generator)
            p["qkv.bias"].zero_()
            p["out.bias"].zero_()
        return p

    def __call__(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (x,) = inputs
        p, h, (m, b) = parameters, self.hidden, x.shape[:2]
        tokens = _tokens(x, p, "in")
        weight, bias = p["qkv.weight"], p["qkv.bias"]
        if self.read == self.tokens:
            q, k, v = _affine(tokens, weight, bias).split(h, -1)
        else:
            k, v = _affine(tokens, weight[..., h:], bias[..., h:]).split(h, -1)
            asking = tokens.view(m, b, self.tokens, h)[:, :, : self.read].reshape(m, -1, h)
            q = _affine(asking, weight[..., :h], bias[..., :h])
        ck, cv = _affine(p["constant"], weight[..., h:], bias[..., h:]).split(h, -1)
        out = attend(q, k, v, ck, cv, batch=b, heads=self.heads)
        out = _affine(out, p["out.weight"], p["out.bias"])
        if self.final:
            out = _affine(out, p["final.weight"], p["final.bias"])
        return out.view(m, b, self.read, -1)


@dataclass(frozen=True)
class CrossAttention(Network):
    """Two token maps, one of the data and one of W; one head between them.

    Parameters
    ----------
    features, prompt_features
        Entries of a data token and of a token of W.
    tokens, hidden, points, outputs
        As for :class:`SelfAttention`; both maps have as many tokens.
    over_prompt
        In the script the softmax of K Q' runs over its last axis, the one of W: a row of the
        output belongs to a data token, whose key meets the queries of W as if they were keys.
        Otherwise rows belong to W's queries and the softmax runs over the data's keys.
    bare
        Values are of the output's width and are the output, and logits are not divided by the root
        of the width, as in the script; otherwise values are ``hidden`` wide and an affine map ends.
    """

    features: int
    prompt_features: int
    tokens: int
    hidden: int
    points: int
    outputs: int
    over_prompt: bool
    bare: bool = False

    def initial(self, generator: torch.Generator) -> Parameters:
        h, extra = self.hidden, self.points - self.tokens
        p: Parameters = {}
        for name, width in (("data", self.features), ("prompt", self.prompt_features)):
            p[f"{name}.weight"], p[f"{name}.bias"] = _linear(width, h, generator)
            p[f"{name}.scale"] = torch.ones(self.tokens, h)
            if name == "data" or self.over_prompt:  # else no row that is read depends on it
                p[f"{name}.constant"] = _ramp(extra, h)
        for name in "qkv":
            wide = self.outputs if self.bare and name == "v" else h
            p[f"{name}.weight"], p[f"{name}.bias"] = _linear(h, wide, generator)
        if not self.bare:
            p["out.weight"], p["out.bias"] = _linear(h, self.outputs, generator)
        return p

    def __call__(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        x, w = inputs
        p, (m, b) = parameters, x.shape[:2]
        data, prompt = _tokens(x, p, "data"), _tokens(w, p, "prompt")

        def of(name: str, t: Tensor) -> Tensor:
            return _affine(t, p[f"{name}.weight"], p[f"{name}.bias"])

        values, constant_values = of("v", data), of("v", p["data.constant"])
        if self.over_prompt:
            asking, keys, constant_keys = of("k", data), of("q", prompt), p["prompt.constant"]
            constant_keys = of("q", constant_keys)
        else:
            asking, keys, constant_keys = of("q", prompt), of("k", data), p["data.constant"]
            constant_keys = of("k", constant_keys)
        out = attend(
            asking, keys, values, constant_keys, constant_values,
            batch=b, heads=1, scaled=not self.bare,
        )  # fmt: skip
        if not self.bare:
            out = _affine(out, p["out.weight"], p["out.bias"])
        return out.view(m, b, self.tokens, -1)


@dataclass(frozen=True)
class PromptedAttention(Network):
    """A SelfAttention whose prompt an auxiliary network writes from the context.

    The auxiliary network sees the context's rows only through a mean, so their order does not
    matter: prompt = B relu(C [mean_i relu(A [x_i; y_i]); code] + c), where the code names the
    algorithm. Inputs: queries (M, batch, n, d), contexts (M, contexts, rows, d + 1), the code
    (M, batch, codes) and the context of every sample, (M, batch) of integers.
    """

    main: SelfAttention
    dim: int
    codes: int
    width: int

    def initial(self, generator: torch.Generator) -> Parameters:
        p = {f"main.{k}": v for k, v in self.main.initial(generator).items()}
        p["row.weight"], p["row.bias"] = _linear(self.dim + 1, self.width, generator)
        p["mix.weight"], p["mix.bias"] = _linear(self.width + self.codes, self.width, generator)
        p["prompt.weight"], p["prompt.bias"] = _linear(self.width, self.dim, generator)
        return p

    def prompt(
        self, parameters: Mapping[str, Tensor], contexts: Tensor, code: Tensor, which: Tensor
    ) -> Float[Tensor, "m b d"]:
        """What the auxiliary network writes for every sample's context and algorithm."""
        p, (m, c, rows, _) = parameters, contexts.shape
        each = _affine(contexts.reshape(m, c * rows, -1), p["row.weight"], p["row.bias"]).relu()
        means = each.view(m, c, rows, -1).mean(2)
        own = means.gather(1, which[..., None].expand(-1, -1, self.width))
        mixed = _affine(torch.cat([own, code], -1), p["mix.weight"], p["mix.bias"]).relu()
        return _affine(mixed, p["prompt.weight"], p["prompt.bias"])

    def with_prompt(
        self, parameters: Mapping[str, Tensor], x: Tensor, prompt: Tensor
    ) -> Float[Tensor, "m b n o"]:
        """The frozen attention model on given prompts."""
        main = {k.removeprefix("main."): v for k, v in parameters.items() if k.startswith("main.")}
        wide = prompt[:, :, None].expand(*x.shape[:3], -1)
        return self.main(main, torch.cat([x, wide], -1))

    def __call__(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        x, contexts, code, which = inputs
        return self.with_prompt(parameters, x, self.prompt(parameters, contexts, code, which))


@dataclass(frozen=True)
class InContext(Network):
    r"""A transformer of several layers that learns from the pairs of its context.

    A layer is :math:`t \mathrel{+}= A(n(t))`, then :math:`t \mathrel{+}= W_2\,
    \mathrm{relu}(W_1 n(t))`, with n the normalisation of every token and A softmax attention of
    all tokens to those of the context, the ones behind the first ``read``. Queries do not see each
    other.
    """

    features: int
    read: int
    hidden: int
    heads: int
    layers: int
    outputs: int

    def __post_init__(self) -> None:
        check_width(self.hidden, self.heads)

    def initial(self, generator: torch.Generator) -> Parameters:
        h, p = self.hidden, {}
        shapes = {"in": (self.features, h), "final": (h, self.outputs)}
        for layer in range(self.layers):
            of_layer = {"qkv": (h, 3 * h), "out": (h, h), "up": (h, 4 * h), "down": (4 * h, h)}
            shapes |= {f"{layer}.{name}": shape for name, shape in of_layer.items()}
        for name, shape in shapes.items():
            p[f"{name}.weight"], p[f"{name}.bias"] = _linear(*shape, generator)
        return p

    def __call__(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (x,) = inputs
        m, b, rows, _ = x.shape

        def of(name: str, t: Tensor) -> Tensor:
            return _affine(t, parameters[f"{name}.weight"], parameters[f"{name}.bias"])

        def normal(t: Tensor) -> Tensor:
            return torch.nn.functional.layer_norm(t, (self.hidden,))

        t = of("in", x.reshape(m, b * rows, -1))
        for layer in range(self.layers):
            q, k, v = (
                each.reshape(m * b, rows, self.heads, -1).transpose(1, 2)
                for each in of(f"{layer}.qkv", normal(t)).split(self.hidden, -1)
            )
            k, v = k[:, :, self.read :], v[:, :, self.read :]
            weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
            t = t + of(f"{layer}.out", (weights @ v).transpose(1, 2).reshape(m, b * rows, -1))
            t = t + of(f"{layer}.down", of(f"{layer}.up", normal(t)).relu())
        asked = t.view(m, b, rows, -1)[:, :, : self.read].reshape(m, b * self.read, -1)
        return of("final", normal(asked)).view(m, b, self.read, -1)


def check_width(hidden: int, heads: int) -> None:
    """Heads split the width evenly, or there is no such network."""
    if heads < 1 or hidden % heads:
        fits = [h for h in range(1, heads + 1) if hidden % h == 0]
        raise ShapeError(
            f"{heads} heads do not divide a width of {hidden}; the nearest number that does is "
            f"{fits[-1] if fits else 1}"
        )
