"""The gradient of every sample, and the residual map: what thm:attn_sim_f is stated for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from iceform.backends import Backend
from iceform.constructions.residual import Rates, ResidualEmulator, three_inputs
from iceform.functions import ScalarFunction
from iceform.functions.losses import Loss

__all__ = ["ResidualMap", "SampleGradients"]


class SampleGradients(ResidualEmulator):
    r"""Per-sample gradients of any loss (cor:in-context-GD-attn).

    ``em(X, y, w)`` is :math:`[\nabla_w \ell_i(w)]_i`, shape (*batch, n, d): for losses on the
    residual :math:`\ell'(w \cdot x_i - y_i) x_i`, for margins and generalised linear models as
    :mod:`iceform.functions.losses` says.

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
    """

    def __init__(
        self,
        loss: str | Loss | ScalarFunction | Callable[[Tensor], Tensor],
        *,
        dim: int,
        samples: int,
        bound: float = 1.0,
        eps: float | None = 1e-6,
        regime: str = "spectral",
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
        **options: Any,
    ) -> None:
        super().__init__(
            Loss.of(loss),
            dim=dim,
            samples=samples,
            bound=bound,
            eps=eps,
            regime=regime,
            dtype=dtype,
            backend=backend,
            rates=Rates(),
            **options,
        )

    def _exactly(self, *inputs: Tensor) -> Tensor:
        """l'(z_i) x_i, exactly (float64)."""
        return self._exact(*three_inputs(inputs))

    def _run(self, backend: Backend, *inputs: Tensor) -> Tensor:
        return backend.run(self._encode(*inputs))[..., :-1]

    def reprogram(self, loss: Any, eps: float | None = None) -> SampleGradients:
        """Another loss on the same frozen weights: only the values in the prompt change."""
        changed = Loss.of(loss)
        it = self.interpolant.refit(changed.derivative)
        other = type(self)(changed, dtype=self.dtype, interpolant=it, **{**self._asked, "eps": eps})
        other.add_module("_network", self.network)
        return other


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
    """

    def __init__(
        self,
        f: Callable[[Tensor], Tensor] | ScalarFunction | Loss,
        **options: Any,
    ) -> None:
        super().__init__(f, **options)
