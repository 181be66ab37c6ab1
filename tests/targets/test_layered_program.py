"""bert, weights mode: a program's instructions are layers, its tables and data the prompt."""

import pytest
import torch

import iceform as ice
from iceform import targets

from ..computer.peers import CASES
from .attack import LIBRARY
from .stock import data, enclosed_alone
from .test_stock_program import descent, hidden, of_library, program, two_turns

pytest.importorskip("flint", reason="runs are enclosed in balls, which needs python-flint")


def layered(p, folder, **given):
    return p.to("bert", folder, mode="weights", **given)


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    return layered(program("least_squares"), tmp_path_factory.mktemp("layered"), steps=2)


@pytest.mark.parametrize("n", [1, 3, 4])
def test_descent_for_any_number_of_samples_and_any_step_size(squares, n):
    x, y = data(n)
    for lr in (0.2, 0.4):
        got = squares.read(hidden(squares, squares.prompt(x, y, lr=lr)))
        assert float((got - descent(x, y, lr)).abs().max()) <= 1e-12


def test_two_layers_an_instruction_that_matters(squares):
    """Counting turns is what the layers do by being there."""
    cycles = squares.program.interpreted(*data(), steps=2).cycles
    assert len(squares.spec.design.layers) == 2 * len(squares.spec.lines) < 2 * cycles
    assert "FLAG" not in squares.spec.homes


def test_check_attests_and_encloses(squares):
    found = squares.check(*data(seed=2))
    assert found.ok
    assert found.enclosure.error <= 1e-12


def test_another_loss_of_the_same_shape_runs_on_the_same_weights(tmp_path):
    """Functions are tables of the prompt."""

    def bent(f):
        @ice.algorithm
        def each(x, y):
            return f(y)

        return ice.compile(each, dim=1, samples=4)

    given = {scale: bent(ice.Formula.parse(f"tanh({scale}*z)")) for scale in (0.5, 1.0)}
    model = layered(given[1.0], tmp_path)
    assert targets.LayeredProgram.of(given[0.5], {}).entries < model.spec.entries
    y = torch.linspace(-0.9, 0.9, 4, dtype=torch.float64)
    for scale, p in given.items():
        held = model.holding(p)
        got = held.read(hidden(held, held.prompt(y[:, None], y)))
        assert float((got - torch.tanh(scale * y)).abs().max()) <= 1e-9
    with pytest.raises(ice.errors.CapacityError, match="needs entries"):
        model.holding(bent(ice.Formula.parse("tanh(9*z)"))).prompt(y[:, None], y)


def test_turns_are_in_the_weights(squares):
    with pytest.raises(ice.errors.ProgramError, match="turns of loops are in the weights"):
        squares.prompt(*data(), steps=3)


def test_another_program_is_refused(squares):
    with pytest.raises(
        ice.errors.ProgramError, match="the layers are the instructions of least_squares"
    ):
        squares.holding(program("ridge")).prompt(*data())


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("albert", {}, "its layers are all the same"),
        ("gpt2", {}, "a causal mask hides"),
        ("bert", {"cycles": 9}, "cycles= and beside="),
    ],
)
def test_what_cannot_be_is_refused_and_says_why(name, given, why, tmp_path):
    with pytest.raises(ice.errors.TargetError, match=why):
        program("least_squares").to(name, tmp_path / "no", mode="weights", **given)
    with pytest.raises(ice.errors.TargetError, match='"descent" or "full_batch"'):
        program("least_squares").to("bert", tmp_path / "no", mode="layers")
    assert not (tmp_path / "no").exists()


def test_a_loop_that_ends_by_the_data_is_refused(tmp_path):
    with pytest.raises(ice.errors.TargetError, match='write mode="prompt" with cycles='):
        layered(program("nearest_neighbours"), tmp_path / "no")


def test_a_stream_of_another_length_is_refused(squares):
    stream = squares.prompt(*data())
    with pytest.raises(ice.errors.ShapeError, match="no prompt of least_squares has"):
        squares.read(torch.cat([stream, stream], 1))


@pytest.mark.slow
def test_noise_does_not_grow_over_four_hundred_layers(tmp_path):
    """A feature that should be zero is disturbed at every token; it is gone at the end."""
    model = layered(program("ridge"), tmp_path, steps=40)
    assert len(model.spec.design.layers) >= 400
    x, y = data()
    assert model.check(x, y).enclosure.error <= 1e-13
    spoilt = model.prompt(x, y)
    half, at = spoilt.shape[-1] // 2, model.spec.design.features
    for name in ("plus", "minus"):
        columns = torch.arange(half)[at[name]]
        spoilt[..., columns] += 1e-6
        spoilt[..., half + columns] -= 1e-6
    exact = model.program.reference(x, y, steps=40)
    assert float((model.read(hidden(model, spoilt)) - exact).abs().max()) <= 1e-6


def proven(name, folder, dtype):
    """The enclosed distance of the answer that a process without iceform gave."""
    case = CASES[name]
    model = layered(of_library(name), folder / name, dtype=dtype, **two_turns(case))
    return enclosed_alone({name: model}, CASES, folder)[name]


@pytest.mark.slow
def test_a_process_without_iceform_runs_it(tmp_path):
    assert proven("kernel_regression", tmp_path, "float64") <= 1e-12


def test_float32(tmp_path):
    model = layered(program("least_squares"), tmp_path, dtype="float32", steps=4)
    assert model.check(*data(), within=1e-5).ok


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARY)
def test_every_algorithm_of_the_library(name, tmp_path):
    assert proven(name, tmp_path, "float64") <= 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(set(LIBRARY) - {"conjugate_gradients", "value_iteration", "kalman_filter"})
)
def test_every_algorithm_that_float32_has_digits_for(name, tmp_path):
    assert proven(name, tmp_path, "float32") <= 1e-4


def test_a_turn_for_each_sample_is_no_layer_and_a_bert_is_unrolled_where_turns_are_counted(
    tmp_path,
):
    """Layers were those of one sample: an answer off by 1, certified to 5e-6."""

    @ice.algorithm
    def discounted(x, y):
        total = ice.constant(0.0)
        for t in ice.repeat(ice.count()):
            total = 0.5 * total + ice.at(y, t)
        return total

    @ice.algorithm
    def halved(x, y, *, steps=2):
        total = ice.mean(y)
        for _ in ice.repeat(steps):
            total = 0.5 * total
        return total

    p = ice.compile(discounted, dim=1, samples=3)
    with pytest.raises(ice.errors.TargetError, match="a turn for each sample"):
        p.to("bert", tmp_path / "no", mode="weights")
    model = p.to("albert", tmp_path / "prompt")
    x = torch.tensor([[0.5], [-0.25], [0.75]], dtype=torch.float64)
    for n in (1, 3):
        checked = model.check(x[:n], x[:n, 0])
        off = abs(float(checked.value) - float(discounted(x[:n], x[:n, 0])))
        assert off < 1e-6
    assert ice.compile(halved, dim=1, samples=3).to("bert", tmp_path / "b").spec.kind == (
        "layered_program"
    )
