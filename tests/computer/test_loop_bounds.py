"""What turns do to errors: bounds hold for pairs of runs, and are refused where they are not so."""

# ruff: noqa: B008

import math

import pytest
import torch

from iceform.computer import Computer, library
from iceform.computer.compile import compile
from iceform.computer.language import (
    algorithm,
    attend,
    constant,
    maximum,
    mean,
    repeat,
    soft_threshold,
    vector,
    while_,
    zeros_like,
)
from iceform.computer.loop_bounds import growths
from iceform.computer.loop_slices import RangesAtParameters
from tests.computer.random_programs import data

DIM, SAMPLES = 3, 6


def thresholds(x, y, *, start=vector(), t=0.05, lr=0.5, steps=5):
    w = +start
    for _ in repeat(steps):
        w = soft_threshold(w - lr * mean(x * ((x * w).sum() - y)), t)
    return w


def projected(x, y, *, start=vector(), lr=0.5, steps=5):
    w = +start
    for _ in repeat(steps):
        w = torch.clamp(w - lr * mean(x * torch.tanh((x * w).sum() - y)), -0.3, 0.6)
    return w


def nesterov(x, y, *, start=vector(), other=vector(), lr=0.3, momentum=0.9, steps=5):
    w, ahead = +start, +other
    for _ in repeat(steps):
        before = w
        w = ahead - lr * mean(x * ((x * ahead).sum() - y))
        ahead = w + momentum * (w - before)
    return {"w": w, "ahead": ahead}


def heavy_ball(x, y, *, start=vector(), other=vector(), lr=0.5, momentum=0.6, steps=5):
    w, before = +start, +other
    for _ in repeat(steps):
        w, before = w - lr * mean(x * ((x * w).sum() - y)) + momentum * (w - before), w
    return {"w": w, "before": before}


def averaged(x, y, *, start=vector(), gain=0.8, steps=5):
    v = +start
    for _ in repeat(steps):
        v = gain * maximum(v - 0.25 * v, attend(mean(x), x, x) + 0.5 * v[0])
    return v


def visited(x, y, *, start=vector(0.25), share=0.3, steps=5):
    rank = +start
    for _ in repeat(steps):
        rank = 0.1 + share * mean(x * (x * rank).sum())
    return rank


HALF = {"x": (0.0, 1.0), "y": (0.0, 1.0)}
LOOPS = {
    "thresholds": (thresholds, {}, True),
    "projected": (projected, {}, True),
    "nesterov": (nesterov, {}, True),
    "heavy_ball": (heavy_ball, {}, True),
    "averaged": (averaged, {}, False),
    "visited": (
        visited, {"domain": HALF, "start": (0.25, 1.0), "bounds": {"rank": (0.0, 4.0)}}, False,
    ),
}  # fmt: skip


def compiled(written, **given):
    return compile(algorithm(written), DIM, SAMPLES, **given)


def bounds(program, turns, begin, **settings):
    """After so many turns, by everything that is proven of the loop; in either norm."""
    scalars = {n: float(v[0]) for n, v in program.parameters(**settings).items()}
    (loop,) = program.graph.block.loops()
    return {
        g.description: (g.euclidean, g.after(turns, begin[g.euclidean], 0.0))
        for g in growths(loop, RangesAtParameters(program.ranges, scalars))
    }


def corners(domain, seed):
    """Data at the domain's ends, often all of one direction: what errors grow most along."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.where(torch.rand(SAMPLES, DIM, generator=draw) < 0.5, domain.x.low, domain.x.high)
    x = x[:1].expand(SAMPLES, DIM) if seed % 2 else x
    return x.double(), torch.rand(SAMPLES, generator=draw, dtype=torch.float64)


def run(program, X, y, start, moved, turns):
    """A second state is moved the other way: momentum takes that for speed."""
    given = {"start": moved, "other": 2 * start - moved}
    known = {name: value for name, value in given.items() if name in program.graph.parameters}
    return program.reference(X, y, steps=turns, **known)


@pytest.mark.parametrize("name", LOOPS)
def test_two_runs_drift_apart_by_no_more_than_is_proven(name):
    written, given, euclidean = LOOPS[name]
    program = compiled(written, **given)
    states = len(next(program.graph.block.loops()).carried)
    tightest = 0.0
    for seed in range(24):
        X, y = corners(program.domain, seed)
        draw = torch.Generator().manual_seed(seed)
        start = 0.25 + 0.5 * torch.rand(DIM, generator=draw, dtype=torch.float64)
        moved = start + 1e-3 * torch.randn(DIM, generator=draw, dtype=torch.float64)
        for turns in (1, 3, 10, 40):
            runs = [run(program, X, y, start, s, turns) for s in (start, moved)]
            ends = [torch.cat(list(r.values())) if isinstance(r, dict) else r for r in runs]
            off = moved - start
            begin = {True: math.sqrt(states) * float(off.norm()), False: float(off.abs().max())}
            for norm, bound in bounds(program, turns, begin).values():
                drift = ends[1] - ends[0]
                size = float(drift.norm() if norm else drift.abs().max())
                assert size <= bound * (1 + 1e-9) + 1e-15
                if norm == euclidean:
                    tightest = max(tightest, size / bound)
    assert tightest >= 0.1


def test_what_pushes_apart_is_not_called_still():
    program = compiled(thresholds, t=(-0.1, 0.1), bounds={"w": 4.0})
    begin = {True: 1.0, False: 1.0}
    (still,) = (b for norm, b in bounds(program, 10, begin).values() if norm and b < 2)
    assert still <= 1 + 1e-9
    # Both parts of a threshold below 0 are inclined between its ends: slope 2.
    assert all(b >= 2.0**10 for _, b in bounds(program, 10, begin, t=-0.05).values())


@pytest.mark.parametrize(("lr", "grows"), [(0.43, False), (0.5, True)])
def test_momentum_is_stable_up_to_its_longest_step(lr, grows):
    """With momentum b errors grow from lr L = (2 + 2b)/(1 + 2b) on; L = 3, b = 0.9."""
    program = compiled(nesterov, bounds={"w": 4.0, "ahead": 4.0})
    found = bounds(program, 400, {True: 1.0, False: 1.0}, lr=lr)
    assert (min(b for _, b in found.values()) > 1e3) == grows


def test_loops_of_the_library_are_certified_before_the_fact():
    """Two hundred turns, for all data of the domain."""
    most = {
        "least_squares": 1e-8, "ridge": 1e-8, "logistic": 1e-8, "nesterov": 1e-6, "huber": 1e-6,
        "lasso": 1e-6, "elastic_net": 1e-6, "perceptron": 1e-8, "pagerank": 1e-7,
        "gaussian_process": 1e-6,
    }  # fmt: skip
    for name, bound in most.items():
        example = library.EXAMPLES[name]
        settings = {**example.settings, "steps": 200}
        known, _ = example.compile().certify(backend="literal", **settings)
        assert known.error <= bound, name


def test_states_are_bounded_apart():
    """A step size that falls, and the number of turns that the data decide."""

    def written(x, y, *, pull=0.25):
        w = zeros_like(x)
        far, rate = mean(y * y) + 1.0, pull + 0.0
        while while_(far > 0.1):
            far, rate = 0.5 * far, 0.9 * rate
            w = 0.9 * w - rate * mean(x * ((x * w).sum() - y))
        return w

    assert compiled(written, bounds={"w": 4.0}).certificate.error <= 1e-8


def counted_after_chaos(x, y, *, rounds=60):
    """How many turns there are is told by their sum: 0, 1, 1.5, 1.75, ..."""
    w, turns = 0.5 + 0.3 * mean(y), constant(0.0)
    for _ in repeat(rounds):
        w = 3.9 * w * (1.0 - w)
    while while_(w > 0.2):
        w, turns = 0.7 * w, 0.5 * turns + 1.0
    return turns


def added_up(x, y, *, rounds=60):
    """What is added is off by the same in every turn."""
    part, total = torch.tanh(0.7 * mean(y)), constant(0.0)
    for _ in repeat(rounds):
        total = total + part
    return total


@pytest.mark.filterwarnings("ignore::iceform.errors.PrecisionWarning")
@pytest.mark.parametrize(
    ("function", "bounds", "rounds"),
    [(counted_after_chaos, {"w": (0.0, 1.0)}, 60), (added_up, {"total": 600.0}, 500)],
)
def test_runs_stay_within_what_is_known_before_the_fact(function, bounds, rounds):
    """Also where errors have grown so large that a branch is decided otherwise, or still grow."""
    program = compile(algorithm(function), 1, 5, eps=1e-3, bounds=bounds, rounds=(1, 600))
    computer = Computer.for_programs([program])
    assert program.certify(rounds=3)[0].error < 1e-6
    before, _ = program.certify(torch.float64, "fused", rounds=rounds)
    found = []
    for seed in range(4):
        run = computer.run(program, *data(seed, 1), rounds=rounds, backend="fused")
        found.append(run.enclosure.error)
    assert max(found) <= before.error
    if function is counted_after_chaos:  # and it did happen, and is said
        assert max(found) > 0.01
        assert any("turns decided in line" in what for what in before.domain)
