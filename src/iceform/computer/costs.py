"""What a run costs, from sizes alone, before anything is built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from iceform import tuning
from iceform.computer.block import LAYERS
from iceform.computer.instructions import Assembly
from iceform.computer.layout import READ_FIELDS, ComputerLayout, ComputerSizes, token_counts
from iceform.heads.variants import chunk_rows
from iceform.validation import human_bytes

_LOGIT_ROWS = 3  # gates of a head: kind of key, kind of query, null token


@dataclass(frozen=True)
class Cost:
    """What a run costs, known before anything is built; :meth:`Computer.plan` returns it.

    Attributes
    ----------
    tokens, features, heads
        Of the prompt and of the plain block.
    cycles
        Times that the block is applied; None where the program decides.
    weight_bytes, token_bytes, attention_bytes
        Held at once on a CPU: weights, tokens, and the largest chunk of attention in the entries
        that are needed.
    entries, every_entry
        Attention entries of a cycle that can differ from 0, and all of them.
    flops, every_flops
        Operations of a cycle, for those entries and for all.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> program = ice.compile(energy, dim=1, samples=3)
    >>> cost = ice.Computer.for_programs(program).plan(program)
    >>> cost.tokens, cost.features, cost.heads
    (101, 114, 19)
    """

    tokens: int
    features: int
    heads: int
    cycles: int | None
    weight_bytes: int
    token_bytes: int
    attention_bytes: int
    entries: int
    every_entry: int
    flops: int
    every_flops: int

    @property
    def total_bytes(self) -> int:
        """Held at once by a literal run, tokens twice, logits and weights of a layer."""
        return self.weight_bytes + 2 * self.token_bytes + 2 * self.attention_bytes

    def __str__(self) -> str:
        cycles = "as many cycles as it takes" if self.cycles is None else f"{self.cycles} cycles"
        return "\n".join(
            [
                f"{self.tokens} tokens of {self.features} features, {self.heads} heads in "
                f"{len(LAYERS)} layers, {cycles}",
                f"memory: {human_bytes(self.total_bytes)}, of which weights "
                f"{human_bytes(self.weight_bytes)}",
                f"a literal cycle: {self.flops:.3g} operations on {self.entries:.3g} attention "
                f"entries ({self.every_flops:.3g} on all {self.every_entry:.3g})",
            ]
        )


@dataclass(frozen=True)
class _Group:
    """Heads of one shape: how many, rows of a logit, rank, tokens that ask and that answer."""

    heads: int
    logit: int
    rank: int
    asking: int
    answering: int

    def held(self, batch: int) -> int:
        """Entries at once: where they are too many for all, a chunk of one head (``HeadGroup``)."""
        of_a_row = batch * self.answering
        every, held = self.heads * self.asking * of_a_row, tuning.ATTENTION_ENTRIES
        if every <= held:
            return every
        return of_a_row * min(self.asking, chunk_rows(of_a_row, self.logit, held))

    def flops(self, features: int, tokens: int | None = None) -> int:
        asking, answering = (tokens or self.asking), (tokens or self.answering)
        maps = self.logit * (asking + answering) + self.rank * (asking + answering)
        return 2 * self.heads * (features * maps + asking * answering * (self.logit + self.rank))


def cost(
    sizes: ComputerSizes, assembly: Assembly, samples: int, dtype: torch.dtype, *,
    cycles: int | None = None, batch: int = 1,
) -> Cost:  # fmt: skip
    """The cost of running a program on so many samples, ``batch`` problems at once."""
    counts = token_counts(assembly, samples)
    tokens, features = sum(counts.values()), ComputerLayout.of(sizes).features.total
    groups, item = list(_groups(sizes, counts)), torch.finfo(dtype).bits // 8
    copies = [_Group(1, 2 * sizes.bits["id"], features, tokens, 1) for _ in LAYERS]
    needed = [g.heads * g.asking * g.answering for g in groups]
    heads = sum(g.heads for g in groups) + len(copies)
    weights = sum(2 * g.heads * (g.logit + g.rank) * features for g in (*groups, *copies))
    return Cost(
        tokens=tokens,
        features=features,
        heads=heads,
        cycles=cycles,
        weight_bytes=item * weights,
        token_bytes=item * batch * tokens * features,
        attention_bytes=item * max(g.held(batch) for g in groups),
        entries=batch * (sum(needed) + len(copies) * tokens),
        every_entry=batch * heads * tokens**2,
        flops=batch * (sum(g.flops(features) for g in groups) + 2 * counts["unit"] * features**2),
        every_flops=batch * sum(g.flops(features, tokens) for g in (*groups, *copies)),
    )


def _groups(sizes: ComputerSizes, counts: dict[str, int]) -> Iterator[_Group]:
    """The heads that are not copies, as the block has them."""
    bits, width, units = sizes.bits, sizes.width, counts["unit"]
    fields = (len(READ_FIELDS) + 1) * bits["variable"] + bits["table"] + bits["address"]
    yield _Group(1, 2 * bits["address"] + 1 + _LOGIT_ROWS, fields, units, counts["instruction"])
    reads = 2 * bits["variable"] + max(2 * bits["lane"], width) + _LOGIT_ROWS
    yield _Group(len(READ_FIELDS) + 1, reads, width, units, counts["memory"] + 1)
    yield _Group(2 * width, 2 * bits["table"] + 2 + _LOGIT_ROWS, 1, units, counts["entry"])
    store = 2 * bits["variable"] + 2 * bits["lane"] + _LOGIT_ROWS
    yield _Group(1, store, width, units + 1 + counts["memory"], units + 1)
