r"""LayerNorm and RMSNorm, step by step through the frozen layers.

With d entries a token, :math:`y = \gamma \circ \frac{c}{\sqrt{v + \epsilon}} + \beta`:

* the mean m is read with weights 1/d in the prompt, and c = x - m is a sum (RMSNorm: c = x);
* :math:`v = \frac1d c \cdot c` is read with the token itself as the weights;
* :math:`(v + \epsilon)^{-1/2}` is looked up in a table on [1, 4], by powers of 4;
* its product with c is read, and then :math:`\gamma_i h_i + \beta_i`, a map with one weight a row.

A line's table is the same at any scale, so that nothing has a range but the input's size: every
input has the powers of two that it needs in its prompt, and none is refused.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from iceform.arithmetic.units import OUTWARD_MANY, OUTWARD_MOST
from iceform.certificates.witness import ReplayedEntry
from iceform.errors import BoundError
from iceform.expressions import ScalarFunction
from iceform.networks.frozen import SLACK
from iceform.networks.pieces.base import Bounds, Piece, PieceSettings
from iceform.networks.pieces.linear import with_one
from iceform.networks.pieces.readings import Reading, TokenChoice, read_error
from iceform.run import primitives, rounding_of
from iceform.tables import Interpolant
from iceform.validation import unit_roundoff

_ROOM = 2.0**-8  # the table of 1/sqrt reaches so far beyond [1, 4]: arguments round
_FINE, _FINE_UNITS = 2.0**-46, 2  # of that table
_NEAR = 1 - 2.0**-10  # of the least deviation seen: computed ones round


@lru_cache(maxsize=8)
def _root_table(dtype: torch.dtype) -> Interpolant:
    """1/sqrt on [1, 4]."""
    f = ScalarFunction(lambda z: 1 / torch.sqrt(z), "1/sqrt", kinks=())
    eps = max(_FINE, _FINE_UNITS * unit_roundoff(dtype))
    return Interpolant.fit(f, 1 - _ROOM, 4 + 4 * _ROOM, eps)


class Norm(Piece):
    r"""LayerNorm over the last axis, or RMSNorm where nothing is subtracted.

    The certificate over a range speaks of tokens with :math:`\sqrt{v + \epsilon}` down to the
    least one seen so far.

    Parameters
    ----------
    name, settings
        As for every piece.
    width
        d.
    weight, bias
        gamma and beta; None where there are none.
    floor
        epsilon.
    centred
        Whether the mean is subtracted.
    """

    kind = "norm"
    made_with = ("width", "floor", "centred")
    fixed: ClassVar[dict[str, Any]] = {"least": float, "norm": float}
    how = "mean, square, root and products looked up"

    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        name: str,
        settings: PieceSettings,
        width: int,
        weight: Tensor | None,
        bias: Tensor | None,
        floor: float,
        *,
        centred: bool = True,
    ) -> None:
        super().__init__(name, settings)
        self.width, self.floor, self.centred = width, floor, centred
        one = torch.ones(width)
        for key, given in (("weight", weight), ("bias", bias)):
            plain = one if key == "weight" else 0 * one
            value = plain if given is None else given.detach()
            self.register_buffer(key, value.to(settings.dtype))
        self.plain = bool((self.weight == 1).all() and (self.bias == 0).all())
        self.least, self.norm = math.inf, 0.0
        self.table = _root_table(settings.dtype)

    def exact(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        if self.centred:
            return F.layer_norm(x, (self.width,), self.weight, self.bias, self.floor)
        root = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.floor)
        return x * root * self.weight + self.bias

    # ------------------------------------------------------------------------------------ running

    def run(self, *inputs: Tensor, covered: bool = False) -> tuple[Tensor, Tensor | None]:
        """The norm, the largest 2-norm of a token and the largest 1/(v + floor)."""
        (x,) = inputs
        line = self.settings.line
        if line is not None and (found := self._at_once(x, line)) is not None:
            return found
        length = x.detach().norm(dim=-1, keepdim=True)
        centred, root, spread = self._parts(x, length)
        out = self._last_reading(centred, root).run()[0]
        return out, torch.cat([primitives.largest(length), primitives.largest(1 / spread)])

    def finish(self, before: Piece | None, *inputs: Tensor, covered: bool = False) -> Tensor:
        """The norm of a sum of two inputs of the same shape."""
        line = self.settings.line
        alike = before is None and inputs[0].shape == inputs[1].shape
        found = self._at_once(inputs[0], line, inputs[1]) if alike and line is not None else None
        if found is None:
            return super().finish(before, *inputs, covered=covered)
        self._judged(found[1])
        return found[0]

    def _at_once(
        self, x: Tensor, line: Interpolant, plus: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """The whole norm by one kernel; None where there is none."""
        weight, bias = (None, None) if self.plain else (self.weight, self.bias)
        return primitives.norm(
            x,
            weight,
            bias,
            self.floor,
            self._share,
            line,
            self.table,
            centred=self.centred,
            plus=plus,
        )

    @property
    def _share(self) -> float:
        """Of a token's length, that its mean is read at: rounding must not leave the table."""
        return 4 * (self.width + 4) * self.settings.unit / SLACK / math.sqrt(self.width)

    def _parts(self, x: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is left of x, 1/sqrt(v + floor) and v + floor, the last two one a token."""
        centred = x - self._mean(x, length).run()[0] if self.centred else x
        spread = self._square(centred).run()[0] + self.floor
        return centred, self._root(spread), spread

    def _mean(self, x: Tensor, length: Tensor) -> Reading:
        return Reading(
            self.settings, x.mean(-1, keepdim=True), self._share * length,
            lambda: (x, torch.full_like(x, 1 / self.width)[..., None, :]),
        )  # fmt: skip

    def _square(self, centred: Tensor) -> Reading:
        return Reading(
            self.settings, centred.square().mean(-1, keepdim=True), 0.0,
            lambda: (centred, (centred / self.width)[..., None, :]),
        )  # fmt: skip

    def _root(self, spread: Tensor) -> Tensor:
        """2^-k times the table's answer at spread / 4^k."""
        power = torch.floor(0.5 * torch.log2(spread.detach()))
        inner = spread * torch.exp2(-2 * power)
        if self.settings.attends:
            found = primitives.read(inner, self.table)[0]
        else:
            found = TokenChoice.looked_up(self.settings.layers, self.table, inner).run()
        return found * torch.exp2(-power)

    def _standard(self, centred: Tensor, root: Tensor) -> Reading:
        """The token times its root: a map with that root on its diagonal."""
        return Reading(
            self.settings, centred * root, 0.0,
            lambda: (centred, torch.diag_embed(root.expand(centred.shape))),
        )  # fmt: skip

    def _last_reading(self, centred: Tensor, root: Tensor) -> Reading:
        """With gamma on the diagonal, beta beside it, where there are any."""
        standard = self._standard(centred, root)
        if self.plain:
            return standard
        h = standard.run()[0]
        z = torch.addcmul(self.bias, h, self.weight)

        def prompt() -> tuple[Tensor, Tensor]:
            return with_one(h), torch.cat([torch.diag(self.weight), self.bias[:, None]], -1)

        return Reading(self.settings, z, 0.0, prompt)

    def questions(
        self, inputs: tuple[Tensor, ...], output: Tensor, draw: random.Random
    ) -> Iterator[ReplayedEntry]:
        """Of one token: the sums of its mean and of its squares, and an entry of the last map."""
        place = tuple(draw.randrange(n) for n in output.shape)
        token = inputs[0].detach()[place[:-1]]
        length = token.norm(dim=-1, keepdim=True)
        if self.centred:
            yield self._asked(self._mean(token, length))
        centred, root, _ = self._parts(token, length)
        yield self._asked(self._square(centred))
        yield self._last_reading(centred, root).ask(place[-1], output[place])

    @staticmethod
    def _asked(reading: Reading) -> ReplayedEntry:
        return reading.ask(0, reading.run()[0][0])

    # ------------------------------------------------------------------------------------- ranges

    def check_range(self, numbers: list[float], *inputs: Tensor) -> bool:
        """Widen the range: a norm refuses no input, and its certificate is of the range."""
        length, inverse = numbers
        if not math.isfinite(length):
            raise BoundError(
                f"{self.name}: a token's 2-norm is {length}; nothing is certified of it"
            )
        least = math.sqrt(1 / inverse) if inverse > 0 else 0.0
        if least < self.least * _NEAR or length > self.norm:
            self.widened += 1
            self._set(min(self.least, least), max(self.norm, length))
        return False

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x = inputs[0].detach()
        centred = x - x.mean(-1, keepdim=True) if self.centred else x
        least = float((centred.square().mean(-1) + self.floor).sqrt().min())
        self.least, self.norm = min(self.least, least), max(self.norm, float(x.norm(dim=-1).max()))

    def freeze_range(self) -> None:
        self._set(self.least / self.settings.headroom, self.norm * self.settings.headroom)

    def set_range_from(self, *given: Bounds) -> None:
        self._set(math.sqrt(self.floor), given[0].along(self.width) * OUTWARD_MOST)

    def _set(self, least: float, norm: float) -> None:
        self.least, self.norm = max(least, math.sqrt(self.floor)), norm

    def _root_error(self) -> float:
        """Proven error of the root, relative, of which the table's least value is known."""
        settings, table = self.settings, self.table
        model = rounding_of(settings.backend).model(settings.dtype, table, table.high, 1)
        leak = 2 * table.size * settings.layers.leak if settings.literal else 0.0
        off = math.sqrt(table.high) * (table.error + table.rounding(model) + leak)
        return off / (1 - off) if off < 1 else math.inf

    def _after_centring(self) -> float:
        """Of h = c / sqrt(v + floor) and its look-ups, relative to sqrt d, whatever c is."""
        d, unit = self.width, self.settings.unit
        square = 2 * read_error(self.settings, d) + 4 * unit
        return square + self._root_error() + 2 * read_error(self.settings) + 4 * unit

    @property
    def _sizes(self) -> Tensor:
        """Bounds of the entries of gamma h + beta."""
        root = math.sqrt(self.width) * (1 + 2 * self._after_centring())
        rows: Tensor = root * self.weight.double().abs() + self.bias.double().abs()
        return rows

    @property
    def _last(self) -> float:
        """Of the reading of gamma h + beta."""
        largest = float(self._sizes.max())
        return 0.0 if self.plain else 2 * largest * read_error(self.settings, 2)

    def bounds(self, *given: Bounds, widen: bool = True) -> Bounds:
        r"""Entries :math:`|y_i| \le \sqrt d\,|\gamma_i| + |\beta_i|`, whatever comes in."""
        rows, off = self._sizes + self._last, self._last
        # Each entry of h is read with an error of its own: sqrt d of them along a token.
        own = (1 + math.sqrt(self.width)) * 2 * self._after_centring()
        radius = math.sqrt(self.width) * (1 + own)
        weight, bias = self.weight.double(), self.bias.double()
        length = radius * float(weight.abs().max()) + float(bias.norm())
        length += math.sqrt(self.width) * off
        length = min(length, float(rows.norm())) * OUTWARD_MANY
        ball = (weight, bias)
        return Bounds(float(rows.max()), length, ball, radius, off, width=self.width)

    @property
    def range(self) -> float:
        return self.norm

    @property
    def tables(self) -> tuple[Interpolant, ...]:
        return self.table, self.settings.layers.table

    @property
    def certified(self) -> float:
        r"""With e an entry's error of c and s the least root: :math:`e/s` twice, and what follows.

        c enters h itself and v, which moves by 2 e sqrt v + e^2.
        """
        d, unit, s = self.width, self.settings.unit, self.least * _NEAR
        mean = 2 * self.norm / math.sqrt(d) * read_error(self.settings, d) if self.centred else 0.0
        off = (mean + 2 * unit * self.norm) / s
        moved = off * (2 + off) + self._after_centring()
        grown = moved / (1 - moved) if moved < 0.5 else math.inf  # 1/sqrt(1 - t) <= 1/(1 - t)
        h = off * (1 + grown) + math.sqrt(d) * grown * (1 + off)
        gain = float(self.weight.abs().max())
        return min(gain * h, 4 * gain * math.sqrt(d)) + self._last

    @property
    def limit(self) -> float:
        return self.norm

    def propagate_error(self, *given: Bounds) -> tuple[float, float]:
        """Errors behind the norm; never more than twice its largest output."""
        gain, root = float(self.weight.abs().max()), math.sqrt(self.width)
        error = given[0].apart(self.width)
        least = self.least * _NEAR - error / root
        grown = gain * error / least if least > 0 else math.inf
        error = min(grown, 2 * gain * root)
        return error + self.certified, error + root * self.certified

    @classmethod
    def made(
        cls, name: str, settings: PieceSettings, tensors: Mapping[str, Tensor], config: Any
    ) -> Piece:
        width = len(tensors[f"{name}.weight"])  # which earlier files do not say
        return super().made(name, settings, tensors, {"width": width, **config})

    def restore(self, ranges: Mapping[str, Any]) -> None:
        super().restore(ranges)
        self.plain = bool((self.weight == 1).all() and (self.bias == 0).all())
