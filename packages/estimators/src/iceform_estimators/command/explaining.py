"""What a program writes into its prompt, token by token, and what the frozen matrices answer."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iceform.heads import LookUps
from iceform.validation import unit_roundoff
from iceform_estimators.algorithms import (
    PCA,
    ElasticNet,
    EstimationAlgorithm,
    IndexCodes,
    LinearModel,
    sharpest,
)
from iceform_estimators.command.running import (
    PreparedData,
    RunSettings,
    coefficient_rows,
    fitted,
    with_warnings,
)
from iceform_estimators.machine import CLIP, IDENTITY, ArraySource, Machine, Scaling
from iceform_estimators.tables import TableData, table_from

_GRADIENT = (
    "Sample i has {} tokens, one for each value that z = w.x - y may be near. A token has the key "
    "s (x, y), a bias and the value v (x, 1). The query carries w, finds its own z among them, and "
    "what it reads is f(z) (x, 1)."
)


def example(entry: type[EstimationAlgorithm]) -> TableData:
    """The table that the record is shown on."""
    shown = entry.example()
    columns = {**shown.columns, **({shown.target: shown.labels} if shown.target else {})}
    return table_from(columns, shown.target, source=shown.source)


@dataclass(frozen=True)
class PromptView:
    """A prompt as the first query sees it.

    Attributes
    ----------
    title, says
        What it is for.
    tokens
        Those that the first query sees, then the query itself, as JSON has them: number, role,
        key_x, key_y, key_bias, value; the weight of one that is seen; what a query carries, w; and
        in a look-up (z, s, v), where the key is s times the sample, the value v times the sample,
        and the token is read most around z, as table.
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
    tokens: tuple[dict[str, Any], ...]
    total: int
    answer: list[float]
    exact: list[float]
    off: float
    certified: float | None
    kind: str = "proven"


@dataclass(frozen=True, eq=False)
class Explanation:
    """A program on a table: the fitted estimator, its prompts, and what was warned of."""

    entry: type[EstimationAlgorithm]
    source: str
    data: PreparedData
    model: Any
    prompts: list[PromptView]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        (rows, features), model = self.data.x["train"].shape, self.model
        machine, coef = model.machine_, coefficient_rows(model)
        first = [] if coef is None else coef[0].tolist()
        sizes = {name: getattr(machine, name) for name in ("dim", "samples", "tokens", "digest")}
        return {
            **self.entry.record(),
            "data": {"source": self.source, "rows": rows, "features": features},
            "machine": {**sizes, "parameters": frozen_numbers(machine)},
            "prompts": [vars(p) for p in self.prompts],
            "coefficients": dict(zip(self.data.preparation.names, first, strict=False)),
            "certificate": json.loads(model.certificate_.to_json()),
            "attestation": model.attestation_.to_dict(),
            "ledger": model.ledger_.to_dict(),
            "passes": int(model.n_passes_),
            "warnings": self.warnings,
        }


def frozen_numbers(machine: Machine) -> int:
    """How many numbers the frozen layer has."""
    return sum(buffer.numel() for buffer in machine.network.buffers())


def explain(settings: RunSettings, table: TableData) -> Explanation:
    """Fit the program to the whole table and open its prompts."""
    settings = replace(settings, test_share=0.0, compare=False)
    entry, warned, data = settings.entry, list[str](), PreparedData.of(settings, table)
    model = with_warnings(warned, "", lambda: fitted(settings, data))
    prompts = _Opened(entry, data, model).prompts()
    return Explanation(entry, table.source, data, model, prompts, list(dict.fromkeys(warned)))


class _Opened:
    """A fitted model with its prompts open."""

    def __init__(self, entry: type[EstimationAlgorithm], data: PreparedData, model: Any) -> None:
        self.entry, self.data, self.model = entry, data, model
        self.machine: Machine = model.machine_
        self.algorithm: EstimationAlgorithm = model.as_algorithm()
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
        """w with raw coefficients = scaling.raw(w)."""
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
        asked = asked.part(slice(0, self.machine.samples))
        exact = algorithm.loss().derivative(asked.residuals())
        if asked.offsets is not None:
            exact = exact - asked.offsets
        return self._lookup("the gradient", _GRADIENT.format(asked.table.tokens), asked, exact)

    def _projection(self) -> PromptView:
        """The samples' coordinates along the first component."""
        rows = min(self.machine.samples, len(self.x))
        mean = torch.as_tensor(self.model.mean_)
        x = (self.x - mean)[:rows]
        v = torch.as_tensor(self.model.components_[0])
        table = IDENTITY.on(float((x @ v).abs().max()))
        asked = self.machine.start().look_ups(table, x, x.new_zeros(rows), v)
        return self._lookup("the covariance", _GRADIENT.format(table.tokens), asked, x @ v)

    def _threshold(self) -> PromptView:
        """Soft thresholds u - clip(u): the clip of each coefficient, in units of its threshold."""
        reach = 2.0
        u = torch.linspace(-reach, reach, self.machine.samples).double()
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
        view = self._view(title, says, tokens, roles, (exact, kept, limit), first)
        *seen, query = view.tokens
        tabled = [{**token, "table": row} for token, row in zip(seen, rows, strict=True)]
        return replace(view, tokens=(*tabled, query), kind=asked.table.kind)

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
        points = x[: min(self.machine.samples, len(x))] + x.std(0) / 4
        if hasattr(self.model, "gamma_"):
            gamma = float(self.model.gamma_)
            y = torch.as_tensor(self.data.y["train"], dtype=torch.float64)[:, None]
        else:  # neighbours: the sharpest that logits have room for finds the samples' numbers
            gamma = sharpest(
                float(x.norm(dim=1).max()), float(points.norm(dim=1).max()), x.shape[1]
            )
            y = IndexCodes.of(len(x), torch.float64).values(x)[:, :1]
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
        seen = [
            {**self._token(tokens, k, role), "weight": float(weights[k])}
            for k, role in enumerate(roles)
        ]
        w = tokens[first, self.machine.geometry.raw["w"]].tolist()
        query = {**self._token(tokens, first, "query of sample 1"), "w": w}
        off = float((answer - exact).abs().max())
        return PromptView(
            title, says, (*seen, query), len(tokens), answer[0].tolist(), exact[0].tolist(), off,
            limit,
        )  # fmt: skip

    def _token(self, tokens: Tensor, k: int, role: str) -> dict[str, Any]:
        at, token = self.machine.geometry.raw, tokens[k]
        vectors = {name: token[at[name]].tolist() for name in ("key_x", "value")}
        numbers = {name: float(token[at[name]]) for name in ("key_y", "key_bias")}
        return {"number": k, "role": role, **vectors, **numbers}


def _attention(machine: Machine, tokens: Tensor, query: int) -> Tensor:
    """The first query's attention, from the literal W_K and W_Q."""
    embed, layer = machine.network.layers
    placed = embed(tokens)
    keys, asks = placed @ layer.w_k[0].mT, placed[query] @ layer.w_q[0].mT  # type: ignore[index]
    return torch.softmax(keys @ asks, 0)
