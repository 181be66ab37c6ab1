"""Every bad input gives one clear exception: the value, the limit, and what to change."""

import math
import tracemalloc

import numpy as np
import pytest
import torch

import iceform as ice
from iceform import IceformError
from iceform.errors import (
    BoundError,
    CapacityError,
    DeviceError,
    DtypeError,
    IntegrityError,
    ParameterError,
    PrecisionError,
    ProgramError,
    ShapeError,
    TargetError,
)
from iceform.paper import (
    GradientDescent,
    GradientStep,
    LeastSquares,
    ResidualMap,
    RidgeRegression,
    SampleGradients,
)
from iceform.tables import regimes

F32, F64 = torch.float32, torch.float64
NAN, INF = math.nan, math.inf
SIZES = {"dim": 2, "samples": 3, "bound": 1.0}
BACKENDS = ("literal", "fused")


def data(*batch, dtype=F64):
    """Well-conditioned samples, labels and coefficients well inside the domain."""
    x = torch.tensor([[0.9, 0.1], [-0.2, 0.8], [0.5, -0.6]], dtype=dtype)
    y = torch.tensor([0.3, -0.4, 0.1], dtype=dtype)
    w = torch.tensor([0.2, -0.5], dtype=dtype)
    return x.expand(*batch, 3, 2).clone(), y.expand(*batch, 3).clone(), w.expand(*batch, 2).clone()


def with_entry(tensor, value):
    changed = tensor.clone()
    changed.view(-1)[1] = value
    return changed


def residual(f="squared", **options):
    return ResidualMap(f, **{**SIZES, "eps": 1e-6, **options})


def step(loss="squared", **options):
    return GradientStep(loss, **{**SIZES, "eps": 1e-6, **options})


def descent(loss="squared", steps=3, **options):
    return GradientDescent(loss, steps, **{**SIZES, "eps": None, **options})


def least_squares(**options):
    return LeastSquares(**{**SIZES, "condition": 20.0, "radius": 5.0, "eps": 1e-6, **options})


def ridge(alpha=1.0, **options):
    return RidgeRegression(alpha, **{**SIZES, "radius": 5.0, "eps": 1e-6, **options})


THREE_INPUTS = {
    "residual": residual,
    "gradients": lambda **o: SampleGradients("squared", **{**SIZES, "eps": 1e-6, **o}),
    "step": step,
    "loop": descent,
    "unrolled": lambda **o: descent(unrolled=True, **o),
}
TWO_INPUTS = {"least squares": least_squares, "ridge": ridge}
ALL = {**THREE_INPUTS, **TWO_INPUTS}

each = pytest.mark.parametrize("build", ALL.values(), ids=ALL)
each_of_three = pytest.mark.parametrize("build", THREE_INPUTS.values(), ids=THREE_INPUTS)


def call(emulator, x, y, w):
    return emulator(x, y) if isinstance(emulator, RidgeRegression) else emulator(x, y, w)


# ------------------------------------------------------------------------------- the hierarchy


def test_every_exception_is_an_iceform_error_and_a_value_error():
    classes = [
        BoundError, DeviceError, DtypeError, IntegrityError, ParameterError, PrecisionError,
        ProgramError, ShapeError, TargetError,
    ]  # fmt: skip
    for error in classes:
        assert issubclass(error, IceformError), error
        assert issubclass(error, ValueError), error
    assert issubclass(CapacityError, IceformError)
    assert issubclass(CapacityError, MemoryError)
    assert set(IceformError.__subclasses__()) == {*classes, CapacityError}


# ------------------------------------------------------------------------------ numbers in tensors


@each
@pytest.mark.parametrize("value", [NAN, INF, -INF, 1.0001, -2.0])
@pytest.mark.parametrize("which", ["x", "y", "w"])
def test_entries_outside_the_domain(build, value, which):
    emulator = build()
    if which == "w" and isinstance(emulator, RidgeRegression):
        pytest.skip("these start from w = 0")
    inputs = dict(zip("xyw", data(), strict=True))
    inputs[which] = with_entry(inputs[which], value)
    seen = "NaN" if math.isnan(value) else f"{abs(value):.9g}"
    with pytest.raises(BoundError, match=rf"max \|{which}\| is {seen}, the certificate holds up"):
        call(emulator, **inputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_bad_instance_of_a_batch_is_enough(backend):
    x, y, w = data(4)
    with pytest.raises(BoundError, match="NaN"):
        step(backend=backend)(with_entry(x, NAN), y, w)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"x_norm": 0.5}, r"max \|\|x\|\|_2 is 0.9.* up to 0.5; raise x_norm="),
        ({"w_norm": 0.5}, r"max \|\|w\|\|_2 is 0.5.* up to 0.5; raise w_norm="),
        ({"y_bound": 0.1}, r"max \|y\| is 0.4, .* up to 0.1; .*y_bound="),
        ({"w_bound": 0.1}, r"max \|w\| is 0.5, .* up to 0.1; .*w_bound="),
    ],
)
def test_narrower_domains_are_checked(option, message):
    with pytest.raises(BoundError, match=message):
        step(**option)(*data())


@each_of_three
def test_residuals_outside_z_range(build):
    emulator = build(z_range=(-0.1, 0.1))
    with pytest.raises(BoundError, match=r"z = w.x - y reaches \[.*\], .* on \[-0.1, 0.1\]; widen"):
        emulator(*data())


# -------------------------------------------------------------------------- shapes and batches


@each
@pytest.mark.parametrize(
    ("which", "change", "message"),
    [
        ("x", lambda t: t[:2], r"x must have shape \(\*batch, 3, 2\), got \(2, 2\)"),
        ("x", lambda t: t.mT, r"x must have shape \(\*batch, 3, 2\), got \(2, 3\)"),
        ("x", lambda t: t[0], r"x must have shape \(\*batch, 3, 2\), got \(2,\)"),
        ("y", lambda t: t[:2], r"y must have shape \(\*batch, 3\), got \(2,\)"),
        ("y", lambda t: t[0], r"y must have shape \(\*batch, 3\), got \(\)"),
        ("w", lambda t: t[:1], r"w must have shape \(\*batch, 2\), got \(1,\)"),
        ("w", lambda t: t[None].T, r"w must have shape \(\*batch, 2\), got \(2, 1\)"),
    ],
)
def test_shapes(build, which, change, message):
    emulator = build()
    if which == "w" and isinstance(emulator, RidgeRegression):
        pytest.skip("these start from w = 0")
    inputs = dict(zip("xyw", data(), strict=True))
    inputs[which] = change(inputs[which])
    with pytest.raises(ShapeError, match=message):
        call(emulator, **inputs)


@each
def test_batch_shapes_that_do_not_broadcast(build):
    x, y, w = data()
    with pytest.raises(ShapeError, match=r"batch shapes must broadcast, got x: \(4,\), y: \(3,\)"):
        call(build(), x.expand(4, 3, 2), y.expand(3, 3), w)


@pytest.mark.parametrize("backend", BACKENDS)
@each
def test_batch_shapes_that_do_broadcast(build, backend):
    x, y, w = data()
    emulator = build(backend=backend)
    out = call(emulator, x.expand(4, 1, 3, 2), y.expand(5, 3), w)
    assert out.shape[:2] == (4, 5)
    one = call(emulator, x, y, w)
    off = float((out - one).abs().max())
    terms = emulator.certificate.terms
    assert off <= 2 * terms["rounding"], f"off by {off:.3e}"


@each
@pytest.mark.parametrize(
    "empty",
    [
        lambda x, y, w: (x.expand(0, 3, 2), y.expand(0, 3), w.expand(0, 2)),
        lambda x, y, w: (x.expand(0, 3, 2), y, w),
        lambda x, y, w: (x[:0], y[:0], w),
        lambda x, y, w: (x[:, :0], y, w[:0]),
    ],
    ids=["no instance", "no instance of x", "no samples", "no features"],
)
def test_empty_data(build, empty):
    with pytest.raises(ShapeError, match=r"x is empty|x must have shape"):
        call(build(), *empty(*data()))


@each_of_three
@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_number_of_arguments_of_three(build, count):
    with pytest.raises(TypeError, match=rf"call with \(x, y, w\), got {count} arguments"):
        build()(*(*data(), data()[0])[:count])


@pytest.mark.parametrize("build", TWO_INPUTS.values(), ids=TWO_INPUTS)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_number_of_arguments_of_two(build, count):
    with pytest.raises(TypeError, match=rf"call with \(x, y\), got {count} arguments"):
        build()(*data()[:count])


# The border has three doors: calling, the prompt, and the exact algorithm.


@each
@pytest.mark.parametrize("door", ["prompt", "reference"])
def test_number_of_arguments_elsewhere(build, door):
    with pytest.raises(TypeError, match=r"call with \(x, y(, w)?\), got 1 arguments"):
        getattr(build(), door)(data()[0])


@each
@pytest.mark.parametrize("door", ["prompt", "reference"])
def test_shapes_elsewhere(build, door):
    emulator = build()
    x, y, w = data()
    inputs = (x, y[:2]) if isinstance(emulator, RidgeRegression) else (x, y[:2], w)
    with pytest.raises(ShapeError, match=r"y must have shape \(\*batch, 3\), got \(2,\)"):
        getattr(emulator, door)(*inputs)


@each
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda x: with_entry(x, NAN), BoundError),
        (lambda x: x.tolist(), DtypeError),
        (lambda x: x.float(), DtypeError),
    ],
    ids=["NaN", "list", "float32"],
)
def test_prompts_of_bad_data_are_refused(build, change, error):
    emulator = build()
    x, y, w = data()
    inputs = (y,) if isinstance(emulator, RidgeRegression) else (y, w)
    with pytest.raises(error, match="x"):
        emulator.prompt(change(x), *inputs)


# --------------------------------------------------------------------- dtypes, devices, containers


@each
@pytest.mark.parametrize("which", ["x", "y"])
@pytest.mark.parametrize(
    "dtype", [F32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex128]
)
def test_mixed_dtypes(build, which, dtype):
    inputs = dict(zip("xyw", data(), strict=True))
    inputs[which] = inputs[which].to(dtype)
    with pytest.raises(DtypeError, match=rf"{which} has dtype {dtype}, .* torch.float64; convert"):
        call(build(), **inputs)


def test_all_of_another_dtype():
    with pytest.raises(DtypeError, match=r"x has dtype torch.float64, .* holds for torch.float32"):
        step(dtype=F32, eps=1e-3)(*data())


@each
@pytest.mark.parametrize(
    "convert", [lambda t: t.numpy(), lambda t: t.tolist(), lambda t: None, lambda t: 0.5]
)
@pytest.mark.parametrize("which", ["x", "y"])
def test_what_is_no_tensor(build, convert, which):
    inputs = dict(zip("xyw", data(), strict=True))
    inputs[which] = convert(inputs[which])
    name = type(inputs[which]).__name__
    with pytest.raises(DtypeError, match=rf"{which} must be a torch tensor, got {name}; use"):
        call(build(), **inputs)


@each
@pytest.mark.parametrize("which", ["x", "y"])
def test_mixed_devices(build, which):
    inputs = dict(zip("xyw", data(), strict=True))
    inputs[which] = inputs[which].to("meta")
    with pytest.raises(DeviceError, match=r"is on (meta|cpu), .* on (cpu|meta); move"):
        call(build(), **inputs)


@each
def test_tensors_without_numbers(build):
    with pytest.raises(DeviceError, match="meta"):
        call(build(), *(t.to("meta") for t in data()))


@pytest.mark.parametrize(
    "convert",
    [
        lambda em: em.to(F32),
        lambda em: em.float(),
        lambda em: em.half(),
        lambda em: em.bfloat16(),
        lambda em: em.to(torch.float16),
    ],
)
@each
def test_emulators_are_not_cast(build, convert):
    emulator = build()
    digest = emulator.digest
    with pytest.raises(DtypeError, match=r"certificate holds for torch.float64, .* cannot be cast"):
        convert(emulator)
    assert emulator.digest == digest
    assert emulator.to(F64).to("cpu").double().digest == digest


@pytest.fixture
def matmul_precision():
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("precision", ["high", "medium"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_coarse_float32_products(matmul_precision, precision, backend):
    emulator = step(dtype=F32, eps=1e-3, backend=backend)
    inputs = data(dtype=F32)
    matmul_precision(precision)
    with pytest.raises(PrecisionError, match=rf"set to '{precision}', .*'highest'"):
        emulator(*inputs)
    step(backend=backend)(*data())  # float64 is not concerned
    matmul_precision("highest")
    emulator(*inputs)


# ------------------------------------------------------------------------------ sizes and bounds


@each
@pytest.mark.parametrize("name", ["dim", "samples"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "2", None, True])
def test_sizes(build, name, value):
    with pytest.raises(ShapeError, match=rf"{name} must be a whole number of at least 1, got"):
        build(**{name: value})


@each
@pytest.mark.parametrize("value", [0, -1.0, NAN, INF])
def test_bounds(build, value):
    with pytest.raises(BoundError, match="bound must be positive and finite, got"):
        build(bound=value)


@each
@pytest.mark.parametrize("value", ["1", None, [1.0], True])
def test_bounds_that_are_no_numbers(build, value):
    with pytest.raises(BoundError, match="bound must be a number, got"):
        build(bound=value)


@pytest.mark.parametrize("bound", [1e200, 1e-200])
def test_bounds_beyond_floating_point(bound):
    """Squares of these are not numbers that float64 has."""
    with pytest.raises(IceformError, match=r"bound|range"):
        residual(torch.tanh, bound=bound)


@pytest.mark.parametrize("name", ["x_norm", "w_norm", "w_bound"])
@pytest.mark.parametrize("value", [0.0, -1.0, NAN, INF])
def test_narrower_bounds(name, value):
    with pytest.raises(BoundError, match=f"{name} must be positive and finite, got"):
        step(**{name: value})


def test_labels_may_be_zero_but_not_negative():
    assert step(y_bound=0.0).domain.y == 0
    with pytest.raises(BoundError, match="y_bound must be non-negative and finite, got -1"):
        step(y_bound=-1.0)


@each_of_three
@pytest.mark.parametrize(
    "z_range", [(1.0, -1.0), (0.0, 0.0), (0.0, NAN), (-INF, 1.0), 3, (1.0,), (1, 2, 3), ("a", "b")]
)
def test_z_range(build, z_range):
    with pytest.raises(BoundError, match=r"z_range must be .*\(low, high\) with low < high"):
        build(z_range=z_range)


@pytest.mark.parametrize("tokens", [0, -3, 2, 2.5, 65.0, "17"])
def test_number_of_grid_tokens(tokens):
    with pytest.raises(IceformError, match="tokens"):
        residual(torch.tanh, tokens=tokens, eps=None)


@pytest.mark.parametrize("kinks", [3, ("a",), (NAN,), (INF,)])
def test_kinks(kinks):
    with pytest.raises(ProgramError, match="kinks"):
        residual(torch.relu, kinks=kinks, eps=1e-1)


# ------------------------------------------------------------------------------------------- eps


@each
@pytest.mark.parametrize("eps", [0, 0.0, -1, NAN, "1e-3", True])
def test_eps_must_be_positive(build, eps):
    with pytest.raises(PrecisionError, match=r"eps must be positive, got .*eps=None"):
        build(eps=eps)


@each
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dtype", "eps"), [(F32, 1e-12), (F64, 1e-30)])
def test_eps_below_the_dtype(build, dtype, eps, backend):
    with pytest.raises(PrecisionError, match=r"eps|float64 holds") as caught:
        build(dtype=dtype, eps=eps, backend=backend)
    best = caught.value.best
    assert best is not None
    # Many float32 steps in a row: the solvers' certificates are the largest.
    assert eps < best < 1e-1


@pytest.mark.parametrize("backend", BACKENDS)
def test_eps_below_float32_for_a_curve(backend):
    with pytest.raises(PrecisionError, match=r"float32: .* can; .*dtype=torch.float64") as caught:
        residual(torch.tanh, dtype=F32, eps=1e-12, backend=backend)
    best = caught.value.best
    assert best is not None
    assert residual(torch.tanh, dtype=F32, eps=1.5 * best, backend=backend).certificate.error <= (
        1.5 * best
    )


def test_refusing_an_eps_takes_no_more_than_finding_the_best_twice(monkeypatch):
    """Once to see that it is out of reach, once more to say what the whole construction holds."""
    fits = []
    fit_values = regimes.fit_values

    def counted(f, grid, sharpness, **how):
        fits.append(grid.tokens)
        return fit_values(f, grid, sharpness, **how)

    monkeypatch.setattr(regimes, "fit_values", counted)
    monkeypatch.setenv("ICEFORM_CACHE", "off")
    residual(torch.tanh, eps=None)
    best = len(fits)
    fits.clear()
    with pytest.raises(PrecisionError, match="1e-30"):
        residual(torch.tanh, eps=1e-30)
    assert 0 < len(fits) <= 2 * best


@each_of_three
def test_eps_that_a_fixed_table_does_not_hold(build):
    with pytest.raises(PrecisionError, match=r"certified.* not .*eps = 1e-12") as caught:
        build(regime="hard", tokens=17, eps=1e-12)
    assert caught.value.best is not None
    assert caught.value.best > 1e-3


# --------------------------------------------------------------------------------- functions f


@pytest.mark.parametrize("regime", ["spectral", "hard"])
@pytest.mark.parametrize(
    ("f", "error", "message"),
    [
        (3, ProgramError, "function .* got 3 of type int"),
        (None, ProgramError, "function .* got None of type NoneType"),
        ([torch.tanh], ProgramError, "function .* of type list"),
        ("nope", ProgramError, "'nope'; the library has squared, "),
        (torch.log, ProgramError, r"f \(log\) is not finite at z = -"),
        (lambda z: z / (z.abs() > 1), ProgramError, "is not finite at z = "),
        (lambda z: z * NAN, ProgramError, "is not finite at z = "),
        (lambda z: z[:-1], ShapeError, "the shape it is given, .* make it elementwise"),
        (lambda z: z.sum(), ShapeError, r"got \(\); make it elementwise"),
        (lambda z: z.numpy(), ShapeError, "got ndarray; make it elementwise"),
        (lambda z: 0.0, ShapeError, "got float; make it elementwise"),
        (torch.sign, ProgramError, "jumps near z = .* continuous functions only"),
        (torch.round, ProgramError, "jumps near z = .* continuous functions only"),
    ],
    ids=[
        "int", "None", "list", "unknown name", "log", "a gap", "NaN", "shorter", "sum", "numpy",
        "float", "sign", "round",
    ],
)  # fmt: skip
def test_functions(f, error, message, regime):
    with pytest.raises(error, match=message):
        residual(f, eps=1e-2, regime=regime)


def test_a_function_that_computes_in_float32_is_named_as_such():
    with pytest.raises(DtypeError, match="float32"):
        residual(lambda z: z.float().tanh())


def test_what_a_function_raises_comes_through():
    def broken(z):
        raise KeyError("my own mistake")

    with pytest.raises(KeyError, match="my own mistake"):
        residual(broken)


# --------------------------------------------------------------------------------------- names


@each
@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({"regime": "soft"}, ProgramError, "regime must be one of .*spectral.*hard.*, got 'soft'"),
        ({"regime": None}, ProgramError, "regime must be one of .* got None"),
        ({"backend": "cuda"}, ProgramError, "backend must be one of auto, .*literal.*, got 'cuda'"),
        ({"dtype": torch.float16}, DtypeError, "must be torch.float32 or .* got torch.float16"),
        ({"dtype": torch.int64}, DtypeError, "must be torch.float32 or .* got torch.int64"),
        ({"dtype": "float32"}, DtypeError, "must be torch.float32 or .* got 'float32'"),
        ({"dtype": np.float64}, DtypeError, "must be torch.float32 or .* got <class"),
        ({"dtype": None}, DtypeError, "must be torch.float32 or .* got None"),
    ],
)
def test_choices(build, option, error, message):
    with pytest.raises(error, match=message):
        build(**option)


@each
def test_options_that_do_not_exist(build):
    with pytest.raises(TypeError, match="sample"):
        build(sample_size=3)


@pytest.mark.parametrize("loss", ["hingy", "", "Squared"])
@pytest.mark.parametrize("build", [step, descent, SampleGradients])
def test_unknown_losses(build, loss):
    with pytest.raises(ProgramError, match=rf"no loss is called '{loss}'; the library has squared"):
        build(loss, **SIZES)


@pytest.mark.parametrize("build", [step, descent])
@pytest.mark.parametrize("loss", [3, None, 0.5])
def test_losses_that_are_no_losses(build, loss):
    with pytest.raises(ProgramError, match=r"loss must be one of squared, .* or a function"):
        build(loss)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("huber", {"delta": 0.0}, "huber: delta must be positive and finite, got 0.0"),
        ("huber", {"delta": -1.0}, "huber: delta must be positive"),
        ("huber", {"delta": NAN}, "huber: delta must be positive"),
        ("huber", {"delta": "1"}, "huber: delta must be positive and finite, got '1'"),
        ("huber", {"delta": [1.0]}, "huber: delta must be positive"),
        ("huber", {"width": 1.0}, "huber .*width"),
        ("squared", {"delta": 1.0}, "squared .*delta"),
        ("quantile", {"quantile": 2.0}, "quantile must be .*between 0 and 1.*got 2.0"),
    ],
)
def test_parameters_of_losses(name, parameters, message):
    with pytest.raises(ProgramError, match=message):
        ice.expressions.loss_named(name, **parameters)


@pytest.mark.parametrize(
    ("loss", "label", "message"),
    [
        ("hinge", 0.0, r"hinge loss needs labels -1 and \+1, got 0.0"),
        ("hinge", 0.5, r"hinge loss needs labels -1 and \+1, got 0.5"),
        ("squared_hinge", 0.0, r"squared_hinge loss needs labels -1 and \+1, got 0.0"),
        ("logistic_margin", 0.25, r"logistic_margin loss needs labels -1 and \+1, got 0.25"),
        ("logistic", -1.0, r"logistic loss needs labels in \[0, 1\], got -1.0; .*logistic_margin"),
        ("logistic", 1.5, r"logistic loss needs labels in \[0, 1\], got 1.5"),
        ("poisson", -1.0, r"poisson loss needs counts >= 0, got -1.0"),
    ],
)
@pytest.mark.parametrize("build", [step, descent], ids=["step", "descent"])
def test_labels(build, loss, label, message):
    x, y, w = data()
    labels = with_entry(torch.ones_like(y), label)
    with pytest.raises(BoundError, match=message):
        build(loss, eps=1e-1, y_bound=2.0)(x, labels, w)


# ------------------------------------------------------------------------------------- descent


@pytest.mark.parametrize("build", [step, descent])
@pytest.mark.parametrize("lr", [0, 0.0, -0.1, NAN, INF])
def test_step_sizes(build, lr):
    with pytest.raises(BoundError, match="lr must be positive and finite, got"):
        build(lr=lr)


@pytest.mark.parametrize("build", [step, descent])
@pytest.mark.parametrize("l2", [-0.1, NAN, INF])
def test_penalties(build, l2):
    with pytest.raises(BoundError, match="l2 must be non-negative and finite, got"):
        build(l2=l2)


@pytest.mark.parametrize("steps", [0, -1, 2.5, None, "3"])
def test_numbers_of_steps(steps):
    with pytest.raises(ShapeError, match="steps must be a whole number of at least 1, got"):
        descent(steps=steps)


@pytest.mark.parametrize("build", [descent, least_squares, ridge])
def test_unknown_schedules(build):
    with pytest.raises(
        ProgramError, match="schedule must be one of constant, chebyshev, nesterov, got 'adam'"
    ):
        build(schedule="adam")


def test_chebyshev_needs_a_least_eigenvalue():
    with pytest.raises(ProgramError, match=r"positive least eigenvalue, got 0.*hessian=.*l2 > 0"):
        descent(schedule="chebyshev")
    descent(schedule="chebyshev", l2=0.5)
    descent(schedule="chebyshev", hessian=(0.1, 2.0))


def test_chebyshev_sets_its_own_steps():
    with pytest.raises(ProgramError, match="sets its own step sizes: leave out lr"):
        descent(schedule="chebyshev", l2=0.5, lr=0.1)


@pytest.mark.parametrize(
    "hessian", [(2.0, 1.0), (0.0, 0.0), (0.0, INF), (NAN, 1.0), 3, (1.0,), (1, 2, 3), ("a", "b")]
)
def test_hessians(hessian):
    with pytest.raises(BoundError, match=r"hessian must be \(alpha, L\)"):
        descent(hessian=hessian)


def test_a_loss_without_curvature():
    with pytest.raises(IceformError, match=r"curvature|lr"):
        descent(lambda z: 0 * z)


@pytest.mark.parametrize("schedule", ["constant", "nesterov"])
def test_certificates_of_many_steps_are_numbers(schedule):
    """A polynomial of degree beyond the mesh cannot be bounded: infinity, or a refusal, not NaN."""
    try:
        error = descent(steps=5000, schedule=schedule).certificate.error
    except IceformError:
        return
    assert error > 0, f"certified error {error}"


DIVERGING = {"steps": 30, "lr": 8.0}


@pytest.mark.parametrize(
    ("unrolled", "backend"),
    [(False, "fused"), (False, "literal"), (True, "literal"), (True, "fused"), (True, "auto")],
)
def test_an_iterate_that_leaves_the_bound(unrolled, backend):
    emulator = descent(**DIVERGING, unrolled=unrolled, backend=backend)
    exact = emulator.reference(*data())
    assert float(exact.abs().max()) > 1
    with pytest.raises(BoundError, match=r"max \|w\| is .*up to 1; .* take smaller steps"):
        emulator(*data())


def test_a_last_iterate_outside_the_bound_is_the_answer_all_the_same():
    """The bound is on what is looked up: the last iterate never is."""
    emulator = descent(steps=1, lr=40.0)
    out = emulator(*data())
    assert float(out.abs().max()) > 1
    off = float((out - emulator.reference(*data())).abs().max())
    assert off <= emulator.certificate.error


# -------------------------------------------------------------------------- least squares, ridge


@pytest.mark.parametrize("condition", [0.5, 0.0, -1.0, NAN, INF, "10", None])
def test_conditions(condition):
    with pytest.raises(BoundError, match=r"condition must be .*at least 1.*, got"):
        least_squares(condition=condition)


@pytest.mark.parametrize("build", [least_squares, ridge])
@pytest.mark.parametrize("radius", [0.0, -1.0, NAN, INF])
def test_radii(build, radius):
    with pytest.raises(BoundError, match="radius must be positive and finite, got"):
        build(radius=radius)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "change",
    [lambda x: 0.01 * x, lambda x: 0 * x, lambda x: x[:, :1].expand(3, 2)],
    ids=["small", "zero", "one direction"],
)
def test_eigenvalues_outside_the_range(backend, change):
    x, y, _ = data()
    with pytest.raises(
        BoundError, match=r"eigenvalues of X'X/n reach from .* holds in \[.*largest="
    ):
        least_squares(backend=backend)(change(x).contiguous(), y)


def test_eigenvalues_above_the_range():
    x, y, _ = data()
    with pytest.raises(BoundError, match="eigenvalues of X'X/n reach from"):
        least_squares(largest=0.1, condition=10.0)(x, y)


@pytest.mark.parametrize("build", [least_squares, ridge])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.8, 0.97])
def test_a_radius_that_is_too_small(build, backend, share):
    """Whether an iterate gives it away or the solution itself: the fix is the radius."""
    x, y, _ = data()
    radius = share * float(build().reference(x, y).norm())
    with pytest.raises(BoundError, match=r"radius="):
        build(radius=radius, backend=backend)(x, y)


def test_too_few_steps():
    with pytest.raises(PrecisionError, match=r"certified of 2 passes, .* leave out steps="):
        least_squares(steps=2)


def test_a_penalty_of_zero_needs_a_least_eigenvalue():
    with pytest.raises(BoundError, match=r"least eigenvalue .* must be positive; .*alpha > 0"):
        ridge(0.0)
    ridge(0.0, smallest=0.1)


@pytest.mark.parametrize("alpha", [-1.0, NAN, INF])
def test_negative_penalties(alpha):
    with pytest.raises(BoundError, match="alpha must be non-negative and finite, got"):
        ridge(alpha)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smallest": 2.0, "largest": 1.0}, "smallest eigenvalue 2 exceeds the largest 1"),
        ({"smallest": -1.0}, "smallest must be non-negative"),
        ({"largest": 0.0}, "largest must be positive"),
        ({"largest": NAN}, "largest must be positive"),
    ],
)
def test_ranges_of_eigenvalues(options, message):
    with pytest.raises(BoundError, match=message):
        ridge(**options)


# ------------------------------------------------------------------------------------- capacity

HUGE = {"dim": 50, "samples": 10**6, "eps": None, "w_bound": 4.0}


@pytest.fixture(scope="module")
def huge():
    """All samples in one prompt, petabytes; building it allocates nothing of that size."""
    return GradientDescent("squared", 2, unrolled=True, **HUGE)


def refused(action):
    """The CapacityError, and the peak of what Python allocated before it."""
    tracemalloc.start()
    try:
        with pytest.raises(CapacityError) as caught:
            action()
        return caught.value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("door", ["check_literal", "network", "digest", "save", "prompt"])
def test_a_network_that_does_not_fit_is_refused_before_anything_is_allocated(huge, door, tmp_path):
    # Views of one number: the data itself takes no memory either.
    x, y, w = (torch.zeros(1, dtype=F64).expand(*s) for s in [(10**6, 50), (10**6,), (50,)])
    actions = {
        "check_literal": lambda: huge.check_literal(torch.device("cpu")),
        "network": lambda: huge.network,
        "digest": lambda: huge.digest,
        "save": lambda: huge.save(tmp_path / "saved"),
        "prompt": lambda: huge.prompt(x, y, w),
    }
    error, peak = refused(actions[door])
    assert peak < 1 << 20, f"{peak} bytes at the peak"
    plan = huge.plan
    assert any(
        f"({count} bytes)" in str(error) for count in (plan.literal_bytes, plan.weight_bytes)
    )
    assert "use unrolled=False" in str(error) or "fewer features or samples" in str(error)
    assert not (tmp_path / "saved").exists()


def test_a_call_that_does_not_fit_names_the_bytes(huge):
    x = torch.zeros(10**6, 50, dtype=F64)
    error, peak = refused(
        lambda: huge(x, torch.zeros(10**6, dtype=F64), torch.zeros(50, dtype=F64))
    )
    assert f"({huge.plan.literal_bytes} bytes)" in str(error)
    assert f"{huge.plan.tokens} tokens" in str(error)
    assert peak < 1 << 20


def test_the_same_sizes_fit_in_a_loop():
    """Prompts of eight samples, literal or fused: nothing grows with the samples but the inputs."""
    for backend in BACKENDS:
        loop = GradientDescent("squared", 2, backend=backend, **HUGE)
        loop.check_literal(torch.device("cpu"))
        assert loop.plan.weight_bytes < 1 << 22
        assert loop.plan.literal_bytes < 1 << 28
        assert loop.plan.fused_bytes < 1 << 30
        x, y, w = (torch.zeros(1, dtype=F64).expand(*s) for s in [(10**6, 50), (10**6,), (50,)])
        prompt = loop.prompt(x, y, w)
        assert prompt.prompts == loop.plan.prompts == 125_000
        assert next(prompt.chunks()).numel() <= 1 << 22


def test_a_look_up_table_that_does_not_fit_is_refused():
    error, peak = refused(lambda: residual(torch.tanh, tokens=10**6, eps=None))
    assert "tokens" in str(error)
    assert peak < 1 << 20


# ------------------------------------------------------------------------------------- one of each

ONE = {"dim": 1, "samples": 1, "bound": 1.0, "eps": 1e-6}


def one(kind, *arguments, **fixed):
    """How to build a construction for one sample in one dimension, or as the options say."""

    def build(**options):
        return kind(*arguments, **{**ONE, **fixed, **options})

    return build


SMALLEST = {
    "residual": one(ResidualMap, torch.tanh),
    "gradients": one(SampleGradients, "logistic"),
    "step": one(GradientStep, "squared", 0.5, 0.1),
    "loop": one(GradientDescent, "squared", 4),
    "unrolled": one(GradientDescent, "squared", 4, unrolled=True),
    "nesterov": one(GradientDescent, "squared", 4, schedule="nesterov", unrolled=True),
    "least squares": one(LeastSquares, condition=2.0, radius=2.0),
    "ridge": one(RidgeRegression, 1.0, radius=2.0),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("build", SMALLEST.values(), ids=SMALLEST)
def test_one_sample_and_one_dimension(build, backend):
    emulator = build(backend=backend)
    for value in (0.8, -1.0, 1.0):
        x = torch.tensor([[value]], dtype=F64)
        y = torch.tensor([0.5 * abs(value)], dtype=F64)
        w = torch.tensor([0.25], dtype=F64)
        inputs = (x, y) if isinstance(emulator, RidgeRegression) else (x, y, w)
        out, want = emulator(*inputs), emulator.reference(*inputs)
        assert out.shape == want.shape
        off = float((out - want).abs().max())
        assert off <= emulator.certificate.error <= 1e-6, (
            f"off by {off:.3e} at x = {value}, certified {emulator.certificate.error:.3e}"
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dim", "samples"), [(1, 5), (4, 1)])
@pytest.mark.parametrize("build", SMALLEST.values(), ids=SMALLEST)
def test_one_sample_or_one_dimension(build, dim, samples, backend):
    if samples < dim and build is SMALLEST["least squares"]:
        pytest.skip("fewer samples than unknowns")
    emulator = build(dim=dim, samples=samples, backend=backend)
    x = torch.rand(samples, dim, dtype=F64) * 0.2 + 0.8
    y, w = 0.5 * torch.rand(samples, dtype=F64), 0.25 * torch.rand(dim, dtype=F64)
    inputs = (x, y) if isinstance(emulator, RidgeRegression) else (x, y, w)
    off = float((emulator(*inputs) - emulator.reference(*inputs)).abs().max())
    assert off <= emulator.certificate.error, f"off by {off:.3e}"
