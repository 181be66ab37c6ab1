"""What a program is: data as tokens, a target head as the prompt, a readout, a loop."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

import torch
from torch import Tensor

from iceform.certificates import Attestation, Certificate, Ledger
from iceform.errors import ProgramError
from iceform.pretrained import Pretrained

__all__ = [
    "Attend",
    "Outcome",
    "Program",
    "Result",
    "Sizes",
    "Target",
    "balanced",
    "library",
    "set_library",
]


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


class Attend(Protocol):
    """One pass of the frozen machine: outputs of the queries, and their certified error."""

    def __call__(self, target: Target) -> tuple[Tensor, float]:
        """Run the target head."""
        ...


@dataclass(frozen=True, eq=False)
class Result:
    """What a program returns.

    Attributes
    ----------
    value
        The answer: coefficients, a component, a retrieved state, an output.
    certificate
        Proven distance of ``value`` from the exact algorithm's, term by term.
    passes
        Passes through the frozen machine.
    digest
        SHA-256 of the machine's weights.
    attestation, ledger
        Which weights ran, and what was computed where.
    """

    value: Tensor
    certificate: Certificate
    passes: int
    digest: str
    _predict: Callable[[Tensor], Tensor] | None = None
    attestation: Attestation = field(default_factory=lambda: Attestation.none("not watched"))
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def coef(self) -> Tensor:
        """The coefficients of a linear model."""
        return self.value

    def predict(self, x: Tensor) -> Tensor:
        """Predictions for new points, shape (m,)."""
        if self._predict is None:
            raise ProgramError("this program makes no predictions; its answer is in .value")
        return self._predict(x)


class Program(Pretrained, ABC):
    """An algorithm as a prompt."""

    @property
    def name(self) -> str:
        """As in tables."""
        return type(self).__name__

    def label_shape(self, x: Tensor) -> tuple[int, ...]:
        """Shape of the second input: one number per sample unless a program says otherwise."""
        return (x.shape[0],)

    @abstractmethod
    def sizes(self, dim: int, samples: int) -> Sizes:
        """What it asks of a machine, for data of this shape."""

    @abstractmethod
    def run(self, attend: Attend, x: Tensor, y: Tensor | None) -> Outcome:
        """Loop the machine."""

    @abstractmethod
    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        """The exact algorithm, in float64."""

    @abstractmethod
    def targets(self, x: Tensor, y: Tensor | None) -> Target:
        """The head and tokens of the first pass."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """A program's answer before the machine puts its name to it."""

    value: Tensor
    terms: dict[str, float]
    domain: dict[str, float | str]
    passes: int
    predict: Callable[[Attend, Tensor], Tensor] | None = None
    assumptions: tuple[str, ...] = ()


def balanced(w_k: Tensor, w_q: Tensor, k_size: Tensor, q_size: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each head dimension so that keys and queries are equally large.

    Their inner product does not change; the range that look-ups must cover does.
    """
    tiny = math.sqrt(torch.finfo(torch.float64).tiny)
    scale = ((q_size + tiny) / (k_size + tiny)).sqrt()
    return w_k * scale[:, None], w_q / scale[:, None]


_LIBRARY: list[Callable[[], Sequence[Program]]] = []


def set_library(programs: Callable[[], Sequence[Program]]) -> None:
    """Say which programs a machine is sized for unless told otherwise.

    Algorithms are a level below machines; they make themselves known from there.
    """
    _LIBRARY[:] = [programs]


def library() -> Sequence[Program]:
    """The programs that a machine is sized for unless told otherwise."""
    return _LIBRARY[0]() if _LIBRARY else ()
