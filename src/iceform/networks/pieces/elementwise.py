"""Activations: by a look-up table, or by a head that chooses."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.arithmetic import at_most, exactly
from iceform.certificates.witness import ReplayedEntry
from iceform.codec import decode, encode
from iceform.errors import BoundError, PrecisionError, ProgramError
from iceform.expressions import ScalarFunction
from iceform.networks.activations import ACTIVATIONS, KnownActivation
from iceform.networks.pieces.base import (
    SMALLEST_SHARE,
    Bounds,
    Piece,
    PieceSettings,
)
from iceform.networks.pieces.linear import LinearMap
from iceform.networks.pieces.readings import TokenChoice
from iceform.run import primitives, rounding_of
from iceform.tables import Interpolant
from iceform.tables.storage import proved_again, table_from
from iceform.validation import unit_roundoff

_FINEST, _FINEST_UNITS = 2.0**-37, 1  # of a table's range: finer ones cost tokens, gain little
_FIXED, _FIXED_UNITS = 2.0**-36, 2  # error of a table on a fixed range
_TRIES = 8  # at a table, each at least twice as coarse
_STEPS = 4  # ranges of tables are rounded up to quarters of an octave, so that layers share them


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
    fixed: ClassVar[dict[str, Any]] = {"high": float}

    def __init__(self, name: str, settings: PieceSettings, known: KnownActivation) -> None:
        super().__init__(name, settings)
        self.known, self.function, self.tails = known, known.function, known.tails
        self.largest, self.high = 0.0, 1.0

    @property
    def everywhere(self) -> bool:
        """Whether its certificate is as good on any range, so that widening costs nothing."""
        return False

    def bounds(self, *given: Bounds, widen: bool = True) -> Bounds:
        if widen and self.everywhere and math.isfinite(given[0].entry):
            self.high = max(self.high, given[0].entry)
        at_zero = abs(float(self.function(torch.zeros(1, dtype=torch.float64))))
        known, seen = self.known, min(self.high, given[0].entry)
        entry = min(known.slope * seen + at_zero, known.size, known.gain * seen) + self.certified
        return Bounds(entry, width=given[0].width)

    def exact(self, *inputs: Tensor) -> Tensor:
        (z,) = inputs
        return self.function.call(z)

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.largest = max(self.largest, float(inputs[0].abs().max()))

    def freeze_range(self) -> None:
        self._set(_rounded_up(max(self.settings.headroom * self.largest, SMALLEST_SHARE)))

    def set_range_from(self, *given: Bounds) -> None:
        self._set(_rounded_up(max(given[0].entry, SMALLEST_SHARE)))

    def _set(self, high: float) -> None:
        self.high = high

    def check_range(self, numbers: list[float], *inputs: Tensor) -> bool:
        (largest,) = numbers
        if largest <= self.high:
            return False
        if not (self._widens and math.isfinite(largest)):
            self._out_of_range(f"max |input| of {self.function.name}", largest, self.high)
        if self.everywhere:
            self.high = _rounded_up(self.settings.headroom * largest)
            self.widened += 1
            return False
        before = self.high
        self._set(_rounded_up(self.settings.headroom * largest))
        room = self.settings.layers.sizes.tokens
        if self.tokens > room:
            needed = self.tokens
            self._set(before)
            raise BoundError(
                f"{self.name}: max |input| of {self.function.name} is {largest:.6g}, and a table "
                f"that far has {needed} tokens, the frozen layers are sized for {room}; pass "
                f"tokens={needed}, or calibrate on data like this"
            )
        self.widened += 1
        return True

    @property
    def range(self) -> float:
        return self.high

    @property
    def limit(self) -> float:
        return self.high

    def propagate_error(self, *given: Bounds) -> tuple[float, float]:
        own, width, slope = self.certified, given[0].width, self.known.slope
        along = math.inf if width is None else math.sqrt(width) * own
        return slope * given[0].error + own, slope * given[0].spread + along

    def config(self) -> dict[str, Any]:
        return {"function": self.function.name}

    def restore(self, ranges: Mapping[str, Any]) -> None:
        super().restore(ranges)
        self._set(self.high)


class TabulatedActivation(Activation):
    """A smooth activation: values of a fitted table in the prompt, read by the attending layer."""

    how = "look-up, values in the prompt"

    @property
    def everywhere(self) -> bool:
        return self.tails is not None

    def _set(self, high: float) -> None:
        settings = self.settings
        unit = unit_roundoff(settings.dtype)
        finest = max(_FINEST, _FINEST_UNITS * unit)
        eps = finest if settings.eps is None else max(finest, settings.eps / 2)
        super()._set(high)
        if self.tails is None:
            self.table = _fitted(self.function, high, eps * high)
        else:
            fine = max(_FIXED, _FIXED_UNITS * unit)
            fine = fine if settings.eps is None else max(fine, eps * min(high, self.tails.reach))
            self.table = _fitted(self.function, self.tails.reach, fine)
        if settings.eps is not None and not self.certified <= settings.eps * high:
            raise PrecisionError(
                f"{self.name}: {self.function.name} on [-{exactly(high)}, {exactly(high)}] is "
                "certified to "
                f"{at_most(self.certified / high, '.3g')} of its range in {settings.dtype}, not "
                "to eps = "
                f"{settings.eps:.3g}",
                best=self.certified / high,
            )

    def run(self, *inputs: Tensor, covered: bool = False) -> tuple[Tensor, Tensor | None]:
        (z,) = inputs
        if self.settings.attends:
            # The two heads that choose are what they tend to: off by less than their error.
            beyond = () if self.tails is None else (self.tails.reach, self.tails.slope)
            out, largest = primitives.read(z, self.table, None, None, None, *beyond)
            return out.reshape(z.shape), largest
        inner = z if self.tails is None else self._clipped(z)
        out = self._choice(inner).run()
        out = out + (z - inner).clamp(min=0.0) if self.tails and self.tails.slope else out
        return out, primitives.largest(z)

    def finish(self, before: Piece | None, *inputs: Tensor, covered: bool = False) -> Tensor:
        """Behind a linear map its reading and this one are one."""
        known = self.settings.attends
        if not (isinstance(before, LinearMap) and known):
            return super().finish(before, *inputs, covered=covered)
        beyond = (math.inf, 0.0) if self.tails is None else (self.tails.reach, self.tails.slope)
        output, seen = before.read(*inputs, covered=covered, then=(self.table, *beyond))
        before._judged(seen[:1] if covered else seen[::2], *inputs)
        self._judged(seen[1:2])
        return output

    def _choice(self, z: Tensor) -> TokenChoice:
        return TokenChoice.looked_up(self.settings.layers, self.table, z)

    def _clipped(self, z: Tensor) -> Tensor:
        """The line through 0 less relu(z - R), plus relu(-z - R)."""
        assert self.tails is not None
        relu = self._gate.emulate
        inner = z - relu(z - self.tails.reach) + relu(-z - self.tails.reach)
        return inner.clamp(-self.tails.reach, self.tails.reach)

    @property
    def _gate(self) -> Gate:
        made = Gate(self.name, self.settings, ACTIVATIONS["relu"])
        made.high = 2 * self.high + 1
        return made

    def questions(
        self, inputs: tuple[Tensor, ...], output: Tensor, draw: random.Random
    ) -> Iterator[ReplayedEntry]:
        place = tuple(draw.randrange(n) for n in output.shape)
        z = inputs[0].detach()[place]
        if self.tails is not None and float(z.abs()) > self.tails.reach:
            return  # on the line beyond the table
        yield self._choice(z).ask(output[place])

    @property
    def certified(self) -> float:
        beyond = self.tails is not None and self.high > self.tails.reach
        return self._inside + (self._beyond(self.high) if beyond else 0.0)

    @property
    def _inside(self) -> float:
        """Proven error of the table."""
        settings = self.settings
        high = self.high if self.tails is None else self.tails.reach
        model = rounding_of(settings.backend).model(settings.dtype, self.table, high, 1)
        leak = 2 * self.table.size * settings.layers.leak if settings.literal else 0.0
        return self.table.error + self.table.rounding(model) + leak

    def _beyond(self, size: Any) -> Any:
        """What the line adds at |z|: the tail, two heads that choose, three sums."""
        assert self.tails is not None
        return self.tails.error + 2.0**-58 + 32 * self.settings.unit * size

    @property
    def tables(self) -> tuple[Interpolant, ...]:
        return (self.table,)

    def ranges(self) -> dict[str, Any]:
        # Without the cells of the proof, which would be most of the file: they are found again.
        return {**super().ranges(), "table": encode(replace(self.table, edges=None))}

    def restore(self, ranges: Mapping[str, Any]) -> None:
        self.high = decode(float, ranges["high"])
        self.table = proved_again(table_from(ranges["table"]), self.function)


class Gate(Activation):
    r"""z sigma(b z): an attention head that chooses between the tokens z and 0.

    Keys b z and 0, values z and 0, so the output is :math:`z e^{bz} / (e^{bz} + 1)`. With b = 1
    that is SiLU itself. As b grows it tends to ReLU, off by at most W(1/e)/b < 0.2785/b (W is
    Lambert's function): a head at low temperature has no trouble with a kink.
    """

    how = "chosen between z and 0 by a head"

    @property
    def sharpness(self) -> float:
        """b, a power of two."""
        assert self.known.sharpness is not None
        return self.known.sharpness

    def run(self, *inputs: Tensor, covered: bool = False) -> tuple[Tensor, Tensor | None]:
        (z,) = inputs
        chosen, largest = self._choice(z), primitives.largest(z)
        if not self.settings.attends:
            return chosen.run(), largest
        return (torch.softmax(chosen.keys[..., 0], -1) * chosen.values[..., 0]).sum(-1), largest

    def _choice(self, z: Tensor) -> TokenChoice:
        keys = torch.stack([self.sharpness * z, torch.zeros_like(z)], -1)[..., None]
        values = torch.stack([z, torch.zeros_like(z)], -1)[..., None]
        layers, one = self.settings.layers, torch.ones_like(z)[..., None, None]
        return TokenChoice(layers, keys, one, values, layers.margin(self.sharpness * self.high))

    def questions(
        self, inputs: tuple[Tensor, ...], output: Tensor, draw: random.Random
    ) -> Iterator[ReplayedEntry]:
        place = tuple(draw.randrange(n) for n in output.shape)
        yield self._choice(inputs[0].detach()[place]).ask(output[place])

    @property
    def certified(self) -> float:
        # The weight of z is known to 8 u relative (two exponentials, a sum, a quotient, and the
        # maximum subtracted from a logit t, which matters only while t e^{-t} does), then z p.
        return self.known.error + 12 * self.settings.unit * self.high

    @property
    def everywhere(self) -> bool:
        return True

    @property
    def tables(self) -> tuple[Interpolant, ...]:
        return ()

    @property
    def tokens(self) -> int:
        return 2


def make_activation(name: str, place: str, settings: PieceSettings) -> Activation:
    """The piece that computes the named activation."""
    if name not in ACTIVATIONS:
        raise ProgramError(f"no activation {name!r}; there are {', '.join(ACTIVATIONS)}")
    known = ACTIVATIONS[name]
    return (TabulatedActivation if known.sharpness is None else Gate)(place, settings, known)
