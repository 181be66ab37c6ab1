"""The base class of all pieces: a range, a mode, a certificate of its own."""

from __future__ import annotations

import copy
import math
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_type_hints

import torch
from torch import Tensor, nn

from iceform.arithmetic import exactly
from iceform.certificates import weakest
from iceform.certificates.witness import ReplayedEntry
from iceform.codec import decode, encode
from iceform.errors import BoundError, ProgramError
from iceform.networks.attestation import piece_recorder
from iceform.networks.frozen import FrozenLayers
from iceform.run import rounding_of
from iceform.tables import Interpolant
from iceform.validation import unit_roundoff, untraced

SMALLEST_SHARE = 2.0**-20  # a row's range is at least this share of its layer's
_LATER: ContextVar[list[tuple[Piece, Tensor]] | None] = ContextVar("to be judged", default=None)
_WIDENING = threading.RLock()  # not one a network: copies of one share their settings


@dataclass(frozen=True, eq=False)
class Bounds:
    """How large a stream of numbers can be and how far off, for every input that is allowed.

    Attributes
    ----------
    entry
        Bound of the emulated entries.
    length
        Bound of their 2-norm along the last axis.
    ball
        (weight, bias) of rows weight u + bias with |u| <= ``radius``, as norms give them; of a
        fixed row, with radius 0.
    radius
        Of the ball.
    off
        What entries of these rows may be off by.
    error
        Bound of |emulated - exact|, entry by entry.
    spread
        Bound of the 2-norm of emulated - exact along the last axis.
    width
        Length of the last axis; None where it varies.
    """

    entry: float = math.inf
    length: float = math.inf
    ball: tuple[Tensor, Tensor] | None = None
    radius: float = math.inf
    off: float = 0.0
    error: float = 0.0
    spread: float = math.inf
    width: int | None = None

    def along(self, width: int) -> float:
        """The 2-norm of a row of ``width`` entries."""
        return min(self.length, math.sqrt(width) * self.entry)

    def as_rows(self, width: int | None) -> Bounds:
        """As rows of that width: of others, which are repeated, no length is known."""
        if width is not None and self.width == width:
            return self
        return replace(self, length=math.inf, spread=math.inf, ball=None)

    def apart(self, width: int) -> float:
        """The 2-norm of the error of a row of ``width`` entries."""
        return min(self.spread, math.sqrt(width) * self.error)


@dataclass
class PieceSettings:
    """What all pieces of a network share; the network changes ``mode``."""

    eps: float | None
    dtype: torch.dtype
    backend: str
    headroom: float
    on_range: str
    insists: bool = False  # on the backend: other weights than those built are refused
    mode: str = "run"  # or "exact", "calibrate", "measure"
    frozen: FrozenLayers | None = None
    loading: bool = False  # only while a saved network is put together

    @property
    def layers(self) -> FrozenLayers:
        """The frozen layers, once they are sized."""
        assert self.frozen is not None, "the network is not settled yet"
        return self.frozen

    @property
    def literal(self) -> bool:
        """Whether prompts are written and multiplied with the matrices."""
        return rounding_of(self.backend).literal

    @property
    def line(self) -> Interpolant | None:
        """What the reading layer looks theta.x up in; None where its prompts must be written."""
        return self.layers.table if self.attends else None

    @property
    def attends(self) -> bool:
        """Whether the attending layer is known to compute softmax(q k' + m) v: it is as built."""
        return not self.literal and self.layers.built

    @property
    def unit(self) -> float:
        """Unit roundoff."""
        return unit_roundoff(self.dtype)


class Piece(nn.Module, ABC):
    """One map of the network: exact while calibrating, in context while running."""

    kind: ClassVar[str] = ""
    made_with: ClassVar[tuple[str, ...]] = ()  # arguments that files hold, tensors apart
    fixed: ClassVar[dict[str, Any]] = {}  # what freeze_range fixes, and its types
    how: ClassVar[str] = ""
    ranged: ClassVar[int] = 1  # how many of the inputs must be bounded for the range to be

    def __init__(self, name: str, settings: PieceSettings) -> None:
        super().__init__()
        self.name, self.settings = name, settings
        self.measured = 0.0
        # Where tools for interpretability read and patch what comes out.
        self.hook_out = nn.Identity()
        self.widened = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Piece:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(self.__dict__)
        copied._buffers = {k: None if v is None else v.clone() for k, v in self._buffers.items()}
        copied._modules = {k: copy.deepcopy(m, memo) for k, m in self._modules.items()}
        return copied

    # --------------------------------------------------------------- what a piece supplies

    @abstractmethod
    def exact(self, *inputs: Tensor) -> Tensor:
        """The map it stands for, in the inputs' dtype."""

    @abstractmethod
    def run(self, *inputs: Tensor, covered: bool = False) -> tuple[Tensor, Tensor | None]:
        """The map in context, and the numbers that :meth:`check_range` knows inputs in range by."""

    def finish(self, before: Piece | None, *inputs: Tensor, covered: bool = False) -> Tensor:
        """The map of what another gives, or of a sum where there is none; at once, where it can.

        The same operations in the same order: a piece that can do it rounds as if it could not.
        """
        if before is None:
            return self(inputs[0] + inputs[1])  # type: ignore[no-any-return]
        return self(before(*inputs, covered=covered))  # type: ignore[no-any-return]

    def emulate(self, *inputs: Tensor) -> Tensor:
        """The map in context; inputs are in range."""
        return self.run(*inputs, covered=True)[0]

    def questions(
        self, inputs: tuple[Tensor, ...], output: Tensor, draw: random.Random
    ) -> Iterator[ReplayedEntry]:
        """A random entry of the output, to be computed again by the literal layers.

        Of a piece of several steps also what was added up on the way.
        """
        yield from ()

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Take note of a calibration input."""

    def check_range(self, numbers: list[float], *inputs: Tensor) -> bool:
        """Refuse inputs outside the range, or widen it: whether the piece must run again.

        The inputs themselves are there only where the run waited; they serve the message alone.
        """
        return False

    def freeze_range(self) -> None:
        """Fix the range and the tables, after calibration."""

    def set_range_from(self, *given: Bounds) -> None:
        """Fix the range and the tables from bounds of the inputs instead."""

    def bounds(self, *given: Bounds, widen: bool = True) -> Bounds:
        """How far the output reaches; ``widen`` accepts all that can come, where it is bounded."""
        return Bounds()

    def propagate_error(self, *given: Bounds) -> tuple[float, float]:
        """The error of an entry behind the piece, and the 2-norm of a row's, for allowed inputs."""
        return math.inf, math.inf

    def covers(self, *given: Bounds) -> bool:
        """Whether all inputs within these bounds are in range, so that none needs measuring."""
        return False

    @property
    def limit(self) -> float:
        """What the entries of an allowed input are bounded by."""
        return math.inf

    @property
    def certified(self) -> float:
        """Proven sup-norm error of the piece alone, on its range."""
        return 0.0

    @property
    def range(self) -> float:
        """Largest value that is looked up."""
        return math.nan

    @property
    def tables(self) -> tuple[Interpolant, ...]:
        """The look-up tables that it reads: the frozen layers' line."""
        return (self.settings.layers.table,)

    @property
    def tokens(self) -> int:
        """Grid tokens of its longest look-up table."""
        return max(table.tokens for table in self.tables)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What its certificate takes for granted."""
        return tuple(said for table in self.tables for said in table.assumptions)

    @property
    def standing(self) -> str:
        """Whether its error is "proven" or "estimated"."""
        return weakest(table.kind for table in self.tables)

    def config(self) -> dict[str, Any]:
        """What it was made with, tensors apart, JSON only."""
        return {name: encode(getattr(self, name)) for name in self.made_with}

    @classmethod
    def made(
        cls, name: str, settings: PieceSettings, tensors: Mapping[str, Tensor], config: Any
    ) -> Piece:
        """The piece whose :meth:`config` and own tensors a file holds."""
        construct: Callable[..., Piece] = cls
        hints = get_type_hints(cls.__init__)
        taken = {key: decode(hints[key], config[key]) for key in cls.made_with}
        taken |= {key: tensors[f"{name}.{key}"] for key in ("weight", "bias") if key in hints}
        return construct(name=name, settings=settings, **taken)

    def is_like(self, other: Piece) -> bool:
        """Whether the other is the same map, under whatever name."""
        if type(self) is not type(other) or self.config() != other.config():
            return False
        ours, theirs = (
            [one.get_buffer(key) for key in ("weight", "bias") if key in one._buffers]
            for one in (self, other)
        )
        return len(ours) == len(theirs) and all(
            a.shape == b.shape and torch.equal(a, b.to(a))
            for a, b in zip(ours, theirs, strict=True)
        )

    def ranges(self) -> dict[str, Any]:
        """What :meth:`freeze_range` fixed, JSON only."""
        return {name: encode(getattr(self, name)) for name in self.fixed}

    def restore(self, ranges: Mapping[str, Any]) -> None:
        """The inverse of :meth:`ranges`."""
        for name, kind in self.fixed.items():
            setattr(self, name, decode(kind, ranges[name]))

    # ------------------------------------------------------------------------------ running

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Prompts, ranges and certificates belong together: none is loaded without the others."""
        if not self.settings.loading:
            raise ProgramError(
                f"{self.name}: weights are not loaded into a network in context; load them into "
                "the original and convert that"
            )
        super()._load_from_state_dict(*args, **kwargs)

    def forward(self, *inputs: Tensor, covered: bool = False) -> Tensor:
        """Exact, recorded, emulated or measured, as the network's mode says.

        Where what comes in is ``covered`` (:meth:`covers`), its lengths are not measured.
        """
        mode = self.settings.mode
        if mode in ("exact", "calibrate"):
            output = self.exact(*inputs)
            if mode == "calibrate":
                if not bool(output.isfinite().all()):
                    raise BoundError(
                        f"{self.name}: a calibration input makes it NaN or infinite; calibrate on "
                        "finite numbers"
                    )
                self.record(inputs, output)
            return self._out(output)
        with self._guard():
            if torch.compiler.is_exporting():
                output = self.emulate(*inputs)
            else:
                output = self.checked(*inputs, **({"covered": True} if covered else {}))
        if not torch.compiler.is_compiling() and (watch := piece_recorder()) is not None:
            watch.saw(self, inputs, output)
        if mode == "measure":
            wide = [t.double() if t.is_floating_point() else t for t in inputs]
            off = (output.double() - self._in_double(*wide)).abs().max()
            self.measured = max(self.measured, float(off))
        return self._out(output)

    def _guard(self) -> AbstractContextManager[object]:
        """A lock where an input may change the prompt, so that one thread runs at a time."""
        return _WIDENING if self._widens and not torch.compiler.is_compiling() else nullcontext()

    def checked(self, *inputs: Tensor, **covered: bool) -> Tensor:
        """The map in context, of inputs that are in range: known now, or at the end of a run."""
        output, seen = self.run(*inputs, **covered)
        return output if seen is None or not self._judged(seen, *inputs) else self.emulate(*inputs)

    @untraced
    def _judged(self, seen: Tensor, *inputs: Tensor) -> bool:
        """Compiled code checks as well; only what is exported cannot."""
        later = None if self._widens else _LATER.get()
        if later is None:
            return self.check_range(seen.tolist(), *inputs)
        later.append((self, seen))
        return False

    def _out(self, output: Tensor) -> Tensor:
        passed: Tensor = self.hook_out(output)
        return passed

    def _in_double(self, *inputs: Tensor) -> Tensor:
        """The exact map in float64."""
        stored = {k: b for k, b in self._buffers.items() if b is not None}
        try:
            for name, buffer in stored.items():
                self._buffers[name] = buffer.double()
            return self.exact(*inputs)
        finally:
            self._buffers.update(stored)

    def _out_of_range(self, what: str, seen: float, limit: float) -> None:
        raise BoundError(
            f"{self.name}: {what} is {seen:.6g}, calibrated up to {exactly(limit)}; calibrate on "
            "data "
            "like this, raise headroom=, or use on_range='widen'"
        )

    @property
    def _widens(self) -> bool:
        return self.settings.on_range == "widen"


class DeferredChecks:
    """What the pieces of one run have seen, to be judged at its end: nobody waits in the middle.

    What an input out of range made of the pieces behind is thrown away with the error.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[Piece, Tensor]] = []

    @contextmanager
    def on(self) -> Iterator[None]:
        """Pieces that run inside leave their numbers here."""
        token = _LATER.set(self._seen)
        try:
            yield
        finally:
            _LATER.reset(token)

    def numbers(self, like: Tensor) -> Tensor:
        """All of them, float64, on the device of ``like``."""
        seen = [one for _, one in self._seen]
        return torch.cat(seen).double() if seen else like.new_empty(0, dtype=torch.float64)

    def check_range(self, numbers: list[float]) -> None:
        """Every piece on its own numbers, in order."""
        for piece, seen in self._seen:
            piece.check_range(numbers[: len(seen)])
            numbers = numbers[len(seen) :]
