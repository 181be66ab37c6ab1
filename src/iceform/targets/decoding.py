r"""Token ids in, token ids out: what the two decoders share.

**Words.** A begin token; for every kind of number (a sample's x, its y, ...) one token per level.
A prompt is the begin token and, per sample, its x_1 ... x_d and then its y: n is not in the
weights.

**Copies.** Positions are features p = position/P and p^2 (P a power of two: exact). A head with
the logits M P^2 (2 t p - p^2) sees the position t P alone: neighbours are e^{-M} below. So a y
token gathers the x of its own sample from the d positions before it, whatever came earlier. All
other tokens are routed to the begin token, whose numbers are 0, and gather nothing.

**Null weight.** The x tokens are the null tokens of ``linear_descent``: logit
K ln 2 - ln(lr d) and value 0, d of them per sample, so they weigh n 2^K/lr together without
anybody counting.

**Square.** The last layer makes q near out^2, which the scores need (``quantizer``): every y token
with the logit t out and the value one gives lr 2^{-K} e^{t out}, and central differences of order
six,

.. math:: f''(0) \approx \frac{1}{\delta^2} \Big(\tfrac32 (f(\delta) + f(-\delta))
    - \tfrac{3}{20} (f(2\delta) + f(-2\delta)) + \tfrac1{90} (f(3\delta) + f(-3\delta))
    - \tfrac{49}{18} f(0)\Big),

of e^{t out} at t = 0 are out^2 within out^8 delta^6 cosh(3 delta out)/560.

Everything is float64: at a few hundred positions the logits of a copy reach 10^7.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.certificates import Certificate, DerivationStep
from iceform.errors import DtypeError
from iceform.heads import Head, Move, Row, Vocabulary
from iceform.targets.architectures import Architecture
from iceform.targets.domain import DataDomain, check_data
from iceform.targets.linear_error_bound import DescentNetwork
from iceform.targets.linear_head_pairs import LinearHeadPairs, central_differences
from iceform.targets.pieces import ONE, added, masked, pair_heads, routed
from iceform.targets.quantizer import Quantizer
from iceform.targets.recurrence import Recurrence
from iceform.targets.rounding import OFF, READ, KernelRounding
from iceform.targets.target import Target
from iceform.validation import check_positive, check_size

_SHARP = 64.0  # M
COPIED = READ + 5  # units of a copy: weight, value, output, stream; neighbours add e^-64
_SPACING = 0.125  # delta of the square
_DIFFERENCES = central_differences(3, 2)
_SECOND = tuple(float(c) for c in _DIFFERENCES)
_CENTRE = float(2 * sum(_DIFFERENCES))


class Decoder(Target):
    """A model of token ids, as a residual stream."""

    dim: int
    lr: float
    bound: float
    step: float
    pairs: int
    counts: ClassVar[tuple[str, ...]] = ("dim", "pairs", "positions")
    causal: ClassVar[bool] = True
    why_causal: ClassVar[str] = "an encoder does not generate"

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

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.counts:
            check_size(name, getattr(self, name))
        check_positive("lr", self.lr)
        self.levels  # noqa: B018
        if self.dtype != "float64":
            raise DtypeError(f"decoders are written in float64, got {self.dtype!r}")

    # ---------------------------------------------------------------------------------- words

    @property
    @abstractmethod
    def kinds(self) -> Sequence[str]:
        """Kinds of numbers, in the order of their tokens."""

    def token(self, kind: str, ids: Tensor) -> Tensor:
        """Token ids of a kind's levels."""
        return 1 + self.kinds.index(kind) * len(self.levels) + ids

    def table(self) -> Float[Tensor, "ids f"]:
        """Every token's features: its kind's flag, its level."""
        at, count = self.design.features, len(self.levels)
        out = torch.zeros(1 + len(self.kinds) * count, at.total, dtype=torch.float64)
        out[0, at["begin"]] = 1.0
        for i, kind in enumerate(self.kinds):
            rows = out[1 + i * count : 1 + (i + 1) * count]
            rows[:, at[kind]] = 1.0
            rows[:, at["number"]] = self.levels.values[:, None]
            if kind == "y":
                rows[:, at["label"]] = self.levels.values[:, None]
            if kind == "x":
                rows[:, at["weight"]] = self.null_logit
        return out

    @property
    def null_logit(self) -> float:
        """The logit of an x token, which serves as a null token."""
        return self.combination.null_logit - math.log(self.lr * self.dim)

    def places(self) -> Float[Tensor, "p f"]:
        """Every position's features."""
        at = self.design.features
        out = torch.zeros(self.positions, at.total, dtype=torch.float64)
        p = torch.arange(self.positions, dtype=torch.float64)[:, None] / self._scale
        out[:, at["one"]], out[:, at["p"]], out[:, at["pp"]] = 1.0, p, p * p
        return out

    @property
    def _scale(self) -> float:
        """P."""
        return 2.0 ** math.ceil(math.log2(self.positions))

    def score(self, kind: str, flag: Row | None = None) -> Float[Tensor, "ids f"]:
        """Rows of the head that choose a level of ``kind``; ``flag`` adds to all of them."""
        at, levels = self.design.features, self.levels
        out = torch.zeros(1 + len(self.kinds) * len(levels), at.total, dtype=torch.float64)
        out[:, at["one"]] = -OFF * max(levels.bound, 1.0) ** 2
        ids = self.token(kind, torch.arange(len(levels)))
        out[ids] = 0.0
        out[ids, at["out"].start] = 2 * levels.values
        out[ids, at["q"].start] = -1.0
        out[ids, at["one"].start] = _CENTRE / _SPACING**2 - levels.values**2
        for where, c in ({} if flag is None else flag.reads).items():
            out[ids, self.design.place(where)] += c
        return out

    @abstractmethod
    def scores(self) -> Float[Tensor, "ids f"]:
        """The language-model head."""

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.table(), self.places(), self.scores())

    # ---------------------------------------------------------------------------------- heads

    def copy(
        self, role: str, shifts: dict[str, int], moves: tuple[Move, ...], others: Sequence[str]
    ) -> Head:
        """Tokens of the kinds in ``shifts`` see one position, by its distance; ``others`` begin."""
        sharp = _SHARP * self._scale**2
        reads = {(kind, 0): 2 * sharp * shift / self._scale for kind, shift in shifts.items()}
        logit = (
            (Row({("p", 0): 2 * sharp, **reads}), Row.of("p")),
            (Row(constant=-sharp), Row.of("pp")),
            routed(others, 8 * sharp, "begin"),
        )
        return Head(role, logit, moves)

    def pair_heads(
        self, asks: str, hidden: Sequence[str], others: Sequence[str], moves: Any,
        role: str = "pair", null: str = "weight",
    ) -> tuple[Head, ...]:  # fmt: skip
        """Pairs whose logits are t (asks . a - label), beside the null tokens' weight."""
        reads = {"asks": asks, "seen": "a", "label": "label", "null": null}
        also = masked(hidden), routed(others, to="begin")
        return tuple(
            pair_heads(self.combination, role + ", t = {t:+g}", self.dim, reads, also, moves)
        )

    def square_heads(self, hidden: Sequence[str], others: Sequence[str]) -> tuple[Head, ...]:
        """q, but for its constant part."""
        out = []
        for j, c in enumerate(_SECOND, 1):
            for sign in (1, -1):
                t = sign * j * _SPACING
                logit = (
                    (Row.of("out", 0, t), Row.flags(y=1.0)),
                    (ONE, Row.of("weight")),
                    masked(hidden),
                    routed(others, to="begin"),
                )
                scale = c / _SPACING**2 * 2.0**self.combination.leak_bits / self.lr
                out.append(Head(f"square, t = {t:+g}", logit, added("y", 1, {"q": scale})))
        return tuple(out)

    def blur(self, a: KernelRounding, samples: int, out: float) -> float:
        """``Quantizer.blur``, with q as this stream makes it, for |out| up to the number given."""
        parts = 2 * sum(abs(c) * math.cosh(j * _SPACING * out) for j, c in enumerate(_SECOND, 1))
        parts = (parts + _CENTRE) / _SPACING**2
        units = 4 * abs(self.null_logit) + 2 * a.exp + samples * (self.dim + 2) + 16 * out + 32
        rest = out**8 * _SPACING**6 * math.cosh(3 * _SPACING * out) / 560
        leak = 2.0**-self.combination.leak_bits * self.lr * 4 * math.cosh(3 * _SPACING * out)
        return self.levels.blur(a.u, out, parts, rest + (units * a.u + leak) * parts)

    # ------------------------------------------------------------------------------ prompts

    def sample_ids(self, x: Float[Tensor, "n d"], y: Float[Tensor, "n"], room: int) -> Tensor:
        """The begin token, then every sample's x and y."""
        most = (self.positions - 1 - room) // (self.dim + 1)
        check_data(x, y, self.dim, most)
        x, y = self.rounded(x, y)
        parts = [self.token("x", self.levels.ids(x)), self.token("y", self.levels.ids(y))[:, None]]
        return torch.cat([torch.zeros(1, dtype=torch.long), torch.cat(parts, 1).flatten()])

    def rounded(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The data as tokens hold them; refused beyond the last level."""
        x, y = check_data(x, y, self.dim)
        self.levels.check("X", x)
        self.levels.check("y", y)
        return self.levels.nearest(x), self.levels.nearest(y)

    def domain(self, x: Tensor, y: Tensor, **parameters: Any) -> DataDomain:
        return DataDomain.of(*self.rounded(x, y), self.dim, self.torch_dtype)

    def example_domain(self) -> DataDomain:
        return DataDomain.box(self.dim, 8, min(1.0, self.bound))

    def generated(self, network: Any, ids: Tensor, count: int) -> Tensor:
        """Prompt and so many tokens by greedy decoding."""
        ids = ids.to(network.device)
        made: Tensor = network.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1,
            min_new_tokens=count, max_new_tokens=count,
        )  # fmt: skip
        return made.cpu()

    def stream(self, domain: DataDomain) -> DescentNetwork:
        """How the gradient is made; every sample brings null tokens."""
        return DescentNetwork(
            self.dim, self.combination, self.null_logit, self.design,
            largest=4 * self.bound, copied=COPIED, spread=domain.samples * self.dim,
        )  # fmt: skip

    def written_as(
        self, domain: dict[str, float | str], a: KernelRounding, error: float, blur: float,
        derivation: tuple[DerivationStep, ...], compared: str,
    ) -> Certificate:  # fmt: skip
        """The certificate of a level that stands for a number off by ``error``."""
        terms = {"rounding to a level": self.step / 2, "arithmetic": error + blur}
        why = "by which scores may misplace a midpoint"
        last = DerivationStep("blur", "SCORE u size/step", blur, why)
        return self.certified(terms, domain, a, (*derivation, last), compared=compared)

    def recurrence(self, steps: int, domain: DataDomain | None = None) -> Recurrence:
        """Plain gradient descent."""
        low, high = (domain.bottom, domain.top) if domain else (0.0, 1.0)
        return Recurrence(self.lr, (1.0,) * steps, 0.0, 0.0, low, high)
