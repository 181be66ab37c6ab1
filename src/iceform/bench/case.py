"""A case: a network, pairs of prompts and the truth about its circuit, in memory or in a folder.

A folder holds ``model.safetensors`` and ``config.json``, which transformers and TransformerLens
open, ``case.json``, ``graph.json`` (MIB's circuit format), ``variables.safetensors``,
``pairs.safetensors`` and ``effects.safetensors``. Nothing in it is believed: seals are checked,
splits are compared, labels must follow from effects, and effects are computed again.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iceform import store
from iceform.bench.building import (
    SPLITS,
    CaseSpec,
    CompiledCase,
    Pairs,
    Truth,
    all_pairs,
    check_decided,
    compile_case,
    draw_pairs,
    exact_truth,
)
from iceform.bench.record import CausalVariable, variables
from iceform.bench.scoring import Scores, circuit_scores, edge_scores, effect_scores
from iceform.codec import decode, encode
from iceform.errors import IceformError, IntegrityError, ProgramError, ShapeError
from iceform.targets.enclosed import Ball

_KIND = "bench case"
_SCORED = ("validation", "test")
_FILES = ("pairs", "effects", "variables")


class _Truths(Mapping[str, Truth]):
    """Found when they are asked for; those that leave most undecided are refused."""

    def __init__(self, compiled: CompiledCase, splits: Mapping[str, Pairs]) -> None:
        self._compiled, self._splits, self._found = compiled, splits, dict[str, Truth]()
        check_decided(compiled.spec.id, self["test"])

    def __getitem__(self, split: str) -> Truth:
        if split not in _SCORED:
            raise KeyError(split)
        if split not in self._found:
            truth = exact_truth(self._compiled, self._splits[split])
            check_decided(self._compiled.spec.id, truth)
            self._found[split] = truth
        return self._found[split]

    def __iter__(self) -> Iterator[str]:
        return iter(_SCORED)

    def __len__(self) -> int:
        return len(_SCORED)


@dataclass(frozen=True, eq=False)
class Case:
    """One network of the benchmark.

    Attributes
    ----------
    spec
        What it follows from.
    compiled
        The network, its design and its program.
    splits
        Pairs of prompts by split.
    truths
        What every edge does on the pairs of "validation" and "test".

    Examples
    --------
    >>> case = load("vote.data.hard")
    >>> case.id, len(case.edges) == len(case.truth.names)
    ('vote.data.hard', True)
    """

    spec: CaseSpec
    compiled: CompiledCase
    splits: Mapping[str, Pairs]
    truths: Mapping[str, Truth]

    @classmethod
    def of(cls, spec: CaseSpec) -> Case:
        """Made from nothing but its spec."""
        compiled = compile_case(spec)
        splits = all_pairs(compiled, spec.seed)
        return cls(spec, compiled, splits, _Truths(compiled, splits))

    def __repr__(self) -> str:
        net = self.compiled.network
        return (
            f"Case({self.id!r}: {self.compiled.program.title}; {net.layers} layers of {net.heads} "
            f"heads, {len(self.edges)} edges, {int(self.truth.effective.sum())} effective)"
        )

    @property
    def id(self) -> str:
        """Its name."""
        return self.spec.id

    @property
    def edges(self) -> tuple[str, ...]:
        """The edges that are scored, as MIB names them."""
        return self.truth.names

    @property
    def truth(self) -> Truth:
        """What is so on the test pairs."""
        return self.truths["test"]

    def pairs(self, split: str = "test") -> Pairs:
        """Clean and corrupt prompts of "train", "validation" or "test"."""
        if split not in self.splits:
            raise ProgramError(f"no split is called {split!r}; there are {', '.join(self.splits)}")
        return self.splits[split]

    def private(self, seed: int, count: int | None = None) -> tuple[Pairs, Truth]:
        """Pairs that nobody has seen, and the truth on them; none is among the public ones."""
        if type(seed) is not int:
            raise ProgramError(f"a seed is a whole number, got {seed!r}")
        seen = {
            _key(c, k)
            for p in self.splits.values()
            for c, k in zip(p.clean, p.corrupt, strict=True)
        }
        count = self.compiled.program.pairs if count is None else count
        pairs = draw_pairs(self.compiled, count, 10**9 + seed, seen)
        return pairs, exact_truth(self.compiled, pairs)

    def metric(self, pair: int, split: str = "test") -> Callable[[Tensor], Tensor]:
        """Of a pair: from logits (..., tokens, words) to the metric, in shares of the gap."""
        pairs = self.pairs(split)
        if not 0 <= pair < len(pairs):
            raise ShapeError(f"{split} has the pairs 0 to {len(pairs) - 1}, got {pair}")
        runs = self._gaps(split)
        clean, corrupt = pairs.words[pair].tolist()
        gap = float(runs[pair])

        def metric(logits: Tensor) -> Tensor:
            last = logits[..., -1, :]
            return ((last[..., clean] - last[..., corrupt]) / gap).sum()

        return metric

    def _gaps(self, split: str) -> Tensor:
        p, net = self.pairs(split), self.compiled.network
        logits = [net.logits(ids)[:, -1] for ids in (p.clean, p.corrupt)]
        apart = [(x.gather(1, p.words[:, :1]) - x.gather(1, p.words[:, 1:]))[:, 0] for x in logits]
        return apart[0] - apart[1]

    @cached_property
    def variables(self) -> dict[str, CausalVariable]:
        """Where every variable of the program is."""
        held = self.compiled
        found = variables(held.design, held.prompts, held.program.answer, held.blocks)
        return {name: v for name, v in found.items() if name not in ("one", "spare")}

    # ------------------------------------------------------------------------------- scoring

    def score(self, submission: Any, split: str = "test", track: str = "circuit") -> Scores:
        """What a submission is worth; see :func:`iceform.bench.score`."""
        if split not in self.truths:
            raise ProgramError(f"there is no truth on {split!r}; it is on {', '.join(self.truths)}")
        pairs, truth = self.splits[split], self.truths[split]
        found = edge_scores(submission, self.edges, len(pairs))
        if track == "circuit":
            values = circuit_scores(self.compiled, pairs, truth, found)
        elif track == "effect":
            values = effect_scores(truth, found)
        else:
            raise ProgramError(f"edges are scored on the tracks circuit and effect, got {track!r}")
        return Scores(self.id, split, track, values)

    # --------------------------------------------------------------------- the field's tools

    def transformer_lens(self, dtype: torch.dtype = torch.float32) -> Any:
        """The checkpoint as TransformerLens opens it."""
        try:
            from transformer_lens.model_bridge import TransformerBridge
        except ImportError:
            raise ProgramError(
                "transformer-lens is missing: pip install 'iceform[interp]'"
            ) from None
        with tempfile.TemporaryDirectory() as folder:
            self.save_model(Path(folder))
            return TransformerBridge.boot_transformers(str(folder), dtype=dtype).eval()

    def from_transformer_lens(
        self, edge_scores: Mapping[tuple[Any, Any], float]
    ) -> dict[str, float]:
        """Scores of TransformerLens' ``attribution_patch`` by edge, summed over positions.

        It scores what patching towards ``clean`` does to the metric; give it the prompts of a pair
        the other way round for the effect of a corruption.
        """
        found = dict.fromkeys(self.edges, 0.0)
        for (writer, reader), value in edge_scores.items():
            name = f"{_node(writer)}->{_node(reader)}"
            if name in found:
                found[name] += float(value)
        return found

    # --------------------------------------------------------------------------------- files

    def save_model(self, folder: Path) -> None:
        """What transformers reads, and nothing else."""
        parts, _ = store.sealed_tensors(_KIND, {"case": self.id}, self.compiled.tensors)
        config = json.dumps(self.compiled.config, indent=1).encode()
        store.write({folder / store.WEIGHTS: parts, folder / "config.json": config})

    def save(self, folder: str | Path) -> Path:
        """Write the case into a folder."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self.save_model(path)
        held = {"pairs": self._pair_tensors(), "effects": self._effect_tensors(),
                "variables": {n: v.subspace for n, v in self.variables.items()}}  # fmt: skip
        for name, tensors in held.items():
            store.write_tensors(path / f"{name}.safetensors", _KIND, {"case": self.id}, tensors)
        (path / "graph.json").write_text(json.dumps(self.graph()))
        names = [store.WEIGHTS, "config.json", "graph.json", *(f"{n}.safetensors" for n in _FILES)]
        program = self.compiled.program
        store.write_json(path / "case.json", {
            "id": self.id, "spec": encode(self.spec), "title": program.title,
            "traits": list(program.traits), "steps": program.steps,
            "closeness": self.compiled.closeness(), "edges": list(self.edges),
            "floor": self.truth.floor,
            "variables": {n: {"size": v.size, "written": v.written, "read": v.read}
                          for n, v in self.variables.items()},
            "sha256": {n: sha256((path / n).read_bytes()).hexdigest() for n in names},
        }, _KIND)  # fmt: skip
        return path

    def graph(self) -> dict[str, Any]:
        """The effective edges on the test pairs, as MIB's circuit files have them."""
        net, truth = self.compiled.network, self.truth
        nodes = ["input"]
        blocks = 2 if net.forward else 1
        for layer in range(net.layers // blocks):
            nodes += [net.name(layer * blocks, head) for head in range(net.heads)] + [f"m{layer}"]
        used = {
            n.partition("->")[0] for n, e in zip(truth.names, truth.effective, strict=True) if e
        }
        each = zip(
            truth.names, truth.effect.mean(0).tolist(), truth.effective.tolist(), strict=True
        )
        return {
            "cfg": {"n_layers": net.layers // blocks, "n_heads": net.heads,
                    "parallel_attn_mlp": False, "d_model": net.embedding.shape[1]},
            "nodes": {**{n: {"in_graph": n in used} for n in nodes}, "logits": {"in_graph": True}},
            "edges": {name: {"score": score, "in_graph": real} for name, score, real in each},
        }  # fmt: skip

    def _pair_tensors(self) -> dict[str, Tensor]:
        return {f"{split}.{name}": getattr(p, name) for split, p in self.splits.items()
                for name in ("clean", "corrupt", "words")}  # fmt: skip

    def _effect_tensors(self) -> dict[str, Tensor]:
        out = {}
        for split, t in self.truths.items():
            for name in ("effect", "radius", "recorded", "carrying", "effective"):
                out[f"{split}.{name}"] = getattr(t, name)
            for instead, ball in t.nodes.items():
                out[f"{split}.{instead}.effect"], out[f"{split}.{instead}.radius"] = ball
        return out

    def verify(self) -> None:
        """Refuse pairs, labels or effects that are not those of the network, by name."""
        check_splits(self.splits)
        for split, truth in self.truths.items():
            meant = exact_truth(self.compiled, self.splits[split])
            for name in ("recorded", "carrying"):
                differ = getattr(truth, name) != getattr(meant, name)
                if bool(differ.any()):
                    edge = truth.names[int(differ.nonzero()[0])]
                    said = bool(getattr(truth, name)[truth.names.index(edge)])
                    raise IntegrityError(
                        f"{self.id}: {edge} is {'' if said else 'not '}called {name} on {split}, "
                        "and the design says otherwise; build the case again"
                    )
            off = (truth.effect - meant.effect).abs() > truth.radius + meant.radius
            if bool(off.any()):
                pair, at = (int(i) for i in off.nonzero()[0])
                raise IntegrityError(
                    f"{self.id}: the effect of {truth.names[at]} on pair {pair} of {split} is said "
                    f"to be {float(truth.effect[pair, at]):.6g}, and it is "
                    f"{float(meant.effect[pair, at]):.6g}; build the case again"
                )


def _node(node: Any) -> str:
    """A node of TransformerLens by MIB's name."""
    if node.kind == "embed":
        return "input"
    if node.kind == "attn_head_out":
        return f"a{node.layer}.h{node.head}"
    if node.kind in ("q_input", "k_input", "v_input"):
        return f"a{node.layer}.h{node.head}<{node.kind[0]}>"
    return "logits" if node.kind == "logits" else f"m{node.layer}"


def _key(clean: Tensor, corrupt: Tensor) -> bytes:
    return clean.numpy().tobytes() + corrupt.numpy().tobytes()


def check_splits(splits: Mapping[str, Pairs]) -> None:
    """Refuse a pair that is in two splits."""
    seen: dict[bytes, str] = {}
    for split, pairs in splits.items():
        for number, (clean, corrupt) in enumerate(zip(pairs.clean, pairs.corrupt, strict=True)):
            other = seen.setdefault(_key(clean, corrupt), split)
            if other != split:
                raise IntegrityError(
                    f"pair {number} of {split} is also in {other}: a split has leaked; build the "
                    "case again"
                )


def read_case(folder: str | Path, *, verify: bool = True) -> Case:
    """A case from its folder.

    Parameters
    ----------
    folder
        That :meth:`Case.save` wrote.
    verify
        Compute the effects again; without it seals, splits and labels alone are checked.

    Raises
    ------
    IntegrityError
        If anything in it is not what the case implies; the message names it.
    """
    path = Path(folder)
    held = store.read_json(path / "case.json", _KIND)
    try:
        spec = decode(CaseSpec, held["spec"])
        digests = dict(held["sha256"])
        compiled = compile_case(spec)
    except (KeyError, TypeError, IceformError) as broken:
        raise IntegrityError(f"{path} does not describe a case: {broken}") from None
    for name, digest in digests.items():
        if sha256((path / name).read_bytes()).hexdigest() != digest:
            raise IntegrityError(
                f"{path / name} is not the file that case.json names; build it again"
            )
    tensors = {
        name: store.read_tensors(path / f"{name}.safetensors", _KIND).tensors for name in _FILES
    }
    weights = store.read_tensors(path / store.WEIGHTS, _KIND).tensors
    _check_weights(path, spec, weights, compiled.tensors)
    compiled = replace(compiled, tensors=weights)
    splits = {
        split: Pairs(
            *(tensors["pairs"][f"{split}.{name}"] for name in ("clean", "corrupt", "words"))
        )
        for split in SPLITS
    }
    check_splits(splits)
    floor, names = float(held["floor"]), tuple(held["edges"])
    leak = floor if compiled.network.norm.rooted else 0.0
    truths = {s: _truth(tensors["effects"], s, names, floor, leak) for s in _SCORED}
    found = Case(spec, compiled, splits, truths)
    _check_labels(path, found, tensors["effects"])
    if verify:
        found.verify()
    return found


def _check_weights(
    path: Path, spec: CaseSpec, weights: dict[str, Tensor], implied: dict[str, Tensor]
) -> None:
    for name, tensor in implied.items():
        free = spec.annealed and ".attn." in name  # trained: other machines round otherwise
        same = name in weights and weights[name].shape == tensor.shape
        if not same or (not free and not torch.equal(weights[name], tensor)):
            raise IntegrityError(f"{path}: the weight {name} is not the one that the case implies")


def _truth(
    held: dict[str, Tensor], split: str, names: tuple[str, ...], floor: float, leak: float
) -> Truth:
    try:
        parts: dict[str, Any] = {
            n: held[f"{split}.{n}"] for n in ("effect", "radius", "recorded", "carrying")
        }
        nodes = {
            instead: Ball(held[f"{split}.{instead}.effect"], held[f"{split}.{instead}.radius"])
            for instead in ("zero", "mean", "resample")
        }
    except KeyError as missing:
        raise IntegrityError(f"effects.safetensors has no {missing}") from None
    return Truth(names, **parts, floor=floor, nodes=nodes, leak=leak)


def _check_labels(path: Path, case: Case, held: dict[str, Tensor]) -> None:
    """Labels follow from effects, in both files."""
    graph = store.parse_json((path / "graph.json").read_bytes(), path / "graph.json")
    for split, truth in case.truths.items():
        said = held[f"{split}.effective"]
        told = [bool(graph["edges"].get(name, {}).get("in_graph")) for name in truth.names]
        labels = [said] + ([torch.tensor(told)] if split == "test" else [])
        for label in labels:
            wrong = label != truth.effective
            if bool(wrong.any()):
                at = int(wrong.nonzero()[0])
                raise IntegrityError(
                    f"{path}: {truth.names[at]} is labelled {'' if label[at] else 'not '}effective "
                    f"on {split}, and its mean effect is {float(truth.strength[at]):.3g} (the "
                    f"floor is {truth.floor:g}); build the case again"
                )


def measured_everywhere(case: Case, split: str = "test", others: float = math.inf) -> Truth:
    """The truth with edges run too that carry nothing: all of them, or so many."""
    return exact_truth(case.compiled, case.pairs(split), others=others)
