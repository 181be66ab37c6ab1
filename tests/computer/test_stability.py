"""Noise is not fed back: perturbed features of any token stay where and as large as they are.

Copies behind a norm, or through factors of a value map, are not exact, so what should stay zero
does not. Here features of tokens of every kind are moved by 1e-6 and the whole network, with every
attention entry, is run for 200 cycles: what that does to any token may not grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from iceform.computer import library
from iceform.computer.computer import Computer
from iceform.computer.prompt import ProgramPrompt
from tests.computer import programs
from tests.computer.programs import Interpreter, memory_of

NOISE = 1e-6
SAMPLES = 2
LOOP = 4  # cycles of one turn of the program
GROWTH = 1.05  # a contracting program is still on its way to its fixed point


@cache
def small() -> tuple[Computer, ProgramPrompt]:
    """Gradient descent in one variable with coarse tables: few tokens, a contracting program."""
    square, guards = programs.quarter_square, {"guards": 3}
    coarse = (
        programs.table("times", square, square, -3, 3, 4, **guards),
        programs.table("rate", lambda z: 0.5 * z, programs.zero, -3, 3, 2, **guards),
        programs.table("less", programs.zero, programs.minus, -3, 3, 2, **guards),
    )
    program = replace(programs.least_squares(1), tables=coarse)
    computer = Computer.for_programs([program], lanes=SAMPLES)
    return computer, computer.prompt(program, *programs.data(3, SAMPLES, 1))


def of_every_kind(prompt: ProgramPrompt) -> dict[str, int]:
    """One token of every kind, and memory of every use."""
    kinds, variables = prompt.kinds, prompt.variables
    first = {kind: at.start for kind, at in kinds.items() if kind != "memory"}
    held = {f"memory of {name}": variables[name].start for name in ("FLAG", "x", "t", "w")}
    return first | held | {"unit of a sample": kinds["unit"].start + 1}


def all_features_of(prompt: ProgramPrompt) -> Iterator[tuple[str, Tensor]]:
    """Every feature of one token, up or down at random."""
    for kind, token in of_every_kind(prompt).items():
        moved = torch.zeros_like(prompt.tokens)
        moved[token] = NOISE * (2 * torch.randint(2, moved[token].shape) - 1)
        yield f"all features of {kind}", moved


def one_feature_of_all(prompt: ProgramPrompt) -> Iterator[tuple[str, Tensor]]:
    """One feature of a token of every kind."""
    for j, name in enumerate(prompt.layout.features.names()):
        moved = torch.zeros_like(prompt.tokens)
        moved[list(of_every_kind(prompt).values()), j] = NOISE
        yield f"{name} of every kind", moved


def growth(residual: bool, cycles: int, cases: list[tuple[str, Tensor]]) -> dict[str, float]:
    """How much further tokens are off late in a run than early, for every perturbation.

    Early is from the second turn of the program to the middle of the run, late the last two turns.
    What stays below the noise itself has not grown.
    """
    computer, prompt = small()
    network = computer.residual_network if residual else computer.network
    tokens = prompt.tokens + torch.stack([moved for _, moved in cases] + [0 * prompt.tokens])
    early = late = torch.full((len(cases),), NOISE, dtype=torch.float64)
    for cycle in range(cycles):
        tokens = network(tokens)
        off = (tokens[:-1] - tokens[-1:]).abs().flatten(1).amax(1)
        if LOOP <= cycle < cycles // 2:
            early = torch.maximum(early, off)
        if cycle >= cycles - 2 * LOOP:
            late = torch.maximum(late, off)
    return {name: float(ratio) for (name, _), ratio in zip(cases, late / early, strict=True)}


def assert_none_grows(found: dict[str, float]) -> None:
    where = max(found, key=found.__getitem__)
    assert found[where] <= GROWTH, f"{where}: grows by {found[where]:.4g}"


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_noise_does_not_grow(residual):
    assert_none_grows(growth(residual, 200, list(all_features_of(small()[1]))))


@pytest.mark.slow
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_noise_in_any_one_feature_does_not_grow(residual):
    cases = list(one_feature_of_all(small()[1]))
    for start in range(0, len(cases), 32):
        assert_none_grows(growth(residual, 200, cases[start : start + 32]))


@pytest.mark.slow
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_two_thousand_cycles_stay_put(residual):
    """Constants to the last bit, and the descent where the exact one is."""
    computer, prompt, _ = programs.prompt_of("least squares", 8)
    exact = Interpreter(prompt.assembly, memory_of(prompt, prompt.tokens)).run(2000)
    run = computer.execute(prompt, 2000, residual=residual)
    for name in ("x", "minus y", "FLAG"):
        assert torch.equal(prompt.value(run.tokens, name), prompt.value(prompt.tokens, name))
    off = np.abs(prompt.value(run.tokens, "w").numpy() - exact.value("w")).max()
    assert off < 1e-12, off
    memory = prompt.kinds["memory"].start
    features = torch.ones(run.tokens.shape[-1], dtype=torch.bool)
    features[prompt.layout.columns("value", "before", "counter")] = False
    assert torch.equal(run.tokens[:memory][:, features], prompt.tokens[:memory][:, features])


@pytest.mark.slow
def test_two_thousand_cycles_stay_within_their_certificate():
    """A compiled descent of 400 steps, literal."""
    example = library.EXAMPLES["gaussian_process"]
    program = example.compile()
    computer = Computer.for_programs([program])
    result = computer.run(program, example.X, example.y, **{**example.settings, "steps": 400})
    assert result.passes >= 2000
    exact = example.algorithm(example.X, example.y, **{**example.settings, "steps": 400})
    assert result.enclosure.kind == "proven"
    assert float((result.value - exact).abs()) <= result.enclosure.error + 1e-14
    assert result.enclosure.error <= 1e-12
