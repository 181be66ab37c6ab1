r"""One engine for every study: stacks of models, stepped together.

A stack holds M models that share a shape. Its loss is the sum of the models' own mean squared
errors, so every model's gradient, and with it Adam's elementwise update, is what it would be
alone. A step draws its samples by index from data that lies on the device already. On a GPU the
steps of all stacks are one CUDA graph, several of them at a time; in long runs what a step computes
before its gradients is compiled first, which makes few kernels of many.

Everything random is a function of (seed, epoch), so the state of a run is its step, its parameters
and Adam's moments. A checkpoint holds these; a run that is killed goes on from there to the same
bits.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from iceform.errors import BoundError, ProgramError
from iceform.validation import check_choice, check_positive, check_size
from studies.checkpoints import read_state, write_state
from studies.networks import Parameters
from studies.randomness import permutation

__all__ = ["Curves", "Stack", "Trainer", "Training", "full_precision"]

SCHEDULES = ("constant", "cosine")
_CHUNK = 250  # steps between looks at the clock
_WARM_UP = 2  # steps before a capture, so that libraries have set up what they need
_UNROLLED = 10  # steps in a graph: stacks wait for each other once in so many
_MOST_COMPILED = 1 << 10  # stacks that one process may compile
_COMPILED_FROM = 100_000  # steps from which on a stack's time to compile is well spent

Progress = Callable[[int, int], None]  # steps done, steps in all


@dataclass(frozen=True)
class Training:
    """How models are trained: Adam on the mean squared error.

    Parameters
    ----------
    epochs, batch
        Passes over the training examples, and examples per step; an incomplete batch at the end
        of an epoch is left out.
    lr, schedule
        Step size, "constant" or "cosine" (lr (1 + cos(pi t / T)) / 2).
    """

    epochs: int
    batch: int = 32
    lr: float = 1e-3
    schedule: str = "constant"

    def __post_init__(self) -> None:
        check_size("epochs", self.epochs)
        check_size("batch", self.batch)
        check_positive("lr", self.lr)
        check_choice("schedule", self.schedule, SCHEDULES)

    def rate(self, step: Tensor | int, total: int) -> Tensor | float:
        """The step size at a step, for a count or a tensor on a device."""
        if self.schedule == "constant":
            return self.lr
        if isinstance(step, Tensor):
            return self.lr * (1 + torch.cos(step * (math.pi / total))) / 2
        return self.lr * (1 + math.cos(step * (math.pi / total))) / 2


Batch = tuple[tuple[Tensor, ...], Tensor]  # inputs and targets, each (M, batch, ...)


@dataclass(eq=False)
class Stack:
    """Models that train together, and the data they learn from.

    Attributes
    ----------
    name
        Tells the stacks of a run apart.
    network, parameters
        The function of parameters and inputs, and its parameters, all with a leading model axis.
    training
        How it is trained.
    examples
        Training examples in each data set.
    orders
        One name per data set; equal names give equal orders of the examples.
    batch
        The samples at an index of shape (data sets, batch).
    validate
        Held-out error of every model, (M,), after each epoch; None to leave it out.
    draw
        The examples of an epoch, by data set and epoch; None shuffles all of them.
    """

    name: str
    network: Callable[..., Tensor]
    parameters: Parameters
    training: Training
    examples: int
    orders: tuple[object, ...]
    batch: Callable[[Tensor], Batch]
    validate: Callable[[Parameters], Tensor] | None = None
    draw: Callable[[object, int], Tensor] | None = None

    @property
    def models(self) -> int:
        """M."""
        return next(iter(self.parameters.values())).shape[0]

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.examples // self.training.batch


@dataclass
class Curves:
    """Errors by epoch, a list of (M,) each: on training batches as they went by, and held out."""

    train: list[Tensor] = field(default_factory=list)
    held_out: list[Tensor] = field(default_factory=list)


@contextmanager
def full_precision() -> Iterator[None]:
    """Products of float32 are float32: no TF32, whatever the process was set to."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


Errors = Callable[[Parameters, Tensor], Tensor]


def errors_of(stack: Stack) -> Errors:
    """Every model's mean squared error, (M,), on the samples at an index."""

    def errors(parameters: Parameters, index: Tensor) -> Tensor:
        inputs, targets = stack.batch(index)
        return (stack.network(parameters, *inputs) - targets).square().flatten(1).mean(1)

    return errors


class _Lane:
    """A stack in training: leaves, optimiser, counters."""

    def __init__(self, stack: Stack, device: torch.device, pace: int, *, compiled: bool) -> None:
        self.stack, self.device, self.pace = stack, device, pace
        self.errors = errors_of(stack)
        if compiled:
            self.errors = torch.compile(self.errors, fullgraph=True, dynamic=False)
        self.on_gpu = device.type == "cuda"
        self.total = stack.steps * stack.training.epochs
        self.leaves = {
            name: p.to(device).detach().clone().requires_grad_()
            for name, p in stack.parameters.items()
        }
        self.rate: Tensor | float = stack.training.lr
        if self.on_gpu:
            self.rate = torch.tensor(stack.training.lr, device=device)
        self.adam = torch.optim.Adam(
            list(self.leaves.values()), lr=self.rate, fused=True, capturable=self.on_gpu
        )
        sets, width = len(stack.orders), stack.steps * stack.training.batch
        self.order = torch.zeros(sets, width, dtype=torch.int64, device=device)
        self.within = torch.arange(stack.training.batch, device=device)
        self.step_at = torch.zeros((), dtype=torch.int64, device=device)
        self.loss = torch.zeros(stack.models, device=device)
        self.curves = Curves()
        self._prime()

    def _prime(self) -> None:
        """Have the optimiser allocate its state, then put everything back to the start."""
        start = {name: p.detach().clone() for name, p in self.leaves.items()}
        for p in self.leaves.values():
            p.grad = torch.zeros_like(p)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.restore(start)

    def restore(self, start: Parameters) -> None:
        """Given parameters, Adam at its beginning, counters at zero."""
        with torch.no_grad():
            for name, p in self.leaves.items():
                p.copy_(start[name])
                for entry in self.adam.state[p].values():
                    entry.zero_()
        self.step_at.zero_()
        self.loss.zero_()

    def shuffle(self, epoch: int) -> None:
        """The order of this epoch's examples."""
        stack = self.stack
        for row, name in zip(self.order, stack.orders, strict=True):
            drawn = (
                permutation(stack.examples, self.device, "order", name, epoch)
                if stack.draw is None
                else stack.draw(name, epoch)
            )
            row.copy_(drawn[: len(row)])

    def step(self, at: int | None = None) -> None:
        """One step of Adam; ``at`` is the step where the host knows it (not inside a graph)."""
        training, stack = self.stack.training, self.stack
        if at is None:
            start = (self.step_at % stack.steps) * training.batch
            index = self.order[:, start + self.within]
            if training.schedule != "constant":
                self.rate.copy_(training.rate(self.step_at, self.total))  # type: ignore[union-attr, arg-type]
        else:
            start_at = (at % stack.steps) * training.batch
            index = self.order[:, start_at : start_at + training.batch]
            self.adam.param_groups[0]["lr"] = training.rate(at, self.total)
        # Fresh leaves on the same memory: a leaf's autograd node belongs to the stream it was made
        # on, and an old one would tie all branches of a graph to that stream.
        now = {name: p.detach().requires_grad_() for name, p in self.leaves.items()}
        each = self.errors(now, index)
        gradients = torch.autograd.grad(each.sum(), list(now.values()))
        for p, gradient in zip(self.leaves.values(), gradients, strict=True):
            p.grad = gradient.contiguous()  # a fused step reads memory, whatever the strides are
        self.adam.step()
        self.loss += each.detach()
        self.step_at += 1

    def end_epoch(self) -> None:
        """Note the epoch's errors."""
        self.curves.train.append(self.loss / self.stack.steps)
        self.loss.zero_()
        if self.stack.validate is not None:
            with torch.no_grad():
                self.curves.held_out.append(self.stack.validate(self.leaves))

    # ------------------------------------------------------------------------------ checkpoints

    def _moments(self) -> Iterator[tuple[str, Tensor]]:
        for name, p in self.leaves.items():
            for entry, value in self.adam.state[p].items():
                yield f"{name}/{entry}", value

    def state(self) -> Parameters:
        """Everything that the next step depends on, and what was noted so far."""
        kept = {f"p/{name}": p for name, p in self.leaves.items()}
        kept |= {f"a/{name}": value for name, value in self._moments()}
        kept["loss"] = self.loss
        for name in ("train", "held_out"):
            noted = getattr(self.curves, name)
            kept[f"curves/{name}"] = torch.stack(noted) if noted else torch.zeros(0, len(self.loss))
        return kept

    @torch.no_grad()
    def load(self, kept: Parameters, step: int) -> None:
        """Continue from a state, at a step of the lane's own."""
        for name, p in self.leaves.items():
            p.copy_(kept[f"p/{name}"])
        for name, value in self._moments():
            value.copy_(kept[f"a/{name}"])
        self.loss.copy_(kept["loss"])
        self.step_at.fill_(step)
        for name in ("train", "held_out"):
            setattr(self.curves, name, list(kept[f"curves/{name}"].to(self.device).unbind()))


def _common_length(stacks: Sequence[Stack]) -> tuple[int, int]:
    """Steps of an epoch and epochs of stacks that train together, or what forbids it."""
    for stack in stacks:
        if stack.steps < 1:
            raise BoundError(
                f"{stack.examples} training examples do not fill a batch of "
                f"{stack.training.batch}; raise samples or lower batch"
            )
    fewest, epochs = min(s.steps for s in stacks), {s.training.epochs for s in stacks}
    uneven = any(s.steps % fewest for s in stacks)
    if uneven or len(epochs) != 1 or len({s.name for s in stacks}) != len(stacks):
        raise ProgramError(
            "stacks that train together need equal epochs, steps that are multiples of the fewest, "
            f"and different names, got (name, steps, epochs) "
            f"{[(s.name, s.steps, s.training.epochs) for s in stacks]}"
        )
    return fewest, epochs.pop()


class Trainer:
    """Train stacks together.

    Parameters
    ----------
    stacks
        With equal numbers of epochs. Those with the fewest steps in an epoch set the pace: the
        others' steps must be a multiple of theirs, and so many are taken for each one of theirs.
        A step of the trainer is one of the former.
    device
        Where the data lies.
    checkpoint, identity
        A file to resume from and write to, and what a file must say to be resumed from.
    every
        Seconds between checkpoints.
    compiled
        Whether steps are compiled; None compiles long runs on a GPU.
    """

    def __init__(
        self,
        stacks: Sequence[Stack],
        device: torch.device | str = "cpu",
        *,
        checkpoint: Path | None = None,
        identity: str = "",
        every: float = 120.0,
        compiled: bool | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.per_epoch, self.epochs = _common_length(stacks)
        self.checkpoint, self.identity, self.every = checkpoint, identity, every
        self.step = 0
        if compiled is None:
            compiled = self.device.type == "cuda" and self.total >= _COMPILED_FROM
        self.compiled = compiled
        with full_precision():
            self.lanes = [
                _Lane(stack, self.device, stack.steps // self.per_epoch, compiled=compiled)
                for stack in stacks
            ]
            if checkpoint is not None and checkpoint.exists():
                self._resume(checkpoint)

    @property
    def total(self) -> int:
        """Steps in all."""
        return self.per_epoch * self.epochs

    def run(self, progress: Progress | None = None, until: int | None = None) -> None:
        """Train to the end, or to a step."""
        last = self.total if until is None else min(until, self.total)
        saved = time.monotonic()
        with full_precision():
            advance = self._advance()
            while self.step < last:
                if self.step % self.per_epoch == 0 or advance.fresh:
                    self._shuffle()
                    advance.fresh = False
                boundary = (self.step // self.per_epoch + 1) * self.per_epoch
                target = min(boundary, self.step + _CHUNK, last)
                advance(self.step, target)
                self.step = target
                if self.step == boundary:
                    for lane in self.lanes:
                        lane.end_epoch()
                if progress is not None:
                    progress(self.step, self.total)
                if self.checkpoint and time.monotonic() - saved >= self.every:
                    self.save()
                    saved = time.monotonic()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

    def _shuffle(self) -> None:
        for lane in self.lanes:
            lane.shuffle(self.step // self.per_epoch)

    def _advance(self) -> _Advance:
        self._shuffle()
        return _Graph(self.lanes) if self.device.type == "cuda" else _Advance(self.lanes)

    def parameters(self) -> dict[str, Parameters]:
        """The models as they are now, by stack."""
        return {
            lane.stack.name: {name: p.detach() for name, p in lane.leaves.items()}
            for lane in self.lanes
        }

    def curves(self) -> dict[str, Curves]:
        """What was noted, by stack."""
        return {lane.stack.name: lane.curves for lane in self.lanes}

    def save(self) -> None:
        """Write a checkpoint."""
        if self.checkpoint is None:
            raise ProgramError("this run has no checkpoint file; pass checkpoint=")
        state = {
            f"{place}/{name}": value
            for place, lane in enumerate(self.lanes)
            for name, value in lane.state().items()
        }
        notes = {"identity": self.identity, "step": self.step}
        write_state(self.checkpoint, state, notes)

    def _resume(self, path: Path) -> None:
        kept, notes = read_state(path, self.identity)
        self.step = int(notes["step"])
        for place, lane in enumerate(self.lanes):
            start = f"{place}/"
            own = {n.removeprefix(start): t for n, t in kept.items() if n.startswith(start)}
            lane.load(own, self.step * lane.pace)


class _Advance:
    """Steps one after another, as the host goes."""

    def __init__(self, lanes: Sequence[_Lane]) -> None:
        self.lanes, self.fresh = lanes, True

    def __call__(self, start: int, stop: int) -> None:
        for at in range(start, stop):
            for lane in self.lanes:
                for own in range(at * lane.pace, (at + 1) * lane.pace):
                    lane.step(own)


@contextmanager
def _compiling() -> Iterator[None]:
    """Every stack is a compilation of the same few lines, and TF32 is off on purpose."""
    with torch._dynamo.config.patch(recompile_limit=_MOST_COMPILED), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        yield


class _Graph(_Advance):
    """CUDA graphs of one step and of several, every stack a branch of its own."""

    def __init__(self, lanes: Sequence[_Lane]) -> None:
        super().__init__(lanes)
        self.streams = [torch.cuda.Stream() for _ in lanes]
        kept = [(lane.state(), int(lane.step_at)) for lane in lanes]
        kept = [({k: v.clone() for k, v in state.items()}, at) for state, at in kept]
        with _compiling():
            self._branches(_WARM_UP)
        torch.cuda.synchronize()
        self.one, self.several = self._captured(1), self._captured(_UNROLLED)
        for lane, (state, at) in zip(lanes, kept, strict=True):
            lane.load(state, at)

    def _captured(self, steps: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._branches(steps)
        return graph

    def _branches(self, steps: int) -> None:
        """Steps of every stack on its own stream; they meet at the end."""
        main = torch.cuda.current_stream()
        for lane, stream in zip(self.lanes, self.streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                for _ in range(steps * lane.pace):
                    lane.step()
        for stream in self.streams:
            main.wait_stream(stream)

    def __call__(self, start: int, stop: int) -> None:
        several, single = divmod(stop - start, _UNROLLED)
        for _ in range(several):
            self.several.replay()
        for _ in range(single):
            self.one.replay()
