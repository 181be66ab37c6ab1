"""The commands that this package adds to ``iceform``: run, list, explain, demo."""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from iceform import store
from iceform.cli import USAGE, one_line_errors
from iceform.errors import IntegrityError, ProgramError
from iceform_estimators.algorithms import Option, kinds, named
from iceform_estimators.tuning import TEST_SHARE

_INSPECT = (
    "iceform inspect is gone, and with it schemas: pandas reads tables now. See what it reads by "
    "python -c \"import pandas; pandas.read_csv('FILE').info()\", mend the file there, and name "
    "columns of codes by iceform run --text"
)


def all_options() -> dict[str, Option]:
    """The options of all algorithms by name, as the first that has one describes it."""
    every = [one for kind in kinds() for one in kind.options().values() if one.command]
    return {one.name: one for one in reversed(every)}


def command(words: Sequence[str]) -> int:
    """Run one command, its name first: 0 done, 2 what a user can mend, 130 after Ctrl-C.

    An error that a user can mend is one line on standard error. Anything else is a failure of ours:
    its traceback is what a report of it needs.
    """
    try:
        with one_line_errors():
            if words[0] == "inspect":
                raise ProgramError(_INSPECT)
            given = _parser().parse_args(words)
            given.work(given)
    except SystemExit as left:  # what is wrong has been said
        return int(left.code or 0)
    except BrokenPipeError:  # whoever reads has enough; nothing is left to be flushed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class _CommandParser(argparse.ArgumentParser):
    """One line for what is wrong, without the usage."""

    def error(self, message: str) -> Any:
        self.exit(USAGE, f"error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    whole = _CommandParser(prog="iceform", allow_abbrev=False)
    commands = whole.add_subparsers(required=True, metavar="COMMAND", parser_class=_CommandParser)

    def add(name: str, work: Callable[[argparse.Namespace], None], says: str) -> Any:
        one = commands.add_parser(name, help=says, description=says, allow_abbrev=False)
        one.set_defaults(work=work)
        return one

    run = add("run", _run, "Run an algorithm on a table, with a proven error, beside scikit-learn.")
    run.add_argument("algorithm", help="one of iceform list")
    run.add_argument("--data", type=Path, required=True, help="CSV or Parquet")
    _add_columns(run)
    run.add_argument(
        "--test-share", type=float, default=TEST_SHARE, help="share of the rows to test on"
    )
    run.add_argument("--seed", type=int, default=0, help="of the split")
    run.add_argument("--unknown", default="error", metavar="HOW",
                     help="texts that no training row has: error, or ignore (zeros)")  # fmt: skip
    run.add_argument("--new", type=Path, help="more rows to predict, without a target")
    run.add_argument("--eps", type=float, help="certify this error in every entry, or refuse")
    run.add_argument("--backend", default="auto", help="auto, or literal for every matrix")
    run.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    run.add_argument("--no-compare", dest="compare", action="store_false",
                     help="do not run scikit-learn beside it")  # fmt: skip
    run.add_argument("--report", type=Path, help="write a page about the run")
    run.add_argument("--predictions", type=Path, help="write predictions, as CSV or Parquet")
    _add_options(run)
    explain = add("explain", _explain, "Show an algorithm's prompt, and the proof of its answer.")
    explain.add_argument("algorithm", help="one of iceform list")
    explain.add_argument("--data", type=Path, help="CSV or Parquet; twelve flats by default")
    _add_columns(explain)
    explain.add_argument("--full", action="store_true", help="print every token that is seen")
    _add_options(explain)
    listed = add("list", _list, "List the algorithms that run on a table, and their options.")
    demo = add("demo", _demo, "Run every algorithm on the Ames houses; write a report.")
    demo.add_argument("--out", type=Path, default=Path("out/report.html"), help="the report's file")
    for one in (run, explain, listed):
        one.add_argument("--json", action="store_true", help="print one JSON object instead")
    return whole


def _add_columns(parser: argparse.ArgumentParser) -> None:
    more: dict[str, Any] = {"action": "append", "default": [], "metavar": "COLUMN"}
    parser.add_argument("--target", help="the column to predict")
    parser.add_argument("--drop", **more, help="a column to leave out; may be repeated")
    parser.add_argument("--text", **more, help="a column of numbers that are names")
    parser.add_argument("--no-scale", dest="scale", action="store_false",
                        help="leave numbers as they are: neither centred nor scaled")  # fmt: skip


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options of algorithms")
    for one in all_options().values():
        owners = [kind.name for kind in kinds() if one.name in kind.options()]
        kind = str if one.choices or one.kind is bool else one.kind
        says = f"{one.says} ({', '.join(owners)})".replace("%", "%%")
        group.add_argument(one.flag, dest=f"option_{one.name}", type=kind, help=says,
                           metavar=one.name.upper())  # fmt: skip


def _settings(given: argparse.Namespace) -> Any:
    from iceform_estimators.command.running import RunSettings

    kept = vars(given)
    options = {
        name.removeprefix("option_"): value
        for name, value in kept.items()
        if name.startswith("option_") and value is not None
    }
    names = ("device", "eps", "test_share", "seed", "unknown", "scale", "compare", "backend")
    return RunSettings(named(given.algorithm), options, **{n: kept[n] for n in names if n in kept})


def _table(given: argparse.Namespace, entry: Any) -> Any:
    from iceform_estimators.tables import columns_of, read

    if entry.needs_target() and given.target is None:
        columns = ", ".join(columns_of(given.data))
        raise ProgramError(
            f"{entry.name} needs a --target; {given.data.name} has the columns {columns}"
        )
    return read(given.data, given.target, drop=given.drop, text=given.text)


def _run(given: argparse.Namespace) -> None:
    from iceform_estimators.command.running import run
    from iceform_estimators.tables import read_like

    settings = _settings(given)
    files = {what: getattr(given, what) for what in ("report", "predictions")}
    files = {what: path for what, path in files.items() if path is not None}
    check_targets(files, [path for path in (given.data, given.new) if path is not None])
    table = _table(given, settings.entry)
    new = None if given.new is None else read_like(given.new, table)
    ran = run(settings, table, new, _tick)
    _tick("writing")
    write_all(_contents(ran, files, given))
    _tick("")
    _show(ran, given, {**ran.to_dict(), "files": {k: str(v) for k, v in files.items()}})
    for what, path in {} if given.json else files.items():
        print(f"Wrote the {what} to {path}")


def _tick(stage: str) -> None:
    """The stage on standard error where that is a terminal, nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r{stage:<12}\r", end="", file=sys.stderr, flush=True)


def _show(shown: Any, given: argparse.Namespace, content: Mapping[str, Any]) -> None:
    from iceform_estimators.command import console

    for warning in shown.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if given.json:
        print(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        print(console.text_of(shown, full=getattr(given, "full", False)))


def _contents(ran: Any, files: Mapping[str, Path], given: argparse.Namespace) -> dict[Path, bytes]:
    """What goes into each file."""
    contents = {}
    if "report" in files:
        from iceform_estimators.command.run_page import page

        again = shlex.join(_again(ran.settings, given))
        contents[files["report"]] = page(ran, again).encode()
    if "predictions" in files:
        contents[files["predictions"]] = _rows_of(ran, files["predictions"].suffix)
    return contents


def _rows_of(ran: Any, suffix: str) -> bytes:
    """One line per row: where it is from, what it was, what is predicted."""
    import pandas

    frames = []
    for part in ran.parts:
        columns: dict[str, Any] = {"row": part.rows, "part": part.name}
        if ran.settings.entry.needs_target():
            actual = [None] * len(part.rows) if part.actual is None else part.actual
            columns |= {"actual": actual, "predicted": part.predicted}
        else:
            columns |= {f"component_{k + 1}": one for k, one in enumerate(part.predicted.T)}
        frames.append(pandas.DataFrame(columns))
    frame, buffer = pandas.concat(frames, ignore_index=True), io.BytesIO()
    (frame.to_parquet if suffix in (".parquet", ".pq") else frame.to_csv)(buffer, index=False)
    return buffer.getvalue()


def _again(settings: Any, given: argparse.Namespace) -> list[str]:
    """The command that does it again."""
    words = ["iceform", "run", settings.entry.name]
    shared = ("data", "target", "test_share", "seed", "unknown", "new", "eps", "backend", "device")
    flags = {name: getattr(given, name) for name in shared} | dict(settings.options)
    for name, value in flags.items():
        words += [] if value is None else ["--" + name.replace("_", "-"), str(value)]
    for flag, names in (("--drop", given.drop), ("--text", given.text)):
        words += [word for name in names for word in (flag, name)]
    return words + ([] if given.scale else ["--no-scale"])


def _explain(given: argparse.Namespace) -> None:
    from iceform_estimators.command.explaining import example, explain

    settings = _settings(given)
    if given.data is None and (given.target or given.drop or given.text):
        raise ProgramError("--target, --drop and --text name columns; give their file with --data")
    entry = settings.entry
    shown = explain(settings, example(entry) if given.data is None else _table(given, entry))
    _show(shown, given, shown.to_dict())


def _list(given: argparse.Namespace) -> None:
    from iceform_estimators.command.console import catalogue

    if given.json:
        records = {"algorithms": [kind.record() for kind in kinds()]}
        print(json.dumps(records, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        print(catalogue())


def _demo(given: argparse.Namespace) -> None:
    from iceform_estimators.demo.page import show

    show(given.out)


# Where a command may write is checked before any work is done; then all of its files or none.


def check_targets(targets: Mapping[str, Path], inputs: Sequence[Path] = ()) -> None:
    """Refuse targets that could not be written, before any work is done.

    Parameters
    ----------
    targets
        What each file is, for messages, and where it goes.
    inputs
        Files that must not be overwritten.
    """
    taken = {_real(path): f"the input {path}" for path in inputs}
    for what, path in targets.items():
        real = _real(path)
        if real in taken:
            raise ProgramError(f"{what} would overwrite {taken[real]}; name another file")
        taken[real] = f"{path}, which another output goes to"
        if real.is_dir():
            raise IntegrityError(f"{what}: {path} is a directory; name a file in it")
        if real.exists() and not real.is_file():
            raise IntegrityError(f"{what}: {path} is not a plain file; name another")
        _check_folder(what, path, real.parent)


def _check_folder(what: str, path: Path, folder: Path) -> None:
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise IntegrityError(f"{what}: {path} cannot be made, {folder} is not a directory")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise IntegrityError(f"{what}: {path} cannot be made, {folder} is not writable")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Write every file or none, where links lead."""
    try:
        store.write({_real(path): content for path, content in contents.items()})
    except OSError as failed:
        named = failed.filename or ", ".join(map(str, contents))
        raise IntegrityError(f"{named} cannot be written: {failed.strerror}") from None


def _entry(name: str) -> Callable[[Sequence[str]], int]:
    """What ``iceform NAME`` calls with the words behind the name."""
    return lambda words: command([name, *words])


# The entry points in pyproject.toml.
run_command, list_command, explain_command, inspect_command, demo_command = map(
    _entry, ("run", "list", "explain", "inspect", "demo")
)
