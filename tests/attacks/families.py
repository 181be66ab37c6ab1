"""Generators of hard cases, one family a kind of certificate, and what is exact about each.

A family maps a seed to what was certified, what was off (an upper bound, in exact or ball
arithmetic) and the unit in the last place of the answer; or to a word for what was said instead:
"refused", "infinite" or "estimated". Cheap ones compare many numbers at once, with 64 bits of
mantissa beside them. ``ORDINARY`` holds runs on ordinary data, of which only that word is kept.
Nothing here needs more than torch, NumPy, mpmath and python-flint.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import torch

import iceform as ice
from iceform.paper import library
from iceform.run import windowed
from tests.attacks.handed_in import handed_in
from tests.attacks.hidden_state import hidden_state
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
from tests.computer import random_programs
from tests.networks.attack import drawn as network
from tests.paper.exact_library import measured
from tests.properties.adversary import targeted_inputs
from tests.run.tables import rounding_bound
from tests.tables import attacks as look_ups


def instead_of(certificate: Any) -> str | None:
    """What was said in the place of a proven bound."""
    if not math.isfinite(certificate.error):
        return "infinite"
    return None if certificate.kind == "proven" else str(certificate.kind)


# ---------------------------------------------------------------------------------------------
# look-ups and constructions
# ---------------------------------------------------------------------------------------------


def look_up(seed: int) -> Outcome | str:
    """Functions that are narrow, steep, cancelling, kinked, with poles nearby, in odd units."""
    draw = random.Random(seed)
    with mpmath.workdps(50):
        attack = look_ups.FAMILIES[draw.choice(sorted(look_ups.FAMILIES))](draw)
        try:
            it = ice.Interpolant.fit(
                attack.f, attack.low, attack.high, tokens=draw.choice([17, 33, 49, 65]),
                kinks=attack.kinks,
            )  # fmt: skip
        except ice.IceformError:
            return "refused"
        inside = [z for z in attack.places if it.low <= z <= it.high]
        seen = it.grid.mesh(12)
        worst = seen[(it(seen) - attack.f(seen)).abs().nan_to_num().topk(8).indices].tolist()
        off = max(
            abs(look_ups.exactly(it, z) - attack.exact(mpmath.mpf(z))) for z in inside + worst
        )
    return Outcome(it.error, float(off), math.ulp(it.size))


@lru_cache(maxsize=512)
def _gradients(name: str, dtype: torch.dtype, eps: float | None, bound: float, backend: str) -> Any:
    return ice.paper.SampleGradients(
        name, dim=3, samples=4, bound=bound, eps=eps, dtype=dtype, backend=backend
    )


def gradients(seed: int) -> Outcome | str:
    """Sample gradients of every named loss: random inputs, and those the table is worst at."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype, name = draw.choice([F32, F64]), draw.choice(sorted(LOSSES))
    eps = draw.choice([1e-3, 1e-4, None] if dtype == F32 else [1e-3, 1e-6, 1e-9, None])
    bound, backend = draw.choice([1.0, 2.0]), draw.choice(["fused", "fused", "literal"])
    try:
        em = _gradients(name, dtype, eps, bound, backend)
    except ice.IceformError:
        return "refused"
    batch = 500 if backend == "fused" else 20
    x, y, w = (
        (2 * torch.rand((batch, *s), generator=g, dtype=F64) - 1) * bound
        for s in ((4, 3), (4,), (3,))
    )
    worst = (part[:batch] for part in targeted_inputs(em, bound))
    x, y, w = (torch.cat([a.to(dtype), b]) for a, b in zip((x, y, w), worst, strict=True))
    y = labels_for(em.loss, y)
    out = em(x, y, w).double().numpy().astype(LONG)
    off = float(np.abs(out - exact_gradients(em.loss, name, x, y, w)).max())
    unit = torch.finfo(dtype).eps * float(np.abs(out).max())
    return Outcome(em.certificate.error, off, unit, out.size, dtype)


# Functions in torch, for numbers of any length, and the range they are looked up on.
WINDOWED: dict[str, tuple[Any, Callable[[Any], Any], float]] = {
    "tanh": (torch.tanh, np.tanh, 6.0),
    "sin": (torch.sin, np.sin, 7.0),
    "sigmoid": (torch.sigmoid, sigmoid, 12.0),
    "softplus": (torch.nn.functional.softplus, lambda z: np.log1p(np.exp(z)), 10.0),
    "relu": (torch.relu, lambda z: np.maximum(z, 0), 3.0),
}


@lru_cache(maxsize=32)
def _table(name: str, eps: float) -> Any:
    f, _, reach = WINDOWED[name]
    return ice.Interpolant.fit(f, -reach, reach, eps=eps)


def windowed_look_ups(seed: int) -> Outcome | str:
    """The few tokens around a point, at 20,000 points and those that the table is worst at."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype, name = draw.choice([F32, F64]), draw.choice(sorted(WINDOWED))
    eps = draw.choice([1e-2, 1e-3, 1e-4] if name == "relu" else [1e-3, 1e-5, 1e-8])
    it, exact = _table(name, eps), WINDOWED[name][1]
    window = windowed.window_of(it, dtype)
    if window is None:
        return "refused"
    spread = it.low + (it.high - it.low) * torch.rand(20_000, generator=g, dtype=F64)
    mesh = it.grid.mesh(16)
    worst = mesh[(it(mesh) - it.function(mesh)).abs().topk(min(200, len(mesh))).indices]
    z = torch.cat([spread, worst]).clamp(it.low, it.high).to(dtype)
    z = z[(z >= it.low) & (z <= it.high)]
    out = windowed.look_up(z, window).double().numpy().astype(LONG)
    off = float(np.abs(out - exact(z.double().numpy().astype(LONG))).max())
    unit = torch.finfo(dtype).eps * float(np.abs(out).max())
    return Outcome(it.error + rounding_bound(it, dtype), off, unit, len(z), dtype)


@lru_cache(maxsize=16)
def _head(dtype: torch.dtype, sizes: tuple[int, ...], eps: float | None) -> Any:
    dim, head, value, tokens = sizes
    return ice.paper.AttentionHead(dim, head, value, tokens, eps=eps, dtype=dtype)


def head(seed: int) -> Outcome | str:
    """Heads whose weights are in the prompt, by ball arithmetic; each input has its own bound."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype, sizes = draw.choice([F32, F64]), draw.choice([(2, 1, 2, 4), (3, 2, 1, 3)])
    em = _head(dtype, sizes, 1e-2 if dtype == F32 else 1e-6)
    dim, inner, value, tokens = sizes
    scale = draw.choice([1.0, 1.0, 0.1])
    inputs = [
        scale * (2 * torch.rand(s, generator=g, dtype=F64) - 1).to(dtype)
        for s in ((tokens, dim), (inner, dim), (inner, dim), (value, dim))
    ]
    certificate = em.certify(*inputs)
    unit = torch.finfo(dtype).eps * float(em(*inputs).abs().max())
    measured = em.certificate.verify(*inputs).measured
    return Outcome(certificate.error, measured, unit, dtype=dtype)


@lru_cache(maxsize=32)
def _hopfield(name: str, dtype: torch.dtype, eps: float | None) -> Any:
    f = {"tanh": torch.tanh, "sin": torch.sin, "relu": torch.relu}[name]
    return ice.paper.HopfieldMap(f, [0.7, -1.1], 0.2, samples=6, eps=eps, dtype=dtype)


def hopfield(seed: int) -> Outcome | str:
    """Hopfield layers: random states, and those that the table is worst at."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = draw.choice([F32, F64])
    name, eps = draw.choice([("tanh", 1e-3), ("tanh", 1e-4), ("sin", 1e-4), ("relu", 1e-2)])
    em = _hopfield(name, dtype, eps)
    line, it = em.a.double(), em.interpolant
    mesh = torch.linspace(it.low, it.high, 4001, dtype=F64)
    target = mesh[(it(mesh) - it.function(mesh)).abs().topk(6).indices]
    # States on the line's own direction reach a value; what is out of bounds is cut off.
    states = (target - em.b)[:, None] * line / line.square().sum()
    states = (states + 0.01 * torch.randn(6, 2, generator=g, dtype=F64)).clamp(-1, 1).to(dtype)
    unit = torch.finfo(dtype).eps * float(em(states).abs().max())
    measured = em.certificate.verify(states).measured
    return Outcome(em.certificate.error, measured, unit, dtype=dtype)


Maker = Callable[[random.Random], Any]

ROWS: dict[str, Maker] = {
    "descent in rows": lambda r: library.DescentPrompts(
        r.choice(["squared", "huber", "logistic"]), steps=3, l2=0.1
    ),
    "kernel regression in rows": lambda r: library.KernelPrompts(r.choice([2.0, 1.7])),
    "Hopfield retrieval": lambda r: library.HopfieldPrompts(r.choice([2.0, 0.7]), steps=2),
    "components in rows": lambda r: library.ComponentPrompts(1),
    "ridge in rows": lambda r: library.RidgePrompts(1.0, w_bound=2.0),
    "heads in rows": lambda r: _one_head(r.randrange(4)),
}


@lru_cache(maxsize=4)
def _one_head(seed: int) -> Any:
    g = torch.Generator().manual_seed(seed)
    return library.HeadPrompts(
        *(2 * torch.rand(r, 2, generator=g, dtype=F64) - 1 for r in (2, 2, 3))
    )


@lru_cache(maxsize=16)
def _in_rows(program: Any, dtype: torch.dtype) -> Any:
    return library.PromptLibrary(dim=2, samples=5, algorithms=[program], dtype=dtype)


def in_rows(name: str, *, small: bool = True) -> Callable[[int], Outcome | str]:
    """Programs whose heads are in the prompt, of samples that may be far below look-up errors."""

    def attack(seed: int) -> Outcome | str:
        draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
        program, dtype = ROWS[name](draw), draw.choice([F32, F64])
        try:
            machine = _in_rows(program, dtype)
        except ice.errors.PrecisionError:
            return "refused"
        x = (2 * torch.rand(5, 2, generator=g, dtype=F64) - 1).to(dtype)
        x = x * 2.0 ** -draw.choice([0, 0, 0, 0, 12, 26, 40]) if small else x
        y = (2 * torch.rand(5, generator=g, dtype=F64) - 1).to(dtype)
        if getattr(program, "loss", None) == "logistic":
            y = (y > 0).to(y)
        second = {"Hopfield retrieval": x[0], "heads in rows": None}.get(name, y)
        result = machine.run(program, x, second)
        bound = result.certificate if result.enclosure is None else result.enclosure
        if (instead := instead_of(bound)) is not None:
            return instead
        unit = torch.finfo(dtype).eps * float(result.value.abs().max())
        off = measured(program, result, x, second)
        if not off <= result.certificate.error:
            bound = result.certificate
        return Outcome(bound.error, off, unit, dtype=dtype)

    return attack


# ---------------------------------------------------------------------------------------------
# networks and the computer
# ---------------------------------------------------------------------------------------------


def in_network(seed: int) -> Outcome | str:
    """Random networks of float32 on one input; float64 is the exact one."""
    model, x = network(seed)
    net = ice.in_context(model, calibration=[x], headroom=4.0)
    y = torch.randn_like(x)
    try:
        certificate = net.enclosure(y)
    except ice.errors.BoundError:
        return "refused"
    if (instead := instead_of(certificate)) is not None:
        return instead
    out = net(y)
    off = (out.double() - net.reference(y).double()).abs()
    unit = torch.finfo(out.dtype).eps * float(out.abs().max())
    return Outcome(certificate.error, float(off.max()), unit, dtype=out.dtype)


def on_computer(seed: int) -> Outcome | str:
    """Random programs of the frozen computer, the run's own enclosure."""
    made, dim = random_programs.program(200_000 + seed, kinks=seed % 3 == 0)
    X, y = random_programs.data(200_000 + seed, dim)
    compiled = ice.compile(made, dim, 5, eps=1e-7, steps=(1, 10))
    computer = ice.Computer.for_programs([compiled])
    try:
        found = computer.run(compiled, X, y, backend="fused")
    except (ice.errors.PrecisionError, ice.errors.BoundError):
        return "refused"
    if (instead := instead_of(found.enclosure)) is not None:
        return instead
    exact = made(X, y)
    off = max(float((found.parts[name] - value).abs().max()) for name, value in exact.items())
    size = max(float(value.abs().max()) for value in exact.values())
    # What float64 leaves of the exact program is below a few units of its last place.
    return Outcome(found.enclosure.error + 8 * math.ulp(size), off, math.ulp(size))


def ordinary_in_rows(name: str) -> Callable[[int], str]:
    """The same for programs whose heads are in the prompt."""
    attack = in_rows(name, small=False)

    def attempt(seed: int) -> str:
        found = attack(seed)
        return found if isinstance(found, str) else "proven"

    return attempt


ORDINARY: dict[str, Callable[[int], str]] = {
    **{f"ordinary: {name}": ordinary_in_rows(name) for name in ROWS},
}

FAMILIES: dict[str, Callable[[int], Outcome | str]] = {
    "look-ups": look_up,
    "sample gradients": gradients,
    "windowed look-ups": windowed_look_ups,
    "heads": head,
    "Hopfield layers": hopfield,
    **{name: in_rows(name) for name in ROWS},
    "networks": in_network,
    "computer programs": on_computer,
    "hidden state": hidden_state,
    "objects handed in": handed_in,
}

CHEAP = ("sample gradients", "windowed look-ups")  # a case is thousands of numbers
DEAR = ("networks",)
