"""Fused: what a recognised network computes, without its tokens in memory.

What it computes with is read from the matrices and the prompt (:mod:`iceform.backends.reading`), so
another valid network or prompt gives that one's answer; a network that is not recognised is
refused. Look-ups stand for their tokens (:mod:`iceform.backends.reading`); prompts whose tokens are
in memory are read layer by layer (:mod:`iceform.backends.rows`). ``triton`` is the same and insists
on its GPU kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from iceform.attention import Average, LookUps, Prompt
from iceform.attention.lookups import HIDDEN
from iceform.backends import primitives, rows
from iceform.backends.base import Backend
from iceform.backends.primitives import Extremes, has_triton
from iceform.backends.reading import Reading, padded, read_layer
from iceform.backends.windowed import Rounding
from iceform.errors import DeviceError

__all__ = ["Fused", "Triton"]


class Fused(Backend):
    """The fastest certified way for the device, dtype and size of every call."""

    name = "fused"
    rounding = Rounding(literal=False)

    @cached_property
    def reading(self) -> Reading:
        """The look-up layer, as read from its matrices."""
        found: Reading = read_layer(self.network, self.digest)
        return found

    def run(self, prompt: Prompt | LookUps | Average) -> Tensor:
        if isinstance(prompt, LookUps):
            return self._look_up(prompt)
        if isinstance(prompt, Average):
            return self._average(prompt)
        *_, last = self.stream(prompt)
        return last

    def stream(self, prompt: Prompt) -> Iterator[Tensor]:
        return rows.stream(self.network, self.digest, prompt, self.name)

    def _look_up(self, prompt: LookUps) -> Tensor:
        count = prompt.count
        prompt = prompt if self.reading.readout is None else prompt.filled()
        looked = self._looked(prompt)
        looked = prompt.weighed(looked)[..., None]
        x = prompt.x.to(looked.dtype)
        row = looked * x
        if prompt.keep:
            row = row + prompt.keep * prompt.w[..., None, :]
        out = torch.cat([row, looked.expand(*row.shape[:-1], 1)], -1)
        return out if self.reading.plain else self._read(out, prompt)[..., :count, :]

    def _looked(self, prompt: LookUps) -> Tensor:
        table = self.reading.table(prompt)
        return primitives.interpolate(self.reading.residuals(prompt), table, self.name)

    def _read(self, out: Tensor, prompt: LookUps) -> Tensor:
        """Rows as other values or another readout make them."""
        reading, m = self.reading, prompt.layout.samples
        width = prompt.layout.dim - prompt.x.shape[-1]
        if reading.values is not None:
            full = torch.cat(
                [out[..., :-1], out.new_zeros(*out.shape[:-1], width), out[..., -1:]], -1
            )
            full = full @ reading.values.to(out).mT
            out = torch.cat([full[..., : prompt.x.shape[-1]], full[..., -1:]], -1)
        if reading.readout is not None:
            blocks = out.unflatten(-2, (-1, m))
            out = (reading.readout.to(out).mT @ blocks).flatten(-3, -2)
        return out

    def total(self, prompt: LookUps, watch: Extremes | None = None) -> Tensor:
        if not self.reading.plain or prompt.factors is not None:
            return super().total(prompt, watch)
        table = self.reading.table(prompt)
        x, y, w = prompt.x, prompt.y, prompt.w
        total = primitives.residual_sum(x, y, w, table, prompt.offsets, self.name, watch)
        if not prompt.keep:
            return prompt.gain * total
        return torch.add(prompt.gain * total, w, alpha=prompt.count * prompt.keep)

    def count(self, prompt: LookUps) -> Tensor:
        if not self.reading.plain:
            return super().count(prompt)
        return prompt.weighed(self._looked(prompt)).double().sum(-1)

    def _average(self, prompt: Average) -> Tensor:
        if self.reading.free_readout is not None:
            return self._mixed(prompt)
        at_once = max(1, _LOGITS // max(1, len(prompt.keys)))
        starts = range(0, len(prompt.points), at_once)
        parts = [self._averages(prompt.part(slice(i, i + at_once))) for i in starts]
        return torch.cat(parts) if parts else prompt.values[:0]

    def _averages(self, prompt: Average) -> Tensor:
        """Every point's own average."""
        reading, points, keys = self.reading, prompt.points, prompt.keys
        if reading.free is not None:
            points = padded(points, len(reading.free)) @ reading.free.to(points)
        if reading.free_shift is not None:
            points = padded(points, len(reading.free_shift)) + reading.free_shift.to(points)
        biases = reading.free_bias * prompt.biases
        logits = torch.addmm(biases, points, padded(keys, points.shape[1]).mT)
        if prompt.seen is not None:
            logits.sub_((~prompt.seen).to(logits).mul_(reading.free_bias * HIDDEN))
        few = _few(logits, prompt.values) if prompt.seen is not None else None
        out = torch.softmax(logits, -1) @ prompt.values if few is None else few
        if reading.values is None:
            return out
        wide = padded(out, len(reading.values)) @ reading.values.to(out).mT
        return wide[:, : prompt.values.shape[1]]

    def _mixed(self, prompt: Average) -> Tensor:
        """What a readout that mixes free queries makes of them, those that ask nothing too."""
        assert self.reading.free_readout is not None
        m, each = prompt.layout.samples, prompt.sharing
        short = prompt.prompts * each - len(prompt.points)
        points = torch.nn.functional.pad(prompt.points, (0, 0, 0, short)).unflatten(0, (-1, each))
        points = torch.nn.functional.pad(points, (0, 0, 0, m - each)).flatten(0, 1)
        own, seen = prompt.biases, prompt.seen
        own = own.repeat_interleave(m, 0) if own.ndim == 2 else own
        seen = None if seen is None else seen.repeat_interleave(m, 0)
        rows = self._averages(replace(prompt, points=points, biases=own, seen=seen))
        mixed: Tensor = self.reading.free_readout.to(rows).mT @ rows.unflatten(0, (-1, m))
        return mixed[:, :each].flatten(0, 1)[: len(prompt.points)]


_LOGITS = 1 << 18  # held at once: they stay in cache
_FEW = 8  # tokens that a sharp read may be of
_MANY = 256  # tokens: of fewer a softmax over all is as quick
_NOTHING = 746.0  # e^-746 is 0 in float64, and sooner in others


def _few(logits: Tensor, values: Tensor) -> Tensor | None:
    """The read of rows in which all but a few tokens weigh exactly 0; None where more do not."""
    if logits.shape[1] < _MANY:
        return None
    top = logits.topk(_FEW, dim=1, sorted=True)
    if not bool((top.values[:, -1] < top.values[:, 0] - _NOTHING).all()):
        return None
    return (torch.softmax(top.values, -1)[:, None] @ values[top.indices])[:, 0]


class Triton(Fused):
    """As fused, and refused where a kernel cannot run."""

    name = "triton"
    rounding = Rounding(literal=False)

    @classmethod
    def require(cls) -> None:
        if not has_triton():
            raise DeviceError(
                "backend='triton' needs Triton; install iceform[gpu], or use backend='fused'"
            )
