r"""A look-up from the entries that weigh anything, of keys in order, however far apart they are.

Keys :math:`(s_k, b_k)` are in order where slopes grow, and so do the ends
:math:`e_k = (b_k - b_{k+1})/(s_{k+1} - s_k)` at which neighbours weigh the same: those of every
grid do, graded or not, but for rounding. Let the ends be made to, each at least the one before it.
Between two of them is a cell, and relative to its entry j entry k weighs there

.. math:: e^{\ell_{jk}(z)}, \qquad \ell_{jk}(z) = (s_k - s_j)(z - o_j) + d_{jk}, \quad
    d_{jk} = (s_k - s_j) o_j + b_k - b_j,

with :math:`o_j` the cell's middle: at most 1, or next to it where ends were made to grow.

**What is left out.** :math:`\ell_{jk}` is linear in z, so on the cell it is at most what it is at
one of its ends; and in the outermost cells, which have one end, slopes being in order, at most what
it is there. Let :math:`m_{jk}` be the exponential of that. All weights together are at least that
of entry j, which is 1, so entries outside a window have a share of at most :math:`t_j = \sum
m_{jk}` over them. An average is a mixture of that inside and that outside: taking the latter away
moves it by the share times their distance, at most :math:`t_j (\max v - \min v)`. This holds for
every z, and whatever the ends are.

**What is rounded**, given z: :math:`z - o_j`, :math:`s_k - s_j`, their product, :math:`d_{jk}` as
it is kept, the sum, and, an operation at a time, what is subtracted from it. That is at most
:math:`5 u |s_k - s_j| |z - o_j| + 3 u |d_{jk}|`, and what :math:`d_{jk}` was off by in float64
before: two products and three sums. No logit is as large as the terms of :math:`s_k z + b_k` are,
whose difference it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import OUTWARD_MANY, UNIT, gamma
from iceform.validation import unit_roundoff


@dataclass(frozen=True, eq=False)
class OrderedWindow:
    """A window of a column of entries, found from the very numbers that tokens hold.

    Attributes
    ----------
    tail
        What leaving entries out may move any look-up by.
    first
        Of every cell, where its window begins.
    ends, origins
        Of the cells; one end less than there are cells.
    slopes, column, offsets
        Of the entries; beyond the last one no weight is left. ``offsets`` is (cells, width).
    keys
        Slopes and biases in float64, in order of slopes as all of the above.
    rank
        Where each entry as it was given stands in that order.
    """

    tail: float
    first: Tensor
    ends: Tensor
    origins: Tensor
    slopes: Tensor
    column: Tensor
    offsets: Tensor
    keys: tuple[Tensor, Tensor]
    rank: Tensor

    @classmethod
    def of(cls, slopes: Tensor, biases: Tensor, values: Tensor) -> OrderedWindow | None:
        """The window of entries in their dtype; None where no order of the keys is one.

        The width is the least, in lines that a processor reads at once, whose tail is below one
        rounding of the largest average.
        """
        dtype = slopes.dtype
        order = slopes.detach().cpu().argsort()
        s, b, v = (t.detach().double().cpu()[order] for t in (slopes, biases, values))
        if len(s) < 2 or not bool((s.diff() > 0).all()):
            return None
        ends = (-b.diff() / s.diff()).to(dtype).cummax(0).values
        left, right = (torch.cat(t).double() for t in ((ends[:1], ends), (ends, ends[-1:])))
        worst = torch.maximum(*(_logits(s, b, z) + _lost(s, b, z) for z in (left, right))).exp()
        if not bool((worst <= 2).all()):  # some entry weighs most in cells of others
            return None
        swing = float(v.max() - v.min())
        level = float((torch.softmax(_logits(s, b, right), -1) @ v).abs().max())
        allowed = unit_roundoff(dtype) * level / swing if swing else 1.0
        first, tail, width = _narrowest(worst, allowed)
        beyond = (0, max(0, width - len(s)))
        origins = ((left + right) / 2).to(dtype)
        offsets = torch.nn.functional.pad(
            _logits(s, b, origins.double()), beyond, value=-torch.inf
        ).gather(1, first[:, None] + torch.arange(width))
        held, column = (torch.nn.functional.pad(t, beyond).to(dtype) for t in (s, v))
        return cls(
            tail * swing, first.int(), ends, origins, held, column,
            offsets.to(dtype).contiguous(), (s, b), order.argsort(),
        )  # fmt: skip

    def logit_errors(self, low: Tensor, high: Tensor) -> Tensor:
        """How far logits are off for arguments in [low, high], shape (*, entries) as they came.

        Arguments may be in any cell between those of both ends, an end moved by rounding.
        """
        s, b = self.keys
        unit, ends = unit_roundoff(self.ends.dtype), self.ends.double()
        first = torch.searchsorted(ends, low - unit * low.abs())
        last = torch.searchsorted(ends, high + unit * high.abs())
        found = torch.zeros(1, dtype=torch.float64)
        for step in range(int((last - first).max()) + 1):
            at = torch.minimum(first + step, last)
            origin = self.origins[at].double()
            away = torch.maximum((low - origin).abs(), (high - origin).abs())[:, None]
            kept = 5 * away * (s - s[at, None]).abs() + 3 * _logits(s, b, origin, at).abs()
            found = torch.maximum(found, unit * kept + _lost(s, b, origin, at))
        return found[:, self.rank] * (1 + gamma(8, unit))

    def __call__(self, z: Tensor) -> Tensor:
        """A(z) entry by entry, an operation at a time."""
        flat = z.reshape(-1)
        rows = max(1, tuning.ENTRIES_AT_ONCE // self.offsets.shape[1])
        return torch.cat([self._part(part) for part in flat.split(rows)]).reshape(z.shape)

    def _part(self, z: Tensor) -> Tensor:
        at = torch.searchsorted(self.ends, z.contiguous())
        index = self.first[at, None].long() + torch.arange(self.offsets.shape[1])
        apart = self.slopes[index] - self.slopes[at, None]
        logits = apart * (z - self.origins[at])[:, None] + self.offsets[at]
        return (torch.softmax(logits, -1) * self.column[index]).sum(-1)


def _logits(s: Tensor, b: Tensor, z: Tensor, at: Tensor | None = None) -> Tensor:
    """Every logit at z less that of an entry, the j-th by default, shape (len(z), entries)."""
    own = (s, b) if at is None else (s[at], b[at])
    return (s - own[0][:, None]) * z[:, None] + (b - own[1][:, None])


def _lost(s: Tensor, b: Tensor, z: Tensor, at: Tensor | None = None) -> Tensor:
    """How far rounding in float64 may take :func:`_logits`."""
    own = (s, b) if at is None else (s[at], b[at])
    size = s.abs() * z.abs()[:, None] + b.abs()
    return gamma(4, UNIT) * (size + (own[0] * z).abs()[:, None] + own[1].abs()[:, None])


def _narrowest(worst: Tensor, allowed: float) -> tuple[Tensor, float, int]:
    """Where windows begin, the most that weighs outside of one, and how wide they are."""
    entries = len(worst)
    before = torch.nn.functional.pad(worst.cumsum(1), (1, 0))
    after = torch.nn.functional.pad(worst.flip(1).cumsum(1), (1, 0)).flip(1)
    for width in range(tuning.WINDOWED_LINE, entries, tuning.WINDOWED_LINE):
        outside, first = (before[:, : entries - width + 1] + after[:, width:]).min(1)
        tail = float(outside.max()) * OUTWARD_MANY
        if tail <= allowed:
            return first, tail, width
    whole = -(-entries // tuning.WINDOWED_LINE) * tuning.WINDOWED_LINE
    return torch.zeros(entries, dtype=torch.int64), 0.0, whole
