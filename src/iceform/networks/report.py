"""Report: what of a network is emulated, on which ranges, and how far off."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from iceform.arithmetic import at_most
from iceform.networks.frozen import NetworkSizes
from iceform.validation import dtype_name

_HEADINGS = ("piece", "kind", "how", "range", "tokens", "certified", "measured", "carried")


@dataclass(frozen=True)
class ReportRow:
    """One piece of a network, as a row of its report.

    Attributes
    ----------
    name, kind, how
        Where it is, what it computes, and how.
    range
        Largest value that may be looked up (heads: largest logit; norms: longest token).
    tokens
        Grid tokens of its table (heads: tokens attended to).
    certified
        Proven sup-norm error of the piece alone.
    measured
        The largest error that was seen; 0 if nothing was measured.
    carried
        Certified 2-norm of a token's error behind the piece, everything before it included.
    widened
        How often its range had to be widened.
    standing
        Whether ``certified`` is "proven" or "estimated".

    Examples
    --------
    >>> net = in_context(torch.nn.Linear(2, 1).double(), bound=1.0)
    >>> (row,) = net.report().rows
    >>> row.name, row.kind, row.standing
    ('Linear', 'linear', 'proven')
    """

    name: str
    kind: str
    how: str
    range: float
    tokens: int
    certified: float
    measured: float
    carried: float
    widened: int
    standing: str


@dataclass(frozen=True)
class Report:
    """A table of what is emulated and how, what is not, and the whole network's error; print it.

    Examples
    --------
    >>> net = in_context(torch.nn.Linear(2, 1).double(), bound=1.0)
    >>> report = net.report(measure=torch.ones(1, 2).double())
    >>> print(report)
    emulated: 1 linear
    ...
    >>> report.measured <= report.certified
    True
    """

    rows: tuple[ReportRow, ...]
    outside: dict[str, int]
    unsupported: tuple[str, ...]
    sizes: NetworkSizes
    grid_tokens: int
    dtype: torch.dtype
    backend: str
    certified: float
    measured: float
    standing: str  # of the whole network's error: "proven" or "estimated"

    @property
    def not_emulated(self) -> tuple[str, ...]:
        """Everything that runs as it did in the original, in words."""
        operations = [f"{name} between pieces ({n} times)" for name, n in self.outside.items()]
        return (*operations, *self.unsupported)

    def to_json(self) -> str:
        """All of it."""
        whole = {**asdict(self), "dtype": dtype_name(self.dtype)}
        return json.dumps(_known(whole), indent=2)

    def __str__(self) -> str:
        lines = [_HEADINGS, *map(_cells, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        s = self.sizes
        counts = {k: sum(r.kind == k for r in self.rows) for k in
                  ("linear", "embedding", "heads", "activation", "norm", "product")}  # fmt: skip
        emulated = ", ".join(f"{n} {k}" for k, n in counts.items() if n)
        head = [
            f"emulated: {emulated}",
            f"frozen layers: {s.inputs} inputs, {s.rows} rows, heads of {s.head_dim}, {s.tokens} "
            f"tokens, {self.grid_tokens} grid tokens; "
            f"{str(self.dtype).removeprefix('torch.')}, {self.backend} backend",
            "not emulated: " + "; ".join(self.not_emulated),
            "",
        ]
        return "\n".join([*head, *table, "", *self._whole()])

    def _whole(self) -> list[str]:
        certified = f"{at_most(self.certified, '.2e')} ({self.standing})"
        measured = "not measured" if math.isnan(self.measured) else f"{self.measured:.2e}"
        lines = [f"whole network: certified {certified}, measured {measured}"]
        if self.measured > 0 and self.certified / self.measured > 1e6:
            lines.append(
                "the bound of the whole multiplies norms of all layers and is far from tight; "
                "those of the pieces are the ones to go by"
            )
        return lines

    __repr__ = __str__


def _known(value: Any) -> Any:
    """NaN, which stands for "not known" here, as null: JSON has no NaN."""
    if isinstance(value, dict):
        return {k: _known(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_known(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _cells(row: ReportRow) -> tuple[str, ...]:
    tokens = str(row.tokens) if row.tokens else ""
    certified = at_most(row.certified, ".1e")
    certified += "" if row.standing == "proven" else f" ({row.standing})"
    return (
        row.name, row.kind, row.how, f"{row.range:.3g}", tokens, certified,
        f"{row.measured:.1e}", "" if math.isnan(row.carried) else at_most(row.carried, ".1e"),
    )  # fmt: skip
