"""One frozen machine, many programs."""

import pytest
import torch

import iceform as ice
import iceform_estimators
from iceform.attention import unchecked
from iceform.functions.losses import Loss
from iceform_estimators import algorithms
from iceform_estimators.algorithms import library
from tests.conformance import assert_within

DIM, SAMPLES = 3, 8
ROUNDED = 1e-14


@pytest.fixture(scope="module")
def machine():
    return iceform_estimators.Machine(DIM, SAMPLES)


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(SAMPLES, DIM, generator=generator, dtype=torch.float64) - 1
    w = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64)
    noise = 0.05 * torch.randn(SAMPLES, generator=generator, dtype=torch.float64)
    return x, (x @ w + noise).clamp(-1, 1)


def labels_for(program, x, y):
    if isinstance(program, algorithms.HopfieldRetrieval):
        return 0.9 * x[2]
    kind = Loss.of(program.loss).kind if isinstance(program, algorithms.Descent) else ""
    return {"margin": torch.where(y > 0, 1.0, -1.0).to(y), "glm": (y > 0).to(y)}.get(kind, y)


LIBRARY = library()


@pytest.mark.parametrize("program", LIBRARY, ids=lambda p: p.label)
def test_every_program_is_within_its_certificate(machine, program):
    """On one digest, which was there before the data."""
    x, y = data()
    labels = labels_for(program, x, y)
    result = machine.run(program, x, labels)
    assert result.digest == machine.digest
    assert len(LIBRARY) >= 12
    assert result.passes >= 1
    rounded = result.certificate.error + ROUNDED  # the reference is in float64
    assert_within(result.value, program.reference(x, labels), rounded, program.label)


def test_solvers_agree_with_the_closed_form(machine):
    x, y = data()
    ridge = machine.run(algorithms.Ridge(alpha=1.0, fit_intercept=False), x, y)
    want = torch.linalg.solve(x.T @ x + torch.eye(DIM, dtype=torch.float64), x.T @ y)
    assert_within(ridge.coef, want, ridge.certificate.error + ROUNDED, "ridge")
    assert_within(ridge.predict(x), x @ want, 1e-8, "predictions")
    plain = machine.run(algorithms.LinearRegression(), x, y)
    constant = torch.cat([x, torch.ones(SAMPLES, 1, dtype=torch.float64)], 1)
    want = torch.linalg.lstsq(constant, y[:, None]).solution[:, 0]
    assert_within(plain.coef, want[:DIM], plain.certificate.error + ROUNDED, "least squares")
    allowed = plain.errors["intercept"] + ROUNDED
    assert_within(plain.intercept, want[DIM], allowed, "its intercept")


def test_components(machine):
    x, _ = data()
    result = machine.run(algorithms.PCA(), x)
    _, sizes, vt = torch.linalg.svd(x - x.mean(0))
    along = (result.value * vt).sum(1).abs()
    assert_within(along, torch.ones(DIM), 1e-9, "components")
    variances = sizes.square() / (SAMPLES - 1)
    assert_within(result.parts["explained_variance"], variances, 1e-9, "variances")


def test_kernel_regression_on_new_points(machine):
    x, y = data()
    program = algorithms.KernelRegression(2.0)
    points = 2 * torch.rand(40, DIM, dtype=torch.float64) - 1
    got = machine.run(program, x, y).predict(points)
    assert_within(got, program.exact(x, y, points), 1e-8, "kernel average")


def test_an_arbitrary_head(machine):
    """Any head that fits, on the same weights as everything else."""
    x, _ = data()
    weights = [torch.randn(r, DIM, dtype=torch.float64) for r in (4, 4, 2)]
    head = algorithms.Head(*weights)
    assert head != algorithms.Head(*map(torch.zeros_like, weights)), "one is not the other"
    result = machine.run(head, x)
    k, q, v = (x @ w.T for w in weights)
    allowed = result.certificate.error + ROUNDED
    assert_within(result.value, torch.softmax(q @ k.T, -1) @ v, allowed, "head")
    assert result.verify()
    assert result.digest == machine.digest


@pytest.mark.parametrize("program", LIBRARY[::3], ids=lambda p: p.label)
def test_specialising_bakes_the_prompt_into_weights(machine, program):
    """The task-specific module and the programmed machine agree on the same tokens."""
    x, y = data()
    labels = labels_for(program, x, y)
    module = machine.specialize(program, x, labels)
    target = program.targets(x, labels)
    padded = machine.padded(target)
    out, error = machine.attend(target)
    baked = module(padded.tokens)[padded.queries, : out.shape[1]]
    assert_within(baked, out, error, program.label)
    assert module.digest != machine.digest


def test_specialising_needs_no_data(machine):
    x, y = data()
    program = algorithms.KernelRegression(2.0)
    assert machine.specialize(program).digest == machine.specialize(program, x, y).digest


def test_a_width_that_depends_on_the_data_is_refused():
    with pytest.raises(ice.ProgramError, match="'scott' depends on the data"):
        iceform_estimators.Machine.for_programs([algorithms.KernelRegression()], DIM, SAMPLES)


def test_what_runs_on_streams_alone_is_refused(machine):
    x, y = data()
    wanted = r"Lasso does not run on rows; it runs on Machine\(..., layout='stream'\)"
    with pytest.raises(ice.ProgramError, match=wanted):
        machine.run(algorithms.Lasso(), x, y)
    with pytest.raises(ice.ProgramError, match=wanted):
        iceform_estimators.Machine.for_programs([algorithms.Lasso()], DIM, SAMPLES)


def test_a_pass_that_does_not_hold_the_machines_eps_is_refused(machine):
    x, y = data()
    strict = iceform_estimators.Machine.for_programs([algorithms.Ridge()], DIM, SAMPLES, 1e-8)
    exact = algorithms.Ridge().reference(x, y)
    assert_within(strict.run(algorithms.Ridge(), x, y).value, exact, 1e-6, "ridge")
    strict.eps = 1e-18
    with pytest.raises(ice.PrecisionError, match="not to the machine's eps = 1e-18") as caught:
        strict.run(algorithms.Ridge(), x, y)
    assert caught.value.best is not None


def test_literal_network_is_the_definition():
    chosen = [algorithms.Descent("squared", 3, l2=0.1, w_bound=2.0), algorithms.Ridge()]
    dense = iceform_estimators.Machine.for_programs(chosen, 2, 4, backend="literal")
    x, y = data()
    x, y = x[:4, :2], y[:4]
    result = dense.run(chosen[0], x, y)
    want = chosen[0].reference(x, y)
    bound = result.certificate.error + 1e-15  # the reference is rounded itself
    assert_within(result.value, want, bound, "literal machine")
    tokens = dense.prompt(chosen[0], x, y).tokens
    out, _ = dense.attend(chosen[0].targets(x, y))
    literal = dense.network(tokens)
    queries = dense.padded(chosen[0].targets(x, y)).queries
    assert torch.equal(literal[queries, : out.shape[1]], out)


def test_a_program_that_does_not_fit_says_which_dimension_is_short(machine):
    x, y = data()
    with pytest.raises(ice.ProgramError, match=r"does not fit this machine: .*head_dim \(needs 90"):
        machine.run(algorithms.Head(*(torch.ones(90, DIM).double() for _ in range(3))), x)
    wide = torch.zeros(SAMPLES, 40, dtype=torch.float64)
    with pytest.raises(ice.ProgramError, match=r"features \(needs"):
        machine.run(algorithms.Ridge(), wide, y)
    heavy = algorithms.Head(*(1e6 * torch.ones(2, DIM).double() for _ in range(3)))
    with pytest.raises(ice.ProgramError, match=r"weight_bound \(needs"):
        machine.run(heavy, x)


def test_bad_programs_are_refused_before_the_pass(machine):
    x, y = data()
    with pytest.raises(ice.ProgramError, match="not a program: 'ridge'"):
        machine.run("ridge", x, y)
    with pytest.raises(ice.ProgramError, match="needs labels"):
        machine.run(algorithms.Ridge(), x)
    with pytest.raises(ice.BoundError, match="NaN"):
        machine.run(algorithms.Ridge(), x * torch.nan, y)
    bad = algorithms.Head(*(torch.full((2, DIM), torch.nan).double() for _ in range(3)))
    with pytest.raises(ice.ProgramError, match=r"weight_bound \(needs nan"):
        machine.run(bad, x)
    with pytest.raises(ice.DtypeError, match="float64"):
        machine.run(algorithms.Ridge(), x.float(), y.float())
    with pytest.raises(ice.BoundError, match="no unique solution"):
        machine.run(algorithms.LinearRegression(), torch.ones_like(x), y)
    with pytest.raises(ice.ProgramError, match="at least one program"):
        iceform_estimators.Machine.for_programs([], 2, 3)


@pytest.mark.parametrize("bandwidth", [0.1, 0.3, 1.0])
def test_query_points_never_read_each_other(bandwidth):
    """Queries at the corners, samples at the opposite ones: the margin's worst case."""
    program = algorithms.KernelRegression(1 / (2 * bandwidth**2), queries=8)
    machine = iceform_estimators.Machine.for_programs([program], 2, 4)
    x = -torch.ones(4, 2, dtype=torch.float64)
    y, points = torch.ones(4, dtype=torch.float64), torch.ones(8, 2, dtype=torch.float64)
    assert_within(machine.run(program, x, y).predict(points), torch.ones(8), 1e-8, "all ones")


def test_kernel_and_memory_data_outside_the_stated_domain_is_refused(machine):
    x, y = data()
    with pytest.raises(ice.BoundError, match=r"max \|x\| is .* scale the samples"):
        machine.run(algorithms.KernelRegression(2.0), 1.5 * x / x.abs().max(), y)
    with pytest.raises(ice.BoundError, match=r"predict inside \[-1, 1\]"):
        machine.run(algorithms.KernelRegression(2.0), x, y).predict(2 * torch.ones_like(x))
    with pytest.raises(ice.BoundError, match="scale the state"):
        machine.run(algorithms.HopfieldRetrieval(), x, 2 * torch.ones(DIM, dtype=torch.float64))


def test_labels_of_the_wrong_form_are_refused(machine):
    x, y = data()
    with pytest.raises(ice.ShapeError, match=r"y must have shape \(\*batch, 8\), got \(5,\)"):
        machine.run(algorithms.Ridge(), x, y[:5])
    with pytest.raises(ice.ShapeError, match=r"y must have shape \(\*batch, 3\)"):
        machine.run(algorithms.HopfieldRetrieval(), x, y)
    with pytest.raises(ice.DtypeError, match=r"y has dtype torch\.float32"):
        machine.run(algorithms.KernelRegression(2.0), x, y.float())
    with pytest.raises(ice.BoundError, match=r"max \|y\| is NaN"):
        machine.run(algorithms.KernelRegression(2.0), x, y * torch.nan)


def test_smaller_data_runs_on_a_larger_machine(machine):
    x, y = data()
    result = machine.run(algorithms.Ridge(), x[:5, :2], y[:5])
    assert_within(result.value, algorithms.Ridge().reference(x[:5, :2], y[:5]), 1e-6, "ridge")


def test_save_and_load(machine, tmp_path):
    x, y = data()
    again = iceform_estimators.Machine.load(machine.save(tmp_path / "machine"))
    assert again.digest == machine.digest
    assert again.sizes == machine.sizes
    for program in (algorithms.Ridge(), algorithms.KernelRegression(2.0)):
        assert torch.equal(again.run(program, x, y).value, machine.run(program, x, y).value)


# ------------------------------------------------------------------------------------ weights run


def _small_machine(backend="auto"):
    return iceform_estimators.Machine(
        2, 4, programs=[algorithms.HopfieldRetrieval(steps=2)], backend=backend
    )


def test_a_run_is_attested_and_hashes_its_weights_once_more():
    x = torch.eye(2, dtype=torch.float64).repeat(2, 1) * 0.5
    fused, literal = (_small_machine(b) for b in ("auto", "literal"))
    ours, theirs = (m.run(algorithms.HopfieldRetrieval(steps=2), x, x[0]) for m in (fused, literal))
    assert ours.attestation.ok
    assert ours.attestation.rows > 0
    assert ours.digest == fused.digest == theirs.digest
    assert ("attention", "prompts through the frozen network", 2) in ours.ledger.entries
    off = float((ours.value - theirs.value).abs().max())
    assert off <= ours.certificate.error + theirs.certificate.error


@pytest.mark.parametrize("backend", ["literal", "fused"])
def test_changed_weights_are_refused_and_followed_where_asked(backend):
    machine, program = _small_machine(backend), algorithms.HopfieldRetrieval(steps=2)
    x = torch.eye(2, dtype=torch.float64).repeat(2, 1) * 0.5
    before = machine.run(program, x, x[0]).value
    machine.network.layers[1].w_v.data.mul_(1.5)
    with pytest.raises(ice.IntegrityError, match="weights were changed"):
        machine.run(program, x, x[0])
    with unchecked():
        after = machine.run(program, x, x[0]).value
    assert float((after - before).abs().max()) > 1e-2
