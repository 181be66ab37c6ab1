"""Whole loops of passes that do not wait for the host: one pass captured, then replayed.

A pass reads its step size from the device, so the same CUDA graph serves every pass; what the
host would have checked after each of them is gathered on the device and looked at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["descend", "repeat"]

Sums = Callable[[Tensor], Tensor]


def repeat(step: Callable[[], None], times: int, device: torch.device) -> None:
    """Call ``step`` ``times`` times; on a GPU the first call is the rehearsal for a graph.

    ``step`` updates its tensors in place and takes no decision on the host.
    """
    if device.type != "cuda" or times < 3:
        for _ in range(times):
            step()
        return
    # Kernels are compiled and memory is found before the capture, on a stream of its own.
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(times - 1):
        graph.replay()


def descend(
    sums: Sums,
    w: Tensor,
    samples: int,
    rates: list[tuple[float, float, float]],
    l1: float = 0.0,
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

    Returns
    -------
    The last iterate, and the largest entry and 2-norm among the points where gradients were taken.
    """
    dtype, device = w.dtype, w.device
    table = torch.tensor(rates, dtype=torch.float64, device=device)
    at = torch.zeros(1, dtype=torch.int64, device=device)
    current, ahead = w.clone(), w.clone()
    seen = torch.zeros(2, dtype=dtype, device=device)

    def step() -> None:
        gain, shrink, momentum = table.index_select(0, at)[0].unbind()
        size = torch.stack([ahead.abs().amax(), ahead.norm(dim=-1).amax()])
        seen.copy_(torch.maximum(seen, size))
        moved = (1 - shrink) * ahead.double() - gain / samples * sums(ahead)
        if l1 > 0:
            moved = torch.sign(moved) * (moved.abs() - gain * l1).clamp(min=0)
        after = moved.to(dtype)
        ahead.copy_(after + momentum.to(dtype) * (after - current))
        current.copy_(after)
        at.add_(1)

    with torch.no_grad():
        repeat(step, len(rates), device)
    return current, seen
