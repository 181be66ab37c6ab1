"""Where training begins: random weights, a circuit, a part of one, or its weights shuffled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iceform.lab.algorithms import PrefixDescent, chebyshev_steps, stable_damping
from iceform.lab.model import TrainableNetwork, compiled, random_network
from iceform.lab.shape import GPT2Shape
from iceform.validation import check_choice


@dataclass(frozen=True)
class TrainingStart:
    """A network for every seed, and what of it is trained.

    Attributes
    ----------
    name
        For tables.
    make
        The network of a seed.
    circuit_only
        Whether the circuit's own weights alone are trained.
    looped
        Whether the layers between the first and the last are one and the same.

    Examples
    --------
    >>> shape = GPT2Shape(dim=1, layers=3, width=32, heads=4, positions=8)
    >>> start = TrainingStart("two steps", lambda seed: compiled("dual", shape, seed=seed))
    >>> start.make(0).algorithm.mechanism
    'dual'
    """

    name: str
    make: Callable[[int], TrainableNetwork]
    circuit_only: bool = False
    looped: bool = False


def start_named(name: str, shape: GPT2Shape) -> TrainingStart:
    """One of :data:`STARTS` in a shape."""
    check_choice("start", name, STARTS)
    return STARTS_BY_NAME[name](shape)


def _looped(network: TrainableNetwork, name: str) -> TrainableNetwork:
    """The second layer's weights in every layer between the first and the last."""
    tensors = dict(network.tensors)
    for layer in range(2, network.shape.layers - 1):
        for key in [k for k in tensors if k.startswith(f"h.{layer}.")]:
            tensors[key] = tensors["h.1." + key.removeprefix(f"h.{layer}.")].clone()
    return network.with_tensors(tensors, name)


def _compiled_loop(shape: GPT2Shape, seed: int) -> TrainableNetwork:
    steps = chebyshev_steps(1) * (shape.layers - 1)
    descent = PrefixDescent(steps, stable_damping(shape.dim))
    return _looped(compiled(descent, shape, seed=seed), "looped")


STARTS_BY_NAME: dict[str, Callable[[GPT2Shape], TrainingStart]] = {
    "random": lambda shape: TrainingStart("random", lambda seed: random_network(shape, seed)),
    "compiled": lambda shape: TrainingStart(
        "compiled", lambda seed: compiled("primal", shape, seed=seed)
    ),
    "dual": lambda shape: TrainingStart("dual", lambda seed: compiled("dual", shape, seed=seed)),
    "copy head": lambda shape: TrainingStart(
        "copy head", lambda seed: compiled("primal", shape, parts=("copy",), seed=seed)
    ),
    "shuffled": lambda shape: TrainingStart(
        "shuffled", lambda seed: compiled("primal", shape, fill="zeros").shuffled(seed)
    ),
    "circuit only": lambda shape: TrainingStart(
        "circuit only", lambda seed: compiled("primal", shape, fill="zeros"), circuit_only=True
    ),
    "looped": lambda shape: TrainingStart(
        "looped", lambda seed: _compiled_loop(shape, seed), looped=True
    ),
    "random looped": lambda shape: TrainingStart(
        "random looped", lambda seed: _looped(random_network(shape, seed), "random"), looped=True
    ),
}
STARTS = tuple(STARTS_BY_NAME)
