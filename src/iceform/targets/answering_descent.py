r"""A GPT-2 that answers: pairs (x, y) and a query in, the prediction as the next token out.

The prompt is the samples and a query x_q, one token per number. The next token is the level nearest
to w_T . x_q, with w_T after T steps of gradient descent on least squares from 0. All of it happens
in one forward pass, at the query's last token:

1. **gather**: y tokens gather their x, the query's last token the query;
2. **T layers of descent**: pairs of heads (``linear_descent``), w is kept at that token;
3. **predict**: the token sees itself with the logit t (w . x_q), by pairs again, beside the begin
   token of weight 2^K: it carries w . x_q into ``out`` (``linear_error_bound``);
4. **square**, which the scores need (``quantizer``).

**Words.** A begin token; for a sample's x, its y, the query and its last number one token per
level each. n is not in the weights.

**Copies.** Positions are features p = position/P and p^2 (P a power of two: exact). A head with
the logits M P^2 (2 t p - p^2) sees the position t P alone: neighbours are e^{-M} below. So a y
token gathers the x of its own sample from the d positions before it, whatever came earlier. All
other tokens are routed to the begin token, whose numbers are 0, and gather nothing.

**Null weight.** The x tokens are the null tokens of ``linear_descent``: logit
K ln 2 - ln(lr d) and value 0, d of them per sample, so they weigh n 2^K/lr together without
anybody counting.

**Square.** Every y token with the logit t out and the value one gives lr 2^{-K} e^{t out}, and
central differences of order six,

.. math:: f''(0) \approx \frac{1}{\delta^2} \Big(\tfrac32 (f(\delta) + f(-\delta))
    - \tfrac{3}{20} (f(2\delta) + f(-2\delta)) + \tfrac1{90} (f(3\delta) + f(-3\delta))
    - \tfrac{49}{18} f(0)\Big),

of e^{t out} at t = 0 are out^2 within out^8 delta^6 cosh(3 delta out)/560.

**Error**: ||x_q|| times that of w_T, plus what pairs add in step 3, plus ``Quantizer.blur``. The
answer is the nearest level unless the exact prediction is that near to a midpoint.

Everything is float64: at a few hundred positions the logits of a copy reach 10^7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import OUTWARD_MANY
from iceform.certificates import Certificate, DerivationStep
from iceform.errors import DtypeError, ShapeError
from iceform.heads import Design, Features, Head, Move, Row, Vocabulary
from iceform.targets.architectures import Architecture
from iceform.targets.domain import DataDomain, check_data
from iceform.targets.linear_error_bound import DescentNetwork, LinearErrorBound
from iceform.targets.linear_head_pairs import LinearHeadPairs, central_differences
from iceform.targets.pieces import ONE, added, masked, pair_heads, routed, tokens_of
from iceform.targets.quantizer import Quantizer
from iceform.targets.recurrence import Recurrence
from iceform.targets.rounding import EPSILON, OFF, READ, SECOND_ORDER, KernelRounding
from iceform.targets.target import Target, largest
from iceform.validation import check_positive, check_size, plain_tensor

_SHARP = 64.0  # M
_COPIED = READ + 5  # units of a copy: weight, value, output, stream; neighbours add e^-64
_SPACING = 0.125  # delta of the square
_DIFFERENCES = central_differences(3, 2)
_SECOND = tuple(float(c) for c in _DIFFERENCES)
_CENTRE = float(2 * sum(_DIFFERENCES))
_KINDS = ("x", "y", "query", "last")  # of numbers, in the order of their tokens
_OTHERS = ("begin", "x", "y", "query")  # tokens that do not ask


@dataclass(frozen=True)
class AnsweringDescent(Target):
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
    causal: ClassVar[bool] = True
    why_causal: ClassVar[str] = "an encoder does not generate"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dim", "steps", "pairs", "positions"):
            check_size(name, getattr(self, name))
        check_positive("lr", self.lr)
        self.levels  # noqa: B018
        if self.dtype != "float64":
            raise DtypeError(f"decoders are written in float64, got {self.dtype!r}")

    @classmethod
    def unsuited(cls, known: Architecture) -> str:
        """Those that compute in float64 can hold it."""
        single = "its softmax is in float32, where copies by position are not sharp enough"
        return super().unsuited(known) or (single if torch.float64 not in known.dtypes else "")

    @cached_property
    def levels(self) -> Quantizer:
        """The numbers that tokens stand for."""
        return Quantizer(self.bound, self.step)

    @cached_property
    def combination(self) -> LinearHeadPairs:
        """The pairs of heads, tuned for typical residuals."""
        return LinearHeadPairs.tuned(
            2 * self.bound, self.pairs, self.torch_dtype, tuning.DECODER_NOISE
        )

    # ------------------------------------------------------------------------------- the stream

    @cached_property
    def design(self) -> Design:
        d = self.dim
        flags = dict.fromkeys(("begin", *_KINDS), 1)
        features = Features.of(
            **flags, number=1, label=1, weight=1, base=1, one=1, p=1, pp=1, a=d, w=d, out=1, q=1
        )
        gather = tuple(self._gather(k) for k in range(d))
        descend = self._pairs(
            "pair", "weight", ("begin", "query", "last"), lambda c: added("a", d, {"w": -c})
        )
        predict = self._pairs(
            "predict", "base", ("x", "y", "query"), lambda c: added("last", 1, {"out": c})
        )
        layers = (gather, *(descend,) * self.steps, predict, tuple(self._square()))
        return Design(features, layers, norm=EPSILON)

    def _gather(self, k: int) -> Head:
        """Tokens that gather see one position, by its distance; others the begin token."""
        sharp, shifts = _SHARP * self._scale**2, {"y": k - self.dim, "last": k - self.dim + 1}
        reads = {(kind, 0): 2 * sharp * shift / self._scale for kind, shift in shifts.items()}
        logit = (
            (Row({("p", 0): 2 * sharp, **reads}), Row.of("p")),
            (Row(constant=-sharp), Row.of("pp")),
            routed(("begin", "x", "query"), 8 * sharp, "begin"),
        )
        moves = (Move(Row.of("number"), {("a", k): 1.0}),)
        return Head(f"gather coordinate {k}", logit, moves)

    def _pairs(
        self, role: str, null: str, hidden: tuple[str, ...],
        moves: Callable[[float], tuple[Move, ...]],
    ) -> tuple[Head, ...]:  # fmt: skip
        """Pairs whose logits are t (w . a - label), beside the null tokens'."""
        reads = {"asks": "w", "seen": "a", "label": "label", "null": null}
        also = masked(hidden), routed(_OTHERS, to="begin")
        return tuple(
            pair_heads(self.combination, role + ", t = {t:+g}", self.dim, reads, also, moves)
        )

    def _square(self) -> Iterator[Head]:
        """q, but for its constant part."""
        for j, c in enumerate(_SECOND, 1):
            for sign in (1, -1):
                t = sign * j * _SPACING
                logit = (
                    (Row.of("out", 0, t), Row.flags(y=1.0)),
                    (ONE, Row.of("weight")),
                    masked(("begin", "query", "last")),
                    routed(_OTHERS, to="begin"),
                )
                scale = c / _SPACING**2 * 2.0**self.combination.leak_bits / self.lr
                yield Head(f"square, t = {t:+g}", logit, added("y", 1, {"q": scale}))

    # ---------------------------------------------------------------------------------- words

    def token(self, kind: str, ids: Tensor) -> Tensor:
        """Token ids of a kind's levels."""
        return 1 + _KINDS.index(kind) * len(self.levels) + ids

    @property
    def null_logit(self) -> float:
        """The logit of an x token, which serves as a null token."""
        return self.combination.null_logit - math.log(self.lr * self.dim)

    @property
    def _scale(self) -> float:
        """P."""
        return 2.0 ** math.ceil(math.log2(self.positions))

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self._words(), self._places(), self._scores())

    def _words(self) -> Float[Tensor, "ids f"]:
        """Every token's features: its kind's flag, its level."""
        at, levels, null = self.design.features, self.levels, self.combination.null_logit
        more: dict[str, dict[str, Any]] = {
            "x": {"weight": self.null_logit}, "y": {"label": levels.values},
        }  # fmt: skip
        each = (
            tokens_of(at, len(levels), **{kind: 1.0}, number=levels.values, **more.get(kind, {}))
            for kind in _KINDS
        )
        return torch.cat([tokens_of(at, 1, begin=1.0, base=null), *each])

    def _places(self) -> Float[Tensor, "p f"]:
        """Every position's features."""
        p = torch.arange(self.positions, dtype=torch.float64) / self._scale
        return tokens_of(self.design.features, self.positions, one=1.0, p=p, pp=p * p)

    def _scores(self) -> Float[Tensor, "ids f"]:
        """The language-model head: it chooses a level of y."""
        at, levels = self.design.features, self.levels
        far = -OFF * max(levels.bound, 1.0) ** 2
        out = tokens_of(at, 1 + len(_KINDS) * len(levels), one=far)
        square = _CENTRE / _SPACING**2 - levels.values**2
        ids = self.token("y", torch.arange(len(levels)))
        out[ids] = tokens_of(at, len(levels), out=2 * levels.values, q=-1.0, one=square)
        return out

    # -------------------------------------------------------------------------- prompt and answer

    def prompt(
        self, x: Tensor, y: Tensor, query: Tensor | None = None, **parameters: Any
    ) -> Int[Tensor, "1 t"]:
        self.check_parameters(parameters)
        asked = self.levels.ids(self._query(query))
        check_data(x, y, self.dim, (self.positions - 1 - self.dim) // (self.dim + 1))
        x, y = self._rounded(x, y)
        samples = torch.cat(
            [self.token("x", self.levels.ids(x)), self.token("y", self.levels.ids(y))[:, None]], 1
        )
        begin = torch.zeros(1, dtype=torch.long)
        last = self.token("query", asked[:-1]), self.token("last", asked[-1:])
        return torch.cat([begin, samples.flatten(), *last])[None]

    def _query(self, query: Tensor | None) -> Float[Tensor, "d"]:
        """The query; None asks for the prediction at (1, 0, ..., 0)."""
        if query is None:
            return torch.eye(self.dim, dtype=torch.float64)[0]
        query = plain_tensor("query", query)
        if query.shape != (self.dim,):
            raise ShapeError(f"query must have shape ({self.dim},), got {tuple(query.shape)}")
        self.levels.check("query", query)
        return query.double()

    def _rounded(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The data as tokens hold them; refused beyond the last level."""
        x, y = check_data(x, y, self.dim)
        self.levels.check("X", x)
        self.levels.check("y", y)
        return self.levels.nearest(x), self.levels.nearest(y)

    def read(self, out: Int[Tensor, "1 t"], **parameters: Any) -> Float[Tensor, ""]:
        """The level that the last token stands for."""
        first = int(self.token("y", torch.zeros((), dtype=torch.long)))
        place = int(out[0, -1]) - first
        known = 0 <= place < len(self.levels)
        return self.levels.values[place] if known else torch.tensor(math.nan).double()

    def run(
        self, network: Any, x: Tensor, y: Tensor, query: Tensor | None = None, **parameters: Any
    ) -> Tensor:
        ids = self.prompt(x, y, query, **parameters).to(network.device)
        made = network.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1,
            min_new_tokens=1, max_new_tokens=1,
        )  # fmt: skip
        return self.read(made.cpu())

    def exact(self, x: Tensor, y: Tensor, query: Tensor | None = None) -> Float[Tensor, ""]:
        """The prediction before it is rounded to a level, of the data as tokens hold them."""
        w = self._recurrence().exact(*self._rounded(x, y))
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
        return largest(value - self.exact(x, y, query).clamp(-self.bound, self.bound))

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
        plain = DataDomain.of(*self._rounded(x, y), self.dim, self.torch_dtype)
        return replace(plain, reach=asked)

    def example_domain(self) -> DataDomain:
        plain = DataDomain.box(self.dim, 8, min(1.0, self.bound))
        return replace(plain, reach=plain.rows)

    def _recurrence(self, domain: DataDomain | None = None) -> Recurrence:
        """Plain gradient descent."""
        low, high = (domain.bottom, domain.top) if domain else (0.0, 1.0)
        return Recurrence(self.lr, (1.0,) * self.steps, 0.0, 0.0, low, high)

    def certificate(
        self, domain: DataDomain, attention: str = "any", **parameters: Any
    ) -> Certificate:
        self.check_parameters(parameters)
        a = KernelRounding(self.torch_dtype, attention)
        # Every sample brings null tokens.
        stream = DescentNetwork(
            self.dim, self.combination, self.null_logit, self.design,
            largest=4 * self.bound, copied=_COPIED, spread=domain.samples * self.dim,
        )  # fmt: skip
        run = LinearErrorBound(stream, domain, self._recurrence(domain), a)
        descent = math.fsum(run.terms().values())
        asked, w = domain.reach, max(run.r.coefficients) * domain.rms + descent
        predicted = replace(stream, spread=1).carried(a, asked * w, max(asked * w, 2.0**-20))
        error = SECOND_ORDER * (asked * descent + predicted)
        blur = SECOND_ORDER * self._blur(a, domain.samples, asked * w)
        described = {k: v for k, v in domain.describe().items() if k != "max |z_i|"}
        because = (
            *run.derivation(),
            DerivationStep("w_T", "", descent, "what the coefficients are off by"),
            DerivationStep("product", "", predicted, "what pairs add to w . x_q"),
            DerivationStep(
                "blur", "SCORE u size/step", blur, "by which scores may misplace a midpoint"
            ),
        )
        return self.certified(
            {"rounding to a level": self.step / 2, "arithmetic": error + blur},
            {**described, "||x_q||": asked, "lr": self.lr, "steps": float(self.steps)},
            a, because, compared="answered level - exact prediction",
        )  # fmt: skip

    def _blur(self, a: KernelRounding, samples: int, out: float) -> float:
        """``Quantizer.blur``, with q as this stream makes it, for |out| up to the number given."""
        parts = 2 * sum(abs(c) * math.cosh(j * _SPACING * out) for j, c in enumerate(_SECOND, 1))
        parts = (parts + _CENTRE) / _SPACING**2
        units = 4 * abs(self.null_logit) + 2 * a.exp + samples * (self.dim + 2) + 16 * out + 32
        rest = out**8 * _SPACING**6 * math.cosh(3 * _SPACING * out) / 560
        leak = 2.0**-self.combination.leak_bits * self.lr * 4 * math.cosh(3 * _SPACING * out)
        return self.levels.blur(a.u, out, parts, rest + (units * a.u + leak) * parts)
