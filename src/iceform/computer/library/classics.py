"""Classics of computer science and of optimisation, each at most fifteen lines.

Sequences are samples in their order: the targets y, or columns of x, one sample a place.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="arg-type,assignment"

from __future__ import annotations

import torch

from iceform.computer.language import (
    algorithm,
    concat,
    constant,
    mean,
    minimum,
    one_hot,
    repeat,
    where,
    while_,
    zeros_like,
)
from iceform.computer.samples import argmax, argmin, at, count, index, previous, running_sum
from iceform.computer.samples import max as largest
from iceform.computer.samples import min as smallest
from iceform.computer.samples import sum as total

# ---------------------------------------------------------------------------------------------
# Whole numbers
# ---------------------------------------------------------------------------------------------


@algorithm
def greatest_common_divisor(x, y):
    """Of the first two numbers, by Euclid's algorithm."""
    a, b = torch.round(at(y, 0)), torch.round(at(y, 1))
    while while_(b > 0):
        a, b = b, a % b
    return a


@algorithm
def collatz(x, y):
    """How many steps of n -> n/2 or 3n + 1 lead from the first number to 1."""
    n, steps = torch.round(at(y, 0)), constant(0)
    while while_(n > 1):
        n = where(n % 2 == 0, n // 2, 3 * n + 1)
        steps = steps + 1
    return steps


@algorithm
def balanced_brackets(x, y):
    """1 if brackets, 1 for one that opens and -1 for one that closes, match, else 0."""
    depth = running_sum(y)
    return (smallest(depth) > -0.5) & (total(y) == 0)


@algorithm
def histogram(x, y):
    """How many numbers of [0, 1) fall into each of four equal bins."""
    return total(one_hot(torch.floor(4.0 * y), 4))


@algorithm
def largest_sample(x, y):
    """The largest target, and the number of its sample."""
    return {"value": largest(y), "place": argmax(y)}


@algorithm
def sort(x, y):
    """In ascending order: everyone counts those below, and goes to that place."""
    rank, out = 0 * y, 0 * y
    for j in repeat(count()):
        rank = rank + (y > at(y, j) + (index() == j))
    for j in repeat(count()):
        out = where(index() == at(rank, j), at(y, j), out)
    return out


@algorithm
def edit_distance(x):
    """Levenshtein's, of two words of one length: column 0 of x, and column 1."""
    row = index() + 1
    for i in repeat(count()):
        other = previous(row, 1, i) + (x[1] != at(x[0], i))
        row, step = minimum(minimum(row + 1, other), index() + i + 2), constant(1)
        while while_(step < count()):
            row = minimum(row, previous(row, step, 99.0) + step)
            step = 2 * step
    return at(row, count() - 1)


# ---------------------------------------------------------------------------------------------
# Graphs and linear systems: lane i is node i, or row i
# ---------------------------------------------------------------------------------------------


@algorithm
def dijkstra(x):
    """How far every node is from node 0; x_ij is the length of the way from j to i, 9 for none."""
    far = 9.0 * (index() > 0)
    done = 0 * far
    for _ in repeat(count()):
        node = argmin(far + 20.0 * done)
        far = minimum(far, at(far, node) + x[node])
        done = done + (index() == node)
    return far


@algorithm
def gaussian_elimination(x, y):
    """Solves x w = y: every turn takes the largest entry of a column among rows not yet taken."""
    place = 0 * y - 1
    for k in repeat(count()):
        pivot = argmax(abs(x[k]) - 9.0 * (place >= 0))
        row, right, here = at(x, pivot), at(y, pivot), index() == pivot
        lead = row[k] / (row[k] * row[k])
        rate = where(here, 1.0 - lead, x[k] * lead)
        x, y = x - rate * row, y - rate * right
        place = where(here, +k, place)
    return total(y * one_hot(place, len(x)))


# ---------------------------------------------------------------------------------------------
# Hidden Markov models: two states, symbols 0 and 1
# ---------------------------------------------------------------------------------------------

MOVES = ((0.7, 0.3), (0.4, 0.6))  # from a state, a row, to a state
SAID = ((0.9, 0.1), (0.2, 0.8))  # by a state, a row, of each symbol
LOG_MOVES = torch.log(torch.tensor(MOVES, dtype=torch.float64)).tolist()
LOG_SAID = torch.log(torch.tensor(SAID, dtype=torch.float64)).T  # of a symbol, a row


@algorithm
def hidden_markov(x, y):
    """The logarithm of the probability of y, and that of the states after it."""
    state, log = constant([0.5, 0.5]), constant(0.0)
    for t in repeat(count()):
        said = [row[0] for row in SAID] + at(y, t) * [row[1] - row[0] for row in SAID]
        both = state * said
        log = log + torch.log(both.sum())
        state = both / both.sum() @ MOVES
    return {"log": log, "state": state}


@algorithm
def viterbi(x, y):
    """The states that say y most probably, one a sample: scores forward, then back from the end."""
    score, from_0, from_1, path = constant([0.0, 0.0]), 0 * y, 0 * y, 0 * y
    for t in repeat(count()):
        to_0, to_1 = score + [row[0] for row in LOG_MOVES], score + [row[1] for row in LOG_MOVES]
        from_0 = where(index() == t, to_0[1] > to_0[0], from_0)
        from_1 = where(index() == t, to_1[1] > to_1[0], from_1)
        said = LOG_SAID[0] + at(y, t) * (LOG_SAID[1] - LOG_SAID[0])
        score = concat(to_0.max(), to_1.max()) + said
    state = score[1] > score[0]
    for t in repeat(count()):
        last = count() - 1 - t
        path = where(index() == last, state, path)
        state = at(where(state > 0.5, from_1, from_0), last)
    return path


# ---------------------------------------------------------------------------------------------
# Optimisers, on least squares with the penalty (alpha/2) |w|^2
# ---------------------------------------------------------------------------------------------


def slope(x, y, w, alpha):
    """The gradient at w."""
    return mean(x * ((x * w).sum() - y)) + alpha * w


@algorithm
def adam(x, y, *, alpha=0.1, lr=0.05, steps=40):
    """Kingma and Ba's, with their default rates 0.9 and 0.999."""
    w, m, v = zeros_like(x), zeros_like(x), zeros_like(x)
    for t in repeat(steps):
        g = slope(x, y, w, alpha)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        size = torch.sqrt(v / (1.0 - 0.999 ** (t + 1.0))) + 1e-8
        w = w - lr * m / (1.0 - 0.9 ** (t + 1.0)) / size
    return w


@algorithm
def lbfgs(x, y, *, alpha=0.1, lr=0.5, steps=3):
    """The quasi-Newton method of limited memory, of one pair, with unit steps."""
    w = zeros_like(x)
    g = slope(x, y, w, alpha)
    s = -lr * g
    u = slope(x, y, w + s, alpha) - g
    w, g = w + s, g + u
    for _ in repeat(steps):
        along = (s @ g) / (s @ u)
        q = (g - along * u) * (s @ u) / (u @ u)
        step = -q - (along - (u @ q) / (s @ u)) * s
        new = slope(x, y, w + step, alpha)
        w, s, u, g = w + step, +step, new - g, +new
    return w
