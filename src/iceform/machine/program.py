"""What a program is: data as tokens, a task in the prompt, a readout, a loop, an exact answer.

The exact answer of a run is enclosed in ball arithmetic, beside what the run returned
(:class:`Verifier`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic.balls import balls_of, uppermost
from iceform.attention import Average, LookUps
from iceform.certificates import Result, Verification
from iceform.errors import PrecisionError, ProgramError, ShapeError
from iceform.machine.sources import ArraySource, Source
from iceform.pretrained import Pretrained

__all__ = [
    "ENGINES",
    "Given",
    "Program",
    "Sizes",
    "Target",
    "Verifier",
    "balanced",
    "library",
    "set_library",
    "stored",
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

    def verifiable(
        self, found: Result, x: Tensor | Source | None = None, y: Tensor | None = None
    ) -> Result:
        """The result of a run, whose certificate verifies; without data, on those given again."""
        verifier = Verifier(self, found, None) if x is None else Verifier.of(self, found, x, y)
        return replace(found, certificate=replace(found.certificate, _verifier=verifier))

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


_KEPT = 1 << 16  # entries of data that are kept with a certificate; ball arithmetic is slow anyway
_FINER = 3  # times the bits are doubled where an enclosure is too wide to tell


@dataclass(frozen=True, eq=False)
class Given:
    """The data of a run, as they were given."""

    x: Tensor
    y: Tensor
    weights: Tensor | None = None

    @classmethod
    def of(
        cls, x: Tensor | Source, y: Tensor | None, weights: Tensor | None = None
    ) -> Given | None:
        """A copy in float64; None of data that are not in memory."""
        if isinstance(x, ArraySource):
            return cls.of(x.x, x.y, x.weights)
        if not isinstance(x, Tensor):
            return None
        y = x.new_zeros(len(x)) if y is None else y
        x, y = (part.detach().to("cpu", torch.float64, copy=True) for part in (x, y))
        if weights is not None:
            weights = weights.detach().to("cpu", torch.float64, copy=True)
        return cls(x, y, weights)

    @property
    def source(self) -> ArraySource:
        """To walk over."""
        return ArraySource(self.x, self.y, weights=self.weights)

    @property
    def each(self) -> list[float]:
        """What samples weigh, one by one."""
        return [1.0] * len(self.x) if self.weights is None else self.weights.tolist()


@dataclass(frozen=True, eq=False)
class Verifier:
    """What ``certificate.verify()`` of a run calls.

    Data of up to 65,536 entries are kept; others are given to it again, as the machine took them.
    In another process it is gone, as the data are.
    """

    program: Program
    found: Result
    given: Given | None

    @classmethod
    def of(cls, program: Program, found: Result, x: Tensor | Source, y: Tensor | None) -> Verifier:
        """Of a run on these data."""
        data = x.x if isinstance(x, ArraySource) else x
        small = isinstance(data, Tensor) and data.numel() <= _KEPT
        return cls(program, found, Given.of(x, y) if small else None)

    def data(self) -> tuple[Tensor, ...]:
        """What is kept of the data."""
        kept = self.given
        parts = (kept.x, kept.y, kept.weights) if kept is not None else ()
        return tuple(part for part in parts if part is not None)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return _Gone, ()

    def __call__(self, *inputs: Tensor, certified: float, bits: int) -> Verification:
        given = self.given
        if inputs:
            shape = tuple(torch.as_tensor(inputs[0]).shape)
            if len(shape) != 2:
                raise ShapeError(
                    f"verify takes X of shape (n, d) and what goes with it, got {shape}"
                )
            given = Given.of(
                *(torch.as_tensor(part) for part in inputs), *[None] * (len(inputs) < 2)
            )
        if given is None:
            raise ProgramError(
                f"the data were more than {_KEPT} entries, or not in memory, and are not kept; "
                "give them again: certificate.verify(X, y)"
            )
        with balls_of(bits) as flint:
            return self._enclose(flint, given, certified, bits)

    def _enclose(self, flint: Any, given: Given, certified: float, bits: int) -> Verification:
        for finer in range(_FINER + 1):
            flint.ctx.prec = bits << finer
            try:
                pairs = self.program.enclosed(self.found, given)
            except PrecisionError:
                if finer == _FINER:
                    raise
                continue
            measured = max((uppermost(abs(a - b)) for a, b in pairs), default=0.0)
            if measured <= certified or finer == _FINER or math.isfinite(measured):
                break
        # Written so that NaN fails.
        return Verification(measured <= certified, measured, certified, flint.ctx.prec)


class _Gone:
    """In the place of a verifier that was pickled."""

    def __call__(self, *inputs: Tensor, certified: float, bits: int) -> Verification:
        raise ProgramError(
            "this certificate came from another process or a file, without its run; fit again and "
            "verify there"
        )


def stored(found: Result, dtype: torch.dtype, worst: float) -> Result:
    """The same answer for whoever stores it in less precision, which moves it by ``worst``."""
    name = str(dtype).removeprefix("torch.")
    terms = {**found.certificate.terms, f"stored as {name}": worst}
    error = math.nextafter(math.fsum(terms.values()), math.inf)
    verifier = found.certificate._verifier
    if isinstance(verifier, Verifier):
        parts = dict(found.parts)
        if "intercept" in parts:
            parts["intercept"] = parts["intercept"].to(dtype)
        rounded = replace(verifier.found, answer=found.value.to(dtype), parts=parts)
        verifier = replace(verifier, found=rounded)
    certificate = replace(found.certificate, error=error, terms=terms, _verifier=verifier)
    return replace(found, certificate=certificate)
