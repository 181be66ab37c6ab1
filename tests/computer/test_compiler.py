"""Compiled programs, level by level."""

import math

import mpmath
import pytest
import torch

import iceform as ice
from iceform.computer import Computer, library
from iceform.computer.compile import compile
from iceform.computer.instructions import FLAG
from iceform.computer.interpret import interpret
from iceform.computer.language import algorithm, attend, mean, repeat, soft_threshold, zeros_like
from iceform.errors import PrecisionError, PrecisionWarning
from tests.computer.random_programs import data

X, Y = data(3, 3, 8)


def turn(program):
    """The instructions of one turn of a program's loop, without counting."""
    head = next(i.address for i in program.assembly.instructions if i.when == 1)
    address, found = head, []
    while True:
        (i,) = (i for i in program.assembly.at(address) if i.when >= 0)
        if i.dst not in (FLAG, "turns", "void"):
            found.append(i)
        address = i.next
        if address == head:
            return found


def test_a_gradient_step_is_as_short_as_it_can_be():
    """Products, a look-up, and a sum; data are read with the sign that is wanted."""

    def descent(rate, lr):
        def written(x, y, *, steps=5):
            w = zeros_like(x)
            for _ in repeat(steps):
                w = w - lr * mean(x * rate((x * w).sum() - y))
            return w

        return compile(algorithm(written), 3, 8, bounds={"w": 2.0})

    assert len(turn(descent(lambda z: z, 0.5))) == 3
    assert len(turn(descent(torch.tanh, 0.5))) == 4


def test_a_soft_threshold_by_a_table_is_one_instruction():
    threshold = algorithm(lambda x, y, *, t=0.2: soft_threshold(mean(x), t))
    for eps, instructions in ((1e-4, 1), (1e-8, 9)):
        program = compile(threshold, 3, 8, eps=eps)
        assert len([i for i in program.assembly.instructions if not i.halts]) == instructions


def test_attention_is_two_instructions():
    program = compile(algorithm(lambda x, y: attend(mean(x), x, x)), 3, 8)
    assert len([i for i in program.assembly.instructions if not i.halts]) == 2


def test_parameters_are_data():
    """Other settings change what is written, and no instruction, variable or table."""
    program = compile(library.ridge, 3, 8, bounds={"w": 4.0})
    for settings in ({}, {"lr": 0.25, "alpha": 0.02}, {"steps": 3}, {"steps": 0}):
        exact = program.reference(X, Y, **settings)
        found = program.interpreted(X, Y, **settings)
        torch.testing.assert_close(found.outputs["value"], exact, rtol=0, atol=1e-12)
    sources = {w.source for v in program.assembly.variables for w in v.writes}
    assert {"lr", "alpha", "steps", "x", "y"} <= sources


def test_every_level_computes_the_same():
    program = compile(library.logistic, 3, 8, bounds={"w": 4.0})
    y = (Y > 0).double()
    exact = program.reference(X, y)
    torch.testing.assert_close(program.traced(X, y), exact, rtol=0, atol=0)
    instructions = program.interpreted(X, y, exact=True).outputs["value"]
    torch.testing.assert_close(instructions, exact, rtol=0, atol=1e-13)
    tables = program.interpreted(X, y).outputs["value"]
    torch.testing.assert_close(tables, exact, rtol=0, atol=1e-9)
    enclosed = program.enclosed(X, y, {"value": tables})
    assert float((tables - exact).abs().max()) <= enclosed.distance + 1e-15
    assert enclosed.distance <= program.eps


@pytest.mark.parametrize("name", ["pi", "e"])
def test_names_of_numbers_are_not_the_nearest_float64(name):
    scaled = ice.Formula(f"1e3*{name}*z")
    program = compile(algorithm(lambda x: mean(scaled(x[0]))), 1, 1)
    with mpmath.workdps(40):
        exact = 1000 * getattr(mpmath, name)
        typed = 1000 * mpmath.mpf(getattr(math, name))
        near = float(exact)
        off, believed = float(abs(exact - near)), float(abs(typed - near))
    assert abs(off - believed) > 1e-14
    one = torch.ones(1, 1, dtype=torch.float64)
    found = program.enclosed(one, None, {"value": torch.tensor(near, dtype=torch.float64)})
    assert found.distance == pytest.approx(off, abs=1e-16)


def test_balls_notice_an_answer_that_is_off():
    program = compile(library.least_squares, 3, 8, bounds={"w": 4.0})
    found = program.interpreted(X, Y).outputs["value"]
    off = found + torch.tensor([0.0, 1e-6, 0.0])
    assert program.enclosed(X, Y, {"value": found}).distance < 1e-12
    assert program.enclosed(X, Y, {"value": off}).distance == pytest.approx(1e-6, rel=1e-5)


def test_a_table_that_is_shifted_shows_in_the_answer():
    program = compile(library.logistic, 3, 8, bounds={"w": 4.0})
    assembly, y = program.assembly, (Y > 0).double()
    table = next(t for t in assembly.tables if t.exact_f and "sigmoid" in t.exact_f.name)
    parameters = program.parameters()
    before = interpret(assembly, X, y, parameters).outputs["value"]
    table.f.add_(1e-3)
    after = interpret(assembly, X, y, parameters).outputs["value"]
    table.f.sub_(1e-3)
    w = torch.zeros(3).double()
    for _ in range(60):
        w = w - ((X * (torch.sigmoid(X @ w) + 1e-3 - y)[:, None]).mean(0) + 0.1 * w)
    torch.testing.assert_close(after, w, rtol=0, atol=1e-9)
    assert float((after - before).abs().max()) > 1e-4


def test_a_wider_machine_computes_the_same():
    def written(x, y, *, steps=2):
        w = zeros_like(x) + 0.5
        for _ in repeat(steps):
            w = torch.sigmoid(w + mean(x)) - 0.1
        return {"sum": (w + 1.0).sum(), "like": attend(w, x, x)}

    program = compile(algorithm(written), 3, 8)
    exact = program.reference(X, Y)
    for extra in (0, 1, 5):
        found = program.interpreted(X, Y, width=program.assembly.width + extra).outputs
        for name, value in exact.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-8)


@pytest.mark.parametrize("curve", ["torch.sqrt(x)", "x * torch.sqrt(x)", "torch.expm1(x)"])
def test_what_lies_beyond_a_vector_adds_nothing(curve):
    """The table of a root on [1, 2] has no entry for 0: it gave 1 there, which was added up."""
    scope = {"torch": torch, "algorithm": algorithm}
    exec(f"@algorithm\ndef added(x, y):\n    return ({curve}).sum()", scope)
    added = scope["added"]
    program = compile(added, 3, 5, {"x": (1.0, 2.0)})
    x, y = data(0, 3)
    X = 1.5 + 0.5 * x
    for width in (3, 4, 8):
        found = program.interpreted(X, y, width=width).outputs["value"]
        assert float((found - added(X, y)).abs().max()) < program.certificate.error < 1e-7


def test_before_the_fact_the_error_of_a_short_program_is_proven():
    def written(x, y):
        return torch.tanh((x * mean(x)).sum() - y)

    program = compile(algorithm(written), 3, 8)
    certificate = program.certificate
    assert certificate.error <= program.eps
    for seed in range(20):
        a, b = data(seed, 3, 8)
        off = program.interpreted(a, b).outputs["value"] - program.reference(a, b)
        assert float(off.abs().max()) <= certificate.error


@pytest.mark.parametrize("name", ["least_squares", "ridge", "logistic"])
def test_before_the_fact_a_contraction_is_followed_in_its_norm(name):
    """Fifty steps and more, for all data: not a product of fifty derivatives' bounds."""
    program = compile(library.ALGORITHMS[name], 3, 8, bounds={"w": 4.0})
    assert program.certificate.error <= 1e-8
    for seed in range(5):
        a, b = data(seed, 3, 8)
        off = program.interpreted(a, b).outputs["value"] - program.reference(a, b)
        assert float(off.abs().max()) <= program.certificate.error


def test_a_step_that_is_too_long_is_no_contraction():
    def descent(lr):
        def written(x, y, *, steps=40):
            w = zeros_like(x)
            for _ in repeat(steps):
                w = w - lr * mean(x * ((x * w).sum() - y))
            return w

        program = compile(algorithm(written), 3, 8, bounds={"w": 4.0})
        return program.certify(backend="literal")[0].error

    assert descent(0.65) < 1e-9
    assert descent(0.7) > 5 * descent(0.65)  # 1.1 a turn
    assert descent(1.5) > 1.0


def test_a_run_has_the_bound_from_before_and_the_distance_of_its_answer():
    program = compile(library.ridge, 3, 8, bounds={"w": 4.0})
    computer = ice.Computer.for_programs([program])
    result = computer.run(program, X, Y, backend="fused", steps=7)
    before = program.certify(backend="fused", steps=7)[0]
    assert isinstance(result.certificate, ice.Certificate)
    assert not isinstance(result.certificate, ice.Enclosure)
    assert isinstance(result.enclosure, ice.Enclosure)
    assert not isinstance(result.enclosure, ice.Certificate)
    assert result.certificate.to_dict() == before.to_dict()
    assert result.certificate.domain["turns"] == "7"
    off = float((result.value - program.reference(X, Y, steps=7)).abs().max())
    assert off - 1e-15 <= result.enclosure.error < result.certificate.error
    assert result.enclosure.statement in repr(result)
    assert result.enclosure.statement in result.explain()


def test_a_smooth_curve_on_a_wide_range_has_a_table():
    """Sizes that bring little are followed by one that does."""
    with pytest.warns(PrecisionWarning, match="off by 2e-08 .* eps = 1e-08"):
        program = compile(algorithm(lambda x, y: torch.sigmoid(96.0 * mean(y))), 1, 4)
    assert program.certificate.error <= 1e-4


def test_explain_names_lines_tables_and_errors():
    program = compile(library.lasso, 3, 8, bounds={"w": 4.0})
    text = program.explain()
    assert "w = soft_threshold(w - lr" in text
    assert "side of a kink" in text
    for part in ("(halt)", "rounding", "w in [-4, 4] (you say)"):
        assert part in text
    assert program.plan["instructions"] == len(program.assembly.instructions)


@pytest.mark.parametrize("seed", range(0, 1000, 50))
def test_a_loop_stops_at_the_right_turn(seed):
    program = _bisected()
    a, b = data(seed, 1, 6)
    exact = program.reference(a, b)
    found = program.interpreted(a, b)
    assert float(found.outputs["turns"].round()) == float(exact["turns"])
    enclosed = program.enclosed(a, b, found.outputs)
    assert enclosed.turns == int(exact["turns"])
    assert enclosed.distance <= 1e-9


@pytest.mark.slow
def test_a_loop_stops_at_the_right_turn_for_a_thousand_data_sets():
    refused = 0
    for seed in range(1000):
        try:
            test_a_loop_stops_at_the_right_turn(seed)
        except PrecisionError:
            refused += 1
    assert refused <= 10


def turned(backend, seeds):
    """How often the loop went round on the computer, one problem a seed, and should have."""
    program = _bisected()
    X, y = (torch.stack(part) for part in zip(*(data(seed, 1, 6) for seed in seeds), strict=True))
    computer = Computer.for_programs([program])
    ran = computer.execute(computer.prompt(program, X, y), backend=backend)
    exact = [program.reference(a, b)["turns"] for a, b in zip(X, y, strict=True)]
    return ran.outputs["turns"].round(), torch.stack(exact).round()


def test_every_problem_of_a_batch_stops_at_its_own_turn():
    """On the frozen block, which runs until all have come to their halt."""
    for backend, seeds in (("literal", range(16)), ("fused", range(200))):
        found, exact = turned(backend, seeds)
        assert torch.equal(found, exact)
    assert len(exact.unique()) > 1


@pytest.mark.slow
def test_a_thousand_problems_stop_at_their_own_turns():
    for backend, size in (("literal", 50), ("fused", 1000)):
        for first in range(0, 1000, size):
            found, exact = turned(backend, range(first, first + size))
            assert torch.equal(found, exact), f"{backend}, from seed {first}"


_KEPT = {}


def _bisected():
    """Newton's root of the mean square: stops when a turn changes little."""

    def written(x, y):
        square = 1.0 + mean(y * y)
        root, change, turns = ice.constant(1.5), ice.constant(1.0), ice.constant(0.0)
        while ice.while_(abs(change) > 0.001):
            new = 0.5 * (root + square * ice.reciprocal(root, 0.5, 2.0))
            change = ice.bounded(new - root, 1.0)
            root = ice.bounded(new, 0.5, 2.0)
            turns = turns + 1
        return {"root": root, "turns": turns}

    if "bisected" not in _KEPT:
        _KEPT["bisected"] = compile(algorithm(written), 1, 6)
    return _KEPT["bisected"]


@pytest.mark.parametrize("name", ["bisection", "conjugate_gradients", "newton_logistic"])
def test_compiling_again_gives_the_same_prompt(name):
    """Nothing depends on where objects happen to lie in memory."""
    first, *others = (library.EXAMPLES[name].compile().assembly for _ in range(4))
    for other in others:
        assert other.instructions == first.instructions
        assert other.variables == first.variables
        for a, b in zip(first.tables, other.tables, strict=True):
            assert a.name == b.name
            assert torch.equal(torch.stack([a.f, a.g]), torch.stack([b.f, b.g]))


def test_a_state_that_takes_another_s_value_takes_the_one_before_the_turn():
    """Though the value is needed in a register, and the other state's is written first."""

    @algorithm
    def handed_on(x, y, *, steps=3):
        a, b, c = mean(x * y), 0.5 * mean(x), mean(y)
        for _ in repeat(steps):
            old = ice.bounded(a, -2.0, 2.0)
            both = ice.concat(old, c)
            c = 0.5 * c + 0.1 * (both @ both)
            a, b = 0.5 * a + 0.1 * b, old
        return {"a": a, "b": b, "c": c}

    generator = torch.Generator().manual_seed(0)
    X, y = (torch.rand(5, *more, generator=generator, dtype=torch.float64) for more in ((2,), ()))
    program = compile(handed_on, 2, 5)
    found, meant = program.interpreted(X, y).outputs, program.reference(X, y)
    off = max(float((found[name] - meant[name]).abs().max()) for name in meant)
    assert off <= program.certificate.error < 1e-10
