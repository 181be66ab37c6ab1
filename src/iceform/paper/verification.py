"""Ball arithmetic: the exact algorithm on one instance, enclosed, against what was computed.

Inputs and outputs of an emulator are floating-point numbers, so they are known exactly; only the
algorithm itself needs enclosing. A function written with torch operations is traced symbolically
and replayed on balls, so a user's own f needs no second version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

from torch import Tensor

from iceform.arithmetic.balls import ball_arithmetic, balls_of, uppermost
from iceform.certificates import Verification
from iceform.errors import ProgramError
from iceform.expressions.formulas import functions
from iceform.expressions.tracing import UntraceableError, trace
from iceform.paper.attention_head import AttentionHead
from iceform.paper.base import Emulator, set_verifier
from iceform.paper.descent import GradientDescent
from iceform.paper.gradients import GradientStep, SampleGradients
from iceform.paper.hopfield import HopfieldMap
from iceform.paper.least_squares import RidgeRegression
from iceform.paper.linear import LinearLayer
from iceform.paper.one_layer_least_squares import OneLayerRidge
from iceform.paper.residual import Rates, ResidualEmulator
from iceform.paper.truncated_linear import TruncatedLinear

Ball = Any  # flint.arb, which ships no types


def verify(
    emulator: Emulator, inputs: Sequence[Tensor], certified: float, bits: int
) -> Verification:
    """Enclose the exact result, take its distance from the emulator's, compare."""
    with balls_of(bits) as flint:
        if inputs[0].ndim > 2:
            raise ProgramError("verify one instance at a time: inputs must have no batch dimension")
        computed = emulator(*inputs).detach().double().flatten().tolist()
        exact = _exact(emulator, [t.detach().double() for t in inputs])
        gaps = [abs(flint.arb(c) - e) for c, e in zip(computed, exact, strict=True)]
        measured = max(uppermost(g) for g in gaps)
    # Written so that NaN fails.
    return Verification(measured <= certified, measured, certified, bits)


set_verifier(verify)


@singledispatch
def _exact(emulator: Emulator, inputs: list[Tensor]) -> list[Ball]:
    """The exact algorithm of an emulator, flattened; one function per construction."""
    raise ProgramError(f"ball arithmetic does not know {type(emulator).__name__}")


@_exact.register(SampleGradients)
def _(emulator: SampleGradients, inputs: list[Tensor]) -> list[Ball]:
    x, y, w = inputs
    f = ball_function(emulator.loss.derivative.call)
    return _flatten(_gradients(emulator, f, x, y, _balls(w)))


@_exact.register(GradientStep)
def _(emulator: GradientStep, inputs: list[Tensor]) -> list[Ball]:
    x, y, w = inputs
    f = ball_function(emulator.loss.derivative.call)
    return _step(emulator, f, x, y, _balls(w), emulator.rates)


@_exact.register(GradientDescent)
def _(emulator: GradientDescent, inputs: list[Tensor]) -> list[Ball]:
    return _descend(emulator, ball_function(emulator.loss.derivative.call), *inputs)


@_exact.register(OneLayerRidge)
@_exact.register(RidgeRegression)
def _(emulator: OneLayerRidge | RidgeRegression, inputs: list[Tensor]) -> list[Ball]:
    return _solve(emulator, *inputs)


@_exact.register(LinearLayer)
def _(emulator: LinearLayer, inputs: list[Tensor]) -> list[Ball]:
    return _flatten(_product(*inputs))


@_exact.register(AttentionHead)
def _(emulator: AttentionHead, inputs: list[Tensor]) -> list[Ball]:
    x, *weights = emulator._flat(tuple(inputs))
    heads = [_attend(x, *weights[i : i + 3]) for i in range(0, len(weights), 3)]
    return [sum(entry, ball_arithmetic().arb(0)) for entry in zip(*heads, strict=True)]


@_exact.register(TruncatedLinear)
def _(emulator: TruncatedLinear, inputs: list[Tensor]) -> list[Ball]:
    return _truncated(emulator, *inputs)


@_exact.register(HopfieldMap)
def _(emulator: HopfieldMap, inputs: list[Tensor]) -> list[Ball]:
    f = ball_function(emulator.function.call)
    line, start = _balls(emulator.a), ball_arithmetic().arb(emulator.b)
    return [f(_dot(_balls(row), line) + start) for row in inputs[0]]


def _flatten(rows: list[list[Ball]]) -> list[Ball]:
    return [entry for row in rows for entry in row]


def _balls(values: Tensor) -> list[Ball]:
    return [ball_arithmetic().arb(v) for v in values.tolist()]


def _gradients(
    emulator: ResidualEmulator, f: Callable[[Ball], Ball], x: Tensor, y: Tensor, w: list[Ball]
) -> list[list[Ball]]:
    kind = emulator.loss.kind
    rows = []
    for sample, label in zip((_balls(row) for row in x), _balls(y), strict=True):
        features = [label * s for s in sample] if kind == "margin" else sample
        z = _dot(features, w)
        value = f(z - label) if kind == "residual" else f(z)
        value = value - label if kind == "glm" else value
        rows.append([value * s for s in features])
    return rows


def _step(
    emulator: ResidualEmulator,
    f: Callable[[Ball], Ball],
    x: Tensor,
    y: Tensor,
    w: list[Ball],
    rates: Rates,
) -> list[Ball]:
    rows = _gradients(emulator, f, x, y, w)
    arb = ball_arithmetic().arb
    gain, shrink = arb(rates.gain), arb(rates.shrink)
    means = [sum(column, arb(0)) / len(rows) for column in zip(*rows, strict=True)]
    return [(1 - shrink) * c - gain * m for c, m in zip(w, means, strict=True)]


def _descend(
    emulator: GradientDescent, f: Callable[[Ball], Ball], x: Tensor, y: Tensor, w0: Tensor
) -> list[Ball]:
    w = ahead = _balls(w0)
    schedule = emulator.schedule
    for eta, mu in zip(schedule.steps, schedule.momenta, strict=True):
        rates = Rates(eta, eta * emulator.l2)
        last, w = w, _step(emulator.step, f, x, y, ahead, rates)
        ahead = [a + mu * (a - b) for a, b in zip(w, last, strict=True)]
    return w


def _product(x: Tensor, weight: Tensor) -> list[list[Ball]]:
    rows = [_balls(row) for row in weight]
    return [[_dot(sample, row) for row in rows] for sample in (_balls(r) for r in x)]


def _dot(a: list[Ball], b: list[Ball]) -> Ball:
    return sum((s * t for s, t in zip(a, b, strict=True)), ball_arithmetic().arb(0))


def _attend(x: Tensor, w_k: Tensor, w_q: Tensor, w_v: Tensor) -> list[Ball]:
    keys, queries, values = (_product(x, w) for w in (w_k, w_q, w_v))
    out = []
    for query in queries:
        masses = [_dot(key, query).exp() for key in keys]
        total = sum(masses, ball_arithmetic().arb(0))
        out += [_dot(masses, list(column)) / total for column in zip(*values, strict=True)]
    return out


def _truncated(emulator: TruncatedLinear, x: Tensor, w: Tensor, t: Tensor) -> list[Ball]:
    flint = ball_arithmetic()
    line, start = _balls(w), flint.arb(float(t))
    low, high = emulator.split.low, emulator.split.high
    return [(_dot(_balls(row), line) + start).max(flint.arb(low)).min(flint.arb(high)) for row in x]


def _solve(emulator: OneLayerRidge | RidgeRegression, x: Tensor, y: Tensor) -> list[Ball]:
    flint = ball_arithmetic()
    n, d = x.shape
    data = flint.arb_mat([_balls(row) for row in x])
    labels = flint.arb_mat([[b] for b in _balls(y)])
    gram = data.transpose() * data
    penalty = n * flint.arb(emulator.l2)
    shifted = flint.arb_mat(
        [[gram[i, j] + (penalty if i == j else 0) for j in range(d)] for i in range(d)]
    )
    solution = shifted.solve(data.transpose() * labels)
    return [solution[i, 0] for i in range(d)]


def ball_function(f: Callable[[Tensor], Tensor]) -> Callable[[Ball], Ball]:
    """A torch function on balls: what it is followed to compute."""
    try:
        return functions.ball_function(trace(f))
    except UntraceableError as broken:
        raise ProgramError(
            f"f cannot be traced for ball arithmetic ({broken}); write it with torch operations "
            "and without Python branches"
        ) from None
