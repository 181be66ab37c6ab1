r"""Linear maps whose weights are in the prompt: one head per output row (sec. 4.3).

Head r looks up z = theta_r . x_i among grid tokens with values L_k: the look-up of a straight line,
which at the right temperature is exact to rounding with about 25 tokens. What differs between the
two encodings is where the prompt keeps theta:

rows (thm:attn_sim_attn), :class:`RowLayer`
    Token j carries x_j and row j of every weight matrix. A head's own affine map makes the grid
    tokens (L_k theta_r) from row r. Any number of rows; tokens are zero-padded.
embedding (def:input_attn), :class:`RampLayer`
    Token i carries x_i, i times all weights, and a one-hot position. The ramp i theta_r is the key
    and positions give bias and value, so the tokens themselves are the grid. The paper's second
    block of constant weights is redundant, and its displayed key makes the softmax independent of
    x; the ramp is what works. It is counted from the middle of the grid, which keeps logits, and
    so their rounding, as small as they can be; tokens beyond the grid carry no weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iceform import tuning
from iceform.arithmetic import exactly
from iceform.arithmetic.units import LEAK_BITS
from iceform.certificates import Certificate
from iceform.certificates import DerivationStep as Step
from iceform.errors import BoundError, ProgramError
from iceform.expressions import ScalarFunction
from iceform.heads import (
    Design,
    Features,
    FrozenNetwork,
    Head,
    LiftedAttention,
    Move,
    Prompt,
    Row,
    SoftmaxAttention,
    attention,
    products,
)
from iceform.heads.design import attention_weights
from iceform.heads.head import Pair
from iceform.paper.base import Emulator, LayerSizes, Plan
from iceform.paper.selection import choose
from iceform.run import primitives, rounding_of
from iceform.run.formulas import AttendedFeatures, RampLookUps, RowLookUps
from iceform.tables import Grid, Interpolant, RoundingModel
from iceform.tables.local import rounding_on
from iceform.validation import (
    check_bound,
    check_choice,
    check_positive,
    check_size,
    common_batch,
    unit_roundoff,
)


class Entries(NamedTuple):
    """Entries of K, Q or V on given data, in float64."""

    exact: Tensor
    off: Tensor  # how far that is from exact
    looked: Tensor
    radius: Tensor  # how far from that what runs may be


@dataclass(frozen=True)
class RowLayer:
    """The literal first layer, weights as rows of the prompt (thm:attn_sim_attn).

    Attributes
    ----------
    dim, samples
        Features and number of the x tokens.
    rows
        Rows of each weight matrix in the prompt.
    names
        What each matrix is called in labels ("K", "Q", "V").
    table
        The look-up of the identity.
    margin
        M, which keeps attention off padding tokens.
    """

    dim: int
    samples: int
    rows: tuple[int, ...]
    names: tuple[str, ...]
    table: Interpolant
    margin: float

    @property
    def outputs(self) -> int:
        """Rows of all matrices together: the layer's output features."""
        return sum(self.rows)

    @property
    def tables(self) -> tuple[Interpolant, ...]:
        """The tables of the heads that share a row."""
        return (self.table,)

    @property
    def tokens(self) -> int:
        """Tokens that attend: at least the grid's and the samples'."""
        return max(self.samples, self.table.tokens)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return max(self.samples, *self.rows)

    @property
    def features(self) -> Features:
        """Features of the prompt."""
        return Features.of(x=self.dim, **dict.fromkeys(self.names, self.dim))

    @property
    def looked(self) -> Features:
        """Features of what the layer gives."""
        return Features(tuple(zip(self.names, self.rows, strict=True)))

    @property
    def roles(self) -> tuple[str, ...]:
        """One per token of the prompt."""
        return self._named("weight row")

    def _named(self, what: str) -> tuple[str, ...]:
        kept = [f"x {i}" if i < self.samples else "padding" for i in range(self.prompt_tokens)]
        return tuple(f"{k}, {what} {i}" for i, k in enumerate(kept))

    def prompt(self, x: Tensor, *weights: Tensor) -> Prompt:
        """Data and weights as tokens."""
        return Prompt(self.pack(x, weights), self.features, self.roles)

    def pack(self, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """The prompt: data and weights, zero-padded."""
        batch = common_batch(x.shape[:-2], *(w.shape[:-2] for w in weights))
        return torch.cat([self._padded(part, batch) for part in (x, *weights)], -1)

    def _padded(self, part: Tensor, batch: torch.Size) -> Tensor:
        part = part.expand(*batch, *part.shape[-2:])
        return torch.nn.functional.pad(part, (0, 0, 0, self.prompt_tokens - part.shape[-2]))

    @property
    def formula(self) -> RowLookUps | RampLookUps:
        """What the layer computes: the rows' products with x, looked up."""
        rows = tuple((self.features[name], count) for name, count in self.looked.sizes)
        return RowLookUps(self.features["x"], self.samples, rows, self.table)

    @property
    def design(self) -> Design:
        """The same head for every row, on tokens that are lifted: those differ."""
        bias = Row.flags(bias=-self._beta, padding=-self.margin)
        logit = products(self._lifted, {"query": 1.0}, {"key": 2 * self._beta})
        heads = tuple(
            Head(f"{name} row {j}", (*logit, (Row.of("one"), bias)), _into(name, j, "value"))
            for name, count in self.looked.sizes
            for j in range(count)
        )
        return Design(self._lifted, (heads,), gives=(self.looked,))

    def build(self) -> SoftmaxAttention:
        """The literal weights, float64."""
        weights = attention_weights(self.design, 0, self._readout, shared="kq")
        labels = [head.role for head in self.design.layers[0]]
        return LiftedAttention(*self._lift(), *weights, labels=labels)

    def network(
        self, *after: nn.Module, formulas: Sequence[AttendedFeatures] = ()
    ) -> FrozenNetwork:
        """The layer and those after it, which compute by their ``formulas``."""
        formula = [self.formula, *formulas]
        return FrozenNetwork([self.build(), *after], self.features, self.tables, formulas=formula)

    @property
    def _readout(self) -> Tensor:
        return torch.eye(self.tokens, self.samples, dtype=torch.float64)  # the samples' tokens

    @property
    def _beta(self) -> float:
        return self.table.sharpness / self.table.grid.spacing**2

    @property
    def _lifted(self) -> Features:
        """Features of lifted tokens: a sample's, and a grid point's."""
        return Features.of(query=self.dim, key=self.dim, bias=1, value=1, padding=1, one=1)

    def _lift(self) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...], Tensor, Tensor, Tensor]:
        """What makes the tokens of every head: x as queries, its row along the ramp as keys."""
        n, grid, at, packed = self.samples, self.table.tokens, self._lifted, self.features
        eye = torch.eye(self.dim, dtype=torch.float64)
        shared = torch.zeros(at.total, packed.total, dtype=torch.float64)
        shared[at["query"], packed["x"]] = eye
        groups = torch.zeros(len(self.rows), at.total, packed.total, dtype=torch.float64)
        for g, name in enumerate(self.names):
            groups[g, at["key"], packed[name]] = eye
        own = [torch.eye(r, self.prompt_tokens, dtype=torch.float64) for r in self.rows]
        ramp = torch.zeros(self.tokens, dtype=torch.float64)
        ramp[:grid] = self.table.keys.slopes / (2 * self._beta)
        constant = torch.zeros(self.tokens, at.total, dtype=torch.float64)
        constant[:grid, at["bias"]] = -self.table.keys.biases[:, None] / self._beta
        constant[:grid, at["value"]] = self.table.values[:, None]
        constant[grid:, at["padding"]] = 1.0
        constant[:, at["one"]] = 1.0
        samples = torch.eye(self.prompt_tokens, self.tokens, dtype=torch.float64)
        samples[n:] = 0.0
        return shared, samples, groups, self.rows, torch.cat(own), ramp, constant

    def sizes(self) -> tuple[LayerSizes, int]:
        """What the literal layer comes to, and the numbers of the map before it."""
        heads, n, lifted = self.outputs, self.samples, self._lifted.total
        maps = (1 + len(self.rows)) * lifted * self.features.total
        maps += self.prompt_tokens * (self.tokens + heads) + self.tokens * (1 + lifted)
        return LayerSizes(self.tokens, lifted, heads, self.dim + 1, heads, n, shared=2), maps

    def plan(self, dtype: torch.dtype, *after: LayerSizes) -> Plan:
        """Of this layer and those after it."""
        first, more = self.sizes()
        return Plan.of(
            [first, *after],
            dtype,
            grid=self.table.tokens,
            prompt=(self.prompt_tokens, self.features.total),
            looked=self.samples * first.heads * self.table.tokens,
            more=more,
            products=self.samples * self.dim * first.heads,
        )


def _into(name: str, row: int, value: str) -> tuple[Move, ...]:
    return (Move(Row.of(value), {(name, row): 1.0}),)


@dataclass(frozen=True)
class Ramp:
    """How tokens along a ramp are a grid, for the heads that share a row.

    Attributes
    ----------
    factors
        What a row is multiplied by in each token of the grid.
    scale
        What keys multiply that by.
    parts
        For every head what it is called, its table, and the biases of its tokens.
    """

    factors: Tensor
    scale: float
    parts: tuple[tuple[str, Interpolant, Tensor], ...]

    @classmethod
    def of(cls, table: Interpolant) -> Ramp:
        """One head, with all of a table around 0."""
        assert isinstance(table.grid, Grid)
        spacing = table.grid.spacing
        scale = 2 * (table.sharpness / spacing**2) * spacing
        return cls(table.grid.offsets / spacing, scale, (("", table, table.keys.biases),))


@dataclass(frozen=True)
class RampLayer(RowLayer):
    """The literal first layer, weights along the embedding (def:input_attn).

    Attributes
    ----------
    ramp
        The tokens' factors and the heads to a row, one or more.
    shared
        As :func:`iceform.heads.attention` has it.
    """

    ramp: Ramp
    shared: str = ""

    @property
    def tables(self) -> tuple[Interpolant, ...]:
        """The tables of the heads that share a row."""
        return tuple(table for _, table, _ in self.ramp.parts)

    @property
    def prompt_tokens(self) -> int:
        """All tokens that attend are in the prompt."""
        return self.tokens

    @property
    def features(self) -> Features:
        """Features of the prompt."""
        blocks = {name: count * self.dim for name, count in self.looked.sizes}
        return Features.of(x=self.dim, **blocks, position=self.tokens)

    @property
    def roles(self) -> tuple[str, ...]:
        """One per token of the prompt."""
        return self._named("grid point")

    def pack(self, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """The prompt: data zero-padded, weights along the ramp, positions."""
        batch = common_batch(x.shape[:-2], *(w.shape[:-2] for w in weights))
        ramp, count = self._factors.to(x)[:, None], self.tokens
        flat = [w.expand(*batch, *w.shape[-2:]).flatten(-2)[..., None, :] * ramp for w in weights]
        position = torch.eye(count, dtype=x.dtype, device=x.device).expand(*batch, count, count)
        return torch.cat([self._padded(x, batch), *flat, position], -1)

    @property
    def _factors(self) -> Tensor:
        """Of all tokens; 0 beyond the grid."""
        return torch.nn.functional.pad(self.ramp.factors, (0, self.tokens - len(self.ramp.factors)))

    @property
    def formula(self) -> RampLookUps:
        """What the layer computes: the rows' products with x, looked up and summed over heads."""
        at = self.features
        rows = slice(at["x"].stop, at["position"].start)
        return RampLookUps(at["x"], self.samples, rows, at["position"], self._factors, self.tables)

    @property
    def design(self) -> Design:
        """The heads of every row: its ramp, and positions for bias and value."""
        everywhere, d = Row.over("position", [1.0] * self.tokens), self.dim
        spare = [0.0] * (self.tokens - self.table.tokens)
        points = [
            (
                [role] if role else [],
                Row.over("position", biases.tolist() + [-self.margin for _ in spare]),
                Row.over("position", table.values.tolist() + spare),
            )
            for role, table, biases in self.ramp.parts
        ]

        def along(name: str, j: int) -> tuple[Pair, ...]:
            own = (Row.of(name, j * d + i, self.ramp.scale) for i in range(d))
            return tuple((Row.of("x", i), key) for i, key in enumerate(own))

        heads = tuple(
            Head(
                ", ".join([f"{name} row {j}", *role]),
                (*along(name, j), (everywhere, point)),
                (Move(value, {(name, j): 1.0}),),
            )
            for name, count in self.looked.sizes
            for j in range(count)
            for role, point, value in points
        )
        return Design(self.features, (heads,), gives=(self.looked,))

    def build(self) -> SoftmaxAttention:
        """The literal weights, float64."""
        return attention(self.design, 0, self._readout, shared=self.shared)

    def sizes(self) -> tuple[LayerSizes, int]:
        """What the literal layer comes to; there is no map before it."""
        return LayerSizes(
            tokens=self.tokens,
            features=self.features.total,
            heads=self.outputs * len(self.ramp.parts),
            logit=self.dim + 1,
            values=self.outputs,
            answers=self.samples,
            shared=len(self.shared),
        ), 0


_LINE = ScalarFunction(lambda z: z, "identity", affine=(1.0, 0.0))
_LARGEST_EXPONENT = math.floor(math.log(torch.finfo(torch.float64).max))
_SQUARED = 2.0**50  # products whose squares, and those of a cell, float32 holds


class RowOptions(TypedDict, total=False):
    """What a construction with weights in the prompt is asked for by keyword."""

    bound: float
    weight_bound: float | None
    reach: float | None
    nonzeros: int | None
    eps: float | None
    regime: str
    encoding: str
    dtype: torch.dtype
    backend: str
    interpolant: Interpolant | None


class RowEmulator(Emulator):
    """What every construction with weights in the prompt shares.

    ``em(x, *weights)``: x is (*batch, samples, dim), weights are (*batch, rows, dim). As it stands
    it is the look-up of all rows; a subclass says what the exact algorithm is, and adds layers.
    """

    def __init__(
        self,
        *,
        dim: int,
        samples: int,
        rows: tuple[int, ...],
        names: tuple[str, ...],
        bound: float = 1.0,
        weight_bound: float | None = None,
        reach: float | None = None,
        nonzeros: int | None = None,
        eps: float | None = tuning.EPS,
        regime: str = "spectral",
        encoding: str = "rows",
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
        tokens: int | None = None,
        interpolant: Interpolant | None = None,
    ) -> None:
        super().__init__(eps=eps, dtype=dtype, backend=backend)
        self.dim, self.samples = check_size("dim", dim), check_size("samples", samples)
        self.regime = check_choice("regime", regime, ("spectral", "hard"))
        self.encoding = check_choice("encoding", encoding, ("rows", "embedding"))
        self.bound = check_positive("bound", bound, dtype=dtype)
        self.weight_bound = self.bound
        if weight_bound is not None:
            self.weight_bound = check_positive("weight_bound", weight_bound, dtype=dtype)
        worst = self.dim * self.bound * self.weight_bound
        self.given_reach = None if reach is None else check_positive("reach", reach)
        self.reach = worst if self.given_reach is None else min(worst, self.given_reach)
        self.nonzeros = None if nonzeros is None else check_size("nonzeros", nonzeros)
        self._shape = (rows, names)
        weights = {name: (count, self.dim) for count, name in zip(rows, names, strict=True)}
        self.shapes = {"x": (self.samples, self.dim), **weights}
        self.answer = (self.samples, sum(rows))
        if self.dtype == torch.float32 and not 1 / _SQUARED <= self.reach <= _SQUARED:
            raise BoundError(
                f"products reach {self.reach:.3g} with these bounds, and keys hold their inverse "
                f"square: float32 has room for {1 / _SQUARED:.0e} to {_SQUARED:.0e}; scale the "
                "data, or use dtype=torch.float64"
            )
        self.interpolant = self._choose(tokens, interpolant)
        self._hold_eps(
            "use eps=None and certify(...) your inputs, or a smaller bound or reach",
            "the whole domain",
        )

    # ------------------------------------------------------------------------ the look-up table

    @property
    def _terms(self) -> float:
        """Bound of sum_j |theta_j x_j|, what a product's rounding follows."""
        if self.nonzeros is not None:
            return self.reach  # checked on every input where tokens are sparse
        return self.dim * self.bound * self.weight_bound

    @property
    def _summands(self) -> int:
        """Products that can be nonzero; zeros add no rounding."""
        return self.dim if self.nonzeros is None else self.nonzeros

    def _choose(self, tokens: int | None, given: Interpolant | None = None) -> Interpolant:
        slack = 4 * (self._summands + 4) * unit_roundoff(self.dtype) * (self._terms + self.reach)
        it = choose(
            _LINE,
            (-self.reach - slack, self.reach + slack),
            eps=self.eps,
            regime=self.regime,
            tokens=tokens,
            dtype=self.dtype,
            gain=self._gain,
            # The whole bound saturates where it is hopeless; a look-up's own error does not.
            total=lambda it: (
                math.fsum(self._looked(it).values())
                if self.eps is None
                else self._certify(it).error
            ),
            given=given,
        )
        if not it.uniform:
            raise ProgramError(
                "rows look a line up on equally spaced tokens, and the interpolant that was handed "
                "in has others; use Interpolant.identity(low, high)"
            )
        return it

    @property
    def layer(self) -> RowLayer:
        """The first layer's description."""
        rows, names = self._shape
        it = self.interpolant
        sizes = (self.dim, self.samples, rows, names, it, self._margin())
        return RowLayer(*sizes) if self.encoding == "rows" else RampLayer(*sizes, Ramp.of(it))

    def _margin(self) -> float:
        """Padding tokens, at logit -M, meet a grid whose mass is at least e^{-c/4}."""
        it = self.interpolant
        target = unit_roundoff(self.dtype) * 2.0**-LEAK_BITS
        return math.log(max(1, self.samples - it.tokens)) - math.log(target) + it.sharpness / 4

    def _looked(self, it: Interpolant) -> dict[str, float]:
        """Interpolation, leak and rounding of one look-up of theta_r . x_i."""
        terms = self._terms + abs(it.grid.center)
        model = rounding_of(self.backend).model(self.dtype, it, terms, self._summands)
        padded = self.samples > it.tokens and self.backend == "literal"
        leak = unit_roundoff(self.dtype) * 2.0**-LEAK_BITS if padded else 0.0
        off = 2 * model.gamma * float((it.keys.slopes.abs() * terms + it.keys.biases.abs()).max())
        return {
            "interpolation": it.error,
            "leak": 2 * it.size * leak * math.exp(min(off, _LARGEST_EXPONENT)),
            "rounding": it.rounding(model),
        }

    def _entries(self, x: Tensor, weight: Tensor) -> Entries:
        """Weight x of given data, float64."""
        it, unit = self.interpolant, unit_roundoff(torch.float64)
        z, terms = x @ weight.mT, x.abs() @ weight.abs().mT
        off = 2 * (self.dim + 2) * unit * terms + torch.finfo(torch.float64).tiny
        flat, around = z.flatten(), off.flatten()
        given = RoundingModel(unit, it.uniform, 0.0, 0, summed=True)
        model = rounding_of(self.backend).model(self.dtype, it, 1.0, self._summands)
        radius = (
            rounding_on(it, given, flat, torch.zeros_like(flat), 0.0)
            + rounding_on(it, model, flat, around, terms.flatten() + abs(it.grid.center))
            + it.steepness * around
            + self._looked(it)["leak"]
        )
        looked = primitives.plain_interpolate(z, it)
        return Entries(z, off, looked, radius.reshape(z.shape))

    @property
    def _gain(self) -> float:
        return 1.0

    def _describe(self) -> dict[str, float | str]:
        return {
            "samples x dim": f"{self.samples} x {self.dim}",
            "max |x|": self.bound,
            "max |weights|": self.weight_bound,
            "max |weights . x|": self.reach,
        }

    def _steps(self, it: Interpolant, looked: dict[str, float]) -> tuple[Step, ...]:
        whole = Step("R", "range of the products", self.reach, "dim x bounds, or reach=")
        return (*self._look_up_steps(it.error, looked["rounding"], it), whole)

    # ------------------------------------------------------------------------------ evaluation

    def _check_values(self, *inputs: Tensor) -> None:
        """Bounds, then the products' range."""
        x, *weights = inputs
        check_bound("x", x, self.bound, "scale the data or raise bound=")
        for name, weight in zip(self._shape[1], weights, strict=True):
            check_bound(name, weight, self.weight_bound, "scale it or raise weight_bound=")
            self._check_reach(name, x, weight)

    def _check_reach(self, name: str, x: Tensor, weight: Tensor) -> None:
        x, weight = x.detach(), weight.detach()
        if self.nonzeros is None and (self.given_reach is None or self.reach < self.given_reach):
            return
        if self.nonzeros is not None:
            seen = int(((x != 0).to(x) @ (weight != 0).to(x).mT).max())
            if seen > self.nonzeros:
                raise BoundError(
                    f"{name} x sums {seen} nonzero products, the certificate allows "
                    f"{self.nonzeros}; raise nonzeros="
                )
            x, weight = x.abs(), weight.abs()
        largest = float((x @ weight.mT).abs().max())
        if not largest <= self.reach:
            raise BoundError(
                f"max |{name} x| is {largest:.6g}, beyond the grid's range {exactly(self.reach)}; "
                "raise reach="
            )

    def _encode(self, *inputs: Tensor) -> Prompt:
        """Data and weights as tokens."""
        return self.layer.prompt(*inputs)

    def _certify(self, it: Interpolant) -> Certificate:
        looked = self._looked(it)
        return self._proved(looked, self._describe(), self._steps(it, looked), it)

    def _build_network(self) -> FrozenNetwork:
        return self.layer.network()

    @property
    def design(self) -> Design:
        """A head for every row."""
        return self.layer.design

    @property
    def plan(self) -> Plan:
        """One layer, one head per row."""
        return self.layer.plan(self.dtype)


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

    def _exactly(self, *inputs: Tensor) -> Float[Tensor, "*b n m"]:
        """The exact product (float64)."""
        x, theta = inputs
        return x.double() @ theta.double().mT
