r"""Training many networks of one shape side by side, from several starts, rates and seeds.

The loss of a stack is the sum of its networks' own mean squared errors, so each takes the steps of
Adam that it would take alone: with its own rate, its own clipped gradient, its own seed's data. A
step's prompts are a function of (seed, step), so that the state of a run is its step, its weights
and Adam's moments; a run that was killed goes on from its last checkpoint to the same bits.

Rates rise over the first 32nd of the steps and fall linearly to 0 over the last quarter.

**Speed.** What a step computes is the same everywhere; ``backend`` and ``precision`` say by what.
"compiled" has ``torch.compile`` fuse the layers and Adam, "triton" also takes attention from
:mod:`iceform.lab.attention`. Neither is chosen, or given up, without being told. "tf32" has a GPU
round the factors of the products of training to 10 bits; held-out errors and all analyses are
float32 in any case. The host waits for the device only where errors are measured.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iceform import store
from iceform.errors import BoundError, DeviceError, IntegrityError, ProgramError, ShapeError
from iceform.lab.model import TrainableNetwork
from iceform.lab.network import Attention, answers, block, embedded, of_layer, run, stacked
from iceform.lab.shape import GPT2Shape
from iceform.lab.starts import TrainingStart, start_named
from iceform.lab.tasks import Examples, InContextTask
from iceform.run.primitives import has_triton
from iceform.validation import check_choice, check_positive, check_size

BACKENDS = ("plain", "compiled", "triton")
PRECISIONS = {"float32": "highest", "tf32": "high"}  # and what torch calls them
_ADAM = torch.optim.Adam([torch.zeros(1)]).defaults  # torch's own betas and epsilon
_STATE, _RESULT = "lab checkpoint", "lab result"
Progress = Callable[[int, int], None]  # steps done, steps in all


@dataclass(frozen=True)
class TrainingPlan:
    """Everything that the result of a training depends on, the starts aside.

    Parameters
    ----------
    task
        What is learned; also what is held out.
    shape
        Of all networks.
    steps, batch
        Of training; prompts a step.
    examples
        Of a prompt; as many as the shape holds unless given.
    held_out
        Prompts that errors are measured on.
    points
        Measurements along the way.
    same_prompts
        Whether every seed sees the prompts of seed 0, so that seeds differ in their first weights
        alone.

    Examples
    --------
    >>> shape = GPT2Shape(dim=1, layers=1, width=8, heads=1, positions=8)
    >>> plan = TrainingPlan(InContextTask(dim=1), shape, steps=100)
    >>> plan.length, plan.rate(50), plan.rate(99)
    (4, 1.0, 0.04)
    >>> torch.equal(plan.prompts(0, 7).x, plan.prompts(1, 7).x)  # seeds see other prompts
    False
    """

    task: InContextTask
    shape: GPT2Shape
    steps: int
    batch: int = 64
    examples: int | None = None
    held_out: int = 256
    points: int = 50
    same_prompts: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "held_out", "points"):
            check_size(name, getattr(self, name))
        if self.task.dim != self.shape.dim:
            raise ShapeError(
                f"the task has dim {self.task.dim} and the shape {self.shape.dim}; make them equal"
            )
        if not 1 <= self.length <= self.shape.examples:
            raise ShapeError(f"the shape holds 1 to {self.shape.examples} examples: {self.length}")

    @property
    def length(self) -> int:
        """Examples of a prompt."""
        return self.examples or self.shape.examples

    def prompts(self, seed: int, step: int, count: int | None = None) -> Examples:
        """What a seed sees at a step."""
        source = torch.Generator().manual_seed(_drawn_from(0 if self.same_prompts else seed, step))
        return self.task.draw(count or self.batch, self.length, source)

    def held_out_prompts(self) -> Examples:
        """The same for all seeds, of a step that no training comes to."""
        return self.prompts(0, 2**32 - 1, self.held_out)

    def rate(self, step: int) -> float:
        """The share of its rate that a network takes at a step."""
        rising = (step + 1) / max(1, self.steps // 32)
        falling = (self.steps - step) / max(1, self.steps / 4)
        return min(1.0, rising, falling)

    def measured_at(self) -> list[int]:
        """Steps after which errors are measured: the first, the last, evenly between."""
        return sorted({-(-self.steps * i // self.points) for i in range(self.points + 1)})


@dataclass(frozen=True)
class TrainedCell:
    """One network of a training: where it began, how fast it went, what came of it.

    Attributes
    ----------
    start, lr, seed
        Which.
    curve
        (step, mean squared error on held-out prompts, without noise).
    by_context
        That error after the last step, by the number of examples seen.
    network
        After the last step.

    Examples
    --------
    >>> network = random_network(GPT2Shape(dim=1, layers=1, width=8, heads=1, positions=8))
    >>> cell = TrainedCell("random", 1e-3, 0, [(0, 1.0), (50, 0.4), (100, 0.2)], [0.2], network)
    >>> cell.error, cell.steps_to(0.5), cell.steps_to(0.1)
    (0.2, 50, None)
    """

    start: str
    lr: float
    seed: int
    curve: list[tuple[int, float]]
    by_context: list[float]
    network: TrainableNetwork = field(repr=False)

    @property
    def error(self) -> float:
        """After the last step."""
        return self.curve[-1][1]

    def steps_to(self, error: float) -> int | None:
        """The first measured step with at most this error; None if there is none."""
        return next((step for step, value in self.curve if value <= error), None)

    def to_dict(self) -> dict[str, Any]:
        """Without the network, as JSON."""
        return {
            "start": self.start, "lr": self.lr, "seed": self.seed, "curve": self.curve,
            "by_context": self.by_context,
        }  # fmt: skip


def _drawn_from(seed: int, step: int) -> int:
    """Where the prompts of a step are drawn from: another number for every step of a seed.

    torch's generator on a CPU looks at the lower 32 bits of its seed alone, so both are in those:
    every seed counts its steps from a place of its own, seed 0 from 0.
    """
    first, own = (sha256(str(s).encode()).digest()[:4] for s in (0, seed))
    return (int.from_bytes(own) - int.from_bytes(first) + step) % 2**32


def _adam(
    weight: Tensor, first: Tensor, second: Tensor, gradient: Tensor, scale: Tensor, rates: Tensor,
    of_first: Tensor, of_second: Tensor,
) -> None:  # fmt: skip
    """A step in place, of (networks, n) weights with moments, scaled gradients and rates."""
    (fast, slow), eps = _ADAM["betas"], _ADAM["eps"]
    gradient = gradient * scale
    first.mul_(fast).add_(gradient, alpha=1 - fast)
    second.mul_(slow).addcmul_(gradient, gradient, value=1 - slow)
    root = (second / of_second).sqrt() + eps
    weight.sub_(rates * (first / of_first) / root)


@dataclass(frozen=True)
class _TrainingPasses:
    """What a step calls, as it is or compiled: as in :mod:`iceform.lab.network`, and Adam."""

    embedded: Callable[..., Tensor] = embedded
    block: Callable[..., Tensor] = block
    answers: Callable[..., Tensor] = answers
    adam: Callable[..., None] = _adam


def _passes(backend: str, precision: str, device: torch.device) -> _TrainingPasses:
    check_choice("backend", backend, BACKENDS)
    check_choice("precision", precision, tuple(PRECISIONS))
    if precision == "tf32" and device.type != "cuda":
        raise DeviceError(
            f"precision='tf32' is of CUDA devices, not of {device}; leave it at float32"
        )
    if backend == "plain":
        return _TrainingPasses()
    attention: Attention | None = None
    if backend == "triton":
        if not has_triton():
            raise DeviceError("backend='triton' needs Triton; use backend='compiled'")
        from iceform.lab.attention import short_attention

        attention = partial(short_attention, tf32=precision == "tf32")

    def whole(own: Mapping[str, Tensor], shape: GPT2Shape, h: Tensor) -> Tensor:
        return block(own, shape, h, attention)

    # A layer is compiled once for all layers, and Adam for tensors of any size.
    return _TrainingPasses(
        torch.compile(embedded, fullgraph=True, dynamic=False),
        torch.compile(whole, fullgraph=True, dynamic=False),
        torch.compile(answers, fullgraph=True, dynamic=False),
        torch.compile(_adam, fullgraph=True, dynamic=True),
    )


@contextmanager
def _products_in(precision: str) -> Iterator[None]:
    """torch's setting for float32 products, put back afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(PRECISIONS[precision])
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _TrainingStack:
    """Networks that are stepped together, with Adam's moments."""

    def __init__(
        self,
        plan: TrainingPlan,
        cells: Sequence[tuple[TrainingStart, float, int]],
        device: str,
        backend: str = "plain",
        precision: str = "float32",
    ) -> None:
        self.plan, self.cells, self.device = plan, cells, torch.device(device)
        self.precision, self.passes = precision, _passes(backend, precision, self.device)
        self.networks = [start.make(seed) for start, _, seed in cells]
        for network in self.networks:
            if network.shape != plan.shape:
                raise ShapeError(f"{network} is not of the plan's shape {plan.shape}")
        first = stacked([n.tensors for n in self.networks])
        self.weights = {n: t.detach().to(self.device) for n, t in first.items()}
        self.moments = {n: torch.zeros_like(t) for n, t in self.weights.items()}
        self.squares = {n: torch.zeros_like(t) for n, t in self.weights.items()}
        self.rates = torch.tensor([lr for _, lr, _ in cells], device=self.device)
        self.schedule = self._schedule()
        self.seeds = sorted({seed for *_, seed in cells})
        self.of_seed = self._index([self.seeds.index(seed) for *_, seed in cells])
        self.step = 0
        self.curve: list[list[Any]] = []
        self.masks = self._masks()
        self.looped = self._index([i for i, (start, *_) in enumerate(cells) if start.looped])
        x, y, clean, _ = plan.held_out_prompts()
        self.held_out = tuple(t.to(self.device) for t in (x, y, clean))

    def _index(self, chosen: list[int]) -> Tensor:
        """On the device, so that nothing waits for it."""
        return torch.tensor(chosen, dtype=torch.long, device=self.device)

    def _schedule(self) -> Tensor:
        """By step: the share of the rates, and what Adam's two means are divided by."""
        fast, slow = _ADAM["betas"]
        each = [
            (self.plan.rate(step), 1 - fast ** (step + 1), 1 - slow ** (step + 1))
            for step in range(self.plan.steps)
        ]
        return torch.tensor(each, dtype=torch.float64).float().to(self.device)

    def _masks(self) -> dict[str, Tensor] | None:
        if not any(start.circuit_only for start, *_ in self.cells):
            return None
        each = [
            network.mask
            if start.circuit_only
            else {n: torch.ones_like(t, dtype=torch.bool) for n, t in network.tensors.items()}
            for (start, *_), network in zip(self.cells, self.networks, strict=True)
        ]
        return {name: t.to(self.device) for name, t in stacked(each).items()}

    def answers(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return run(weights, self.plan.shape, embedded(weights, self.plan.shape, x, y))

    def _prompts(self) -> Iterator[Tensor]:
        """x and y of the step for every network: each seed's are drawn and moved once."""
        drawn = [self.plan.prompts(seed, self.step) for seed in self.seeds]
        for each in ([d.x for d in drawn], [d.y for d in drawn]):
            together = torch.stack(each)
            if self.device.type == "cuda":
                together = together.pin_memory().to(self.device, non_blocking=True)
            yield together[self.of_seed]

    def advance(self) -> None:
        """One step of Adam for every network."""
        x, y = self._prompts()
        leaves = {name: t.detach().requires_grad_() for name, t in self.weights.items()}
        shape = self.plan.shape
        with _products_in(self.precision):
            h = self.passes.embedded(leaves, shape, x, y)
            for layer in range(shape.layers):
                h = self.passes.block(of_layer(leaves, layer), shape, h)
            losses = (self.passes.answers(leaves, shape, h) - y).square().mean((1, 2))
            found = torch.autograd.grad(losses.sum(), list(leaves.values()))
        gradients = dict(zip(leaves, found, strict=True))
        with torch.no_grad():
            self._constrain(gradients)
            squares = [g.flatten(1).square().sum(1) for g in gradients.values()]
            norms = torch.stack(squares).sum(0).sqrt()
            self._update(gradients, 1 / norms.clamp(min=1.0))
        self.step += 1

    def _constrain(self, gradients: dict[str, Tensor]) -> None:
        """Nothing for weights outside of a mask; one gradient for layers that are one."""
        if self.masks is not None:
            for name, gradient in gradients.items():
                gradient.mul_(self.masks[name])
        if len(self.looped):
            tied = range(1, self.plan.shape.layers - 1)
            for name in [n.removeprefix("h.1.") for n in gradients if n.startswith("h.1.")]:
                each = [gradients[f"h.{layer}.{name}"] for layer in tied]
                total = torch.stack([g[self.looped] for g in each]).sum(0)
                for gradient in each:
                    gradient[self.looped] = total

    def _update(self, gradients: Mapping[str, Tensor], scale: Tensor) -> None:
        """Adam with a rate for every network."""
        share, *divisors = self.schedule[self.step]
        rates = self.rates * share
        for name, weight in self.weights.items():
            state = weight, self.moments[name], self.squares[name]
            flat = (t.view(len(t), -1) for t in state)
            gradient = gradients[name].reshape(len(weight), -1)
            self.passes.adam(*flat, gradient, scale[:, None], rates[:, None], *divisors)

    def step_done(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @torch.no_grad()
    def errors(self) -> Tensor:
        """Held-out error of every network by the number of examples seen, (networks, n)."""
        x, y, clean = (t[None].expand(len(self.cells), *t.shape) for t in self.held_out)
        parts = [
            (self.answers(self.weights, a, b) - c).square()
            for a, b, c in zip(*(t.split(self.plan.batch, 1) for t in (x, y, clean)), strict=True)
        ]
        return torch.cat(parts, 1).mean(1).double().cpu()

    def measure(self) -> None:
        """Note the errors, and refuse to go on from what is no number."""
        errors = self.errors().mean(1)
        broken = [self.cells[i] for i in torch.nonzero(~torch.isfinite(errors)).flatten().tolist()]
        if broken:
            start, lr, seed = broken[0]
            raise BoundError(
                f"{start.name} (lr {lr:g}, seed {seed}) has no finite error after {self.step} "
                "steps; lower its lr"
            )
        self.curve.append([self.step, errors.tolist()])

    def save(self, path: Path, identity: str) -> None:
        """A checkpoint."""
        parts = {"w": self.weights, "m": self.moments, "v": self.squares}
        tensors = {f"{k}/{n}": t for k, part in parts.items() for n, t in part.items()}
        notes = {"identity": identity, "step": self.step, "curve": self.curve}
        store.write_tensors(path, _STATE, notes, tensors)

    def resume(self, path: Path, identity: str) -> None:
        """Go on from a checkpoint of the same training."""
        stored = store.read_tensors(path, _STATE)
        if stored.content.get("identity") != identity:
            raise IntegrityError(
                f"{path} belongs to another training; delete it, or give another folder"
            )
        self.step, self.curve = int(stored.content["step"]), list(stored.content["curve"])
        for key, part in (("w", self.weights), ("m", self.moments), ("v", self.squares)):
            for name, tensor in part.items():
                tensor.copy_(stored.tensors[f"{key}/{name}"])

    def results(self) -> list[TrainedCell]:
        """The networks as they are now."""
        by_context = self.errors().tolist()
        out = []
        for i, (start, lr, seed) in enumerate(self.cells):
            tensors = {name: t[i].cpu().clone() for name, t in self.weights.items()}
            network = self.networks[i].with_tensors(tensors, f"{start.name}, trained")
            curve = [(step, values[i]) for step, values in self.curve]
            out.append(TrainedCell(start.name, lr, seed, curve, by_context[i], network))
        return out


def train(
    starts: Sequence[str | TrainingStart],
    plan: TrainingPlan,
    *,
    lr: Sequence[float],
    seeds: int | Sequence[int] = 1,
    folder: str | Path | None = None,
    device: str = "cpu",
    together: int | None = None,
    every: float = 60,
    backend: str = "plain",
    precision: str = "float32",
    progress: Progress | None = None,
) -> list[TrainedCell]:
    """Train every start with every rate and seed.

    Parameters
    ----------
    starts
        Names of :data:`~iceform.lab.starts.STARTS`, or starts of your own.
    plan
        Task, shape and steps.
    lr
        Rates of Adam.
    seeds
        How many, or which.
    folder
        For checkpoints: the same call goes on from there after it was killed, and reads what is
        finished. None keeps nothing.
    device
        "cpu" or "cuda".
    together
        Networks in a stack; None: all on a GPU, and those of one seed on a CPU.
    every
        Seconds between checkpoints; there is one at the end in any case.
    backend
        "plain" is torch's own kernels; "compiled" has ``torch.compile`` fuse them; "triton" also
        has a kernel for attention. Compiling takes about a minute and pays on a GPU.
    precision
        Of the products of training: "float32", or on a GPU "tf32". Errors are float32's.
    progress
        Called with the steps done and the steps in all.

    Returns
    -------
    list
        A cell for every start, rate and seed, in that order.

    Raises
    ------
    BoundError
        If a network's error is no longer a number.
    DeviceError
        If the backend or the precision is none of the device.
    IntegrityError
        If the folder holds checkpoints of another training.

    Examples
    --------
    >>> shape = GPT2Shape(dim=1, layers=1, width=8, heads=1, positions=8)
    >>> plan = TrainingPlan(InContextTask(dim=1), shape, steps=2, batch=2, held_out=4, points=2)
    >>> cells = train(["random"], plan, lr=[1e-3], seeds=2)
    >>> [(cell.seed, len(cell.curve)) for cell in cells]
    [(0, 3), (1, 3)]
    """
    cells = _crossed(starts, plan, lr, seeds)
    groups = list(_groups(cells, together, device))
    out: list[TrainedCell] = []
    for number, group in enumerate(groups):
        stack = _TrainingStack(plan, group, device, backend, precision)
        path, identity = None, _identity(plan, group)
        if folder is not None:
            path = Path(folder) / f"{identity}.safetensors"
            if path.exists():
                stack.resume(path, identity)
        _finish(stack, path, identity, every, _part(progress, number, len(groups), plan.steps))
        out += stack.results()
    order = {(start.name, rate, seed): i for i, (start, rate, seed) in enumerate(cells)}
    return sorted(out, key=lambda cell: order[cell.start, cell.lr, cell.seed])


def profile(
    starts: Sequence[str | TrainingStart],
    plan: TrainingPlan,
    *,
    lr: Sequence[float],
    seeds: int | Sequence[int] = 1,
    steps: int = 20,
    device: str = "cpu",
    backend: str = "plain",
    precision: str = "float32",
) -> dict[str, Any]:
    """How long a training would be: a few of its steps, of all networks together, are timed.

    Parameters
    ----------
    starts, plan, lr, seeds, device, backend, precision
        As in :func:`train`.
    steps
        To be timed, behind a few that are not: they compile.

    Returns
    -------
    dict
        "ms a step" and how many of them the host is busy, "s before the first" and "s a
        measurement", the whole training in "minutes", the most "GiB" on a GPU, and the mean error
        behind the steps.

    Examples
    --------
    >>> shape = GPT2Shape(dim=1, layers=4, width=32, heads=2, positions=8)
    >>> plan = TrainingPlan(InContextTask(dim=1), shape, steps=100, batch=2, held_out=2)
    >>> profile(["random"], plan, lr=[1e-3], steps=1)["networks"]
    1
    """
    check_size("steps", steps)
    cells, began = _crossed(starts, plan, lr, seeds), time.monotonic()
    stack = _TrainingStack(plan, cells, device, backend, precision)
    for _ in range(3):
        stack.advance()
    stack.measure()  # waits
    marks = [time.monotonic()]
    for _ in range(steps):
        stack.advance()
    marks.append(time.monotonic())
    stack.step_done()
    marks.append(time.monotonic())
    stack.measure()
    marks.append(time.monotonic())
    step, measurement = (marks[2] - marks[0]) / steps, marks[3] - marks[2]
    return {
        "networks": len(cells), "backend": backend, "precision": precision,
        "ms a step": 1000 * step, "of them on the host": 1000 * (marks[1] - marks[0]) / steps,
        "s before the first": marks[0] - began, "s a measurement": measurement,
        "minutes": (step * plan.steps + measurement * plan.points) / 60,
        "GiB": torch.cuda.max_memory_allocated() / 2**30 if "cuda" in device else 0.0,
        "mean error": sum(stack.curve[-1][1]) / len(cells),
    }  # fmt: skip


def _crossed(
    starts: Sequence[str | TrainingStart],
    plan: TrainingPlan,
    lr: Sequence[float],
    seeds: int | Sequence[int],
) -> list[tuple[TrainingStart, float, int]]:
    """Every start with every rate and seed."""
    chosen = [s if isinstance(s, TrainingStart) else start_named(s, plan.shape) for s in starts]
    names = [start.name for start in chosen]
    if not chosen or len({*names}) != len(names):
        raise ProgramError(f"starts need names of their own, got {names}")
    rates = [check_positive("lr", rate) for rate in lr]
    which = list(range(check_size("seeds", seeds))) if isinstance(seeds, int) else list(seeds)
    return [(start, rate, seed) for start in chosen for rate in rates for seed in which]


def _finish(
    stack: _TrainingStack, path: Path | None, identity: str, every: float, progress: Progress
) -> None:
    """Train a stack to its end, with a checkpoint now and then."""
    total, points, saved = stack.plan.steps, set(stack.plan.measured_at()), time.monotonic()
    if stack.step == 0 and not stack.curve:
        stack.measure()
    while stack.step < total:
        stack.advance()
        if stack.step in points:
            stack.measure()
            progress(stack.step, total)
        if path is not None and (stack.step == total or time.monotonic() - saved >= every):
            stack.save(path, identity)
            saved = time.monotonic()


def _part(progress: Progress | None, number: int, groups: int, steps: int) -> Progress:
    def told(done: int, total: int) -> None:
        if progress is not None:
            progress(number * steps + done, groups * total)

    return told


def _groups(
    cells: Sequence[tuple[TrainingStart, float, int]], together: int | None, device: str
) -> Iterator[list[tuple[TrainingStart, float, int]]]:
    """What is stepped together: networks of one seed see the same prompts."""
    by_seed = sorted(cells, key=lambda cell: cell[2])
    if together is None:
        seeds = len({seed for *_, seed in cells})
        together = len(cells) if device != "cpu" else len(cells) // seeds
    size = check_size("together", together)
    for at in range(0, len(by_seed), size):
        yield by_seed[at : at + size]


def _identity(plan: TrainingPlan, cells: Sequence[tuple[TrainingStart, float, int]]) -> str:
    """A digest of everything that a stack's result depends on, but for what computes it."""
    named = [(s.name, s.circuit_only, s.looped, lr, seed) for s, lr, seed in cells]
    said = json.dumps([asdict(plan), named], sort_keys=True)
    return sha256(said.encode()).hexdigest()[:16]
