"""Attacks on the Triton kernels, with 64 bits of mantissa beside them.

They run on a GPU, or a few of them in Triton's interpreter. Points are random, at nodes and half
way between them, at the ends of the range and one number inside them, subnormal and zero, and where
the table is worst; tables are lines, even, steep, hard and graded, in odd units.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

import iceform as ice
from iceform.run import primitives, rounding_of
from tests.attacks.outcomes import (
    F32,
    F64,
    LONG,
    LOSSES,
    Outcome,
    exact_gradients,
    labels_for,
    sigmoid,
)
from tests.properties.adversary import targeted_inputs
from tests.run.tables import rounding_bound

BF16 = torch.bfloat16
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_MANY = 20_000 if DEVICE.type == "cuda" else 60  # points of a look-up; the interpreter is slow
_BATCH = 4000 if DEVICE.type == "cuda" else 2


# ---------------------------------------------------------------------------------------------
# look-ups
# ---------------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    make: Callable[[Any, float, float], Any]  # of the function, low and high
    f: Callable[[torch.Tensor], torch.Tensor]
    exact: Callable[[Any], Any]
    reach: float


def _fit(eps: float, **options: Any) -> Callable[[Any, float, float], Any]:
    return lambda f, low, high: ice.Interpolant.fit(f, low, high, eps=eps, **options)


KINDS: dict[str, _Kind] = {
    "line": _Kind(lambda f, low, high: ice.Interpolant.identity(low, high, None),
                  lambda z: z, lambda z: z, 5.0),
    "loose line": _Kind(lambda f, low, high: ice.Interpolant.identity(low, high, 1e-4),
                        lambda z: z, lambda z: z, 5.0),
    "even": _Kind(_fit(1e-8), torch.tanh, np.tanh, 6.0),
    "coarse": _Kind(_fit(1e-3), torch.sin, np.sin, 7.0),
    "one-sided": _Kind(_fit(1e-6), torch.sigmoid, sigmoid, 12.0),
    "steep": _Kind(_fit(1e-5), torch.exp, np.exp, 5.0),
    "hard": _Kind(lambda f, low, high: ice.Interpolant.hard(f, low, high, cells=60),
                  torch.tanh, np.tanh, 5.0),
    "graded": _Kind(_fit(1e-3), torch.relu, lambda z: np.maximum(z, 0), 5.0),
    "two kinks": _Kind(_fit(1e-2), lambda z: z.clamp(-1, 1), lambda z: np.clip(z, -1, 1), 4.0),
}  # fmt: skip
_LINES = ("line", "loose line")


@lru_cache(maxsize=64)
def _table(kind: str, unit: int, shift: float) -> Any:
    """In units of 2^unit, its range moved by ``shift`` of them."""
    known, scale = KINDS[kind], 2.0**unit
    low, high = ((shift + end * known.reach) * scale for end in (-1, 1))

    def f(z: torch.Tensor) -> torch.Tensor:
        return known.f(z / scale - shift)

    f = (lambda z: z) if kind in _LINES else f
    return known.make(f, low, high)


def _points(it: Any, dtype: torch.dtype, draw: random.Random) -> torch.Tensor:
    g = torch.Generator().manual_seed(draw.randrange(1 << 30))
    span = it.high - it.low
    drawn = it.low + span * torch.rand(_MANY, generator=g, dtype=F64)
    nodes = it.grid.nodes
    between = torch.cat([nodes, 0.5 * (nodes[1:] + nodes[:-1])])[:: 1 if _MANY > 1000 else 9]
    mesh = it.grid.mesh(8)
    worst = mesh[(it(mesh) - it.function(mesh)).abs().topk(min(64, len(mesh))).indices]
    near = span * 2.0 ** -torch.randint(1, 60, (64,), generator=g).double()
    least = torch.finfo(dtype).smallest_normal
    tiny = torch.tensor([0.0, least, least / 2, least * 2.0**-7], dtype=F64)
    tiny = torch.cat([tiny, -tiny, near, -near])
    z = torch.cat([drawn, between, worst, tiny, torch.tensor([it.low, it.high], dtype=F64)])
    z = z.clamp(it.low, it.high).to(dtype)
    inside = torch.nextafter(z[-2:], z.new_zeros(2)) if dtype != BF16 else z[-2:]
    z = torch.cat([z, inside])
    return z[(z.double() >= it.low) & (z.double() <= it.high)]


def look_ups(seed: int) -> Outcome | str:
    """A look-up for every entry: even, steep, hard and graded tables, and lines."""
    draw = random.Random(seed)
    dtype, kind = draw.choice([F32, F32, F64, F64, BF16]), draw.choice(sorted(KINDS))
    unit = draw.choice([0, 0, 0, -30, 30] if dtype != F64 else [0, 0, -300, 300, -60])
    shift = draw.choice([0.0, 0.0, 3.0]) if dtype == F64 else 0.0
    it = _table(kind, unit, shift)
    z = _points(it, dtype, draw)
    out = primitives.interpolate(z.to(DEVICE), it, "triton").double().cpu().numpy().astype(LONG)
    at, scale = z.double().numpy().astype(LONG), LONG(2.0) ** unit
    exact = at if kind in _LINES else KINDS[kind].exact(at / scale - LONG(shift))
    off = float(np.abs(out - exact).max())
    least = torch.finfo(dtype).eps * float(np.abs(out).max())
    return Outcome(it.error + _declared(it, dtype), off, least, len(z), dtype)


def _declared(it: Any, dtype: torch.dtype) -> float:
    """Half-precision numbers are looked up in float32, by as few tokens as the result can tell."""
    if dtype != BF16:
        return rounding_bound(it, dtype)
    once = torch.finfo(dtype).eps / 2 * (it.size + it.error)
    return rounding_bound(it, F32) + rounding_of("fused").omitted(dtype, it) + once


# ---------------------------------------------------------------------------------------------
# gradients, steps and loops
# ---------------------------------------------------------------------------------------------


def _drawn(g: torch.Generator, shape: tuple[int, ...], bound: float, how: str) -> torch.Tensor:
    """Entries of at most ``bound``, of a size and sign that a rounding model may forget."""
    drawn = 2 * torch.rand(shape, generator=g, dtype=F64) - 1
    if how == "corners":
        drawn = drawn.sign()
    if how == "tiny":
        drawn = drawn * 2.0 ** -torch.randint(0, 160, shape, generator=g).double()
    if how == "sparse":
        drawn = drawn * (torch.rand(shape, generator=g) < 0.2)
    return bound * drawn


_HOWS = ("", "", "corners", "tiny", "sparse")


@lru_cache(maxsize=256)
def _gradients(name: str, dtype: torch.dtype, eps: float | None, bound: float) -> Any:
    return ice.paper.SampleGradients(
        name, dim=3, samples=4, bound=bound, eps=eps, dtype=dtype, backend="triton"
    )


def gradients(seed: int) -> Outcome | str:
    """Sample gradients of every named loss: random inputs, and those the table is worst at."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype, name = draw.choice([F32, F64]), draw.choice(sorted(LOSSES))
    eps = draw.choice([1e-3, 1e-4] if dtype == F32 else [1e-3, 1e-6])
    bound = 1.0
    try:
        em = _gradients(name, dtype, eps, bound)
    except ice.IceformError:
        return "refused"
    how = draw.choice(_HOWS)
    inputs = (_drawn(g, (_BATCH, *s), bound, how) for s in ((4, 3), (4,), (3,)))
    worst = (part[:_BATCH] for part in targeted_inputs(em, bound))
    x, y, w = (torch.cat([a.to(dtype), b]) for a, b in zip(inputs, worst, strict=True))
    y = labels_for(em.loss, y)
    out = em(*(t.to(DEVICE) for t in (x, y, w))).double().cpu().numpy().astype(LONG)
    off = float(np.abs(out - exact_gradients(em.loss, name, x, y, w)).max())
    least = torch.finfo(dtype).eps * float(np.abs(out).max())
    return Outcome(em.certificate.error, off, least, out.size, dtype)


@lru_cache(maxsize=256)
def _loop(steps: int, name: str, eps: float, dtype: torch.dtype, dim: int, samples: int) -> Any:
    options: dict[str, Any] = {
        "dim": dim, "samples": samples, "bound": 1.0, "eps": eps, "dtype": dtype,
        "backend": "triton",
    }  # fmt: skip
    if steps == 1:
        return ice.paper.GradientStep(name, 0.25, 0.5, **options)
    return ice.paper.GradientDescent(name, steps, 0.01, 0.5, schedule="nesterov", **options)


def steps(seed: int) -> Outcome | str:
    """Sums over samples and steps of descent: one, or several in a loop on the device.

    Half of the data are copies of one sample at which the table is worst: nothing averages out.
    """
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype, name = draw.choice([F32, F64]), draw.choice(["squared", "huber", "logistic"])
    sizes = [(1, 1), (3, 40), (7, 300)]
    sizes += [(64, 129), (200, 33), (5, 9000), (1100, 20)] if DEVICE.type == "cuda" else []
    dim, samples = draw.choice(sizes)
    count = 4 if dim * samples < 2000 and draw.random() < 0.3 else 1
    try:
        em = _loop(count, name, 1e-3 if dtype == F32 else 1e-7, dtype, dim, samples)
    except ice.IceformError:
        return "refused"
    how, few = draw.choice(_HOWS), min(64, 1 + 40_000 // (dim * samples))
    few = few if DEVICE.type == "cuda" else 1
    inputs = (_drawn(g, (few, *s), 1.0, how) for s in ((samples, dim), (samples,), (dim,)))
    worst = (part[:few] for part in targeted_inputs(em, 1.0))
    x, y, w = (torch.cat([a.to(dtype), b]) for a, b in zip(inputs, worst, strict=True))
    y = labels_for(em.loss, y)
    try:
        out = em(*(t.to(DEVICE) for t in (x, y, w))).double().cpu().numpy().astype(LONG)
    except ice.errors.BoundError:
        return "refused"  # a loop that leaves its domain says so
    off = float(np.abs(out - _descended(em, name, count, x, y, w)).max())
    least = torch.finfo(dtype).eps * (float(np.abs(out).max()) or 1.0)
    return Outcome(em.certificate.error, off, least, out.size, dtype)


def _descended(em: Any, name: str, count: int, *inputs: torch.Tensor) -> Any:
    """The exact iterate."""
    x, y, w = (t.double().numpy().astype(LONG) for t in inputs)
    plan = [(LONG(0.25), LONG(0))] if count == 1 else list(
        zip(map(LONG, em.schedule.steps), map(LONG, em.schedule.momenta), strict=True)
    )  # fmt: skip
    ahead = w
    for eta, mu in plan:
        z = (x * ahead[..., None, :]).sum(-1)
        f = LOSSES[name](z - y if em.loss.kind == "residual" else z)
        f = f - (y if em.loss.kind == "glm" else 0)
        gradient = (f[..., None] * x).mean(-2) + LONG(0.5) * ahead
        before, w = w, ahead - eta * gradient
        ahead = w + mu * (w - before)
    return w


# ---------------------------------------------------------------------------------------------
# heads
# ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _head(dtype: torch.dtype, sizes: tuple[int, ...]) -> Any:
    dim, head, value, tokens = sizes
    eps = 1e-2 if dtype == F32 else 1e-6
    return ice.paper.AttentionHead(dim, head, value, tokens, eps=eps, dtype=dtype, backend="triton")


def heads(seed: int) -> Outcome | str:
    """Heads whose weights are in the prompt: projections that are looked up as they are made."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = draw.choice([F32, F64])
    sizes = draw.choice([(2, 1, 2, 4), (3, 2, 1, 3)])
    try:
        em = _head(dtype, sizes)
    except ice.IceformError:
        return "refused"
    dim, inner, value, tokens = sizes
    how, scale = draw.choice(["", "", "", "", "corners"]), draw.choice([1.0, 1.0, 0.1])
    x = _drawn(g, (tokens, dim), scale, how).to(dtype)
    w = [_drawn(g, (n, dim), scale, how).to(dtype) for n in (inner, inner, value)]
    out = em(*(t.to(DEVICE) for t in (x, *w))).double().cpu().numpy().astype(LONG)
    rows, *maps = (t.double().numpy().astype(LONG) for t in (x, *w))
    keys, queries, values = (rows @ m.T for m in maps)
    logits = queries @ keys.swapaxes(-1, -2)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    exact = weights / weights.sum(-1, keepdims=True) @ values
    off = float(np.abs(out - exact).max())
    least = torch.finfo(dtype).eps * (float(np.abs(out).max()) or 1.0)
    return Outcome(em.certify(x, *w).error, off, least, out.size, dtype)


KERNELS: dict[str, Callable[[int], Outcome | str]] = {
    "Triton look-ups": look_ups,
    "Triton gradients": gradients,
    "Triton steps": steps,
    "Triton heads": heads,
}


def usable() -> bool:
    """Whether the kernels can run here at all."""
    try:
        from iceform.run import triton
    except ImportError:
        return False
    return DEVICE.type == "cuda" or triton.interpreted()
