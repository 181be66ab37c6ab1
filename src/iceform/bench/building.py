"""From a program to a case: a checkpoint with logits, pairs of prompts, and the exact effects.

The answer is a number, and the words of an answer are its bins: with centres c_k, a width delta and
the answer a, the logits are (2 c_k a - c_k^2)/delta^2, largest for the nearest bin. The metric of a
pair is the logit of the clean answer's word less that of the corrupt one's, so it is linear in a.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from iceform.bench.knobs import annealed, copied, decoys, turned, with_features
from iceform.bench.network import Edge, HeadsNetwork, PatchedRuns
from iceform.bench.programs import BenchProgram, program
from iceform.bench.record import edge_name, recorded_edges
from iceform.errors import ProgramError
from iceform.heads import Design, Vocabulary
from iceform.targets.architectures import architecture
from iceform.targets.enclosed import Ball

BINS = 16
SPLITS = {"train": 32, "validation": 8, "test": 8}
_TRIES = 400  # draws before a counterfactual is said to change nothing
_FLOOR = 1e-6  # a share of the answer's change that float32 still shows
_TRAINED_FLOOR = 1e-2  # in a network whose every edge does a little
NOISE = 1e-3  # of annealing, where heads do not cancel
_CLOSENESS = 128  # prompts
_ANNEALING = 512  # prompts


@dataclass(frozen=True)
class CaseSpec:
    """Everything that a case follows from.

    Attributes
    ----------
    program, counterfactual
        What is computed, and what differs between the prompts of a pair.
    soft, annealed
        Weights as trained networks have them; those disturbed and trained.
    decoys, copies, basis
        Heads a layer that no answer depends on, parallel copies of every head, the seed of a basis.
    noise
        By which an annealed case's weights are disturbed.
    seed
        Of the pairs.
    """

    program: str
    counterfactual: str = "data"
    soft: bool = False
    annealed: bool = False
    decoys: int = 3
    copies: int = 1
    basis: int | None = None
    noise: float = NOISE
    seed: int = 0

    @property
    def variant(self) -> str:
        """In a word."""
        if self.annealed:
            return "annealed"
        words = ["soft" if self.soft else "hard"]
        words += [f"copies{self.copies}"] if self.copies > 1 else []
        words += ["turned"] if self.basis is not None else []
        return "-".join(words)

    @property
    def id(self) -> str:
        """The name of the case."""
        return f"{self.program}.{self.counterfactual}.{self.variant}"


@dataclass(frozen=True, eq=False)
class Pairs:
    """Clean and corrupt prompts (n, tokens), and the words of their answers (n, 2)."""

    clean: Tensor
    corrupt: Tensor
    words: Tensor

    def __len__(self) -> int:
        return len(self.clean)


@dataclass(frozen=True, eq=False)
class Truth:
    """What is so, of every edge between live heads.

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
    nodes
        Effects of taking out a head's output, by "zero", "mean" and "resample", (pairs, heads).
    """

    names: tuple[str, ...]
    effect: Tensor
    radius: Tensor
    recorded: Tensor
    carrying: Tensor
    floor: float
    nodes: dict[str, Ball]

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
        """Edges outside *carrying* with an effect beyond its radius: a compiled case has none."""
        beyond = (self.effect.abs() > self.radius).any(0) & ~self.carrying
        return [self.names[i] for i in beyond.nonzero()[:, 0].tolist()]


@dataclass(frozen=True, eq=False)
class CompiledCase:
    """A program as a GPT2LMHeadModel: design, config, tensors in float32, centres of bins."""

    spec: CaseSpec
    program: BenchProgram
    design: Design
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    centres: Tensor

    @cached_property
    def network(self) -> HeadsNetwork:
        """The heads, in float64 on the weights of the file."""
        return HeadsNetwork.of_tensors(self.tensors, self.design.heads)

    @property
    def first_answer(self) -> int:
        """The first word that is an answer."""
        return len(self.program.words)

    def words_of(self, answers: Tensor) -> Tensor:
        """The nearest bins."""
        return self.first_answer + (answers[..., None] - self.centres).abs().argmin(-1)

    def answered(self, ids: Tensor) -> Tensor:
        """The network's own words at the last token."""
        logits = self.network.logits(ids)[:, -1, self.first_answer :]
        return self.first_answer + logits.argmax(-1)

    def read(self, stream: Tensor) -> Tensor:
        """The answer in the last stream."""
        rows = self.design.readout(_row(self.design, self.program.answer)[None])[0]
        return stream[..., -1, :] @ (rows - rows.mean())

    @property
    def prompts(self) -> Tensor:
        """The features of every token that a prompt may hold."""
        held = _padded(self.program.words, self.design)
        places = _padded(self.program.positions, self.design)
        places[:, self.design.features["one"]] = 1.0
        return torch.cat([held, places[: len(self.program.slots)]])

    @property
    def answer(self) -> dict[tuple[str, int], float]:
        """What the logits read."""
        return {**self.program.answer, ("one", 0): 1.0}

    def closeness(self) -> dict[str, Any]:
        """The distance from the exact program on drawn prompts: measured, and no certificate."""
        ids, exact = _drawn(self.program, _CLOSENESS, 10**6)
        off = (self.read(self.network.plain(self.network.start(ids))) - exact).abs()
        low, high = self.program.span
        right = self.answered(ids) == self.words_of(exact)
        return {
            "kind": "measured",
            "prompts": len(ids),
            "median": float(off.median()),
            "largest": float(off.max()),
            "span": high - low,
            "right_words": float(right.double().mean()),
        }


def _padded(features: Tensor, design: Design) -> Tensor:
    out = torch.zeros(len(features), design.features.total, dtype=torch.float64)
    out[:, : features.shape[1]] = features
    return out


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
    design = with_features(design, one=1)
    if spec.basis is not None:
        design = turned(design, spec.basis)
    low, high = held.span
    width = (high - low) / BINS
    centres = low + width * (torch.arange(BINS, dtype=torch.float64) + 0.5)
    scores = torch.zeros(len(held.words) + BINS, design.features.total, dtype=torch.float64)
    scores[len(held.words) :] = 2 * centres[:, None] * _row(design, held.answer) / width**2
    scores[len(held.words) :, design.features["one"]] = -((centres / width) ** 2)[:, None]
    words = torch.zeros_like(scores)
    words[: len(held.words), : held.words.shape[1]] = held.words
    places = _padded(held.positions, design)[: len(held.slots)]
    places[:, design.features["one"]] = 1.0
    ids = architecture("gpt2").with_ids
    assert ids is not None
    config, tensors = ids(design, Vocabulary(words, places, scores))
    plain = {name: t.float().contiguous() for name, t in tensors.items()}
    found = CompiledCase(spec, held, design, {**config, "dtype": "float32"}, plain, centres)
    return _annealed(found) if spec.annealed else found


def _annealed(case: CompiledCase) -> CompiledCase:
    ids, exact = _drawn(case.program, _ANNEALING, 10**7)
    trained = annealed(
        case.network, ids, exact, case.read, noise=case.spec.noise, seed=case.spec.seed
    )
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
        split: draw_pairs(case, count, 1000 * seed + number, seen)
        for number, (split, count) in enumerate(SPLITS.items())
    }


def exact_truth(case: CompiledCase, pairs: Pairs, *, every: bool = False) -> Truth:
    """The truth of a case on these pairs.

    Parameters
    ----------
    case, pairs
        The network, and prompts.
    every
        Run the edges too that are proven to carry nothing; of an annealed case all are run.
    """
    network = case.network
    network.check_exact(float(case.config["layer_norm_epsilon"]), pairs.clean)
    runs = PatchedRuns(network, pairs.clean, pairs.corrupt, pairs.words)
    held = recorded_edges(case.design, case.prompts, case.answer)
    edges = network.edges
    recorded = torch.tensor([e in held for e in edges])
    carries = [_carries(runs, e) for e in edges]
    asked = [e for e, r in zip(edges, recorded, strict=True) if r or every or case.spec.annealed]
    at = {e: i for i, e in enumerate(edges)}
    effect = torch.zeros(len(pairs), len(edges), dtype=torch.float64)
    radius = torch.zeros_like(effect)
    for edge, found in runs.edge_effects(asked):
        effect[:, at[edge]], radius[:, at[edge]] = found
    carrying = torch.tensor(carries)
    if not case.spec.annealed:
        carrying &= recorded
    nodes = {}
    for instead in ("zero", "mean", "resample"):
        each = runs.node_effects(instead)
        nodes[instead] = Ball(*(torch.stack([b[i] for b in each.values()], 1) for i in range(2)))
    names = tuple(edge_name(e, network.heads) for e in edges)
    floor = _TRAINED_FLOOR if case.spec.annealed else _FLOOR
    return Truth(names, effect, radius, recorded, carrying, floor, nodes)


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


def _carries(runs: PatchedRuns, edge: Edge) -> bool:
    found = runs.carried(edge)
    return bool((found.center > found.radius).any())
