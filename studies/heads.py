r"""Study 2: does the error of an emulated attention head fall with the number of heads?

In the script three networks learn K, Q and V of one fixed target, which least squares does exactly;
the target's softmax runs over queries, and its logits are so large that it is a maximum. In
``as_the_theorem_asks`` the softmax runs over keys, and the target's weights come with the sample,
as tokens of the prompt.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from iceform.paper import AttentionHead, TruncatedLinear
from studies.networks import Parameters, SelfAttention
from studies.randomness import generator, permutation, shared, take
from studies.study import (
    ABLATIONS,
    Plan,
    Record,
    Spec,
    Study,
    Trainable,
    ablated,
    chunks,
    frozen_notes,
    mse_and_r2,
    split_seeds,
    stacked,
)
from studies.training import SCHEDULES, Curves

__all__ = ["HeadsSpec", "HeadsStudy", "assemble"]

ROLES = ("K", "Q", "V")
_EVALUATED = 500  # samples at a time


@dataclass(frozen=True)
class HeadsSpec(Spec):
    """Sizes of study 2.

    Attributes
    ----------
    width, value_width
        That of K and Q, and of V.
    one_target
        One data set and one target for all seeds, which differ in start, split and order, as in the
        script; otherwise every seed has its own.
    x_bound, w_bound, reach
        The domain of the constructed head, stated before data are drawn: of the entries of
        X ~ 2 N(0, 1) - 1 and of W ~ N(0, 1), and of W x, six standard deviations and more. Data
        outside are refused.
    grid
        Tokens of the constructed head, which all seeds run on.
    hard_grid, spectral_grid
        Other sizes of it, for the rate, one seed each.
    split_heads, split_tokens
        The theorem's own shape: the grid split over so many heads, of so many tokens each.
    probed
        A number of heads that is also trained for three times the epochs ("longer"), and from a
        Glorot start ("xavier"): what may decide how far the networks get. 0 for none.
    """

    hidden: int = 48
    width: int = 48
    value_width: int = 48
    one_target: bool = False
    points: int = 60
    heads: tuple[int, ...] = (1, 2, 4, 6, 8, 12)
    schedules: tuple[str, ...] = SCHEDULES
    x_bound: float = 13.0
    w_bound: float = 6.5
    reach: float = 120.0
    grid: tuple[int, ...] = (21,)
    hard_grid: tuple[int, ...] = (33, 65, 129, 257, 513, 1025, 2049)
    spectral_grid: tuple[int, ...] = (5, 7, 9, 11, 13, 15, 17, 19, 21, 25)
    split_heads: tuple[int, ...] = (1, 2, 4, 6, 8, 12)
    split_tokens: int = 60
    constructed_samples: int = 200
    probed: int = 0


_LONGER = 3  # times the epochs


class HeadsStudy(Study[HeadsSpec]):
    """thm:attn_sim_attn_multi, trained."""

    name: ClassVar[str] = "heads"
    title: ClassVar[str] = "Study 2: an attention head by 1 to 12 trained heads"
    flaws: ClassVar[tuple[str, ...]] = (
        "the target's softmax runs over queries, so it is not attention",
        "its logits have a standard deviation near 800: a hard maximum, whose error counts flips",
        "W_K, W_Q and W_V are fixed and never in the input: least squares solves the task",
        "heads split a fixed width, so every H has the same number of parameters",
        "the second layer has nothing to train",
    )
    read: ClassVar[str] = (
        "V is 48 wide (24 in the script), every seed has data and a target of its own (the script "
        "has one for all), and the rate also decays"
    )
    asked: ClassVar[str] = (
        "softmax over keys; W_K, W_Q and W_V fresh for every sample and given as prompt tokens, so "
        "that the trained module is one for all targets; cosine decay"
    )

    def spec(self, column: str, scale: str) -> HeadsSpec:
        # The text says 10 seeds, the script has 11.
        paper = HeadsSpec(self.name, column, scale, samples=50_000, epochs=50, seeds=11, probed=4)
        if column in ("their_script", "as_published"):
            paper = replace(
                paper, value_width=24, one_target=True, schedules=("constant",), probed=0
            )
        if column == "as_the_theorem_asks":
            paper = replace(paper, seeds=3, schedules=("cosine",), probed=0)
        if scale != "smoke":
            return paper
        script = column in ("their_script", "as_published")
        schedules = paper.schedules if script else SCHEDULES
        return replace(
            paper, samples=200, epochs=2, seeds=2, heads=(1, 4), schedules=schedules, probed=0,
            hard_grid=(65, 129, 257), spectral_grid=(9, 13, 17, 21), split_heads=(1, 2, 6),
            constructed_samples=20,
        )  # fmt: skip

    def plans(self, spec: HeadsSpec, seeds: Sequence[int], together: int) -> list[Plan[HeadsSpec]]:
        if spec.column == "constructed":
            grids = [("spectral", g) for g in spec.spectral_grid]
            grids += [("hard", g) for g in spec.hard_grid]
            grids += [("split", h) for h in spec.split_heads]
            return [
                Plan(spec, (("regime", r), ("grid", g)), (s,)) for r, g in grids for s in seeds[:1]
            ] + [Plan(spec, (("regime", "spectral"), ("grid", g)), (s,))
                 for g in spec.grid for s in seeds[1:]]  # fmt: skip
        parts = split_seeds(seeds, together // len(ROLES))
        variants = [(("heads", h), ("schedule", s)) for h in spec.heads for s in spec.schedules]
        made = [Plan(spec, variant, part, len(ROLES)) for variant in variants for part in parts]
        return made + (self._probes(spec, parts) if spec.probed else [])

    def _probes(self, spec: HeadsSpec, parts: list[tuple[int, ...]]) -> list[Plan[HeadsSpec]]:
        specs = {"longer": replace(spec, epochs=_LONGER * spec.epochs), "xavier": spec}
        return [
            Plan(own, (("heads", spec.probed), ("schedule", "constant"), ("probe", probe)), part,
                 len(ROLES))
            for probe, own in specs.items()
            for part in parts
        ]  # fmt: skip

    def build(self, plan: Plan[HeadsSpec], device: torch.device) -> Trainable:
        asked = plan.spec.column == "as_the_theorem_asks"
        return _InPrompt(plan, device) if asked else _Fixed(plan, device)

    def construct(self, plan: Plan[HeadsSpec], seed: int) -> Record:
        return _constructed(plan, plan.spec, seed)


def assemble(k: Tensor, q: Tensor, v: Tensor, *, over_queries: bool) -> Tensor:
    """The second layer on rows K, Q, V: softmax over queries as in the script, or over keys."""
    logits = k @ q.mT  # (..., keys, queries)
    if over_queries:
        return torch.softmax(logits, -1).mT @ v
    return torch.softmax(logits.mT, -1) @ v


@shared
def _inputs(spec: Spec, seeds: tuple[int, ...], device: torch.device) -> Tensor:
    """X ~ 2 N(0, 1) - 1, (S, N, n, d)."""
    shape = (spec.samples, spec.tokens, spec.dim)
    drawn = _normal(spec, seeds, "X", shape, device)
    if drawn.stride(0) == 0:  # one for all seeds
        return (2 * drawn[0] - 1).expand_as(drawn)
    return 2 * drawn - 1


def _normal(
    spec: Spec, seeds: tuple[int, ...], name: str, shape: tuple[int, ...], device: torch.device
) -> Tensor:
    """A draw for every seed, (S, ...); the first one for all of them where there is one target."""
    if isinstance(spec, HeadsSpec) and spec.one_target:
        source = generator(device, spec.study, "all seeds", name)
        once = torch.randn(*shape, generator=source, device=device)
        return once.expand(len(seeds), *shape)
    drawn = torch.empty(len(seeds), *shape, device=device)
    for out, seed in zip(drawn, seeds, strict=True):
        torch.randn(*shape, generator=generator(device, spec.study, seed, name), out=out)
    return drawn


@shared
def _prompts(spec: HeadsSpec, seeds: tuple[int, ...], device: torch.device) -> Tensor:
    """Fresh W_K, W_Q, W_V for every sample, (S, N, 3, width, d)."""
    shape = (spec.samples, len(ROLES), spec.width, spec.dim)
    return _normal(spec, seeds, "W", shape, device)


class _Heads(Trainable):
    """Three networks per seed, for K, Q and V."""

    over_queries: bool

    def __init__(self, plan: Plan[HeadsSpec], device: torch.device, network: SelfAttention) -> None:
        spec = plan.spec
        self.plan, self.spec = plan, spec
        self.x = _inputs(spec, plan.seeds, device)
        self.order = self._split(device)
        # The network of V has as many outputs as the others. Those beyond its own are 0 here, and
        # the rest count for as much more, so that its error is the mean over its own.
        own = torch.arange(spec.width, device=device) < spec.value_width
        whole = torch.ones_like(own).float()
        spread = own * math.sqrt(spec.width / spec.value_width)
        self.weighting = torch.stack([whole, whole, spread])[:, None, None]  # (roles, 1, 1, width)
        self.network = network
        weights = self.weighting.repeat(len(plan.seeds), 1, 1, 1)

        def weighted(parameters: Parameters, x: Tensor) -> Tensor:
            return network(parameters, x) * weights

        self.stack = stacked(
            plan, network, [(role,) for role in ROLES], self.batch,
            as_called=weighted if spec.value_width < spec.width else None,
            schedule=str(plan.labels["schedule"]),
        )  # fmt: skip

    def _split(self, device: torch.device) -> Tensor | None:
        """Which sample an example is, (S, N), where seeds share their data; None: by number."""
        spec = self.spec
        if not spec.one_target:
            return None
        splits = [
            permutation(spec.samples, device, spec.study, seed, "split") for seed in self.plan.seeds
        ]
        return torch.stack(splits)

    def samples(self, data: Tensor, index: Tensor) -> Tensor:
        """Data of the examples with these numbers, (S, B, ...)."""
        return take(data, index if self.order is None else self.order.gather(1, index))

    def batch(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Inputs of the examples with these numbers, and their targets as they are weighted."""
        tokens, kqv = self._projections(index, "right")
        return (tokens,), self._per_model(kqv * self.weighting)

    def _per_model(self, t: Tensor) -> Tensor:
        """(S, roles, ...) as (M, ...)."""
        return t.flatten(0, 1)

    @abstractmethod
    def _projections(self, index: Tensor, ablation: str) -> tuple[Tensor, Tensor]:
        """Inputs (M, ...) of examples and exact K, Q, V as (S, 3, B, n, width), V with zeros."""

    ablations: tuple[str, ...] = ()

    @torch.no_grad()
    def judge(self, parameters: Parameters, curves: Curves) -> list[Record]:
        seeds = len(self.plan.seeds)
        kinds = ("right", *self.ablations)
        made: dict[str, list[Tensor]] = {kind: [] for kind in kinds}
        exact: list[Tensor] = []
        solved: list[Tensor] = []
        parts_off = self.x.new_zeros(seeds, len(ROLES), dtype=torch.float64)
        flips = self.x.new_zeros(seeds, dtype=torch.float64)
        oracle = self._oracle()
        for part in chunks(self.spec.test, _EVALUATED):
            index = (self.spec.train + part).to(self.x.device).expand(seeds, -1)
            for kind in kinds:
                tokens, kqv = self._projections(index, kind)
                weighted = self.stack.network(parameters, tokens).unflatten(0, (-1, len(ROLES)))
                off = (weighted.double() - kqv * self.weighting).square().mean((2, 3, 4))
                got = weighted / self.weighting.amax(-1, keepdim=True)
                made[kind].append(self._second(got.double()))
                if kind == "right":
                    parts_off += off * len(part) / self.spec.test
                    flips += self._flipped(got, kqv) * len(part) / self.spec.test
            exact.append(self._second(kqv.double()))
            solved.append(exact[-1] if oracle is None else self._second(oracle(index)))
        return self._records(curves, made, exact, solved, parts_off, flips)

    def _records(
        self,
        curves: Curves,
        made: dict[str, list[Tensor]],
        exact: list[Tensor],
        solved: list[Tensor],
        parts_off: Tensor,
        flips: Tensor,
    ) -> list[Record]:
        target, best = torch.cat(exact, 1), torch.cat(solved, 1)
        outputs = {kind: torch.cat(parts, 1) for kind, parts in made.items()}
        records = []
        for place, seed in enumerate(self.plan.seeds):
            y = target[place]
            mse, r2 = mse_and_r2(outputs["right"][place], y)
            metrics = {
                "mse": mse,
                "r2": r2,
                "trivial mse": float((y - y.mean(0)).square().mean()),
                "target second moment": float(y.square().mean()),
                "oracle mse": float((best[place] - y).square().mean()),
                "flipped maxima": float(flips[place]),
            }
            for role, value in zip(ROLES, parts_off[place], strict=True):
                metrics[f"mse of {role}"] = float(value)
            for kind in self.ablations:
                metrics[f"prompt {kind} mse"] = mse_and_r2(outputs[kind][place], y)[0]
            own = slice(place * len(ROLES), (place + 1) * len(ROLES))
            lines = {"train": [float(c[own].mean()) for c in curves.train]}
            records.append(Record(self.plan, seed, metrics, lines))
        return records

    def _oracle(self) -> _Oracle | None:
        return None

    def _second(self, kqv: Tensor) -> Tensor:
        k, q, v = kqv.unbind(1)
        return assemble(k, q, v[..., : self.spec.value_width], over_queries=self.over_queries)

    def _flipped(self, got: Tensor, exact: Tensor) -> Tensor:
        """Share of softmax rows whose maximum moved, for every seed."""

        def largest(t: Tensor) -> Tensor:
            logits = t[:, 0].double() @ t[:, 1].double().mT
            return logits.argmax(-1 if self.over_queries else -2)

        return (largest(got) != largest(exact)).double().mean((1, 2))


class _Oracle:
    """Least squares from the training tokens to their K, Q, V, in float64."""

    def __init__(self, owner: _Fixed) -> None:
        first = torch.arange(owner.spec.train, device=owner.x.device).expand(len(owner.x), -1)
        x = owner.samples(owner.x, first).double().flatten(1, 2)
        targets = x[:, None] @ owner.weights.double()
        gram = (x.mT @ x)[:, None]
        self.owner = owner
        self.weights = torch.linalg.solve(gram, x.mT[:, None] @ targets)

    def __call__(self, index: Tensor) -> Tensor:
        x = self.owner.samples(self.owner.x, index).double()
        solved: Tensor = x[:, None] @ self.weights[:, :, None]
        return solved


class _Fixed(_Heads):
    """One target per seed, or for all, never in the input."""

    over_queries = True

    def __init__(self, plan: Plan[HeadsSpec], device: torch.device) -> None:
        spec = plan.spec
        network = SelfAttention(
            spec.dim, spec.tokens, spec.tokens, spec.hidden, int(plan.labels["heads"]),
            spec.points, spec.width, xavier=plan.labels.get("probe") == "xavier",
        )  # fmt: skip
        shape = (len(ROLES), spec.dim, spec.width)  # W_K, W_Q, W_V transposed
        self.weights = _normal(spec, plan.seeds, "W", shape, device).clone()
        self.weights[:, -1, :, spec.value_width :] = 0
        super().__init__(plan, device, network)

    def _projections(self, index: Tensor, ablation: str) -> tuple[Tensor, Tensor]:
        x = self.samples(self.x, index)[:, None].expand(-1, len(ROLES), -1, -1, -1)
        return self._per_model(x), x @ self.weights[:, :, None]

    def _oracle(self) -> _Oracle:
        return _Oracle(self)


class _InPrompt(_Heads):
    """The target's weights are tokens, one for each of its rows, behind the data's.

    A token is [x; 0] for data and [w; 1] for a row of the weights. A sample's weights are drawn
    from a pool as large as the training set; held-out samples have weights never trained on.
    """

    over_queries = False
    ablations = ABLATIONS

    def __init__(self, plan: Plan[HeadsSpec], device: torch.device) -> None:
        spec = plan.spec
        rows = spec.tokens + spec.width
        network = SelfAttention(
            spec.dim + 1, rows, spec.tokens, spec.hidden, int(plan.labels["heads"]),
            spec.points + spec.width, spec.width,
        )  # fmt: skip
        self.weights = _prompts(spec, plan.seeds, device)
        super().__init__(plan, device, network)

    def _with_rows(self, x: Tensor, w: Tensor) -> Tensor:
        """X (S, B, n, d) and w (S, 3, B, width, d) as tokens (M, B, n + width, d + 1)."""
        data = x[:, None].expand(-1, len(ROLES), -1, -1, -1)
        tokens = torch.cat([data, w], -2)
        mark = torch.zeros_like(tokens[..., :1])
        mark[..., self.spec.tokens :, :] = 1
        return self._per_model(torch.cat([tokens, mark], -1))

    def _projections(self, index: Tensor, ablation: str) -> tuple[Tensor, Tensor]:
        x, w = take(self.x, index), take(self.weights, index).transpose(1, 2)
        exact = x[:, None] @ w.mT
        w = ablated(ablation, w, partial(w.roll, 1, 2), self.spec.study, "ablation")
        return self._with_rows(x, w), exact


def frozen_head(spec: HeadsSpec, regime: str, grid: int) -> AttentionHead:
    """The head of the constructed column: made of the spec's sizes and domain, nothing else."""
    return AttentionHead(
        spec.dim, spec.width, spec.width, spec.tokens, bound=spec.x_bound,
        weight_bound=spec.w_bound, reach=spec.reach, eps=None, regime=regime, grid_tokens=grid,
    )  # fmt: skip


def split_line(spec: HeadsSpec, heads: int) -> TruncatedLinear:
    """The theorem's first layer: a row of K, Q or V by so many heads of ``split_tokens`` each."""
    return TruncatedLinear(
        -spec.reach, spec.reach, heads, dim=spec.dim, samples=spec.tokens, bound=spec.x_bound,
        weight_bound=spec.w_bound, tokens=spec.split_tokens, eps=None,
    )  # fmt: skip


def _constructed(plan: Plan[HeadsSpec], spec: HeadsSpec, seed: int) -> Record:
    """The head by look-ups in a frozen module, no training; float64."""
    regime, grid = str(plan.labels["regime"]), int(plan.labels["grid"])
    count, n, d, width = spec.constructed_samples, spec.tokens, spec.dim, spec.width
    source = generator("cpu", spec.study, seed, "constructed")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    x = 2 * normal(count, n, d) - 1
    weights = [normal(count, width, d) for _ in ROLES]
    made = _by_splitting if regime == "split" else _by_rows
    return made(plan, seed, x, weights, regime, grid)


def _domain(spec: HeadsSpec) -> dict[str, float]:
    return {"x": spec.x_bound, "w": spec.w_bound, "W x": spec.reach}


def _by_rows(
    plan: Plan[HeadsSpec], seed: int, x: Tensor, weights: list[Tensor], regime: str, grid: int
) -> Record:
    spec, emulator = plan.spec, frozen_head(plan.spec, regime, grid)
    ledger = emulator.run(x[:1], *(w[:1] for w in weights)).ledger
    out, exact = emulator(x, *weights), emulator.reference(x, *weights)
    metrics = _compared(out, exact) | {
        "certified": emulator.certify(x, *weights).error,
        "grid tokens": float(emulator.interpolant.tokens),
        "attention heads": float(emulator.plan.heads),
    }
    notes = frozen_notes(emulator.network.digest, _domain(spec), ledger)
    return Record(plan, seed, metrics, notes=notes)


def _by_splitting(
    plan: Plan[HeadsSpec], seed: int, x: Tensor, weights: list[Tensor], _: str, heads: int
) -> Record:
    """K, Q and V entry by entry by heads that share a grid; the second layer is exact."""
    spec, line = plan.spec, split_line(plan.spec, heads)
    ledger = line.run(x[:1], weights[0][:1, 0], x.new_zeros(1)).ledger
    exact = torch.stack([x @ w.mT for w in weights], 1)  # (samples, roles, n, width)
    rows = torch.stack(weights, 1).transpose(0, 2).flatten(0, 1)  # (width * roles, samples, d)
    looked = [line(x, row, row.new_zeros(len(x))) for row in rows]
    made = torch.stack(looked).unflatten(0, (spec.width, len(ROLES))).permute(2, 1, 3, 0)
    out, wanted = (assemble(*t.unbind(1), over_queries=False) for t in (made, exact))
    metrics = _compared(out, wanted) | {
        "entry error": float((made - exact).abs().max()),
        "certified of an entry": line.certificate.error,
        "grid tokens": float(heads * spec.split_tokens),
        "attention heads": float(heads),
    }
    notes = frozen_notes(line.network.digest, _domain(spec), ledger)
    return Record(plan, seed, metrics, notes=notes)


def _compared(out: Tensor, exact: Tensor) -> dict[str, float]:
    mse, r2 = mse_and_r2(out, exact)
    return {
        "mse": mse,
        "r2": r2,
        "sup error": float((out - exact).abs().max()),
        "trivial mse": float((exact - exact.mean(0)).square().mean()),
        "oracle mse": 0.0,
    }
