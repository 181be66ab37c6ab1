r"""thm:multi-head-truncated_in-context: a truncated line, its grid split over heads.

Head h holds T consecutive grid points. Tokens are the grid, as in def:input_attn, so T tokens in H
heads make H (T - 2g) cells: the outer g tokens of a head are guards that carry 0, because the
neighbouring head owns their points; summed over heads each z is looked up exactly once.

As printed the right end b is a guard of value 0, so z = b gives 0, and so does every z outside
[a, b]. Here the first guard of the first head carries a and the last guard of the last head b: in
the hard regime that truncates on all reals, with

.. math:: |out - \mathrm{Range}_{[a,b]}(z)| \le h/2 + 4.4 \max(|a|, |b|)\, e^{-c}, \qquad c \ge 2,

c being the sharpness in units of the grid. Keys are counted from the middle of each head's own
points, with the head's position folded into its bias: in float32, keys counted from the left end
of the whole grid tear heads apart at their seams.

One head that holds the whole grid is always better; the split is here because the theorem has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.certificates import Certificate
from iceform.certificates import DerivationStep as Step
from iceform.errors import BoundError, ProgramError
from iceform.heads import Design, FrozenNetwork, Prompt
from iceform.paper.base import Emulator, Plan
from iceform.paper.rows import Ramp, RampLayer
from iceform.run import rounding_of
from iceform.tables import Grid, Interpolant
from iceform.tables.regimes import HARD_SHARPNESS
from iceform.validation import check_bound, check_positive, check_size, unit_roundoff

_TAIL = 4.4  # from the sum of geometric tails of two heads meeting at a seam, c >= 2
_FEWEST = 10  # tokens of a head that is not told how many


@dataclass(frozen=True)
class _Split:
    """How the grid is shared out."""

    low: float
    high: float
    heads: int
    tokens: int  # T, per head, of which the first and the last are guards

    @property
    def points(self) -> int:
        """Grid points a head owns."""
        return self.tokens - 2

    @property
    def spacing(self) -> float:
        """Distance of neighbouring points, (b - a) / (H (T - 2))."""
        return (self.high - self.low) / (self.heads * self.points)

    def center(self, head: int) -> float:
        """The middle of a head's tokens."""
        first = self.low + (head * self.points - 1) * self.spacing
        return first + 0.5 * (self.tokens - 1) * self.spacing

    @property
    def offsets(self) -> Tensor:
        """Token positions relative to their head's center, in units of h."""
        return torch.arange(self.tokens, dtype=torch.float64) - 0.5 * (self.tokens - 1)

    def table(self, head: int, sharpness: float) -> Interpolant:
        """A head as a look-up over all its tokens.

        Own points carry themselves, guards 0; the outermost guards carry the ends of the range.
        """
        middle, half = self.center(head), 0.5 * (self.tokens - 1) * self.spacing
        values = middle + self.offsets * self.spacing
        values[0] = self.low if head == 0 else 0.0
        values[-1] = self.high if head == self.heads - 1 else 0.0
        grid = Grid(middle - half, middle + half, self.tokens - 1)
        return Interpolant(grid, sharpness, values, "hard", math.inf)


class TruncatedLinear(Emulator):
    """Range_[low, high](w.x_i + t) with the grid split over heads.

    ``em(X, w, t)``: X is (*batch, samples, dim), w (*batch, dim), t (*batch,); the output is
    (*batch, samples).

    Parameters
    ----------
    low, high
        The truncation range.
    heads
        H, over which the grid is split.
    dim, samples, bound, weight_bound
        Sizes of X, and entrywise bounds of X and of (w, t).
    tokens
        T, grid tokens per head; at least ``samples`` tokens are in the prompt either way.
    sharpness
        c in units of the grid; at least 2.
    eps, dtype, backend
        As for the other constructions; eps None accepts what the sizes give.

    Examples
    --------
    >>> em = TruncatedLinear(-1.0, 1.0, heads=40, dim=1, samples=3, bound=3.0)
    >>> x = torch.tensor([[-3.0], [0.5], [3.0]]).double()
    >>> line = em(x, torch.ones(1).double(), torch.zeros(()).double())
    >>> bool((line - torch.tensor([-1.0, 0.5, 1.0])).abs().max() <= em.certificate.error <= 0.01)
    True
    """

    held_apart = frozenset({"interpolant"})
    regime = "hard"

    def __init__(
        self,
        low: float,
        high: float,
        heads: int,
        *,
        dim: int,
        samples: int,
        bound: float = 1.0,
        weight_bound: float | None = None,
        tokens: int | None = None,
        sharpness: float | None = None,
        eps: float | None = None,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
        interpolant: Interpolant | None = None,
    ) -> None:
        super().__init__(eps=eps, dtype=dtype, backend=backend)
        self.dim, self.samples = check_size("dim", dim), check_size("samples", samples)
        self.shapes = {"x": (samples, dim), "w": (dim,), "t": ()}
        self.answer = (samples,)
        self.bound = check_positive("bound", bound, dtype=dtype)
        self.weight_bound = self.bound
        if weight_bound is not None:
            self.weight_bound = check_positive("weight_bound", weight_bound, dtype=dtype)
        count = max(samples, _FEWEST) if tokens is None else tokens
        if count < 3:
            raise ProgramError(f"{count} tokens per head leave no grid point beside 2 guards")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise BoundError(f"truncation needs finite low < high, got [{low!r}, {high!r}]")
        self.split = _Split(float(low), float(high), check_size("heads", heads), count)
        self.sharpness = check_positive(
            "sharpness", HARD_SHARPNESS if sharpness is None else sharpness
        )
        if self.sharpness < 2:
            raise BoundError(f"the split's bound needs sharpness >= 2, got {self.sharpness}")
        self.tables = [self.split.table(h, self.sharpness) for h in range(heads)]
        self.interpolant = self.tables[0]
        self._hold_eps("use more heads or tokens", f"{heads} heads of {count} tokens")

    # ----------------------------------------------------------------------------- certificate

    @property
    def _terms(self) -> float:
        """Bound of sum_j |w_j x_j| + |t|."""
        return (self.dim * self.bound + 1) * self.weight_bound

    def _certify(self, it: Interpolant) -> Certificate:
        s = self.split
        error = s.spacing / 2 + _TAIL * max(abs(s.low), abs(s.high)) * math.exp(-self.sharpness)
        terms = {"interpolation": error, "leak": 0.0, "rounding": self._rounding()}
        steps = (
            Step("h", "(b - a) / (H (T - 2))", s.spacing, f"{s.heads} heads of {s.tokens} tokens"),
            Step("c", "sharpness beta h^2", self.sharpness, "hard regime"),
            Step("error", "of the summed look-ups", error, "h/2 and tails"),
        )
        domain: dict[str, float | str] = {
            "samples x dim": f"{self.samples} x {self.dim}",
            "max |x|": self.bound,
            "max |w|, |t|": self.weight_bound,
            "w.x + t": "in all reals",
        }
        return self._proved(terms, domain, steps)

    def _rounding(self) -> float:
        """Two heads meet at z; the others hold all but a sliver of their mass on guards.

        One cell beyond its tokens, the nearest token of a head that is not a guard lies
        3 c below the outermost guard, less what rounding takes off that gap.
        """
        s, unit = self.split, unit_roundoff(self.dtype)
        terms = self._terms + max(abs(t.grid.center) for t in self.tables)
        size = max(table.size for table in self.tables)
        near, lost = 0.0, 0.0
        for table in self.tables:
            model = rounding_of(self.backend).model(self.dtype, table, terms, self.dim + 1)
            # z may lie far outside a head's own tokens, so all of them are weighed.
            near = max(near, table.rounding(replace(model, half=None)))
            if not model.squared:
                logits = table.keys.slopes.abs() * terms + table.keys.biases.abs()
                lost = max(lost, 2 * model.gamma * float(logits.max()))
        exact = 3 * self.sharpness
        gap = exact - lost
        if not rounding_of(self.backend).literal and 7 * unit * terms / s.spacing >= 1:
            gap = 0.0  # squared distances of far z are off by a cell or more
        kept = s.tokens * (math.exp(-max(gap, 0.0)) - math.exp(-exact))
        far = s.heads * size * min(1.0, kept)
        # No output is ever further off than the values allow.
        return min(2 * near + far + s.heads * unit * size, 2 * s.heads * size)

    # ------------------------------------------------------------------------------ evaluation

    def _check_values(self, *inputs: Tensor) -> None:
        """Bounds."""
        x, w, t = inputs
        check_bound("x", x, self.bound, "scale the data or raise bound=")
        check_bound("w", w, self.weight_bound, "raise weight_bound=")
        check_bound("t", t, self.weight_bound, "raise weight_bound=")

    def _exactly(self, *inputs: Tensor) -> Float[Tensor, "*b n"]:
        """The exact truncated line (float64)."""
        x, w, t = (a.double() for a in inputs)
        line = (x @ w[..., None])[..., 0] + t[..., None]
        return line.clamp(self.split.low, self.split.high)

    @cached_property
    def layer(self) -> RampLayer:
        """The line as one row (w, t), which meets (x, 1); heads differ in their points.

        -c (u - o)^2 with u = (z - center)/h is 2 c o z/h, then -2 c o center/h - c o^2.
        """
        s, c, o = self.split, self.sharpness, self.split.offsets
        scale = 2 * c / s.spacing
        parts = tuple(
            (
                f"points {head * s.points} to {(head + 1) * s.points - 1}",
                table,
                -scale * o * s.center(head) - c * o.square(),
            )
            for head, table in enumerate(self.tables)
        )
        return RampLayer(
            self.dim + 1, self.samples, (1,), ("line",), self.interpolant, self._margin(),
            Ramp(o, scale, parts), shared="q",
        )  # fmt: skip

    def _margin(self) -> float:
        """Padding must lose to the best token of any head, however far z is from it."""
        s = self.split
        reach = self._terms + max(abs(s.low), abs(s.high)) + s.tokens * s.spacing
        deepest = 2 * self.sharpness / s.spacing * (0.5 * s.tokens) * reach
        deepest += self.sharpness * (0.5 * s.tokens) ** 2
        count = max(self.samples, s.tokens)
        return deepest + math.log(count) - math.log(unit_roundoff(self.dtype)) + 8

    def _encode(self, *inputs: Tensor) -> Prompt:
        """[X; 1; ramp (w, t); I]: the ramp counts from the middle, padding carries none."""
        x, w, t = inputs
        x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        batch = torch.broadcast_shapes(w.shape[:-1], t.shape)
        line = torch.cat([w.expand(*batch, self.dim), t.expand(batch)[..., None]], -1)
        return self.layer.prompt(x, line[..., None, :])

    def _build_network(self) -> FrozenNetwork:
        return self.layer.network()

    @property
    def design(self) -> Design:
        """Heads that differ in their points, by the biases and values of positions."""
        return self.layer.design

    def _read(self, output: Tensor) -> Tensor:
        return output[..., 0]

    @property
    def plan(self) -> Plan:
        """One layer of ``heads`` heads."""
        return self.layer.plan(self.dtype)

    @classmethod
    def _rebuild(cls, arguments: dict[str, Any], it: Interpolant, f: Any) -> Emulator:
        """Older files say the regime and the guards as well."""
        arguments = dict(arguments)
        if (arguments.pop("regime", "hard"), arguments.pop("guards", None)) != ("hard", None):
            raise ProgramError("a split of the spectral regime is in no version after 2")
        return super()._rebuild(arguments, it, f)
