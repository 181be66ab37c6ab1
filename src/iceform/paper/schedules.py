r"""Step sizes of gradient descent, and how far an error made at one step reaches.

An error :math:`\delta_t` made at step t arrives at the end multiplied by the matrix polynomial
:math:`\prod_{j>t} (I - \eta_j H)`, so by its sup over the Hessian's eigenvalues. For losses that
are not quadratic H changes from step to step and only the product of the norms is safe. Errors
add up in the 2-norm: in the sup norm gradient descent is not non-expansive, whatever the paper's
corollary says (the iteration matrix [[1,1],[1,-1]]/sqrt 2 breaks it in two steps).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform import tuning
from iceform.errors import BoundError, ProgramError
from iceform.validation import check_choice, check_positive, check_size

SCHEDULES = ("constant", "chebyshev", "nesterov")
EIGENVALUE_SLACK = 2.0**-36  # of the largest: given ranges hold for data this far outside them
_NARROWEST = 2.0**-4  # of the largest: a range of eigenvalues that slopes are bounded on


@dataclass(frozen=True)
class Schedule:
    """Step sizes eta_t and momenta mu_t of ``u_{t+1} = w_{t+1} + mu_t (w_{t+1} - w_t)``.

    Make one with :meth:`of`.

    Attributes
    ----------
    name
        "constant", "chebyshev" or "nesterov".
    steps, momenta
        One of each for every step.

    Examples
    --------
    >>> [round(eta, 4) for eta in Schedule.of("chebyshev", 2, None, (1.0, 3.0)).steps]
    [0.3694, 0.7735]
    """

    name: str
    steps: tuple[float, ...]
    momenta: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def accelerated(self) -> bool:
        """Whether any momentum is used."""
        return any(self.momenta)

    @classmethod
    def of(cls, name: str, count: int, lr: float | None, hessian: tuple[float, float]) -> Schedule:
        """The named schedule for a Hessian with eigenvalues in ``hessian = (alpha, L)``."""
        check_choice("schedule", name, SCHEDULES)
        check_size("steps", count)
        alpha, top = hessian
        if name == "chebyshev":
            if lr is not None:
                raise ProgramError("the chebyshev schedule sets its own step sizes: leave out lr")
            if not alpha > 0:
                raise ProgramError(
                    f"the chebyshev schedule needs a positive least eigenvalue, got {alpha}; "
                    "pass hessian=(alpha, L) or l2 > 0"
                )
            return cls(name, chebyshev_steps(alpha, top, count), (0.0,) * count)
        if lr is None and not top > 0:
            raise ProgramError(
                "the loss is flat on this domain, so there is no 1/L to step by; pass lr= or l2 > 0"
            )
        eta = 1 / top if lr is None else check_positive("lr", lr)
        if name == "constant":
            return cls(name, (eta,) * count, (0.0,) * count)
        return cls(name, (eta,) * count, tuple(_momentum(t, alpha, eta) for t in range(count)))

    def iterates(self, start: Tensor, step: Callable[[Tensor, float], Tensor]) -> list[Tensor]:
        """w_0 .. w_T, where ``step(u, eta)`` is one step of size eta from u."""
        path, ahead = [start], start
        for eta, mu in zip(self.steps, self.momenta, strict=True):
            path.append(step(ahead, eta))
            ahead = path[-1] + mu * (path[-1] - path[-2]) if mu else path[-1]
        return path

    def amplification(self, hessian: tuple[float, float], *, quadratic: bool) -> list[float]:
        """For each step, what its 2-norm error is multiplied by at the end."""
        if not quadratic:
            return self._worst_products(hessian)
        return self._polynomials(_chebyshev_points(*hessian, len(self)), _between(len(self)))

    def amplification_at(self, eigenvalues: Tensor, off: float) -> list[float]:
        """The same for a quadratic whose eigenvalues are known up to ``off``.

        A polynomial of degree T that is at most P on [a, b] has a slope of at most
        2 T^2 P/(b - a) there (Markov).
        """
        seen = eigenvalues.double()
        low, high = float(seen.min()) - off, float(seen.max()) + off
        low = min(low, high - _NARROWEST * abs(high))
        if not low < high:
            return self._polynomials(seen, 1.0)
        slopes = 2 * len(self) ** 2 * off / (high - low)
        whole = self.amplification((low, high), quadratic=True)
        here = self._polynomials(seen, 1.0)
        return [at + slopes * most for at, most in zip(here, whole, strict=True)]

    def contraction(self, hessian: tuple[float, float]) -> float:
        """What the starting error is multiplied by at the end, for a quadratic."""
        return self._history(_chebyshev_points(*hessian, len(self)))[-1] * _between(len(self))

    def growth(self, hessian: tuple[float, float]) -> float:
        """The largest factor between the starting distance and that of any iterate."""
        return max(1.0, *self._history(_chebyshev_points(*hessian, len(self)))) * _between(
            len(self)
        )

    def _history(self, eigenvalues: Tensor) -> list[float]:
        """sup |p_t(lambda)| of every iterate's polynomial; of the look-ahead point if larger."""
        w = last = torch.ones_like(eigenvalues)
        ahead = w
        out = []
        for eta, mu in zip(self.steps, self.momenta, strict=True):
            last, w = w, (1 - eta * eigenvalues) * ahead
            ahead = w + mu * (w - last)
            out.append(float(torch.maximum(w.abs(), ahead.abs()).max()))
        out[-1] = float(w.abs().max())
        return out

    def _polynomials(self, eigenvalues: Tensor, factor: float) -> list[float]:
        """Adjoint sweep: the last step's error arrives as it is, earlier ones multiplied."""
        reached = self._pulled_back([1 - eta * eigenvalues for eta in self.steps], -1.0)
        return [float(now.abs().max()) * factor for now in reached]

    def _worst_products(self, hessian: tuple[float, float]) -> list[float]:
        """Norms of the steps in the place of the steps, and nothing cancels."""
        ends = torch.tensor(hessian, dtype=torch.float64)
        norms = [(1 - eta * ends).abs().max() for eta in self.steps]
        return [float(now) for now in self._pulled_back(norms, 1.0)]

    def _pulled_back(self, shrinks: list[Tensor], sign: float) -> list[Tensor]:
        """w_T as a function of w_{t+1}, for every t, from the end back through the steps.

        ``shrinks`` is what every step multiplies by; momentum takes w_t away with ``sign``.
        """
        now, before = torch.ones_like(shrinks[0]), torch.zeros_like(shrinks[0])
        out = []
        for shrink, mu in zip(shrinks[::-1], (0.0, *self.momenta[:-1])[::-1], strict=True):
            out.append(now)
            now, before = (1 + mu) * shrink * now + before, sign * mu * shrink * now
        return out[::-1]


def chebyshev_steps(alpha: float, top: float, count: int) -> tuple[float, ...]:
    """Inverses of the Chebyshev points of [alpha, L], in Leja order.

    In Leja order the partial products of |1 - eta_j lambda|, and with them iterates and errors on
    the way, grow by about kappa/4 at most; in the points' own order they overflow.

    Examples
    --------
    >>> [round(eta, 4) for eta in chebyshev_steps(1.0, 3.0, 1)]
    [0.5]
    """
    if not 0 < alpha <= top:
        raise BoundError(f"eigenvalues must satisfy 0 < alpha <= L, got ({alpha}, {top})")
    middle, half = (top + alpha) / 2, (top - alpha) / 2
    points = [middle + half * math.cos(math.pi * (2 * j + 1) / (2 * count)) for j in range(count)]
    return tuple(1 / p for p in _leja(points))


def _leja(points: list[float]) -> list[float]:
    """Each next point maximises the product of distances to those before it."""
    left = torch.tensor(points, dtype=torch.float64)
    scale = float(left.max() - left.min()) or 1.0
    order = [int(left.argmax())]
    logs = torch.zeros_like(left)
    while len(order) < len(points):
        gaps = (left - left[order[-1]]).abs() / scale
        logs = logs + gaps.clamp(min=torch.finfo(torch.float64).tiny).log()
        logs[order] = -math.inf
        order.append(int(logs.argmax()))
    return [points[i] for i in order]


def steps_needed(name: str, alpha: float, top: float, reduction: float) -> int:
    """The least number of steps that shrinks the starting error by a factor ``reduction``.

    Parameters
    ----------
    name
        The schedule.
    alpha, top
        The least and the largest eigenvalue of the Hessian.
    reduction
        Below 1; for 1 and above, one step.

    Examples
    --------
    >>> steps_needed("constant", 1.0, 50.0, 1e-6), steps_needed("chebyshev", 1.0, 50.0, 1e-6)
    (346, 51)
    """
    check_choice("schedule", name, SCHEDULES)
    if reduction >= 1:
        return 1
    kappa = top / alpha
    if name == "chebyshev":
        # 2 / (C^T + C^-T) <= reduction with C = (sqrt(kappa) + 1)/(sqrt(kappa) - 1).
        root = math.sqrt(kappa)
        if root <= 1:
            return 1
        return math.ceil(math.acosh(1 / reduction) / math.log((root + 1) / (root - 1)))
    if name == "constant":
        rate = (kappa - 1) / (kappa + 1)
        return 1 if rate == 0 else math.ceil(math.log(reduction) / math.log(rate))
    count = max(1, math.ceil(math.sqrt(kappa) * math.log(1 / reduction)))
    while Schedule.of(name, count, 1 / top, (alpha, top)).contraction((alpha, top)) > reduction:
        count = math.ceil(1.1 * count) + 1
    return count


def _momentum(step: int, alpha: float, eta: float) -> float:
    """Nesterov's momentum: constant where the problem is strongly convex, else t/(t+3)."""
    if alpha > 0:
        root = math.sqrt(eta * alpha)
        return max(0.0, (1 - root) / (1 + root))
    return step / (step + 3)


def _mesh_size(degree: int) -> int:
    return max(tuning.MESH, 8 * degree)


def _chebyshev_points(alpha: float, top: float, degree: int) -> Tensor:
    count = _mesh_size(degree)
    angles = torch.pi * (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return (top + alpha) / 2 + (top - alpha) / 2 * angles.cos()


def _between(degree: int) -> float:
    """Ehlich and Zeller: a polynomial's sup over an interval, from its values at the mesh."""
    return 1 / math.cos(math.pi * degree / (2 * _mesh_size(degree)))
