"""program.to: a compiled program as a stock folder, and many programs on one weights file."""

import json

import pytest
import torch

import iceform as ice
from iceform import targets
from iceform.computer.library import ALGORITHMS

from ..computer.peers import CASES
from .attack import LIBRARY, LIBRARY_CYCLES
from .stock import data, enclosed_alone, transformers

# Of least squares on 4 samples of 2, as four layers a cycle.
OLD_DIGEST = "bfba5dd5368524573f42e671d7d8d68308308fe79d799217615dba9daef84070"
pytest.importorskip("flint", reason="runs are enclosed in balls, which needs python-flint")


def program(name):
    return ice.compile(ALGORITHMS[name], dim=2, samples=4)


def of_library(name):
    case = CASES[name]
    return ice.compile(case.algorithm, case.X.shape[1], len(case.X), **case.compiled)


def two_turns(case):
    return {**case.settings, **({"steps": 2} if "steps" in case.settings else {})}


def hidden(model, given):
    network = transformers.AutoModel.from_pretrained(model.path)
    with torch.no_grad():
        return network(inputs_embeds=given).last_hidden_state


def descent(x, y, lr, steps=2):
    w = torch.zeros(2, dtype=torch.float64)
    for _ in range(steps):
        w = w - lr * x.T @ (x @ w - y) / len(x)
    return w


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    return program("least_squares").to("albert", tmp_path_factory.mktemp("to") / "new", steps=2)


def test_a_program_is_as_deep_as_its_settings_take(squares):
    x, y = data()
    config = json.loads((squares.path / "config.json").read_text())
    assert config["num_hidden_layers"] == squares.program.interpreted(x, y, steps=2).cycles
    got = squares.read(hidden(squares, squares.prompt(x, y, lr=0.4)))
    assert got.shape == (2,)
    assert float((got - descent(x, y, 0.4)).abs().max()) <= 1e-12


def test_folders_of_four_layers_a_cycle_keep_their_weights(squares):
    """What older folders record says nothing of layers, and is the weights that they hold."""
    sizes = {k: v for k, v in squares.model.spec.sizes().items() if k != "layers"}
    old = targets.StockComputer.from_record({**sizes, "variables": 16}, {})
    assert (old.layers, squares.model.spec.layers) == (4, 3)
    assert old.design.digest() == OLD_DIGEST
    assert squares.model.spec.design.hidden * 3 < old.design.hidden
    x, y = data()
    features = old.tokens(squares.program, x, y, {"lr": 0.4, "steps": 2})
    for _ in range(old.cycles):
        features = old.computer.residual_network(features)
    got = old.answers_in(features, squares.program)["value"]
    assert float((got - descent(x, y, 0.4)).abs().max()) <= 1e-12


def test_check_holds_the_answer_to_the_exact_program(squares):
    x, y = data(seed=2)
    found = squares.check(x, y)
    assert found.ok
    assert found.measured == found.enclosure.error <= 1e-12
    assert found.certificate.error == squares.program.certify(backend="literal", steps=2)[0].error
    assert float((found.value - descent(x, y, 0.5)).abs().max()) <= 1e-12


def test_an_algorithm_of_x_alone_needs_no_targets(tmp_path, squares):
    centred = ice.algorithm(lambda x: ice.mean(x * x))
    model = ice.compile(centred, dim=2, samples=5).to("albert", tmp_path / "alone")
    x, y = data()
    assert torch.equal(model.prompt(x), model.prompt(x, y))
    found = model.check(x)
    assert found.ok
    assert found.enclosure.error <= 1e-12
    assert float((found.value - (x * x).mean(0)).abs().max()) <= 1e-12
    with pytest.raises(ice.errors.ShapeError, match="none were given"):
        squares.prompt(x)


def test_more_turns_than_layers_are_refused(squares):
    given = squares.prompt(*data(), steps=3)
    with pytest.raises(ice.errors.ProgramError, match="not at its halt"):
        squares.read(hidden(squares, given))


@pytest.mark.parametrize("n", [1, 3])
def test_answers_have_the_form_that_the_algorithm_gives_them(n, tmp_path):
    @ice.algorithm
    def bent(x, y, *, slope=0.5):
        return {"each": slope * y * y, "all": ice.mean(y)}

    p = ice.compile(bent, dim=2, samples=4)
    model = p.to("bert", tmp_path, slope=0.25)
    x, y = data(n)
    got = model.read(hidden(model, model.prompt(x, y)))
    assert set(got) == {"each", "all"}
    assert got["each"].shape == (n,)  # the number of samples is that of tokens
    assert float((got["each"] - 0.25 * y * y).abs().max()) <= 1e-12
    assert float((got["all"] - y.mean()).abs()) <= 1e-12


def test_a_stream_of_another_length_is_refused(squares):
    stream = squares.prompt(*data())
    with pytest.raises(ice.errors.ShapeError, match="no prompt of 'least_squares' has"):
        squares.read(stream[:, :-1])


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("gpt2", {"mode": "prompt"}, "a causal mask hides"),
        ("llama", {"mode": "weights", "dtype": "float32"}, "which a causal mask hides"),
        ("llama", {}, "write it in float32"),
        ("gpt2", {"cycles": 9}, "are for mode"),
        ("gpt3", {}, "no target is called 'gpt3'"),
        ("albert", {"dtype": "bfloat16"}, "float64 or float32"),
        ("bert", {"cycles": 10**6}, "an albert holds repeated layers once"),
    ],
)
def test_what_cannot_be_is_refused_and_says_why(name, given, why, tmp_path):
    with pytest.raises(ice.errors.TargetError, match=why):
        program("least_squares").to(name, tmp_path / "no", **given)
    assert not (tmp_path / "no").exists()


def test_a_loop_that_ends_by_the_data_must_be_given_cycles(tmp_path):
    with pytest.raises(ice.errors.TargetError, match="give cycles="):
        program("nearest_neighbours").to("albert", tmp_path / "no")


def test_a_setting_that_is_none_is_refused(tmp_path):
    with pytest.raises(ice.errors.ProgramError, match="no parameter"):
        program("least_squares").to("albert", tmp_path / "no", rate=0.1)


def test_programs_are_no_prompts_of_an_algorithm_in_the_weights(tmp_path):
    with pytest.raises(ice.errors.ProgramError, match=r"program\.to for compiled programs"):
        targets.write("albert", program("least_squares"), tmp_path)
    other = targets.write("gpt2", targets.LinearDescent(2, 2, positions=8), tmp_path)
    with pytest.raises(ice.errors.TargetError, match="in its weights"):
        targets.StockProgram(other, program("least_squares"))


def assert_one_file_runs(names, folder, architecture="albert", **given):
    """One weights file runs all of these programs, as exactly as was known before the fact."""
    programs = {name: of_library(name) for name in names}
    first, *others = programs.values()
    model = first.to(architecture, folder / "model", beside=others, **given)
    assert [path.name for path in model.path.glob("*.safetensors")] == ["model.safetensors"]
    each = {name: model.holding(p, **two_turns(CASES[name])) for name, p in programs.items()}
    for name, distance in enclosed_alone(each, CASES, folder).items():
        one = each[name]
        before = one.program.certify(backend="literal", **one.settings)[0].error
        assert distance <= min(before, 1e-8), (name, distance, before)


@pytest.mark.parametrize("architecture", ["albert", pytest.param("bert", marks=pytest.mark.slow)])
def test_two_programs_on_one_weights_file(architecture, tmp_path):
    names = ("softmax_attention", "kernel_regression")
    assert_one_file_runs(names, tmp_path, architecture)


@pytest.mark.slow
def test_twenty_programs_on_one_weights_file(tmp_path):
    assert len(set(LIBRARY)) == 20
    assert_one_file_runs(LIBRARY, tmp_path, cycles=LIBRARY_CYCLES)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["albert", pytest.param("bert", marks=pytest.mark.slow)])
def test_a_folder_of_given_cycles_runs_a_program(name, attention, tmp_path):
    p = program("kernel_regression")
    model = p.to(name, tmp_path, mode="prompt", cycles=9)
    found = ice.check(model.path, *data(), attention=attention, program=p)
    assert found.ok
    assert found.enclosure.error <= 1e-12
    assert float((found.value - p.reference(*data())).abs().max()) <= 1e-8


def test_a_wrong_answer_is_enclosed_as_such(squares):
    x, y = data()
    right, given = descent(x, y, 0.5), {"program": squares.program, "steps": 2}
    promise, measured, proof = squares.spec.judge(right + 1e-3, x, y, "eager", **given)
    assert promise.error < 0.99e-3 <= measured == proof.error <= 1.01e-3
    _, measured, proof = squares.spec.judge(right * torch.nan, x, y, "eager", **given)
    assert measured == proof.error == float("inf")


def test_more_samples_than_the_layers_hold_are_refused():
    spec = targets.LayeredProgram.of(program("least_squares"), {"steps": 1})
    with pytest.raises(ice.errors.CapacityError, match=r"5 samples .* layers hold 4"):
        spec.prompt(*data(5), program=program("least_squares"), steps=1)


def test_a_program_is_required(squares):
    with pytest.raises(ice.errors.ProgramError, match="pass program="):
        squares.model.prompt(*data())


def test_a_descent_holds_no_other_program(tmp_path):
    model = program("ridge").to("gpt2", tmp_path, steps=2)
    with pytest.raises(ice.errors.TargetError, match="are the steps of ridge"):
        model.holding(program("least_squares"))


@pytest.mark.slow
def test_four_hundred_cycles(tmp_path):
    p = program("ridge")
    model = p.to("albert", tmp_path, cycles=420)
    found = ice.check(model.path, *data(), program=p, steps=50)
    assert found.enclosure.error <= 1e-12
