"""The three primitives, without a token in memory longer than it is needed.

Plain torch (:func:`plain_interpolate`) is the oracle: every token's weight, a chunk at a time. On
equally spaced tokens, anything large goes through :mod:`iceform.run.windowed` instead, and
on a GPU through the kernels of :mod:`iceform.run.triton` where they can run. The
certificate of the fused backend covers all of these.

A pass over samples can hand each part on while it is in cache (:class:`SampleMaxima`), so that
checking them costs no second reading; on a GPU the sizes stay there until somebody asks.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from iceform import tuning
from iceform.run import windowed
from iceform.run.windowed import mixed, sum_block, tell
from iceform.tables import Interpolant
from iceform.validation import common_batch, largest_entry, unwrapped, written_out


def kernels_for(tensor: Tensor, it: Interpolant, backend: str) -> ModuleType | None:
    """The Triton kernels where they should run, else None.

    "triton" insists on them and says why they cannot run; other backends take them for anything
    on a GPU that they can do.
    """
    insisted = backend == "triton"
    if not insisted and (not tensor.is_cuda or not has_triton()):
        return None
    if torch.compiler.is_compiling() or is_transformed(tensor):
        return None
    from iceform.run import triton

    if insisted:
        triton.require(tensor, it)
        return triton
    able = triton.can_run(tensor) and triton.can_look_up(it, tensor.dtype)
    return triton if able else None


def own_kernels(tensor: Tensor, backend: str) -> ModuleType | None:
    """The kernels that look nothing up, where they can run on ``tensor``."""
    if backend != "triton" and (not tensor.is_cuda or not has_triton()):
        return None
    from iceform.run import triton

    return triton if triton.can_run(tensor) else None


def is_transformed(tensor: Tensor) -> bool:
    """Whether it is inside torch.func's vmap or grad, which want plain operations."""
    if torch.compiler.is_compiling():
        return False
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return wrapped


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


class SampleMaxima:
    r"""max :math:`|x_{ij}|` and max :math:`\|x_i\|_2` of samples.

    Parameters
    ----------
    length
        What no row may be longer than. Since :math:`\|x\|_2 \le \sqrt d \max_j |x_j|`, lengths are
        measured only where the largest entry does not settle it; None never measures them.
    backend
        "triton" insists on its kernel; others use it on a GPU.
    """

    def __init__(self, length: float | None, backend: str = "fused") -> None:
        self._length = length
        self._backend = backend
        self._seen: list[Tensor] = []
        self.whole: Tensor | None = None

    def __call__(self, part: Tensor) -> None:
        """Look at some more samples, shape (..., d)."""
        self._seen.append(self._measure(part.detach()))

    @property
    def lengths(self) -> bool:
        """Whether rows are to be measured beside entries."""
        return self._length is not None

    def take(self, sizes: Tensor) -> None:
        """What a pass has seen itself: (max |x|, max ||x||_2), the latter where asked for."""
        self._seen.append(sizes)

    def take_whole(self, sizes: Tensor) -> None:
        """What a pass has seen of all that it reads: (max |y|, max |x|, ||x||_2, |w|, ||w||_2)."""
        self.whole = sizes
        self.take(sizes[1:3])

    def watch_all(self, x: Tensor) -> None:
        """Look at all samples, on a CPU in parts that are read from memory once."""
        if x.device.type != "cpu" or x.numel() * x.element_size() <= tuning.PRIMITIVES_CACHED:
            self(x)
            return
        rows = x.detach().reshape(-1, x.shape[-1])
        for part in rows.split(
            max(1, tuning.PRIMITIVES_CACHED // (x.shape[-1] * x.element_size()))
        ):
            self(part)

    @property
    def sizes(self) -> Tensor:
        """(largest entry, a bound of the longest row), float64; not a number where x has any.

        The bound is the length itself wherever that exceeds what was allowed.
        """
        if len(self._seen) == 1:
            return self._seen[0]
        return torch.stack(self._seen).amax(0)

    def _measure(self, part: Tensor) -> Tensor:
        kernels = own_kernels(part, self._backend)
        if kernels is not None:
            found: Tensor = kernels.extremes(part)
            return found
        largest = largest_entry(part).double()
        longest = largest * math.sqrt(part.shape[-1])
        # On a GPU nothing is decided here, since the host would have to wait.
        if self._length is not None and (part.is_cuda or not bool(longest <= self._length)):
            longest = unwrapped(part.norm(dim=-1)).amax().double()
        return torch.stack([largest, longest])


_EXPONENTS = {torch.float64: 1000.0, torch.float32: 118.0}  # inverses of powers are numbers
_WIDENED = (torch.bfloat16, torch.float16)  # looked up in float32


def interpolate(
    z: Float[Tensor, "*b"], it: Interpolant, backend: str = "fused"
) -> Float[Tensor, "*b"]:
    """Look up each entry of z."""
    kernels = kernels_for(z, it, backend)
    if kernels is not None:
        looked: Tensor = kernels.interpolate(z, it)
        return looked
    if z.dtype in _WIDENED:
        return interpolate(z.float(), it).to(z.dtype)
    window = _window_for(z, it)
    if window is None:
        return plain_interpolate(z, it)
    if z.requires_grad:
        out: Tensor = windowed.LookUp.apply(z, window)  # type: ignore[no-untyped-call]
        return out
    return windowed.look_up(z, window)


def _window_for(z: Tensor, it: Interpolant) -> windowed.Window | None:
    """The window to use, or None where summing every token is right or quicker."""
    if torch.compiler.is_compiling() or is_transformed(z):
        return None
    window = windowed.window_of(it, z.dtype)
    if window is None or z.is_cuda:
        return window
    return window if z.numel() * it.tokens > tuning.PRIMITIVES_SMALL else None


def read(
    z: Tensor,
    it: Interpolant,
    floor: Tensor | None = None,
    up: Tensor | None = None,
    by: Tensor | None = None,
    reach: float = math.inf,
    slope: float = 0.0,
    *,
    offset: Tensor | None = None,
    then: tuple[Interpolant, float, float] | None = None,
) -> tuple[Tensor, Tensor]:
    """A(z / s) s up, s the power of two that |z| and ``floor`` are at most; and max |z| by.

    ``offset`` is added to z first. Without a floor z is looked up as it is, and beyond ``reach`` a
    line of ``slope`` goes on. ``offset``, ``floor``, ``up`` and ``by`` have a number for every
    feature, or one for all. Where z has what is not a number the maximum is none. ``then`` is a
    table that the answers are looked up in next, with its reach and slope; of them the maximum
    comes second. On the CPU that is a loop each, on a GPU one kernel. Sizes may be symbols: a graph
    may be captured.
    """
    z = z if z.ndim else z[None]
    plain = _is_plain(z)
    if plain and (kernels := kernels_for(z, it, "fused")) is not None:
        found: tuple[Tensor, Tensor] = kernels.read(
            z, it, offset, floor, up, by, reach, slope, then
        )
        return found
    if then is not None:
        first, over = read(z, it, floor, up, by, reach, slope, offset=offset)
        out, largest_first = read(first, then[0], None, None, None, *then[1:])
        return out, torch.cat([over, largest_first])
    z = z if offset is None else z + offset
    if plain and windowed.ready(z) and (window := windowed.window_of(it, z.dtype)) is not None:
        operands = window.operands(z.dtype, z.device)
        return windowed.read(z.detach(), window.kind, operands, floor, up, by, reach, slope)
    if floor is not None:
        power = power_of_two(torch.maximum(z.detach().abs(), floor.to(z)))
        out = _looked_up(z / power, it) * power
    else:
        inner = z if math.isinf(reach) else z.clamp(-reach, reach)
        out = _looked_up(inner, it)
        out = out + slope * (z - inner).clamp(min=0.0) if slope else out
    return out if up is None else out * up, largest(z if by is None else z * by)


def power_of_two(sizes: Tensor) -> Tensor:
    """The least power of two that is no smaller, among those with inverses that are numbers."""
    most = _EXPONENTS[sizes.dtype]
    return torch.exp2(torch.log2(sizes).ceil().clamp(min=-most, max=most))


def _looked_up(z: Tensor, it: Interpolant) -> Tensor:
    """Run by the definition where code is being compiled."""
    if torch.compiler.is_compiling():
        return it.weights(z) @ it.values.to(z)
    return interpolate(z, it)


def largest(z: Tensor) -> Tensor:
    """The largest |z|, shape (1,); not a number where z has what is none."""
    return z.detach().abs().reshape(-1).amax(0, keepdim=True)


def count_nonzero(words: Tensor) -> Tensor:
    """How many integers are not 0, shape (); on a GPU in one pass."""
    if words.is_cuda and has_triton() and words.dtype in (torch.int32, torch.int64):
        from iceform.run import triton

        return triton.count_nonzero(words)
    return torch.count_nonzero(words)


def seen_together(x: Tensor) -> AbstractContextManager[None]:
    """For many readings: on a GPU what they see of their inputs lies together."""
    if not (x.is_cuda and has_triton()):
        return nullcontext()
    from iceform.run import triton

    return triton.seen_together()


def longest(x: Tensor) -> Tensor:
    """The largest 2-norm along the last axis, shape (1,); not a number where x has what is none."""
    if _is_plain(x) and (kernels := own_kernels(x, "fused")) is not None:
        return kernels.longest(x)  # type: ignore[no-any-return]
    return largest(x.norm(dim=-1))


def norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, share: float,
    line: Interpolant, root: Interpolant, *, centred: bool, plus: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """A LayerNorm or RMSNorm with all its steps looked up by one kernel; None where there is none.

    As :func:`iceform.run.triton.norm` has it.
    """
    kernels = kernels_for(x, line, "fused") if _is_plain(x) and x.is_cuda else None
    if kernels is None or not kernels.can_norm(x.shape[-1], line, x.dtype, x.device):
        return None
    found: tuple[Tensor, Tensor] = kernels.norm(
        x, weight, bias, epsilon, share, line, root, centred=centred, plus=plus
    )
    return found


def heads(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, *, causal: bool
) -> Tensor:
    """softmax(scale q k' + mask) v, batch and heads in front; on a GPU one kernel where it can."""
    ready = q.is_cuda and all(_is_plain(t) for t in (q, k, v))
    if ready and (kernels := own_kernels(q, "fused")) and kernels.can_attend(q, k, v):
        found: Tensor = kernels.attend(q, k, v, mask, scale, causal=causal)
        return found
    logits = (q * scale) @ k.mT
    if causal:
        never = logits.new_full(logits.shape[-2:], -math.inf).triu(1)
        mask = never if mask is None else mask + never
    return torch.softmax(logits if mask is None else logits + mask, -1) @ v


def _is_plain(z: Tensor) -> bool:
    """Whether nobody follows what is computed, so that loops and kernels can compute it."""
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and z.requires_grad):
        return False
    return z.numel() > 0 and not is_transformed(z)


def plain_interpolate(z: Float[Tensor, "*b"], it: Interpolant) -> Float[Tensor, "*b"]:
    """Look up each entry of z by a softmax over all tokens, a chunk of weights at a time."""
    values = it.values.to(z)
    flat = z.reshape(-1)
    rows = max(1, tuning.ENTRIES_AT_ONCE // it.tokens)
    if flat.numel() <= rows:
        return (it.weights(z) @ values).reshape(z.shape)

    def one_chunk(part: Tensor) -> Tensor:
        return it.weights(part) @ values

    if torch.is_grad_enabled() and z.requires_grad:
        parts = [checkpoint(one_chunk, part, use_reentrant=False) for part in flat.split(rows)]
    else:
        parts = [one_chunk(part) for part in flat.split(rows)]
    return torch.cat(parts).reshape(z.shape)


def residual_sum(
    x: Float[Tensor, "... n d"],
    y: Float[Tensor, "... n"],
    w: Float[Tensor, "... d"],
    it: Interpolant,
    labels: Float[Tensor, "... n"] | None = None,
    backend: str = "fused",
    watch: SampleMaxima | None = None,
    mix: tuple[float, float] = (1.0, 0.0),
    dtype: torch.dtype = torch.float64,
) -> Float[Tensor, "... d"]:
    """Sums S = sum_i (A(w.x_i - y_i) - labels_i) x_i in float64, mixed: a S + b w, in ``dtype``.

    One pass over the samples. x may be bfloat16 beside float32 y and w: its numbers are taken as
    they are. ``watch`` is shown every sample, a chunk at a time while it is in cache.
    """
    kernels = kernels_for(x, it, backend)
    if kernels is not None and kernels.can_sum(x, y, w, it):
        summed: Tensor = kernels.residual_sum(
            x, y, w, it, labels, watch=watch, mix=mix, dtype=dtype
        )
        return summed
    total = _by_loop_in_c(x, y, w, it, labels, watch)
    if total is None:
        total = _by_chunks(x, y, w, it, labels, watch)
    return mixed(total, w, mix, dtype)


def _by_loop_in_c(
    x: Tensor, y: Tensor, w: Tensor, it: Interpolant, labels: Tensor | None,
    watch: SampleMaxima | None,
) -> Tensor | None:  # fmt: skip
    """The sums of one set of labels and coefficients; None where operations must be seen."""
    inputs = [t for t in (x, y, w, labels) if t is not None]
    if x.numel() == 0 or (x.ndim, y.ndim, w.ndim) != (2, 1, 1):
        return None
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        return None
    if torch.compiler.is_compiling() or any(is_transformed(t) for t in inputs):
        return None
    if any(t.dtype != w.dtype for t in inputs) or not windowed.ready(x):
        return None
    window = windowed.window_of(it, w.dtype)
    if window is None:
        return None
    found, seen = windowed.pass_over(
        written_out(x.detach()), written_out(y.detach()), written_out(w.detach()),
        None if labels is None else written_out(labels.detach()),
        window.kind, window.operands(w.dtype, w.device),
        exact=sum_block(w.dtype, len(x)) == 1, lengths=watch is not None and watch.lengths,
    )  # fmt: skip
    if watch is not None:
        watch.take(seen)
    return found


def _by_chunks(
    x: Tensor, y: Tensor, w: Tensor, it: Interpolant, labels: Tensor | None,
    watch: SampleMaxima | None,
) -> Tensor:  # fmt: skip
    """The sums by few operations for every chunk of samples.

    Labels and coefficients that share their samples are rows of one matrix; sets of samples have a
    row each.
    """
    batch = common_batch(x.shape[:-2], y.shape[:-1], w.shape[:-1])
    rows_of = (-1,) if x.ndim == 2 else (*batch, 1)

    def held(t: Tensor) -> Tensor:
        return t.expand(*batch, t.shape[-1]).reshape(*rows_of, t.shape[-1])

    weights, targets = held(w), held(y)
    offsets = None if labels is None else held(labels)
    block = sum_block(w.dtype, x.shape[-2])
    chunks, parts = _row_chunks(x, max(1, batch.numel()), it.tokens), list[Tensor]()
    for rows in chunks:
        part = x[..., rows, :]
        if watch is not None:
            watch(part)
        part = part.to(w.dtype)
        looked = interpolate(weights @ part.mT - targets[..., rows], it)
        if offsets is not None:
            looked = looked - offsets[..., rows]
        parts.append(_weighted(looked, part, block).reshape(*batch, w.shape[-1]))
    tell(parts, chunks[0].stop)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def project(
    x: Float[Tensor, "... n d"],
    weights: Sequence[Float[Tensor, "... _ d"]],
    it: Interpolant,
    backend: str = "fused",
) -> list[Float[Tensor, "... n _"]]:
    """A(x weight') for several weights at once, every entry looked up as it is made."""
    kernels = kernels_for(x, it, backend)
    same = all(w.ndim == 2 and w.shape == weights[0].shape for w in weights)
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *weights))
    if kernels is None or recorded or not same:
        return [interpolate(x @ w.mT, it, backend) for w in weights]
    if kernels.should_project(x):
        return list(kernels.project(x, torch.stack(tuple(weights)), it))
    products = x.new_empty(len(weights), *x.shape[:-1], len(weights[0]))
    for out, weight in zip(products, weights, strict=True):
        torch.matmul(x, weight.mT, out=out)
    return list(kernels.interpolate(products, it, out=products))


def attention(
    q: Float[Tensor, "... m h"], k: Float[Tensor, "... n h"], v: Float[Tensor, "... n c"]
) -> Float[Tensor, "... m c"]:
    """softmax(q k') v: the second layer, scale 1, never holding all scores on a GPU."""
    if not q.is_cuda:
        return torch.softmax(q @ k.mT, -1) @ v
    batch = common_batch(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    # The kernels that hold no scores want (batch, heads, tokens, features).
    query, key, value = (_four_axes(t, batch) for t in (q, k, v))
    out: Tensor = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=1.0)
    return out[:, 0] if len(batch) == 1 else out.reshape(*batch, *out.shape[-2:])


def _four_axes(t: Tensor, batch: torch.Size) -> Tensor:
    if t.shape[:-2] == batch and len(batch) == 1:
        return t[:, None]
    return t.expand(*batch, *t.shape[-2:]).reshape(-1, 1, *t.shape[-2:])


def _weighted(looked: Tensor, x: Tensor, block: int) -> Tensor:
    """Looked @ x with sums in float64 but for blocks of rows, as the certificate has it.

    Looked is (..., k, rows), x is (..., rows, d).
    """
    rows = x.shape[-2] // block * block
    if block == 1 or rows == 0:
        return looked.double() @ x.double()
    blocks = x[..., :rows, :].view(*x.shape[:-2], -1, block, x.shape[-1])
    weights = looked[..., :rows].view(*looked.shape[:-1], -1, block).transpose(-3, -2)
    total: Tensor = (weights @ blocks).sum(-3, dtype=torch.float64)
    if rows < x.shape[-2]:
        total = total + looked[..., rows:] @ x[..., rows:, :]  # a block of its own
    return total


def _row_chunks(x: Tensor, batch: int, tokens: int) -> list[slice]:
    """Rows that stay in cache between their readings, and whose look-ups do so too."""
    samples, copies = x.shape[-2], max(1, math.prod(x.shape[:-2]))
    held = x.shape[-1] * x.element_size() * copies
    rows = (
        min(tuning.PRIMITIVES_CACHED // held, tuning.ENTRIES_AT_ONCE // batch)
        // tuning.WINDOWED_LANES
        * tuning.WINDOWED_LANES
    )
    rows = max(2 * tuning.WINDOWED_LANES, rows)
    if x.is_cuda:
        rows = max(1, (tuning.ENTRIES_AT_ONCE << 4) // (tokens * batch))
    starts = range(0, max(1, samples), rows)
    return [slice(start, min(start + rows, samples)) for start in starts]
