"""An adversary that climbs the error of an emulator over its whole domain."""

import torch
from torch import Tensor

from iceform.paper import Emulator


def hardest_inputs(
    emulator: Emulator, starts: tuple[Tensor, ...], *, steps: int = 40, bound: float
) -> tuple[float, tuple[Tensor, ...]]:
    """Gradient ascent on |emulated - exact| from every start of a batch, projected on the bound.

    Sign steps of shrinking size: the error oscillates on the scale of a grid cell, so the climb
    starts with strides of a few cells and ends well inside one.
    """
    points = [t.clone() for t in starts]
    best, where = 0.0, tuple(points)
    for i in range(steps):
        points = [p.detach().requires_grad_(True) for p in points]
        error = (emulator(*points).double() - emulator.reference(*points)).abs()
        largest = error.flatten(1).amax(1)
        seen = float(largest.detach().max())
        if seen > best:
            best, where = seen, tuple(p.detach().clone() for p in points)
        grads = torch.autograd.grad(largest.sum(), points)
        stride = 0.1 * bound * 0.8**i
        points = [
            (p + stride * g.sign()).clamp(-bound, bound) for p, g in zip(points, grads, strict=True)
        ]
    return best, where


def targeted_inputs(emulator: Emulator, bound: float) -> tuple[Tensor, ...]:
    """Inputs whose residuals sit where the look-up itself is worst, with |x| at the bound.

    Every sample is x = (B, ..., B); labels alone place z within B of w.x.
    """
    it, d, n = emulator.interpolant, emulator.domain.dim, emulator.domain.samples
    low, high = emulator.domain.residuals
    z = torch.linspace(low, high, 40_001, dtype=torch.float64).clamp(it.low, it.high)
    worst = z[(it(z) - it.function(z)).abs().topk(64).indices]
    x = torch.full((64, n, d), bound, dtype=torch.float64)
    w = (worst / (d * bound + 1)).clamp(-bound, bound)[:, None].expand(64, d).clone()
    y = ((x @ w[..., None])[..., 0] - worst[:, None]).clamp(-bound, bound)
    return tuple(t.to(emulator.dtype) for t in (x, y, w))
