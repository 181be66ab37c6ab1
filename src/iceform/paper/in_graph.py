r"""A construction's call as one operation of a compiled graph.

``torch.compile`` sees ``iceform::construction(place, inputs)``, whose shape it is told and whose
inside it does not look into: when the graph runs, the operation is the very call that it stands
for, inputs refused and weights checked as always, so the numbers are those of an eager call. Its
gradient is a second operation, which calls the construction again and differentiates it. Nothing
breaks the graph: ``fullgraph=True`` holds.

A graph hands tensors out and no records: what runs in it has no attestation (``em.run`` stays
outside). ``torch.export`` does not come here: an exported program is the literal network.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from iceform.validation import for_later

_PLACES = count()
_THERE: WeakValueDictionary[int, InGraph] = WeakValueDictionary()


class InGraph(nn.Module):
    """A module of given shapes whose call a compiler takes as it is."""

    dtype: torch.dtype

    def __init__(self) -> None:
        super().__init__()
        self._settle_in()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            setattr(cls, "__init__", for_later(vars(cls)["__init__"]))  # noqa: B010
        if "forward" in vars(cls):
            setattr(cls, "forward", _as_operation(cls.forward))  # noqa: B010 - no method for mypy

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._settle_in()  # a copy is another module

    def _settle_in(self) -> None:
        # What vmap calls it; without a name it prints the module, which no compiler follows.
        setattr(self, "__name__", type(self).__name__)  # noqa: B010 - types have one of their own
        self._place = next(_PLACES)
        _THERE[self._place] = self

    @abstractmethod
    def _axes(self, inputs: int) -> tuple[Sequence[int], Sequence[int]]:
        """How many axes each input has beside a batch's, and the answer's shape beside them."""


def _as_operation(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(forward)
    def call(self: InGraph, *inputs: Tensor) -> Tensor:
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            found: Tensor = torch.ops.iceform.construction(self._place, list(inputs))
            return found
        return forward(self, *inputs)

    return call


def _batches(module: InGraph, inputs: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """The batch axes of each input."""
    axes, _ = module._axes(len(inputs))
    return [tuple(t.shape[: t.ndim - wide]) for t, wide in zip(inputs, axes, strict=True)]


@torch.library.custom_op("iceform::construction", mutates_args=())
def _construction(place: int, inputs: Sequence[Tensor]) -> Tensor:
    found: Tensor = _THERE[place](*inputs)
    return found.contiguous()


@_construction.register_fake
def _(place: int, inputs: Sequence[Tensor]) -> Tensor:
    module = _THERE[place]
    batch = torch.broadcast_shapes(*_batches(module, inputs))
    return inputs[0].new_empty((*batch, *module._axes(len(inputs))[1]), dtype=module.dtype)


@contextmanager
def _recording() -> Iterator[None]:
    """Let autograd record inside a custom operation, where it is switched off."""
    passed = torch._C._dispatch_tls_local_exclude_set() & torch._C._after_autograd_keyset
    within = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(within, passed), torch.enable_grad():
        yield


@torch.library.custom_op("iceform::construction_gradient", mutates_args=())
def _gradient(place: int, along: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    with _recording():
        leaves = [t.detach().requires_grad_() for t in inputs]
        answer = _THERE[place](*leaves)
        found = torch.autograd.grad(answer, leaves, along, allow_unused=True)
    own = torch.contiguous_format  # an operation returns nothing that it shares with its inputs
    pairs = zip(found, inputs, strict=True)
    return [t.new_zeros(t.shape) if g is None else g.clone(memory_format=own) for g, t in pairs]


@_gradient.register_fake
def _(place: int, along: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in inputs]


def _remember(ctx: Any, inputs: tuple[int, Sequence[Tensor]], output: Tensor) -> None:
    ctx.place = inputs[0]
    ctx.save_for_backward(*inputs[1])


def _backward(ctx: Any, along: Tensor) -> tuple[None, list[Tensor]]:
    found: list[Tensor] = torch.ops.iceform.construction_gradient(
        ctx.place, along, list(ctx.saved_tensors)
    )
    return None, found


_construction.register_autograd(_backward, setup_context=_remember)


@_construction.register_vmap
def _(
    info: Any, in_dims: tuple[None, Sequence[int | None]], place: int, inputs: Sequence[Tensor]
) -> tuple[Tensor, int]:
    """A further batch axis, in front of all others."""
    moved = [
        t[None] if at is None else t.movedim(at, 0)
        for t, at in zip(inputs, in_dims[1], strict=True)
    ]
    batches = _batches(_THERE[place], moved)
    most = max(len(batch) for batch in batches)
    filled = [
        t.reshape(t.shape[0], *[1] * (most - len(batch)), *t.shape[1:])
        for t, batch in zip(moved, batches, strict=True)
    ]
    return torch.ops.iceform.construction(place, filled), 0
