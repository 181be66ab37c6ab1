"""Softmax averages by prompts: kernel regression, a Hopfield memory, any given head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from iceform.certificates import Result
from iceform.heads import Features, Head, moves, products
from iceform.paper.library.passes import (
    STRAY,
    UNREAD,
    DesignedHead,
    HeadSizes,
    PassRecorder,
    PromptAlgorithm,
    TargetHead,
    apart,
    require_labels,
)
from iceform.validation import check_bound, check_positive, check_size, plain_tensor

if TYPE_CHECKING:
    from iceform.paper.library.network import PromptLibrary


@dataclass(frozen=True)
class KernelPrompts(PromptAlgorithm):
    r"""Nadaraya and Watson's kernel regression, at the samples; ``predict`` answers other points.

    .. math:: \hat y(q) = \sum_i y_i e^{-\gamma\|q - x_i\|^2} / \sum_i e^{-\gamma\|q - x_i\|^2}

    Softmax attention with keys :math:`2\gamma x_j` and biases :math:`-\gamma\|x_j\|^2` has these
    weights. Entries of samples, labels and points are in [-1, 1].

    Parameters
    ----------
    gamma
        How fast the kernel falls.
    queries
        Points answered per pass.

    Examples
    --------
    >>> X = torch.tensor([[1.0, 0.5], [-0.5, 1.0], [0.25, -1.0]], dtype=torch.float64)
    >>> average = KernelPrompts(gamma=2.0)
    >>> network = PromptLibrary(dim=2, samples=3, algorithms=[average])
    >>> y = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    >>> bool((network.run(average, X, y).value - average.reference(X, y)).abs().max() < 1e-6)
    True
    """

    gamma: float = 2.0
    queries: int = 16

    def __post_init__(self) -> None:
        check_positive("gamma", self.gamma)
        check_size("queries", self.queries)

    def _head(self, dim: int) -> DesignedHead:
        at = Features.of(x=dim, square=1, y=1, is_query=1)
        # On |x|, |q| <= 1 the best sample's logit is at least -3 d gamma, and a query token, which
        # has a point but no square, reaches 2 d gamma as a key: both must lose against a sample.
        margin = 5 * dim * self.gamma + math.log(self.queries) + UNREAD
        logit = (
            *products(at, {"x": 1.0}, {"x": 2 * self.gamma}),
            *products(at, {"is_query": 1.0}, {"square": -self.gamma}),
            *products(at, {"is_query": 1.0}, {"is_query": -margin}),
        )
        head = Head("kernel average", logit, moves(at, {"y": 1.0}, "average"))
        return DesignedHead(at, {"x": 1.0, "square": float(dim), "is_query": 1.0}, head)

    def sizes(self, dim: int, samples: int) -> HeadSizes:
        """A token for every sample and for every point of a pass."""
        return self._head(dim).sizes(samples + self.queries)

    def target(self, x: Tensor, y: Tensor | None) -> TargetHead:
        """The first samples as points."""
        return self._target(x, require_labels(y), x[: self.queries])

    def _target(self, x: Tensor, y: Tensor, points: Tensor) -> TargetHead:
        n, head = len(x), self._head(x.shape[1])
        at = head.features
        tokens = x.new_zeros(n + len(points), at.total)
        tokens[:n, at["x"]], tokens[n:, at["x"]] = x, points
        tokens[:n, at["square"]] = x.square().sum(-1, keepdim=True)
        tokens[:n, at["y"]] = y[:, None]
        tokens[n:, at["is_query"]] = 1.0
        return head.target(tokens, slice(n, None))

    def run(self, passes: PassRecorder, x: Tensor, y: Tensor | None) -> Result:
        """The averages at the samples."""
        labels = require_labels(y)
        values, error = self.averages(passes, x, labels, x)
        passes.ledger.note("prompt", "samples, |x|^2 and labels, and the points that ask")
        certificate = passes.certificate(
            {"passes": error},
            {"samples x dim": f"{x.shape[0]} x {x.shape[1]}", "max |x|": 1.0, "max |y|": 1.0},
        )
        memory = partial(self._predicted, passes.library, x, labels)
        off = apart(self.reference, values)
        return passes.result(values, certificate, off, (x, labels), predictor=memory)

    def averages(
        self, passes: PassRecorder, x: Tensor, y: Tensor, points: Tensor
    ) -> tuple[Tensor, float]:
        """The averages at points, and what each may be off by."""
        check_bound("x", x, 1.0, "scale the samples into [-1, 1]")
        check_bound("y", y, 1.0, "scale the labels into [-1, 1]")
        check_bound("points", points, 1.0, "predict inside [-1, 1]")
        parts, worst = [], 0.0
        for chunk in torch.split(points, self.queries):
            out, error = passes.attend(self._target(x, y, chunk))
            parts.append(out[:, 0])
            worst = max(worst, error + STRAY)
        worst += 2 * passes.moved(self.sizes(x.shape[1], len(x)).logits, x.shape[1])
        return torch.cat(parts), worst

    def _predicted(self, library: PromptLibrary, x: Tensor, y: Tensor, points: Tensor) -> Tensor:
        """The averages at other points, a run of its own."""
        return self.averages(PassRecorder(library), x, y, points)[0]

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        """At the samples."""
        return self.exact(x, require_labels(y), x)

    def exact(self, x: Tensor, y: Tensor, points: Tensor) -> Tensor:
        """The exact averages at ``points`` (float64)."""
        apart = points.double()[:, None] - x.double()
        return torch.softmax(-self.gamma * apart.square().sum(-1), -1) @ y.double()


@dataclass(frozen=True)
class HopfieldPrompts(PromptAlgorithm):
    r"""A modern Hopfield memory: :math:`s \leftarrow \sum_i p_i\,\mathrm{softmax}_i(\beta\,p_i
    \cdot s)`. ``library.run(algorithm, patterns, state)`` returns the state after ``steps``
    updates. Entries of patterns and state are in [-1, 1].

    Parameters
    ----------
    beta
        How sharply the nearest pattern is preferred.
    steps
        Updates.

    Examples
    --------
    >>> memory = HopfieldPrompts(beta=8.0, steps=2)
    >>> patterns = torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
    >>> network = PromptLibrary(dim=2, samples=2, algorithms=[memory])
    >>> state = torch.tensor([0.5, 0.5], dtype=torch.float64)
    >>> network.run(memory, patterns, state).value.round(decimals=3).tolist()
    [1.0, 1.0]
    """

    beta: float = 8.0
    steps: int = 3

    def __post_init__(self) -> None:
        check_positive("beta", self.beta)
        check_size("steps", self.steps)

    def label_shape(self, x: Tensor) -> tuple[int, ...]:
        """The state has a pattern's shape."""
        return (x.shape[1],)

    def _head(self, dim: int, samples: int) -> DesignedHead:
        at = Features.of(pattern=dim, state=dim, is_query=1)
        margin = 2 * dim * self.beta + math.log(samples) + UNREAD
        logit = (
            *products(at, {"state": 1.0}, {"pattern": self.beta}),
            *products(at, {"is_query": 1.0}, {"is_query": -margin}),
        )
        head = Head("retrieval", logit, moves(at, {"pattern": 1.0}, "state"))
        return DesignedHead(at, dict.fromkeys(at, 1.0), head)

    def sizes(self, dim: int, samples: int) -> HeadSizes:
        """A token for every pattern, and one for the state."""
        return self._head(dim, samples).sizes(samples + 1)

    def target(self, x: Tensor, y: Tensor | None) -> TargetHead:
        """One update of the state y."""
        n, head = len(x), self._head(x.shape[1], len(x))
        at = head.features
        tokens = x.new_zeros(n + 1, at.total)
        tokens[:n, at["pattern"]], tokens[n, at["state"]] = x, require_labels(y)
        tokens[n, at["is_query"]] = 1.0
        return head.target(tokens, slice(n, None))

    def run(self, passes: PassRecorder, x: Tensor, y: Tensor | None) -> Result:
        """The update's derivative is beta Cov, whose norm is at most beta max ||p||^2."""
        state = given = require_labels(y)
        check_bound("patterns", x, 1.0, "scale the patterns into [-1, 1]")
        check_bound("state", state, 1.0, "scale the state into [-1, 1]")
        steepest, total = self.beta * float(x.double().square().sum(-1).max()), 0.0
        written = 2 * passes.moved(self.sizes(x.shape[1], len(x)).logits)
        for _ in range(self.steps):
            out, error = passes.attend(self.target(x, state))
            state = out[0].clamp(-1, 1)  # an average of patterns, so only rounding is beyond
            total = steepest * total + math.sqrt(x.shape[1]) * (error + written + STRAY)
        passes.ledger.note("prompt", "patterns, the state, and the memory's head as rows")
        passes.ledger.note("host", "rounding beyond [-1, 1], taken off the state", self.steps)
        certificate = passes.certificate(
            {"passes": total}, {"patterns": f"{x.shape[0]} x {x.shape[1]}", "max |x|": 1.0}
        )
        return passes.result(state, certificate, apart(self.reference, state), (x, given))

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        """The same updates in float64."""
        patterns, state = x.double(), require_labels(y).double()
        for _ in range(self.steps):
            state = torch.softmax(self.beta * patterns @ state, 0) @ patterns
        return state


@dataclass(frozen=True, eq=False)
class HeadPrompts(PromptAlgorithm):
    r"""Any attention head, its weights written into the prompt.

    ``library.run(HeadPrompts(w_k, w_q, w_v), X)`` is its output
    :math:`\mathrm{softmax}(X W_Q^\top W_K X^\top) X W_V^\top` on the tokens X, whose entries are
    in [-1, 1]. The weights, (rows, dim) each, are copied.

    Examples
    --------
    >>> row = torch.tensor([[0.5, 0.25]], dtype=torch.float64)
    >>> head = HeadPrompts(row, row, row)
    >>> network = PromptLibrary(dim=2, samples=3, algorithms=[head])
    >>> network.run(head, torch.ones(3, 2).double()).value.flatten().round(decimals=5).tolist()
    [0.75, 0.75, 0.75]
    """

    w_k: Tensor
    w_q: Tensor
    w_v: Tensor

    def __post_init__(self) -> None:
        for name in ("w_k", "w_q", "w_v"):
            object.__setattr__(self, name, plain_tensor(name, getattr(self, name)).clone())

    def sizes(self, dim: int, samples: int) -> HeadSizes:
        """Every sample is a token."""
        parts = (self.w_k, self.w_q, self.w_v)
        return HeadSizes(
            tokens=samples,
            features=dim,
            head_dim=len(self.w_k),
            value_dim=len(self.w_v),
            bound=1.0,
            weight_bound=float(torch.cat(parts).abs().max()),
            reach=float(torch.cat(parts).abs().sum(-1).max()),
            logits=float(self.w_k.abs().sum(-1) @ self.w_q.abs().sum(-1)),
            nonzeros=dim,
        )

    def target(self, x: Tensor, y: Tensor | None) -> TargetHead:
        """The head itself."""
        return TargetHead(x, self.w_k.to(x), self.w_q.to(x), self.w_v.to(x), slice(0, None))

    def run(self, passes: PassRecorder, x: Tensor, y: Tensor | None) -> Result:
        """Its outputs at all tokens."""
        check_bound("tokens", x, 1.0, "scale the tokens into [-1, 1]")
        out, error = passes.attend(self.target(x, y))
        passes.ledger.note("prompt", "the tokens, and the head as rows")
        given = (self.w_k, self.w_q, self.w_v)
        rounded = any(not bool((w.to(x).double() == w.double()).all()) for w in given)
        terms = {"passes": error, **({f"weights in {x.dtype}": math.inf} if rounded else {})}
        certificate = passes.certificate(terms, {"tokens x dim": f"{x.shape[0]} x {x.shape[1]}"})
        return passes.result(out, certificate, apart(self.reference, out), (x,))

    def reference(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """By plain attention."""
        keys, queries, values = (x.double() @ w.double().mT for w in (self.w_k, self.w_q, self.w_v))
        return torch.softmax(queries @ keys.mT, -1) @ values
