"""program.to: a compiled program as a stock folder, in its prompt or as its layers."""

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

MODES = {"prompt": ("albert", {}), "weights": ("bert", {"mode": "weights"})}
SINGLE = sorted(set(LIBRARY) - {"conjugate_gradients", "value_iteration", "kalman_filter"})


def program(name):
    return ice.compile(ALGORITHMS[name], dim=2, samples=4)


def written(p, mode, folder, **given):
    name, more = MODES[mode]
    return p.to(name, folder, **more, **given)


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


@pytest.fixture(scope="module", params=MODES)
def squares(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("to") / "new"
    return written(program("least_squares"), request.param, folder, steps=2)


@pytest.fixture(scope="module")
def layered(tmp_path_factory):
    return written(program("least_squares"), "weights", tmp_path_factory.mktemp("layered"), steps=2)


# ---------------------------------------------------------------------------------- either way


@pytest.mark.parametrize("n", [1, 3, 4])
def test_descent_for_any_number_of_samples_and_any_step_size(squares, n):
    x, y = data(n)
    for lr in (0.2, 0.4):
        got = squares.read(hidden(squares, squares.prompt(x, y, lr=lr)))
        assert got.shape == (2,)
        assert float((got - descent(x, y, lr)).abs().max()) <= 1e-12


@pytest.mark.parametrize("squares", ["prompt"], indirect=True)
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


@pytest.mark.parametrize("mode", MODES)
def test_float32(mode, tmp_path):
    model = written(program("least_squares"), mode, tmp_path, dtype="float32", steps=4)
    assert model.check(*data(), within=1e-5).ok


def test_a_wrong_answer_is_enclosed_as_such(squares):
    x, y = data()
    right, given = descent(x, y, 0.5), {"program": squares.program, "steps": 2}
    promise, measured, proof = squares.spec.judge(right + 1e-3, x, y, "eager", **given)
    assert promise.error < 0.99e-3 <= measured == proof.error <= 1.01e-3
    _, measured, proof = squares.spec.judge(right * torch.nan, x, y, "eager", **given)
    assert measured == proof.error == float("inf")


def test_more_turns_than_layers_are_refused(squares):
    with pytest.raises(ice.errors.ProgramError, match=r"not at its halt|turns of loops are in the"):
        squares.read(hidden(squares, squares.prompt(*data(), steps=3)))


def test_a_stream_of_another_length_is_refused(squares):
    stream = squares.prompt(*data())
    other = stream[:, :-1] if squares.spec.kind == "computer" else torch.cat([stream, stream], 1)
    with pytest.raises(ice.errors.ShapeError, match=r"no prompt of '?least_squares'? has"):
        squares.read(other)


def test_a_program_is_required(squares):
    with pytest.raises(ice.errors.ProgramError, match="pass program="):
        squares.model.prompt(*data())


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


WEIGHTS = {"mode": "weights"}


@pytest.mark.parametrize(
    ("algorithm", "name", "given", "why"),
    [
        ("least_squares", "gpt2", {"mode": "prompt"}, "a causal mask hides"),
        ("least_squares", "gpt2", WEIGHTS, "a causal mask hides"),
        ("least_squares", "llama", {**WEIGHTS, "dtype": "float32"}, "which a causal mask hides"),
        ("least_squares", "llama", {}, "write it in float32"),
        ("least_squares", "gpt2", {"cycles": 9}, "are for mode"),
        ("least_squares", "gpt3", {}, "no target is called 'gpt3'"),
        ("least_squares", "albert", {"dtype": "bfloat16"}, "float64 or float32"),
        ("least_squares", "bert", {"cycles": 10**6}, "an albert holds repeated layers once"),
        ("least_squares", "albert", WEIGHTS, "its layers are all the same"),
        ("least_squares", "bert", {**WEIGHTS, "cycles": 9}, "cycles= and beside="),
        ("least_squares", "bert", {"mode": "layers"}, '"descent" or "full_batch"'),
        ("nearest_neighbours", "albert", {}, "give cycles="),
        ("nearest_neighbours", "bert", WEIGHTS, 'write mode="prompt" with cycles='),
    ],
)
def test_what_cannot_be_is_refused_and_says_why(algorithm, name, given, why, tmp_path):
    with pytest.raises(ice.errors.TargetError, match=why):
        program(algorithm).to(name, tmp_path / "no", **given)
    assert not (tmp_path / "no").exists()


def test_a_setting_that_is_none_is_refused(tmp_path):
    with pytest.raises(ice.errors.ProgramError, match="no parameter"):
        program("least_squares").to("albert", tmp_path / "no", rate=0.1)


def test_programs_are_no_prompts_of_an_algorithm_in_the_weights(tmp_path):
    with pytest.raises(ice.errors.ProgramError, match=r"program\.to for compiled programs"):
        targets.write("albert", program("least_squares"), tmp_path)
    other = targets.write("gpt2", targets.LinearDescent(2, 2, positions=8), tmp_path)
    with pytest.raises(ice.errors.TargetError, match="in its weights"):
        targets.StockProgram(other, program("least_squares"))


def test_a_descent_holds_no_other_program(tmp_path):
    model = program("ridge").to("gpt2", tmp_path, steps=2)
    with pytest.raises(ice.errors.TargetError, match="are the steps of ridge"):
        model.holding(program("least_squares"))


# --------------------------------------------------------------------------------- in the prompt


def test_a_program_is_as_deep_as_its_settings_take(tmp_path):
    model = program("least_squares").to("albert", tmp_path, steps=2)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_hidden_layers"] == model.program.interpreted(*data(), steps=2).cycles


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


@pytest.mark.slow
def test_four_hundred_cycles(tmp_path):
    p = program("ridge")
    model = p.to("albert", tmp_path, cycles=420)
    found = ice.check(model.path, *data(), program=p, steps=50)
    assert found.enclosure.error <= 1e-12


# --------------------------------------------------------------------------------- as its layers


def test_two_layers_an_instruction_that_matters(layered):
    """Counting turns is what the layers do by being there."""
    cycles = layered.program.interpreted(*data(), steps=2).cycles
    assert len(layered.spec.design.layers) == 2 * len(layered.spec.lines) < 2 * cycles
    assert "FLAG" not in layered.spec.homes


def test_another_loss_of_the_same_shape_runs_on_the_same_weights(tmp_path):
    """Functions are tables of the prompt."""

    def bent(f):
        @ice.algorithm
        def each(x, y):
            return f(y)

        return ice.compile(each, dim=1, samples=4)

    given = {scale: bent(ice.Formula.parse(f"tanh({scale}*z)")) for scale in (0.5, 1.0)}
    model = written(given[1.0], "weights", tmp_path)
    assert targets.LayeredProgram.of(given[0.5], {}).entries < model.spec.entries
    y = torch.linspace(-0.9, 0.9, 4, dtype=torch.float64)
    for scale, p in given.items():
        held = model.holding(p)
        got = held.read(hidden(held, held.prompt(y[:, None], y)))
        assert float((got - torch.tanh(scale * y)).abs().max()) <= 1e-9
    with pytest.raises(ice.errors.CapacityError, match="needs entries"):
        model.holding(bent(ice.Formula.parse("tanh(9*z)"))).prompt(y[:, None], y)


def test_another_program_and_more_samples_are_refused(layered):
    with pytest.raises(ice.errors.ProgramError, match="layers are the instructions of least_sq"):
        layered.holding(program("ridge")).prompt(*data())
    with pytest.raises(ice.errors.CapacityError, match=r"5 samples .* layers hold 4"):
        layered.prompt(*data(5))


@pytest.mark.slow
def test_noise_does_not_grow_over_four_hundred_layers(tmp_path):
    """A feature that should be zero is disturbed at every token; it is gone at the end."""
    model = written(program("ridge"), "weights", tmp_path, steps=40)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "bound"),
    [(name, "float64", 1e-8) for name in LIBRARY] + [(name, "float32", 1e-4) for name in SINGLE],
)
def test_every_algorithm_of_the_library_where_iceform_is_not(name, dtype, bound, tmp_path):
    case = CASES[name]
    model = written(of_library(name), "weights", tmp_path / name, dtype=dtype, **two_turns(case))
    assert enclosed_alone({name: model}, CASES, tmp_path)[name] <= bound


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
    halves = ice.compile(halved, dim=1, samples=3).to("bert", tmp_path / "b")
    assert halves.spec.kind == "layered_program"
