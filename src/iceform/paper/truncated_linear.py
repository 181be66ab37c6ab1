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

The spectral split needs g >= 4 or so zero-valued guards per side, each outermost head continuing
the line beyond its end. It does not truncate: z outside [a, b] is refused. One head that holds the
whole grid is always better; the split is here because the theorem has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.arithmetic import exactly
from iceform.certificates import Certificate
from iceform.certificates import DerivationStep as Step
from iceform.errors import BoundError, ProgramError
from iceform.heads import Design, Features, FrozenNetwork, Head, Move, Prompt, Row, attention, rows
from iceform.paper.base import Emulator, LayerSizes, Plan
from iceform.run import rounding_of
from iceform.run.formulas import RampLookUps
from iceform.tables import Grid, Interpolant, bounds
from iceform.tables.local import intervals, local_weights
from iceform.tables.posterior import largest, taylor
from iceform.tables.regimes import HARD_SHARPNESS
from iceform.validation import (
    check_bound,
    check_choice,
    check_positive,
    check_size,
    common_batch,
    unit_roundoff,
)

_SPECTRAL_DELTA = 1e-10  # cells; aliasing of the spectral split at its default sharpness
_TAIL = 4.4  # from the sum of geometric tails of two heads meeting at a seam, c >= 2
_PER_CELL = 64  # mesh of the spectral split's certificate


@dataclass(frozen=True)
class _Split:
    """How the grid is shared out."""

    low: float
    high: float
    heads: int
    tokens: int  # T, per head
    guards: int  # g, zero-valued, per side

    @property
    def points(self) -> int:
        """Grid points a head owns."""
        return self.tokens - 2 * self.guards

    @property
    def spacing(self) -> float:
        """Distance of neighbouring points, (b - a) / (H (T - 2g))."""
        return (self.high - self.low) / (self.heads * self.points)

    def center(self, head: int) -> float:
        """The middle of a head's tokens."""
        first = self.low + (head * self.points - self.guards) * self.spacing
        return first + 0.5 * (self.tokens - 1) * self.spacing

    @property
    def offsets(self) -> Tensor:
        """Token positions relative to their head's center, in units of h."""
        return torch.arange(self.tokens, dtype=torch.float64) - 0.5 * (self.tokens - 1)

    def values(self, head: int, *, clamp: bool) -> Tensor:
        """Own points carry themselves, guards 0; the outermost guards carry on."""
        nodes = self.center(head) + self.offsets * self.spacing
        out = nodes.clone()
        out[: self.guards] = 0.0
        out[self.tokens - self.guards :] = 0.0
        if head == 0:
            out[: self.guards] = self.low if clamp else nodes[: self.guards]
        if head == self.heads - 1:
            last = slice(self.tokens - self.guards, None)
            out[last] = self.high if clamp else nodes[last]
        return out


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
    regime
        "hard" (default, truncates on all reals) or "spectral" (exact to the split's aliasing on
        [low, high], refuses z outside).
    sharpness
        c in units of the grid; at least 2 in the hard regime.
    guards
        Zero-valued tokens per side of a head: 1 in the hard regime.
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
        regime: str = "hard",
        sharpness: float | None = None,
        guards: int | None = None,
        eps: float | None = None,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
        interpolant: Interpolant | None = None,
    ) -> None:
        super().__init__(eps=eps, dtype=dtype, backend=backend)
        self.regime = check_choice("regime", regime, ("hard", "spectral"))
        self.dim, self.samples = check_size("dim", dim), check_size("samples", samples)
        self.bound = check_positive("bound", bound, dtype=dtype)
        self.weight_bound = self.bound
        if weight_bound is not None:
            self.weight_bound = check_positive("weight_bound", weight_bound, dtype=dtype)
        check_size("heads", heads)
        hard = regime == "hard"
        g = guards if guards is not None else (1 if hard else 8)
        count = tokens if tokens is not None else max(samples, 2 * g + 8)
        if not (isinstance(g, int) and g >= 1 and count > 2 * g):
            raise ProgramError(f"{count} tokens per head leave no grid point beside {g} guards")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise BoundError(f"truncation needs finite low < high, got [{low!r}, {high!r}]")
        self.split = _Split(float(low), float(high), heads, count, g)
        default = HARD_SHARPNESS if hard else bounds.spectral_rule(_SPECTRAL_DELTA).sharpness
        self.sharpness = default if sharpness is None else check_positive("sharpness", sharpness)
        if hard and self.sharpness < 2:
            raise BoundError(f"the hard split's bound needs sharpness >= 2, got {self.sharpness}")
        if hard and g != 1:
            raise ProgramError(f"the hard split has one guard per side, got {g}")
        self.tables = [self._table(h) for h in range(heads)]
        self.interpolant = self.tables[0]
        self._hold_eps("use more heads or tokens", f"{heads} heads of {count} tokens")

    def _table(self, head: int) -> Interpolant:
        """A head as a look-up over all its tokens."""
        half = 0.5 * (self.split.tokens - 1) * self.split.spacing
        middle = self.split.center(head)
        grid = Grid(middle - half, middle + half, self.split.tokens - 1)
        values = self.split.values(head, clamp=self.regime == "hard")
        return Interpolant(grid, self.sharpness, values, self.regime, math.inf)

    # ----------------------------------------------------------------------------- certificate

    @property
    def _terms(self) -> float:
        """Bound of sum_j |w_j x_j| + |t|."""
        return (self.dim * self.bound + 1) * self.weight_bound

    def _certify(self, it: Interpolant) -> Certificate:
        error = self._hard_error() if self.regime == "hard" else self._spectral_error()
        terms = {"interpolation": error, "leak": 0.0, "rounding": self._rounding()}
        s = self.split
        steps = (
            Step("h", "(b - a) / (H (T - 2g))", s.spacing, f"{s.heads} heads of {s.tokens} tokens"),
            Step("c", "sharpness beta h^2", self.sharpness, f"{self.regime} regime"),
            Step("error", "of the summed look-ups", error, "h/2 and tails, or mesh enclosure"),
        )
        where = "all reals" if self.regime == "hard" else f"[{exactly(s.low)}, {exactly(s.high)}]"
        domain: dict[str, float | str] = {
            "samples x dim": f"{self.samples} x {self.dim}",
            "max |x|": self.bound,
            "max |w|, |t|": self.weight_bound,
            "w.x + t": f"in {where}",
        }
        return self._proved(terms, domain, steps)

    def _hard_error(self) -> float:
        size = max(abs(self.split.low), abs(self.split.high))
        return self.split.spacing / 2 + _TAIL * size * math.exp(-self.sharpness)

    def _spectral_error(self) -> float:
        """Enclose |sum_h A_h(z) - z| by Taylor expansion on a mesh, as for a fitted look-up."""
        s = self.split
        cells = s.heads * s.points * _PER_CELL
        edges = torch.linspace(s.low, s.high, cells + 1, dtype=torch.float64)
        middle, r = intervals(edges)
        # Rows: value, three Taylor coefficients, bound of the fourth, bound of what is left out.
        summed = torch.zeros(6, cells, dtype=torch.float64)
        for table in self.tables:
            parts = [
                torch.stack([w.mean, *taylor(w, 3), largest(w, 4)[3], w.missing])
                for w in local_weights(table, edges)
            ]
            summed += torch.cat(parts, -1)
        value, first, second, third, fourth, missing = summed
        error = (
            (value - middle).abs()
            + missing
            + (first - 1).abs() * r
            + second.abs() * r**2
            + third.abs() * r**3
            + fourth * r**4
        )
        # Float64 evaluation of the heads' sums: values of size |L| at most, T tokens each.
        size = max(table.size for table in self.tables)
        own = s.heads * (s.tokens + 16) * torch.finfo(torch.float64).eps * size
        return float(error.max()) + own

    def _rounding(self) -> float:
        """Two heads meet at z; the others hold all but a sliver of their mass on guards.

        One cell beyond its tokens, the nearest token of a head that is not a guard lies
        c ((g+1)^2 - 1) below the outermost guard, less what rounding takes off that gap.
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
        exact = self.sharpness * s.guards * (s.guards + 2)
        gap = exact - lost
        if not rounding_of(self.backend).literal and 7 * unit * terms / s.spacing >= 1:
            gap = 0.0  # squared distances of far z are off by a cell or more
        kept = s.tokens * (math.exp(-max(gap, 0.0)) - math.exp(-exact))
        far = s.heads * size * min(1.0, kept)
        # No output is ever further off than the values allow.
        return min(2 * near + far + s.heads * unit * size, 2 * s.heads * size)

    # ------------------------------------------------------------------------------ evaluation

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Data, and the line's w and t."""
        return {"x": (self.samples, self.dim), "w": (self.dim,), "t": ()}

    @property
    def answer(self) -> tuple[int, ...]:
        """A number for every sample."""
        return (self.samples,)

    def _check_values(self, *inputs: Tensor) -> None:
        """Bounds; the spectral split also checks the range of z."""
        x, w, t = inputs
        check_bound("x", x, self.bound, "scale the data or raise bound=")
        check_bound("w", w, self.weight_bound, "raise weight_bound=")
        check_bound("t", t, self.weight_bound, "raise weight_bound=")
        if self.regime == "spectral":
            z = self._line(x.detach(), w.detach(), t.detach())
            least, most = float(z.min()), float(z.max())
            if not (least >= self.split.low and most <= self.split.high):
                raise BoundError(
                    f"w.x + t reaches [{least:.6g}, {most:.6g}]; the spectral split does not "
                    f"truncate and holds on [{exactly(self.split.low)}, "
                    f"{exactly(self.split.high)}] only; "
                    "use regime='hard'"
                )

    @staticmethod
    def _line(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        return (x @ w[..., None])[..., 0] + t[..., None]

    def _exactly(self, *inputs: Tensor) -> Float[Tensor, "*b n"]:
        """The exact truncated line (float64)."""
        x, w, t = (a.double() for a in inputs)
        return self._line(x, w, t).clamp(self.split.low, self.split.high)

    @property
    def _count(self) -> int:
        return max(self.samples, self.split.tokens)

    @property
    def features(self) -> Features:
        """Data with a constant one, the ramp of (w, t), positions."""
        return Features.of(x=self.dim, one=1, ramp=self.dim + 1, position=self._count)

    def _encode(self, *inputs: Tensor) -> Prompt:
        """[X; 1; ramp (w, t); I]: the ramp counts from the middle, padding carries none."""
        x, w, t = inputs
        count = self._count
        batch = common_batch(x.shape[:-2], w.shape[:-1], t.shape)
        tokens = x.new_zeros(*batch, count, self.features.total)
        tokens[..., : self.samples, self.features["x"]] = x
        tokens[..., self.features["one"]] = 1.0
        line = torch.cat([w.expand(*batch, self.dim), t.expand(batch)[..., None]], -1)
        tokens[..., self.features["ramp"]] = line[..., None, :] * self._ramp.to(x)[:, None]
        tokens[..., self.features["position"]] = torch.eye(count).to(x)
        roles = [f"x {i}" if i < self.samples else "padding" for i in range(count)]
        return Prompt(tokens, self.features, tuple(f"{r}, point {i}" for i, r in enumerate(roles)))

    def _build_network(self) -> FrozenNetwork:
        readout = torch.eye(self._count, self.samples, dtype=torch.float64)
        layer = attention(self.design, 0, readout, shared="q")
        at = self.features
        line = RampLookUps(
            slice(at["x"].start, at["one"].stop), self.samples, at["ramp"], at["position"],
            self._ramp, tuple(self.tables),
        )  # fmt: skip
        return FrozenNetwork([layer], at, self.tables, formulas=[line])

    @property
    def _ramp(self) -> Tensor:
        """Of the tokens, counted from the middle of a head's points; padding carries none."""
        return torch.nn.functional.pad(self.split.offsets, (0, self._count - self.split.tokens))

    @property
    def design(self) -> Design:
        """Heads that differ in their points, by the biases and values of positions."""
        s, at, scale = self.split, self.features, self.scale
        rest = self._count - s.tokens
        everywhere = Row.over("position", [1.0] * self._count)
        asked = (*rows(at, {"x": 1.0}), Row.of("one"))
        line = tuple(zip(asked, rows(at, {"ramp": scale}), strict=True))
        heads = []
        for head, table in enumerate(self.tables):
            # -c (u - o)^2 with u = (z - center)/h: 2 c o z/h, then -2 c o center/h - c o^2.
            o = s.offsets
            bias = -scale * o * s.center(head) - self.sharpness * o.square()
            point = Row.over("position", bias.tolist() + [-self._margin()] * rest)
            value = Row.over("position", table.values.tolist() + [0.0] * rest)
            role = f"points {head * s.points} to {(head + 1) * s.points - 1}"
            logit = (*line, (everywhere, point))
            heads.append(Head(role, logit, (Move(value, {("line", 0): 1.0}),)))
        return Design(at, (tuple(heads),), gives=(Features.of(line=1),))

    @property
    def scale(self) -> float:
        """What the ramp's keys are multiplied by, 2 c/h."""
        return 2 * self.sharpness / self.split.spacing

    def _margin(self) -> float:
        """Padding must lose to the best token of any head, however far z is from it."""
        s = self.split
        reach = self._terms + max(abs(s.low), abs(s.high)) + s.tokens * s.spacing
        deepest = 2 * self.sharpness / s.spacing * (0.5 * s.tokens) * reach
        deepest += self.sharpness * (0.5 * s.tokens) ** 2
        return deepest + math.log(self._count) - math.log(unit_roundoff(self.dtype)) + 8

    def _read(self, output: Tensor) -> Tensor:
        return output[..., 0]

    @property
    def plan(self) -> Plan:
        """One layer of ``heads`` heads."""
        s, total, count = self.split, self.features.total, self._count
        layer = LayerSizes(count, total, s.heads, self.dim + 2, 1, self.samples, shared=1)
        looked = s.heads * self.samples * s.tokens
        return Plan.of([layer], self.dtype, grid=s.tokens, prompt=(count, total), looked=looked)
