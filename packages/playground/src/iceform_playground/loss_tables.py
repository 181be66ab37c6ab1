"""Look-up tables of the losses that the page offers, with their proven errors, and error rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from iceform.certificates import weakest
from iceform.errors import IceformError
from iceform.expressions import Loss, ScalarFunction
from iceform.tables import Interpolant
from iceform_estimators.algorithms import LinearModel
from iceform_estimators.machine import CLIP, CLIP_SQUARED, IDENTITY
from iceform_estimators.tuning import CORNER
from iceform_playground.catalogue import FORMULAS, ROUNDED, SHARES, entries

TOKENS = (33, 65, 129)  # of tables that the sliders can ask for
_REACHES = tuple(2.0**k for k in range(6))  # residuals on a board of height 2
_LINES = tuple(2.0**k for k in range(13))  # a line's table costs nothing
_CLIPS = tuple(2.0**k for k in range(-6, 11))
_SQUARES = tuple(2.0**k for k in range(11))
_FARTHEST = 4.0  # from 0 at which a curvature counts for the length of a step
_SIZES = {  # grid tokens whose errors are drawn
    "spectral": (9, 13, 17, 25, 33, 49, 65),
    "hard": (9, 17, 33, 65, 129, 257, 513, 1025),
}


@dataclass(frozen=True)
class PageLoss:
    """A loss that the page has tables of: an algorithm's, with settings and a formula."""

    algorithm: str
    name: str  # as the page's own losses are called
    parameters: Mapping[str, float] = field(default_factory=dict)
    formula: str = FORMULAS[0]

    @property
    def key(self) -> str:
        """Its name among the files' contents."""
        shares = [f"{self.parameters[self.algorithm]:g}"] if self._shared else []
        typed = [self.name] if self.algorithm == "custom" else []
        return ":".join([self.algorithm, *shares, *typed])

    @property
    def _shared(self) -> bool:
        """Whether its first setting is a share of the samples."""
        return self.algorithm in ("quantile", "expectile")

    @property
    def loss(self) -> Loss:
        """As the library has it."""
        chosen = {self.algorithm: self.parameters[self.algorithm]} if self._shared else {}
        made = entries()[self.algorithm].algorithm(self.formula, **chosen)
        assert isinstance(made, LinearModel)
        return made.loss()


def losses() -> Iterator[PageLoss]:
    """Every loss that an algorithm of the page looks up, by steps or in a loop of its own."""
    for name in ("linear", "ridge", "lasso", "elastic-net"):
        yield PageLoss(name, "squared")
    yield PageLoss("logistic", "logistic")
    yield PageLoss("svm", "squared_hinge")
    yield PageLoss("absolute", "absolute", {"width": ROUNDED})
    yield PageLoss("hinge", "hinge", {"width": ROUNDED})
    for share in SHARES:
        yield PageLoss("quantile", "quantile", {"quantile": share, "width": CORNER})
        yield PageLoss("expectile", "expectile", {"expectile": share})
    for formula in FORMULAS:
        yield PageLoss("custom", formula, formula=formula)


def loss_tables() -> dict[str, Any]:
    """Tables with their errors, and errors against tokens."""
    stored, curves = [], {}
    for one in losses():
        loss = one.loss
        own = one.algorithm in ("absolute", "hinge", "custom")
        stored.append({
            "key": one.key, "algorithm": one.algorithm, "loss": one.name, "kind": loss.kind,
            "parameters": dict(one.parameters), "name": loss.derivative.name, "unscaled": own,
            "bend": loss.curvature_on(-_FARTHEST, _FARTHEST)[1], "tables": _tables(loss),
        })  # fmt: skip
        curves[one.key] = _rates(loss.derivative)
    return {
        "losses": stored,
        "rates": curves,
        "clips": {f"{r:g}": table_json(CLIP.on(r)) for r in _CLIPS},
        "squares": {f"{r:g}": table_json(CLIP_SQUARED.on(r)) for r in _SQUARES},
        "identity": {f"{r:g}": table_json(IDENTITY.on(r)) for r in _LINES},
    }


def table_json(it: Interpolant) -> dict[str, Any]:
    """A look-up table for the page: softmax(slopes (z - center) + biases) . values."""
    return {
        "regime": it.regime, "tokens": it.tokens, "sharpness": it.sharpness,
        "low": it.low, "high": it.high, "center": it.grid.center,
        "error": it.error if math.isfinite(it.error) else None, "kind": it.kind,
        "nodes": it.grid.nodes.tolist(), "slopes": it.keys.slopes.tolist(),
        "biases": it.keys.biases.tolist(), "values": it.values.tolist(),
    }  # fmt: skip


def _tables(loss: Loss) -> dict[str, dict[str, Any]]:
    """By grid tokens, and then by reach."""
    f = loss.derivative
    if f.affine is not None:
        return {"any": {f"{r:g}": table_json(Interpolant.identity(-r, r)) for r in _LINES}}
    return {
        str(n): {f"{r:g}": table_json(_fitted(f, r, n)) for r in _REACHES}
        for n in TOKENS
    }  # fmt: skip


def _fitted(f: ScalarFunction, reach: float, tokens: int) -> Interpolant:
    return Interpolant.fit(ScalarFunction.of(f, -reach, reach), -reach, reach, tokens=tokens)


def _rates(f: ScalarFunction) -> dict[str, Any]:
    """Error against grid tokens on [-4, 4], measured and certified, for both regimes."""
    return {"name": f.name, "rates": [_rate(f, regime) for regime in _SIZES]}


def _rate(f: ScalarFunction, regime: str) -> dict[str, Any]:
    f = ScalarFunction.of(f, -_FARTHEST, _FARTHEST)
    z = torch.linspace(-_FARTHEST, _FARTHEST, 4001, dtype=torch.float64)
    tables = {n: table for n in _SIZES[regime] if (table := _sized(f, regime, n)) is not None}
    return {
        "regime": regime,
        "tokens": list(tables),
        "measured": [float((it(z) - f(z)).abs().max()) for it in tables.values()],
        "certified": [it.error for it in tables.values()],
        "kind": weakest([it.kind for it in tables.values()]),
    }


def _sized(f: ScalarFunction, regime: str, tokens: int) -> Interpolant | None:
    """A table of so many tokens; None where they hold none."""
    try:
        if regime == "hard":
            return Interpolant.hard(f, -_FARTHEST, _FARTHEST, cells=tokens - 1)
        return Interpolant.fit(f, -_FARTHEST, _FARTHEST, tokens=tokens)
    except IceformError:
        return None
