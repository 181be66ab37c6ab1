r"""The appendix: modern Hopfield layers compute functions and gradient steps.

In def:hopfield values are made from keys, V = W_V W_K Y, so the paper's K and V would need f in the
span of L and L^2. The patterns here are y_k = [L_k; L_k^2; f(L_k)], with the function's values as
key rows that no state ever meets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from iceform import tuning
from iceform.certificates import Certificate
from iceform.codec import encode
from iceform.errors import PrecisionError, ProgramError, ShapeError
from iceform.expressions import ScalarFunction
from iceform.expressions.scalar import lost
from iceform.heads import (
    Design,
    Features,
    FrozenNetwork,
    Head,
    Prompt,
    Row,
    moves,
    rows,
)
from iceform.heads.design import hopfield
from iceform.paper.base import Emulator, LayerSizes, Plan
from iceform.paper.gradients import GradientStep, ResidualMap
from iceform.paper.residual import ResidualEmulator
from iceform.paper.selection import choose
from iceform.run import rounding_of
from iceform.run.formulas import StoredLookUp
from iceform.tables import Grid, Interpolant, bounds
from iceform.tables.regimes import on_grid
from iceform.tables.storage import table_from
from iceform.validation import check_bound, check_choice, check_positive, check_size, unit_roundoff

Elementwise = Callable[[Tensor], Tensor] | ScalarFunction

_SHARES = (1.0, 1 / 16, 1 / 256)  # of eps that components are asked for, until they hold it


class HopfieldMap(Emulator):
    r"""f(a.z_i + b) by one Hopfield layer (thm:hopfield_approx, corrected).

    ``em(Z)`` with Z of shape (*batch, samples, dim) has shape (*batch, samples). The patterns and
    the line a.z + b are part of the module.

    A function :math:`f = (f_1, ..., f_o)` from R to R^o is given as the sequence of its
    components; the answer then has shape (*batch, samples, o). All components are columns of one
    table, :math:`y_k = [L_k; L_k^2; f_1(L_k); ...; f_o(L_k)]`: the weights of a look-up are shared,
    and the error is the largest of the components'.

    Parameters
    ----------
    f
        Continuous and elementwise, or a sequence of such functions.
    a, b
        The line: a has ``dim`` entries.
    samples, bound
        States per call and the entrywise bound of Z.
    eps, regime, dtype, backend, kinks, tokens
        As for :class:`ResidualMap`; ``kinks`` are those of all components.

    Examples
    --------
    >>> em = HopfieldMap((torch.sin, torch.tanh), a=[1.0, -1.0], samples=3, eps=1e-6)
    >>> em(torch.zeros(3, 2, dtype=torch.float64)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        f: Elementwise | Sequence[Elementwise],
        a: Sequence[float] | Tensor,
        b: float = 0.0,
        *,
        samples: int,
        bound: float = 1.0,
        eps: float | None = tuning.EPS,
        regime: str = "spectral",
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
        kinks: Sequence[float] | None = None,
        tokens: int | None = None,
        interpolant: Interpolant | Sequence[Interpolant] | None = None,
    ) -> None:
        components = tuple(f) if isinstance(f, Sequence) else (f,)
        if not components:
            raise ShapeError("f is an empty sequence; give at least one component")
        vector = isinstance(f, Sequence)
        super().__init__(eps=eps, dtype=dtype, backend=backend)
        line = torch.as_tensor(a, dtype=torch.float64).detach()
        if line.ndim != 1 or line.numel() == 0:
            raise ShapeError(f"a must be a vector, got shape {tuple(line.shape)}")
        check_bound("a", line, math.inf, "use finite coefficients")
        self.register_buffer("a", line.to(dtype))
        self.b, self.dim = float(b), line.numel()
        self.samples = check_size("samples", samples)
        self.bound = check_positive("bound", bound, dtype=dtype)
        self.regime = check_choice("regime", regime, ("spectral", "hard"))
        self._alone = not vector  # f is no sequence: the answer has no axis of components
        self.shapes = {"z": (self.samples, self.dim)}
        self.answer = (self.samples, *([len(components)] if vector else []))
        self._terms = float(line.abs().sum()) * self.bound + abs(self.b)
        slack = 8 * (self.dim + 4) * unit_roundoff(dtype) * self._terms
        span = (-self._terms - slack, self._terms + slack)
        self.functions = tuple(ScalarFunction.of(g, *span, kinks) for g in components)
        given = (interpolant,) if isinstance(interpolant, Interpolant) else interpolant

        def chosen(g: ScalarFunction, eps: float | None, it: Interpolant | None) -> Interpolant:
            return choose(
                g, span, eps=eps, regime=regime, tokens=tokens, dtype=dtype, gain=1.0,
                total=lambda it: self._certify_columns((it,)).error, given=it,
            )  # fmt: skip

        if given is not None:
            pairs = zip(self.functions, _alike(given, len(self.functions)), strict=True)
            self.tables = tuple(chosen(g, self.eps, it) for g, it in pairs)
        elif len(self.functions) == 1:
            self.tables = (chosen(self.functions[0], self.eps, None),)
        else:
            self.tables = self._sharing(chosen)
        self.interpolant = self.tables[0]
        self._hold_eps("use eps=None")

    a: Tensor

    def _sharing(
        self, chosen: Callable[[ScalarFunction, float | None, None], Interpolant]
    ) -> tuple[Interpolant, ...]:
        """One table with a column for every component: the smallest tried that holds eps for all.

        Its keys are those that one of the components would have alone, or those with more guards:
        a component that is flat at the ends asks for none, and the others need them. Where no such
        table holds eps for all, all are asked for more.
        """
        best: tuple[Interpolant, ...] = ()
        least = math.inf
        for columns in self._tried(chosen):
            error = self._certify_columns(columns).error
            if not best or error < least:
                best, least = columns, error
            if self.eps is not None and error <= self.eps:
                break
        return best

    def _tried(
        self, chosen: Callable[[ScalarFunction, float | None, None], Interpolant]
    ) -> Iterator[tuple[Interpolant, ...]]:
        for share in _SHARES if self.eps is not None else _SHARES[:1]:
            wanted = None if self.eps is None else share * self.eps
            try:
                own = [chosen(g, wanted, None) for g in self.functions]
            except PrecisionError:
                if share == _SHARES[0]:
                    raise
                return
            guarded = [_guarded(it, wanted) for it in own]
            for keys in sorted([*own, *filter(None, guarded)], key=lambda it: it.tokens):
                yield tuple(
                    it if it is keys else _column(g, keys)
                    for g, it in zip(self.functions, own, strict=True)
                )

    def _certify(self, it: Interpolant) -> Certificate:
        return self._certify_columns(self.tables)

    def _certify_columns(self, tables: Sequence[Interpolant]) -> Certificate:
        found = []
        for it in tables:
            terms_of_z = self._terms + abs(it.grid.center)
            model = rounding_of(self.backend).model(self.dtype, it, terms_of_z, self.dim)
            found.append((it.error, it.rounding(model)))
        looked, rounded = (max(column) for column in zip(*found, strict=True))
        terms = {"interpolation": looked, "rounding": rounded}
        steps = self._look_up_steps(looked, rounded, tables[0])
        sizes = f"{self.samples} x {self.dim}"
        return self._proved(terms, {"samples x dim": sizes, "max |z|": self.bound}, steps, *tables)

    def _check_values(self, *inputs: Tensor) -> None:
        check_bound("z", inputs[0], self.bound, "scale the states or raise bound=")

    def _exactly(self, *inputs: Tensor) -> Tensor:
        """f(a.z + b), exactly (float64)."""
        (z,) = inputs
        line = z.double() @ self.a.double().to(z.device) + self.b
        found = torch.stack([g(line) for g in self.functions], -1)
        return found[..., 0] if self._alone else found

    def _encode(self, *inputs: Tensor) -> Prompt:
        """The states with a constant one."""
        (z,) = inputs
        tokens = torch.cat([z, torch.ones_like(z[..., :1])], -1)
        roles = tuple(f"state {i}" for i in range(self.samples))
        return Prompt(tokens, Features.of(z=self.dim, one=1), roles)

    def _build_network(self) -> FrozenNetwork:
        it = self.interpolant
        beta = it.sharpness / it.grid.spacing**2
        slopes, biases = it.keys.slopes / (2 * beta), -it.keys.biases / beta
        patterns = torch.stack([slopes, biases, *(table.values for table in self.tables)], -1)
        layer = hopfield(self.design, beta, patterns=patterns)
        line = torch.cat([self.a.double(), torch.tensor([self.b], dtype=torch.float64)])
        formula = StoredLookUp(line, self.tables)
        return FrozenNetwork([layer], self.design.features, self.tables, formulas=[formula])

    @property
    def design(self) -> Design:
        """W_K = [[2a, 0, 0], [2(b - m), -1, 0], [0, 0, I_o]] on y_k = [l_k; l_k^2; v_k]."""
        out = len(self.functions)
        states, patterns = Features.of(z=self.dim, one=1), Features.of(node=1, square=1, value=out)
        along = [Row.of("node", 0, 2 * a) for a in self.a.double().tolist()]
        end = Row.flags(node=2 * (self.b - self.interpolant.grid.center), square=-1.0)
        asked = (*rows(states, {"z": 1.0}), Row.of("one"))
        logit = tuple(zip(asked, (*along, end), strict=True))
        head = Head("retrieval", logit, moves(patterns, {"value": 1.0}, "f"))
        return Design(states, ((head,),), gives=(Features.of(f=out),), keys=patterns)

    def _read(self, output: Tensor) -> Tensor:
        return output[..., 0] if self._alone else output

    @property
    def plan(self) -> Plan:
        """One layer, one head, as many patterns as grid tokens."""
        d, n, g, o = self.dim, self.samples, self.interpolant.tokens, len(self.functions)
        wide = d + 1 + o  # keys have rows for the values, which no state meets
        weights = wide * (2 + o) + wide * (d + 1) + o * wide + 1 + (2 + o) * g
        layer = LayerSizes(g, 2 + o, heads=1, logit=wide, values=o, answers=n)
        return Plan.of(
            [layer],
            self.dtype,
            grid=g,
            prompt=(n, d + 1),
            looked=n * g,
            more=weights - layer.parameters,
            products=n * d,
        )

    def _config(self) -> dict[str, Any]:
        config = {**super()._config(), "a": encode(self.a)}
        further = [encode(replace(it, edges=None)) for it in self.tables[1:]]
        return config if self._alone else {**config, "components": further}

    @classmethod
    def _rebuild(cls, arguments: dict[str, Any], it: Interpolant, f: Any) -> Emulator:
        options = {**arguments, "dtype": getattr(torch, arguments["dtype"]), "kinks": ()}
        if "components" not in options:
            return cls(lost if f is None else f, interpolant=it, **options)
        keys = {"grid": encode(it.grid), "sharpness": it.sharpness}  # all components have the same
        tables = [it, *(table_from({**keys, **kept}) for kept in options.pop("components"))]
        return cls([lost] * len(tables) if f is None else f, interpolant=tables, **options)

    @classmethod
    def _tabled(cls, f: Any, it: Interpolant) -> Any:
        return f[0] if isinstance(f, Sequence) else f


def _column(f: ScalarFunction, keys: Interpolant) -> Interpolant:
    """Another function on the tokens of a table, its values fitted there.

    A line keeps its own values on tokens that were made for lines alone: others are too sharp.
    """
    if keys.regime == "spectral":
        return on_grid(f, keys.grid, keys.sharpness, "fitted")
    return on_grid(replace(f, affine=None), keys.grid, keys.sharpness, keys.regime)


def _guarded(it: Interpolant, eps: float | None) -> Interpolant | None:
    """The same keys with enough guards to carry a line to ``eps`` of a cell; None if they have."""
    grid, unit = it.grid, unit_roundoff(torch.float64)
    if it.regime == "hard" or not isinstance(grid, Grid):
        return None
    guards = bounds.spectral_rule(unit if eps is None else min(max(unit, eps), 0.5)).guards
    return replace(it, grid=replace(grid, guards=guards)) if guards > grid.guards else None


def _alike(tables: Sequence[Interpolant], count: int) -> Sequence[Interpolant]:
    """Tables that are handed in: one for each component, on the same tokens."""
    if len(tables) != count:
        raise ShapeError(f"f has {count} components and {len(tables)} tables were given")
    first = tables[0].keys
    for it in tables[1:]:
        same = it.tokens == tables[0].tokens and it.grid.center == tables[0].grid.center
        if not (same and torch.equal(it.keys.slopes, first.slopes)
                and torch.equal(it.keys.biases, first.biases)):  # fmt: skip
            raise ProgramError(
                "the components' tables have different keys; one layer has one table, so fit them "
                "on the same grid at the same sharpness"
            )
    return tables


_BETA = 2.0  # of the memories below: a power of two, so that dividing keys by it is exact


class StoredTable(ResidualEmulator):
    """A construction whose table is read by a Hopfield layer instead of an attention head."""

    def _build_network(self) -> FrozenNetwork:
        layout = self.layout
        layer = hopfield(self.design, _BETA, stored=layout.samples * layout.tokens)
        return layout.network([layout.embedding(), layer])

    @property
    def design(self) -> Design:
        """The look-up layer as a Hopfield layer: grid tokens are stored, queries are the states.

        Value rows become key rows that states do not meet. The layer multiplies everything by
        beta, so keys and the margin are divided by it; the paper's margin does not follow beta or
        the square of the residuals, and for larger bounds it is too small.
        """
        design = self.layout.design
        ((head,),) = design.layers
        logit = tuple((query, key.times(1 / _BETA)) for query, key in head.logit)
        return replace(design, layers=((replace(head, role="retrieval", logit=logit),),))

    @property
    def plan(self) -> Plan:
        """As for attention, without a sequence-side readout."""
        plan, layout = super().plan, self.layout
        rows, wide = plan.head_dim + layout.dim + 1, layout.features.total
        attention = (2 * plan.head_dim + layout.dim + 1) * wide
        attention += 2 * layout.samples * layout.count
        weights = layout.weights - attention + 2 * rows * wide + (layout.dim + 1) * rows + 1
        return replace(plan, head_dim=rows, parameters=weights, weight_bytes=8 * weights)


class HopfieldResidual(StoredTable, ResidualMap):
    """f(w.x_i - y_i) x_i by one Hopfield layer (thrm:hopfield_sim_f, corrected).

    As :class:`ResidualMap`; the grid tokens are the stored patterns and the queries the states.

    Examples
    --------
    >>> em = HopfieldResidual(torch.tanh, dim=1, samples=2, eps=1e-6)
    >>> em.design.layers[0][0].role
    'retrieval'
    """


class HopfieldStep(StoredTable, GradientStep):
    """One gradient step by a Hopfield layer; the readout is the mean over its states.

    As :class:`GradientStep`. The value rows carry w, which the paper leaves out of Y: without it
    the layer can return a gradient but no step.

    Examples
    --------
    >>> em = HopfieldStep("squared", 0.1, dim=1, samples=1, bound=2.0)
    >>> x, y, w = torch.tensor([[1.0]]).double(), torch.tensor([0.5]).double(), torch.tensor([2.0])
    >>> round(float(em(x, y, w.double())), 5)
    1.85
    """
