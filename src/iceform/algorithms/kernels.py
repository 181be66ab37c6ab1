"""Programs that are a single look at the data: kernel regression, neighbours, memory, any head."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.attention import Features
from iceform.errors import ProgramError
from iceform.machine.program import Attend, Outcome, Program, Sizes, Target, balanced
from iceform.validation import check_bound

__all__ = ["Head", "HopfieldRetrieval", "NadarayaWatson", "NearestNeighbors"]

_UNREAD = 60.0  # e^-60: query tokens are kept out of the average by this margin
_STRAY = 2 * math.exp(-_UNREAD)  # what they carry into it all the same, on values up to 1


@dataclass(frozen=True)
class NadarayaWatson(Program):
    """Kernel regression with a Gaussian kernel: softmax attention is exactly that.

    The logit of sample i for query q is -||q - x_i||^2 / (2 bandwidth^2) up to a constant, which
    takes ||x_i||^2 as a feature of the sample's token. ``machine.run`` returns the fitted values;
    ``result.predict`` runs the machine on new points.

    Parameters
    ----------
    bandwidth
        Of the kernel.
    queries
        Points answered per pass.
    """

    bandwidth: float = 0.5
    queries: int = 16

    def _features(self, dim: int) -> Features:
        return Features.of(x=dim, square=1, y=1, is_query=1)

    def _scale(self, x: Tensor, y: Tensor) -> float:
        return 1 / (2 * self.bandwidth**2)

    def sizes(self, dim: int, samples: int) -> Sizes:
        return self._sizes(dim, samples, 1 / (2 * self.bandwidth**2))

    def _sizes(self, dim: int, samples: int, scale: float) -> Sizes:
        k, q = self._spans(dim, samples, scale)
        weights = self._weights(dim, samples, scale)
        return Sizes(
            tokens=samples + self.queries,
            features=self._features(dim).total,
            head_dim=dim + 2,
            value_dim=1,
            bound=float(max(1, dim)),
            weight_bound=max(float(w.abs().max()) for w in weights),
            reach=1.001 * float((k * q).sqrt().max().clamp(min=1.0)),
            logits=float((k * q).sum()),
            nonzeros=1,
        )

    def _margin(self, dim: int, samples: int, scale: float) -> float:
        # On |x|, |q| <= 1 the best sample's logit is at least -3 d scale, and a query token, which
        # has a point but no square, reaches 2 d scale as a key.
        return 5 * dim * scale + math.log(self.queries) + _UNREAD

    def _spans(self, dim: int, samples: int, scale: float) -> tuple[Tensor, Tensor]:
        k = [2 * scale] * dim + [scale * dim, self._margin(dim, samples, scale)]
        return torch.tensor(k, dtype=torch.float64), torch.ones(dim + 2, dtype=torch.float64)

    def _weights(self, dim: int, samples: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        at = self._features(dim)
        eye = torch.eye(dim, dtype=torch.float64)
        w_k = torch.zeros(dim + 2, at.total, dtype=torch.float64)
        w_k[:dim, at["x"]] = 2 * scale * eye
        w_k[dim, at["square"]] = -scale
        w_k[dim + 1, at["is_query"]] = -self._margin(dim, samples, scale)
        w_q = torch.zeros_like(w_k)
        w_q[:dim, at["x"]] = eye
        w_q[dim:, at["is_query"]] = 1.0
        w_v = torch.zeros(1, at.total, dtype=torch.float64)
        w_v[:, at["y"]] = 1.0
        return *balanced(w_k, w_q, *self._spans(dim, samples, scale)), w_v

    def _target(self, x: Tensor, y: Tensor, points: Tensor, scale: float) -> Target:
        n, dim = x.shape
        at = self._features(dim)
        tokens = x.new_zeros(n + len(points), at.total)
        tokens[:n, at["x"]], tokens[n:, at["x"]] = x, points
        tokens[:n, at["square"]] = x.square().sum(-1, keepdim=True)
        tokens[:n, at["y"]] = y[:, None]
        tokens[n:, at["is_query"]] = 1.0
        w_k, w_q, w_v = (w.to(x) for w in self._weights(dim, n, scale))
        return Target(tokens, w_k, w_q, w_v, slice(n, None))

    def targets(self, x: Tensor, y: Tensor | None) -> Target:
        labels = _labels(y)
        return self._target(x, labels, x[: self.queries], self._scale(x, labels))

    def _answer(
        self, attend: Attend, x: Tensor, y: Tensor, points: Tensor
    ) -> tuple[Tensor, float, int]:
        check_bound("x", x, 1.0, "scale the samples into [-1, 1]")
        check_bound("y", y, 1.0, "scale the labels into [-1, 1]")
        check_bound("points", points, 1.0, "predict inside [-1, 1]")
        parts, worst = [], 0.0
        chunks = torch.split(points, self.queries)
        scale = self._scale(x, y)
        for chunk in chunks:
            out, error = attend(self._target(x, y, chunk, scale))
            parts.append(out[:, 0])
            worst = max(worst, error + _STRAY)
        return torch.cat(parts), worst, len(chunks)

    def run(self, attend: Attend, x: Tensor, y: Tensor | None) -> Outcome:
        labels = _labels(y)
        fitted, error, passes = self._answer(attend, x, labels, x)
        return Outcome(
            fitted,
            {"machine": error},
            {"samples x dim": f"{x.shape[0]} x {x.shape[1]}", "max |x|": 1.0, "max |y|": 1.0},
            passes,
            lambda attend, points: self._answer(attend, x, labels, points)[0],
        )

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        return self.exact(x, _labels(y), x)

    def exact(self, x: Tensor, y: Tensor, points: Tensor) -> Tensor:
        """The exact kernel average at ``points`` (float64)."""
        distances = torch.cdist(
            points.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist"
        )
        return torch.softmax(-self._scale(x, y) * distances.square(), -1) @ y.double()


@dataclass(frozen=True)
class NearestNeighbors(NadarayaWatson):
    """Neighbours by temperature: k = 1 is sharp, k > 1 as soft as k effective neighbours.

    For k = 1 the logits are as steep as ``sharpest`` allows; a query whose two nearest samples are
    closer than that resolves gets their average. For k > 1 the one temperature is found at which
    the attention of the samples themselves has perplexity k on average.
    """

    k: int = 1
    sharpest: float = 200.0

    @property
    def name(self) -> str:
        """With k."""
        return f"{type(self).__name__}(k={self.k})"

    def sizes(self, dim: int, samples: int) -> Sizes:
        return self._sizes(dim, samples, self.sharpest)

    def _scale(self, x: Tensor, y: Tensor) -> float:
        if self.k == 1:
            return self.sharpest
        if self.k >= len(x):
            raise ProgramError(f"k = {self.k} neighbours need more than {len(x)} samples")
        squares = torch.cdist(x.double(), x.double()).square()
        if not bool(squares.any()):
            raise ProgramError(f"the temperature of {self.k} neighbours depends on the data")
        low, high = 1e-6, self.sharpest
        for _ in range(60):
            middle = math.sqrt(low * high)
            weights = torch.softmax(-middle * squares, -1)
            entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1).mean()
            low, high = (middle, high) if float(entropy.exp()) > self.k else (low, middle)
        return math.sqrt(low * high)


@dataclass(frozen=True)
class HopfieldRetrieval(Program):
    """A modern Hopfield memory: state -> patterns' average, weighted by softmax(beta <p, state>).

    ``machine.run(program, patterns, state)`` returns the state after ``steps`` updates.
    """

    beta: float = 8.0
    steps: int = 3

    def _features(self, dim: int) -> Features:
        return Features.of(pattern=dim, state=dim, is_query=1)

    def sizes(self, dim: int, samples: int) -> Sizes:
        k, q = self._spans(dim, samples)
        weights = self._weights(dim, samples)
        return Sizes(
            tokens=samples + 1,
            features=self._features(dim).total,
            head_dim=dim + 1,
            value_dim=dim,
            bound=1.0,
            weight_bound=max(float(w.abs().max()) for w in weights),
            reach=1.001 * float((k * q).sqrt().max().clamp(min=1.0)),
            logits=float((k * q).sum()),
            nonzeros=1,
        )

    def _spans(self, dim: int, samples: int) -> tuple[Tensor, Tensor]:
        margin = 2 * dim * self.beta + math.log(samples) + _UNREAD
        k = [self.beta] * dim + [margin]
        return torch.tensor(k, dtype=torch.float64), torch.ones(dim + 1, dtype=torch.float64)

    def _weights(self, dim: int, samples: int) -> tuple[Tensor, Tensor, Tensor]:
        at = self._features(dim)
        eye = torch.eye(dim, dtype=torch.float64)
        k, q = self._spans(dim, samples)
        w_k = torch.zeros(dim + 1, at.total, dtype=torch.float64)
        w_k[:dim, at["pattern"]] = self.beta * eye
        w_k[dim, at["is_query"]] = -float(k[-1])
        w_q = torch.zeros_like(w_k)
        w_q[:dim, at["state"]], w_q[dim, at["is_query"]] = eye, 1.0
        w_v = torch.zeros(dim, at.total, dtype=torch.float64)
        w_v[:, at["pattern"]] = eye
        return *balanced(w_k, w_q, k, q), w_v

    def _target(self, patterns: Tensor, state: Tensor) -> Target:
        n, dim = patterns.shape
        at = self._features(dim)
        tokens = patterns.new_zeros(n + 1, at.total)
        tokens[:n, at["pattern"]], tokens[n, at["state"]] = patterns, state
        tokens[n, at["is_query"]] = 1.0
        w_k, w_q, w_v = (w.to(patterns) for w in self._weights(dim, n))
        return Target(tokens, w_k, w_q, w_v, slice(n, None))

    def label_shape(self, x: Tensor) -> tuple[int, ...]:
        """The state has a pattern's shape."""
        return (x.shape[1],)

    def targets(self, x: Tensor, y: Tensor | None) -> Target:
        return self._target(x, _labels(y))

    def run(self, attend: Attend, x: Tensor, y: Tensor | None) -> Outcome:
        """The update's derivative is beta Cov, whose norm is at most beta max ||p||^2."""
        state, total = _labels(y), 0.0
        check_bound("patterns", x, 1.0, "scale the patterns into [-1, 1]")
        check_bound("state", state, 1.0, "scale the state into [-1, 1]")
        steepest = self.beta * float(x.double().square().sum(-1).max())
        for _ in range(self.steps):
            out, error = attend(self._target(x, state))
            state = out[0]
            total = steepest * total + math.sqrt(x.shape[1]) * (error + _STRAY)
        domain: dict[str, float | str] = {
            "patterns": f"{x.shape[0]} x {x.shape[1]}",
            "max |x|": 1.0,
        }
        return Outcome(state, {"machine": total}, domain, self.steps)

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        patterns, state = x.double(), _labels(y).double()
        for _ in range(self.steps):
            state = torch.softmax(self.beta * patterns @ state, 0) @ patterns
        return state


@dataclass(frozen=True, eq=False)
class Head(Program):
    """Any attention head: ``machine.run(program, X)`` is its output on the tokens X."""

    w_k: Tensor
    w_q: Tensor
    w_v: Tensor

    def sizes(self, dim: int, samples: int) -> Sizes:
        parts = (self.w_k, self.w_q, self.w_v)
        return Sizes(
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

    def targets(self, x: Tensor, y: Tensor | None) -> Target:
        return Target(x, self.w_k.to(x), self.w_q.to(x), self.w_v.to(x), slice(0, None))

    def run(self, attend: Attend, x: Tensor, y: Tensor | None) -> Outcome:
        out, error = attend(self.targets(x, y))
        domain: dict[str, float | str] = {"tokens x dim": f"{x.shape[0]} x {x.shape[1]}"}
        return Outcome(out, {"machine": error}, domain, 1)

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        return self.targets(x, y).exact()


def _labels(y: Tensor | None) -> Tensor:
    if y is None:
        raise ProgramError("this program needs a second input: machine.run(program, X, y)")
    return y
