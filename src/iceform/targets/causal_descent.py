r"""Full-batch gradient descent for any bounded f under a causal mask, 3 n + 1 layers a step.

**Algorithm.** w <- w - lr mean(f(w.x_i - y_i) x_i), from w = 0. Samples come before the state and
never see w, so the state takes them one after the other.

**Layers.** Three for each sample, as in ``stochastic_descent``: its residual z_i by pairs of heads,
a look-up of ln((1 + f/R)/(1 - f/R)), and two heads whose difference is (lr/n) f(z_i) x_i. That is
added to a second register g, and w stays as it is. When all n had their turn, one head that sees
the state alone adds g to w and takes it away from g. The samples are in the prompt once, and the
flags ``absent``_i that let a head see sample i are the same in every step.

A prompt may hold fewer samples than the layers have turns for: a turn without a sample sees the
null token alone, whose u is 0, and adds nothing.

**Error of a step**, with X = ||x_i||, gate = 2 R lr X:

* each sample's share of g is off by what a step of ``stochastic_descent`` with the rate lr/n is,
  so all n together by gate (eps_o/4 + nu u);
* g is written n times, 4 units of |g| <= G = lr R X each, and read twice at the end: 2 READ + 4
  units of G, once in w and once in what is left of g; w is written once, 4 units of |w| + G;
* errors are multiplied in later steps by q = max |1 - lr lambda|, lambda in the hull of f' times
  the eigenvalues of X'X/n, as in ``general_descent``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from iceform.errors import ShapeError
from iceform.heads import Design, Features, Head
from iceform.targets.bounded_descent import BoundedDescent, DescentErrorBound
from iceform.targets.domain import DataDomain
from iceform.targets.pieces import added
from iceform.targets.rounding import EPSILON, READ, KernelRounding, inflate
from iceform.targets.stochastic_descent import StochasticDescent, StochasticErrorBound


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
    _moved: ClassVar[str] = "g"

    def check_parameters(self, given: dict[str, Any]) -> None:
        BoundedDescent.check_parameters(self, given)

    def _order(self, samples: int, order: Sequence[int] | None = None) -> list[int]:
        return list(range(samples))

    @cached_property
    def design(self) -> Design:
        d = self.dim
        features = Features.of(
            null=1, table=1, data=1, state=1, x=d, u=d, y=1, weight=1, slope=1, bias=1, value=1,
            w=d, g=d, z=1, o=1, absent=self.samples,
        )  # fmt: skip
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

    path = BoundedDescent.path  # of full batches, not of one sample a step

    # ---------------------------------------------------------------------------- the certificate

    def example_domain(self) -> DataDomain:
        plain = DataDomain.box(self.dim, self.samples, 1.0)
        reach = min(self.reach, self.span) * (1 - 2.0**-6)
        return replace(plain, reach=reach, size=max(reach - 1, 0.0) / plain.rows)

    def account(
        self, domain: DataDomain, a: KernelRounding, **parameters: Any
    ) -> DescentErrorBound:
        _, lr, reach = self.settings(parameters)
        return CausalErrorBound(self, domain, self.tables(**parameters), lr, reach, a)


@dataclass(frozen=True, eq=False)
class CausalErrorBound(StochasticErrorBound):
    """The account of 3 n + 1 layers, as the module has it."""

    spec: CausalDescent

    @property
    def _growth(self) -> float:
        ends = [s * e for s in self.tables.slopes for e in (self.domain.bottom, self.domain.top)]
        return max(abs(1 - self.lr * min(ends)), abs(1 - self.lr * max(ends)))

    def _gates(self, gate: float) -> float:
        """What all samples' gates, the register and the move into w are off by."""
        u, register = self.a.u, gate / 2  # |f| < R
        nu = (2 * READ + 5) * (self.tables.size + 1) / 4 + 2 * (self.a.exp / 2 + READ + 8)
        written = 4 * u * (self.spec.samples * register + gate)
        moved = 2 * (2 * READ + 4) * u * register + 4 * u * (self.size + register)
        return inflate(nu * u) * gate + written + moved
