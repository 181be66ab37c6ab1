"""What makes a circuit harder to find: designs into designs, and a network that is trained on.

``decoys`` adds heads with weights like the others' that no answer depends on, ``copied`` makes
every path redundant, ``turned`` mixes the features. ``annealed`` leaves the design: weights are
disturbed and trained for a while, so that they are dense. How close it then comes is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from iceform.bench.network import HeadsNetwork, centred
from iceform.heads import Design, Features, Head, Move, Row
from iceform.heads.design import hidden_among
from iceform.heads.rotation import Rotation

SPARE = "spare"
_FLAGS = {
    "null",
    "given",
    "data",
    "state",
    "code",
    "before",
    "one",
    "weight",
    "penalty",
    "momentum",
}


def with_features(design: Design, **sizes: int) -> Design:
    """More features, which nothing reads yet."""
    return replace(design, features=Features((*design.features.sizes, *sizes.items())))


def decoys(design: Design, count: int, seed: int, least: int = 3) -> Design:
    """Heads in every layer that read what others read and write what only they read.

    A design of fewer than ``least`` layers gets layers of decoys alone, at places that are drawn.
    """
    generator = torch.Generator().manual_seed(seed)
    wide = with_features(design, **{SPARE: count})
    names = [(n, j) for n, size in wide.features.sizes for j in range(size) if n != "one"]
    size = wide.features.sizes[-1][1]

    def row() -> Row:
        chosen = torch.randperm(len(names), generator=generator)[:2].tolist()
        factors = torch.randn(2, generator=generator, dtype=torch.float64)
        # In eighths, so that they are the same in every dtype.
        return Row(
            {names[i]: float((8 * f).round() / 8) for i, f in zip(chosen, factors, strict=True)}
        )

    def head() -> Head:
        logit = tuple((row().times(4.0), row()) for _ in range(size))
        return Head("decoy", logit, tuple(Move(row(), {(SPARE, j): 1.0}) for j in range(size)))

    layers = [*wide.layers]
    while len(layers) < least:
        layers.insert(int(torch.randint(len(layers) + 1, (), generator=generator)), ())
    full = [(*layer, *(head() for _ in range(count))) for layer in layers]
    return replace(wide, layers=tuple(_shuffled(layer, generator) for layer in full))


def _shuffled(layer: tuple[Head, ...], generator: torch.Generator) -> tuple[Head, ...]:
    return tuple(layer[i] for i in torch.randperm(len(layer), generator=generator).tolist())


def copied(design: Design, copies: int, seed: int) -> Design:
    """Every head this many times, each writing its share."""
    order = torch.Generator().manual_seed(seed)
    return replace(
        design, layers=tuple(hidden_among(layer, 0, copies, order) for layer in design.layers)
    )


def turned(design: Design, seed: int) -> Design:
    """The features mixed by an orthogonal map; flags, codes and gates keep their places."""
    names = tuple(name for name in design.features if name not in _FLAGS)
    return replace(design, rotation=Rotation(design.features, names, seed))


def annealed(
    network: HeadsNetwork, ids: Tensor, answers: Tensor, read: Callable[[Tensor], Tensor],
    *, noise: float, steps: int = 250, seed: int = 0,
) -> HeadsNetwork:  # fmt: skip
    """The heads' weights disturbed, then trained by AdamW towards the exact answers.

    Parameters
    ----------
    network, ids, answers
        What to start from, prompts (n, tokens) and their exact answers (n,).
    read
        The answer in the last stream.
    noise, steps, seed
        The deviation of what is added to every weight; of the training, whose rate grows as the
        root of the noise.
    """
    generator = torch.Generator().manual_seed(seed)
    start, rate = network.start(ids), math.sqrt(noise) / 100
    names = ("reads", "biases", "writes")
    live = {"reads": network.live[:, None, :, None, None], "biases": network.live[:, None, :, None],
            "writes": network.live[:, :, None, None]}  # fmt: skip
    held: dict[str, Tensor] = {}
    for name in names:
        weight = getattr(network, name)
        moved = weight + noise * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        held[name] = torch.where(live[name], moved, weight).requires_grad_(True)
    optimiser = torch.optim.AdamW(held.values(), lr=rate, weight_decay=0.0)
    scale = float(answers.std()) or 1.0
    for step in range(steps):
        some = torch.randint(len(ids), (32,), generator=generator)
        tried = replace(network, **{**held, "reads": centred(held["reads"])})
        loss = ((read(tried.plain(start[some])) - answers[some]) / scale).square().mean()
        optimiser.zero_grad()
        loss.backward()
        for name, weight in held.items():
            assert weight.grad is not None
            weight.grad *= live[name]
        optimiser.param_groups[0]["lr"] = rate * math.cos(math.pi * step / (2 * steps))
        optimiser.step()
    found = {name: weight.detach() for name, weight in held.items()}
    return replace(network, **{**found, "reads": centred(found["reads"])})
