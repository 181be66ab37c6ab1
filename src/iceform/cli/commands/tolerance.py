"""``iceform tolerance``: a kernel beside the error that rounding allows it."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from iceform.cli.as_json import AsJson, print_json
from iceform.cli.failures import one_line_errors
from iceform.errors import DeviceError, ProgramError
from iceform.validation import check_size

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from iceform.tolerances import Backend, Row, Shape, Tightness

_VIOLATED = 1  # exit status when a kernel broke its bound
_PANEL = "What is run"


def tolerance(
    against: Annotated[
        str,
        typer.Option(
            help="sdpa, math, efficient, flash, cudnn, or module:function with the arguments of "
            "torch's scaled_dot_product_attention.",
            rich_help_panel=_PANEL,
        ),
    ] = "sdpa",
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            help="bf16, fp16, fp32, fp64, fp8_e4m3 or fp8_e5m2; again for more. bf16 by default.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    shape: Annotated[
        tuple[int, int, int, int],
        typer.Option(help="batch, heads, tokens, dim.", rich_help_panel=_PANEL),
    ] = (1, 2, 256, 64),
    kv_heads: Annotated[
        int | None, typer.Option(help="Key-value heads; all by default.", rich_help_panel=_PANEL)
    ] = None,
    causal: Annotated[
        bool,
        typer.Option("--causal", help="Mask the future in every case.", rich_help_panel=_PANEL),
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.", rich_help_panel=_PANEL)] = "cpu",
    seed: Annotated[int, typer.Option(help="Of the inputs.", rich_help_panel=_PANEL)] = 0,
    search: Annotated[
        bool,
        typer.Option(help="Look for the largest error of any correct kernel at that shape."),
    ] = True,
    attack: Annotated[
        int | None,
        typer.Option(
            help="Instead: hold correct kernels, simulated and --against, on this many small hard "
            "cases against their bounds.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold an attention kernel to its proven tolerance, on random and adversarial inputs.

    Exit status 1 says that it broke the bound.

    Example: iceform tolerance --against sdpa --dtype bf16 --shape 4 8 1024 64
    """
    with one_line_errors():
        from rich.console import Console

        from iceform.tolerances import Shape, backend_named

        kernel, place = backend_named(against), _device(device)
        dtypes = [_dtype(name) for name in dtype or ["bf16"]]
        console = Console()
        if attack is not None:
            count = check_size("--attack", attack)
            broken = _attack(console, kernel, dtypes, place, count, seed, as_json)
        else:
            whole = Shape(*shape, kv_heads=kv_heads)
            broken = _compare(console, kernel, whole, dtypes, place, seed, causal, search, as_json)
    if broken:
        raise typer.Exit(_VIOLATED)


def _device(name: str) -> torch.device:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("no CUDA device is here; use --device cpu")
    if name not in ("cpu", "cuda"):
        raise DeviceError(f"--device must be cpu or cuda, got {name!r}")
    return torch.device(name)


def _dtype(name: str) -> torch.dtype:
    from iceform.tolerances import DTYPES

    if name not in DTYPES:
        raise ProgramError(f"--dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


def _compare(
    console: Console,
    kernel: Backend,
    shape: Shape,
    dtypes: list[torch.dtype],
    device: torch.device,
    seed: int,
    causal: bool,
    search: bool,
    as_json: bool,
) -> bool:
    from iceform.tolerances import QUICK, row, tightness

    rows = [row(kernel, shape, t, device, seed=seed, causal=causal) for t in dtypes]
    tight = [
        tightness(shape, t, device, [kernel], seed=seed, cases=QUICK) if search else None
        for t in dtypes
    ]
    if as_json:
        found = [asdict(t) for t in tight if t is not None]
        print_json({"rows": [r.to_dict() for r in rows], "search": found})
    else:
        _print_rows(console, rows, tight)
    return any(r.violations for r in rows)


def _print_rows(console: Console, rows: list[Row], tight: list[Tightness | None]) -> None:
    from rich import box
    from rich.table import Table

    from iceform.arithmetic import at_most

    grid = Table(box=box.SIMPLE_HEAD)
    for head in ("dtype", "error", "bound", "ratio", "on", "violations", "search"):
        grid.add_column(head, justify="left" if head in ("dtype", "on") else "right")
    for found, near in zip(rows, tight, strict=True):
        grid.add_row(
            found.dtype, _figure(found.error), at_most(found.bound, ".3g"), _figure(found.ratio),
            found.case, f"{found.violations:,}", "-" if near is None else f"{near.factor:.1f}x",
        )  # fmt: skip
    console.print(f"{rows[0].kernel}, {rows[0].shape}: {rows[0].elements:,} elements a dtype")
    console.print(grid)
    console.print(
        "error, bound, ratio: where the kernel came nearest to its bound, over all cases; search: "
        "the bound over the largest error of any correct kernel that was found",
        highlight=False,
    )
    for found in rows:
        for why in found.skipped:
            console.print(f"not run: {found.dtype}, {why}", highlight=False)


def _attack(
    console: Console,
    kernel: Backend,
    dtypes: list[torch.dtype],
    device: torch.device,
    cases: int,
    seed: int,
    as_json: bool,
) -> bool:
    from iceform.tolerances import attacked

    totals = attacked(cases, dtypes, device, [kernel], seed=seed)
    if as_json:
        print_json({"attack": [total.to_dict() for total in totals]})
    else:
        _print_totals(console, totals)
    return any(total.violations for total in totals)


def _print_totals(console: Console, totals: list[Row]) -> None:
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD)
    for head in ("kernel", "dtype", "cases", "elements", "violations", "error/bound", "on"):
        grid.add_column(head, justify="left" if head in ("kernel", "dtype", "on") else "right")
    for total in totals:
        grid.add_row(
            total.kernel, total.dtype, f"{total.cases:,}", f"{total.elements:,}",
            f"{total.violations:,}", _figure(total.ratio), f"{total.case}, {total.shape}",
        )  # fmt: skip
    console.print(grid)


def _figure(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "NaN"
