"""``iceform plan``: what a gradient step would take."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from iceform.cli.as_json import add_json, print_json
from iceform.tuning import EPS

if TYPE_CHECKING:
    from iceform.cli.planning import Need
    from iceform.paper import GradientStep

SUMMARY = "Say how many tokens, heads and bytes a gradient step needs for an error."
_MOST_NAMED_BYTES = 1 << 60  # beyond an EiB a power of ten says more


def main(words: Sequence[str]) -> int:
    """Print what a gradient step would need, and beside it what the other regime would."""
    options = _parser().parse_args(words)
    import torch

    from iceform.cli.planning import Need, fewest_tokens, other_regime
    from iceform.paper import GradientStep
    from iceform.validation import check_choice

    dtypes = {"float64": torch.float64, "float32": torch.float32}
    step = GradientStep(
        options.loss,
        dim=options.dim,
        samples=options.samples,
        bound=options.bound,
        eps=options.eps,
        regime=options.regime,
        dtype=dtypes[check_choice("dtype", options.dtype, tuple(dtypes))],
    )
    need, other = Need.of(step), other_regime(step, options.eps)
    fewest = fewest_tokens(step, options.eps)
    if options.json:
        beside = None if other is None else other.to_dict()
        print_json({**need.to_dict(), "other": beside, "fewest_tokens": fewest})
    else:
        _print_plan(step, [need] if other is None else [need, other], options.eps, fewest)
    return 0


def _parser() -> argparse.ArgumentParser:
    from iceform.expressions import LOSSES

    parser = argparse.ArgumentParser(
        prog="iceform plan",
        description="Say how many tokens, heads and bytes a gradient step needs for an error. "
        "Beside it stands what the other regime would need for the same error.",
        epilog="Example: iceform plan --dim 8 --samples 64 --eps 1e-8 --loss huber",
    )
    add = parser.add_argument
    add("--dim", "-d", type=int, required=True, help="entries of a sample")
    add("--samples", "-n", type=int, required=True, help="samples in the prompt")
    add("--eps", type=float, default=EPS, help="the error to certify, an entry (%(default)s)")
    add("--bound", type=float, default=1.0, help="of |x|, |y| and |w|, entrywise (%(default)s)")
    add("--loss", default="squared", help=f"one of {', '.join(LOSSES)} (%(default)s)")
    add("--regime", default="spectral", help="spectral, or hard as in the paper (%(default)s)")
    add("--dtype", default="float64", help="float64 or float32 (%(default)s)")
    add_json(parser)
    return parser


def _print_plan(step: GradientStep, needs: Sequence[Need], eps: float, fewest: int | None) -> None:
    from iceform.arithmetic import exactly
    from iceform.validation import dtype_name

    d, dtype = step.domain, dtype_name(step.dtype)
    low, high = d.residuals
    print(
        f"one gradient step, {step.loss.name} loss, {d.samples} samples of {d.dim} entries, "
        f"{dtype}, eps = {eps:g}\n"
    )
    _print_columns(["", *map(_heading, needs)], [_sizes(need) for need in needs])
    print()
    _print_columns(None, [_errors(need) for need in needs])
    print(
        f"\n|x|, |y|, |w| ≤ {exactly(d.x)}, so z in [{exactly(low)}, {exactly(high)}]; "
        f"certified for the {step.backend} backend"
    )
    for note in _notes(*needs):
        print(note)
    if fewest is not None:
        print(
            f"The shortest prompt known holds one table for all samples: {fewest:,} tokens "
            "(CompactStep)."
        )


def _print_columns(heads: Sequence[str] | None, columns: Sequence[dict[str, str]]) -> None:
    """A line for every name of the first column's: the name, then what each column has for it."""
    rows = [[name, *(column.get(name, "-") for column in columns)] for name in columns[0]]
    for name, *figures in rows if heads is None else [heads, *rows]:
        print(f"{name:<26}", *(f"{figure:>26}" for figure in figures))


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
    from iceform.validation import human_bytes

    return human_bytes(count) if count < _MOST_NAMED_BYTES else f"{count:.1e} B"


def _errors(need: Need) -> dict[str, str]:
    from iceform.arithmetic import at_most

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
