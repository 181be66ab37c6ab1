"""A frozen network taken apart, with a named point wherever a number can be read or patched.

Plain torch: the points are ``nn.Identity`` for nnsight, ``HookPoint`` for TransformerLens. Names
and shapes follow TransformerLens, so that ``cache["pattern", 0]`` means what it says there:

    hook_prompt                     what the encoder wrote, (batch, tokens, features)
    blocks.0.hook_resid_pre         what the layer reads, (batch, tokens, features)
    blocks.0.attn.hook_k, _q, _v    (batch, tokens, heads, width)
    blocks.0.attn.hook_attn_scores  (batch, heads, queries, keys)
    blocks.0.attn.hook_pattern      (batch, heads, queries, keys)
    blocks.0.attn.hook_z            what each head gives, (batch, tokens, heads, out features)
    blocks.0.hook_resid_post        what the layer gives, (batch, out tokens, out features)
    hook_readout                    the answer, as the emulator returns it
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from iceform.errors import ProgramError
from iceform.export.onnx_file import TakesPrompts
from iceform.heads import Features, FrozenNetwork, SoftmaxAttention
from iceform.paper import Emulator, GradientDescent, LeastSquares

Point = Callable[[], nn.Module]


class HookedAttention(nn.Module):
    """One frozen attention layer, step by step; the layer itself stays the definition.

    Parameters
    ----------
    layer
        Its weights and its way of reading tokens are used as they are.
    point
        Makes a named point.
    """

    hook_attn_scores: nn.Module
    hook_pattern: nn.Module

    def __init__(self, layer: SoftmaxAttention, point: Point) -> None:
        super().__init__()
        self.layer, self.labels = layer, layer.labels
        for name in ("k", "q", "v", "attn_scores", "pattern", "z"):
            setattr(self, f"hook_{name}", point())

    def forward(self, x: Tensor) -> Tensor:
        """As the layer's, through every point."""
        layer = self.layer
        layer._check_input(x)
        tokens = layer._tokens(x)
        shape = (*tokens.shape[:-3], len(self.labels), *tokens.shape[-2:])
        tokens = tokens.expand(shape)
        weights = {"k": layer.w_k, "q": layer.w_q, "v": layer.w_v}
        keys, queries, values = (
            self._pass(name, tokens @ w.expand(len(self.labels), -1, -1).mT)
            for name, w in weights.items()
        )
        scores = self.hook_attn_scores(queries @ keys.mT)
        pattern = self.hook_pattern(torch.softmax(scores, -1))
        output = layer._read(self._pass("z", pattern @ values))
        return x + output if layer.residual else output

    def _pass(self, name: str, each: Tensor) -> Tensor:
        """Through a point whose head axis comes after the tokens'."""
        out: Tensor = getattr(self, f"hook_{name}")(each.transpose(-3, -2))
        return out.transpose(-3, -2)


class HookedLayer(nn.Module):
    """A layer between two points of the stream."""

    def __init__(self, layer: nn.Module, point: Point) -> None:
        super().__init__()
        self.hook_resid_pre, self.hook_resid_post = point(), point()
        self.attn = HookedAttention(layer, point) if isinstance(layer, SoftmaxAttention) else layer

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        out: Tensor = self.hook_resid_post(self.attn(self.hook_resid_pre(x)))
        return out


class _Bridge(FrozenNetwork):
    """Stands where an emulator looks for its network, and runs the points' blocks instead."""

    def __init__(self, features: Features, stream: Callable[[Tensor], Iterator[Tensor]]) -> None:
        super().__init__([], features)
        self._stream = (stream,)  # in a tuple: it belongs to a module that holds this one

    def forward(self, tokens: Tensor) -> Tensor:
        *_, last = self.stream(tokens)
        return last

    def stream(self, tokens: Tensor) -> Iterator[Tensor]:
        return self._stream[0](tokens)


def _runner_for(
    thing: Any, stream: Callable[[Tensor], Iterator[Tensor]]
) -> tuple[FrozenNetwork, Callable[..., Tensor]]:
    """The literal network of a thing, and a function from the thing's inputs to its answer."""
    if isinstance(thing, FrozenNetwork):
        return thing, _Bridge(thing.features, stream).forward
    if isinstance(thing, TakesPrompts):
        return thing.network, thing.through(_Bridge(thing.network.features, stream).forward)
    if isinstance(thing, Emulator):
        looped = isinstance(thing, GradientDescent) and not thing.unrolled
        if looped or isinstance(thing, LeastSquares):
            raise ProgramError(
                f"{type(thing).__name__} loops one layer, so its points would be passed again and "
                "again; export a GradientStep, or GradientDescent(..., unrolled=True)"
            )
        return thing.network, _emulator_runner(thing, stream)
    raise ProgramError(
        f"a {type(thing).__name__} has no frozen network to look into; machines, emulators, "
        "frozen networks and networks in context have"
    )


def _emulator_runner(
    emulator: Emulator, stream: Callable[[Tensor], Iterator[Tensor]]
) -> Callable[..., Tensor]:
    clone = copy.copy(emulator)
    clone._modules = dict(emulator._modules)
    clone._modules["_network"] = _Bridge(emulator.network.features, stream)
    clone.backend = "literal"
    return clone.forward


class HookedNetwork(nn.Module):
    """A frozen network with points.

    Parameters
    ----------
    thing
        An emulator, a frozen network, or what takes prompts.
    point
        Makes a named point.
    """

    def __init__(self, thing: Any, point: Point = nn.Identity) -> None:
        super().__init__()
        network, self._run = _runner_for(thing, self._stream)
        self.hook_prompt, self.hook_readout = point(), point()
        self.blocks = nn.ModuleList(HookedLayer(layer, point) for layer in network.layers)

    def _stream(self, tokens: Tensor) -> Iterator[Tensor]:
        """The stream after each block."""
        stream = self.hook_prompt(tokens)
        for block in self.blocks:
            stream = block(stream)
            yield stream

    def forward(self, *inputs: Any) -> Tensor:
        """The thing's own inputs to its own answer."""
        out: Tensor = self.hook_readout(self._run(*inputs))
        return out

    def head(self, label: str) -> tuple[int, int]:
        """(block, head) of a label such as "V row 1"."""
        labels = [getattr(block.attn, "labels", ()) for block in self.blocks]
        for index, known in enumerate(labels):
            if label in known:
                return index, known.index(label)
        raise KeyError(f"no head {label!r}; there are {', '.join(sum(labels, ()))}")
