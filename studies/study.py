"""What a study is: specs, plans of stacks, records of results."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from iceform.certificates import Ledger
from iceform.errors import ProgramError
from iceform.validation import check_choice
from studies.networks import Network, Parameters, stack
from studies.randomness import generator
from studies.training import Batch, Curves, Stack, Training

__all__ = [
    "ABLATIONS", "COLUMNS", "FIGURE", "SCALES", "Plan", "Record", "Spec", "Study", "ablated",
    "after_figure", "chunks", "frozen_notes", "mse_and_r2", "stacked",
]  # fmt: skip

COLUMNS = ("their_script", "as_published", "our_reading", "as_the_theorem_asks", "constructed")
SCALES = ("smoke", "paper")
ABLATIONS = ("zero", "random", "another")  # what stands in the place of a prompt
FIGURE = 19  # epochs after which the paper's figure of study 1 quotes its losses


@dataclass(frozen=True)
class Spec:
    """The sizes of one column of one study; subclasses add what the study has more.

    Attributes
    ----------
    study, column, scale
        What it belongs to.
    samples
        Data points, of which ``train_share`` are for training.
    tokens, dim
        n and d.
    epochs, batch, lr
        The training.
    seeds
        How many by default.
    """

    study: str
    column: str
    scale: str
    samples: int
    epochs: int
    seeds: int
    tokens: int = 20
    dim: int = 24
    batch: int = 32
    lr: float = 1e-3
    train_share: float = 0.8

    @property
    def train(self) -> int:
        """Training examples."""
        return round(self.train_share * self.samples)

    @property
    def test(self) -> int:
        """Held-out examples."""
        return self.samples - self.train

    def to_dict(self) -> dict[str, Any]:
        """For JSON; the same after a round trip."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Plan(Generic[S]):
    """Cells that are computed together: one variant of a column, for some seeds."""

    spec: S
    variant: tuple[tuple[str, str | int], ...]
    seeds: tuple[int, ...]
    models: int = 1  # models per seed

    @property
    def labels(self) -> dict[str, str | int]:
        """The variant by name."""
        return dict(self.variant)

    @property
    def length(self) -> tuple[int, int]:
        """Steps of an epoch and epochs, which say what can train side by side."""
        return self.spec.train // self.spec.batch, self.spec.epochs

    @property
    def name(self) -> str:
        """Fit for a file: the variant's values and the seeds."""
        parts = [self.spec.column, *(f"{k}={v}" for k, v in self.variant)]
        return "-".join([*parts, "seeds=" + "_".join(map(str, self.seeds))])

    def cell(self, seed: int) -> str:
        """The name of one seed's cell."""
        return "-".join([*(f"{k}={v}" for k, v in self.variant), f"seed={seed}"])

    @property
    def identity(self) -> str:
        """A digest of everything the results depend on, the device aside."""
        content = json.dumps([self.spec.to_dict(), self.variant, self.seeds])
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Record:
    """The results of one cell.

    Attributes
    ----------
    metrics
        Numbers by name.
    curves
        Lists by epoch.
    notes
        What is no number: the digest of frozen weights, the stated domain, the ledger.
    """

    plan: Plan[Any]
    seed: int
    metrics: dict[str, float]
    curves: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        spec = self.plan.spec
        return {
            "study": spec.study,
            "column": spec.column,
            "scale": spec.scale,
            "variant": self.plan.labels,
            "seed": self.seed,
            "spec": spec.to_dict(),
            "metrics": self.metrics,
            "curves": self.curves,
            "notes": self.notes,
        }


class Study(ABC, Generic[S]):
    """One of the paper's numerical studies, in columns.

    ``their_script``
        The authors' public code itself, where a copy of it is given: its data, networks and tests,
        in our training engine (:mod:`studies.theirs`).
    ``as_published``
        Our networks with the data and settings of the authors' public script
        (:mod:`studies.script`).
    ``our_reading``
        What we made of the text and of a description of the script, before the two were compared.
    ``as_the_theorem_asks``
        A study of our own on the same question, in the theorem's setting.
    ``constructed``
        One frozen network and no training; its sizes and domain are stated before data are drawn.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    flaws: ClassVar[tuple[str, ...]]  # what the public script does that the text does not say
    read: ClassVar[str]  # where our_reading differs from the script
    asked: ClassVar[str]  # what as_the_theorem_asks does

    @abstractmethod
    def spec(self, column: str, scale: str) -> S:
        """The sizes of a column."""

    @abstractmethod
    def plans(self, spec: S, seeds: Sequence[int], together: int) -> list[Plan[S]]:
        """What is computed; ``together`` seeds in a stack at most."""

    @abstractmethod
    def build(self, plan: Plan[S], device: torch.device) -> Trainable:
        """Data on the device and models at their start."""

    @abstractmethod
    def construct(self, plan: Plan[S], seed: int) -> Record:
        """A cell of the column without training."""

    def specs(self, columns: Sequence[str], scale: str) -> list[S]:
        """Specs of several columns."""
        check_choice("scale", scale, SCALES)
        return [self.spec(check_choice("column", c, COLUMNS), scale) for c in columns]


@dataclass(eq=False)
class Trainable(ABC):
    """A stack, and how its trained models are judged."""

    stack: Stack

    @abstractmethod
    def judge(self, parameters: Parameters, curves: Curves) -> list[Record]:
        """Records of all cells."""


def chunks(count: int, size: int) -> list[Tensor]:
    """Indices 0..count-1 in parts, so that evaluation fits in memory."""
    return list(torch.arange(count).split(size))


def after_figure(curves: Curves, place: int) -> dict[str, float]:
    """Study 1's errors after as many epochs as the paper's figure has, if there were as many."""
    if len(curves.held_out) < FIGURE:
        return {}
    return {
        f"mse after {FIGURE} epochs": float(curves.held_out[FIGURE - 1][place]),
        f"train mse after {FIGURE} epochs": float(curves.train[FIGURE - 1][place]),
    }


def mse_and_r2(predicted: Tensor, target: Tensor) -> tuple[float, float]:
    """Mean squared error, and 1 - MSE / variance about each output's own mean."""
    p, t = predicted.double(), target.double()
    mse = float((p - t).square().mean())
    variance = float((t - t.mean(0)).square().mean())
    if not variance > 0:
        raise ProgramError("the target is constant, so R2 means nothing; use more test samples")
    return mse, 1 - mse / variance


def frozen_notes(
    digest: str, domain: Mapping[str, Any], ledger: Ledger | None = None
) -> dict[str, Any]:
    """What a constructed cell says beside its numbers."""
    kept = [] if ledger is None else ledger.to_dict()
    return {"digest": digest, "domain": dict(domain), "ledger": kept}


def stacked(
    plan: Plan[Any], network: Network, models: Sequence[tuple[str, ...]],
    batch: Callable[[Tensor], Batch], *, as_called: Callable[..., Tensor] | None = None,
    examples: int | None = None, schedule: str = "constant", **options: Any,
) -> Stack:  # fmt: skip
    """A stack of the named models of every seed, at their start.

    Starting points do not depend on the column, so that columns differ by their data alone.
    ``as_called`` is what trains, where it is not the network itself.
    """
    spec = plan.spec
    start = [
        network.initial(generator("cpu", spec.study, seed, *model, "start"))
        for seed in plan.seeds
        for model in models
    ]
    training = Training(spec.epochs, spec.batch, spec.lr, schedule)
    count = spec.train if examples is None else examples
    return Stack(
        plan.name, as_called or network, stack(start), training, count, plan.seeds, batch, **options
    )


def ablated(kind: str, prompt: Tensor, another: Callable[[], Tensor], *name: object) -> Tensor:
    """A prompt, or what stands in its place: zeros, noise of this name, or another's prompt."""
    if kind == "zero":
        return torch.zeros_like(prompt)
    if kind == "random":
        source = generator(prompt.device, *name)
        return torch.randn(prompt.shape, generator=source, device=prompt.device)
    return another() if kind == "another" else prompt


def split_seeds(seeds: Sequence[int], together: int) -> list[tuple[int, ...]]:
    """Seeds in stacks of at most ``together``."""
    size = max(1, together)
    return [tuple(seeds[i : i + size]) for i in range(0, len(seeds), size)]
