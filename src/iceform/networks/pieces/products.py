r"""Products of two activations: one factor is what is read, the other the weights it is read with.

The reading layer looks up :math:`\theta \cdot x`, and both are in its prompt; a linear map is the
case in which theta is the network's. So :math:`a_i b_i` and :math:`\sum_k a_k b_k` are read like
rows of a map. A line's table is the same at any scale: every input has the powers of two that it
needs in its prompt, entry by entry, and no range is calibrated or left.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from iceform.arithmetic.units import OUTWARD_SINGLE
from iceform.certificates.witness import ReplayedEntry
from iceform.errors import BoundError
from iceform.networks.frozen import SLACK
from iceform.networks.pieces.base import Bounds, Piece, PieceSettings
from iceform.run import primitives, rounding_of


def read_line(
    settings: PieceSettings,
    z: Tensor,
    least: Tensor | float,
    prompt: Callable[[], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Theta . x = z as the reading layer has it, and max |z|.

    z is (..., rows). Every entry is read at its own scale, the power of two that it, and ``least``,
    are at most: theta is divided by it in the prompt. ``prompt`` makes x, (..., inputs), and theta,
    (..., rows, inputs), where they are written out.
    """
    line = settings.line
    if line is not None:
        floor = least if isinstance(least, Tensor) else z.new_full((1,), least)
        if floor.ndim > 1:  # one for every entry
            out, largest = primitives.read(z.reshape(-1), line, floor.reshape(-1))
            return out.reshape(z.shape), largest
        return primitives.read(z, line, floor)
    scale = scale_at(z, least)
    x, theta = prompt()
    out = settings.layers.read(x, theta / scale[..., None]) * scale
    return out, primitives.largest(z)


def scale_at(z: Tensor, least: Tensor | float = 0.0) -> Tensor:
    """The scales that entries are read at."""
    return primitives.power_of_two(z.detach().abs().clamp(min=least))


def read_error(settings: PieceSettings, terms: int = 1) -> float:
    """Proven error of one reading of a product of ``terms`` terms, relative to its scale."""
    table = settings.layers.table
    model = rounding_of(settings.backend).model(settings.dtype, table, 1.0, terms)
    return table.error + table.rounding(model)


class ProductPiece(Piece):
    """a b, entry by entry, or the matrix product."""

    kind = "product"
    made_with = ("inner",)
    fixed: ClassVar[dict[str, Any]] = {"largest": float}
    how = "look-up, one factor as weights in the prompt"
    ranged = 2

    def __init__(self, name: str, settings: PieceSettings, *, inner: int | None = None) -> None:
        super().__init__(name, settings)
        self.inner = inner  # terms of a matrix product's entries
        self.largest = 0.0  # |factors| multiplied, and summed for matrices

    @property
    def _terms(self) -> int:
        return 1 if self.inner is None else self.inner

    def exact(self, *inputs: Tensor) -> Tensor:
        a, b = inputs
        return a * b if self.inner is None else a @ b

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.largest = max(self.largest, float(self._seen(inputs, output)))

    def _seen(self, inputs: tuple[Tensor, ...], z: Tensor) -> Tensor:
        """A bound of what the terms of an entry add up to, shape (1,)."""
        a, b = (t.detach() for t in inputs)
        if self.inner is None:
            return primitives.largest(z)
        found: Tensor = (a.norm(dim=-1).max() * b.norm(dim=-2).max())[None]
        return found

    def _least(self, seen: Tensor) -> Tensor | float:
        """Rounding of terms that add up to so much must not leave the table."""
        share = 4 * (self._terms + 4) * self.settings.unit / SLACK
        return 0.0 if self.inner is None else share * seen

    def check_range(self, numbers: list[float], *inputs: Tensor) -> bool:
        (seen,) = numbers
        if not seen < math.inf:
            raise BoundError(f"{self.name}: a product is {seen}; nothing is certified of it")
        self.largest = max(self.largest, seen)
        return False

    def set_range_from(self, *given: Bounds) -> None:
        self.largest = self._terms * given[0].entry * given[1].entry * OUTWARD_SINGLE

    def run(self, *inputs: Tensor, covered: bool = False) -> tuple[Tensor, Tensor | None]:
        z, settings = self.exact(*inputs), self.settings
        a, b = (t.to(z) for t in inputs)
        if self.inner is not None:
            seen = self._seen(inputs, z)
            least = self._least(seen)
            return read_line(settings, z, least, lambda: (a, b.mT[..., None, :, :]))[0], seen
        shape = z.shape

        def prompt() -> tuple[Tensor, Tensor]:
            return a.expand(shape)[..., None], b.expand(shape)[..., None, None]

        out, seen = read_line(settings, z[..., None], 0.0, prompt)
        return out[..., 0], seen

    def replay_question(
        self, inputs: tuple[Tensor, ...], output: Tensor, draw: random.Random
    ) -> ReplayedEntry | None:
        a, b = (t.detach() for t in inputs)
        z = self.exact(a, b)
        place = tuple(draw.randrange(n) for n in output.shape)
        scale = scale_at(z[place], self._least(self._seen((a, b), z)))
        if self.inner is None:
            x, theta = a.expand(z.shape)[place][None], b.expand(z.shape)[place][None, None]
        else:
            x = a.expand(*z.shape[:-2], *a.shape[-2:])[place[:-1]]
            columns = b.mT.expand(*z.shape[:-2], *b.mT.shape[-2:])
            theta = columns[(*place[:-2], place[-1])][None]
        return self.settings.layers.ask_read(x, theta / scale, 0, output[place] / scale)

    @property
    def certified(self) -> float:
        return 2 * self.largest * read_error(self.settings, self._terms)

    @property
    def range(self) -> float:
        return self.largest

    @property
    def tokens(self) -> int:
        return self.settings.layers.table.tokens

    def propagate_error(self, *given: Bounds) -> tuple[float, float]:
        a, b = given
        error = product_error(a, b)
        own = 2 * times(a.entry, b.entry) * read_error(self.settings, self._terms)
        return self._terms * (error + own), math.inf

    def bounds(self, *given: Bounds, widen: bool = True) -> Bounds:
        a, b = given
        own = 2 * read_error(self.settings, self._terms)
        slack = (1 + own) * OUTWARD_SINGLE
        entry = self._terms * times(a.entry, b.entry) * slack
        if self.inner is not None:
            return Bounds(entry)
        width = a.width or b.width
        length = min(times(a.length, b.entry), times(a.entry, b.length)) * slack
        for one, other in ((a, b), (b, a)):
            if one.ball is None or other.ball is None or other.radius != 0:
                continue
            (weight, bias), by = one.ball, other.ball[1]
            if by.shape != weight.shape:
                continue
            off = (one.off * other.entry + own * entry) * OUTWARD_SINGLE
            longest = length + math.sqrt(len(by)) * own * entry
            ball = (weight * by * OUTWARD_SINGLE, bias * by)
            return Bounds(entry, longest, ball, one.radius, off, width=width)
        return Bounds(entry, width=width)


def times(a: float, b: float) -> float:
    """0 times anything is 0."""
    return 0.0 if a == 0 or b == 0 else a * b


def product_error(a: Bounds, b: Bounds) -> float:
    """What a product of emulated factors is off by, the product's own error apart."""
    return times(a.entry, b.error) + times(b.entry, a.error) + times(a.error, b.error)
