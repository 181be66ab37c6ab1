"""Forty algorithms as one would write them from docs/write_your_own.md: how many run at once?

``python -m tests.computer.forty_algorithms`` compiles each with its data as the example, runs it
fused, and prints what became of it: "ran", "off" (by more than eps and not warned of), or the
refusal. ``SHARED`` are those of :mod:`tests.computer.before_the_fact`, told nothing but the data.
"""

# ruff: noqa: B008
from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import iceform as ice
from tests.computer.before_the_fact import CASES as KNOWN
from tests.computer.before_the_fact import empty, flat, numbers, uniform

EPS = 1e-8
CASES: dict[str, tuple[Callable[..., Any], torch.Tensor, torch.Tensor]] = {}
PEERS: dict[str, Callable[..., Any]] = {}  # of some, in plain Python and NumPy


X, NOISE = uniform(16, 3), uniform(16, seed=1)
LINE = X @ numbers([0.5, -0.3, 0.8]) + 0.1 * NOISE
SERIES = torch.sin(torch.arange(12.0)).double() * 0.8 + 0.1 * uniform(12, seed=2)
EMPTY = empty(12)
SHARED = (
    "adaboost", "adagrad_100", "golden", "gram_schmidt", "mean_shift", "median",
    "metropolis", "mlp", "naive_bayes", "newton_root", "pendulum", "power_deflate", "rmsprop",
    "rnn", "rule110", "running_max", "secant",
)  # fmt: skip


def case(data: torch.Tensor, targets: Any, peer: Any = None) -> Callable[..., Any]:
    """Note an algorithm with its data, and what it is compared with."""
    y = torch.as_tensor(targets, dtype=torch.float64)

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function.__name__] = (ice.algorithm(function), data, y)
        if peer is not None:
            PEERS[function.__name__] = peer
        return function

    return note


# ------------------------------------------------------------------------------- learning


@case(X, LINE)
def nearest_neighbour(x, y, *, query=ice.vector(0.2)):
    return ice.at(y, ice.argmin(((x - query) ** 2).sum()))


@case(X, LINE)
def lasso_by_coordinates(x, y, *, alpha=0.05, steps=10):
    w = ice.zeros_like(x)
    for t in ice.repeat(steps):
        unit = ice.one_hot(t % 3, 3)
        rest = y - x @ w + x @ (unit * w)
        mine = x @ unit
        w = w * (1 - unit) + unit * ice.soft_threshold(ice.mean(mine * rest), alpha) / ice.mean(
            mine * mine
        )
    return w


# ---------------------------------------------------------------------------- numbers


@case(empty(2), [48, 36])
def lowest_common_multiple(x, y):
    a, b = torch.round(ice.at(y, 0)), torch.round(ice.at(y, 1))
    product = a * b
    while ice.while_(b > 0):
        a, b = b, a % b
    return product / a


@case(empty(1), [29])
def smallest_divisor(x, y):
    n, k = torch.round(ice.at(y, 0)), ice.constant(2)
    while ice.while_(n % k > 0):
        k = k + 1
    return k


@case(empty(1), [97])
def digital_root(x, y):
    n = torch.round(ice.at(y, 0))
    while ice.while_(n > 9):
        n = n // 10 + n % 10
    return n


@case(empty(12), torch.arange(12.0))
def primes(x, y):
    """Which of the numbers 0 .. 11 are prime."""
    divisors = 0 * y
    for k in ice.repeat(ice.count()):
        divisors = divisors + (ice.index() % (k + 1) == 0)
    return divisors == 2


@case(empty(1), [10])
def fibonacci(x, y):
    a, b, k = ice.constant(0), ice.constant(1), torch.round(ice.at(y, 0))
    while ice.while_(k > 0):
        a, b, k = b, a + b, k - 1
    return a


@case(empty(1), [37])
def binary_digits(x, y):
    n, digits = torch.round(ice.at(y, 0)), []
    for _ in range(6):
        digits.append(n % 2)
        n = n // 2
    return ice.concat(*digits)


@case(empty(1), [0.6])
def horner(x, y):
    value, t = ice.constant(0.0), ice.at(y, 0)
    for c in (0.5, -1.0, 0.25, 2.0):
        value = value * t + c
    return value


# --------------------------------------------------------------------------- sequences


@case(EMPTY, SERIES)
def moving_average(x, y):
    return (y + ice.previous(y) + ice.previous(y, 2)) / 3


@case(EMPTY, SERIES)
def exponential_smoothing(x, y, *, rate=0.3):
    level = ice.at(y, 0)
    for t in ice.repeat(ice.count()):
        level = level + rate * (ice.at(y, t) - level)
    return level


@case(EMPTY, SERIES)
def autocorrelation(x, y, *, lag=2):
    centred = y - ice.mean(y)
    return ice.sum(centred * ice.previous(centred, lag)) / ice.sum(centred**2)


@case(EMPTY, SERIES)
def largest_subarray(x, y):
    best, here = ice.at(y, 0), ice.constant(0.0)
    for t in ice.repeat(ice.count()):
        here = max(here, 0) + ice.at(y, t)
        best = max(best, here)
    return best


@case(EMPTY, SERIES)
def inversions(x, y):
    count = 0 * y
    for k in ice.repeat(ice.count()):
        before = ice.index() > k
        count = count + before * (ice.at(y, k) > y + (ice.index() == k))
    return ice.sum(count)


@case(EMPTY, torch.sort(SERIES).values)
def binary_search(x, y, *, wanted=0.11):
    low, high = ice.constant(0), +ice.count()
    while ice.while_(low < high):
        middle = (low + high) // 2
        less = ice.at(y, middle) < wanted
        low, high = ice.where(less, middle + 1, low), ice.where(less, high, middle)
    return low


@case(EMPTY, (SERIES > 0).double())
def longest_run(x, y):
    best, run = ice.constant(0), ice.constant(0)
    for t in ice.repeat(ice.count()):
        run = torch.round((run + 1) * ice.at(y, t))
        best = max(best, run)
    return best


@case(EMPTY, SERIES)
def kalman_filter(x, y, *, drift=0.1, noise=0.2):
    state, spread = ice.constant(0.0), ice.constant(1.0)
    for t in ice.repeat(ice.count()):
        spread = spread + drift
        gain = spread / (spread + noise)
        state = state + gain * (ice.at(y, t) - state)
        spread = (1 - gain) * spread
    return state


@case(empty(5), [0.1, -0.2, 0.3, 0.0, 0.5])
def value_iteration(x, y, *, discount=0.5, steps=10):
    value = 0 * y
    for _ in ice.repeat(steps):
        value = y + discount * max(value, ice.at(value, ice.index() - 1), ice.previous(value, -1))
    return value


@case(torch.tensor([[2.0], [3.0], [4.0]]).double(), [3, 4, 6])
def knapsack(x, y):
    """Weights x, worths y, and room for 6."""
    best = ice.constant([0.0] * 7)
    for t in ice.repeat(ice.count()):
        weight, worth = torch.round(ice.at(x[0], t)), ice.at(y, t)
        taken = [best[k - weight] + worth - 99 * (weight > k) for k in range(7)]
        best = max(best, ice.concat(*taken))
    return best[6]


# ------------------------------------------------------------------------------ physics


@case(empty(9), torch.eye(9)[4])
def heat(x, y, *, rate=0.2, steps=10):
    u = +y
    for _ in ice.repeat(steps):
        u = u + rate * (ice.previous(u) - 2 * u + ice.previous(u, -1))
    return u


@case(uniform(4, 2), uniform(4, seed=1, low=0.5))
def gravity(x, y):
    """The force on every body, with masses y."""
    force = 0 * x
    for j in ice.repeat(ice.count()):
        apart = ice.at(x, j) - x
        force = force + ice.at(y, j) * apart * (apart @ apart + 0.01) ** (-1.5)
    return force


@case(empty(1), [0.4])
def logistic_map(x, y, *, rate=3.2, steps=20):
    v = ice.at(y, 0)
    for _ in ice.repeat(steps):
        v = rate * v * (1 - v)
    return v


@case(empty(4), [0.1, 0.2, 0.3, 0.4])
def markov_chain(x, y, *, steps=20):
    p = ice.constant([1.0, 0.0, 0.0])
    for _ in ice.repeat(steps):
        p = p @ [[0.5, 0.25, 0.25], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]]
    return p


# ------------------------------------------------------------------------------- the run


CASES |= {name: (it.algorithm, it.X, it.y) for name, it in KNOWN.items() if name in SHARED}


def ran(name: str) -> str:
    """What became of an algorithm at the first try."""
    made, data, targets = CASES[name]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        program = ice.compile(made, eps=EPS, example=(data, targets))
        result = ice.Computer.for_programs([program]).run(program, data, targets, backend="fused")
    exact = flat(made(data, targets))
    if name in PEERS:
        peer = flat(PEERS[name](data.numpy().copy(), targets.numpy().copy()))
        assert torch.allclose(exact, peer, rtol=0, atol=1e-9), "what runs on tensors is another one"
    off = float((flat(result.value) - exact).abs().max())
    assert off <= result.enclosure.error + 1e-13 * max(1.0, float(exact.abs().max()))
    warned = any(issubclass(w.category, ice.errors.PrecisionWarning) for w in told)
    if off > EPS * max(1.0, float(exact.abs().max())) and not warned:
        return f"off by {off:.1e}"
    return "ran, warned" if warned else "ran"


def main() -> int:
    """All of them."""
    found = {}
    for name in CASES:
        began = time.process_time()
        try:
            found[name] = ran(name)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[:300]}"
        print(f"{name:24} {time.process_time() - began:5.1f} s  {found[name]}", flush=True)
    count = sum(v.startswith("ran") for v in found.values())
    print(f"{count} of {len(found)} ran at the first try")
    return 0


if __name__ == "__main__":
    sys.exit(main())
