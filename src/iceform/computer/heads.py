r"""Heads as sums of named terms.

A logit is a sum of terms, each a product of a linear map of the query and one of the key. Every
mask is a sum of products of bits and flags that are all **exactly 0 where the key is meant to be
seen**, so a mask of any size costs no precision there: with bits b, b' the term

.. math:: -W \sum_j \big(b_j (1 - b'_j) + (1 - b_j) b'_j\big)

is 0 for equal codes and at most -W otherwise. With X >= tau + Lambda and W = 4 X a head sees

* 0 (plus a logit in [-Lambda, Lambda]) on the keys that match, from a token that asks;
* -X on the null token, from a token that asks: it answers where nothing matches;
* at most -W + Lambda on everything else; and from a token that does not ask -W + Lambda on
  everything but the null token, which has 0.

Any two of these lines differ by at least tau, so exp of the difference is exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.attention.variants import HeadGroup
from iceform.computer.layout import Layout

__all__ = ["MASK", "HeadPlan", "Masks", "Term", "group"]

MASK = 4.0  # W over X


@dataclass(frozen=True, eq=False)
class Term:
    """A summand of a logit: (query map) token . (key map) token.

    ``reads`` names the blocks of the query and of the key that a logit meant to be seen is made of;
    a mask has none.
    """

    query: Tensor  # (rows, features)
    key: Tensor
    reads: tuple[tuple[str, ...], tuple[str, ...]] | None = None


@dataclass(frozen=True, eq=False)
class HeadPlan:
    """A head before its weights are stacked: who asks, who answers, by what logit, which values."""

    label: str
    asks: tuple[str, ...]  # kinds of tokens
    answers: tuple[str, ...]
    terms: tuple[Term, ...]
    values: Tensor  # (rank, features)
    out: Tensor  # (features, rank)
    away: float  # X


@dataclass(frozen=True)
class Masks:
    """The terms that all heads of one margin are made of."""

    layout: Layout
    away: float  # X

    @property
    def weight(self) -> float:
        """W."""
        return MASK * self.away

    def match(self, query: str, key: str) -> Term:
        """-W for every bit in which the query's code differs from the key's."""
        root = math.sqrt(self.weight)
        asked = [{query: root}, {"real": root, query: -root}]
        return self._differs([self.layout.read(weights) for weights in asked], key, "real")

    def match_all(self, query: str, key: str) -> Term:
        """The same, for codes that the null token has too."""
        root = math.sqrt(self.weight)
        asked = [{query: root}, {"real": root, "null": root, query: -root}]
        return self._differs([self.layout.read(weights) for weights in asked], key, "real", "null")

    def fixed(self, number: Tensor, key: str) -> Term:
        """-W for every bit in which the key's code differs from a given one."""
        always = self.layout.read({"real": math.sqrt(self.weight)})
        bits = number[:, None]
        term = self._differs([bits * always, (1 - bits) * always], key, "real")
        asked = term.query.any(1)
        return Term(term.query[asked], term.key[asked])

    def _differs(self, asked: list[Tensor], key: str, *coded: str) -> Term:
        """Bits that are asked for and missing, and bits that are there and not asked for."""
        read, root = self.layout.read, math.sqrt(self.weight)
        missing = read({**dict.fromkeys(coded, -root), key: root})
        return Term(torch.cat(asked), torch.cat([missing, read({key: -root})]))

    def only(self, *kinds: str) -> Term:
        """-W for every real key that is of none of these kinds."""
        read, root = self.layout.read, math.sqrt(self.weight)
        others = {"real": -root, **dict.fromkeys(kinds, root)}
        return Term(read({"real": root, "null": root}), read(others))

    def asked_by(self, *kinds: str) -> tuple[Term, Term]:
        """Tokens of other kinds see -W on all real keys; these see -X on the null token."""
        read, root, near = self.layout.read, math.sqrt(self.weight), math.sqrt(self.away)
        others = {"real": root, "null": root, **dict.fromkeys(kinds, -root)}
        mine = dict.fromkeys(kinds, near)
        return Term(read(others), read({"real": -root})), Term(read(mine), read({"null": -near}))


def group(heads: Sequence[HeadPlan], dtype: torch.dtype) -> HeadGroup:
    """Heads of one rank, their queries and keys filled up with zeros to one length."""
    queries = [torch.cat([t.query for t in head.terms]) for head in heads]
    keys = [torch.cat([t.key for t in head.terms]) for head in heads]
    rows = max(len(q) for q in queries)
    return HeadGroup(
        torch.stack([_padded(q, rows) for q in queries]).to(dtype),
        torch.stack([_padded(k, rows) for k in keys]).to(dtype),
        torch.stack([head.values for head in heads]).to(dtype),
        torch.stack([head.out for head in heads]).to(dtype),
        [head.label for head in heads],
    )


def _padded(matrix: Tensor, rows: int) -> Tensor:
    return torch.cat([matrix, matrix.new_zeros(rows - len(matrix), matrix.shape[1])])
