r"""thm:attn_sim_attn_multi and thm:attn_sim_attn: an attention head, given in the prompt.

The first layer looks up K, Q and V row by row (:mod:`iceform.paper.rows`); the second
is softmax attention on them. With every entry of K, Q and V off by at most e, and
:math:`\delta_{ij} = e (\|K_i\|_1 + \|Q_j\|_1) + d_h e^2`, the weights of query j move by at most
:math:`2 \tanh(\delta/2)` in the 1-norm, so

.. math:: |out' - out| \le e + \tanh(\delta/2)\, (\max_i V_{ri} - \min_i V_{ri}).

The paper's bound drops the inner dimension d_h and fails for large heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar, Unpack

import torch
from torch import Tensor

from iceform.arithmetic.units import OUTWARD_MANY
from iceform.certificates import Certificate
from iceform.certificates import DerivationStep as Step
from iceform.heads import (
    Design,
    Features,
    FrozenNetwork,
    Head,
    Prompt,
    attention,
    moves,
    products,
)
from iceform.paper.base import LayerSizes, Plan
from iceform.paper.rows import Entries, RowEmulator, RowOptions
from iceform.run.formulas import AttendedFeatures
from iceform.tables import Interpolant, bounds
from iceform.validation import check_size, unit_roundoff

_ALL = slice(None)
T = TypeVar("T")


class AttentionHead(RowEmulator):
    r"""A softmax-attention head whose weights are in the prompt.

    ``em(X, w_k, w_q, w_v)`` is :math:`W_V X\, \mathrm{Softmax}((W_K X)^\top W_Q X)` with tokens as
    rows: X is (*batch, tokens, dim), w_k and w_q are (*batch, head_dim, dim), w_v is
    (*batch, value_dim, dim), the output (*batch, tokens, value_dim). With ``heads`` > 1 the weights
    have a further axis, (*batch, heads, rows, dim), and the heads' outputs are summed, as in
    def:attn. The frozen weights depend on the sizes, the bound, eps and the dtype only.

    Parameters
    ----------
    dim, head_dim, value_dim, tokens
        Sizes of the target head and of its input.
    bound, weight_bound
        Entrywise bounds of X and of the weights (weights: as X by default).
    reach
        A narrower bound of |W x|, checked on every input.
    eps
        The sup-norm error to certify over the whole domain; None takes the best the dtype can
        do, and :meth:`certify` sharpens that for given inputs.
    encoding
        "rows" (weights as rows of the prompt) or "embedding" (weights along the embedding).
    regime
        "spectral" (default) or "hard", the paper's.
    heads
        Heads of the target, all run by the same frozen module.
    nonzeros
        For sparse X, as for :class:`LinearLayer`.
    grid_tokens
        A fixed number of grid tokens instead of as many as eps needs.
    dtype, backend
        What the certificate is for.

    Examples
    --------
    >>> em = AttentionHead(dim=2, head_dim=1, value_dim=1, tokens=3, eps=1e-6)
    >>> x, w = torch.ones(3, 2).double(), torch.tensor([[0.5, 0.25]]).double()
    >>> em(x, w, w, w).flatten().round(decimals=5).tolist()  # equal tokens are averaged
    [0.75, 0.75, 0.75]
    """

    held_apart = frozenset({"interpolant", "grid_tokens"})

    def __init__(
        self,
        dim: int,
        head_dim: int,
        value_dim: int,
        tokens: int,
        *,
        heads: int = 1,
        grid_tokens: int | None = None,
        **options: Unpack[RowOptions],
    ) -> None:
        self.head_dim = check_size("head_dim", head_dim)
        self.value_dim = check_size("value_dim", value_dim)
        self.heads = check_size("heads", heads)
        marks = [""] if heads == 1 else [str(h) for h in range(heads)]
        super().__init__(
            dim=dim,
            samples=tokens,
            rows=(head_dim, head_dim, value_dim) * heads,
            names=tuple(f"{name}{mark}" for mark in marks for name in "KQV"),
            tokens=grid_tokens,
            **options,
        )
        axis = () if heads == 1 else (heads,)
        parts = zip("KQV", (head_dim, head_dim, value_dim), strict=True)
        self.shapes = {"x": (tokens, dim), **{k: (*axis, rows, dim) for k, rows in parts}}
        self.answer = (tokens, value_dim)

    def _flat(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """(x, K0, Q0, V0, K1, ...): one weight matrix each."""
        if self.heads == 1:
            return inputs
        x, *weights = inputs
        per_head = zip(*(w.unbind(-3) for w in weights), strict=True)
        return (x, *(w for head in per_head for w in head))

    def _check_values(self, *inputs: Tensor) -> None:
        super()._check_values(*self._flat(inputs))

    def _encode(self, *inputs: Tensor) -> Prompt:
        """Data and weights as tokens."""
        return super()._encode(*self._flat(inputs))

    # ----------------------------------------------------------------------------- certificate

    @property
    def _gain(self) -> float:
        """Slope of the whole error in that of a look-up, at 0."""
        return self.heads * (1 + 2 * self.head_dim * self.reach * self.reach)

    def _second_layer(self, unit: float) -> tuple[float, float]:
        """Rounding of the second layer's logits (relative to their terms) and of its sums."""
        # Two of the roundings are a change of base, where exp is a power of two.
        return (self.head_dim + 4) * unit, (2 * self.samples + 16) * unit

    def _certify(self, it: Interpolant) -> Certificate:
        looked = self._looked(it)
        each = math.fsum(looked.values())
        norm = self.head_dim * self.reach
        delta = each * 2 * norm + self.head_dim * each**2
        dot, sums = self._second_layer(unit_roundoff(self.dtype))
        logits = dot * self.head_dim * (self.reach + each) ** 2
        moved = bounds.total_variation(delta + logits)
        terms = {
            **{name: self.heads * value for name, value in looked.items()},
            "propagation": self.heads * moved * 2 * self.reach,
            "second layer": self.heads * sums * (self.reach + each),
        }
        steps = (
            *self._steps(it, looked),
            Step("e", "error of an entry of K, Q, V", each, "sum of the above"),
            Step("delta", "e (||K||_1 + ||Q||_1) + d_h e^2", delta, "how far logits move"),
            Step("logits", "rounding of the second layer's logits", logits, "(d_h + 4) u terms"),
            Step("tanh", "tanh((delta + logits)/2)", moved, "how far attention weights move"),
        )
        return self._proved(terms, self._describe(), steps, it)

    def certify(self, *inputs: Tensor, queries: slice = _ALL) -> Certificate:
        r"""A sharper certificate for given inputs, of the outputs of the given query tokens.

        Of given K, Q and V both heads can be evaluated in float64: the exact one, and the one whose
        entries are looked up, by exact arithmetic. Their difference is what the table costs here.
        To it comes how far either may be from what was evaluated, and what runs from the second.
        With entries off by at most :math:`e`, logits are off by at most
        :math:`\delta_{ij} = |Q_j| e_{K_i} + e_{Q_j} (|K_i| + e_{K_i})` and their rounding, and an
        output moves by at most
        :math:`\sum_i p_i ((e^{\delta_i} - 1) |V_i - out| + e^{\delta_i} e_{V_i})
        / \sum_i p_i e^{-\delta_i}`: tokens that the head does not attend to do not count.
        """
        self.check(*inputs)
        x, *weights = (t.detach().double().cpu() for t in self._flat(inputs))
        table = rounded = torch.zeros((), dtype=torch.float64)
        for head in range(self.heads):
            k, q, v = (self._entries(x, w) for w in weights[3 * head : 3 * head + 3])
            q = Entries(*(part[..., queries, :] for part in q))
            exact = self._given(k.exact, q.exact, v.exact, k.off, q.off, v.off, 0.0)
            looked = self._given(
                k.looked, q.looked, v.looked, k.radius, q.radius, v.radius,
                unit_roundoff(self.dtype),
            )  # fmt: skip
            table = table + looked[0] - exact[0]
            rounded = rounded + looked[1] + exact[1]
        worst = int((table.abs() + rounded).argmax())
        terms = {
            "interpolation": float(table.abs().flatten()[worst]),
            "rounding": float(rounded.flatten()[worst]) * OUTWARD_MANY,
        }
        if not math.fsum(terms.values()) <= self.certificate.error:
            return self.certificate
        domain = {**self._describe(), "data": "as given"}
        off = terms["interpolation"]
        step = Step("off", "the look-ups' head less the exact one", off, "both on these data")
        steps = (*self._steps(self.interpolant, self._looked(self.interpolant)), step)
        return self._proved(terms, domain, steps, self.interpolant)

    def _given(
        self, k: Tensor, q: Tensor, v: Tensor, off_k: Tensor, off_q: Tensor, off_v: Tensor,
        unit: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The head of given numbers in float64, and how far from it one may be that is computed
        with roundoff ``unit`` from numbers that are off by so much.

        Weights p and output are those of the logits that were evaluated here, from which the
        other's differ by their rounding too; p and the output round once more in their sums.
        """
        dot, sums = self._second_layer(unit)
        own_dot, own_sums = self._second_layer(unit_roundoff(torch.float64))
        delta = q.abs() @ off_k.mT + off_q @ (k.abs() + off_k).mT
        delta = delta + (dot + own_dot) * ((q.abs() + off_q) @ (k.abs() + off_k).mT)
        logs = torch.log_softmax(q @ k.mT, -1)
        out, largest = logs.exp() @ v, (v.abs() + off_v).amax(-2, keepdim=True)
        grown = torch.where(delta < 1, logs.exp() * delta.expm1(), (logs + delta).exp())
        away = (v[..., None, :, :] - out[..., :, None, :]).abs()
        moved = (grown[..., None, :] @ away)[..., 0, :] + (logs + delta).exp() @ off_v
        moved = moved / (logs - delta).exp().sum(-1, keepdim=True)
        moved = torch.minimum(moved.nan_to_num(nan=math.inf), 2 * largest)
        return out, moved * (1 + 4 * own_sums) + (sums + 4 * own_sums) * largest

    # ------------------------------------------------------------------------------ evaluation

    def _exactly(self, *inputs: Tensor) -> Tensor:
        """The exact head (float64)."""
        x, *weights = (t.double() for t in self._flat(inputs))
        looked = [x @ w.mT for w in weights]
        heads = _threes(looked)
        return torch.stack([torch.softmax(q @ k.mT, -1) @ v for k, q, v in heads]).sum(0)

    def _build_network(self) -> FrozenNetwork:
        """Look-ups of all rows, and attention on what they give."""
        at, names = self.layer.looked, _threes(self.layer.names)
        attends = AttendedFeatures(tuple((at[k], at[q], at[v]) for k, q, v in names))
        second = attention(self.design, 1, torch.eye(self.samples, dtype=torch.float64))
        return self.layer.network(second, formulas=[attends])

    @property
    def design(self) -> Design:
        """Rows that look K, Q and V up, and the target heads on them."""
        first = self.layer.design
        looked = first.streams[1]
        heads = tuple(
            Head(
                f"target head {h}",
                products(looked, {q: 1.0}, {k: 1.0}),
                moves(looked, {v: 1.0}, "attended"),
            )
            for h, (k, q, v) in enumerate(_threes(self.layer.names))
        )
        given = (*first.gives, Features.of(attended=self.value_dim))
        return replace(first, layers=(*first.layers, heads), gives=given)

    @property
    def plan(self) -> Plan:
        """Two layers; a head for every row, and the target heads."""
        n, rows = self.samples, self.layer.outputs
        second = LayerSizes(n, rows, self.heads, self.head_dim, self.value_dim, n)
        return self.layer.plan(self.dtype, second)


def _threes(parts: Sequence[T]) -> list[tuple[T, T, T]]:
    """(K0, Q0, V0), (K1, Q1, V1), ..."""
    each = iter(parts)
    return list(zip(each, each, each, strict=True))
