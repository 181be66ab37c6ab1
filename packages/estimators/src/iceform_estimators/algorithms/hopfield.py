"""A Hopfield memory by a whole head in the prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from iceform.arithmetic.doubled import Doubled, softmax_average
from iceform.attention import Features
from iceform.certificates import Result
from iceform.validation import check_bound
from iceform_estimators.algorithms.descent import labels_of
from iceform_estimators.algorithms.record import Algorithm, option
from iceform_estimators.machine import Heads, Sizes, Target
from iceform_estimators.machine.machine import balanced

_UNREAD = 60.0  # e^-60: query tokens are kept out of the average by this margin
_STRAY = 2 * math.exp(-_UNREAD)  # what they carry into it all the same, on values up to 1


@dataclass(frozen=True)
class HopfieldRetrieval(Algorithm):
    """A modern Hopfield memory: state -> patterns' average, weighted by softmax(beta <p, state>).

    ``machine.run(algorithm, patterns, state)`` returns the state after ``steps`` updates.

    Parameters
    ----------
    beta
        How sharply the nearest pattern is preferred.
    steps
        Updates.
    """

    name: ClassVar[str] = "hopfield"
    title: ClassVar[str] = "Hopfield retrieval"
    says: ClassVar[str] = "A pattern completed from memory."
    objective: ClassVar[str] = "s <- sum_i p_i softmax_i(beta p_i.s)"
    lookup: ClassVar[str] = "nothing: softmax attention is the retrieval"

    beta: float = field(
        default=8.0,
        metadata=option("How sharply the nearest pattern is preferred.", low=0, open="low"),
    )
    steps: int = field(default=3, metadata=option("Updates of the state.", low=1))

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
        return self._target(x, labels_of(y))

    def rows(self, machine: Heads, x: Tensor, y: Tensor | None) -> Result:
        """The update's derivative is beta Cov, whose norm is at most beta max ||p||^2."""
        given, total = labels_of(y), 0.0
        state = given
        check_bound("patterns", x, 1.0, "scale the patterns into [-1, 1]")
        check_bound("state", state, 1.0, "scale the state into [-1, 1]")
        steepest = self.beta * float(x.double().square().sum(-1).max())
        written = 2 * machine.slip(self.sizes(x.shape[1], len(x)).logits, 0)
        for _ in range(self.steps):
            out, error = machine.attend(self._target(x, state))
            state = out[0]
            total = steepest * total + math.sqrt(x.shape[1]) * (error + written + _STRAY)
        domain: dict[str, float | str] = {
            "patterns": f"{x.shape[0]} x {x.shape[1]}",
            "max |x|": 1.0,
        }
        machine.ledger.note("prompt", "patterns, the state, and the memory's head as rows")
        certificate = machine.compared(
            state,
            lambda: self._again(x, given),
            x.numel() * x.shape[1],
            machine.certificate({"machine": total}, domain),
        )
        return machine.result(state, certificate, self.steps)

    def _again(self, patterns: Tensor, start: Tensor) -> Doubled:
        """The exact state after the last update, enclosed."""
        memory, state = Doubled.exactly(patterns), Doubled.exactly(start)
        beta = Doubled.exactly(torch.tensor(self.beta, dtype=torch.float64, device=patterns.device))
        for _ in range(self.steps):
            logits = beta * (memory * state).sum()
            state = softmax_average(logits[None], memory)[0]
        return state

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        patterns, state = x.double(), labels_of(y).double()
        for _ in range(self.steps):
            state = torch.softmax(self.beta * patterns @ state, 0) @ patterns
        return state
