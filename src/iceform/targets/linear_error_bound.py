r"""What descent on least squares by pairs of heads is off by, and what becomes of it.

The stream holds w at the token that asks, x_i and y_i at the samples, and null tokens of value 0
whose weights add up to e^m (``linear_descent``).

**Error of one step**, in the 2-norm, for |z_i| <= Z, rms(z) <= s, ||x_i|| <= X, eta = rho_t lr:

* remainder: eta X R(Z).
* leak: F = N (1 - l + l^2/(1 + l)). The first order is the same combination applied to
  e^{t (z_i + z_k)}, so it is not amplified: eta lr 2^-K X (2 s + R(2 Z) + (s + R(Z))/n); the
  second is at most eta X times sum_j |a_j| cosh(j delta Z) times the largest l^2.
* common: what all heads of the layer read alike is off as if the data were (``rounding``), so it
  is not amplified: NORM u (2 S + s) X for x, y and w, with S = ||x|| ||w|| + |y|, and
  (3 + NORM + c) u |m| s X for the null logit, which the host rounds too (c = 0 or 2 for the scaling
  of a fused kernel where the root of the head size is no even power of two). A null token's logit
  is the sum of one number that is not 0, so it is the same number in every head.
* noise: every weight e^{t z_i - m} is off by a relative error, so the combination by eta times
  the root mean square of ||x_i|| times that of sum_j |a_j| cosh(j delta z_i) nu_j
  (``LinearHeadPairs.mean_amplitude``). In units of u, nu_j is |m| for the difference from the null
  logit, j delta S (d + 6 + c) for the logit itself and its part of that, the exponential, n + 1 for
  the sum over samples, min(n, l/u) for the normaliser, 5 for division, value and output.
* writing: adding up the heads and the stream rounds by (heads + 2) u times what is added up.
* gates: alpha is off relatively by 5 |ln(alpha/(1 - alpha))| + EXP + 4 units, its value by READ.

Errors of a step arrive at the end multiplied by polynomials of the Hessian (``recurrence``),
which also bounds Z and s over the whole run, so nothing is assumed about the iterates: they are
allowed a slack, and the sum of all errors must be below it.

Where the samples' features are themselves copies made by attention, ``copied`` units are added to
what is common; where the null weight is spread over many tokens, ``spread`` of them are summed.
Where ``groups`` of samples have heads of their own, n of the noise is that of the largest group;
the leak has fewer terms, all of which its bound counts; the heads' outputs are written together.
Padding adds to l(t) what the state's own token does: 1/n each.

**A rotated stream** (``rotation``).
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

from iceform.certificates import DerivationStep
from iceform.heads import Design
from iceform.targets.domain import DataDomain
from iceform.targets.linear_head_pairs import LinearHeadPairs
from iceform.targets.recurrence import Recurrence
from iceform.targets.rounding import NORM, OFF, READ, SECOND_ORDER, KernelRounding, inflate

# Of the labels' size: iterates may leave their exact bounds by this much. Labels below it are
# certified as if they were this large.
_SLACK = 2.0**-10


@dataclass(frozen=True)
class DescentNetwork:
    """How a network does it.

    Attributes
    ----------
    dim, pairs, null
        Of w; the combination, and the logit m of a null token.
    largest
        A bound of what the token that asks holds beside w and v.
    copied, spread
        Units of copying the samples' features; number of null tokens.
    groups
        Parts of the samples, in turn, that heads of their own add up.
    """

    dim: int
    pairs: LinearHeadPairs
    null: float
    design: Design
    largest: float
    copied: float = 0.0
    spread: int = 1
    groups: int = 1

    @property
    def heads(self) -> int:
        """Heads of the widest layer, all of which may add to one feature."""
        return max(len(layer) for layer in self.design.layers)

    def errors(
        self, a: KernelRounding, null: float, ratio: float, size: float, z: float, rms: float,
        samples: float = 1, terms: int = 1, padding: int = 0,
    ) -> dict[str, float]:  # fmt: skip
        """What the pairs make of residuals is off by, in four parts; what is common in units.

        Residuals are at most z, in the root mean square ``rms``, and added up from ``size``; l is
        ``ratio`` times the means. A head adds up so many ``terms``.
        """
        p, scaling = self.pairs, self.design.scaling_units
        heaviest = p.heaviest(ratio, z) * (1 + padding)
        full = min(terms, heaviest / a.u) + self.spread - 1
        fixed = null + a.exp + terms + 1 + full + 5
        return {
            "remainder": p.remainder(z),
            "leak": p.leak(ratio, samples / (1 + padding), z, rms),
            "common": (NORM + self.copied) * (2 * size + rms) + (3 + NORM + scaling) * null * rms,
            "noise": p.noise(a.u, fixed, size * (self.dim + 6 + scaling), z, rms),
        }

    def carried(self, a: KernelRounding, size: float, z: float) -> float:
        """What a residual is off by that pairs of heads carry into a feature.

        One token with the logit t z and the value one beside a null token of logit K ln 2: a
        gradient with one sample and x = 1. ``size`` bounds what z is added up from.
        """
        p = self.pairs
        found = self.errors(a, p.null_logit, 2.0**-p.leak_bits, size, z, z)
        writing = (2 * p.count + 3) * a.u * p.amplitude(z)
        return found["remainder"] + found["leak"] + found["noise"] + a.u * found["common"] + writing


@dataclass(frozen=True)
class LinearErrorBound:
    """The account of one run: what each step's error is, and what it becomes."""

    stream: DescentNetwork
    domain: DataDomain
    r: Recurrence
    a: KernelRounding

    def terms(self) -> dict[str, float]:
        """The error's parts; infinite if iterates could leave what was allowed for them."""
        for stretch in (1, 4, 16, 64):
            found = self._account(self._slack * stretch)
            if math.fsum(found.values()) <= self._slack * stretch:
                return found
        return {"rounding": math.inf}

    @property
    def _slack(self) -> float:
        return _SLACK * max(self.domain.rms, _SLACK)

    def _account(self, slack: float) -> dict[str, float]:
        """The terms, if computed iterates stay within ``slack`` of the exact ones."""
        names = ("remainder", "leak", "common", "noise")
        out = dict.fromkeys((*names, "writing", "gates"), 0.0)
        for (by_w, by_v, both), step in zip(self.r.arrivals, self._steps(slack), strict=True):
            for name in names:
                out[name] += both * step[name]
            out["gates"] += both * step["shrink"] + by_w * step["kept"] + by_v * step["lost"]
            out["writing"] += (by_w + by_v) * step["writing"]
        out["writing"] += self._reading(slack)
        return {name: SECOND_ORDER * value for name, value in out.items()}

    def _steps(self, slack: float) -> Iterator[dict[str, float]]:
        """The errors of every step."""
        return (self._step(t, slack) for t in range(len(self.r.factors)))

    def _reading(self, slack: float) -> float:
        """What the answer is off by when it is read."""
        return READ * self.a.u * (self._size(-1, slack) + self._mean)

    def _size(self, t: int, slack: float) -> float:
        """A bound of ||w_t||."""
        return self.r.coefficients[t] * self.domain.rms + slack

    def _speed(self, t: int, slack: float) -> float:
        """A bound of ||v_t||."""
        return self._size(t, slack) + self._size(max(t - 1, 0), slack)

    def _residual(self, t: int, slack: float) -> float:
        """A bound of the residuals' root mean square."""
        return self.r.residuals[t] * self.domain.rms + slack * self._rows

    def _reach(self, w: float) -> float:
        """A bound of |z_i| where ||w|| is at most this."""
        rows = self._rows
        return rows * (w + math.sqrt(self.stream.dim) * self._mean) + self.domain.label + self._mean

    def _step(self, t: int, slack: float) -> dict[str, float]:
        """2-norm errors of step t by cause."""
        r = self.r
        w, after, v = self._size(t, slack), self._size(t + 1, slack), self._speed(t, slack)
        eta, shrink = r.factors[t] * r.lr, r.lr * r.penalty
        gradient = self.gradient(eta, w, self._residual(t, slack))
        added = gradient.pop("added") + r.factors[t] * shrink * w + v
        return {
            **gradient,
            "shrink": r.factors[t] * shrink * w * self._gate_error(shrink),
            "kept": r.momentum * v * self._gate_error(r.momentum),
            "lost": (1 - r.momentum) * v * self._gate_error(r.momentum),
            "writing": (self.stream.heads + 2) * self.a.u * (added + after),
        }

    def gradient(self, eta: float, w: float, rms: float) -> dict[str, float]:
        """2-norm errors of eta mean(x_i z_i) by cause, for ||w|| <= w and rms(z) <= rms.

        ``added`` is the size of what its heads add up.
        """
        size, domain = self._reach(w), self.domain
        found, by_row = self._pairs(size, rms), eta * self._rows
        return {
            "remainder": by_row * found["remainder"],
            "leak": by_row * found["leak"],
            "common": by_row * self.a.u * found["common"],
            "noise": eta * domain.rms_rows * found["noise"],
            "added": eta * domain.rms_rows * self.stream.pairs.mean_amplitude(size, rms),
        }

    def _pairs(self, size: float, rms: float) -> dict[str, float]:
        samples, padding = self.domain.samples, self.domain.padding
        terms = -(-(samples + padding) // self.stream.groups)
        null = abs(self.stream.null) + self._mean  # which reading it may add
        return self.stream.errors(
            self.a, null, self._ratio, size, size, rms, samples, terms, padding
        )

    @property
    def _rows(self) -> float:
        return self.domain.rows + math.sqrt(self.stream.dim) * self._mean

    @property
    def _ratio(self) -> float:
        return self.r.lr * 2.0**-self.stream.pairs.leak_bits

    def _gate_error(self, alpha: float) -> float:
        odds = log_odds(alpha)
        log = 0.0 if abs(odds) == OFF else abs(odds)
        return inflate((5 * log + self.a.exp + 4 + READ + self.stream.dim) * self.a.u)

    @cached_property
    def _mean(self) -> float:
        """A bound of |mu|, the mean that rounding leaves in any token."""
        sample = self.domain.rows * self.stream.dim + self.domain.label
        state = (
            3 * max(self.r.coefficients) * self.domain.rms * self.stream.dim + self.stream.largest
        )
        width = self.stream.design.hidden
        held = max(sample, state, abs(self.stream.null)) + 4
        return NORM * (width + 2) * self.a.u * 2 * held / width

    def derivation(self) -> tuple[DerivationStep, ...]:
        """The steps that derive the bound."""
        p, domain = self.stream.pairs, self.domain
        largest = max(self.r.coefficients) * domain.rms
        reach = domain.rows * largest + domain.label
        arrival = max(both for _, _, both in self.r.arrivals)
        return (
            DerivationStep(
                "w", "sup sqrt(x) |q_t(x)| rms(y)", largest, "bounds ||w_t|| over the run"
            ),
            DerivationStep("Z", "max ||x_i|| w + max |y_i|", reach, "bounds |z_i| over the run"),
            DerivationStep("delta", "k 2^-j", p.delta, f"spacing of the {p.count} pairs of heads"),
            DerivationStep(
                "R", "|sum_j a_j sinh(j delta z) - z|", p.remainder(reach), "at |z| = Z"
            ),
            DerivationStep("A", "sum_j |a_j|", p.amplitude(0.0), "by which rounding is amplified"),
            DerivationStep("arrival", "max sup |P_t|", arrival, "an error of one step, at the end"),
        )


@dataclass(frozen=True)
class RotatedErrorBound(LinearErrorBound):
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
        stray = strayed * (zeta + p.remainder(zeta) + self._pairs(size, rms)["noise"])
        seen = root * q * u * held * p.amplitude(zeta)
        return read + value + (stray + seen) / self.domain.samples

    def _writing(self, plain: float, speed: float) -> float:
        heads = self.stream.heads
        units = heads * self.stream.dim + 2
        return 2 * self._root * units * (plain / (heads + 2) + self.a.u * speed)


def log_odds(alpha: float) -> float:
    """ln(alpha/(1 - alpha)); for 0 and 1 a number whose exponential underflows."""
    if alpha == 0:
        return -OFF
    return OFF if alpha == 1 else math.log(alpha / (1 - alpha))
