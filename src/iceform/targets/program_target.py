r"""Compiled programs as stock encoders: what both modes share.

In prompt mode the program is tokens (``stock_computer``), in weights mode its instructions are
layers (``layered_program``). Tables, data and parameters are in the prompt either way.

**What is proven.** After the fact the exact program is evaluated on the same data in ball
arithmetic, and the distance of the answer that the stock network gave is enclosed, whatever norms,
masks, tables and rounding did (``iceform.computer.proofs``). A check holds that enclosure to what
the program promises before the fact: its certificate on the frozen computer in the same dtype.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic import at_least
from iceform.certificates import Certificate, DerivationStep, Enclosure
from iceform.computer.compile import Program
from iceform.computer.instructions import Instruction
from iceform.computer.interpret import interpret
from iceform.computer.running import check_balls, enclosure_of
from iceform.errors import CapacityError, ProgramError, TargetError
from iceform.heads.design import mirrored, unmirrored
from iceform.targets.domain import DataDomain
from iceform.targets.enclosed import Ball
from iceform.targets.rounding import epsilon
from iceform.targets.target import Target

_USAGE = """\
# program: what ice.compile returned; X, y: data in its domain
network = AutoModel.from_pretrained(path)
model = ice.targets.load(path)
with torch.no_grad():
    hidden = network(inputs_embeds=model.prompt(X, y, program=program)).last_hidden_state
print(model.read(hidden, program=program))
print(ice.check(path, X, y, program=program))"""
_KEYS = 16.0  # slopes may exceed the logits where arguments are small


class ProgramTarget(Target):
    """A checkpoint that runs programs; every call is given the program."""

    logits: int

    @property
    def largest(self) -> float:
        """A bound of every feature; the largest are the keys of tables."""
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
    def answers_in(self, features: Float[Tensor, "t f"], program: Program) -> dict[str, Tensor]:
        """A program's answers in the last layer's features, by name."""

    @abstractmethod
    def decoded(self, features: Float[Tensor, "t f"], program: Program) -> dict[str, Tensor]:
        """The same, without asking whether the program has come to its halt."""

    def readout(self, features: Ball, program: Program | None = None, **settings: Any) -> Ball:
        held = _given(program)
        parts = self.answers_in(features.center, held), self.decoded(features.radius, held)
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

    def features(self, out: Tensor) -> Tensor:
        """All tokens' features; :meth:`answers_in` finds a program's answers in them."""
        return unmirrored(self.design, out)[0]

    def read(self, out: Tensor, program: Program | None = None, **settings: Any) -> Any:
        """The program's answer in the form that its algorithm returns; refused before its halt."""
        held = _given(program)
        return held.packed(self.answers_in(self.features(out), held))

    def flat(self, out: Tensor, program: Program | None = None, **settings: Any) -> Tensor:
        found = self.answers_in(self.features(out), _given(program))
        return torch.cat([value.flatten() for value in found.values()])

    def distance(
        self, value: Tensor, x: Tensor, y: Tensor, program: Program | None = None, **settings: Any
    ) -> float:
        """From the exact program on the same data, enclosed."""
        return self.judge(value, x, y, "any", program=program, **settings)[1]

    def check_run(self, program: Program | None = None, **settings: Any) -> None:
        check_balls(_given(program), every=True)

    def judge(
        self, value: Tensor, x: Tensor, y: Tensor, attention: str, **parameters: Any
    ) -> tuple[Certificate, float, Enclosure | None]:
        program = _given(parameters.pop("program", None))
        outputs, shapes = program.assembly.outputs, []
        for output in outputs:
            lanes = (len(x),) if program.assembly.lanes(output.variable) == "samples" else ()
            shapes.append(lanes if output.width is None else (*lanes, output.width))
        each = value.double().split([math.prod(shape) for shape in shapes])
        parts = {o.name: v.view(s) for o, v, s in zip(outputs, each, shapes, strict=True)}
        found = enclosed(program, parts, x, y, parameters, self.torch_dtype, attention)
        return promised(program, self.known(program, parameters)), found.error, found

    def known(self, program: Program, settings: Mapping[str, Any]) -> Certificate:
        """What is known before the fact, on the frozen computer that is as wide as this one."""
        return program.certify(self.torch_dtype, "literal", **settings)[0]

    def domain(self, x: Tensor, y: Tensor, **parameters: Any) -> DataDomain:
        raise ProgramError("a program's run is enclosed when it has run: use ice.check")

    def certificate(
        self, domain: DataDomain, attention: str = "any", **parameters: Any
    ) -> Certificate:
        raise ProgramError(
            "before the fact programs are certified on the frozen computer: use program.certify; "
            "a run of a checkpoint is held to that by ice.check"
        )

    def example_domain(self) -> None:
        return None

    def usage(self) -> str:
        return _USAGE


def promised(program: Program, known: Certificate) -> Certificate:
    """What the program promises before the fact: its certificate on the frozen computer.

    A bound that is larger than any answer can be promises nothing, and is given as infinite.
    """
    largest = max(program.ranges[node].size for node in program.graph.outputs.values())
    domain = {**known.domain, "promised by": "the program, on the frozen computer"}
    if known.error < largest:
        return replace(known, domain=domain)
    why = "by the ranges: an answer of 0 would be as near"
    return replace(
        known,
        error=math.inf,
        terms=dict.fromkeys(known.terms, math.inf),
        domain=domain,
        derivation=(
            *known.derivation,
            DerivationStep("largest", "max |exact answer|", largest, why),
        ),
    )


def enclosed(
    program: Program, answer: Mapping[str, Tensor], x: Tensor, y: Tensor,
    settings: Mapping[str, Any], dtype: torch.dtype, attention: str,
) -> Enclosure:  # fmt: skip
    """The proven distance of an answer from the exact program's, on these data in the dtype."""
    check_balls(program, every=True)
    data, labels = (part.to(dtype).double() for part in (x, y))
    backend = f"transformers, {attention}"
    found = enclosure_of(program, data, labels, answer, settings, dtype, backend)
    assert found is not None
    return replace(found, compared="stock network's answer - exact program on these data")


def _given(program: Program | None) -> Program:
    if not isinstance(program, Program):
        raise ProgramError("this checkpoint runs programs: pass program=, from ice.compile")
    return program


def turns_alike(program: Program) -> bool:
    """Whether no loop's number of turns depends on the data or on how many there are."""
    counts = [loop.count for loop in program.graph.block.loops()]
    return all(count is not None and count.op in ("constant", "parameter") for count in counts)


def trace(program: Program, settings: Mapping[str, Any], fix: str) -> list[Instruction]:
    """The instructions that a run on all samples executes; refused where data decide."""
    if any(loop.count is None for loop in program.graph.block.loops()):
        raise TargetError(
            f"{program.name} has a loop that ends when the data say so, and a checkpoint has so "
            f"many layers: {fix}"
        )
    blank = torch.zeros(program.samples, program.graph.dim, dtype=torch.float64)
    found: list[Instruction] = []
    interpret(
        program.assembly, blank, blank[:, 0], program.parameters(**settings),
        seen=lambda instruction, *_: found.append(instruction),
    )  # fmt: skip
    return found
