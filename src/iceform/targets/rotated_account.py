r"""What a rotated stream adds to the account of descent on least squares.

A feature is now read from N = 4^k numbers of size at most 2^-k ||f||_1 each, f the token's mixed
features, in both halves. So what was relative to the feature becomes relative to ||f||_1: for a
sample L = sqrt(d) max||x_i|| + max|y_i|, for the state S = sqrt(d) (||w|| + ||v||). Numbers off by
at most e 2^-k ||f||_1 each give features that are off by at most e ||f||_1 each, and by as much in
the 2-norm of them all, up to sqrt(N) 2^-k = 1.

* Prompt and norm: the host adds d + 1 numbers and rounds, the norm costs NORM units. All heads read
  the same numbers, so this is common: (d + 2 + NORM) u L for x_i and y_i, NORM u S for w.
* A head's own sum has 2 N products, so a read costs Q = 2 N + 4 units of L or S. The logit is off
  by t Q u (S ||x||_1 + ||w||_1 L + L), a value by Q u L in each of d components.
* The state's own token is a sample with x = 0 and z = 0 no more. What was written beside w and v is
  at most s, the sum of the writings so far; the combination makes of it eta/n times
  s (zeta + R(zeta) + noise), zeta = s (||w|| + 1), and its read sqrt(d) Q u S sum_j |a_j| eta/n.
* Writing: an entry is added up from every component of every head, d heads + 2 products, and holds
  w and v: the 1-norms of both are at most sqrt(d) times the 2-norms.
* Gates read w or v with Q + NORM units of S.
* The host turns back: N + 3 + NORM units of S.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from iceform.targets.linear_account import LinearAccount
from iceform.targets.rounding import NORM

__all__ = ["RotatedAccount"]


@dataclass(frozen=True)
class RotatedAccount(LinearAccount):
    """The account of a run in a stream that is rotated."""

    @property
    def _block(self) -> int:
        rotation = self.stream.design.rotation
        assert rotation is not None
        return rotation.size

    @property
    def _root(self) -> float:
        return math.sqrt(self.stream.dim)

    @cached_property
    def _mean(self) -> float:
        """Entries may add up to 2^k as much, and a read adds up 2^k as much of the mean."""
        return super()._mean * self._block

    @property
    def _query(self) -> int:
        """Q: units of one head's read."""
        return 2 * self._block + 4

    @property
    def _sample(self) -> float:
        """L."""
        return self._root * self._rows + self.domain.label + self._mean

    def _held(self, w: float, v: float) -> float:
        """S."""
        return self._root * (w + v) + self._mean

    def _steps(self, slack: float) -> Iterator[dict[str, float]]:
        strayed = 0.0
        for t, step in enumerate(super()._steps(slack)):
            found = self._rotated(t, slack, step, strayed)
            strayed += found["writing"]
            yield found

    def _reading(self, slack: float) -> float:
        size = self._held(self._size(-1, slack), self._speed(len(self.r.factors), slack))
        return super()._reading(slack) + (self._block + 3 + NORM) * self.a.u * size

    def _rotated(
        self, t: int, slack: float, step: dict[str, float], strayed: float
    ) -> dict[str, float]:
        """The errors of step t, with what the rotation adds."""
        r, u = self.r, self.a.u
        w, v = self._size(t, slack), self._speed(t, slack)
        held = self._held(w, v)
        eta, shrink = r.factors[t] * r.lr, r.lr * r.penalty
        rms = self._residual(t, slack)
        gate = self._root * (self._query + NORM) * u * held
        return {
            **step,
            "common": step["common"] + eta * u * self._common(w, held, rms),
            "noise": step["noise"] + eta * self._own(w, held, rms, strayed),
            "leak": step["leak"] + eta * self._rows * self._ratio * 2 * strayed * (w + 1),
            "shrink": step["shrink"] + r.factors[t] * shrink * gate,
            "kept": step["kept"] + r.momentum * gate,
            "lost": step["lost"] + (1 - r.momentum) * gate,
            "writing": self._writing(step["writing"], self._speed(t + 1, slack)),
        }

    def _common(self, w: float, held: float, rms: float) -> float:
        """Of mean(x_i z_i), in units, as if x, y and w were off."""
        sample, rows, root = self._sample, self._rows, self._root
        off = (self.stream.dim + 2 + NORM) * sample
        return root * off * rms + rows * (root * off * w + rows * root * NORM * held + off)

    def _own(self, w: float, held: float, rms: float, strayed: float) -> float:
        """Of mean(x_i z_i), what every head is off by for itself, and what the state adds."""
        p, u, root, q = self.stream.pairs, self.a.u, self._root, self._query
        size, sample = self._reach(w), self._sample
        logit = held * root * self._rows + root * w * sample + sample
        state = self._ratio * (1 + root * w + strayed) * held
        read = self.domain.rms_rows * p.noise(u, 0.0, q * (logit + state), size, rms)
        value = root * q * u * sample * p.mean_amplitude(size, rms)
        zeta = strayed * (w + 1)
        stray = strayed * (zeta + p.remainder(zeta) + self._noise(size, rms))
        seen = root * q * u * held * p.amplitude(zeta)
        return read + value + (stray + seen) / self.domain.samples

    def _writing(self, plain: float, speed: float) -> float:
        heads = self.stream.heads
        units = heads * self.stream.dim + 2
        return 2 * self._root * units * (plain / (heads + 2) + self.a.u * speed)
