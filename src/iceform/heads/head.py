"""Heads on paper: rows that read named features, and moves of what is read.

A logit is a sum of products, each of a row of the query and one of the key. What a head carries
is a list of moves: a row of the key, and where it is added in the token that asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.errors import ShapeError
from iceform.heads.network import Features

Place = tuple[str, int]


@dataclass(frozen=True)
class Row:
    """One number of a token: a sum of features times coefficients, plus a constant.

    Parameters
    ----------
    reads
        Coefficients by (name of a block of features, index in it).
    constant
        What is added; plain streams have no biases, so theirs is 0.

    Examples
    --------
    >>> Row.of("x", 1, 3.0).times(2.0)
    Row(reads={('x', 1): 6.0}, constant=0.0)
    >>> Row.over("x", [1.0, -1.0]).reads
    {('x', 0): 1.0, ('x', 1): -1.0}
    >>> Row.flags(null=1.0, data=-5.0).names
    ('null', 'data')
    """

    reads: Mapping[Place, float] = field(default_factory=dict)
    constant: float = 0.0

    @classmethod
    def of(cls, name: str, index: int = 0, coefficient: float = 1.0) -> Row:
        """One feature, scaled."""
        return cls({(name, index): coefficient})

    @classmethod
    def over(cls, name: str, coefficients: Sequence[float]) -> Row:
        """A block of features, each with its own coefficient."""
        return cls({(name, j): c for j, c in enumerate(coefficients)})

    @classmethod
    def flags(cls, **coefficients: float) -> Row:
        """A sum of features of width one."""
        return cls({(name, 0): c for name, c in coefficients.items()})

    def times(self, factor: float) -> Row:
        """The same, scaled."""
        return Row({at: c * factor for at, c in self.reads.items()}, self.constant * factor)

    @property
    def names(self) -> tuple[str, ...]:
        """The blocks that it reads, in order."""
        return tuple(dict.fromkeys(name for name, _ in self.reads))


Pair = tuple[Row, Row]


@dataclass(frozen=True)
class Move:
    """One number that a head carries: what is read at the key, where it is added.

    Examples
    --------
    >>> Move(Row.of("x"), {("w", 0): -0.5})  # read x[0] at the key, add -0.5 times it to w[0]
    Move(value=Row(reads={('x', 0): 1.0}, constant=0.0), writes={('w', 0): -0.5})
    """

    value: Row
    writes: Mapping[Place, float]


@dataclass(frozen=True)
class Head:
    """One head: what it is for, its logit, and what it carries.

    Examples
    --------
    >>> far = Row.of("asks"), Row.of("mark", 0, 100.0)  # askers look at marked tokens
    >>> head = Head("copy", (far,), (Move(Row.of("x"), {("y", 0): 1.0}),))
    >>> head.width
    1
    """

    role: str
    logit: tuple[Pair, ...]
    moves: tuple[Move, ...]

    @property
    def width(self) -> int:
        """The head size it needs."""
        return max(len(self.logit), len(self.moves))


def rows(features: Features, coefficients: Mapping[str, float]) -> tuple[Row, ...]:
    """One row for every number of a block: a sum of blocks of one size, each with its coefficient.

    A single feature goes to every row.

    Examples
    --------
    >>> at = Features.of(x=2, bias=1)
    >>> [row.reads for row in rows(at, {"x": 2.0, "bias": 1.0})]
    [{('x', 0): 2.0, ('bias', 0): 1.0}, {('x', 1): 2.0, ('bias', 0): 1.0}]
    """
    sizes = {name: _size(features, name) for name in coefficients}
    count = max(sizes.values())
    if not set(sizes.values()) <= {1, count}:
        raise ShapeError(f"blocks of the sizes {sizes} do not add up; they need one size, or 1")
    return tuple(
        Row({(name, j if sizes[name] > 1 else 0): c for name, c in coefficients.items()})
        for j in range(count)
    )


def identity(name: str, size: int, factor: float) -> list[dict[Place, float]]:
    """``factor`` times the identity, on the first places of a block, with all of its zeros.

    They have the factor's sign, which a digest sees.
    """
    return [{(name, i): factor * (i == j) for i in range(size)} for j in range(size)]


def products(
    features: Features, query: Mapping[str, float], key: Mapping[str, float]
) -> tuple[Pair, ...]:
    """The inner product of a block of the query and one of the key, as pairs of a logit.

    Examples
    --------
    >>> pairs = products(Features.of(w=2, x=2), {"w": 1.0}, {"x": 1.0})
    >>> len(pairs), pairs[1][0].reads, pairs[1][1].reads
    (2, {('w', 1): 1.0}, {('x', 1): 1.0})
    """
    asked, seen = rows(features, query), rows(features, key)
    if len(asked) != len(seen):
        raise ShapeError(
            f"{', '.join(query)} has {len(asked)} numbers and {', '.join(key)} {len(seen)}: an "
            "inner product needs as many of both"
        )
    return tuple(zip(asked, seen, strict=True))


def moves(features: Features, value: Mapping[str, float], into: str) -> tuple[Move, ...]:
    """Moves of a block that is read at the key into the block ``into`` of the token that asks.

    Examples
    --------
    >>> [move.writes for move in moves(Features.of(x=2), {"x": 1.0}, "mean")]
    [{('mean', 0): 1.0}, {('mean', 1): 1.0}]
    """
    return tuple(Move(row, {(into, j): 1.0}) for j, row in enumerate(rows(features, value)))


def matrix(
    combinations: Sequence[Mapping[Place, float]], features: Features
) -> Float[Tensor, "rows f"]:
    """Combinations of features as rows of a matrix."""
    out = torch.zeros(len(combinations), features.total, dtype=torch.float64)
    used = {name for row in combinations for name, _ in row}
    sizes = {name: _size(features, name) for name in used}
    starts = {name: features[name].start for name in sizes}
    entries = [(i, *place, c) for i, row in enumerate(combinations) for place, c in row.items()]
    beyond = [f"{name}[{j}]" for _, name, j, _ in entries if not 0 <= j < sizes[name]]
    if beyond:
        raise ShapeError(f"{beyond[0]} is read or written, which is outside of its block: {sizes}")
    if entries:
        at, names, places, values = zip(*entries, strict=True)
        columns = [starts[name] + j for name, j in zip(names, places, strict=True)]
        out[list(at), columns] = torch.tensor(values, dtype=torch.float64)
    return out


def _size(features: Features, name: str) -> int:
    if name not in features:
        raise ShapeError(f"no feature is called {name!r}; there are {', '.join(features)}")
    at = features[name]
    return int(at.stop - at.start)


def coefficients(head: Head, kind: str) -> list[Mapping[Place, float]]:
    """The coefficients of a head's map q, k, v or o, row by row; of o, column by column."""
    if kind in "qk":
        return [pair[kind == "k"].reads for pair in head.logit]
    return [move.value.reads if kind == "v" else move.writes for move in head.moves]


def stacked(heads: Sequence[Head], kind: str, features: Features) -> Float[Tensor, "h rows f"]:
    """The map q, k, v or o of heads side by side: (heads, size, features), o transposed.

    Heads that need fewer rows are filled up with zeros.
    """
    each = [coefficients(head, kind) for head in heads]
    most = max(map(len, each))
    empty: list[Mapping[Place, float]] = [{}]
    parts = [matrix(rows + empty * (most - len(rows)), features) for rows in each]
    return torch.stack(parts).mT.contiguous() if kind == "o" else torch.stack(parts)


def touched(head: Head) -> dict[str, list[str]]:
    """What a head reads and writes, by name."""
    reads = {
        "read_as_value": (m.value for m in head.moves),
        "read_as_query": (q for q, _ in head.logit),
        "read_as_key": (k for _, k in head.logit),
    }
    names = {kind: {n for row in each for n in row.names} for kind, each in reads.items()}
    written = {name for m in head.moves for name, _ in m.writes}
    return {kind: sorted(each) for kind, each in {"written": written, **names}.items()}


def describe(head: Head) -> dict[str, object]:
    """Its role, and the names of what it reads and writes."""
    names = touched(head)
    if not head.moves:
        return {"role": head.role}
    return {
        "role": head.role,
        "reads": names["read_as_value"],
        "writes": names["written"],
        "queries": names["read_as_query"],
        "keys": names["read_as_key"],
    }
