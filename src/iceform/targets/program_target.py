r"""Compiled programs as stock encoders: what both modes share.

In prompt mode the program is tokens (``stock_computer``), in weights mode its instructions are
layers (``layered_program``). Tables, data and parameters are in the prompt either way.

**What is proven.** A run is certified after the fact: the exact program is evaluated on the same
data in ball arithmetic, and the distance of the answer that the stock network gave is enclosed,
whatever norms, masks, tables and rounding did (``iceform.computer.proofs``).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic import at_least
from iceform.certificates import Certificate, Step
from iceform.computer.compile import Program
from iceform.computer.instructions import Instruction
from iceform.computer.interpret import interpret
from iceform.errors import CapacityError, ProgramError, TargetError
from iceform.targets.data import Domain
from iceform.targets.design import mirrored, unmirrored
from iceform.targets.enclosed import Ball
from iceform.targets.rounding import epsilon
from iceform.targets.target import Target

_KEYS = 16.0  # slopes may exceed the logits where arguments are small


class ProgramTarget(Target):
    """A checkpoint that runs programs; every call is given the program."""

    logits: int

    @property
    def largest(self) -> float:
        """What a feature may hold: keys of tables are the largest, and make the logits."""
        return _KEYS * self.logits

    @property
    def norm(self) -> float:
        """The epsilon of the norms."""
        return epsilon(self.largest, self.torch_dtype)

    @abstractmethod
    def tokens(
        self, program: Program, x: Tensor, y: Tensor, settings: Mapping[str, Any]
    ) -> Float[Tensor, "t f"]:
        """The prompt, as features in the dtype."""

    @abstractmethod
    def found(self, features: Float[Tensor, "t f"], program: Program) -> dict[str, Tensor]:
        """A program's answers in the last layer's features, by name."""

    @abstractmethod
    def chosen(self, features: Float[Tensor, "t f"], program: Program) -> dict[str, Tensor]:
        """The same features, wherever the program has come to."""

    def picked(self, features: Ball, program: Program | None = None, **settings: Any) -> Ball:
        held = _given(program)
        parts = self.found(features.center, held), self.chosen(features.radius, held)
        return Ball(*(torch.cat([v.flatten() for v in part.values()]) for part in parts))

    def written(
        self, program: Program, x: Tensor, y: Tensor, settings: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """The program's parameters in the dtype; data outside its domain are refused."""
        given = program.parameters(**settings)
        program.domain.check(x.double(), y.double(), given)
        return {
            name: (value if program.assembly.parameters[name] else value[0]).to(self.torch_dtype)
            for name, value in given.items()
        }

    def prompt(
        self, x: Tensor, y: Tensor, program: Program | None = None, **settings: Any
    ) -> Tensor:
        found = self.tokens(_given(program), x, y, settings)
        held = float(found.abs().max())
        if not held <= self.largest:
            raise CapacityError(
                f"a token holds {held:.4g}, and the norms are the identity up to "
                f"{at_least(self.largest, '.4g')}"
                "; scale the data, or take narrower ranges"
            )
        return mirrored(self.design, found)[None]

    def read(self, out: Tensor) -> Tensor:
        """All tokens' features; :meth:`found` finds a program's answers in them."""
        return unmirrored(self.design, out)[0]

    def answers(
        self, network: Any, x: Tensor, y: Tensor, program: Program | None = None, **settings: Any
    ) -> dict[str, Tensor]:
        """A program's answers, by a network that transformers has loaded."""
        given = self.prompt(x, y, program=program, **settings).to(network.device)
        with torch.no_grad():
            hidden = network(inputs_embeds=given).last_hidden_state
        return self.found(self.read(hidden.cpu()), _given(program))

    def run(self, network: Any, x: Tensor, y: Tensor, **parameters: Any) -> Tensor:
        found = self.answers(network, x, y, **parameters)
        return torch.cat([value.flatten() for value in found.values()])

    def distance(
        self, value: Tensor, x: Tensor, y: Tensor, program: Program | None = None, **settings: Any
    ) -> float:
        """From the exact program on the same data, enclosed."""
        return self.judge(value, x, y, "any", program=program, **settings)[1]

    def judge(
        self, value: Tensor, x: Tensor, y: Tensor, attention: str, **parameters: Any
    ) -> tuple[Certificate, float]:
        program = _given(parameters.pop("program", None))
        parts: dict[str, Tensor] = {}
        start = 0
        for output in program.assembly.outputs:
            lanes = (len(x),) if program.assembly.lanes(output.variable) == "samples" else ()
            shape = lanes if output.width is None else (*lanes, output.width)
            count = math.prod(shape)
            parts[output.name] = value[start : start + count].view(shape).double()
            start += count
        found = enclosed(program, parts, x, y, parameters, self.torch_dtype, attention)
        return found, found.error

    def domain(self, x: Tensor, y: Tensor, **parameters: Any) -> Domain:
        raise ProgramError("a program's run is certified when it has run: use ice.check")

    def certificate(self, domain: Domain, attention: str = "any", **parameters: Any) -> Certificate:
        raise ProgramError("a program's run is certified when it has run: use ice.check")

    def typical(self) -> None:
        return None


def enclosed(
    program: Program, answer: Mapping[str, Tensor], x: Tensor, y: Tensor,
    settings: Mapping[str, Any], dtype: torch.dtype, attention: str,
) -> Certificate:  # fmt: skip
    """The proven distance of an answer from the exact program's, on these data in the dtype."""
    if all(bool(torch.isfinite(value).all()) for value in answer.values()):
        ball = program.enclosed(x.to(dtype).double(), y.to(dtype).double(), answer, **settings)
        distance, why = ball.distance, f"the program on these data in balls of {ball.bits} bits"
    else:
        distance, why = math.inf, "the answer holds NaN or infinity"
    return Certificate.total(
        {"distance": distance},
        domain={"data": "of this run"},
        dtype=dtype,
        backend=f"transformers, {attention}",
        derivation=(Step("distance", "max |answer - ball|", distance, why),),
        compared="stock network's answer - exact program on these data",
    )


def _given(program: Program | None) -> Program:
    if not isinstance(program, Program):
        raise ProgramError("this checkpoint runs programs: pass program=, from ice.compile")
    return program


def trace(program: Program, settings: Mapping[str, Any], fix: str) -> list[Instruction]:
    """The instructions that a run executes, whatever the data are; refused where they decide."""
    if any(loop.count is None for loop in program.graph.block.loops()):
        raise TargetError(
            f"{program.name} has a loop that ends when the data say so, and a checkpoint has so "
            f"many layers: {fix}"
        )
    blank = torch.zeros(1, program.graph.dim, dtype=torch.float64)
    found: list[Instruction] = []
    interpret(
        program.assembly, blank, blank[:, 0], program.parameters(**settings),
        seen=lambda instruction, *_: found.append(instruction),
    )  # fmt: skip
    return found
