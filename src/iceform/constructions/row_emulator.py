"""Emulators of linear maps whose weights are in the prompt, and their look-up's error."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property
from typing import Any, TypedDict

import torch
from torch import Tensor

from iceform.attention import Prompt
from iceform.backends import rounding_of
from iceform.certificates import Certificate, Step
from iceform.constructions.base import Emulator, Plan
from iceform.constructions.row_layer import RowLayer
from iceform.constructions.selection import choose
from iceform.errors import BoundError, PrecisionError
from iceform.functions import ScalarFunction
from iceform.interpolation import Interpolant
from iceform.validation import (
    check_bound,
    check_choice,
    check_positive,
    check_size,
    check_tensors,
    unit_roundoff,
)

__all__ = ["Options", "RowEmulator"]

_LINE = ScalarFunction(lambda z: z, "identity", affine=(1.0, 0.0))
_LEAK_BITS = 8  # padding tokens' mass is kept this many bits below rounding


class Options(TypedDict, total=False):
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

    ``em(x, *weights)``: x is (*batch, samples, dim), weights are (*batch, rows, dim).
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
        eps: float | None = 1e-6,
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
        self.bound = check_positive("bound", bound)
        self.weight_bound = (
            self.bound if weight_bound is None else check_positive("weight_bound", weight_bound)
        )
        worst = self.dim * self.bound * self.weight_bound
        self.given_reach = None if reach is None else check_positive("reach", reach)
        self.reach = worst if self.given_reach is None else min(worst, self.given_reach)
        self.nonzeros = None if nonzeros is None else check_size("nonzeros", nonzeros)
        self._shape = (rows, names)
        self.interpolant = interpolant or self._choose(tokens)
        error = self.certificate.error
        if self.eps is not None and not error <= self.eps:
            raise PrecisionError(
                f"{error:.3g} is certified over the whole domain, not eps = {self.eps:.3g}; use "
                "eps=None and certify(...) your inputs, or a smaller bound or reach",
                best=error,
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

    def _choose(self, tokens: int | None) -> Interpolant:
        slack = 4 * (self._summands + 4) * unit_roundoff(self.dtype) * (self._terms + self.reach)
        return choose(
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
        )

    @property
    def layer(self) -> RowLayer:
        """The first layer's description."""
        rows, names = self._shape
        return RowLayer(
            self.dim, self.samples, rows, names, self.interpolant, self.encoding, self._margin()
        )

    def _margin(self) -> float:
        """Padding tokens, at logit -M, meet a grid whose mass is at least e^{-c/4}."""
        it = self.interpolant
        target = unit_roundoff(self.dtype) * 2.0**-_LEAK_BITS
        return math.log(max(1, self.samples - it.tokens)) - math.log(target) + it.sharpness / 4

    def _looked(self, it: Interpolant) -> dict[str, float]:
        """Interpolation, leak and rounding of one look-up of theta_r . x_i."""
        terms = self._terms + abs(it.grid.center)
        model = rounding_of(self.backend).model(self.dtype, it, terms, self._summands)
        padded = self.samples > it.tokens and self.backend == "literal"
        leak = unit_roundoff(self.dtype) * 2.0**-_LEAK_BITS if padded else 0.0
        off = 2 * model.gamma * float((it.keys.slopes.abs() * terms + it.keys.biases.abs()).max())
        return {
            "interpolation": it.error,
            "leak": 2 * it.size * leak * math.exp(min(off, 700.0)),
            "rounding": it.rounding(model),
        }

    @property
    def _gain(self) -> float:
        return 1.0

    @abstractmethod
    def _certify(self, it: Interpolant) -> Certificate: ...

    @cached_property
    def certificate(self) -> Certificate:
        """The proven error for every input in the domain."""
        return self._certify(self.interpolant)

    def _describe(self) -> dict[str, float | str]:
        return {
            "samples x dim": f"{self.samples} x {self.dim}",
            "max |x|": self.bound,
            "max |weights|": self.weight_bound,
            "max |weights . x|": self.reach,
        }

    def _steps(self, it: Interpolant, looked: dict[str, float]) -> tuple[Step, ...]:
        return (
            Step("h", "grid spacing", it.grid.spacing, f"{it.tokens} tokens, {it.regime} regime"),
            Step("c", "sharpness beta h^2", it.sharpness, "temperature in units of the grid"),
            Step("R", "range of the products", self.reach, "dim x bounds, or reach="),
            Step("sup|A-z|", "look-up against the line", it.error, "theta-function bound, or h/2"),
            Step("rounding", "look-up in floating point", looked["rounding"], "logits, exp, sums"),
        )

    # ------------------------------------------------------------------------------ evaluation

    def check(self, *inputs: Tensor) -> None:
        """Shapes, dtype, device, bounds, then the products' range."""
        rows, names = self._shape
        if len(inputs) != 1 + len(rows):
            raise TypeError(f"call with (x, {', '.join(names)}), got {len(inputs)} arguments")
        x, *weights = inputs
        device = x.device if isinstance(x, Tensor) else torch.device("cpu")
        wanted: dict[str, tuple[Tensor, tuple[int, ...]]] = {"x": (x, (self.samples, self.dim))}
        wanted |= {n: (w, (r, self.dim)) for n, r, w in zip(names, rows, weights, strict=True)}
        check_tensors(wanted, self.dtype, device)
        check_bound("x", x, self.bound, "scale the data or raise bound=")
        for name, weight in zip(names, weights, strict=True):
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
                f"max |{name} x| is {largest:.6g}, beyond the grid's range {self.reach:.6g}; "
                "raise reach="
            )

    def _encode(self, *inputs: Tensor) -> Prompt:
        """Data and weights as tokens."""
        x, *weights = inputs
        layer = self.layer
        return Prompt(layer.pack(x, weights), layer.features, layer.roles)

    def _config(self) -> dict[str, Any]:
        return {
            "dim": self.dim,
            "samples": self.samples,
            "bound": self.bound,
            "weight_bound": self.weight_bound,
            "reach": self.given_reach,
            "nonzeros": self.nonzeros,
            "eps": self.eps,
            "regime": self.regime,
            "encoding": self.encoding,
            "dtype": str(self.dtype).removeprefix("torch."),
            "backend": self.backend,
        }

    @classmethod
    def _function(cls, arguments: dict[str, Any], it: Interpolant, f: Any) -> ScalarFunction:
        return _LINE

    @classmethod
    def _rebuild(cls, arguments: dict[str, Any], it: Interpolant, f: Any) -> Emulator:
        options = {**arguments, "dtype": getattr(torch, arguments["dtype"])}
        return cls(interpolant=it, **options)

    def _plan(self, layers: int, heads: int, more: int) -> Plan:
        layer = self.layer
        n, count, grid = self.samples, layer.tokens, self.interpolant.tokens
        weights = layer.parameters() + more
        wide = layer.features.total if self.encoding == "embedding" else 2 * self.dim + 4
        scores = layer.outputs * (2 * count * count + count * (wide + 2 * self.dim + 2 + heads))
        size = torch.finfo(self.dtype).bits // 8
        products, prompt = n * self.dim * layer.outputs, layer.prompt_tokens * layer.features.total
        return Plan(
            grid_tokens=grid,
            tokens=layer.prompt_tokens,
            features=layer.features.total,
            head_dim=self.dim + 1,
            heads=heads,
            layers=layers,
            parameters=weights,
            weight_bytes=8 * weights,
            literal_bytes=size * (weights + scores),
            fused_bytes=size * (prompt + 2 * min(n * layer.outputs * grid, 1 << 22)),
            literal_flops=2 * layer.outputs * count * count * (self.dim + 1 + layer.outputs),
            fused_flops=2 * products + 8 * n * layer.outputs * grid,
        )
