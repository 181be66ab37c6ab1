"""The programs of the benchmark: what each computes, its heads, its words and what may change.

Every word of a vocabulary stands for a token's features, so that prompts of real numbers are token
ids: one word is one sample. Numbers are multiples of 1/64, exact in every dtype. Of the text GPT-2
a word is a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.bench.sketch import HARD, SOFT, Sharpness, Sketch, places
from iceform.computer import Algorithm, library
from iceform.computer.compile import compile as compile_program
from iceform.errors import ProgramError
from iceform.heads import Design, Head, Row
from iceform.heads.head import Place
from iceform.targets.bounded_descent import BoundedDescent
from iceform.targets.causal_descent import CausalDescent, StochasticDescent
from iceform.targets.general_descent import GeneralDescent
from iceform.targets.layered_program import LayeredProgram
from iceform.targets.linear_descent import LinearDescent
from iceform.targets.linear_head_pairs import LinearHeadPairs
from iceform.targets.text import TextComputer

_POOL = 18  # samples in a vocabulary
_DATA = 5  # samples in a prompt
_KEYS = torch.tensor([[a, b, c] for a in (-1.0, 1.0) for b in (-1.0, 1.0) for c in (-1.0, 1.0)])

Tokens = Mapping[str, Tensor]  # by block, (tokens, size), and "ids"


def _as_drawn(ids: Tensor) -> Tensor:
    """Words as they were drawn, in a tensor of their own."""
    return ids.clone()


@dataclass(frozen=True, eq=False)
class BenchProgram:
    """An algorithm as a design, with the words that its prompts are made of.

    Attributes
    ----------
    name, title, traits
        What it is, and what of it is hard for methods.
    design
        Its heads.
    words, positions
        Features of words and of positions.
    slots
        For every token the words that may stand there.
    answer
        The combination of the last token's features that is the answer.
    span
        Where answers lie.
    reference
        The answer of a prompt, from its tokens' features, by plain arithmetic.
    counterfactuals
        For every kind the tokens that are drawn again; of "order" those that are shuffled.
    steps
        How often its main step is taken.
    target
        The stock model that it is a case of.
    scores
        What the logits of words are, (words, features), of a text: its answer is the next word.
        Where they are None the answer is a number, and the case makes bins for it.
    follows
        What becomes of words that were drawn: words that follow from others are put in.
    softens
        Whether there is a form of it with weights as trained networks have.
    pairs
        Of a split that is scored; of "train" four times as many.

    Examples
    --------
    >>> held = ice.bench.program("maximum")
    >>> ids = held.draw(torch.Generator().manual_seed(0))
    >>> bool(held.span[0] <= held.exact(ids) <= held.span[1])
    True
    """

    name: str
    title: str
    traits: tuple[str, ...]
    design: Design
    words: Float[Tensor, "v f"]
    positions: Float[Tensor, "p f"]
    slots: tuple[Sequence[int], ...]
    answer: Mapping[Place, float]
    span: tuple[float, float]
    reference: Callable[[Tokens], Tensor] = field(repr=False)
    counterfactuals: Mapping[str, tuple[int, ...]]
    steps: int = 1
    target: str = "gpt2"
    scores: Float[Tensor, "v f"] | None = None
    follows: Callable[[Tensor], Tensor] = field(default=_as_drawn, repr=False)
    softens: bool = True
    pairs: int = 8

    def draw(self, generator: torch.Generator) -> Tensor:
        """Token ids; no sample stands twice in a prompt."""
        ids = torch.zeros(len(self.slots), dtype=torch.long)
        return self._drawn(ids, range(len(self.slots)), generator)

    def vary(self, ids: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        """The same prompt but for what the counterfactual changes."""
        if kind not in self.counterfactuals:
            there = ", ".join(self.counterfactuals)
            raise ProgramError(f"{self.name} has no counterfactual {kind!r}; there are {there}")
        where = self.counterfactuals[kind]
        out = ids.clone()
        if kind == "order":
            out[list(where)] = ids[list(where)][torch.randperm(len(where), generator=generator)]
            return self.follows(out)
        return self._drawn(out, where, generator)

    def _drawn(self, ids: Tensor, where: Sequence[int], generator: torch.Generator) -> Tensor:
        taken = {int(i) for t, i in enumerate(ids) if t not in where}
        for t in where:
            free = [i for i in self.slots[t] if i not in taken] or [self.slots[t][0]]
            ids[t] = free[int(torch.randint(len(free), (), generator=generator))]
            taken.add(int(ids[t]))
        return self.follows(ids)

    def tokens(self, ids: Tensor) -> Float[Tensor, "t f"]:
        """The features of a prompt."""
        return self.words[ids] + self.positions[: ids.shape[-1]]

    def exact(self, ids: Tensor) -> Float[Tensor, ""]:
        """The reference's answer to a prompt: a number, or of a text the next word."""
        return self.reference(self.blocks(ids)).double()

    def blocks(self, ids: Tensor) -> Tokens:
        """What a reference is given."""
        held, at = self.tokens(ids), self.design.features
        return {"ids": ids, **{name: held[:, at[name]] for name in at}}


def _drawn_pool(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-60, 61, shape, generator=generator) / 64).double()


def _distinct(seed: int, count: int) -> Tensor:
    """Different multiples of 1/64, so that the largest is one."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randperm(121, generator=generator)[:count] - 60).double() / 64


def _program(
    name: str, title: str, traits: str, s: Sketch, groups: Sequence[Tensor],
    answer: Mapping[str, Sequence[float]], reference: Callable[[Tokens], Tensor],
    span: tuple[float, float] = (-1.0, 1.0), order: Sequence[int] = (), **changed: Sequence[int],
) -> BenchProgram:  # fmt: skip
    """A program whose token t, after the null one, is one of the words of ``groups[t]``."""
    words, slots, ranges = [s.word("null")[None]], [range(1)], {}
    for group in groups:
        if id(group) not in ranges:
            first = sum(map(len, words))
            ranges[id(group)] = range(first, first + len(group))
            words.append(group)
        slots.append(ranges[id(group)])
    data = [t for t, slot in enumerate(slots) if len(slot) > 1 and t < len(groups)]
    kinds = {"data": tuple(data), **{k: tuple(v) for k, v in changed.items()}}
    if order:
        kinds["order"] = tuple(order)
    return BenchProgram(
        name, title, tuple(traits.split()), s.design(), torch.cat(words), s.positions(),
        tuple(slots), places(answer), span, reference, kinds,
    )  # fmt: skip


def _samples(s: Sketch, seed: int, **more: Tensor) -> Tensor:
    y = _distinct(seed, _POOL)
    each: list[dict[str, Any]] = [
        {"y": float(y[i]), **{k: v[i] for k, v in more.items()}} for i in range(_POOL)
    ]
    return torch.stack([s.word("data", **one) for one in each])


def _data(t: Tokens, name: str) -> Tensor:
    return t[name][t["data"][:, 0] > 0]


# ---------------------------------------------------------------------------------------------
# selection and minima
# ---------------------------------------------------------------------------------------------


def _maximum(k: Sharpness) -> BenchProgram:
    s = Sketch({"y": 1, "best": 1}, k)
    s.layer(s.choose("state", "data", {"y": 1.0}, {"y": 1.0}, "best"))
    pool = _samples(s, 1)
    groups = [*[pool] * _DATA, s.word("state")[None]]
    return _program(
        "maximum", "the largest y", "selection", s, groups, {"best": [1]},
        lambda t: _data(t, "y").max(),
    )  # fmt: skip


def _spread(k: Sharpness) -> BenchProgram:
    s = Sketch({"y": 1, "top": 1, "bottom": 1, "spread": 1}, k)
    s.layer(
        s.choose("state", "data", {"y": 1.0}, {"y": 1.0}, "top"),
        s.choose("state", "data", {"y": -1.0}, {"y": 1.0}, "bottom"),
    )
    s.layer(s.own("state", {"top": 1.0, "bottom": -1.0}, "spread"))
    pool = _samples(s, 2)
    groups = [*[pool] * _DATA, s.word("state")[None]]
    return _program(
        "spread", "the largest y less the smallest", "selection minimum", s, groups,
        {"spread": [1]}, lambda t: _data(t, "y").max() - _data(t, "y").min(), (0.0, 2.0),
    )  # fmt: skip


def _where_largest(k: Sharpness) -> BenchProgram:
    s = Sketch({"x": 2, "y": 1, "at": 2}, k)
    s.layer(s.choose("state", "data", {"y": 1.0}, {"x": 1.0}, "at"))
    pool = _samples(s, 3, x=_drawn_pool(3, _POOL, 2))
    groups = [*[pool] * _DATA, s.word("state")[None]]
    return _program(
        "where-largest", "x of the sample with the largest y", "selection", s, groups,
        {"at": [1, -0.5]}, lambda t: _data(t, "x")[_data(t, "y").argmax()] @ _pair(1, -0.5),
        (-1.5, 1.5),
    )  # fmt: skip


def _pair(a: float, b: float) -> Tensor:
    return torch.tensor([a, b], dtype=torch.float64)


def _neighbour(k: Sharpness, name: str, trait: str, width: float | None = None) -> BenchProgram:
    """y of the nearest sample, or the mean of all by a kernel of the distance."""
    s = Sketch({"x": 2, "y": 1, "half": 1, "found": 1}, k)
    s.layer(s.match("state", "data", ("x", "x"), {"y": 1.0}, "found", width, "half"))
    x = _drawn_pool(4, _POOL, 2)
    pool = _samples(s, 4, x=x, half=(x**2).sum(1, keepdim=True) / 2)
    asked = torch.stack([s.word("state", x=q) for q in _drawn_pool(5, 8, 2)])

    def exact(t: Tokens) -> Tensor:
        apart = ((_data(t, "x") - t["x"][-1]) ** 2).sum(1) / 2
        if width is None:
            return _data(t, "y")[apart.argmin(), 0]
        return (-width * apart).softmax(0) @ _data(t, "y")[:, 0]

    title = "y of the sample nearest to x" if width is None else "the mean of y by a kernel at x"
    groups = [*[pool] * _DATA, asked]
    return _program(
        name, title, trait, s, groups, {"found": [1]}, exact, query=[len(groups)],
    )  # fmt: skip


def _shortest_way(k: Sharpness) -> BenchProgram:
    """Nodes with a distance, then ways (a node, a length): the least sum."""
    s = Sketch({"y": 1, "key": 3, "to": 3, "node": 1, "way": 1, "reach": 1, "least": 1}, k)
    s.layer(s.match("data", "given", ("to", "key"), {"y": 1.0}, "reach", k.code))
    s.layer(
        s.choose(
            "state", "data", {"y": -1.0, "reach": -1.0}, {"y": 1.0, "reach": 1.0}, "least",
        )
    )  # fmt: skip
    far = (_distinct(6, 12) + 1) / 2
    nodes = [
        torch.stack([s.word("given", key=_KEYS[k], y=float(far[4 * k + i])) for i in range(4)])
        for k in range(3)
    ]
    long = (_distinct(7, 12) + 1) / 2
    ways = torch.stack(
        [s.word("data", to=_KEYS[i % 3], y=float(long[i])) for i in range(len(long))]
    )
    groups = [*nodes, ways, ways, ways, s.word("state")[None]]

    def exact(t: Tokens) -> Tensor:
        near = (_data(t, "to") @ t["key"][1:4].T).argmax(1)
        return (t["y"][1:4, 0][near] + _data(t, "y")[:, 0]).min()

    return _program(
        "shortest-way", "the least of three sums of a length and a looked-up distance",
        "minimum selection", s, groups, {"least": [1]}, exact, (0.0, 2.0),
        nodes=[1, 2, 3], ways=[4, 5, 6],
    )  # fmt: skip


def _running_maximum(k: Sharpness) -> BenchProgram:
    s = Sketch({"y": 1, "best": 1, "mean": 1}, k)
    s.layer(s.choose("data", "data", {"y": 1.0}, {"y": 1.0}, "best"))
    s.layer(s.average("state", "data", {"best": 1.0}, "mean"))
    pool = _samples(s, 8)
    groups = [*[pool] * _DATA, s.word("state")[None]]
    return _program(
        "running-maximum", "the mean of the running maximum", "selection order", s, groups,
        {"mean": [1]}, lambda t: _data(t, "y").cummax(0).values.mean(),
        order=range(1, _DATA + 1),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# look-ups by key
# ---------------------------------------------------------------------------------------------


def _keyed(s: Sketch, seed: int, count: int, each: int, **more: Tensor) -> list[Tensor]:
    """For every key a group of words with that key and different values."""
    y = _distinct(seed, count * each)
    found = []
    for k in range(count):
        rows = range(each * k, each * (k + 1))
        extra = [{name: v[i] for name, v in more.items()} for i in rows]
        found.append(torch.stack([
            s.word("data", key=_KEYS[k], y=float(y[i]), **e)
            for i, e in zip(rows, extra, strict=True)
        ]))  # fmt: skip
    return found


def _induction(k: Sharpness) -> BenchProgram:
    """The sample after the one that has the asked key."""
    s = Sketch({"y": 1, "key": 3, "last": 3, "found": 1}, k)
    s.layer(s.match("data", "data", ("before", "code"), {"key": 1.0}, "last", k.code))
    s.layer(s.match("state", "data", ("key", "last"), {"y": 1.0}, "found"))
    data = _keyed(s, 9, _DATA, 4)
    asked = torch.stack([s.word("state", key=_KEYS[k]) for k in range(1, _DATA - 1)])

    def exact(t: Tokens) -> Tensor:
        at = (_data(t, "key") @ t["key"][-1]).argmax()
        return _data(t, "y")[at + 1, 0]

    return _program(
        "induction", "y of the sample after the one with the asked key", "selection order", s,
        [*data, asked], {"found": [1]}, exact, order=range(2, _DATA), query=[_DATA + 1],
    )  # fmt: skip


def _two_hops(k: Sharpness) -> BenchProgram:
    """A key leads to a sample, whose pointer leads to another."""
    s = Sketch({"y": 1, "key": 3, "to": 3, "hop": 3, "found": 1}, k)
    s.layer(s.match("state", "data", ("key", "key"), {"to": 1.0}, "hop"))
    s.layer(s.match("state", "data", ("hop", "key"), {"y": 1.0}, "found"))
    generator = torch.Generator().manual_seed(10)
    to = _KEYS[torch.randint(_DATA, (4 * _DATA,), generator=generator)]
    data = _keyed(s, 10, _DATA, 4, to=to)
    asked = torch.stack([s.word("state", key=_KEYS[k]) for k in range(_DATA)])

    def exact(t: Tokens) -> Tensor:
        first = (_data(t, "key") @ t["key"][-1]).argmax()
        return _data(t, "y")[(_data(t, "key") @ _data(t, "to")[first]).argmax(), 0]

    return _program(
        "two-hops", "y of the sample that the asked one points to", "selection", s,
        [*data, asked], {"found": [1]}, exact, query=[_DATA + 1],
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# thresholds
# ---------------------------------------------------------------------------------------------


def _counted(k: Sharpness) -> BenchProgram:
    s = Sketch({"x": 1, "y": 1, "kept": 1, "mean": 1}, k)
    s.layer(s.gate("data", Row({("x", 0): 1.0}), {"y": 1.0}, "kept"))
    s.layer(s.average("state", "data", {"kept": 1.0}, "mean"))
    pool = _samples(s, 11, x=_distinct(12, _POOL)[:, None] + 1 / 128)
    groups = [*[pool] * _DATA, s.word("state")[None]]
    return _program(
        "thresholded-mean", "the mean of y where x is positive, 0 elsewhere", "threshold", s,
        groups, {"mean": [1]}, lambda t: (_data(t, "y") * (_data(t, "x") > 0)).mean(),
    )  # fmt: skip


def _clipped(k: Sharpness) -> BenchProgram:
    s = Sketch({"y": 1, "over": 1, "mean": 1}, k)
    above = Row({("y", 0): 1.0, ("data", 0): -0.25})
    s.layer(s.gate("data", above, above, "over"))
    s.layer(s.average("state", "data", {"y": 1.0, "over": -1.0}, "mean"))
    pool = _samples(s, 13)
    groups = [*[pool] * _DATA, s.word("state")[None]]
    return _program(
        "clipped-mean", "the mean of min(y, 1/4)", "threshold minimum", s, groups, {"mean": [1]},
        lambda t: _data(t, "y").clamp_max(0.25).mean(),
    )  # fmt: skip


def _variation(k: Sharpness) -> BenchProgram:
    s = Sketch({"y": 1, "last": 1, "jump": 1, "total": 1}, k)
    s.layer(s.match("data", "data", ("before", "code"), {"y": 1.0}, "last", k.code))
    up = Row({("y", 0): 1.0, ("last", 0): -1.0})
    s.layer(s.gate("data", up, up, "jump"), s.gate("data", up.times(-1.0), up.times(-1.0), "jump"))
    s.layer(s.average("state", "data", {"jump": 1.0}, "total"))
    pool = _samples(s, 14)
    groups = [*[pool] * _DATA, s.word("state")[None]]
    return _program(
        "variation", "the mean of |y - the y before it|", "threshold order", s, groups,
        {"total": [1]},
        lambda t: _data(t, "y").diff(dim=0).abs().sum() / _DATA, (0.0, 2.0),
        order=range(1, _DATA + 1),
    )  # fmt: skip


def _vote(k: Sharpness) -> BenchProgram:
    s = Sketch({"y": 1, "mean": 1, "won": 1}, k)
    s.layer(s.average("state", "data", {"y": 1.0}, "mean"))
    s.layer(s.gate("state", Row.of("mean"), Row.flags(state=1.0), "won"))
    signs = torch.stack([s.word("data", y=float(2 * (i % 2) - 1)) for i in range(_POOL)])
    groups = [*[signs] * _DATA, s.word("state")[None]]
    return _program(
        "vote", "1 if most y are 1, else 0", "threshold", s, groups, {"won": [1]},
        lambda t: (_data(t, "y").sum() > 0).double(), (0.0, 1.0),
    )  # fmt: skip


def _perceptron(k: Sharpness) -> BenchProgram:
    """w + mean of the samples on the wrong side: w is given, copied, met with z = y x."""
    s = Sketch({"z": 2, "w": 2, "copy": 2, "wrong": 2, "step": 2}, k)
    s.layer(s.average("data", "given", {"w": 1.0}, "copy"))
    margin = [(Row.of("z", j, -1.0), Row.of("copy", j)) for j in range(2)]
    s.layer(s.gate("data", margin, {"z": 1.0}, "wrong"))
    s.layer(
        s.average("state", "data", {"wrong": 1.0}, "step"),
        s.average("state", "given", {"w": 1.0}, "step"),
    )
    z = _drawn_pool(15, _POOL, 2)
    pool = torch.stack([s.word("data", z=row) for row in z])
    start = torch.stack([s.word("given", w=row) for row in _drawn_pool(16, 8, 2)])
    groups = [start, *[pool] * _DATA, s.word("state")[None]]

    def exact(t: Tokens) -> Tensor:
        w = t["w"][1]
        wrong = (_data(t, "z") @ w < 0).double()[:, None]
        return (w + (wrong * _data(t, "z")).mean(0)) @ _pair(1, 0.5)

    return _program(
        "perceptron", "one step of the perceptron", "threshold", s, groups,
        {"step": [1, 0.5]}, exact, (-2.0, 2.0), parameter=[1],
    )  # fmt: skip


def _two_means(k: Sharpness) -> BenchProgram:
    """One step of k-means: the mean of the samples nearer to the first of two given centres."""
    s = Sketch(
        {"x": 2, "apart": 2, "level": 1, "across": 2, "height": 1, "side": 1, "centre": 2}, k
    )
    s.layer(
        s.average("data", "given", {"apart": 1.0}, "across"),
        s.average("data", "given", {"level": 1.0}, "height"),
    )
    others = dict.fromkeys(("given", "data", "state"), 1.0)
    nearer = [(Row.of("x", j), Row.of("across", j)) for j in range(2)]
    nearer.append((Row.of("height", 0, -1.0), Row.flags(**others)))
    s.layer(s.gate("data", nearer, Row.flags(data=1.0), "side"))
    s.layer(s.choose("state", "data", {"side": 1.0}, {"x": 1.0}, "centre"))
    pool = torch.stack([s.word("data", x=row) for row in _drawn_pool(17, _POOL, 2)])
    a, b = _drawn_pool(18, 8, 2), _drawn_pool(19, 8, 2)
    level = (a**2 - b**2).sum(1) / 2
    pairs = [s.word("given", apart=a[i] - b[i], level=float(level[i])) for i in range(8)]
    groups = [torch.stack(pairs), *[pool] * _DATA, s.word("state")[None]]

    def exact(t: Tokens) -> Tensor:
        near = _data(t, "x") @ t["apart"][1] > t["level"][1]
        kept = _data(t, "x")[near] if near.any() else _data(t, "x")
        return kept.mean(0) @ _pair(1, 0.5)

    return _program(
        "two-means", "the mean of the samples nearer to the first centre",
        "threshold selection", s, groups, {"centre": [1, 0.5]}, exact, (-1.5, 1.5), parameter=[1],
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# flags, aliases, cancellation
# ---------------------------------------------------------------------------------------------


def _either(k: Sharpness) -> BenchProgram:
    s = Sketch({"y": 1, "flag": 1, "mean": 1, "best": 1, "out": 1}, k)
    s.layer(
        s.average("state", "data", {"y": 1.0}, "mean"),
        s.choose("state", "data", {"y": 1.0}, {"y": 1.0}, "best"),
    )
    s.layer(
        s.gate("state", Row.of("flag"), {"best": 1.0}, "out"),
        s.gate("state", Row.of("flag", 0, -1.0), {"mean": 1.0}, "out"),
    )
    pool = _samples(s, 20)
    flags = torch.stack([s.word("state", flag=f) for f in (-0.5, 0.5)])
    groups = [*[pool] * _DATA, flags]
    return _program(
        "either", "the maximum if the flag is up, else the mean", "flag selection", s, groups,
        {"out": [1]},
        lambda t: _data(t, "y").max() if t["flag"][-1, 0] > 0 else _data(t, "y").mean(),
        flag=[_DATA + 1],
    )  # fmt: skip


def _registers(k: Sharpness) -> BenchProgram:
    """A register that is copied twice and used again: two aliases, and one name for two values."""
    s = Sketch({"y": 1, "r": 1, "kept": 1, "also": 1, "out": 1}, k)
    s.layer(s.average("state", "data", {"y": 1.0}, "r"))
    s.layer(s.own("state", {"r": 1.0}, "kept"), s.own("state", {"r": 1.0}, "also"),
            s.own("state", {"r": -1.0}, "r"))  # fmt: skip
    s.layer(s.choose("state", "data", {"y": 1.0}, {"y": 1.0}, "r"))
    s.layer(s.own("state", {"r": 1.0, "kept": -0.5, "also": -0.5}, "out"))
    pool = _samples(s, 21)
    groups = [*[pool] * _DATA, s.word("state")[None]]
    return _program(
        "registers", "the maximum less the mean, by a register that is used twice",
        "aliasing selection", s, groups, {"out": [1]},
        lambda t: _data(t, "y").max() - _data(t, "y").mean(), (0.0, 2.0),
    )  # fmt: skip


def _cancelled(k: Sharpness) -> BenchProgram:
    """A small difference of two large means, of almost the same numbers."""
    s = Sketch({"y": 1, "x": 1, "left": 1, "right": 1, "out": 1}, k)
    s.layer(
        s.average("state", "data", {"y": 64.0, "x": 1.0}, "left"),
        s.average("state", "data", {"y": 64.0, "x": -1.0}, "right"),
    )
    s.layer(s.own("state", {"left": 0.5, "right": -0.5}, "out"))
    pool = _samples(s, 22, x=_drawn_pool(23, _POOL, 1))
    groups = [*[pool] * _DATA, s.word("state")[None]]
    return _program(
        "cancelled", "the mean of x, as a difference of two large sums", "cancellation", s,
        groups, {"out": [1]}, lambda t: _data(t, "x").mean(),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# descents that the compiler writes
# ---------------------------------------------------------------------------------------------


class SoftPairs(LinearHeadPairs):
    """Heads beside a null token that outweighs samples 32 to 1."""

    @property
    def leak_bits(self) -> int:
        return 5


class SoftDescent(LinearDescent):
    """The same descent with one such pair of heads.

    No certificate holds for it: how close it comes is measured.
    """

    @cached_property
    def combination(self) -> LinearHeadPairs:
        return SoftPairs(1, 0.25, self.torch_dtype)


def _descent(
    k: Sharpness, name: str, title: str, traits: str, steps: int = 2,
    factors: tuple[float, ...] = (), *held: Mapping[str, Any],
) -> BenchProgram:  # fmt: skip
    """A descent on least squares; of two sets of parameters, one takes the other's place."""
    kind = SoftDescent if k is SOFT else LinearDescent
    spec = kind(2, steps, factors, pairs=2, positions=_POOL + 2, dtype="float32")
    x = _drawn_pool(30, _POOL, 2)
    y = ((x @ _pair(0.6, -0.4)) * 64).round() / 64 + _drawn_pool(31, _POOL) / 8
    given = held or ({},)
    rows = [spec.tokens(x[:_DATA], y[:_DATA], **one) for one in given]
    samples, states = spec.tokens(x, y)[1:-1], torch.stack([row[-1] for row in rows])
    if k is SOFT:  # a gate that is off has log odds far below those of a trained network
        states = states.clamp(-k.score, k.score)
    words = torch.cat([rows[0][:1], samples, states])
    at = spec.design.features

    def exact(t: Tokens) -> Tensor:
        which = [
            bool(
                (t["penalty"][-1] == one[at["penalty"]]).all()
                and (t["momentum"][-1] == one[at["momentum"]]).all()
            )
            for one in states
        ]
        found: Tensor = spec.reference(
            _data(t, "x"), _data(t, "y")[:, 0], **given[which.index(True)]
        )
        return found @ _pair(1, 0.5)  # fmt: skip

    changed = {"data": tuple(range(1, _DATA + 1))}
    if len(given) > 1:
        changed["parameter"] = (_DATA + 1,)
    slots = (range(1), *[range(1, 1 + _POOL)] * _DATA, range(1 + _POOL, len(words)))
    design = _softer(spec.design, k) if k is SOFT else spec.design
    return BenchProgram(
        name, title, tuple(traits.split()), design, words,
        torch.zeros(_DATA + 2, at.total, dtype=torch.float64), slots,
        {("w", 0): 1.0, ("w", 1): 0.5}, (0.0, 0.5), exact, changed, steps,
    )  # fmt: skip


def _softer(design: Design, k: Sharpness) -> Design:
    """Rows of logits that hide or route, no larger than the mask and the route."""

    def capped(row: Row) -> Row:
        most = max((abs(c) for c in (*row.reads.values(), row.constant)), default=0.0)
        return row.times(k.route / most) if most > k.route else row

    def softened(head: Head) -> Head:
        return replace(head, logit=tuple((capped(q), capped(key)) for q, key in head.logit))

    return replace(design, layers=tuple(tuple(map(softened, one)) for one in design.layers))


def _bounded(
    spec: BoundedDescent, name: str, title: str, traits: str, span: float, apart: str = "",
) -> BenchProgram:  # fmt: skip
    """A descent for any bounded f: its tables are tokens. ``apart`` tells a sample's turn."""
    x, n = _drawn_pool(40, _POOL, 2), getattr(spec, "samples", _DATA - 1)
    y = ((x @ _pair(0.6, -0.4)) * 64).round() / 64 + _drawn_pool(41, _POOL) / 8
    rows, at = spec.tokens(x[:n], y[:n]), spec.design.features
    each = [spec.tokens(x[i : i + 1].expand(n, 2), y[i : i + 1].expand(n)) for i in range(_POOL)]
    kinds = ["plus", "minus"] if "plus" in at else ["data"]
    where = {kind: (rows[:, at[kind]][:, 0] > 0).nonzero()[:, 0].tolist() for kind in kinds}
    samples = {k: torch.stack([tokens[ts[0]] for tokens in each]) for k, ts in where.items()}
    places = torch.zeros_like(rows)
    if apart:  # whose turn it is goes with the position
        places[:, at[apart]] = rows[:, at[apart]]
        rows[:, at[apart]] = 0.0
        samples = {kind: _without(pool, at[apart]) for kind, pool in samples.items()}
    fixed = [t for t in range(len(rows)) if not any(t in ts for ts in where.values())]
    words = torch.cat([rows[fixed], *samples.values()])
    slots: list[Sequence[int]] = [range(0)] * len(rows)
    for number, t in enumerate(fixed):
        slots[t] = range(number, number + 1)
    for number, kind in enumerate(kinds):
        first = len(fixed) + number * _POOL
        for t in where[kind]:
            slots[t] = range(first, first + _POOL)

    def follows(ids: Tensor) -> Tensor:
        if len(kinds) == 2:  # a sample has two tokens
            ids = ids.clone()
            ids[where["minus"]] = ids[where["plus"]] + _POOL
        return ids

    def exact(t: Tokens) -> Tensor:
        chosen = t[kinds[0]][:, 0] > 0
        return spec.reference(t["x"][chosen], t["y"][chosen, 0]) @ _pair(1, 0.5)

    unit = 1.0 if "w" in at else float(rows[-1, at["slope"]])
    held = "w" if "w" in at else "l"
    return BenchProgram(
        name, title, tuple(traits.split()), spec.design, words, places, tuple(slots),
        {(held, 0): 1 / unit, (held, 1): 0.5 / unit}, (-span, span), exact,
        {kind: tuple(where[kinds[0]]) for kind in ("data", "order") if kind in f"data {traits}"},
        spec.steps, spec.architectures()[0], follows=follows, softens=False,
    )  # fmt: skip


def _without(rows: Tensor, places: slice) -> Tensor:
    out = rows.clone()
    out[:, places] = 0.0
    return out


def _of_library(
    algorithm: Algorithm, title: str, traits: str, span: tuple[float, float],
    answer: Sequence[float], **settings: Any,
) -> BenchProgram:  # fmt: skip
    """A program of the library as a BERT: its instructions are layers, its tables are tokens."""
    n = _DATA - 1
    held = compile_program(algorithm, dim=1, samples=n, eps=0.1)
    spec = LayeredProgram.of(held, settings, "float32")
    # Its norms are the identity in float32's eyes, and radii are of float64.
    design = replace(spec.design, norm=spec.norm * 2.0**30)
    at, (output,) = spec.design.features, held.assembly.outputs
    x, y = _drawn_pool(50, _POOL, 1), _distinct(51, _POOL)
    each = [spec.tokens(held, x[i : i + 1].expand(n, 1), y[i : i + 1].expand(n), settings)
            for i in range(_POOL)]  # fmt: skip
    rows = each[0].double()
    places = torch.zeros_like(rows)
    places[1 : 2 + n, at["lane"]] = rows[1 : 2 + n, at["lane"]]
    samples = torch.stack([tokens[2].double() for tokens in each])
    last = [0, *range(2, len(rows)), 1]  # the lane that answers comes last
    fixed = [0, *range(2 + n, len(rows)), 1]
    words = _without(torch.cat([rows[fixed], samples]), at["lane"])
    slots: list[Sequence[int]] = [range(i, i + 1) for i in range(len(fixed))]
    slots[1:1] = [range(len(fixed), len(words))] * n

    def exact(t: Tokens) -> Tensor:
        chosen = t["ids"][1 : 1 + n] - len(fixed)
        found = held.reference(x[chosen], y[chosen], **settings)
        return torch.as_tensor(found).double().reshape(-1) @ torch.tensor(answer).double()

    return BenchProgram(
        f"bert-{held.name.replace('_', '-')}", title, tuple(traits.split()), design, words,
        places[last], tuple(slots), {(f"[{output.variable}]", j): c for j, c in enumerate(answer)},
        span, exact, {"data": tuple(range(1, 1 + n))}, target="bert", softens=False, pairs=4,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# texts: one network runs them all
# ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _computer() -> TextComputer:
    return TextComputer(
        labels=3, scalars=3, arrays=0, indices=0, cells=1, bits=3, fraction=2, top=2, positions=64
    )


def _text(
    name: str, title: str, traits: str, text: str, run: int, **changed: Mapping[int, Sequence[str]],
) -> BenchProgram:  # fmt: skip
    """A text and as many words of its run; what may stand at which of its words.

    Numbers of the data are drawn, and with them the words of the run.
    """
    computer = _computer()
    words = [word.text for word in computer.sizes.words]
    numbers = [i for i, word in enumerate(computer.sizes.words) if word.kind == "number"]
    base = computer.tokenizer(text).input_ids
    data = tuple(t for t, i in enumerate(base) if i in numbers)
    slots: list[Sequence[int]] = [[i] for i in base]
    for t in data:
        slots[t] = numbers
    for where in changed.values():
        for t, others in where.items():
            slots[t] = [words.index(other) for other in others]

    def answers(ids: Tensor) -> list[int]:
        said = [words[i] for i in ids[1 : len(base) - 1].tolist()]
        for t in data:  # the word before a number begins a line, and so do labels
            said[t - 2] = "\n" + said[t - 2]
        text = " ".join("\n" + w if computer.sizes.words[i].kind == "label" else w
                        for i, w in zip(ids[1:].tolist(), said, strict=False))  # fmt: skip
        return [words.index(word) for word in computer.check(text).words]

    def follows(ids: Tensor) -> Tensor:
        out = ids.clone()
        if run:
            out[len(base) :] = torch.tensor(answers(ids)[:run])
        return out

    return BenchProgram(
        name, title, tuple(traits.split()), computer.design, computer.features.word_features(),
        computer.features.positions(), (*slots, *[[0]] * run), _read_by(computer), (0.0, 0.0),
        lambda t: torch.tensor(answers(t["ids"])[run]),
        {"data": data, **{kind: tuple(where) for kind, where in changed.items()}},
        scores=computer.layers.scores, follows=follows, softens=False, pairs=4,
    )  # fmt: skip


def _read_by(computer: TextComputer) -> dict[Place, float]:
    """The features that logits read."""
    used = (computer.layers.scores != 0).any(0)
    names = [(name, j) for name, size in computer.features.all.sizes for j in range(size)]
    return {place: 1.0 for place, one in zip(names, used.tolist(), strict=True) if one}


_MADE: dict[str, Callable[[Sharpness], BenchProgram]] = {
    "maximum": _maximum,
    "spread": _spread,
    "where-largest": _where_largest,
    "nearest": lambda k: _neighbour(k, "nearest", "selection"),
    "kernel": lambda k: _neighbour(k, "kernel", "smooth", 4.0),
    "shortest-way": _shortest_way,
    "running-maximum": _running_maximum,
    "induction": _induction,
    "two-hops": _two_hops,
    "thresholded-mean": _counted,
    "clipped-mean": _clipped,
    "variation": _variation,
    "vote": _vote,
    "perceptron": _perceptron,
    "two-means": _two_means,
    "either": _either,
    "registers": _registers,
    "cancelled": _cancelled,
    "least-squares": lambda k: _descent(
        k, "least-squares", "two steps of descent on least squares", "cancellation smooth"
    ),
    "ridge": lambda k: _descent(
        k, "ridge", "two steps of descent with a penalty", "cancellation smooth", 2, (),
        {"penalty": 0.5}, {"penalty": 1.5},
    ),
    "heavy-ball": lambda k: _descent(
        k, "heavy-ball", "two steps of descent with momentum", "cancellation smooth", 2, (),
        {"momentum": 0.5}, {"momentum": 0.125},
    ),
    "two-rates": lambda k: _descent(
        k, "two-rates", "two steps of descent of different sizes", "cancellation smooth", 2,
        (1.0, 0.5),
    ),
    "stochastic": lambda k: _bounded(
        StochasticDescent(2, 2, pairs=2, positions=64, dtype="float32", f="tanh(z)", reach=2.0),
        "stochastic", "two steps on one sample each, of a loss with the slope tanh",
        "cancellation order smooth", 0.5, "absent",
    ),
    "logistic": lambda k: _bounded(
        CausalDescent(2, 1, pairs=2, positions=64, dtype="float32", samples=2,
                      f="sigmoid(z)-0.5", reach=2.0),
        "logistic", "one step on all samples of the logistic loss, one after the other",
        "cancellation smooth", 0.25, "absent",
    ),
    "bert-descent": lambda k: _bounded(
        GeneralDescent(2, 2, positions=64, dtype="float32", f="tanh(z)", reach=2.0),
        "bert-descent", "two steps of descent on a loss with the slope tanh, in an encoder",
        "cancellation smooth", 0.5,
    ),
    "bert-ridge": lambda k: _of_library(
        library.ridge, "one step of the library's ridge regression", "smooth", (-0.5, 0.5), [1.0],
        steps=1,
    ),
    "bert-nesterov": lambda k: _of_library(
        library.nesterov, "one step of the library's accelerated descent", "smooth", (-0.5, 0.5),
        [1.0], steps=1,
    ),
    "bert-histogram": lambda k: _of_library(
        library.histogram, "how many numbers fall into bins, weighed", "threshold", (0.0, 10.0),
        [0.0, 0.5, 1.0, 2.5],
    ),
    "text-sum": lambda k: _text(
        "text-sum", "a line of a text: the sum of two names", "text selection",
        "1: c = a + b goto end\na = 1\nb = 0.5", 1,
        operator={4: "+-*"}, operand={3: "ab", 5: "ab"},
    ),
    "text-branch": lambda k: _text(
        "text-branch", "the line that a text goes to, by a number's sign", "text threshold flag",
        "1: c = a + b if > 0 goto 3\n2: c = a - b goto end\n3: c = b - a goto end\n"
        "a = 1\nb = 0.5", 2, flag={6: ["if > 0 goto 3", "if < 0 goto 3"]},
        label={6: ["if > 0 goto 3", "if > 0 goto end"]},
    ),
    "text-two-lines": lambda k: _text(
        "text-two-lines", "the second line of a text, on what the first has written",
        "text selection", "1: c = a + b\n2: c = c * b goto end\na = 1\nb = 0.5", 4,
        operator={4: "+-"}, line={10: "+-*"},
    ),
}  # fmt: skip


@cache
def program(name: str, *, soft: bool = False) -> BenchProgram:
    """A program of the benchmark by its name; ``soft``: with weights as trained networks have.

    Examples
    --------
    >>> program("vote").name
    'vote'
    """
    if name not in _MADE:
        raise ProgramError(f"the benchmark has no program {name!r}; there are {', '.join(_MADE)}")
    return _MADE[name](SOFT if soft else HARD)


def programs() -> list[str]:
    """The names of all programs.

    Examples
    --------
    >>> "maximum" in programs()
    True
    """
    return [*_MADE]
