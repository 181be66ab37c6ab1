"""``iceform bench``: cases of the circuit benchmark, built, scored, and put on the board."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iceform.cli.as_json import add_json, print_json
from iceform.cli.exits import BROKEN
from iceform.errors import IceformError

SUMMARY = "Build cases of the circuit benchmark and score methods on them."


def main(words: Sequence[str]) -> int:
    """Run one of its four verbs; the exit status."""
    parser = _parser()
    options = parser.parse_args(words)
    if options.json and options.verb not in ("cases", "score"):
        parser.error(f"--json is of cases and score; {options.verb} writes files")
    from iceform import bench

    if options.verb == "cases" and options.json:
        print_json({"cases": bench.cases()})
    elif options.verb == "cases":
        print("\n".join(bench.cases()))
    elif options.verb == "build":
        for name in options.cases or bench.cases():
            print(bench.load(name).save(options.out / name))
    elif options.verb == "score":
        found = bench.score(
            bench.load(options.case), options.submission, split=options.split, track=options.track
        )
        if options.json:
            print_json(
                {"case": found.case, "split": found.split, "track": found.track, **found.values}
            )
        else:
            print(found)
    else:
        return _board(options.cases or bench.cases(), options.out)
    return 0


def _board(names: Sequence[str], out: Path) -> int:
    """Score every case and keep what was found after each; 1 if a case was refused."""
    from iceform import bench

    out.parent.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []
    status = 0
    for name in names:
        try:
            records += bench.leaderboard([name])
        except IceformError as refused:
            print(f"{name}: refused: {refused}", flush=True)
            status = BROKEN
            continue
        out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
        last = records[-1]
        print(f"{name}: {last['edges']} edges, {last['effective']} effective, {last['violations']} "
              f"violations, {last['seconds']:.1f} s", flush=True)  # fmt: skip
    print(f"{len(records)} of {len(names)} cases: {out}")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="iceform bench",
        description="Networks whose circuits are known, with the exact effect of every edge.",
        epilog="Example: iceform bench build vote.data.hard --out folder; "
        "iceform bench score folder/vote.data.hard circuit.json",
    )
    add_json(parser)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("cases", help="name every case")
    build = verbs.add_parser("build", help="write cases as folders that transformers opens")
    build.add_argument("cases", nargs="*", help="their names; all by default")
    build.add_argument("--out", type=Path, required=True, help="a folder for their folders")
    score = verbs.add_parser("score", help="score a circuit file of MIB on a case")
    score.add_argument("case", help="the name of a case, or its folder")
    score.add_argument("submission", type=Path, help="a JSON file with a score for every edge")
    score.add_argument("--split", default="test", help="test or validation (%(default)s)")
    score.add_argument("--track", default="circuit", help="circuit or effect (%(default)s)")
    board = verbs.add_parser("board", help="score all baselines, and write what they got")
    board.add_argument("cases", nargs="*", help="their names; all by default")
    board.add_argument("--out", type=Path, required=True, help="a JSON file")
    return parser
