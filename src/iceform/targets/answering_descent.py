r"""A GPT-2 that answers: pairs (x, y) and a query in, the prediction as the next token out.

The prompt is the samples and a query x_q, one token per number. The next token is the level nearest
to w_T . x_q, with w_T after T steps of gradient descent on least squares from 0. All of it happens
in one forward pass, at the query's last token:

1. **gather**: y tokens gather their x, the query's last token the query (``decoding``);
2. **T layers of descent**: pairs of heads (``linear_descent``), w is kept at that token;
3. **predict**: the token sees itself with the logit t (w . x_q), by pairs again, beside the begin
   token of weight 2^K: it carries w . x_q into ``out`` (``linear_error_bound.carried``);
4. **square**, which the scores need (``quantizer``).

**Error**: ||x_q|| times that of w_T, plus what pairs add in step 3, plus ``Levels.blur``. The
answer is the nearest level unless the exact prediction is that near to a midpoint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iceform.arithmetic.units import OUTWARD_MANY
from iceform.certificates import Certificate, DerivationStep
from iceform.errors import ShapeError
from iceform.heads import Design, Features, Head, Move, Row
from iceform.targets.decimal_reference import linear_descent
from iceform.targets.decoding import Decoder
from iceform.targets.domain import DataDomain
from iceform.targets.linear_error_bound import LinearErrorBound, carried
from iceform.targets.pieces import added
from iceform.targets.rounding import EPSILON, SECOND_ORDER, KernelRounding
from iceform.validation import plain_tensor


@dataclass(frozen=True)
class AnsweringDescent(Decoder):
    """Least squares in context, its prediction as the next token.

    Parameters
    ----------
    dim
        Features of a sample.
    steps
        T.
    lr
        The step size; in the weights, as is everything here but the data.
    bound, step
        Levels are the multiples of ``step`` (a power of two) up to ``bound``.
    pairs
        The most pairs of heads.
    positions
        Tokens of a prompt: 1 + (d + 1) n + d.

    Examples
    --------
    >>> spec = AnsweringDescent(dim=1, steps=2, lr=1.0, step=2.0**-4)
    >>> x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([0.5, 0.25]).double()
    >>> spec.prompt(x, y).shape  # begin, x and y of two samples, the query (1)
    torch.Size([1, 6])
    >>> spec.reference(x, y)  # the level nearest to w_2 . query
    tensor(0.4375, dtype=torch.float64)
    """

    dim: int
    steps: int
    lr: float = 0.5
    bound: float = 2.0
    step: float = 2.0**-9
    pairs: int = 8
    positions: int = 256
    dtype: str = "float64"

    kind: ClassVar[str] = "answering_descent"
    title: ClassVar[str] = "least squares in context, answered by the next token"

    counts: ClassVar[tuple[str, ...]] = ("dim", "steps", "pairs", "positions")

    # ------------------------------------------------------------------------------- the stream

    @property
    def kinds(self) -> Sequence[str]:
        return ("x", "y", "query", "last")

    @cached_property
    def design(self) -> Design:
        d = self.dim
        flags = dict.fromkeys(("begin", *self.kinds), 1)
        features = Features.of(
            **flags, number=1, label=1, weight=1, base=1, one=1, p=1, pp=1, a=d, w=d, out=1, q=1
        )
        gather = tuple(self._gather(k) for k in range(d))
        descend = self.pair_heads(
            "w", ("begin", "query", "last"), _OTHERS, lambda c: added("a", d, {"w": -c})
        )
        predict = self.pair_heads(
            "w", ("x", "y", "query"), _OTHERS, lambda c: added("last", 1, {"out": c}), "predict",
            "base",
        )  # fmt: skip
        square = self.square_heads(("begin", "query", "last"), _OTHERS)
        layers = (gather, *(descend,) * self.steps, predict, square)
        return Design(features, layers, norm=EPSILON)

    def _gather(self, k: int) -> Head:
        shifts = {"y": k - self.dim, "last": k - self.dim + 1}
        moves = (Move(Row.of("number"), {("a", k): 1.0}),)
        return self.copy(f"gather coordinate {k}", shifts, moves, ("begin", "x", "query"))

    def table(self) -> Float[Tensor, "ids f"]:
        out = super().table()
        out[0, self.design.features["base"]] = self.combination.null_logit
        return out

    def scores(self) -> Float[Tensor, "ids f"]:
        return self.score("y")

    # -------------------------------------------------------------------------- prompt and answer

    def prompt(
        self, x: Tensor, y: Tensor, query: Tensor | None = None, **parameters: Any
    ) -> Int[Tensor, "1 t"]:
        self.check_parameters(parameters)
        ids = self.levels.ids(self._query(query))
        asked = [self.token("query", ids[:-1]), self.token("last", ids[-1:])]
        return torch.cat([self.sample_ids(x, y, self.dim), *asked])[None]

    def _query(self, query: Tensor | None) -> Float[Tensor, "d"]:
        """The query; None asks for the prediction at (1, 0, ..., 0)."""
        if query is None:
            return torch.eye(self.dim, dtype=torch.float64)[0]
        query = plain_tensor("query", query)
        if query.shape != (self.dim,):
            raise ShapeError(f"query must have shape ({self.dim},), got {tuple(query.shape)}")
        self.levels.check("query", query)
        return query.double()

    def read(self, out: Int[Tensor, "1 t"], **parameters: Any) -> Float[Tensor, ""]:
        """The level that the last token stands for."""
        first = int(self.token("y", torch.zeros((), dtype=torch.long)))
        place = int(out[0, -1]) - first
        known = 0 <= place < len(self.levels)
        return self.levels.values[place] if known else torch.tensor(math.nan).double()

    def run(
        self, network: Any, x: Tensor, y: Tensor, query: Tensor | None = None, **parameters: Any
    ) -> Tensor:
        return self.read(self.generated(network, self.prompt(x, y, query, **parameters), 1))

    def exact(self, x: Tensor, y: Tensor, query: Tensor | None = None) -> Float[Tensor, ""]:
        """The prediction before it is rounded to a level, of the data as tokens hold them."""
        w = linear_descent(*self.rounded(x, y), self.recurrence(self.steps))[-1]
        return w @ self.levels.nearest(self._query(query))

    def reference(self, x: Tensor, y: Tensor, query: Tensor | None = None) -> Float[Tensor, ""]:
        """The level that is to be answered."""
        return self.levels.nearest(self.exact(x, y, query))

    def tie(self, x: Tensor, y: Tensor, query: Tensor | None = None) -> bool:
        """Whether the exact prediction is so near to a midpoint that the answer is not certain."""
        error = self.certificate(self.domain(x, y, query=query)).terms["arithmetic"]
        return not bool(self.levels.certain(self.exact(x, y, query), error))

    def distance(
        self, value: Tensor, x: Tensor, y: Tensor, query: Tensor | None = None, **parameters: Any
    ) -> float:
        off = abs(float(value - self.exact(x, y, query).clamp(-self.bound, self.bound)))
        return off if math.isfinite(off) else math.inf

    def layout(self) -> list[str]:
        return [
            "the begin token, id 0",
            "per sample: x_1 ... x_d, then y, each by its level",
            "the query: d - 1 tokens of kind query and one of kind last",
            "generated: the prediction, a level of kind y",
        ]

    # ---------------------------------------------------------------------------- the certificate

    def domain(self, x: Tensor, y: Tensor, query: Tensor | None = None, **rest: Any) -> DataDomain:
        asked = float(self.levels.nearest(self._query(query)).norm()) * OUTWARD_MANY
        return replace(super().domain(x, y, **rest), reach=asked)

    def example_domain(self) -> DataDomain:
        plain = super().example_domain()
        return replace(plain, reach=plain.rows)

    def certificate(
        self, domain: DataDomain, attention: str = "any", **parameters: Any
    ) -> Certificate:
        self.check_parameters(parameters)
        a = KernelRounding(self.torch_dtype, attention)
        stream = self.stream(domain)
        run = LinearErrorBound(stream, domain, self.recurrence(self.steps, domain), a)
        descent = math.fsum(run.terms().values())
        asked, w = domain.reach, max(run.r.coefficients) * domain.rms + descent
        alone = replace(stream, null=self.combination.null_logit, spread=1)
        predicted = carried(alone, a, asked * w, max(asked * w, 2.0**-20))
        error = SECOND_ORDER * (asked * descent + predicted)
        blur = SECOND_ORDER * self.blur(a, domain.samples, asked * w)
        described = {k: v for k, v in domain.describe().items() if k != "max |z_i|"}
        because = (
            *run.derivation(),
            DerivationStep("w_T", "", descent, "what the coefficients are off by"),
            DerivationStep("product", "", predicted, "what pairs add to w . x_q"),
        )
        held = {**described, "||x_q||": asked, "lr": self.lr, "steps": float(self.steps)}
        return self.written_as(held, a, error, blur, because, "answered level - exact prediction")


_OTHERS = ("begin", "x", "y", "query")  # tokens that do not ask
