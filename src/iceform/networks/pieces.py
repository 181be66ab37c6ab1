r"""What a network is made of, each piece in context.

A piece knows the exact map it stands for, the range it was calibrated on, its certified error on
that range, and how an error at its input grows. Errors are 2-norms per token: an input off by e is
off by at most :math:`\|W\|_2 e` behind a linear map, L e behind an L-Lipschitz activation,
:math:`\max|\gamma|\, e / (s - e/\sqrt d)` behind a LayerNorm whose denominator is at least s.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iceform.backends import BACKENDS, fused
from iceform.errors import BoundError, PrecisionError
from iceform.interpolation import Interpolant, ScalarFunction
from iceform.interpolation.storage import describe_grid, grid_from
from iceform.networks.frozen import FrozenLayers
from iceform.validation import unit_roundoff

__all__ = [
    "Activation",
    "EmbeddingMap",
    "Gate",
    "Heads",
    "LinearMap",
    "Norm",
    "Piece",
    "Settings",
    "Span",
    "Table",
]

_SVD_SLACK = 1 + 1e-10  # the computed spectral norm's own rounding
_SMALLEST = 2.0**-20  # a row's range is at least this share of its layer's
_FINEST, _FINEST_UNITS = 2.0**-37, 1  # of a table's range: finer ones cost tokens, gain little
_TRIES = 8  # at a table, each at least twice as coarse
_STEPS = 4  # ranges of tables are rounded up to quarters of an octave, so that layers share them


@dataclass(frozen=True)
class Span:
    """What is known of a stream of tokens.

    Attributes
    ----------
    norm, entry
        Bounds of a token's 2-norm and of its entries.
    error
        Bound of the 2-norm of emulated - exact, per token.
    width
        Features of a token.
    """

    norm: float
    entry: float
    error: float
    width: int

    def plus(self, other: Span, unit: float) -> Span:
        """A residual addition, in floating point."""
        norm = self.norm + other.norm
        error = self.error + other.error + unit * (norm + self.error + other.error)
        return Span(norm, self.entry + other.entry, error, self.width)


@dataclass
class Settings:
    """What all pieces of a network share; the network changes ``mode``."""

    eps: float | None
    dtype: torch.dtype
    backend: str
    headroom: float
    on_range: str
    mode: str = "run"  # or "exact", "calibrate", "measure"
    frozen: FrozenLayers | None = None
    ticks: int = 0  # pieces reached by calibration so far

    @property
    def layers(self) -> FrozenLayers:
        """The frozen layers, once they are sized."""
        assert self.frozen is not None, "the network is not settled yet"
        return self.frozen

    @property
    def unit(self) -> float:
        """Unit roundoff."""
        return unit_roundoff(self.dtype)


class Piece(nn.Module, ABC):
    """One map of the network: exact while calibrating, in context while running."""

    kind: ClassVar[str] = ""
    how: ClassVar[str] = ""
    emulated: ClassVar[bool] = True

    def __init__(self, name: str, settings: Settings) -> None:
        super().__init__()
        self.name, self.settings = name, settings
        self.measured = 0.0
        self.order = math.inf
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
    def emulate(self, *inputs: Tensor) -> Tensor:
        """The map in context; inputs are in range."""

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Take note of a calibration input."""

    def check(self, *inputs: Tensor) -> None:
        """Refuse, or widen for, inputs outside the range."""

    def settle(self) -> None:
        """Fix the range and the tables, after calibration."""

    def settle_for(self, span: Span) -> None:
        """Fix the range and the tables from bounds instead."""

    @property
    def certified(self) -> float:
        """Proven sup-norm error of the piece alone, on its range."""
        return 0.0

    @property
    def range(self) -> float:
        """Largest value that is looked up."""
        return math.nan

    @property
    def tokens(self) -> int:
        """Grid tokens of its look-up table."""
        return 0

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What its certificate takes for granted."""
        return ()

    def ranges(self) -> dict[str, Any]:
        """What :meth:`settle` fixed, JSON only."""
        return {}

    def restore(self, ranges: dict[str, Any]) -> None:
        """The inverse of :meth:`ranges`."""

    # ------------------------------------------------------------------------------ running

    def forward(self, *inputs: Tensor) -> Tensor:
        """Exact, recorded, emulated or measured, as the network's mode says."""
        mode = self.settings.mode
        if mode in ("exact", "calibrate"):
            output = self.exact(*inputs)
            if mode == "calibrate":
                self.record(inputs, output)
                self.order = min(self.order, self.settings.ticks)
                self.settings.ticks += 1
            return self._out(output)
        if not torch.compiler.is_exporting():
            self._checked(*inputs)
        output = self.emulate(*inputs)
        if mode == "measure":
            wide = [t.double() if t.is_floating_point() else t for t in inputs]
            off = (output.double() - self._in_double(*wide)).abs().max()
            self.measured = max(self.measured, float(off))
        return self._out(output)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _checked(self, *inputs: Tensor) -> None:
        """Compiled code checks as well; only what is exported cannot."""
        self.check(*inputs)

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
            f"{self.name}: {what} is {seen:.6g}, calibrated up to {limit:.6g}; calibrate on data "
            "like this, raise headroom=, or use on_range='widen'"
        )

    @property
    def _widens(self) -> bool:
        return self.settings.on_range == "widen"


# ---------------------------------------------------------------------------------------------
# linear maps
# ---------------------------------------------------------------------------------------------


def _powers(ranges: Tensor) -> Tensor:
    """Exponents s with ranges <= 2^s, each at most 20 octaves below the largest."""
    largest = float(ranges.max())
    floor = largest * _SMALLEST if largest > 0 else 1.0
    return torch.log2(ranges.double().clamp(min=floor)).ceil()


def _looked_up(z: Tensor, table: Interpolant) -> Tensor:
    if torch.compiler.is_compiling():
        return table.weights(z) @ table.values.to(z)
    return fused.interpolate(z, table)


class LinearMap(Piece):
    r"""x -> W x + b, every row r looked up on the identity's table scaled by 2^{s_r}.

    The prompt holds :math:`2^{-s_r} (W_r, b_r)`, the look-up of z is scaled back by 2^{s_r}; both
    are exact. The look-up's error is proven for |z_r| <= 2^{s_r} and tokens of 2-norm at most X,
    which bounds the terms of the product by :math:`\|(W_r, b_r)\|_2 \sqrt{X^2 + 1}`; both are
    checked on every input.

    Parameters
    ----------
    name, settings
        As for every piece.
    weight, bias
        Of the map.
    gain
        A factor on both: the 1/sqrt(d) of an attention head goes into its query.
    """

    kind = "linear"
    how = "look-up, weights in the prompt"

    weight: Tensor
    bias: Tensor
    exponents: Tensor
    theta: Tensor
    offset: Tensor
    scale: Tensor

    def __init__(
        self,
        name: str,
        settings: Settings,
        weight: Tensor,
        bias: Tensor | None,
        gain: float = 1.0,
    ) -> None:
        super().__init__(name, settings)
        zero = weight.new_zeros(len(weight))
        for key, value in (("weight", weight), ("bias", zero if bias is None else bias)):
            scaled = value.detach().double() * gain
            self.register_buffer(key, scaled.to(settings.dtype))
        self.rounded = math.frexp(gain)[0] != 0.5  # not a power of two: weights were rounded
        self.largest = torch.zeros(len(weight), dtype=torch.float64)
        self.norm = 0.0
        self._spectral: dict[int, Tensor] = {}
        self.register_buffer("exponents", torch.zeros_like(self.bias))
        self._encode()

    @property
    def in_features(self) -> int:
        """Features read."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """Features written."""
        return self.weight.shape[0]

    def _encode(self) -> None:
        scale = torch.exp2(-self.exponents.to(self.weight))
        self.register_buffer("theta", self.weight * scale[:, None], persistent=False)
        self.register_buffer("offset", self.bias * scale, persistent=False)
        self.register_buffer("scale", torch.exp2(self.exponents.to(self.weight)), persistent=False)

    def exact(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return F.linear(x, self.weight, self.bias)

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        (x,) = inputs
        self.norm = max(self.norm, float(x.norm(dim=-1).max()))
        rows = output.double().abs().flatten(0, -2).amax(0).cpu()
        self.largest = torch.maximum(self.largest, rows)

    def settle(self) -> None:
        self._set(self.settings.headroom * self.largest, self.settings.headroom * self.norm)

    def settle_for(self, span: Span) -> None:
        rows = self.weight.double().norm(dim=-1) * span.norm + self.bias.double().abs()
        self._set(rows * _SVD_SLACK, span.norm)

    def _set(self, ranges: Tensor, norm: float) -> None:
        self.norm = norm
        self.register_buffer("exponents", _powers(ranges).to(self.weight))
        self._encode()

    def check(self, *inputs: Tensor) -> None:
        (x,) = inputs
        norm = float(x.detach().norm(dim=-1).max())
        scaled = F.linear(x, self.theta, self.offset).detach().abs().flatten(0, -2).amax(0)
        if norm <= self.norm and float(scaled.max()) <= 1.0:
            return
        if not (self._widens and math.isfinite(norm)):
            if not norm <= self.norm:
                self._out_of_range("the largest 2-norm of a token", norm, self.norm)
            row = int(scaled.argmax())
            limit = 2.0 ** float(self.exponents[row])
            self._out_of_range(f"max |output {row}|", float(scaled[row]) * limit, limit)
        self.widened += 1
        # Powers of two only grow: rows that are still in range keep their prompt.
        wider = torch.exp2(self.exponents.double()) * scaled.double().clamp(min=1.0)
        self._set(wider, max(self.norm, norm))

    def emulate(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        frozen = self.settings.layers
        if self.settings.backend == "dense":
            ones = torch.ones_like(x[..., :1])
            theta = torch.cat([self.theta, self.offset[:, None]], -1)
            return frozen.read(torch.cat([x, ones], -1), theta) * self.scale
        return _looked_up(F.linear(x, self.theta, self.offset), frozen.table) * self.scale

    @property
    def _terms(self) -> Tensor:
        """Bound of the terms of each row's product."""
        rows = torch.cat([self.weight, self.bias[:, None]], -1).double().norm(dim=-1)
        terms: Tensor = rows * math.hypot(self.norm, 1.0)
        return terms

    def errors(self) -> Tensor:
        """Proven error of every output row."""
        settings, table = self.settings, self.settings.layers.table
        scale = torch.exp2(self.exponents.double())
        largest = float((self._terms / scale).max())
        summands = self.in_features + 1 + int(self.rounded)
        model = BACKENDS[settings.backend].model(settings.dtype, table, largest, summands)
        if not model.gamma * largest <= settings.layers.slack:
            raise PrecisionError(
                f"{self.name}: products of terms up to {largest:.3g} times their range round by "
                f"more than {settings.layers.slack:.3g} of it in {settings.dtype}; use float64",
                best=model.gamma * largest,
            )
        return scale * (table.error + table.rounding(model))

    @property
    def certified(self) -> float:
        return float(self.errors().max())

    @property
    def range(self) -> float:
        return float(torch.exp2(self.exponents).max())

    @property
    def tokens(self) -> int:
        return self.settings.layers.table.tokens

    def spectral(self, blocks: int = 1) -> Tensor:
        """Spectral norm of each block of rows; kept, since weights do not change."""
        if blocks not in self._spectral:
            parts = self.weight.double().unflatten(0, (blocks, -1))
            self._spectral[blocks] = torch.linalg.matrix_norm(parts, 2) * _SVD_SLACK
        return self._spectral[blocks]

    def carried(self, error: float, blocks: int = 1) -> Tensor:
        """Error of each block of outputs, given that of the input."""
        own = self.errors().unflatten(0, (blocks, -1)).norm(dim=-1)
        total: Tensor = self.spectral(blocks) * error + own
        return total

    def walk(self, span: Span) -> Span:
        """Ranges and error behind the map."""
        ranges = torch.exp2(self.exponents.double())
        return Span(
            float(ranges.norm()), float(ranges.max()), float(self.carried(span.error)[0]),
            self.out_features,
        )  # fmt: skip

    def ranges(self) -> dict[str, Any]:
        return {"norm": self.norm}

    def restore(self, ranges: dict[str, Any]) -> None:
        self.norm = float(ranges["norm"])
        self._spectral = {}
        self._encode()


class EmbeddingMap(Piece):
    """ids -> rows of a table of vectors, every entry read through the frozen layer.

    The row that an id names is put into the prompt as weights of the input 1 (choosing it is
    indexing, as a tokenizer does); the range is known from the weights.
    """

    kind = "embedding"
    how = "look-up, the id's row in the prompt"

    weight: Tensor
    exponents: Tensor
    scale: Tensor

    def __init__(self, name: str, settings: Settings, weight: Tensor) -> None:
        super().__init__(name, settings)
        self.register_buffer("weight", weight.detach().to(settings.dtype))
        self.register_buffer("exponents", _powers(self.weight.abs().amax(0)).to(self.weight))
        self._encode()

    def _encode(self) -> None:
        self.register_buffer("scale", torch.exp2(self.exponents.to(self.weight)), persistent=False)

    def exact(self, *inputs: Tensor) -> Tensor:
        (ids,) = inputs
        return F.embedding(ids, self.weight)

    def emulate(self, *inputs: Tensor) -> Tensor:
        (ids,) = inputs
        frozen = self.settings.layers
        theta = F.embedding(ids, self.weight) / self.scale
        if self.settings.backend == "dense":
            ones = torch.ones_like(theta[..., :1])
            return frozen.read(ones, theta[..., None]) * self.scale
        return _looked_up(theta, frozen.table) * self.scale

    def errors(self) -> Tensor:
        """Proven error of every feature."""
        settings, table = self.settings, self.settings.layers.table
        model = BACKENDS[settings.backend].model(settings.dtype, table, 1.0, 1)
        return torch.exp2(self.exponents.double()) * (table.error + table.rounding(model))

    @property
    def certified(self) -> float:
        return float(self.errors().max())

    @property
    def range(self) -> float:
        return float(self.scale.max())

    @property
    def tokens(self) -> int:
        return self.settings.layers.table.tokens

    def walk(self) -> Span:
        """Ranges and error of the vectors."""
        vectors = self.weight.double()
        return Span(
            float(vectors.norm(dim=-1).max()), float(vectors.abs().max()),
            float(self.errors().norm()), vectors.shape[1],
        )  # fmt: skip

    def restore(self, ranges: dict[str, Any]) -> None:
        del ranges
        self._encode()


# ---------------------------------------------------------------------------------------------
# activations
# ---------------------------------------------------------------------------------------------


def _rounded_up(value: float) -> float:
    """The next quarter of an octave, so that layers with like ranges share a table."""
    octave = 2.0 ** math.floor(math.log2(value))
    return octave * math.ceil(_STEPS * value / octave) / _STEPS


@lru_cache(maxsize=64)
def _fitted(f: ScalarFunction, high: float, eps: float) -> Interpolant:
    """The smallest table to ``eps``, or to the least multiple of it that can be certified."""
    for _ in range(_TRIES):
        try:
            return Interpolant.fit(f, -high, high, eps)
        except PrecisionError as missed:
            eps = max(2 * eps, eps if missed.best is None else missed.best)
    return Interpolant.fit(f, -high, high, None)


class Activation(Piece):
    """An elementwise map; what tables and gates share."""

    kind = "activation"

    def __init__(self, name: str, settings: Settings, function: ScalarFunction, slope: float):
        super().__init__(name, settings)
        self.function, self.slope = function, slope
        self.largest = 0.0
        self.high = 1.0
        self.width = 1

    def exact(self, *inputs: Tensor) -> Tensor:
        (z,) = inputs
        return self.function.call(z)

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.largest = max(self.largest, float(inputs[0].abs().max()))
        self.width = output.shape[-1]

    def settle(self) -> None:
        self._set(_rounded_up(max(self.settings.headroom * self.largest, _SMALLEST)))

    def settle_for(self, span: Span) -> None:
        self.width = span.width
        self._set(_rounded_up(max(span.entry + span.error, _SMALLEST)))

    def _set(self, high: float) -> None:
        self.high = high

    def check(self, *inputs: Tensor) -> None:
        largest = float(inputs[0].detach().abs().max())
        if largest <= self.high:
            return
        if not (self._widens and math.isfinite(largest)):
            self._out_of_range(f"max |input| of {self.function.name}", largest, self.high)
        self.widened += 1
        self._set(_rounded_up(self.settings.headroom * largest))

    @property
    def range(self) -> float:
        return self.high

    def walk(self, span: Span) -> Span:
        """Ranges and error behind the activation."""
        at_zero = abs(float(self.function(torch.zeros(1, dtype=torch.float64))))
        root = math.sqrt(span.width)
        error = self.slope * span.error + root * self.certified
        return Span(
            self.slope * span.norm + root * at_zero, self.slope * self.high + at_zero, error,
            span.width,
        )  # fmt: skip

    def ranges(self) -> dict[str, Any]:
        return {"high": self.high, "width": self.width}

    def restore(self, ranges: dict[str, Any]) -> None:
        self.width = int(ranges["width"])
        self._set(float(ranges["high"]))


class Table(Activation):
    """A smooth activation: values of a fitted table in the prompt, read by the attending layer."""

    how = "look-up, values in the prompt"

    def _set(self, high: float) -> None:
        settings = self.settings
        finest = max(_FINEST, _FINEST_UNITS * unit_roundoff(settings.dtype))
        eps = finest if settings.eps is None else max(finest, settings.eps / 2)
        super()._set(high)
        self.table = _fitted(self.function, high, eps * high)
        if settings.eps is not None and not self.certified <= settings.eps * high:
            raise PrecisionError(
                f"{self.name}: {self.function.name} on [-{high:.6g}, {high:.6g}] is certified to "
                f"{self.certified / high:.3g} of its range in {settings.dtype}, not to eps = "
                f"{settings.eps:.3g}",
                best=self.certified / high,
            )

    def emulate(self, *inputs: Tensor) -> Tensor:
        (z,) = inputs
        if self.settings.backend != "dense":
            return _looked_up(z, self.table)
        keys = torch.stack([self.table.keys.slopes, self.table.keys.biases], -1).to(z)
        queries = torch.stack([z, torch.ones_like(z)], -1)[..., None, :]
        values = self.table.values.to(z)[:, None]
        logits = 2 * float((keys[:, 0].abs() * self.high + keys[:, 1].abs()).max())
        margin = self.settings.layers.margin(logits)
        mask = z.new_zeros(1, len(keys))
        return self.settings.layers.attend(keys, queries, values, mask, margin)[..., 0, 0]

    @property
    def certified(self) -> float:
        settings = self.settings
        model = BACKENDS[settings.backend].model(settings.dtype, self.table, self.high, 1)
        leak = 2 * self.table.size * settings.layers.leak if settings.backend == "dense" else 0.0
        return self.table.error + self.table.rounding(model) + leak

    @property
    def tokens(self) -> int:
        return self.table.tokens

    @property
    def assumptions(self) -> tuple[str, ...]:
        return self.table.assumptions

    def ranges(self) -> dict[str, Any]:
        it = self.table
        table = {
            "grid": describe_grid(it.grid),
            "sharpness": it.sharpness,
            "values": it.values.tolist(),
            "regime": it.regime,
            "error": it.error,
            "assumptions": list(it.assumptions),
        }
        return {**super().ranges(), "table": table}

    def restore(self, ranges: dict[str, Any]) -> None:
        saved = ranges["table"]
        self.width, self.high = int(ranges["width"]), float(ranges["high"])
        self.table = Interpolant(
            grid_from(saved["grid"]),
            float(saved["sharpness"]),
            torch.tensor(saved["values"], dtype=torch.float64),
            str(saved["regime"]),
            float(saved["error"]),
            self.function,
            tuple(saved["assumptions"]),
        )


class Gate(Activation):
    r"""z sigma(b z): an attention head that chooses between the tokens z and 0.

    Keys b z and 0, values z and 0, so the output is :math:`z e^{bz} / (e^{bz} + 1)`. With b = 1
    that is SiLU itself. As b grows it tends to ReLU, off by at most W(1/e)/b < 0.2785/b (W is
    Lambert's function): a head at low temperature has no trouble with a kink.

    Parameters
    ----------
    name, settings, function, slope
        As for every activation.
    sharpness
        b, a power of two.
    error
        Bound of |z sigma(b z) - f(z)|.
    """

    how = "chosen between z and 0 by a head"

    def __init__(
        self,
        name: str,
        settings: Settings,
        function: ScalarFunction,
        slope: float,
        *,
        sharpness: float,
        error: float,
    ) -> None:
        super().__init__(name, settings, function, slope)
        self.sharpness, self.error = sharpness, error

    def emulate(self, *inputs: Tensor) -> Tensor:
        (z,) = inputs
        keys = torch.stack([self.sharpness * z, torch.zeros_like(z)], -1)[..., None]
        values = torch.stack([z, torch.zeros_like(z)], -1)[..., None]
        if self.settings.backend != "dense":
            return (torch.softmax(keys[..., 0], -1) * values[..., 0]).sum(-1)
        one = torch.ones_like(z)[..., None, None]
        margin = self.settings.layers.margin(self.sharpness * self.high)
        mask = z.new_zeros(1, 2)
        return self.settings.layers.attend(keys, one, values, mask, margin)[..., 0, 0]

    @property
    def certified(self) -> float:
        # The weight of z is known to 8 u relative (two exponentials, a sum, a quotient, and the
        # maximum subtracted from a logit t, which matters only while t e^{-t} does), then z p.
        return self.error + 12 * self.settings.unit * self.high

    @property
    def tokens(self) -> int:
        return 2


# ---------------------------------------------------------------------------------------------
# heads and norms
# ---------------------------------------------------------------------------------------------


class Heads(Piece):
    """Softmax attention on keys, queries and values that were looked up.

    The softmax is the target head's own, and it is the frozen attending layer that computes it.
    """

    kind = "heads"
    how = "attended, Q, K, V looked up"

    def __init__(self, name: str, settings: Settings, heads: int, head_dim: int, value_dim: int):
        super().__init__(name, settings)
        self.heads, self.head_dim, self.value_dim = heads, head_dim, value_dim
        self.norms = {key: [0.0] * heads for key in "qkv"}
        self.bias = 0.0  # largest finite entry of a mask
        self.length = 1
        self.hook_pattern = nn.Identity()

    def exact(self, *inputs: Tensor) -> Tensor:
        q, k, v, *mask = inputs
        pattern: Tensor = self.hook_pattern(self.weights(q, k, mask[0] if mask else None))
        return pattern @ v

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of every query, for callers who ask for it."""
        return torch.softmax(q @ k.mT + (0.0 if mask is None else mask), -1)

    def _seen(self, inputs: tuple[Tensor, ...]) -> dict[str, list[float]]:
        """The largest 2-norm of each head's keys, queries and values; (*b, heads, n, d)."""
        return {
            key: t.detach().double().norm(dim=-1).movedim(-2, 0).flatten(1).amax(1).tolist()
            for key, t in zip("qkv", inputs[:3], strict=True)
        }

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._grow(self._seen(inputs), 1.0)
        self.bias = max(self.bias, self._added(inputs))
        self.length = max(self.length, output.shape[-2], inputs[1].shape[-2])

    @staticmethod
    def _added(inputs: tuple[Tensor, ...]) -> float:
        """The largest |entry| of a mask that does not forbid."""
        if len(inputs) < 4:
            return 0.0
        mask = inputs[3].detach()
        allowed = mask > torch.finfo(mask.dtype).min / 2
        return float(mask.masked_fill(~allowed, 0.0).abs().max())

    def _grow(self, seen: dict[str, list[float]], factor: float) -> None:
        self.norms = {
            key: [max(a, factor * b) for a, b in zip(self.norms[key], seen[key], strict=True)]
            for key in "qkv"
        }

    def settle(self) -> None:
        headroom = self.settings.headroom
        self.norms = {key: [headroom * n for n in norms] for key, norms in self.norms.items()}

    def settle_from(self, maps: dict[str, LinearMap], length: int) -> None:
        """Ranges from those of the maps that make keys, queries and values."""
        self.norms = {
            key: torch.exp2(m.exponents.double())
            .unflatten(0, (self.heads, -1))
            .norm(dim=-1)
            .tolist()
            for key, m in maps.items()
        }
        self.length = length

    def check(self, *inputs: Tensor) -> None:
        longest = self.settings.layers.sizes.tokens
        if inputs[1].shape[-2] > longest or inputs[0].shape[-2] > longest:
            raise BoundError(
                f"{self.name}: a sequence of {max(inputs[0].shape[-2], inputs[1].shape[-2])} "
                f"tokens, the frozen layers are sized for {longest}; pass tokens="
            )
        added = self._added(inputs)
        if not added <= self.bias:
            if not self._widens:
                self._out_of_range("the largest entry of a mask", added, self.bias)
            self.bias = added
        seen = self._seen(inputs)
        for key, word in (("q", "query"), ("k", "key"), ("v", "value")):
            for head, (norm, limit) in enumerate(zip(seen[key], self.norms[key], strict=True)):
                if norm <= limit:
                    continue
                if not (self._widens and math.isfinite(norm)):
                    self._out_of_range(
                        f"the largest 2-norm of a {word} of head {head}", norm, limit
                    )
                self.widened += 1
                return self._grow(seen, self.settings.headroom)
        return None

    def emulate(self, *inputs: Tensor) -> Tensor:
        if self.settings.backend != "dense":
            return self.exact(*inputs)
        q, k, v, *mask = inputs
        allowed = mask[0] if mask else q.new_zeros(q.shape[-2], k.shape[-2])
        frozen = self.settings.layers
        return frozen.attend(k, q, v, allowed, frozen.margin(self.logits + self.bias))

    @property
    def logits(self) -> float:
        """Bound of |q . k|."""
        return max(q * k for q, k in zip(self.norms["q"], self.norms["k"], strict=True))

    @property
    def range(self) -> float:
        return self.logits

    @property
    def tokens(self) -> int:
        return self.length

    def _rounding(self) -> tuple[float, float]:
        """Of a logit, relative to |q||k|, and of the weighted sum."""
        unit = self.settings.unit
        return (self.head_dim + 4) * unit, (2 * self.settings.layers.sizes.tokens + 16) * unit

    def carried(self, errors: dict[str, Tensor]) -> Tensor:
        r"""Error of each head's output: :math:`e_v + 2 \tanh(\Delta/2) \max\|v\|` and rounding.

        A logit moves by at most Delta = |q| e_k + |k| e_q + e_q e_k and its own rounding.
        """
        q, k, v = (torch.tensor(self.norms[key], dtype=torch.float64) for key in "qkv")
        dot, sums = self._rounding()
        moved = q * errors["k"] + k * errors["q"] + errors["q"] * errors["k"] + dot * q * k
        moved = moved + 2 * self.settings.unit * self.bias
        leak = self.settings.layers.leak
        largest = v + errors["v"]
        return errors["v"] + 2 * torch.tanh(moved / 2) * largest + (sums + 2 * leak) * largest

    @property
    def certified(self) -> float:
        none = torch.zeros(self.heads, dtype=torch.float64)
        return float(self.carried(dict.fromkeys("qkv", none)).max())

    def walk(self, maps: dict[str, LinearMap], query: Span, key: Span) -> Span:
        """Ranges and error behind the heads, concatenated."""
        spans = {"q": query, "k": key, "v": key}
        errors = {n: m.carried(spans[n].error, self.heads) for n, m in maps.items()}
        v = torch.tensor(self.norms["v"], dtype=torch.float64)
        error = float(self.carried(errors).norm())
        return Span(float(v.norm()), float(v.max()), error, self.heads * self.value_dim)

    def ranges(self) -> dict[str, Any]:
        return {"norms": self.norms, "length": self.length, "bias": self.bias}

    def restore(self, ranges: dict[str, Any]) -> None:
        norms = {key: [float(n) for n in ranges["norms"][key]] for key in "qkv"}
        self.norms, self.length = norms, int(ranges["length"])
        self.bias = float(ranges["bias"])


class Norm(Piece):
    r"""LayerNorm, as it is: not emulated, but its rounding and its amplification are accounted for.

    With s the least :math:`\sqrt{\sigma^2 + \epsilon}` of a token, checked on every input.
    """

    kind = "LayerNorm"
    how = "not emulated"
    emulated = False

    weight: Tensor
    bias: Tensor

    def __init__(self, name: str, settings: Settings, norm: nn.LayerNorm) -> None:
        super().__init__(name, settings)
        self.width = math.prod(norm.normalized_shape)
        one = torch.ones(self.width)
        weight = one if norm.weight is None else norm.weight
        bias = 0 * one if norm.bias is None else norm.bias
        self.register_buffer("weight", weight.detach().to(settings.dtype))
        self.register_buffer("bias", bias.detach().to(settings.dtype))
        self.floor = norm.eps
        self.least, self.norm = math.inf, 0.0

    def exact(self, *inputs: Tensor) -> Tensor:
        return F.layer_norm(inputs[0], (self.width,), self.weight, self.bias, self.floor)

    def emulate(self, *inputs: Tensor) -> Tensor:
        return self.exact(*inputs)

    def _seen(self, x: Tensor) -> tuple[float, float]:
        x = x.detach()
        variance = x.var(-1, unbiased=False)
        return float((variance + self.floor).sqrt().min()), float(x.norm(dim=-1).max())

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        least, norm = self._seen(inputs[0])
        self.least, self.norm = min(self.least, least), max(self.norm, norm)

    def settle(self) -> None:
        self._set(self.least / self.settings.headroom, self.norm * self.settings.headroom)

    def settle_for(self, span: Span) -> None:
        self._set(math.sqrt(self.floor), span.norm)

    def _set(self, least: float, norm: float) -> None:
        self.least, self.norm = max(least, math.sqrt(self.floor)), norm

    def check(self, *inputs: Tensor) -> None:
        least, norm = self._seen(inputs[0])
        if least >= self.least * (1 - 2**-10) and norm <= self.norm:
            return
        if not (self._widens and math.isfinite(norm)):
            if norm <= self.norm:
                raise BoundError(
                    f"{self.name}: a token's standard deviation is {least:.6g}, calibrated down to "
                    f"{self.least:.6g}; calibrate on data like this, or use on_range='widen'"
                )
            self._out_of_range("the largest 2-norm of a token", norm, self.norm)
        self.widened += 1
        self._set(min(self.least, least), max(self.norm, norm))

    @property
    def range(self) -> float:
        return self.norm

    @property
    def certified(self) -> float:
        """Rounding: mean and variance of d numbers, a quotient, an affine map."""
        d, unit, s = self.width, self.settings.unit, self.least * (1 - 2**-10)
        gain = float(self.weight.abs().max())
        centred = 2 * (d + 3) * unit * self.norm / s + math.sqrt(d) * (d + 6) * unit
        size = gain * math.sqrt(d) + float(self.bias.double().norm())
        return gain * centred + 3 * unit * size

    def walk(self, span: Span) -> Span:
        """Ranges and error behind the norm; never more than twice what it can give."""
        gain, root = float(self.weight.abs().max()), math.sqrt(self.width)
        norm = gain * root + float(self.bias.double().norm())
        least = self.least * (1 - 2**-10) - span.error / root
        grown = gain * span.error / least if least > 0 else math.inf
        error = min(grown, 2 * gain * root) + self.certified
        return Span(norm, gain * root + float(self.bias.abs().max()), error, self.width)

    def ranges(self) -> dict[str, Any]:
        return {"least": self.least, "norm": self.norm}

    def restore(self, ranges: dict[str, Any]) -> None:
        self.least, self.norm = float(ranges["least"]), float(ranges["norm"])
