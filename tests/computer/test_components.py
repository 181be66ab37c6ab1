"""RegisterComponents, shares and the largest value: what is off by less is proven, and attacked.

Every instruction of random programs of choices, minima, reads at a place and the largest of all is
given an error of its own, which is put in the worst way (as in ``test_error_calculus``).
"""

import math
import random
from dataclasses import replace

import pytest
import torch

from iceform.computer import Computer, budget, language
from iceform.computer.compile import Program, compile
from iceform.computer.components import RegisterComponents
from iceform.computer.language import algorithm, mean
from iceform.computer.rounding import below_largest
from tests.computer.test_error_calculus import (
    ROUNDING,
    Moved,
    furthest,
    of_text,
    own_errors,
    shares,
)


def chain(seed: int) -> Program:
    """Values of samples that are chosen, compared, read and averaged, with factors off as well."""
    rng = random.Random(seed)
    lines, names = ["u = torch.tanh(0.5 * y)", "v = torch.exp(0.3 * y) - 1.0"], ["u", "v"]
    for number in range(rng.choice((2, 4, 6))):
        a, b = rng.choice(names), rng.choice(names)
        lines.append(f"w{number} = " + rng.choice((
            f"where(y > -5.0, {a}, {b})", f"where(y > 5.0, {a}, {b})", f"minimum({a}, {b})",
            f"maximum({a}, 0.7 - {b})", f"samples.at({a}, 1)", f"samples.previous({a})",
            f"samples.at({a}, count() - 1 - index())", f"0.6 * {a} - 0.3 * {b}",
            f"torch.sigmoid({b}) * ({a} - {b}) + {b}", f"{b} + 0.25 * (1 + {b}) * ({a} - {b})",
            f"samples.max({a})", f"samples.min({a}) + 0 * y",
        )))  # fmt: skip
        names.append(f"w{number}")
    text = "".join(f"    {line}\n" for line in lines)
    return of_text(f"def written(x, y):\n{text}    return {names[-1]}\n", domain={"y": (-1, 1)})


@pytest.fixture
def but_for_questions(monkeypatch):
    """Own errors, but for those of what asks: relative ones would move any logits."""

    def given(program: Program, level: float) -> dict[object, budget.Budget]:
        found = own_errors(program, level)
        asks = {i for i in found if i.note == "asks" or i.dst.range.size > 1e3}
        keys = {r.register for i in found for r in i.reads() if r.how == "like" and r.apart}
        exact = {i for i in found if i in asks or (i.dst in keys and level > 1e-6)}
        return {i: replace(o, table=0.0 if i in exact else o.table) for i, o in found.items()}

    monkeypatch.setattr("tests.computer.test_error_calculus.own_errors", given)
    return monkeypatch


def check(seeds: range, patch: pytest.MonkeyPatch) -> list[float]:
    found = []
    for seed in seeds:
        for level in (0.02, 1e-4, 1e-9):
            each = shares(chain(seed), level, patch)
            assert all(s <= 1 + ROUNDING for s in each), (seed, level)
            found += each
    return found


def test_no_chain_of_choices_is_moved_further(but_for_questions):
    found = check(range(8), but_for_questions)
    assert len(found) > 12
    assert max(found) > 0.9


@pytest.mark.slow
def test_no_chain_of_many_is_moved_further(but_for_questions):
    assert len(check(range(8, 160), but_for_questions)) > 300


OF_TWO = (
    "where(y > -5.0, u, v)", "minimum(u, v)", "maximum(v, u)",
    "torch.sigmoid(9 * y) * (u - v) + v",
)  # fmt: skip


@pytest.mark.parametrize("turn", OF_TWO)
def test_a_choice_is_off_by_no_more_than_what_it_chooses_from(turn, monkeypatch):
    """Ten of them, one after the other: errors do not add up, and do not double."""
    program = of_text(
        "def written(x, y):\n    u, v = stored(torch.tanh(y)), stored(torch.exp(0.3 * y) - 1.0)\n"
        + f"    u, v = stored({turn}), stored(0.9 * u)\n" * 5
        + "    return u\n"
    )
    own = own_errors(program, 0.0)
    for i in list(own)[:2]:
        own[i] = replace(own[i], table=1e-3)
    monkeypatch.setattr(budget, "budget", lambda *_: own)
    assert furthest(program, own, "value") <= program.certify()[0].error <= 1.01e-3


def test_the_largest_of_all_is_off_by_no_more_than_they_are(monkeypatch):
    program = of_text(
        "def written(x, y):\n    u = stored(torch.tanh(y))\n"
        + "    u = stored(0.5 * y + samples.max(u) - 0.5 * y)\n" * 3
        + "    return samples.min(u)\n"
    )
    own = own_errors(program, 0.0)
    first = next(i for i in own if i.note != "asks")
    own[first] = replace(own[first], table=1e-3)
    monkeypatch.setattr(budget, "budget", lambda *_: own)
    assert furthest(program, own, "value") <= program.certify()[0].error <= 1.01e-3


@pytest.mark.parametrize("sharpness", [3.0, 1e3, 2.0**35])
def test_averages_are_below_the_largest_by_no_more_than_is_said(sharpness):
    """All others as far below as costs most, and logits moved the worst way."""
    n, tightest = 6, 0.0
    for moved in (0.0, 0.125, 0.8):
        for t in torch.linspace(0.01, 5, 200, dtype=torch.float64) / sharpness:
            u = torch.full((n,), -float(t), dtype=torch.float64)
            u[2] = 0.0
            logits = sharpness * u + moved
            logits[2] = -moved
            below = -float(torch.softmax(logits, 0) @ u)
            bound = below_largest(moved, sharpness, n)
            assert below <= bound
            tightest = max(tightest, below / bound)
    assert tightest > 0.1
    assert below_largest(1.01, sharpness, n) == math.inf


def test_a_key_s_range_and_error_are_not_its_value_s():
    program = of_text("def written(x, y):\n    return samples.at(100.0 * torch.exp(y), 1)\n")
    parts = RegisterComponents(program.fused.code, program.domain)
    (held,) = {r.register for i in parts.made.values() for r in i.reads() if r.how == "like"}
    place, square, value = parts.ranges(held)
    assert 0 <= place.low <= place.high <= 2.1 / 64
    assert square.high <= 1.1 / 64
    assert value.high > 100


def test_a_query_and_keys_that_are_both_off_move_logits(monkeypatch):
    """The query is next to 0 and keys are alike, so neither of them moves a logit alone."""
    program = of_text(
        "def written(x, y):\n    key = stored(0.05 * torch.tanh(y))\n"
        "    query = stored(0.05 * torch.tanh(mean(y)))\n"
        "    return attend(query, key, 1.0 * index())\n"
    )
    own = own_errors(program, 0.0)
    key, query = (next(i for i in own if i.note == "stored" and i.dst.samples == s) for s in (1, 0))
    own |= {key: replace(own[key], table=0.5), query: replace(own[query], table=0.5)}
    monkeypatch.setattr(budget, "budget", lambda *_: own)
    still = Moved(program, [])
    virtual = dict(
        zip(program.assembled.assembly.instructions, program.assembled.virtual, strict=True)
    )
    signs = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)[:, None]
    moves = [
        0.5 * (signs.expand(shape) if len(shape) == 2 and shape[0] == 3 else torch.ones(shape))
        * (virtual[i] in (key, query))
        for i, shape in still.made
    ]  # fmt: skip
    off = float((Moved(program, moves).answers()["value"] - still.answers()["value"]).abs().max())
    assert 0.1 < off <= program.certify()[0].error


def steeper_at_zero(x, *, steps=60):
    """A turn brings together what features multiply, and drives apart what lies beyond them."""
    w = language.zeros_like(x)
    for _ in language.repeat(steps):
        w = (1.5 - mean(x * x)) * w + 0.05 * x
    return w.sum()


@pytest.mark.filterwarnings("ignore::iceform.errors.PrecisionWarning")
def test_what_loops_carry_beyond_vectors_is_multiplied_by_what_turns_do_to_zeros():
    """Features stay in [0.9, 1], where a turn halves errors; of zeros it makes 1.5 times them.

    How much that is in a run hangs on the last bits of its tables: 1e-3 has been seen.
    """
    told = {"domain": {"x": (0.9, 1.0)}, "bounds": {"w": 2.0}}
    program = compile(algorithm(steeper_at_zero), 3, 2, **told)
    wide = compile(algorithm(lambda x: 0.5 * mean(x)), 64, 2)
    x = torch.tensor([[0.95, 0.9, 1.0], [0.92, 1.0, 0.93]], dtype=torch.float64)
    for programs in ([program], [program, wide]):
        computer = Computer.for_programs(programs)
        few, many = (computer.run(program, x, steps=n, backend="fused") for n in (20, 60))
        for run in (few, many):
            assert run.enclosure.error <= run.certificate.error
        assert few.certificate.error < 1e-4
        assert many.certificate.error > 1.5**40 * few.certificate.error / 10


def test_where_zeros_are_within_the_domain_what_lies_beyond_is_like_the_rest():
    """The same with features that may be 0: certificates do not depend on the computer's width."""
    told = {"domain": {"x": (0.0, 1.0)}, "bounds": {"w": 2.0}}

    def still(x, *, steps=200):
        w = language.zeros_like(x)
        for _ in language.repeat(steps):
            w = w - 0.5 * mean(x * x) * w + 0.05 * x
        return w.sum()

    program = compile(algorithm(still), 3, 2, **told)
    narrow, broad = (
        program.certified_on(width, torch.float64, "fused", {"steps": 200})[0].error
        for width in (4, 64)
    )
    assert narrow <= broad < 100 * narrow
