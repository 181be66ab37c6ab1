"""How many turns a ``while_`` makes at most: never fewer than in a run, or nothing is said."""

import math

import pytest
import torch

import iceform as ice
from iceform.computer.turn_counts import most_turns

GENERATOR = torch.Generator().manual_seed(11)


def counted(step, start=0.0):
    """Turns until i, which a turn moves by ``step(i, y)``, has passed the sum of y."""

    def algorithm(x, y):
        i, turns = ice.constant(start), ice.constant(0)
        while ice.while_(i < ice.sum(y)):
            i = step(i, y)
            turns = turns + 1
        return turns

    return ice.algorithm(algorithm)


def chased(x, y):
    """Both sides of the question move, the one faster than the other."""
    a, b, turns = ice.constant(0.0), ice.sum(y), ice.constant(0)
    while ice.while_(b - a > 0.3):
        a, b = a + 0.75, b + 0.25 * torch.tanh(a)
        turns = turns + 1
    return turns


def both(x, y):
    """Two questions, of which one counts."""
    i, gap, turns = ice.constant(0), ice.constant(1.0), ice.constant(0)
    while ice.while_((i < 12) & (gap > 0.01 * ice.mean(y))):
        i, gap = i + 1, 0.75 * gap
        turns = turns + 1
    return turns


KNOWN = {
    "by one": counted(lambda i, y: i + 1.0),
    "by a value": counted(lambda i, y: i + ice.bounded(ice.max(y), 0.25, 2.0)),
    "by one or three": counted(lambda i, y: i + 1.0 + 2 * (ice.mean(y) > 0.5)),
    "doubled": counted(lambda i, y: 2.0 * i, start=1.0),
    "chased": ice.algorithm(chased),
    "both": ice.algorithm(both),
}
UNKNOWN = {
    "halved": counted(lambda i, y: 0.5 * (i + 9.0)),
    "doubled from 0": counted(lambda i, y: 2.0 * i + 0.5 * ice.min(y)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_no_run_makes_more(name):
    algorithm, most = KNOWN[name], 0.0
    for draw in range(20):
        y = 0.3 + 0.7 * torch.rand(6, dtype=torch.float64, generator=GENERATOR)
        X = torch.zeros(6, 1, dtype=torch.float64)
        if draw == 0:
            program = ice.compile(algorithm, domain={"y": (0.3, 1.0)}, example=(X, y))
            bound = most_turns(next(program.graph.block.loops()), program.ranges)
        most = max(most, float(algorithm(X, y)))
    assert bound is not None
    assert most <= bound <= 64


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_known_where_a_turn_may_add_nothing(name):
    y = torch.full((6,), 0.5, dtype=torch.float64)
    X = torch.zeros(6, 1, dtype=torch.float64)
    program = ice.compile(UNKNOWN[name], domain={"y": (0.0, 1.0)}, example=(X, y))
    assert most_turns(next(program.graph.block.loops()), program.ranges) is None


def test_a_loop_that_doubles_has_a_bound_before_the_fact():
    y = torch.rand(8, dtype=torch.float64, generator=GENERATOR)
    X = torch.zeros(8, 1, dtype=torch.float64)
    program = ice.compile(ice.algorithm(lambda x, y: ice.running_sum(y)), example=(X, y))
    result = ice.Computer.for_programs([program]).run(program, X, y, backend="fused")
    assert result.enclosure.error <= result.certificate.error
    assert math.isfinite(result.certificate.error)
