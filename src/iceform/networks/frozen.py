r"""The two frozen layers that a whole network is read by.

read
    One linear map, its weights in the prompt (:class:`~iceform.paper.rows.RowLayer`):
    a head per output row looks up :math:`\theta_r \cdot x` on the table of the identity over
    [-1, 1]. Maps with more rows than heads are read in several prompts, and a row that reaches
    further is scaled by a power of two in the prompt, which is exact; so one set of weights serves
    them all.
attend
    One attention head on tokens that carry their key, query and value: logits
    :math:`q_j \cdot k_i + m_{ji}` with the mask m in the prompt. It runs the heads of the network,
    and every look-up table as well, since a table read by softmax *is* an attention head whose
    keys are the table's slopes and biases.

The weights depend on sizes, eps and dtype only. What the network is made of is in the prompts.

``literal`` writes those prompts and multiplies them with the matrices. As they were built, the
first layer looks theta.x up in its table and the second computes softmax(q k' + m) v: where every
bit of the weights is as it was built, ``fused`` computes that, and neither prompt need be written.
Any other weights get their prompts, and what the matrices make of them comes back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from iceform.arithmetic.units import LEAK_BITS
from iceform.certificates.witness import ReplayedEntry
from iceform.heads import (
    Design,
    Features,
    FrozenNetwork,
    Head,
    SoftmaxAttention,
    attention,
    moves,
    products,
)
from iceform.paper.rows import RowLayer
from iceform.run import rounding_of
from iceform.run.base import other_weights
from iceform.tables import Interpolant, regimes
from iceform.validation import check_capacity, common_batch, unit_roundoff, untraced

_FEWEST_TOKENS = 63  # room for 64 at least
_ROWS = 16  # heads of the reading layer: rows of a weight matrix per prompt
SLACK = 2.0**-4  # the table reaches this far beyond [-1, 1], for the rounding of theta . x
_FINEST = 2.0**-45  # relative: a finer table is not certified in float64, whose values round
_FINEST_UNITS = 2.0**-3  # the same in float32, in unit roundoffs
_NARROW_CELLS = 8  # in float32 a sum rounds as its values do, so those near z should be near 0


@dataclass(frozen=True)
class NetworkSizes:
    """What the frozen layers are sized for.

    Attributes
    ----------
    inputs
        The widest input of a linear map, and one feature more for the bias.
    rows
        Heads of the reading layer.
    head_dim, value_dim
        Of the widest attention head (a look-up table needs 2 and 1).
    tokens
        The longest sequence or look-up table.

    Examples
    --------
    >>> NetworkSizes.covering(inputs=8, outputs=4, head_dim=2, value_dim=1, tokens=20)
    NetworkSizes(inputs=9, rows=4, head_dim=2, value_dim=1, tokens=64)
    """

    inputs: int
    rows: int
    head_dim: int
    value_dim: int
    tokens: int

    @classmethod
    def covering(
        cls, inputs: int, outputs: int, head_dim: int, value_dim: int, tokens: int
    ) -> NetworkSizes:
        """Sizes for maps of up to ``inputs`` x ``outputs``.

        Tokens are rounded up to a power of two: the length of a fitted table says nothing then
        about the network whose activation it is, and networks of one shape share their weights.
        """
        tokens = 1 << max(_FEWEST_TOKENS, tokens - 1).bit_length()
        return cls(inputs + 1, min(_ROWS, outputs), max(2, head_dim), max(1, value_dim), tokens)


def identity_table(eps: float | None, dtype: torch.dtype) -> Interpolant:
    """The line on [-1, 1] that every linear map is read from, to ``eps`` of its range."""
    reach = 1.0 + SLACK
    narrow = dtype == torch.float32
    finest = unit_roundoff(dtype) * _FINEST_UNITS if narrow else _FINEST
    wanted = max(finest, 0.0 if eps is None else eps / 2)
    return regimes.spectral(-reach, reach, wanted, cells=_NARROW_CELLS if narrow else 1)


class FrozenLayers:
    """The two frozen layers: one reads theta.x from a prompt, the other attends.

    Their weights depend on sizes and dtype alone: two networks of the same sizes share them.

    Parameters
    ----------
    sizes
        What they must hold.
    table
        The look-up table of the identity.
    dtype
        Of the weights.
    insists
        Refuse other weights than those that were built, whatever is checked.

    Examples
    --------
    >>> net = in_context(torch.nn.Linear(2, 1).double(), bound=1.0)
    >>> other = in_context(torch.nn.Linear(2, 1).double(), bound=1.0)
    >>> net.frozen.digest == other.frozen.digest
    True
    """

    def __init__(
        self, sizes: NetworkSizes, table: Interpolant, dtype: torch.dtype, *, insists: bool = False
    ) -> None:
        self.sizes, self.table, self.dtype, self.insists = sizes, table, dtype, insists
        self._built: bool | None = None
        self.rows = RowLayer(sizes.inputs, 1, (sizes.rows,), ("theta",), table, 0.0)

    @property
    def features(self) -> Features:
        """What a token of the attending layer carries."""
        s = self.sizes
        return Features.of(
            key=s.head_dim, query=s.head_dim, value=s.value_dim, position=s.tokens, mask=s.tokens
        )

    @property
    def weight_bytes(self) -> int:
        """What the literal weights take."""
        s, at = self.sizes, self.features
        attending = at.total * (2 * (s.head_dim + s.tokens) + s.value_dim) + s.tokens**2
        reading, before = self.rows.sizes()
        return self.dtype.itemsize * (reading.parameters + before + attending)

    @cached_property
    def network(self) -> FrozenNetwork:
        """Both layers; the first reads, the second attends."""
        check_capacity(
            "the frozen layers",
            self.weight_bytes,
            torch.device("cpu"),
            "narrow the network, or shorten its sequences (tokens=)",
        )
        every = torch.eye(self.sizes.tokens, dtype=torch.float64)
        layers = [self.rows.build(), attention(self.design, 0, every)]
        return FrozenNetwork(layers, self.rows.features, [self.table]).to(self.dtype).seal()

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen weights, as they are now."""
        return self.network.digest

    @untraced
    def check(self) -> str:
        """The digest of the weights as they are now.

        Raises
        ------
        IntegrityError
            If they are not those that the sizes imply.
        """
        digest = self.network.check()
        self._built = digest == self.network.expected
        if self.insists and not self._built:
            raise other_weights("fused", self.network, digest)
        return digest

    @property
    def is_flagged(self) -> bool:
        """Whether the network's flag tells that the weights are those that were built."""
        return bool(self._built) and self.network.is_flagged

    def to(self, device: torch.device) -> None:
        """Move the weights: they are checked where they are, without waiting on a GPU."""
        if "network" in vars(self):
            self.network.to(device)

    @property
    def built(self) -> bool:
        """Whether the weights, when they were last checked, were those that were built."""
        if self._built is None:
            self.check()
        return bool(self._built)

    @property
    def design(self) -> Design:
        """The attending layer; the reading one is of ``rows``."""
        at = self.features
        logit = products(at, {"query": 1.0}, {"key": 1.0})
        masked = products(at, {"mask": 1.0}, {"position": 1.0})
        head = Head("attend", (*logit, *masked), moves(at, {"value": 1.0}, "value"))
        return Design(at, ((head,),), gives=(Features.of(value=self.sizes.value_dim),))

    # -------------------------------------------------------------------------------- evaluation

    def read_prompt(self, x: Tensor, theta: Tensor) -> Tensor:
        """Prompts of the reading layer: shape (*batch, blocks, tokens, features).

        x is (*batch, inputs), theta (*batch or none, outputs, inputs), both narrower than the
        layer allows; a block holds ``rows`` rows of theta.
        """
        s = self.sizes
        blocks = -(-theta.shape[-2] // s.rows)
        x = F.pad(x, (0, s.inputs - x.shape[-1]))[..., None, None, :]
        theta = F.pad(theta, (0, s.inputs - theta.shape[-1], 0, blocks * s.rows - theta.shape[-2]))
        return self.rows.pack(x, [theta.unflatten(-2, (blocks, s.rows))])

    def read(self, x: Tensor, theta: Tensor) -> Tensor:
        """The look-ups of theta x, shape (*batch, outputs), by their prompts."""
        out = self._run(0, self.read_prompt(x, theta))
        return out.squeeze(-2).flatten(-2)[..., : theta.shape[-2]]

    def _run(self, index: int, prompt: Tensor) -> Tensor:
        """What one of the layers makes of prompts."""
        out: Tensor = self.network.to(prompt.device).layers[index](prompt)
        return out

    def attend_prompt(
        self, keys: Tensor, queries: Tensor, values: Tensor, mask: Tensor, margin: float
    ) -> Tensor:
        """Prompts of the attending layer: token t carries key, value and query t.

        keys (*batch, n, h), queries (*batch, m, h), values (*batch, n, v); the mask (*batch, m, n)
        is added to the logits, and what it forbids is -inf there, -margin in the prompt.
        """
        s, n, m = self.sizes, keys.shape[-2], queries.shape[-2]
        # A query that may see no token sees those alike that are hidden by a finite number.
        none = (mask <= -margin).all(-1, keepdim=True)
        queries = queries.masked_fill(none, 0.0)
        mask = mask.masked_fill(none & mask.isfinite(), 0.0)
        batch = common_batch(*(t.shape[:-2] for t in (keys, queries, values, mask)))

        def padded(t: Tensor, width: int) -> Tensor:
            t = F.pad(t, (0, width - t.shape[-1], 0, s.tokens - t.shape[-2]))
            return t.expand(*batch, *t.shape[-2:])

        allowed = keys.new_full((s.tokens, s.tokens), -margin)
        allowed = allowed.expand(*batch, -1, -1).clone()
        allowed[..., :m, :n] = mask.clamp(min=-margin)
        position = torch.eye(s.tokens).to(keys)
        parts = (padded(keys, s.head_dim), padded(queries, s.head_dim), padded(values, s.value_dim))
        return torch.cat([*parts, padded(position, s.tokens), allowed], -1)

    def attend(
        self, keys: Tensor, queries: Tensor, values: Tensor, mask: Tensor, margin: float
    ) -> Tensor:
        """The head's outputs, shape (*batch, m, v), by its prompts."""
        prompt = self.attend_prompt(keys, queries, values, mask, margin)
        out = self._run(1, prompt)
        return out[..., : queries.shape[-2], : values.shape[-1]]

    # -------------------------------------------------------------------- questions to the layers

    def ask_read(self, x: Tensor, theta: Tensor, row: int, got: Tensor) -> ReplayedEntry:
        """Row ``row`` of theta x, for one x, of which ``got`` came back."""
        first = row // self.sizes.rows * self.sizes.rows
        prompt = self.read_prompt(x, theta[first : first + self.sizes.rows])
        layer = self.network.to(x.device).layers[0]
        assert isinstance(layer, SoftmaxAttention)
        return ReplayedEntry(
            layer, prompt[0], 0, row - first, got, rounding_of("fused"), (self.table,)
        )

    def ask_attend(
        self, keys: Tensor, query: Tensor, values: Tensor, mask: Tensor, margin: float,
        feature: int, got: Tensor, tables: Sequence[Interpolant] = (),
    ) -> ReplayedEntry:  # fmt: skip
        """One entry of what one query gets, of which ``got`` came back."""
        prompt = self.attend_prompt(keys, query, values, mask, margin)
        layer = self.network.to(keys.device).layers[1]
        assert isinstance(layer, SoftmaxAttention)
        return ReplayedEntry(layer, prompt, 0, feature, got, rounding_of("fused"), tables)

    def margin(self, logits: float) -> float:
        """M: what a masked token loses by, if no logit is larger than ``logits`` in size."""
        target = LEAK_BITS * math.log(2) - math.log(unit_roundoff(self.dtype))
        return 2 * logits + math.log(self.sizes.tokens) + target

    @property
    def leak(self) -> float:
        """Bound of the mass on masked tokens at that margin."""
        return unit_roundoff(self.dtype) * 2.0**-LEAK_BITS
