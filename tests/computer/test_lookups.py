"""Look-ups of the fused backend: windows and parabolas are what softmax over the entries is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from iceform.computer import library
from iceform.computer.compile import compile
from iceform.computer.instructions import TablePair
from iceform.computer.lookups import (
    Extents,
    TableLookup,
    quadratic,
    uniform,
)
from iceform.computer.rounding import column_facts, table_facts
from iceform.run import windowed
from iceform.run.ordered import OrderedWindow
from tests.computer import programs

MANY = 1 << 15
POINTS = 400  # looked up again in extended precision


def graded():
    """A table of the compiler whose entries crowd where a sigmoid bends."""
    program = compile(library.logistic, dim=2, samples=4)
    return max(program.assembly.tables, key=lambda t: t.tokens)


TABLES = {
    "square": lambda: programs.parabola(-4.0, 4.0, 0.25, 0.0, 0.0),
    "line": lambda: programs.parabola(-1.0, 1.0, 0.0, 1.0, -0.01),
    "off centre": lambda: programs.parabola(0.5, 2.5, -1.0, 2.0, 1.0),
    "fitted": lambda: programs.filtering().tables[0],
    "fitted square": lambda: programs.times(3.0),
    "many entries": lambda: programs.halving().tables[0],
    "graded": graded,
}


def looked_up(table, z, dtype=torch.float64):
    """F of arguments, by a table that a prompt of this dtype holds."""
    columns = [t.to(dtype) for t in (table.slopes, table.biases, table.f, 0 * table.g)]
    return TableLookup(*columns)(z[None, :, None], torch.zeros(1, 1, 1, dtype=dtype), Extents())


@pytest.mark.parametrize("count", [POINTS, MANY])
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", TABLES)
def test_look_ups_are_within_their_rounding(name, dtype, loops, count, monkeypatch):
    table = TABLES[name]()
    if not loops:
        monkeypatch.setattr(windowed, "ready", lambda z: False)
    z = (table.low + (table.high - table.low) * torch.rand(count)).to(dtype)
    z[0], z[1] = table.low, table.high
    got = looked_up(table, z, dtype)[0, :POINTS, 0].double().numpy()
    exact = programs.look_up(table, table.f, z[:POINTS].double().numpy().astype(np.longdouble))
    allowed = table_facts(table, dtype, "fused")[0].rounding
    off = np.abs(got - exact).max()
    assert off <= allowed, f"off by {off:.3e}, allowed {allowed:.3e}"


def test_logits_as_unlucky_as_rounding_allows_are_within_it():
    """Every product and sum of a logit rounds towards moving the look-up one way."""
    table, unit = TABLES["many entries"](), 2.0**-30
    s, b, v = table.slopes, table.biases, table.f
    z = torch.linspace(table.low, table.high, 4001, dtype=torch.float64)[:, None]
    right = torch.softmax(s * z + b, -1)
    above = (v - (right @ v)[:, None]).sign()
    wrong = torch.softmax(s * z + b + above * 2 * unit * ((s * z).abs() + b.abs()), -1)
    off = float(((wrong - right) * v).sum(-1).abs().max())
    facts = column_facts(s, b, v, table.low, table.high, unit)
    assert facts.rounding / 8 < off <= facts.rounding, (off, facts.rounding)


def test_parabolas_are_read_off_their_entries():
    unit = 2.0**-53
    for name, low, high in (("square", -4.0, 4.0), ("off centre", 0.5, 2.5)):
        table = TABLES[name]()
        even = uniform(table.slopes, table.biases, table.f)
        assert even is not None
        curve = quadratic(even, unit)
        assert curve is not None
        assert (curve.low, curve.high) == pytest.approx((low, high))
        wanted = (0.25, 0.0, 0.0) if name == "square" else (-1.0, 2.0, 1.0)
        assert curve.coefficients == pytest.approx(wanted, abs=1e-13)
        for entry in (10, 14, 20):
            values = even.values.clone()
            values[entry] += 1e-9
            assert quadratic(even.with_values(values, 0.0), unit) is None
    tanh = programs.table("tanh", torch.tanh, programs.zero, -1, 1, 8)
    found = uniform(tanh.slopes, tanh.biases, tanh.f)
    assert found is not None
    assert quadratic(found, unit) is None


def test_products_are_what_two_parabolas_make():
    """Terms of a, of b and of neither are kept, and an argument beyond the parabolas is told."""
    plus = programs.parabola(-4, 4, 0.25, 0.5, 0.0)
    minus = programs.parabola(-4, 4, 0.25, -0.25, -1)
    table = TableLookup(plus.slopes, plus.biases, plus.f, minus.f)
    watched = Extents()
    a = 4 * torch.rand(1, MANY, 3, dtype=torch.float64) - 2
    b = 4 * torch.rand(1, 1, 3, dtype=torch.float64) - 2
    for first, second in ((a, b), (b, a)):
        found = table(first, second, watched)
        exact = a * b + 0.75 * first + 0.25 * second + 1
        for got, wanted in (
            (found.dense, exact),
            (found.mean(), exact.mean(1, keepdim=True)),
            (found.times(torch.ones(3, 1).double()), exact.sum(-1, keepdim=True)),
        ):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    assert not watched.outside()
    table(a, b + 3, watched)
    assert watched.outside()


def test_long_tables_are_even_too():
    """Of second differences of biases as large as these nothing would be left."""
    long = programs.table("sigmoid", torch.sigmoid, programs.zero, -96, 96, 330)
    found = uniform(long.slopes, long.biases, long.f)
    assert found is not None
    assert found.tokens == len(long.f)


def test_keys_that_are_on_no_even_grid_are_not_taken_for_one():
    square = TABLES["square"]()
    assert uniform(square.slopes, square.biases, square.f) is not None
    bent = square.slopes.clone()
    bent[5] *= 1 + 1e-12
    assert uniform(bent, square.biases, square.f) is None
    assert uniform(square.slopes, 0.5 * square.biases + square.slopes**3, square.f) is None
    two = torch.tensor([-24.0, 24.0], dtype=torch.float64)
    assert uniform(two, 0 * two, two) is None
    # A line that all keys have in common is seen by no softmax.
    moved = uniform(square.slopes + 3.0, square.biases - 7.0, square.f)
    assert moved is not None
    assert moved.grid.low == pytest.approx(-28.0)


@pytest.mark.parametrize("name", ["square", "fitted"])
def test_bounds_of_slope_and_size(name):
    table = TABLES[name]()
    facts = column_facts(table.slopes, table.biases, table.f, table.low, table.high, 2.0**-53)
    z = np.linspace(table.low, table.high, 2001).astype(np.longdouble)
    looked = programs.look_up(table, table.f, z)
    steepest = np.abs(np.diff(looked) / np.diff(z)).max()
    assert steepest <= facts.slope <= 3 * steepest
    assert np.abs(looked).max() <= facts.largest <= 1.5 * np.abs(looked).max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_fused_look_up_is_off_by_what_either_way_of_reading_it_is(dtype):
    """Of steep steps near 0 a window's logits are rounded more than those of the entries."""
    k, unit = torch.arange(6.0, dtype=torch.float64), torch.finfo(dtype).eps / 2
    entries = 6000 * k, -3000 * k**2, k % 2
    table = TablePair("stairs", *entries, 0 * k, 0.0, 1.0, 0.0, 0.0)
    window = OrderedWindow.of(*(t.to(dtype) for t in entries))
    written = float(dtype != torch.float64)
    near = column_facts(*entries, 0.0, 1.0, unit, extra=written, window=window).rounding
    assert table_facts(table, dtype)[0].rounding < near
    assert near <= table_facts(table, dtype, "fused")[0].rounding
