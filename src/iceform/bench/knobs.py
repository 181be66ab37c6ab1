"""What makes a circuit harder to find: designs into designs, and a network that is trained on.

``decoys`` adds heads with weights like the others' that no answer depends on, ``copied`` makes
every path redundant, ``turned`` mixes the features, ``fed_forward`` takes gates out of the heads,
``stock_norms`` gives norms an epsilon of a trained model. ``superposed`` and ``annealed`` leave the
design: features share dimensions, or weights are disturbed and trained for a while, so that they
are dense. How close it then comes is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.bench.network import HeadsNetwork, centred
from iceform.bench.sketch import is_plain_gate
from iceform.heads import Design, Features, Head, Move, Row
from iceform.heads.design import hidden_among
from iceform.heads.rotation import Rotation
from iceform.targets.text.layers import BALLAST, EPSILON

SPARE = "spare"
Neurons = Mapping[int, tuple[Head, ...]]  # by layer: a row of a neuron is a query of a head
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


def stock_norms(design: Design) -> Design:
    """The same on a ballasted stream, whose norms have the epsilon that GPT-2 has."""
    return replace(design, norm=EPSILON, ballast=BALLAST["float32"])


@dataclass(frozen=True)
class Superposition(Rotation):
    """Mixed features as unit vectors of an eighth fewer dimensions: they are not orthogonal."""

    @property
    def rank(self) -> int:
        """Dimensions: at least one fewer than features."""
        return self.mixed - max(1, self.mixed // 8)

    @cached_property
    def block(self) -> Float[Tensor, "n n"]:
        generator = torch.Generator().manual_seed(self.seed)
        square = torch.randn(self.mixed, self.mixed, generator=generator, dtype=torch.float64)
        kept = torch.linalg.qr(square)[0][: self.rank]
        out = torch.zeros(self.size, self.size, dtype=torch.float64)
        out[: len(kept), : self.mixed] = kept / kept.norm(dim=0)
        return out


def superposed(design: Design, seed: int) -> Design:
    """Features in fewer dimensions than they are; those that ``turned`` leaves alone stay."""
    mixed = turned(design, seed).rotation
    assert mixed is not None
    return replace(design, rotation=Superposition(design.features, mixed.names, seed))


def unused_places(design: Design) -> list[int]:
    """Places of the stream that training leaves alone: the ballast, and what is no dimension."""
    found = [i for name, (start, stop) in design.own_places().items()
             if name.endswith("ballast") for i in range(start, stop)]  # fmt: skip
    if isinstance(design.rotation, Superposition):
        idle = design.rotation.places[design.rotation.rank :]
        found += [i + half for i in idle for half in (0, design.hidden // 2)]
    return found


def fed_forward(design: Design) -> tuple[Design, Neurons]:
    """Gates with a linear score taken out of the heads, and the feed-forward maps that do the same.

    A gate's logit L is many times its value v, so relu(L + v) - relu(L) is v where L is positive
    and 0 where it is negative. It reads what the gate read: the stream before the gate's layer.
    """
    neurons: dict[int, tuple[Head, ...]] = {}
    layers = []
    for number, layer in enumerate(design.layers):
        gates = [head for head in layer if is_plain_gate(head)]
        layers.append(tuple(head for head in layer if head not in gates))
        pairs, moves = [], []
        for head in gates:
            score = head.logit[0][0]
            for move in head.moves:
                both = {at: score.reads.get(at, 0.0) + move.value.reads.get(at, 0.0)
                        for at in {**score.reads, **move.value.reads}}  # fmt: skip
                pairs += [(Row(both), Row()), (score, Row())]
                less = {at: -c for at, c in move.writes.items()}
                moves += [Move(Row(), move.writes), Move(Row(), less)]
        if gates:
            at = max(number - 1, 0)
            neurons[at] = (Head("feed-forward", tuple(pairs), tuple(moves)),)
    return replace(design, layers=tuple(layers)), neurons


def neuron_tensors(design: Design, neurons: Neurons) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What they change of a GPT-2's config, and its feed-forward maps."""
    count = max(len(heads[0].logit) for heads in neurons.values())
    out = {}
    for number in range(len(design.unrolled)):
        up, down = (torch.zeros(count, design.features.total).double() for _ in range(2))
        for head in neurons.get(number, ()):
            for i, ((row, _), move) in enumerate(zip(head.logit, head.moves, strict=True)):
                for into, places in ((up, row.reads), (down, move.writes)):
                    for place, c in places.items():
                        into[i, design.place(place)] += c
        at = f"transformer.h.{number}.mlp."
        out[at + "c_fc.weight"], out[at + "c_fc.bias"] = design.readout(up).T, torch.zeros(count)
        out[at + "c_proj.weight"] = design.moved(down)
    return {"n_inner": count}, out


def annealed(
    network: HeadsNetwork, ids: Tensor, answers: Tensor, read: Callable[[Tensor], Tensor],
    *, noise: float, fixed: Sequence[int] = (), steps: int = 250, seed: int = 0,
) -> HeadsNetwork:  # fmt: skip
    """The heads' weights disturbed, then trained by AdamW towards the exact answers.

    Parameters
    ----------
    network, ids, answers
        What to start from, prompts (n, tokens) and their exact answers (n,).
    read
        The answer in the last stream.
    noise, fixed, steps, seed
        The deviation of what is added to every weight; places of the stream that are left alone;
        of the training, whose rate grows as the root of the noise.
    """
    generator = torch.Generator().manual_seed(seed)
    start, rate = network.start(ids), math.sqrt(noise) / 100
    names = ("reads", "biases", "writes")
    free = torch.ones(network.reads.shape[-1], dtype=torch.bool)
    free[list(fixed)] = False
    live = {"reads": network.live[:, None, :, None, None] & free,
            "biases": network.live[:, None, :, None],
            "writes": network.live[:, :, None, None] & free}  # fmt: skip
    held: dict[str, Any] = {}
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
    found: dict[str, Any] = {name: weight.detach() for name, weight in held.items()}
    return replace(network, **{**found, "reads": centred(found["reads"])})
