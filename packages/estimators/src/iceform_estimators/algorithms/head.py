"""Any attention head, in the prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from iceform.arithmetic.doubled import Doubled, softmax_average
from iceform.certificates import Result
from iceform.validation import plain_tensor
from iceform_estimators.algorithms.record import Algorithm
from iceform_estimators.machine import Heads, Sizes, Target


@dataclass(frozen=True, eq=False)
class Head(Algorithm):
    """Any attention head: ``machine.run(Head(w_k, w_q, w_v), X)`` is its output on the tokens X.

    The weights are copied.
    """

    name: ClassVar[str] = "head"
    title: ClassVar[str] = "An attention head"
    says: ClassVar[str] = "Any attention head."
    objective: ClassVar[str] = "softmax(X W_Q' W_K X') X W_V'"
    lookup: ClassVar[str] = "nothing: the head itself is in the prompt"

    w_k: Tensor
    w_q: Tensor
    w_v: Tensor

    def __post_init__(self) -> None:
        for name in ("w_k", "w_q", "w_v"):
            object.__setattr__(self, name, plain_tensor(name, getattr(self, name)).clone())

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

    def rows(self, machine: Heads, x: Tensor, y: Tensor | None) -> Result:
        target = self.targets(x, y)
        out, error = machine.attend(target)
        domain: dict[str, float | str] = {"tokens x dim": f"{x.shape[0]} x {x.shape[1]}"}
        machine.ledger.note("prompt", "the tokens, and the head as rows")
        given = (self.w_k, self.w_q, self.w_v)
        rounded = any(not bool((w.to(x).double() == w.double()).all()) for w in given)
        terms = {"machine": error, **({f"weights in {x.dtype}": math.inf} if rounded else {})}
        certificate = machine.compared(
            out,
            lambda: self._again(x),
            x.shape[0] ** 2 * (len(self.w_k) + len(self.w_v)),
            machine.certificate(terms, domain),
        )
        return machine.result(out, certificate, 1)

    def _again(self, x: Tensor) -> Doubled:
        """The head itself, enclosed."""
        tokens, *weights = (
            Doubled.exactly(m.to(x.device)) for m in (x, self.w_k, self.w_q, self.w_v)
        )
        keys, queries, values = ((tokens[:, None] * w).sum() for w in weights)
        return softmax_average((queries[:, None] * keys).sum(), values)

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        return self.targets(x, y).exact()
