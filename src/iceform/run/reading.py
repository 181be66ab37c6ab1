r"""What a fused pass takes out of a network's matrices, and how it refuses what is not there.

**The look-up layer.** With :math:`K = W_K A`, :math:`Q = W_Q A`, :math:`V = W_V A` for the
embedding's A, and the positions' part of keys and queries, a query with coefficients w meets the
token k of its sample with the logit

.. math:: s_k \big( w^\top F x + (f_w \cdot w - \lambda)(y + m) + f_x \cdot x \big) + g b_k
   + \text{positions},

F, f, lambda and g being blocks of Q'K. Whatever they are, that is a look-up of
:math:`z = (w^\top F x + \dots)/\lambda - y` in the table with slopes :math:`\lambda s_k` and biases
:math:`g b_k`, as long as the positions' part is 0 for a query's own tokens and below -M/2 for all
others. Where something else stands in the matrices the network is not one of these, and is refused.

**Tables.** A head whose logits are :math:`s_k z + b_k` and whose values are :math:`v_k` is a
look-up table. Where its keys are those of a table that the network says was written, to the
rounding of the weights' dtype, and its values are the same bits, it is that table. Otherwise it is
read as it stands: on equally spaced tokens

.. math:: s_k = \sigma + 2 \frac{c}{h} p_k, \qquad b_k = b + (s_0 - s_k) m - c\, p_k^2

with :math:`p_k = k - (N-1)/2`, from which c, h and the centre m follow (a softmax does not see
sigma and b); any other keys are taken one by one.

Tokens that pad a layer have slope and value 0 and a bias so low that they do not count. Two tokens
in the middle of the table have opposite slopes, so one of them has at least the mean of their
biases as its logit, whatever z is: padding that lies :math:`\log(n 2^8/u)` below that adds
:math:`2^{-8}` units of rounding at most, and is left out.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from iceform import tuning
from iceform.arithmetic.units import LEAK_BITS
from iceform.errors import IntegrityError
from iceform.heads import Embed, FrozenNetwork, HopfieldLayer, SoftmaxAttention
from iceform.heads.lookups import HIDDEN, MARGIN, LookUps
from iceform.heads.network import outside_transforms
from iceform.tables import GivenGrid, Grid, Interpolant
from iceform.validation import unit_roundoff, untraced

T = TypeVar("T")


def refuse(why: str) -> NoReturn:
    """A network that is not one of those that are recognised."""
    raise IntegrityError(
        f"the fused backend does not recognise this network: {why}; use backend='literal'"
    )


def require_zero(what: str, *parts: Tensor) -> None:
    """Refuse a network whose ``what`` is not exactly 0."""
    for part in parts:
        if part.numel() and bool((part != 0).any()):
            refuse(f"{what} should be 0 and reaches {float(part.abs().max()):.3g}")


def require_finite(module: nn.Module) -> None:
    """Refuse weights that are not numbers."""
    for name, weight in module.named_buffers():
        if not bool(torch.isfinite(weight).all()):
            refuse(f"{name} holds NaN or infinity")


def unless_identity(matrix: Tensor) -> Tensor | None:
    """The matrix; None where it is the identity, possibly with rows of zeros below."""
    return None if torch.equal(matrix, torch.eye(*matrix.shape, dtype=matrix.dtype)) else matrix


def unless_zero(vector: Tensor) -> Tensor | None:
    """The vector; None where it is zero."""
    return vector if bool((vector != 0).any()) else None


def holding(network: FrozenNetwork, digest: str | None) -> FrozenNetwork:
    """The network, if its weights are those of a digest; under another nothing is remembered."""
    if digest is not None and network.digest != digest:
        network.check()  # says it better
        raise IntegrityError(
            f"the weights hash to {network.digest[:12]} and are read as {digest[:12]}: they were "
            "changed meanwhile"
        )
    return network


class DigestCache(Generic[T]):
    """What was read of the networks seen last, by the digest of their weights."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable | None, make: Callable[[], T]) -> T:
        """What is known under a key, or made now; None is never remembered."""
        found: T = self._get(key, make)
        return found

    @untraced
    def _get(self, key: Hashable | None, make: Callable[[], T]) -> T:
        if key is None:
            return make()
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        with outside_transforms():
            made = make()
        with self._lock:
            self._known[key] = made
            while len(self._known) > tuning.READING_KEPT:
                self._known.popitem(last=False)
        return made


_KEY_UNITS = 4  # roundings of a key on its way into the weights and out: two factors, two products
EVEN_UNITS = 8  # of the largest key, that equally spaced tokens may be off


def read_table(
    slopes: Tensor,
    biases: Tensor,
    values: Tensor,
    written: Sequence[Interpolant],
    dtype: torch.dtype,
) -> Interpolant:
    """The table of logits s z + b, from keys and values as weights of ``dtype`` hold them."""
    unit = unit_roundoff(dtype)
    kept = len(slopes) - _padding(slopes, biases, values, unit)
    slopes, biases, values = slopes[:kept], biases[:kept], values[:kept]
    for table in written:
        if _holds(table, slopes, biases, values, dtype):
            return table
    return rebuild(slopes, biases, values, unit)


def _padding(slopes: Tensor, biases: Tensor, values: Tensor, unit: float) -> int:
    """How many of the last tokens can be left out."""
    idle = (slopes == 0) & (values == 0)
    count = int(idle.flip(0).long().cumprod(0).sum())
    while count and count < len(slopes):
        kept = len(slopes) - count
        left, right = (kept - 1) // 2, kept // 2
        # Weights of float32 hold a margin to rounding.
        needed = (math.log(count) + LEAK_BITS * math.log(2) - math.log(unit)) * (1 - 2 * unit)
        floor = 0.5 * float(biases[left] + biases[right]) - needed
        if float(slopes[left] + slopes[right]) == 0 and bool((biases[kept:] <= floor).all()):
            return count
        count -= 1
    return 0


def _holds(
    table: Interpolant, slopes: Tensor, biases: Tensor, values: Tensor, dtype: torch.dtype
) -> bool:
    if table.tokens != len(slopes) or not torch.equal(values, table.values.to(dtype).double()):
        return False
    keys, allowed = table.keys, _KEY_UNITS * unit_roundoff(dtype)
    moved = keys.slopes * table.grid.center
    return bool(
        ((slopes - keys.slopes).abs() <= allowed * keys.slopes.abs()).all()
        and (
            (biases - (keys.biases - moved)).abs() <= allowed * (keys.biases.abs() + moved.abs())
        ).all()
    )


def rebuild(
    slopes: Tensor, biases: Tensor, values: Tensor, unit: float, center: float = 0.0
) -> Interpolant:
    """Any keys, of logits s (z - center) + b: equally spaced tokens where they are that."""
    grid = even_grid(slopes, biases, unit, center)
    if grid is not None:
        return Interpolant(grid[0], grid[1], values, "given", math.inf)
    given = GivenGrid(-math.inf, math.inf, center, slopes, biases)
    return Interpolant(given, 0.0, values, "given", math.inf)  # type: ignore[arg-type]


def even_grid(
    slopes: Tensor, biases: Tensor, unit: float, center: float = 0.0
) -> tuple[Grid, float] | None:
    """Equally spaced tokens and their sharpness, if the keys are theirs to rounding.

    Sharpness and spacing come from the ends and the middle, which is where rounding moves them
    least: by less than a unit, where second differences would be off by the number of tokens.
    """
    last = len(slopes) - 1
    if last < 2:
        return None
    places = torch.arange(last + 1, dtype=torch.float64) - 0.5 * last
    half, inner = 0.5 * last, 0.5 * (last % 2)
    middle = 0.5 * float(biases[last // 2] + biases[(last + 1) // 2])
    sharpness = (middle - 0.5 * float(biases[0] + biases[-1])) / (half**2 - inner**2)
    steep = float(slopes[-1] - slopes[0]) / last
    if not (sharpness > 0 and steep > 0):
        return None
    tilt = float(biases[-1] - biases[0]) / last
    base = 0.5 * float(slopes[0] + slopes[-1])
    even = base + steep * places
    curve = middle + tilt * places - sharpness * (places.square() - inner**2)
    allowed = EVEN_UNITS * unit
    if not bool(((slopes - even).abs() <= allowed * slopes.abs().max()).all()):
        return None
    if not bool(((biases - curve).abs() <= allowed * biases.abs().max()).all()):
        return None
    spacing, middle_at = 2 * sharpness / steep, center - tilt / steep
    grid = Grid(middle_at - half * spacing, middle_at + half * spacing, last)
    return grid, sharpness


_readings: DigestCache[Reading] = DigestCache()


@dataclass(frozen=True, eq=False)
class Reading:
    """The look-up layer as a formula; what is None is the identity, or zero.

    Attributes
    ----------
    form
        F / lambda, shape (d, d).
    label, shift
        f_w / lambda and f_x / lambda, shape (d,).
    scale, bias
        lambda and g, of look-ups.
    free, free_shift, free_bias
        F, f_x and g of free queries, whose logits are q'F key + f_x.key + g b.
    values
        V, shape (d + 1, d + 1).
    readout, free_readout
        What W_O makes of the queries' rows, shape (samples, samples).
    """

    form: Tensor | None
    label: Tensor | None
    shift: Tensor | None
    scale: float
    bias: float
    free: Tensor | None
    free_shift: Tensor | None
    free_bias: float
    values: Tensor | None
    readout: Tensor | None
    free_readout: Tensor | None

    def residuals(self, prompt: LookUps) -> Tensor:
        """z of every sample."""
        x, y, w = prompt.x.to(prompt.w.dtype), prompt.y, prompt.w
        if self.form is not None:
            w = padded(w, len(self.form)) @ self.form.to(w)
        if self.shift is not None:
            w = padded(w, len(self.shift)) + self.shift.to(w)
        z = (padded(x, w.shape[-1]) @ w[..., None])[..., 0] - y
        if self.label is not None:
            factor = padded(prompt.w, len(self.label)) @ self.label.to(w)
            z = z + factor[..., None] * (y + prompt.table.grid.center)
        return z

    def table(self, prompt: LookUps) -> Interpolant:
        """The table that the tokens hold, as the network's keys see it.

        Where it is bit for bit the one that the prompt was written from, it is that one.
        """
        slopes = prompt.slopes if self.scale == 1 else self.scale * prompt.slopes
        biases = prompt.biases if self.bias == 1 else self.bias * prompt.biases
        written = prompt.table
        found = (
            (slopes, written.keys.slopes),
            (biases, written.keys.biases),
            (prompt.values, written.values),
        )
        if all(a is b or torch.equal(a, b) for a, b in found):
            return written
        center, unit = written.grid.center, unit_roundoff(torch.float64)
        return rebuild(slopes, biases, prompt.values, unit, center)

    @property
    def plain(self) -> bool:
        """Whether z = w.x - y, and rows are read as they are."""
        parts = (self.form, self.label, self.shift, self.values, self.readout)
        return all(part is None for part in parts)


def padded(t: Tensor, width: int) -> Tensor:
    """With zeros, up to this many features."""
    return torch.nn.functional.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t


def read_layer(network: FrozenNetwork, digest: str | None) -> Reading:
    """The reading of a look-up layer with this digest; None reads it anew."""
    return _readings.get(digest, lambda: _read(holding(network, digest)))


def _read(network: FrozenNetwork) -> Reading:
    embed, w_k, w_q, w_v, w_o, stored = _parts(network)
    at = network.features
    a, positions = (t.detach().double().cpu() for t in (embed.features, embed.positions))
    met = (w_q != 0).any(1)  # rows of a key that queries meet; others may hold values
    w_k, w_q = w_k[met], w_q[met]
    keys, queries, values = w_k @ a, w_q @ a, w_v @ a
    key_at, query_at = positions @ w_k.mT, positions @ w_q.mT
    m = w_o.shape[1] // 2
    asked = slice(len(positions) - 2 * m, None)
    x, y, b, v, w = (at[n] for n in ("key_x", "key_y", "key_bias", "value", "w"))
    require_zero("the query of what is not w", queries[:, : w.start])
    require_zero("a key made of values or of w", keys[:, v.start :])
    require_zero("a value made of keys or of w", values[:, : v.start], values[:, w])
    require_zero("the value of a position", positions @ w_v.mT)
    meets = queries[:, w].mT @ keys  # w' meets raw features
    require_zero("a bias that depends on w", meets[:, b])
    _check_positions(query_at[asked], key_at, queries[:, w], m, stored)
    of_block, free = (_same(query_at[asked][part] @ keys) for part in (slice(0, m), slice(m, None)))
    scale = -float(of_block[y])
    if not scale > 0:
        refuse(f"labels enter z with the factor {-scale:.3g}, which is not negative")
    require_zero("what W_O reads of grid tokens", w_o[: len(positions) - 2 * m])
    last = w_o[asked]
    require_zero("what W_O mixes of look-ups and free queries", last[:m, m:], last[m:, :m])
    return Reading(
        form=unless_identity(meets[:, x] / scale),
        label=unless_zero(meets[:, y][:, 0] / scale),
        shift=unless_zero(of_block[x] / scale),
        scale=scale,
        bias=float(of_block[b]),
        free=unless_identity(meets[:, x]),
        free_shift=unless_zero(free[x]),
        free_bias=float(free[b]),
        values=unless_identity(values[:, v]),
        readout=unless_identity(last[:m, :m]),
        free_readout=unless_identity(last[m:, m:]),
    )


_Matrices = tuple[Embed, Tensor, Tensor, Tensor, Tensor, int]


def _parts(network: FrozenNetwork) -> _Matrices:
    """The embedding, W_K, W_Q, W_V, W_O, and how many tokens are keys."""
    if len(network.layers) != 2 or "key_x" not in network.features:
        refuse(f"its layers are {', '.join(type(x).__name__ for x in network.layers) or 'none'}")
    require_finite(network)
    embed, layer = network.layers
    if type(embed) is Embed and type(layer) is SoftmaxAttention and len(layer.labels) == 1:
        if layer.residual:
            refuse("it has a residual stream")
        weights = (layer.w_k, layer.w_q, layer.w_v, layer.w_o)
        w_k, w_q, w_v, w_o = (w[0].detach().double().cpu() for w in weights)
        return embed, w_k, w_q, w_v, w_o, len(embed.places)
    if type(embed) is Embed and type(layer) is HopfieldLayer and layer.stored is not None:
        w_k, w_q, w_v = (w.detach().double().cpu() for w in (layer.w_k, layer.w_q, layer.w_v))
        states = len(embed.places) - layer.stored
        w_o = torch.zeros(len(embed.places), states, dtype=torch.float64)
        w_o[layer.stored :] = torch.eye(states, dtype=torch.float64)
        return embed, float(layer.beta) * w_k, w_q, w_v @ w_k, w_o, layer.stored
    refuse(f"its layers are {type(embed).__name__} and {type(layer).__name__}")


def _check_positions(
    asked: Tensor, key_at: Tensor, coefficients: Tensor, m: int, stored: int
) -> None:
    """A query sees its own tokens at 0, a free one all, and others not at all."""
    grid = len(key_at) - 2 * m
    require_zero("a position that depends on w", key_at[:grid] @ coefficients)
    meets = asked @ key_at.mT
    blocks = torch.arange(grid) // (grid // m)
    own = blocks == torch.arange(m)[:, None]
    require_zero("a query's own positions", meets[:m, :grid][own], meets[m:, :grid])
    others = meets[:m, :grid][~own]
    if others.numel() and not float(others.max()) <= -MARGIN / 2:
        refuse(f"the margin between blocks is {-float(others.max()):.3g}")
    if stored > grid and not float(meets[:, grid:].max()) <= -HIDDEN / 2:
        refuse(f"the margin of query tokens is {-float(meets[:, grid:].max()):.3g}")


def _same(rows: Tensor) -> Tensor:
    require_zero("queries that differ from each other", rows - rows[:1])
    return rows[0]
