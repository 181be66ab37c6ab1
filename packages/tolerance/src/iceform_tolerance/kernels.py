r"""Correct kernels of every kind, simulated: each operation is rounded as its recipe says.

Numbers are kept in float64 and rounded to the p bits of ``accumulate`` after every operation, so a
product of two float32 is exact before it is rounded, and rounding can go either way. Sums run key
by key, by matrix units that align and cut off, or by halves; blocks have any size and come in any
order; exponentials are off by as much as is stated, in a direction that the recipe picks. A recipe
is correct by the definition of :mod:`iceform_tolerance.theorem`; what a wrong kernel would
do is no part of this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from iceform.arithmetic import Format
from iceform_tolerance.inputs import Problem
from iceform_tolerance.kind import KernelKind

MODES = ("nearest", "zero", "away")
ORDERS = ("sequential", "unit", "halves")
_LOG2E = 1 / math.log(2)
_UNIT = 16  # products that a simulated matrix unit adds at once
_NEARLY = 0.99  # of the stated ulps: the recipe's own rounding takes the rest


@dataclass(frozen=True)
class Recipe:
    """One correct kernel."""

    logits: str = "nearest"  # rounding of everything up to the exponential
    numerator: str = "nearest"
    denominator: str = "nearest"
    order: str = "sequential"
    block: int = 16
    backwards: bool = False
    base2: bool = True  # exp2 after a product with log2(e)
    fused: bool = False  # exp2 of fma(logit, scale log2(e), -rounded reference); no additive masks
    scaling: str = "logit"  # "logit", "query" or "both"
    exp: str = "true"  # "true", "up", "down" or "apart": neighbouring keys in opposite directions
    kept: bool = False  # probabilities stay in accumulate
    online: bool = True
    flush: bool = False
    parts: int = 1  # merged by log-sum-exps


def random_recipe(generator: torch.Generator, online: bool) -> Recipe:
    """Any recipe."""

    def pick(*choices: object) -> object:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    chosen = {
        "logits": pick(*MODES), "numerator": pick(*MODES), "denominator": pick(*MODES),
        "order": pick(*ORDERS), "block": pick(1, 3, 16, 64), "backwards": pick(True, False),
        "base2": pick(True, False), "fused": pick(True, False),
        "scaling": pick("logit", "query", "both"),
        "exp": pick("true", "up", "down", "apart"), "kept": pick(True, False),
        "flush": pick(True, False), "parts": pick(1, 1, 2, 3) if online else 1,
    }  # fmt: skip
    return replace(Recipe(online=online), **chosen)  # type: ignore[arg-type]


def round_to(x: Tensor, form: Format, mode: str = "nearest", flush: bool = False) -> Tensor:
    """Round float64 numbers to a format's bits; infinities and NaN stay."""
    if form.dtype == torch.float64:
        return x
    _, exponent = torch.frexp(x)
    # x = m 2^e with 1/2 <= |m| < 1: its quantum is 2^e 2u, and no finer than the subnormals'.
    quantum = torch.exp2(exponent.double()) * form.u
    quantum = quantum.clamp(min=form.subnormal)
    scaled = x / quantum
    if mode == "nearest":
        rounded = scaled.round()
    elif mode == "zero":
        rounded = scaled.trunc()
    else:
        rounded = scaled.sign() * scaled.abs().ceil()
    out = torch.where(x.isfinite(), rounded * quantum, x)
    return torch.where(out.abs() < form.normal, 0.0, out) if flush and form.flushes else out


@dataclass(frozen=True)
class _RecipeRun:
    """A recipe on a kind."""

    kind: KernelKind
    recipe: Recipe
    factor: float | None = None  # scale log2(e), where the exponential's argument is fused

    @property
    def base2(self) -> bool:
        return self.recipe.base2 or self.factor is not None

    def rounder(self, mode: str) -> Callable[[Tensor], Tensor]:
        return lambda x: round_to(x, self.kind.wide, mode, self.recipe.flush)

    def read(self, x: Tensor) -> Tensor:
        return round_to(x.to(self.kind.dtype).double(), self.kind.low, "nearest", self.recipe.flush)

    def matmul(self, a: Tensor, b: Tensor, start: Tensor | None, mode: str) -> Tensor:
        """A product added to start, every addition rounded; a (h, r, n), b (h, n, c)."""
        fl, n = self.rounder(mode), a.shape[-1]
        total = a.new_zeros(*a.shape[:-1], b.shape[-1]) if start is None else start
        if self.recipe.order == "sequential":
            for at in range(n):
                total = fl(total + a[..., at, None] * b[..., None, at, :])
            return total
        if self.recipe.order == "unit":
            for at in range(0, n, _UNIT):
                terms = a[..., at : at + _UNIT, None] * b[..., None, at : at + _UNIT, :]
                total = self._unit(torch.cat([total.unsqueeze(-2), terms], -2))
            return total
        terms = fl(a[..., None] * b[..., None, :, :])
        return fl(total + self._halves(terms, fl))

    def _unit(self, terms: Tensor) -> Tensor:
        """Align to the largest, cut off, add exactly, cut off."""
        if self.kind.wide.dtype == torch.float64:
            return terms.sum(-2)
        _, exponent = torch.frexp(terms.abs().amax(-2, keepdim=True))
        quantum = torch.exp2(exponent.double()) * self.kind.wide.u
        quantum = quantum.clamp(min=self.kind.wide.subnormal)
        return self.rounder("zero")(((terms / quantum).trunc() * quantum).sum(-2))

    @staticmethod
    def _halves(terms: Tensor, fl: Callable[[Tensor], Tensor]) -> Tensor:
        while terms.shape[-2] > 1:
            half = terms.shape[-2] // 2
            both = fl(terms[..., :half, :] + terms[..., half : 2 * half, :])
            terms = torch.cat([both, terms[..., 2 * half :, :]], -2)
        return terms[..., 0, :]

    def exp(self, x: Tensor, ulps: float) -> Tensor:
        """e^x of x in natural units, off by up to ``ulps``; e^0 is 1."""
        y = torch.exp(x)
        spare = max(0.0, _NEARLY * ulps - 1) * 2 * self.kind.wide.u
        signs = torch.ones_like(x)
        if self.recipe.exp == "down":
            signs = -signs
        if self.recipe.exp == "apart":
            signs[..., 1::2] = -1
        off = 0.0 if self.recipe.exp == "true" else spare
        y = torch.where(x == 0, y, y * (1 + signs * off))
        return self.rounder(self.recipe.logits)(y)


def simulate(problem: Problem, kind: KernelKind, recipe: Recipe) -> Tensor:
    """The output of a simulated kernel, as float64."""
    machine = _machine(problem, kind, recipe)
    q = problem.q.flatten(1, 2)
    logits = _logits(machine, problem, machine.read(q), machine.read(problem.k))
    v = machine.read(problem.v)
    value = _online(machine, logits, v) if recipe.online else _whole(machine, logits, v)
    value = torch.where((logits == -math.inf).all(-1, keepdim=True), 0.0, value)
    out = value if kind.output_unit == 0 else value.to(kind.output).double()
    return problem.shaped(out.reshape(*problem.q.shape[:-1], -1))


def _machine(problem: Problem, kind: KernelKind, recipe: Recipe) -> _RecipeRun:
    machine = _RecipeRun(kind, recipe)
    if not (recipe.fused and problem.scale > 0 and not problem.additive):
        return machine
    factor = machine.rounder(recipe.logits)(
        torch.tensor(problem.scale * _LOG2E, dtype=torch.float64)
    )
    return replace(machine, factor=float(factor))


def _logits(machine: _RecipeRun, problem: Problem, q: Tensor, k: Tensor) -> Tensor:
    """Scaled and masked; in units of log 2 where exp2 is used."""
    recipe, fl = machine.recipe, machine.rounder(machine.recipe.logits)
    if machine.factor is not None:
        return _masked(machine, problem, machine.matmul(q, k.mT, None, recipe.logits))
    factor = fl(torch.tensor(problem.scale, dtype=torch.float64, device=q.device))
    if recipe.scaling == "query":
        q = fl(q * factor)
    elif recipe.scaling == "both" and problem.scale > 0:
        root = fl(torch.tensor(math.sqrt(problem.scale), dtype=torch.float64, device=q.device))
        q, k = fl(q * root), fl(k * root)
    logits = machine.matmul(q, k.mT, None, recipe.logits)
    if recipe.scaling == "logit" or (recipe.scaling == "both" and problem.scale <= 0):
        logits = fl(logits * factor)
    if recipe.base2:
        logits = fl(logits * float(fl(torch.tensor(_LOG2E, dtype=torch.float64))))
    return _masked(machine, problem, logits)


def _masked(machine: _RecipeRun, problem: Problem, logits: Tensor) -> Tensor:
    fl = machine.rounder(machine.recipe.logits)
    group, queries = problem.q.shape[1:3]
    for chunk in problem.chunks():
        # Rows of a chunk in the flattened (group, queries) axis.
        rows = torch.arange(group * queries).view(group, queries)[chunk.group, chunk.rows]
        rows = rows.flatten().to(logits.device)
        part = logits[chunk.heads][:, rows][..., chunk.keys]
        bias, allowed = problem.bias(chunk), problem.allowed(chunk)
        if bias is not None:
            scaled = fl(fl(bias) * (_LOG2E if machine.recipe.base2 else 1.0))
            part = fl(part + scaled)
        if allowed is not None:
            part = part.masked_fill(~allowed, -math.inf)
        hidden = (0, logits.shape[-1] - part.shape[-1])
        logits[chunk.heads, rows] = torch.nn.functional.pad(part, hidden, value=-math.inf)
    return logits


def _weights(machine: _RecipeRun, logits: Tensor, reference: Tensor, ulps: float) -> Tensor:
    """e^{logits - reference}; hidden keys have weight zero."""
    fl = machine.rounder(machine.recipe.logits)
    if machine.factor is None:
        argument = fl(logits - reference)
    else:
        argument = fl(logits * machine.factor - fl(reference * machine.factor))
    natural = argument * math.log(2) if machine.base2 else argument
    return torch.where(logits == -math.inf, 0.0, machine.exp(natural, ulps))


def _factor(machine: _RecipeRun, old: Tensor, new: Tensor) -> Tensor:
    """The factor of running sums when the reference moves: an exponential."""
    fl, ulps = machine.rounder(machine.recipe.logits), machine.kind.rescale_ulps
    argument = fl(old - new)
    if machine.factor is not None:
        argument = fl(argument * machine.factor)
    natural = argument * math.log(2) if machine.base2 else argument
    return torch.where(old == -math.inf, 0.0, machine.exp(natural, ulps))


def _probabilities(machine: _RecipeRun, weights: Tensor) -> Tensor:
    if machine.recipe.kept or machine.kind.probability_unit == 0:
        return weights
    return weights.to(machine.kind.probabilities).double()


def _finite(reference: Tensor) -> Tensor:
    return torch.where(reference == -math.inf, 0.0, reference)


def _whole(machine: _RecipeRun, logits: Tensor, v: Tensor) -> Tensor:
    """Softmax of whole rows, rounded, then the product with v."""
    kind, recipe = machine.kind, machine.recipe
    top = _finite(logits.amax(-1, keepdim=True))
    weights = _weights(machine, logits, top, kind.exp_ulps)
    ones = torch.ones_like(v[..., :1])
    total = machine.matmul(weights, ones, None, recipe.denominator)
    total = torch.where(total == 0, 1.0, total)
    shares = machine.rounder(recipe.numerator)(weights / total)
    return machine.matmul(_probabilities(machine, shares), v, None, recipe.numerator)


def _online(machine: _RecipeRun, logits: Tensor, v: Tensor) -> Tensor:
    """Blocks with a running reference, in one part or several that are merged."""
    up = machine.rounder(machine.recipe.numerator)
    bounds = [
        logits.shape[-1] * at // machine.recipe.parts for at in range(machine.recipe.parts + 1)
    ]
    parts = [
        _walk(machine, logits[..., low:high], v[..., low:high, :])
        for low, high in pairwise(bounds)
        if high > low
    ]
    if len(parts) == 1:
        numerator, total, _ = parts[0]
        return up(numerator / torch.where(total == 0, 1.0, total))
    return _merged(machine, parts)


def _walk(machine: _RecipeRun, logits: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Numerator, denominator and reference after all blocks."""
    kind, recipe = machine.kind, machine.recipe
    up, down = machine.rounder(recipe.numerator), machine.rounder(recipe.denominator)
    numerator = v.new_zeros(*logits.shape[:-1], v.shape[-1])
    total = v.new_zeros(*logits.shape[:-1], 1)
    reference = torch.full_like(total, -math.inf)
    starts = list(range(0, logits.shape[-1], recipe.block))
    for at in reversed(starts) if recipe.backwards else starts:
        block = logits[..., at : at + recipe.block]
        moved = torch.maximum(reference, block.amax(-1, keepdim=True))
        factor = _factor(machine, reference, _finite(moved))
        weights = _weights(machine, block, _finite(moved), kind.exp_ulps)
        total = machine.matmul(
            weights, torch.ones_like(v[..., : weights.shape[-1], :1]), down(total * factor),
            recipe.denominator,
        )  # fmt: skip
        numerator = machine.matmul(
            _probabilities(machine, weights), v[..., at : at + recipe.block, :],
            up(numerator * factor), recipe.numerator,
        )  # fmt: skip
        reference = moved
    return numerator, total, reference


def _merged(machine: _RecipeRun, parts: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Flash-decoding: shares e^{lse_i - lse}, lse_i = m_i + log L_i."""
    fl, up = machine.rounder(machine.recipe.logits), machine.rounder(machine.recipe.numerator)
    if machine.factor is not None:  # references in the units of arguments from here on
        parts = [(value, total, fl(m * machine.factor)) for value, total, m in parts]
        machine = replace(machine, factor=None, recipe=replace(machine.recipe, base2=True))
    unit = _LOG2E if machine.base2 else 1.0
    sums = [fl(m + fl(fl(total.log()) * unit)) for _, total, m in parts]
    whole = torch.stack(sums).amax(0)
    shares = [_factor(machine, lse, _finite(whole)) for lse in sums]
    over = fl(fl(torch.stack(shares).sum(0)).log()) * unit
    lse = fl(whole + over)
    out = torch.zeros_like(parts[0][0])
    for (numerator, total, _), part in zip(parts, sums, strict=True):
        value = up(numerator / torch.where(total == 0, 1.0, total))
        share = _factor(machine, part, _finite(lse))
        out = up(out + up(share * value))
    return out
