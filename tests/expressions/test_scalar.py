import math
from dataclasses import replace

import pytest
import torch

from iceform import Formula
from iceform.errors import ProgramError, ShapeError
from iceform.expressions import ScalarFunction, find_kinks

F64 = torch.float64
LOW, HIGH = -5.0, 5.0


def kinks_of(f, low=LOW, high=HIGH):
    return find_kinks(ScalarFunction(f, "f", kinks=None), low, high)


# ------------------------------------------------------------------------------------- kinks


@pytest.mark.parametrize(
    ("f", "kinks"),
    [
        (torch.relu, (0.0,)),
        (torch.abs, (0.0,)),
        (lambda z: z.clamp(-1, 1), (-1.0, 1.0)),
        (lambda z: z.clamp(-0.37, 2.5), (-0.37, 2.5)),
        (torch.nn.functional.softshrink, (-0.5, 0.5)),
        (lambda z: torch.nn.functional.leaky_relu(z, 0.9), (0.0,)),
        (lambda z: (z + 3).abs() + 2 * (z - 0.5).relu() - (z - 2.25).abs(), (-3.0, 0.5, 2.25)),
        (lambda z: sum((z - j).abs() for j in range(-4, 5)), tuple(map(float, range(-4, 5)))),
        (lambda z: (z.abs() - 0.02).relu(), (-0.02, 0.02)),
        (lambda z: torch.sin(z) + 0.01 * z.relu(), (0.0,)),
        (lambda z: (z - 4.999).relu(), (4.999,)),
        (lambda z: torch.maximum(z.square(), 2 - z), (-2.0, 1.0)),
    ],
    ids=[
        "relu", "abs", "clamp", "clamp off centre", "softshrink", "a weak kink", "three", "nine",
        "two close by", "on top of a wave", "near the end", "between curves",
    ],
)  # fmt: skip
def test_kinks_are_found(f, kinks):
    assert kinks_of(f) == kinks


def test_a_kink_that_nobody_typed_is_found_to_ten_digits():
    (kink,) = kinks_of(lambda z: (z - math.pi / 3).abs())
    assert abs(kink - math.pi / 3) < 1e-10


@pytest.mark.parametrize(("low", "high"), [(-1e-3, 2e-3), (-1000.0, 1000.0), (-1000.0, 1.0)])
def test_kinks_are_found_on_every_scale(low, high):
    assert kinks_of(torch.relu, low, high) == (0.0,)


@pytest.mark.parametrize(
    "f",
    [
        torch.tanh,
        torch.sin,
        torch.exp,
        torch.sigmoid,
        lambda z: torch.tanh(50 * z),
        lambda z: torch.tanh(1000 * z),
        lambda z: torch.sin(100 * z),
        torch.nn.functional.gelu,
        torch.nn.functional.silu,
        lambda z: z,
        torch.zeros_like,
        lambda z: 1e12 * z + 3,
        lambda z: z.relu().square(),
        torch.atan,
        lambda z: 1 / (1 + 25 * z.square()),
    ],
    ids=[
        "tanh", "sin", "exp", "sigmoid", "steep", "steeper", "fast", "gelu", "silu", "line", "zero",
        "a steep line", "a curvature that jumps", "atan", "runge",
    ],
)  # fmt: skip
def test_smooth_functions_have_none(f):
    assert kinks_of(f) == ()


@pytest.mark.parametrize("reach", [10.0, 1e3, 1e5, 1e7])
def test_a_wide_range_does_not_turn_tanh_into_a_jump(reach):
    """A mesh cell may be far wider than the step of tanh: only a closer look tells them apart."""
    assert kinks_of(torch.tanh, -reach, reach) in ((), (0.0,))


@pytest.mark.parametrize(
    ("f", "where"),
    [
        (torch.sign, 0.0),
        (lambda z: (z > 0.3).double(), 0.3),
        (lambda z: z + 1e-3 * (z > 0.3), 0.3),
        (lambda z: z.relu() + (z > 1).double(), 1.0),
        (torch.nn.functional.hardshrink, -0.5),
        (torch.floor, -4.0),
    ],
    ids=["sign", "step", "a small step", "a kink and a step", "hardshrink", "floor"],
)
def test_a_jump_is_refused_and_named(f, where):
    with pytest.raises(ProgramError, match=r"jumps near z = .*continuous") as caught:
        kinks_of(f)
    named = float(str(caught.value).split("z = ")[1].split(";")[0])
    # Two cells of the coarse mesh.
    assert abs(named - where) < 2 * (HIGH - LOW) / 4096


def test_an_infinite_slope_is_no_jump():
    """sqrt|z| is continuous: it may be refused for other reasons, but not as a jump."""
    try:
        kinks_of(lambda z: z.abs().sqrt())
    except ProgramError as refused:
        assert "jumps" not in str(refused), str(refused)  # noqa: PT017


def test_a_pole_is_refused():
    with pytest.raises(ProgramError, match="not finite at z = 0"):
        kinks_of(lambda z: 1 / z)


def test_too_many_kinks_are_refused():
    with pytest.raises(ProgramError, match=r"more than 16 kinks .*kinks="):
        kinks_of(lambda z: (10 * z).sin().abs())


# ----------------------------------------------------------------------------- ScalarFunction


def test_wrapping_keeps_the_name_and_looks_for_kinks():
    f = ScalarFunction.of(torch.relu, LOW, HIGH)
    assert (f.name, f.kinks) == ("relu", (0.0,))
    assert ScalarFunction.of(torch.tanh, LOW, HIGH).kinks == ()


def test_kinks_that_are_given_are_believed_and_sorted():
    assert ScalarFunction.of(torch.relu, LOW, HIGH, kinks=(1, -2)).kinks == (-2.0, 1.0)
    assert ScalarFunction.of(torch.relu, LOW, HIGH, kinks=()).kinks == ()
    known = ScalarFunction(torch.sign, "sign", kinks=(0.5,))
    assert ScalarFunction.of(known, LOW, HIGH) is known
    assert ScalarFunction.of(known, LOW, HIGH, kinks=(1.0,)).kinks == (1.0,)


def test_kinks_in_an_open_range():
    f = ScalarFunction(torch.relu, "f", kinks=(-1.0, 0.0, 1.0))
    assert f.kinks_in(-1.0, 1.0) == (0.0,)
    assert f.kinks_in(-2.0, 2.0) == (-1.0, 0.0, 1.0)
    assert ScalarFunction(torch.relu, "f", kinks=None).kinks_in(-1, 1) == ()


def test_the_name_of_an_object_without_one_is_its_class():
    assert ScalarFunction.of(torch.nn.Tanh(), LOW, HIGH).name == "Tanh"


@pytest.mark.parametrize("bad", [3, None, "tanh", [torch.tanh]])
def test_what_is_not_callable_is_refused(bad):
    with pytest.raises(ProgramError, match=r"f must be a function of a tensor, got .* of type"):
        ScalarFunction.of(bad, LOW, HIGH)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda z: z[:-1], r"the shape it is given, \(8,\), got \(7,\)"),
        (lambda z: z.sum(), r"got \(\)"),
        (lambda z: z[:, None], r"got \(8, 1\)"),
        (lambda z: z.tolist(), "got list"),
        (lambda z: None, "got NoneType"),
        (lambda z: z.numpy(), "got ndarray"),
    ],
)
def test_a_result_of_another_shape_is_refused(f, message):
    with pytest.raises(ShapeError, match=message):
        ScalarFunction(f, "f")(torch.ones(8, dtype=F64))


@pytest.mark.parametrize(
    ("f", "where"), [(torch.log, -1), (lambda z: z / (z == 2).logical_not(), 2)]
)
def test_a_result_that_is_not_finite_is_refused_and_named(f, where):
    with pytest.raises(ProgramError, match=rf"f \(f\) is not finite at z = {where}"):
        ScalarFunction(f, "f")(torch.tensor([1.0, float(where), 3.0], dtype=F64))


def test_derivatives_are_the_derivatives():
    z = torch.linspace(-2, 2, 41, dtype=F64)
    got = ScalarFunction(torch.sin, "sin").derivatives(z, 4)
    want = [z.sin(), z.cos(), -z.sin(), -z.cos(), z.sin()]
    assert got is not None
    for order, (a, b) in enumerate(zip(got, want, strict=True)):
        off = float((a - b).abs().max())
        assert off <= 8 * torch.finfo(F64).eps, f"derivative {order} is off by {off:.3e}"
        assert not a.requires_grad


@pytest.mark.parametrize(
    ("f", "want"),
    [
        (lambda z: 3 * z + 1, [3.0, 0.0, 0.0, 0.0]),
        (torch.relu, [1.0, 0.0, 0.0, 0.0]),
        (lambda z: torch.full_like(z, 2.0), [0.0, 0.0, 0.0, 0.0]),
        (lambda z: 0 * z, [0.0, 0.0, 0.0, 0.0]),
    ],
    ids=["line", "relu", "constant", "zero"],
)
def test_derivatives_of_what_autograd_gives_up_on_early(f, want):
    z = torch.tensor([0.5, 1.5], dtype=F64)
    got = ScalarFunction(f, "f").derivatives(z, 4)
    assert got is not None
    assert [float(d[0]) for d in got[1:]] == want


@pytest.mark.parametrize(
    "f", [lambda z: z.detach().tanh(), lambda z: torch.from_numpy(z.detach().numpy() ** 2)]
)
def test_no_derivatives_where_autograd_has_none(f):
    assert ScalarFunction(f, "f").derivatives(torch.linspace(-1, 1, 9, dtype=F64), 2) is None


def test_no_derivatives_where_they_are_infinite():
    root = ScalarFunction(lambda z: z.abs().sqrt(), "root")
    assert root.derivatives(torch.tensor([0.0, 1.0], dtype=F64), 1) is None


def test_values_beyond_the_range_continue_f_or_its_tangent():
    nodes = torch.linspace(-1, 2, 13, dtype=F64)
    tanh = ScalarFunction(torch.tanh, "tanh")
    assert torch.equal(tanh.extended(nodes, 0.0, 1.0), nodes.tanh())
    # sqrt is not a number below 0: a tangent at 0.25 takes over.
    root = ScalarFunction(torch.sqrt, "sqrt")
    values = root.extended(nodes, 0.25, 1.0)
    below = nodes < 0
    want = 0.5 + (nodes[below] - 0.25)
    assert float((values[below] - want).abs().max()) <= 4 * torch.finfo(F64).eps
    assert torch.equal(values[nodes >= 0.25], nodes[nodes >= 0.25].sqrt())


@pytest.mark.parametrize(
    ("f", "affine"),
    [
        (torch.tanh, (1.0, 0.0)),
        (lambda z: z, (2.0, 0.0)),
        (lambda z: z, (-1.0, 0.0)),
        (lambda z: z.clamp(-1e9, 1e9), (1.0, 0.0)),
        (lambda z: 0.1 * z + 0.2 * z, (0.3, 0.0)),  # 0.1 + 0.2 of doubles is no double
        (lambda z: torch.from_numpy(z.numpy()), (1.0, 0.0)),
    ],
)
def test_a_line_that_a_function_is_not_is_refused(f, affine):
    """Look-ups and proofs take it at its word."""
    with pytest.raises(ProgramError, match="leave affine out"):
        ScalarFunction(f, "f", affine=affine)
    ScalarFunction(lambda z: 3 - (-z) / 4 + 0 * z, "line", affine=(0.25, 3.0))
    with pytest.raises(ProgramError, match="leave affine out"):
        replace(Formula("z^2").function, affine=(1.0, 0.0))


@pytest.mark.parametrize("text", ["0.1", "1/3 - z/7", "1e308", "1e-320", "1e-320*z", "-1e308*z"])
def test_numbers_that_float64_rounds_make_lines(text):
    slope, intercept = Formula(text).scalar_function(-1.0, 1.0).affine
    at = torch.tensor([-1.0, 1.0], dtype=F64)
    assert torch.allclose(Formula(text)(at), slope * at + intercept, rtol=1e-15)


@pytest.mark.parametrize("f", [lambda z: torch.rsqrt(z + 1e-3), lambda z: torch.log(z + 6e-4)])
def test_kinks_are_looked_for_inside_the_range_only(f):
    """Both leave their domain a little below -5e-4, where they are steep."""
    assert not [k for k in kinks_of(f, -5e-4, 5.0) if k > 0.1]
