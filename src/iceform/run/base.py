"""Backend: how the forward pass of a frozen network is evaluated.

A backend is made from a network, and everything that it computes with comes out of that network's
matrices and a prompt's tokens. :class:`LiteralBackend` multiplies them: it is the definition.
Others may use what they recognise in the matrices, and refuse a network in which they do not.
:class:`AblatedBackend`, which cannot be asked for by name, is what a run would return if attention
did nothing.

:class:`FusedBackend` is what a recognised network computes, without its tokens in memory. What it
computes with is read from the matrices and the prompt (:mod:`iceform.run.reading`), so another
valid network or prompt gives that one's answer. Prompts whose tokens are in memory are read layer
by layer (:mod:`iceform.run.rows`). :class:`TritonBackend` is the same and insists on its GPU
kernels.
:class:`Rounding` is what a backend declares of its logits, and what certificates follow.

A new backend is one file: subclass :class:`Backend`, give it a ``name`` and its ``rounding``, and
supply :meth:`Backend.run`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import EXP_UNDERFLOW, gamma
from iceform.errors import DeviceError, ProgramError
from iceform.heads import FrozenNetwork, LookUps, Prompt, SoftmaxAverage, is_checked
from iceform.heads.lookups import HIDDEN
from iceform.run import primitives, rows
from iceform.run.primitives import SampleMaxima, has_triton
from iceform.run.reading import Reading, padded, read_layer
from iceform.run.windowed import sum_block, tell
from iceform.tables import Interpolant, RoundingModel
from iceform.tables.local import tail_mass
from iceform.validation import check_choice, full_precision, guard, unit_roundoff

AnyPrompt = Prompt | LookUps | SoftmaxAverage
_AT_ONCE = 1 << 15  # samples whose rows are held and added up together
_BORDER = ("count", "mean", "run", "total")  # where prompts come in


@dataclass(frozen=True)
class Rounding:
    """How a backend computes logits.

    Sums over samples are accumulated in float64 whatever the dtype, but for blocks of
    :func:`sum_block` rows.

    Parameters
    ----------
    literal
        True where logits come from the literal inner product of keys and queries.
    """

    literal: bool

    def model(
        self, dtype: torch.dtype, it: Interpolant, magnitude: float, dim: int
    ) -> RoundingModel:
        """The rounding of one look-up of z = w.x - y whose terms add up to ``magnitude``."""
        unit = unit_roundoff(dtype)
        if self.literal or not it.uniform:
            # d products, the label and the bias; positions add exact zeros.
            return RoundingModel(unit, False, magnitude, dim + 2, summed=not self.literal)
        return RoundingModel(unit, True, magnitude, dim + 1, it.half_width(unit))

    def omitted(self, dtype: torch.dtype, it: Interpolant) -> float:
        """Bound of what a look-up may leave out: tokens far from z."""
        half = None if self.literal else it.half_width(unit_roundoff(dtype))
        if half is None or half >= it.tokens - 1:
            return 0.0
        return tail_mass(it.sharpness, half) * it.swing

    def sum_error(self, dtype: torch.dtype, count: int) -> float:
        """Relative error of a mean over ``count`` samples."""
        unit = unit_roundoff(dtype)
        block = 1 if self.literal else sum_block(dtype, count)
        in_blocks = gamma(block, unit) if block > 1 else 0.0
        return gamma(count + 2, unit_roundoff(torch.float64)) + in_blocks + 2 * unit


class Backend(ABC):
    """A way to run one frozen network.

    Parameters
    ----------
    network
        Whose weights run.
    later
        Check them by :meth:`settle`, after a pass and before its answer is handed out, instead of
        now: on a GPU the bytes are hashed while it computes.
    """

    kinds: ClassVar[dict[str, type[Backend]]] = {}
    name: str
    rounding: Rounding

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        guard(cls, _BORDER)
        if "name" in vars(cls):
            Backend.kinds[cls.name] = cls

    def __init__(self, network: FrozenNetwork, *, later: bool = False) -> None:
        self.network = network
        self._unsettled = later and is_checked() and network.expected is not None
        self.digest = network.expected if self._unsettled else None
        if not self._unsettled and not torch.compiler.is_compiling():
            self.digest = network.check()

    def settle(self) -> None:
        """Refuse what was computed by weights that are not those of their sizes."""
        if self._unsettled and not torch.compiler.is_compiling():
            self.network.check()

    @classmethod
    def require(cls) -> None:
        """Refuse where it cannot run at all; by default it can everywhere."""
        return

    @abstractmethod
    def run(self, prompt: AnyPrompt) -> Tensor:
        """What the network returns for a prompt.

        For :class:`Prompt` its output tokens; for :class:`LookUps` the rows of its samples,
        (*batch, n, d + 1); for :class:`SoftmaxAverage` the rows of its points, (q, v).
        """

    def stream(self, prompt: Prompt) -> Iterator[Tensor]:
        """The tokens after each layer in turn, where it can tell; the last is what it returns."""
        yield self.run(prompt)

    def literally(self, prompt: Prompt) -> Iterator[Tensor]:
        """The tokens after each layer in turn, by the matrices themselves."""
        return self.network.to(prompt.tokens.device).stream(prompt.tokens)

    @full_precision
    def total(self, prompt: LookUps, watch: SampleMaxima | None = None) -> Tensor:
        """The sum of all samples' rows but for their last entries, float64, shape (*batch, d).

        ``watch`` is shown every sample.
        """
        if watch is not None:
            watch(prompt.x)
        return self._added(prompt, lambda part: self.run(part)[..., :-1].double().sum(-2))

    @full_precision
    def mean(
        self, prompt: LookUps, watch: SampleMaxima | None = None, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """:meth:`total` over the number of samples, in ``dtype``."""
        return (self.total(prompt, watch) / prompt.count).to(dtype)

    @full_precision
    def count(self, prompt: LookUps) -> Tensor:
        """The sum of the rows' last entries, float64, shape (*batch,)."""
        return self._added(prompt, lambda part: self.run(part)[..., -1:].double().sum(-2))[..., 0]

    def _added(self, prompt: LookUps, sums: Callable[[LookUps], Tensor]) -> Tensor:
        """Sums over parts of whole prompts, added up and told."""
        rows = max(1, _AT_ONCE // prompt.layout.samples) * prompt.layout.samples
        starts = range(0, prompt.count, rows)
        if len(starts) <= 1:
            parts = [sums(prompt)]
        else:
            parts = [sums(prompt.part(slice(start, start + rows))) for start in starts]
        tell(parts, rows, whole=True)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total


def rounding_of(name: str) -> Rounding:
    """How the backend of this name rounds."""
    return Backend.kinds[name].rounding


def resolve(name: str) -> str:
    """The backend that ``name`` stands for.

    "auto" is "fused", which takes the fastest certified way for the device, dtype and size of
    every call; "triton" insists on the GPU kernels.
    """
    choice = check_choice("backend", name, ("auto", *Backend.kinds))
    choice = "fused" if choice == "auto" else choice
    Backend.kinds[choice].require()
    return choice


def bind(network: FrozenNetwork, name: str, *, later: bool = False) -> Backend:
    """The backend of this name on this network, whose weights are checked now or later."""
    if name not in Backend.kinds:
        raise DeviceError(f"no backend is called {name!r}; there are {', '.join(Backend.kinds)}")
    return Backend.kinds[name](network, later=later)


class LiteralBackend(Backend):
    """W_K, W_Q, W_V and W_O on the literal tokens of a prompt."""

    name = "literal"
    rounding = Rounding(literal=True)

    def run(self, prompt: Prompt | LookUps | SoftmaxAverage) -> Tensor:
        if isinstance(prompt, LookUps):
            rows = self._rows(prompt.chunks(), slice(0, prompt.layout.samples))
            rows = rows[..., : prompt.count, :]
            return torch.cat([rows[..., : prompt.x.shape[-1]], rows[..., -1:]], -1)
        if isinstance(prompt, SoftmaxAverage):
            first = prompt.layout.samples
            rows = self._rows(prompt.chunks(), slice(first, first + prompt.sharing))
            return rows[: len(prompt.points), : prompt.values.shape[1]]
        out: Tensor = self._on(prompt.tokens)(prompt.tokens)
        return out

    def _rows(self, chunks: Iterable[Tensor], queries: slice) -> Tensor:
        """What the given queries of every prompt return, prompts one after the other."""
        parts = [self._on(c)(c)[..., queries, :].flatten(-3, -2) for c in chunks]
        return torch.cat(parts, -2)

    def _on(self, tokens: Tensor) -> torch.nn.Module:
        there = all(b.device == tokens.device for b in self.network.buffers())
        return self.network if there else self.network.to(tokens.device)


class AblatedBackend(Backend):
    """Attention taken out: the difference it makes says how much of an answer attention computes.

    Look-ups return what is looked up, and averages weigh all tokens alike.
    """

    rounding = Rounding(literal=False)

    def __init__(self, network: FrozenNetwork) -> None:
        super().__init__(network)
        self.name = "none: attention taken out"

    def run(self, prompt: Prompt | LookUps | SoftmaxAverage) -> Tensor:
        if isinstance(prompt, SoftmaxAverage):
            return _alike(prompt)
        if not isinstance(prompt, LookUps):
            raise ProgramError("attention can be taken out of look-ups and averages only")
        looked = prompt.weighed(prompt.residuals())[..., None]
        row = looked * prompt.x.to(looked) + prompt.keep * prompt.w[..., None, :]
        return torch.cat([row, looked.expand(*row.shape[:-1], 1)], -1)


def _alike(prompt: SoftmaxAverage) -> Tensor:
    """The mean value of the tokens that each point sees."""
    if prompt.seen is None:
        return prompt.values.mean(0).expand(len(prompt.points), -1)
    shares = prompt.seen.to(prompt.values)
    return shares @ prompt.values / shares.sum(1, keepdim=True)


class FusedBackend(Backend):
    """The fastest certified way for the device, dtype and size of every call."""

    name = "fused"
    rounding = Rounding(literal=False)

    @cached_property
    def reading(self) -> Reading:
        """The look-up layer, as read from its matrices."""
        found: Reading = read_layer(self.network, self.digest)
        return found

    def run(self, prompt: Prompt | LookUps | SoftmaxAverage) -> Tensor:
        if isinstance(prompt, LookUps):
            return self._look_up(prompt)
        if isinstance(prompt, SoftmaxAverage):
            return self._average(prompt)
        *_, last = self.stream(prompt)
        return last

    def stream(self, prompt: Prompt) -> Iterator[Tensor]:
        return rows.stream(self.network, self.digest, prompt, self.name)

    def _look_up(self, prompt: LookUps) -> Tensor:
        count = prompt.count
        prompt = prompt if self.reading.readout is None else prompt.filled()
        looked = self._looked(prompt)
        looked = prompt.weighed(looked)[..., None]
        x = prompt.x.to(looked.dtype)
        row = looked * x
        if prompt.keep:
            row = row + prompt.keep * prompt.w[..., None, :]
        out = torch.cat([row, looked.expand(*row.shape[:-1], 1)], -1)
        return out if self.reading.plain else self._read(out, prompt)[..., :count, :]

    def _looked(self, prompt: LookUps) -> Tensor:
        table = self.reading.table(prompt)
        return primitives.interpolate(self.reading.residuals(prompt), table, self.name)

    def _read(self, out: Tensor, prompt: LookUps) -> Tensor:
        """Rows as other values or another readout make them."""
        reading, m = self.reading, prompt.layout.samples
        width = prompt.layout.dim - prompt.x.shape[-1]
        if reading.values is not None:
            full = torch.cat(
                [out[..., :-1], out.new_zeros(*out.shape[:-1], width), out[..., -1:]], -1
            )
            full = full @ reading.values.to(out).mT
            out = torch.cat([full[..., : prompt.x.shape[-1]], full[..., -1:]], -1)
        if reading.readout is not None:
            blocks = out.unflatten(-2, (-1, m))
            out = (reading.readout.to(out).mT @ blocks).flatten(-3, -2)
        return out

    def total(self, prompt: LookUps, watch: SampleMaxima | None = None) -> Tensor:
        if not self.reading.plain or prompt.factors is not None:
            return super().total(prompt, watch)
        return self._summed(prompt, watch, (prompt.gain, prompt.count * prompt.keep), torch.float64)

    def mean(
        self, prompt: LookUps, watch: SampleMaxima | None = None, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        if not self.reading.plain or prompt.factors is not None:
            return super().mean(prompt, watch, dtype)
        return self._summed(prompt, watch, (prompt.gain / prompt.count, prompt.keep), dtype)

    def _summed(
        self,
        prompt: LookUps,
        watch: SampleMaxima | None,
        mix: tuple[float, float],
        dtype: torch.dtype,
    ) -> Tensor:
        table = self.reading.table(prompt)
        x, y, w, offsets = prompt.x, prompt.y, prompt.w, prompt.offsets
        return primitives.residual_sum(x, y, w, table, offsets, self.name, watch, mix, dtype)

    def count(self, prompt: LookUps) -> Tensor:
        if not self.reading.plain:
            return super().count(prompt)

        def counted(part: LookUps) -> Tensor:
            return part.weighed(self._looked(part)).double().sum(-1, keepdim=True)

        return self._added(prompt, counted)[..., 0]

    def _average(self, prompt: SoftmaxAverage) -> Tensor:
        if self.reading.free_readout is not None:
            return self._mixed(prompt)
        at_once = max(1, tuning.BACKEND_LOGITS // max(1, len(prompt.keys)))
        starts = range(0, len(prompt.points), at_once)
        parts = [self._averages(prompt.part(slice(i, i + at_once))) for i in starts]
        return torch.cat(parts) if parts else prompt.values[:0]

    def _averages(self, prompt: SoftmaxAverage) -> Tensor:
        """Every point's own average."""
        reading, points, keys = self.reading, prompt.points, prompt.keys
        if reading.free is not None:
            points = padded(points, len(reading.free)) @ reading.free.to(points)
        if reading.free_shift is not None:
            points = padded(points, len(reading.free_shift)) + reading.free_shift.to(points)
        biases = reading.free_bias * prompt.biases
        logits = torch.addmm(biases, points, padded(keys, points.shape[1]).mT)
        if prompt.seen is not None:
            logits.sub_((~prompt.seen).to(logits).mul_(reading.free_bias * HIDDEN))
        few = _few(logits, prompt.values) if prompt.seen is not None else None
        out = torch.softmax(logits, -1) @ prompt.values if few is None else few
        if reading.values is None:
            return out
        wide = padded(out, len(reading.values)) @ reading.values.to(out).mT
        return wide[:, : prompt.values.shape[1]]

    def _mixed(self, prompt: SoftmaxAverage) -> Tensor:
        """What a readout that mixes free queries makes of them, those that ask nothing too."""
        assert self.reading.free_readout is not None
        m, each = prompt.layout.samples, prompt.sharing
        short = prompt.prompts * each - len(prompt.points)
        points = torch.nn.functional.pad(prompt.points, (0, 0, 0, short)).unflatten(0, (-1, each))
        points = torch.nn.functional.pad(points, (0, 0, 0, m - each)).flatten(0, 1)
        own, seen = prompt.biases, prompt.seen
        own = own.repeat_interleave(m, 0) if own.ndim == 2 else own
        seen = None if seen is None else seen.repeat_interleave(m, 0)
        rows = self._averages(replace(prompt, points=points, biases=own, seen=seen))
        mixed: Tensor = self.reading.free_readout.to(rows).mT @ rows.unflatten(0, (-1, m))
        return mixed[:, :each].flatten(0, 1)[: len(prompt.points)]


def _few(logits: Tensor, values: Tensor) -> Tensor | None:
    """The read of rows in which all but a few tokens weigh exactly 0; None where more do not."""
    if logits.shape[1] < tuning.BACKEND_MANY:
        return None
    top = logits.topk(tuning.BACKEND_FEW, dim=1, sorted=True)
    if not bool((top.values[:, -1] < top.values[:, 0] - EXP_UNDERFLOW).all()):
        return None
    return (torch.softmax(top.values, -1)[:, None] @ values[top.indices])[:, 0]


class TritonBackend(FusedBackend):
    """As fused, and refused where a kernel cannot run."""

    name = "triton"
    rounding = Rounding(literal=False)

    @classmethod
    def require(cls) -> None:
        if not has_triton():
            raise DeviceError(
                "backend='triton' needs Triton; install iceform[gpu], or use backend='fused'"
            )
