"""One attention problem: checked, laid out by key-value heads, and cut into chunks.

q is (*batch, heads, queries, dim), k (*batch, kv_heads, keys, dim), v (*batch, kv_heads, keys,
values); the batch may be empty and two axes alone are one head. Query head h reads key-value head
h // (heads / kv_heads), as ``enable_gqa=True`` of PyTorch has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iceform.arithmetic import Format
from iceform.errors import BoundError, DeviceError, DtypeError, ShapeError

ALIGNMENTS = ("upper_left", "lower_right")
# float64 logits held at once: 16 MB on a CPU, 512 MB on a GPU.
_CHUNK = {"cpu": 1 << 21, "cuda": 1 << 26}
_BANDS, _BAND = 4, 128  # of a causal problem's queries, and the least of one


@dataclass(frozen=True)
class Chunk:
    """Some queries of some heads: all keys that they may see, their mask."""

    heads: slice  # of the flattened (batch, key-value heads)
    group: slice  # of the query heads that share them
    rows: slice
    keys: slice

    def of(self, x: Tensor) -> Tensor:
        """Its part of a (heads, group, queries, ...) tensor, as (heads, group * queries, ...)."""
        return x[self.heads, self.group, self.rows].flatten(1, 2)

    def seen(self, x: Tensor) -> Tensor:
        """Its part of a (heads, keys, ...) tensor."""
        return x[self.heads, self.keys]

    def put(self, into: Tensor, value: Tensor) -> None:
        """Write it back."""
        part = into[self.heads, self.group, self.rows]
        part.copy_(value.reshape(part.shape))


@dataclass(frozen=True, eq=False)
class Problem:
    """A checked problem; tensors are as they were given."""

    q: Float[Tensor, "heads group queries dim"]
    k: Float[Tensor, "heads keys dim"]
    v: Float[Tensor, "heads keys values"]
    scale: float
    mask: Tensor | None  # (*batch, heads, group, queries, keys), broadcast
    diagonal: int | None  # causal: query i sees key j <= i + diagonal
    lead: tuple[int, ...]
    given: dict[str, Tensor]  # q, k and v in the caller's shapes

    @property
    def keys(self) -> int:
        return self.k.shape[1]

    @property
    def dim(self) -> int:
        return self.k.shape[2]

    @property
    def additive(self) -> bool:
        """Whether the mask is added to logits."""
        return self.mask is not None and self.mask.dtype != torch.bool

    def output(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Room for one number per element of the output, laid out like q."""
        return self.q.new_empty((*self.q.shape[:-1], self.v.shape[-1]), dtype=dtype)

    def shaped(self, x: Tensor) -> Tensor:
        """Such room in the shape that the caller knows."""
        return x.reshape(*self.lead, self.q.shape[2], x.shape[-1])

    def scratch(self) -> Tensor:
        """Room for the logits of any chunk, taken once: fresh pages cost as much as products."""
        heads, group, queries, _ = self.q.shape
        return self.q.new_empty(
            min(self._room(1), heads * group * queries * self.keys), dtype=torch.float64
        )

    def _room(self, keys: int) -> int:
        """Queries of so many keys in a chunk, at most."""
        return max(1, max(self.keys, _CHUNK.get(self.q.device.type, _CHUNK["cpu"])) // keys)

    def chunks(self) -> Iterator[Chunk]:
        """Cover all queries so that a chunk's logits fit."""
        room = self._room(self.keys)
        heads, group, queries, _ = self.q.shape
        # Early queries of a causal problem see few keys: they come by themselves.
        band = queries if self.diagonal is None else max(_BAND, -(-queries // _BANDS))
        if group * queries <= room:
            for start in range(0, queries, band):
                rows = slice(start, min(start + band, queries))
                keys = self._reached(rows)
                step = self._room(keys.stop or self.keys) // (group * (rows.stop - start))
                for at in range(0, heads, step):
                    yield Chunk(slice(at, at + step), slice(None), rows, keys)
            return
        for head in range(heads):
            for member in range(group):
                for at in range(0, queries, min(band, room)):
                    one = slice(head, head + 1), slice(member, member + 1)
                    rows = slice(at, min(at + min(band, room), queries))
                    yield Chunk(*one, rows, self._reached(rows))

    def _reached(self, rows: slice) -> slice:
        """Keys up to the last that a query of these may see."""
        if self.diagonal is None or self.mask is not None:
            return slice(None)
        return slice(0, min(self.keys, max(1, rows.stop + self.diagonal)))

    def logits(self, chunk: Chunk, k: Tensor, room: Tensor | None = None) -> Tensor:
        """Logits of a chunk of queries in float64; -inf where a key is hidden."""
        q, k = chunk.of(self.q).double() * self.scale, chunk.seen(k).mT
        shape = (*q.shape[:-1], k.shape[-1])
        out = None if room is None else room[: math.prod(shape)].view(shape)
        logits = torch.bmm(q, k) if out is None else torch.bmm(q, k, out=out)
        bias, allowed = self.bias(chunk), self.allowed(chunk)
        if bias is not None:
            logits += bias
        return logits if allowed is None else logits.masked_fill_(~allowed, -math.inf)

    def allowed(self, chunk: Chunk) -> Bool[Tensor, "heads rows keys"] | None:
        """Which keys each query sees; None where it is all of them."""
        seen = None
        if self.mask is not None:
            mask = self._of_mask(chunk)
            seen = mask if mask.dtype == torch.bool else mask > -math.inf
        if self.diagonal is not None:
            triangle = self._triangle(chunk)
            seen = triangle if seen is None else seen & triangle
        return seen

    def bias(self, chunk: Chunk) -> Float[Tensor, "heads rows keys"] | None:
        """The mask that is added to logits, 0 where a key is hidden; None without one."""
        if not self.additive:
            return None
        mask = self._of_mask(chunk).double()
        return torch.where(mask > -math.inf, mask, 0.0)

    def hidden_keys(self) -> Bool[Tensor, "heads keys"] | None:
        """Keys that no query sees; None where there can be none."""
        heads, _, queries, _ = self.q.shape
        last = self.keys if self.diagonal is None else queries - 1 + self.diagonal
        if self.mask is None and last >= self.keys - 1:
            return None
        places = torch.arange(self.keys, device=self.q.device).expand(heads, -1)
        if self.mask is None:
            return places > last
        hidden = torch.ones_like(places, dtype=torch.bool)
        for chunk in self.chunks():
            seen = self.allowed(chunk)
            assert seen is not None
            hidden[chunk.heads] &= ~seen.any(1)
        return hidden

    def _of_mask(self, chunk: Chunk) -> Tensor:
        assert self.mask is not None
        heads = torch.arange(self.q.shape[0], device=self.mask.device)[chunk.heads]
        places = torch.unravel_index(heads, self.mask.shape[:-3])
        # Sliced first, so that no more than the chunk is ever copied.
        mask = self.mask[..., chunk.group, chunk.rows, :]
        return mask[tuple(places)].flatten(1, 2)

    def _triangle(self, chunk: Chunk) -> Tensor:
        assert self.diagonal is not None
        rows = torch.arange(self.q.shape[2], device=self.q.device)[chunk.rows] + self.diagonal
        members = range(self.q.shape[1])[chunk.group]
        rows = rows.repeat(len(members))
        return (torch.arange(self.keys, device=self.q.device)[chunk.keys] <= rows[:, None])[None]


def problem_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    causal: bool | str = False,
    unread: bool = False,
) -> Problem:
    """Check everything, then lay it out; ``unread``: whoever reads the entries checks them."""
    _check_tensors(q, k, v)
    given = {"q": q, "k": k, "v": v}
    if not unread:
        check_finite(**given)
    lead, group = _check_heads(q, k, v)
    kv = (math.prod(k.shape[:-2]),)
    queries, keys = q.shape[-2], k.shape[-2]
    return Problem(
        q=q.reshape(*kv, group, queries, q.shape[-1]),
        k=k.reshape(*kv, keys, k.shape[-1]),
        v=v.reshape(*kv, keys, v.shape[-1]),
        scale=scale_of(scale, q.shape[-1]),
        mask=None if mask is None else _mask(mask, q, k, group),
        diagonal=_diagonal(causal, queries, keys),
        lead=lead,
        given=given,
    )


def rounded(x: Tensor, low: Format) -> Tensor:
    """x as a kernel of that format reads it, as float64."""
    read = x.to(low.dtype).double()
    if not bool(torch.isfinite(read).all()) or bool((x.double().abs() > low.largest).any()):
        most = float(x.double().abs().amax())
        raise BoundError(
            f"{low.name} ends at {low.largest:g}, the inputs reach {most:g}: no kernel of that "
            "kind can read them; scale them or choose a wider dtype"
        )
    return read


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise DtypeError(f"{name} must be a torch tensor, got {type(x).__name__}")
        if not x.is_floating_point():
            raise DtypeError(f"{name} must hold floating-point numbers, got {x.dtype}")
        if x.ndim < 2:
            raise ShapeError(f"{name} must have axes (..., tokens, dim), got shape {_shape(x)}")
        if x.numel() == 0:
            raise ShapeError(f"{name} is empty, shape {_shape(x)}: there is nothing to attend to")
        if x.device != q.device:
            raise DeviceError(f"{name} is on {x.device}, q on {q.device}; move one of them")
        if x.is_meta:
            raise DeviceError(f"{name} is on the meta device and holds no numbers; give it some")
        if x.dtype != q.dtype:
            raise DtypeError(f"{name} has dtype {x.dtype}, q {q.dtype}; convert one of them")


def check_finite(**named: Tensor) -> None:
    """No NaN and no infinity; a GPU is asked once."""
    # float8 can be stored and little else.
    held = {name: x.float() if x.element_size() == 1 else x for name, x in named.items()}
    largest = [torch.linalg.vector_norm(x, math.inf) for x in held.values()]
    for (name, x), most in zip(held.items(), torch.stack(largest).tolist(), strict=True):
        if not math.isfinite(most):
            bad = ~torch.isfinite(x)
            first = tuple(int(i) for i in bad.nonzero()[0])
            raise BoundError(
                f"{name} has {int(bad.sum())} entries that are NaN or infinite, the first at "
                f"{first}: no tolerance holds for them; mend the inputs"
            )


def _check_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[int, ...], int]:
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(
            f"q has dim {q.shape[-1]}, k {k.shape[-1]}; they are multiplied: make equal"
        )
    if k.shape[:-1] != v.shape[:-1]:
        raise ShapeError(f"k is {_shape(k)}, v {_shape(v)}: each key needs one value")
    if q.ndim != k.ndim or q.shape[:-3] != k.shape[:-3]:
        raise ShapeError(f"q is {_shape(q)}, k {_shape(k)}: their batch axes must be the same")
    heads, kv_heads = (q.shape[-3], k.shape[-3]) if q.ndim > 2 else (1, 1)
    if heads % kv_heads:
        raise ShapeError(f"{heads} query heads cannot share {kv_heads} key-value heads evenly")
    return tuple(q.shape[:-2]), heads // kv_heads


def scale_of(scale: float | None, dim: int) -> float:
    """The logits' scale: 1/sqrt(dim) where none is given."""
    if scale is None:
        return 1 / math.sqrt(dim)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise BoundError(f"scale must be a finite number or None for 1/sqrt(dim), got {scale!r}")
    return float(scale)


def _diagonal(causal: bool | str, queries: int, keys: int) -> int | None:
    if causal is False:
        return None
    if causal in (True, ALIGNMENTS[0]):
        return 0
    if causal == ALIGNMENTS[1]:
        return keys - queries
    raise BoundError(f"causal must be True, False, {' or '.join(ALIGNMENTS)}, got {causal!r}")


def _mask(mask: Tensor, q: Tensor, k: Tensor, group: int) -> Tensor:
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise DtypeError(
            f"mask must be a boolean (True: seen) or floating (added) tensor, got {kind}"
        )
    if mask.dtype != torch.bool and mask.element_size() == 1:
        raise DtypeError(f"mask has dtype {mask.dtype}, which holds no -inf; use bfloat16 or wider")
    if mask.device != q.device:
        raise DeviceError(f"mask is on {mask.device}, q on {q.device}; move one of them")
    if mask.dtype != torch.bool and bool((mask.isnan() | (mask == math.inf)).any()):
        raise BoundError("mask has NaN or +inf; entries are finite, or -inf for keys to hide")
    lead = q.shape[:-2] if q.ndim > 2 else torch.Size([1])
    full = (*lead, q.shape[-2], k.shape[-2])
    try:
        mask = mask.expand(full)
    except RuntimeError:
        raise ShapeError(f"mask is {_shape(mask)} and does not broadcast to {full}") from None
    grouped: Tensor = mask.unflatten(-3, (-1, group))
    return grouped


def _shape(x: Tensor) -> str:
    return str(tuple(x.shape))
