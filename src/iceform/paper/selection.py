"""Choosing the look-up table of a construction: the smallest that its whole certificate accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import torch

from iceform import tuning
from iceform.arithmetic import at_most, exactly
from iceform.errors import BoundError, PrecisionError
from iceform.expressions import ScalarFunction
from iceform.tables import Grid, Interpolant, regimes
from iceform.tables.storage import proven_for, recalled
from iceform.validation import dtype_name, unit_roundoff

_SHARE = 0.8  # of eps for interpolation at the first try; rounding and leak get the rest
_LINE_CELLS = (1, 4, 8, 16, 24)  # in float32 rounding is least where cells/2 is near guards
_FINE = [4 * 16**k for k in range(4)]  # times u: targets tried in float32 for the best table


def choose(
    f: ScalarFunction,
    span: tuple[float, float],
    *,
    eps: float | None,
    regime: str,
    tokens: int | None,
    dtype: torch.dtype,
    gain: float,
    total: Callable[[Interpolant], float],
    given: Interpolant | None = None,
) -> Interpolant:
    """The first look-up table whose whole error ``total`` is within eps.

    ``gain`` is what the interpolation error is multiplied by in the output. With eps None, the
    table with the least whole error. A table that is ``given`` is taken, with the error that is
    proven of it for ``f``, whatever it says of itself.
    """
    low, high = span
    if given is not None:
        return _handed_in(given, f, span, eps)
    regimes.check_enclosed(f, low, high, eps)
    if tokens is not None:
        return _of_size(f, low, high, regime, tokens)
    if eps is None:
        return _most_accurate(f, low, high, regime, dtype, total)
    best: Interpolant | None = None
    target = _SHARE * eps / gain
    for _ in range(2):
        try:
            for it in _candidates(f, low, high, target, regime, dtype):
                if total(it) <= eps:
                    return it
                best = it if best is None or total(it) < total(best) else best
        except PrecisionError:
            if regime == "hard":
                raise
        if best is None:
            best = _most_accurate(f, low, high, regime, dtype, total)
            if total(best) <= eps:
                return best
            break
        # Everything but interpolation is known now: give interpolation what is left.
        target = tuning.MOST_OF_EPS * (eps - (total(best) - gain * best.error)) / gain
        if target <= 0:
            break
    reached = math.inf if best is None else total(best)
    name = dtype_name(dtype)
    raise PrecisionError(
        f"eps = {eps:.3g} cannot be certified for f ({f.name}) on [{exactly(low)}, "
        f"{exactly(high)}] in "
        f"{name}: {at_most(reached, '.3g')} can; ask for a larger eps, a smaller bound or a "
        "narrower z_range" + (", or dtype=torch.float64" if dtype == torch.float32 else ""),
        best=reached,
    )


def _handed_in(
    it: Interpolant, f: ScalarFunction, span: tuple[float, float], eps: float | None
) -> Interpolant:
    """A table that somebody hands in, proven for f; "claimed" where a file has lost f."""
    proven = None if f.lost else proven_for(it, f)
    if not (it.low <= span[0] and span[1] <= it.high):
        raise BoundError(
            f"the look-up table covers [{it.low:.6g}, {it.high:.6g}], arguments reach "
            f"[{span[0]:.6g}, {span[1]:.6g}]; fit a table on that range, or pass a narrower "
            "z_range= or bound="
        )
    if proven is None:
        return replace(it, kind="claimed", _rounding={}, _windows={})
    regimes.check_enclosed(f, *span, eps)
    return proven


def _of_size(f: ScalarFunction, low: float, high: float, regime: str, tokens: int) -> Interpolant:
    regimes.check_tokens(tokens, regimes.MOST_HARD_CELLS if regime == "hard" else None)
    if regime == "hard":
        return regimes.hard(f, Grid(low, high, max(1, tokens - 1)))
    return _cached(f, low, high, None, tokens)


def _most_accurate(
    f: ScalarFunction,
    low: float,
    high: float,
    regime: str,
    dtype: torch.dtype,
    total: Callable[[Interpolant], float],
) -> Interpolant:
    if regime == "hard":
        return regimes.hard_for(f, low, high, None)
    if dtype == torch.float64:
        return _cached(f, low, high, None, None)
    size = float(f(torch.linspace(low, high, 257, dtype=torch.float64)).abs().max())
    tables: list[Interpolant] = []
    # Lines cost nothing to fit, so more targets are tried for them.
    for factor in _FINE if f.affine is not None else _FINE[1:3]:
        target = factor * unit_roundoff(dtype) * max(size, math.ulp(1.0))
        try:
            tables += _candidates(f, low, high, target, regime, dtype)
        except PrecisionError:
            continue
    if not tables:
        tables = [_cached(f, low, high, None, None)]
    return min(tables, key=total)


def _candidates(
    f: ScalarFunction, low: float, high: float, eps: float, regime: str, dtype: torch.dtype
) -> Iterator[Interpolant]:
    if regime == "hard":
        yield regimes.hard_for(f, low, high, eps)
    elif f.affine is not None:
        for cells in _LINE_CELLS if dtype == torch.float32 else _LINE_CELLS[:1]:
            yield regimes.spectral(low, high, eps, f, cells)
    else:
        yield _cached(f, low, high, eps, None)
        if f.kinks_in(low, high) and dtype == torch.float32:
            # Graded keys reach logits that float32 may not hold; equal spacing is the way out.
            yield regimes.fitted(f, low, high, eps)


@lru_cache(maxsize=128)
def _cached(
    f: ScalarFunction, low: float, high: float, eps: float | None, tokens: int | None
) -> Interpolant:
    """Fits cost up to seconds; the losses of the library are asked for again and again."""
    return recalled(f, low, high, eps, tokens)
