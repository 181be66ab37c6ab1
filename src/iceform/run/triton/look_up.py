"""The look-up inside kernels: that of :mod:`iceform.run.windowed`, or of all tokens."""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit  # type: ignore[untyped-decorator]
def load_constants(numbers, ratios, KIND: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """The seven numbers and the weights c_j as scalars, loaded once before a loop."""
    loaded = (tl.load(numbers),)
    if KIND < 2:
        for i in tl.static_range(1, 7):
            loaded = loaded + (tl.load(numbers + i),)  # type: ignore[assignment]  # noqa: RUF005
        for j in tl.static_range(HALF):
            loaded = loaded + (tl.load(ratios + j),)  # type: ignore[assignment]  # noqa: RUF005
    return loaded


@triton.jit  # type: ignore[untyped-decorator]
def look_up(  # type: ignore[no-untyped-def]
    z, constants, ratios, biases, values, TOKENS,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """A(z), and A'(z) where SLOPE asks for it (else zeros)."""
    if KIND == 2:
        looked, slope = _whole(z, constants[0], ratios, biases, values, TOKENS, SLOPE)
    else:
        looked, slope = _window(z, constants, values, TOKENS, KIND, HALF, BOUNDED, SLOPE)
    return looked, slope


@triton.jit  # type: ignore[untyped-decorator]
def _whole(  # type: ignore[no-untyped-def]
    z, center, slopes, biases, values, TOKENS, SLOPE: tl.constexpr
):
    """Softmax over all tokens with keys (slopes, biases); the largest logit first."""
    t = z - center
    zero = t * 0
    top = zero - float("inf")
    k = 0
    while k < TOKENS:
        top = tl.maximum(top, t * tl.load(slopes + k) + tl.load(biases + k))
        k += 1
    mass, total, ahead, both = zero, zero, zero, zero
    k = 0
    while k < TOKENS:
        slope = tl.load(slopes + k)
        weight = tl.exp(t * slope + tl.load(biases + k) - top)
        value = tl.load(values + k)
        mass += weight
        total += weight * value
        if SLOPE:
            ahead += weight * slope
            both += weight * slope * value
        k += 1
    looked = total / mass
    return looked, both / mass - looked * (ahead / mass)


@triton.jit  # type: ignore[untyped-decorator]
def _window(  # type: ignore[no-untyped-def]
    z, constants, values, TOKENS,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """The 2 HALF + 1 tokens around z by recurrence; KIND 0 is a line, 1 a table."""
    middle, last, sharpness = constants[2], constants[3], constants[4]
    cells = (z - constants[0]) * constants[1]
    nearest = tl.minimum(tl.maximum(tl.floor(cells + (middle + 0.5)), 0.0), last)
    u = cells - (nearest - middle)
    first = tl.minimum(tl.maximum(nearest.to(tl.int32), 0), TOKENS - 1) + HALF
    own = z * 0
    if KIND == 1:
        own = tl.load(values + first)
    mass, total, ahead, both = _sides(u, first, own, constants, values, KIND, HALF, BOUNDED, SLOPE)
    shift = total / mass
    slope = shift
    if KIND == 0:
        looked = constants[6] + constants[5] * ((nearest - TOKENS // 2) + shift)
        if SLOPE:
            slope = both / mass - shift * shift
            slope = slope * (2.0 * sharpness * constants[1] * constants[5])
    elif SLOPE:
        looked = own + shift
        slope = 2.0 * sharpness * constants[1] * (both / mass - shift * (ahead / mass))
    else:
        looked = (own + total) / mass
    return looked, slope


@triton.jit  # type: ignore[untyped-decorator]
def _sides(  # type: ignore[no-untyped-def]
    u, first, own, constants, values,
    KIND: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Sums over the window of the weights, and of the weights times v, j and j v.

    The token j away weighs c_j a^j: all sums are Horner's rule in a. v counts from the nearest
    token's own value where slopes are asked for. Beyond the ends of a table its values are 0.
    BOUNDED is the least j whose token may be there: 1, or more where z is known to be in range.
    """
    LEAST: tl.constexpr = HALF + 1 if BOUNDED == 0 else BOUNDED
    zero = u * 0
    mass, total, ahead, both = zero + 1.0, zero, zero, zero
    token, last = first - HALF, constants[3].to(tl.int32)
    here = values + first
    for side in tl.static_range(2):
        sign = 1 - 2 * side
        factor = tl.exp(constants[4] * (sign * 2 * u - 1.0))
        room = last - token if side == 0 else token
        weight, moment, place, mixed = zero, zero, zero, zero
        for back in tl.static_range(HALF):
            j = HALF - back
            c = constants[6 + HALF - back]
            # One number for all entries as long as it may be.
            there = tl.where(room >= j, c, 0.0) if HALF - back >= LEAST else c
            weight = weight * factor + there if back else zero + there
            if KIND == 0:
                further = there * (sign * j)
                moment = moment * factor + further if back else zero + further
                if SLOPE:
                    mixed = mixed * factor + there * (j * j)
            else:
                value = tl.load(here + sign * j)
                if SLOPE:
                    value = value - own
                    place = place * factor + there * (sign * j)
                    mixed = mixed * factor + (there * (sign * j)) * value
                    moment = moment * factor + there * value
                else:
                    moment = moment * factor + c * value
        mass += weight * factor
        total += moment * factor
        both += mixed * factor
        ahead += place * factor
    return mass, total, ahead, both
