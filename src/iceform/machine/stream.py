r"""Stream: one frozen look-up layer that data of any length streams through.

It is the layer of :mod:`iceform.attention.lookups`, with everything that describes a task in the
prompt: the frozen matrices only say where in a token key, query, value and position are, and hold
the margin. A chunk of data is as many prompts as its samples fill; the readout adds their answers.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.attention import FrozenNetwork, Layout, LookUps, Prompt
from iceform.attention.lookups import LARGEST_LOGIT
from iceform.backends import resolve
from iceform.certificates import Result
from iceform.constructions import Plan
from iceform.constructions.residual import plan_look_ups
from iceform.errors import (
    BoundError,
    IceformError,
    IntegrityError,
    PrecisionError,
    ProgramError,
    ShapeError,
)
from iceform.interpolation import Interpolant
from iceform.machine.baking import baked
from iceform.machine.machine import Machine
from iceform.machine.program import Program
from iceform.machine.running import Running
from iceform.machine.sources import ArraySource, Source
from iceform.validation import check_capacity, check_dtype, check_eps, check_size

__all__ = ["LARGEST_LOGIT", "Stream"]

_SAMPLES, _TOKENS = 8, 129  # by default: samples of a prompt, and grid tokens of each


class Stream(Machine):
    """One frozen look-up layer for a class of data: its weights depend on sizes alone.

    ``samples * tokens`` is how many samples an average can see.
    """

    layout: ClassVar[str] = "stream"

    def __init__(
        self,
        dim: int = 8,
        samples: int | None = None,
        eps: float | None = None,
        *,
        layout: str = "stream",
        tokens: int | None = None,
        programs: object = None,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> None:
        self.dim = check_size("dim", dim)
        self.samples = check_size("samples", _SAMPLES if samples is None else samples)
        self.tokens = check_size("tokens", _TOKENS if tokens is None else tokens)
        self.eps, self.dtype = check_eps(eps), check_dtype(dtype)
        self.backend = resolve(backend)
        if programs is not None:
            raise ProgramError("a stream is sized by dim, samples and tokens, not by programs")

    @property
    def _sizes(self) -> dict[str, Any]:
        """What it is built from."""
        return {
            "dim": self.dim, "samples": self.samples, "eps": self.eps, "tokens": self.tokens,
            "dtype": self.dtype, "backend": self.backend,
        }  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self._sizes == other._sizes

    def __hash__(self) -> int:
        return hash(tuple(self._sizes.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Sizes are all there is: another process builds the same weights."""
        return _rebuilt, (self._sizes,)

    def _run(self, program: Program, x: Tensor | Source, y: Tensor | None) -> Result:
        return program.stream(self.start(), _source(x, y))

    def _ablated(self, program: Program, x: Tensor | Source, y: Tensor | None) -> Result:
        return program.stream(Running(self, attention=False), _source(x, y))

    @property
    def geometry(self) -> Layout:
        """Where in a prompt everything is."""
        return Layout(self.dim, self.samples, self.tokens)

    @cached_property
    def network(self) -> FrozenNetwork:
        """The literal weights."""
        need = 8 * self.geometry.weights
        check_capacity("the frozen layer", need, torch.device("cpu"), "use a smaller machine")
        return self.geometry.build(self.dtype)

    @property
    def plan(self) -> Plan:
        """Sizes of the literal network and of one prompt."""
        return plan_look_ups(self.geometry, self.samples, self.tokens, self.dtype)

    def prompt(self, program: Program, x: Tensor, y: Tensor | None = None) -> Prompt:
        """The tokens of the program's first prompt, as the frozen network reads them."""
        self.check_runs(program)
        asked = program.opening(self.start(), _source(x, y))
        return Prompt(next(asked.chunks())[0], self.geometry.raw, self.geometry.roles)

    def specialize(
        self, program: Program, x: Tensor | None = None, y: Tensor | None = None
    ) -> FrozenNetwork:
        """Bake the prompt's table into weights.

        The module reads the program's data alone, a token (x, y, w) per sample, and returns the
        rows that the machine returns for its first prompt: the table is in its lift.
        """
        self.check_runs(program)
        if x is None:
            raise ProgramError(
                "a stream's first table depends on the data: specialize(program, X, y)"
            )
        asked = program.opening(self.start(), _source(x, y))
        if not isinstance(asked, LookUps):
            raise ProgramError(f"{program.label} looks no table up: there is nothing to bake in")
        if asked.factors is not None:
            raise ProgramError(
                "these samples have weights, which a baked module does not read; specialize on the "
                "same samples without weights"
            )
        return baked(asked, self.dtype)

    def describe(self) -> dict[str, Any]:
        dtype = str(self.dtype).removeprefix("torch.")
        return {**self._sizes, "layout": self.layout, "dtype": dtype, "digest": self.digest}

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"machine": self.describe()}, dict(self.network.state_dict())

    @classmethod
    def unpack(cls, content: dict[str, Any], tensors: dict[str, Tensor], **_: Any) -> Stream:
        """The machine that :meth:`describe` says, refused where its weights are others."""
        saved = content["machine"]
        try:
            sizes = {k: saved[k] for k in ("dim", "samples", "eps", "tokens", "backend")}
            machine = cls(**sizes, dtype=getattr(torch, saved["dtype"]))
        except (KeyError, TypeError, AttributeError, IceformError) as broken:
            raise IntegrityError(f"the folder cannot be read as a machine: {broken!r}") from None
        built = machine.network.state_dict()
        same = tensors.keys() == built.keys() and all(
            tensors[k].dtype == t.dtype and torch.equal(tensors[k], t) for k, t in built.items()
        )
        if not same or machine.digest != saved.get("digest"):
            raise IntegrityError("the folder holds weights that are not this machine's")
        return machine

    def start(self) -> Running:
        """The machine in a run: its weights are checked now."""
        return Running(self)

    def look_up(self, table: Interpolant, z: Tensor) -> Tensor:
        """A(z) for every entry, in a run of its own."""
        return self.start().look_up(table, z)

    def average(
        self, x: Tensor, values: Tensor, points: Tensor, gamma: float, ties: float = 0.0
    ) -> Tensor:
        """The values' kernel average at the points, in a run of its own."""
        return self.start().average(x, values, points, gamma, ties)

    def check_dim(self, dim: int) -> None:
        """Refuse data with more features than the machine has."""
        if dim > self.dim:
            raise ProgramError(
                f"the data have {dim} features (a constant one for the intercept included), this "
                f"machine has {self.dim}; build one with dim >= {dim}"
            )

    def check_table(self, table: Interpolant) -> None:
        """Refuse a table that is longer than a block."""
        if table.tokens > self.tokens:
            raise ProgramError(
                f"the table has {table.tokens} tokens, a block of this machine {self.tokens}; "
                f"build one with tokens >= {table.tokens}"
            )
        if self.eps is not None and not table.error <= self.eps:
            raise PrecisionError(
                f"this table is certified to {table.error:.3g}, not to the machine's eps = "
                f"{self.eps:.3g}; use a larger eps, or a machine with more tokens",
                best=table.error,
            )
        if not (largest := _largest_logit(table)) <= LARGEST_LOGIT:
            raise ProgramError(
                f"the table's logits reach {largest:.3g}, the margin between blocks covers "
                f"{LARGEST_LOGIT:.3g}; lower its sharpness or narrow its range"
            )

    def check_sees(self, samples: int) -> None:
        """Refuse an average over more samples than a prompt holds."""
        most = self.samples * self.tokens
        if samples > most:
            raise ProgramError(
                f"a prompt of this machine sees {most} samples, got {samples}; build one with "
                f"tokens >= {-(-samples // self.samples)}"
            )

    def prompts(self, rows: int) -> int:
        """Prompts that ``rows`` samples take."""
        return -(-rows // self.samples)


@lru_cache(maxsize=512)
def _largest_logit(table: Interpolant) -> float:
    reach = max(table.high - table.grid.center, table.grid.center - table.low)
    return float((table.keys.slopes.abs() * reach + table.keys.biases.abs()).max())


def _source(x: Tensor | Source, y: Tensor | None) -> Source:
    if isinstance(x, Source):
        return x
    if not isinstance(x, Tensor) or x.ndim != 2:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ShapeError(f"data must be a tensor (samples, dim), got {got}")
    labels = x.new_zeros(len(x)) if y is None else y
    source = ArraySource(x, labels)
    for name, values in (("x", x), ("y", labels)):
        if not bool(torch.isfinite(values).all()):
            raise BoundError(f"{name} holds NaN or infinity; fill or remove what is missing")
    return source


def _rebuilt(sizes: dict[str, Any]) -> Stream:
    return Stream(**sizes)
