"""What a program is: data as tokens, a task in the prompt, a readout, a loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from iceform.attention import Average, LookUps
from iceform.certificates import Result
from iceform.errors import ProgramError
from iceform.machine.sources import Source
from iceform.pretrained import Pretrained

__all__ = [
    "ENGINES",
    "Program",
    "Sizes",
    "Target",
    "balanced",
    "library",
    "set_library",
]

ENGINES = ("rows", "stream")


@dataclass(frozen=True)
class Sizes:
    """What a program asks of a machine."""

    tokens: int
    features: int
    head_dim: int
    value_dim: int
    bound: float  # largest |entry| of a token
    weight_bound: float  # largest |entry| of a target weight
    reach: float  # largest sum of |weight x token| terms
    logits: float  # largest |logit| a target can make
    nonzeros: int  # nonzero products of a weight row and a token

    def cover(self, other: Sizes) -> Sizes:
        """The least sizes that serve both."""
        names = [f.name for f in fields(self)]
        return Sizes(**{n: max(getattr(self, n), getattr(other, n)) for n in names})

    def check_fits(self, need: Sizes, program: str) -> None:
        """Refuse a program that does not fit, naming the dimension that is short."""
        short = [
            f"{f.name} (needs {getattr(need, f.name):.6g}, has {getattr(self, f.name):.6g})"
            for f in fields(self)
            if not getattr(need, f.name) <= getattr(self, f.name)
        ]
        if short:
            raise ProgramError(
                f"{program} does not fit this machine: {', '.join(short)}; build one with "
                "Machine.for_programs([...])"
            )


@dataclass(frozen=True)
class Target:
    """The head that a pass emulates, and the tokens it reads.

    ``queries`` are the tokens whose outputs are read.
    """

    tokens: Tensor  # (tokens, features)
    w_k: Tensor  # (head_dim, features)
    w_q: Tensor  # (head_dim, features)
    w_v: Tensor  # (value_dim, features)
    queries: slice

    def exact(self) -> Tensor:
        """The target head itself, in float64."""
        t, k, q, v = (m.double() for m in (self.tokens, self.w_k, self.w_q, self.w_v))
        weights = torch.softmax((t[self.queries] @ q.mT) @ (t @ k.mT).mT, -1)
        return weights @ (t @ v.mT)


class Program(Pretrained):
    """What a machine runs: an algorithm as prompts.

    A subclass supplies :meth:`rows` (with :meth:`sizes` and :meth:`targets`), :meth:`stream` (with
    :meth:`opening`), or both; those are the engines that run it.
    """

    @classmethod
    def engines(cls) -> tuple[str, ...]:
        """The layouts that run it."""
        return tuple(e for e in ENGINES if getattr(cls, e) is not getattr(Program, e))

    @property
    def label(self) -> str:
        """As in tables."""
        return type(self).__name__

    def label_shape(self, x: Tensor) -> tuple[int, ...]:
        """Shape of the second input: one number per sample unless a program says otherwise."""
        return (x.shape[0],)

    def enclosed(self, found: Result, given: Any) -> list[tuple[Any, Any]]:
        """Numbers that were found on given data, each beside a ball that holds the exact one."""
        raise ProgramError(f"{self.label} does not say what its exact answer is")

    # ------------------------------------------------------------------------- a head in the prompt

    def rows(self, machine: Any, x: Tensor, y: Tensor | None) -> Result:
        """Loop a machine that is given whole heads."""
        raise NotImplementedError

    def sizes(self, dim: int, samples: int) -> Sizes:
        """What :meth:`rows` asks of a machine, for data of this shape."""
        raise NotImplementedError

    def targets(self, x: Tensor, y: Tensor | None) -> Target:
        """The head and tokens of the first pass of :meth:`rows`."""
        raise NotImplementedError

    # ------------------------------------------------------------------------- tables in the prompt

    def stream(self, machine: Any, source: Source) -> Result:
        """Loop a machine that data of any length stream through."""
        raise NotImplementedError

    def opening(self, machine: Any, source: Source) -> LookUps | Average:
        """The first prompts of :meth:`stream`."""
        raise NotImplementedError


def balanced(w_k: Tensor, w_q: Tensor, k_size: Tensor, q_size: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each head dimension so that keys and queries are equally large.

    Their inner product does not change; the range that look-ups must cover does.
    """
    tiny = math.sqrt(torch.finfo(torch.float64).tiny)
    scale = ((q_size + tiny) / (k_size + tiny)).sqrt()
    return w_k * scale[:, None], w_q / scale[:, None]


_LIBRARY: list[Callable[[int], Sequence[Program]]] = []


def set_library(programs: Callable[[int], Sequence[Program]]) -> None:
    """Say which programs a machine is sized for unless told otherwise.

    Algorithms are a level below machines; they make themselves known from there.
    """
    _LIBRARY[:] = [programs]


def library(tokens: int) -> Sequence[Program]:
    """The programs that a machine is sized for unless told otherwise."""
    if not _LIBRARY:
        raise ProgramError(
            "no library of programs is known to size a machine for; say programs=[...], or import "
            "iceform.algorithms"
        )
    return _LIBRARY[0](tokens)
