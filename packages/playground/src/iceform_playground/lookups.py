"""Look-up tables as the sliders ask for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from iceform.certificates import weakest
from iceform.errors import BoundError, IceformError, ProgramError
from iceform.functions import Loss, ScalarFunction
from iceform.interpolation import Grid, Interpolant, on_grid
from iceform_estimators.machine import Table
from iceform_playground import questions as asked
from iceform_playground.algorithms import loss_of
from iceform_playground.answers import LookupAnswer, Rate, RatesAnswer, TableAnswer, numbers
from iceform_playground.task import Pulse

_MOST_TOKENS = 129  # in a block of the machine
_GUARDS = 4  # tokens beyond either end, where the sharpness is chosen by hand
_WIDEST = 2.0**12  # of a board of height 2: beyond it the iteration diverges
_MESH = 401
_FINE_MESH = 4001  # on which errors are measured
_SIZES = {
    "spectral": (9, 13, 17, 25, 33, 49, 65),
    "hard": (9, 17, 33, 65, 129, 257, 513, 1025),
}


@dataclass(frozen=True, eq=False)
class ChosenTable(Table):
    """A table whose tokens and sharpness are chosen by hand."""

    how: asked.Lookup = field(default_factory=asked.Lookup)

    def on(self, reach: float) -> Interpolant:
        """On [-R, R], R being the least power of two that covers ``reach``."""
        if not reach <= _WIDEST:
            raise BoundError(
                f"a residual reaches {reach:.3g}: the steps are too long and the iteration "
                "diverges; lower the learning rate, or take a loss that has a least value"
            )
        return tabulated(self.function, 2.0 ** math.ceil(math.log2(max(reach, 1.0))), self.how)


@lru_cache(maxsize=256)
def tabulated(f: ScalarFunction, reach: float, how: asked.Lookup) -> Interpolant:
    """A function on [-reach, reach] as a look-up asks, one value moved where it asks for that."""
    it, moved = _tabulated(f, reach, how), how.moved
    if moved is None:
        return it
    if moved.token >= it.tokens:
        raise ProgramError(
            f"token {moved.token} was moved, this table has {it.tokens}; they are counted from 0"
        )
    values = it.values.clone()
    values[moved.token] += moved.by
    # Attention weights are at most 1, so no answer moves by more.
    return it.with_values(values, math.nextafter(it.error + abs(moved.by), math.inf))


def _tabulated(f: ScalarFunction, reach: float, how: asked.Lookup) -> Interpolant:
    f = ScalarFunction.of(f, -reach, reach)
    tokens = how.tokens
    if how.regime == "hard":
        cells = (tokens or _hard_tokens(f, reach, how.eps)) - 1
        return Interpolant.hard(f, -reach, reach, cells=cells, sharpness=how.sharpness)
    if how.sharpness is not None:
        guards = min(_GUARDS, ((tokens or _MOST_TOKENS) - 3) // 2)
        grid = Grid(-reach, reach, (tokens or _MOST_TOKENS) - 1 - 2 * guards, guards)
        return on_grid(f, grid, how.sharpness, "fitted")
    if f.affine is not None:
        return Interpolant.identity(-reach, reach, None if tokens else how.eps)
    if tokens is None:
        return Interpolant.fit(f, -reach, reach, how.eps)
    return Interpolant.fit(f, -reach, reach, tokens=tokens)


def _hard_tokens(f: ScalarFunction, reach: float, eps: float) -> int:
    """As many as a block of the machine has, or fewer where eps needs no more."""
    for tokens in (9, 17, 33, 65, _MOST_TOKENS):
        if Interpolant.hard(f, -reach, reach, cells=tokens - 1).error <= eps:
            return tokens
    return _MOST_TOKENS


def table_of(loss: Loss, how: asked.Lookup) -> ChosenTable:
    """The table of a loss's derivative."""
    return ChosenTable(loss.derivative, how.tokens, how=how)


def look_up(question: asked.LookupQuestion, pulse: Pulse) -> LookupAnswer:
    """Both regimes' tables of a loss's derivative, and the function itself on a mesh."""
    f, reach = loss_of(question.loss).derivative, question.reach
    z = torch.linspace(-reach, reach, _MESH, dtype=torch.float64)
    exact = ScalarFunction.of(f, -reach, reach)(z)
    pulse()
    spectral, note = _or_why(f, reach, question.lookup)
    pulse()
    sharpness = question.lookup.sharpness if question.lookup.regime == "hard" else None
    tokens = question.lookup.tokens or (spectral.tokens if spectral else _MOST_TOKENS)
    how = asked.Lookup(regime="hard", tokens=min(tokens, _MOST_TOKENS), sharpness=sharpness)
    return LookupAnswer(
        name=f.name,
        z=numbers(z.tolist()),
        exact=numbers(exact.tolist()),
        spectral=None if spectral is None else TableAnswer.of(spectral),
        hard=TableAnswer.of(tabulated(f, reach, how)),
        note=note,
    )


def _or_why(
    f: ScalarFunction, reach: float, how: asked.Lookup
) -> tuple[Interpolant | None, str | None]:
    sharpness = how.sharpness if how.regime == "spectral" else None
    spectral = how.model_copy(update={"regime": "spectral", "sharpness": sharpness})
    try:
        return tabulated(f, reach, spectral), None
    except IceformError as refused:
        return None, str(refused)


def rates(question: asked.LookupQuestion, pulse: Pulse) -> RatesAnswer:
    """Error against grid tokens, measured and certified, for both regimes."""
    f, reach = loss_of(question.loss).derivative, question.reach
    return RatesAnswer(
        name=f.name, rates=[_rate(f, reach, regime, pulse) for regime in ("spectral", "hard")]
    )


def _rate(f: ScalarFunction, reach: float, regime: str, pulse: Pulse) -> Rate:
    tokens: list[int] = []
    measured: list[float] = []
    certified: list[float | None] = []
    kinds: list[str] = []
    for size in _SIZES[regime]:
        pulse()
        found = _sized(f, reach, regime, size)
        if found is None:
            continue
        tokens.append(size)
        measured.append(found[0])
        certified.append(found[1])
        kinds.append(found[2])
    return Rate(
        regime=regime, tokens=tokens, measured=measured, certified=certified, kind=weakest(kinds)
    )


@lru_cache(maxsize=512)
def _sized(
    f: ScalarFunction, reach: float, regime: str, tokens: int
) -> tuple[float, float, str] | None:
    """Measured and certified error, and its kind; None where so few tokens hold no table."""
    f = ScalarFunction.of(f, -reach, reach)
    try:
        if regime == "hard":
            it = Interpolant.hard(f, -reach, reach, cells=tokens - 1)
        else:
            it = Interpolant.fit(f, -reach, reach, tokens=tokens)
    except IceformError:
        return None
    z = torch.linspace(-reach, reach, _FINE_MESH, dtype=torch.float64)
    return float((it(z) - f(z)).abs().max()), it.error, it.kind
