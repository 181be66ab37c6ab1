r"""Places: numbers of tokens as values that tell whether a read was of one token.

Token j is written as the digits of j in some base, each as c and c^2. A read returns, for each of
the D digits, the mean m of c and the mean of c^2 under the weights of softmax, and so their
variance v. By Chebyshev's inequality tokens whose digit is 1/2 or more from m weigh at most 4 v.
Where every :math:`v \le 1/(16 D)`, the token with the nearest digits weighs at least 3/4: its
logit is the largest, by at least ln 3.

Softmax and sum of n tokens round by at most (2 n + 16) u of the largest value, so v is known to
:math:`3 (2 n + 16) u (b/2)^2` in base b: the base is the largest that leaves 1/(32 D) of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from iceform.errors import PrecisionError
from iceform.validation import unit_roundoff


@dataclass(frozen=True, eq=False)
class IndexCodes:
    """How n tokens are numbered.

    Attributes
    ----------
    count
        n.
    base, digits
        b and D.

    Examples
    --------
    >>> codes = IndexCodes.of(1000, torch.float64)
    >>> codes.base, codes.digits
    (1000, 1)
    >>> codes.read(codes.values(torch.zeros(1).double())[[7, 512]])[0]
    tensor([  7, 512])
    """

    count: int
    base: int
    digits: int

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, count: int, dtype: torch.dtype) -> IndexCodes:
        """The fewest digits whose variances are known well enough in this dtype."""
        unit = unit_roundoff(dtype)
        for digits in range(1, 65):
            base = max(2, _root(count, digits))
            if 3 * (2 * count + 16) * unit * (base / 2) ** 2 <= 1 / (32 * digits):
                return cls(count, base, digits)
        raise PrecisionError(
            f"{count} samples are more than reads in {dtype} can tell apart by their numbers; use "
            "dtype=torch.float64, or fewer samples",
            best=math.inf,
        )

    @property
    def _middle(self) -> float:
        return (self.base - 1) / 2

    @property
    def _scale(self) -> float:
        """A power of two that takes digits into [-1, 1], exactly."""
        return 2.0 ** -math.ceil(math.log2(max(self._middle, 0.5)))

    def values(self, like: Tensor) -> Tensor:
        """c and c^2 of every digit of every token, the last digit first, shape (n, 2 D)."""
        numbers = torch.arange(self.count, device=like.device)
        parts = []
        for _ in range(self.digits):
            digit = (numbers % self.base).to(like) - self._middle
            parts += [self._scale * digit, (self._scale * digit).square()]
            numbers = numbers // self.base
        return torch.stack(parts, 1)

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Decode reads, shape (m, 2 D): token number, whether it is one token's, mean number."""
        digit = rows[:, 0::2] / self._scale
        spread = rows[:, 1::2] / self._scale**2 - digit.square()
        weights = self.base ** torch.arange(self.digits, device=rows.device)
        digit = digit + self._middle
        number = (digit.round().long() * weights).sum(1).clamp(0, self.count - 1)
        clear = (spread <= 1 / (32 * self.digits)).all(1)
        return number, clear, (digit * weights).sum(1)


def _root(count: int, digits: int) -> int:
    """The least b with b^digits >= count."""
    base = max(1, math.floor(count ** (1 / digits)) - 1)
    while int(base**digits) < count:
        base += 1
    return int(base)
