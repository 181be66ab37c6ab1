"""``iceform plan``: what a gradient step would take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from iceform.arithmetic import at_most, exactly
from iceform.cli.failures import one_line_errors
from iceform.cli.planning import Need, fewest_tokens, other_regime
from iceform.constructions import GradientStep
from iceform.functions import LOSSES
from iceform.validation import check_choice, human_bytes

_DTYPES = {"float64": torch.float64, "float32": torch.float32}
_MOST_NAMED_BYTES = 1 << 60  # beyond an EiB a power of ten says more


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
    """Say how many tokens, heads and bytes a gradient step needs for an error.

    Beside it stands what the other regime would need for the same error.

    Example: iceform plan --dim 8 --samples 64 --eps 1e-8 --loss huber
    """
    with one_line_errors():
        kind = _DTYPES[check_choice("dtype", dtype, tuple(_DTYPES))]
        step = GradientStep(
            loss, dim=dim, samples=samples, bound=bound, eps=eps, regime=regime, dtype=kind
        )
        asked, other, fewest = Need.of(step), other_regime(step, eps), fewest_tokens(step, eps)
        if as_json:
            beside = None if other is None else other.to_dict()
            found = {**asked.to_dict(), "other": beside, "fewest_tokens": fewest}
            typer.echo(json.dumps(found, indent=2))
        else:
            _print_plan(step, [asked] if other is None else [asked, other], eps, fewest)


def _print_plan(step: GradientStep, needs: Sequence[Need], eps: float, fewest: int | None) -> None:
    d, dtype = step.domain, str(step.dtype).removeprefix("torch.")
    low, high = d.residuals
    table = Table(
        title=f"one gradient step, {step.loss.name} loss, {d.samples} samples of {d.dim} entries, "
        f"{dtype}, eps = {eps:g}",
        caption=f"|x|, |y|, |w| ≤ {exactly(d.x)}, so z in [{exactly(low)}, {exactly(high)}]; "
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
    if fewest is not None:
        console.print(
            f"The shortest prompt known holds one table for all samples: {fewest:,} tokens "
            "(CompactStep).",
            highlight=False,
        )


def _heading(need: Need) -> str:
    name = "hard (the paper's)" if need.regime == "hard" else need.regime
    return f"{name}, estimate" if need.terms is None else name


def _sizes(need: Need) -> dict[str, str]:
    sizes = need.plan
    about, count = ("", "{:,}".format) if need.terms is not None else ("≈ ", "{:.1e}".format)
    return {
        "grid tokens per sample": about + count(sizes.grid_tokens),
        "tokens": about + count(sizes.tokens),
        "tokens of all prompts": about + count(sizes.tokens * sizes.prompts),
        "features": f"{sizes.features:,}",
        "head_dim": f"{sizes.head_dim:,}",
        "heads": f"{sizes.heads:,}",
        "frozen parameters": about + count(sizes.parameters),
        "weight bytes": about + _bytes(sizes.weight_bytes),
        "dense bytes": about + _bytes(sizes.literal_bytes),
        "fused bytes": about + _bytes(sizes.fused_bytes),
        "dense flops": f"{about}{sizes.literal_flops:.1e}",
        "fused flops": f"{about}{sizes.fused_flops:.1e}",
    }


def _bytes(count: int) -> str:
    return human_bytes(count) if count < _MOST_NAMED_BYTES else f"{count:.1e} B"


def _errors(need: Need) -> dict[str, str]:
    if need.terms is None:
        return {}
    terms = {f"  {name}": at_most(value, ".2e") for name, value in need.terms.items()}
    return {"certified error": at_most(need.error, ".2e"), **terms}


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
