"""Samples as a set or a sequence, whole numbers, constants: words against PyTorch's own."""

import math

import pytest
import torch

import iceform as ice
from iceform.computer import Computer
from iceform.errors import CompileError, PrecisionError, ProgramError

SEED = torch.Generator().manual_seed(3)
X = 2 * torch.rand(7, 3, dtype=torch.float64, generator=SEED) - 1
Y = 2 * torch.rand(7, dtype=torch.float64, generator=SEED) - 1
ROWS = torch.tensor([[0.5, -1.0, 2.0], [0.0, 0.25, 1.0]], dtype=torch.float64)
WHOLE = torch.floor(8 * Y)


def with_helper(x, y):
    return doubled(x, y, times=3.0) - ice.sum(doubled(x, y))


@ice.algorithm
def doubled(x, y, *, times=2.0, shift=ice.vector([0.25, 0.5])):  # noqa: B008
    return times * y + shift[1]


def searched(x, y, *, most=5, wanted=2):
    """The first place whose number is at least ``wanted``, or ``most``."""
    place = ice.constant(0)
    while ice.while_((torch.floor(8 * ice.at(y, place)) < wanted) & (place < most)):
        place = place + 1
    return place


# One algorithm, and what it is in plain PyTorch.
WORDS = {
    "round": (lambda x, y: torch.round(8 * y), torch.round(8 * Y)),
    "floor": (lambda x, y: math.floor(8 * y), WHOLE),
    "ceil": (lambda x, y: math.ceil(8 * y), torch.ceil(8 * Y)),
    "remainder": (lambda x, y: torch.floor(8 * y) % 3, WHOLE % 3),
    "quotient": (lambda x, y: torch.floor(8 * y) // 3, WHOLE // 3),
    "equal": (lambda x, y: torch.floor(8 * y) == WHOLE[2], (WHOLE[2] == WHOLE).double()),
    "unequal": (lambda x, y: torch.floor(8 * y) != WHOLE[2], (WHOLE[2] != WHOLE).double()),
    "at least": (lambda x, y: torch.floor(8 * y) >= WHOLE[2], (WHOLE[2] <= WHOLE).double()),
    "more": (lambda x, y: torch.floor(8 * y) > WHOLE[2], (WHOLE[2] < WHOLE).double()),
    "index": (lambda x, y: y * ice.index(), Y * torch.arange(7)),
    "count": (lambda x, y: ice.mean(y) / ice.count(), Y.mean() / 7),
    "sum": (lambda x, y: ice.sum(x), X.sum(0)),
    "max": (lambda x, y: ice.max(x), X.max(0).values),
    "min": (lambda x, y: ice.min(y), Y.min()),
    "argmax": (lambda x, y: ice.argmax(torch.floor(2 * y)), torch.floor(2 * Y).argmax()),
    "argmin": (lambda x, y: ice.argmin(y), Y.argmin()),
    "at": (lambda x, y: ice.at(x, ice.argmin(y)), X[Y.argmin()]),
    "reversed": (lambda x, y: ice.at(y, 6 - ice.index()), Y.flip(0)),
    "previous": (lambda x, y: ice.previous(y, 2, 0.5), torch.cat([torch.full((2,), 0.5), Y[:-2]])),
    "running sum": (lambda x, y: ice.running_sum(y), Y.cumsum(0)),
    "component": (lambda x, y: x[ice.index() % 3], X[range(7), [0, 1, 2, 0, 1, 2, 0]]),
    "matrix": (lambda x, y: ROWS @ x, X @ ROWS.T),
    "row": (lambda x, y: x[:2] @ ROWS, X[:, :2] @ ROWS),
    "list": (lambda x, y: [1, 2, 3] * x - ROWS[0], X * torch.tensor([1, 2, 3]) - ROWS[0]),
    "attend to a number": (lambda x, y: ice.attend(x, x, 2.0), 2 + 0 * Y),
    "Python's max": (lambda x, y: max(y, 0.25, x[0]), torch.maximum(Y.clamp(min=0.25), X[:, 0])),
    "Python's min": (lambda x, y: min(x), X.min(1).values),
    "another algorithm": (with_helper, 3 * Y + 0.5 - (2 * Y + 0.5).sum()),
    "broken off": (searched, torch.tensor(float([*(WHOLE >= 2), True].index(True))).clamp(max=5)),
}


def compiled(name):
    function, wanted = WORDS[name]
    made = ice.algorithm(function)
    torch.testing.assert_close(made(X, Y).double(), wanted.double(), rtol=0, atol=1e-9)
    return made, ice.compile(made, dim=3, samples=8)


@pytest.mark.parametrize("name", WORDS)
def test_a_word_is_what_torch_has_for_it(name):
    """On tensors, as a graph, by tables, and fused within its enclosure."""
    made, program = compiled(name)
    exact = made(X, Y)
    torch.testing.assert_close(program.traced(X, Y), exact, rtol=0, atol=0)
    result = Computer.for_programs([program]).run(program, X, Y, backend="fused")
    assert float((result.value - exact).abs().max()) <= result.enclosure.error + 1e-15
    assert result.enclosure.error <= 1e-8
    assert result.enclosure.error <= result.certificate.error


@pytest.mark.parametrize("name", ["remainder", "argmax", "previous", "matrix"])
def test_the_matrices_as_they_are_say_the_same(name):
    made, program = compiled(name)
    result = Computer.for_programs([program]).run(program, X, Y, backend="literal")
    assert float((result.value - made(X, Y)).abs().max()) <= result.enclosure.error + 1e-15
    assert result.enclosure.error <= 1e-8


def test_a_whole_number_is_told_from_what_is_none():
    """What == and % are asked of is checked by every run, and its line is named."""
    program = ice.compile(ice.algorithm(lambda x, y: 8 * y == 1), dim=3, samples=8)
    with pytest.raises(PrecisionError, match="are for values that are whole"):
        Computer.for_programs([program]).run(program, X, Y, backend="fused")
    near = ice.compile(ice.algorithm(lambda x, y: torch.floor(8 * y)), dim=3, samples=8)
    data = torch.tensor([0.25 - 1e-6, 0.3], dtype=torch.float64)
    with pytest.raises(PrecisionError, match="middle between two whole numbers"):
        Computer.for_programs([near]).run(near, X[:2], data, backend="fused")
    data[0] = 0.25  # 2 itself is no jump of floor
    found = Computer.for_programs([near]).run(near, X[:2], data, backend="fused")
    assert found.value.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("k", [0.6, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, *, k=1: ice.sum(k * (x[0] > 0)) > 2,  # below a mean
        lambda x, y, *, k=1: ice.mean(x[0]) * (1 * (k > 2) > 0),  # a comparison of comparisons
    ],
)
def test_what_is_compared_as_a_whole_number_has_to_be_one(function, k):
    program = ice.compile(ice.algorithm(function), dim=3, samples=8, k=(0, 4))
    assert program.parameters(k=2)["k"] == 2
    with pytest.raises(ProgramError, match=f"k is compared with whole numbers.*; got {k}"):
        program.parameters(k=k)


def test_rounding_of_what_balls_know_too_roughly_takes_more_bits():
    """Chaos doubles a ball every turn: at the first bits what is rounded may be anything."""

    def chaos(x, y):
        z = 0.3 + 0.1 * ice.mean(y)
        for _ in ice.repeat(300):
            z = torch.clamp(3.9 * z * (1.0 - z), 0.0, 1.0)
        return torch.round(1.0 / (0.4 + z * (1.0 - z)))

    program = ice.compile(ice.algorithm(chaos), dim=3, samples=8, eps=1e-6, domain={"y": (0, 1)})
    found = program.interpreted(X, Y * Y).outputs
    assert program.enclosed(X, Y * Y, found).radius < 1e-9


def test_what_cannot_be_is_refused_with_its_line():
    wide = ice.algorithm(lambda x, y: torch.round(1e5 * y))
    with pytest.raises(CompileError, match=r"have a table entry each, and 8192 are the most"):
        ice.compile(wide, dim=3, samples=8)
    with pytest.raises(CompileError, match=r"ice.max and ice.min go over the samples"):
        ice.compile(ice.algorithm(lambda x, y: ice.max(ice.mean(y))), dim=3, samples=8)
    with pytest.raises(CompileError, match="a list of finite numbers belongs"):
        ice.compile(ice.algorithm(lambda x, y: x + torch.ones(2, 3, 3)), dim=3, samples=8)
    with pytest.raises(ProgramError, match="doubled has no parameter 'time'"):
        ice.compile(ice.algorithm(lambda x, y: doubled(x, y, time=3.0)), dim=3, samples=8)
