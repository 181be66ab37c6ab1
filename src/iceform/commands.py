"""The subcommands of ``iceform``: what they print, and how errors read."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

import iceform
from iceform.catalogue import ENTRIES, OPTIONS, Entry, entry_named
from iceform.cli import INTERRUPTED, USAGE, missing_extra
from iceform.constructions import LOSSES, GradientStep, Plan
from iceform.constructions.residual import plan_residual
from iceform.errors import IceformError, PrecisionError, ProgramError
from iceform.experiments.commands import app as experiments
from iceform.interpolation import Interpolant
from iceform.interpolation.regimes import MOST_HARD_CELLS
from iceform.outputs import check_targets, write_all
from iceform.validation import check_choice, human_bytes
from iceform.web.commands import play

if TYPE_CHECKING:
    from iceform.running import Run, Tick
    from iceform.tables import Table as Data

__all__ = ["Need", "app", "other_regime"]

_DTYPES = {"float64": torch.float64, "float32": torch.float32}
_REFERENCE_CELLS = 1024  # where the hard regime's 1/P law is read off
_MOST_NAMED_BYTES = 1 << 60  # beyond an EiB a power of ten says more
_MOST_BUILT = 1 << 14  # grid tokens up to which a hard table is built instead of estimated

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compile an algorithm into a prompt, run it through frozen attention, get a proven error.",
)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """An error a user can mend is one line on stderr and exit status 2; Ctrl-C is 130.

    Anything else is a failure of ours: its traceback is what a report of it needs, and Python's
    exit status is 1.
    """
    try:
        yield
    except IceformError as error:
        message = f"error: {error}"
    except ModuleNotFoundError as missing:
        extra = missing_extra(missing)
        if extra is None:
            raise
        message = extra
    except KeyboardInterrupt:
        typer.echo("interrupted: nothing was written", err=True)
        raise typer.Exit(INTERRUPTED) from None
    else:
        return
    typer.echo(" ".join(message.split()), err=True)
    raise typer.Exit(USAGE)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"iceform {iceform.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


# ---------------------------------------------------------------------------------------------
# plan
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """What a regime needs for an eps.

    Attributes
    ----------
    regime
        "spectral" or "hard".
    plan
        Its sizes.
    error
        The error it is certified to.
    terms
        The parts of that error; None for an estimate.
    refusal
        Why the library would not build it; None where it would.
    """

    regime: str
    plan: Plan
    error: float
    terms: dict[str, float] | None = None
    refusal: str | None = None

    @classmethod
    def of(cls, step: GradientStep) -> Need:
        """The needs of a step that was planned."""
        certificate = step.certificate
        return cls(step.regime, step.plan, certificate.error, dict(certificate.terms))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "regime": self.regime,
            "plan": self.plan.to_dict(),
            "error": self.error,
            "terms": self.terms,
            "estimate": self.terms is None,
            "refusal": self.refusal,
        }


def other_regime(step: GradientStep, eps: float) -> Need | None:
    """What the regime that was not asked for needs for the same eps, without allocating it.

    The hard regime is estimated from its law where it is too large to build. None where the
    spectral one cannot be had.
    """
    if step.regime == "hard":
        try:
            return Need.of(_again(step, eps, "spectral"))
        except PrecisionError:
            return None
    tokens = _hard_tokens(step, eps)
    if tokens > MOST_HARD_CELLS:
        return _estimate(step, tokens, eps, f"the library stops at {MOST_HARD_CELLS:,} grid tokens")
    if tokens > _MOST_BUILT:
        return _estimate(step, tokens, eps, None)
    try:
        return Need.of(_again(step, eps, "hard"))
    except PrecisionError as error:
        return _estimate(step, tokens, eps, str(error))


def _again(step: GradientStep, eps: float, regime: str) -> GradientStep:
    d = step.domain
    return GradientStep(
        step.loss, dim=d.dim, samples=d.samples, bound=d.x, eps=eps, regime=regime, dtype=step.dtype
    )


def _hard_tokens(step: GradientStep, eps: float) -> int:
    """Grid tokens of the hard regime for eps: its error falls as 1/P."""
    low, high = step.domain.residuals
    table = Interpolant.hard(step.loss.derivative, low, high, cells=_REFERENCE_CELLS)
    gain = step.rates.gain * step.domain.x
    return 1 + math.ceil(_REFERENCE_CELLS * gain * table.error / eps)


def _estimate(step: GradientStep, tokens: int, eps: float, refusal: str | None) -> Need:
    d = step.domain
    sizes = plan_residual(d.dim, d.samples, tokens, 1, step.dtype, glm=step.loss.kind == "glm")
    return Need("hard", sizes, eps, refusal=refusal)


@app.command()
def plan(
    dim: Annotated[int, typer.Option("--dim", "-d", help="Entries of a sample.")],
    samples: Annotated[int, typer.Option("--samples", "-n", help="Samples in the prompt.")],
    eps: Annotated[float, typer.Option(help="The error to certify, in every entry.")] = 1e-6,
    bound: Annotated[float, typer.Option(help="Bound of |x|, |y| and |w|, entrywise.")] = 1.0,
    loss: Annotated[str, typer.Option(help=f"One of {', '.join(LOSSES)}.")] = "squared",
    regime: Annotated[str, typer.Option(help="spectral, or hard as in the paper.")] = "spectral",
    dtype: Annotated[str, typer.Option(help="float64 or float32.")] = "float64",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what a gradient step would take, before anything is allocated.

    Beside it stands what the other regime would need for the same error.

    Example: iceform plan --dim 8 --samples 64 --eps 1e-8 --loss huber
    """
    with _one_line_errors():
        kind = _DTYPES[check_choice("dtype", dtype, tuple(_DTYPES))]
        step = GradientStep(
            loss, dim=dim, samples=samples, bound=bound, eps=eps, regime=regime, dtype=kind
        )
        asked, other = Need.of(step), other_regime(step, eps)
        if as_json:
            beside = None if other is None else other.to_dict()
            typer.echo(json.dumps({**asked.to_dict(), "other": beside}, indent=2))
        else:
            _print_plan(step, [asked] if other is None else [asked, other], eps)


def _print_plan(step: GradientStep, needs: Sequence[Need], eps: float) -> None:
    d, dtype = step.domain, str(step.dtype).removeprefix("torch.")
    low, high = d.residuals
    table = Table(
        title=f"one gradient step, {step.loss.name} loss, {d.samples} samples of {d.dim} entries, "
        f"{dtype}, eps = {eps:g}",
        caption=f"|x|, |y|, |w| ≤ {d.x:g}, so z in [{low:g}, {high:g}]; "
        f"certified for the {step.backend} backend",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("")
    for need in needs:
        table.add_column(_heading(need), justify="right")
    sizes = [_sizes(need) for need in needs]
    for name in sizes[0]:
        table.add_row(name, *(column[name] for column in sizes))
    table.add_section()
    errors = [_errors(need) for need in needs]
    for name in errors[0]:
        table.add_row(name, *(column.get(name, "-") for column in errors))
    console = Console()
    console.print(table)
    for note in _notes(*needs):
        console.print(note, highlight=False)


def _heading(need: Need) -> str:
    name = "hard (the paper's)" if need.regime == "hard" else need.regime
    return f"{name}, estimate" if need.terms is None else name


def _sizes(need: Need) -> dict[str, str]:
    sizes = need.plan
    about, count = ("", "{:,}".format) if need.terms is not None else ("≈ ", "{:.1e}".format)
    return {
        "grid tokens per sample": about + count(sizes.grid_tokens),
        "tokens": about + count(sizes.tokens),
        "features": f"{sizes.features:,}",
        "head_dim": f"{sizes.head_dim:,}",
        "heads": f"{sizes.heads:,}",
        "frozen parameters": about + count(sizes.parameters),
        "weight bytes": about + _bytes(sizes.weight_bytes),
        "dense bytes": about + _bytes(sizes.dense_bytes),
        "fused bytes": about + _bytes(sizes.fused_bytes),
        "dense flops": f"{about}{sizes.dense_flops:.1e}",
        "fused flops": f"{about}{sizes.fused_flops:.1e}",
    }


def _bytes(count: int) -> str:
    return human_bytes(count) if count < _MOST_NAMED_BYTES else f"{count:.1e} B"


def _errors(need: Need) -> dict[str, str]:
    if need.terms is None:
        return {}
    terms = {f"  {name}": f"{value:.2e}" for name, value in need.terms.items()}
    return {"certified error": f"{need.error:.2e}", **terms}


def _notes(asked: Need, other: Need | None = None) -> Iterator[str]:
    if other is None:
        yield "The spectral regime cannot be had for this eps."
    if other is None or other.terms is not None:
        return
    ratio = other.plan.grid_tokens / asked.plan.grid_tokens
    yield (
        "The hard regime's error falls as 1/P: for this eps it would need about "
        f"{ratio:,.0f} times the grid tokens."
    )
    if other.refusal is not None:
        yield f"It cannot be had: {other.refusal}."


# ---------------------------------------------------------------------------------------------
# list
# ---------------------------------------------------------------------------------------------

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def _print_json(content: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False))


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the programs that run on a table, their options and scikit-learn's names for them.

    Example: iceform list
    """
    with _one_line_errors():
        if as_json:
            _print_json({"programs": [entry.to_dict() for entry in ENTRIES.values()]})
            return
        from iceform.console import print_catalogue

        print_catalogue(Console())


# ---------------------------------------------------------------------------------------------
# run and explain
# ---------------------------------------------------------------------------------------------


def _programs(incomplete: str) -> list[tuple[str, str]]:
    """Completions of a program's name."""
    return [(e.name, e.says) for e in ENTRIES.values() if e.name.startswith(incomplete)]


def _columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completions of a column's name, from the file that was named before."""
    path = ctx.params.get("data")
    try:
        from iceform.tables import read

        return [c for c in read(path or "", fewest=0).columns if c.startswith(incomplete)]
    except (IceformError, TypeError, ModuleNotFoundError):
        return []


def _choices(*names: str) -> Any:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _option(name: str, **more: Any) -> Any:
    """An option of some programs, with its help."""
    owners = ", ".join(entry.name for entry in ENTRIES.values() if name in entry.options)
    text = f"{OPTIONS[name].says} [dim]{owners}[/dim]"
    return typer.Option(OPTIONS[name].flag, help=text, rich_help_panel="Program options", **more)


_DATA, _OUT = "Data", "Output"
Program = Annotated[
    str, typer.Argument(help="One of iceform list.", autocompletion=_programs, metavar="PROGRAM")
]
DataFile = Annotated[Path, typer.Option("--data", help="CSV or Parquet.", rich_help_panel=_DATA)]
Target = Annotated[
    str | None,
    typer.Option(help="The column to predict.", autocompletion=_columns, rich_help_panel=_DATA),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        help="A column to leave out; may be repeated.",
        autocompletion=_columns,
        rich_help_panel=_DATA,
    ),
]
Text = Annotated[
    list[str] | None,
    typer.Option(
        help="A column of numbers that are names; may be repeated.",
        autocompletion=_columns,
        rich_help_panel=_DATA,
    ),
]
Scale = Annotated[
    bool,
    typer.Option(
        "--scale/--no-scale",
        help="Centre numbers and divide them by their standard deviation.",
        rich_help_panel=_DATA,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse columns that would be left out: identifiers, constants in the training rows.",
        rich_help_panel=_DATA,
    ),
]
Unknown = Annotated[
    str,
    typer.Option(
        help="Texts that no training row has: error, or ignore (zeros).",
        autocompletion=_choices("error", "ignore"),
        rich_help_panel=_DATA,
    ),
]
Alpha = Annotated[float | None, _option("alpha")]
L1Ratio = Annotated[float | None, _option("l1_ratio")]
InversePenalty = Annotated[float | None, _option("C")]
Epsilon = Annotated[float | None, _option("epsilon")]
Quantile = Annotated[float | None, _option("quantile")]
Neighbors = Annotated[int | None, _option("n_neighbors")]
Gamma = Annotated[float | None, _option("gamma")]
Components = Annotated[int | None, _option("n_components")]
Tol = Annotated[float | None, _option("tol")]
MaxPasses = Annotated[int | None, _option("max_passes")]
Precondition = Annotated[
    str | None, _option("precondition", autocompletion=_choices("whiten", "diagonal", "none"))
]


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The program options among a command's arguments that were given."""
    return {name: values[name] for name in OPTIONS if values[name] is not None}


@app.command()
def run(
    program: Program,
    data: DataFile,
    target: Target = None,
    test_share: Annotated[
        float, typer.Option(help="Share of the rows to test on.", rich_help_panel=_DATA)
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Of the split.", rich_help_panel=_DATA)] = 0,
    drop: Drop = None,
    text: Text = None,
    scale: Scale = True,
    unknown: Unknown = "error",
    strict: Strict = False,
    new: Annotated[
        Path | None,
        typer.Option(help="More rows to predict, without a target.", rich_help_panel=_DATA),
    ] = None,
    alpha: Alpha = None,
    l1_ratio: L1Ratio = None,
    C: InversePenalty = None,
    epsilon: Epsilon = None,
    quantile: Quantile = None,
    n_neighbors: Neighbors = None,
    gamma: Gamma = None,
    n_components: Components = None,
    tol: Tol = None,
    max_passes: MaxPasses = None,
    precondition: Precondition = None,
    eps: Annotated[
        float | None,
        typer.Option(help="Certify this error in every entry, or refuse."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Run scikit-learn beside it.")
    ] = True,
    report: Annotated[
        Path | None, typer.Option(help="Write a page about the run.", rich_help_panel=_OUT)
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(help="Write predictions, as CSV or Parquet.", rich_help_panel=_OUT),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a program on a table by frozen attention, beside scikit-learn, with a proven error.

    Example: iceform run ridge --data houses.csv --target price --alpha 10 --report houses.html
    """
    given = _given(locals())
    with _one_line_errors():
        from iceform.running import STAGES, Settings
        from iceform.running import run as run_program

        settings = Settings(
            entry_named(program), given, device, eps, test_share, seed, unknown, scale, strict,
            compare,
        )  # fmt: skip
        files = {"report": report, "predictions": predictions}
        targets = {what: path for what, path in files.items() if path is not None}
        inputs = [path for path in (data, new) if path is not None]
        check_targets(targets, inputs)
        with _progress(len(STAGES) + 2) as tick:
            tick("reading")
            tables = _read(settings.entry, data, target, new, drop or (), text or ())
            found = run_program(settings, *tables, tick)
            tick("writing")
            write_all(_contents(found, targets, _command(found, data, new, drop or [], text or [])))
        for warning in found.warnings:
            typer.echo(f"warning: {warning}", err=True)
        if as_json:
            _print_json({**found.to_dict(), "files": {k: str(v) for k, v in targets.items()}})
        else:
            _print_found(found, targets)


def _read(
    entry: Entry,
    data: Path,
    target: str | None,
    new: Path | None,
    drop: Sequence[str],
    text: Sequence[str],
) -> tuple[Data, Data | None]:
    """The table, and the one with more rows to predict."""
    from iceform.tables import read, read_like

    if entry.target and target is None:
        columns = ", ".join(read(data, fewest=0).columns)
        raise ProgramError(f"{entry.name} needs a --target; {data.name} has the columns {columns}")
    table = read(data, target, drop=drop, text=text)
    return table, None if new is None else read_like(new, table)


def _print_found(found: Run, targets: Mapping[str, Path]) -> None:
    from iceform.console import print_run

    console = Console()
    print_run(console, found)
    for what, path in targets.items():
        console.print(f"Wrote the {what} to {path}", highlight=False, soft_wrap=True)


@contextmanager
def _progress(steps: int) -> Iterator[Tick]:
    """A bar on stderr where that is a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda stage: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<11}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=steps)

        def tick(stage: str) -> None:
            bar.update(task, advance=1, description=stage)

        yield tick


def _contents(found: Run, targets: Mapping[str, Path], command: str) -> dict[Path, bytes]:
    """What goes into each file."""
    contents = {}
    if "report" in targets:
        from iceform.run_page import page

        contents[targets["report"]] = page(found, command).encode()
    if "predictions" in targets:
        contents[targets["predictions"]] = _predictions(found, targets["predictions"])
    return contents


def _predictions(found: Run, path: Path) -> bytes:
    """One line per row: where it is from, what it was, what is predicted."""
    from iceform.tables import write_rows

    parts = []
    for part in found.parts:
        columns: dict[str, Any] = {"row": part.rows, "part": part.name}
        if found.settings.entry.target:
            columns["actual"] = [None] * len(part.rows) if part.actual is None else part.actual
            columns["predicted"] = part.predicted
        else:
            scores = part.predicted.T
            columns |= {f"component_{k + 1}": values for k, values in enumerate(scores)}
        parts.append(columns)
    return write_rows(parts, path.suffix)


def _command(
    found: Run, data: Path, new: Path | None, drop: Sequence[str], text: Sequence[str]
) -> str:
    """The command that does it again."""
    settings = found.settings
    words = ["iceform", "run", settings.entry.name, "--data", str(data)]
    words += ["--target", found.target] if found.target else []
    for name, value in settings.options.items():
        words += [OPTIONS[name].flag, str(value)]
    words += ["--test-share", str(settings.test_share), "--seed", str(settings.seed)]
    for flag, names in (("--drop", drop), ("--text", text)):
        words += [word for name in names for word in (flag, name)]
    words += [] if settings.scale else ["--no-scale"]
    words += ["--strict"] if settings.strict else []
    words += [] if settings.unknown == "error" else ["--unknown", settings.unknown]
    words += [] if new is None else ["--new", str(new)]
    words += [] if settings.eps is None else ["--eps", str(settings.eps)]
    words += [] if settings.device == "cpu" else ["--device", settings.device]
    return shlex.join(words)


@app.command()
def explain(
    program: Program,
    data: Annotated[
        Path | None,
        typer.Option(help="CSV or Parquet; twelve flats by default.", rich_help_panel=_DATA),
    ] = None,
    target: Target = None,
    drop: Drop = None,
    text: Text = None,
    scale: Scale = True,
    alpha: Alpha = None,
    l1_ratio: L1Ratio = None,
    C: InversePenalty = None,
    epsilon: Epsilon = None,
    quantile: Quantile = None,
    n_neighbors: Neighbors = None,
    gamma: Gamma = None,
    n_components: Components = None,
    tol: Tol = None,
    max_passes: MaxPasses = None,
    precondition: Precondition = None,
    full: Annotated[bool, typer.Option("--full", help="Print every token that is seen.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a program writes into its prompt, token by token, and the proof of its answer.

    Example: iceform explain lasso
    """
    given = _given(locals())
    with _one_line_errors():
        from iceform.console import print_explanation
        from iceform.explaining import example
        from iceform.explaining import explain as open_prompts
        from iceform.running import Settings

        settings = Settings(entry_named(program), given, scale=scale)
        if data is None:
            _check_no_columns(target, drop, text)
            table = example(settings.entry)
        else:
            table, _ = _read(settings.entry, data, target, None, drop or (), text or ())
        found = open_prompts(settings, table)
        for warning in found.warnings:
            typer.echo(f"warning: {warning}", err=True)
        if as_json:
            _print_json(found.to_dict())
        else:
            print_explanation(Console(), found, full=full)


def _check_no_columns(*named: object) -> None:
    if any(named):
        raise ProgramError("--target, --drop and --text name columns; give their file with --data")


# ---------------------------------------------------------------------------------------------
# demo
# ---------------------------------------------------------------------------------------------


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("out/report.html"),
    small: Annotated[
        bool,
        typer.Option(
            "--small",
            help="A few patients instead: losses by literal matrices, 17 programs by the "
            "universal machine.",
        ),
    ] = False,
) -> None:
    """Run the whole library on the Ames houses by one frozen layer; write a report."""
    with _one_line_errors():
        if small:
            from iceform.demo import show as show_patients

            show_patients(out)
            return
        from iceform.ames_page import show

        show(out)


app.add_typer(experiments, name="experiments")
app.command()(play)
