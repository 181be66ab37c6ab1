r"""Gradients by one frozen layer: of every sample, and one step along their mean.

thm:attn_sim_f is stated for the residual map, and cor:in-context-GD-attn for the gradients of the
samples. cor:in-context-sim-gd prints a readout that gives the mean gradient; the step needs w as
well. Every token carries w and attention weights sum to one, so the value row

.. math:: w - \eta\,(v_k x_i - o_i + \lambda w)

brings w along exactly, and the mean over the queries is the ridge-shrunk step. Step size and
shrinkage sit in the prompt, not in the weights: one frozen layer runs every schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from iceform.expressions import ScalarFunction
from iceform.expressions.losses import Loss
from iceform.paper.residual import SAME, LossLike, Rates, ResidualEmulator, ResidualOptions
from iceform.run import Backend, bind, rounding_of
from iceform.run.primitives import SampleMaxima, is_transformed
from iceform.validation import check_matmul_precision, check_positive


class SampleGradients(ResidualEmulator):
    r"""Per-sample gradients of any loss (cor:in-context-GD-attn).

    ``em(X, y, w)`` is :math:`[\nabla_w \ell_i(w)]_i`, shape (*batch, n, d): for losses on the
    residual :math:`\ell'(w \cdot x_i - y_i) x_i`, for margins and generalised linear models as
    :mod:`iceform.expressions.losses` says.

    Parameters
    ----------
    loss
        A name, a :class:`Loss`, or the derivative l'(t) as a function.
    dim, samples, bound
        d, n and the entrywise bound of x, y and w.
    eps
        The sup-norm error to certify; None for the best the dtype can do.
    regime
        "spectral" (default) or "hard", the paper's.
    dtype, backend
        What the certificate is for.
    kinks, tokens, x_norm, w_norm, y_bound, w_bound, z_range, interpolant, estimate
        Narrower domains, a fixed table size, a ready look-up table, or leave to hold ``eps`` by
        an estimate where f cannot be enclosed.
    room
        Grid tokens that the weights have room for: all functions whose tables fit share them.

    Examples
    --------
    >>> X = torch.tensor([[1.0, 0.5], [-0.5, 1.0], [0.25, -1.0]]).double()
    >>> y, w = torch.zeros(3).double(), torch.tensor([0.5, -0.25]).double()
    >>> em = SampleGradients("squared", dim=2, samples=3)
    >>> em(X, y, w).shape, em.certificate.kind
    (torch.Size([3, 2]), 'proven')
    """

    def _exactly(self, *inputs: Tensor) -> Tensor:
        """l'(z_i) x_i, exactly (float64)."""
        return self._exact(*inputs)

    def _run(self, backend: Backend, *inputs: Tensor) -> Tensor:
        return backend.run(self._encode(*inputs))[..., :-1]

    def reprogram(self, loss: Any, eps: float | str | None = SAME) -> SampleGradients:
        """Another loss on the same frozen weights: only the prompt changes.

        Parameters
        ----------
        loss
            As for the constructor.
        eps
            What it has to hold, by default what this one does; None accepts what comes out. Where
            the present keys do, only values change; else the table is another one.

        Raises
        ------
        PrecisionError
            Where no table that fits into these weights holds ``eps``.
        """
        return self._on_the_same_weights(loss, eps)


class ResidualMap(SampleGradients):
    """f(w.x_i - y_i) x_i for any continuous f (thm:attn_sim_f).

    ``em(X, y, w)`` has shape (*batch, n, d). The error is at most max|x| times the interpolation
    error of f, plus rounding.

    Parameters
    ----------
    f
        Continuous and elementwise.
    dim, samples, bound, eps, regime, dtype, backend
        As for :class:`SampleGradients`.

    Examples
    --------
    >>> X = torch.tensor([[1.0, 0.5], [-0.5, 1.0], [0.25, -1.0]]).double()
    >>> y, w = torch.zeros(3).double(), torch.tensor([0.5, -0.25]).double()
    >>> em = ResidualMap(torch.tanh, dim=2, samples=3, eps=1e-6)
    >>> off = em(X, y, w) - torch.tanh(X @ w - y)[:, None] * X
    >>> bool(off.abs().max() <= em.certificate.error <= 1e-6)
    True
    """

    def __init__(
        self,
        f: Callable[[Tensor], Tensor] | ScalarFunction | Loss,
        **options: Unpack[ResidualOptions],
    ) -> None:
        super().__init__(f, **options)


class GradientStep(ResidualEmulator):
    r"""One step of gradient descent with ridge shrinkage (cor:in-context-sim-gd, corrected).

    ``em(X, y, w)`` is :math:`w - \eta (\frac1n \sum_i \nabla \ell_i(w) + \lambda w)`, shape
    (*batch, d).

    Parameters
    ----------
    loss
        A name, a :class:`Loss`, or the derivative l'(t) as a function.
    lr
        The step size eta.
    l2
        lambda of the penalty (lambda/2) ||w||^2.
    dim, samples, bound, eps, regime, dtype, backend, options
        As for :class:`SampleGradients`.

    Examples
    --------
    >>> em = GradientStep("squared", lr=0.1, dim=1, samples=1, bound=2.0)
    >>> x, y, w = torch.tensor([[1.0]]).double(), torch.tensor([0.5]).double(), torch.tensor([2.0])
    >>> round(float(em(x, y, w.double())), 5)  # 2 - 0.1 (2 - 0.5)
    1.85
    """

    _averages = True

    def __init__(
        self,
        loss: LossLike,
        lr: float = 1.0,
        l2: float = 0.0,
        **options: Unpack[ResidualOptions],
    ) -> None:
        rates = Rates(check_positive("lr", lr), lr * check_positive("l2", l2, zero=True))
        super().__init__(loss, rates=rates, **options)

    def _exactly(self, *inputs: Tensor) -> Tensor:
        """The exact step (float64)."""
        x, y, w = inputs
        return self._exact_step(x, y, w, self.rates)

    def _exact_step(self, x: Tensor, y: Tensor, w: Tensor, rates: Rates) -> Tensor:
        gradient, w = self._exact(x, y, w).mean(-2), w.double()
        return w - (rates.shrink * w + rates.gain * gradient)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Check the inputs, then run the frozen network on their prompts.

        Where the pass shows its samples to the check as it reads them, values are checked after
        it and before anything is returned: they are read from memory once. A GPU measures what is
        left while the host compares weights.
        """
        if not self._can_watch(*inputs):
            return super().forward(*inputs)
        check_matmul_precision(self.dtype)
        self._check_shapes(*inputs)
        x, y, w = inputs
        seen = self.domain.watch(self.backend)
        backend = bind(self.network, self.binding, later=True)
        try:
            step = self._step(backend, x, y, w, self.rates, seen)
            sizes = self.domain.sizes(x, y, w, seen)
        finally:
            backend.settle()
        self._check_values(x, y, w, sizes=sizes)
        return step

    def _can_watch(self, *inputs: Tensor) -> bool:
        """Whether a pass reads x as it is (margins read y x), outside any transform."""
        literal = rounding_of(self.backend).literal
        if literal or self.loss.kind == "margin" or torch.compiler.is_exporting():
            return False
        return all(isinstance(t, Tensor) and t.numel() and not is_transformed(t) for t in inputs)

    def _run(self, backend: Backend, *inputs: Tensor) -> Tensor:
        x, y, w = inputs
        return self._step(backend, x, y, w, self.rates)

    def step_at(self, x: Tensor, y: Tensor, w: Tensor, lr: float, shrink: float = 0.0) -> Tensor:
        """One pass of the same frozen layer at another step size and shrinkage: another prompt."""
        self._check_once(x, y, w)
        return self._step(self.bind(), x, y, w, Rates(lr, shrink))

    def _step(
        self, backend: Backend, x: Tensor, y: Tensor, w: Tensor, rates: Rates,
        watch: SampleMaxima | None = None,
    ) -> Tensor:  # fmt: skip
        """One pass of the same frozen layer at any rates: the mean of the samples' rows."""
        return backend.mean(self._look_ups(x, y, w, rates), watch, self.dtype)

    def reprogram(
        self, loss: LossLike, lr: float | None = None, l2: float | None = None,
        eps: float | str | None = SAME,
    ) -> GradientStep:  # fmt: skip
        """Another loss, step or shrinkage on the same frozen weights.

        ``eps`` is as for :meth:`SampleGradients.reprogram`.
        """
        given = {"lr": lr, "l2": l2}
        changed = {name: value for name, value in given.items() if value is not None}
        return self._on_the_same_weights(loss, eps, **changed)
