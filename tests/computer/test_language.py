"""Algorithms on tensors: what the words of the language mean."""

import pytest
import torch
from torch.nn import functional as F

import iceform as ice
from iceform.computer.graph import Exact, run
from iceform.computer.language import (
    algorithm,
    apply,
    attend,
    concat,
    constant,
    maximum,
    mean,
    repeat,
    soft_threshold,
    vector,
    where,
    while_,
    zeros_like,
)
from tests.computer.random_programs import data

X, Y = data(7, 3, 6)


def both(written, **settings):
    """The answers of a function run on tensors and of its graph, as dicts."""
    made = algorithm(written)
    direct = made(X, Y, **settings)
    given = {"x": X, "y": Y[:, None], **made.values(3, settings)}
    graph = made.graph(3)
    traced = run(graph, Exact(len(X)), lambda node: given[node.attr])
    for name, value in traced.items():
        wanted = direct[name] if isinstance(direct, dict) else direct
        shown = value[..., 0] if graph.outputs[name].width is None else value
        torch.testing.assert_close(shown, wanted, rtol=0, atol=0)
    return direct


def test_a_sample_is_one_row_and_the_rest_is_one_for_all():
    def written(x, y, *, lr=0.5):
        return {"each": (2 * x - y).sum() + lr, "all": mean(x * y), "one": (mean(x) ** 2).sum()}

    found = both(written, lr=0.25)
    torch.testing.assert_close(found["each"], (2 * X - Y[:, None]).sum(1) + 0.25)
    torch.testing.assert_close(found["all"], (X * Y[:, None]).mean(0))
    torch.testing.assert_close(found["one"], (X.mean(0) ** 2).sum())


def test_torchs_names_formulas_and_functions():
    formula = ice.Formula.parse("log(cosh(z)) + z^2/3")

    def written(x, y):
        return {
            "torch": torch.tanh(x) + torch.maximum(y, mean(y)) - torch.clamp(y, -0.5, 0.25),
            "formula": formula(y) + apply(formula, 2 * y),
            "own": apply(lambda v: torch.exp(-v) / (1 + v * v), y),
            "abs": abs(y) + 1 / (3 + y) - y**3,
        }

    found = both(written)
    y = Y[:, None]
    expected = torch.tanh(X) + torch.maximum(y, y.mean()) - y.clamp(-0.5, 0.25)
    torch.testing.assert_close(found["torch"], expected)
    torch.testing.assert_close(found["formula"], formula(Y) + formula(2 * Y))
    torch.testing.assert_close(found["own"], torch.exp(-Y) / (1 + Y * Y))
    torch.testing.assert_close(found["abs"], Y.abs() + 1 / (3 + Y) - Y**3)


def test_methods_are_torchs_functions_and_vectors_have_parts():
    def written(x):
        a, b, c = x
        return {
            "methods": (x + 2).sqrt().clamp(max=1.5) + x.abs().square() - x.erf(),
            "activations": F.gelu(x) + F.silu(3 * x) + F.logsigmoid(x),
            "parts": a * b - c + x[1:].sum() + x[::2].mean() / len(x),
            "norm": torch.linalg.norm(x) + x.norm() + x.dot(x),
        }

    found = both(written)
    methods = (X + 2).sqrt().clamp(max=1.5) + X.abs().square() - X.erf()
    torch.testing.assert_close(found["methods"], methods)
    torch.testing.assert_close(found["activations"], F.gelu(X) + F.silu(3 * X) + F.logsigmoid(X))
    a, b, c = X.T
    torch.testing.assert_close(found["parts"], a * b - c + b + c + (a + c) / 6)
    norm = torch.linalg.norm(X, dim=1)
    torch.testing.assert_close(found["norm"], 2 * norm + norm**2)


def test_an_algorithm_of_x_alone_takes_no_targets_and_one_of_both_asks_for_them():
    alone = algorithm(lambda x: mean(x * x))
    program = ice.compile(alone, dim=3, samples=7)
    computer = ice.Computer.for_programs([program])
    result = computer.run(program, X)
    assert float((result.value - (X * X).mean(0)).abs().max()) <= result.enclosure.error + 1e-15
    assert torch.equal(computer.run(program, X, 9 * Y).value, result.value)  # as if there were none
    assert torch.equal(program.reference(X), alone(X, Y))
    both = ice.compile(algorithm(lambda x, y: mean(x * y)), dim=3, samples=7)
    for call in (both.algorithm, both.reference, lambda x: computer.run(both, x)):
        with pytest.raises(ice.errors.ShapeError, match="none were given"):
            call(X)


def test_turns_have_numbers():
    def written(x, y, *, steps=4):
        w, total = zeros_like(x), constant(0.0)
        for i in repeat(steps):
            w = w + mean(x * y) / (1.0 + i)
            for j in repeat(3):
                total = total + i * j
        for i in repeat(2):
            total = total - 100.0 * i
        return {"w": w, "total": total}

    found = both(written)
    torch.testing.assert_close(found["w"], (X * Y[:, None]).mean(0) * (1 + 1 / 2 + 1 / 3 + 1 / 4))
    assert float(found["total"]) == (0 + 1 + 2 + 3) * (0 + 1 + 2) - 100.0
    program = ice.compile(algorithm(written), dim=3, samples=7, bounds={"total": 128.0})
    numbers = [a.name for a in program.ranges.assumed.values()]
    assert "turn" not in numbers  # known, not assumed
    result = ice.Computer.for_programs([program]).run(program, X, Y, steps=6)
    exact = program.reference(X, Y, steps=6)
    for name, value in result.parts.items():
        error = float((value - exact[name]).abs().max())
        assert error <= result.enclosure.error + 1e-13
    assert result.enclosure.error < 1e-8


def test_a_turns_number_that_nothing_reads_costs_nothing():
    def counted(x, y, *, steps=4):
        w = zeros_like(x)
        for i in repeat(steps):
            w = w + mean(x * y)
            i + 1.0
        return w

    def plain(x, y, *, steps=4):
        w = zeros_like(x)
        for _ in repeat(steps):
            w = w + mean(x * y)
        return w

    of = [ice.compile(algorithm(f), dim=3, samples=7).plan for f in (counted, plain)]
    assert of[0] == of[1]


def test_comparisons_choose():
    def written(x, y):
        high = (y > 0.1) & (mean(y) < 2.0)
        return {"where": where(high, y, -2 * y), "either": where((y > 0.5) | (y < -0.5), 1.0, y),
                "not": where(~(y > 0.0), y * 0.0, y)}  # fmt: skip

    found = both(written)
    torch.testing.assert_close(found["where"], torch.where(Y > 0.1, Y, -2 * Y))
    torch.testing.assert_close(found["either"], torch.where(Y.abs() > 0.5, 1.0, Y))
    torch.testing.assert_close(found["not"], Y.clamp(min=0))


def test_attention_over_the_samples():
    def written(x, y, *, q=vector(0.3)):  # noqa: B008 - a default that says what x is like
        return {"one": attend(q, x, y), "each": attend(2 * x, x, x), "bias": attend(q, x, x, 3 * y)}

    found = both(written)
    q = torch.full((3,), 0.3).double()
    torch.testing.assert_close(found["one"], torch.softmax(X @ q, 0) @ Y)
    torch.testing.assert_close(found["each"], torch.softmax(2 * X @ X.T, 1) @ X)
    torch.testing.assert_close(found["bias"], torch.softmax(X @ q + 3 * Y, 0) @ X)


def test_components_and_vectors_side_by_side():
    def written(x, y):
        wide = concat(x, y, x[2])
        return {"wide": wide, "last": wide[-1] + wide[3]}

    found = both(written)
    torch.testing.assert_close(found["wide"], torch.cat([X, Y[:, None], X[:, 2:]], 1))
    torch.testing.assert_close(found["last"], X[:, 2] + Y)


def test_a_counted_loop_carries_what_changes():
    def written(x, y, *, steps=4):
        w, before, grown = zeros_like(x), zeros_like(x), constant(1.0)
        for _ in repeat(steps):
            before = w
            w = w - 0.5 * mean(x * ((x * w).sum() - y))
            grown = 2 * grown
        return {"w": w, "before": before, "grown": grown}

    found = both(written, steps=3)
    w = before = torch.zeros(3).double()
    for _ in range(3):
        before, w = w, w - 0.5 * (X * (X @ w - Y)[:, None]).mean(0)
    torch.testing.assert_close(found["w"], w)
    torch.testing.assert_close(found["before"], before)
    assert float(found["grown"]) == 8


def test_loops_in_loops_and_states_in_lists():
    def written(x, y, *, steps=3):
        pair = [mean(y), mean(x)]
        for _ in repeat(steps):
            inner = constant(0.0)
            for _ in repeat(2):
                inner = inner + pair[0]
            pair[0] = 0.5 * inner + 0.1
            pair[1] = pair[1] * pair[0]
        return {"scalar": pair[0], "vector": pair[1]}

    found = both(written)
    scalar, expected = Y.mean(), X.mean(0)
    for _ in range(3):
        scalar = scalar + 0.1
        expected = expected * scalar
    torch.testing.assert_close(found["scalar"], scalar)
    torch.testing.assert_close(found["vector"], expected)


def test_a_loop_that_stops_by_itself_and_one_that_never_starts():
    def written(x, y, *, tolerance=0.1):
        size, turns, idle = 1.0 + mean(y) ** 2, constant(0.0), constant(5.0)
        while while_(size > tolerance):
            size, turns = size / 2, turns + 1
        while while_(idle < 0.0):
            idle = idle - 1
        return {"size": size, "turns": turns, "idle": idle}

    found = both(written, tolerance=0.3)
    size, turns = 1 + Y.mean() ** 2, 0
    while size > 0.3:
        size, turns = size / 2, turns + 1
    torch.testing.assert_close(found["size"], size)
    assert (float(found["turns"]), float(found["idle"])) == (turns, 5.0)


def test_a_soft_threshold_is_what_it_is_called():
    def written(x, y, *, t=0.2):
        return soft_threshold(x, t) + maximum(y, 0.0) * 0.0

    found = both(written)
    torch.testing.assert_close(found, X.sign() * (X.abs() - 0.2).clamp(min=0))


def test_a_state_takes_the_widest_shape_of_its_turns():
    def written(x, y, *, steps=2):
        w, each = constant(0.5), constant(0.0)
        for _ in repeat(steps):
            w = 0.5 * w + mean(x)
            each = 0.5 * each + y
        return {"w": w.sum(), "each": each}

    found = both(written)
    w = torch.full((3,), 0.5).double()
    for _ in range(2):
        w = 0.5 * w + X.mean(0)
    torch.testing.assert_close(found["w"], w.sum())
    torch.testing.assert_close(found["each"], 1.5 * Y)
