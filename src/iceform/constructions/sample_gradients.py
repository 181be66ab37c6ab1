"""The gradient of every sample, and the residual map: what thm:attn_sim_f is stated for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from torch import Tensor

from iceform.backends import Backend
from iceform.constructions.residual import SAME, Options, ResidualEmulator, three_inputs
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
    room
        Grid tokens that the weights have room for: all functions whose tables fit share them.
    """

    def _axes(self, inputs: int) -> tuple[Sequence[int], Sequence[int]]:
        return (2, 1, 1), (self.domain.samples, self.domain.dim)

    def _exactly(self, *inputs: Tensor) -> Tensor:
        """l'(z_i) x_i, exactly (float64)."""
        return self._exact(*three_inputs(inputs))

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
        changed = Loss.of(loss)
        return self._on_the_same_weights(
            changed, eps, lambda **asked: type(self)(changed, dtype=self.dtype, **asked)
        )


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
        **options: Unpack[Options],
    ) -> None:
        super().__init__(f, **options)
