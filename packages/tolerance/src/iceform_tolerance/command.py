"""``iceform tolerance``: a kernel beside the error that rounding allows it."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict

import torch

from iceform.arithmetic import at_most
from iceform.cli import USAGE
from iceform.errors import DeviceError, IceformError, ProgramError
from iceform.validation import check_size
from iceform_tolerance.attack import DTYPES, QUICK, AttackRow, Tightness, attacked, row, tightness
from iceform_tolerance.backends import KernelBackend, backend_named
from iceform_tolerance.cases import Shape


def main(arguments: Sequence[str] | None = None) -> int:
    """Hold an attention kernel to its proven tolerance; the exit status.

    Parameters
    ----------
    arguments
        The words after ``iceform tolerance``; those of the process by default.

    Example
    -------
    >>> main(["--against", "sdpa", "--shape", "1", "2", "24", "8"])  # doctest: +SKIP
    0
    """
    asked = _parser().parse_args(arguments)
    try:
        return int(_run(asked))  # 1 where a kernel broke its bound
    except IceformError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="iceform tolerance",
        description="Hold an attention kernel to its proven tolerance, on random and adversarial "
        "inputs. Exit status 1 says that it broke the bound.",
        epilog="Example: iceform tolerance --against sdpa --dtype bf16 --shape 4 8 1024 64",
    )
    add = parser.add_argument
    add(
        "--against", default="sdpa",
        help="sdpa, math, efficient, flash, cudnn, or module:function with the arguments of "
        "torch's scaled_dot_product_attention (%(default)s)",
    )  # fmt: skip
    add(
        "--dtype", action="append",
        help="bf16, fp16, fp32, fp64, fp8_e4m3 or fp8_e5m2; again for more (bf16)",
    )  # fmt: skip
    add("--shape", type=int, nargs=4, default=(1, 2, 256, 64), help="batch, heads, tokens, dim")
    add("--kv-heads", type=int, help="key-value heads; all by default")
    add("--causal", action="store_true", help="mask the future in every case")
    add("--device", default="cpu", help="cpu or cuda")
    add("--seed", type=int, default=0, help="of the inputs")
    add(
        "--search", action=argparse.BooleanOptionalAction, default=True,
        help="look for the largest error of any correct kernel at that shape",
    )  # fmt: skip
    add(
        "--attack", type=int,
        help="instead: hold correct kernels, simulated and --against, on this many small hard "
        "cases against their bounds",
    )  # fmt: skip
    add("--json", action="store_true", help="print one JSON object instead")
    return parser


def _run(asked: argparse.Namespace) -> bool:
    """Run the command; return whether a bound was broken."""
    kernel, place = backend_named(asked.against), _device(asked.device)
    dtypes = [_dtype(name) for name in asked.dtype or ["bf16"]]
    if asked.attack is not None:
        count = check_size("--attack", asked.attack)
        totals = attacked(count, dtypes, place, [kernel], seed=asked.seed)
        if asked.json:
            _print_json({"attack": [total.to_dict() for total in totals]})
        else:
            _print_totals(totals)
        return any(total.violations for total in totals)
    return _compare(asked, kernel, dtypes, place)


def _compare(
    asked: argparse.Namespace, kernel: KernelBackend, dtypes: list[torch.dtype], place: torch.device
) -> bool:
    batch, heads, tokens, dim = asked.shape
    shape = Shape(batch, heads, tokens, dim, kv_heads=asked.kv_heads)
    rows = [row(kernel, shape, t, place, seed=asked.seed, causal=asked.causal) for t in dtypes]
    tight = [
        tightness(shape, t, place, [kernel], seed=asked.seed, cases=QUICK) if asked.search else None
        for t in dtypes
    ]
    if asked.json:
        found = [asdict(t) for t in tight if t is not None]
        _print_json({"rows": [r.to_dict() for r in rows], "search": found})
    else:
        _print_rows(rows, tight)
    return any(r.violations for r in rows)


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("no CUDA device is here; use --device cpu")
    if name not in ("cpu", "cuda"):
        raise DeviceError(f"--device must be cpu or cuda, got {name!r}")
    return torch.device(name)


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ProgramError(f"--dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


def _print_json(content: dict[str, object]) -> None:
    print(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False))


def _print_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    for line in (head, *lines):
        print(
            "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        )


def _print_rows(rows: Sequence[AttackRow], tight: Sequence[Tightness | None]) -> None:
    print(f"{rows[0].kernel}, {rows[0].shape}: {rows[0].elements:,} elements a dtype")
    _print_table(
        ("dtype", "error", "bound", "ratio", "on", "violations", "search"),
        [
            (
                found.dtype,
                _figure(found.error),
                at_most(found.bound, ".3g"),
                _figure(found.ratio),
                found.case,
                f"{found.violations:,}",
                "-" if near is None else f"{near.factor:.1f}x",
            )
            for found, near in zip(rows, tight, strict=True)
        ],
    )
    print(
        "error, bound, ratio: where the kernel came nearest to its bound, over all cases; search: "
        "the bound over the largest error of any correct kernel that was found"
    )
    for found in rows:
        for why in found.skipped:
            print(f"not run: {found.dtype}, {why}")


def _print_totals(totals: Sequence[AttackRow]) -> None:
    _print_table(
        ("kernel", "dtype", "cases", "elements", "violations", "error/bound", "on"),
        [
            (
                total.kernel,
                total.dtype,
                f"{total.cases:,}",
                f"{total.elements:,}",
                f"{total.violations:,}",
                _figure(total.ratio),
                f"{total.case}, {total.shape}",
            )
            for total in totals
        ],
    )


def _figure(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "NaN"
