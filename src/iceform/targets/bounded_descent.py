"""Descent for any bounded f that is looked up in the prompt: what both such targets share.

f is the derivative of the loss, as a formula of the residual z = w.x - y, |f| < R. What is looked
up are logarithms of 1 + f/R and 1 - f/R, tabulated on [-reach, reach] and proven there. Residuals
must stay within along the run. Of data this is known from the exact iterates, which the certificate
takes from the reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import OUTWARD_MOST
from iceform.certificates import Certificate, DerivationStep
from iceform.errors import BoundError, PrecisionError
from iceform.expressions.formulas import Formula
from iceform.tables import Interpolant, Keys, RoundingModel
from iceform.tables.local import local_weights
from iceform.targets.domain import DataDomain
from iceform.targets.pieces import MASK, tokens_of
from iceform.targets.rounding import SECOND_ORDER, KernelRounding
from iceform.targets.target import FeatureTarget
from iceform.validation import check_positive, check_size

LARGEST_LOGIT = MASK / 8
SLACK = 2.0**-4  # computed coefficients may leave the exact ones by this much
_HEADROOM = 1.6  # R over sup |f|: nearer to 1 the logarithms are steep
_CLEAR = SLACK / 4  # of the tables' range that a certificate's example leaves free
_LEAST = 1e-3  # of sup |f|: f = 0 has tables too


@dataclass(frozen=True, eq=False)
class DescentTables:
    """Functions of f/R on one grid, for one f and range."""

    each: tuple[Interpolant, ...]
    scale: float  # R
    slopes: tuple[float, float]  # proven bounds of f'

    @property
    def keys(self) -> Keys:
        """Slopes and biases of the grid that all tables share."""
        return self.each[0].keys

    @property
    def tokens(self) -> int:
        """How many tokens a table takes."""
        return self.each[0].tokens

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the proofs of all tables assume."""
        return tuple(dict.fromkeys(a for table in self.each for a in table.assumptions))

    @property
    def error(self) -> float:
        """The largest proven error of a table, in exact arithmetic."""
        return max(table.error for table in self.each)

    @property
    def size(self) -> float:
        """The largest absolute value in any table."""
        return max(table.size for table in self.each)

    @cached_property
    def spread(self) -> float:
        """sup_z E|v - A|: what logits off by a little, each by its own, move a look-up by."""
        return max(
            float((w.tilted * (w.values.abs() + w.value_drift[:, None])).sum(-1).max())
            for table in self.each
            for w in local_weights(table, table.grid.mesh(4))
        )

    def rounding(self, model: RoundingModel) -> float:
        """The largest bound of what rounding does to a look-up in one of the tables."""
        return max(table.rounding(model) for table in self.each)


@lru_cache(maxsize=16)
def _tables(f: str, looked_up: tuple[str, ...], reach: float, dtype: torch.dtype) -> DescentTables:
    """Fitted on [-reach, reach]; ``looked_up`` are formulas of p = 1 + f/R and m = 1 - f/R."""
    formula = Formula.parse(f)
    slopes = formula.scalar_function(-reach, reach).slopes(-reach, reach)
    largest = formula.bound(-reach, reach, order=0)
    if largest is None or slopes is None:
        raise BoundError(
            f"no bound of {f!r} and of its slope is proved on [-{reach:g}, {reach:g}]; take a "
            "smooth, bounded function or a smaller reach"
        )
    scale = float(f"{_HEADROOM * max(largest, _LEAST):.6g}")
    p, m = (f"(1 {sign} ({formula.text})/{scale!r})" for sign in "+-")
    first, *others = (Formula.parse(text.format(p=p, m=m)).function for text in looked_up)
    try:
        # The smallest table that the dtype has use for, or the best there is.
        table = Interpolant.fit(first, -reach, reach, eps=tuning.DESCENT_TABLE_EPS[str(dtype)])
    except PrecisionError:
        table = Interpolant.fit(first, -reach, reach)
    return DescentTables((table, *(table.refit(other) for other in others)), scale, slopes)


@dataclass(frozen=True, eq=False)
class DescentErrorBound:
    """The account of one run, as its target's module has it."""

    spec: Any
    domain: DataDomain
    tables: DescentTables
    lr: float
    reach: float
    a: KernelRounding

    def terms(self) -> dict[str, float]:
        """The error's parts; infinite if residuals could leave the tables' range."""
        if self.largest_logit > LARGEST_LOGIT:
            return {"range": math.inf}
        found = {name: SECOND_ORDER * value for name, value in self.parts().items()}
        total = math.fsum(found.values())
        fits = self.domain.reach + self.rows * total <= self.reach and total <= SLACK
        return found if fits else {"range": math.inf}

    @property
    def largest_logit(self) -> float:
        """A bound of the logits of a look-up."""
        raise NotImplementedError

    def parts(self) -> dict[str, float]:
        """The error's parts, to first order."""
        raise NotImplementedError

    @property
    def rows(self) -> float:
        """X: a bound of ||x_i||."""
        return self.domain.rows * SECOND_ORDER

    @property
    def growth(self) -> float:
        """q: what a step of a full batch multiplies errors by."""
        ends = [s * e for s in self.tables.slopes for e in (self.domain.bottom, self.domain.top)]
        return max(abs(1 - self.lr * min(ends)), abs(1 - self.lr * max(ends)))

    @property
    def size(self) -> float:
        """A bound of ||w||."""
        return self.domain.size + SLACK

    def derivation(self) -> tuple[DerivationStep, ...]:
        """The steps that derive the bound."""
        tables = self.tables
        return (
            DerivationStep(
                "R", "1.6 sup |f|", tables.scale, "|f| < R, so that ln(1 +- f/R) are numbers"
            ),
            DerivationStep("P", "", float(tables.tokens), "table entries"),
            DerivationStep("table", "sup |A - a|", tables.error, "proven, in exact arithmetic"),
        )


@dataclass(frozen=True)
class BoundedDescent(FeatureTarget):
    """Descent whose f, step size and range of tables are in the prompt."""

    dim: int
    steps: int
    f: str = field(default="tanh(z)", kw_only=True)
    lr: float = field(default=0.5, kw_only=True)
    reach: float = field(default=3.0, kw_only=True)

    looked_up: ClassVar[tuple[str, ...]]
    error_bound: ClassVar[type[DescentErrorBound]]
    counts: ClassVar[tuple[str, ...]] = ("dim", "steps", "positions")
    defaults: ClassVar[tuple[str, ...]] = ("f", "lr", "reach")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.counts:
            check_size(name, getattr(self, name))
        self.settings({})

    def settings(self, given: dict[str, Any]) -> tuple[str, float, float]:
        """(f, lr, reach) of a prompt."""
        self.check_parameters(given)
        f = str(given.get("f", self.f))
        lr = check_positive("lr", given.get("lr", self.lr))
        return f, lr, check_positive("reach", given.get("reach", self.reach))

    def tables(self, **parameters: Any) -> DescentTables:
        """The prompt's tables."""
        f, _, reach = self.settings(parameters)
        return _tables(f, self.looked_up, reach, self.torch_dtype)

    def batches(self, samples: int, **parameters: Any) -> Sequence[slice]:
        """The samples that each step looks at: all of them, where a descent says nothing else."""
        return [slice(None)] * self.steps

    def path(
        self, x: Tensor, y: Tensor, **parameters: Any
    ) -> tuple[Float[Tensor, "t d"], Float[Tensor, "..."]]:
        """The exact iterates w_0, ..., w_T and the residuals that are looked up, in float64."""
        f, lr, _ = self.settings(parameters)
        formula, x, y = Formula.parse(f), x.double(), y.double()
        out, seen = [x.new_zeros(self.dim)], []
        for batch in self.batches(len(x), **parameters):
            rows = x[batch]
            seen.append(rows @ out[-1] - y[batch])
            out.append(out[-1] - lr * rows.T @ formula(seen[-1]) / len(rows))
        return torch.stack(out), torch.cat(seen)

    def table_tokens(
        self, tables: DescentTables, values: str = "values", **more: Tensor | float
    ) -> Float[Tensor, "p f"]:
        """A prompt's table entries: flags, keys and values."""
        keys, held = tables.keys, torch.stack([table.values for table in tables.each], 1)
        return tokens_of(
            self.design.features, tables.tokens, table=1.0, slope=keys.slopes, bias=keys.biases,
            **{values: held}, **more,
        )  # fmt: skip

    @property
    def schedule(self) -> tuple[float, ...]:
        """Every step's size over lr."""
        return (1.0,) * self.steps

    def account(
        self, domain: DataDomain, a: KernelRounding, **parameters: Any
    ) -> DescentErrorBound:
        """The account of how far a run can be from the exact one."""
        _, lr, reach = self.settings(parameters)
        return self.error_bound(self, domain, self.tables(**parameters), lr, reach, a)

    @property
    def looked_up_to(self) -> float:
        """|z| for which tables and weights are made."""
        return self.reach

    def example_domain(self) -> DataDomain:
        plain = DataDomain.box(self.dim, getattr(self, "samples", tuning.EXAMPLE_SAMPLES), 1.0)
        reach = self.looked_up_to * (1 - _CLEAR)
        return replace(plain, reach=reach, size=max(reach - 1, 0.0) / plain.rows)

    def reference(self, x: Tensor, y: Tensor, **parameters: Any) -> Float[Tensor, "d"]:
        return self.path(x, y, **parameters)[0][-1]

    def domain(self, x: Tensor, y: Tensor, **parameters: Any) -> DataDomain:
        dtype = self.torch_dtype
        plain = DataDomain.of(x, y, self.dim, dtype)
        path, seen = self.path(x.detach().to(dtype), y.detach().to(dtype), **parameters)
        largest, reach = float(path.norm(dim=1).max()), float(seen.abs().max())
        return replace(plain, size=largest * OUTWARD_MOST, reach=reach * OUTWARD_MOST)

    def certificate(
        self, domain: DataDomain, attention: str = "any", **parameters: Any
    ) -> Certificate:
        f, lr, _ = self.settings(parameters)
        a = KernelRounding(self.torch_dtype, attention)
        run = self.account(domain, a, **parameters)
        held = {**domain.describe(), "f": f, "lr": lr, "steps": float(self.steps)}
        return self.certified(run.terms(), held, a, run.derivation(), run.tables.assumptions)
