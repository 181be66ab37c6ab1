r"""Descent for any bounded f under a causal mask: one sample a step, or all n of them.

Everything happens at the last token: samples come before it and never see w. So the state takes
them one after the other, three layers each.

**One sample a step** (``StochasticDescent``). w <- w - lr f(w.x_i - y_i) x_i with i = order[t],
from w = 0.

**Tokens.** A null token, table entries, one token per sample, the state. Every token but the null
token and the sample of step t has the flag ``not``_t; so the order is in the prompt, any order, and
a head of step t sees the null token and one sample. Loss, step size, order and n are in the prompt.

1. *Residual.* Pairs of heads with logits t z_i (``linear_head_pairs``) beside a null token of
weight 2^K carry
   the number one: sum_j a_j (F(j delta) - F(-j delta)) 2^{K-1} = z_i.
2. *Look-up.* The state looks o(z) = ln((1 + f(z)/R)/(1 - f(z)/R)) up, |f| < R.
3. *Step.* The state sees the sample with the logit o and the null token with 0, so it receives
   (1 + f/R)/2 times u_i = 2 R lr x_i; a second head with the logit 0 receives u_i/2. Their
   difference is lr f x_i. A third head sees the state alone and takes z and o away again.

**Error of a step**, with |z| <= Z, u_i = 2 R lr x_i, X = ||x_i||:

* z is off by eps_z: remainder R(Z), leak 2^-K (2 Z + ...), noise (as in ``linear_descent`` with one
  sample), NORM (2 S + Z) + (3 + NORM) |m| Z units of what all heads read alike, writing, and
  what erasing the last z left: READ + 2 units of Z.
* o is off by eps_o: the table's proven error, its rounding (``RoundingModel``), its steepness
  times eps_z, and what erasing left.
* alpha(o) = 1/(1 + e^{-o}) moves by eps_o/4. A weight p = a/(a + b) moves by p (1 - p) <= 1/4 of
  what its logits and exponentials are off by: reading o twice over, a sum and a difference
  (2 READ + 5 units of o), and two exponentials. The sum, the division and the value read cost READ
  + 8 units more; the head of weight 1/2 has no logit. So w is off by 2 R lr X (eps_o/4 + nu u),
  nu the units of both heads, + writing.
* Errors are multiplied in later steps by q = max |1 - lr f' s|, s from 0 to X^2.

**Full batches** (``CausalDescent``). w <- w - lr mean(f(w.x_i - y_i) x_i), from w = 0, with
3 n + 1 layers a step: what a sample's three layers make with the rate lr/n is added to a second
register g, and w stays as it is. When all n had their turn, one head that sees the state alone adds
g to w and takes it away from g. The samples are in the prompt once, and the flags ``absent``_i that
let a head see sample i are the same in every step.

A prompt may hold fewer samples than the layers have turns for: a turn without a sample sees the
null token alone, whose u is 0, and adds nothing.

**Error of a step of a full batch**, with gate = 2 R lr X:

* each sample's share of g is off by what a step of one sample with the rate lr/n is,
  so all n together by gate (eps_o/4 + nu u);
* g is written n times, 4 units of |g| <= G = lr R X each, and read twice at the end: 2 READ + 4
  units of G, once in w and once in what is left of g; w is written once, 4 units of |w| + G;
* errors are multiplied in later steps by q = max |1 - lr lambda|, lambda in the hull of f' times
  the eigenvalues of X'X/n, as in ``general_descent``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.certificates import DerivationStep
from iceform.errors import ShapeError
from iceform.heads import Design, Features, Head, Row
from iceform.heads.head import Pair
from iceform.tables import RoundingModel
from iceform.targets.bounded_descent import SLACK, BoundedDescent, DescentErrorBound
from iceform.targets.domain import check_data
from iceform.targets.linear_error_bound import DescentNetwork
from iceform.targets.linear_head_pairs import LinearHeadPairs
from iceform.targets.pieces import MASK, ONE, added, erased, masked, pair_heads, routed, tokens_of
from iceform.targets.rounding import EPSILON, READ, inflate
from iceform.validation import check_positive

# Tokens that do not ask look at the null token alone.
_ROUTED = routed(("data", "null", "table"))


def _hidden(t: int) -> Pair:
    """All samples but that of turn t."""
    return Row(constant=-MASK), Row.of("absent", t)


@dataclass(frozen=True, eq=False)
class StochasticErrorBound(DescentErrorBound):
    """The account of three layers for one sample, as the module has it."""

    spec: StochasticDescent

    def parts(self) -> dict[str, float]:
        q, steps = self.growth, self.spec.steps
        arrives = math.fsum(q**t for t in range(steps))
        gate = 2 * self.tables.scale * self.lr * self.rows
        steep = self.tables.each[0].steepness
        return {
            "table": arrives * gate / 4 * self.tables.error,
            "look-up": arrives * gate / 4 * self._look_up,
            "residual": arrives * gate / 4 * steep * self._residual,
            "step": arrives * self._gates(gate) + READ * self.a.u * self.size,
        }

    @property
    def largest_logit(self) -> float:
        keys = self.tables.keys
        return float((keys.slopes.abs() * self.reach + keys.biases.abs()).max())

    @property
    def growth(self) -> float:
        ends = [self.lr * s * self.rows * self.rows for s in self.tables.slopes]
        return max(1.0, abs(1 - min(ends)), abs(1 - max(ends)))

    @cached_property
    def _residual(self) -> float:
        """eps_z."""
        spec, pairs = self.spec, self.spec.combination
        stream = DescentNetwork(spec.dim, pairs, pairs.null_logit, spec.design, 0.0)
        size = self.rows * self.size + self.domain.label + SLACK
        left = (READ + 2) * self.a.u * self.reach  # of the last z, by erasing it
        return stream.carried(self.a, size, min(size, self.reach)) + left

    @cached_property
    def _look_up(self) -> float:
        """eps_o without the table's error and without z's."""
        model = RoundingModel(self.a.u, False, self.reach, 2 * READ + 6)
        table = self.tables.each[0]
        more = (READ + 2 + READ + 2) * self.a.u * table.size
        return table.rounding(model) + more + max(self.a.exp - 4, 0.0) * self.a.u * table.swing

    @property
    def _gate_error(self) -> float:
        """A relative bound of what the heads of weights (1 + f/R)/2 and 1/2 are off by."""
        nu = (2 * READ + 5) * (self.tables.size + 1) / 4 + 2 * (self.a.exp / 2 + READ + 8)
        return inflate(nu * self.a.u)

    def _gates(self, gate: float) -> float:
        """What both heads and the sum that w becomes are off by."""
        return self._gate_error * gate + 4 * self.a.u * (self.size + gate)

    def derivation(self) -> tuple[DerivationStep, ...]:
        p = self.spec.combination
        return (
            *super().derivation(),
            DerivationStep(
                "A", "sum_j |a_j|", p.amplitude(0.0), "by which rounding of z is amplified"
            ),
            DerivationStep("eps_z", "", self._residual, "of a residual"),
            DerivationStep(
                "q", "max |1 - lr f' s|", self.growth, "what a step multiplies errors by"
            ),
        )


@dataclass(frozen=True)
class StochasticDescent(BoundedDescent):
    """Stochastic gradient descent, one sample a step, as a residual stream.

    Parameters
    ----------
    dim
        Features of a sample.
    steps
        T; the network has 3 T layers.
    pairs, span
        The most pairs of heads, and the |z| for which they are tuned; in the weights.
    positions
        Tokens that a prompt may have: 2 + n + table entries.
    dtype
        "float64" or "float32".
    f, lr, reach
        The loss's derivative as a formula, the step size, the table's range: in the prompt.

    Examples
    --------
    >>> spec = StochasticDescent(dim=1, steps=2, f="tanh(z)", lr=0.5)
    >>> x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([0.5, 0.25]).double()
    >>> spec.reference(x, y, order=[1, 0])  # sample 1 first, then sample 0
    tensor([0.2675], dtype=torch.float64)
    """

    pairs: int = 8
    span: float = BoundedDescent.reach
    positions: int = 512
    dtype: str = "float64"
    lr: float = field(default=0.3, kw_only=True)

    kind: ClassVar[str] = "stochastic_descent"
    title: ClassVar[str] = "stochastic gradient descent for any bounded f, three layers a step"
    causal: ClassVar[bool] = True
    looked_up: ClassVar[tuple[str, ...]] = ("log({p}/{m})",)
    error_bound: ClassVar[type[DescentErrorBound]] = StochasticErrorBound
    beside: ClassVar[tuple[str, ...]] = ("order",)
    _moved: ClassVar[str] = "w"  # what a sample's step is added to
    counts: ClassVar[tuple[str, ...]] = ("dim", "steps", "positions", "pairs")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("span", self.span)

    def batches(
        self, samples: int, order: Sequence[int] | None = None, **parameters: Any
    ) -> Sequence[slice]:
        found: Any = order
        if order is None:
            found = [t % samples for t in range(self.steps)]
        elif isinstance(order, Tensor):
            found = order.tolist()
        if not isinstance(found, Sequence) or (
            len(found) != self.steps or not all(type(i) is int and 0 <= i < samples for i in found)
        ):
            raise ShapeError(
                f"order must name {self.steps} of the samples 0 to {samples - 1}, got {found}"
            )
        return [slice(i, i + 1) for i in found]

    def turns(self, samples: int, **parameters: Any) -> Sequence[slice]:
        """The sample of each turn: ``absent`` is 0 there."""
        return self.batches(samples, **parameters)

    @property
    def looked_up_to(self) -> float:
        return min(self.reach, self.span)

    # ------------------------------------------------------------------------------- the stream

    @cached_property
    def combination(self) -> LinearHeadPairs:
        """The pairs of heads."""
        return LinearHeadPairs.tuned(self.span, self.pairs, self.torch_dtype)

    @cached_property
    def design(self) -> Design:
        layers = tuple(layer for t in range(self.steps) for layer in self._layers(t))
        return Design(self._features(self.steps), layers, norm=EPSILON)

    def _features(self, turns: int, **more: int) -> Features:
        d = self.dim
        return Features.of(
            null=1, table=1, data=1, state=1, x=d, u=d, y=1, weight=1, slope=1, bias=1, value=1,
            w=d, **more, z=1, o=1, absent=turns,
        )  # fmt: skip

    def _layers(self, t: int) -> tuple[tuple[Head, ...], ...]:
        reads = {"asks": "w", "seen": "x", "label": "y", "null": "weight"}
        residual = pair_heads(
            self.combination, "residual, t = {t:+g}", self.dim, reads, (_hidden(t), _ROUTED),
            lambda a: added("data", 1, {"z": a}),
        )  # fmt: skip
        return tuple(residual), (self._look_up(),), (*self._step(t), self._erase())

    def _look_up(self) -> Head:
        logit = (
            (Row.of("z"), Row.of("slope")),
            (ONE, Row.of("bias")),
            masked(("null", "data", "state")),
            _ROUTED,
        )
        return Head("look up ln((1 + f/R)/(1 - f/R))", logit, added("value", 1, {"o": 1.0}))

    def _step(self, t: int) -> tuple[Head, Head]:
        half, asked = (_hidden(t), _ROUTED), (Row.of("o"), Row.of("data"))
        down, up = (added("u", self.dim, {self._moved: sign}) for sign in (-1.0, 1.0))
        return (
            Head("step, weight (1 + f/R)/2", (asked, *half), down),
            Head("step, weight 1/2", half, up),
        )

    def _erase(self) -> Head:
        logit = ((Row(constant=MASK), Row.flags(state=1.0)), _ROUTED)
        return Head("erase", logit, erased(("z", "o")))

    # -------------------------------------------------------------------------- prompt and answer

    def tokens(
        self, x: Float[Tensor, "n d"], y: Float[Tensor, "n"], **parameters: Any
    ) -> Float[Tensor, "t f"]:
        _, lr, _ = self.settings(parameters)
        tables = self.tables(**parameters)
        n, at = len(x), self.design.features
        check_data(x, y, self.dim, self.positions - 2 - tables.tokens)
        absent = torch.ones(n, len(range(at.total)[at["absent"]]))
        for t, seen in enumerate(self.turns(n, **parameters)):
            absent[seen, t] = 0.0
        u = 2 * tables.scale * lr * x.double()
        return torch.cat([
            tokens_of(at, 1, null=1.0, weight=self.combination.null_logit),
            self.table_tokens(tables, "value", absent=1.0),
            tokens_of(at, n, data=1.0, x=x, y=y, u=u, absent=absent),
            tokens_of(at, 1, state=1.0, absent=1.0),
        ])  # fmt: skip

    def layout(self) -> list[str]:
        return [
            "null: null = 1, weight = K ln 2",
            "one token per table entry: table = 1, slope, bias, value",
            "one token per sample: data = 1, x, y, u = 2 R lr x; absent[t] = 0 where it is used",
            "state: state = 1; w, z and o start at 0",
        ]

    def answer(self, features: Float[Tensor, "t f"]) -> Float[Tensor, "d"]:
        return features[-1, self.design.features["w"]]


@dataclass(frozen=True, eq=False)
class CausalErrorBound(StochasticErrorBound):
    """The account of 3 n + 1 layers, as the module has it."""

    spec: CausalDescent

    growth = DescentErrorBound.growth  # of full batches

    def _gates(self, gate: float) -> float:
        """What all samples' gates, the register and the move into w are off by."""
        u, register = self.a.u, gate / 2  # |f| < R
        written = 4 * u * (self.spec.samples * register + gate)
        moved = 2 * (2 * READ + 4) * u * register + 4 * u * (self.size + register)
        return self._gate_error * gate + written + moved


@dataclass(frozen=True)
class CausalDescent(StochasticDescent):
    """Full-batch gradient descent for any bounded f, as a residual stream under a causal mask.

    Parameters
    ----------
    dim
        Features of a sample.
    steps
        T; the network has (3 samples + 1) T layers.
    samples
        n, the most samples that a prompt may hold; in the weights.
    pairs, span
        The most pairs of heads, and the |z| for which they are tuned; in the weights.
    positions
        Tokens that a prompt may have: 2 + n + table entries.
    dtype
        "float64" or "float32".
    f, lr, reach
        The loss's derivative as a formula, the step size, the table's range: in the prompt.

    Examples
    --------
    >>> spec = CausalDescent(dim=2, steps=3, samples=4)
    >>> len(spec.design.layers) == 3 * (3 * 4 + 1)
    True
    """

    samples: int = field(default=8, kw_only=True)

    kind: ClassVar[str] = "causal_descent"
    title: ClassVar[str] = "full-batch descent for any bounded f, 3 n + 1 causal layers a step"
    counts: ClassVar[tuple[str, ...]] = ("dim", "steps", "positions", "pairs", "samples")
    error_bound: ClassVar[type[DescentErrorBound]] = CausalErrorBound
    beside: ClassVar[tuple[str, ...]] = ()
    _moved: ClassVar[str] = "g"

    def batches(self, samples: int, *_: Any, **parameters: Any) -> Sequence[slice]:
        return BoundedDescent.batches(self, samples)

    def turns(self, samples: int, **parameters: Any) -> Sequence[slice]:
        return [slice(i, i + 1) for i in range(samples)]

    @cached_property
    def design(self) -> Design:
        features = self._features(self.samples, g=self.dim)
        turns = tuple(layer for i in range(self.samples) for layer in self._layers(i))
        return Design(features, (*turns, (self._settle(),)) * self.steps, norm=EPSILON)

    def _settle(self) -> Head:
        """Add g to w, and take it away from g."""
        return replace(
            self._erase(), role="add the gradient to w",
            moves=added("g", self.dim, {"w": 1.0, "g": -1.0}),
        )  # fmt: skip

    # -------------------------------------------------------------------------- prompt and answer

    def tokens(
        self, x: Float[Tensor, "n d"], y: Float[Tensor, "n"], **parameters: Any
    ) -> Float[Tensor, "t f"]:
        _, lr, _ = self.settings(parameters)
        if len(x) > self.samples:
            raise ShapeError(
                f"{len(x)} samples were given, and the layers have turns for {self.samples}; write "
                f"the folder with samples={len(x)}, or a bert (GeneralDescent), which takes any n"
            )
        return super().tokens(x, y, **{**parameters, "lr": lr / max(len(x), 1)})

    def layout(self) -> list[str]:
        return [
            "null: null = 1, weight = K ln 2",
            "one token per table entry: table = 1, slope, bias, value",
            "one token per sample i: data = 1, x, y, u = 2 R lr x/n; absent[i] = 0",
            "state: state = 1; w, g, z and o start at 0",
        ]
