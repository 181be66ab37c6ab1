"""Scores of a submission: how well it ranks the edges that matter, and knows how much they do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iceform.bench.building import CompiledCase, Pairs, Truth
from iceform.bench.methods import PairedRuns, masked
from iceform.errors import ProgramError, ShapeError
from iceform.store import parse_json

# Of edges, as MIB has them.
FRACTIONS = tuple(n / 1000 for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
_MOST = 100.0  # of a distance from 1: opposite heads make faithfulness as large as one likes


@dataclass(frozen=True)
class Scores:
    """What a submission is worth on one case, by metric; ``track`` says of which kind.

    Examples
    --------
    >>> print(Scores("vote.data.hard", "test", "circuit", {"AUROC effective": 1.0}))
    vote.data.hard (test, circuit): AUROC effective 1.000
    """

    case: str
    split: str
    track: str
    values: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        each = "  ".join(f"{name} {value:.3f}" for name, value in self.values.items())
        return f"{self.case} ({self.split}, {self.track}): {each}"


def edge_scores(submission: Any, names: tuple[str, ...], pairs: int) -> Tensor:
    """A submission as scores (pairs, edges) or (edges), in the order of ``names``.

    Parameters
    ----------
    submission
        A tensor; a mapping from edge names to scores; or a circuit file of MIB, as a path or as
        what it holds. Names of dead heads and of feed-forward maps may be there, and are not
        scored.
    names, pairs
        Of the case.

    Raises
    ------
    ShapeError
        If it has another shape, or lacks edges.
    ProgramError
        If an edge is unknown, or a score is no number.
    """
    if isinstance(submission, str | Path):
        if not Path(submission).is_file():
            raise ProgramError(f"there is no file {submission}; a circuit file is JSON of MIB's")
        submission = parse_json(Path(submission).read_bytes(), submission)
    if isinstance(submission, Mapping):
        return _named(submission, names)
    found = torch.as_tensor(submission).detach().double()
    if found.shape not in {(len(names),), (pairs, len(names))}:
        raise ShapeError(
            f"a submission is ({len(names)},) or ({pairs}, {len(names)}) here, one score for every "
            f"edge of case.edges, got {tuple(found.shape)}"
        )
    _check_numbers(found, names)
    return found


def _named(given: Mapping[str, Any], names: tuple[str, ...]) -> Tensor:
    edges = given.get("edges", given)
    if not isinstance(edges, Mapping):
        raise ProgramError("a circuit file maps the names of edges to their scores under 'edges'")
    held = {
        k: v["score"] if isinstance(v, Mapping) and "score" in v else v for k, v in edges.items()
    }
    wide = max(_layer(name) for name in names)
    for name in held:
        if name not in names and not _is_idle(str(name), wide):
            raise ProgramError(
                f"no edge is called {name!r}; they are {names[0]}, ..., {names[-1]} (case.edges)"
            )
    missing = [name for name in names if name not in held]
    if missing:
        raise ShapeError(
            f"{len(missing)} of {len(names)} edges have no score, the first is {missing[0]}; give "
            "every edge one, 0 for those that do not matter"
        )
    try:
        found = torch.tensor([float(held[name]) for name in names], dtype=torch.float64)
    except (TypeError, ValueError):
        bad = next(n for n in names if not isinstance(held[n], int | float))
        raise ProgramError(f"the score of {bad} is {held[bad]!r}, no number") from None
    _check_numbers(found, names)
    return found


def _layer(name: str) -> int:
    reader = name.partition("->")[2]
    return 0 if reader == "logits" else int(reader[1:].partition(".")[0])


def _is_idle(name: str, layers: int) -> bool:
    """Whether a name is of the graph, but of a head that is dead or of a feed-forward map."""
    parts = name.split("->")
    if len(parts) != 2:
        return False
    return all(_is_node(part.partition("<")[0], layers) for part in parts)


def _is_node(node: str, layers: int) -> bool:
    if node in ("input", "logits"):
        return True
    layer, _, head = node[1:].partition(".h")
    known = (node[:1] == "m" and not head) or (node[:1] == "a" and head.isdigit())
    return known and layer.isdigit() and int(layer) <= layers


def _check_numbers(found: Tensor, names: tuple[str, ...]) -> None:
    flat = found.reshape(-1, len(names))
    if not bool(flat.isfinite().all()):
        bad = int((~flat.isfinite()).any(0).nonzero()[0])
        raise ProgramError(
            f"the score of {names[bad]} is {float(flat[:, bad].sum())}; scores are finite numbers"
        )


def auroc(scores: Tensor, labels: Tensor) -> float:
    """The chance that a true edge is above a false one, ties counting half; NaN without both."""
    true, false = scores[labels], scores[~labels]
    if not len(true) or not len(false):
        return math.nan
    above = (true[:, None] > false).double() + 0.5 * (true[:, None] == false).double()
    return float(above.mean())


def average_precision(scores: Tensor, labels: Tensor) -> float:
    """The mean precision at the true edges, those with equal scores taken together."""
    if not labels.any():
        return math.nan
    total = 0.0
    for value in scores[labels].unique():
        chosen = scores >= value
        precision = float(labels[chosen].double().mean())
        total += precision * float((labels & (scores == value)).sum())
    return total / float(labels.sum())


def _ranks(values: Tensor) -> Tensor:
    """How many are below each, those that equal it counting half."""
    _, which, counts = values.unique(return_inverse=True, return_counts=True)
    ranks: Tensor = counts.cumsum(0) - counts / 2
    return ranks[which]


def spearman(a: Tensor, b: Tensor) -> float:
    """The correlation of ranks."""
    ranks = torch.stack([_ranks(a), _ranks(b)])
    return float(torch.corrcoef(ranks)[0, 1]) if bool((ranks.std(1) > 0).all()) else 0.0


def circuit_scores(
    case: CompiledCase, pairs: Pairs, truth: Truth, scores: Tensor
) -> dict[str, float]:
    """AUROC and AP against *carrying* and *effective*; CPR and CMD as MIB defines them.

    The effective edges that radii leave open are left out. Faithfulness is held to 100 from 1.
    """
    size = scores.abs() if scores.ndim == 1 else scores.abs().mean(0)
    sure = ~truth.doubtful
    kinds = [("effective", truth.effective, sure)]
    if not case.spec.spread:  # there every edge carries something
        kinds.append(("carrying", truth.carrying, torch.ones_like(sure)))
    out = {}
    for kind, labels, among in kinds:
        out[f"AUROC {kind}"] = auroc(size[among], labels[among])
        out[f"AP {kind}"] = average_precision(size[among], labels[among])
    return out | faithfulness_areas(case, pairs, size)


def faithfulness_areas(case: CompiledCase, pairs: Pairs, size: Tensor) -> dict[str, float]:
    """CPR and CMD: the area under faithfulness by circuit size, and that of its distance from 1."""
    runs, count = PairedRuns(case.network, pairs), len(size)
    order = size.argsort(descending=True, stable=True)
    faith = []
    for fraction in FRACTIONS:
        kept = torch.zeros(count, dtype=torch.bool)
        kept[order[: int(fraction * count)]] = True
        found = 1 + float(masked(runs, kept).mean())
        faith.append(min(max(found, 1 - _MOST), 1 + _MOST))
    areas = {"CPR": 0.0, "CMD": 0.0}
    for i in range(len(FRACTIONS) - 1):
        step = FRACTIONS[i + 1] - FRACTIONS[i]
        areas["CPR"] += step * (faith[i] + faith[i + 1]) / 2
        areas["CMD"] += step * (abs(1 - faith[i]) + abs(1 - faith[i + 1])) / 2
    return areas


def effect_scores(truth: Truth, scores: Tensor) -> dict[str, float]:
    """How well effects are known: the error as a share of their sum, its worst, signs, ranks."""
    exact = truth.effect if scores.ndim == 2 else truth.effect.mean(0)
    strong = exact.abs() > truth.floor
    signs = (scores.sign() == exact.sign())[strong]
    worst = (scores - exact).abs().max()
    return {
        "effect error": float((scores - exact).abs().sum() / exact.abs().sum()),
        "log10 worst error": math.log10(max(float(worst), 1e-16)),
        "signs": float(signs.double().mean()) if len(signs) else math.nan,
        "rank correlation": spearman(scores.reshape(-1), exact.reshape(-1)),
    }
