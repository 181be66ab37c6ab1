r"""Products of two activations: one factor is what is read, the other the weights it is read with.

The reading layer looks up :math:`\theta \cdot x`, and both are in its prompt; a linear map is the
case in which theta is the network's. So :math:`a_i b_i` and :math:`\sum_k a_k b_k` are read like
rows of a map. A line's table is the same at any scale: every input has the powers of two that it
needs in its prompt, and no range is calibrated or left.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from iceform.backends import primitives, rounding_of
from iceform.certificates.witness import Asked
from iceform.errors import BoundError
from iceform.networks.pieces.base import Piece, Reach, Settings, Span, looked_up, looked_up_to_scale

__all__ = ["Product", "read_error", "read_line", "scale_each", "scale_of"]

_SLACK = 1 + 2.0**-16  # rounding of a product, in float32 too
_EXPONENTS = {torch.float64: 1000.0, torch.float32: 120.0}  # inverses of scales are numbers


def scale_of(z: Tensor, least: Tensor | float = 0.0) -> Tensor:
    """For every feature, the power of two that its entries, and ``least``, are at most."""
    largest = primitives.largest(z if z.ndim else z[None])
    if not isinstance(least, float) or least:
        largest = torch.maximum(largest, torch.as_tensor(least).to(largest))
    found = _power(largest)
    return found if z.ndim else found[0]


def scale_each(z: Tensor, least: Tensor | float = 0.0) -> Tensor:
    """The same for every entry by itself."""
    return _power(z.detach().abs().clamp(min=least))


def _power(sizes: Tensor) -> Tensor:
    return torch.exp2(torch.log2(sizes).ceil().clamp(min=-_EXPONENTS[sizes.dtype]))


def read_line(
    settings: Settings, z: Tensor, scale: Tensor, prompt: Callable[[], tuple[Tensor, Tensor]]
) -> Tensor:
    """Theta . x = z as the reading layer has it, theta in the prompt divided by ``scale``.

    z, which is used up, is (..., rows), and scale broadcasts to it; ``prompt`` makes x, (...,
    inputs), and theta, (..., rows, inputs), where they are written out.
    """
    frozen = settings.layers
    table = None if settings.literal else frozen.maps.table
    if table is not None:
        if scale.ndim > 1:  # one for every entry by itself
            return looked_up(z.div_(scale), table).mul_(scale)
        return looked_up_to_scale(z, table, 1 / scale, scale)
    x, theta = prompt()
    theta = theta / scale.expand(z.shape)[..., None]
    return frozen.read(x, theta, settings.backend) * scale


def read_error(settings: Settings, terms: int = 1) -> float:
    """Proven error of one reading of a product of ``terms`` terms, relative to its scale."""
    table = settings.layers.table
    model = rounding_of(settings.backend).model(settings.dtype, table, 1.0, terms)
    return table.error + table.rounding(model)


class Product(Piece):
    """a b, entry by entry, or the matrix product."""

    kind = "product"
    how = "look-up, one factor as weights in the prompt"

    def __init__(self, name: str, settings: Settings, *, inner: int | None = None) -> None:
        super().__init__(name, settings)
        self.inner = inner  # terms of a matrix product's entries
        self.largest = 0.0  # |factors| multiplied, and summed for matrices

    @property
    def _terms(self) -> int:
        return 1 if self.inner is None else self.inner

    def exact(self, *inputs: Tensor) -> Tensor:
        a, b = inputs
        return a * b if self.inner is None else a @ b

    def _bound(self, inputs: tuple[Tensor, ...]) -> Tensor | float:
        """What the terms of an entry add up to at most: their rounding must not leave the table."""
        if self.inner is None:
            return 0.0
        a, b = (t.detach() for t in inputs)
        share = 4 * (self._terms + 4) * self.settings.unit / self.settings.layers.slack
        return share * self._seen((a, b))

    def record(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.largest = max(self.largest, float(self._seen(inputs)))

    def _seen(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """A bound of what the terms of an entry add up to, shape (1,)."""
        a, b = (t.detach() for t in inputs)
        if self.inner is None:
            return (a * b).abs().amax()[None]
        found: Tensor = (a.norm(dim=-1).max() * b.norm(dim=-2).max())[None]
        return found

    def _see(self, numbers: list[float]) -> None:
        (seen,) = numbers
        if not seen < math.inf:
            raise BoundError(f"{self.name}: a product is {seen}; nothing is certified of it")
        self.largest = max(self.largest, seen)

    def settle_for(self, *spans: Span) -> None:
        self.largest = self._terms * spans[0].reach * spans[1].reach * _SLACK

    def checked(self, *inputs: Tensor) -> Tensor:
        out, scale = self._read(inputs)
        if not torch.compiler.is_compiling():
            self.judged(self._seen(inputs) if self.inner else scale.amax()[None], self._see)
        return out

    def emulate(self, *inputs: Tensor) -> Tensor:
        return self._read(inputs)[0]

    def _read(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """The product and the scale it was read at."""
        z, settings = self.exact(*inputs), self.settings
        a, b = (t.to(z) for t in inputs)
        scale = scale_of(z, self._bound(inputs))
        if self.inner is not None:
            return read_line(settings, z, scale, lambda: (a, b.mT[..., None, :, :])), scale
        shape = z.shape

        def prompt() -> tuple[Tensor, Tensor]:
            return a.expand(shape)[..., None], b.expand(shape)[..., None, None]

        out = read_line(settings, z[..., None], scale.expand(shape)[..., None], prompt)
        return out[..., 0], scale

    def asked(
        self, inputs: tuple[Tensor, ...], output: Tensor, draw: random.Random
    ) -> Asked | None:
        a, b = (t.detach() for t in inputs)
        z = self.exact(a, b)
        place = tuple(draw.randrange(n) for n in output.shape)
        scale = scale_of(z, self._bound(inputs))[place[-1]]
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

    def walk(self, *spans: Span) -> Span:
        a, b = spans
        n = self._terms
        error = _times(a.entry, b.error) + _times(b.entry, a.error) + _times(a.error, b.error)
        own = 2 * _times(a.reach, b.reach) * read_error(self.settings, n)
        width = None if self.inner is not None else a.width or b.width
        return Span(n * _times(a.entry, b.entry), n * (error + own), width=width)

    def reach(self, *reaches: Reach) -> Reach:
        a, b = reaches
        own = 2 * read_error(self.settings, self._terms)
        slack = (1 + own) * _SLACK
        entry = self._terms * _times(a.entry, b.entry) * slack
        if self.inner is not None:
            return Reach(entry)
        length = min(_times(a.length, b.entry), _times(a.entry, b.length)) * slack
        for one, other in ((a, b), (b, a)):
            if one.ball is None or other.ball is None or other.radius != 0:
                continue
            (weight, bias), by = one.ball, other.ball[1]
            if by.shape != weight.shape:
                continue
            off = (one.off * other.entry + own * entry) * _SLACK
            longest = length + math.sqrt(len(by)) * own * entry
            return Reach(entry, longest, (weight * by * _SLACK, bias * by), one.radius, off)
        return Reach(entry)

    def made(self) -> dict[str, Any]:
        return {"inner": self.inner}

    def ranges(self) -> dict[str, Any]:
        return {"largest": self.largest}

    def restore(self, ranges: dict[str, Any]) -> None:
        self.largest = float(ranges["largest"])


def _times(a: float, b: float) -> float:
    """0 times anything is 0."""
    return 0.0 if a == 0 or b == 0 else a * b
