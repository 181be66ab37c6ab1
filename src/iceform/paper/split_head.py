r"""thm:attn_sim_attn_multi in its own shape: n tokens, H heads to a row, which share its grid.

:class:`AttentionHead` pads the prompt to the grid and gives each row of K, Q and V one head.
The theorem does not pad: the n tokens of X are the grid, and a row's H heads hold n points each, of
which n - 2 are theirs and two are guards. That is :class:`TruncatedLinear` for every row at once,
whose matrices are taken as they stand: with R the reach of the products an entry is off by

.. math:: |\hat K - K| \le \frac{R}{H (n - 2)} + 4.4\, R\, e^{-c} + \text{rounding},

which falls like 1/H, and the second layer passes it on as for :class:`AttentionHead`. The corrected
points of the theorem are those of both: the ramp is the key (the displayed one makes the softmax
independent of x), the outermost guards carry the ends of the range, [a, b] does not depend on the
target, and the second layer's blocks are in the proof's order.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Unpack

import torch
from torch import Tensor

from iceform.certificates import DerivationStep as Step
from iceform.paper.attention_head import AttentionHead
from iceform.paper.rows import Entries, RampLayer, RowOptions
from iceform.paper.truncated_linear import TruncatedLinear
from iceform.tables import Interpolant
from iceform.validation import check_size, unit_roundoff


class SplitAttentionHead(AttentionHead):
    r"""A softmax-attention head in the prompt, each row's grid split over ``split`` heads.

    Called as :class:`AttentionHead`; the prompt has exactly ``tokens`` tokens, at least three. It
    is here because the theorem has it: one head to a row and 25 tokens are more exact than any
    affordable split.

    Parameters
    ----------
    dim, head_dim, value_dim, tokens, bound, weight_bound, reach, heads, dtype, backend
        As for :class:`AttentionHead`.
    split
        H: heads to a row.
    sharpness
        c, in units of the grid; at least 2.
    eps
        The error to certify over the whole domain; None (default) takes what the sizes give.

    Examples
    --------
    >>> em = SplitAttentionHead(2, 1, 1, tokens=4, split=8)
    >>> em.plan.tokens, em.plan.heads  # no more tokens than the target's, 8 heads to a row
    (4, 25)
    """

    def __init__(
        self,
        dim: int,
        head_dim: int,
        value_dim: int,
        tokens: int,
        *,
        split: int = 1,
        sharpness: float | None = None,
        heads: int = 1,
        **options: Unpack[RowOptions],
    ) -> None:
        self.split = check_size("split", split)
        self._sharpness = sharpness
        fixed: RowOptions = {"encoding": "embedding", "regime": "hard", "interpolant": None}
        for name in fixed.keys() & options.keys() - {"interpolant"}:  # the sizes imply that one
            raise TypeError(f"{name} is not an option here: the theorem fixes it")
        options = {"eps": None, **options, **fixed}
        super().__init__(dim, head_dim, value_dim, tokens, heads=heads, **options)

    @cached_property
    def line(self) -> TruncatedLinear:
        """One row, the truncated line that every row is."""
        return TruncatedLinear(
            -self.reach,
            self.reach,
            self.split,
            dim=self.dim,
            samples=self.samples,
            bound=self.bound,
            weight_bound=self.weight_bound,
            tokens=self.samples,
            sharpness=self._sharpness,
            dtype=self.dtype,
            backend=self.backend,
        )

    @property
    def layer(self) -> RampLayer:
        """Every row's truncated line, where this prompt has its ramp; it has no constant part."""
        rows, names = self._shape
        line = self.line.layer
        return replace(line, dim=self.dim, rows=rows, names=names)

    # ----------------------------------------------------------------------------- certificate

    def _choose(self, tokens: int | None, given: Interpolant | None = None) -> Interpolant:
        return self.line.interpolant

    def _looked(self, it: Interpolant) -> dict[str, float]:
        """What one row is off by, as the truncated line certifies it."""
        return dict(self.line.certificate.terms)

    def _entries(self, x: Tensor, weight: Tensor) -> Entries:
        z, unit = x @ weight.mT, unit_roundoff(torch.float64)
        each = math.fsum(self._looked(self.interpolant).values())
        off = 2 * (self.dim + 2) * unit * (x.abs() @ weight.abs().mT)
        return Entries(z, off, z, off + each)

    def _steps(self, it: Interpolant, looked: dict[str, float]) -> tuple[Step, ...]:
        whole = Step("R", "range of the products", self.reach, "dim x bounds, or reach=")
        return (*self.line.certificate.derivation, whole)
