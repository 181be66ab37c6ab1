"""The frozen layer of streams: the literal network is the definition, fused passes equal it."""

import copy
import itertools
import math
import pickle

import pytest
import torch

import iceform_estimators
from estimator_tests.machine.data import normal
from iceform.errors import (
    BoundError,
    CapacityError,
    DtypeError,
    IceformError,
    ProgramError,
    ShapeError,
)
from iceform.expressions import loss_named
from iceform.heads import LookUps
from iceform.tables import Interpolant
from iceform_estimators import algorithms
from iceform_estimators.machine import ArraySource, Machine
from iceform_estimators.machine.stream import CLIP, IDENTITY, ScalarTable, table_of
from tests.conformance import assert_within

UNIT = torch.finfo(torch.float64).eps / 2

# Uniform and graded tables, narrow and wide.
TABLES: dict[str, tuple[ScalarTable, float]] = {
    "line": (IDENTITY, 0.5),
    "wide line": (IDENTITY, 4e6),
    "clip": (CLIP, 3.0),
    "logistic": (table_of(loss_named("logistic"), 129), 3.0),
    "wide logistic": (table_of(loss_named("logistic"), 129), 40.0),
    "poisson": (table_of(loss_named("poisson"), 129), 3.0),
    "squared_hinge": (table_of(loss_named("squared_hinge"), 129), 3.0),
}


def lookup_tolerance(asked: LookUps) -> float:
    """What rounding may do, both ways of computing it.

    Logits off by t_k move an average by sum_k p_k t_k |v_k - A| to first order, and by e^{2 t}
    times that at most.
    """
    keys, values = asked.table.keys, asked.table.values
    z = asked.x @ asked.w - asked.y
    weights = asked.table.weights(z)
    terms = asked.x.abs() @ asked.w.abs() + asked.y.abs() + z.abs() + abs(asked.table.grid.center)
    logits = keys.slopes.abs() * terms[:, None] + keys.biases.abs()
    slips = (len(asked.w) + 8) * UNIT * logits
    apart = (values - (weights @ values)[:, None]).abs()
    moved = (weights * slips * apart).sum(1) * torch.exp(2 * slips.amax(1))
    added = (asked.table.tokens + 8) * UNIT * (weights @ values.abs())
    return float((2 * (moved + added)).max()) * max(1.0, float(asked.x.abs().max()))


def asked_of(machine: Machine, table: Interpolant, rows: int, dim: int) -> LookUps:
    g = torch.Generator().manual_seed(rows + 10 * dim)
    x, w = normal(g, rows, dim), normal(g, dim)
    z = (2 * torch.rand(rows, generator=g, dtype=torch.float64) - 1) * table.high * (1 - 1e-9)
    return machine.start().look_ups(table, x, x @ w - z, w)


@pytest.mark.parametrize("name", TABLES)
def test_the_literal_network_looks_up_what_the_fused_pass_does(name):
    """Samples shorter than the machine and prompts that are not full included."""
    made, reach = TABLES[name]
    table, machine = made.on(reach), Machine(4, samples=5)
    for rows, dim in itertools.product((1, 3, 5), (1, 2, 4)):
        asked = asked_of(machine, table, rows, dim)
        out = machine.network(asked.tokens)[0]
        assert out.shape == (10, 5)
        fused = machine.look_up(table, asked.x @ asked.w - asked.y)
        allowed = lookup_tolerance(asked)
        assert_within(out[:rows, :dim], fused[:, None] * asked.x, allowed, "A(z) x")
        assert_within(out[:rows, -1], fused, allowed, "A(z)")
        assert not out[:rows, dim:-1].any()
        assert allowed < 1e-6, "a tolerance that allows anything"


@pytest.mark.parametrize("name", TABLES)
def test_what_is_looked_up_is_the_function_within_the_tables_error(name):
    made, reach = TABLES[name]
    table = made.on(reach)
    z = torch.linspace(-reach, reach, 1001, dtype=torch.float64)
    machine = Machine(1)
    asked = machine.start().look_ups(table, z[:, None], 0 * z, torch.ones(1).double())
    allowed = table.error + lookup_tolerance(asked)
    assert_within(machine.look_up(table, z), made.function(z), allowed, name)


def literal_average(machine: Machine, x, values, q, gamma, **ties) -> torch.Tensor:
    """What the network's own forward pass returns to the free queries of one prompt."""
    prompt = machine.start().kernel(x, values, q, gamma, **ties)
    free = machine.network(prompt.tokens)[0, machine.samples :]
    return free[: len(q), : values.shape[1]]


@pytest.mark.parametrize("points", [1, 4, 5])
@pytest.mark.parametrize("dim", [1, 3, 6])
@pytest.mark.parametrize("gamma", [0.01, 1.0, 50.0])
def test_the_literal_network_averages_what_the_fused_pass_does(gamma, dim, points):
    g = torch.Generator().manual_seed(points)
    machine = Machine(6, samples=5, tokens=7)
    x, values, q = normal(g, 33, dim), normal(g, 33, 2), normal(g, points, dim)
    out = literal_average(machine, x, values, q, gamma)
    size = max(float(x.norm(dim=1).max()), float(q.norm(dim=1).max())) ** 2
    tau = (dim + 8) * UNIT * 3 * gamma * size
    swing = float(values.max() - values.min())
    allowed = 2 * math.expm1(2 * tau) * swing + 2 * (len(x) + 8) * UNIT * float(values.abs().max())
    assert_within(out, machine.average(x, values, q, gamma), allowed, "average")
    weights = torch.softmax(-gamma * torch.cdist(q, x).square(), 1)
    assert_within(out, weights @ values, 4 * allowed, "kernel average")


def test_averages_of_more_points_than_a_prompt_has_take_several():
    g = torch.Generator().manual_seed(0)
    machine = Machine(3, samples=4, tokens=9)
    x, values, q = normal(g, 20, 3), normal(g, 20, 1), normal(g, 11, 3)
    whole = machine.average(x, values, q, 0.7)
    parts = [literal_average(machine, x, values, part, 0.7) for part in torch.split(q, 4)]
    assert_within(whole, torch.cat(parts), 1e-12 * float(values.abs().max()), "prompts")
    assert machine.prompts(11) == len(parts) == 3
    assert machine.average(x, values, q[:0], 0.7).shape == (0, 1)


def test_earlier_samples_win_ties_by_the_factor_asked_for():
    machine = Machine(1, samples=2, tokens=4)
    x = torch.tensor([[1.0], [1.0]]).double()
    values = torch.tensor([[1.0], [0.0]]).double()
    q = torch.tensor([[0.3]]).double()
    share = float(machine.average(x, values, q, 2.0, ties=1.5))
    assert share == pytest.approx(1 / (1 + math.exp(-1.5)), rel=1e-14)
    literal = literal_average(machine, x, values, q, 2.0, ties=1.5)
    assert float(literal[0, 0]) == pytest.approx(share, rel=1e-14)


# ------------------------------------------------------------------------------------- weights

PROGRAMS = [
    algorithms.LinearRegression(fit_intercept=True),
    algorithms.Ridge(1.0, fit_intercept=True),
    algorithms.Lasso(0.1),
    algorithms.ElasticNet(0.1, 0.5),
    algorithms.Huber(),
    algorithms.Quantile(0.4),
    algorithms.Logistic(positive=1.0),
    algorithms.Poisson(0.1),
    algorithms.LinearSVM(positive=1.0),
    algorithms.Perceptron(positive=1.0, max_passes=5),
    algorithms.PCA(2),
    algorithms.KernelRegression(0.5),
    algorithms.KNeighbors(3),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_no_program_changes_the_weights(program):
    g = torch.Generator().manual_seed(1)
    machine, untouched = Machine(4), Machine(4)
    before = {k: v.clone() for k, v in machine.network.state_dict().items()}
    x = normal(g, 40, 3)
    found = machine.run(program, x, (x[:, 0] > 0).double())
    assert found.digest == machine.digest == untouched.digest
    assert machine.network.digest == untouched.network.digest
    for name, value in machine.network.state_dict().items():
        assert torch.equal(value, before[name])
    assert not list(machine.network.parameters()), "frozen weights are buffers"


def test_weights_depend_on_the_sizes_and_on_nothing_else():
    digests = {
        (d, m, t): Machine(d, m, tokens=t).digest
        for d in (2, 3)
        for m in (2, 4)
        for t in (5, 9)
    }  # fmt: skip
    assert len(set(digests.values())) == len(digests)
    torch.manual_seed(123)
    torch.rand(5)
    assert all(Machine(d, m, tokens=t).digest == digest for (d, m, t), digest in digests.items())
    entries = Machine(2).network.state_dict().values()
    seen = {float(v) for value in entries for v in value.unique()}
    assert seen == {0.0, 1.0, -1.0, -(2.0**50), -(2.0**45)}


def test_pickles_and_copies_rebuild_the_same_weights():
    machine = Machine(3, 4, tokens=5)
    machine.network  # noqa: B018 - built before, but not part of the pickle
    data = pickle.dumps(machine)
    assert len(data) < 300
    for other in (pickle.loads(data), copy.copy(machine), copy.deepcopy(machine)):
        assert other == machine
        assert hash(other) == hash(machine)
        assert other.digest == machine.digest
    assert machine != Machine(3, 4, tokens=6)
    assert eval(repr(machine), {"Machine": iceform_estimators.Machine, "torch": torch}) == machine


# ----------------------------------------------------------------------------------- bad input


def data(rows: int = 6, dim: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return normal(g, rows, dim), normal(g, rows)


def nan_in(which: int) -> tuple[torch.Tensor, torch.Tensor]:
    pair = data()
    pair[which].view(-1)[1] = math.nan
    return pair


RIDGE = algorithms.Ridge(fit_intercept=True)

REFUSED = {
    "dim 0": (ShapeError, lambda: Machine(0), "dim must be a whole number of at least 1"),
    "dim 2.5": (ShapeError, lambda: Machine(2.5), "got 2.5"),
    "samples": (ShapeError, lambda: Machine(2, samples=-1), "samples must .* got -1"),
    "tokens": (ShapeError, lambda: Machine(2, tokens=True), "tokens must .* got True"),
    "too large to build": (
        CapacityError, lambda: Machine(10**6, 10**6).digest, "use a smaller machine",
    ),
    "not a program": (ProgramError, lambda: Machine(3).run(3, *data()), "see iceform_estimators"),
    "a list": (
        ShapeError, lambda: Machine(3).run(RIDGE, [[1.0]], data()[1]),
        r"tensor \(samples, dim\), got list",
    ),
    "a vector": (
        ShapeError, lambda: Machine(3).run(RIDGE, data()[1], data()[1]), "got .*6",
    ),
    "lengths": (
        ShapeError, lambda: Machine(3).run(RIDGE, data()[0], data()[1][:5]),
        r"\(6, 2\) and \(5,\)",
    ),
    "float32": (
        DtypeError, lambda: Machine(3).run(RIDGE, data()[0].float(), data()[1].float()),
        "must be float64, got torch.float32",
    ),
    "integers": (
        DtypeError, lambda: Machine(3).run(RIDGE, data()[0].long(), data()[1].long()),
        "must be float64, got torch.int64",
    ),
    "no rows": (
        ShapeError, lambda: Machine(3).run(RIDGE, *data(0)), "rows must .* at least 1, got 0",
    ),
    "no columns": (
        ShapeError, lambda: Machine(3).run(RIDGE, data()[0][:, :0], data()[1]), "dim must",
    ),
    "NaN in x": (BoundError, lambda: Machine(3).run(RIDGE, *nan_in(0)), "x holds NaN"),
    "NaN in y": (BoundError, lambda: Machine(3).run(RIDGE, *nan_in(1)), "y holds NaN"),
    "NaN in a source": (
        BoundError, lambda: Machine(3).run(RIDGE, ArraySource(*nan_in(0))), "NaN",
    ),
    "squares overflow": (
        BoundError, lambda: Machine(3).run(RIDGE, 1e200 * data()[0], data()[1]),
        "column 0 of the samples: it reaches .* divide by a power of two",
    ),
    "too many features": (
        ProgramError, lambda: Machine(2).run(RIDGE, *data()),
        "3 features .* this machine has 2; build one with dim >= 3",
    ),
    "a table too long": (
        ProgramError,
        lambda: Machine(3, tokens=9).look_up(CLIP.on(1.0), data()[1]),
        "129 tokens, a block of this machine 9; build one with tokens >= 129",
    ),
    "too many samples to average": (
        ProgramError,
        lambda: Machine(2, samples=2, tokens=2).average(
            data()[0], data()[1][:, None], data()[0], 1.0
        ),
        "sees 4 samples, got 6; build one with tokens >= 3",
    ),
    "a prompt too small": (
        ProgramError,
        lambda: Machine(1).start().look_ups(
            CLIP.on(1.0), *data(), torch.ones(2).double()
        ),
        "holds 129 tokens and samples of 1 features",
    ),
    "a table too narrow": (
        BoundError, lambda: IDENTITY.on(1e300), "reaches 1e\\+300, beyond 1.1e\\+12",
    ),
    "a table of nothing": (BoundError, lambda: IDENTITY.on(math.nan), "reaches nan"),
    "chunk": (ShapeError, lambda: ArraySource(*data(), chunk=-3), "chunk must .* got -3"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_one_clear_error(case):
    kind, call, message = REFUSED[case]
    with pytest.raises(kind, match=message) as refused:
        call()
    assert isinstance(refused.value, IceformError)
    assert "\n" not in str(refused.value)
