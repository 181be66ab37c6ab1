r"""Least squares and ridge by gradient descent in context (thm:attn_sim_lr, thm:attn_sim_rr).

The paper claims one layer for any data; with frozen weights that is impossible (n = d = 1: y/x is
unbounded). On bounded data of bounded condition one head with a grid of data sets can do it, with
tokens exponential in n d. What is built here takes depth instead: if the Gram matrix X'X/n has
eigenvalues in [alpha, L], with :math:`\kappa = L/\alpha`, about
:math:`(\sqrt\kappa/2) \ln(4 R/\epsilon)` passes with Chebyshev step sizes in Leja order reach the
solution, R being its norm.
"""

from __future__ import annotations

import math
from typing import Any, TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import exactly
from iceform.arithmetic.eigenvalues import gram_range
from iceform.arithmetic.units import UNIT
from iceform.certificates import Certificate
from iceform.certificates import DerivationStep as Step
from iceform.errors import BoundError
from iceform.heads import FrozenNetwork, LookUps, Prompt
from iceform.paper.base import Emulator, Plan
from iceform.paper.descent import GradientDescent, backend_for
from iceform.paper.domain import Domain
from iceform.paper.schedules import EIGENVALUE_SLACK, Schedule, steps_needed
from iceform.run import Backend
from iceform.tables import Interpolant
from iceform.validation import check_dtype, check_positive, check_size, untraced

_SETTLED = 1e-6  # what a solution may be longer than the radius


class _PassedOn(TypedDict, total=False):
    """What a step of the descent is asked for."""

    regime: str
    y_bound: float | None
    tokens: int | None
    interpolant: Interpolant | None


class RidgeRegression(Emulator):
    r"""argmin over w of ||X w - y||^2 + alpha ||w||^2, scikit-learn's convention.

    ``em(X, y)`` is the solution, shape (*batch, d). Since the loss is a mean over samples, the
    penalty is :math:`\lambda = \alpha / n`.

    Parameters
    ----------
    alpha
        The penalty.
    dim, samples, bound
        d, n and the entrywise bound of x and y.
    largest, smallest
        Bounds of the eigenvalues of X'X/n; the data is checked against them. ``largest`` defaults
        to the worst case, the squared norm of a sample.
    radius
        Bound of the solution's 2-norm; checked after the run by the certified residual.
    steps
        Passes; None takes as many as eps needs.
    schedule
        "chebyshev" (default), "constant" or "nesterov".
    eps
        The sup-norm error to certify: distance to the exact solution, convergence included.
    tokens
        A fixed number of grid tokens per sample instead of as many as eps needs.

    Examples
    --------
    >>> em = RidgeRegression(1.0, dim=1, samples=2)
    >>> x, y = torch.tensor([[1.0], [0.0]]).double(), torch.tensor([0.5, 0.0]).double()
    >>> round(float(em(x, y)), 5)  # 0.5 / (1 + 1)
    0.25
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        dim: int,
        samples: int,
        bound: float = 1.0,
        largest: float | None = None,
        smallest: float = 0.0,
        radius: float = 1.0,
        steps: int | None = None,
        schedule: str = "chebyshev",
        eps: float | None = tuning.EPS,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
        x_norm: float | None = None,
        unrolled: bool = False,
        **options: Unpack[_PassedOn],
    ) -> None:
        super().__init__(eps=eps, dtype=dtype, backend=backend_for(backend, unrolled))
        self.alpha = check_positive("alpha", alpha, zero=True)
        self.radius = check_positive("radius", radius)
        norm = Domain.of(dim, samples, bound, x_norm=x_norm, dtype=dtype).x_norm
        self.l2 = l2 = self.alpha / samples  # lambda, of the mean over samples
        top = check_positive("largest", norm**2 if largest is None else largest)
        least = check_positive("smallest", smallest, zero=True)
        if least > top:
            raise BoundError(f"smallest eigenvalue {least:.6g} exceeds the largest {top:.6g}")
        self.eigenvalues = least, top
        # Data are checked to have eigenvalues in this range, which is a little more.
        slack = EIGENVALUE_SLACK * top
        hessian = (max(0.0, least - slack) + l2, top + slack + l2)
        if not hessian[0] > 0:
            raise BoundError(
                "the least eigenvalue of X'X/n plus alpha/n must be positive; "
                "pass smallest= (or condition=), or alpha > 0"
            )
        count = self._count(steps, schedule, hessian)
        lr = 2 / sum(hessian) if schedule == "constant" else None
        planned = Schedule.of(schedule, count, lr, hessian)
        # Iterates stay within ||w*|| + growth ||w0 - w*|| of the origin, and w0 = 0.
        w_norm = self.radius * (1 + planned.growth(hessian)) * (1 + EIGENVALUE_SLACK)
        share = None if self.eps is None else self.eps / 2  # and half for convergence
        self.descent = GradientDescent.within(
            share,
            "squared",
            count,
            lr,
            l2,
            schedule=schedule,
            hessian=hessian,
            unrolled=unrolled,
            dim=dim,
            samples=samples,
            bound=bound,
            dtype=dtype,
            backend=backend,
            x_norm=x_norm,
            w_bound=w_norm,
            w_norm=w_norm,
            **options,
        )
        self.shapes, self.answer = {"x": (samples, dim), "y": (samples,)}, (dim,)
        self.regime = self.descent.regime
        self.interpolant = self.descent.interpolant
        self.domain = self.descent.domain
        self._hold_eps("leave out steps= to take as many as needed", f"{count} passes")

    def _count(self, steps: int | None, schedule: str, hessian: tuple[float, float]) -> int:
        if steps is not None:
            return check_size("steps", steps)
        target = 1e-9 if self.eps is None else self.eps / 2
        return steps_needed(schedule, *hessian, 0.999 * target / self.radius)

    @property
    def passes(self) -> int:
        """Passes through the frozen layer."""
        return len(self.descent.schedule)

    def _certify(self, it: Interpolant) -> Certificate:
        """Emulation error of the last iterate plus its distance to the solution."""
        inner = self.descent.certificate
        hessian = self.descent.hessian
        contraction = self.descent.schedule.contraction(hessian)
        left = contraction * self.radius * (1 + _SETTLED)
        step = Step(
            "convergence", "contraction times ||w*||", left, f"{self.passes} passes from w = 0"
        )
        low, high = self.eigenvalues
        domain = {
            **inner.domain,
            "eigenvalues of X'X/n": f"in [{exactly(low)}, {exactly(high)}]",
            "||w*||_2": self.radius,
        }
        terms = {**inner.terms, "convergence": left}
        return self._proved(terms, domain, (*inner.derivation, step), inner)

    def _check_values(self, *inputs: Tensor) -> None:
        """Bounds, then the eigenvalues of X'X/n."""
        self.domain.check_data(*inputs)
        least, most = gram_range(inputs[0])
        low, high = self.eigenvalues
        slack = EIGENVALUE_SLACK * high
        if not (least >= low - slack and most <= high + slack):
            raise BoundError(
                f"the eigenvalues of X'X/n reach from {least:.6g} to {most:.6g}, the certificate "
                f"holds in [{exactly(low)}, {exactly(high)}]; pass smallest= and largest= that "
                "cover them"
            )

    @untraced
    def _check_radius(self, x: Tensor, y: Tensor, w: Tensor) -> None:
        """||w*|| <= ||w|| + ||gradient at w|| / alpha must be within the radius."""
        x, y, w = x.detach().double(), y.detach().double(), w.detach().double()
        residual = (x @ w[..., None])[..., 0] - y
        gradient = (residual[..., None, :] @ x)[..., 0, :] / self.domain.samples + self.l2 * w
        n, d = x.shape[-2:]
        terms = (x.abs() @ w.abs()[..., None])[..., 0] + y.abs()
        slips = (terms[..., None, :] @ x.abs())[..., 0, :] / n + self.l2 * w.abs()
        off = gradient.norm(dim=-1) + (n + d + 16) * UNIT * slips.norm(dim=-1)
        most = w.norm(dim=-1) + off / self.descent.hessian[0]
        if not bool((most <= self.radius * (1 + _SETTLED)).all()):
            raise BoundError(
                f"the solution's norm may reach {float(most.max()):.6g}, the certificate holds up "
                f"to {exactly(self.radius)}; raise radius="
            )

    def _start(self, x: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:-2], self.domain.dim)

    def _run(self, backend: Backend, *inputs: Tensor) -> Tensor:
        x, y = inputs
        try:
            solution = self.descent._run(backend, x, y, self._start(x))
        except BoundError as left:
            raise BoundError(
                f"an iterate left the domain that radius={exactly(self.radius)} gives ({left}); "
                "the "
                "solution is larger than that, so raise radius="
            ) from None
        self._check_radius(x, y, solution)
        return solution

    def _exactly(self, *inputs: Tensor) -> Float[Tensor, "*b d"]:
        """The closed form (X'X/n + lambda I)^{-1} X'y/n (float64)."""
        x, y = (t.double() for t in inputs)
        n, d = self.domain.samples, self.domain.dim
        eye = torch.eye(d, dtype=torch.float64, device=x.device)
        moment = (y[..., None, :] @ x)[..., 0, :] / n
        solution: Tensor = torch.linalg.solve(x.mT @ x / n + self.l2 * eye, moment)
        return solution

    def _encode(self, *inputs: Tensor) -> Prompt | LookUps:
        """The first pass's prompt, at w = 0."""
        x, y = inputs
        return self.descent._encode(x, y, self._start(x))

    @property
    def network(self) -> FrozenNetwork:
        """The frozen layer of every pass (or the unrolled network)."""
        return self.descent.network

    def _build_network(self) -> FrozenNetwork:
        return self.descent.network

    @property
    def _smaller(self) -> str:
        return self.descent._smaller

    @property
    def plan(self) -> Plan:
        """As for gradient descent."""
        return self.descent.plan


class LeastSquares(RidgeRegression):
    """argmin over w of ||X w - y||^2 for data whose X'X/n is well conditioned.

    ``em(X, y)`` is the solution, shape (*batch, d).

    Parameters
    ----------
    condition
        kappa, the largest over the smallest eigenvalue of X'X/n; the data is checked.
    largest
        Bound of the largest one; the worst case by default.
    dim, samples, bound, radius, steps, schedule, eps, regime, dtype, backend
        As for :class:`RidgeRegression`.

    Examples
    --------
    >>> em = LeastSquares(dim=1, samples=2, condition=4.0, radius=2.0)
    >>> x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([0.5, 1.0]).double()
    >>> round(float(em(x, y)), 5)  # (0.5 + 0.5) / (1 + 0.25)
    0.8
    """

    def __init__(
        self,
        *,
        dim: int,
        samples: int,
        condition: float,
        largest: float | None = None,
        bound: float = 1.0,
        x_norm: float | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(condition, int | float) or not (
            math.isfinite(condition) and condition >= 1
        ):
            raise BoundError(f"condition must be at least 1 and finite, got {condition!r}")
        dtype = check_dtype(options.get("dtype", torch.float64))
        norm = Domain.of(dim, samples, bound, x_norm=x_norm, dtype=dtype).x_norm
        top = norm**2 if largest is None else check_positive("largest", largest)
        super().__init__(
            0.0,
            dim=dim,
            samples=samples,
            bound=bound,
            largest=top,
            smallest=top / condition,
            x_norm=x_norm,
            **options,
        )
