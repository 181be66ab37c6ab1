"""A head that looks up every sample's gradient."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from iceform.arithmetic.units import LEAK_BITS
from iceform.expressions import Loss
from iceform.heads import Features
from iceform.paper.gradients import GradientStep
from iceform.paper.library.passes import SPARE, HeadSizes, TargetHead
from iceform.tables import Interpolant, bounds
from iceform.validation import unit_roundoff


class GradientHead:
    """Prompts that look up f(w.x_i - y_i) x_i for every sample: the paper's token layout.

    A sample i brings a token (i, j) for every entry j of a look-up table, holding the sample in
    block j: e_j (x) (x_i, y_i, 1). Keys and values of the table are in the head's weights, so
    another loss is another prompt and the data's tokens stay as they are. A code in binary keeps
    queries on their own sample.
    """

    def __init__(
        self, loss: Loss, dim: int, samples: int, eps: float, w_bound: float, tokens: int | None
    ) -> None:
        self.loss = loss
        self.step = GradientStep(
            loss, 1.0, dim=dim, samples=samples, eps=None if tokens else eps, w_bound=w_bound,
            tokens=tokens,
        )  # fmt: skip
        self.table, self.domain = self.step.interpolant, self.step.domain
        self.bits = max(1, (samples - 1).bit_length())  # of a sample's number, digits -1 and +1
        # What a head without hidden tokens lets other blocks carry into a sample's gradient.
        self.leak = unit_roundoff(torch.float64) * 2.0**-LEAK_BITS
        margin = _log_rivals(self.table, samples) - _log_own(self.table) - math.log(self.leak)
        # Other samples' tokens differ in a bit, queries have no code: both must lose the margin.
        self.root = math.sqrt(margin / min(2, self.bits))
        # What the readout multiplies by, so that large values do not widen every look-up.
        self.scale = self.table.size + 1
        blocks = self.table.tokens * (dim + 2)
        self.features = Features.of(
            blocks=blocks, code=self.bits, offset=dim, w=dim, is_query=1, query_code=self.bits
        )

    @property
    def spans(self) -> Tensor:
        """Largest terms of keys and queries in each head dimension."""
        d, keys, center = self.domain.dim, self.table.keys, abs(self.table.grid.center)
        slope, bias = float(keys.slopes.abs().max()), float(keys.biases.abs().max())
        k = [slope * self.domain.x] * d + [slope * (self.domain.y + center), bias]
        q = [self.domain.w] * d + [1.0, 1.0]
        code = [self.root] * self.bits
        return torch.tensor([k + code, q + code], dtype=torch.float64)

    def sizes(self) -> HeadSizes:
        """A key coordinate meets one nonzero feature of a token (a label's two), a value two."""
        d, n = self.domain.dim, self.domain.samples
        zeros = torch.zeros(n, d, dtype=torch.float64)
        spans = self.spans
        products = float((spans[0] * spans[1]).sqrt().max())
        return self.target(zeros, zeros[:, 0], zeros[0]).sizes(
            spans,
            bound=max(1.0, self.domain.x, self.domain.y, self.domain.w),
            reach=SPARE * max(products, self.domain.x),
            nonzeros=2,
        )

    def check(self, x: Tensor, y: Tensor) -> None:
        """Refuse data outside the domain."""
        self.domain.check_data(x, y)
        self.loss.check_labels(y)

    def target(self, x: Tensor, y: Tensor, w: Tensor) -> TargetHead:
        """The head whose queries return the samples' gradients at w, over ``scale``."""
        self.domain.check_coefficients(w)
        d, grid, at = self.domain.dim, self.table.tokens, self.features
        eye_d, eye_bits = (torch.eye(m, dtype=torch.float64) for m in (d, self.bits))
        w_k = torch.zeros(d + 2 + self.bits, at.total, dtype=torch.float64)
        blocks = w_k[:, at["blocks"]].view(-1, grid, d + 2)
        slopes, biases = self.table.keys.slopes, self.table.keys.biases
        blocks[:d, :, :d] = eye_d[:, None, :] * slopes[:, None]
        blocks[d, :, d] = -slopes
        blocks[d, :, d + 1] = -slopes * self.table.grid.center
        blocks[d + 1, :, d + 1] = biases
        w_k[d + 2 :, at["code"]] = self.root * eye_bits
        w_q = torch.zeros_like(w_k)
        w_q[:d, at["w"]] = eye_d
        w_q[d : d + 2, at["is_query"]] = 1.0
        w_q[d + 2 :, at["query_code"]] = self.root * eye_bits
        w_v = torch.zeros(d, at.total, dtype=torch.float64)
        values = w_v[:, at["blocks"]].view(d, grid, d + 2)
        values[:, :, :d] = eye_d[:, None, :] * self.table.values[:, None] / self.scale
        w_v[:, at["offset"]] = -eye_d / self.scale
        tokens = self._tokens(x, y, w)
        queries = slice(self.domain.samples * grid, None)
        return TargetHead.balanced(tokens, w_k, w_q, w_v, queries, self.spans)

    def _tokens(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """Grid tokens of every sample, then the queries."""
        n, grid, at = self.domain.samples, self.table.tokens, self.features
        samples, labels, offset = self.loss.encode(x, y)
        packed = torch.cat([samples, labels[:, None], torch.ones_like(labels)[:, None]], -1)
        out = x.new_zeros(n * grid + n, at.total)
        own = torch.eye(grid).to(x)[None, :, :, None] * packed[:, None, None, :]
        out[: n * grid, at["blocks"]] = own.reshape(n * grid, -1)
        numbers = torch.arange(n, device=x.device)[:, None]
        digits = 2 ** torch.arange(self.bits, device=x.device)
        code = (2 * ((numbers // digits) % 2) - 1).to(x)
        out[: n * grid, at["code"]] = code.repeat_interleave(grid, 0)
        if offset is not None:
            out[: n * grid, at["offset"]] = offset.repeat_interleave(grid, 0)
        out[:, at["w"]] = w
        out[n * grid :, at["is_query"]] = 1.0
        out[n * grid :, at["query_code"]] = code
        return out


def _log_own(it: Interpolant) -> float:
    """A lower bound of ln sum_k e^{logit_k} in a sample's own block, over z in the range.

    On a uniform grid some node is within h/2 of z, which gives beta t^2 - c/4. Graded keys are
    pinned so that the token at the center has logit 0 for every z.
    """
    return -it.sharpness / 4 if it.uniform else 0.0


def _log_rivals(it: Interpolant, samples: int) -> float:
    """An upper bound of ln of all other blocks' and query tokens' mass before the margin."""
    if it.uniform:
        reach = max(it.high - it.grid.center, it.grid.center - it.low)
        return bounds.rivals(it.sharpness, it.grid.spacing, reach, samples, samples)
    ends = torch.tensor([it.low, it.high], dtype=torch.float64) - it.grid.center
    # A log-sum-exp of lines is convex, so its largest value is at an end of the range.
    most = torch.logsumexp(ends[:, None] * it.keys.slopes + it.keys.biases, 1).max()
    others = most + math.log(samples - 1) if samples > 1 else most.new_tensor(-math.inf)
    return float(torch.logaddexp(others, most.new_tensor(math.log(samples))))


@lru_cache(maxsize=64)  # a table takes a while to fit
def gradient_head(
    loss: Loss, dim: int, samples: int, eps: float, w_bound: float, tokens: int | None
) -> GradientHead:
    """The head of these sizes, made once."""
    return GradientHead(loss, dim, samples, eps, w_bound, tokens)
