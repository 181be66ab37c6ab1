"""What one head adds to the answer: the effect of taking it out, predicted.

The network is run in balls (``enclosed``) with and without the head. What it is for stands in the
design; the difference of the two answers is its effect on these data, and the radii bound what a
stock network's floating point may add to it. Of a model of token ids the answer is the scores of
the next token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import OUTWARD_MOST, UNIT
from iceform.errors import ShapeError, TargetError
from iceform.heads.design import mirrored
from iceform.targets.architectures import architecture
from iceform.targets.enclosed import Ball, EnclosedNetwork
from iceform.targets.rounding import KernelRounding
from iceform.targets.target import FeatureTarget, Target


@dataclass(frozen=True, eq=False)
class Contribution:
    """What a head adds to the answer, and how well that is known.

    Attributes
    ----------
    role
        What it is for.
    value
        The answer with it minus the answer without it.
    answer
        The answer without it.
    error
        A bound of what both may be off by, in a stock network.

    Examples
    --------
    >>> x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([0.5, 0.25]).double()
    >>> found = contribution(LinearDescent(dim=1, steps=1), x, y, head=0)
    >>> found.role, found.error < abs(found.value)
    ('gradient, t = +0.0625', tensor([True]))
    """

    role: str
    value: Float[Tensor, "d"]
    answer: Float[Tensor, "d"]
    error: float


def contribution(
    spec: Any, x: Tensor, y: Tensor, head: int, *, layer: int = -1, repeat: int | None = None,
    attention: str = "any", **parameters: Any,
) -> Contribution:  # fmt: skip
    """What one head adds to the answer for these data, with a bound of how well that is known.

    Parameters
    ----------
    spec
        A target, or a folder of one: what ``program.to``, ``write`` or ``load`` gave.
    x, y
        The samples.
    head, layer
        As ``iceform.json`` counts them; -1 for the last layer.
    repeat
        Of an ALBERT's layers, which are applied again and again, the turn in which the head is
        taken out; None for all.
    attention
        "eager", "sdpa" or "any".
    **parameters
        What the prompt holds.

    Examples
    --------
    The answer without a head, predicted without a network of transformers:

    >>> x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([0.5, 0.25]).double()
    >>> spec = LinearDescent(dim=1, steps=1)
    >>> found = contribution(spec, x, y, head=0)
    >>> bool((found.answer + found.value - spec.reference(x, y)).abs() <= found.error)
    True
    """
    spec = getattr(spec, "spec", spec)
    if not isinstance(spec, Target):
        raise TargetError(
            f"contribution takes a target or a folder of one, got {type(spec).__name__}; read a "
            "folder by iceform.load"
        )
    layers = len(spec.design.layers)
    if not (0 <= head < spec.design.heads and -layers <= layer < layers):
        raise ShapeError(
            f"there are {layers} layers of {spec.design.heads} heads, got layer {layer} and head "
            f"{head}"
        )
    turns = range(spec.design.repeats) if repeat is None else (repeat,)
    (found,) = _contributions(spec, x, y, layer % layers, [head], turns, attention, parameters)
    return found


def _contributions(
    spec: Target, x: Tensor, y: Tensor, layer: int, heads: Sequence[int], turns: Iterable[int],
    attention: str, parameters: dict[str, Any],
) -> Iterator[Contribution]:  # fmt: skip
    """What heads of a layer add to the answer, each taken out by itself in these turns."""
    a = KernelRounding(spec.torch_dtype, attention)
    run = EnclosedNetwork(spec.design, architecture(spec.architectures()[0]), a)
    prompt, words, off = spec.prompt(x, y, **parameters), spec.vocabulary(), 0.0
    if words is not None:
        word, place = (part.to(a.dtype).double() for part in (words.tokens, words.positions))
        # Adding a position to a word rounds; what is 0 in both stays 0.
        off = run.u
        prompt = mirrored(spec.design, word[prompt] + place[: prompt.shape[1]])
    numbers = [turn * len(spec.design.layers) + layer for turn in turns]
    gone = [[(number, head) for number in numbers] for head in heads]
    whole, *each = (_answer(spec, out, parameters) for out in run.run(prompt, off, [[], *gone]))
    truth = spec.design.ground_truth()[layer]
    for head, less in zip(heads, each, strict=True):
        error = float((whole.radius + less.radius).max())
        yield Contribution(
            str(truth[head]["role"]), whole.center - less.center, less.center,
            error if math.isfinite(error) else math.inf,
        )  # fmt: skip


def example(spec: Target) -> dict[str, Any] | None:
    """For iceform.json: the last layer's heads on a data set that is recorded with them.

    None where the answer is scores of thousands of words, or a program's, which a folder does not
    hold.
    """
    if not isinstance(spec, FeatureTarget):
        return None
    most = tuning.ABLATION_SAMPLES
    most = min(most, getattr(spec, "samples", most))  # that its layers have turns for
    count = torch.arange(1.0, most + 1, dtype=torch.float64)
    # Eighths, so that they are what they are in every dtype.
    x = (4 * torch.cos(count[:, None] * torch.arange(1, spec.dim + 1))).round() / (8 * spec.dim)
    y = (4 * torch.sin(count)).round() / 8
    design = spec.design
    last, heads, turns = len(design.layers) - 1, range(design.heads), (design.repeats - 1,)
    found = _contributions(spec, x, y, last, heads, turns, "any", {})
    return {
        "means": "the answer with a head of the last layer, less the answer without it",
        "x": x.tolist(),
        "y": y.tolist(),
        "heads": [
            {
                "role": one.role, "value": one.value.tolist(),
                "within": one.error if math.isfinite(one.error) else None,
            }
            for one in found
        ],
    }  # fmt: skip


def _answer(spec: Target, features: Ball, parameters: dict[str, Any]) -> Ball:
    words = spec.vocabulary()
    if words is None:
        return spec.readout(features, **parameters)
    rows, a = words.scores.to(spec.torch_dtype).double(), KernelRounding(spec.torch_dtype)
    last = Ball(features.center[-1], features.radius[-1])
    units = (2 * (rows != 0).sum(1) + 2) * (a.u + UNIT)
    radius = rows.abs() @ last.radius + units * (rows.abs() @ last.most)
    return Ball(rows @ last.center, radius * OUTWARD_MOST)
