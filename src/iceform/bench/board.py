"""The leaderboard: all baselines on all cases, as records, and the tables that pages show."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from statistics import mean
from typing import Any

from iceform.bench.case import Case, measured_everywhere
from iceform.bench.catalogue import load, nearest_reference, score
from iceform.bench.methods import METHODS, SIGNED
from iceform.bench.subspaces import SUBSPACE_METHODS, score_subspace, sites

CIRCUIT = ("AUROC effective", "AP effective", "AUROC carrying", "CPR", "CMD")
VARIABLES = ("interchange error", "overlap", "overlap up to aliases")


def case_record(case: Case) -> dict[str, Any]:
    """Everything that the board says of one case."""
    truth = measured_everywhere(case)
    found: dict[str, Any] = {
        "case": case.id,
        "program": case.spec.program,
        "variant": case.spec.variant,
        "counterfactual": case.spec.counterfactual,
        "traits": list(case.compiled.program.traits),
        "edges": len(truth.names),
        "recorded": int(truth.recorded.sum()),
        "carrying": int(truth.carrying.sum()),
        "effective": int(truth.effective.sum()),
        "doubtful": int(truth.doubtful.sum()),
        "violations": len(truth.violations),
        "largest_radius": float(truth.radius.max()),
        "inside": float(truth.strength[truth.recorded].sum() / truth.strength.sum()),
        "closeness": case.compiled.closeness(),
        "largest_weight": float(case.compiled.network.reads.abs().max()),
        "methods": {},
        "subspaces": {},
    }
    for name, method in METHODS.items():
        each = {}
        for split in ("validation", "test"):
            given = method(case.compiled, case.pairs(split))
            each[split] = score(case, given, split=split).values
            if name in SIGNED:
                each[split] |= score(case, given, split=split, track="effect").values
        found["methods"][name] = each
    where = sites(case)
    if where:
        site = where[-1]
        found["site"] = {"variable": site.variable, "layer": site.layer, "token": site.token,
                         "aliases": list(site.aliases)}  # fmt: skip
        for name, fit in SUBSPACE_METHODS.items():
            found["subspaces"][name] = score_subspace(case, site, fit(case, site)).values
    named = nearest_reference(case)
    found["algorithm"] = {"answer": named, **score(case, named, track="algorithm").values}
    return found


def leaderboard(names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The records of these cases, one after the other, with the seconds of processor time."""
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


def circuit_table(records: Sequence[dict[str, Any]]) -> list[str]:
    """Means over cases, and how far the two splits of a case are apart, in the mean."""
    rows = []
    for name in METHODS:
        cells = []
        for metric in CIRCUIT:
            both = [
                [r["methods"][name][s].get(metric, math.nan) for s in ("validation", "test")]
                for r in records
            ]
            apart = _kept(abs(a - b) for a, b in both)
            cells.append(f"{_cell([b for _, b in both])} ± {mean(apart):.3f}")
        rows.append([name, *cells])
    return _table(["method", *CIRCUIT], rows)


def variant_table(records: Sequence[dict[str, Any]], metric: str = "AUROC effective") -> list[str]:
    """One metric by variant of the network."""
    variants = list(dict.fromkeys(r["variant"] for r in records))
    rows = [
        [name, *(_cell([r["methods"][name]["test"][metric] for r in records if r["variant"] == v])
                 for v in variants)]
        for name in METHODS
    ]  # fmt: skip
    counts = [f"{v} ({sum(r['variant'] == v for r in records)})" for v in variants]
    return _table(["method", *counts], rows)


def trait_table(records: Sequence[dict[str, Any]], metric: str = "effect error") -> list[str]:
    """The median of a metric of effects by what is hard about the program."""
    traits = sorted({t for r in records for t in r["traits"]})
    rows = []
    for name in SIGNED:
        each = [
            [r["methods"][name]["test"][metric] for r in records if t in r["traits"]]
            for t in traits
        ]
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
    exact = [r["methods"]["exact patching"]["test"]["AUROC effective"] for r in records]
    trained = [r for r in records if r["variant"] == "annealed"]
    compiled = [r for r in records if r["variant"] != "annealed"]
    named = sum(r["algorithm"]["program"] for r in records)
    minutes = sum(r["seconds"] for r in records) / 60
    words = (
        f"{len(records)} cases of {len({r['program'] for r in records})} programs, "
        f"{sum(r['edges'] for r in records):,} edges, every one of them run. Exact patching has an "
        f"AUROC of at least {min(exact):.3f} against *effective*. Edges outside *carrying* with an "
        f"effect beyond its radius: {sum(r['violations'] for r in compiled)} in the "
        f"{len(compiled)} compiled cases, whose largest radius is "
        f"{max(r['largest_radius'] for r in compiled):.0e}. In annealed networks at least "
        f"{min((r['inside'] for r in trained), default=1.0):.1%} of the effect is inside the "
        f"record. The nearest reference program is the right one in {named:.0f} cases. All of it "
        f"took {minutes:.0f} minutes of one core."
    )
    tables = {
        "bench circuits": circuit_table(records), "bench variants": variant_table(records),
        "bench effects": trait_table(records), "bench variables": subspace_table(records),
    }  # fmt: skip
    return {"bench summary": words, **{name: "\n".join(t) for name, t in tables.items()}}
