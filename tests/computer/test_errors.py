"""What cannot be compiled is refused with the line that asks for it."""

import builtins
import linecache
import math
import re

import numpy
import pytest
import torch

from iceform.computer import Computer, language, samples
from iceform.computer.compile import compile
from iceform.computer.language import algorithm, bounded, constant, mean, repeat, where, while_
from iceform.computer.proofs import Balls, UndecidedError, _ties
from iceform.computer.samples import at
from iceform.errors import (
    BoundError,
    CapacityError,
    CompileError,
    PrecisionError,
    PrecisionWarning,
    ProgramError,
    ShapeError,
)
from iceform.expressions.formulas import Formula
from tests.computer.random_programs import data

BAD = "# here"


LINES = {
    "torch.erfinv(mean(y))": "erfinv is not a word",
    "attend(concat(mean(x), mean(y)), x, y)": "4 and 3",
    "mean(mean(x))": "one for all",
    "1 / mean(y)": "contains 0",
    "torch.log(mean(y) + 1)": "no bounded range",
    "apply(Formula('sign(z)'), mean(y))": r"jumps.*ice\.soft_threshold",
    "torch.softmax(y, 0)": r"a scalar.*ice\.attend",
    "torch.softmax(x, 1)": "one dimension",
    "torch.outer(x, x)": r"Matrices are of numbers.*ice\.mean\(x \* \(x @ v\)\)",
    "torch.sin(4000 * mean(y))": "too wide",
    "where(0.0 < y < 0.5, y, -y)": "a < b < c",
    "y / 0": "divides by 0",
    "x.median()": r"\.median is not a word",
    "torch.stack([x, x], 1)": "stack makes a vector, or a list of rows; got dim=1",
    "y.mean()": "goes over the samples",
    "len(y)": "a scalar",
    "x[3:]": "has no component",
    "x.sort() * mean(x)": r"\.sort is not a word.*did you mean sqrt",
    "x.reshape(1, 3)": "has no shape",
    "mean(x)[mean(x) > 0]": r"ice\.where\(v > 0, v, 0\.0\)",
    "(-2.0) ** mean(y)": "above 0",
    "numpy.heaviside.reduce(mean(x))": "no value to give",
    "numpy.median(mean(x))": "median is not a word",
    "torch.ones(2, 3) * mean(x)": "a matrix A is for A @ v",
    "torch.ones(5) * mean(x)": "vectors of",
    "f'{mean(y):.3f}'": "format",
    "attend(1.0, x, x)": "1 and 3",
    "attend(x, x, 'x')": "got str",
    "stored(1.0)": "stored takes a value of the program, got float",
    "bounded(1.0, 2.0)": "bounded takes a value of the program, got float",
    "at(x, 1.5)": "a sample by its number.*got 1.5",
    "at(x, torch.tensor(0.5))": "a sample by its number",
}
REFUSED = {
    line: (says, f"def written(x, y):\n    return {line}  # here") for line, says in LINES.items()
}
REFUSED |= {
    "a python if": (r"ice\.where", """
def written(x, y):
    if mean(y) > 0:  # here
        return mean(x)
    return -mean(x)
"""),
    "a sample by its number": ("reads sample j", """
def written(x, y, *, steps=3):
    w = zeros_like(x)
    for i in repeat(steps):
        w = w + 0.1 * y[i]  # here
    return w
"""),
    "a python while": (r"ice\.while_", """
def written(x, y):
    v = mean(y)
    while v > 0.1:  # here
        v = v / 2
    return v
"""),
    "a range of a traced number": (r"ice\.repeat", """
def written(x, y, *, steps=5):
    w = zeros_like(x)
    for _ in range(steps):  # here
        w = w + mean(x)
    return w
"""),
    "writing to a component": ("component 3 of a vector of 3", """
def written(x, y):
    v = mean(x)
    v[3] = 1.0  # here
    return v
"""),
    "writing to a scalar": ("no components", """
def written(x, y):
    v = mean(y)
    v[0] = 1.0  # here
    return v
"""),
    "shapes that do not fit": ("4 and of 3", """
def written(x, y):
    wide = concat(x, y)
    return mean(wide * x)  # here
"""),
    "a loop that grows without bound": ("no bounded range in this loop", """
def written(x, y, *, steps=100):
    w = mean(y) + 2.0
    for _ in repeat(steps):  # here
        w = 3 * w
    return w
"""),
    "a python number that counts": (r"ice\.constant", """
def written(x, y):
    w, turns = mean(x), 0
    for _ in repeat(3):  # here
        turns = turns + 1
        w = 0.5 * w
    return w * turns
"""),
    "two names for one value at the end of a turn": (r"write .* = \+", """
def written(x, y):
    a, b = mean(x), 2 * mean(x)
    for _ in repeat(3):  # here
        a = 0.5 * a
        b = a
    return a + b
"""),
    "a loop that is left early": ("left by break, return", """
def written(x, y, *, steps=5):
    w = mean(y)
    for _ in repeat(steps):  # here
        w = 0.5 * w
        break
    return w
"""),
    "a name that a loop takes": (r"w is a loop's own number", """
def written(x, y, *, steps=5):
    w = mean(y)
    for w in repeat(steps):  # here
        pass
    return w
"""),
    "a turn's number under another name": (r"write last = \+", """
def written(x, y, *, steps=5):
    last = constant(0.0)
    for i in repeat(steps):  # here
        last = i
    return last
"""),
    "a turn's number after the loop": ("the loop has ended", """
def written(x, y, *, steps=5):
    w = mean(y)
    for i in repeat(steps):
        w = 0.5 * w
    return w + i  # here
"""),
    "a name that prompts have for themselves": ("cannot be called samples", """
def written(x, y, *, samples=0.5):  # here
    return samples * y
"""),
}  # fmt: skip


@pytest.mark.parametrize(("says", "text"), REFUSED.values(), ids=REFUSED)
def test_refused_with_the_line(says, text, request):
    """The one that is marked."""
    file, lines = f"<{request.node.callspec.id}>", text.strip().splitlines(keepends=True)
    linecache.cache[file] = (len(text), None, lines, file)
    words = {n: getattr(language, n) for n in language.__all__}
    scope = {"torch": torch, "numpy": numpy, "at": at, "Formula": Formula, **words}
    exec(builtins.compile("".join(lines), file, "exec"), scope)
    with pytest.raises(CompileError, match=says) as caught:
        compile(algorithm(scope["written"]), 3, 5)  # type: ignore[arg-type]
    assert caught.value.line == 1 + next(i for i, line in enumerate(lines) if BAD in line)
    assert BAD in (caught.value.source or "")
    assert file in str(caught.value)


def test_a_loop_that_never_ends_is_given_up(monkeypatch):
    def written(x, y):
        w = mean(y)
        while while_(mean(y) < 2.0):
            w = 0.5 * w
        return w

    monkeypatch.setattr("iceform.computer.language.MOST_TURNS", 50)
    with pytest.raises(ProgramError, match="have made 50 turns"):
        algorithm(written)(*data(0, 3))


def test_a_range_that_comes_from_a_parameter_names_it():
    def written(x, y, *, decay=0.9):
        return torch.sqrt(1.0 - decay + 0.0 * mean(y))

    with pytest.raises(CompileError, match=r"it comes from decay in \[.*decay=\(low, high\)"):
        compile(algorithm(written), 3, 5)
    compile(algorithm(written), 3, 5, decay=(0.5, 0.95))


def test_too_many_variables():
    def written(x, y):
        kept = [y * (0.01 * k + mean(y)) for k in range(70)]
        total = sum((a * b for a, b in zip(kept, kept[::-1], strict=True)), 0.0)
        return mean(total)

    with pytest.raises(CompileError, match=r"variables at once.*alive here") as caught:
        compile(algorithm(written), 1, 2, eps=1.0)
    assert "kept" in (caught.value.source or "")
    assert __file__ in str(caught.value)


def test_a_name_set_inside_a_loop_and_read_after_it():
    def written(x, y):
        w = mean(x)
        for _ in repeat(3):
            half = 0.5 * w
            w = half + 0.1
        return half  # here

    with pytest.raises(CompileError, match="half is set inside a loop"):
        compile(algorithm(written), 3, 5)


def test_signatures():
    def three(x, y, z):
        return x

    def nothing(x, y, *, a):
        return x

    def optional(x, y=None):
        return x

    for wrong in (three, optional, lambda: 1.0, lambda *data: data[0]):
        with pytest.raises(CompileError, match="takes x, or x and y"):
            compile(algorithm(wrong), 3, 5)
    with pytest.raises(CompileError, match="default"):
        compile(algorithm(nothing), 3, 5)
    with pytest.raises(ProgramError, match=r"@ice\.algorithm"):
        compile(three, 3, 5)  # type: ignore[arg-type]


def test_returning_no_value():
    def written(x, y):
        return 3.0

    with pytest.raises(CompileError, match="returns values"):
        compile(algorithm(written), 3, 5)


def test_a_word_outside_an_algorithm():
    with pytest.raises(CompileError, match="belongs into an algorithm"):
        constant(1.0)


def test_a_computer_is_sized_for_programs():
    program = compile(algorithm(lambda x, y: mean(x * y)), 3, 5)
    assert Computer.for_programs(program) == Computer.for_programs([program])
    with pytest.raises(ProgramError, match="got none"):
        Computer.for_programs([])
    for wrong in (3, [program, "lasso"]):
        with pytest.raises(ProgramError, match="not a program"):
            Computer.for_programs(wrong)


def test_what_float64_or_memory_cannot_hold_and_what_are_no_numbers():
    square = algorithm(lambda x: mean(x * x))
    with pytest.raises(PrecisionError, match="float64 tells apart"):
        compile(square, 3, 5, eps=1e-30)
    with pytest.raises(CapacityError, match="fewer features"):
        compile(square, 10**9, 10**9)
    program = compile(square, 3, 5)
    for call in (
        square,
        program.reference,
        lambda x: Computer.for_programs(program).run(program, x),
    ):
        with pytest.raises(ProgramError, match="are numbers"):
            call("abc")


def test_settings_that_do_not_exist():
    def written(x, y, *, lr=0.5):
        return lr * mean(x)

    made = algorithm(written)
    X, y = data(0, 3)
    with pytest.raises(ProgramError, match="no parameter 'rate'"):
        made(X, y, rate=0.1)
    with pytest.raises(ProgramError, match="no parameter 'rate'"):
        compile(made, 3, 5, rate=(0, 1))
    with pytest.raises(ShapeError, match="a number"):
        made(X, y, lr=[1.0, 2.0])
    with pytest.raises(CompileError, match="the loops of this algorithm carry"):
        compile(made, 3, 5, bounds={"w": 1.0})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"domain": float("inf")}, "range of x must be"),
        ({"domain": {"z": 1.0}}, "x and y, got one of 'z'"),
        ({"lr": (0.9, 0.1)}, "range of lr must be"),
        ({"eps": 0.0}, "eps must be positive"),
        ({"run": {"steps": 2.5}}, "whole number of turns"),
        ({"run": {"steps": "3"}}, "are numbers"),
        ({"run": {"lr": 50.0}}, r"lr has the value 50, outside \[0.03125, 1\]"),
    ],
)
def test_what_is_passed_is_checked(wrong, says):
    """At the border; before the fact too, where a bound of other parameters would be none."""

    def written(x, y, *, lr=0.5, steps=3):
        w = mean(y)
        for _ in repeat(steps):
            w = w - lr * w
        return w

    given = wrong.pop("run", {})
    with pytest.raises((BoundError, ProgramError), match=says):
        compile(algorithm(written), 1, 5, **wrong).certify(**given)
    if given:
        program = compile(algorithm(written), 1, 5)
        with pytest.raises((BoundError, ProgramError), match=says):
            Computer.for_programs([program]).run(program, *data(0, 1), **given)


def test_data_outside_the_domain():
    program = compile(algorithm(lambda x, y: mean(x)), 3, 5)
    X, y = data(0, 3)
    with pytest.raises(BoundError, match="X has the value 3"):
        program.domain.check(3 + 0 * X, y, {})


def test_a_bound_that_does_not_hold_is_noticed_by_balls():
    def written(x, y):
        return 2 * bounded(mean(y), 0.01)

    program = compile(algorithm(written), 3, 5)
    X, y = torch.zeros(5, 3).double(), torch.full((5,), 0.5).double()
    found = program.interpreted(X, y).outputs
    with pytest.raises(BoundError, match="widen the bound"):
        program.enclosed(X, y, found)


@pytest.mark.parametrize("backend", ["literal", "fused"])
def test_values_beyond_what_masks_cover_are_refused_alike(backend):
    """Fused runs returned them, where literal ones are refused."""

    @algorithm
    def grows(x, y, *, steps=12):
        w = constant(4.0)
        for _ in repeat(steps):
            w = 2.0 * w + mean(y)
        return w

    X, y = data(0, 2)
    program = compile(grows, 2, 5, bounds={"w": 5.0})
    computer = Computer.for_programs(program)
    with pytest.raises(CapacityError, match=f"values up to {computer.sizes.values}"):
        computer.run(program, X, y, backend=backend)


def test_a_ball_too_wide_to_tell_a_tie_is_made_finer():
    (node,) = (n for n in compile(algorithm(_compares), 1, 2).fused.gaps)
    wide = Balls(2, nearest={node: 1e-9}, reached={node: 1.0})
    with pytest.raises(UndecidedError, match="cannot be decided"):
        _ties(wide, {node: 1e-6})
    near = Balls(2, nearest={node: 1e-9}, reached={node: 1e-8})
    assert _ties(near, {node: 1e-6}) == [node]
    assert _ties(near, {node: 1e-10}) == []


def _compares(x, y):
    return where(mean(y) > 0.25, mean(x), -mean(x))


def test_a_tie_is_refused():
    def written(x, y, *, tolerance=0.5):
        size = 1.0 + 0.0 * mean(y)
        while while_(size > tolerance):
            size = 0.5 * size
        return size

    program = compile(algorithm(written), 3, 5)
    X, y = data(0, 3)
    near = program.interpreted(X, y, tolerance=0.3).outputs
    assert program.enclosed(X, y, near, tolerance=0.3).turns == 2
    with pytest.raises(PrecisionError, match=r"came within 0 of a tie.*is off by 0.2[56]"):
        program.enclosed(X, y, near, tolerance=0.5)


EQUAL = {
    "relu(z) > 0": (lambda x, y: torch.relu(x[0]) > 0.0, [0, 1, 1, 0]),
    "relu(z) >= 0": (lambda x, y: torch.relu(x[0]) >= 0.0, [1, 1, 1, 1]),
    "relu(z) < 0": (lambda x, y: torch.relu(x[0]) < 0.0, [0, 0, 0, 0]),
    "half of the samples": (lambda x, y: mean(y > 0.0) > 0.5, 0),
    "the largest": (lambda x, y: y >= samples.max(y), [0, 1, 0, 1]),
    "at a place": (lambda x, y: y > samples.at(y, 1), [0, 0, 0, 0]),
    "a 0 beside other samples": (lambda x, y: samples.at(x[1], samples.index()) > 0, [0, 1, 0, 1]),
}


@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize("backend", ["fused", "literal"])
def test_equal_numbers_are_decided_as_the_comparison_says(name, backend):
    """They were refused; and of what is near to a tie nothing is known before the fact."""
    written, wanted = EQUAL[name]
    X = torch.tensor([[-0.5, 0.0], [0.25, 1.0], [0.75, 0.0], [-1.0, 0.5]], dtype=torch.float64)
    y = torch.tensor([-0.5, 0.75, 0.0, 0.75], dtype=torch.float64)
    program = compile(algorithm(written), dim=2, samples=4)
    assert torch.equal(program.reference(X, y), torch.tensor(wanted, dtype=torch.float64))
    result = Computer.for_programs([program]).run(program, X, y, backend=backend)
    assert torch.allclose(result.value, torch.tensor(wanted, dtype=torch.float64), atol=1e-12)
    assert result.enclosure.error < 1e-12
    assert result.certificate.error == math.inf
    assert "came nearer to a tie" in result.certificate.explain()


def test_a_near_tie_is_given_where_the_answer_is_right_all_the_same():
    def larger(x, y):
        return where(y > 0.25, y, 0.25)  # goes on through the jump

    program = compile(algorithm(larger), dim=1, samples=2)
    X = torch.zeros(2, 1, dtype=torch.float64)
    for near in (1e-9, -1e-9, 1e-13):
        result = Computer.for_programs([program]).run(
            program, X, torch.tensor([0.25 + near, 0.5], dtype=torch.float64)
        )
        assert result.enclosure.error < 1e-8
        assert result.certificate.error == math.inf
    jumps = compile(algorithm(lambda x, y: y > 0.25), dim=1, samples=2)
    y = torch.tensor([0.25 + 1e-14, 0.5], dtype=torch.float64)
    with pytest.raises(PrecisionError, match=r"came within 9.\d+e-15 of a tie.*off by 1"):
        Computer.for_programs([jumps]).run(jumps, X, y)


TIES = {
    "a root and its square": "mean(torch.sqrt(x[0] + 2.0) ** 2.0 - x[0] > 2.0)",
    "a third of a sum": "mean(x[0]) / 3.0 + mean(x[0]) / 1.5 > mean(x[0])",
}


@pytest.mark.parametrize("line", TIES.values(), ids=TIES)
def test_a_tie_at_any_precision_is_told_with_its_line(line):
    X, y = data(0, 2, 4)
    scope = {**vars(language), "torch": torch}
    source = f"def written(x, y):\n    return mean(y) + ({line})\n"
    linecache.cache["<ties>"] = (len(source), None, source.splitlines(True), "<ties>")
    exec(builtins.compile(source, "<ties>", "exec"), scope)
    program = compile(algorithm(scope["written"]), dim=2, samples=4)
    with pytest.raises(PrecisionError, match=r"(?s)a tie at any precision.*line 2:") as caught:
        Computer.for_programs([program]).run(program, X, y)
    assert line in str(caught.value)


@pytest.mark.parametrize("outside", ["x", "y", "p"])
def test_what_a_refused_range_advises_is_what_mends_it(outside):
    X, y = data(0, 2, 4)
    given = {"x": X, "y": y, "p": torch.tensor(0.5)}
    given[outside].view(-1)[0] = 3.0
    written = algorithm(lambda x, y, *, p=0.5: mean(p * x) + mean(y))

    def run(**options):
        program = compile(written, dim=2, samples=4, **options)
        return Computer.for_programs([program]).run(program, X, y, p=float(given["p"]))

    with pytest.raises(BoundError, match=f"(?i){outside} has the value 3, outside") as caught:
        run()
    advice = str(caught.value).rsplit("compile with ", 1)[1]
    assert run(**eval(f"dict({advice})")).enclosure.kind == "proven"


def test_a_look_up_that_eps_does_not_allow_is_warned_of_with_what_mends_it():
    def root(x, y):
        m = mean(x * y)
        return torch.sqrt((m * m).sum())  # here

    with pytest.warns(PrecisionWarning, match=r"sqrt.*# here.*off by .*eps = 1e-08") as caught:
        compile(algorithm(root), 3, 5)
    ends = re.search(r"stays in \[(\S+), (\S+)\]", str(caught[0].message))
    assert ends is not None
    low, high = map(float, ends.groups())
    assert caught[0].filename == __file__

    def mended(x, y):
        m = mean(x * y)
        return torch.sqrt(bounded((m * m).sum(), low, high))

    compile(algorithm(mended), 3, 5)  # warnings are errors here


def test_errors_count_in_the_units_of_the_program():
    """Conjugate gradients divide by what may be next to nothing, and hold the quotient small."""

    def written(x, y, *, alpha=0.1, steps=3):
        w, r = language.zeros_like(x), mean(x * y)
        p, rr = +r, (r * r).sum()
        for _ in repeat(steps):
            q = mean(x * (x @ p)) + alpha * p
            a = rr / (bounded((p * q).sum(), 0.0, 4.0) + 1e-6)
            w, r = w + a * p, r - a * q
            new = (r * r).sum()
            p, rr = r + new / (rr + 1e-6) * p, new
        return w

    with pytest.warns(PrecisionWarning) as caught:
        compile(algorithm(written), 3, 12)
    worst = max(float(re.search(r"off by (\S+)", str(w.message))[1]) for w in caught)
    assert worst > 1.0  # where values reach 1
