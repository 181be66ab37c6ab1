"""What a torch callable is followed to compute, and what cannot be followed."""

import itertools
import random

import pytest
import torch
from torch.nn import functional as F

from iceform import Formula, IceformError, Interpolant
from iceform.arithmetic import Interval
from iceform.errors import PrecisionError
from iceform.expressions import LOSSES, ScalarFunction, loss_named, tracing
from iceform.expressions.tracing import trace
from iceform.networks.activations import ACTIVATIONS
from iceform.tables import posterior_error

F64 = torch.float64

FOLLOWED = {
    "tanh": torch.tanh,
    "sin": torch.sin,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "erf": torch.erf,
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu, tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "elu": F.elu,
    "celu": lambda z: F.celu(z, 0.7),
    "selu": F.selu,
    "mish": F.mish,
    "hardtanh": F.hardtanh,
    "leaky_relu": F.leaky_relu,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "softshrink": F.softshrink,
    "prelu": torch.nn.PReLU().double(),
    "where": lambda z: torch.where(z > 0, z, torch.expm1(z)),
    "masks": lambda z: (z > 0).to(z) * z + (z <= 0) * z**3,
    "masked_fill": lambda z: z.masked_fill(z < 0.3, 0.3),
    "in place": lambda z: z.clone().mul_(2).add_(1).tanh_(),
    "powers": lambda z: (z**2 + 1) ** 0.3 + 2**z,
    "maximum": lambda z: torch.maximum(z, z.sin()),
    "logsumexp": lambda z: torch.logsumexp(torch.stack([z, -z, torch.zeros_like(z)]), 0),
    "logaddexp": lambda z: torch.logaddexp(z, -z),
    "constant": lambda z: torch.full_like(z, 3.0),
    "tensor": lambda z: z * torch.tensor(3.0, dtype=F64).sqrt(),
    "division": lambda z: z / (1 + z * z),
    "addcmul": lambda z: torch.addcmul(z, z, z, value=0.5),
    "a product of conditions": lambda z: z * ((z > -9) * (z < 9)).double(),
    "not zero": lambda z: z + 1e-3 * (z.abs() + 1e-9).bool().double(),
    **{f"loss {name}": loss_named(name).derivative.call for name in LOSSES},
    **{f"activation {name}": known.function.call for name, known in ACTIVATIONS.items()},
}


# torch has no second one, and computes that of celu in part in float32.
NO_DERIVATIVES = ("hardsigmoid", "celu")


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_is_followed_is_what_is_computed(name):
    """On cells, at points, and with the derivatives that autograd finds."""
    f = ScalarFunction(FOLLOWED[name], name)
    z = torch.linspace(-6, 6, 1201, dtype=F64) + 1e-3
    with torch.no_grad():
        seen = f(z)
    slack = 16 * 2**-53 * (1 + seen.abs()) * (1 + z.abs())
    on, at = f.jets(Interval(z - 1e-3, z + 2e-3), 4), f.jets(Interval.point(z), 2)
    for jet in (on, at):
        assert bool((seen >= jet[0].low - slack).all())
        assert bool((seen <= jet[0].high + slack).all())
    assert bool((at[0].high - at[0].low <= 64 * slack).all())
    derivatives = None if name in NO_DERIVATIVES else f.derivatives(z, 2)
    if derivatives is not None:
        for k, scale in ((1, 1.0), (2, 0.5)):
            size = 1e-9 * (1 + derivatives[k].abs())
            assert bool((scale * derivatives[k] >= at[k].low - size).all()), k
            assert bool((scale * derivatives[k] <= at[k].high + size).all()), k


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_is_written_down_in_python_is_what_reaches_torch_s_dispatcher(name, monkeypatch):
    written = trace(FOLLOWED[name])
    monkeypatch.setattr(tracing, "_PLAIN", {})
    assert trace(FOLLOWED[name]) == written


def _stateful():
    calls = itertools.count(1)
    return lambda z: z * next(calls)


def _memory():
    seen = []

    def f(z):
        seen.append(z)
        return z * (1 + 1e-3 * len(seen))

    return f


def _narrow(z):
    """A bump that no mesh sees."""
    return torch.exp(-(((z - 0.12345) * 1e6) ** 2))


NOT_PROVEN = {
    "branch": lambda z: z if bool((z > 0).all()) else -z,
    "item": lambda z: z * float(z.detach()[0]),
    "numpy": lambda z: torch.from_numpy(torch.tanh(z).detach().numpy() + 0),
    "noise": lambda z: z + 1e-3 * torch.rand_like(z),
    "python noise": lambda z: z + 1e-3 * random.random(),
    "modulus": lambda z: torch.where(z % 1e-3 < 5e-4, z, z + 1e-9),
    "hash": lambda z: z + 1e-9 * (1e9 * z).floor().remainder(2),
    "stateful": _stateful(),
    "memory": _memory(),
    "number of entries": lambda z: z * (1 + 1e-3 * z.numel()),
    "order": lambda z: z.sort().values,
    "neighbours": lambda z: z - 1e-3 * z.roll(1),
    "float32": lambda z: z.float().tanh().double(),
    "bits": lambda z: z + 1e-9 * (z.view(torch.int64) & 1).double(),
    "positions": lambda z: z + 1e-9 * torch.arange(len(z), dtype=F64),
    "list": lambda z: torch.tensor([v**2 for v in z.tolist()], dtype=F64),
    "rounding": lambda z: torch.round(z * 1e6) / 1e6,
    "NaN": lambda z: torch.where(z > 100, float("nan"), z),
    # torch's conditions are 0 and 1 whatever they are filled with or add up to.
    "a sum of conditions": lambda z: z + _narrow(z) * ((z > -9) + (z > -8)).double(),
    "a filled condition": lambda z: z + _narrow(z) * torch.full_like(z > -9, 1e-9).double(),
    "a masked condition": lambda z: z + _narrow(z) * (z > -9).masked_fill(z > -8, 1e-9).double(),
    "a whole number that is no float64": lambda z: z + (2**60 + 1),
    "an operation's old form": lambda z: torch.add(z, 2, z),
}


@pytest.mark.parametrize("name", NOT_PROVEN)
def test_what_cannot_be_followed_is_refused_or_estimated(name):
    f = NOT_PROVEN[name]
    assert ScalarFunction(f, name).obstacle is not None
    # ProgramError and others: refused on other grounds, such as a jump that was seen.
    try:
        table = Interpolant.fit(f, -1.0, 1.0, tokens=17)
    except (IceformError, RuntimeError, TypeError, IndexError):
        return
    assert table.kind == "estimated"
    assert "is not enclosed" in table.assumptions[0]


def test_eps_takes_no_estimate_unless_told():
    hidden = NOT_PROVEN["numpy"]
    with pytest.raises(PrecisionError, match=r"nothing is proven of f .* estimate=True"):
        Interpolant.fit(hidden, -2.0, 2.0, eps=1e-4)
    table = Interpolant.fit(hidden, -2.0, 2.0, eps=1e-3, estimate=True)
    assert table.kind == "estimated"
    assert table.error <= 1e-3


def test_a_function_that_knows_it_is_followed_is_found_out():
    """It answers a tensor without entries otherwise than one with."""
    f = ScalarFunction(lambda z: z.tanh() if type(z) is torch.Tensor else z.sin(), "two-faced")
    assert f.obstacle is None
    assert "not what it was followed to compute" in f.obstacle_on(-2.0, 2.0)
    table = Interpolant.fit(f, -2.0, 2.0, tokens=17)
    assert table.kind == "estimated"


def test_softplus_is_enclosed_on_either_side_of_its_threshold():
    """torch leaves softplus for its asymptote at 20, a jump of 2e-9: both are inside."""
    z = torch.tensor([19.5, 20.5, 25.0], dtype=F64)
    found = ScalarFunction(F.softplus, "softplus").jets(Interval.point(z), 1)[0]
    for want in (torch.log1p(z.exp()), F.softplus(z)):
        assert bool((found.low <= want).all())
        assert bool((want <= found.high).all())


def test_no_slope_is_known_where_softplus_jumps():
    """A table of one branch is off by the jump on the other, however short that is.

    On [20, 20.000001] torch's softplus is z, and ln(1 + e^z) is 2e-9 more.
    """
    cell = Interval(torch.tensor([19.5], dtype=F64), torch.tensor([20.1], dtype=F64))
    assert bool(ScalarFunction(F.softplus, "softplus").jets(cell, 2)[1].magnitude.isinf())
    smooth = Formula("softplus(z)").scalar_function(-1.0, 20.000001)
    table = Interpolant.fit(smooth, -1.0, 20.000001, tokens=65)
    asked = ScalarFunction.of(F.softplus, -1.0, 20.000001)
    z = torch.linspace(20.0, 20.000001, 5, dtype=F64)[1:]
    off = float((table(z) - asked(z)).abs().max())
    assert table.error < 1e-3 * off < off <= posterior_error(table, asked, None).error < 3 * off


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_every_activation_of_networks_is_proven(name):
    table = Interpolant.fit(ACTIVATIONS[name].function, -4.0, 4.0, tokens=33)
    assert (table.kind, table.assumptions) == ("proven", ())


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_is_proven(name):
    table = Interpolant.fit(loss_named(name).derivative, -4.0, 4.0, tokens=33)
    assert (table.kind, table.assumptions) == ("proven", ())


@pytest.mark.parametrize("text", ["tanh(2*z)", "abs(z - 0.3)^3", "max(z, sin(z))", "e^2*z"])
def test_every_formula_is_proven(text):
    table = Interpolant.fit(Formula.parse(text).function, -2.0, 2.0, tokens=33)
    assert (table.kind, table.assumptions) == ("proven", ())


@pytest.mark.parametrize(
    ("f", "slopes"),
    [
        (lambda z: torch.where(z < 0, 0.9 * z, 0.1 * z), (0.1, 0.9)),
        (lambda z: torch.where(z > 1, 2 * z - 1, z), (1.0, 2.0)),
        (lambda z: torch.where(z > 0, z, torch.expm1(z)), (0.13533528, 1.0)),
        (lambda z: torch.where(z <= 0.5, z * z, z - 0.25), (-4.0, 1.0)),
    ],
    ids=["two lines", "at 1", "elu", "huber"],
)
def test_branches_that_meet_leave_a_slope(f, slopes):
    low, high = ScalarFunction(f, "f").slopes(-2.0, 2.0)
    allowed = 0.05 * max(map(abs, slopes))  # bounds are tight relative to the largest
    assert slopes[0] - allowed <= low <= slopes[0] + 1e-8
    assert slopes[1] - 1e-8 <= high <= slopes[1] + allowed


def test_branches_that_do_not_meet_leave_none():
    """By however little they miss each other."""
    for step in (1.0, 1e-9, 1e-300):
        f = ScalarFunction(lambda z, step=step: torch.where(z > 0, z + step, z), "f")
        assert f.slopes(-2.0, 2.0) is None


JOINED_AT_0 = {  # each is z for z > 0 and expm1(z) below, in two parts that switch at 0
    "elu": F.elu,
    "max and min": lambda z: z.clamp(min=0) + torch.expm1(z.clamp(max=0)),
    "where": lambda z: torch.where(z > 0, z, 0 * z) + torch.where(z >= 0, 0 * z, torch.expm1(z)),
    "equal": lambda z: torch.where(z == 0, 0.0, F.elu(z)),
}


@pytest.mark.parametrize("name", JOINED_AT_0)
def test_slopes_at_the_very_point_of_a_switch_are_those_of_both_sides(name):
    """The slope at 0 is 1; the parts' slopes from one side each add up to 2, or to 0."""
    f = ScalarFunction(JOINED_AT_0[name], name)
    found = f.jets(Interval.point(torch.tensor([0.0, 0.5, -0.5], dtype=torch.float64)), 2)
    exact = torch.tensor([1.0, 1.0, torch.tensor(-0.5).double().exp()], dtype=torch.float64)
    slope, value = found[1], found[0]
    assert bool(((slope.low <= exact) & (exact <= slope.high)).all())
    assert bool((slope.high - slope.low)[1:].max() <= 1e-14)
    assert bool(value.magnitude[0] <= 1e-300)
    assert bool(found[2].magnitude[0] == torch.inf)  # there is no second derivative
