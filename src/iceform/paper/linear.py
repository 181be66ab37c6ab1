"""A linear layer whose weights are in the prompt."""

from __future__ import annotations

from typing import Unpack

from jaxtyping import Float
from torch import Tensor

from iceform.certificates import Certificate
from iceform.heads import Design, FrozenNetwork
from iceform.paper.base import Plan
from iceform.paper.rows import RowEmulator, RowOptions
from iceform.tables import Interpolant
from iceform.validation import check_size


class LinearLayer(RowEmulator):
    """x -> x theta' with theta in the prompt (sec. 4.3).

    ``em(x, theta)`` has shape (*batch, samples, out_features); the error is that of one look-up of
    a straight line.

    Parameters
    ----------
    in_features, out_features
        The shape of theta is (out_features, in_features).
    samples
        Tokens of x.
    bound, weight_bound
        Entrywise bounds of x and theta (theta: as x by default).
    reach
        A narrower bound of |theta x|, checked on every input.
    nonzeros
        For sparse data: at most this many nonzero products theta_j x_j in a sum. Then ``reach``
        bounds sum_j |theta_j x_j|, and rounding is certified for that many products.
    tokens
        A fixed number of grid tokens instead of as many as eps needs.
    eps, regime, encoding, dtype, backend
        As for :class:`AttentionHead`.

    Examples
    --------
    >>> em = LinearLayer(2, 1, samples=1)
    >>> x, theta = torch.tensor([[0.5, 1.0]]).double(), torch.tensor([[1.0, -0.25]]).double()
    >>> round(float(em(x, theta)), 5)
    0.25
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        samples: int = 1,
        tokens: int | None = None,
        **options: Unpack[RowOptions],
    ) -> None:
        super().__init__(
            dim=in_features,
            samples=samples,
            rows=(check_size("out_features", out_features),),
            names=("theta",),
            tokens=tokens,
            **options,
        )

    @property
    def out_features(self) -> int:
        """Rows of theta."""
        return self._shape[0][0]

    def _certify(self, it: Interpolant) -> Certificate:
        looked = self._looked(it)
        return self._proved(looked, self._describe(), self._steps(it, looked), it)

    @property
    def answer(self) -> tuple[int, ...]:
        """A token for every token of x."""
        return self.samples, self.out_features

    def _exactly(self, *inputs: Tensor) -> Float[Tensor, "*b n m"]:
        """The exact product (float64)."""
        x, theta = inputs
        return x.double() @ theta.double().mT

    def _build_network(self) -> FrozenNetwork:
        layer = self.layer
        return FrozenNetwork(
            [layer.build()], layer.features, [self.interpolant], formulas=[layer.formula]
        )

    @property
    def design(self) -> Design:
        """A head for every row of theta."""
        return self.layer.design

    @property
    def plan(self) -> Plan:
        """One layer, one head per output row."""
        return self._plan()
