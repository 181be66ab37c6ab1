"""Backend: how the forward pass of a frozen network is evaluated.

A backend is made from a network. :class:`LiteralBackend` multiplies its matrices with a prompt's
tokens: it is the definition. :class:`AblatedBackend`, which cannot be asked for by name, is what a
run would return if attention did nothing.

:class:`FusedBackend` is what the design of a network says that it computes, without its tokens in
memory: a look-up of every sample, and of prompts in memory a formula for every layer
(:mod:`iceform.run.formulas`). It runs if and only if every bit of the weights, when it is bound, is
as the design implies: a call of a construction binds it, and :meth:`Backend.recheck` is for who
keeps it. Other weights are multiplied as they are: "auto" takes :class:`LiteralBackend` for them,
and "fused" refuses. What a prompt holds is read as the data it is. :class:`TritonBackend` is the
same and insists on its GPU kernels.
:class:`Rounding` is what a backend declares of its logits, and what certificates follow.

A new backend is one file: subclass :class:`Backend`, give it a ``name`` and its ``rounding``, and
supply :meth:`Backend.run`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import gamma
from iceform.errors import DeviceError, IntegrityError, ProgramError
from iceform.heads import FrozenNetwork, LookUps, Prompt, SoftmaxAverage
from iceform.heads.lookups import HIDDEN
from iceform.heads.network import is_checked
from iceform.run import primitives
from iceform.run.formulas import as_it_stands
from iceform.run.primitives import SampleMaxima, has_triton
from iceform.run.windowed import sum_block, tell
from iceform.tables import GivenGrid, Interpolant, RoundingModel
from iceform.tables.local import tail_mass
from iceform.validation import check_choice, full_precision, guard, unit_roundoff

AnyPrompt = Prompt | LookUps | SoftmaxAverage
_BORDER = ("count", "mean", "run", "total")  # where prompts come in


@dataclass(frozen=True)
class Rounding:
    """How a backend rounds: what its certificates follow from.

    Sums over samples are accumulated in float64 whatever the dtype, but for blocks of
    :func:`sum_block` rows.

    Parameters
    ----------
    literal
        True where logits come from the literal inner product of keys and queries.

    Examples
    --------
    >>> Rounding(literal=False).sum_error(torch.float64, count=1000) < 1e-12
    True
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
    """A way to run one frozen network; :func:`bind` makes one by its name.

    Parameters
    ----------
    network
        Whose weights run.
    later
        Check them by :meth:`settle`, after a pass and before its answer is handed out, instead of
        now: on a GPU the bytes are hashed while it computes.

    Examples
    --------
    >>> sorted(Backend.kinds)
    ['fused', 'literal', 'triton']
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

    def recheck(self) -> None:
        """Refuse to go on with weights that are not those it was bound to."""
        if self.digest is None or torch.compiler.is_compiling():
            return
        found = self.network.check()
        if found != self.digest:
            raise IntegrityError(
                f"backend={self.name!r} was bound to weights whose SHA-256 is {self.digest[:12]}; "
                f"theirs is {found[:12]} now: bind the network again"
            )

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
    def total(
        self, prompt: LookUps, watch: SampleMaxima | None = None, over: int = 1,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:  # fmt: skip
        """The sum of all samples' rows but for their last entries, shape (*batch, d).

        It is added up in float64, divided by ``over`` and given in ``dtype``; ``watch`` is shown
        every sample.
        """
        if watch is not None:
            watch(prompt.x)
        total = self._added(prompt, lambda part: self.run(part)[..., :-1].double().sum(-2))
        return (total / over).to(dtype)

    @full_precision
    def mean(
        self, prompt: LookUps, watch: SampleMaxima | None = None, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """:meth:`total` over the number of samples, in ``dtype``."""
        return self.total(prompt, watch, prompt.count, dtype)

    @full_precision
    def count(self, prompt: LookUps) -> Tensor:
        """The sum of the rows' last entries, float64, shape (*batch,)."""
        return self._added(prompt, lambda part: self.run(part)[..., -1:].double().sum(-2))[..., 0]

    def _added(self, prompt: LookUps, sums: Callable[[LookUps], Tensor]) -> Tensor:
        """Sums over parts of whole prompts, added up and told."""
        rows = max(1, tuning.WINDOWED_PART // prompt.layout.samples) * prompt.layout.samples
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
    """How the backend of this name rounds.

    Examples
    --------
    >>> rounding_of("literal")
    Rounding(literal=True)
    """
    return Backend.kinds[name].rounding


def resolve(name: str) -> str:
    """The backend that ``name`` stands for.

    "auto" is "fused", which takes the fastest certified way for the device, dtype and size of
    every call (:func:`bind` has what it is for other weights than those that were built); "triton"
    insists on the GPU kernels.

    Examples
    --------
    >>> resolve("auto")
    'fused'
    """
    choice = check_choice("backend", name, ("auto", *Backend.kinds))
    choice = "fused" if choice == "auto" else choice
    Backend.kinds[choice].require()
    return choice


def bind(network: FrozenNetwork, name: str, *, later: bool = False) -> Backend:
    """The backend of this name on this network, whose weights are checked now or later.

    "auto" is "fused" where the weights are those that were built, and "literal" where, inside
    :func:`iceform.heads.unchecked`, they are others.

    Parameters
    ----------
    network
        Whose weights run.
    name
        "auto", "fused", "literal" or "triton".
    later
        Check the weights when :meth:`Backend.settle` is called, instead of now.

    Examples
    --------
    >>> from iceform.heads import LookUpLayout, LookUps
    >>> table = ice.Interpolant.identity(-2, 2, 1e-9)
    >>> layout = LookUpLayout(dim=2, samples=4, tokens=table.tokens)
    >>> x, w = torch.tensor([[0.5, 0.25]]).double(), torch.ones(2).double()
    >>> prompt = LookUps(layout, table, x, x.new_zeros(1), w)
    >>> row = bind(layout.build(), "auto").run(prompt)  # w.x (x, 1)
    >>> torch.allclose(row, torch.tensor([0.375, 0.1875, 0.75]).double(), atol=1e-8)
    True
    """
    if name == "auto":
        built = network.expected is not None
        name = "fused" if built and (is_checked() or _is_built(network)) else "literal"
    if name not in Backend.kinds:
        raise DeviceError(f"no backend is called {name!r}; there are {', '.join(Backend.kinds)}")
    return Backend.kinds[name](network, later=later)


def _is_built(network: FrozenNetwork) -> bool:
    return torch.compiler.is_compiling() or network.check() == network.expected


class LiteralBackend(Backend):
    """The matrices W_K, W_Q, W_V and W_O, multiplied with the tokens of a prompt: the definition.

    Examples
    --------
    >>> from iceform.heads import LookUpLayout, LookUps
    >>> table = ice.Interpolant.identity(-2, 2, 1e-9)
    >>> layout = LookUpLayout(dim=2, samples=4, tokens=table.tokens)
    >>> x, w = torch.tensor([[0.5, 0.25]]).double(), torch.ones(2).double()
    >>> prompt = LookUps(layout, table, x, x.new_zeros(1), w)
    >>> literal, fused = (kind(layout.build()) for kind in (LiteralBackend, FusedBackend))
    >>> torch.allclose(literal.run(prompt), fused.run(prompt), atol=1e-14)
    True
    """

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


def other_weights(name: str, network: FrozenNetwork, digest: str) -> IntegrityError:
    """What a backend that computes by a design says of weights that are not the design's."""
    implied = (network.expected or "none")[:12]
    return IntegrityError(
        f"backend={name!r} runs the weights that a design implies: these hash to {digest[:12]}, "
        f"their design implies {implied}; use backend='auto' or 'literal', which multiply them as "
        "they are"
    )


class AblatedBackend(Backend):
    """A network without its attention: what it changes is what attention computes.

    Look-ups return their argument, and averages weigh all tokens alike.

    Examples
    --------
    >>> from iceform.heads import LookUpLayout, LookUps
    >>> table = ice.Interpolant.fit(torch.relu, -2, 2, 1e-3)
    >>> layout = LookUpLayout(dim=1, samples=4, tokens=table.tokens)
    >>> one = torch.ones(1, 1).double()
    >>> prompt = LookUps(layout, table, one, one[0] * 0, -one[0])
    >>> network = layout.build()
    >>> float(AblatedBackend(network).run(prompt)[0, 0])  # -1, which relu would make 0
    -1.0
    >>> abs(float(bind(network, "fused").run(prompt)[0, 0])) < 1e-3
    True
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
    """The fastest certified way for the device, dtype and size of every call.

    It computes what the design of a network says, so it runs that design's weights and no others.

    Examples
    --------
    >>> from iceform.heads import LookUpLayout, LookUps
    >>> table = ice.Interpolant.identity(-2, 2, 1e-9)
    >>> layout = LookUpLayout(dim=2, samples=4, tokens=table.tokens)
    >>> x, w = torch.tensor([[0.5, 0.25]]).double(), torch.ones(2).double()
    >>> prompt = LookUps(layout, table, x, x.new_zeros(1), w)
    >>> backend = FusedBackend(layout.build())
    >>> backend.digest == backend.network.expected
    True
    >>> total = backend.total(prompt)  # over samples, without materialising tokens
    >>> torch.allclose(total, torch.tensor([0.375, 0.1875]).double(), atol=1e-8)
    True
    """

    name = "fused"
    rounding = Rounding(literal=False)

    def __init__(self, network: FrozenNetwork, *, later: bool = False) -> None:
        super().__init__(network, later=later)
        if self.digest is not None and self.digest != network.expected:
            raise other_weights(self.name, network, self.digest)

    def run(self, prompt: Prompt | LookUps | SoftmaxAverage) -> Tensor:
        if isinstance(prompt, LookUps):
            return self._look_up(prompt)
        if isinstance(prompt, SoftmaxAverage):
            return self._average(prompt)
        *_, last = self.stream(prompt)
        return last

    def stream(self, prompt: Prompt) -> Iterator[Tensor]:
        tokens = prompt.tokens
        for layer, formula in zip(self.network.layers, self.network.formulas, strict=True):
            if formula is None:
                tokens = as_it_stands(layer, tokens)
            else:
                tokens = formula(layer, tokens, self.name)
            yield tokens

    def _look_up(self, prompt: LookUps) -> Tensor:
        looked = prompt.weighed(self._looked(prompt))[..., None]
        row = looked * prompt.x.to(looked.dtype)
        if prompt.keep:
            row = row + prompt.keep * prompt.w[..., None, :]
        return torch.cat([row, looked.expand(*row.shape[:-1], 1)], -1)

    def _looked(self, prompt: LookUps) -> Tensor:
        return primitives.interpolate(prompt.residuals(), self._table(prompt), self.name)

    def _table(self, prompt: LookUps) -> Interpolant:
        """The table that the prompt's tokens hold: the one it was written from, or another."""
        self._check_layout(prompt)
        written = prompt.table
        pairs = (
            (prompt.slopes, written.keys.slopes),
            (prompt.biases, written.keys.biases),
            (prompt.values, written.values),
        )
        if all(a is b or torch.equal(a, b) for a, b in pairs):
            return written
        grid = GivenGrid(-math.inf, math.inf, written.grid.center, prompt.slopes, prompt.biases)
        return Interpolant(grid, 0.0, prompt.values, "given", math.inf)  # type: ignore[arg-type]

    def _check_layout(self, prompt: LookUps | SoftmaxAverage) -> None:
        """Refuse prompts for a layer that this network has not, or has with a margin that leaks."""
        if prompt.layout != self.network.layout:
            raise IntegrityError(
                f"backend={self.name!r} computes look-ups where the network is their layer: the "
                f"prompt is for {prompt.layout}, the network for {self.network.layout}; use "
                "backend='literal'"
            )

    def total(
        self, prompt: LookUps, watch: SampleMaxima | None = None, over: int = 1,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:  # fmt: skip
        if prompt.factors is not None:
            return super().total(prompt, watch, over, dtype)
        mix = prompt.gain / over, prompt.count // over * prompt.keep
        x, y, w, offsets = prompt.x, prompt.y, prompt.w, prompt.offsets
        table = self._table(prompt)
        return primitives.residual_sum(x, y, w, table, offsets, self.name, watch, mix, dtype)

    def count(self, prompt: LookUps) -> Tensor:
        def counted(part: LookUps) -> Tensor:
            return part.weighed(self._looked(part)).double().sum(-1, keepdim=True)

        return self._added(prompt, counted)[..., 0]

    def _average(self, prompt: SoftmaxAverage) -> Tensor:
        self._check_layout(prompt)
        at_once = max(1, tuning.BACKEND_LOGITS // max(1, len(prompt.keys)))
        starts = range(0, len(prompt.points), at_once)
        parts = [_averages(prompt.part(slice(i, i + at_once))) for i in starts]
        return torch.cat(parts) if parts else prompt.values[:0]


def _averages(prompt: SoftmaxAverage) -> Tensor:
    """Every point's own average."""
    logits = torch.addmm(prompt.biases, prompt.points, prompt.keys.mT)
    if prompt.seen is not None:
        logits.sub_((~prompt.seen).to(logits).mul_(HIDDEN))
    return torch.softmax(logits, -1) @ prompt.values


class TritonBackend(FusedBackend):
    """As :class:`FusedBackend`, by this package's GPU kernels, and refused where they cannot run.

    Examples
    --------
    >>> TritonBackend.name
    'triton'
    """

    name = "triton"
    rounding = Rounding(literal=False)

    @classmethod
    def require(cls) -> None:
        if not has_triton():
            raise DeviceError(
                "backend='triton' needs Triton; install iceform[gpu], or use backend='fused'"
            )
