"""Programs whose loops read something that tracing does not see, and honest ones like them."""

from __future__ import annotations

import random

import torch

import iceform as ice
from tests.attacks.outcomes import Outcome
from tests.computer.hidden_state import HIDDEN, HONEST
from tests.computer.random_programs import data


def hidden_state(seed: int) -> Outcome | str:
    """One in three is honest; the rest must be refused, or compute what the function says."""
    draw = random.Random(seed)
    honest = seed % 3 == 0
    written = (
        HONEST[draw.choice(sorted(HONEST))] if honest else HIDDEN[draw.choice(sorted(HIDDEN))]()
    )
    algorithm = ice.algorithm(written)
    try:
        program = ice.compile(algorithm, 2, 6, bounds={"w": 4.0} if honest else None)
    except ice.errors.CompileError:
        return "refused"
    settings = {"steps": draw.randint(0, 40)} if "steps" in algorithm.parameters else {}
    X, y = data(seed, 2, 6)
    certified = program.certify(backend="fused", **settings)[0]
    if certified.kind != "proven" or not certified.error < float("inf"):
        return "infinite"
    found = ice.Computer.for_programs([program]).run(program, X, y, backend="fused", **settings)
    meant = algorithm(X, y, **settings)
    pairs = zip(_flat(found.parts), _flat(meant), strict=True)
    off = max(float((a - b).abs().max()) for a, b in pairs)
    return Outcome(certified.error, off, 2.0**-53)


def _flat(answer: object) -> list[torch.Tensor]:
    if isinstance(answer, dict):
        return list(answer.values())
    return list(answer) if isinstance(answer, tuple) else [torch.as_tensor(answer)]
