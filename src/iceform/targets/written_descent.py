r"""A GPT-2 whose greedy decoding writes the iterates of gradient descent.

The prompt is the samples and w_0 = 0, one token per coordinate. Every generated token is the next
coordinate of the next iterate, as the nearest level: ``model.generate(ids, do_sample=False)``.
What is written is read again, so the algorithm is

    w <- nearest level of w - lr mean(x_i (w.x_i - y_i)),

coordinate by coordinate, exactly; rounding does not add up, since tokens are exact.

Four layers: **gather** (y tokens their x; a token of coordinate r of an iterate the whole iterate
before the one that is being written), **gradient** (pairs of heads, ``linear_descent``),
**select** (the coordinate that comes next; the token sees itself by its position), **square**
(``decoding``). Tokens of coordinate r are a kind of their own, so which coordinate comes next is
known from the last token.

**Error.** ``out`` is off by one gradient step's error (``linear_error_bound``) for
||w|| <= sqrt(d) bound and by copying; the score by ``Levels.blur``. So every written level is
within half a step and that of the exact number, and is the nearest one unless the exact number is
that near to a midpoint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iceform.certificates import Certificate, DerivationStep
from iceform.heads import Design, Features, Head, Move, Row
from iceform.targets.decimal_reference import linear_steps
from iceform.targets.decoding import COPIED, Decoder
from iceform.targets.domain import DataDomain
from iceform.targets.linear_error_bound import LinearErrorBound
from iceform.targets.pieces import added
from iceform.targets.rounding import EPSILON, SECOND_ORDER, KernelRounding
from iceform.validation import check_size

_WRONG = 16.0  # by which levels of a coordinate that does not come next are scored lower


@dataclass(frozen=True)
class WrittenDescent(Decoder):
    """Gradient descent on least squares, written by ``generate()``.

    Parameters
    ----------
    dim
        Features of a sample.
    lr
        The step size; in the weights, as is everything here but the data.
    bound, step
        Levels are the multiples of ``step`` (a power of two) up to ``bound``.
    pairs
        The most pairs of heads.
    positions
        Tokens of prompt and answer together: 1 + (d + 1) n + d + d T.

    Examples
    --------
    >>> spec = WrittenDescent(dim=1, lr=1.0, step=2.0**-4)
    >>> x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([0.5, 0.25]).double()
    >>> spec.reference(x, y, steps=2)  # what generate() writes: w_0, w_1, w_2 as levels
    tensor([[0.0000],
            [0.3125],
            [0.4375]], dtype=torch.float64)
    """

    dim: int
    lr: float = 0.5
    bound: float = 2.0
    step: float = 2.0**-9
    pairs: int = 8
    positions: int = 256
    dtype: str = "float64"

    kind: ClassVar[str] = "written_descent"
    title: ClassVar[str] = "gradient descent by greedy decoding"

    # ------------------------------------------------------------------------------- the stream

    @property
    def kinds(self) -> Sequence[str]:
        return ("x", "y", *self._coordinates)

    @property
    def _coordinates(self) -> tuple[str, ...]:
        return tuple(f"w{r}" for r in range(self.dim))

    @cached_property
    def design(self) -> Design:
        d = self.dim
        flags = dict.fromkeys(("begin", *self.kinds), 1)
        features = Features.of(
            **flags, number=1, label=1, weight=1, one=1, p=1, pp=1, a=d, g=d, out=1, q=1
        )
        gather = tuple(self._gather(k) for k in range(d))
        select = tuple(self._select(k) for k in range(d))
        square = self.square_heads(("begin", *self._coordinates), ("begin", "x", "y"))
        return Design(features, (gather, self._gradient(), select, square), norm=EPSILON)

    def _gather(self, k: int) -> Head:
        last = self.dim - 1
        shifts = {"y": k - self.dim}
        for r, kind in enumerate(self._coordinates):
            # The last coordinate completes an iterate; earlier ones look at the one before.
            shifts[kind] = k - r if r == last else k - r - self.dim
        moves = (Move(Row.of("number"), {("a", k): 1.0}),)
        return self.copy(f"gather coordinate {k}", shifts, moves, ("begin", "x"))

    def _gradient(self) -> tuple[Head, ...]:
        hidden, others = ("begin", *self._coordinates), ("begin", "x", "y")
        return self.pair_heads("a", hidden, others, lambda c: added("a", self.dim, {"g": -c}))

    def _select(self, k: int) -> Head:
        before = self._coordinates[k - 1]  # of coordinate 0: the last one
        value = Row({("a", k): 1.0, ("g", k): 1.0})
        others = [kind for kind in ("begin", *self.kinds) if kind != before]
        return self.copy(
            f"select coordinate {k}", {before: 0}, (Move(value, {("out", 0): 1.0}),), others
        )

    def scores(self) -> Float[Tensor, "ids f"]:
        rows = [
            self.score(kind, Row.flags(**{self._coordinates[r - 1]: _WRONG, "one": -_WRONG}))
            for r, kind in enumerate(self._coordinates)
        ]
        out = rows[0]
        for kind, more in zip(self._coordinates[1:], rows[1:], strict=True):
            ids = self.token(kind, torch.arange(len(self.levels)))
            out[ids] = more[ids]
        return out

    # -------------------------------------------------------------------------- prompt and answer

    def prompt(self, x: Tensor, y: Tensor, steps: int = 4, **parameters: Any) -> Int[Tensor, "1 t"]:
        self.check_parameters(parameters)
        check_size("steps", steps)
        start = [self.token(kind, self.levels.ids(torch.zeros(1))) for kind in self._coordinates]
        return torch.cat([self.sample_ids(x, y, self.dim * (1 + steps)), *start])[None]

    def read(self, out: Int[Tensor, "1 t"], **parameters: Any) -> Float[Tensor, "steps d"]:
        """The iterates w_0, w_1, ... in generated ids."""
        count = len(self.levels)
        first = int(self.token(self._coordinates[0], torch.zeros((), dtype=torch.long)))
        written = out[0][out[0] >= first] - first
        return self.levels.values[written % count].view(-1, self.dim)

    def run(self, network: Any, x: Tensor, y: Tensor, steps: int = 4, **parameters: Any) -> Tensor:
        ids = self.prompt(x, y, steps, **parameters)
        return self.read(self.generated(network, ids, self.dim * steps))

    def exact_steps(self, path: Float[Tensor, "t d"], x: Tensor, y: Tensor) -> Float[Tensor, "t d"]:
        """One exact step from every iterate of a path."""
        return linear_steps(*self.rounded(x, y), path, self.lr)

    def reference(self, x: Tensor, y: Tensor, steps: int = 4) -> Float[Tensor, "t d"]:
        """The iterates that the rounded algorithm has, w_0 included."""
        path = [torch.zeros(self.dim, dtype=torch.float64)]
        for _ in range(steps):
            path.append(self.levels.nearest(self.exact_steps(path[-1][None], x, y)[0]))
        return torch.stack(path)

    def ties(self, path: Float[Tensor, "t d"], x: Tensor, y: Tensor) -> Tensor:
        """Where in a path the nearest level is not certain: (iterate, coordinate) pairs."""
        error = self.certificate(self.domain(x, y)).terms["arithmetic"]
        sure = self.levels.certain(self.exact_steps(path[:-1], x, y), error)
        return (~sure).nonzero() + torch.tensor([1, 0])

    def distance(self, value: Tensor, x: Tensor, y: Tensor, **parameters: Any) -> float:
        """From every written number to the exact step from the numbers before it."""
        exact = self.exact_steps(value[:-1], x, y).clamp(-self.bound, self.bound)
        off = float((value[1:] - exact).abs().max())
        return off if math.isfinite(off) else math.inf

    def layout(self) -> list[str]:
        return [
            "the begin token, id 0",
            "per sample: x_1 ... x_d, then y, each by its level",
            "w_0: d tokens, coordinate r as a level of kind w_r",
            "generated: w_1, w_2, ... coordinate by coordinate",
        ]

    # ---------------------------------------------------------------------------- the certificate

    def certificate(
        self, domain: DataDomain, attention: str = "any", **parameters: Any
    ) -> Certificate:
        self.check_parameters(parameters)
        a = KernelRounding(self.torch_dtype, attention)
        error, blur = self._error(domain, a)
        return self.written_as(
            {**domain.describe(), "lr": self.lr, "levels": float(len(self.levels))},
            a,
            error,
            blur,
            (
                DerivationStep(
                    "e", "one gradient step", error, "what the stream's number is off by"
                ),
            ),
            "written level - exact step from the levels before it",
        )

    def _error(self, domain: DataDomain, a: KernelRounding) -> tuple[float, float]:
        stream = self.stream(domain)
        account = LinearErrorBound(stream, domain, self.recurrence(1, domain), a)
        w = math.sqrt(self.dim) * self.bound
        size = domain.rows * w + domain.label
        gradient = account.gradient(self.lr, w, size)
        added = gradient.pop("added") + self.bound
        error = math.fsum(gradient.values()) + (stream.heads + 2 * COPIED + 4) * a.u * added
        out = self.bound + self.lr * domain.rows * size
        return SECOND_ORDER * error, SECOND_ORDER * self.blur(a, domain.samples, out)
