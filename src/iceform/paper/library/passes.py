"""What a pass of a prompt library runs: a head, its tokens, its sizes, and how it is recorded."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from iceform import tuning
from iceform.certificates import Certificate, Enclosure, Ledger, RecordingBackend, Result, weakest
from iceform.errors import ProgramError
from iceform.heads import Features, Head
from iceform.heads.head import Row, stacked
from iceform.paper.base import distance
from iceform.tables import bounds
from iceform.tables.local import NEGLIGIBLE
from iceform.validation import unit_roundoff

if TYPE_CHECKING:
    from iceform.paper.library.network import PromptLibrary

WRITTEN = 8  # roundings of a key and a query as they are balanced and written
LOOKED = 1e-9  # what look-ups and minimisers are planned to be off by
SPARE = 1.001  # of a reach, for the rounding of balanced weights
UNREAD = NEGLIGIBLE  # by this margin query tokens are kept out of an average
STRAY = 2 * math.exp(-UNREAD)  # what they carry into it all the same, on values up to 1
_AT_ONCE = 1 << 12  # numbers of data whose answer is enclosed without being asked


@dataclass(frozen=True)
class HeadSizes:
    """What an algorithm asks of the network that runs it; see :class:`PromptLibrary`.

    Attributes
    ----------
    tokens, features
        Of a prompt.
    head_dim, value_dim
        Rows of W_K and W_Q, and of W_V.
    bound, weight_bound
        The largest entries of tokens and of weights.
    reach
        The largest sum of |weight x token| terms.
    logits
        The largest |logit|.
    nonzeros
        Nonzero products of a weight row and a token.

    Examples
    --------
    >>> KernelPrompts(queries=4).sizes(dim=2, samples=3).tokens  # the samples and the points
    7
    """

    tokens: int
    features: int
    head_dim: int
    value_dim: int
    bound: float  # largest |entry| of a token
    weight_bound: float  # largest |entry| of a weight
    reach: float  # largest sum of |weight x token| terms
    logits: float  # largest |logit|
    nonzeros: int  # nonzero products of a weight row and a token

    def cover(self, other: HeadSizes) -> HeadSizes:
        """The least sizes that serve both."""
        names = [f.name for f in fields(self)]
        return HeadSizes(**{n: max(getattr(self, n), getattr(other, n)) for n in names})

    def check_fits(self, need: HeadSizes, label: str) -> None:
        """Refuse an algorithm that does not fit, naming what is short."""
        short = [
            f"{f.name} (needs {getattr(need, f.name):.6g}, has {getattr(self, f.name):.6g})"
            for f in fields(self)
            if not getattr(need, f.name) <= getattr(self, f.name)
        ]
        if short:
            raise ProgramError(
                f"{label} does not fit this network: {', '.join(short)}; build one with "
                "PromptLibrary(dim, samples, algorithms=[...])"
            )


@dataclass(frozen=True)
class TargetHead:
    """The head that a pass emulates, and the tokens it reads.

    Attributes
    ----------
    tokens
        (tokens, features).
    w_k, w_q, w_v
        The head's weights, (rows, features).
    queries
        The tokens whose outputs are read.

    Examples
    --------
    >>> X = torch.tensor([[1.0, 0.5], [-0.5, 1.0], [0.25, -1.0]], dtype=torch.float64)
    >>> target = KernelPrompts(gamma=2.0, queries=1).target(X, torch.ones(3).double())
    >>> float(target.exact())  # by plain attention: the average of ones at the first sample
    1.0
    """

    tokens: Tensor  # (tokens, features)
    w_k: Tensor  # (head_dim, features)
    w_q: Tensor  # (head_dim, features)
    w_v: Tensor  # (value_dim, features)
    queries: slice

    def exact(self) -> Tensor:
        """The outputs at the queries by plain attention, in float64."""
        t, k, q, v = (m.double() for m in (self.tokens, self.w_k, self.w_q, self.w_v))
        return torch.softmax((t[self.queries] @ q.mT) @ (t @ k.mT).mT, -1) @ (t @ v.mT)


@dataclass(frozen=True)
class DesignedHead:
    """A head by its rows: features of its tokens, the largest entry of each, and the head."""

    features: Features
    limits: Mapping[str, float]
    head: Head

    @cached_property
    def spans(self) -> Tensor:
        """Largest terms of keys and of queries in each head dimension."""

        def largest(row: Row) -> float:
            return sum(abs(c) * self.limits[name] for (name, _), c in row.reads.items())

        rows = [[largest(pair[side]) for pair in self.head.logit] for side in (1, 0)]
        return torch.tensor(rows, dtype=torch.float64)

    @cached_property
    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """W_K, W_Q and W_V, each head dimension scaled so that keys and queries are equally large.

        Their products stay; the range that look-ups must cover shrinks.
        """
        tiny = math.sqrt(torch.finfo(torch.float64).tiny)
        scale = ((self.spans[1] + tiny) / (self.spans[0] + tiny)).sqrt()[:, None]
        w_k, w_q, w_v = (stacked([self.head], kind, self.features)[0] for kind in "kqv")
        return w_k * scale, w_q / scale, w_v

    def target(self, tokens: Tensor, queries: slice) -> TargetHead:
        """The head on tokens, whose outputs at ``queries`` are read."""
        w_k, w_q, w_v = (w.to(tokens) for w in self.weights)
        return TargetHead(tokens, w_k, w_q, w_v, queries)

    def sizes(self, tokens: int, **given: Any) -> HeadSizes:
        """What it asks of a network with so many tokens; ``given`` is what rows do not show."""
        products = self.spans[0] * self.spans[1]
        sizes = {
            "tokens": tokens,
            "features": self.features.total,
            "head_dim": len(self.head.logit),
            "value_dim": len(self.head.moves),
            "bound": max(self.limits.values(), default=0.0),
            "weight_bound": max(float(w.abs().max()) for w in self.weights),
            "reach": SPARE * max(float(products.sqrt().max()), 1.0),
            "logits": float(products.sum()),
            "nonzeros": 1,
        }
        return HeadSizes(**{**sizes, **given})


class PromptAlgorithm(ABC):
    """An algorithm as prompts: what a :class:`PromptLibrary` runs.

    Examples
    --------
    >>> issubclass(RidgePrompts, PromptAlgorithm)
    True
    """

    @property
    def label(self) -> str:
        """As in messages."""
        return type(self).__name__

    def label_shape(self, x: Tensor) -> tuple[int, ...]:
        """Shape of the second input: one number per sample, unless an algorithm differs."""
        return (x.shape[0],)

    @abstractmethod
    def sizes(self, dim: int, samples: int) -> HeadSizes:
        """What it asks of the network, for data of this shape."""

    @abstractmethod
    def target(self, x: Tensor, y: Tensor | None) -> TargetHead:
        """Tokens and head of its first pass."""

    @abstractmethod
    def run(self, passes: PassRecorder, x: Tensor, y: Tensor | None) -> Result:
        """Make the passes, and say how far the answer can be from the exact one."""

    @abstractmethod
    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        """The exact answer, by a plain float64 computation."""


class PassRecorder:
    """The passes of one run, watched so that it can be attested.

    Attributes
    ----------
    library
        What runs.
    ledger
        What was computed where so far.

    Examples
    --------
    >>> X = torch.tensor([[1.0, 0.5], [-0.5, 1.0], [0.25, -1.0]], dtype=torch.float64)
    >>> average = KernelPrompts(gamma=2.0)
    >>> passes = PassRecorder(PromptLibrary(dim=2, samples=3, algorithms=[average]))
    >>> values, error = passes.attend(average.target(X, torch.ones(3).double()))
    >>> passes.count, values.flatten().round(decimals=5).tolist()
    (1, [1.0, 1.0, 1.0])
    """

    def __init__(self, library: PromptLibrary) -> None:
        self.library, self.ledger, self.count = library, Ledger(), 0
        self.witness = RecordingBackend(library.bind(), self.ledger)

    def attend(self, target: TargetHead) -> tuple[Tensor, float]:
        """One pass: the head's outputs at its queries, and their certified error."""
        self.count += 1
        return self.library.attend(target, self.witness)

    def moved(self, logits: float, terms: int = 0) -> float:
        """How far weights of an average move where a prompt is rounded: in the 1-norm, halved.

        Logits are sums of products of a key and a query, each rounded a few times, and of
        ``terms`` terms in a feature.
        """
        unit = unit_roundoff(self.library.dtype)
        return bounds.total_variation((terms + WRITTEN) * unit * logits)

    def certificate(
        self,
        terms: Mapping[str, float],
        domain: Mapping[str, float | str],
        assumptions: tuple[str, ...] = (),
        **rest: Any,
    ) -> Certificate:
        """Of an answer that is off by these terms at most."""
        known = self.library.head.certificate
        return Certificate.total(
            terms,
            **{"derivation": known.derivation, **rest},
            domain=domain,
            dtype=self.library.dtype,
            backend=self.library.backend,
            assumptions=assumptions,
            # An algorithm takes for granted no more than what its tables do.
            kind=weakest([known.kind, *["estimated"] * bool(assumptions)]),
        )

    def result(
        self,
        value: Tensor,
        certificate: Certificate,
        off: Callable[..., float] | None = None,
        inputs: tuple[Tensor, ...] = (),
        **rest: Any,
    ) -> Result:
        """An answer with its proofs; ``off`` measures it on balls: of much data once asked for."""

        def enclosed() -> Enclosure | None:
            return enclosure(off(*inputs), certificate) if off else None

        small = sum(part.numel() for part in inputs) <= _AT_ONCE
        return Result(
            value, certificate, self.witness.attest(), self.ledger, self.count,
            enclosed=enclosed() if small else enclosed, **rest,
        )  # fmt: skip


def enclosure(off: float, certificate: Certificate) -> Enclosure | None:
    """How far one answer is from the exact one; None where nothing bounds it."""
    found = Enclosure.total(
        {"distance": off}, domain={**certificate.domain, "data": "as given"},
        dtype=certificate.dtype, backend=certificate.backend, compared=certificate.compared,
    )  # fmt: skip
    return found if found.error < math.inf else None


def apart(exactly: Callable[..., Tensor], value: Tensor) -> Callable[..., float]:
    """From the data to how far an answer is from the exact one, in balls of as many bits as it
    takes; infinite where the algorithm is not known in balls.
    """

    def off(*inputs: Tensor) -> float:
        bits, found = tuning.PROOFS_BITS, math.inf
        while bits <= tuning.PROOFS_MOST_BITS:
            try:
                found, width = distance(exactly, inputs, value, bits)
            except ProgramError:
                return math.inf
            if width <= unit_roundoff(torch.float64) * found:
                return found
            bits *= 2
        return found

    return off


def require_labels(y: Tensor | None) -> Tensor:
    """The labels, or a refusal where there are none."""
    if y is None:
        raise ProgramError("this algorithm needs labels: library.run(algorithm, X, y)")
    return y
