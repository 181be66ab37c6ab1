"""The domain of a certificate: which inputs it speaks of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Required, TypedDict

import torch
from torch import Tensor

from iceform.arithmetic import exactly
from iceform.errors import BoundError, ShapeError
from iceform.run.primitives import SampleMaxima
from iceform.validation import (
    check_largest,
    check_pair,
    check_positive,
    check_size,
    largest_entry,
    unwrapped,
)

_LARGEST = 1e100  # keys hold squares of residuals

# What is measured of inputs, the bound that it is held against, and what to do about it.
_OF_DATA = (
    ("y", "y", "scale the labels or raise bound= (or y_bound=)"),
    ("x", "x", "scale the samples or raise bound="),
    ("||x||_2", "x_norm", "raise x_norm="),
)
_OF_COEFFICIENTS = (
    ("w", "w", "raise bound= (or w_bound=), or take smaller steps"),
    ("||w||_2", "w_norm", "raise w_norm="),
)


class DomainOptions(TypedDict, total=False):
    """What a :class:`Domain` is asked for by keyword."""

    dim: Required[int]
    samples: Required[int]
    bound: float
    x_norm: float | None
    w_norm: float | None
    y_bound: float | None
    w_bound: float | None
    z_range: tuple[float, float] | None


@dataclass(frozen=True)
class Domain:
    """Bounds on samples x_i, labels y_i and coefficients w.

    Parameters
    ----------
    dim, samples
        d and n.
    x, y, w
        Entrywise bounds.
    x_norm, w_norm
        2-norm bounds of each sample and of w; they can only narrow the domain.
    labelled
        Whether y enters the residual (it does not for margins and generalised linear models).
    z_range
        A narrower range of z = w.x - y, checked on every input.

    Examples
    --------
    >>> domain = Domain.of(2, 3, bound=1.0)
    >>> domain.residuals  # of z = w.x - y, where |w.x| <= 2 and |y| <= 1
    (-3.0, 3.0)
    """

    dim: int
    samples: int
    x: float
    y: float
    w: float
    x_norm: float
    w_norm: float
    labelled: bool = True
    z_range: tuple[float, float] | None = None

    @classmethod
    def of(
        cls,
        dim: int,
        samples: int,
        bound: float = 1.0,
        *,
        x_norm: float | None = None,
        w_norm: float | None = None,
        y_bound: float | None = None,
        w_bound: float | None = None,
        z_range: tuple[float, float] | None = None,
        labelled: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> Domain:
        """Fill in what is not given: ``bound`` for entries, sqrt(d) times it for norms.

        Data of ``dtype`` hold 0.6, say, as the nearest number there is; the domain reaches to that.
        """
        check_size("dim", dim)
        check_size("samples", samples)

        def held(name: str, value: float, *, zero: bool = False) -> float:
            return check_positive(name, value, zero=zero, dtype=dtype)

        x = held("bound", bound)
        y = x if y_bound is None else held("y_bound", y_bound, zero=True)
        w = x if w_bound is None else held("w_bound", w_bound)
        root = math.sqrt(dim)
        xn = root * x if x_norm is None else min(root * x, held("x_norm", x_norm))
        wn = root * w if w_norm is None else min(root * w, held("w_norm", w_norm))
        if z_range is not None:
            z_range = check_pair("z_range", z_range)
        domain = cls(dim, samples, x, y, w, xn, wn, labelled, z_range)
        if not domain.terms < _LARGEST:
            raise BoundError(
                f"residuals reach {domain.terms:.3g} with these bounds, beyond {_LARGEST:.0e}, "
                "where squares overflow; scale the data"
            )
        return domain

    @property
    def terms(self) -> float:
        """Bound of sum_j |x_j w_j| + |y|, the terms of a residual (Cauchy-Schwarz or entrywise)."""
        products = min(self.dim * self.x * self.w, self.x_norm * self.w_norm)
        return products + (self.y if self.labelled else 0.0)

    @property
    def residuals(self) -> tuple[float, float]:
        """The range of z."""
        return self.z_range or (-self.terms, self.terms)

    def describe(self) -> dict[str, float | str]:
        """For certificates."""
        low, high = self.residuals
        out: dict[str, float | str] = {
            "samples x dim": f"{self.samples} x {self.dim}",
            "max |x|": self.x,
            "max |y|": self.y,
            "max |w|": self.w,
            "z = w.x - y": f"in [{exactly(low)}, {exactly(high)}]",
        }
        names = {"x_norm": "max ||x||_2", "w_norm": "||w||_2"}
        return out | {n: getattr(self, k) for k, n in names.items() if self._narrows(k)}

    def watch(self, backend: str = "fused") -> SampleMaxima:
        """A recorder that a pass shows its samples to; :meth:`sizes` reads it afterwards."""
        return SampleMaxima(self.x_norm if self._narrows("x_norm") else None, backend)

    def check_data(self, x: Tensor, y: Tensor) -> None:
        """Refuse samples or labels outside the domain."""
        self._compare(_OF_DATA, self._sizes_of_data(x, y, None))

    def check_coefficients(self, w: Tensor) -> None:
        """Refuse coefficients outside the domain."""
        self.check_coefficient_sizes(self._sizes_of_coefficients(w))

    def check_coefficient_sizes(self, sizes: Tensor) -> None:
        """The same, knowing only their largest entry and 2-norm."""
        self._compare(_OF_COEFFICIENTS, sizes)

    def check_inputs(self, sizes: Tensor) -> None:
        """Refuse samples, labels or coefficients outside the domain, once they are measured."""
        self._compare((*_OF_DATA, *_OF_COEFFICIENTS), sizes)

    def _compare(self, limits: Sequence[tuple[str, str, str]], sizes: Tensor) -> None:
        for (name, limit, fix), size in zip(limits, sizes.tolist(), strict=True):
            if not limit.endswith("_norm") or self._narrows(limit):
                check_largest(name, size, getattr(self, limit), fix)

    def sizes(self, x: Tensor, y: Tensor, w: Tensor, seen: SampleMaxima | None = None) -> Tensor:
        """The sizes that :meth:`check_inputs` compares, computed without waiting for a GPU."""
        if seen is not None and seen.whole is not None:
            return seen.whole
        return torch.cat([self._sizes_of_data(x, y, seen), self._sizes_of_coefficients(w)])

    def _sizes_of_data(self, x: Tensor, y: Tensor, seen: SampleMaxima | None) -> Tensor:
        for name, value in (("x", x), ("y", y)):
            if not value.numel():
                raise ShapeError(f"{name} is empty, shape {tuple(value.shape)}")
        if seen is None:
            seen = self.watch()
            seen.watch_all(x)
        return torch.cat([largest_entry(y).double()[None], seen.sizes])

    def _sizes_of_coefficients(self, w: Tensor) -> Tensor:
        """Their largest entry and, where it is bounded, their 2-norm."""
        if not w.numel():
            raise ShapeError(f"w is empty, shape {tuple(w.shape)}")
        largest = largest_entry(w).double()
        bounded = self._narrows("w_norm")
        norm = unwrapped(w.detach().norm(dim=-1)).amax().double() if bounded else largest
        return torch.stack([largest, norm])

    def _narrows(self, limit: str) -> bool:
        """Whether the bound of a 2-norm says more than that of entries."""
        entries: float = getattr(self, limit.removesuffix("_norm"))
        narrower: bool = getattr(self, limit) < math.sqrt(self.dim) * entries
        return narrower

    def check_residuals(self, z: Tensor) -> None:
        """Refuse residuals outside an explicit z_range."""
        if self.z_range is None:
            return
        low, high = self.z_range
        z = unwrapped(z)
        least, most = float(z.min()), float(z.max())
        if not (least >= low and most <= high):
            raise BoundError(
                f"z = w.x - y reaches [{least:.6g}, {most:.6g}], the certificate holds on "
                f"[{exactly(low)}, {exactly(high)}]; widen z_range="
            )
