r"""Metrics of data that are so ill-conditioned that a Gram matrix hides some of their directions.

**Sharper than a Gram matrix**, which holds the squares of the singular values of X, so rounding
hides those below :math:`10^{-7}` of the largest. Written in coordinates T in which the directions
that are known have length 1, the same samples have another Gram matrix, G = T'HT, that shows the
next seven digits; its eigenvectors give the next T. What is computed of :math:`y_i = T'x_i` is off
by at most
:math:`e_i = (p + 4) u |T|' |x_i|`, or, of few samples, by :math:`u |y_i|` and :math:`2^{-98} |T|'
|x_i|`: in pairs of numbers, of the samples as they were given. So G is off in norm by at most

.. math:: \sigma = 2 \sqrt{AB} + B + c A + W, \qquad
   A = \sum_i c_i \|y_i\|^2,\; B = \sum_i c_i \|e_i\|^2,\; W = \sum_i \delta c_i \|y_i\|^2,

c the rounding of the sum and :math:`\delta c_i` what the curvature of a sample is off by. In the
end the eigenvalues of G are at least :math:`\lambda`, and
:math:`H \ge (\lambda - \sigma)\, T^{-\top} T^{-1}`: proven, and free of squares.

Directions whose eigenvalue stays below that noise are open: too short to be told from rounding. So
are those below 2^-46 of the longest, whatever shows them: that is as close as given numbers are
rounded.

**Dependence.** Features that depend on each other exactly are proven to by whole numbers.
A direction that no sample sees is known from rounding only. Where features depend on each other
by construction (indicators that add up to one, a column twice) there are whole numbers v with

.. math:: \sum_j v_j x_{ij} + v_0 = 0 \quad \text{for every sample } i,

and they are read off the reduced echelon form of the directions that were found. The sum is then
taken in pairs of numbers. Its terms are multiples of the last digit of some entry, and so is the
sum: where the pairs say 0 and their rounding is below that digit, it is 0.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from iceform.arithmetic import UNIT
from iceform.arithmetic.double_double import SUMMED, DoubleDouble, add, dot, pair
from iceform_estimators.machine.problem import LinearProblem, Metric, Scaling, metric_of
from iceform_estimators.tuning import PAIRS, SLACK, SMALL

_TURNS = 3  # each shows about seven more digits of a singular value, and there are sixteen
_CLEAR = 4.0  # times the noise: an eigenvalue that is known to be there
_WHITE = 1 / _CLEAR  # the least eigenvalue of a Gram matrix that counts as white
_CLOSEST = 2.0**-46  # singular values, over the largest, that are told from rounding of the data
_MULTIPLES = 24  # tried until a direction is one of whole numbers
_WHOLE = 1e-5  # how far from them it may be before it is rounded
_LARGEST = 1 << 20  # of the whole numbers
_DIGITS = sys.float_info.mant_dig

Weigh = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def evenly(z: Tensor, slip: Tensor) -> tuple[Tensor, Tensor]:
    """The curvature 1 of a squared residual, which is off by nothing."""
    return torch.ones_like(z), torch.zeros_like(slip)


@dataclass(frozen=True)
class Whitened:
    """A metric, multiples of it that are proven to lie below and above H, and what is open."""

    metric: Metric
    share: float
    most: float
    open: int

    @property
    def below(self) -> Metric | None:
        """A metric that is below H in the directions it knows; None where nothing is."""
        if not self.share > 0:
            return None
        return replace(self.metric, eigenvalues=self.share * self.metric.eigenvalues)

    @property
    def apart(self) -> float:
        """How far T'HT may be from the identity, in norm."""
        return max(1 - self.share, self.most - 1)


def sharpened(
    problem: LinearProblem, w: Tensor, hessian: Tensor, weigh: Weigh, kept: Tensor | None = None
) -> Whitened:
    """The metric of the Hessian at w, its samples weighed by ``weigh``, in a few more sweeps.

    Of some coefficients alone where ``kept`` says which.
    """
    problem.machine.ledger.note("host", "coordinates in which the samples are uncorrelated")
    sweep = _Sweep(
        problem, w, weigh, torch.ones_like(w, dtype=torch.bool) if kept is None else kept
    )
    part = hessian[sweep.kept][:, sweep.kept]
    scale = metric_of(part, problem.source.rows).scale
    turned, noise = torch.eye(len(part), dtype=w.dtype, device=w.device), 0.0
    values, vectors = torch.linalg.eigh(part / scale / scale[:, None])
    for _ in range(_TURNS):
        if float(values[0]) >= _WHITE:
            break
        turned = sweep.turned(turned @ vectors, values, max(noise, sweep.floor(values)))
        gram, noise = sweep(turned / scale[:, None])
        values, vectors = torch.linalg.eigh(gram)
    clear = values > _CLEAR * max(noise, sweep.floor(values))
    # What columns were rounded by before they were given tells nobody anything.
    clear &= values > (_CLOSEST * (turned @ vectors).norm(dim=0)).square()
    white = turned @ vectors[:, clear] / values[clear].sqrt()
    # Directions that no sample sees may be added to others at will: as little of them as can be.
    unseen = torch.linalg.qr(turned @ vectors[:, ~clear]).Q
    white = white - unseen @ (unseen.mT @ white)
    directions, sizes, _ = torch.linalg.svd(white, full_matrices=False)
    metric = Metric(directions, sizes**-2.0, scale, unknown=unseen)
    return Whitened(metric, *sweep.between(metric), int((~clear).sum()))


@dataclass(frozen=True, eq=False)
class _Sweep:
    """Gram matrices in other coordinates: one sweep over the data each."""

    problem: LinearProblem
    w: Tensor
    weigh: Weigh
    kept: Tensor

    def __call__(self, turned: Tensor) -> tuple[Tensor, float]:
        """G, and what it may be off by in norm."""
        whole = turned.new_zeros(len(self.w), turned.shape[1])
        whole[self.kept] = turned
        source, encoding = self.problem.source, self.problem.encoding

        def sums(x: Tensor, y: Tensor) -> list[Tensor]:
            """G, A, B and W."""
            samples, z, slip, _ = encoding.lines(x, y, self.w)
            weights, lost = (encoding.weigh(part, y) for part in self.weigh(z, slip))
            seen, off = self._seen(x, y, samples, whole)
            gram = (seen * weights[:, None]).mT @ seen
            size = seen.square().sum(1)
            return [gram, weights @ size, weights @ off.square().sum(1), lost @ size]

        gram, length, off, lost = (part / source.total for part in source.reduce(sums))
        penalty = (self.problem.ridge[self.kept, None] * turned).mT @ turned
        a, b = float(length), float(off)
        summed = (source.rows + source.count + 32) * UNIT * a
        rest = 16 * len(self.w) * UNIT * float(penalty.diagonal().sum())
        noise = 2 * math.sqrt(a * b) + b + summed + rest + 2 * float(lost)
        return gram + penalty, SLACK * noise

    def _seen(self, x: Tensor, y: Tensor, samples: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
        """T'x_i, and what it may be off by."""
        most = samples.abs() @ turned.abs()
        if not self._doubled:
            return samples @ turned, (samples.shape[1] + 4) * UNIT * most
        rows = DoubleDouble(samples, self.problem.encoding.lows(x, y)[0])
        columns = [dot(rows, pair(column.expand_as(samples))) for column in turned.mT]
        seen = torch.stack([column.double() for column in columns], 1)
        return seen, UNIT * seen.abs() + 8 * SUMMED * most

    @property
    def _doubled(self) -> bool:
        return self.problem.source.rows * self.problem.dim**2 <= PAIRS

    def turned(self, turned: Tensor, values: Tensor, noise: float) -> Tensor:
        """Coordinates in which what is known has length 1, while samples are still seen in them.

        What is computed of a sample is off by a share of ``SMALL`` at most.
        """
        p = len(turned)
        cap = SMALL / (_CLOSEST if self._doubled else (p + 4) * UNIT * math.sqrt(p))
        least = (turned.norm(dim=0) / cap).square().clamp(min=noise)
        return turned / torch.maximum(values, least).sqrt()

    def floor(self, values: Tensor) -> float:
        """Eigenvalues of a sum of products up to this are rounding."""
        width = len(values) + math.sqrt(self.problem.source.rows)
        return 8 * width * UNIT * float(values[-1].clamp(min=math.ulp(0.0)))

    def between(self, metric: Metric) -> tuple[float, float]:
        """H is between these multiples of the metric, in the directions that it knows."""
        if not metric.rank:
            return 1.0, 1.0
        gram, noise = self(metric.whitener)
        # Eigenvalues are within the norm of G - I of 1, whoever computes them.
        left = gram - torch.eye(metric.rank, dtype=gram.dtype, device=gram.device)
        noise += SLACK * min(float(left.norm()), float(left.abs().sum(1).max()))
        return 1 - noise, 1 + noise


def _fails(x: Tensor, numbers: Tensor, constant: Tensor) -> Tensor:
    """Whether a combination of a chunk's columns is not zero in some sample."""
    used = numbers != 0
    columns, factors = x[:, used], numbers[used]
    if not len(factors):
        return constant != 0
    total = dot(pair(columns), pair(factors.expand_as(columns)))
    total = add(total, pair(constant.expand(len(x))))
    size = columns.abs() @ factors.abs() + constant.abs()
    digit = torch.where(columns != 0, _last_digit(columns), torch.inf).amin(1)
    digit = digit.clamp(max=1.0) if bool(constant != 0) else digit
    zero = (total.hi == 0) & (total.lo == 0) & ((2 * SUMMED * size < digit) | (size == 0))
    return ~zero.all()


def _last_digit(x: Tensor) -> Tensor:
    """What x is a whole multiple of."""
    return torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent - _DIGITS)


def exactly_dependent(problem: LinearProblem, metric: Metric, kept: Tensor | None = None) -> bool:
    """Whether every direction that the metric does not know is one that no sample sees at all."""
    numbers = _whole(_raw(metric.null(), problem.scaling, kept))
    if numbers is None:
        return False

    def fails(x: Tensor, y: Tensor) -> list[Tensor]:
        found = [_fails(x, v[:-1], v[-1]) for v in numbers.mT]
        return [torch.stack(found).any().to(x)]

    (failed,) = problem.source.largest(fails)
    return float(failed) == 0


def _raw(null: Tensor, scaling: Scaling, kept: Tensor | None) -> Tensor:
    """Directions as numbers for the columns as they came, and for a constant: (d + 1, k)."""
    if kept is not None:
        whole = null.new_zeros(scaling.dim, null.shape[1])
        whole[kept] = null
        null = whole
    d = len(scaling.mean)
    columns = null[:d] / scaling.scale[:, None]
    constant = (null[d] if scaling.intercept else 0) - scaling.mean @ columns
    return torch.cat([columns, constant[None]])


def _whole(directions: Tensor) -> Tensor | None:
    """The same space by vectors of whole numbers; None where there seem to be none."""
    rows = directions / directions.abs().amax(1, keepdim=True).clamp(min=sys.float_info.min)
    pivots = _pivots(rows)
    reduced = directions @ torch.linalg.inv(directions[pivots])
    found = [f for f in map(_multiple, reduced.mT) if f is not None]
    return torch.stack(found, 1) if len(found) == reduced.shape[1] else None


def _pivots(rows: Tensor) -> Tensor:
    """Rows that are as independent as they come: Gram-Schmidt, the longest first."""
    rest, chosen = rows.clone(), []
    for _ in range(rows.shape[1]):
        at = int(rest.norm(dim=1).argmax())
        chosen.append(at)
        unit = rest[at] / rest[at].norm()
        rest = rest - (rest @ unit)[:, None] * unit
    return torch.tensor(chosen, device=rows.device)


def _multiple(column: Tensor) -> Tensor | None:
    for k in range(1, _MULTIPLES + 1):
        near = (k * column).round()
        if float((k * column - near).abs().max()) <= _WHOLE and float(near.abs().max()) < _LARGEST:
            return near
    return None
