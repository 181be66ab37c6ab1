"""Interpolant: a softmax over grid tokens that computes a scalar function; and where they sit.

A grid token k carries a key ``(s_k, b_k)`` and answers a query z with the logit ``s_k t + b_k``,
where ``t = z - center``. Centring keeps the logits, and so their rounding, small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import at_most, exactly
from iceform.errors import BoundError, PrecisionError, ProgramError
from iceform.expressions.scalar import ScalarFunction
from iceform.tables.local import (
    RoundingModel,
    half_width,
    rounding,
    significant_tokens,
    steepness,
)
from iceform.validation import for_later, full_precision

_NARROWEST = 1e-120  # 1/h^2 and 1/h^3 must stay finite


@dataclass(frozen=True, eq=False)
class Keys:
    """Logits of the grid tokens: ``slopes[k] * (z - center) + biases[k]``, in float64.

    Examples
    --------
    >>> keys = Grid(-1.0, 1.0, 2).keys(0.5)
    >>> torch.softmax(keys.slopes * 0.0 + keys.biases, -1).argmax()  # at z = 0, the middle token
    tensor(1)
    """

    slopes: Tensor  # (tokens,)
    biases: Tensor  # (tokens,)


def _settle(grid: Grid | GradedGrid) -> None:
    """Check the range and the counts; make the ends floats."""
    low, high = grid.low, grid.high
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BoundError(f"a grid needs finite low < high, got [{low!r}, {high!r}]")
    if not _NARROWEST < high - low < 1 / _NARROWEST:
        raise BoundError(
            f"a range of width {high - low:.3g} overflows the keys, which hold its inverse square; "
            f"scale the data into [{_NARROWEST:.0e}, {1 / _NARROWEST:.0e}]"
        )
    for name, value, least in (("cells", grid.cells, 1), ("guards", grid.guards, 0)):
        if value != int(value) or value < least:
            raise BoundError(f"{name} must be a whole number of at least {least}, got {value!r}")
    object.__setattr__(grid, "low", float(low))
    object.__setattr__(grid, "high", float(high))


def _within(grid: Grid | GradedGrid, nodes: Tensor) -> Tensor:
    """Nodes 0 .. P are of the range: rounding must not take the first or the last one out of it."""
    inner = slice(grid.guards, grid.guards + grid.cells + 1)
    kept = nodes.clone()
    kept[inner] = nodes[inner].clamp(grid.low, grid.high)
    return kept


@dataclass(frozen=True)
class Grid:
    """Equally spaced tokens ``L_k = low + k h``, k = -guards .. cells + guards.

    Parameters
    ----------
    low, high
        The range on which the look-up is certified.
    cells
        P, the number of cells in ``[low, high]``; the spacing is ``h = (high - low) / P``.
    guards
        g, tokens beyond either end, which keep the softmax symmetric near the ends.

    Examples
    --------
    >>> grid = Grid(0.0, 2.0, 4, guards=1)
    >>> grid.nodes
    tensor([-0.5000,  0.0000,  0.5000,  1.0000,  1.5000,  2.0000,  2.5000],
           dtype=torch.float64)
    """

    low: float
    high: float
    cells: int
    guards: int = 0

    def __post_init__(self) -> None:
        _settle(self)

    @property
    def spacing(self) -> float:
        """The distance h between neighbouring tokens."""
        return (self.high - self.low) / self.cells

    @property
    def center(self) -> float:
        """The middle of the range."""
        return 0.5 * (self.low + self.high)

    @property
    def tokens(self) -> int:
        """N = P + 1 + 2 g."""
        return self.cells + 1 + 2 * self.guards

    @property
    def offsets(self) -> Tensor:
        """Node positions relative to the center."""
        k = torch.arange(-self.guards, self.cells + self.guards + 1, dtype=torch.float64)
        return (k - 0.5 * self.cells) * self.spacing

    @property
    def nodes(self) -> Tensor:
        """Node positions L_k, shape (tokens,)."""
        return _within(self, self.center + self.offsets)

    def keys(self, sharpness: float) -> Keys:
        """``-beta (t - l_k)^2`` without its ``t^2``, which a softmax does not see."""
        beta = sharpness / self.spacing**2
        offsets = self.offsets
        return Keys(2 * beta * offsets, -beta * offsets.square())

    def mesh(self, per_cell: int) -> Tensor:
        """Equally spaced points from low to high."""
        return torch.linspace(self.low, self.high, self.cells * per_cell + 1, dtype=torch.float64)


# JSON has no infinity: files say null.
_OPEN = (
    lambda size: None if math.isinf(size) else size,
    lambda said: math.inf if said is None else float(said),
)


@dataclass(frozen=True)
class GradedGrid:
    r"""Tokens that crowd at kinks: local spacing h(z) with

    .. math:: 1/h(z) = 1/h_0 + \sum_j 1/\sqrt{h_m^2 + \alpha^2 (z - z_j)^2}

    around the kinks z_j, so that the token index is the closed form
    :math:`\kappa(z) = z/h_0 + \alpha^{-1} \sum_j \mathrm{asinh}(\alpha (z - z_j)/h_m)`.

    For a softmax over keys (s, b) to peak at node L(k) with the same sharpness c at every node,
    s'(k) = 2c / h and b'(k) = -2c L / h are needed and suffice: then
    d/dk (s z + b) = 2c (z - L(k))/h(L(k)), which vanishes at z = L(k) with slope -2c. For one
    kink and h_0 = infinity this is the sinh grading with arctan slopes and log-cosh biases.

    Parameters
    ----------
    low, high, cells, guards
        As for :class:`Grid`; ``cells`` counts the tokens' gaps between low and high.
    kinks
        Where to crowd, inside (low, high).
    growth
        alpha, how fast the spacing grows with the distance from a kink.
    coarsest
        h_0, the largest spacing; infinity for none.

    Examples
    --------
    >>> grid = GradedGrid(-1.0, 1.0, 16, 2, (0.0,), 0.5)
    >>> gaps = grid.nodes.diff()
    >>> grid.tokens, bool(gaps.min() < gaps.max() / 10)
    (21, True)
    """

    low: float
    high: float
    cells: int
    guards: int
    kinks: tuple[float, ...]
    growth: float
    coarsest: float = field(default=math.inf, metadata={"codec": _OPEN})
    _cache: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        _settle(self)
        for name, value in (("growth", self.growth), ("coarsest", self.coarsest)):
            if not value > 0:
                raise BoundError(f"{name} must be positive, got {value!r}")
        if not self.kinks or not all(self.low < k < self.high for k in self.kinks):
            raise ProgramError(
                f"a graded grid needs kinks inside ({self.low:.6g}, {self.high:.6g}), "
                f"got {self.kinks}"
            )
        if (self.high - self.low) / self.coarsest >= self.cells:
            raise BoundError(
                f"{self.cells} cells cannot cover [{self.low:.6g}, {self.high:.6g}] with spacing "
                f"at most {self.coarsest:.6g}; use more cells"
            )

    @property
    def tokens(self) -> int:
        """N = P + 1 + 2 g."""
        return self.cells + 1 + 2 * self.guards

    @property
    def center(self) -> float:
        """The first kink when there is one, else the middle of the kinks."""
        return 0.5 * (self.kinks[0] + self.kinks[-1])

    @property
    def spacing(self) -> float:
        """The finest spacing h_m, found so that exactly ``cells`` gaps cover the range."""
        if "finest" not in self._cache:
            self._cache["finest"] = torch.tensor(self._solve_finest(), dtype=torch.float64)
        return float(self._cache["finest"])

    @property
    @for_later
    def nodes(self) -> Tensor:
        """Node positions L_k, shape (tokens,)."""
        if "nodes" not in self._cache:
            k = torch.arange(-self.guards, self.cells + self.guards + 1, dtype=torch.float64)
            self._cache["nodes"] = _within(self, self._position(k))
        return self._cache["nodes"]

    def keys(self, sharpness: float) -> Keys:
        """Integrals of 2c/h and -2c t/h over the index, by Gauss-Legendre between nodes."""
        if "slopes" not in self._cache:
            self._integrate()
        return Keys(sharpness * self._cache["slopes"], sharpness * self._cache["biases"])

    def mesh(self, per_cell: int) -> Tensor:
        """Points equally spaced in the token index, with the kinks among them."""
        index = torch.linspace(0, self.cells, self.cells * per_cell + 1, dtype=torch.float64)
        points = self._position(index)
        points[0], points[-1] = self.low, self.high
        points = torch.cat([points, torch.tensor(self.kinks, dtype=torch.float64)])
        mesh: Tensor = torch.unique(points.clamp(self.low, self.high))
        return mesh

    def _density(self, z: Tensor, finest: float) -> Tensor:
        kinks = torch.tensor(self.kinks, dtype=torch.float64)
        distance = z[..., None] - kinks
        local = (finest**2 + (self.growth * distance).square()).rsqrt().sum(-1)
        return local + 1 / self.coarsest

    def _index(self, z: Tensor, finest: float) -> Tensor:
        kinks = torch.tensor(self.kinks, dtype=torch.float64)
        ramp = torch.asinh(self.growth * (z[..., None] - kinks) / finest).sum(-1) / self.growth
        return ramp + z / self.coarsest

    def _solve_finest(self) -> float:
        def gaps(finest: float) -> float:
            ramp = sum(
                math.asinh(self.growth * (self.high - k) / finest)
                - math.asinh(self.growth * (self.low - k) / finest)
                for k in self.kinks
            )
            return ramp / self.growth + (self.high - self.low) / self.coarsest

        # gaps() falls as the finest spacing grows; the bracket spans every float64 spacing.
        large = math.log(1e290)
        small = -large
        while large - small > 1e-12:
            middle = 0.5 * (small + large)
            small, large = (
                (middle, large) if gaps(math.exp(middle)) > self.cells else (small, middle)
            )
        return math.exp(0.5 * (small + large))

    @for_later
    def _position(self, index: Tensor) -> Tensor:
        """Invert kappa: bracket in a table of points graded like the grid, then Newton."""
        finest = self.spacing
        if "table" not in self._cache:
            self._cache["table"] = self._table(finest)
            self._cache["levels"] = self._index(self._cache["table"], finest)
        table, levels = self._cache["table"], self._cache["levels"]
        target = index + self._index(torch.tensor([self.low], dtype=torch.float64), finest)
        place = torch.searchsorted(levels, target.contiguous()).clamp(1, len(table) - 1)
        small, large = table[place - 1], table[place]
        z = 0.5 * (small + large)
        for _ in range(tuning.INTERPOLANT_NEWTON):
            step = (self._index(z, finest) - target) / self._density(z, finest)
            z = torch.minimum(torch.maximum(z - step, small), large)
        return z

    def _table(self, finest: float) -> Tensor:
        """Increasing points that reach past the guards, crowded at the kinks."""
        reach = (self.high - self.low) * math.exp(self.growth * (self.guards + 2)) * 2
        far = math.asinh(self.growth * reach / finest)
        ramp = (
            torch.linspace(0, far, tuning.INTERPOLANT_TABLE, dtype=torch.float64).sinh()
            * finest
            / self.growth
        )
        both = torch.cat([-ramp, ramp])
        table: Tensor = torch.unique(torch.cat([both + k for k in self.kinks]))
        return table

    @for_later
    def _integrate(self) -> None:
        finest = self.spacing
        # Five Gauss points in each of four panels per gap: far below rounding for a smooth h.
        wide, narrow = (math.sqrt(5 + sign * 2 * math.sqrt(10 / 7)) / 3 for sign in (1, -1))
        roots = torch.tensor([-wide, -narrow, 0.0, narrow, wide], dtype=torch.float64)
        weights = roots.new_tensor([0.2369268850561891, 0.4786286704993665, 128 / 225])
        weights = torch.cat([weights, weights[:2].flip(0)])
        panels = 4
        start = torch.arange(0, (self.tokens - 1) * panels, dtype=torch.float64) / panels
        index = start[:, None] + (roots + 1) / (2 * panels) - self.guards
        z = self._position(index)
        density = self._density(z, finest)
        per_gap = weights / (2 * panels)
        slopes = (2 * density * per_gap).sum(-1).reshape(-1, panels).sum(-1)
        biases = (-2 * (z - self.center) * density * per_gap).sum(-1).reshape(-1, panels).sum(-1)
        zero = torch.zeros(1, dtype=torch.float64)
        slopes = torch.cat([zero, slopes.cumsum(0)])
        biases = torch.cat([zero, biases.cumsum(0)])
        # A softmax sees slopes and biases up to constants: pin them at the center.
        middle = int((self.nodes - self.center).abs().argmin())
        self._cache["slopes"] = slopes - slopes[middle]
        self._cache["biases"] = biases - biases[middle]


@dataclass(frozen=True, eq=False)
class GivenGrid:
    """Tokens with keys of their own, as somebody has written them.

    Parameters
    ----------
    low, high
        The range that they are meant for.
    center
        What logits are counted from.
    slopes, biases
        Of the logits ``slopes[k] (z - center) + biases[k]``.

    Examples
    --------
    >>> grid = GivenGrid(-1.0, 1.0, 0.0, torch.tensor([-4.0, 4.0]), torch.zeros(2))
    >>> grid.tokens
    2
    """

    low: float
    high: float
    center: float
    slopes: Tensor
    biases: Tensor

    @property
    def tokens(self) -> int:
        """How many."""
        return len(self.slopes)

    def keys(self, sharpness: float) -> Keys:
        """The keys, whatever the temperature."""
        return Keys(self.slopes, self.biases)


@dataclass(frozen=True, eq=False, repr=False)
class Interpolant:
    r"""A look-up table read by softmax: :math:`A(z) = \sum_k p_k(z) v_k`.

    The weights are :math:`p(z) = \mathrm{softmax}_k(s_k (z - m) + b_k)` over the grid tokens' keys;
    on a uniform grid that is :math:`\mathrm{softmax}_k(-\beta (z - L_k)^2)` with
    :math:`\beta = c / h^2`.

    Build one with :meth:`fit`, :meth:`identity` or :meth:`hard`.

    Attributes
    ----------
    grid
        Where the tokens sit.
    sharpness
        c, dimensionless: the inverse temperature times the squared spacing.
    values
        v_k, one per grid token, float64.
    regime
        "hard" (the paper's), "spectral" (exact on lines), "fitted" (smooth f) or "graded" (kinks).
    error
        Proven bound of sup |A - f| on the grid's range, in exact arithmetic.
    function
        f, where it is known.
    assumptions
        What the bound takes for granted, in words; empty where nothing.
    kind
        "proven"; "estimated" where f cannot be enclosed; "claimed" by a file, of a function that
        is not known.
    edges
        Of the cells on which the error was proven one by one, where it was.

    Examples
    --------
    >>> table = Interpolant.fit(torch.sin, -3.0, 3.0, eps=1e-6)
    >>> z = torch.linspace(-3, 3, 101, dtype=torch.float64)
    >>> bool((table(z) - torch.sin(z)).abs().max() <= table.error <= 1e-6)
    True
    """

    grid: Grid | GradedGrid
    sharpness: float
    values: Tensor
    regime: str
    error: float
    function: ScalarFunction | None = field(default=None, metadata={"kept": False})
    assumptions: tuple[str, ...] = ()
    kind: str = "proven"
    edges: Tensor | None = None
    _rounding: dict[RoundingModel, float] = field(default_factory=dict)
    _windows: dict[float, int | None] = field(default_factory=dict)

    def __format__(self, form: str) -> str:
        """``f"{table:.1e}"`` is the error in that form, rounded up."""
        return at_most(self.error, form) if form else str(self)

    def __repr__(self) -> str:
        name = "f" if self.function is None else self.function.name
        return (
            f"Interpolant({name} on [{exactly(self.grid.low)}, {exactly(self.grid.high)}], "
            f"{len(self.values)} "
            f"tokens, {self.regime}, |A - f| <= {at_most(self.error)} ({self.kind}))"
        )

    @classmethod
    @full_precision
    @for_later
    def fit(
        cls,
        f: Callable[[Tensor], Tensor] | ScalarFunction,
        low: float,
        high: float,
        eps: float | None = None,
        *,
        kinks: Sequence[float] | None = None,
        tokens: int | None = None,
        estimate: bool = False,
    ) -> Interpolant:
        """The smallest grid that is certified to hold ``eps`` (None: the best there is).

        Parameters
        ----------
        f
            Continuous and elementwise; a tensor in, a tensor of the same shape out.
        low, high
            The range of z.
        eps
            The sup-norm error to certify.
        kinks
            Where f' jumps; None looks for them.
        tokens
            A fixed number of grid tokens instead of the smallest.
        estimate
            Accept an error that is estimated, not proven, where f cannot be enclosed: ``eps``
            is a promise, and refuses one otherwise.

        Raises
        ------
        PrecisionError
            If no grid that is tried can be certified to hold ``eps``; ``.best`` is what can.
        """
        _check_eps(eps)
        function = ScalarFunction.of(f, low, high, kinks)
        function = replace(function, estimate=function.estimate or estimate)
        return MAKERS["fit"](function, float(low), float(high), eps, tokens)

    @classmethod
    @for_later
    def identity(cls, low: float, high: float, eps: float | None = None) -> Interpolant:
        """A straight line: about 25 tokens carry any range to machine precision."""
        _check_eps(eps)
        return MAKERS["identity"](float(low), float(high), eps)

    @classmethod
    @for_later
    def hard(
        cls,
        f: Callable[[Tensor], Tensor] | ScalarFunction,
        low: float,
        high: float,
        *,
        cells: int,
        sharpness: float | None = None,
    ) -> Interpolant:
        """The paper's regime: v_k = f(L_k) at low temperature; the error falls as 1/cells."""
        function = ScalarFunction.of(f, low, high, kinks=())
        return MAKERS["hard"](function, Grid(float(low), float(high), cells), sharpness)

    @cached_property
    @for_later
    def keys(self) -> Keys:
        """Slopes and biases of the grid tokens' logits, float64."""
        return self.grid.keys(self.sharpness)

    @cached_property
    @for_later
    def _places(self) -> Tensor:
        """The tokens' places relative to the centre, in cells: exact halves of whole numbers."""
        assert isinstance(self.grid, Grid)
        first, last = -self.grid.guards, self.grid.cells + self.grid.guards
        return torch.arange(first, last + 1, dtype=torch.float64) - 0.5 * self.grid.cells

    @property
    def uniform(self) -> bool:
        """Whether the tokens are equally spaced, so that logits can be squared distances."""
        return isinstance(self.grid, Grid)

    @property
    def low(self) -> float:
        """Left end of the certified range."""
        return self.grid.low

    @property
    def high(self) -> float:
        """Right end of the certified range."""
        return self.grid.high

    @property
    def tokens(self) -> int:
        """Number of grid tokens."""
        return self.grid.tokens

    @cached_property
    def size(self) -> float:
        """max |v_k|."""
        return float(self.values.abs().max())

    @cached_property
    def swing(self) -> float:
        """max v_k - min v_k."""
        return float(self.values.max() - self.values.min())

    @cached_property
    def steepness(self) -> float:
        """A proven bound of |A'| on the range."""
        return steepness(self)

    def rounding(self, model: RoundingModel) -> float:
        """A proven bound of what floating point adds under ``model``."""
        if model not in self._rounding:
            self._rounding[model] = rounding(self, model)
        return self._rounding[model]

    def half_width(self, unit: float) -> int | None:
        """Tokens either side of the nearest that matter beside roundoff ``unit``; None for all."""
        if unit not in self._windows:
            self._windows[unit] = half_width(self, unit)
        return self._windows[unit]

    def significant(self, unit: float) -> float:
        """A bound on the number of tokens whose weight exceeds ``unit`` at any z."""
        return significant_tokens(self, unit)

    @for_later
    def refit(self, f: Callable[[Tensor], Tensor] | ScalarFunction) -> Interpolant:
        """Another function on the same tokens: same keys, other values, its own error."""
        function = ScalarFunction.of(f, self.low, self.high)
        return MAKERS["refit"](function, self.grid, self.sharpness, self.regime)

    def with_values(self, values: Tensor, error: float) -> Interpolant:
        """The same keys with values given by hand."""
        return replace(
            self, values=values, error=error, function=None, edges=None, _rounding={}, _windows={}
        )

    def logits(self, z: Float[Tensor, "*b"], index: Tensor | None = None) -> Float[Tensor, "*b k"]:
        """Logits of the tokens (those in ``index``, shape (*b, k), if given) for each z."""
        if isinstance(self.grid, Grid):
            t = (z - self.grid.center) / self.grid.spacing
            places = self._places.to(z)
            places = places if index is None else places[index]
            return -self.sharpness * (t[..., None] - places).square()
        slopes, biases = self.keys.slopes.to(z), self.keys.biases.to(z)
        if index is not None:
            slopes, biases = slopes[index], biases[index]
        return (z - self.grid.center)[..., None] * slopes + biases

    def weights(self, z: Float[Tensor, "*b"]) -> Float[Tensor, "*b k"]:
        """Attention of each z over the grid tokens."""
        return torch.softmax(self.logits(z), -1)

    def __call__(self, z: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Look z up. Values outside ``[low, high]`` are refused."""
        bad = ~((z >= self.low) & (z <= self.high))
        if bool(bad.any()):
            raise BoundError(
                f"z = {z[bad].flatten()[0].item():.6g} lies outside the certified range "
                f"[{exactly(self.low)}, {exactly(self.high)}]; fit the interpolant on a wider range"
            )
        return self.weights(z) @ self.values.to(z)


# How tables come about: by name of the method above. Regimes and the store need tables, and put
# themselves here.
MAKERS: dict[str, Callable[..., Interpolant]] = {}


def _check_eps(eps: float | None) -> None:
    if eps is not None and not eps > 0:
        raise PrecisionError(f"eps must be positive (or None for the best there is), got {eps!r}")
