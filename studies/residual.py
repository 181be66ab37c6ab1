r"""Study 1: does trained attention learn f(w.x - y) x?

In the script the network is fed the very targets it is to produce, and these are
:math:`\tanh(X W^\top + y) X`: sums over tokens, with y added. In ``as_the_theorem_asks`` the target
is the text's :math:`\tanh(w \cdot x_i - y_i)\, x_i`, and w comes with the sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import ClassVar

import torch
from torch import Tensor

from iceform.errors import ProgramError
from iceform.paper import ResidualMap
from iceform.tables import Grid, Interpolant, posterior_error
from studies.networks import CrossAttention, Parameters
from studies.randomness import generator, take
from studies.study import (
    ABLATIONS,
    FIGURE,
    Plan,
    Record,
    Spec,
    Study,
    Trainable,
    ablated,
    after_figure,
    chunks,
    frozen_notes,
    mse_and_r2,
    split_seeds,
    stacked,
)
from studies.training import Curves

__all__ = ["ResidualSpec", "ResidualStudy"]

_EVALUATED = 1000  # samples at a time
_AT_ONCE = 50  # the same for look-ups in wide tables
_SATURATED = 24.0  # |z| beyond which tanh is 1 to the last bit of float64
_TABLE_EPS = 1e-11  # of the look-up; outputs are up to x_bound times as large
_X_STANDARD, _X_MEAN = 10.0, -5.0  # the text's X ~ 10 N(0, 1) - 5; the script: 10 U[0, 1) - 5


@dataclass(frozen=True)
class ResidualSpec(Spec):
    """Sizes of study 1, and the domain of the constructed head, stated before data are drawn.

    Attributes
    ----------
    x_bound, w_bound, y_bound, z_bound
        Of the entries of X ~ 10 N(0, 1) - 5, of w and y ~ N(0, 1), and of w.x - y: six standard
        deviations and more. Data outside are refused.
    """

    hidden: int = 64
    points: int = 60
    x_bound: float = 64.0
    w_bound: float = 6.0
    y_bound: float = 6.0
    z_bound: float = 500.0


@dataclass(frozen=True)
class Variant:
    """What differs between the text, the script, our reading, and the steps between them."""

    leak: bool = False  # the targets are the network's input
    inputs: str = "uniform"  # U[0, 1), "script": 10 U - 5, "normal": 10 N(0, 1) - 5, "unit": N
    weights: str = "fixed"  # W for all samples; "sample": one w each; "token": a fresh W each
    one_y: bool = False  # for all samples
    bare: bool = False  # the script's network: no factor 1/sqrt(d), values are the output
    mixed: bool = True  # target tanh(X W' + y) X instead of tanh(w.x - y) x
    over_prompt: bool = True  # softmax over W's axis
    schedule: str = "constant"


_SCRIPT = Variant(inputs="script", one_y=True, bare=True)
PUBLISHED = {
    "script": replace(_SCRIPT, leak=True),
    "script-without-leak": _SCRIPT,
}
READ = {
    "leak": Variant(leak=True),
    "no-leak": Variant(),
    "no-leak-normal-x": Variant(inputs="normal"),
    "no-leak-w-per-sample": Variant(weights="sample"),
    "no-leak-fresh-w": Variant(weights="token"),
}
_RIGHT = Variant(inputs="normal", weights="sample", mixed=False, over_prompt=False)
ASKED = {
    "asked": _RIGHT,
    "asked-cosine": replace(_RIGHT, schedule="cosine"),
    "asked-unit-x": replace(_RIGHT, inputs="unit"),
}
BY_COLUMN: dict[str, Iterable[str]] = {
    "their_script": ("script",),
    "as_published": PUBLISHED,
    "our_reading": READ,
    "as_the_theorem_asks": ASKED,
}
VARIANTS = PUBLISHED | READ | ASKED


class ResidualStudy(Study[ResidualSpec]):
    """thm:attn_sim_f, trained."""

    name: ClassVar[str] = "residual"
    title: ClassVar[str] = "Study 1: f(w.x - y) x with f = tanh"
    flaws: ClassVar[tuple[str, ...]] = (
        "the targets are fed to the network as its input, so it learns to copy",
        "the target is tanh(X W' + y) X: it mixes tokens and adds y",
        "X is uniform in [-5, 5), not 10 N(0, 1) - 5",
        "one W and one y serve all samples, so nothing is in the prompt",
        "the softmax runs over W's axis",
    )
    read: ClassVar[str] = (
        "X is uniform in [0, 1), every sample has its own y, logits are divided by sqrt(d), values "
        "are 64 wide with an output layer behind them, and training ends after 19 epochs"
    )
    asked: ClassVar[str] = (
        "target tanh(w.x_i - y_i) x_i, X ~ 10 N(0, 1) - 5, a fresh w for every sample given as "
        "the prompt, softmax over the data's keys; also with cosine decay, and with X ~ N(0, 1)"
    )

    def spec(self, column: str, scale: str) -> ResidualSpec:
        if scale == "smoke":
            return ResidualSpec(self.name, column, scale, samples=400, epochs=2, seeds=2)
        epochs = 100 if column in ("their_script", "as_published") else FIGURE
        return ResidualSpec(self.name, column, scale, samples=50_000, epochs=epochs, seeds=5)

    def plans(
        self, spec: ResidualSpec, seeds: Sequence[int], together: int
    ) -> list[Plan[ResidualSpec]]:
        if spec.column == "constructed":
            return [Plan(spec, (("variant", "constructed"),), (s,)) for s in seeds]
        return [
            Plan(spec, (("variant", name),), part)
            for name in BY_COLUMN[spec.column]
            for part in split_seeds(seeds, together)
        ]

    def build(self, plan: Plan[ResidualSpec], device: torch.device) -> Trainable:
        return _Residual(plan, device)

    def construct(self, plan: Plan[ResidualSpec], seed: int) -> Record:
        return _constructed(plan, plan.spec, seed)


class _Residual(Trainable):
    """One variant for several seeds."""

    def __init__(self, plan: Plan[ResidualSpec], device: torch.device) -> None:
        spec = plan.spec
        self.plan, self.spec = plan, spec
        self.variant = VARIANTS[str(plan.labels["variant"])]
        self.data = [_draw(spec, self.variant, seed, device) for seed in plan.seeds]
        self.x, self.w, self.y = (torch.stack(parts) for parts in zip(*self.data, strict=True))
        network = CrossAttention(
            spec.dim + 1, spec.dim, spec.tokens, spec.hidden, spec.points, spec.dim,
            over_prompt=self.variant.over_prompt, bare=self.variant.bare,
        )  # fmt: skip
        self.stack = stacked(
            plan, network, [()], self.batch, schedule=self.variant.schedule, validate=self._validate
        )

    def batch(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        x, w, y, target = self._samples(index)
        return (self._data_tokens(x, y, target), w), target

    def _samples(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = take(self.x, index)
        y = (self.y[:, None] if self.variant.one_y else take(self.y, index)).expand(x.shape[:-1])
        w = self.w[:, None] if self.variant.weights == "fixed" else take(self.w, index)
        w = w.expand_as(x)
        return x, w, y, _target(x, w, y, mixed=self.variant.mixed)

    def _data_tokens(self, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return torch.cat([target if self.variant.leak else x, y[..., None]], -1)

    def _test_parts(self) -> list[Tensor]:
        held = [self.spec.train + part for part in chunks(self.spec.test, _EVALUATED)]
        return [p.to(self.x.device).expand(len(self.plan.seeds), -1) for p in held]

    def _validate(self, parameters: Parameters) -> Tensor:
        total = self.x.new_zeros(len(self.plan.seeds))
        for index in self._test_parts():
            inputs, target = self.batch(index)
            off = self.stack.network(parameters, *inputs) - target
            total += off.square().flatten(1).mean(1) * index.shape[1]
        return total / self.spec.test

    @torch.no_grad()
    def judge(self, parameters: Parameters, curves: Curves) -> list[Record]:
        outputs = self._predictions(parameters)
        records = []
        for place, seed in enumerate(self.plan.seeds):
            target = outputs["target"][place]
            mse, r2 = mse_and_r2(outputs["right"][place], target)
            mean = target.double().mean(0)
            metrics = {
                "mse": mse,
                "r2": r2,
                "trivial mse": float((target - mean).square().mean()),
                "oracle mse": 0.0,
                "train mse": float(curves.train[-1][place]),
            }
            metrics |= after_figure(curves, place)
            for kind in ABLATIONS:
                metrics[f"prompt {kind} mse"] = mse_and_r2(outputs[kind][place], target)[0]
            lines = {
                "train": [float(c[place]) for c in curves.train],
                "test": [float(c[place]) for c in curves.held_out],
            }
            records.append(Record(self.plan, seed, metrics, lines))
        return records

    def _predictions(self, parameters: Parameters) -> dict[str, Tensor]:
        """Test targets, and outputs with the right prompt and with others in its place."""
        kinds = ("right", *ABLATIONS)
        parts: dict[str, list[Tensor]] = {k: [] for k in ("target", *kinds)}
        for index in self._test_parts():
            x, w, y, target = self._samples(index)
            tokens = self._data_tokens(x, y, target)
            parts["target"].append(target)
            for kind in kinds:
                prompt = ablated(kind, w, partial(w.roll, 1, 1), "ablation")
                if kind == "random" and self.variant.weights != "token":
                    prompt = prompt[:, :, :1].expand_as(w)
                parts[kind].append(self.stack.network(parameters, tokens, prompt))
        return {kind: torch.cat(p, 1) for kind, p in parts.items()}


def _draw(
    spec: Spec, variant: Variant, seed: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """X (N, n, d), W, and y (N, n) or (n,), of one data set."""
    n, d = spec.tokens, spec.dim

    def normal(name: str, *shape: int) -> Tensor:
        source = generator(device, spec.study, seed, name)
        return torch.randn(*shape, generator=source, device=device)

    if variant.inputs in ("uniform", "script"):
        source = generator(device, spec.study, seed, "X")
        x = torch.rand(spec.samples, n, d, generator=source, device=device)
    else:
        x = normal("X", spec.samples, n, d)
    if variant.inputs in ("normal", "script"):
        x = _X_STANDARD * x + _X_MEAN
    shapes = {"fixed": (n, d), "sample": (spec.samples, 1, d), "token": (spec.samples, n, d)}
    y = normal("y", n) if variant.one_y else normal("y", spec.samples, n)
    return x, normal("W", *shapes[variant.weights]), y


def _target(x: Tensor, w: Tensor, y: Tensor, *, mixed: bool) -> Tensor:
    if mixed:
        return torch.tanh(x @ w.mT + y[..., None]) @ x
    return torch.tanh((x * w).sum(-1) - y)[..., None] * x


def saturating(f: Callable[[Tensor], Tensor], flat: float, reach: float, eps: float) -> Interpolant:
    """A look-up table of an f that is constant beyond +-flat, on [-reach, reach].

    The table of f on [-flat, flat] goes on with the same spacing and the end values of f, so that
    a wide range costs tokens but no accuracy. Its error is certified anew as a whole.
    """
    core = Interpolant.fit(f, -flat, flat, eps)
    if not isinstance(core.grid, Grid) or core.function is None:
        raise ProgramError("only a smooth f can be continued; it has kinks")
    h = core.grid.spacing
    extra = math.ceil((reach - flat) / h)
    ends = f(torch.tensor([-reach, reach], dtype=torch.float64))
    grid = Grid(
        core.low - extra * h, core.high + extra * h, core.grid.cells + 2 * extra, core.grid.guards
    )
    values = torch.cat([ends[0].expand(extra), core.values, ends[1].expand(extra)])
    table = replace(core, grid=grid, values=values, error=math.inf, edges=None, _rounding={})
    proven = posterior_error(table, core.function, eps)
    return replace(table, error=proven.error, assumptions=proven.assumptions)


@lru_cache(maxsize=4)
def _table(reach: float) -> Interpolant:
    return saturating(torch.tanh, _SATURATED, reach, _TABLE_EPS)


def frozen_head(spec: ResidualSpec) -> ResidualMap:
    """The head of the constructed column: made of the spec's sizes and domain, nothing else."""
    return ResidualMap(
        torch.tanh, dim=spec.dim, samples=spec.tokens, eps=None,
        bound=spec.x_bound, w_bound=spec.w_bound, y_bound=spec.y_bound,
        z_range=(-spec.z_bound, spec.z_bound), interpolant=_table(1.01 * spec.z_bound),
    )  # fmt: skip


def _constructed(plan: Plan[ResidualSpec], spec: ResidualSpec, seed: int) -> Record:
    """The map by one frozen head on the test rows of the seed, no training; float64."""
    emulator = frozen_head(spec)
    data = _draw(spec, VARIANTS["asked"], seed, torch.device("cpu"))
    x, w, y = (t[spec.train :].double() for t in data)
    parts = list(zip(*(t.split(_AT_ONCE) for t in (x, y, w[:, 0])), strict=True))
    ledger = emulator.run(*(t[:1] for t in parts[0])).ledger
    out = torch.cat([emulator(*part) for part in parts])
    exact = emulator.reference(x, y, w[:, 0])
    mse, r2 = mse_and_r2(out, exact)
    domain = {name: getattr(spec, f"{name}_bound") for name in ("x", "w", "y", "z")}
    return Record(
        plan,
        seed,
        {
            "mse": mse,
            "r2": r2,
            "sup error": float((out - exact).abs().max()),
            "certified": emulator.certificate.error,
            "trivial mse": float((exact - exact.mean(0)).square().mean()),
            "oracle mse": 0.0,
            "samples": float(len(x)),
            "grid tokens": float(emulator.interpolant.tokens),
            "attention heads": float(emulator.plan.heads),
        },
        notes=frozen_notes(emulator.network.digest, domain, ledger),
    )
