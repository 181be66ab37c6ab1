"""What the tests of softmax look-ups share: functions to look up, and errors with their place."""

import torch
from torch import Tensor

from iceform.expressions import ScalarFunction
from iceform.tables import Interpolant

UNIT = torch.finfo(torch.float64).eps / 2

# name: function, kinks, range. Wide, narrow, off-centre and one-sided ranges are among them.
CASES = {
    "tanh": (torch.tanh, (), (-10.0, 10.0)),
    "tanh, off centre": (torch.tanh, (), (-1.0, 7.0)),
    "sin": (torch.sin, (), (-10.0, 10.0)),
    "sigmoid": (torch.sigmoid, (), (-6.0, 6.0)),
    "exp": (torch.exp, (), (-3.0, 2.0)),
    "steep tanh": (lambda z: torch.tanh(5 * z), (), (-2.0, 2.0)),
    "gelu": (torch.nn.functional.gelu, (), (-4.0, 4.0)),
    "relu": (torch.relu, (0.0,), (-10.0, 10.0)),
    "clamp": (lambda z: z.clamp(-1, 1), (-1.0, 1.0), (-3.0, 3.0)),
    "abs, off centre": (lambda z: (z - 0.3).abs(), (0.3,), (-1.0, 5.0)),
}


def function_of(name: str) -> ScalarFunction:
    f, kinks, _ = CASES[name]
    return ScalarFunction(f, name, kinks=kinks)


def span_of(name: str) -> tuple[float, float]:
    return CASES[name][2]


def sup_error(it: Interpolant, f, per_cell: int) -> tuple[float, float]:
    """The largest |A - f| on a mesh, and where it is."""
    largest, where = -1.0, float("nan")
    for z in it.grid.mesh(per_cell).split(1 << 16):
        off = (it(z) - f(z)).abs()
        assert bool(off.isfinite().all()), f"not finite near z = {z[~off.isfinite()][0]:.6g}"
        if float(off.max()) > largest:
            largest, where = float(off.max()), float(z[off.argmax()])
    return largest, where


def assert_below(seen: Tensor, bound: Tensor | float, z: Tensor, what: str) -> None:
    """``seen <= bound`` everywhere; the message gives the worst place and both numbers."""
    bound = torch.as_tensor(bound, dtype=torch.float64).expand_as(seen)
    over = (seen - bound).flatten()
    # NaN compares false with everything, so the question is put the other way round.
    good = seen <= bound
    worst = int(torch.where(good.flatten(), over, torch.inf).argmax())
    place = z.expand_as(seen).flatten()[worst]
    assert bool(good.all()), (
        f"{what}: {float(seen.flatten()[worst]):.6e} against a bound of "
        f"{float(bound.flatten()[worst]):.6e} at z = {float(place):.9g}; "
        f"{int((~good).sum())} of {good.numel()} places are over"
    )
