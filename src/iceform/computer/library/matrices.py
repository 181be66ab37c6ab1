"""Matrices laid out over lanes: lane i holds row i, as the features of sample i.

A matrix times a vector that is one for all is then a scalar a sample, ``(x * v).sum()``; the
transposed matrix times a scalar a sample is ``n mean(x * u)``, one vector for all. Where a scalar a
sample is to become a vector, every lane needs its own unit vector: it compares its number (``y`` =
i/n) with the numbers of all (``places``), once.
"""

# Authors write no types: values are numbers to them, and vector() as a default says what x is like.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="arg-type,assignment"
# ruff: noqa: B008

from __future__ import annotations

from iceform.computer.language import (
    algorithm,
    constant,
    mean,
    minimum,
    reciprocal,
    repeat,
    vector,
    where,
    zeros_like,
)


def own_place(x, y, places, nodes):
    """The unit vector of each lane."""
    return where(abs(places - y) < 0.5 / nodes, zeros_like(x) + 1.0, zeros_like(x))


@algorithm
def pagerank(x, y, *, places=vector(), damping=0.85, nodes=4.0, steps=30):
    """x_ij: the share of page j's visitors who go on to page i; lane i is page i."""
    own = own_place(x, y, places, nodes)
    rank = zeros_like(x) + 1.0 / nodes
    for _ in repeat(steps):
        rank = (1.0 - damping) / nodes + damping * nodes * mean(own * (x * rank).sum())
    return rank


@algorithm
def sinkhorn(x, y, *, columns=vector(0.25), rows=4.0, steps=20):
    """Factors u, v for which u_i x_ij v_j has the row sums y and the column sums ``columns``."""
    v = zeros_like(x) + 1.0
    u = 0.0 * y
    for _ in repeat(steps):
        u = y * reciprocal((x * v).sum(), 0.25, 8.0)
        v = columns * reciprocal(rows * mean(x * u), 0.0625, 4.0)
    return {"u": u, "v": v}


@algorithm
def bellman_ford(x, y, *, places=vector(), source=vector(), nodes=4.0, steps=3):
    """Shortest ways: x_ij is the length of the way from j to i, 1 where there is none."""
    own = own_place(x, y, places, nodes)
    reached = +source
    for _ in repeat(steps):
        best = (own * reached).sum()
        for j in range(4):
            best = minimum(best, x[j] + reached[j])
        reached = nodes * mean(own * best)
    return reached


@algorithm
def gaussian_process(x, y, *, similar=vector(), lr=0.5, steps=150):
    """Posterior mean at a point: x is a row of K + noise I, ``similar`` the point's kernel values.

    Solves (K + noise I) a = y by gradient descent on the residuals.
    """
    a = zeros_like(x)
    for _ in repeat(steps):
        a = a - lr * mean(x * ((x * a).sum() - y))
    return (similar * a).sum() + constant(0.0)
