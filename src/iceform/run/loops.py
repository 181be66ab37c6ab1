"""What is captured once as a CUDA graph, then replayed: whole loops that do not wait for the host.

A pass reads its step size from the device, so the same CUDA graph serves every pass; what the
host would have checked after each of them is gathered on the device and looked at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from iceform.run.primitives import own_kernels

Sums = Callable[[Tensor], Tensor]
T = TypeVar("T")


def record(body: Callable[[], T]) -> tuple[T, Callable[[], None]]:
    """What a body returns, captured as a CUDA graph, and how to do it again in the same places.

    The body has run before (:func:`rehearse`), and takes no decision on the host.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = body()
    return found, graph.replay


def rehearse(body: Callable[[], object], device: torch.device) -> None:
    """Compile kernels and find memory before a capture, on a stream of its own."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        body()
    torch.cuda.current_stream(device).wait_stream(stream)


def repeat(step: Callable[[], None], times: int, device: torch.device) -> None:
    """Call ``step`` ``times`` times; on a GPU the first call is the rehearsal for a graph.

    ``step`` updates its tensors in place and takes no decision on the host.
    """
    if device.type != "cuda" or times < 3:
        for _ in range(times):
            step()
        return
    rehearse(step, device)
    _, replay = record(step)
    for _ in range(times - 1):
        replay()


def descend(
    sums: Sums,
    w: Tensor,
    samples: int,
    rates: list[tuple[float, float, float]],
    l1: float = 0.0,
    backend: str = "fused",
) -> tuple[Tensor, Tensor]:
    r"""Gradient descent with a (gain, shrink, momentum) per step.

    A step is :math:`w \leftarrow (1 - s) u - \frac{g}{n} \Sigma(u)` at the look-ahead u, followed,
    where ``l1`` is positive, by soft thresholding at g l1 (the proximal step of the lasso).

    Parameters
    ----------
    sums
        Sums over the samples of their gradients at given coefficients, float64.
    w
        Where to start, shape (*batch, d).
    samples
        n.
    rates
        One triple per step.
    l1
        The weight of an l1 penalty.
    backend
        "triton" insists on a kernel for the step; others use it on a GPU.

    Returns
    -------
    The last iterate, and the largest entry and 2-norm among the points where gradients were taken.
    """
    dim = w.shape[-1]
    table = torch.tensor(
        [(gain / samples, shrink, mu, gain * l1) for gain, shrink, mu in rates],
        dtype=torch.float64,
        device=w.device,
    )
    current, ahead = (w.detach().clone(memory_format=torch.contiguous_format) for _ in range(2))
    rows, points = current.view(-1, dim), ahead.view(-1, dim)
    at = torch.zeros(len(rows), dtype=torch.int64, device=w.device)
    seen = torch.zeros(len(rows), 2, dtype=torch.float64, device=w.device)
    kernels = own_kernels(w, backend)
    advance = _advance if kernels is None else kernels.advance

    def step() -> None:
        advance(sums(ahead).view(-1, dim), rows, points, seen, at, table)

    with torch.no_grad():
        repeat(step, len(rates), w.device)
    return current, seen.amax(0)


def _advance(
    sums: Tensor, current: Tensor, ahead: Tensor, seen: Tensor, at: Tensor, rates: Tensor
) -> None:
    """One step in place; every row is at the same one."""
    gain, shrink, momentum, threshold = rates.index_select(0, at[:1])[0].unbind()
    point = ahead.double()
    size = torch.stack([point.abs().amax(-1), point.norm(dim=-1)], -1)
    seen.copy_(torch.maximum(seen, size))
    moved = (1 - shrink) * point - gain * sums
    shrunk = torch.sign(moved) * (moved.abs() - threshold).clamp(min=0)
    after = torch.where(threshold > 0, shrunk, moved).to(current.dtype)
    ahead.copy_(after + momentum.to(current.dtype) * (after - current))
    current.copy_(after)
    at.add_(1)
