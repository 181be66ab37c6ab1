r"""The look-up layer: the head of thm:attn_sim_f, all that describes a task being in the prompt.

A prompt has ``samples`` blocks of ``tokens`` grid tokens, a query token for each block and as many
free queries. The network embeds them (the affine map that the paper calls Lin: where a token's
features go, and its position) and attends once. The query of block c meets a token of block i with
the logit

.. math:: k_x \cdot w - k_y + k_b - M\,1\{i \ne c\},

a free query with the same logit and no margin, and either returns the softmax average of the
tokens' value rows. The frozen matrices say where in a token key, query, value and position are,
and hold the margin; what keys and values are is up to the prompt:

* **look-ups** (:class:`LookUps`) of z_i = w.x_i - y_i write s_k x_i, s_k (y_i + m) and b_k for the
  keys (s_k, b_k) of a table around m, and :math:`\kappa w + \gamma c_i (v_k - o_i) (x_i, 1)` as
  values, c_i the sample's weight: its query returns
  :math:`\kappa w + \gamma c_i (A(z_i) - o_i) (x_i, 1)`;
* an **average** (:class:`SoftmaxAverage`) writes any keys, biases and values, and asks by free
queries;
  tokens are hidden from a point by their biases, in a prompt of its own.

Tokens that hold the program (s_k, b_k, v_k, gamma, kappa) are the same for all data, and what is
written for data is affine in x, y, w, o, o x and the last two's and x's multiples by c. Longer data
are many prompts of one network: no weight grows with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iceform import tuning
from iceform.codec import decode, encode
from iceform.errors import IntegrityError, ProgramError
from iceform.heads.design import Design, attention
from iceform.heads.head import Head, Row, identity, moves, products, rows
from iceform.heads.network import Embed, Features, FrozenNetwork
from iceform.heads.variants import Lift
from iceform.pretrained import Pretrained
from iceform.tables import Interpolant
from iceform.validation import check_capacity, common_batch

# A hidden token's logit is below every other by more than any exponential can hold, so its weight
# is exactly 0; tokens that are not hidden never see these numbers, which so cost no precision.
MARGIN = 2.0**50  # of another block's tokens
HIDDEN = MARGIN / 32  # of tokens that hold nothing
LARGEST_LOGIT = HIDDEN / 32  # that a prompt may make: far above -HIDDEN


# Files hold the pairs (name, size) alone.
_SIZES = {"codec": (lambda features: encode(features.sizes), lambda said: Features(_pairs(said)))}


def _pairs(said: Any) -> tuple[tuple[str, int], ...]:
    return decode(tuple[tuple[str, int], ...], said)


@dataclass(frozen=True, eq=False)
class Prompt(Pretrained, kept_as="Prompt"):
    """Tokens, and names for what they hold.

    Attributes
    ----------
    tokens
        Shape (*batch, tokens, features).
    features
        Names of the feature axis.
    roles
        What each token is, in words.

    Examples
    --------
    >>> prompt = Prompt(torch.zeros(1, 3), Features.of(x=2, y=1), ("the only token",))
    >>> prompt["y"], prompt
    (tensor([[0.]]), Prompt(tokens 1 x 3; features x[2], y; the first is 'the only token'))
    """

    tokens: Float[Tensor, "*b n d"]
    features: Features = field(metadata=_SIZES)
    roles: tuple[str, ...]

    def __repr__(self) -> str:
        names = ", ".join(name if n == 1 else f"{name}[{n}]" for name, n in self.features.sizes)
        shape = " x ".join(map(str, self.tokens.shape))
        return f"Prompt(tokens {shape}; features {names}; the first is {self.roles[0]!r})"

    def __getitem__(self, name: str) -> Tensor:
        """The named features of every token."""
        return self.tokens[..., self.features[name]]

    # ---------------------------------------------------------------------------------- files

    def card(self) -> tuple[str, dict[str, str]]:
        return "Tokens for a frozen network to read.", {}

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors: dict[str, Tensor] = {}
        return encode(self, tensors), tensors

    @classmethod
    def unpack(cls, content: dict[str, Any], tensors: dict[str, Tensor], **_: Any) -> Prompt:
        prompt = decode(Prompt, content, tensors)
        shape = tuple(prompt.tokens.shape)
        if shape[-2:] != (len(prompt.roles), prompt.features.total):
            raise IntegrityError(f"tokens of shape {shape} do not fit their description")
        return prompt


@dataclass(frozen=True)
class LookUpLayout:
    """Sizes of the layer, and where in a token everything is.

    Attributes
    ----------
    dim
        Features of a sample.
    samples
        Blocks: samples looked up by one prompt.
    tokens
        Grid tokens of a block.
    margin
        M. A smaller one leaks, and is for seeing that: only the literal backend takes it.

    Examples
    --------
    >>> layout = LookUpLayout(dim=2, samples=3, tokens=25)
    >>> layout.count, layout.raw.names()[:4]
    (81, ['key_x[0]', 'key_x[1]', 'key_y', 'key_bias'])
    >>> layout.build().digest == layout.build().digest  # of the sizes alone
    True
    """

    dim: int
    samples: int
    tokens: int
    margin: float = MARGIN

    @property
    def count(self) -> int:
        """Tokens of a prompt."""
        return self.samples * (self.tokens + 2)

    @property
    def raw(self) -> Features:
        """Features of a prompt's tokens."""
        d = self.dim
        return Features.of(key_x=d, key_y=1, key_bias=1, value=d + 1, w=d)

    @property
    def features(self) -> Features:
        """Features of the tokens that attend, a prompt's and their position's."""
        m = self.samples
        return Features(self.raw.sizes + Features.of(hidden_from=m, is_query=1, block=m).sizes)

    @property
    def roles(self) -> tuple[str, ...]:
        """What each token of a prompt is for."""
        m, g = self.samples, self.tokens
        grid = [f"block {i}, token {k}" for i in range(m) for k in range(g)]
        asked = [f"query of block {i}" for i in range(m)] + [f"free query {i}" for i in range(m)]
        return tuple(grid + asked)

    @property
    def weights(self) -> int:
        """How many numbers the network holds."""
        raw, wide, m = self.raw.total, self.features.total, self.samples
        embedded = wide * raw + self.count * self._places + wide * self._places + wide
        return embedded + (2 * (self.dim + 2 + m) + self.dim + 1) * wide + self.count * 2 * m

    @property
    def _places(self) -> int:
        """Positions: the block of a grid token, the block of a query, a free query."""
        return 2 * self.samples + 1

    def build(self, dtype: torch.dtype = torch.float64) -> FrozenNetwork:
        """The frozen weights; they depend on these sizes, the margin and the dtype only."""
        last = torch.zeros(self.count, 2 * self.samples, dtype=torch.float64)
        last[-2 * self.samples :] = torch.eye(2 * self.samples, dtype=torch.float64)
        layers = [self.embedding(), attention(self.design, 0, last)]
        return self.network(layers).to(dtype).seal()

    def network(self, layers: Sequence[nn.Module]) -> FrozenNetwork:
        """Layers that look these prompts up; with a margin that leaks, by their matrices alone."""
        return FrozenNetwork(layers, self.raw, layout=self if self.margin >= MARGIN else None)

    @property
    def design(self) -> Design:
        """The head in which keys meet w, and a margin keeps a block's query to its own block."""
        at = self.features
        hidden = (Row(reads) for reads in identity("hidden_from", self.samples, -self.margin))
        seen = (
            *products(at, {"w": 1.0}, {"key_x": 1.0}),
            *products(at, {"is_query": 1.0}, {"key_y": -1.0}),
            *products(at, {"is_query": 1.0}, {"key_bias": 1.0}),
        )
        logit = (*seen, *zip(rows(at, {"block": 1.0}), hidden, strict=True))
        head = Head("read the prompt's table", logit, moves(at, {"value": 1.0}, "answer"))
        return Design(at, ((head,),), gives=(Features.of(answer=self.dim + 1),))

    def embedding(self) -> Embed:
        """Where a token's features go, and its position."""
        at, raw, m, g = self.features, self.raw, self.samples, self.tokens
        place = torch.zeros(self.count, self._places, dtype=torch.float64)
        place[: m * g, :m] = torch.eye(m, dtype=torch.float64).repeat_interleave(g, 0)
        place[m * g : m * g + m, m : 2 * m] = torch.eye(m, dtype=torch.float64)
        place[m * g + m :, 2 * m] = 1.0
        spread = torch.zeros(at.total, self._places, dtype=torch.float64)
        spread[at["hidden_from"], :m] = -torch.eye(m, dtype=torch.float64)
        spread[at["block"], m : 2 * m] = torch.eye(m, dtype=torch.float64)
        spread[at["is_query"], m:] = 1.0
        spread[at["key_bias"], m:] = -HIDDEN
        constant = torch.zeros(at.total, dtype=torch.float64)
        constant[at["hidden_from"]] = 1.0
        carried = torch.eye(at.total, raw.total, dtype=torch.float64)
        return Embed(carried, place, spread, constant, names=at)

    def check(self, tokens: int, dim: int) -> None:
        """Refuse tables and samples that do not fit."""
        if tokens > self.tokens or dim > self.dim:
            raise ProgramError(
                f"a block of this layer holds {self.tokens} tokens and samples of {self.dim} "
                f"features, asked for {tokens} and {dim}; build a larger one"
            )

    def blank(self, batch: torch.Size, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Empty tokens, with views of the (block, grid) tokens and of the queries."""
        m, g = self.samples, self.tokens
        tokens = like.new_zeros(*batch, self.count, self.raw.total)
        grid = tokens[..., : m * g, :].unflatten(-2, (m, g))
        grid[..., self.raw["key_bias"]] = -HIDDEN
        return tokens, grid, tokens[..., m * g :, :]


@dataclass(frozen=True, eq=False)
class LookUps:
    r"""A table and samples: the answer to sample i is kappa w + gamma c_i (A(z_i) - o_i) (x_i, 1).

    It stands for as many prompts as its samples fill, and holds none of their tokens.

    Attributes
    ----------
    layout
        The layer that it is for.
    table
        What the keys and values below are of.
    x, y, w
        Shapes (*batch, n, d), (*batch, n) and (*batch, d): z_i = w.x_i - y_i.
    offsets
        o, shape (*batch, n), or None for zeros.
    gain, keep
        gamma and kappa.
    slopes, biases, values
        s_k, b_k and v_k as the tokens hold them; the table's unless given.
    factors
        c, shape (*batch, n): what a sample's value rows are multiplied by; None for ones.

    Examples
    --------
    >>> table = ice.Interpolant.fit(torch.tanh, -2, 2, eps=1e-6)
    >>> layout = LookUpLayout(dim=1, samples=2, tokens=table.tokens)
    >>> x, y, w = torch.ones(3, 1).double(), torch.zeros(3).double(), torch.ones(1).double()
    >>> asked = LookUps(layout, table, x, y, w)  # tanh(w.x - y) x of three samples
    >>> asked.prompts, tuple(asked.tokens.shape)[:2] == (2, layout.count)
    (2, True)
    >>> abs(layout.build()(asked.tokens)[0, 0, 0] - torch.tanh(torch.tensor(1.0))) < 1e-6
    tensor(True)
    """

    layout: LookUpLayout
    table: Interpolant
    x: Float[Tensor, "*b n d"]
    y: Float[Tensor, "*b n"]
    w: Float[Tensor, "*b d"]
    offsets: Float[Tensor, "*b n"] | None = None
    gain: float = 1.0
    keep: float = 0.0
    slopes: Tensor = field(default=None)  # type: ignore[assignment]
    biases: Tensor = field(default=None)  # type: ignore[assignment]
    values: Tensor = field(default=None)  # type: ignore[assignment]
    factors: Float[Tensor, "*b n"] | None = None

    def __post_init__(self) -> None:
        keys = self.table.keys
        own = {"slopes": keys.slopes, "biases": keys.biases, "values": self.table.values}
        for name, tensor in own.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, tensor)
        self.layout.check(len(self.slopes), self.x.shape[-1])

    def __repr__(self) -> str:
        return (
            f"LookUps({self.count} samples of {self.x.shape[-1]}, {self.table}; .tokens has the "
            f"prompt: {self.prompts} x {self.layout.samples} samples)"
        )

    @property
    def count(self) -> int:
        """N."""
        return self.x.shape[-2]

    @property
    def prompts(self) -> int:
        """How many prompts it stands for, per set of samples."""
        return -(-self.count // self.layout.samples)

    @cached_property
    def batch(self) -> torch.Size:
        """Sets of samples."""
        shapes = (self.x.shape[:-2], self.y.shape[:-1], self.w.shape[:-1])
        return common_batch(*shapes)

    def residuals(self) -> Float[Tensor, "*b n"]:
        """z of every sample, in the precision of the coefficients."""
        return (self.x.to(self.w.dtype) @ self.w[..., None])[..., 0] - self.y

    def of(self, *at: int) -> LookUps:
        """One set of a batch of them."""
        n, d = self.x.shape[-2:]
        x, w = self.x.expand(*self.batch, n, d)[at], self.w.expand(*self.batch, d)[at]
        return replace(self._changed(x, lambda row: row.expand(*self.batch, n)[at]), w=w)

    def part(self, rows: Tensor | slice) -> LookUps:
        """The look-ups of some of the samples."""
        return self._changed(self.x[..., rows, :], lambda row: row[..., rows])

    def _changed(self, x: Tensor, change: Callable[[Tensor], Tensor]) -> LookUps:
        """With other samples, and the same change to labels, offsets and factors."""
        held = {name: getattr(self, name) for name in ("y", "offsets", "factors")}
        changed: dict[str, Any] = {k: change(row) for k, row in held.items() if row is not None}
        return replace(self, x=x, **changed)

    def weighed(self, looked: Tensor) -> Tensor:
        """What is looked up of each sample, shape (*batch, n), less its offset, times gamma c."""
        if self.offsets is not None:
            looked = looked - self.offsets
        looked = self.gain * looked
        return looked if self.factors is None else looked * self.factors

    @property
    def tokens(self) -> Float[Tensor, "*b p t f"]:
        """The literal tokens of all its prompts; refused where they would not fit in memory."""
        one = self.layout.count * self.layout.raw.total * self.w.element_size()
        prompts = self.prompts * max(1, self.batch.numel())
        what = f"the literal tokens of {prompts} prompts"
        check_capacity(what, prompts * one, self.w.device, "take them from chunks(), or part()")
        return torch.cat(list(self.chunks()), -3)

    def chunks(self) -> Iterator[Tensor]:
        """The literal tokens, (*batch, prompts, tokens, features), as many as fit at once."""
        m = self.layout.samples
        size = self.layout.count * self.layout.raw.total * max(1, self.batch.numel())
        step = m * max(1, tuning.ENTRIES_AT_ONCE // size)
        for start in range(0, self.count, step):
            yield self.part(slice(start, start + step))._write()

    def filled(self) -> LookUps:
        """With samples that are 0 where the last prompt has room."""
        short = self.prompts * self.layout.samples - self.count
        if not short:
            return self
        pad = torch.nn.functional.pad
        return self._changed(pad(self.x, (0, 0, 0, short)), lambda row: pad(row, (0, short)))

    def _write(self) -> Tensor:
        at, m, g, d = self.layout.raw, self.layout.samples, len(self.slopes), self.x.shape[-1]
        whole, like = self.filled(), self.w
        n = whole.count

        def blocks(t: Tensor, *wide: int) -> Tensor:  # (*batch, prompts, m, *wide)
            return t.to(like).expand(*self.batch, n, *wide).reshape(*self.batch, -1, m, *wide)

        x, y = blocks(whole.x, d), blocks(whole.y.to(like) + self.table.grid.center)
        w = blocks(self.w[..., None, :], d)
        o = torch.zeros_like(y) if whole.offsets is None else blocks(whole.offsets)
        slopes, biases, values = (t.to(like) for t in (self.slopes, self.biases, self.values))
        tokens, grid, queries = self.layout.blank(torch.Size((*self.batch, self.prompts)), like)
        own = grid[..., :g, :]
        own[..., at["key_x"]][..., :d] = slopes[:, None] * x[..., None, :]
        own[..., at["key_y"]] = (slopes * y[..., None])[..., None]
        own[..., at["key_bias"]] = biases[:, None]
        looked = self.gain * (values - o[..., None])
        if whole.factors is not None:
            looked = looked * blocks(whole.factors)[..., None]
        value = own[..., at["value"]]
        value[..., :d] = looked[..., None] * x[..., None, :] + self.keep * w[..., None, :]
        value[..., -1] = looked
        queries[..., :m, at["w"]][..., :d] = w
        return tokens

    @property
    def features(self) -> Features:
        """Names of the tokens' features."""
        return self.layout.raw

    @property
    def roles(self) -> tuple[str, ...]:
        """What each token of a prompt is."""
        return self.layout.roles

    def prompt(self) -> Prompt:
        """All tokens with their names."""
        return Prompt(self.tokens, self.features, self.roles)


@dataclass(frozen=True, eq=False)
class SoftmaxAverage:
    """Keys, biases and values of any tokens, and points that ask for their softmax average.

    The answer to point q is the average of the values with logits q.key_j + bias_j. Points share a
    prompt, unless what they see differs: then each has one of its own, in which the biases of the
    tokens that are hidden from it are lower by ``HIDDEN``.

    Attributes
    ----------
    layout
        The layer that it is for.
    keys, biases, values
        Shapes (n, d), (n,) and (n, v), v at most d + 1; biases of each point's own are (q, n).
    points
        Shape (q, d).
    seen
        Which tokens each point sees, shape (q, n); None for all.

    Examples
    --------
    >>> layout = LookUpLayout(dim=1, samples=2, tokens=3)
    >>> keys, values = torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [4.0]])
    >>> asked = SoftmaxAverage(layout, keys, torch.zeros(2), values, torch.tensor([[0.0]]))
    >>> layout.build(torch.float32)(asked.tokens)[0, 2, 0]  # both weigh the same
    tensor(3.)
    """

    layout: LookUpLayout
    keys: Float[Tensor, "n d"]
    biases: Float[Tensor, "n"] | Float[Tensor, "q n"]
    values: Float[Tensor, "n v"]
    points: Float[Tensor, "q d"]
    seen: Bool[Tensor, "q n"] | None = None

    def __post_init__(self) -> None:
        room, have = self.layout.samples * self.layout.tokens, len(self.keys)
        if have > room:
            raise ProgramError(
                f"a prompt of this layer sees {room} samples, got {have}; build one with "
                f"tokens >= {-(-have // self.layout.samples)}"
            )
        self.layout.check(0, max(self.keys.shape[1], self.values.shape[1] - 1))

    @property
    def apart(self) -> bool:
        """Whether every point has a prompt of its own."""
        return self.seen is not None or self.biases.ndim == 2

    @property
    def sharing(self) -> int:
        """How many points share a prompt."""
        return 1 if self.apart else self.layout.samples

    @property
    def prompts(self) -> int:
        """How many prompts it stands for."""
        return -(-len(self.points) // self.sharing)

    @property
    def written(self) -> Tensor:
        """The biases as tokens hold them, (n,), or (q, n) where prompts are the points' own."""
        if self.seen is None:
            return self.biases
        return self.biases - HIDDEN * (~self.seen).to(self.biases)

    def part(self, rows: Tensor | slice) -> SoftmaxAverage:
        """The averages for some of the points."""
        biases = self.biases[rows] if self.biases.ndim == 2 else self.biases
        seen = None if self.seen is None else self.seen[rows]
        return replace(self, biases=biases, points=self.points[rows], seen=seen)

    @property
    def tokens(self) -> Float[Tensor, "p t f"]:
        """The literal tokens of all its prompts."""
        return torch.cat(list(self.chunks()))

    def chunks(self) -> Iterator[Tensor]:
        """The literal tokens, (prompts, tokens, features), as many as fit at once."""
        size = self.layout.count * self.layout.raw.total
        at_once = self.sharing * max(1, tuning.ENTRIES_AT_ONCE // size)
        for start in range(0, len(self.points), at_once):
            yield self.part(slice(start, start + at_once))._write()

    def _write(self) -> Tensor:
        at, m, each = self.layout.raw, self.layout.samples, self.sharing
        prompts, points = self.prompts, self.points
        tokens, _, queries = self.layout.blank(torch.Size((prompts,)), points)
        own = tokens[:, : len(self.keys)]
        own[..., at["key_x"]][..., : self.keys.shape[1]] = self.keys
        own[..., at["key_bias"]] = self.written[..., None]
        own[..., at["value"]][..., : self.values.shape[1]] = self.values
        padded = points.new_zeros(prompts * each, points.shape[1])
        padded[: len(points)] = points
        asked = queries[:, m : m + each, at["w"]]
        asked[..., : points.shape[1]] = padded.unflatten(0, (prompts, each))
        return tokens


def _data_features(dim: int) -> Features:
    return Features.of(x=dim, y=1, w=dim, offset=1, offset_x=dim)


def baked(prompt: LookUps, dtype: torch.dtype) -> FrozenNetwork:
    r"""A prompt's table in weights: the layer behind a lift that holds it.

    A look-up prompt is an affine image of the samples, their labels and w, with coefficients that
    the table fixes. That map is a :class:`Lift`; in front of the frozen layer it makes a module
    that reads one token :math:`(x_i, y_i, w, o_i, o_i x_i)` per sample.

    Examples
    --------
    >>> table = ice.Interpolant.fit(torch.tanh, -2, 2, eps=1e-6)
    >>> layout = LookUpLayout(dim=1, samples=2, tokens=table.tokens)
    >>> x, y, w = torch.ones(2, 1).double(), torch.zeros(2).double(), torch.ones(1).double()
    >>> asked = LookUps(layout, table, x, y, w)
    >>> network = baked(asked, torch.float64)
    >>> bool((network(data_tokens(asked)) - layout.build()(asked.tokens)[0]).abs().max() < 1e-12)
    True
    """
    layout = prompt.layout
    d, m, g = prompt.x.shape[-1], layout.samples, len(prompt.slopes)
    at, raw = _data_features(d), layout.raw
    maps = torch.zeros(g + 1, raw.total, at.total, dtype=torch.float64)
    moves = torch.zeros(g + 1, m, layout.count, dtype=torch.float64)
    constant = torch.zeros(layout.count, raw.total, dtype=torch.float64)
    constant[: m * layout.tokens, raw["key_bias"]] = -HIDDEN
    eye, samples = torch.eye(d, dtype=torch.float64), torch.arange(m)
    last = raw["value"].stop - 1
    for k, (slope, bias, value) in enumerate(_rows(prompt)):
        a, places = maps[k], samples * layout.tokens + k
        _block(a, raw["key_x"], at["x"])[:] = slope * eye
        a[raw["key_y"], at["y"]] = slope
        _block(a, raw["value"], at["x"])[:] = prompt.gain * value * eye
        _block(a, raw["value"], at["offset_x"])[:] = -prompt.gain * eye
        _block(a, raw["value"], at["w"])[:] = prompt.keep * eye
        a[last, at["offset"]] = -prompt.gain
        moves[k, samples, places] = 1.0
        constant[places, raw["key_y"]] = slope * prompt.table.grid.center
        constant[places, raw["key_bias"]] = bias
        constant[places, last] = prompt.gain * value
    _block(maps[g], raw["w"], at["w"])[:] = eye
    moves[g, samples, m * layout.tokens + samples] = 1.0
    layers = [Lift(maps, moves, constant), *layout.build().layers]
    return FrozenNetwork(layers, at).to(dtype).seal()


def _rows(prompt: LookUps) -> list[tuple[float, float, float]]:
    parts = (prompt.slopes.tolist(), prompt.biases.tolist(), prompt.values.tolist())
    return list(zip(*parts, strict=True))


def _block(matrix: Tensor, rows: slice, columns: slice) -> Tensor:
    """As many rows as there are columns, from the first of ``rows`` on."""
    width = columns.stop - columns.start
    return matrix[rows.start : rows.start + width, columns]


def data_tokens(prompt: LookUps) -> Tensor:
    """What a baked module reads for one prompt's worth of samples.

    Examples
    --------
    >>> table = ice.Interpolant.fit(torch.tanh, -2, 2, eps=1e-6)
    >>> layout = LookUpLayout(dim=1, samples=2, tokens=table.tokens)
    >>> x, y, w = torch.ones(2, 1).double(), torch.zeros(2).double(), torch.ones(1).double()
    >>> data_tokens(LookUps(layout, table, x, y, w))  # x, y, w, offset, offset times x
    tensor([[1., 0., 1., 0., 0.],
            [1., 0., 1., 0., 0.]], dtype=torch.float64)
    """
    at, m = _data_features(prompt.x.shape[-1]), prompt.layout.samples
    tokens = prompt.x.new_zeros(m, at.total)
    rows = tokens[: prompt.count]
    rows[:, at["x"]], rows[:, at["y"]], rows[:, at["w"]] = prompt.x, prompt.y[:, None], prompt.w
    if prompt.offsets is not None:
        rows[:, at["offset"]] = prompt.offsets[:, None]
        rows[:, at["offset_x"]] = prompt.offsets[:, None] * prompt.x
    return tokens
