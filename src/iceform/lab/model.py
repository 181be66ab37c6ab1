"""Networks of one shape that can be trained: compiled, random, or partly both.

A trainable network is no certified one. Its weights are moderate and will change; what is said
about it is a :class:`MeasuredDistance`, from prompts that were drawn, and never a certificate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import store
from iceform.codec import decode, encode
from iceform.computer import Program
from iceform.errors import IceformError, IntegrityError, ProgramError, ShapeError, TargetError
from iceform.lab.algorithms import MECHANISMS, PrefixDescent, chebyshev_steps, stable_damping
from iceform.lab.circuits import PARTS, DescentCircuit
from iceform.lab.network import embedded, read_out, run, stacked
from iceform.lab.shape import GPT2Shape, interleaved
from iceform.lab.tasks import InContextTask
from iceform.targets.folder import CONFIG, VIEWS, check_path, write_checkpoint
from iceform.targets.recognised import recognised
from iceform.validation import check_choice, check_size

FILLS = ("random", "zeros")
_KIND = "trainable network"
_INITIAL = 0.02  # standard deviation of GPT-2's weights before training, as transformers has it
Mask = dict[str, Tensor]


@dataclass(frozen=True)
class MeasuredDistance:
    """How far a network's answers were from an algorithm's on prompts that were drawn.

    Attributes
    ----------
    rms, largest
        Of the differences.
    labels
        Root mean square of the labels.
    prompts, seed
        How many were drawn, and from what.
    task
        Which ones.

    Examples
    --------
    >>> distance = MeasuredDistance(0.01, 0.05, labels=2.0, prompts=64, seed=0, task={})
    >>> distance.share
    0.005
    """

    rms: float
    largest: float
    labels: float
    prompts: int
    seed: int
    task: Mapping[str, Any]

    @property
    def share(self) -> float:
        """The distance as a share of the labels."""
        return self.rms / self.labels

    def __str__(self) -> str:
        return (
            f"measured on {self.prompts} prompts: rms {self.rms:.4g}, {self.share:.2%} of the "
            f"labels'; largest {self.largest:.4g}"
        )


@dataclass(eq=False)
class TrainableNetwork:
    """A stock GPT-2 with a map in and a map out, and what it was made of.

    Attributes
    ----------
    shape
        Its sizes.
    tensors
        By transformers' names, in float32.
    name
        For tables.
    circuit
        What it was compiled from; None for random weights.

    Examples
    --------
    >>> network = compiled("primal", GPT2Shape(dim=1, layers=4, width=32, heads=2, positions=8))
    >>> x, y, *_ = InContextTask(dim=1).draw(3, 4, torch.Generator().manual_seed(0))
    >>> network(x, y).shape  # an answer at every x
    torch.Size([3, 4])
    >>> len(network.states(x, y))
    5
    """

    shape: GPT2Shape
    tensors: dict[str, Tensor]
    name: str
    circuit: DescentCircuit | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        s = self.shape
        return f"TrainableNetwork({self.name!r}, {s.layers} layers, width {s.width}, d = {s.dim})"

    def __call__(self, x: Tensor, y: Tensor) -> Float[Tensor, "b n"]:
        """The answer at every x, from the examples before it; differentiable.

        ``x`` is (batch, examples, d) and ``y`` (batch, examples); the last y is not looked at.
        """
        self.shape.check_data(x, y)
        one = stacked([self.tensors])
        return run(one, self.shape, embedded(one, self.shape, x[None], y[None]))[0]

    def prompt(self, x: Tensor, y: Tensor) -> Float[Tensor, "b t h"]:
        """``inputs_embeds`` for transformers, which adds the positions itself."""
        self.shape.check_data(x, y)
        return interleaved(x, y) @ self.tensors["wte.weight"][: self.shape.dim + 1]

    def read(self, hidden: Float[Tensor, "b t h"]) -> Float[Tensor, "b n"]:
        """The answers in ``last_hidden_state``, one at every x."""
        if hidden.ndim != 3 or hidden.shape[-1] != self.shape.width:
            raise ShapeError(
                f"last_hidden_state is (batch, tokens, {self.shape.width}) here, got "
                f"{tuple(hidden.shape)}"
            )
        return read_out(stacked([self.tensors]), hidden[None])[0]

    def states(self, x: Tensor, y: Tensor) -> list[Float[Tensor, "b t h"]]:
        """The stream before the first layer and behind every layer."""
        self.shape.check_data(x, y)
        one = stacked([self.tensors])
        kept = [embedded(one, self.shape, x[None], y[None])]
        run(one, self.shape, kept[0], keep=kept)
        return [h[0] for h in kept]

    def answer_from(self, state: Float[Tensor, "b t h"], layer: int) -> Float[Tensor, "b n"]:
        """The answers when the stream before ``layer`` is this one."""
        return run(stacked([self.tensors]), self.shape, state[None], first=layer)[0]

    @property
    def mask(self) -> Mask:
        """Which weights are the circuit's own, by tensor; nothing else need ever change."""
        if self.circuit is None:
            raise ProgramError(f"{self.name} was not compiled: no weights are a circuit's own")
        return {name: t != 0 for name, t in self.circuit.tensors().items()}

    @property
    def algorithm(self) -> PrefixDescent | None:
        """What all of it was compiled from; None where a part of it is random."""
        if self.circuit is None or set(self.circuit.parts) != set(PARTS):
            return None
        return self.circuit.algorithm

    def distance(
        self, task: InContextTask | None = None, *, prompts: int = 256, seed: int = 0
    ) -> MeasuredDistance:
        """How far the answers are from the algorithm's, measured on prompts of a task."""
        if self.algorithm is None:
            raise ProgramError(f"{self.name} runs no known algorithm: compile all its parts")
        task = task or InContextTask(dim=self.shape.dim)
        source = torch.Generator().manual_seed(seed)
        x, y, *_ = task.draw(check_size("prompts", prompts), self.shape.examples, source)
        with torch.no_grad():
            off = self(x, y).double() - self.algorithm(x, y)
        return MeasuredDistance(
            rms=float(off.square().mean().sqrt()),
            largest=float(off.abs().max()),
            labels=float(y.square().mean().sqrt()),
            prompts=prompts,
            seed=seed,
            task=task.to_dict(),
        )

    def shuffled(self, seed: int) -> TrainableNetwork:
        """Every tensor of the layers but the norms' with its entries in another order."""
        source, out = torch.Generator().manual_seed(seed), dict(self.tensors)
        for name, tensor in out.items():
            if name.startswith("h.") and ".ln_" not in name:
                order = torch.randperm(tensor.numel(), generator=source)
                out[name] = tensor.flatten()[order].view_as(tensor)
        return TrainableNetwork(self.shape, out, f"{self.name}, shuffled")

    def with_tensors(self, tensors: Mapping[str, Tensor], name: str) -> TrainableNetwork:
        """The same with other weights: what training made of it."""
        return replace(self, tensors=dict(tensors), name=name)

    def to(self, device: str | torch.device) -> TrainableNetwork:
        """The same on a device, for prompts that are there."""
        moved = {name: t.to(device) for name, t in self.tensors.items()}
        return replace(self, tensors=moved)

    # ------------------------------------------------------------------------------------- files

    def to_transformers(self) -> Any:
        """A ``transformers.GPT2Model`` with these weights, for ``prompt`` and ``read``."""
        try:
            from transformers import GPT2Config, GPT2Model
        except ImportError:
            raise ProgramError("transformers is missing: pip install 'iceform[export]'") from None
        config = {k: v for k, v in self.shape.config().items() if k != "model_type"}
        model: Any = GPT2Model(GPT2Config(**config))  # type: ignore[no-untyped-call]
        model.load_state_dict(self.tensors, strict=False)
        return model.eval()

    def save(self, path: str | Path) -> Path:
        """Write a folder that ``AutoModel.from_pretrained`` and :func:`load_network` read."""
        folder = Path(path)
        check_path(folder)
        record = encode({"shape": self.shape, "name": self.name, "circuit": self.circuit})
        if self.circuit is not None:
            record["ground_truth"] = self.circuit.design.ground_truth()
        if self.algorithm is not None:
            record["measured_distance_of_the_circuit"] = encode(_bare(self).distance())
        tensors = {name: t.detach().float().contiguous() for name, t in self.tensors.items()}
        return write_checkpoint(folder, _KIND, record, tensors, {CONFIG: self.shape.config()})


def load_network(path: str | Path) -> TrainableNetwork:
    """What :meth:`TrainableNetwork.save` wrote; anything else raises ``IntegrityError``.

    Examples
    --------
    >>> network = random_network(GPT2Shape(dim=1, layers=1, width=8, heads=1, positions=8))
    >>> load_network(network.save("network")).name
    'random'
    """
    folder = Path(path)
    stored = store.read_folder(folder, VIEWS, _KIND)
    try:
        shape = decode(GPT2Shape, stored.content["shape"])
        said, name = stored.content["circuit"], str(stored.content["name"])
        # What earlier versions wrote says the shape once, beside the circuit.
        circuit = said and decode(DescentCircuit, {"shape": encode(shape), **said})
    except (KeyError, TypeError, IceformError) as broken:
        raise IntegrityError(f"{folder} does not describe a network: {broken}") from None
    if {n: tuple(t.shape) for n, t in stored.tensors.items()} != shape.tensors():
        raise IntegrityError(f"{folder} has other tensors than its shape {shape}")
    return TrainableNetwork(shape, stored.tensors, name, circuit)


# -------------------------------------------------------------------------------------------------
# starts
# -------------------------------------------------------------------------------------------------


def random_network(shape: GPT2Shape | None = None, seed: int = 0) -> TrainableNetwork:
    """Weights as transformers draws them for a GPT-2, and maps in and out as torch's ``Linear``.

    Examples
    --------
    >>> random_network(GPT2Shape(dim=1, layers=1, width=8, heads=1, positions=8), seed=3)
    TrainableNetwork('random', 1 layers, width 8, d = 1)
    """
    shape = shape or GPT2Shape()
    source, out = torch.Generator().manual_seed(seed), {}
    for name, size in shape.tensors().items():
        if name.endswith(".bias"):
            out[name] = torch.zeros(size)
        elif "ln_" in name:
            out[name] = torch.ones(size)
        elif name == "wte.weight":
            uniform = 2 * torch.rand(size, generator=source) - 1
            fans = [shape.dim + 1] * (shape.dim + 1) + [shape.width]
            out[name] = uniform / torch.tensor(fans)[:, None].sqrt()
        else:
            branches = 2 * shape.layers if name.endswith("c_proj.weight") else 1
            scale = _INITIAL / math.sqrt(branches)
            out[name] = scale * torch.randn(size, generator=source)
    return TrainableNetwork(shape, out, "random")


def compiled(
    algorithm: str | PrefixDescent | Program = "primal",
    shape: GPT2Shape | None = None,
    *,
    fill: str = "random",
    parts: Sequence[str] = PARTS,
    seed: int = 0,
    **settings: Any,
) -> TrainableNetwork:
    """A network of a given shape that runs gradient descent, with weights that can be trained.

    Parameters
    ----------
    algorithm
        "primal" or "dual" descent with steps of their own; a :class:`PrefixDescent`; or a program
        that is recognised as descent on least squares, which is written in primal form.
    shape
        Of the network; ``layers - 1`` steps fit.
    fill
        "random" gives idle heads and MLP units random inputs (their outputs are 0, so the function
        is the same); "zeros" leaves them dead, for gradients too.
    parts
        What is compiled; the rest is as in :func:`random_network`. ("copy",) compiles the head
        that pairs every y with its x.
    seed
        Of all that is random.
    **settings
        Of :class:`~iceform.lab.circuits.DescentCircuit`; of a program, its parameters.

    Raises
    ------
    TargetError
        If the shape is too small, with what it would need; if a part or a fill is none.

    Examples
    --------
    >>> network = compiled("primal", GPT2Shape(dim=2, layers=4, width=64, heads=4, positions=32))
    >>> network.distance().share < 0.02
    True
    """
    shape = shape or GPT2Shape()
    if fill not in FILLS:
        raise TargetError(f"no fill is called {fill!r}; there are {', '.join(FILLS)}")
    if isinstance(algorithm, Program):
        descent, settings = _of_program(algorithm, settings), {}
    elif isinstance(algorithm, PrefixDescent):
        descent = algorithm
    else:
        check_choice("algorithm", algorithm, MECHANISMS)
        steps = chebyshev_steps(shape.layers - 1)
        descent = PrefixDescent(steps, stable_damping(shape.dim), algorithm)
    circuit = DescentCircuit(shape, descent, tuple(parts), **settings)
    own = circuit.tensors()
    drawn = random_network(shape, seed).tensors
    if "steps" not in circuit.parts:
        tensors = _copy_among(own, drawn, circuit)
    else:
        tensors = _filled(own, drawn, shape) if fill == "random" else own
    tensors = {name: t.float() for name, t in tensors.items()}
    whole = descent.mechanism if "steps" in circuit.parts else "copy head"
    return TrainableNetwork(shape, tensors, whole, circuit)


def write_trainable(
    program: Program, name: str, path: str | Path | None = None, *, layout: str = "garg",
    **options: Any,
) -> TrainableNetwork:  # fmt: skip
    """As :meth:`iceform.Program.to` says of ``trainable=True``."""
    if name != "gpt2" or layout != "garg":
        raise TargetError(
            'trainable networks are written as "gpt2" with layout="garg" (x1, y1, x2, ...), got '
            f"{name!r} and layout={layout!r}"
        )
    made = compiled(program, **options)
    if path is not None:
        made.save(path)
    return made


def _bare(network: TrainableNetwork) -> TrainableNetwork:
    """The circuit before anything was trained."""
    assert network.circuit is not None
    own = {name: t.float() for name, t in network.circuit.tensors().items()}
    return network.with_tensors(own, network.name)


def _of_program(program: Program, settings: Mapping[str, Any]) -> PrefixDescent:
    found = recognised(program.graph, program.parameters(**settings))
    if found.f or found.penalty or found.momentum:
        raise TargetError(
            f"{program.name} has a penalty, a momentum or a loss of its own; trainable networks "
            "hold plain descent on least squares"
        )
    return PrefixDescent(tuple(float(eta) for eta in found.steps))


def _filled(own: Mapping[str, Tensor], drawn: Mapping[str, Tensor], shape: GPT2Shape) -> Mask:
    """Random inputs for heads and units whose output is 0: the function stays as it is."""
    out, size = {name: t.clone() for name, t in own.items()}, shape.head_size
    for layer in range(shape.layers):
        at = f"h.{layer}."
        for head in range(shape.heads):
            rows = slice(head * size, (head + 1) * size)
            if not own[at + "attn.c_proj.weight"][rows].any():
                for part in range(3):
                    columns = slice(part * shape.width + rows.start, part * shape.width + rows.stop)
                    name = at + "attn.c_attn.weight"
                    out[name][:, columns] = drawn[name][:, columns].double()
        idle = ~own[at + "mlp.c_proj.weight"].any(1)
        out[at + "mlp.c_fc.weight"][:, idle] = drawn[at + "mlp.c_fc.weight"][:, idle].double()
    return out


def _copy_among(
    own: Mapping[str, Tensor], drawn: Mapping[str, Tensor], circuit: DescentCircuit
) -> dict[str, Tensor]:
    """The copy heads with the embeddings that they read; everything else as it was drawn."""
    shape, out = circuit.shape, dict(drawn)
    used = len(circuit.layers[0]) * shape.head_size
    out["wpe.weight"] = own["wpe.weight"]
    out["wte.weight"] = torch.cat([own["wte.weight"][:-1].float(), drawn["wte.weight"][-1:]])
    for name in ("attn.c_attn.weight", "attn.c_attn.bias"):
        mixed = drawn[f"h.0.{name}"].clone()
        for part in range(3):
            columns = slice(part * shape.width, part * shape.width + used)
            mixed[..., columns] = own[f"h.0.{name}"][..., columns].float()
        out[f"h.0.{name}"] = mixed
    mixed = drawn["h.0.attn.c_proj.weight"].clone()
    mixed[:used] = own["h.0.attn.c_proj.weight"][:used].float()
    out["h.0.attn.c_proj.weight"] = mixed
    return out
