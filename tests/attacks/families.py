"""Generators of hard cases, one family a kind of certificate, and what is exact about each.

A family maps a seed to what was certified, what was off (an upper bound, in exact or ball
arithmetic) and the unit in the last place of the answer; or None where nothing was claimed. Cheap
ones compare many numbers at once, with 64 bits of mantissa beside them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import flint
import mpmath
import numpy as np
import torch

import iceform as ice
from iceform.backends import windowed
from iceform.machine import ArraySource
from tests.algorithms import cases
from tests.algorithms.test_quantile import data as quantile_data
from tests.algorithms.test_quantile import off as quantile_off
from tests.algorithms.test_quantile import program as linear_program
from tests.backends.tables import rounding_bound
from tests.computer import random_programs
from tests.interpolation import test_attacks as look_ups
from tests.machine import data
from tests.machine.exact import NoOptimumError
from tests.networks.attack import drawn as network
from tests.properties.adversary import targeted_inputs

F32, F64 = torch.float32, torch.float64
LONG = np.longdouble
assert np.finfo(LONG).eps < 1e-18, "cheap attacks need a longer mantissa than float64's"


class Outcome(NamedTuple):
    """One attack, or as many as were tried at once."""

    certified: float
    off: float
    unit: float
    tried: int = 1


def _claims(certificate: Any) -> bool:
    return math.isfinite(certificate.error) and certificate.kind == "proven"


# ---------------------------------------------------------------------------------------------
# look-ups and constructions
# ---------------------------------------------------------------------------------------------


def look_up(seed: int) -> Outcome | None:
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
            return None
        inside = [z for z in attack.places if it.low <= z <= it.high]
        seen = it.grid.mesh(12)
        worst = seen[(it(seen) - attack.f(seen)).abs().nan_to_num().topk(8).indices].tolist()
        off = max(
            abs(look_ups.exactly(it, z) - attack.exact(mpmath.mpf(z))) for z in inside + worst
        )
    return Outcome(it.error, float(off), math.ulp(it.size))


def _sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


# l' of every named loss, for numbers of any length; what is encoded how is the loss's own.
LOSSES: dict[str, Callable[[Any], Any]] = {
    "squared": lambda z: z,
    "huber": lambda z: np.clip(z, -1, 1),
    "squared_hinge": lambda m: -np.maximum(0, 1 - m),
    "logistic": _sigmoid,
    "logistic_margin": lambda m: -_sigmoid(-m),
    "absolute": lambda z: np.tanh(4 * z),
    "quantile": lambda z: _sigmoid(4 * z) - LONG(0.5),
    "hinge": lambda m: -_sigmoid((1 - m) * 4),
    "poisson": np.exp,
}


@lru_cache(maxsize=64)
def _gradients(name: str, dtype: torch.dtype, eps: float | None, bound: float, backend: str) -> Any:
    return ice.SampleGradients(
        name, dim=3, samples=4, bound=bound, eps=eps, dtype=dtype, backend=backend
    )


def gradients(seed: int) -> Outcome | None:
    """Sample gradients of every named loss: random inputs, and those the table is worst at."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype, name = draw.choice([F32, F64]), draw.choice(sorted(LOSSES))
    eps = draw.choice([1e-3, 1e-4, None] if dtype == F32 else [1e-3, 1e-6, 1e-9, None])
    bound, backend = draw.choice([1.0, 2.0]), draw.choice(["fused", "fused", "literal"])
    try:
        em = _gradients(name, dtype, eps, bound, backend)
    except ice.IceformError:
        return None
    batch = 500 if backend == "fused" else 20
    x, y, w = (
        (2 * torch.rand((batch, *s), generator=g, dtype=F64) - 1) * bound
        for s in ((4, 3), (4,), (3,))
    )
    worst = (part[:batch] for part in targeted_inputs(em, bound))
    x, y, w = (torch.cat([a.to(dtype), b]) for a, b in zip((x, y, w), worst, strict=True))
    y = _labels(em.loss, y)
    out = em(x, y, w).double().numpy().astype(LONG)
    off = float(np.abs(out - _exactly(em.loss, name, x, y, w)).max())
    unit = torch.finfo(dtype).eps * float(np.abs(out).max())
    return Outcome(em.certificate.error, off, unit, out.size)


# Functions in torch, for numbers of any length, and the range they are looked up on.
WINDOWED: dict[str, tuple[Any, Callable[[Any], Any], float]] = {
    "tanh": (torch.tanh, np.tanh, 6.0),
    "sin": (torch.sin, np.sin, 7.0),
    "sigmoid": (torch.sigmoid, _sigmoid, 12.0),
    "softplus": (torch.nn.functional.softplus, lambda z: np.log1p(np.exp(z)), 10.0),
    "relu": (torch.relu, lambda z: np.maximum(z, 0), 3.0),
}


@lru_cache(maxsize=32)
def _table(name: str, eps: float) -> Any:
    f, _, reach = WINDOWED[name]
    return ice.Interpolant.fit(f, -reach, reach, eps=eps)


def windowed_look_ups(seed: int) -> Outcome | None:
    """The few tokens around a point, at 20,000 points and those that the table is worst at."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype, name = draw.choice([F32, F64]), draw.choice(sorted(WINDOWED))
    eps = draw.choice([1e-2, 1e-3, 1e-4] if name == "relu" else [1e-3, 1e-5, 1e-8])
    it, exact = _table(name, eps), WINDOWED[name][1]
    window = windowed.window_of(it, dtype)
    if window is None:
        return None
    spread = it.low + (it.high - it.low) * torch.rand(20_000, generator=g, dtype=F64)
    mesh = it.grid.mesh(16)
    worst = mesh[(it(mesh) - it.function(mesh)).abs().topk(min(200, len(mesh))).indices]
    z = torch.cat([spread, worst]).clamp(it.low, it.high).to(dtype)
    z = z[(z >= it.low) & (z <= it.high)]
    out = windowed.look_up(z, window).double().numpy().astype(LONG)
    off = float(np.abs(out - exact(z.double().numpy().astype(LONG))).max())
    unit = torch.finfo(dtype).eps * float(np.abs(out).max())
    return Outcome(it.error + rounding_bound(it, dtype), off, unit, len(z))


def _labels(loss: Any, y: torch.Tensor) -> torch.Tensor:
    """As near as the loss takes them."""
    if loss.kind == "margin":
        return torch.where(y < 0, -1.0, 1.0).to(y)
    return y.abs().clamp(max=1.0) if loss.labels is not None else y


def _exactly(loss: Any, name: str, *inputs: torch.Tensor) -> Any:
    x, y, w = (t.double().numpy().astype(LONG) for t in inputs)
    rows = x * y[..., None] if loss.kind == "margin" else x
    z = (rows * w[:, None, :]).sum(-1)
    f = LOSSES[name](z - y if loss.kind == "residual" else z)
    return (f - (y if loss.kind == "glm" else 0))[..., None] * rows


@lru_cache(maxsize=16)
def _head(dtype: torch.dtype, sizes: tuple[int, ...], eps: float | None) -> Any:
    dim, head, value, tokens = sizes
    return ice.AttentionHead(dim, head, value, tokens, eps=eps, dtype=dtype)


def head(seed: int) -> Outcome | None:
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
    return Outcome(certificate.error, em.certificate.verify(*inputs).measured, unit)


@lru_cache(maxsize=32)
def _hopfield(name: str, dtype: torch.dtype, eps: float | None) -> Any:
    f = {"tanh": torch.tanh, "sin": torch.sin, "relu": torch.relu}[name]
    return ice.HopfieldMap(f, [0.7, -1.1], 0.2, samples=6, eps=eps, dtype=dtype)


def hopfield(seed: int) -> Outcome | None:
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
    return Outcome(em.certificate.error, em.certificate.verify(states).measured, unit)


# ---------------------------------------------------------------------------------------------
# linear models, against references that share nothing with the library
# ---------------------------------------------------------------------------------------------


def linear_model(name: str) -> Callable[[int], Outcome | None]:
    """Optima of linear models on regular, ill-conditioned, offset and dependent data."""
    kinds = sorted(data.REGULAR | data.DEPENDENT)

    def attack(seed: int) -> Outcome | None:
        draw = random.Random(seed)
        kind, intercept = draw.choice(kinds), draw.random() < 0.7
        program, x, y, fit = cases.run(name, kind, seed, intercept)
        if not _claims(fit.certificate):
            return None
        try:
            coef, constant = cases.CASES[name].exact(program, x, y, fit)
            off = cases.measured(x, fit, coef, constant)
        except NoOptimumError:  # not one point
            off = fit.verify().measured
        return Outcome(fit.certificate.error, off, math.ulp(float(fit.coef.abs().max())))

    return attack


def nearly_dependent(seed: int) -> Outcome | None:
    """Least squares and ridge on columns 1e-1 to 1e-13 apart."""
    g = torch.Generator().manual_seed(seed)
    draw = random.Random(seed)
    x = data.normal(g, draw.choice([12, 40, 200]), draw.choice([2, 3, 6]))
    x[:, -1] = x[:, 0] + 10 ** draw.uniform(-13, -1) * x[:, -1]
    x = x * 2.0 ** draw.randrange(-40, 40) + draw.choice([0.0, 0.0, 1.0])
    y = x.sum(1) + data.normal(g, len(x))
    alpha = draw.choice([0.0, 0.0, 1e-6, 1.0])
    program = ice.algorithms.Ridge(alpha) if alpha else ice.algorithms.LinearRegression()
    fit = ice.Machine(x.shape[1] + 1, layout="stream").run(program, x, y)
    if not _claims(fit.certificate) or "what" in fit.certificate.domain:
        return None
    exact = least_squares(x, y, alpha)
    off = max(
        float(abs(flint.arb(a) - b).abs_upper())
        for a, b in zip(fit.coef.tolist(), exact, strict=False)
    )
    return Outcome(fit.certificate.error, off, math.ulp(float(fit.coef.abs().max())))


def least_squares(x: torch.Tensor, y: torch.Tensor, alpha: float) -> list[flint.arb]:
    """With an intercept that is not penalised, in 150 digits."""
    flint.ctx.dps = 150
    rows = flint.arb_mat([[*map(flint.arb, row), flint.arb(1)] for row in x.tolist()])
    labels = flint.arb_mat([[flint.arb(v)] for v in y.tolist()])
    gram = rows.transpose() * rows
    for j in range(x.shape[1]):
        gram[j, j] = gram[j, j] + flint.arb(alpha)
    found = gram.solve(rows.transpose() * labels)
    return [found[j, 0] for j in range(x.shape[1])]


def quantile(seed: int) -> Outcome | None:
    """Lines of quantiles beside a linear program, with outliers."""
    draw = random.Random(seed)
    n, d = draw.choice([(60, 1), (120, 2), (150, 5), (301, 9)])
    x, y = quantile_data(n, d, seed, draw.choice([0.0, 10.0, 1e3, 1e6]))
    q = draw.choice([0.5, 0.5, 0.1, 0.25, 0.77])
    fit = ice.Machine(d + 1, layout="stream").run(ice.algorithms.Quantile(q), x, y)
    if "objective" in fit.certificate.domain:
        return None
    *coef, _ = quantile_off(fit, linear_program(x, y, q))
    return Outcome(fit.certificate.error, max(coef), math.ulp(float(fit.coef.abs().max())))


# ---------------------------------------------------------------------------------------------
# programs of the machine, beside verify()
# ---------------------------------------------------------------------------------------------

Maker = Callable[[random.Random], Any]
_A = ice.algorithms

STREAMED: dict[str, Maker] = {
    "kernel regression": lambda r: _A.KernelRegression(r.choice(["scale", "scott", 0.1, 1.0, 30])),
    "neighbours": lambda r: _A.KNeighbors(
        r.choice([1, 3, 7]), weights=r.choice(["uniform", "distance"])
    ),
    "perceptron": lambda r: _A.Perceptron(max_passes=r.choice([3, 10, 30])),
    "components": lambda r: _A.PCA(1),
    "expectiles": lambda r: _A.Expectile(r.choice([0.1, 0.5, 0.8])),
    "coefficients of one sign": lambda r: _A.LinearRegression(positive=True),
    "weighed samples": lambda r: r.choice([_A.Ridge(1.0), _A.LinearRegression(), _A.Lasso(0.05)]),
}


def streamed(name: str) -> Callable[[int], Outcome | None]:
    """Programs on ordinary data in odd units, float32 machines where answers do not add up."""

    def attack(seed: int) -> Outcome | None:
        draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
        program = STREAMED[name](draw)
        n, d = draw.choice([(12, 2), (30, 2), (40, 4)])
        x = data.normal(g, n, d)
        y = x.sum(1) + 0.3 * data.normal(g, n)
        if name in {"kernel regression", "neighbours"}:
            x = x * 2.0 ** draw.randrange(-3, 4) + draw.choice([0.0, 0.0, 10.0])
            y = y * draw.choice([1.0, 1.0, 2.0**-1060, 2.0**600])
        else:
            x = x * 2.0 ** torch.randint(-30, 31, (d,), generator=g) + draw.choice([0.0, 1.0])
        if name == "perceptron":
            y = torch.where(y > y.median() - 0.5, 1.0, -1.0).to(x)
        dtype = draw.choice([F32, F64])
        if name not in ("kernel regression", "neighbours") or not 1e-9 < y.abs().max() < 1e9:
            dtype = F64
        weights = torch.rand(n, generator=g, dtype=F64) + 0.01 if "weighed" in name else None
        source = ArraySource(x, y, weights=weights)
        machine = ice.Machine(d + 1, layout="stream", dtype=dtype)
        result = machine.run(program, source)
        if not _claims(result.certificate):
            return None
        unit = torch.finfo(dtype).eps * float(result.value.abs().max())
        off = result.verify().measured
        return Outcome(result.certificate.error, off, max(unit, math.ulp(0.0)))

    return attack


ROWS: dict[str, Maker] = {
    "descent in rows": lambda r: _A.Descent(
        r.choice(["squared", "huber", "logistic"]), steps=3, l2=0.1
    ),
    "kernel regression in rows": lambda r: _A.KernelRegression(2.0),
    "Hopfield retrieval": lambda r: _A.HopfieldRetrieval(2.0, steps=2),
    "components in rows": lambda r: _A.PCA(1),
    "ridge in rows": lambda r: _A.Ridge(1.0, w_bound=2.0),
}


@lru_cache(maxsize=16)
def _in_rows(program: Any, dtype: torch.dtype) -> Any:
    return ice.Machine.for_programs([program], dim=2, samples=5, dtype=dtype)


def in_rows(name: str) -> Callable[[int], Outcome | None]:
    """Programs whose heads are in the prompt."""

    def attack(seed: int) -> Outcome | None:
        draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
        program, dtype = ROWS[name](draw), draw.choice([F32, F64])
        try:
            machine = _in_rows(program, dtype)
        except ice.PrecisionError:
            return None
        x = (2 * torch.rand(5, 2, generator=g, dtype=F64) - 1).to(dtype)
        y = (2 * torch.rand(5, generator=g, dtype=F64) - 1).to(dtype)
        if getattr(program, "loss", None) == "logistic":
            y = (y > 0).to(y)
        result = machine.run(program, x, x[0] if "Hopfield" in name else y)
        if not _claims(result.certificate):
            return None
        unit = torch.finfo(dtype).eps * float(result.value.abs().max())
        return Outcome(result.certificate.error, result.verify().measured, unit)

    return attack


# ---------------------------------------------------------------------------------------------
# networks and the computer
# ---------------------------------------------------------------------------------------------


def in_network(seed: int) -> Outcome | None:
    """Random networks of float32 on one input; float64 is the exact one."""
    model, x = network(seed)
    net = ice.in_context(model, calibration=[x], headroom=4.0)
    y = torch.randn_like(x)
    try:
        certificate = net.certificate(y)
    except ice.BoundError:
        return None
    if not _claims(certificate):
        return None
    off = (net(y).double() - net.reference(y)).abs()
    unit = torch.finfo(F32).eps * float(net(y).abs().max())
    return Outcome(certificate.error, float(off.max()), unit)


def on_computer(seed: int) -> Outcome | None:
    """Random programs of the frozen computer, the run's own certificate."""
    made, dim = random_programs.program(200_000 + seed, kinks=seed % 3 == 0)
    X, y = random_programs.data(200_000 + seed, dim)
    compiled = ice.compile(made, dim, 5, eps=1e-7, steps=(1, 10))
    computer = ice.Computer.for_programs([compiled])
    try:
        found = computer.run(compiled, X, y, backend="fused")
    except (ice.PrecisionError, ice.BoundError):
        return None
    if not _claims(found.certificate):
        return None
    exact = made(X, y)
    off = max(float((found.parts[name] - value).abs().max()) for name, value in exact.items())
    size = max(float(value.abs().max()) for value in exact.values())
    # What float64 leaves of the exact program is below a few units of its last place.
    return Outcome(found.certificate.error + 8 * math.ulp(size), off, math.ulp(size))


FAMILIES: dict[str, Callable[[int], Outcome | None]] = {
    "look-ups": look_up,
    "sample gradients": gradients,
    "windowed look-ups": windowed_look_ups,
    "heads": head,
    "Hopfield layers": hopfield,
    "nearly dependent columns": nearly_dependent,
    "quantile lines": quantile,
    **{f"{name}, optimum": linear_model(name) for name in cases.CASES},
    **{name: streamed(name) for name in STREAMED},
    **{name: in_rows(name) for name in ROWS},
    "networks": in_network,
    "computer programs": on_computer,
}

CHEAP = ("sample gradients", "windowed look-ups")  # a case is thousands of numbers
DEAR = (
    "Huber, optimum", "Quantile, optimum", "quantile lines", "expectiles", "descent in rows",
    "networks",
)  # fmt: skip
