"""The two-layer network that runs every algorithm it is sized for, and the standard ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from iceform.arithmetic import at_most
from iceform.arithmetic.units import LEAK_BITS, UNIT
from iceform.certificates import Result
from iceform.codec import decode, encode
from iceform.errors import IntegrityError, PrecisionError, ProgramError
from iceform.expressions import LOSSES
from iceform.heads import FrozenNetwork, Prompt
from iceform.heads.inspection import Trace
from iceform.paper.attention_head import AttentionHead
from iceform.paper.base import Emulator, Plan
from iceform.paper.library.averages import HopfieldPrompts, KernelPrompts
from iceform.paper.library.components import ComponentPrompts
from iceform.paper.library.descent import DescentPrompts, RidgePrompts
from iceform.paper.library.passes import HeadSizes, PassRecorder, PromptAlgorithm, TargetHead
from iceform.pretrained import Pretrained
from iceform.run import Backend
from iceform.validation import (
    check_bound,
    check_eps,
    check_size,
    check_tensors,
    guard,
    plain_tensor,
    unit_roundoff,
)

_TABLE_TOKENS = 33  # look-up tokens of the standard descents
_SHARPEST = 200.0  # gamma of the narrowest standard kernel
_PADDING = 2  # features that are added to every token: "is padding" and "one"


def standard_algorithms(tokens: int = _TABLE_TOKENS) -> list[PromptAlgorithm]:
    """What a network is sized for unless it is told otherwise.

    Descent for every named loss, with ``tokens`` look-up tokens a sample, ridge regression, a wide
    and a narrow kernel, principal components and a Hopfield memory.

    Examples
    --------
    >>> [type(one).__name__ for one in standard_algorithms()][-3:]
    ['KernelPrompts', 'ComponentPrompts', 'HopfieldPrompts']
    """
    descents = [
        DescentPrompts(
            name,
            l2=0.1,
            w_bound=1.0 if name == "poisson" else 2.0,
            tokens=None if name == "squared" else tokens,
        )
        for name in LOSSES
    ]
    others = [RidgePrompts(), KernelPrompts(2.0), KernelPrompts(_SHARPEST), ComponentPrompts()]
    return [*descents, *others, HopfieldPrompts()]


class PromptLibrary(Pretrained, kept_as="PromptLibrary"):
    """The two-layer network that runs every algorithm it is sized for.

    Parameters
    ----------
    dim, samples
        The largest data of a prompt.
    eps
        What one pass may be off by. Every pass is certified on its own inputs, and one that does
        not hold eps is refused; None accepts what comes out.
    algorithms
        The class it is sized for, :func:`standard_algorithms` by default. Its weights depend on
        their common :class:`HeadSizes`, eps and dtype, and on no data.
    dtype, backend
        As for every construction.

    Examples
    --------
    >>> X = torch.tensor([[1.0, 0.5], [-0.5, 1.0], [0.25, -1.0]], dtype=torch.float64)
    >>> average = ice.paper.library.KernelPrompts(gamma=2.0)
    >>> network = PromptLibrary(dim=2, samples=3, algorithms=[average])
    >>> result = network.run(average, X, torch.ones(3, dtype=torch.float64))
    >>> result.value.round(decimals=5).tolist()  # averages of ones
    [1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        dim: int = 8,
        samples: int = 16,
        eps: float | None = None,
        *,
        algorithms: Sequence[PromptAlgorithm] | None = None,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> None:
        check_size("dim", dim)
        check_size("samples", samples)
        chosen = standard_algorithms() if algorithms is None else list(algorithms)
        if not chosen:
            raise ProgramError("a library needs at least one algorithm to be sized for")
        needs = [_checked(one).sizes(dim, samples) for one in chosen]
        sizes = needs[0]
        for more in needs[1:]:
            sizes = sizes.cover(more)
        # Any head on dim features may be given as well.
        self._size(dim, samples, replace(sizes, nonzeros=max(sizes.nonzeros, dim)), eps, dtype)
        self.head = AttentionHead(
            self.sizes.features + _PADDING,
            self.sizes.head_dim + 1,
            self.sizes.value_dim,
            self.sizes.tokens,
            bound=max(self.sizes.bound, 1.0),
            weight_bound=max(self.sizes.weight_bound, self._root),
            reach=max(self.sizes.reach, self._root),
            nonzeros=self.sizes.nonzeros,
            eps=None,
            dtype=dtype,
            backend=backend,
        )

    def _size(
        self, dim: int, samples: int, sizes: HeadSizes, eps: float | None, dtype: torch.dtype
    ) -> None:
        self.dim, self.samples, self.sizes, self.dtype = dim, samples, sizes, dtype
        self.eps = check_eps(eps)
        # Padding tokens must lose against any logit that an algorithm can make.
        margin = math.log(sizes.tokens) - math.log(unit_roundoff(dtype)) + LEAK_BITS * math.log(2)
        # As the dtype holds it: the grid's range must cover what stands in the prompt.
        self._root = float(torch.tensor(math.sqrt(2 * sizes.logits + margin), dtype=dtype))

    def __repr__(self) -> str:
        return (
            f"PromptLibrary(dim={self.dim}, samples={self.samples}, eps={self.eps}, "
            f"dtype={self.dtype}, backend={self.backend!r})"
        )

    # ------------------------------------------------------------------------------ the network

    @property
    def network(self) -> FrozenNetwork:
        """The literal frozen weights."""
        return self.head.network

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen weights."""
        return self.network.digest

    @property
    def backend(self) -> str:
        """How passes are evaluated."""
        return self.head.backend

    @property
    def plan(self) -> Plan:
        """Sizes of the literal network."""
        return self.head.plan

    def bind(self) -> Backend:
        """The backend on the weights, which are checked now."""
        return self.head.bind()

    def padded(self, target: TargetHead) -> TargetHead:
        """The same head on the network's sizes, its padding tokens masked."""
        sizes, count = self.sizes, len(target.tokens)
        tokens = target.tokens.new_zeros(sizes.tokens, sizes.features + _PADDING)
        tokens[:count, : target.tokens.shape[1]] = target.tokens
        tokens[count:, -2], tokens[:, -1] = 1.0, 1.0

        def wide(w: Tensor, rows: int) -> Tensor:
            out = w.new_zeros(rows, sizes.features + _PADDING)
            out[: len(w), : w.shape[1]] = w
            return out

        w_k, w_q = wide(target.w_k, sizes.head_dim + 1), wide(target.w_q, sizes.head_dim + 1)
        w_k[-1, -2], w_q[-1, -1] = -self._root, self._root
        start, stop, _ = target.queries.indices(count)
        w_v = wide(target.w_v, sizes.value_dim)
        return TargetHead(tokens, w_k, w_q, w_v, slice(start, stop))

    def attend(self, target: TargetHead, backend: Backend | None = None) -> tuple[Tensor, float]:
        """One pass: the head's outputs at its queries, and their certified error.

        ``backend`` is one that :meth:`bind` returned, for whoever makes several passes.
        """
        padded = self.padded(target)
        inputs = (padded.tokens, padded.w_k, padded.w_q, padded.w_v)
        error = self.head.certify(*inputs, queries=padded.queries).error
        error += self._stray(padded, len(target.tokens))
        if self.eps is not None and not error <= self.eps:
            raise PrecisionError(
                f"this pass is certified to {at_most(error, '.3g')}, not to the library's eps = "
                f"{self.eps:.3g}; use a larger eps, or a library of fewer algorithms",
                best=error,
            )
        out = self.head.through(self.bind() if backend is None else backend, *inputs)
        return out[padded.queries, : len(target.w_v)], error

    def _stray(self, padded: TargetHead, count: int) -> float:
        """What padding tokens take away from the averages of the first ``count`` tokens.

        Their values are 0, and every query gives each of them the weight e^(-root^2), beside e^l
        for the token that it prefers, whose logit is l. Where logits are those of the class that
        the network is sized for this is far below the unit roundoff.
        """
        tokens, w_k, w_q, w_v = (
            part.double() for part in (padded.tokens, padded.w_k, padded.w_q, padded.w_v)
        )
        used, asking = tokens[:count], tokens[padded.queries]
        logits = (asking @ w_q.mT) @ (used @ w_k.mT).mT
        terms = (asking.abs() @ w_q.abs().mT) @ (used.abs() @ w_k.abs().mT).mT
        rounded = 2 * (tokens.shape[1] + len(w_k)) * UNIT * float(terms.max())
        masked = rounded - float(logits.amax(-1).min()) - self._root**2
        weight = min(1.0, (len(tokens) - count) * math.exp(min(masked, 0.0)))
        return 2 * float((used @ w_v.mT).abs().max()) * weight

    # ---------------------------------------------------------------------------------- a run

    def run(self, algorithm: PromptAlgorithm, x: Tensor, y: Tensor | None = None) -> Result:
        """Run an algorithm on data, which are copied.

        Parameters
        ----------
        algorithm
            One that fits: the network is sized for it, or for larger ones.
        x, y
            Samples (samples, dim) and labels (samples,), or what the algorithm takes.

        Returns
        -------
        Result
            Its certificate bounds the distance from the exact algorithm before the fact, its
            enclosure, where there is one, that of this answer. (Components are proven after the
            fact, in the certificate.)
        """
        x, y = self._check(algorithm, x, y)
        x, y = x.clone(), None if y is None else y.clone()
        result = algorithm.run(PassRecorder(self), x, y)
        return replace(result, ablated=partial(self._without_attention, algorithm, x, y))

    def _without_attention(self, algorithm: PromptAlgorithm, x: Tensor, y: Tensor | None) -> Tensor:
        """The same run, a pass being the mean of the values at every query."""
        answer: Tensor = algorithm.run(_MeansOfValues(self), x, y).value
        return answer

    def prompt(self, algorithm: PromptAlgorithm, x: Tensor, y: Tensor | None = None) -> Prompt:
        """The tokens of the algorithm's first pass, as the frozen network reads them."""
        prompt = self.head.prompt(*self._first(algorithm, x, y))
        assert isinstance(prompt, Prompt)
        return prompt

    def trace(self, algorithm: PromptAlgorithm, x: Tensor, y: Tensor | None = None) -> Trace:
        """What both layers do in the algorithm's first pass."""
        return self.head.trace(*self._first(algorithm, x, y))

    def _first(
        self, algorithm: PromptAlgorithm, x: Tensor, y: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        padded = self.padded(algorithm.target(*self._check(algorithm, x, y)))
        return padded.tokens, padded.w_k, padded.w_q, padded.w_v

    def _check(self, algorithm: PromptAlgorithm, x: Any, y: Any) -> tuple[Tensor, Tensor | None]:
        """Data as plain numbers, refused where they or the algorithm do not fit."""
        _checked(algorithm)
        x = plain_tensor("x", x)
        y = None if y is None else plain_tensor("y", y)
        check_tensors({"x": (x, tuple(x.shape[-2:]))}, self.dtype, x.device)
        if x.ndim != 2:
            raise ProgramError(f"data must be (samples, dim), got shape {tuple(x.shape)}")
        check_bound("x", x, self.sizes.bound, "scale the data")
        if y is not None:
            check_tensors({"y": (y, algorithm.label_shape(x))}, self.dtype, x.device)
            check_bound("y", y, math.inf, "remove what is not a number")
            if y.ndim != 1:
                raise ProgramError(f"the second input must be a vector, got {tuple(y.shape)}")
        self.sizes.check_fits(algorithm.sizes(x.shape[1], x.shape[0]), algorithm.label)
        return x, y

    # ------------------------------------------------------------------------- for other tools

    @property
    def fewest_tokens(self) -> int:
        """Tokens that a prompt has at least, since rows of the head's weights are in them too."""
        return max(self.head.head_dim, self.head.value_dim)

    @property
    def padding_token(self) -> Tensor:
        """A token to which nothing attends; the last two features of x are flags."""
        token = torch.zeros(self.plan.features, dtype=torch.float64)
        token[self.head.dim - _PADDING : self.head.dim] = 1.0
        return token

    def through(self, forward: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        """From a prompt's tokens, or an algorithm and its data, to what ``forward`` answers."""

        def answer(first: Any, x: Tensor | None = None, y: Tensor | None = None) -> Tensor:
            if isinstance(first, Tensor):
                return forward(first)
            if x is None:
                raise ProgramError("give a prompt's tokens, or an algorithm and its data")
            target = first.target(x, y)
            out = forward(self.prompt(first, x, y).tokens)
            return out[self.padded(target).queries, : len(target.w_v)]

        return answer

    def card(self) -> tuple[str, dict[str, str]]:
        """For people."""
        what = "One frozen two-layer network that runs a library of algorithms by prompts alone."
        return what, {"Certificate": self.head.certificate.explain()}

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Sizes and weights."""
        head, tensors = self.head.pack()
        sizes = {"dim": self.dim, "samples": self.samples, "eps": self.eps}
        return {"head": head, "library": {**sizes, "sizes": encode(self.sizes)}}, tensors

    @classmethod
    def unpack(cls, content: dict[str, Any], tensors: dict[str, Tensor], **_: Any) -> PromptLibrary:
        """The inverse of :meth:`pack`."""
        head, saved = Emulator.unpack(content["head"], tensors), content["library"]
        library = object.__new__(cls)
        sizes = decode(HeadSizes, saved["sizes"])
        library._size(saved["dim"], saved["samples"], sizes, saved["eps"], head.dtype)
        if not isinstance(head, AttentionHead) or head.samples != sizes.tokens:
            raise IntegrityError("the folder holds weights that are not this library's")
        library.head = head
        return library


def _checked(algorithm: Any) -> PromptAlgorithm:
    if not isinstance(algorithm, PromptAlgorithm):
        raise ProgramError(
            f"not an algorithm of prompts: {algorithm!r}; iceform.paper.library has DescentPrompts,"
            " RidgePrompts, KernelPrompts, ComponentPrompts, HopfieldPrompts and HeadPrompts"
        )
    return algorithm


class _MeansOfValues(PassRecorder):
    def attend(self, target: TargetHead) -> tuple[Tensor, float]:
        values = (target.tokens @ target.w_v.mT).mean(0)
        start, stop, _ = target.queries.indices(len(target.tokens))
        return values.expand(stop - start, -1), math.inf


# Where calls come in from outside, whatever modes are on there.
guard(PromptLibrary, ("__init__", "attend", "prompt", "run", "trace"))
