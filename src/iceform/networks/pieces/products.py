r"""Products of two activations: one factor is what is read, the other the weights it is read with.

The reading layer looks up :math:`\theta \cdot x`, and both are in its prompt; a linear map is the
case in which theta is the network's. So :math:`a_i b_i` and :math:`\sum_k a_k b_k` are read like
rows of a map. A line's table is the same at any scale: every input has the powers of two that it
needs in its prompt, entry by entry, and no range is calibrated or left.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor

from iceform.arithmetic.units import OUTWARD_SINGLE
from iceform.certificates.witness import ReplayedEntry
from iceform.errors import BoundError
from iceform.networks.frozen import SLACK
from iceform.networks.pieces.base import Bounds, Piece, PieceSettings
from iceform.networks.pieces.readings import Reading, read_error
from iceform.run import primitives


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
        z = self.exact(*inputs)
        seen = self._seen(inputs, z)
        a, b = (t.to(z) for t in inputs)
        reading = self._reading(a, b, z, seen)
        return reading.run()[0].reshape(z.shape), seen

    def _reading(self, a: Tensor, b: Tensor, z: Tensor, seen: Tensor) -> Reading:
        """The reading of a matrix product row by row, or of every entry of a product."""
        if self.inner is not None:
            columns = b.mT[..., None, :, :]
            return Reading(self.settings, z, self._least(seen), lambda: (a, columns))
        one, other = a.expand(z.shape)[..., None], b.expand(z.shape)[..., None, None]
        return Reading(self.settings, z[..., None], 0.0, lambda: (one, other))

    def questions(
        self, inputs: tuple[Tensor, ...], output: Tensor, draw: random.Random
    ) -> Iterator[ReplayedEntry]:
        a, b = (t.detach() for t in inputs)
        z = self.exact(a, b)
        place, seen = tuple(draw.randrange(n) for n in output.shape), self._seen((a, b), z)
        if self.inner is None:
            a, b = a.expand(z.shape)[place], b.expand(z.shape)[place]
            yield self._reading(a, b, z[place], seen).ask(0, output[place])
            return
        a, b = (t.expand(*z.shape[:-2], *t.shape[-2:])[place[:-2]] for t in (a, b))
        row = a[place[-2]], b.mT
        least, last = self._least(seen), place[-1]
        yield Reading(self.settings, z[place[:-1]], least, lambda: row).ask(last, output[place])

    @property
    def certified(self) -> float:
        return 2 * self.largest * read_error(self.settings, self._terms)

    @property
    def range(self) -> float:
        return self.largest

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
        width = max(a.width, b.width) if a.width and b.width else None
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
    """How far a product moves when its factors are off; its own error is apart."""
    return times(a.entry, b.error) + times(b.entry, a.error) + times(a.error, b.error)
