"""From a program to a case: a checkpoint with logits, pairs of prompts, and the exact effects.

Where the answer is a number, its words are bins: with centres c_k, a width delta and the answer a,
the logits are (2 c_k a - c_k^2)/delta^2, largest for the nearest bin. A text's answer is its next
word. The metric of a pair is the logit of the clean answer's word less that of the corrupt one's;
of a number it is linear in a.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from iceform.bench.knobs import (
    Neurons,
    annealed,
    copied,
    decoys,
    fed_forward,
    neuron_tensors,
    stock_norms,
    superposed,
    turned,
    unused_places,
    with_features,
)
from iceform.bench.network import HeadsNetwork, PatchedRuns
from iceform.bench.programs import BenchProgram, program
from iceform.bench.record import Blocks, recorded_edges
from iceform.errors import ProgramError
from iceform.heads import Design, Vocabulary
from iceform.targets.architectures import architecture
from iceform.targets.enclosed import Ball

BINS = 16
SPLITS = ("train", "validation", "test")
_TRIES = 400  # draws before a counterfactual is said to change nothing
_FLOOR = 1e-6  # a share of the answer's change that float32 still shows
NOISE = 1e-3  # of annealing, where heads do not cancel
_TRAINED_FLOOR = 10 * NOISE  # in a network whose every edge does a little
_CLOSENESS = 128  # prompts
_ANNEALING = 4 * _CLOSENESS  # prompts, as pairs of "train" are four times those that are scored


@dataclass(frozen=True)
class CaseSpec:
    """Everything that a case follows from.

    Attributes
    ----------
    program, counterfactual
        What is computed, and what differs between the prompts of a pair.
    soft, annealed
        Weights and norms as trained networks have them; those disturbed and trained.
    decoys, copies, basis
        Heads a layer that no answer depends on, parallel copies of every head, the seed of a basis.
    forward, superposed
        Gates as feed-forward maps instead of heads; features in fewer dimensions than they are.
    noise
        By which an annealed case's weights are disturbed.
    seed
        Of the pairs.

    Examples
    --------
    >>> CaseSpec("vote", copies=2).id
    'vote.data.hard-copies2'
    """

    program: str
    counterfactual: str = "data"
    soft: bool = False
    annealed: bool = False
    decoys: int = 3
    copies: int = 1
    basis: int | None = None
    forward: bool = False
    superposed: bool = False
    noise: float = NOISE
    seed: int = 0

    @property
    def variant(self) -> str:
        """In a word."""
        words = ["annealed" if self.annealed else "soft" if self.soft else "hard"]
        words += [f"copies{self.copies}"] if self.copies > 1 else []
        words += ["turned"] if self.basis is not None else []
        words += ["forward"] if self.forward else []
        words += ["superposed"] if self.superposed else []
        return "-".join(words)

    @property
    def spread(self) -> bool:
        """Whether every edge does a little, those too that the design does not have."""
        return self.annealed or self.superposed

    @property
    def id(self) -> str:
        """The name of the case."""
        return f"{self.program}.{self.counterfactual}.{self.variant}"


@dataclass(frozen=True, eq=False)
class Pairs:
    """Clean and corrupt prompts (n, tokens), and the words of their answers (n, 2).

    Examples
    --------
    >>> pairs = load("vote.data.hard").pairs("test")
    >>> len(pairs), pairs.clean.shape == pairs.corrupt.shape, tuple(pairs.words.shape)
    (8, True, (8, 2))
    """

    clean: Tensor
    corrupt: Tensor
    words: Tensor

    def __len__(self) -> int:
        return len(self.clean)


@dataclass(frozen=True, eq=False)
class Truth:
    """What every edge between live heads does, measured with a proven radius.

    Attributes
    ----------
    names
        The edges, as MIB names them.
    effect, radius
        By how much the metric moves when the edge alone carries the corrupt run's value, as a
        share of what the whole corruption does (-1: all of it), and how well that is known;
        (pairs, edges).
    recorded, carrying
        Edges that could carry something; those that do carry a difference in one of these pairs.
    effective
        Edges whose mean absolute effect over the pairs is above ``floor``.
    leak
        What an edge that carries nothing may do through a norm's root: 0 where norms only centre.
    run
        How many edges were run for it; the others are not recorded.
    nodes
        Effects of taking out a head's output, by "zero", "mean" and "resample", (pairs, heads).

    Examples
    --------
    >>> truth = load("vote.data.hard").truth
    >>> bool((truth.effective & ~truth.carrying).any()), truth.violations
    (False, [])
    """

    names: tuple[str, ...]
    effect: Tensor
    radius: Tensor
    recorded: Tensor
    carrying: Tensor
    floor: float
    nodes: dict[str, Ball]
    leak: float = 0.0
    run: int = 0

    @cached_property
    def strength(self) -> Tensor:
        """The mean absolute effect of every edge."""
        return self.effect.abs().mean(0)

    @property
    def effective(self) -> Tensor:
        """Edges that matter by themselves."""
        return self.strength > self.floor

    @property
    def doubtful(self) -> Tensor:
        """Edges whose radius leaves open on which side of the floor they are."""
        return (self.strength - self.floor).abs() <= self.radius.mean(0)

    @property
    def violations(self) -> list[str]:
        """Edges outside *carrying* that do more than radius and leak: a compiled case has none."""
        beyond = (self.effect.abs() > self.radius + self.leak).any(0) & ~self.carrying
        return [self.names[i] for i in beyond.nonzero()[:, 0].tolist()]


@dataclass(frozen=True, eq=False)
class CompiledCase:
    """A program as a stock model with logits: design, config, tensors in float32, centres of bins.

    ``neurons`` are feed-forward maps by layer; without ``centres`` the answer is the next word.
    """

    spec: CaseSpec
    program: BenchProgram
    design: Design
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    centres: Tensor | None
    neurons: Neurons

    @cached_property
    def network(self) -> HeadsNetwork:
        """The heads, in float64 on the weights of the file."""
        return HeadsNetwork.of_tensors(self.tensors, self.config)

    @property
    def first_answer(self) -> int:
        """The first word that is an answer."""
        return 0 if self.centres is None else len(self.program.words)

    def words_of(self, answers: Tensor) -> Tensor:
        """The nearest bins; of a text the answers themselves."""
        if self.centres is None:
            return answers.long()
        return self.first_answer + (answers[..., None] - self.centres).abs().argmin(-1)

    @property
    def blocks(self) -> Blocks:
        """The layers and what is between them, as the network has them."""
        if not self.neurons:
            return self.design.unrolled
        return [part for number, layer in enumerate(self.design.unrolled)
                for part in (layer, self.neurons.get(number, ()))]  # fmt: skip

    def answered(self, ids: Tensor) -> Tensor:
        """The network's own words at the last token."""
        logits = self.network.logits(ids)[:, -1, self.first_answer :]
        return self.first_answer + logits.argmax(-1)

    def read(self, stream: Tensor) -> Tensor:
        """The answer in the last stream."""
        rows = self.design.readout(_row(self.design, self.program.answer)[None])[0]
        return self.network.normed(stream[..., -1, :]) @ (rows - rows.mean())

    @property
    def prompts(self) -> Tensor:
        """The features of every token that a prompt may hold."""
        words = _padded(self.program.words, self.design)
        return torch.cat([words, _places(self.program, self.design)])

    @property
    def answer(self) -> dict[tuple[str, int], float]:
        """What the logits read."""
        return {**self.program.answer, **({} if self.centres is None else {("one", 0): 1.0})}

    def closeness(self) -> dict[str, Any]:
        """The distance from the exact program on drawn prompts: measured, and no certificate."""
        ids, exact = _drawn(self.program, _CLOSENESS, 10**6)
        right = self.answered(ids) == self.words_of(exact)
        found = {"kind": "measured", "prompts": len(ids),
                 "right_words": float(right.double().mean())}  # fmt: skip
        if self.centres is None:
            return found
        off = (self.read(self.network.plain(self.network.start(ids))) - exact).abs()
        low, high = self.program.span
        return found | {
            "median": float(off.median()), "largest": float(off.max()), "span": high - low,
        }  # fmt: skip


def _padded(features: Tensor, design: Design) -> Tensor:
    out = torch.zeros(len(features), design.features.total, dtype=torch.float64)
    out[:, : features.shape[1]] = features
    return out


def _places(held: BenchProgram, design: Design) -> Tensor:
    """Features of positions; where the answer is a number one of them is always 1."""
    if held.scores is not None:
        return _padded(held.positions, design)
    places = _padded(held.positions, design)[: len(held.slots)]
    places[:, design.features["one"]] = 1.0
    return places


def _row(design: Design, answer: Any) -> Tensor:
    out = torch.zeros(design.features.total, dtype=torch.float64)
    for place, c in answer.items():
        out[design.place(place)] = c
    return out


def _drawn(held: BenchProgram, count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([held.draw(generator) for _ in range(count)])
    return ids, torch.stack([held.exact(one) for one in ids])


def compile_case(spec: CaseSpec) -> CompiledCase:
    """The checkpoint of a case: knobs, a constant, bins of the answer, and float32."""
    held = program(spec.program, soft=spec.soft)
    design = held.design
    if spec.decoys:
        design = decoys(design, spec.decoys, 1000 + spec.decoys)
    if spec.copies > 1:
        design = copied(design, spec.copies, spec.copies)
    design, neurons = fed_forward(design) if spec.forward else (design, {})
    if held.scores is None:
        design = with_features(design, one=1)
    if spec.basis is not None:
        design = turned(design, spec.basis)
    if spec.superposed:
        design = superposed(design, spec.seed)
    elif spec.soft:
        design = stock_norms(design)
    vocabulary, centres = _vocabulary(held, design)
    config, tensors = architecture(held.target).with_ids(design, vocabulary)
    if neurons:
        more, maps = neuron_tensors(design, neurons)
        config, tensors = config | more, tensors | maps
    plain = {name: t.float().contiguous() for name, t in tensors.items()}
    config = {**config, "dtype": "float32"}
    found = CompiledCase(spec, held, design, config, plain, centres, neurons)
    return _annealed(found) if spec.annealed else found


def _vocabulary(held: BenchProgram, design: Design) -> tuple[Vocabulary, Tensor | None]:
    """The words of prompts, and after them the bins of an answer that is a number."""
    places = _places(held, design)
    if held.scores is not None:
        words, scores = (_padded(rows, design) for rows in (held.words, held.scores))
        return Vocabulary(words, places, scores), None
    low, high = held.span
    width = (high - low) / BINS
    centres = low + width * (torch.arange(BINS, dtype=torch.float64) + 0.5)
    scores = torch.zeros(len(held.words) + BINS, design.features.total, dtype=torch.float64)
    scores[len(held.words) :] = 2 * centres[:, None] * _row(design, held.answer) / width**2
    scores[len(held.words) :, design.features["one"]] = -((centres / width) ** 2)[:, None]
    words = torch.zeros_like(scores)
    words[: len(held.words), : held.words.shape[1]] = held.words
    return Vocabulary(words, places, scores), centres


def _annealed(case: CompiledCase) -> CompiledCase:
    ids, exact = _drawn(case.program, _ANNEALING, 10**7)
    fixed = unused_places(case.design)
    trained = annealed(
        case.network, ids, exact, case.read, noise=case.spec.noise, fixed=fixed,
        seed=case.spec.seed,
    )  # fmt: skip
    moved = {name: t.float() for name, t in trained.tensors().items()}
    return replace(case, tensors={**case.tensors, **moved})


def draw_pairs(case: CompiledCase, count: int, seed: int, without: set[bytes]) -> Pairs:
    """Pairs that the network answers rightly and differently; none whose prompts were drawn before.

    ``without`` holds the prompts of other splits, and is added to.
    """
    generator = torch.Generator().manual_seed(seed)
    clean, corrupt, words = [], [], []
    for _ in range(_TRIES * count):
        ids = case.program.draw(generator)
        other = case.program.vary(ids, case.spec.counterfactual, generator)
        key = ids.numpy().tobytes() + other.numpy().tobytes()
        meant = case.words_of(torch.stack([case.program.exact(ids), case.program.exact(other)]))
        if meant[0] == meant[1] or key in without:
            continue
        both = torch.stack([ids, other])
        if not torch.equal(case.answered(both), meant):
            continue
        without.add(key)
        clean.append(ids)
        corrupt.append(other)
        words.append(meant)
        if len(clean) == count:
            return Pairs(torch.stack(clean), torch.stack(corrupt), torch.stack(words))
    raise ProgramError(
        f"{case.spec.id}: {len(clean)} pairs of {count} were found in {_TRIES * count} draws; "
        "take fewer, or another counterfactual"
    )


def all_pairs(case: CompiledCase, seed: int) -> dict[str, Pairs]:
    """Every split, no pair in two of them."""
    seen: set[bytes] = set()
    return {
        split: draw_pairs(
            case, (1 if number else 4) * case.program.pairs, 1000 * seed + number, seen
        )
        for number, split in enumerate(SPLITS)
    }


def exact_truth(case: CompiledCase, pairs: Pairs, *, others: float = 0) -> Truth:
    """The truth of a case on these pairs.

    Parameters
    ----------
    case, pairs
        The network, and prompts.
    others
        Of the edges that are not recorded, which carry nothing, run so many too, drawn with a fixed
        seed; of a spread case all are run.
    """
    network = case.network
    network.check_exact(pairs.clean)
    runs = PatchedRuns(network, pairs.clean, pairs.corrupt, pairs.words)
    held = recorded_edges(case.design, case.prompts, case.answer, case.blocks)
    edges = network.edges
    recorded = torch.tensor([e in held for e in edges])
    carries = dict(runs.carrying())
    rest = (~recorded).nonzero()[:, 0]
    if others < len(rest) and not case.spec.spread:
        order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(0))
        rest = rest[order[: int(others)]]
    asked = [edges[i] for i in torch.cat([recorded.nonzero()[:, 0], rest]).tolist()]
    at = {e: i for i, e in enumerate(edges)}
    effect = torch.zeros(len(pairs), len(edges), dtype=torch.float64)
    radius = torch.zeros_like(effect)
    for edge, found in runs.edge_effects(asked):
        effect[:, at[edge]], radius[:, at[edge]] = found
    carrying = torch.tensor([carries[e] for e in edges])
    if not case.spec.spread:
        carrying &= recorded
    nodes = {}
    for instead in ("zero", "mean", "resample"):
        each = runs.node_effects(instead)
        nodes[instead] = Ball(*(torch.stack([b[i] for b in each.values()], 1) for i in range(2)))
    names = tuple(network.edge_name(e) for e in edges)
    floor = _TRAINED_FLOOR if case.spec.spread else _FLOOR
    leak = floor if network.norm.rooted else 0.0
    return Truth(names, effect, radius, recorded, carrying, floor, nodes, leak, len(asked))


def check_decided(name: str, truth: Truth) -> None:
    """Refuse a case with more undecided edges than proven effective ones, whatever is scored."""
    undecided = int(truth.doubtful.sum())
    proven = int((truth.effective & ~truth.doubtful).sum())
    if undecided > proven:
        raise ProgramError(
            f"{name}: radii up to {float(truth.radius.max()):.1g} leave {undecided} of "
            f"{len(truth.names)} edges undecided, and {proven} are proven effective; a case has no "
            "more of the first than of the second: take another variant"
        )
