"""Compiled modules whose mechanism is known head by head, for testing interpretability methods.

A method that claims to find how a network computes something can be tested here against the truth:
every specimen says what each of its heads reads, computes and writes, and which entries of the
output it can change at all.

    specimen = iceform.zoo.load("gd-logistic")
    specimen.module(*specimen.inputs())
    print(specimen.explain())
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from iceform.errors import ProgramError
from iceform.paper import (
    AttentionHead,
    Emulator,
    GradientDescent,
    GradientStep,
    LinearLayer,
    ResidualMap,
    TruncatedLinear,
)

__all__ = ["HeadFact", "Specimen", "list", "load"]

_DTYPE = torch.float64


@dataclass(frozen=True)
class HeadFact:
    """The truth about one head.

    Attributes
    ----------
    layer, head, label
        Where it is: ``module.network.layers[layer]``, and its place and name there.
    reads
        What its keys and queries compare.
    computes
        What comes out of its softmax.
    writes
        Where that goes.
    affects
        Features of the answer that depend on it.

    Examples
    --------
    >>> fact = ice.zoo.load("linear").fact("theta row 1")
    >>> fact.layer, fact.head, fact.affects
    (0, 1, (1,))
    """

    layer: int
    head: int
    label: str
    reads: str
    computes: str
    writes: str
    affects: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Specimen:
    """A compiled module, data it runs on, and its mechanism.

    Attributes
    ----------
    name, summary
        What it is called, and what it computes.
    module
        The emulator; ``module.network`` has the literal weights.
    mechanism
        One fact per head, in order.

    Examples
    --------
    >>> specimen = ice.zoo.load("linear")
    >>> specimen.answer(specimen.module(*specimen.inputs(seed=1))).shape
    torch.Size([5, 3])
    """

    name: str
    summary: str
    module: Emulator
    mechanism: tuple[HeadFact, ...]
    _draw: Callable[[torch.Generator], tuple[Tensor, ...]]

    def __repr__(self) -> str:
        return f"Specimen({self.name!r}: {self.summary}; {len(self.mechanism)} heads are explained)"

    def inputs(self, seed: int = 0) -> tuple[Tensor, ...]:
        """Inputs in the module's domain; the same for the same seed."""
        return self._draw(torch.Generator().manual_seed(seed))

    def answer(self, output: Tensor) -> Tensor:
        """An output as (*batch, tokens, features), to which ``affects`` refers."""
        if isinstance(self.module, TruncatedLinear):
            return output[..., None]
        one = isinstance(self.module, GradientStep | GradientDescent)
        return output[..., None, :] if one else output

    def fact(self, label: str, layer: int | None = None) -> HeadFact:
        """The truth about a named head; the first of that name unless a layer is given."""
        for fact in self.mechanism:
            if fact.label == label and layer in (None, fact.layer):
                return fact
        known = ", ".join(fact.label for fact in self.mechanism)
        raise ProgramError(f"{self.name} has no head {label!r}; there are {known}")

    def explain(self) -> str:
        """The mechanism as text."""
        lines = [f"{self.name}: {self.summary}", ""]
        for fact in self.mechanism:
            where = f"layer {fact.layer}, head {fact.head} ({fact.label})"
            lines += [where, f"  reads    {fact.reads}", f"  computes {fact.computes}"]
            entries = ", ".join(map(str, fact.affects))
            lines += [f"  writes   {fact.writes}", f"  affects  feature {entries} of the answer"]
        return "\n".join(lines)


# ---------------------------------------------------------------------------------------------
# data
# ---------------------------------------------------------------------------------------------


def _uniform(*shapes: tuple[int, ...]) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    """Entries in [-1, 1]."""

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(2 * torch.rand(s, generator=generator, dtype=_DTYPE) - 1 for s in shapes)

    return draw


def _labelled(
    samples: int, dim: int, *, signs: bool
) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    """X, labels (-1 and 1, or 0 and 1) and w."""

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        x, w = _uniform((samples, dim), (dim,))(generator)
        y = (torch.rand(samples, generator=generator, dtype=_DTYPE) > 0.5).to(_DTYPE)
        return x, (2 * y - 1 if signs else y), w

    return draw


# ---------------------------------------------------------------------------------------------
# mechanisms
# ---------------------------------------------------------------------------------------------


Told = tuple[str, str, str, tuple[int, ...]]  # reads, computes, writes, affects
_GRID = "grid tokens (L x_i, L y_i, L^2) of the query's own sample against w"


def _specimen(
    module: Emulator,
    summary: str,
    draw: Callable[[torch.Generator], tuple[Tensor, ...]],
    tell: Callable[[int, int, str], Told],
) -> Specimen:
    """A module with one fact per head of its literal network, in order."""
    facts = tuple(
        HeadFact(layer, head, label, *tell(layer, head, label))
        for layer, part in enumerate(module.network.layers)
        for head, label in enumerate(getattr(part, "labels", ()))
    )
    return Specimen("", summary, module, facts, draw)


# ---------------------------------------------------------------------------------------------
# the specimens
# ---------------------------------------------------------------------------------------------


def _residual(name: str, f: Callable[[Tensor], Tensor]) -> Specimen:
    module = ResidualMap(f, dim=3, samples=4, eps=1e-8, backend="literal")
    summary = f"{name}(w.x_i - y_i) x_i for every sample, by one head"
    known = module.loss.derivative.name
    return _specimen(module, summary, _uniform((4, 3), (4,), (3,)), lambda *_: (
        _GRID,
        f"{known}(w.x_i - y_i), as a softmax over the grid near z = w.x_i - y_i",
        "times x_i, to the query token of sample i",
        (0, 1, 2),
    ))  # fmt: skip


def _step(
    loss: str,
    *,
    signs: bool | None = None,
    eps: float | None = 1e-7,
    tokens: int | None = None,
) -> Specimen:
    module = GradientStep(loss, 0.5, dim=3, samples=4, eps=eps, tokens=tokens, backend="literal")
    draw = _uniform((4, 3), (4,), (3,)) if signs is None else _labelled(4, 3, signs=signs)
    name = module.loss.derivative.name
    summary = f"one gradient step on the {loss} loss, by one head"
    return _specimen(module, summary, draw, lambda *_: (
        _GRID,
        f"w - lr {name}(z_i) x_i: the value rows carry w, which softmax weights sum to exactly",
        "averaged over the samples' query tokens by W_O: the new w",
        (0, 1, 2),
    ))  # fmt: skip


def _descent() -> Specimen:
    module = GradientDescent(
        "squared", 3, dim=2, samples=3, eps=1e-6, backend="literal", unrolled=True
    )
    summary = "three gradient steps on the squared loss, one layer each"
    return _specimen(module, summary, _uniform((3, 2), (3,), (2,)), lambda layer, _, __: (
        "grid tokens of the query's own sample against the present w",
        f"the gradient at the w that {layer} steps have reached",
        f"the residual stream: w of every token, which layer {layer + 1} reads",
        (0, 1),
    ))  # fmt: skip


def _linear() -> Specimen:
    module = LinearLayer(4, 3, samples=5, eps=1e-10, backend="literal")
    summary = "a linear map whose weights are in the prompt, one head per output row"
    return _specimen(module, summary, _uniform((5, 4), (3, 4)), lambda _, head, __: (
        f"x_i against grid tokens L theta_{head} made from row {head} of the prompt",
        f"theta_{head} . x_i, looked up on the table of the identity",
        f"output feature {head} of token i",
        (head,),
    ))  # fmt: skip


def _attention(module: AttentionHead, summary: str, *shapes: tuple[int, ...]) -> Specimen:
    values = tuple(range(module.value_dim))

    def tell(layer: int, head: int, label: str) -> Told:
        del head
        if layer == 1:
            what = f"softmax over tokens of Q.K, weighted V, of {label}"
            return "K and Q that layer 0 wrote", what, "the answer", values
        block, row = label.split(" row ")
        affects = (int(row),) if block.startswith("V") else values
        return (
            f"x_i against grid tokens made from row {row} of {block}",
            f"{block}[{row}] . x_i, looked up on the table of the identity",
            f"entry {row} of {block} of token i, which layer 1 reads",
            affects,
        )

    return _specimen(module, summary, _uniform(*shapes), tell)


def _head() -> Specimen:
    module = AttentionHead(4, 2, 3, 5, eps=1e-8, backend="literal")
    summary = "a softmax-attention head whose weights are in the prompt"
    return _attention(module, summary, (5, 4), (2, 4), (2, 4), (3, 4))


def _two_heads() -> Specimen:
    module = AttentionHead(3, 2, 2, 4, heads=2, eps=1e-8, backend="literal")
    summary = "two softmax-attention heads whose weights are in the prompt, summed"
    return _attention(module, summary, (4, 3), (2, 2, 3), (2, 2, 3), (2, 2, 3))


def _truncated() -> Specimen:
    module = TruncatedLinear(-2.0, 2.0, 4, dim=2, samples=5, tokens=16, backend="literal")
    summary = "w.x_i - t truncated to [-2, 2], its grid split over four heads"
    return _specimen(module, summary, _uniform((5, 2), (2,), ()), lambda _, head, __: (
        f"z_i = w.x_i - t against part {head} of the grid",
        f"z_i where it falls into part {head}, 0 elsewhere (its guards carry 0)",
        "summed over heads: each z is looked up by one head",
        (0,),
    ))  # fmt: skip


_ZOO: dict[str, Callable[[], Specimen]] = {
    "residual-tanh": lambda: _residual("tanh", torch.tanh),
    "residual-sin": lambda: _residual("sin", torch.sin),
    "gd-squared": lambda: _step("squared"),
    "gd-huber": lambda: _step("huber", eps=None, tokens=33),
    "gd-logistic": lambda: _step("logistic", signs=False),
    "gd-hinge": lambda: _step("hinge", signs=True),
    "gd-unrolled": _descent,
    "linear": _linear,
    "attention-head": _head,
    "two-heads": _two_heads,
    "truncated-line": _truncated,
}


def list() -> builtins.list[str]:
    """The names of all specimens.

    Examples
    --------
    >>> ice.zoo.list()[:3]
    ['residual-tanh', 'residual-sin', 'gd-squared']
    """
    return [*_ZOO]


def load(name: str) -> Specimen:
    """Compile a specimen.

    Raises
    ------
    ProgramError
        If there is none of that name.

    Examples
    --------
    >>> ice.zoo.load("linear")
    Specimen('linear': a linear map whose weights are in the prompt, ... 3 heads are explained)
    """
    if name not in _ZOO:
        raise ProgramError(f"no specimen {name!r}; there are {', '.join(_ZOO)}")
    return replace(_ZOO[name](), name=name)
