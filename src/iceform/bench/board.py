"""The leaderboard: all baselines on all cases, as records, and the tables that pages show."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from statistics import mean, stdev
from typing import Any

from iceform.bench.case import Case, measured_everywhere
from iceform.bench.catalogue import load, nearest_reference, score
from iceform.bench.methods import METHODS, SIGNED
from iceform.bench.scoring import circuit_scores
from iceform.bench.subspaces import SUBSPACE_METHODS, score_subspace, sites

CIRCUIT = ("AUROC effective", "AP effective", "AUROC carrying", "CPR", "CMD")
SEEDS = (1, 2, 3)
LARGE = 2**14  # edges times tokens
DRAWN = 64  # edges of a large case that are not recorded, and are run
VARIABLES = ("interchange error", "overlap", "overlap up to aliases")


def case_record(case: Case) -> dict[str, Any]:
    """Everything that the board says of one case.

    Of a case of more than ``LARGE`` edges times tokens those edges that are recorded are run and as
    many others as ``DRAWN``; it has neither ACDC, which runs every edge twice, nor subspaces.
    Private seeds are of one case a program that is not large.
    """
    large = len(case.edges) * case.pairs("test").clean.shape[1] > LARGE
    truth = measured_everywhere(case, others=DRAWN if large else math.inf)
    outside = truth.strength[~truth.carrying]
    found: dict[str, Any] = {
        "case": case.id,
        "program": case.spec.program,
        "target": _target(case),
        "variant": case.spec.variant,
        "counterfactual": case.spec.counterfactual,
        "traits": list(case.compiled.program.traits),
        "edges": len(truth.names),
        "run": truth.run,
        "recorded": int(truth.recorded.sum()),
        "carrying": int(truth.carrying.sum()),
        "effective": int(truth.effective.sum()),
        "doubtful": int(truth.doubtful.sum()),
        "violations": len(truth.violations),
        "largest_radius": float(truth.radius.max()),
        "inside": float(truth.strength[truth.recorded].sum() / truth.strength.sum()),
        "outside": float(outside.max()) if len(outside) else 0.0,
        "epsilon": case.compiled.network.norm.epsilon,
        "closeness": case.compiled.closeness(),
        "largest_weight": float(case.compiled.network.reads.abs().max()),
        "methods": {},
        "seeds": {},
        "subspaces": {},
    }
    seeded = not large and (case.spec.variant, case.spec.counterfactual) == ("hard", "data")
    drawn = [case.private(seed) for seed in SEEDS] if seeded else []
    for name, method in METHODS.items():
        if large and name == "ACDC":
            continue
        pairs = case.pairs("test")
        given = truth.effect if name == "exact patching" else method(case.compiled, pairs)
        scores = score(case, given).values
        if name in SIGNED:
            scores |= score(case, given, track="effect").values
        found["methods"][name] = scores
        exact = name == "exact patching"
        found["seeds"][name] = [
            circuit_scores(case.compiled, p, t, t.effect if exact else method(case.compiled, p))
            for p, t in drawn
        ]
    where = [] if large else sites(case)
    if where:
        site = where[-1]
        found["site"] = {"variable": site.variable, "layer": site.layer, "token": site.token,
                         "aliases": list(site.aliases)}  # fmt: skip
        for name, fit in SUBSPACE_METHODS.items():
            found["subspaces"][name] = score_subspace(case, site, fit(case, site)).values
    if case.compiled.centres is not None:  # the program of a text is in its prompt
        named = nearest_reference(case)
        found["algorithm"] = {"answer": named, **score(case, named, track="algorithm").values}
    return found


def _target(case: Case) -> str:
    return "text GPT-2" if case.compiled.centres is None else case.compiled.program.target.upper()


def leaderboard(names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The records of these cases, one after the other, with the seconds of processor time.

    A record is JSON: the case, and what every method scores on it. It takes seconds to minutes.

    Examples
    --------
    >>> list(leaderboard([]))
    []
    """
    for name in names:
        start = time.process_time()
        yield {**case_record(load(name)), "seconds": time.process_time() - start}


def _kept(values: Iterable[float]) -> list[float]:
    return [v for v in values if not math.isnan(v)]


def _cell(values: Sequence[float]) -> str:
    kept = _kept(values)
    return f"{mean(kept):.3f}" if kept else "–"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _value(record: dict[str, Any], name: str, metric: str) -> float:
    found: float = record["methods"].get(name, {}).get(metric, math.nan)
    return found


def _seeded(records: Sequence[dict[str, Any]], name: str, metric: str) -> list[float]:
    """Of every seed of private pairs the mean over cases."""
    each = [r["seeds"][name] for r in records if r["seeds"].get(name)]
    return [
        mean(_kept(seeds[k].get(metric, math.nan) for seeds in each)) for k in range(len(SEEDS))
    ]


def circuit_table(records: Sequence[dict[str, Any]]) -> list[str]:
    """Of cases that are not large: means over test pairs, and the deviation of a seed's mean."""
    small = [r for r in records if "ACDC" in r["methods"]]
    rows = []
    for name in METHODS:
        cells = []
        for metric in CIRCUIT:
            own = _cell([_value(r, name, metric) for r in small])
            cells.append(f"{own} ± {stdev(_seeded(records, name, metric)):.3f}")
        rows.append([name, *cells])
    return _table([f"method ({len(small)} cases)", *CIRCUIT], rows)


def seeds_told(records: Sequence[dict[str, Any]]) -> str:
    """By which metrics methods differ by more than the seeds do."""
    found = []
    for metric in CIRCUIT:
        each = {name: _seeded(records, name, metric) for name in METHODS}
        pairs = [
            abs(mean(a) - mean(b)) > 3 * math.hypot(stdev(a), stdev(b))
            for a, b in combinations(each.values(), 2)
        ]
        found.append((metric, sum(pairs), len(pairs)))
    clear = sum(2 * apart > count for _, apart, count in found)
    words = ", ".join(f"{metric} {apart} of {count}" for metric, apart, count in found)
    seeded = sum(bool(r["seeds"]["random"]) for r in records)
    return (
        f"In the {seeded} cases with seeds, pairs of methods whose means are further apart than "
        f"three deviations of their seeds: {words}. By {clear} of the {len(found)} metrics that is "
        "most of the pairs."
    )


def table_by(records: Sequence[dict[str, Any]], key: str, *metrics: str) -> list[str]:
    """Means of metrics on the test pairs, by the stock model ("target") or by the "variant"."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record[key], []).append(record)
    rows = [
        [name, *(_cell([_value(r, name, m) for r in each]) for each in groups.values()
                 for m in metrics)]
        for name in METHODS
    ]  # fmt: skip
    tails = [f": {m.removesuffix(' effective')}" for m in metrics] if len(metrics) > 1 else [""]
    heads = [f"{group} ({len(each)}){tail}" for group, each in groups.items() for tail in tails]
    return _table(["method", *heads], rows)


def trait_table(records: Sequence[dict[str, Any]], metric: str = "effect error") -> list[str]:
    """The median of a metric of effects by what is hard about the program."""
    traits = sorted({t for r in records for t in r["traits"]})
    rows = []
    for name in SIGNED:
        each = [[_value(r, name, metric) for r in records if t in r["traits"]] for t in traits]
        rows.append([name, *(f"{sorted(_kept(v))[len(_kept(v)) // 2]:.3f}" for v in each)])
    counts = [f"{t} ({sum(t in r['traits'] for r in records)})" for t in traits]
    return _table(["method", *counts], rows)


def subspace_table(records: Sequence[dict[str, Any]]) -> list[str]:
    """Medians over cases: one that explodes would be the mean."""
    held = [r for r in records if r["subspaces"]]
    rows = []
    for name in SUBSPACE_METHODS:
        each = [sorted(_kept(r["subspaces"][name][m] for r in held)) for m in VARIABLES]
        rows.append([name, *(f"{v[len(v) // 2]:.3f}" for v in each)])
    return _table([f"method ({len(held)} cases)", *VARIABLES], rows)


def told(records: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What the page says of a run, block by block."""
    exact = [_value(r, "exact patching", "AUROC effective") for r in records]
    trained = [r for r in records if r["variant"] == "annealed"]
    packed = [r for r in records if "superposed" in r["variant"]]
    compiled = [r for r in records if r not in trained and r not in packed]
    stock = [r for r in compiled if r["epsilon"] < 1]
    named = sum(r["algorithm"]["program"] for r in records if "algorithm" in r)
    asked = sum("algorithm" in r for r in records)
    minutes = sum(r["seconds"] for r in records) / 60
    words = (
        f"{len(records)} cases of {len({r['program'] for r in records})} programs, "
        f"{sum(r['edges'] for r in records):,} edges, {sum(r['run'] for r in records):,} of them "
        f"run. Exact patching has an AUROC of at least {min(exact):.3f} against *effective*. Edges "
        f"outside *carrying* with an effect beyond its radius: "
        f"{sum(r['violations'] for r in compiled)} in the {len(compiled)} compiled cases, whose "
        f"largest radius is {max(r['largest_radius'] for r in compiled):.0e}. In the {len(stock)} "
        f"of them with a stock epsilon a norm's root lets other edges do a little, at most "
        f"{max(r['outside'] for r in stock):.0e}. At least "
        f"{min(r['inside'] for r in trained):.1%} of the effect is inside the record in annealed "
        f"networks, and {min(r['inside'] for r in packed):.1%} in superposed ones, whose median "
        f"distance from the program is up to "
        f"{max(r['closeness']['median'] / r['closeness']['span'] for r in packed):.0%} of the "
        f"answers' range. The nearest reference program is the right one in {named:.0f} of "
        f"{asked} cases. All of it took {minutes:.0f} minutes of one core."
    )
    tables = {
        "bench circuits": circuit_table(records), "bench effects": trait_table(records),
        "bench variants": table_by(records, "variant", CIRCUIT[0]),
        "bench targets": table_by(records, "target", *CIRCUIT[:2]),
        "bench variables": subspace_table(records),
    }  # fmt: skip
    texts = {"bench summary": words, "bench seeds": seeds_told(records)}
    return texts | {name: "\n".join(t) for name, t in tables.items()}
