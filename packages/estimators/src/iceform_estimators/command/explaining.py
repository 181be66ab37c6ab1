"""What a program writes into its prompt, token by token, and what the frozen matrices answer."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iceform.attention import LookUps
from iceform.certificates import Attestation, Certificate, Ledger
from iceform.validation import unit_roundoff
from iceform_estimators.algorithms import PCA, Algorithm, ElasticNet, LinearModel, Places, sharpest
from iceform_estimators.command.running import Data, Settings, fitted
from iceform_estimators.machine import CLIP, IDENTITY, ArraySource, Scaling, Stream
from iceform_estimators.tables import Table, table_from

_GRADIENT = (
    "Sample i has {} tokens, one for each value that z = w.x - y may be near. A token has the key "
    "s (x, y), a bias and the value v (x, 1). The query carries w, finds its own z among them, and "
    "what it reads is f(z) (x, 1)."
)
_SAMPLES = 8  # of the data that are written into the prompt that is shown


def example(entry: type[Algorithm]) -> Table:
    """The table that the record is shown on."""
    shown = entry.example()
    columns = {**shown.columns, **({shown.target: shown.labels} if shown.target else {})}
    return table_from(columns, shown.target, source=shown.source)


@dataclass(frozen=True)
class TokenView:
    """One token as the first query sees it.

    Attributes
    ----------
    number, role
        Where it is in the prompt, and what it is.
    key_x, key_y, key_bias, value
        Its features.
    weight
        Its share of the first query's attention.
    table
        (z, s, v) in a look-up: the key is s times the sample, the value v times the sample, and it
        is read most around z.
    w
        What a query token carries.
    """

    number: int
    role: str
    key_x: tuple[float, ...]
    key_y: float
    key_bias: float
    value: tuple[float, ...]
    weight: float | None = None
    table: tuple[float, float, float] | None = None
    w: tuple[float, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class PromptView:
    """A prompt as the first query sees it.

    Attributes
    ----------
    title, says
        What it is for.
    features
        Sizes of the named features of a token.
    tokens
        Those that the first query sees, then the query itself.
    total
        Tokens of the whole prompt.
    answer, exact
        What the literal matrices return for the first query, and what the algorithm would.
    off
        The largest difference over all queries that were asked.
    certified, kind
        What it does not exceed, and whether that is "proven" or "estimated".
    """

    title: str
    says: str
    features: Mapping[str, int]
    tokens: tuple[TokenView, ...]
    total: int
    answer: tuple[float, ...]
    exact: tuple[float, ...]
    off: float
    certified: float | None
    kind: str = "proven"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **vars(self),
            "features": dict(self.features),
            "tokens": [t.to_dict() for t in self.tokens],
        }


@dataclass(frozen=True, eq=False)
class Explanation:
    """A program on a table: its prompts, its answer and the proof."""

    entry: type[Algorithm]
    source: str
    shape: tuple[int, int]
    machine: Stream
    prompts: tuple[PromptView, ...]
    coefficients: Mapping[str, float]
    certificate: Certificate
    attestation: Attestation
    ledger: Ledger
    passes: int
    warnings: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Frozen numbers."""
        return sum(buffer.numel() for buffer in self.machine.network.buffers())

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **self.entry.record(),
            "data": {"source": self.source, "rows": self.shape[0], "features": self.shape[1]},
            "machine": {
                "dim": self.machine.dim,
                "samples": self.machine.samples,
                "tokens": self.machine.tokens,
                "parameters": self.parameters,
                "digest": self.machine.digest,
            },
            "prompts": [p.to_dict() for p in self.prompts],
            "coefficients": dict(self.coefficients),
            "certificate": json.loads(self.certificate.to_json()),
            "attestation": self.attestation.to_dict(),
            "ledger": self.ledger.to_dict(),
            "passes": self.passes,
            "warnings": list(self.warnings),
        }


def explain(settings: Settings, table: Table) -> Explanation:
    """Fit the program to the whole table and open its prompts."""
    settings = replace(settings, test_share=0.0, compare=False)
    data = Data.of(settings, table, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fitted(settings, data)
    view = _Opened(settings, data, model)
    names, coef = data.preparation.names, getattr(model, "coef_", getattr(model, "components_", []))
    first = np.atleast_2d(coef)[0] if len(coef) else []
    return Explanation(
        settings.entry,
        table.source,
        data.x["train"].shape,
        model.machine_,
        tuple(view.prompts()),
        {name: float(value) for name, value in zip(names, first, strict=False)},
        model.certificate_,
        model.attestation_,
        model.ledger_,
        int(model.n_passes_),
        tuple(dict.fromkeys(" ".join(str(w.message).split()) for w in caught)),
    )


class _Opened:
    """A fitted model with its prompts open."""

    def __init__(self, settings: Settings, data: Data, model: Any) -> None:
        self.settings, self.entry, self.data, self.model = settings, settings.entry, data, model
        self.machine: Stream = model.machine_
        self.algorithm: Algorithm = model.as_algorithm()
        self.x = torch.as_tensor(data.x["train"], dtype=torch.float64)

    def prompts(self) -> list[PromptView]:
        """In the order in which a pass uses them."""
        if isinstance(self.algorithm, PCA):
            return [self._projection()]
        if not isinstance(self.algorithm, LinearModel):
            return [self._average()]
        found = [self._gradient(self.algorithm)]
        if isinstance(self.algorithm, ElasticNet):  # others take theirs on the host
            found.append(self._threshold())
        return found

    # -------------------------------------------------------------------------- look-ups

    @cached_property
    def source(self) -> ArraySource:
        """The data as the algorithm saw them."""
        return ArraySource(self.x, torch.as_tensor(self._numbers(), dtype=torch.float64))

    def _numbers(self) -> np.ndarray:
        """Labels as the first problem has them: numbers, or 1 for the class that is looked for."""
        y = self.data.y["train"]
        if self.entry.task != "classification":
            return y
        classes = self.model.classes_
        looked_for = classes[1] if len(classes) == 2 else classes[0]
        margin = isinstance(self.algorithm, LinearModel) and self.algorithm.loss().kind == "margin"
        return np.where(y == looked_for, 1.0, -1.0 if margin else 0.0)

    def _scaled(self, scaling: Scaling) -> Tensor:
        """W with raw coefficients = scaling.raw(w)."""
        raw = torch.as_tensor(np.atleast_2d(self.model.coef_)[0], dtype=torch.float64)
        w = raw * scaling.scale / scaling.size
        if not scaling.intercept:
            return w
        constant = float(np.ravel(self.model.intercept_)[0]) + float(scaling.mean @ raw)
        return torch.cat([w, w.new_tensor([(constant - scaling.center) / scaling.size])])

    def _gradient(self, algorithm: LinearModel) -> PromptView:
        parts = {n.removesuffix("_"): v for n, v in vars(self.model).items() if n.endswith("_")}
        running = self.machine.start()
        problem = algorithm.problem_at(running, self.source, parts)
        asked = algorithm.look_ups(running, problem, self._scaled(problem.scaling))
        asked = asked.part(slice(0, _SAMPLES))
        exact = algorithm.loss().derivative(asked.residuals())
        if asked.offsets is not None:
            exact = exact - asked.offsets
        return self._lookup("the gradient", _GRADIENT.format(asked.table.tokens), asked, exact)

    def _projection(self) -> PromptView:
        """The samples' coordinates along the first component."""
        rows = min(_SAMPLES, self.machine.samples, len(self.x))
        mean = torch.as_tensor(self.model.mean_)
        x = (self.x - mean)[:rows]
        v = torch.as_tensor(self.model.components_[0])
        table = IDENTITY.on(float((x @ v).abs().max()))
        asked = self.machine.start().look_ups(table, x, x.new_zeros(rows), v)
        return self._lookup("the covariance", _GRADIENT.format(table.tokens), asked, x @ v)

    def _threshold(self) -> PromptView:
        """Soft thresholds u - clip(u): the clip of each coefficient, in units of its threshold."""
        reach = 2.0
        u = torch.linspace(-reach, reach, min(_SAMPLES, self.machine.samples)).double()
        table = CLIP.on(reach)
        ones = torch.ones(len(u), 1, dtype=torch.float64)
        exact = u.clamp(-1, 1)[:, None]
        return self._lookup(
            "the soft threshold",
            "The same weights, another prompt: a clip, its keys crowded at the corners. A "
            "coefficient of u thresholds becomes u - clip(u); here u goes from -2 to 2.",
            LookUps(self.machine.geometry, table, u[:, None], 0 * u, ones[0]),
            exact[:, 0],
        )

    def _lookup(self, title: str, says: str, asked: LookUps, looked: Tensor) -> PromptView:
        exact = torch.cat([looked[:, None] * asked.x, looked[:, None]], 1)
        tokens = asked.tokens[0]
        keys = asked.table.keys
        slopes, values = keys.slopes.tolist(), asked.table.values.tolist()
        rows = list(zip(asked.table.grid.nodes.tolist(), slopes, values, strict=True))
        roles = [f"z = {row[0]:.3g}" for row in rows]
        kept = [*range(asked.x.shape[1]), self.machine.dim]  # of [f x, padding, f]
        first = self.machine.samples * self.machine.tokens  # the first query token
        # A step is looked up exactly, but for the width of its jump: its sup error says nothing.
        limit = None if asked.table.regime == "hard" else self._limit(asked)
        found = self._view(title, says, tokens, roles, (exact, kept, limit), first)
        *seen, query = found.tokens
        named = [replace(token, table=row) for token, row in zip(seen, rows, strict=True)]
        return replace(found, tokens=(*named, query), kind=asked.table.kind)

    def _limit(self, asked: LookUps) -> float:
        r"""A bound of \|read - f(z) (x, 1)\| for the literal matrices, rounding included.

        A logit adds d + 2 + m products whose sizes add up to ``terms``, so it is off by
        tau = (d + 4 + m) u terms; that moves an average of values v x by (e^{2 tau} - 1) times
        their range. Softmax and sum round by another (tokens + 8) u of the largest value.
        """
        table, unit = asked.table, unit_roundoff(torch.float64)
        reach = asked.x.abs() @ asked.w.abs() + asked.y.abs() + abs(table.grid.center)
        terms = table.keys.slopes.abs().max() * reach.max() + table.keys.biases.abs().max()
        tau = (self.machine.dim + 4 + self.machine.samples) * unit * float(terms)
        swing = float(table.values.max() - table.values.min())
        rounding = 2 * (len(table.values) + 8) * unit * float(table.values.abs().max())
        return max(1.0, float(asked.x.abs().max())) * (
            table.error + math.expm1(2 * tau) * swing + rounding
        )

    # -------------------------------------------------------------------------- averages

    def _average(self) -> PromptView:
        """What kernel regression and the nearest neighbour ask."""
        x = self.x - self.x.mean(0)
        y = self._average_values(x)
        points = x[: min(_SAMPLES, self.machine.samples, len(x))] + 0.25 * x.std(0)
        gamma = self._gamma(x, points)
        tokens = self.machine.start().kernel(x, y, points, gamma).tokens[0]
        logits = -gamma * torch.cdist(points, x).square()
        exact = torch.softmax(logits, 1) @ y
        roles = [f"sample {j + 1}" for j in range(len(x))]
        return self._view(
            "the average",
            f"One token per sample, no block: key 2 gamma x, bias -gamma |x|^2 with gamma = "
            f"{gamma:.3g}. The query is a point (here a quarter of a deviation beside sample 1); "
            "softmax does the rest.",
            tokens,
            roles,
            (exact, [0], None),
            self.machine.samples * (self.machine.tokens + 1),
        )

    def _average_values(self, x: Tensor) -> Tensor:
        """Labels; where neighbours are looked for, the samples' numbers."""
        if not hasattr(self.model, "gamma_"):
            return Places.of(len(x), torch.float64).values(x)[:, :1]
        return torch.as_tensor(self.data.y["train"], dtype=torch.float64)[:, None]

    def _gamma(self, x: Tensor, points: Tensor) -> float:
        """The kernel's, or for neighbours the sharpest that logits have room for."""
        if hasattr(self.model, "gamma_"):
            return float(self.model.gamma_)
        radius, far = float(x.norm(dim=1).max()), float(points.norm(dim=1).max())
        return sharpest(radius, far, x.shape[1])

    # ------------------------------------------------------------------------------ views

    def _view(
        self,
        title: str,
        says: str,
        tokens: Tensor,
        roles: Sequence[str],
        wanted: tuple[Tensor, Sequence[int], float | None],
        first: int,
    ) -> PromptView:
        exact, kept, limit = wanted
        asked = first - self.machine.samples * self.machine.tokens
        answer = self.machine.network(tokens)[asked : asked + len(exact)][:, kept]
        weights = _attention(self.machine, tokens, first)
        at = self.machine.geometry.raw
        seen = [self._token(tokens, k, role, float(weights[k])) for k, role in enumerate(roles)]
        query = self._token(tokens, first, "query of sample 1", None)
        query = replace(query, w=_numbers(tokens[first, at["w"]]))
        return PromptView(
            title,
            says,
            {name: at[name].stop - at[name].start for name in at},
            (*seen, query),
            len(tokens),
            _numbers(answer[0]),
            _numbers(exact[0]),
            float((answer - exact).abs().max()),
            limit,
        )

    def _token(self, tokens: Tensor, k: int, role: str, weight: float | None) -> TokenView:
        at, token = self.machine.geometry.raw, tokens[k]
        return TokenView(
            k,
            role,
            _numbers(token[at["key_x"]]),
            float(token[at["key_y"]]),
            float(token[at["key_bias"]]),
            _numbers(token[at["value"]]),
            weight,
        )


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())


def _attention(machine: Stream, tokens: Tensor, query: int) -> Tensor:
    """The first query's attention, from the literal W_K and W_Q."""
    embed, layer = machine.network.layers
    placed = embed(tokens)
    keys, asks = placed @ layer.w_k[0].mT, placed[query] @ layer.w_q[0].mT  # type: ignore[index]
    return torch.softmax(keys @ asks, 0)
