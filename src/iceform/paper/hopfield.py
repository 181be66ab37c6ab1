r"""The appendix: modern Hopfield layers compute functions and gradient steps.

In def:hopfield values are made from keys, V = W_V W_K Y, so the paper's K and V would need f in the
span of L and L^2. The patterns here are y_k = [L_k; L_k^2; f(L_k)], with the function's values as
key rows that no state ever meets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic import at_most
from iceform.certificates import Certificate, DerivationStep
from iceform.errors import PrecisionError, ShapeError
from iceform.expressions import ScalarFunction
from iceform.expressions.scalar import lost
from iceform.heads import (
    Design,
    Features,
    FrozenNetwork,
    Head,
    LookUpLayout,
    Prompt,
    Row,
    hopfield,
    moves,
    rows,
)
from iceform.paper.base import Emulator, Plan
from iceform.paper.gradients import GradientStep, ResidualMap
from iceform.paper.selection import choose
from iceform.run import rounding_of
from iceform.run.formulas import StoredLookUp
from iceform.tables import Interpolant
from iceform.validation import (
    check_bound,
    check_choice,
    check_positive,
    check_size,
    check_tensors,
    unit_roundoff,
)


class HopfieldMap(Emulator):
    r"""f(a.z_i + b) by one Hopfield layer (thm:hopfield_approx, corrected).

    ``em(Z)`` with Z of shape (*batch, samples, dim) has shape (*batch, samples). The patterns and
    the line a.z + b are part of the module.

    Parameters
    ----------
    f
        Continuous and elementwise.
    a, b
        The line: a has ``dim`` entries.
    samples, bound
        States per call and the entrywise bound of Z.
    eps, regime, dtype, backend, kinks, tokens
        As for :class:`ResidualMap`.
    """

    def __init__(
        self,
        f: Callable[[Tensor], Tensor] | ScalarFunction,
        a: Sequence[float] | Tensor,
        b: float = 0.0,
        *,
        samples: int,
        bound: float = 1.0,
        eps: float | None = 1e-6,
        regime: str = "spectral",
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
        kinks: Sequence[float] | None = None,
        tokens: int | None = None,
        interpolant: Interpolant | None = None,
    ) -> None:
        super().__init__(eps=eps, dtype=dtype, backend=backend)
        line = torch.as_tensor(a, dtype=torch.float64).detach()
        if line.ndim != 1 or line.numel() == 0:
            raise ShapeError(f"a must be a vector, got shape {tuple(line.shape)}")
        check_bound("a", line, math.inf, "use finite coefficients")
        self.register_buffer("a", line.to(dtype))
        self.b, self.dim = float(b), line.numel()
        self.samples = check_size("samples", samples)
        self.bound = check_positive("bound", bound)
        self.regime = check_choice("regime", regime, ("spectral", "hard"))
        self._terms = float(line.abs().sum()) * self.bound + abs(self.b)
        slack = 8 * (self.dim + 4) * unit_roundoff(dtype) * self._terms
        span = (-self._terms - slack, self._terms + slack)
        function = ScalarFunction.of(f, *span, kinks)
        self.interpolant = choose(
            function,
            span,
            eps=self.eps,
            regime=regime,
            tokens=tokens,
            dtype=dtype,
            gain=1.0,
            total=lambda it: self._certify(it).error,
            given=interpolant,
        )
        self.function = function
        error = self.certificate.error
        if self.eps is not None and not error <= self.eps:
            raise PrecisionError(
                f"{at_most(error, '.3g')} is certified, not eps = {self.eps:.3g}; use eps=None",
                best=error,
            )

    a: Tensor

    def _certify(self, it: Interpolant) -> Certificate:
        terms_of_z = self._terms + abs(it.grid.center)
        model = rounding_of(self.backend).model(self.dtype, it, terms_of_z, self.dim)
        terms = {"interpolation": it.error, "rounding": it.rounding(model)}
        steps = (
            DerivationStep(
                "h", "grid spacing", it.grid.spacing, f"{it.tokens} patterns, {it.regime} regime"
            ),
            DerivationStep(
                "sup|A-f|", "look-up against f on the line's range", it.error, "as for a head"
            ),
            DerivationStep(
                "rounding", "look-up in floating point", terms["rounding"], "logits, exp, sums"
            ),
        )
        sizes = f"{self.samples} x {self.dim}"
        return self._proved(terms, {"samples x dim": sizes, "max |z|": self.bound}, steps, it)

    @cached_property
    def certificate(self) -> Certificate:
        """The proven error."""
        return self._certify(self.interpolant)

    def check(self, *inputs: Tensor) -> None:
        """Shape, dtype, device, bound."""
        if len(inputs) != 1:
            raise TypeError(f"call with (Z,), got {len(inputs)} arguments")
        (z,) = inputs
        device = z.device if isinstance(z, Tensor) else torch.device("cpu")
        check_tensors({"z": (z, (self.samples, self.dim))}, self.dtype, device)
        check_bound("z", z, self.bound, "scale the states or raise bound=")

    def _axes(self, inputs: int) -> tuple[Sequence[int], Sequence[int]]:
        return (2,), (self.samples,)

    def _exactly(self, *inputs: Tensor) -> Tensor:
        """f(a.z + b), exactly (float64)."""
        (z,) = inputs
        return self.function(z.double() @ self.a.double().to(z.device) + self.b)

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
        patterns = torch.stack([slopes, biases, it.values], -1)
        layer = hopfield(self.design, beta, patterns=patterns)
        line = torch.cat([self.a.double(), torch.tensor([self.b], dtype=torch.float64)])
        formula = StoredLookUp(line, it)
        return FrozenNetwork([layer], self.design.features, [it], formulas=[formula])

    @property
    def design(self) -> Design:
        """W_K = [[2a, 0, 0], [2(b - m), -1, 0], [0, 0, 1]] on y_k = [l_k; l_k^2; v_k]."""
        states, patterns = Features.of(z=self.dim, one=1), Features.of(node=1, square=1, value=1)
        along = [Row.of("node", 0, 2 * a) for a in self.a.double().tolist()]
        end = Row.flags(node=2 * (self.b - self.interpolant.grid.center), square=-1.0)
        asked = (*rows(states, {"z": 1.0}), Row.of("one"))
        logit = tuple(zip(asked, (*along, end), strict=True))
        head = Head("retrieval", logit, moves(patterns, {"value": 1.0}, "f"))
        return Design(states, ((head,),), gives=(Features.of(f=1),), keys=patterns)

    def _read(self, output: Tensor) -> Tensor:
        return output[..., 0]

    @property
    def plan(self) -> Plan:
        """One layer, one head, as many patterns as grid tokens."""
        d, n, g = self.dim, self.samples, self.interpolant.tokens
        weights = (d + 2) * 3 + (d + 2) * (d + 1) + (d + 2) + 1 + 3 * g
        size = torch.finfo(self.dtype).bits // 8
        return Plan(
            grid_tokens=g,
            tokens=n,
            features=d + 1,
            head_dim=d + 2,
            heads=1,
            layers=1,
            parameters=weights,
            weight_bytes=8 * weights,
            literal_bytes=size * (weights + 2 * n * g + n * (2 * d + 3)),
            fused_bytes=size * 2 * min(n * g, 1 << 22),
            literal_flops=2 * n * g * (d + 3),
            fused_flops=2 * n * d + 8 * n * g,
        )

    def _config(self) -> dict[str, Any]:
        return {
            "a": self.a.double().tolist(),
            "b": self.b,
            "samples": self.samples,
            "bound": self.bound,
            "eps": self.eps,
            "regime": self.regime,
            "backend": self.backend,
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    @classmethod
    def _rebuild(cls, arguments: dict[str, Any], it: Interpolant, f: Any) -> Emulator:
        options = {**arguments, "dtype": getattr(torch, arguments["dtype"])}
        return cls(lost if f is None else f, interpolant=it, kinks=(), **options)


_BETA = 2.0  # of the memories below: a power of two, so that dividing keys by it is exact


def _stored(layout: LookUpLayout) -> Design:
    """The look-up layer as a Hopfield layer: grid tokens are stored, queries are the states.

    Value rows become key rows that states do not meet. The layer multiplies everything by beta, so
    keys and the margin are divided by it; the paper's margin does not follow beta or the square of
    the residuals, and for larger bounds it is too small.
    """
    ((head,),) = layout.design.layers
    logit = tuple((query, key.times(1 / _BETA)) for query, key in head.logit)
    return replace(layout.design, layers=((replace(head, role="retrieval", logit=logit),),))


def _memory(layout: LookUpLayout, dtype: torch.dtype) -> FrozenNetwork:
    layer = hopfield(_stored(layout), _BETA, stored=layout.samples * layout.tokens)
    return layout.network([layout.embedding(), layer]).to(dtype)


class HopfieldResidual(ResidualMap):
    """f(w.x_i - y_i) x_i by one Hopfield layer (thrm:hopfield_sim_f, corrected).

    As :class:`ResidualMap`; the grid tokens are the stored patterns and the queries the states.
    """

    def _build_network(self) -> FrozenNetwork:
        return _memory(self.layout, self.dtype)

    @property
    def design(self) -> Design:
        """The one head; its logits are those of the layer over beta."""
        return _stored(self.layout)

    @property
    def plan(self) -> Plan:
        """As for attention, without a sequence-side readout."""
        return _hopfield_plan(super().plan, self.layout)


class HopfieldStep(GradientStep):
    """One gradient step by a Hopfield layer; the readout is the mean over its states.

    As :class:`GradientStep`. The value rows carry w, which the paper leaves out of Y: without it
    the layer can return a gradient but no step.
    """

    def _build_network(self) -> FrozenNetwork:
        return _memory(self.layout, self.dtype)

    @property
    def design(self) -> Design:
        """The one head; its logits are those of the layer over beta."""
        return _stored(self.layout)

    @property
    def plan(self) -> Plan:
        """As for attention, without a sequence-side readout."""
        return _hopfield_plan(super().plan, self.layout)


def _hopfield_plan(plan: Plan, layout: LookUpLayout) -> Plan:
    rows, wide = plan.head_dim + layout.dim + 1, layout.features.total
    attention = (2 * plan.head_dim + layout.dim + 1) * wide + 2 * layout.samples * layout.count
    weights = layout.weights - attention + 2 * rows * wide + (layout.dim + 1) * rows + 1
    return replace(plan, head_dim=rows, parameters=weights, weight_bytes=8 * weights)
