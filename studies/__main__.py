"""``python -m studies``: list, run and report on the paper's numerical studies."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from iceform.cli.failures import one_line_errors
from studies.study import COLUMNS
from studies.sweeps import STUDIES, Group, Request, groups, load_records, run

_OUT = Path("out/studies")


def main(words: Sequence[str] | None = None) -> int:
    """List, run or report; the exit status."""
    options = _parser().parse_args(words)
    with one_line_errors("finished cells are kept; run it again to go on"):
        options.act(options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m studies",
        description="The paper's numerical studies: the authors' code, its settings, our own, "
        "constructed.",
    )
    commands = parser.add_subparsers(required=True, metavar="list | run | report")
    named = commands.add_parser("list", help="what there is to run, at both scales")
    named.set_defaults(act=_list)
    _add_run(commands.add_parser(
        "run", help="run what is not finished; a killed run goes on where it stopped",
        epilog="Example: python -m studies run heads --scale smoke --jobs 2",
    ))  # fmt: skip
    told = commands.add_parser(
        "report", help="write HTML, Markdown and CSV with the published numbers beside ours"
    )
    told.add_argument("--out", type=Path, default=_OUT, help="a results folder (%(default)s)")
    told.add_argument("--into", type=Path, help="where the report goes (OUT/report)")
    told.set_defaults(act=_report)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("study", help=f"{', '.join(STUDIES)}, or all")
    add("--column", action="append", help=f"of {', '.join(COLUMNS)}; again for more (all)")
    add("--scale", default="smoke", help="smoke or paper (%(default)s)")
    add("--device", action="append", help="cpu, cuda, cuda:1 …; several share the work (cpu)")
    add("--seeds", type=int, help="how many (the study's own)")
    add("--jobs", type=int, default=1, help="processes on this machine; -1: one per core")
    add("--dask", help="address of a Dask scheduler to run on")
    add("--their-code", type=Path, help="a copy of the authors' code, for their_script")
    add("--out", type=Path, default=_OUT, help="the results folder (%(default)s)")
    parser.set_defaults(act=_run)


def _list(_options: argparse.Namespace) -> None:
    print(_LINE.format("study", "column", "scale", "samples", "epochs", "seeds"))
    for study in STUDIES.values():
        for column in COLUMNS:
            for scale in ("smoke", "paper"):
                spec = study.spec(column, scale)
                trained = column != "constructed"
                sizes = [f"{spec.samples:,}", str(spec.epochs)] if trained else ["–", "–"]
                print(_LINE.format(study.name, column, scale, *sizes, str(spec.seeds)))


_LINE = "{:<11} {:<20} {:<6} {:>9} {:>6} {:>5}"


def _run(options: argparse.Namespace) -> None:
    request = Request(
        tuple(STUDIES) if options.study == "all" else (options.study,),
        tuple(options.column) if options.column else COLUMNS,
        options.scale,
        options.out,
        options.seeds,
        tuple(options.device) if options.device else ("cpu",),
        code=options.their_code,
    )
    told = _Progress(len(groups(request)))
    done = run(request, jobs=options.jobs, dask=options.dask, report=told)
    print(f"{len(done)} cells computed; results in {options.out}")


class _Progress:
    """A line on stderr for each group that is done; on a terminal, how far the next one is."""

    def __init__(self, count: int) -> None:
        self.count, self.done = count, 0

    def __call__(self, group: Group, done: int, total: int) -> None:
        ended, terminal = (done, total) == (1, 1), sys.stderr.isatty()
        self.done += ended
        if ended or terminal:
            step = "done" if ended else f"{done} of {total}"
            line = f"{self.done} of {self.count} groups; {group.name}: {step}"
            end = "\n" if ended else ""
            print(f"\r{line:<78}" if terminal else line, end=end, file=sys.stderr, flush=True)


def _report(options: argparse.Namespace) -> None:
    from studies.report import write

    for path in write(load_records(options.out), options.into or options.out / "report"):
        print(path)


if __name__ == "__main__":
    sys.exit(main())
