"""Windows of keys in order, against the softmax over all entries in extended precision.

Both ways of reading one are held against it: the loop in C, and an operation at a time.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from iceform.run import windowed
from iceform.run.ordered import OrderedWindow
from iceform.tables import Interpolant
from tests.computer import programs
from tests.run.tables import table

DTYPES = (torch.float64, torch.float32)
FAR = 1e4


def keys_of(kind, dtype):
    """Slopes, biases and values as a prompt's tokens hold them."""
    if kind == "two":
        return tuple(torch.tensor(t, dtype=dtype) for t in ([-24.0, 24.0], [0.0, 0.0], [-1.0, 1.0]))
    if kind == "stairs":  # at the ends of cells logits of 3000 cancel
        k = torch.arange(6.0, dtype=dtype)
        return 6000 * k, -3000 * k**2, k % 2
    if kind == "crowded":
        found = programs.table("sigmoid", torch.sigmoid, programs.zero, -96, 96, 330)
        return tuple(t.to(dtype) for t in (found.slopes, found.biases, found.f))
    if kind == "turned round":
        return tuple(t.flip(0) for t in keys_of("graded", dtype))
    it = table(kind)
    if kind == "graded":
        it = Interpolant.fit(torch.relu, -5, 5, 1e-7 if dtype == torch.float64 else 1e-5)
    biases = it.keys.biases - it.keys.slopes * it.grid.center
    return tuple(t.to(dtype) for t in (it.keys.slopes, biases, it.values))


KINDS = ("graded", "turned round", "two", "stairs", "crowded", "fitted", "steep")


def arguments(window, dtype):
    """Every end, its neighbours, the middles, random ones, and what is far beyond."""
    ends = window.ends
    beside = [torch.nextafter(ends, torch.full_like(ends, side * torch.inf)) for side in (-1, 1)]
    low, high = float(ends[0]) - 1, float(ends[-1]) + 1
    drawn = low + (high - low) * torch.rand(500, generator=torch.Generator().manual_seed(3))
    far = torch.tensor([-FAR, low, 0.0, high, FAR])
    return torch.cat([ends, *beside, window.origins, drawn.to(dtype), far.to(dtype)])


def shares(keys, z):
    """Weights of all entries in extended precision, shape (arguments, entries)."""
    s, b = (t.double().numpy().astype(np.longdouble) for t in keys[:2])
    logits = z.double().numpy().astype(np.longdouble)[:, None] * s + b
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def members(window, z, entries):
    """Which entries are in each argument's window."""
    first = window.first[torch.searchsorted(window.ends, z)].numpy()[:, None]
    k = np.arange(entries)
    return (k >= first) & (k < first + window.offsets.shape[1])


def both_ways(window, z, parabola=None):
    side = windowed.Side(window, parabola)
    looped = windowed.instruct(z[None, :, None], torch.zeros(1, 1, 1).to(z), side, None)[0, :, 0]
    return {"in C": looped, "an operation at a time": window(z)}


def allowed(window, z, weights, values, unit):
    """The module's bound of logits and their exponentials, and sums and a quotient."""
    tau = window.logit_errors(z.double(), z.double()).numpy() + 4 * unit
    mean = (weights * values).sum(-1, keepdims=True)
    size = (weights * np.abs(values)).sum(-1)
    moved = (weights * np.expm1(2 * tau) * np.abs(values - mean)).sum(-1)
    return moved + 2 * (len(values) + 3) * unit * size + 1e-30


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_window_is_the_whole_but_for_its_tail_and_rounding(kind, dtype):
    keys = keys_of(kind, dtype)
    window = OrderedWindow.of(*keys)
    z, values = arguments(window, dtype), keys[2].double().numpy()
    weights = shares(keys, z)
    exact = (weights * values).sum(-1)
    most = allowed(window, z, weights, values, torch.finfo(dtype).eps / 2) + window.tail
    for way, found in both_ways(window, z).items():
        off = np.abs(found.double().numpy() - exact)
        assert (off <= most).all(), (way, float(z[int((off - most).argmax())]), off.max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["graded", "crowded"])
def test_what_is_left_out_weighs_no_more_than_is_said(kind, dtype):
    """And not a thousandth of it everywhere, so a window of one entry less is noticed."""
    keys = keys_of(kind, dtype)
    window = OrderedWindow.of(*keys)
    assert window.offsets.shape[1] < len(keys[0])
    z, swing = arguments(window, dtype), float(keys[2].max() - keys[2].min())
    inside = members(window, z, len(keys[0]))
    outside = float((shares(keys, z) * ~inside).sum(-1).max()) * swing
    assert window.tail / 10 <= outside <= window.tail


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["graded", "crowded"])
def test_every_entry_of_a_window_counts_and_no_other(kind, dtype):
    """Windows far too narrow, of which each entry weighs something."""
    keys = keys_of(kind, dtype)
    window = OrderedWindow.of(*keys)
    width, cells = 16, len(window.first)
    first = (torch.arange(cells) - 9).clamp(0, len(keys[0]) - width)
    s, b = (t.double() for t in keys[:2])
    logits = (s - s[:, None]) * window.origins.double()[:, None] + (b - b[:, None])
    held = logits.gather(1, first[:, None] + torch.arange(width)).to(dtype)
    narrow = replace(window, first=first.int(), offsets=held.contiguous())
    z = arguments(window, dtype)
    weights = shares(keys, z) * members(narrow, z, len(keys[0]))
    exact = (weights * keys[2].double().numpy()).sum(-1) / weights.sum(-1)
    limit = 1e-11 if dtype == torch.float64 else 1e-3
    for way, found in both_ways(narrow, z).items():
        np.testing.assert_allclose(found.double().numpy(), exact, rtol=0, atol=limit, err_msg=way)


def test_keys_in_no_order_have_no_window():
    s, b, v = keys_of("graded", torch.float64)
    assert (
        OrderedWindow.of(torch.cat([s, s[:1]]), torch.cat([b, b[:1]]), v.repeat(2)[: len(v) + 1])
        is None
    )
    assert OrderedWindow.of(s, -b, v) is None
    bent = b.clone()
    bent[len(b) // 2] -= 1e3  # an entry that weighs most nowhere
    assert OrderedWindow.of(s, bent, v) is None
    bent[len(b) // 2] = torch.nan
    assert OrderedWindow.of(s, bent, v) is None
    assert OrderedWindow.of(s[:1], b[:1], v[:1]) is None


def test_what_is_not_a_number_stays_none():
    window = OrderedWindow.of(*keys_of("graded", torch.float64))
    z = torch.tensor([0.5, torch.nan, -0.5], dtype=torch.float64)
    for found in both_ways(window, z).values():
        assert found.isnan().tolist() == [False, True, False]


def test_a_parabola_is_taken_between_its_ends_alone():
    """A wrong parabola shows where it was taken."""
    window = OrderedWindow.of(*keys_of("graded", torch.float64))
    z = torch.linspace(-3, 3, 1001, dtype=torch.float64)
    away = torch.cat([z[:128] - 10, z[:128]])  # whole lines of arguments decide together
    found = both_ways(window, away, (2.0, 3.0, 5.0, -4.0, 4.0))["in C"]
    torch.testing.assert_close(found[:128], window(away[:128]), rtol=1e-12, atol=1e-12)
    inside = away[128:]
    torch.testing.assert_close(found[128:], 2 * inside**2 + 3 * inside + 5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_are_read_as_they_lie(dtype):
    """Each axis long or 1, expanded or turned round, in several parts; with either side or both."""
    window = OrderedWindow.of(*keys_of("graded", dtype))
    other = OrderedWindow.of(*keys_of("fitted", dtype))
    plus, minus = windowed.Side(window, None), windowed.Side(other, None)
    draw = torch.Generator().manual_seed(5)

    def some(*shape):
        return (4 * torch.rand(*shape, generator=draw) - 2).to(dtype)

    pairs = [
        (some(2, 7, 3), some(2, 1, 3)),
        (some(2, 1, 1), some(1, 7, 3)),
        (some(3, 7, 2).mT, some(3, 2, 1)),
        (some(1, 5, 1).expand(4, 5, 3), some(4, 1, 3)),
        (some(1, 40_000, 1), some(1, 1, 2)),
        (some(1, 1, 1), some(1, 1, 1)),
    ]
    for a, b in pairs:
        first, second = window(a + b), other(a - b)
        for sides, exact in (
            ((plus, minus), first - second), ((plus, None), first), ((None, minus), -second),
        ):  # fmt: skip
            found = windowed.instruct(a, b, *sides)
            limit = 1e-12 if dtype == torch.float64 else 1e-4
            torch.testing.assert_close(found, exact.contiguous(), rtol=0, atol=limit)
