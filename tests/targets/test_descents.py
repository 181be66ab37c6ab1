"""Every descent in stock models within its certificate: random data, hard data, and mutants."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import iceform as ice
from iceform import targets
from iceform.heads import Move
from iceform.targets.rounding import KernelRounding

from .stock import assert_within, data, exact, off, written

RIDGE = (
    {},
    {"lr": 0.3, "penalty": 0.2},
    {"lr": 0.2, "momentum": 0.7},
    {"lr": 0.15, "penalty": 1.5, "momentum": 0.3},
)
BENT = ({"f": "tanh(z)"}, {"f": "sigmoid(z) - 0.5", "lr": 0.8})
LOSSES = (
    {"f": "tanh(z)", "lr": 0.5, "reach": 3.0},
    {"f": "sigmoid(z) - 0.5", "lr": 1.0, "reach": 3.0},
    {"f": "0.3*sin(z)", "lr": 0.7, "reach": 3.0},  # neither monotone nor of a convex loss
)


@dataclass(frozen=True)
class Case:
    """A descent as an architecture, its settings in turn, and what it is certified to at most."""

    name: str
    spec: Any
    settings: tuple[dict[str, Any], ...]
    bound: float
    most: int = 512  # samples


SINGLE = {"dtype": "float32", "lr": 0.2, "span": 2.0}
CASES = {
    "least squares": Case("gpt2", targets.LinearDescent(3, 6, positions=520), RIDGE, 1e-9),
    "least squares, float32": Case(
        "gpt2", targets.LinearDescent(2, 8, reach=1.5, pairs=8, lr=0.25, dtype="float32"), RIDGE,
        float("inf"),
    ),
    "chebyshev": Case("gpt2", targets.LinearDescent.chebyshev(3, 5, 6.0, lr=0.4), RIDGE, 1e-9),
    "llama": Case(
        "llama", targets.LinearDescent(2, 6, reach=1.5, lr=0.25, dtype="float32"), RIDGE,
        float("inf"),
    ),
    "rotated": Case("gpt2", targets.LinearDescent(2, 4, positions=64, basis=7), RIDGE, 1e-10, 60),
    "rotated, llama": Case(
        "llama", targets.LinearDescent(2, 4, positions=64, basis=7, dtype="float32"), RIDGE,
        float("inf"), 60,
    ),
    "any f": Case("bert", targets.GeneralDescent(3, 4, positions=256), LOSSES, 1e-10, 90),
    "stochastic": Case("gpt2", targets.StochasticDescent(3, 6), BENT, 1e-10, 400),
    "stochastic, llama": Case(
        "llama", targets.StochasticDescent(2, 4, **SINGLE), BENT, 2e-4, 400
    ),
    "causal": Case("gpt2", targets.CausalDescent(2, 2, samples=3), BENT, 1e-11, 3),
    "causal, llama": Case("llama", targets.CausalDescent(2, 2, samples=3, **SINGLE), BENT, 1e-4, 3),
}  # fmt: skip
BOUNDED = [name for name, case in CASES.items() if case.settings != RIDGE]


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(scope="module")
def stock(case, tmp_path_factory):
    return written(case.name, case.spec, tmp_path_factory.mktemp("descent"))


def problem(case, seed, most=32):
    """Data of many sizes, every third in corners, and settings in turn; steps in any order."""
    n = 1 + seed * 7 % min(most, case.most)
    x, y = data(n, seed, case.spec.dim)
    if seed % 3 == 0:
        x = torch.where(x >= 0, 1.0, -1.0).double() / (1 if case.settings != RIDGE else 2)
    given = dict(case.settings[seed % len(case.settings)])
    if type(case.spec) is targets.StochasticDescent:
        given["order"] = torch.randint(n, (case.spec.steps,)).tolist()
    return x, y, given


@pytest.mark.parametrize("seeds", [16, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_data(case, stock, seeds):
    for seed in range(seeds):
        x, y, given = problem(case, seed)
        certified, _ = assert_within(*stock, x, y, **given)
        assert certified <= case.bound


def test_any_number_of_samples_with_the_same_weights(case, stock):
    model, networks = stock
    digest = targets.attest(model, networks["eager"]).weights
    for n in sorted({1, 2, case.most}):
        assert_within(model, networks, *data(n, n, case.spec.dim), **case.settings[0])
    assert targets.attest(model, networks["eager"]).weights == digest


def hard_data(dim, n):
    """Data that strain one term of an account each."""
    sign = torch.ones(n, dtype=torch.float64)
    sign[::2] = -1
    ones = torch.ones(n, dim, dtype=torch.float64)
    line = torch.linspace(-1, 1, n, dtype=torch.float64)
    yield ones, sign  # one direction
    yield ones - 0.01 * torch.rand(n, dim).double(), torch.ones(n).double()  # far off the mean
    yield sign[:, None] * ones, sign
    yield ones[:1], sign[:1]
    yield line[:, None] * ones, 0 * sign  # nothing in y
    yield 0 * ones, sign  # nothing in x
    yield 1e-9 * line[:, None] * ones, 1e-9 * sign
    yield line[:, None] * ones, 6 * sign  # large labels
    yield torch.cat([3 * ones[:1], 0.01 * ones[1:]]), sign  # one that leads
    yield torch.stack([line**k for k in range(dim)], 1), line**5  # nearly dependent


def test_hard_data(case, stock):
    """What is certified holds; what is too much for the reach is not certified at all."""
    certified = 0
    for x, y in hard_data(case.spec.dim, min(12, case.most)):
        for lr in (0.01, 0.15, 0.3):
            if stock[0].certificate(x, y, lr=lr).error < float("inf"):
                assert_within(*stock, x, y, lr=lr)
                certified += 1
    assert certified >= 12


def test_the_certificate_has_teeth(case, tmp_path):
    """A map that is off in its seventh digit, of float32 in its third, is seen in the answer."""
    model, networks = written(case.name, case.spec, tmp_path)
    network = networks["eager"]
    layer = len(case.spec.design.layers) // 2
    names = model.architecture.names
    wanted = f"{names.layer.format(layer)}{names.back}.weight"
    x, y = data(min(8, case.most), 4, case.spec.dim)
    with torch.no_grad():
        dict(network.named_parameters())[wanted].mul_(
            1 + (1e-7 if case.spec.dtype == "float64" else 1e-2)
        )
    given = case.settings[0]
    assert off(model, network, x, y, **given) > model.certificate(x, y, **given).error


# ------------------------------------------------------------------------------- what is certified


@pytest.mark.parametrize("kind", ["least squares", "chebyshev"])
def test_what_is_certified_in_float64(kind):
    spec = CASES[kind].spec
    assert spec.certificate(spec.example_domain(), lr=1 / spec.dim).error <= 1e-10


def test_what_is_certified_in_float32(tmp_path):
    case = CASES["least squares, float32"]
    model, networks = written(case.name, case.spec, tmp_path)
    bent = CASES["stochastic, llama"].spec
    for n in (8, 32):
        certified, measured = assert_within(model, networks, *data(n, n))
        assert certified <= 5e-5
        assert measured <= 2e-6
        assert bent.certificate(bent.domain(*data(n, n))).error <= 1e-4


def test_five_hundred_samples_are_measured_to_the_last_digits(tmp_path_factory):
    case = CASES["least squares"]
    model, networks = written(case.name, case.spec, tmp_path_factory.mktemp("many"))
    certified, measured = assert_within(model, networks, *data(512, 1, 3), lr=0.5)
    assert certified <= 1e-10
    assert measured <= 1e-13


GROUPED = {
    "gpt2": targets.LinearDescent(2, 6, reach=2.0, lr=0.2, dtype="float32", groups=4),
    "bert": targets.GeneralDescent(
        2, 2, positions=1088, dtype="float32", groups=8, lr=0.125, reach=1.5
    ),
}


@pytest.mark.parametrize("name", GROUPED)
def test_groups_certify_hundreds_of_samples_in_float32(name, tmp_path_factory):
    model, networks = written(name, GROUPED[name], tmp_path_factory.mktemp(name))
    for n in (1, 3, 30, 512):  # fewer than groups, not the same in all, many
        certified, _ = assert_within(model, networks, *data(n, n))
        assert certified <= 1e-4
    alone = replace(model.spec, groups=1)
    assert alone.certificate(alone.domain(*data(512, 512))).error > 1e-4


def test_a_step_that_is_too_long_is_certified_as_it_is(tmp_path):
    case = CASES["least squares"]
    model, networks = written(case.name, case.spec, tmp_path)
    x, y = data(20, 1, model.spec.dim)
    top = model.spec.domain(x, y).top
    assert_within(model, networks, x, y, lr=2.2 / top / max(model.spec.schedule))


@pytest.mark.parametrize("name", BOUNDED)
def test_residuals_beyond_the_tables_are_not_certified(name):
    spec = CASES[name].spec
    x, y = data(min(10, CASES[name].most), 5, spec.dim)
    far = 3.5 * torch.where(y >= 0, 1.0, -1.0).double()
    assert spec.certificate(spec.domain(x, far)).error == float("inf")


# ------------------------------------------------------------------------------- the algorithms


def test_the_reference_is_the_algorithm_it_says():
    """Of least squares, against plain float64 descent, written again."""
    spec = targets.LinearDescent(3, 6, factors=(1.0, 0.5, 2.0, 1.0, 0.25, 1.0))
    x, y = data(15, 2, 3)
    w = v = torch.zeros(3, dtype=torch.float64)
    for rho in spec.schedule:
        gradient = x.T @ (x @ w - y) / 15 + 0.4 * w
        v = 0.6 * v - rho * 0.3 * gradient
        w = w + v
    found = spec.reference(x, y, lr=0.3, penalty=0.4, momentum=0.6)
    assert float((found - w).abs().max()) < 1e-14


@pytest.mark.parametrize("name", ["any f", "causal", "stochastic"])
def test_the_reference_of_any_f_is_the_algorithm_it_says(name):
    spec = CASES[name].spec
    x, y = data(3, 1, spec.dim)
    w = torch.zeros(spec.dim, dtype=torch.float64)
    for t in range(spec.steps):
        each = [t % 3] if name == "stochastic" else range(3)
        w = w - spec.lr * sum(torch.tanh(x[i] @ w - y[i]) * x[i] for i in each) / len(each)
    assert float((spec.reference(x, y) - w).abs().max()) <= 1e-15


def test_samples_may_come_in_any_order(tmp_path):
    case = CASES["least squares"]
    model, networks = written(case.name, case.spec, tmp_path)
    x, y = data(20, 9, model.spec.dim)
    order = torch.randperm(20)
    certified = model.certificate(x, y).error
    assert float((exact(model, x, y) - exact(model, x[order], y[order])).abs().max()) < 1e-14
    assert off(model, networks["eager"], x[order], y[order]) <= certified


def test_the_order_of_single_samples_is_in_the_prompt():
    spec = CASES["stochastic"].spec
    x, y = data(5, 3, spec.dim)
    there = [i % 5 for i in range(spec.steps)]
    one, other = (spec.reference(x, y, order=order) for order in (there, there[::-1]))
    assert float((one - other).abs().max()) > 1e-3


def test_another_table_is_another_answer(tmp_path):
    """The network computes with the table in its prompt, not with what we say about it."""
    case = CASES["any f"]
    model, networks = written(case.name, case.spec, tmp_path)
    x, y = data(12, 3, 3)
    given = {"lr": 0.5, "reach": 3.0}
    right = exact(model, x, y, f="tanh(z)", **given)
    with torch.no_grad():
        hidden = networks["eager"](inputs_embeds=model.prompt(x, y, f="sigmoid(z) - 0.5", **given))
    assert float((model.read(hidden.last_hidden_state) - right).abs().max()) > 1e-3


def test_a_program_is_written_and_checked(tmp_path):
    @ice.algorithm
    def bent(x, y, *, lr=0.5, steps=2):
        w = ice.zeros_like(x)
        for _ in ice.repeat(steps):
            w = w - lr * ice.mean(x * torch.tanh((x * w).sum() - y))
        return w

    program = ice.compile(bent, dim=2, samples=3)
    with pytest.raises(ice.errors.TargetError, match="a causal mask hides the state"):
        program.to("gpt2", tmp_path / "no")
    with pytest.raises(ice.errors.TargetError, match="causal_descent"):
        program.to("bert", tmp_path / "no", mode="full_batch")
    written = program.to("gpt2", tmp_path / "bent", mode="full_batch")
    x, y = data(3, 4)
    for settings in ({}, {"lr": 0.25}):
        checked = written.check(x, y, **settings)
        assert checked.ok, checked
    assert ice.check(tmp_path / "bent", x, y, f="tanh(z)", lr=0.5).ok
    with pytest.raises(ice.errors.PrecisionError, match="nothing is certified for these data"):
        ice.check(tmp_path / "bent", x, 9 * y.sign(), f="tanh(z)", lr=0.5)


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"lr": 0.0}, ice.errors.BoundError, "lr must be positive"),
        ({"lr": 2.0, "penalty": 0.6}, ice.errors.BoundError, "below 1"),
        ({"momentum": 1.0}, ice.errors.BoundError, "below 1"),
        ({"rate": 0.1}, ice.errors.ProgramError, "no parameter is called 'rate'"),
    ],
)
def test_parameters_that_cannot_be_are_refused(given, error, words):
    with pytest.raises(error, match=words):
        CASES["least squares"].spec.tokens(*data(4, 0, 3), **given)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 2, 3, 4, 9], [-1] * 6, 3, [0.5] * 6, "012340"])
def test_an_order_that_is_none_is_refused(order):
    with pytest.raises(ice.errors.ShapeError, match="order must name 6 of the samples 0 to 4"):
        CASES["stochastic"].spec.tokens(*data(5, 0, 3), order=order)


def test_data_that_do_not_fit_are_refused():
    spec = targets.LinearDescent(3, 2, positions=8)
    x, y = data(7, 0, 3)
    with pytest.raises(ice.errors.ShapeError, match="1 to 6 samples"):
        spec.tokens(x, y)
    with pytest.raises(ice.errors.ShapeError, match=r"X must be \(n, 3\)"):
        spec.tokens(x[:5, :2], y[:5])
    with pytest.raises(ice.errors.BoundError, match="NaN"):
        spec.tokens(x[:5] * float("nan"), y[:5])
    with pytest.raises(ice.errors.DtypeError, match="floating-point"):
        spec.tokens(x[:5].long(), y[:5])
    with pytest.raises(
        ice.errors.ShapeError, match=r"4 samples .* turns for 3; write .* samples=4"
    ):
        CASES["causal"].spec.tokens(*data(4, 0))


@pytest.mark.parametrize("name", ["least squares", "any f", "stochastic", "causal", "decoder"])
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda x, y: (x[:0], y[:0]), ice.errors.ShapeError, "at least one sample"),
        (lambda x, y: (x[0], y), ice.errors.ShapeError, r"X must be \(n, "),
        (lambda x, y: (x[None], y[None]), ice.errors.ShapeError, r"X must be \(n, "),
        (lambda x, y: (x[:, :1], y), ice.errors.ShapeError, r"X must be \(n, "),
        (lambda x, y: (x, y[:2]), ice.errors.ShapeError, r"X must be \(n, "),
        (lambda x, y: (x, y[:, None]), ice.errors.ShapeError, r"X must be \(n, "),
        (lambda x, y: (x.to_sparse(), y), ice.errors.DtypeError, "to_dense"),
        (lambda x, y: (x, y * float("nan")), ice.errors.BoundError, "y holds NaN"),
        (lambda x, y: (x.numpy(), y), ice.errors.DtypeError, "X must be a torch tensor"),
    ],
)
def test_a_domain_is_refused_the_data_that_a_prompt_is(name, change, error, words):
    spec = targets.AnsweringDescent(2, 2) if name == "decoder" else CASES[name].spec
    x, y = change(*data(3, 0, spec.dim))
    for asked in (spec.domain, spec.prompt):
        with pytest.raises(error, match=words):
            asked(x, y)


@pytest.mark.parametrize("name", ["least squares", "any f", "stochastic", "causal"])
@pytest.mark.parametrize("size", [1e160, 1e300])
def test_data_whose_squares_are_beyond_float64_are_not_certified(name, size):
    spec = CASES[name].spec
    for d in {1, spec.dim}:
        spec = replace(spec, dim=d)
        x, y = data(3, 0, d)
        for known in (spec.domain(x * size, y), replace(spec.domain(x, y), rows=size)):
            assert spec.certificate(known).error == float("inf")


def test_numbers_that_no_level_stands_for_are_refused():
    spec = targets.AnsweringDescent(2, 2, bound=2.0)
    x, y = data(3, 0)
    for given in ((1e300 * x, y), (x, y + 2.1)):
        with pytest.raises(ice.errors.BoundError, match="tokens stand for numbers up to 2"):
            spec.prompt(*given)
    with pytest.raises(ice.errors.BoundError, match=r"max \|query\| is 3"):
        spec.prompt(x, y, query=torch.tensor([3.0, 0.0]))
    with pytest.raises(ice.errors.DtypeError, match="query must be a torch tensor"):
        spec.prompt(x, y, query=[1.0, 0.0])
    assert spec.levels.nearest(torch.tensor([1e300, -1e300])).tolist() == [2.0, -2.0]


@pytest.mark.parametrize("padding", [-1, 0.5, True, None, "x", float("inf")])
def test_padding_is_a_number_of_tokens(padding):
    spec = CASES["least squares"].spec
    for asked in (spec.domain, spec.prompt):
        with pytest.raises(ice.errors.ShapeError, match="padding is a whole number of tokens"):
            asked(*data(4, 0, 3), padding=padding)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (targets.LinearDescent, {"dim": 1.5}), (targets.LinearDescent, {"positions": "many"}),
        (targets.LinearDescent, {"factors": 3}), (targets.LinearDescent, {"basis": True}),
        (targets.LinearDescent, {"copies": None}), (targets.GeneralDescent, {"dtype": None}),
        (targets.AnsweringDescent, {"bound": "wide"}), (targets.AnsweringDescent, {"step": None}),
    ],
)  # fmt: skip
def test_a_field_that_holds_something_else_is_named(kind, wrong):
    (name,) = wrong
    with pytest.raises(ice.errors.ParameterError, match=f"{kind.__name__}: {name} is .*, not "):
        kind(**{"dim": 2, "steps": 2, **wrong})


def test_a_dtype_that_is_none_is_refused():
    with pytest.raises(ice.errors.DtypeError, match="got 'float6'"):
        targets.StochasticDescent(2, 2, dtype="float6")


def test_coefficients_that_tokens_hold_too_differently_are_not_certified():
    """The bound of what that does to a look-up is none where logits may be off by one."""
    spec = targets.GeneralDescent(2, 400, dtype="float32", lr=1e-4)
    account = spec.account(spec.domain(*data(3, 0)), KernelRounding(torch.float32))
    assert account.parts()["look-ups"] == float("inf")


def test_architectures_and_functions_that_cannot_be_are_refused(tmp_path):
    for name, kind, why in (
        ("llama", "least squares", "computes its norms and its softmax in float32"),
        ("gpt2", "any f", "a causal mask hides the state from the samples"),
    ):
        with pytest.raises(ice.errors.TargetError, match=why):
            targets.write(name, CASES[kind].spec, tmp_path / "no")
    assert not (tmp_path / "no").exists()
    with pytest.raises(ice.IceformError):
        CASES["any f"].spec.tokens(*data(4, 0, 3), f="1/z")


# ------------------------------------------------------------------------------------- mutants


def _rewritten(design, role, change):
    layers = tuple(
        tuple(change(head) if head.role.startswith(role) else head for head in layer)
        for layer in design.layers
    )
    return replace(design, layers=layers)


def _moves(change):
    """A mutant of where a head writes."""
    return lambda head: replace(
        head, moves=tuple(Move(m.value, change(m.writes)) for m in head.moves)
    )


MUTANTS = {
    "the register is kept": (
        "add the gradient", _moves(lambda into: {k: c for k, c in into.items() if k[0] == "w"}),
    ),
    "uphill": ("add the gradient", _moves(lambda into: {k: -c for k, c in into.items()})),
    # One sample after the other moves w: stochastic descent, not full batch.
    "w moves with every sample": (
        "step", _moves(lambda into: {("w", k): c for (_, k), c in into.items()}),
    ),
    "half is not taken away": ("step, weight 1/2", lambda head: replace(head, moves=())),
    "z and o are not erased": ("erase", lambda head: replace(head, moves=())),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_leave_the_certificate(name, tmp_path):
    class Mutant(targets.CausalDescent):
        kind = f"mutant {name}"

        @property
        def design(self):
            return _rewritten(super().design, *MUTANTS[name])

    spec = CASES["causal"].spec
    assert len(spec.design.layers) == (3 * spec.samples + 1) * spec.steps
    model, networks = written("gpt2", Mutant(2, 2, samples=3), tmp_path)
    x, y = data(3, 2)
    certified = spec.certificate(spec.domain(x, y)).error
    assert off(model, networks["sdpa"], x, y) > 1e3 * certified
