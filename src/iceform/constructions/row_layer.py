r"""Linear maps whose weights are in the prompt: one head per output row (sec. 4.3).

Head r looks up z = theta_r . x_i among grid tokens with values L_k: the look-up of a straight line,
which at the right temperature is exact to rounding with about 25 tokens. What differs between the
two encodings is where the prompt keeps theta:

rows (thm:attn_sim_attn)
    Token j carries x_j and row j of every weight matrix. A head's own affine map makes the grid
    tokens (L_k theta_r) from row r. Any number of rows; tokens are zero-padded.
embedding (def:input_attn)
    Token i carries x_i, i times all weights, and a one-hot position. The ramp i theta_r is the key
    and positions give bias and value, so the tokens themselves are the grid. The paper's second
    block of constant weights is redundant, and its displayed key makes the softmax independent of
    x; the ramp is what works. It is counted from the middle of the grid, which keeps logits, and
    so their rounding, as small as they can be; tokens beyond the grid carry no weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.attention import Features, LiftedAttention, SoftmaxAttention
from iceform.interpolation import Grid, Interpolant
from iceform.validation import common_batch

__all__ = ["RowLayer"]


@dataclass(frozen=True)
class RowLayer:
    """The literal first layer: ``blocks`` weight matrices of given row counts, applied to x.

    Attributes
    ----------
    dim, samples
        Features and number of the x tokens.
    rows
        Rows of each weight matrix in the prompt.
    names
        What each matrix is called in labels ("K", "Q", "V").
    table
        The look-up of the identity.
    encoding
        "rows" or "embedding".
    margin
        M, which keeps attention off padding tokens.
    """

    dim: int
    samples: int
    rows: tuple[int, ...]
    names: tuple[str, ...]
    table: Interpolant
    encoding: str
    margin: float

    @property
    def outputs(self) -> int:
        """Rows of all matrices together: the layer's heads and its output features."""
        return sum(self.rows)

    @property
    def tokens(self) -> int:
        """Tokens that attend: at least the grid's and the samples'."""
        return max(self.samples, self.table.tokens)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.tokens if self.encoding == "embedding" else max(self.samples, *self.rows)

    @property
    def features(self) -> Features:
        """Features of the prompt."""
        if self.encoding == "rows":
            return Features.of(x=self.dim, **dict.fromkeys(self.names, self.dim))
        blocks = {n: r * self.dim for n, r in zip(self.names, self.rows, strict=True)}
        return Features.of(x=self.dim, **blocks, position=self.tokens)

    @property
    def labels(self) -> list[str]:
        """One per head."""
        pairs = zip(self.names, self.rows, strict=True)
        return [f"{name} row {j}" for name, count in pairs for j in range(count)]

    @property
    def roles(self) -> tuple[str, ...]:
        """One per token of the prompt."""
        kept = [f"x {i}" if i < self.samples else "padding" for i in range(self.prompt_tokens)]
        what = "weight row" if self.encoding == "rows" else "grid point"
        return tuple(f"{k}, {what} {i}" for i, k in enumerate(kept))

    def pack(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        """The prompt: data and weights, zero-padded."""
        batch = common_batch(x.shape[:-2], *(w.shape[:-2] for w in weights))
        count = self.prompt_tokens

        def padded(t: Tensor) -> Tensor:
            t = t.expand(*batch, *t.shape[-2:])
            return torch.nn.functional.pad(t, (0, 0, 0, count - t.shape[-2]))

        if self.encoding == "rows":
            return torch.cat([padded(x), *map(padded, weights)], -1)
        ramp = torch.zeros(count, 1, dtype=x.dtype, device=x.device)
        ramp[: self.table.tokens, 0] = (self._grid.offsets / self._grid.spacing).to(x)
        flat = [w.expand(*batch, *w.shape[-2:]).flatten(-2)[..., None, :] * ramp for w in weights]
        position = torch.eye(count, dtype=x.dtype, device=x.device).expand(*batch, count, count)
        return torch.cat([padded(x), *flat, position], -1)

    def build(self) -> SoftmaxAttention:
        """The literal weights, float64."""
        return self._rows() if self.encoding == "rows" else self._embedding()

    @property
    def _grid(self) -> Grid:
        assert isinstance(self.table.grid, Grid)
        return self.table.grid

    @property
    def _beta(self) -> float:
        return self.table.sharpness / self._grid.spacing**2

    def _readout(self) -> Tensor:
        """[I_n; 0]: keep the samples' tokens."""
        return torch.eye(self.tokens, self.samples, dtype=torch.float64)

    def _rows(self) -> LiftedAttention:
        d, n, grid, heads = self.dim, self.samples, self.table.tokens, self.outputs
        at, packed = Features.of(query=d, key=d, bias=1, value=1, padding=1, one=1), self.features
        eye = torch.eye(d, dtype=torch.float64)
        shared = torch.zeros(at.total, packed.total, dtype=torch.float64)
        shared[at["query"], packed["x"]] = eye
        groups = torch.zeros(len(self.rows), at.total, packed.total, dtype=torch.float64)
        for g, name in enumerate(self.names):
            groups[g, at["key"], packed[name]] = eye
        own = [torch.eye(r, self.prompt_tokens, dtype=torch.float64) for r in self.rows]
        ramp = torch.zeros(self.tokens, dtype=torch.float64)
        ramp[:grid] = self.table.keys.slopes / (2 * self._beta)
        constant = torch.zeros(self.tokens, at.total, dtype=torch.float64)
        constant[:grid, at["bias"]] = -self.table.keys.biases[:, None] / self._beta
        constant[:grid, at["value"]] = self.table.values[:, None]
        constant[grid:, at["padding"]] = 1.0
        constant[:, at["one"]] = 1.0
        w_k = torch.zeros(1, d + 1, at.total, dtype=torch.float64)
        w_k[0, :d, at["key"]] = 2 * self._beta * eye
        w_k[0, d, at["bias"]], w_k[0, d, at["padding"]] = -self._beta, -self.margin
        w_q = torch.zeros_like(w_k)
        w_q[0, :d, at["query"]], w_q[0, d, at["one"]] = eye, 1.0
        w_v = torch.zeros(heads, heads, at.total, dtype=torch.float64)
        w_v[range(heads), range(heads), at["value"]] = 1.0
        samples = torch.eye(self.prompt_tokens, self.tokens, dtype=torch.float64)
        samples[n:] = 0.0
        return LiftedAttention(
            shared, samples, groups, self.rows, torch.cat(own), ramp, constant,
            w_k, w_q, w_v, self._readout()[None], labels=self.labels,
        )  # fmt: skip

    def _embedding(self) -> SoftmaxAttention:
        d, grid, heads, at = self.dim, self.table.tokens, self.outputs, self.features
        eye = torch.eye(d, dtype=torch.float64)
        first = d  # the weights' blocks follow x, row-major
        w_k = torch.zeros(heads, d + 1, at.total, dtype=torch.float64)
        w_q = torch.zeros_like(w_k)
        w_v = torch.zeros(heads, heads, at.total, dtype=torch.float64)
        position = at["position"]
        bias = torch.full((self.tokens,), -self.margin, dtype=torch.float64)
        bias[:grid] = self.table.keys.biases
        values = torch.zeros(self.tokens, dtype=torch.float64)
        values[:grid] = self.table.values
        for head in range(heads):
            block = slice(first + head * d, first + (head + 1) * d)
            w_k[head, :d, block] = 2 * self._beta * self._grid.spacing * eye
            w_k[head, d, position] = bias
            w_q[head, :d, at["x"]] = eye
            w_q[head, d, position] = 1.0
            w_v[head, head, position] = values
        return SoftmaxAttention(w_k, w_q, w_v, self._readout()[None], labels=self.labels)

    def parameters(self) -> int:
        """Numbers in the literal layer."""
        readout, total = self.tokens * self.samples, self.features.total
        if self.encoding == "embedding":
            return self.outputs * (2 * (self.dim + 1) + self.outputs) * total + readout
        lifted = 2 * self.dim + 4
        maps = (1 + len(self.rows)) * lifted * total + self.prompt_tokens * self.tokens
        maps += self.outputs * self.prompt_tokens + self.tokens * (1 + lifted)
        return maps + 2 * (self.dim + 1) * lifted + self.outputs**2 * lifted + readout
