"""One two-layer network, many algorithms by prompts: one digest, answers within the certificate."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
import torch

from iceform.errors import (
    BoundError,
    DtypeError,
    IceformError,
    IntegrityError,
    PrecisionError,
    ProgramError,
    ShapeError,
)
from iceform.expressions import LOSSES, Loss, ScalarFunction, loss_named
from iceform.expressions.losses import register
from iceform.heads import unchecked
from iceform.paper.library import (
    ComponentPrompts,
    DescentPrompts,
    HeadPrompts,
    HopfieldPrompts,
    KernelPrompts,
    PromptLibrary,
    RidgePrompts,
    standard_algorithms,
)
from tests.conformance import assert_within
from tests.paper.exact_library import measured

DIM, SAMPLES = 3, 8
ROUNDED = 1e-14
F64 = torch.float64
STANDARD = standard_algorithms()
SMALL = {
    "descent": DescentPrompts("squared", 3, l2=0.1, w_bound=2.0),
    "logistic": DescentPrompts("logistic", 3, l2=0.5, w_bound=2.0, tokens=17),
    "ridge": RidgePrompts(tol=1e-6),
    "kernel": KernelPrompts(2.0, queries=4),
    "components": ComponentPrompts(2),
    "hopfield": HopfieldPrompts(steps=2),
    "head": HeadPrompts(*(torch.linspace(-1, 1, 4, dtype=F64).reshape(2, 2) for _ in range(3))),
}


@pytest.fixture(scope="module")
def library():
    return PromptLibrary(DIM, SAMPLES)


def small_library(backend="auto", dtype=F64, **options):
    return PromptLibrary(
        2, 4, algorithms=list(SMALL.values()), backend=backend, dtype=dtype, **options
    )


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(SAMPLES, DIM, generator=generator, dtype=F64) - 1
    noise = 0.05 * torch.randn(SAMPLES, generator=generator, dtype=F64)
    return x, (x @ torch.tensor([0.5, -0.3, 0.2], dtype=F64) + noise).clamp(-1, 1)


def labels_for(algorithm, x, y):
    if isinstance(algorithm, HopfieldPrompts):
        return 0.9 * x[2]
    if isinstance(algorithm, HeadPrompts | ComponentPrompts):
        return None
    kind = Loss.of(algorithm.loss).kind if isinstance(algorithm, DescentPrompts) else ""
    return {"margin": torch.where(y > 0, 1.0, -1.0).to(y), "glm": (y > 0).to(y)}.get(kind, y)


def small_data(name, dtype=F64):
    x, y = (part.to(dtype) for part in data())
    x, y = x[:4, :2], y[:4]
    return x, labels_for(SMALL[name], x, y)


# --------------------------------------------------------------------------------------- answers


@pytest.mark.sampled(4)
@pytest.mark.parametrize("algorithm", STANDARD, ids=lambda a: a.label)
def test_every_algorithm_is_within_its_certificate_on_one_digest(library, algorithm):
    assert len(STANDARD) >= 12
    x, y = data()
    labels = labels_for(algorithm, x, y)
    result = library.run(algorithm, x, labels)
    assert result.digest == library.digest
    assert result.attestation.ok
    assert result.passes >= 1
    exact = algorithm.reference(x, labels)
    assert_within(result.value, exact, result.certificate.error + ROUNDED, algorithm.label)
    if result.enclosure is not None:
        assert_within(result.value, exact, result.enclosure.error + ROUNDED, algorithm.label)
        assert result.enclosure.error <= result.certificate.error


@pytest.mark.parametrize("off", [1e-9, 1e-7, -1e-8])
def test_errors_grow_where_the_loss_is_concave(off):
    descent = DescentPrompts(lambda z: torch.sin(4 * z), steps=10, lr=1.0, eps=1e-6)
    x, y = torch.ones(1, 1, dtype=F64), torch.tensor([off - math.pi / 4], dtype=F64)
    result = PromptLibrary(1, 1, algorithms=[descent]).run(descent, x, y)
    assert result.certificate.kind == "proven"
    assert_within(result.value, descent.reference(x, y), result.certificate.error, f"{off:g}")


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_patterns_of_signs_are_retrieved(dtype):
    patterns = torch.tensor([[1.0, 1, 1, 1], [-1, 1, 1, -1], [1, -1, 1, 1]], dtype=dtype)
    memory = HopfieldPrompts(beta=8.0, steps=3)
    library = PromptLibrary(4, 3, algorithms=[memory], dtype=dtype)
    for state in (patterns[0], torch.tensor([0.5, 0.4, 1.0, 0.2], dtype=dtype)):
        result = library.run(memory, patterns, state)
        exact = memory.reference(patterns, state)
        assert_within(result.value, exact, result.certificate.error, str(dtype))


def test_padding_takes_no_part_in_a_head_whose_logits_are_beyond_the_class():
    ones = torch.full((30, 2), 0.85, dtype=F64)
    head = HeadPrompts(-ones, ones, torch.ones(1, 2, dtype=F64))
    library = PromptLibrary(2, 6, algorithms=[head, DescentPrompts("squared", 2, w_bound=6.0)])
    x = torch.full((3, 2), 6.0, dtype=F64)
    with pytest.raises(BoundError, match="scale the tokens"):
        library.run(head, x)
    target = head.target(x, None)
    values, error = library.attend(target)
    assert_within(values, target.exact(), error, "what padding takes away is in the bound")


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("name", SMALL)
def test_bounds_hold_in_balls(name, dtype):
    x, y = small_data(name, dtype)
    result = small_library(dtype=dtype).run(SMALL[name], x, y)
    off = measured(SMALL[name], result, x, y)
    assert off <= result.certificate.error
    assert result.enclosure is None or off <= result.enclosure.error


def test_every_loss_is_descended_and_enclosed_where_it_can_be(library):
    x, y = data()
    assert {Loss.of(a.loss).name for a in STANDARD if isinstance(a, DescentPrompts)} == set(LOSSES)
    result = library.run(
        DescentPrompts("logistic", 5, l2=0.5, w_bound=2.0, tokens=33), x, (y > 0).to(y)
    )
    assert result.enclosure is not None
    assert result.enclosure.error < 1e-8


def test_solvers_agree_with_the_closed_form(library):
    x, y = data()
    result = library.run(RidgePrompts(alpha=1.0), x, y)
    want = torch.linalg.solve(x.T @ x + torch.eye(DIM, dtype=F64), x.T @ y)
    assert_within(result.coef, want, result.enclosure.error + ROUNDED, "ridge")
    assert_within(result.predict(x), x @ want, 1e-8, "predictions")


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_ridge_is_enclosed_to_the_last_digit(alpha):
    """One feature, in fractions: the enclosure holds, and is not loose by orders of magnitude."""
    algorithm = RidgePrompts(alpha, tol=1e-13)
    network = PromptLibrary(1, 2, algorithms=[algorithm])
    g, worst = torch.Generator().manual_seed(int(alpha)), 0.0
    for _ in range(40):
        x, y = 1 - torch.rand(2, 1, generator=g).double() / 2, torch.rand(2, generator=g).double()
        xs, ys = ([Fraction(v) for v in values.tolist()] for values in (x[:, 0], y))
        exact = sum(a * b for a, b in zip(xs, ys, strict=True))
        exact /= sum(a * a for a in xs) + Fraction(alpha)
        result = network.run(algorithm, x, y)
        off = abs(Fraction(float(result.value[0])) - exact)
        assert off <= Fraction(result.enclosure.error)
        assert off <= Fraction(result.certificate.error)
        worst = max(worst, float(off) / result.enclosure.error)
    assert worst > 1e-3


def leading_exactly(x):
    """The leading eigenvector of the 2 x 2 covariance, to fifty digits."""
    columns = [[Decimal(v) for v in column] for column in x.mT.tolist()]
    columns = [[v - sum(column) / len(column) for v in column] for column in columns]
    a, b, c = (
        sum(p * q for p, q in zip(columns[i], columns[j], strict=True))
        for i, j in ((0, 0), (0, 1), (1, 1))
    )
    top = ((a + c) + ((a - c) ** 2 + 4 * b * b).sqrt()) / 2
    length = (b**2 + (top - a) ** 2).sqrt()
    return [b / length, (top - a) / length]


@pytest.mark.parametrize("size", [1.0, 2.0**-12, 2.0**-27, 2.0**-40])
def test_components_are_certified_to_the_last_digit(size):
    """Also of samples that are far below what look-ups leave: then the bound may be infinite."""
    network = PromptLibrary(2, 6, algorithms=[ComponentPrompts()])
    g = torch.Generator().manual_seed(0)
    bounded = 0
    for _ in range(10):
        x = 2 * torch.rand(6, 2, generator=g).double() - 1
        x = x * torch.tensor([1.0, 0.3], dtype=F64) * size
        result = network.run(ComponentPrompts(), x)
        bounded += result.certificate.error < 1e-2
        with localcontext() as context:
            context.prec = 60
            exact, found = leading_exactly(x), [Decimal(v) for v in result.value[0].tolist()]
            sign = 1 if sum(p * q for p, q in zip(exact, found, strict=True)) > 0 else -1
            off = max(abs(p - sign * q) for p, q in zip(found, exact, strict=True))
            assert off <= Decimal(result.certificate.error)
    assert bounded or size < 2.0**-20


def test_all_components_and_their_variances(library):
    x, _ = data()
    result = library.run(ComponentPrompts(DIM), x)
    _, sizes, vt = torch.linalg.svd(x - x.mean(0))
    assert_within((result.value * vt).sum(1).abs(), torch.ones(DIM), 1e-9, "components")
    variances = sizes.square() / (SAMPLES - 1)
    assert_within(result.parts["explained_variance"], variances, 1e-9, "variances")
    twice = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=F64)
    equal = PromptLibrary(2, 4, algorithms=[ComponentPrompts()]).run(ComponentPrompts(), twice)
    assert equal.certificate.error == math.inf, "two variances agree: no direction is the leading"


def test_kernel_regression_answers_new_points(library):
    x, y = data()
    algorithm = KernelPrompts(2.0)
    points = 2 * torch.rand(40, DIM, dtype=F64) - 1
    got = library.run(algorithm, x, y).predict(points)
    assert_within(got, algorithm.exact(x, y, points), 1e-8, "kernel average")


@pytest.mark.parametrize("bandwidth", [0.1, 0.3, 1.0])
def test_query_points_never_read_each_other(bandwidth):
    """Queries at the corners, samples at the opposite ones: the margin's worst case."""
    algorithm = KernelPrompts(1 / (2 * bandwidth**2), queries=8)
    network = PromptLibrary(2, 4, algorithms=[algorithm])
    x = -torch.ones(4, 2, dtype=F64)
    y, points = torch.ones(4, dtype=F64), torch.ones(8, 2, dtype=F64)
    assert_within(network.run(algorithm, x, y).predict(points), torch.ones(8), 1e-8, "all ones")


def test_an_arbitrary_head(library):
    """Any head that fits, on the same weights as everything else."""
    x, _ = data()
    weights = [torch.randn(r, DIM, dtype=F64) for r in (4, 4, 2)]
    head = HeadPrompts(*weights)
    result = library.run(head, x)
    k, q, v = (x @ w.T for w in weights)
    for w in weights:
        w.zero_()  # what was given is copied
    want = torch.softmax(q @ k.T, -1) @ v
    assert_within(result.value, want, result.enclosure.error + ROUNDED, "head")
    assert_within(library.run(head, x).value, want, result.certificate.error + ROUNDED, "again")
    assert result.digest == library.digest


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_literal_and_fused_agree_within_their_certificates(name, dtype):
    x, y = small_data(name, dtype)
    literal, fused = (small_library(b, dtype).run(SMALL[name], x, y) for b in ("literal", "fused"))
    assert dtype != F64 or literal.digest == fused.digest
    off = float((literal.value - fused.value).abs().max())
    assert off <= literal.certificate.error + fused.certificate.error
    exact = SMALL[name].reference(x, y)
    rounded = 8 * torch.finfo(F64).eps
    assert_within(fused.value.double(), exact, fused.certificate.error + rounded, name)
    assert (literal.certificate.backend, fused.certificate.backend) == ("literal", "fused")


def test_a_prompt_is_what_the_network_reads():
    network, algorithm = small_library("literal"), SMALL["descent"]
    x, y = small_data("descent")
    target = algorithm.target(x, y)
    out, error = network.attend(target)
    tokens = network.prompt(algorithm, x, y).tokens
    assert tokens.shape == (network.plan.tokens, network.plan.features)
    rows = network.network(tokens)[network.padded(target).queries, : out.shape[1]]
    assert torch.equal(rows, out)
    assert_within(out, target.exact(), error, "the first pass")
    trace = network.trace(algorithm, x, y)
    assert float((trace.output - network.network(tokens)).abs().max()) <= 1e-13


def test_smaller_data_runs_on_a_larger_network(library):
    x, y = data()
    result = library.run(RidgePrompts(), x[:5, :2], y[:5])
    exact = RidgePrompts().reference(x[:5, :2], y[:5])
    assert_within(result.value, exact, result.certificate.error + ROUNDED, "ridge")


def test_a_loss_of_ones_own_is_another_prompt():
    @register("cosh")
    def cosh(width: float = 1.0) -> Loss:
        return Loss("cosh", "residual", ScalarFunction(lambda z: torch.sinh(z / width), "sinh"))

    try:
        descent = DescentPrompts(loss_named("cosh", width=2.0), 3, w_bound=1.0, tokens=17)
        x, y = small_data("descent")
        found = PromptLibrary(2, 4, algorithms=[descent]).run(descent, x, y)
        assert_within(found.value, descent.reference(x, y), found.certificate.error, "cosh")
    finally:
        del LOSSES["cosh"]


def test_a_result_is_of_the_data_as_they_were():
    network = small_library()
    for name in ("kernel", "ridge"):
        x, y = (part.clone() for part in small_data(name))
        found, points = network.run(SMALL[name], x, y), x[:2].clone()
        before, moved = found.predict(points), found.without_attention()
        x.zero_()
        y.zero_()
        assert torch.equal(found.predict(points), before)
        assert found.without_attention() == moved


# ------------------------------------------------------------------------------------ weights run


@pytest.mark.parametrize("factor", [math.nan, 0.8])
@pytest.mark.parametrize("backend", ["literal", "auto"])
@pytest.mark.parametrize("name", SMALL)
def test_changed_weights_are_refused_and_change_every_answer_where_they_run(name, backend, factor):
    network, (x, y) = small_library(backend), small_data(name)
    before = network.run(SMALL[name], x, y).value
    network.network.layers[1].w_v.data[..., 0, :].mul_(factor)
    with pytest.raises(IntegrityError, match="weights were changed"):
        network.run(SMALL[name], x, y)
    with unchecked():
        try:
            after = network.run(SMALL[name], x, y).value
        except (IceformError, torch.linalg.LinAlgError):
            assert math.isnan(factor), "only what is no number is refused"
            return
    assert not float((after - before).abs().max()) <= 1e-3 * float(before.abs().max())


@pytest.mark.parametrize("name", SMALL)
def test_attention_computes_the_answer(name):
    x, y = small_data(name)
    result = small_library().run(SMALL[name], x, y)
    assert result.without_attention() > 1e-3 * float(result.value.abs().max())
    assert {where for where, _, _ in result.ledger} >= {"prompt", "attention"}
    assert "because" in result.explain()


def test_rows_run_again_are_counted():
    x, y = small_data("hopfield")
    result = small_library().run(SMALL["hopfield"], x, y)
    assert result.attestation.rows > 0
    assert ("attention", "prompts through the frozen network", 2) in result.ledger.entries


# --------------------------------------------------------------------------------------- borders


def test_what_does_not_fit_says_which_size_is_short(library):
    x, y = data()
    with pytest.raises(ProgramError, match=r"does not fit this network: .*head_dim \(needs 90"):
        library.run(HeadPrompts(*(torch.ones(90, DIM).double() for _ in range(3))), x)
    wide = torch.zeros(SAMPLES, 40, dtype=F64)
    with pytest.raises(ProgramError, match=r"features \(needs"):
        library.run(RidgePrompts(), wide, y)
    heavy = HeadPrompts(*(1e6 * torch.ones(2, DIM).double() for _ in range(3)))
    with pytest.raises(ProgramError, match=r"weight_bound \(needs"):
        library.run(heavy, x)
    bad = HeadPrompts(*(torch.full((2, DIM), torch.nan).double() for _ in range(3)))
    with pytest.raises(ProgramError, match=r"weight_bound \(needs nan"):
        library.run(bad, x)
    with pytest.raises(ProgramError, match=r"count = 4 exceeds min\(samples, dim\) = 3"):
        library.run(ComponentPrompts(4), x)


def test_bad_input_is_refused_before_a_pass(library):
    x, y = data()
    with pytest.raises(ProgramError, match="not an algorithm of prompts: 'ridge'"):
        library.run("ridge", x, y)
    with pytest.raises(ProgramError, match="needs labels"):
        library.run(RidgePrompts(), x)
    with pytest.raises(BoundError, match="NaN"):
        library.run(RidgePrompts(), x * torch.nan, y)
    with pytest.raises(DtypeError, match="float64"):
        library.run(RidgePrompts(), x.float(), y.float())
    with pytest.raises(BoundError, match="no unique solution"):
        library.run(RidgePrompts(0.0), torch.ones_like(x), y)
    with pytest.raises(ProgramError, match="at least one algorithm"):
        PromptLibrary(2, 3, algorithms=[])
    with pytest.raises(ShapeError, match=r"y must have shape \(\*batch, 8\), got \(5,\)"):
        library.run(RidgePrompts(), x, y[:5])
    with pytest.raises(ShapeError, match=r"y must have shape \(\*batch, 3\)"):
        library.run(HopfieldPrompts(), x, y)
    with pytest.raises(BoundError, match=r"max \|y\| is NaN"):
        library.run(KernelPrompts(2.0), x, y * torch.nan)


def test_data_outside_the_stated_domain_are_refused(library):
    x, y = data()
    with pytest.raises(BoundError, match=r"max \|x\| is .* scale the samples"):
        library.run(KernelPrompts(2.0), 1.5 * x / x.abs().max(), y)
    with pytest.raises(BoundError, match=r"predict inside \[-1, 1\]"):
        library.run(KernelPrompts(2.0), x, y).predict(2 * torch.ones_like(x))
    with pytest.raises(BoundError, match="scale the state"):
        library.run(HopfieldPrompts(), x, 2 * torch.ones(DIM, dtype=F64))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DescentPrompts(steps=0),
        lambda: DescentPrompts(lr=-1.0),
        lambda: DescentPrompts(schedule="adam"),
        lambda: DescentPrompts(l2=math.nan),
        lambda: RidgePrompts(-1.0),
        lambda: KernelPrompts(0.0),
        lambda: KernelPrompts(queries=0),
        lambda: ComponentPrompts(0),
        lambda: HopfieldPrompts(math.inf),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(IceformError):
        make()


def test_a_pass_that_does_not_hold_eps_is_refused():
    x, y = small_data("ridge")
    strict = small_library(eps=1e-18)
    with pytest.raises(PrecisionError, match="not to the library's eps = 1e-18") as caught:
        strict.run(SMALL["ridge"], x, y)
    assert caught.value.best is not None
    assert small_library(eps=1e-3).run(SMALL["ridge"], x, y).converged


# ----------------------------------------------------------------------------------------- files


def test_save_and_load(tmp_path):
    network = small_library()
    again = PromptLibrary.load(network.save(tmp_path / "library"))
    assert again.digest == network.digest
    assert again.sizes == network.sizes
    for name in ("ridge", "kernel"):
        x, y = small_data(name)
        ours, theirs = (n.run(SMALL[name], x, y).value for n in (network, again))
        assert torch.equal(ours, theirs)
    weights = tmp_path / "library" / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-3] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(IntegrityError):
        PromptLibrary.load(tmp_path / "library")


# Digests of version 2's machine in rows: the same weights to the bit.
PINNED = {
    "standard": "94cd9287ec1723539c2d9f4029f569b6ea6e49ad5ce254991691f645ddfcc4fc",
    "ridge": "25deef6327fda1e1b359277cbe65f57a795231ff19673f4649107182214092dc",
    "kernel": "682b94467793d87219d567e61a825d20c7e441f416c437d71282e2d0b38f3d6c",
    "float32": "5f843836cdc361f8bc106b758dcfb50a209953723147c9dba1579774b8f06e39",
}


def test_weights_are_those_of_version_2(library):
    logistic = DescentPrompts("logistic", 3, w_bound=2.0)
    made = {
        "standard": library,
        "ridge": PromptLibrary(2, 4, algorithms=[RidgePrompts()]),
        "kernel": PromptLibrary(2, 12, algorithms=[KernelPrompts(5.5)]),
        "float32": PromptLibrary(2, 4, algorithms=[logistic], dtype=torch.float32),
    }
    assert {name: network.digest for name, network in made.items()} == PINNED
