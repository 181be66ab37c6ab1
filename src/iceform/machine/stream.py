r"""StreamMachine: one frozen attention layer that data of any length streams through.

It is the layer of thm:attn_sim_f with everything that describes a task in the prompt. A prompt has
``samples`` blocks of ``tokens`` grid tokens and ``samples`` query tokens; the query of block c
meets a token with the logit

.. math:: k_x \cdot w_c - k_y + k_b - M\,1\{\text{the token is hidden from } c\},

and reads a value row. The frozen matrices only say where in a token key, query and value are, and
hold the margin M. What the keys and values are is up to the prompt:

* a **look-up** of z_i = w.x_i - y_i writes s_k x_i, s_k (y_i + m) and b_k for the keys (s_k, b_k)
  of a table around m, uniform or crowded at kinks, and v_k x_i as values: the query returns
  A(z_i) x_i, a sample's gradient;
* an **average** writes 2 gamma x_j and -gamma ||x_j||^2, hides nothing, and returns the kernel
  average of the values; with a large gamma, the nearest sample's.

Longer data are many prompts; the readout adds their answers up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.attention import Features, FrozenNetwork, SoftmaxAttention
from iceform.backends import fused
from iceform.errors import BoundError, ProgramError, ShapeError
from iceform.interpolation import Interpolant
from iceform.machine.sources import ArraySource, Source
from iceform.validation import check_capacity, check_size

Answer = TypeVar("Answer", covariant=True)

__all__ = ["LARGEST_LOGIT", "Lookup", "StreamMachine"]

# Hidden tokens only ever lose: M exceeds every logit that a prompt may make by far, and what is
# not hidden never sees it, so it costs no precision.
_MARGIN = 2.0**50
LARGEST_LOGIT = 2.0**40  # of an average: far above -M, and rounded to 2^-12 or better


class Streamed(Protocol[Answer]):
    """A program that loops a machine over data."""

    def stream(self, machine: StreamMachine, source: Source) -> Answer:
        """Pass over the data as often as needed."""
        ...


@dataclass(frozen=True, eq=False)
class Lookup:
    """One prompt's worth of look-ups: a table, samples, labels, and the coefficients w."""

    table: Interpolant
    x: Tensor  # (rows, dim)
    y: Tensor  # (rows,)
    w: Tensor  # (dim,)


class StreamMachine:
    """One frozen layer for a class of data: its weights depend on these sizes alone.

    Parameters
    ----------
    dim
        Features of a sample, the constant one of an intercept included.
    samples
        Samples answered by one prompt.
    tokens
        Grid tokens per sample; ``samples * tokens`` is how many samples an average can see.
    """

    def __init__(self, dim: int, samples: int = 32, tokens: int = 129) -> None:
        self.dim = check_size("dim", dim)
        self.samples = check_size("samples", samples)
        self.tokens = check_size("tokens", tokens)

    def __repr__(self) -> str:
        return f"StreamMachine(dim={self.dim}, samples={self.samples}, tokens={self.tokens})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamMachine) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __reduce__(self) -> tuple[type[StreamMachine], tuple[int, int, int]]:
        """Sizes are all there is: another process builds the same weights."""
        return StreamMachine, (self.dim, self.samples, self.tokens)

    def run(self, program: Streamed[Answer], x: Tensor | Source, y: Tensor | None = None) -> Answer:
        """Run a program on data; the answer comes with its certificate.

        Parameters
        ----------
        program
            One of ``iceform.algorithms`` that streams.
        x, y
            Samples (rows, dim) and labels (rows,) in float64, or a :class:`Source` of both.
        """
        if not hasattr(program, "stream"):
            raise ProgramError(f"not a program that streams: {program!r}; see iceform.algorithms")
        if isinstance(x, Source):
            return program.stream(self, x)
        if not isinstance(x, Tensor) or x.ndim != 2:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(f"data must be a tensor (samples, dim), got {got}")
        labels = x.new_zeros(len(x)) if y is None else y
        source = ArraySource(x, labels)
        for name, values in (("x", x), ("y", labels)):
            if not bool(torch.isfinite(values).all()):
                raise BoundError(f"{name} holds NaN or infinity; fill or remove what is missing")
        return program.stream(self, source)

    # ------------------------------------------------------------------------ the frozen weights

    @property
    def features(self) -> Features:
        """The feature axis of a prompt."""
        d, m = self.dim, self.samples
        return Features.of(
            key_x=d, key_y=1, key_bias=1, hidden_from=m, value=d + 1, w=d, is_query=1, block=m
        )

    @cached_property
    def network(self) -> FrozenNetwork:
        """The literal weights."""
        at, d, m = self.features, self.dim, self.samples
        count = m * self.tokens + m
        need = 8 * (at.total * (3 * d + 2 * m + 5) + count * m)
        check_capacity("the frozen layer", need, torch.device("cpu"), "use a smaller machine")
        w_k = torch.zeros(d + 2 + m, at.total, dtype=torch.float64)
        w_q = torch.zeros_like(w_k)
        coordinates, label, bias, blocks = slice(0, d), d, d + 1, slice(d + 2, None)
        w_k[coordinates, at["key_x"]] = torch.eye(d, dtype=torch.float64)
        w_k[label, at["key_y"]] = -1.0
        w_k[bias, at["key_bias"]] = 1.0
        w_k[blocks, at["hidden_from"]] = -_MARGIN * torch.eye(m, dtype=torch.float64)
        w_q[coordinates, at["w"]] = torch.eye(d, dtype=torch.float64)
        w_q[label, at["is_query"]] = 1.0
        w_q[bias, at["is_query"]] = 1.0
        w_q[blocks, at["block"]] = torch.eye(m, dtype=torch.float64)
        w_v = torch.zeros(d + 1, at.total, dtype=torch.float64)
        w_v[:, at["value"]] = torch.eye(d + 1, dtype=torch.float64)
        w_o = torch.zeros(count, m, dtype=torch.float64)
        w_o[count - m :] = torch.eye(m, dtype=torch.float64)
        layer = SoftmaxAttention(
            w_k[None], w_q[None], w_v[None], w_o[None], labels=["read the prompt's table"]
        )
        return FrozenNetwork([layer], at)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the frozen weights."""
        return self.network.digest

    # ---------------------------------------------------------------------------------- prompts

    def _blank(self) -> tuple[Tensor, Tensor, Tensor]:
        """An empty prompt, with views of its (block, grid, feature) tokens and of its queries."""
        at, m, g = self.features, self.samples, self.tokens
        tokens = torch.zeros(m * g + m, at.total, dtype=torch.float64)
        tokens[:, at["hidden_from"]] = 1.0
        queries = tokens[m * g :]
        queries[:, at["is_query"]] = 1.0
        queries[:, at["block"]] = torch.eye(m, dtype=torch.float64)
        return tokens, tokens[: m * g].view(m, g, -1), queries

    def lookup_prompt(self, asked: Lookup) -> Float[Tensor, "tokens features"]:
        """The tokens that look z_i = w.x_i - y_i up and return [A(z_i) x_i, A(z_i)]."""
        self.check_table(asked.table)
        rows, r = asked.x.shape
        self._check_fits(rows, r)
        at, table = self.features, asked.table
        slopes, biases = table.keys.slopes, table.keys.biases
        tokens, grid, queries = self._blank()
        own = grid[:rows, : table.tokens]
        own[..., at["key_x"]][..., :r] = slopes[:, None] * asked.x[:, None, :]
        own[..., at["key_y"]] = (slopes * (asked.y[:, None] + table.grid.center))[..., None]
        own[..., at["key_bias"]] = biases[:, None]
        own[..., at["hidden_from"]] -= torch.eye(self.samples)[:rows, None, :].double()
        own[..., at["value"]][..., :r] = table.values[:, None] * asked.x[:, None, :]
        own[..., at["value"]][..., -1] = table.values
        queries[:rows, at["w"]][:, :r] = asked.w
        return tokens

    def average_prompt(
        self,
        x: Float[Tensor, "n d"],
        values: Float[Tensor, "n v"],
        points: Float[Tensor, "q d"],
        gamma: float,
        ties: float = 0.0,
    ) -> Float[Tensor, "tokens features"]:
        """The tokens that return the values' average with weights e^{-gamma ||q - x_j||^2}.

        Of equally near samples the earlier one is preferred by the factor e^{ties}.
        """
        at = self.features
        self._check_fits(len(points), x.shape[1], values.shape[1])
        self._check_sees(len(x))
        tokens, _, queries = self._blank()
        seen = tokens[: len(x)]
        keys, bias = _kernel_keys(x, gamma, ties)
        seen[:, at["key_x"]][:, : x.shape[1]] = keys
        seen[:, at["key_bias"]] = bias[:, None]
        seen[:, at["hidden_from"]] = 0.0
        seen[:, at["value"]][:, : values.shape[1]] = values
        queries[: len(points), at["w"]][:, : x.shape[1]] = points
        return tokens

    def _check_fits(self, rows: int, dim: int, values: int = 1) -> None:
        if rows > self.samples or dim > self.dim or values > self.dim + 1:
            raise ProgramError(
                f"a prompt of this machine holds {self.samples} samples of {self.dim} features and "
                f"{self.dim + 1} values, asked for {rows}, {dim} and {values}; build a larger one"
            )

    def _check_sees(self, samples: int) -> None:
        most = self.samples * self.tokens
        if samples > most:
            raise ProgramError(
                f"a prompt of this machine sees {most} samples, got {samples}; build one with "
                f"tokens >= {-(-samples // self.samples)}"
            )

    def check_dim(self, dim: int) -> None:
        """Refuse data with more features than the machine has."""
        if dim > self.dim:
            raise ProgramError(
                f"the data have {dim} features (a constant one for the intercept included), this "
                f"machine has {self.dim}; build one with dim >= {dim}"
            )

    def check_table(self, table: Interpolant) -> None:
        """Refuse a table that is longer than a block."""
        if table.tokens > self.tokens:
            raise ProgramError(
                f"the table has {table.tokens} tokens, a block of this machine {self.tokens}; "
                f"build one with tokens >= {table.tokens}"
            )

    # ------------------------------------------------------------------------------- evaluation

    def literal(self, tokens: Tensor) -> Tensor:
        """The definition: what the frozen matrices return, shape (samples, dim + 1)."""
        out: Tensor = self.network(tokens)
        return out

    def look_up(self, table: Interpolant, z: Tensor) -> Tensor:
        """A(z) for every entry: what :meth:`lookup_prompt` returns, without the zeros."""
        self.check_table(table)
        return fused.interpolate(z, table)

    def average(
        self, x: Tensor, values: Tensor, points: Tensor, gamma: float, ties: float = 0.0
    ) -> Tensor:
        """What :meth:`average_prompt` returns for the points, a prompt per ``samples`` of them."""
        self._check_sees(len(x))
        keys, bias = _kernel_keys(x, gamma, ties)
        parts = [
            torch.softmax(part @ keys.mT + bias, -1) @ values
            for part in torch.split(points, self.samples)
        ]
        return torch.cat(parts) if parts else points.new_zeros(0, values.shape[1])

    def prompts(self, rows: int) -> int:
        """Prompts that ``rows`` samples take."""
        return -(-rows // self.samples)


def _kernel_keys(x: Tensor, gamma: float, ties: float) -> tuple[Tensor, Tensor]:
    order = torch.arange(len(x), dtype=x.dtype, device=x.device)
    return 2 * gamma * x, -gamma * x.square().sum(-1) - ties * order
