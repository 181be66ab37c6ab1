r"""Full-batch descent on least squares, one layer a step, any number of samples.

**Algorithm.** With z_i = w.x_i - y_i and g = mean(x_i z_i) + penalty w,

    v <- momentum v - rho_t lr g,    w <- w + v,    from w = v = 0:

gradient descent, ridge, heavy-ball momentum, and with factors rho_t Chebyshev steps.

**Tokens.** A null token, one token (x_i, y_i) per sample, a state token that holds w and v. The
order is this one, so a causal mask takes nothing away.

**Pairs of heads.** The state asks with logits t z_i; the null token has the logit
m = ln(n/lr) + K ln 2 and the value 0. So the head returns

.. math:: F(t) = \frac{\sum_i x_i e^{t z_i}}{e^m + 1 + \sum_i e^{t z_i}}
    = \frac{lr\,2^{-K}\,\mathrm{mean}(x_i e^{t z_i})}{1 + \ell(t)},\qquad
    \ell(t) = lr\,2^{-K} (\mathrm{mean}(e^{t z_i}) + 1/n),

and the combination 2^K sum_j a_j (F(j delta) - F(-j delta))/2 is lr mean(x_i z_i)
(``linear_head_pairs``). Number of samples and step size are in the null token. Penalty and momentum
are gates: a state that sees itself with the logit ln(alpha/(1 - alpha)) and the null token with 0
receives alpha times its own value. So one checkpoint serves every n, lr, penalty and momentum;
factors are in the weights. With ``groups`` every pair of heads is there once for each group of
samples, the others hidden from it: what a head adds up are n/groups terms, and so is what their sum
rounds. All other tokens look at the null token alone (a logit that underflows to 0 elsewhere),
whose value is 0, and stay what they are.

**Error**: ``linear_error_bound``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.certificates import Certificate
from iceform.errors import BoundError, ShapeError
from iceform.heads import Design, Features, Head, Row
from iceform.heads.design import hidden_among
from iceform.heads.rotation import Rotation
from iceform.paper.schedules import chebyshev_steps
from iceform.targets.domain import DataDomain, check_data
from iceform.targets.linear_error_bound import (
    DescentNetwork,
    LinearErrorBound,
    RotatedErrorBound,
    log_odds,
)
from iceform.targets.linear_head_pairs import LinearHeadPairs
from iceform.targets.pieces import MASK, ONE, added, apart_from, pair_heads, routed, tokens_of
from iceform.targets.recurrence import Recurrence
from iceform.targets.rounding import EPSILON, OFF, KernelRounding
from iceform.targets.target import FeatureTarget
from iceform.validation import check_positive, check_size

_SEEDS = torch.iinfo(torch.int64).max + 1
_TOKENS = ("null", "sample", "state")  # of the shortest prompt
_MIXED = ("x", "y", "w", "v")  # by a rotation


@dataclass(frozen=True)
class LinearDescent(FeatureTarget):
    """Least squares by descent, as a residual stream.

    Parameters
    ----------
    dim
        Features of a sample.
    steps
        Layers.
    factors
        rho_t, in the weights; empty for all one. :meth:`chebyshev` makes those.
    reach
        |z| for which the pairs are tuned. Larger residuals are certified less tightly, and in
        float32 soon not at all.
    pairs
        The most pairs of heads; as many are used as make the error least in the dtype.
    positions
        Tokens that a prompt may have, so samples + 2.
    dtype
        "float64" or "float32".
    basis
        A seed: x, y, w and v are mixed by a rotation of the stream (``rotation``). None: every
        feature has a place of its own.
    idle
        Heads a layer that do nothing, among the others.
    groups
        Parts that samples are added up in, each by heads of its own. In float32 a sum of hundreds
        of terms rounds by more than everything else.
    copies
        Redundant paths: every head this many times, a power of two, each writing its share. With
        idle heads or copies the order of the heads is drawn from the seed.

    Examples
    --------
    >>> spec = LinearDescent(dim=1, steps=2)
    >>> x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([0.5, 0.25]).double()
    >>> spec.reference(x, y, lr=0.4)  # w_2, exactly
    tensor([0.2188], dtype=torch.float64)
    >>> spec.certificate(spec.domain(x, y), lr=0.4).error < 1e-12
    True
    """

    dim: int
    steps: int
    factors: tuple[float, ...] = ()
    reach: float = 4.0
    pairs: int = 8
    positions: int = 1024
    dtype: str = "float64"
    basis: int | None = None
    idle: int = 0
    copies: int = 1
    groups: int = 1
    lr: float = field(default=0.5, kw_only=True)
    penalty: float = field(default=0.0, kw_only=True)
    momentum: float = field(default=0.0, kw_only=True)

    kind: ClassVar[str] = "linear_descent"
    title: ClassVar[str] = "full-batch descent on least squares, one layer a step"
    causal: ClassVar[bool] = True
    defaults: ClassVar[tuple[str, ...]] = ("lr", "penalty", "momentum")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dim", "steps", "pairs", "groups"):
            check_size(name, getattr(self, name))
        if self.positions < len(_TOKENS):
            raise ShapeError(f"positions must be at least {len(_TOKENS)}, got {self.positions}")
        check_positive("reach", self.reach)
        if self.factors and len(self.factors) != self.steps:
            raise ShapeError(f"{len(self.factors)} factors for {self.steps} steps; give one each")
        for rho in self.factors:
            check_positive("a factor", rho)
        if self.basis is not None and not 0 <= self.basis < _SEEDS:
            raise BoundError(f"basis is a seed from 0 to 2^63 - 1, got {self.basis}")
        if self.idle < 0:
            raise BoundError(f"idle is a number of heads, got {self.idle}")
        if self.copies < 1 or self.copies & (self.copies - 1):
            raise BoundError(
                f"copies must be a power of two, so that shares are, got {self.copies}"
            )
        self.recurrence(None)

    @classmethod
    def chebyshev(cls, dim: int, steps: int, kappa: float, **rest: Any) -> LinearDescent:
        """Chebyshev steps for eigenvalues in [top/kappa, top]; lr is then 1/top.

        In Leja order (``paper.schedules``), so that iterates on the way stay small.
        """
        check_positive("kappa", kappa)
        return cls(dim, steps, chebyshev_steps(1 / kappa, 1.0, steps), **rest)

    # ------------------------------------------------------------------------------- the stream

    @property
    def schedule(self) -> tuple[float, ...]:
        """rho_t, one a step."""
        return self.factors or (1.0,) * self.steps

    @cached_property
    def combination(self) -> LinearHeadPairs:
        """The pairs of heads."""
        return LinearHeadPairs.tuned(self.reach, self.pairs, self.torch_dtype)

    @cached_property
    def design(self) -> Design:
        d = self.dim
        features = Features.of(
            x=d, y=1, w=d, v=d, null=1, data=1, weight=1, penalty=1, momentum=1,
            **self._grouped,
        )  # fmt: skip
        mixed = None if self.basis is None else Rotation(features, _MIXED, self.basis)
        layers = tuple(self._layer(rho) for rho in self.schedule)
        if self.idle or self.copies > 1:
            order = torch.Generator().manual_seed(self.basis or 0)
            layers = tuple(hidden_among(layer, self.idle, self.copies, order) for layer in layers)
        return Design(features, layers, rotation=mixed, norm=EPSILON)

    def _layer(self, rho: float) -> tuple[Head, ...]:
        groups = zip(*(self._pairs(rho, group) for group in range(self.groups)), strict=True)
        return (
            *(head for each in groups for head in each),
            self._gate("penalty", "penalty", 1.0, "w", {"w": -rho, "v": -rho}),
            self._gate("momentum, kept", "momentum", 1.0, "v", {"w": 1.0}),
            self._gate("momentum, lost", "momentum", -1.0, "v", {"v": -1.0}),
        )

    @property
    def _grouped(self) -> dict[str, int]:
        """Flags of groups that a token is not of."""
        return {"apart": self.groups} if self.groups > 1 else {}

    def _pairs(self, rho: float, group: int) -> Iterator[Head]:
        role, also = "gradient, t = {t:+g}", [_ROUTED]
        if self._grouped:
            role += f", group {group}"
            also.append((Row(constant=-MASK), Row.of("apart", group)))
        reads = {"asks": "w", "seen": "x", "label": "y", "null": "weight"}
        return pair_heads(
            self.combination, role, self.dim, reads, also,
            lambda a: added("x", self.dim, {"w": -rho * a, "v": -rho * a}),
        )  # fmt: skip

    def _gate(
        self, role: str, odds: str, sign: float, source: str, target: dict[str, float]
    ) -> Head:
        seen = (ONE, Row.flags(**{odds: sign, "data": -MASK}))
        return Head(role, (seen, _ROUTED), added(source, self.dim, target))

    # -------------------------------------------------------------------------- prompt and answer

    def tokens(
        self, x: Float[Tensor, "n d"], y: Float[Tensor, "n"], padding: int = 0, **parameters: Any
    ) -> Float[Tensor, "t f"]:
        check_data(x, y, self.dim, self.positions - 2 - _checked_padding(padding))
        r = self.recurrence(None, **parameters)
        at, n = self.design.features, len(x)
        group = torch.arange(n) % self.groups
        apart = {"apart": apart_from(group, self.groups)} if self._grouped else {}
        others = dict.fromkeys(self._grouped, 1.0)
        x, y = (part.to(self.torch_dtype) for part in (x, y))
        odds = {"penalty": log_odds(r.lr * r.penalty), "momentum": log_odds(r.momentum)}
        # Padding is samples of zeros that the null token does not count.
        return torch.cat([
            tokens_of(at, 1, null=1.0, weight=self.null_logit(n, r.lr)),
            tokens_of(at, n, data=1.0, x=x, y=y, **apart),
            tokens_of(at, padding, data=1.0, **others),
            tokens_of(at, 1, **odds, **others),
        ])  # fmt: skip

    def layout(self) -> list[str]:
        return [
            "null: null = 1, weight = ln(n/lr) + K ln 2",
            "one token per sample: data = 1, x, y"
            + (", apart = 1 but for its group" if self._grouped else ""),
            "state: penalty and momentum as log odds; w and v start at 0",
        ]

    def answer(self, features: Float[Tensor, "t f"]) -> Float[Tensor, "d"]:
        return features[-1, self.design.features["w"]]

    def null_logit(self, samples: int, lr: float) -> float:
        """The null token's: m = ln(n/lr) + K ln 2."""
        return math.log(samples / lr) + self.combination.null_logit

    def reference(
        self, x: Float[Tensor, "n d"], y: Float[Tensor, "n"], padding: int = 0, **parameters: Any
    ) -> Float[Tensor, "d"]:
        return self.recurrence(None, **parameters).exact(x, y)

    def recurrence(self, domain: DataDomain | None, **parameters: Any) -> Recurrence:
        """The method's numbers, for the eigenvalues of a domain."""
        self.check_parameters(parameters)
        lr = check_positive("lr", parameters.get("lr", self.lr))
        penalty = check_positive("penalty", parameters.get("penalty", self.penalty), zero=True)
        momentum = check_positive("momentum", parameters.get("momentum", self.momentum), zero=True)
        for name, value in (("lr * penalty", lr * penalty), ("momentum", momentum)):
            if not value < 1:
                raise BoundError(f"{name} must be below 1 (it is a gate), got {value:.6g}")
        low, high = (domain.bottom, domain.top) if domain else (0.0, 1.0)
        return Recurrence(lr, self.schedule, penalty, momentum, low, high)

    # ---------------------------------------------------------------------------- the certificate

    def domain(self, x: Tensor, y: Tensor, padding: int = 0, **parameters: Any) -> DataDomain:
        plain = DataDomain.of(x, y, self.dim, self.torch_dtype)
        return replace(plain, padding=_checked_padding(padding))

    def certificate(
        self, domain: DataDomain, attention: str = "any", **parameters: Any
    ) -> Certificate:
        a = KernelRounding(self.torch_dtype, attention)
        r = self.recurrence(domain, **parameters)
        stream = DescentNetwork(
            self.dim,
            self.combination, self.null_logit(domain.samples, r.lr), self.design,
            largest=2 * OFF + self.groups, groups=self.groups,
        )  # fmt: skip
        account = LinearErrorBound if self.basis is None else RotatedErrorBound
        run = account(stream, domain, r, a)
        held = {"lr": r.lr, "penalty": r.penalty, "momentum": r.momentum, "steps": float(r.steps)}
        return self.certified(run.terms(), {**domain.describe(), **held}, a, run.derivation())

    def example_domain(self) -> DataDomain:
        """Data up to 1, or so much smaller that residuals stay within the reach."""
        samples, bound = min(tuning.CHECKPOINT_SAMPLES, self.positions - 2), 1.0
        while True:
            domain = DataDomain.box(self.dim, samples, bound)
            largest = max(self.recurrence(domain).coefficients) * domain.rms
            if not bound or domain.rows * largest + domain.label <= self.reach:
                return domain
            bound /= 2


def _checked_padding(padding: object) -> int:
    if isinstance(padding, bool) or not isinstance(padding, int) or padding < 0:
        raise ShapeError(f"padding is a whole number of tokens, at least 0, got {padding!r}")
    return padding


# Tokens that do not ask look at the null token alone.
_ROUTED = routed(("data", "null"), MASK)
