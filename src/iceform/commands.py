"""The subcommands of ``iceform``: what they print, and how errors read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

import iceform
from iceform.cli import missing_extra
from iceform.constructions import LOSSES, GradientStep, Plan
from iceform.constructions.residual import plan_residual
from iceform.errors import IceformError, PrecisionError
from iceform.experiments.commands import app as experiments
from iceform.interpolation import Interpolant
from iceform.interpolation.regimes import MOST_HARD_CELLS
from iceform.validation import check_choice, human_bytes

__all__ = ["Need", "app", "other_regime"]

_DTYPES = {"float64": torch.float64, "float32": torch.float32}
_USAGE = 2  # exit status for what a user can mend
_REFERENCE_CELLS = 1024  # where the hard regime's 1/P law is read off
_MOST_NAMED_BYTES = 1 << 60  # beyond an EiB a power of ten says more
_MOST_BUILT = 1 << 14  # grid tokens up to which a hard table is built instead of estimated

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compile an algorithm into a prompt, run it through frozen attention, get a proven error.",
)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """An error a user can mend is one line on stderr and exit status 2."""
    try:
        yield
    except IceformError as error:
        message = f"error: {error}"
    except ModuleNotFoundError as missing:
        extra = missing_extra(missing)
        if extra is None:
            raise
        message = extra
    else:
        return
    typer.echo(message, err=True)
    raise typer.Exit(_USAGE)


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
# demo
# ---------------------------------------------------------------------------------------------


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("out/report.html"),
) -> None:
    """Run losses and a library of programs on real data by frozen weights; write a report."""
    with _one_line_errors():
        from iceform.demo import show

        show(out)


app.add_typer(experiments, name="experiments")
