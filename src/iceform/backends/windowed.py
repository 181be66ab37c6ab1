r"""A look-up on equally spaced tokens from the few around z, by recurrence; and how it rounds.

With L_k the node nearest to z and :math:`u = (z - L_k)/h`, :math:`|u| \le 1/2`, the token j to the
right weighs, relative to the nearest,

.. math:: e^{-c (j - u)^2 + c u^2} = \prod_{i=1}^{j} a\, e^{-2 c (i - 1)},
    \qquad a = e^{c (2 u - 1)} \le 1,

and the one to the left the same with -u. So two exponentials and Horner's rule give every weight,
without overflow at any temperature; no token beyond J matters, as
:func:`iceform.interpolation.local.tail_mass` proves. The products stop at the ends of the table.
Values come from the table, or, where they lie on a line, from j itself.

The same formulas run in three ways: as loops in C (:mod:`iceform.backends.compiled`); where those
cannot run, a tensor operation at a time, in chunks that stay in cache; on a GPU as Triton kernels.
:class:`Rounding` is what a backend declares of them, and what certificates follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from iceform.backends import compiled
from iceform.interpolation import Grid, Interpolant, RoundingModel
from iceform.interpolation.local import line_of, tail_mass
from iceform.validation import unit_roundoff

__all__ = ["Rounding", "Window", "derivative", "look_up", "sum_block", "window_of"]

_FEW = 4096  # samples whose sums cost nothing in float64
_BLOCK = 128  # rows summed in float32 before they are added in float64, where there are more


def sum_block(dtype: torch.dtype, samples: int) -> int:
    """Rows that a fused pass may sum in ``dtype`` before it goes on in float64."""
    return 1 if dtype == torch.float64 or samples <= _FEW else _BLOCK


@dataclass(frozen=True)
class Rounding:
    """How a backend computes logits.

    Sums over samples are accumulated in float64 whatever the dtype, but for blocks of
    :func:`sum_block` rows.

    Parameters
    ----------
    literal
        True where logits come from the literal inner product of keys and queries.
    """

    literal: bool

    def model(
        self, dtype: torch.dtype, it: Interpolant, magnitude: float, dim: int
    ) -> RoundingModel:
        """The rounding of one look-up of z = w.x - y whose terms add up to ``magnitude``."""
        unit = unit_roundoff(dtype)
        if self.literal or not it.uniform:
            # d products, the label and the bias; positions add exact zeros.
            return RoundingModel(unit, False, magnitude, dim + 2, summed=not self.literal)
        return RoundingModel(unit, True, magnitude, dim + 1, it.half_width(unit))

    def omitted(self, dtype: torch.dtype, it: Interpolant) -> float:
        """Bound of what a look-up may leave out: tokens far from z."""
        half = None if self.literal else it.half_width(unit_roundoff(dtype))
        if half is None or half >= it.tokens - 1:
            return 0.0
        return tail_mass(it.sharpness, half) * it.swing

    def sum_error(self, dtype: torch.dtype, count: int) -> float:
        """Relative error of a mean over ``count`` samples."""
        unit = unit_roundoff(dtype)
        block = 1 if self.literal else sum_block(dtype, count)
        in_blocks = _gamma(block, unit) if block > 1 else 0.0
        return _gamma(count + 2, unit_roundoff(torch.float64)) + in_blocks + 2 * unit


def _gamma(terms: int, unit: float) -> float:
    return terms * unit / (1 - terms * unit)


Formula = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_CHUNK = 1 << 15  # entries of z looked up at once, an operation at a time: in cache
_CONSTANTS = ("center", "cells per unit", "middle", "last", "sharpness", "slope", "value")


@dataclass(frozen=True, eq=False)
class Window:
    """What a windowed look-up needs of a table.

    Attributes
    ----------
    half
        J: tokens either side of the nearest.
    affine
        Whether the values lie on a line, so that none need be fetched.
    bounded
        Whether windows can reach past the ends of the table.
    center, spacing, middle, tokens, sharpness
        Of the grid: z = center sits at token ``middle``, a whole or half number.
    line
        (value of token 0, difference of neighbours).
    constants, ratios, values
        What the formulas read: seven numbers, e^{-2c(j-1)} for j = 1 .. J, and the values
        with J zeros either side; in float64 on the CPU.
    """

    half: int
    affine: bool
    bounded: bool
    center: float
    spacing: float
    middle: float
    tokens: int
    sharpness: float
    line: tuple[float, float]
    constants: Tensor
    ratios: Tensor
    values: Tensor

    @property
    def kind(self) -> tuple[int, bool, bool]:
        """What the code of a look-up depends on; all else is data."""
        return self.half, self.affine, self.bounded

    def operands(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Constants, ratios and values where they are needed."""
        return _operands(self, dtype, device)


@lru_cache(maxsize=512)
def _operands(
    window: Window, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.inference_mode(False):  # they outlive the call that asks for them first
        a, b, c = (
            t.to(device=device, dtype=dtype)
            for t in (window.constants, window.ratios, window.values)
        )
    return a, b, c


def window_of(it: Interpolant, dtype: torch.dtype) -> Window | None:
    """The window of a table in a dtype; None where every token must be looked at."""
    half = it.half_width(unit_roundoff(dtype))
    return None if half is None else _window(it, half)


@lru_cache(maxsize=512)
def _window(it: Interpolant, half: int) -> Window:
    grid = it.grid
    assert isinstance(grid, Grid)
    last = grid.tokens - 1
    middle = 0.5 * grid.cells + grid.guards
    line = line_of(it)
    slope, affine = (0.0, False) if line is None else (line[0], True)
    numbers = (
        grid.center, 1 / grid.spacing, middle, float(last), it.sharpness, slope,
        float(it.values[grid.tokens // 2]),
    )  # fmt: skip
    steps = torch.arange(half, dtype=torch.float64)
    return Window(
        half=half,
        affine=affine,
        bounded=grid.guards < half,
        center=grid.center,
        spacing=grid.spacing,
        middle=middle,
        tokens=grid.tokens,
        sharpness=it.sharpness,
        line=(numbers[-1] - slope * (grid.tokens // 2), slope),
        constants=torch.tensor(numbers, dtype=torch.float64),
        ratios=torch.exp(-2 * it.sharpness * steps),
        values=torch.nn.functional.pad(it.values.detach().cpu(), (half, half)),
    )


# ---------------------------------------------------------------------------------------------
# the formulas, as tensor operations
# ---------------------------------------------------------------------------------------------


def _place(z: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The nearest token, what its neighbours right and left weigh, the last token, and ones.

    The ones are not a number where z is not, so that no mask hides it.
    """
    center, per_unit, middle, last, sharpness = numbers[:5].unbind()
    cells = (z - center) * per_unit
    nearest = torch.minimum((cells + middle).round().clamp(min=0), last)
    u = cells - (nearest - middle)
    right = torch.exp(sharpness * (2 * u - 1))
    left = torch.exp(sharpness * (-2 * u - 1))
    return nearest, right, left, last, 1 + 0 * u


def _make_look_up(half: int, affine: bool, bounded: bool) -> Formula:
    """A(z) for one kind of window."""

    def formula(z: Tensor, numbers: Tensor, ratios: Tensor, values: Tensor) -> Tensor:
        nearest, right, left, last, mass = _place(z, numbers)
        first = nearest.to(torch.int64).clamp(0, values.shape[0] - 2 * half - 1)
        total = torch.zeros_like(z)
        for side, factor, room in ((1, right, last - nearest), (-1, left, nearest)):
            weight, moment = torch.zeros_like(z), torch.zeros_like(z)
            for j in range(half, 0, -1):
                step = factor * ratios[j - 1]
                if bounded:
                    step = torch.where(room >= j, step, 0.0)
                weight = step * (weight + 1.0)
                if affine:
                    # Sums of i - j + 1 over i >= j: the step before counts every token once more.
                    moment = step * moment + weight
                else:
                    moment = step * (moment + values[first + (half + side * j)])
            mass, total = mass + weight, total + (side * moment if affine else moment)
        if affine:
            middle = values.shape[0] // 2 - half
            return numbers[6] + numbers[5] * ((nearest - middle) + total / mass)
        return (values[first + half] + total) / mass

    return formula


def _make_derivative(half: int, affine: bool, bounded: bool) -> Formula:
    r"""A'(z) = (2 c / h) Cov(j, v), for one kind of window."""

    def formula(z: Tensor, numbers: Tensor, ratios: Tensor, values: Tensor) -> Tensor:
        nearest, right, left, last, mass = _place(z, numbers)
        first = nearest.to(torch.int64).clamp(0, values.shape[0] - 2 * half - 1)
        own = values[first + half]
        zero = torch.zeros_like(z)
        ahead, total, both = zero, zero, zero
        for side, factor, room in ((1, right, last - nearest), (-1, left, nearest)):
            weight, place, moment, mixed = zero, zero, zero, zero
            for j in range(half, 0, -1):
                step = factor * ratios[j - 1]
                if bounded:
                    step = torch.where(room >= j, step, 0.0)
                value = (
                    numbers[5] * (side * j) if affine else values[first + (half + side * j)] - own
                )
                weight, place = step * (weight + 1.0), step * (place + side * j)
                moment, mixed = step * (moment + value), step * (mixed + side * j * value)
            mass, ahead = mass + weight, ahead + place
            total, both = total + moment, both + mixed
        covariance = both / mass - (total / mass) * (ahead / mass)
        return 2 * numbers[4] * numbers[1] * covariance

    return formula


# ---------------------------------------------------------------------------------------------
# compiled, or an operation at a time
# ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _formula(what: str, kind: tuple[int, bool, bool]) -> Formula:
    return _make_look_up(*kind) if what == "look_up" else _make_derivative(*kind)


def look_up(z: Tensor, window: Window) -> Tensor:
    """A(z) entry by entry, without autograd."""
    return _run("look_up", z, window)


def derivative(z: Tensor, window: Window) -> Tensor:
    """A'(z) entry by entry; differentiable itself where gradients are recorded."""
    if torch.is_grad_enabled() and z.requires_grad:
        return _formula("derivative", window.kind)(z, *window.operands(z.dtype, z.device))
    return _run("derivative", z, window)


def _run(what: str, z: Tensor, window: Window) -> Tensor:
    operands, flat = window.operands(z.dtype, z.device), z.detach().reshape(-1)
    if compiled.ready(z):
        call = compiled.look_up if what == "look_up" else compiled.derivative
        return call(flat, window.kind, operands).reshape(z.shape)
    formula = _formula(what, window.kind)
    if z.numel() <= _CHUNK:
        return formula(flat, *operands).reshape(z.shape)
    return torch.cat([formula(part, *operands) for part in flat.split(_CHUNK)]).reshape(z.shape)


class LookUp(torch.autograd.Function):
    """A(z) with the derivative in closed form; both can be differentiated again."""

    @staticmethod
    def forward(z: Tensor, window: Window) -> Tensor:
        """A(z)."""
        return look_up(z, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Window], output: Tensor) -> None:
        """Keep z."""
        z, ctx.window = inputs
        ctx.save_for_backward(z)
        ctx.save_for_forward(z)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Multiply by A'(z)."""
        (z,) = ctx.saved_tensors
        return grads[0] * derivative(z, ctx.window), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """The same forwards."""
        (z,) = ctx.saved_tensors
        along: Tensor = tangents[0] * derivative(z, ctx.window)
        return along
