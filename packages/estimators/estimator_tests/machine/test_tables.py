"""Tables that grow with the data."""

import math
from dataclasses import replace

import pytest
import torch

from iceform.errors import BoundError
from iceform.expressions import LOSSES, loss_named
from iceform_estimators.machine import Machine
from iceform_estimators.machine.stream import CLIP, IDENTITY, read_line, table_of


@pytest.mark.parametrize("reach", [1e-9, 0.7, 1.0, 1.5, 1000.0])
def test_a_table_covers_what_is_asked_for_by_a_power_of_two(reach):
    table = IDENTITY.on(reach)
    assert table.high == -table.low >= reach
    assert math.log2(table.high) == int(math.log2(table.high))
    assert table.high <= max(2 * reach, 2.0**-6)


def test_the_same_range_is_the_same_table():
    assert IDENTITY.on(0.6) is IDENTITY.on(1.0)
    assert table_of(loss_named("huber"), 33) is table_of(loss_named("huber"), 33)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_of_the_library_has_a_table_within_its_error(name):
    loss = loss_named(name)
    table = table_of(loss, 129).on(4.0)
    z = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    off = float((Machine(1).look_up(table, z) - loss.derivative(z)).abs().max())
    assert off <= table.error, (name, off, table.error)
    assert table.tokens <= 129


@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_a_function_above_another_by_a_constant_takes_its_tokens(share, monkeypatch):
    """No table is fitted for another quantile, and what it is off by is proven of it."""
    median = table_of(loss_named("quantile", width=0.05), 129).on(4.0)
    monkeypatch.setattr("iceform.tables.regimes.best", None)
    loss = loss_named("quantile", quantile=share, width=0.05)
    table = table_of(loss, 129).on(4.0)
    assert (table.grid, table.kind) == (median.grid, "proven")
    z = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    off = float((Machine(1).look_up(table, z) - loss.derivative(z)).abs().max())
    assert 0.1 * off <= 0.1 * table.error <= median.error


def test_a_constant_that_it_is_not_above_by_is_noticed():
    loss = loss_named("quantile", quantile=0.3, width=0.05)
    wrong = replace(loss, raised=(loss.raised[0], 0.25))
    assert table_of(wrong, 129).on(4.0).error >= 0.05


def test_a_clip_is_exact_far_from_its_kinks():
    z = torch.tensor([-1000.0, -30.0, 30.0, 1000.0]).double()
    table = CLIP.on(1024.0)
    assert float((Machine(1).look_up(table, z) - z.sign()).abs().max()) <= table.error


def test_a_users_function_gets_a_table():
    table = table_of(torch.atan, 65).on(2.0)
    z = torch.linspace(-2, 2, 101, dtype=torch.float64)
    assert float((Machine(1, tokens=65).look_up(table, z) - z.atan()).abs().max()) < 1e-6


@pytest.mark.parametrize("size", [0.0, 5e-324, 1e-300, 1.0, 3e12, 1e300])
def test_lines_are_read_at_any_size(size):
    z = size * torch.linspace(-1, 1, 41, dtype=torch.float64)
    got = read_line(Machine(2), z)
    allowed = 2 * IDENTITY.on(1.0).error * 2 * size + 5e-324
    assert float((got - z).abs().max()) <= allowed
    assert read_line(Machine(2), z[:0]).shape == (0,)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_lines_that_are_no_numbers_are_refused(bad):
    with pytest.raises(BoundError, match=f"a prediction is {bad}"):
        read_line(Machine(2), torch.tensor([1.0, bad]).double())
