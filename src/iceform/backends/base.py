"""Backend: how the forward pass of a frozen network is evaluated.

A backend is made from a network, and everything that it computes with comes out of that network's
matrices and a prompt's tokens. :class:`Literal` multiplies them: it is the definition. Others may
use what they recognise in the matrices, and refuse a network in which they do not.
:class:`Ablated`, which cannot be asked for by name, is what a run would return if attention did
nothing.

A new backend is one file: subclass :class:`Backend`, give it a ``name`` and its ``rounding``, and
supply :meth:`Backend.run`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from iceform.attention import Average, FrozenNetwork, LookUps, Prompt, is_checked
from iceform.backends.primitives import Extremes
from iceform.backends.windowed import Rounding
from iceform.errors import DeviceError, ProgramError
from iceform.validation import check_choice, full_precision, guard

__all__ = ["Ablated", "Backend", "Literal", "bind", "resolve", "rounding_of"]

AnyPrompt = Prompt | LookUps | Average
_BORDER = ("count", "run", "total")  # where prompts come in


class Backend(ABC):
    """A way to run one frozen network.

    Parameters
    ----------
    network
        Whose weights run.
    later
        Check them by :meth:`settle`, after a pass and before its answer is handed out, instead of
        now: on a GPU the bytes are hashed while it computes.
    """

    kinds: ClassVar[dict[str, type[Backend]]] = {}
    name: str
    rounding: Rounding

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        guard(cls, _BORDER)
        if "name" in vars(cls):
            Backend.kinds[cls.name] = cls

    def __init__(self, network: FrozenNetwork, *, later: bool = False) -> None:
        self.network = network
        self._unsettled = later and is_checked() and network.expected is not None
        self.digest = network.expected if self._unsettled else None
        if not self._unsettled and not torch.compiler.is_compiling():
            self.digest = network.check()

    def settle(self) -> None:
        """Refuse what was computed by weights that are not those of their sizes."""
        if self._unsettled and not torch.compiler.is_compiling():
            self.network.check()

    @classmethod
    def require(cls) -> None:
        """Refuse where it cannot run at all; by default it can everywhere."""
        return

    @abstractmethod
    def run(self, prompt: AnyPrompt) -> Tensor:
        """What the network returns for a prompt.

        For :class:`Prompt` its output tokens; for :class:`LookUps` the rows of its samples,
        (*batch, n, d + 1); for :class:`Average` the rows of its points, (q, v).
        """

    def stream(self, prompt: Prompt) -> Iterator[Tensor]:
        """The tokens after each layer in turn, where it can tell; the last is what it returns."""
        yield self.run(prompt)

    def literally(self, prompt: Prompt) -> Iterator[Tensor]:
        """The tokens after each layer in turn, by the matrices themselves."""
        return self.network.to(prompt.tokens.device).stream(prompt.tokens)

    @full_precision
    def total(self, prompt: LookUps, watch: Extremes | None = None) -> Tensor:
        """The sum of all samples' rows but for their last entries, float64, shape (*batch, d).

        ``watch`` is shown every sample.
        """
        if watch is not None:
            watch(prompt.x)
        return self.run(prompt)[..., :-1].double().sum(-2)

    @full_precision
    def count(self, prompt: LookUps) -> Tensor:
        """The sum of the rows' last entries, float64, shape (*batch,)."""
        return self.run(prompt)[..., -1].double().sum(-1)


def rounding_of(name: str) -> Rounding:
    """How the backend of this name rounds."""
    return Backend.kinds[name].rounding


def resolve(name: str) -> str:
    """The backend that ``name`` stands for.

    "auto" is "fused", which takes the fastest certified way for the device, dtype and size of
    every call; "triton" insists on the GPU kernels.
    """
    choice = check_choice("backend", name, ("auto", *Backend.kinds))
    choice = "fused" if choice == "auto" else choice
    Backend.kinds[choice].require()
    return choice


def bind(network: FrozenNetwork, name: str, *, later: bool = False) -> Backend:
    """The backend of this name on this network, whose weights are checked now or later."""
    if name not in Backend.kinds:
        raise DeviceError(f"no backend is called {name!r}; there are {', '.join(Backend.kinds)}")
    return Backend.kinds[name](network, later=later)


class Literal(Backend):
    """W_K, W_Q, W_V and W_O on the literal tokens of a prompt."""

    name = "literal"
    rounding = Rounding(literal=True)

    def run(self, prompt: Prompt | LookUps | Average) -> Tensor:
        if isinstance(prompt, LookUps):
            rows = self._rows(prompt.chunks(), slice(0, prompt.layout.samples))
            rows = rows[..., : prompt.count, :]
            return torch.cat([rows[..., : prompt.x.shape[-1]], rows[..., -1:]], -1)
        if isinstance(prompt, Average):
            first = prompt.layout.samples
            rows = self._rows(prompt.chunks(), slice(first, first + prompt.sharing))
            return rows[: len(prompt.points), : prompt.values.shape[1]]
        out: Tensor = self._on(prompt.tokens)(prompt.tokens)
        return out

    def _rows(self, chunks: Iterable[Tensor], queries: slice) -> Tensor:
        """What the given queries of every prompt return, prompts one after the other."""
        parts = [self._on(c)(c)[..., queries, :].flatten(-3, -2) for c in chunks]
        return torch.cat(parts, -2)

    def _on(self, tokens: Tensor) -> torch.nn.Module:
        there = all(b.device == tokens.device for b in self.network.buffers())
        return self.network if there else self.network.to(tokens.device)


class Ablated(Backend):
    """Attention taken out: the difference it makes says how much of an answer attention computes.

    Look-ups return what is looked up, and averages weigh all tokens alike.
    """

    rounding = Rounding(literal=False)

    def __init__(self, network: FrozenNetwork) -> None:
        super().__init__(network)
        self.name = "none: attention taken out"

    def run(self, prompt: Prompt | LookUps | Average) -> Tensor:
        if isinstance(prompt, Average):
            return _alike(prompt)
        if not isinstance(prompt, LookUps):
            raise ProgramError("attention can be taken out of look-ups and averages only")
        looked = prompt.weighed(prompt.residuals())[..., None]
        row = looked * prompt.x.to(looked) + prompt.keep * prompt.w[..., None, :]
        return torch.cat([row, looked.expand(*row.shape[:-1], 1)], -1)


def _alike(prompt: Average) -> Tensor:
    """The mean value of the tokens that each point sees."""
    if prompt.seen is None:
        return prompt.values.mean(0).expand(len(prompt.points), -1)
    shares = prompt.seen.to(prompt.values)
    return shares @ prompt.values / shares.sum(1, keepdim=True)
